//! Encodes background work: terminals and sub-agents that a session's states list. Pure.

use super::updates;
use crate::acp::{MaybeUndefined, v2};
use crate::client::{BackgroundWork, EndedWork};

/// Returns the update that announces the work, and its item in states. Another update announces a sub-agent.
pub(super) fn began(work: BackgroundWork) -> (Option<v2::SessionUpdate>, v2::BackgroundWork) {
    match work {
        BackgroundWork::Terminal { id, command, cwd } => {
            let cancel = v2::TerminalCapabilities::new().cancel(v2::TerminalCancelCapabilities::new());
            let mut update = v2::TerminalUpdate::new(id.clone()).command(command).capabilities(cancel);
            update.cwd = MaybeUndefined::Value(cwd.into());
            (Some(v2::SessionUpdate::TerminalUpdate(update)), terminal(id))
        }
        BackgroundWork::Subagent(session) => {
            (None, v2::BackgroundWork::Subagent(v2::BackgroundSubagent::new(session.0)))
        }
    }
}

/// Returns the update that ends the work, and its item in states. Another update ends a sub-agent.
pub(super) fn ended(work: EndedWork) -> (Option<v2::SessionUpdate>, v2::BackgroundWork) {
    match work {
        EndedWork::Terminal { id, exit } => {
            let mut status = v2::TerminalExitStatus::new();
            (status.exit_code, status.signal) = (exit.code.map(i64::from), exit.signal);
            let mut update = v2::TerminalUpdate::new(id.clone()).exit_status(status);
            update.capabilities = MaybeUndefined::Null;
            (Some(v2::SessionUpdate::TerminalUpdate(update)), terminal(id))
        }
        EndedWork::Subagent(session) => {
            (None, v2::BackgroundWork::Subagent(v2::BackgroundSubagent::new(session.0)))
        }
    }
}

pub(super) fn output(id: String, text: &str) -> v2::SessionUpdate {
    v2::SessionUpdate::TerminalOutputChunk(updates::terminal_output(id, text))
}

pub(super) fn lists_terminal(listed: &[v2::BackgroundWork], id: &str) -> bool {
    listed.contains(&terminal(id.to_owned()))
}

fn terminal(id: String) -> v2::BackgroundWork {
    v2::BackgroundWork::Terminal(v2::BackgroundTerminal::new(id))
}
