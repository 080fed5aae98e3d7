//! Applies text changes through the editor, if it accepts writes. A write that the editor refuses is not made on
//! disk.
//!
//! A task owns each sent write and its permit, so callers may stop waiting. Errors name writes with an
//! unknown outcome.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use self::difference::SaveDifference;
use crate::client::ClientError;
use crate::file_lock::FileLock;
use crate::gate::Permit;
use crate::permission::Target;
use crate::tool::client_io::Shown;
use crate::tool::file::buffers::Buffers;
use crate::tool::file::last_seen::LastSeen;
use crate::tool::file::text_file::TextFile;
use crate::tool::{ClientIo, ToolError, ToolOutput, blocking, outcome};
use crate::workspace::{
    Change, Changes, ContentHash, Journal, LockedChanges, PendingWrite, RecordedOperation, Workspace,
};

mod difference;

/// Timeout after a cancellation. Shorter than a mode change waits, so that the outcome can be reported.
const TIMEOUT: Duration = Duration::from_millis(1800);

pub(super) struct Planned {
    pub changes: Vec<Planning>,
    /// The files on disk that the plan is based on.
    pub on_disk: Vec<(PathBuf, ContentHash)>,
    pub output: ToolOutput,
}

#[derive(Debug, Clone)]
pub(super) struct Planning {
    pub change: Change,
    /// `None` if the file did not exist.
    pub before: Option<Vec<u8>>,
    pub unsaved: bool,
}

/// The surroundings of a plan that is applied.
pub(super) struct Applying {
    pub workspace: Workspace,
    pub buffers: Buffers,
    pub journal: Journal,
    pub lock: FileLock,
}

/// Applies a plan through the editor, as far as the editor writes texts. An error names the changes that remain.
pub(super) async fn write_through_editor(
    Planned { changes, on_disk, mut output }: Planned,
    Applying { workspace, buffers, journal, lock }: Applying,
    client_io: ClientIo,
    permit: Permit,
) -> Result<ToolOutput, ToolError> {
    let saving = Saving {
        lock: Arc::new(lock),
        client_io,
        workspace,
        buffers,
        journal,
        operation: None,
        done: Vec::new(),
        pending_writes: Vec::new(),
        differences: Differences::default(),
    };
    let differences = outcome(tokio::spawn(saving.run(permit, changes, on_disk))).await?;
    for note in differences.notes {
        output.text.push('\n');
        output.text.push_str(&note);
    }
    output.warnings.extend(differences.warnings);
    output.seen.extend(differences.seen);
    Ok(output)
}

struct Saving {
    /// Held until the answer of the editor.
    lock: Arc<FileLock>,
    client_io: ClientIo,
    workspace: Workspace,
    buffers: Buffers,
    journal: Journal,
    operation: Option<RecordedOperation>,
    done: Vec<Planning>,
    pending_writes: Vec<PendingWrite>,
    differences: Differences,
}

/// Differences between the text that was sent, the text on disk and the text in the editor.
#[derive(Default)]
struct Differences {
    /// For the model.
    notes: Vec<String>,
    /// For the user, about text that only the editor has.
    warnings: Vec<String>,
    /// The saved files, where the notes show all of the difference.
    seen: Vec<(PathBuf, LastSeen)>,
}

enum SaveError {
    /// Not sent, or refused by the editor.
    NotDone(String),
    /// May be done, or may still happen.
    Unconfirmed(String),
}

impl Saving {
    async fn run(
        mut self,
        permit: Permit,
        list: Vec<Planning>,
        on_disk: Vec<(PathBuf, ContentHash)>,
    ) -> Result<Differences, ToolError> {
        let changes: Vec<Change> = list.iter().map(|planning| planning.change.clone()).collect();
        let (workspace, journal) = (self.workspace.clone(), self.journal.clone());
        let begun = blocking(move || Ok(workspace.begin(&changes, &on_disk, &journal)?));
        self.operation = Some(begun.await?);
        let outcome = self.carry_out(permit, list).await;
        if let Some(operation) = self.operation.take() {
            blocking(move || {
                operation.conclude();
                Ok(())
            })
            .await?;
        }
        outcome.map(|()| self.differences)
    }

    async fn carry_out(&mut self, permit: Permit, list: Vec<Planning>) -> Result<(), ToolError> {
        let (sent, rest): (Vec<_>, Vec<_>) = list.into_iter().partition(|planning| is_sent(&planning.change));
        for planning in sent {
            match self.send(&permit, &planning).await {
                Ok(()) => self.done.push(planning),
                Err(SaveError::NotDone(why)) => return Err(self.revert(permit, why).await),
                Err(SaveError::Unconfirmed(why)) => {
                    let changed = self.names();
                    permit.release_unconfirmed();
                    return Err(failed(&why, &changed));
                }
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        let Some(mut operation) = self.operation.take() else { return Ok(()) };
        let list: Vec<Change> = rest.into_iter().map(|planning| planning.change).collect();
        let cancel = permit.cancel.clone();
        let applied = blocking(move || {
            let applied = operation.carry_out(&list, &cancel);
            Ok((applied, operation))
        });
        let (applied, operation) = applied.await?;
        self.operation = Some(operation);
        match applied {
            Ok(()) => Ok(()),
            Err(error) => Err(self.revert(permit, error.to_string()).await),
        }
    }

    /// Writes one file through the editor and reports what undo cannot restore.
    async fn send(&mut self, permit: &Permit, planning: &Planning) -> Result<(), SaveError> {
        let Change::Write { target, content, .. } = planning.change.clone() else {
            return Err(SaveError::NotDone("it is no write".into()));
        };
        let name = self.workspace.display(&target);
        let text = String::from_utf8(content.clone()).map_err(|_| not_done(&name, &"it is not UTF-8"))?;
        let text = self.buffers.for_editor(&target, &text);
        self.check(permit, planning, &target, &name).await?;
        let place = target.clone();
        let pending_write = blocking(move || Ok((PendingWrite::prepare(&place)?, on_disk(&place)))).await;
        let (pending_write, stood) = pending_write.map_err(|error| SaveError::NotDone(error.to_string()))?;
        let mut written = self.write(permit, &target, &name, text).await;
        if written.is_ok() && planning.before.is_none() {
            written = self.create_if_lost(permit, planning, &target).await;
        }
        let (is_done, is_known) = (written.is_ok(), !matches!(written, Err(SaveError::Unconfirmed(_))));
        if let Some(operation) = &mut self.operation
            && (is_done || !is_known)
        {
            operation.note_sent(&target.path);
        }
        let (buffers, place_name, before) = (self.buffers.clone(), name.clone(), planning.before.clone());
        let place = target.clone();
        let looked = blocking(move || {
            if !is_done && is_known {
                pending_write.revert();
            }
            let file = TextFile::read(&target).ok();
            let saved_hash = file.as_ref().map(|file| file.content_hash);
            let is_saved = saved_hash == Some(ContentHash::of(&content));
            let is_untouched = saved_hash == stood;
            if let Some(file) = file.as_ref().filter(|_| is_done && (is_saved || !is_untouched)) {
                buffers.wrote(&target, before.as_deref(), &file.bytes(), true);
            }
            let difference = (is_done && !is_saved).then(|| {
                if is_untouched {
                    return (difference::not_saved(&place_name), None);
                }
                let seen = file.as_ref().map(|file| (target.path.clone(), LastSeen::of(file)));
                (difference::describe(&place_name, &content, file.as_ref()), seen)
            });
            Ok((pending_write, is_saved, is_untouched, difference, file))
        });
        if let Ok((pending_write, is_saved, is_untouched, difference, file)) = looked.await {
            self.pending_writes.push(pending_write);
            if is_done && is_untouched && !is_saved {
                self.differences.warnings.push(difference::not_saved_for_user(&name));
            } else if is_done && let Some(file) = file {
                self.compare_with_editor(permit, planning, &place, &name, &file).await;
            }
            if let Some((SaveDifference { note, is_whole }, seen)) = difference {
                self.differences.notes.push(note);
                self.differences.seen.extend(seen.filter(|_| is_whole));
            }
            let mut uncovered = Vec::new();
            uncovered.extend(unsaved(&self.workspace, planning).filter(|_| is_done));
            if !is_known {
                uncovered.push(format!(
                    "{name}: the editor did not confirm the write. A later write by the editor cannot be undone."
                ));
            } else if is_done && !is_saved {
                uncovered.push(if is_untouched {
                    format!("{name}: the editor accepted the change and did not save it; undo that in the editor.")
                } else {
                    format!(
                        "{name}: the editor saved it with a difference (an added final newline, or formatting); undo puts the \
                         file on disk back, reload it in the editor."
                    )
                });
            }
            self.journal.report(Changes { uncovered, ..Changes::default() });
        }
        written
    }

    /// Notes if the editor shows another text than the disk has. `on_disk` is the file after the write.
    async fn compare_with_editor(
        &mut self,
        permit: &Permit,
        planning: &Planning,
        target: &Target,
        name: &str,
        on_disk: &TextFile,
    ) {
        let shown = tokio::select! {
            biased;
            () = permit.cancel.cancelled() => return,
            shown = self.client_io.shown(&target.path) => shown,
        };
        let old = planning.before.as_deref().filter(|_| !planning.unsaved);
        if let Shown::Text(text) = shown
            && difference::is_other_text(on_disk, &text, old)
        {
            self.differences.notes.push(difference::other_text(name));
            self.differences.warnings.push(difference::other_text_for_user(name));
        }
    }

    /// Checks that the file still has the content of `planning.before`: the user may have typed.
    async fn check(
        &self,
        permit: &Permit,
        planning: &Planning,
        target: &Target,
        name: &str,
    ) -> Result<(), SaveError> {
        let stopped = || not_done(name, &"cancelled before it was written");
        if permit.cancel.is_cancelled() {
            return Err(stopped());
        }
        let before = planning.before.as_deref().map_or(ContentHash::Absent, ContentHash::of);
        let current_hash = content_hash(&self.client_io, target, &permit.cancel).await;
        if permit.cancel.is_cancelled() {
            return Err(stopped());
        }
        match current_hash.map_err(|error| SaveError::NotDone(error.to_string()))? {
            found if found == before => Ok(()),
            _ => Err(not_done(name, &"it has changed since the call began. Read it again")),
        }
    }

    async fn write(
        &self,
        permit: &Permit,
        target: &Target,
        name: &str,
        text: String,
    ) -> Result<(), SaveError> {
        if permit.cancel.is_cancelled() {
            return Err(not_done(name, &"cancelled before it was written"));
        }
        let mut open = self.client_io.write(&target.path, text).map_err(|error| not_done(name, &error))?;
        let answer = tokio::select! {
            biased;
            answer = open.answer() => answer,
            () = permit.cancel.cancelled() => {
                tokio::time::timeout(TIMEOUT, open.answer()).await.unwrap_or(Err(ClientError::Late(TIMEOUT)))
            }
        };
        match answer {
            Ok(_) => Ok(()),
            Err(error @ (ClientError::Refused(_) | ClientError::NotFound(_))) => {
                Err(not_done(name, &format!("the editor refused to write it: {}", error.reason())))
            }
            Err(error) => {
                Err(SaveError::Unconfirmed(format!("{name}: the editor did not confirm the write: {error}")))
            }
        }
    }

    /// Creates a new file on disk that the editor accepted, but neither saved nor shows: marimo reports success
    /// for files that it could not create.
    async fn create_if_lost(
        &self,
        permit: &Permit,
        planning: &Planning,
        target: &Target,
    ) -> Result<(), SaveError> {
        let current_hash = content_hash(&self.client_io, target, &permit.cancel).await;
        let is_lost = current_hash.is_ok_and(|found| found == ContentHash::Absent);
        if !is_lost || !self.client_io.capabilities().reads {
            return Ok(());
        }
        let (workspace, cancel) = (self.workspace.clone(), permit.cancel.clone());
        let change = planning.change.clone();
        // Silent: the operation of this call reports the file.
        let lock = Arc::clone(&self.lock);
        let created = blocking(move || {
            let changes = LockedChanges { changes: &[change], on_disk: &[], lock: &lock };
            workspace.apply_locked(&changes, &Journal::silent(), &cancel)?;
            Ok(())
        })
        .await;
        created.map_err(|error| SaveError::NotDone(error.to_string()))
    }

    /// Restores the written files, newest first, as long as each still has the written content.
    async fn revert(&mut self, permit: Permit, why: String) -> ToolError {
        while let Some(planning) = self.done.pop() {
            let Change::Write { target, content, .. } = &planning.change else { continue };
            let written = Some(content.clone());
            let undone = match &planning.before {
                Some(before) => {
                    let change =
                        Change::Write { target: target.clone(), content: before.clone(), like: None };
                    self.send(&permit, &Planning { change, before: written, unsaved: false }).await.is_ok()
                }
                None => self.remove(&permit, target, content).await,
            };
            if !undone {
                self.done.push(planning);
                break;
            }
        }
        if self.done.is_empty() {
            let pending_writes = std::mem::take(&mut self.pending_writes);
            let removed = blocking(move || {
                pending_writes.iter().rev().for_each(PendingWrite::revert);
                Ok(())
            });
            if let Err(error) = removed.await {
                tracing::error!(%error, "folders may stay");
            }
        }
        failed(&why, &self.names())
    }

    /// Removes a file that this call created. Returns true on success.
    async fn remove(&self, permit: &Permit, target: &Target, content: &[u8]) -> bool {
        let saved_hash = content_hash(&self.client_io, target, &permit.cancel).await;
        if !saved_hash.is_ok_and(|found| found == ContentHash::of(content)) {
            return false;
        }
        let (workspace, cancel) = (self.workspace.clone(), permit.cancel.clone());
        let change = Change::Remove { target: target.clone() };
        // Silent: the operation that created the file reports the result.
        let lock = Arc::clone(&self.lock);
        let removed = blocking(move || {
            let changes = LockedChanges { changes: &[change], on_disk: &[], lock: &lock };
            workspace.apply_locked(&changes, &Journal::silent(), &cancel)?;
            Ok(())
        })
        .await;
        removed.is_ok()
    }

    fn names(&self) -> Vec<String> {
        let targets = self.done.iter().map(|planning| match &planning.change {
            Change::Write { target, .. }
            | Change::Remove { target }
            | Change::SetExecutable { target, .. }
            | Change::Rename { from: target, .. } => target,
        });
        targets.map(|target| self.workspace.display(target)).collect()
    }
}

async fn content_hash(
    client_io: &ClientIo,
    target: &Target,
    cancel: &CancellationToken,
) -> Result<ContentHash, ToolError> {
    let buffers = Buffers::to_change(client_io, std::slice::from_ref(target), cancel).await?;
    let target = target.clone();
    blocking(move || buffers.content_hash(&target)).await
}

/// True for UTF-8 text under the file's own name. All other changes happen on disk.
pub(super) fn is_sent(change: &Change) -> bool {
    matches!(change, Change::Write { like: None, content, .. } if std::str::from_utf8(content).is_ok())
}

fn on_disk(target: &Target) -> Option<ContentHash> {
    TextFile::read(target).ok().map(|file| file.content_hash)
}

/// Tells the user that undo does not restore unsaved text.
pub(super) fn unsaved(workspace: &Workspace, planning: &Planning) -> Option<String> {
    let Change::Write { target, .. } = &planning.change else { return None };
    let name = workspace.display(target);
    planning
        .unsaved
        .then(|| format!("{name} had unsaved changes in the editor; undo restores only the saved file."))
}

fn not_done(name: &str, why: &dyn std::fmt::Display) -> SaveError {
    SaveError::NotDone(format!("{name}: {why}"))
}

fn failed(why: &str, changed: &[String]) -> ToolError {
    let why = why.trim_end_matches('.');
    ToolError::Failed(match changed {
        [] => format!("{why}."),
        changed => format!("{why}. Still changed: {}.", changed.join(", ")),
    })
}
