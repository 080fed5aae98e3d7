//! The changes of an external agent in a turn that still runs: their diffs, and their undo. The record of the turn
//! stays as it is, so an undone change is none any more when the turn ends.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use super::checkpoint::{not_undone, relative};
use super::intents;
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::line_diff::{hunks, lines, unified};
use crate::session::event_log::EventLog;
use crate::session::handle::{ChangeSoFar, DiffKind, Undone};
use crate::store::entry::ChainEntry;
use crate::text;
use crate::workspace::{Changed, Changes, FileState, Intent, RestoreError, Workspace, changes_so_far};

/// Most files in the list, and most bytes of their diffs: of one file, and of all.
const MAX_FILES: usize = 1_000;
const MAX_DIFF: usize = 128 * 1024;
const MAX_DIFFS: usize = 512 * 1024;

/// Sends the changes. Reads files on another thread.
pub(crate) fn send_list(
    record: Option<&Path>,
    workspace: &Workspace,
    reply: oneshot::Sender<Vec<ChangeSoFar>>,
) {
    let (record, workspace) = (record.map(Path::to_owned), workspace.clone());
    tokio::task::spawn_blocking(move || {
        let list = record.map(|record| list(&workspace, &record));
        // The receiver may be gone.
        let _ = reply.send(list.unwrap_or_default());
    });
}

/// Returns the changes, sorted by path. Reads files.
fn list(workspace: &Workspace, folder: &Path) -> Vec<ChangeSoFar> {
    let Changes { changed, contents, .. } = changes_so_far(workspace, folder);
    let contents: HashMap<String, Vec<u8>> = contents.into_iter().collect();
    let mut remaining = MAX_DIFFS;
    let list = changed.into_iter().take(MAX_FILES).map(|changed| {
        let diff = match diff(workspace, &changed, &contents) {
            diff if diff.len() <= remaining => diff,
            _ => "The changes are too large to be shown.".to_owned(),
        };
        remaining = remaining.saturating_sub(diff.len());
        let kind = match (&changed.before, &changed.after) {
            (FileState::Absent, _) => DiffKind::Created,
            (_, FileState::Absent) => DiffKind::Deleted,
            _ => DiffKind::Changed,
        };
        ChangeSoFar { path: changed.path, kind, diff }
    });
    list.collect()
}

fn diff(workspace: &Workspace, changed: &Changed, contents: &HashMap<String, Vec<u8>>) -> String {
    let old = match &changed.before {
        FileState::File { hash, .. } => contents.get(hash).cloned(),
        FileState::Absent => Some(Vec::new()),
        FileState::Folder { .. } | FileState::Link { .. } => return description(changed),
    };
    let new = match &changed.after {
        FileState::File { .. } => workspace.current_content(&changed.path),
        FileState::Absent => Some(Vec::new()),
        FileState::Folder { .. } | FileState::Link { .. } => return description(changed),
    };
    let (Some(Ok(old)), Some(Ok(new))) = (old.map(String::from_utf8), new.map(String::from_utf8)) else {
        return "The content is not shown: it is no text, or has just changed.".into();
    };
    if old == new {
        return description(changed);
    }
    let (old, new) = (lines(&old), lines(&new));
    let unified = unified(("", ""), &old, &new, &hunks(&old, &new));
    let start = unified.find("@@").unwrap_or_default();
    match text::visible(&unified[start..]) {
        diff if diff.len() <= MAX_DIFF => diff,
        diff => format!("{}\nThe rest of the changes is not shown.", text::start(&diff, MAX_DIFF)),
    }
}

/// Changes besides the text of a file.
fn description(Changed { before, after, .. }: &Changed) -> String {
    format!("Before: {}.\nNow: {}.", described(before), described(after))
}

fn described(state: &FileState) -> String {
    match state {
        FileState::Absent => "nothing".into(),
        FileState::File { mode, .. } => format!("a file with the permissions {mode:o}"),
        FileState::Folder { mode } => format!("a folder with the permissions {mode:o}"),
        FileState::Link { to } => format!("a link to {}", text::quoted_name(&to.to_string_lossy())),
    }
}

/// Undoes the change of one path in the running turn, or all changes.
///
/// # Errors
/// Returns an error if nothing was restored, or, as the message says, not all.
pub(crate) async fn undo(
    folder: PathBuf,
    path: Option<PathBuf>,
    workspace: &Workspace,
    log: &mut EventLog,
) -> Result<Undone, AgentError> {
    let (files, turn) = (workspace.clone(), log.turn());
    let read = tokio::task::spawn_blocking(move || {
        let mut changes = changes_so_far(&files, &folder);
        changes.changed.retain(|changed| path.as_ref().is_none_or(|path| *path == changed.path));
        changes
    });
    let Changes { changed, contents, uncovered, .. } = read.await.map_err(|_| AgentError::Internal)?;
    if changed.is_empty() {
        return Err(not_undone("there is no such change any more"));
    }
    let contents: HashMap<String, Vec<u8>> = contents.into_iter().collect();
    let (intent, files) = (Intent::of_restore(&changed), workspace.clone());
    let token = intent.token.clone();
    let restore = move || {
        let remaining_folders = files.restore(&changed, |hash| contents.get(hash).cloned(), &token)?;
        let restored = changed.into_iter().map(|changed| changed.path).collect();
        Ok(Undone { turn, files: restored, remaining_folders, uncovered, staged: Vec::new() })
    };
    let outcome: Result<Result<Undone, RestoreError>, _> =
        intents::under_intent(turn, intent, restore, log).await;
    let undone = match outcome.map_err(|_| AgentError::Internal)? {
        Ok(undone) => undone,
        Err(error @ RestoreError::Stopped { .. }) => {
            return Err(AgentError::InvalidRequest(format!("the changes were only partly undone: {error}")));
        }
        Err(error) => return Err(not_undone(&error.to_string())),
    };
    log.chain(&ChainEntry::Undo { turn, files: undone.files.len() as u64, at: log.now_ms() });
    let names = undone.files.iter().map(|file| relative(file, workspace)).collect();
    log.record(SessionEvent::Undone { turn, files: names }, None);
    log.save().await;
    Ok(undone)
}
