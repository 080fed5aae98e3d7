//! A file operation: records an intent, applies changes, and reports the result.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::change::{self, Failure};
use super::change_recorder::{ChangeRecorder, Trust};
use super::journal::{Journal, Temporaries};
use super::{Change, Changes, FileError, Workspace};
use crate::file_lock::FileLock;

/// If dropped, the intent stays open, and the next load of the session examines the disk.
#[derive(Debug)]
pub struct Operation {
    recorder: ChangeRecorder,
    temporaries: Temporaries,
    journal: Journal,
    /// True if the intent was committed before the first change. Otherwise a later commit is possible.
    is_recorded: bool,
    made: BTreeMap<PathBuf, Trust>,
}

impl Workspace {
    /// Locks the files, applies all changes or none, and reports the result. After an error nothing has changed,
    /// unless an undo step failed.
    pub fn apply(
        &self,
        changes: &[Change],
        cancel: &CancellationToken,
        journal: &Journal,
    ) -> Result<(), FileError> {
        let lock = self.lock(changes.iter().flat_map(Change::targets), cancel)?;
        self.apply_locked(changes, cancel, journal, &lock)
    }

    /// As [`Self::apply`], under a lock of the files.
    pub fn apply_locked(
        &self,
        changes: &[Change],
        cancel: &CancellationToken,
        journal: &Journal,
        _lock: &FileLock,
    ) -> Result<(), FileError> {
        if cancel.is_cancelled() {
            return Err(change::stopped());
        }
        let mut operation = self.begin(changes, journal);
        let outcome = operation.carry_out(changes, cancel);
        operation.conclude();
        outcome
    }

    /// Blocks until the intent is committed.
    pub fn begin(&self, changes: &[Change], journal: &Journal) -> Operation {
        let temporaries = Temporaries::new();
        let recorder = ChangeRecorder::before(self, changes);
        let intent = recorder.intent(temporaries.token(), changes);
        let is_recorded = journal.record(intent);
        Operation { recorder, temporaries, journal: journal.clone(), is_recorded, made: BTreeMap::new() }
    }
}

impl Operation {
    /// Applies some of the announced changes, all or none.
    pub fn carry_out(&mut self, changes: &[Change], cancel: &CancellationToken) -> Result<(), FileError> {
        let touched = self.made.keys().cloned().collect();
        let outcome = change::carry_out(changes, cancel, &self.recorder, touched, &mut self.temporaries);
        match &outcome {
            Ok(()) => self.note(changes, Trust::Planned),
            Err(Failure { is_clean: false, .. }) => self.note(changes, Trust::Seen),
            Err(Failure { is_clean: true, .. }) => {}
        }
        outcome.map_err(|failure| failure.error)
    }

    /// Notes a write request to the client.
    pub fn note_sent(&mut self, path: &Path) {
        self.made.insert(path.to_owned(), Trust::Seen);
    }

    fn note(&mut self, changes: &[Change], trust: Trust) {
        let mut note = |path: &Path| {
            // A path written by the client stays [`Trust::Seen`].
            self.made.entry(path.to_owned()).or_insert(trust);
        };
        for change in changes {
            match change {
                Change::Write { target, .. }
                | Change::Remove { target }
                | Change::SetExecutable { target, .. } => note(&target.path),
                Change::Rename { from, to } => {
                    note(&from.path);
                    note(&to.path);
                }
            }
        }
    }

    pub fn conclude(self) {
        let Self { recorder, temporaries, journal, is_recorded, made } = self;
        let mut changes = if made.is_empty() { Changes::default() } else { recorder.after(&made) };
        if is_recorded {
            // The intent contains them already.
            changes.contents.clear();
        }
        if journal.records_intents() {
            changes.concludes = Some(temporaries.token().to_owned());
        }
        journal.report(changes);
    }
}
