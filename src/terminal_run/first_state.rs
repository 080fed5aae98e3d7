//! The first report to a terminal: the session, and the modes that it may switch to.

use super::TerminalJob;
use super::control::TerminalReport;
use crate::acp::{SessionId, SessionMode, SessionModeState};
use crate::session::SessionSnapshot;
use crate::text;

pub(super) fn of(session: &SessionId, job: &TerminalJob<'_>, snapshot: SessionSnapshot) -> TerminalReport {
    let limit = snapshot.mode_limit();
    let SessionModeState { current_mode_id, available_modes, .. } = snapshot.modes;
    TerminalReport::State {
        session: session.to_string(),
        program: text::visible_line(&job.program),
        folder: text::visible_line(&job.cwd.to_string_lossy()),
        mode: current_mode_id.to_string(),
        limit,
        is_confirmed: true,
        modes: available_modes.iter().map(|mode| mode.id.to_string()).collect(),
        mode_descriptions: available_modes.into_iter().map(description).collect(),
        is_read_only: snapshot.is_read_only,
        open_questions: 0,
    }
}

fn description(mode: SessionMode) -> String {
    text::visible_line(&mode.description.unwrap_or(mode.name))
}
