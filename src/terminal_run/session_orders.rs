//! Orders of a terminal that the session carries out while its program runs, and their reports.

use std::path::PathBuf;

use super::control::{ChangedPath, TerminalReport};
use super::recording;
use crate::acp::SessionModeId;
use crate::process::HostPattern;
use crate::session::{ChangeSoFar, SessionHandle, Undone};
use crate::text;

/// The sender of the order, and the report for it.
pub(super) type SessionReport = (u64, TerminalReport);

pub(super) async fn changes_so_far(handle: SessionHandle, terminal: u64) -> SessionReport {
    let report = match handle.changes_so_far().await {
        Ok(changes) => {
            let changes = changes.into_iter();
            let paths = changes.map(|ChangeSoFar { path, kind, diff }| ChangedPath { path, kind, diff });
            TerminalReport::Changes(paths.collect())
        }
        Err(error) => TerminalReport::Refused(error.to_string()),
    };
    (terminal, report)
}

pub(super) async fn undo_so_far(
    handle: SessionHandle,
    terminal: u64,
    path: Option<PathBuf>,
) -> SessionReport {
    let report = match handle.undo_so_far(path).await {
        Ok(Undone { files, remaining_folders, .. }) => TerminalReport::Undone {
            count: files.len(),
            remaining_folders: remaining_folders
                .iter()
                .map(|folder| text::visible_line(&folder.to_string_lossy()))
                .collect(),
        },
        Err(error) => TerminalReport::Refused(error.to_string()),
    };
    (terminal, report)
}

pub(super) async fn allow_host(handle: SessionHandle, terminal: u64, host: String) -> SessionReport {
    let report = match host.parse::<HostPattern>() {
        Err(error) => TerminalReport::Refused(format!("{host:?}: {error}")),
        Ok(pattern) => match handle.allow_host(pattern).await {
            Ok(()) => TerminalReport::HostAllowed(host),
            Err(error) => TerminalReport::Refused(error.to_string()),
        },
    };
    (terminal, report)
}

/// The mode, and true if all that it denies has ended: `None` if the mode was set before.
pub(super) type ModeSet = (String, Option<bool>);

/// Returns the sender with the mode, or with why it was refused.
pub(super) async fn set_mode(
    handle: &SessionHandle,
    terminal: u64,
    mode: String,
) -> (u64, Result<ModeSet, String>) {
    let id = SessionModeId::new(mode);
    if let Ok(Some(refusal)) = recording::refusal(handle, &id).await {
        return (terminal, Err(format!("the mode stays as it is: {refusal}")));
    }
    let outcome = match handle.set_mode_confirmed(id.clone()).await {
        Ok(is_confirmed) => match handle.snapshot().await {
            Ok(snapshot) => Ok((snapshot.modes.current_mode_id.to_string(), is_confirmed)),
            Err(_) => Ok((id.to_string(), is_confirmed)),
        },
        Err(error) => Err(error.to_string()),
    };
    (terminal, outcome)
}
