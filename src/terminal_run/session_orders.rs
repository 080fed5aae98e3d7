//! Orders of a terminal that the session carries out while its program runs, and their reports.

use std::path::PathBuf;

use super::control::{ChangedPath, TerminalReport};
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
