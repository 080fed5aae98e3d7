//! SQLite storage of sessions, events, mode changes and denials. Only this module and its children contain
//! SQL.
//!
//! A writer commits posted rows in batches, on a thread of its own; mode changes and new sessions on their caller's.
//! Posting never waits. Rows that cannot be written are retried with the next batch, and waiting callers get the error.
//! Queries see the rows posted before; those of a file run on a second connection, so that a long one delays no row.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use owner::StoreOwner;
use queue::StoreQueue;
pub use row::{ChangeReason, DenialRow, ModeChange, ModeSource, Row};

mod body;
pub mod check;
pub mod checkpoint;
pub mod entry;
pub mod events;
pub mod evidence;
mod files;
mod fork;
mod insert;
pub mod intent;
mod invocation_row;
pub mod log;
pub mod memories;
mod migrations;
pub mod mode_table;
pub mod outbox;
mod owner;
mod queries;
mod queue;
mod reader;
mod removal;
mod retained;
pub mod retention;
mod row;
pub mod salvage;
pub mod sessions;
pub mod spending;
mod sql;
mod transaction;
mod writer;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    Memory,
    File(PathBuf),
    /// An existing file that is only read: a copy, or one without write permission.
    Reading(PathBuf),
}

impl StoreLocation {
    /// The store, and all that Modegate keeps beside it.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::File(path) | Self::Reading(path) => files::with_companions(path),
            Self::Memory => Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sync {
    /// Survives a crash of the process.
    #[default]
    Normal,
    /// Survives a power failure, too.
    Full,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the session store cannot be used: {0}")]
pub struct StoreError(String);

impl StoreError {
    fn closed() -> Self {
        Self("it is closed".into())
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self(match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => "the disk is full".into(),
            Some(ErrorCode::ReadOnly) => "the file is read-only".into(),
            Some(ErrorCode::SystemIoFailure) => {
                format!("reading or writing failed ({error}): the disk may be full or defective")
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                format!("the file is damaged ({error}); `modegate store salvage` saves what can be read")
            }
            _ => error.to_string(),
        })
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<migrations::OpenStoreError> for StoreError {
    fn from(error: migrations::OpenStoreError) -> Self {
        match error {
            migrations::OpenStoreError::Sqlite(error) => error.into(),
            error => Self(error.to_string()),
        }
    }
}

enum StoreCommand {
    Post(Vec<Row>),
    ModeChange(Box<ModeChange>, oneshot::Sender<Result<(), StoreError>>),
    Flush(oneshot::Sender<Result<(), StoreError>>),
    /// Runs also if the database file was deleted.
    Work(StoreWork),
    /// Runs only if the database file still exists.
    Write(StoreWork),
    /// Changes nothing, so that the second connection can run it. Runs only if the database file still exists.
    Query(StoreWork),
}

/// Why sessions are in memory although the user requested a file.
#[derive(Debug)]
struct Substitute {
    /// A clause.
    reason: String,
    /// False if there is no place for a file.
    is_failure: bool,
}

/// Gets an error if earlier rows could not be written, because the work must not overtake them.
type StoreWork = Box<dyn FnOnce(Result<(&mut Connection, &StoreOwner), StoreError>) + Send>;

/// Handle to the writer, whose thread ends when the last handle is dropped and everything is written.
#[derive(Debug, Clone)]
pub struct Store {
    queue: Arc<StoreQueue>,
    is_memory: bool,
    waiting: Arc<AtomicUsize>,
    /// Number of commands so far, by which idle times are recognised.
    activity: Arc<AtomicU64>,
    /// True once contents that earlier versions left behind are gone.
    has_removed_unneeded: Arc<AtomicBool>,
    substituted: Arc<OnceLock<Substitute>>,
}

impl Store {
    /// Starts the writer thread, which opens the file. If this fails, the data stays in memory.
    pub fn open(location: StoreLocation, sync: Sync) -> std::io::Result<Self> {
        let is_memory = location == StoreLocation::Memory;
        let substituted: Arc<OnceLock<Substitute>> = Arc::default();
        let why = Arc::clone(&substituted);
        Self::start(is_memory, substituted, move || writer::open_or_memory(&location, sync, &why))
    }

    /// Returns an error instead of the in-memory fallback of [`Self::open`].
    pub fn open_now(location: &StoreLocation) -> Result<Self, StoreError> {
        let database = writer::open(location, Sync::Normal)?;
        let started = Self::start(*location == StoreLocation::Memory, Arc::default(), || Some(database));
        started.map_err(|error| StoreError(error.to_string()))
    }

    fn start(
        is_memory: bool,
        substituted: Arc<OnceLock<Substitute>>,
        open: impl FnOnce() -> Option<writer::Database> + Send + 'static,
    ) -> std::io::Result<Self> {
        Ok(Self {
            queue: Arc::new(StoreQueue::start(open)?),
            is_memory,
            waiting: Arc::default(),
            activity: Arc::default(),
            has_removed_unneeded: Arc::default(),
            substituted,
        })
    }

    /// Returns an error if a file can neither be used nor created. Creates missing folders, and the file.
    pub fn create_or_open(path: &Path) -> Result<(), StoreError> {
        Ok(migrations::open_file(path, Sync::Normal).map(drop)?)
    }

    /// Fails if an existing file is no store, cannot be written, or needs a newer Modegate. Changes nothing.
    pub fn inspect(path: &Path) -> Result<(), StoreError> {
        Ok(migrations::inspect(path)?)
    }

    /// Posts a row, which is durable after the next [`Self::flush`].
    pub fn post(&self, row: Row) {
        self.post_all(vec![row]);
    }

    pub fn post_all(&self, rows: Vec<Row>) {
        if !rows.is_empty() {
            self.send(StoreCommand::Post(rows));
        }
    }

    /// Blocks until the row is durable, so it must not run on the runtime's threads. After an error, a retry
    /// may still write the row.
    pub fn post_and_wait(&self, row: Row) -> Result<(), StoreError> {
        self.post(row);
        let answer = self.ask(StoreCommand::Flush);
        answer.outcome.blocking_recv().unwrap_or_else(|_| Err(StoreError::closed()))
    }

    /// Waits until the change, and the rows before it, are durable. Returns an error if it is not recorded.
    pub async fn record_mode_change(&self, before: Vec<Row>, change: ModeChange) -> Result<(), StoreError> {
        self.hold(before);
        let command = |done| StoreCommand::ModeChange(Box::new(change), done);
        self.ask_by(|command| self.queue.carry_out(command), command).wait().await
    }

    pub async fn flush(&self) -> Result<(), StoreError> {
        self.flush_with(Vec::new()).await
    }

    /// As [`Self::flush`], for a caller with nothing else to do: commits on this thread if that waits for nothing.
    pub async fn flush_here(&self) -> Result<(), StoreError> {
        self.ask_by(|command| self.queue.carry_out(command), StoreCommand::Flush).wait().await
    }

    /// Posts rows and waits until they are durable.
    pub async fn flush_with(&self, rows: Vec<Row>) -> Result<(), StoreError> {
        self.hold(rows);
        self.ask(StoreCommand::Flush).wait().await
    }

    /// Posts rows, and sends to `done` once they and all rows posted before are durable or have failed.
    pub fn flush_then(&self, rows: Vec<Row>, done: oneshot::Sender<()>) {
        self.hold(rows);
        let answer = self.ask(StoreCommand::Flush);
        tokio::spawn(async move {
            let _ = answer.wait().await;
            let _ = done.send(());
        });
    }

    /// Posts rows with the next command, of whatever session, which follows soon.
    pub fn hold(&self, rows: Vec<Row>) {
        if !rows.is_empty() {
            self.queue.hold(StoreCommand::Post(rows));
        }
    }

    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection, &StoreOwner) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit(StoreCommand::Work, work).await
    }

    /// Runs a query that changes nothing.
    async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&mut Connection, &StoreOwner) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit(StoreCommand::Query, query).await
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit(StoreCommand::Write, |connection, _| work(connection)).await
    }

    async fn submit<T: Send + 'static>(
        &self,
        command: impl FnOnce(StoreWork) -> StoreCommand,
        work: impl FnOnce(&mut Connection, &StoreOwner) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let answer = self.ask(|done| {
            command(Box::new(move |database| {
                let outcome = database.and_then(|(connection, owner)| Ok(work(connection, owner)?));
                let _ = done.send(outcome);
            }))
        });
        let outcome = answer.wait().await;
        outcome.inspect_err(|error| tracing::info!(%error, "a query or change of the session store failed"))
    }

    fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> StoreCommand,
    ) -> StoreAnswer<T> {
        self.ask_by(|command| self.queue.send(command), command)
    }

    fn ask_by<T>(
        &self,
        send: impl FnOnce(StoreCommand),
        command: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> StoreCommand,
    ) -> StoreAnswer<T> {
        let (done, outcome) = oneshot::channel();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let waiting = WaitingCaller(Arc::clone(&self.waiting));
        self.activity.fetch_add(1, Ordering::Relaxed);
        send(command(done));
        StoreAnswer { outcome, _waiting: waiting }
    }

    /// True if the data is lost with this process. Known after the first wait.
    pub fn is_in_memory(&self) -> bool {
        self.is_memory || self.substituted().is_some()
    }

    /// The reason for data in memory although the user requested a file, as a clause. Known after the first wait.
    pub fn substituted(&self) -> Option<&str> {
        self.substituted.get().map(|substitute| substitute.reason.as_str())
    }

    /// True if a file was requested and cannot be used. Known after the first wait.
    pub fn has_failed_to_open(&self) -> bool {
        self.substituted.get().is_some_and(|substitute| substitute.is_failure)
    }

    /// Says why there is no place for a file.
    pub fn substitute(&self, reason: String) {
        let _ = self.substituted.set(Substitute { reason, is_failure: false });
    }

    pub fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn send(&self, command: StoreCommand) {
        self.activity.fetch_add(1, Ordering::Relaxed);
        self.queue.send(command);
    }
}

struct StoreAnswer<T> {
    outcome: oneshot::Receiver<Result<T, StoreError>>,
    /// Counts the caller until the answer is dropped.
    _waiting: WaitingCaller,
}

impl<T> StoreAnswer<T> {
    async fn wait(self) -> Result<T, StoreError> {
        self.outcome.await.unwrap_or_else(|_| Err(StoreError::closed()))
    }
}

/// Counts one waiting caller.
struct WaitingCaller(Arc<AtomicUsize>);

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
