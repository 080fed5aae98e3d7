//! The record: sessions, their events, every mode change and every denial, in SQLite.
//!
//! A [`Store`] is a handle to one writer thread, which gathers what is posted and commits it together. Posting never
//! waits; [`Store::flush`] and [`Store::record_mode_change`] wait for the commit. What cannot be written is kept and
//! tried again with the next batch; whoever waits is told. Reading ([`sessions`]) happens on the same thread, behind what was
//! posted before. SQL is only here and below.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use owner::Owner;
pub use row::{Denial, ModeChange, ModeSource, Row, Why};

mod body;
pub mod checkpoint;
pub mod entry;
pub mod events;
pub mod evidence;
mod files;
mod insert;
pub mod intent;
pub mod log;
pub mod memories;
pub mod mode_table;
mod owner;
mod row;
mod schema;
pub mod sessions;
mod writer;

/// Where the record is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In this process, until it ends.
    Memory,
    /// In this file, which is created if it is missing.
    File(PathBuf),
    /// In this file, which is there and is only read: a copy, or one that this user may not write.
    Reading(PathBuf),
}

/// What a commit outlives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sync {
    /// The end of this process, however it comes.
    #[default]
    Normal,
    /// The loss of power, too.
    Full,
}

/// Something could not be recorded. The whole reason is in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record cannot be used: {0}")]
pub struct StoreError(String);

enum Command {
    Post(Vec<Row>),
    ModeChange(Box<ModeChange>, oneshot::Sender<Result<(), StoreError>>),
    Flush(oneshot::Sender<Result<(), StoreError>>),
    /// Reads, or notes something, behind all that was posted before.
    Work(Work),
    /// Writes what is no row, behind all that was posted before: into a file that is still there.
    Write(Work),
}

/// It gets the database, or the reason why what was posted before it is not written: then it must not overtake that.
type Work = Box<dyn FnOnce(Result<(&mut Connection, &Owner), StoreError>) + Send>;

/// The handle. Cheap to clone; the thread ends when the last handle is dropped and everything is written.
#[derive(Debug, Clone)]
pub struct Store {
    // No bound: sessions wait for a flush at every message, so little is ever under way.
    commands: mpsc::UnboundedSender<Command>,
    /// No file was asked for.
    is_memory: bool,
    /// Waits that are under way.
    waiting: Arc<AtomicUsize>,
    /// Why the record is in memory although a file was asked for: a clause.
    substituted: Arc<OnceLock<String>>,
}

impl Store {
    /// Starts the writer thread. The file is opened there, so that a start does not wait for the disk.
    ///
    /// A file that cannot be used is reported in the log, and the record goes to memory.
    pub fn open(location: Location, sync: Sync) -> std::io::Result<Self> {
        let (commands, queue) = mpsc::unbounded_channel();
        let substituted: Arc<OnceLock<String>> = Arc::default();
        let (why, is_memory) = (Arc::clone(&substituted), location == Location::Memory);
        let writer = move || writer::write(writer::open_or_memory(&location, sync, &why), queue);
        thread::Builder::new().name("store".into()).spawn(writer)?;
        Ok(Self { commands, is_memory, waiting: Arc::default(), substituted })
    }

    /// Opens a record at once, and does without if that cannot be done: for those who came for what is in it.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open_now(location: &Location) -> Result<Self, StoreError> {
        let failed = |error: &dyn std::fmt::Display| StoreError(error.to_string());
        let database = writer::open(location, Sync::Normal).map_err(|error| failed(&error))?;
        let (commands, queue) = mpsc::unbounded_channel();
        let writer = move || writer::write(Some(database), queue);
        thread::Builder::new().name("store".into()).spawn(writer).map_err(|error| failed(&error))?;
        let is_memory = *location == Location::Memory;
        Ok(Self { commands, is_memory, waiting: Arc::default(), substituted: Arc::default() })
    }

    /// Whether a file can be used, or made; the error says why not.
    pub fn check(path: &std::path::Path) -> Result<(), StoreError> {
        schema::open_file(path, Sync::Normal).map(drop).map_err(|error| StoreError(error.to_string()))
    }

    /// Hands over a row. It is durable after the next [`Self::flush`].
    pub fn post(&self, row: Row) {
        self.post_all(vec![row]);
    }

    /// Hands over rows that are committed together: one by one, the writer would begin with the first.
    pub fn post_all(&self, rows: Vec<Row>) {
        self.send(Command::Post(rows));
    }

    /// Records a mode change and waits until it is durable. An error means that it is not recorded.
    pub async fn record_mode_change(&self, change: ModeChange) -> Result<(), StoreError> {
        self.wait(|done| Command::ModeChange(Box::new(change), done)).await
    }

    /// Does something with the record behind all that was posted before.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection, &Owner) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit(Command::Work, work).await
    }

    /// Writes behind all that was posted before, unless the file is not there any more.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.submit(Command::Write, |connection, _| work(connection)).await
    }

    async fn submit<T: Send + 'static>(
        &self,
        command: impl FnOnce(Work) -> Command,
        work: impl FnOnce(&mut Connection, &Owner) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (done, outcome) = oneshot::channel();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.send(command(Box::new(move |database| {
            let outcome = database.and_then(|(connection, owner)| {
                work(connection, owner).map_err(|error| StoreError(error.to_string()))
            });
            // Whoever asked may have stopped waiting.
            let _ = done.send(outcome);
        })));
        let outcome = outcome.await;
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let ended = |_| StoreError("there is no record".into());
        outcome.map_err(ended)?.inspect_err(|error| tracing::error!(%error, "the record could not be used"))
    }

    /// Hands over a row and waits until it is durable. Blocks: not for the runtime's own threads.
    ///
    /// # Errors
    /// The row is not durable yet, and perhaps never will be.
    pub fn post_and_wait(&self, row: Row) -> Result<(), StoreError> {
        let (done, outcome) = oneshot::channel();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.post(row);
        self.send(Command::Flush(done));
        let outcome = outcome.blocking_recv();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        outcome.unwrap_or_else(|_| Err(StoreError("the writer has ended".into())))
    }

    /// Waits until everything posted before is durable.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.wait(Command::Flush).await
    }

    /// Uses `done` once everything posted before is durable, or cannot be made so: the next [`Self::flush`] says which. Does not
    /// wait.
    pub fn flush_then(&self, done: oneshot::Sender<()>) {
        let (committed, outcome) = oneshot::channel();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.send(Command::Flush(committed));
        let waiting = Arc::clone(&self.waiting);
        tokio::spawn(async move {
            // An error means that the writer has ended.
            let _ = outcome.await;
            waiting.fetch_sub(1, Ordering::AcqRel);
            // Nobody may be left who waits.
            let _ = done.send(());
        });
    }

    async fn wait(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), StoreError>>) -> Command,
    ) -> Result<(), StoreError> {
        let (done, outcome) = oneshot::channel();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.send(command(done));
        let outcome = outcome.await;
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        outcome.unwrap_or_else(|_| Err(StoreError("the writer has ended".into())))
    }

    /// Whether the record ends with this process. Known after the first wait.
    pub fn is_in_memory(&self) -> bool {
        self.is_memory || self.substituted().is_some()
    }

    /// Why the record ends with this process although a file was asked for: a clause. Known after the first wait.
    pub fn substituted(&self) -> Option<&str> {
        self.substituted.get().map(String::as_str)
    }

    /// Says why this store is in memory although the user asked for nothing of the kind: a clause.
    pub fn substitute(&self, reason: String) {
        // A reason that is there already stays.
        let _ = self.substituted.set(reason);
    }

    /// Whether somebody waits for a commit.
    pub fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn send(&self, command: Command) {
        // The writer ends only with its handles; if it died, whoever waits is told.
        let _ = self.commands.send(command);
    }
}

#[cfg(test)]
mod tests;
