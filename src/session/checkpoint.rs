//! Records what a turn changes in the workspace, and undoes it.
//!
//! Only the user undoes. Within a session the current mode must allow the change.

use std::collections::HashMap;
use std::path::PathBuf;

use tokio::sync::mpsc;

use super::actor::{Actor, Change};
use super::ancestry::Parent;
use super::change_mode::DEADLINE;
use super::handle::Undone;
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::mode::ShellUse;
use crate::permission::{self, CallFacts, Effect, Target};
use crate::store::Row;
use crate::store::checkpoint::{Checkpoint, Found};
use crate::store::entry::Entry;
use crate::tool::{BusyGuard, SnapshotHandle};
use crate::workspace::{
    Changed, Changes, FileState, Intent, RestoreError, Workspace, WorkspaceSnapshot, compose,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undoer {
    /// The current mode applies.
    Session,
    CommandLine,
}

pub(super) struct Checkpoints {
    /// Unbounded: a call sends one or two.
    pub(super) changes: (mpsc::UnboundedSender<Change>, mpsc::UnboundedReceiver<Change>),
    pub(super) snapshot: Option<SnapshotHandle>,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { changes: mpsc::unbounded_channel(), snapshot: None }
    }
}

impl Actor {
    /// Changes of a sub-agent belong to the parent's turn.
    pub(super) fn record_changes(&mut self, turn: u64, changes: Changes) {
        if let Some(Parent { turn, changes: of_parent, .. }) = &self.policy.ancestry.parent {
            let _ = of_parent.send((*turn, changes));
            return;
        }
        let session = self.log.id.clone();
        self.log.store.post(Row::Changes { session, turn, changes });
    }

    pub(super) async fn record_last_changes(&mut self) {
        // Without this sender, the channel closes once no call can change anything.
        (self.checkpoints.changes.0, _) = mpsc::unbounded_channel();
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            match tokio::time::timeout_at(deadline, self.checkpoints.changes.1.recv()).await {
                Ok(Some((turn, changes))) => self.record_changes(turn, changes),
                Ok(None) => return,
                Err(_) => {
                    let text =
                        "Changes of a call that was still running when the session closed are unknown.";
                    let uncovered = vec![text.to_owned()];
                    return self.record_changes(self.log.turns, Changes { uncovered, ..Changes::default() });
                }
            }
        }
    }

    /// Records which changes of a command are not covered. `None` if the shell is restricted or the store is
    /// in memory.
    pub(super) async fn snapshot_handle(&mut self, shell: ShellUse) -> Option<SnapshotHandle> {
        if shell != ShellUse::Full {
            return None;
        }
        let text = if self.log.store.is_in_memory() {
            "Changes by commands are unknown: this session is stored in memory only."
        } else {
            "Commands ran: undo does not cover files ignored by .gitignore or the state of version control."
        };
        let (turn, uncovered) = (self.log.turns, vec![text.to_owned()]);
        self.record_changes(turn, Changes { uncovered, ..Changes::default() });
        self.shared_snapshot().await
    }

    /// Creates the snapshot on first use. Sub-agents share it.
    pub(super) async fn shared_snapshot(&mut self) -> Option<SnapshotHandle> {
        if let Some(parent) = &self.policy.ancestry.parent {
            return parent.snapshot.clone();
        }
        if self.checkpoints.snapshot.is_none()
            && !self.log.store.is_in_memory()
            && let Some(folder) = self.log.store.private_folder().await
        {
            let folder = folder.join(&*self.log.id.0);
            self.checkpoints.snapshot =
                Some(SnapshotHandle::new(WorkspaceSnapshot::new(folder, &self.workspace)));
        }
        self.checkpoints.snapshot.clone()
    }

    pub(super) fn made_snapshot(&self) -> Option<SnapshotHandle> {
        match &self.policy.ancestry.parent {
            Some(parent) => parent.snapshot.clone(),
            None => self.checkpoints.snapshot.clone(),
        }
    }

    /// Undoes the given turn, or the last one that changed something.
    ///
    /// # Errors
    /// Returns an error if a turn is running, the mode forbids the change, or files have changed since. No
    /// file is restored unless the message says otherwise.
    pub(super) async fn undo(&mut self, turn: Option<u64>, who: Undoer) -> Result<Undone, AgentError> {
        let refused = |text: String| Err(AgentError::InvalidRequest(format!("nothing was undone: {text}")));
        if self.turns.running.is_some() {
            return refused("a turn is running: cancel it first".into());
        }
        while let Ok((turn, changes)) = self.checkpoints.changes.1.try_recv() {
            self.record_changes(turn, changes);
        }
        let found = self.log.store.checkpoint(&self.log.id, turn).await;
        let checkpoint = match found.map_err(|_| AgentError::Unreadable)? {
            Found::Checkpoint(checkpoint) => checkpoint,
            Found::Nothing { was_undone, uncovered } => {
                let mut message = match turn {
                    Some(turn) if was_undone => format!("turn {turn} was already undone"),
                    Some(turn) => format!("turn {turn} has changed nothing that can be undone"),
                    None => "there is nothing to undo".into(),
                };
                for sentence in &uncovered {
                    message = format!("{message}. {}", sentence.trim_end_matches('.'));
                }
                return refused(message);
            }
        };
        if let (Undoer::Session, Some(why)) = (who, self.why_not(&checkpoint.changed)) {
            return refused(why);
        }
        let workspace = self.workspace.clone();
        let turn = checkpoint.turn;
        // Deterministic runs wait for this guard.
        let _busy = BusyGuard::begin();
        let intent = Intent::of_restore(&checkpoint.changed);
        let token = intent.token.clone();
        let done =
            self.under_intent(turn, intent, move || restore_checkpoint(&workspace, checkpoint, &token)).await;
        let outcome = done.map_err(|error| {
            tracing::error!(%error, "undo panicked");
            AgentError::Internal
        })?;
        match outcome {
            Ok(mut undone) => {
                undone.turn = turn;
                self.note_undone(&undone).await;
                Ok(undone)
            }
            Err(error @ RestoreError::Stopped { .. }) => {
                Err(AgentError::InvalidRequest(format!("turn {turn} was only partly undone: {error}")))
            }
            Err(error) => refused(format!("turn {turn}: {error}")),
        }
    }

    /// Returns `None` if the current mode allows restoring these files.
    pub(super) fn why_not(&self, changed: &[Changed]) -> Option<String> {
        let roots = self.workspace.roots();
        let target = |path: &PathBuf| Target {
            inside: roots.iter().find_map(|root| path.strip_prefix(root).ok()).map(Into::into),
            path: path.clone(),
        };
        let targets = changed.iter().map(|changed| target(&changed.path)).collect();
        let facts = CallFacts { targets, ..CallFacts::of_tool("undo", Effect::Edit) };
        let outside: Vec<String> = facts
            .targets
            .iter()
            .filter(|it| it.inside.is_none())
            .map(|it| it.path.display().to_string())
            .collect();
        if !outside.is_empty() {
            return Some(format!(
                "the turn changed files outside the session's current folders: {}",
                outside.join(", ")
            ));
        }
        let modes = self.policy.ceilings().modes;
        // Undo is not a tool of the model: tool lists, permission rules and consent do not apply.
        let tighter = modes.iter().find(|mode| !permission::may_change(mode, &facts));
        if tighter.is_none() && !modes.is_empty() {
            return None;
        }
        let (on, undo) = (&self.policy.mode, format!("`modegate sessions undo {}`", self.log.id));
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

    async fn note_undone(&mut self, undone: &Undone) {
        let (turn, at) = (undone.turn, self.log.now_ms());
        for file in &undone.files {
            self.turns.seen.remove(file);
        }
        let files = undone.files.len() as u64;
        self.log.chain(&Entry::Undo { turn, files, at });
        if let Err(error) = self.log.store.mark_undone(&self.log.id, turn, at).await {
            tracing::error!(%error, "cannot record the undo");
        }
        let cwd = self.workspace.cwd();
        let name = |file: &PathBuf| file.strip_prefix(cwd).unwrap_or(file).display().to_string();
        let files: Vec<String> = undone.files.iter().map(name).collect();
        let note = undone_note(&files);
        self.log.record(SessionEvent::Undone { turn, files }, None).await;
        self.note_for_model(note);
        self.log.save().await;
    }

    pub(super) fn note_interrupted_call(&mut self, tool: Option<&str>, title: &str) {
        if !matches!(tool, Some("shell" | "run_background_job")) {
            return;
        }
        let text = format!("The changes of `{title}` before its interruption are unknown.");
        let (turn, uncovered) = (self.log.turns, vec![text]);
        self.record_changes(turn, Changes { uncovered, ..Changes::default() });
    }
}

pub(super) fn undone_note(files: &[String]) -> String {
    format!("The user has undone your changes of an earlier turn. Restored files: {}.", files.join(", "))
}

fn restore_checkpoint(
    workspace: &Workspace,
    checkpoint: Checkpoint,
    token: &str,
) -> Result<Undone, RestoreError> {
    let Checkpoint { turn, changed, contents, uncovered } = checkpoint;
    let contents: HashMap<String, Vec<u8>> = contents;
    let remaining_folders = workspace.restore(&changed, |hash| contents.get(hash).cloned(), token)?;
    let is_file = |state: &FileState| !matches!(state, FileState::Folder { .. } | FileState::Absent);
    let files = compose(changed.into_iter())
        .into_iter()
        .filter(|changed| is_file(&changed.before) || is_file(&changed.after))
        .map(|changed| changed.path)
        .collect();
    Ok(Undone { turn, files, remaining_folders, uncovered })
}
