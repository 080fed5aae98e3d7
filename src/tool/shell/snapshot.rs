//! Finds the files that commands change: a task owns a [`WorkspaceSnapshot`] and compares it with the disk, or reads
//! the records of brokered commands.
//!
//! The task handles one message at a time, so a new command waits until earlier changes are reported. Before
//! a command starts, other changes are discarded, unless a command or job is running: then they are reported,
//! too.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::job::RecordSaver;
use crate::bounded_file;
use crate::busy::BusyGuard;
use crate::gate::Permit;
use crate::process::RecordState;
use crate::tool::{Job, ToolError};
use crate::workspace::{Changes, Workspace, WorkspaceSnapshot, create_record_folder, recorded_changes};

const DEADLINE: Duration = Duration::from_secs(90);

const MAILBOX: usize = 4;

/// Dropping the last clone removes the copies.
#[derive(Debug, Clone)]
pub struct SnapshotHandle {
    mailbox: mpsc::Sender<SnapshotMessage>,
    has_jobs: Arc<AtomicBool>,
}

/// Marks a command or job as running, from the comparison before its start until it is dropped.
#[derive(Debug)]
pub struct RunningCommand {
    mark: Arc<RunMark>,
    has_jobs: Arc<AtomicBool>,
}

/// A strong count above one means that the command runs.
#[derive(Debug, Default)]
struct RunMark {
    is_job: AtomicBool,
    /// Folder of the record of a brokered command. Deleted with the mark.
    record: Option<PathBuf>,
    /// Error of creating that folder.
    failure: Option<String>,
    saver: OnceLock<RecordSaver>,
}

impl Drop for RunMark {
    fn drop(&mut self) {
        if let Some(folder) = &self.record {
            // It is deleted with the session otherwise.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

#[derive(Debug)]
enum Tracker {
    Snapshot(WorkspaceSnapshot),
    /// Records are created below this folder.
    Records {
        workspace: Workspace,
        folder: PathBuf,
        count: u64,
    },
}

impl Tracker {
    fn mark(&mut self) -> RunMark {
        let Self::Records { folder, count, .. } = self else { return RunMark::default() };
        *count += 1;
        let folder = folder.join(count.to_string());
        let created = create_record_folder(&folder);
        let failure = created.as_ref().err().map(ToString::to_string);
        let record = created.is_ok().then_some(folder);
        RunMark { is_job: AtomicBool::new(false), record, failure, saver: OnceLock::new() }
    }

    /// Reads records, or compares files. `records` are the folders of all commands.
    fn changes(
        &mut self,
        comparison: SnapshotComparison,
        records: &[(PathBuf, RecordState)],
        cancel: &CancellationToken,
    ) -> Changes {
        let snapshot_changes = match self {
            Self::Snapshot(snapshot) if comparison == SnapshotComparison::Tell => {
                return snapshot.sync(cancel);
            }
            Self::Snapshot(snapshot) => {
                snapshot.refresh(cancel);
                return Changes::default();
            }
            Self::Records { workspace, .. } => {
                let read =
                    |(folder, state): &(PathBuf, RecordState)| recorded_changes(workspace, folder, state);
                records.iter().map(read).collect::<Vec<_>>()
            }
        };
        let mut all = Changes::default();
        if comparison == SnapshotComparison::Tell {
            for changes in snapshot_changes {
                all.append(changes);
            }
        }
        all
    }
}

#[derive(Debug)]
struct SnapshotMessage {
    occasion: Occasion,
    cancel: CancellationToken,
    /// The mark counts only for [`Occasion::Begin`].
    reply: oneshot::Sender<(Arc<RunMark>, Changes)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occasion {
    Begin,
    Sync,
    BeginTurn,
    EndTurn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SnapshotComparison {
    None,
    Refresh,
    Tell,
}

impl SnapshotHandle {
    pub fn new(snapshot: WorkspaceSnapshot) -> Self {
        Self::start(Tracker::Snapshot(snapshot))
    }

    /// Of brokered commands, whose records are kept below `folder`.
    pub fn of_records(folder: PathBuf, workspace: &Workspace) -> Self {
        Self::start(Tracker::Records { workspace: workspace.clone(), folder, count: 0 })
    }

    fn start(tracker: Tracker) -> Self {
        let (mailbox, messages) = mpsc::channel(MAILBOX);
        let has_jobs = Arc::new(AtomicBool::new(false));
        tokio::spawn(serve(tracker, messages, Arc::clone(&has_jobs)));
        Self { mailbox, has_jobs }
    }

    /// Returns the changes so far if other commands or jobs count, and discards them otherwise.
    async fn begin(&self, cancel: &CancellationToken) -> (RunningCommand, Changes) {
        let (mark, changes) = self.ask(Occasion::Begin, cancel).await.unwrap_or_default();
        (RunningCommand { mark, has_jobs: Arc::clone(&self.has_jobs) }, changes)
    }

    pub async fn sync(&self, cancel: &CancellationToken) -> Changes {
        self.changes(Occasion::Sync, cancel).await
    }

    /// Discards changes that jobs made between turns, which undo does not cover, unless another command is
    /// running.
    pub async fn begin_turn(&self, cancel: &CancellationToken) -> Changes {
        if !self.has_jobs.load(Ordering::Acquire) {
            return Changes::default();
        }
        self.changes(Occasion::BeginTurn, cancel).await
    }

    pub async fn end_turn(&self, cancel: &CancellationToken) -> Changes {
        if !self.has_jobs.load(Ordering::Acquire) {
            return Changes::default();
        }
        self.changes(Occasion::EndTurn, cancel).await
    }

    async fn changes(&self, occasion: Occasion, cancel: &CancellationToken) -> Changes {
        self.ask(occasion, cancel).await.map_or_else(unknown_changes, |(_, changes)| changes)
    }

    async fn ask(&self, occasion: Occasion, cancel: &CancellationToken) -> Option<(Arc<RunMark>, Changes)> {
        let (reply, answer) = oneshot::channel();
        let _ = self.mailbox.send(SnapshotMessage { occasion, cancel: cancel.clone(), reply }).await;
        answer.await.ok()
    }
}

fn unknown_changes() -> Changes {
    Changes {
        uncovered: vec!["Changes by commands are unknown and cannot be undone.".into()],
        ..Changes::default()
    }
}

impl RunningCommand {
    /// Folder for the record of the command's changes. `None` if its changes are found by comparison.
    pub(super) fn record(&self) -> Option<&Path> {
        self.mark.record.as_deref()
    }

    pub(super) fn started(&self, job: &Job) {
        // Called once.
        let _ = self.mark.saver.set(job.record_saver());
    }

    /// Keeps the mark until the job ends. Its last changes are reported after its end, in the same turn.
    pub(super) fn keep_as_job(self, job: &Job) {
        self.mark.is_job.store(true, Ordering::Release);
        self.has_jobs.store(true, Ordering::Release);
        let over = job.ending();
        tokio::spawn(async move {
            over.await;
            drop(self);
        });
    }
}

#[derive(Debug, Default)]
struct Marks(Vec<Arc<RunMark>>);

impl Marks {
    fn is_running(mark: &Arc<RunMark>) -> bool {
        Arc::strong_count(mark) > 1
    }

    fn counts(mark: &Arc<RunMark>) -> bool {
        Self::is_running(mark) || mark.is_job.load(Ordering::Acquire)
    }

    fn has_jobs(&self) -> bool {
        self.0.iter().any(|mark| mark.is_job.load(Ordering::Acquire))
    }

    fn has_commands(&self) -> bool {
        self.0.iter().any(|mark| !mark.is_job.load(Ordering::Acquire) && Self::is_running(mark))
    }

    fn comparison(&self, occasion: Occasion) -> SnapshotComparison {
        match occasion {
            Occasion::BeginTurn | Occasion::EndTurn if !self.has_jobs() => SnapshotComparison::None,
            Occasion::Begin if !self.has_commands() && !self.has_jobs() => SnapshotComparison::Refresh,
            // The user's changes during a command count as the command's.
            Occasion::BeginTurn if !self.has_commands() => SnapshotComparison::Refresh,
            Occasion::Begin | Occasion::Sync | Occasion::BeginTurn | Occasion::EndTurn => {
                SnapshotComparison::Tell
            }
        }
    }

    /// Saves the records of running commands. Returns the folders of all records.
    async fn saved_records(&self) -> Vec<(PathBuf, RecordState)> {
        let mut records = Vec::new();
        for mark in &self.0 {
            let Some(folder) = &mark.record else { continue };
            let state = match mark.saver.get() {
                Some(saver) => saver.save().await,
                None => RecordState::Complete,
            };
            records.push((folder.clone(), state));
        }
        records
    }

    /// A comparison that starts now may miss changes of these commands.
    fn running(&self) -> Self {
        Self(self.0.iter().filter(|mark| Self::is_running(mark)).cloned().collect())
    }
}

async fn serve(
    mut tracker: Tracker,
    mut messages: mpsc::Receiver<SnapshotMessage>,
    has_jobs: Arc<AtomicBool>,
) {
    let mut marks = Marks::default();
    while let Some(SnapshotMessage { occasion, cancel, reply }) = messages.recv().await {
        let comparison = marks.comparison(occasion);
        let mut changes = Changes::default();
        if comparison != SnapshotComparison::None {
            let (is_over, running) = (cancel.clone(), marks.running());
            let records = marks.saved_records().await;
            let compared = bounded_file::off_thread(DEADLINE, move || {
                let changes = tracker.changes(comparison, &records, &cancel);
                (tracker, changes)
            });
            // If the file system hangs, this drops the reply sender and the caller continues.
            let Some((same, found)) = compared.await else {
                tracing::error!("the comparison of files failed or did not end");
                return;
            };
            (tracker, changes) = (same, found);
            if !is_over.is_cancelled() {
                marks = running;
                has_jobs.store(marks.has_jobs(), Ordering::Release);
            }
        }
        let mark = if occasion == Occasion::Begin {
            marks.0.retain(Marks::counts);
            let mark = Arc::new(tracker.mark());
            marks.0.push(Arc::clone(&mark));
            changes.unrecorded.extend(
                mark.failure
                    .as_ref()
                    .map(|error| format!("The changes of a command cannot be recorded: {error}.")),
            );
            mark
        } else {
            Arc::default()
        };
        let _ = reply.send((mark, changes));
    }
    let _ = tokio::task::spawn_blocking(move || drop((tracker, marks))).await;
}

pub(super) fn report(to: &mpsc::UnboundedSender<Changes>, changes: Changes) {
    if !changes.is_empty() {
        let _ = to.send(changes);
    }
}

pub(super) const NOT_RUN: &str = "Not run: the turn was cancelled, or the mode no longer allows it.";

/// Fails if the command may no longer start.
pub(super) async fn begin(
    snapshot: &SnapshotHandle,
    permit: &Permit,
    changes: &mpsc::UnboundedSender<Changes>,
) -> Result<RunningCommand, ToolError> {
    let (snapshot, cancel, changes) = (snapshot.clone(), permit.cancel.clone(), changes.clone());
    // In a task, because changes of others are reported even if this command is cancelled.
    let started = tokio::spawn(async move {
        let (running, of_others) = snapshot.begin(&cancel).await;
        report(&changes, of_others);
        running
    });
    tokio::select! {
        () = permit.cancel.cancelled() => {}
        started = started => {
            if let Ok(running) = started && !permit.cancel.is_cancelled() {
                return Ok(running);
            }
        }
    }
    Err(ToolError::Failed(NOT_RUN.into()))
}

/// Reports a command's changes after its end. Nothing cancels the task, because only reported changes can be
/// undone.
pub(super) fn report_when_done(
    snapshot: SnapshotHandle,
    running: RunningCommand,
    job: &Job,
    changes: mpsc::UnboundedSender<Changes>,
) -> tokio::task::JoinHandle<()> {
    let over = job.ending();
    tokio::spawn(async move {
        let _busy = BusyGuard::begin();
        over.await;
        report(&changes, snapshot.sync(&CancellationToken::new()).await);
        drop(running);
    })
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    struct Place {
        dir: tempfile::TempDir,
        snapshot: SnapshotHandle,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("work")).unwrap();
            let workspace = Workspace::new(&dir.path().join("work"), &[]).unwrap();
            let snapshot = SnapshotHandle::new(WorkspaceSnapshot::new(dir.path().join("copies"), &workspace));
            Self { dir, snapshot }
        }

        fn write(&self, file: &str) {
            std::fs::write(self.dir.path().join("work").join(file), file).unwrap();
        }

        async fn begin(&self) -> (RunningCommand, Vec<String>) {
            let (running, changes) = self.snapshot.begin(&CancellationToken::new()).await;
            (running, names(&changes))
        }

        async fn sync(&self) -> Vec<String> {
            names(&self.snapshot.sync(&CancellationToken::new()).await)
        }
    }

    fn names(changes: &Changes) -> Vec<String> {
        assert_eq!(changes.uncovered, Vec::<String>::new());
        let name = |changed: &crate::workspace::Changed| {
            changed.path.file_name().unwrap().to_string_lossy().into_owned()
        };
        changes.changed.iter().map(name).collect()
    }

    #[tokio::test]
    async fn starting_command_loses_no_changes_of_a_running_command() {
        let place = Place::new();
        let (first, reported) = place.begin().await;
        assert_eq!(reported, [""; 0]);
        place.write("by_first");
        let (second, reported) = place.begin().await;
        assert_eq!(reported, ["by_first"]);
        place.write("by_both");
        assert_eq!(place.sync().await, ["by_both"]);
        drop(first);
        place.write("by_second");
        assert_eq!(place.sync().await, ["by_second"]);
        drop(second);
        place.write("by_user");
        assert_eq!(place.begin().await.1, [""; 0], "the control");
    }

    #[tokio::test]
    async fn user_changes_after_an_aborted_start_are_not_reported() {
        let place = Place::new();
        for _ in 0..3 {
            drop(place.begin().await);
            place.write("by_user");
        }
        assert_eq!(place.begin().await.1, [""; 0]);
    }

    #[tokio::test]
    async fn job_changes_are_reported_until_its_turn_ends() {
        let place = Place::new();
        let never = CancellationToken::new();
        let (job, _) = place.begin().await;
        assert!(!place.snapshot.has_jobs.load(Ordering::Acquire));
        job.mark.is_job.store(true, Ordering::Release);
        job.has_jobs.store(true, Ordering::Release);
        place.write("by_job");
        assert_eq!(place.begin().await.1, ["by_job"]);
        place.write("later");
        drop(job);
        assert_eq!(place.begin().await.1, ["later"], "the job has ended, and its change is not reported yet");
        place.write("by_user");
        assert_eq!(place.begin().await.1, [""; 0]);
        let (job, _) = place.begin().await;
        job.mark.is_job.store(true, Ordering::Release);
        job.has_jobs.store(true, Ordering::Release);
        place.write("in_turn");
        assert_eq!(names(&place.snapshot.end_turn(&never).await), ["in_turn"]);
        place.write("between");
        drop(job);
        assert_eq!(names(&place.snapshot.begin_turn(&never).await), [""; 0]);
        assert!(!place.snapshot.has_jobs.load(Ordering::Acquire));
        place.write("by_user");
        assert_eq!(names(&place.snapshot.end_turn(&never).await), [""; 0]);
        assert_eq!(place.begin().await.1, [""; 0]);
    }
}
