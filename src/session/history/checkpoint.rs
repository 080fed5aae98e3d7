//! Records what a turn changes in the workspace, and undoes it.
//!
//! Only the user undoes. Within a session the current mode must allow the change.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::intents;
use crate::acp::MessageId;
use crate::bounded_file::read_below;
use crate::busy::BusyGuard;
use crate::error::AgentError;
use crate::event::{NoticeKind, SessionEvent};
use crate::git_folder::git_index;
use crate::lazy_channel::LazyChannel;
use crate::mode::ShellUse;
use crate::permission::{self, CallFacts, Effect, Target};
use crate::session::DEADLINE;
use crate::session::due_checks::ChangedFiles;
use crate::session::event_log::EventLog;
use crate::session::handle::Undone;
use crate::session::mode::ancestry::{Ancestry, Parent, TurnChanges};
use crate::session::mode::decider::Decider;
use crate::session::prompt_end::LastTurn;
use crate::store::Row;
use crate::store::checkpoint::{Checkpoint, FoundCheckpoint};
use crate::store::entry::ChainEntry;
use crate::tool::SnapshotHandle;
use crate::workspace::{
    Changed, Changes, Intent, RestoreError, Workspace, WorkspaceSnapshot, changed_files, create_record_folder,
};

/// Files that are compared with git's index after an undo, and the bytes of each.
const MAX_COMPARED: usize = 200;
const MAX_BLOB: u64 = 10 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undoer {
    /// The current mode applies.
    Session,
    CommandLine,
}

#[derive(Default)]
pub(crate) struct Checkpoints {
    /// Unbounded: a call sends one or two.
    changes: LazyChannel<TurnChanges>,
    snapshot: Option<SnapshotHandle>,
    /// True if commands are brokered, so that their changes are recorded instead of found by comparison.
    records_commands: bool,
    /// For the checks.
    changed: ChangedFiles,
    /// The last turn of which changes may be unknown, because their record failed.
    unrecorded_turn: Option<u64>,
}

impl Checkpoints {
    pub(crate) fn new(records_commands: bool) -> Self {
        Self { records_commands, ..Self::default() }
    }

    pub(crate) async fn next(&mut self) -> Option<TurnChanges> {
        self.changes.recv().await
    }

    pub(crate) fn sender(&self) -> mpsc::UnboundedSender<TurnChanges> {
        self.changes.sender()
    }

    /// `None` in a sub-agent, or if no snapshot exists yet.
    pub(crate) fn own_snapshot(&self) -> Option<SnapshotHandle> {
        self.snapshot.clone()
    }

    /// Records the changes of calls that end after the session, until a deadline.
    pub(crate) async fn record_last(&mut self, ancestry: &Ancestry, log: &mut EventLog) {
        // The channel closes once no call can change anything.
        let Some(mut changes) = self.changes.take_receiver() else { return };
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            match tokio::time::timeout_at(deadline, changes.recv()).await {
                Ok(Some((turn, changes))) => self.record(turn, *changes, ancestry, log),
                Ok(None) => return,
                Err(_) => {
                    let text =
                        "Changes of a call that was still running when the session closed are unknown.";
                    return record_uncovered(text.to_owned(), ancestry, log);
                }
            }
        }
    }

    /// Records which changes of a command are not covered. `None` if the shell is restricted or the store is
    /// in memory.
    pub(crate) async fn snapshot_for(
        &mut self,
        shell: ShellUse,
        ancestry: &Ancestry,
        workspace: &Workspace,
        log: &EventLog,
    ) -> Option<SnapshotHandle> {
        if shell != ShellUse::Full {
            return None;
        }
        let text = if log.store().is_in_memory() {
            "Changes by commands are unknown: this session is stored in memory only."
        } else if self.records_commands {
            "Commands ran: undo does not cover the state of version control."
        } else {
            "Commands ran: undo does not cover files ignored by .gitignore or the state of version control."
        };
        record_uncovered(text.to_owned(), ancestry, log);
        self.shared_snapshot(ancestry, workspace, log).await
    }

    /// Creates the snapshot on first use. Sub-agents share it.
    pub(crate) async fn shared_snapshot(
        &mut self,
        ancestry: &Ancestry,
        workspace: &Workspace,
        log: &EventLog,
    ) -> Option<SnapshotHandle> {
        if ancestry.parent.is_none()
            && self.snapshot.is_none()
            && !log.store().is_in_memory()
            && let Some(folder) = log.store().private_folder().await
        {
            let folder = folder.join(&*log.id().0);
            self.snapshot = Some(if self.records_commands {
                SnapshotHandle::of_records(folder, workspace)
            } else {
                SnapshotHandle::new(WorkspaceSnapshot::new(folder, workspace))
            });
        }
        self.made_snapshot(ancestry)
    }

    pub(crate) fn made_snapshot(&self, ancestry: &Ancestry) -> Option<SnapshotHandle> {
        match &ancestry.parent {
            Some(parent) => parent.snapshot.clone(),
            None => self.snapshot.clone(),
        }
    }

    /// Returns the changes of the last turn. The caller adds the rest.
    pub(crate) async fn last_turn(&mut self, workspace: &Workspace, decider: &mut Decider) -> LastTurn {
        self.record_reported(&decider.policy.ancestry, &mut decider.log);
        let log = &decider.log;
        let (changed_files, uncovered) = match log.store().checkpoint(log.id(), Some(log.turn())).await {
            Ok(FoundCheckpoint::Checkpoint(Checkpoint { changed, uncovered, .. })) => {
                let files = changed_files(&changed);
                (files.iter().map(|file| relative(file, workspace)).collect(), uncovered)
            }
            Ok(FoundCheckpoint::Nothing { uncovered, .. }) => (Vec::new(), uncovered),
            Err(error) => (Vec::new(), vec![format!("The changes could not be read: {error}.")]),
        };
        LastTurn {
            turn: log.turn(),
            changed_files,
            uncovered,
            has_unrecorded_changes: self.unrecorded_turn == Some(log.turn()),
            unrecorded: log.failure().map(str::to_owned),
            ..LastTurn::default()
        }
    }

    fn record_reported(&mut self, ancestry: &Ancestry, log: &mut EventLog) {
        while let Some((turn, changes)) = self.changes.try_recv() {
            self.record(turn, *changes, ancestry, log);
        }
    }

    /// Records changes. If their record has failed, the user and the audit learn of it.
    pub(crate) fn record(
        &mut self,
        turn: u64,
        mut changes: Changes,
        ancestry: &Ancestry,
        log: &mut EventLog,
    ) {
        self.changed.add(&changes);
        if ancestry.parent.is_none() && !changes.unrecorded.is_empty() {
            self.unrecorded_turn = Some(turn);
            for why in std::mem::take(&mut changes.unrecorded) {
                log.chain(&ChainEntry::Unrecorded { turn, why: why.clone(), at: log.now_ms() });
                let message_id = MessageId::new(format!("msg_{turn}_unrecorded_{}", log.head().length));
                log.record_notice(NoticeKind::Warning, message_id, why.clone());
                changes.uncovered.push(why);
            }
        }
        record_changes(turn, changes, ancestry, log);
    }

    /// Returns the files that have changed since the last call of this method.
    pub(crate) fn take_changed(&mut self) -> ChangedFiles {
        std::mem::take(&mut self.changed)
    }

    /// Undoes the given turn, or the last one that changed something. No turn may be running. After an error,
    /// no file is restored unless the message says otherwise.
    pub(crate) async fn undo(
        &mut self,
        turn: Option<u64>,
        who: Undoer,
        decider: &mut Decider,
        workspace: &Workspace,
    ) -> Result<Undone, AgentError> {
        self.record_reported(&decider.policy.ancestry, &mut decider.log);
        let log = &decider.log;
        let checkpoint = log.store().checkpoint(log.id(), turn).await;
        let checkpoint = match checkpoint.map_err(|_| AgentError::Unreadable)? {
            FoundCheckpoint::Checkpoint(checkpoint) => checkpoint,
            FoundCheckpoint::Nothing { was_undone, uncovered } => {
                let mut message = match turn {
                    Some(turn) if was_undone => format!("turn {turn} was already undone"),
                    Some(turn) => format!("turn {turn} has changed nothing that can be undone"),
                    None => "there is nothing to undo".into(),
                };
                for sentence in &uncovered {
                    message = format!("{message}. {}", sentence.trim_end_matches('.'));
                }
                return Err(not_undone(&message));
            }
        };
        if let (Undoer::Session, Some(why)) = (who, why_not(&checkpoint.changed, decider, workspace)) {
            return Err(not_undone(&why));
        }
        let turn = checkpoint.turn;
        // Deterministic runs wait for this guard.
        let _busy = BusyGuard::begin();
        let intent = Intent::of_restore(&checkpoint.changed);
        let (token, files) = (intent.token.clone(), workspace.clone());
        let outcome = intents::under_intent(
            turn,
            intent,
            move || restore_checkpoint(&files, checkpoint, &token),
            &mut decider.log,
        );
        let outcome = outcome.await.map_err(|error| {
            tracing::error!(%error, "undo panicked");
            AgentError::Internal
        })?;
        match outcome {
            Ok(mut undone) => {
                undone.turn = turn;
                Ok(undone)
            }
            Err(error @ RestoreError::Stopped { .. }) => {
                Err(AgentError::InvalidRequest(format!("turn {turn} was only partly undone: {error}")))
            }
            Err(error) => Err(not_undone(&format!("turn {turn}: {error}"))),
        }
    }
}

/// Creates a folder for the record of an external agent's changes. `None` if the store is in memory, or the folder
/// cannot be created: the session then reports that changes are unknown.
pub(crate) async fn record_folder(log: &EventLog) -> Option<PathBuf> {
    let folder = log.store().private_folder().await?.join(format!("{}-agent", log.id().0));
    let created = create_record_folder(&folder);
    created.inspect_err(|error| tracing::warn!(%error, "an agent's changes cannot be recorded")).ok()?;
    Some(folder)
}

pub(crate) fn not_undone(why: &str) -> AgentError {
    AgentError::InvalidRequest(format!("nothing was undone: {why}"))
}

/// Changes of a sub-agent belong to the parent's turn.
pub(crate) fn record_changes(turn: u64, changes: Changes, ancestry: &Ancestry, log: &EventLog) {
    if let Some(Parent { turn, changes: of_parent, .. }) = &ancestry.parent {
        // The parent session may have ended.
        let _ = of_parent.send((*turn, Box::new(changes)));
        return;
    }
    log.queue(Row::Changes { session: log.id().clone(), turn, changes });
}

pub(crate) fn record_uncovered(text: String, ancestry: &Ancestry, log: &EventLog) {
    record_changes(log.turn(), Changes { uncovered: vec![text], ..Changes::default() }, ancestry, log);
}

/// Returns `None` if the current mode allows restoring these files.
pub(crate) fn why_not(changed: &[Changed], decider: &Decider, workspace: &Workspace) -> Option<String> {
    let roots = workspace.roots();
    let targets = changed.iter().map(|Changed { path, .. }| Target {
        inside: roots.iter().find_map(|root| path.strip_prefix(root).ok()).map(Into::into),
        path: path.clone(),
    });
    let facts = CallFacts { targets: targets.collect(), ..CallFacts::of_tool("undo", Effect::Edit) };
    let outside: Vec<String> = facts
        .targets
        .iter()
        .filter(|target| target.inside.is_none())
        .map(|target| target.path.display().to_string())
        .collect();
    if !outside.is_empty() {
        return Some(format!(
            "the turn changed files outside the session's current folders: {}",
            outside.join(", ")
        ));
    }
    let modes = decider.policy.ceilings().modes;
    // Undo is not a tool of the model: tool lists, permission rules and consent do not apply.
    let tighter = modes.iter().find(|mode| !permission::may_change(mode, &facts));
    if tighter.is_none() && !modes.is_empty() {
        return None;
    }
    let (on, undo) = (&decider.policy.mode, format!("`modegate sessions undo {}`", decider.log.id()));
    Some(match tighter.filter(|mode| *mode.id != *on.0) {
        Some(ceiling) => format!(
            "{on} mode is limited by {} mode here, which does not allow changes to these files: run {undo}",
            ceiling.id
        ),
        None => format!(
            "{on} mode does not allow changes to these files: switch to a mode that does, or run {undo}"
        ),
    })
}

/// Records an undo for the chain, the store and the client. Returns a note for the model.
pub(crate) async fn record_undone(undone: &Undone, workspace: &Workspace, log: &mut EventLog) -> String {
    let (turn, at) = (undone.turn, log.now_ms());
    log.chain(&ChainEntry::Undo { turn, files: undone.files.len() as u64, at });
    if let Err(error) = log.store().mark_undone(log.id(), turn, at).await {
        tracing::warn!(%error, "cannot record the undo");
    }
    let files: Vec<String> = undone.files.iter().map(|file| relative(file, workspace)).collect();
    let note = undone_note(&files) + &staged_note(&undone.staged, workspace);
    log.record(SessionEvent::Undone { turn, files }, None);
    note
}

/// Records that the changes of an interrupted command are unknown.
pub(crate) fn record_interrupted_call(tool: Option<&str>, title: &str, ancestry: &Ancestry, log: &EventLog) {
    if tool == Some("shell") {
        let text = format!("The changes of `{title}` before its interruption are unknown.");
        record_uncovered(text, ancestry, log);
    }
}

pub(crate) fn undone_note(files: &[String]) -> String {
    format!("The user has undone your changes of an earlier turn. Restored files: {}.", files.join(", "))
}

fn staged_note(staged: &[PathBuf], workspace: &Workspace) -> String {
    if staged.is_empty() {
        return String::new();
    }
    let names: Vec<String> = staged.iter().map(|file| relative(file, workspace)).collect();
    format!(
        " git's index still has your undone versions of: {}. Unstage them before you commit, if they are not wanted.",
        names.join(", ")
    )
}

/// The git objects of files as a turn left them.
fn blobs(workspace: &Workspace, changed: &[Changed]) -> Vec<(PathBuf, git_index::BlobId)> {
    let files = changed_files(changed).into_iter().take(MAX_COMPARED);
    files
        .filter_map(|file| {
            let content = read_below(workspace.cwd(), &file, MAX_BLOB).ok()?;
            Some((file, git_index::BlobId::of(&content)))
        })
        .collect()
}

/// Files of which git's index has the given versions.
fn staged(workspace: &Workspace, blobs: &[(PathBuf, git_index::BlobId)]) -> Vec<PathBuf> {
    let Some(index) = git_index::GitIndex::of(workspace.cwd()) else { return Vec::new() };
    let staged = blobs.iter().filter(|(file, blob)| index.blob(file) == Some(blob));
    staged.map(|(file, _)| file.clone()).collect()
}

fn restore_checkpoint(
    workspace: &Workspace,
    checkpoint: Checkpoint,
    token: &str,
) -> Result<Undone, RestoreError> {
    let Checkpoint { turn, changed, contents, uncovered } = checkpoint;
    let contents: HashMap<String, Vec<u8>> = contents;
    let blobs = blobs(workspace, &changed);
    let remaining_folders = workspace.restore(&changed, |hash| contents.get(hash).cloned(), token)?;
    let staged = staged(workspace, &blobs);
    Ok(Undone { turn, files: changed_files(&changed), remaining_folders, uncovered, staged })
}

pub(crate) fn relative(file: &Path, workspace: &Workspace) -> String {
    file.strip_prefix(workspace.cwd()).unwrap_or(file).display().to_string()
}
