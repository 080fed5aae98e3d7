//! One operation on files: announced, carried out, concluded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::change::{self, Failure};
use super::change_recorder::{ChangeRecorder, Trust};
use super::journal::{Journal, Temporaries};
use super::{Change, Changes, FileError, Workspace};

/// Changes that are announced and not concluded yet.
///
/// Dropped, it stays announced: the next load of the session finds out what became of it.
#[derive(Debug)]
pub struct Operation {
    recorder: ChangeRecorder,
    temporaries: Temporaries,
    journal: Journal,
    /// The announcement was committed before the first change. One that was not may be committed later.
    is_recorded: bool,
    /// How the result of each path is known; a path that is not in it was not changed.
    made: BTreeMap<PathBuf, Trust>,
}

impl Workspace {
    /// Makes all the changes, or none, and reports what changed. `cancel` is looked at once everything is prepared:
    /// cancelled, nothing happens.
    ///
    /// # Errors
    /// A place lies outside the roots, a file is read-only or of the wrong kind, a name is taken, a file was changed
    /// meanwhile, the disk says no, or `cancel` was cancelled. In each case nothing has changed.
    pub fn apply(
        &self,
        changes: &[Change],
        cancel: &CancellationToken,
        journal: &Journal,
    ) -> Result<(), FileError> {
        if cancel.is_cancelled() {
            return Err(change::stopped());
        }
        let mut operation = self.begin(changes, journal);
        let outcome = operation.carry_out(changes, cancel);
        operation.conclude();
        outcome
    }

    /// Looks at everything that the changes are about, and announces them. Blocks until that is recorded.
    pub fn begin(&self, changes: &[Change], journal: &Journal) -> Operation {
        let temporaries = Temporaries::new();
        let recorder = ChangeRecorder::before(self, changes);
        let intent = recorder.intent(temporaries.token(), changes);
        let is_recorded = journal.record(intent);
        Operation { recorder, temporaries, journal: journal.clone(), is_recorded, made: BTreeMap::new() }
    }
}

impl Operation {
    /// Makes some of the changes that were announced: all, or none.
    ///
    /// # Errors
    /// As for [`Workspace::apply`].
    pub fn carry_out(&mut self, changes: &[Change], cancel: &CancellationToken) -> Result<(), FileError> {
        let touched = self.made.keys().cloned().collect();
        let trust = match change::carry_out(changes, cancel, &self.recorder, touched, &mut self.temporaries) {
            Ok(()) => Trust::Planned,
            Err(Failure { error, is_clean: true }) => return Err(error),
            Err(Failure { error, is_clean: false }) => {
                self.note(changes, Trust::Seen);
                return Err(error);
            }
        };
        self.note(changes, trust);
        Ok(())
    }

    /// Notes that somebody else was asked to write a file.
    pub fn note_sent(&mut self, path: &Path) {
        self.made.insert(path.to_owned(), Trust::Seen);
    }

    fn note(&mut self, changes: &[Change], trust: Trust) {
        let mut note = |path: &Path| {
            // What somebody else wrote stays what is seen.
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

    /// Looks again at what was changed, and reports it in the place of the announcement.
    pub fn conclude(self) {
        let Self { recorder, temporaries, journal, is_recorded, made } = self;
        let mut changes = if made.is_empty() { Changes::default() } else { recorder.after(&made) };
        if is_recorded {
            // The announcement has them already.
            changes.contents.clear();
        }
        if journal.keeps_intents() {
            changes.concludes = Some(temporaries.token().to_owned());
        }
        journal.report(changes);
    }
}
