//! A file operation: records an intent, applies changes, and reports the result.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::change::{self, Attempt, ChangeFailure};
use super::change_recorder::{ChangeRecorder, StateTrust};
use super::journal::{Journal, Recorded, Temporaries};
use super::{Change, Changes, ContentHash, FileError, Workspace};
use crate::file_lock::FileLock;

/// If dropped, the intent stays open, and the next load of the session examines the disk.
#[derive(Debug)]
pub struct RecordedOperation {
    recorder: ChangeRecorder,
    temporaries: Temporaries,
    journal: Journal,
    recorded: Recorded,
    /// Files to write in place.
    in_place: BTreeSet<PathBuf>,
    made: BTreeMap<PathBuf, StateTrust>,
}

/// Changes of files that are locked.
pub struct LockedChanges<'a> {
    pub changes: &'a [Change],
    /// The contents on which the changes are based. A file with another content is an error.
    pub on_disk: &'a [(PathBuf, ContentHash)],
    /// Proves that the files are locked.
    pub lock: &'a FileLock,
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
        self.apply_locked(&LockedChanges { changes, on_disk: &[], lock: &lock }, journal, cancel)
    }

    /// As [`Self::apply`], for files that the caller has locked.
    pub fn apply_locked(
        &self,
        LockedChanges { changes, on_disk, lock: _ }: &LockedChanges<'_>,
        journal: &Journal,
        cancel: &CancellationToken,
    ) -> Result<(), FileError> {
        if cancel.is_cancelled() {
            return Err(change::stopped());
        }
        let mut in_place = BTreeSet::new();
        loop {
            let mut operation = self.begin_in_place(changes, on_disk, journal, &in_place)?;
            let outcome = operation.attempt(changes, cancel);
            operation.conclude();
            match outcome {
                // The intent of the next attempt says so.
                Err(ChangeFailure { is_clean: true, unreplaceable: Some(path), .. })
                    if !in_place.contains(&path) =>
                {
                    in_place.insert(path);
                }
                outcome => return outcome.map_err(|failure| failure.error),
            }
        }
    }

    /// Blocks until the intent is committed. Fails as [`Self::apply_locked`] does.
    pub fn begin(
        &self,
        changes: &[Change],
        on_disk: &[(PathBuf, ContentHash)],
        journal: &Journal,
    ) -> Result<RecordedOperation, FileError> {
        self.begin_in_place(changes, on_disk, journal, &BTreeSet::new())
    }

    pub(super) fn begin_in_place(
        &self,
        changes: &[Change],
        on_disk: &[(PathBuf, ContentHash)],
        journal: &Journal,
        in_place: &BTreeSet<PathBuf>,
    ) -> Result<RecordedOperation, FileError> {
        let temporaries = Temporaries::new();
        let recorder = ChangeRecorder::before(self, changes);
        if let Some((path, _)) = on_disk.iter().find(|(path, content)| !recorder.had(path, *content)) {
            return Err(change::changed_concurrently(path));
        }
        let commit = journal.record(recorder.intent(temporaries.token(), changes, in_place));
        Ok(RecordedOperation {
            recorder,
            temporaries,
            journal: journal.clone(),
            recorded: commit,
            in_place: in_place.clone(),
            made: BTreeMap::new(),
        })
    }
}

impl RecordedOperation {
    /// Applies some of the announced changes, all or none.
    pub fn carry_out(&mut self, changes: &[Change], cancel: &CancellationToken) -> Result<(), FileError> {
        self.attempt(changes, cancel).map_err(|failure| failure.error)
    }

    fn attempt(&mut self, changes: &[Change], cancel: &CancellationToken) -> Result<(), ChangeFailure> {
        let touched = self.made.keys().cloned().collect();
        let plan =
            Attempt { changes, recorder: &self.recorder, in_place: &self.in_place, recorded: self.recorded };
        let outcome = change::carry_out(&plan, cancel, touched, &mut self.temporaries);
        match &outcome {
            Ok(()) => self.note(changes, StateTrust::Planned),
            Err(ChangeFailure { is_clean: false, .. }) => self.note(changes, StateTrust::Seen),
            Err(ChangeFailure { is_clean: true, .. }) => {}
        }
        outcome
    }

    /// Notes a write request to the client.
    pub fn note_sent(&mut self, path: &Path) {
        self.made.insert(path.to_owned(), StateTrust::Seen);
    }

    fn note(&mut self, changes: &[Change], trust: StateTrust) {
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
        let Self { recorder, temporaries, journal, recorded, made, .. } = self;
        let mut changes = if made.is_empty() { Changes::default() } else { recorder.after(&made) };
        if recorded == Recorded::Committed {
            // The intent contains them already.
            changes.contents.clear();
        }
        if journal.records_intents() {
            changes.concludes = Some(temporaries.token().to_owned());
        }
        journal.report(changes);
    }
}
