//! The writer, which owns the database: it commits posted rows in batches and answers waiting callers.
//!
//! It usually runs on a thread of its own. Mode changes and new sessions are committed on their caller's thread, if that
//! can neither wait nor take long. That saves the wakes of two threads.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::hooks::Wal;
use tokio::sync::oneshot;

use super::files::IdentifiedFile;
use super::insert::ListTimes;
use super::owner::StoreOwner;
use super::reader::QueryThread;
use super::retained::forget_oldest;
use super::transaction::{self, ChangeOutcome};
use super::{
    ModeChange, Row, StoreCommand, StoreError, StoreLocation, StoreWork, Substitute, Sync, migrations, sql,
};

const FILE_GONE: &str = "the file was deleted or replaced";

/// Prepared statements that are kept: more than there are in the code.
pub(super) const STATEMENTS: usize = 64;

/// Maximum number of commands in one transaction.
const BATCH: usize = 1_000;

/// Rows of one transaction after a failure: an attempt costs the same however many rows wait.
const RETRIED_ROWS: usize = 256;

/// Pages in the write-ahead log after which it is copied into the file.
const LOG_PAGES: u32 = 1_000;

/// Maximum number of rows that are committed on a caller's thread.
const QUICK_ROWS: usize = 64;

/// Duration of a commit after which the next one runs on the writer's thread: the disk is busy.
const QUICK: Duration = Duration::from_millis(5);

pub(super) struct Database {
    connection: Connection,
    owner: Arc<StoreOwner>,
    file: Option<IdentifiedFile>,
    /// True if a commit need not wait for the disk.
    is_buffered: bool,
    /// Pages in the write-ahead log after the last commit, or 0 if the next commit may begin the log again, which
    /// waits for the disk.
    log_pages: Arc<AtomicU32>,
    /// Opened with the first query. `None` inside if there is no second connection.
    reader: OnceLock<Option<QueryThread>>,
}

impl Database {
    fn alone(connection: Connection) -> Self {
        Self {
            connection,
            owner: Arc::new(StoreOwner::alone()),
            file: None,
            is_buffered: false,
            log_pages: Arc::default(),
            reader: OnceLock::new(),
        }
    }

    fn open_file(path: &Path, sync: Sync) -> Result<Self, migrations::OpenStoreError> {
        let mut connection = migrations::open_file(path, sync)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        let log_pages = Arc::<AtomicU32>::default();
        let counted = Arc::clone(&log_pages);
        // In place of SQLite's own checkpoints, which would run within a commit.
        connection.wal_hook(Some(move |_: &mut Wal, pages| {
            counted.store(u32::try_from(pages).unwrap_or_default(), Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Self {
            owner: Arc::new(StoreOwner::beside(path)?),
            file: Some(IdentifiedFile::of(path)?),
            is_buffered: sync == Sync::Normal,
            log_pages,
            ..Self::alone(connection)
        })
    }

    /// Copies the write-ahead log into the file, if it is long.
    fn keep_log_short(&self) {
        if self.log_pages.load(Ordering::Relaxed) < LOG_PAGES {
            return;
        }
        if let Err(error) = sql::checkpoint(&self.connection) {
            tracing::info!(%error, "the write-ahead log was not copied into the store's file");
        }
        self.log_pages.store(0, Ordering::Relaxed);
    }

    /// True if a commit does not wait for the disk.
    fn is_quick(&self) -> bool {
        let is_log_short = || (1..LOG_PAGES).contains(&self.log_pages.load(Ordering::Relaxed));
        self.is_buffered && (self.file.is_none() || is_log_short())
    }

    /// Begins a transaction, if no other process has one.
    fn try_begin(&self) -> bool {
        let begun = self
            .connection
            .busy_timeout(Duration::ZERO)
            .and_then(|()| transaction::begin(&self.connection))
            .inspect_err(|error| tracing::debug!(%error, "a commit is left to the store's thread"));
        let restored = self.connection.busy_timeout(migrations::BUSY_TIMEOUT);
        begun.and(restored).is_ok()
    }

    fn is_gone(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !file.is_there())
    }

    /// Runs a query on the second connection, or here if there is none.
    fn query(&mut self, query: StoreWork) {
        let refused = match self
            .reader
            .get_or_init(|| self.file.as_ref().and_then(|file| QueryThread::open(file, &self.owner)))
        {
            Some(reader) => reader.run(query),
            None => Some(query),
        };
        if let Some(query) = refused {
            query(Ok((&mut self.connection, &self.owner)));
        }
    }
}

pub(super) fn open(location: &StoreLocation, sync: Sync) -> Result<Database, migrations::OpenStoreError> {
    match location {
        StoreLocation::Memory => {
            Ok(Database { is_buffered: true, ..Database::alone(migrations::open_memory()?) })
        }
        StoreLocation::Reading(path) => migrations::open_reading(path).map(Database::alone),
        StoreLocation::File(path) => Database::open_file(path, sync),
    }
}

pub(super) fn open_or_memory(
    location: &StoreLocation,
    sync: Sync,
    substituted: &OnceLock<Substitute>,
) -> Option<Database> {
    open(location, sync)
        .or_else(|error| {
            tracing::info!(%error, ?location, "the session store cannot be opened; sessions are stored in memory");
            let file = match location {
                StoreLocation::Memory => String::new(),
                StoreLocation::File(path) | StoreLocation::Reading(path) => format!(" {}", path.display()),
            };
            let StoreError(cause) = error.into();
            let reason = format!("the store{file} cannot be used: {cause}");
            let _ = substituted.set(Substitute { reason, is_failure: true });
            open(&StoreLocation::Memory, sync)
        })
        .inspect_err(|error| tracing::warn!(%error, "no session store can be opened"))
        .ok()
}

pub(super) struct StoreWriter {
    /// `None` after a panic.
    queue: Option<mpsc::Receiver<StoreCommand>>,
    /// Commands from the queue that are in no batch yet.
    received: VecDeque<StoreCommand>,
    batch: Batch,
    /// `None` until the thread has opened it, or if it cannot be opened.
    database: Option<Database>,
    /// Rows to write, also those of earlier batches that failed.
    retained: Vec<Row>,
    has_failed: bool,
    /// Duration of the last commit.
    last: Duration,
    /// Left by commits on callers' threads.
    times: ListTimes,
}

impl StoreWriter {
    pub(super) fn new(queue: mpsc::Receiver<StoreCommand>) -> Self {
        Self {
            queue: Some(queue),
            received: VecDeque::new(),
            batch: Batch::default(),
            database: None,
            retained: Vec::new(),
            has_failed: false,
            last: Duration::ZERO,
            times: ListTimes::default(),
        }
    }

    /// Returns false once all senders are gone.
    fn receive(&mut self) -> bool {
        let Some(queue) = &self.queue else { return false };
        loop {
            match queue.try_recv() {
                Ok(command) => self.received.push_back(command),
                Err(error) => return error == mpsc::TryRecvError::Empty,
            }
        }
    }

    /// Returns false if there is nothing to do.
    fn fill_batch(&mut self) -> bool {
        while self.batch.work.is_none() && self.batch.count < BATCH {
            let Some(command) = self.received.pop_front() else { break };
            self.batch.take(command, &mut self.retained);
        }
        self.batch.count > 0
    }

    /// Commits all that was posted. Returns false, and changes nothing, if this might wait or take long.
    pub(super) fn try_commit(&mut self) -> bool {
        self.receive();
        let is_quick = !self.has_failed && self.last < QUICK && are_quick(&self.received);
        let Some(database) = self.database.as_ref().filter(|_| is_quick) else { return false };
        if !database.is_quick() || database.is_gone() || !database.try_begin() {
            return false;
        }
        self.fill_batch();
        self.times.are_delayed = true;
        self.process();
        self.times.are_delayed = false;
        true
    }

    fn process(&mut self) {
        let Batch { changes, waiting, work, .. } = std::mem::take(&mut self.batch);
        let limit = if self.has_failed { RETRIED_ROWS } else { usize::MAX };
        let started = Instant::now();
        let database = self.database.as_mut();
        let outcome = match &database {
            Some(database) => commit(database, &mut self.retained, limit, &changes, &mut self.times),
            None => Err(StoreError("it could not be opened".into())),
        };
        self.last = started.elapsed();
        if let Some(Database { connection, .. }) = &database {
            // Another process kept the file busy. Later batches wait less, until one succeeds.
            let timeout =
                if outcome.is_ok() { migrations::BUSY_TIMEOUT } else { migrations::SHORT_BUSY_TIMEOUT };
            if let Err(error) = connection.busy_timeout(timeout) {
                tracing::debug!(%error, "the store's busy timeout could not be set");
            }
        }
        if let Err(error) = &outcome {
            if !self.has_failed {
                // Each session tells its user.
                tracing::warn!(%error, rows = self.retained.len(), "the session store could not be written");
            }
            forget_oldest(&mut self.retained);
        }
        self.has_failed = outcome.is_err();
        if let Some((kind, work)) = work {
            run(kind, work, &outcome, database);
        }
        answer(outcome, waiting, changes);
    }
}

/// True if these commands write something, and a transaction with them takes little time.
fn are_quick(commands: &VecDeque<StoreCommand>) -> bool {
    let mut rows = 0;
    let are_small = commands.iter().all(|command| match command {
        StoreCommand::Post(posted) => {
            rows += posted.len();
            posted.iter().all(Row::is_small)
        }
        StoreCommand::ModeChange(..) => {
            rows += 1;
            true
        }
        StoreCommand::Flush(_) => true,
        StoreCommand::Work(_) | StoreCommand::Write(_) | StoreCommand::Query(_) => false,
    });
    are_small && (1..=QUICK_ROWS).contains(&rows)
}

/// Gives waiting callers an error after a panic, on the writer's thread or on that of a caller.
struct CloseOnDrop<'a>(&'a Mutex<StoreWriter>);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (writer.queue, writer.batch) = (None, Batch::default());
        writer.received.clear();
    }
}

/// The thread of the store. Opens the database, and ends when all senders are gone and everything is written.
pub(super) fn write(writer: &Mutex<StoreWriter>, open: impl FnOnce() -> Option<Database>) {
    let _close = CloseOnDrop(writer);
    let Ok(mut opening) = writer.lock() else { return };
    opening.database = open();
    drop(opening);
    loop {
        let Ok(mut writer) = writer.lock() else { return };
        let is_open = writer.receive();
        while writer.fill_batch() {
            writer.process();
            if let Some(database) = &writer.database {
                database.keep_log_short();
            }
            writer.receive();
        }
        if !is_open {
            if !writer.times.is_empty() {
                writer.process();
            }
            return;
        }
        drop(writer);
        // Each command that is sent unparks the thread.
        thread::park();
    }
}

fn run<T>(kind: WorkKind, work: StoreWork, outcome: &Result<T, StoreError>, database: Option<&mut Database>) {
    match (outcome, database, kind) {
        // A query would not see the rows that could not be written.
        (Err(error), ..) => work(Err(error.clone())),
        (Ok(_), None, _) => work(Err(StoreError("it could not be opened".into()))),
        (Ok(_), Some(database), WorkKind::Write | WorkKind::Query) if database.is_gone() => {
            work(Err(StoreError(FILE_GONE.into())));
        }
        (Ok(_), Some(database), WorkKind::Query) => database.query(work),
        (Ok(_), Some(database), _) => {
            work(Ok((&mut database.connection, &database.owner)));
            // It may have emptied the log.
            database.log_pages.store(0, Ordering::Relaxed);
        }
    }
}

fn commit(
    database: &Database,
    rows: &mut Vec<Row>,
    limit: usize,
    changes: &[(Box<ModeChange>, Done)],
    times: &mut ListTimes,
) -> Result<Vec<ChangeOutcome>, StoreError> {
    if rows.is_empty() && changes.is_empty() && times.is_empty() {
        return Ok(Vec::new());
    }
    // A caller that has begun the transaction has looked.
    if database.connection.is_autocommit() && database.is_gone() {
        // SQLite would keep writing to the deleted file.
        return Err(StoreError(FILE_GONE.into()));
    }
    let changes: Vec<&ModeChange> = changes.iter().map(|(change, _)| &**change).collect();
    Ok(transaction::commit(&database.connection, &database.owner, rows, limit, &changes, times)?)
}

type Done = oneshot::Sender<Result<(), StoreError>>;

#[derive(Default)]
struct Batch {
    changes: Vec<(Box<ModeChange>, Done)>,
    waiting: Vec<Done>,
    work: Option<(WorkKind, StoreWork)>,
    count: usize,
}

enum WorkKind {
    Work,
    Write,
    Query,
}

impl Batch {
    fn take(&mut self, command: StoreCommand, rows: &mut Vec<Row>) {
        self.count += 1;
        match command {
            StoreCommand::Post(posted) => rows.extend(posted),
            StoreCommand::ModeChange(change, done) => self.changes.push((change, done)),
            StoreCommand::Flush(done) => self.waiting.push(done),
            StoreCommand::Work(work) => self.work = Some((WorkKind::Work, work)),
            StoreCommand::Write(work) => self.work = Some((WorkKind::Write, work)),
            StoreCommand::Query(work) => self.work = Some((WorkKind::Query, work)),
        }
    }
}

fn answer(
    outcome: Result<Vec<ChangeOutcome>, StoreError>,
    waiting: Vec<Done>,
    changes: Vec<(Box<ModeChange>, Done)>,
) {
    for done in waiting {
        let _ = done.send(outcome.as_ref().map(|_| ()).map_err(Clone::clone));
    }
    match outcome {
        Ok(outcomes) => {
            for ((_, done), outcome) in changes.into_iter().zip(outcomes) {
                let _ = done.send(outcome.map_err(StoreError::from));
            }
        }
        Err(error) => {
            for (_, done) in changes {
                let _ = done.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::Receiver;

    use super::*;
    use crate::acp::{MessageId, SessionId, SessionModeId};
    use crate::event::{NoticeKind, SessionEvent};

    fn notice(length: usize) -> StoreCommand {
        let text = "x".repeat(length);
        let event = SessionEvent::Notice { message_id: MessageId::new("m"), kind: NoticeKind::Info, text };
        StoreCommand::Post(vec![Row::Event { session: SessionId::new("s"), seq: 0, turn: 1, event, at: 1 }])
    }

    fn flush() -> (StoreCommand, Receiver<Result<(), StoreError>>) {
        let (done, outcome) = oneshot::channel();
        (StoreCommand::Flush(done), outcome)
    }

    struct Fixture {
        _dir: tempfile::TempDir,
        path: std::path::PathBuf,
        commands: mpsc::Sender<StoreCommand>,
        writer: StoreWriter,
    }

    /// A writer whose last commit was on its thread.
    fn fixture(sync: Sync) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let (commands, queue) = mpsc::channel();
        let mut writer = StoreWriter::new(queue);
        writer.database = Some(open(&StoreLocation::File(path.clone()), sync).unwrap());
        let session = Row::Session {
            id: SessionId::new("s"),
            cwd: "/w".into(),
            directories: Vec::new(),
            parent: None,
            agent: "general".into(),
            mode: SessionModeId::new("ask"),
            at: 1,
        };
        writer.received.push_back(StoreCommand::Post(vec![session]));
        assert!(writer.fill_batch());
        writer.process();
        writer.last = Duration::ZERO;
        Fixture { _dir: dir, path, commands, writer }
    }

    #[test]
    fn small_commits_without_a_wait_run_on_the_callers_thread() {
        let Fixture { _dir, commands, mut writer, path } = fixture(Sync::Normal);
        let (command, mut outcome) = flush();
        commands.send(notice(10)).unwrap();
        commands.send(command).unwrap();
        assert!(writer.try_commit());
        assert_eq!(outcome.try_recv(), Ok(Ok(())));
        let other = Connection::open(path).unwrap();
        let events: i64 = other.query_row("SELECT count(*) FROM events", [], |row| row.get(0)).unwrap();
        assert_eq!(events, 1);
    }

    /// Each refused commit then succeeds on the writer's thread.
    #[track_caller]
    fn assert_left_to_the_thread(mut fixture: Fixture, command: StoreCommand) {
        let (flush, mut outcome) = flush();
        fixture.commands.send(command).unwrap();
        fixture.commands.send(flush).unwrap();
        assert!(!fixture.writer.try_commit());
        assert!(outcome.try_recv().is_err(), "it is not answered yet");
        fixture.writer.receive();
        while fixture.writer.fill_batch() {
            fixture.writer.process();
        }
        assert_eq!(outcome.try_recv(), Ok(Ok(())));
    }

    #[test]
    fn commits_that_may_wait_are_left_to_the_thread() {
        assert_left_to_the_thread(fixture(Sync::Full), notice(10));
        assert_left_to_the_thread(fixture(Sync::Normal), notice(1024 * 1024));
        assert_left_to_the_thread(fixture(Sync::Normal), StoreCommand::Post(Vec::new()));
        assert_left_to_the_thread(fixture(Sync::Normal), StoreCommand::Query(Box::new(|_| {})));
        for pages in [0, LOG_PAGES] {
            let fixture = fixture(Sync::Normal);
            let database = fixture.writer.database.as_ref().unwrap();
            database.log_pages.store(pages, Ordering::Relaxed);
            assert_left_to_the_thread(fixture, notice(10));
        }
        let mut slow = fixture(Sync::Normal);
        slow.writer.last = QUICK;
        assert_left_to_the_thread(slow, notice(10));
    }

    #[test]
    fn locked_store_is_left_to_the_thread() {
        let mut fixture = fixture(Sync::Normal);
        let other = Connection::open(&fixture.path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let (command, mut outcome) = flush();
        fixture.commands.send(notice(10)).unwrap();
        fixture.commands.send(command).unwrap();
        let started = Instant::now();
        assert!(!fixture.writer.try_commit());
        assert!(started.elapsed() < migrations::BUSY_TIMEOUT / 2, "it does not wait");
        let release = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            other.execute_batch("ROLLBACK").unwrap();
        });
        assert!(fixture.writer.fill_batch());
        fixture.writer.process();
        release.join().unwrap();
        assert_eq!(outcome.try_recv(), Ok(Ok(())), "the thread waits");
    }

    #[test]
    fn long_log_is_copied_into_the_file() {
        let Fixture { _dir, commands, mut writer, path } = fixture(Sync::Normal);
        let before = std::fs::metadata(&path).unwrap().len();
        for _ in 0..2 {
            // Twice the pages of a long log.
            commands.send(notice(8 * 1024 * 1024)).unwrap();
            writer.receive();
            assert!(writer.fill_batch());
            writer.process();
        }
        let database = writer.database.as_ref().unwrap();
        assert!(database.log_pages.load(Ordering::Relaxed) >= LOG_PAGES);
        database.keep_log_short();
        assert!(std::fs::metadata(path).unwrap().len() > before + 8 * 1024 * 1024);
        assert!(!database.is_quick(), "the next commit begins the log again");
    }
}
