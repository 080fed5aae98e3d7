//! The record: sessions, their events, every mode change and every denial, in SQLite.
//!
//! A [`Store`] is a handle to one writer thread, which gathers what is posted and commits it together. Posting never
//! waits; [`Store::flush`] and [`Store::record_mode_change`] wait for the commit. What cannot be written is kept and
//! tried again with the next batch; whoever waits is told. SQL is only here and below.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rusqlite::{Connection, ErrorCode, Transaction};
use tokio::sync::{mpsc, oneshot};

use crate::acp::{SessionId, SessionModeId, ToolCallId};
use crate::event::SessionEvent;

pub mod catalogue;
pub mod log;
mod row;
mod schema;

/// Rows that are kept for another try when they cannot be written.
const KEPT: usize = 10_000;

/// Rows in one transaction.
const BATCH: usize = 1_000;

/// Where the record is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In this process, until it ends.
    Memory,
    /// In this file, which is created if it is missing.
    File(PathBuf),
}

/// One row to be written.
#[derive(Debug, Clone)]
pub enum Row {
    /// A session began.
    Session {
        /// Its id.
        id: SessionId,
        /// Its working directory.
        cwd: PathBuf,
        /// The mode it began in.
        mode: SessionModeId,
        /// Milliseconds since 1970.
        at: i64,
    },
    /// What every request of a session begins with.
    SystemPrompt {
        /// The session.
        session: SessionId,
        /// The whole of it.
        text: Arc<str>,
    },
    /// An event of a session.
    Event {
        /// The session.
        session: SessionId,
        /// Its place in the session, from 0.
        seq: u64,
        /// The turn it belongs to; 0 before the first.
        turn: u64,
        /// What happened.
        event: SessionEvent,
        /// Milliseconds since 1970.
        at: i64,
    },
    /// A mode change that nobody waits for: the first mode of a session.
    ModeChange(ModeChange),
    /// A call was denied.
    Denial(Denial),
}

/// A denied call, for the record. Arguments are left out: they may hold secrets.
#[derive(Debug, Clone)]
pub struct Denial {
    /// The session.
    pub session: SessionId,
    /// The turn.
    pub turn: u64,
    /// The call.
    pub call: ToolCallId,
    /// The tool's name, as the model wrote it.
    pub tool: String,
    /// The mode that was on.
    pub mode: SessionModeId,
    /// The rule that decided.
    pub rule: String,
    /// Milliseconds since 1970.
    pub at: i64,
}

/// A mode change, for the record (G41, G42).
#[derive(Debug, Clone)]
pub struct ModeChange {
    /// The session.
    pub session: SessionId,
    /// The turn; 0 before the first.
    pub turn: u64,
    /// The mode before; `None` for the first mode of a session.
    pub from: Option<SessionModeId>,
    /// The mode after.
    pub to: SessionModeId,
    /// Who asked, by which way, and for what reason.
    pub why: Why,
    /// What the mode came to when it was set: its hash and its text.
    pub text: (String, String),
    /// Milliseconds since 1970.
    pub at: i64,
}

/// Why a mode changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// Who asked, by which way.
    pub source: ModeSource,
    /// The model's reason, as it gave it.
    pub analysis: Option<String>,
    /// The model's call, if it was one.
    pub call: Option<ToolCallId>,
    /// The hash of the plan that was accepted with it.
    pub plan: Option<String>,
    /// Nobody was asked: a tighter mode that could not be recorded goes on to hold.
    pub keeps_hold: bool,
}

impl From<ModeSource> for Why {
    fn from(source: ModeSource) -> Self {
        Self { source, analysis: None, call: None, plan: None, keeps_hold: false }
    }
}

/// Who asked for a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeSource {
    /// The configuration or the command line, when the session began.
    Start,
    /// The client, by `session/set_mode`.
    SetMode,
    /// The client, by `session/set_config_option`.
    ConfigOption,
    /// The user, by a slash command.
    Command,
    /// The model, by the exit tool, with the user's consent.
    SwitchTool,
    /// The model, in its own text; a looser mode with the user's consent.
    InBand,
    /// The mode that was on is in no file any more.
    Reload,
}

impl ModeSource {
    fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::SetMode => "set_mode",
            Self::ConfigOption => "config_option",
            Self::Command => "command",
            Self::SwitchTool => "switch_mode",
            Self::InBand => "in_band",
            Self::Reload => "reload",
        }
    }

    /// Who wanted it.
    fn actor(self) -> &'static str {
        match self {
            Self::SetMode | Self::ConfigOption | Self::Command => "user",
            Self::SwitchTool | Self::InBand => "agent",
            Self::Start | Self::Reload => "system",
        }
    }
}

/// Something could not be recorded. The whole reason is in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record could not be written: {0}")]
pub struct StoreError(String);

enum Command {
    Post(Row),
    ModeChange(ModeChange, oneshot::Sender<Result<(), StoreError>>),
    Flush(oneshot::Sender<Result<(), StoreError>>),
}

/// The handle. Cheap to clone; the thread ends when the last handle is dropped and everything is written.
#[derive(Debug, Clone)]
pub struct Store {
    // No bound: sessions wait for a flush at every message, so little is ever under way.
    commands: mpsc::UnboundedSender<Command>,
    /// Waits that are under way.
    waiting: Arc<AtomicUsize>,
    /// The record is in memory although a file was asked for.
    substituted: Arc<AtomicBool>,
}

impl Store {
    /// Starts the writer thread. The file is opened there, so that a start does not wait for the disk.
    ///
    /// A file that cannot be used is reported in the log, and the record goes to memory.
    pub fn open(location: Location) -> std::io::Result<Self> {
        let (commands, queue) = mpsc::unbounded_channel();
        let substituted: Arc<AtomicBool> = Arc::default();
        let flag = Arc::clone(&substituted);
        let writer = move || write(open_or_memory(&location, &flag), queue);
        thread::Builder::new().name("store".into()).spawn(writer)?;
        Ok(Self { commands, waiting: Arc::default(), substituted })
    }

    /// Whether a file can be used, or made; the error says why not.
    pub fn check(path: &std::path::Path) -> Result<(), StoreError> {
        schema::open_file(path).map(drop).map_err(|error| StoreError(error.to_string()))
    }

    /// Hands over a row. It is durable after the next [`Self::flush`].
    pub fn post(&self, row: Row) {
        self.send(Command::Post(row));
    }

    /// Records a mode change and waits until it is durable. An error means that it is not recorded.
    pub async fn record_mode_change(&self, change: ModeChange) -> Result<(), StoreError> {
        self.wait(|done| Command::ModeChange(change, done)).await
    }

    /// Waits until everything posted before is durable.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.wait(Command::Flush).await
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

    /// Whether the record ends with this process although a file was asked for. Known after the first wait.
    pub fn is_substituted(&self) -> bool {
        self.substituted.load(Ordering::Acquire)
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

fn open_or_memory(location: &Location, substituted: &AtomicBool) -> Option<Connection> {
    let opened = match location {
        Location::Memory => schema::open_memory(),
        Location::File(path) => schema::open_file(path),
    };
    opened
        .or_else(|error| {
            tracing::error!(%error, ?location, "the record cannot be kept there; it is kept in memory");
            substituted.store(true, Ordering::Release);
            schema::open_memory()
        })
        .inspect_err(|error| tracing::error!(%error, "the record cannot be kept at all"))
        .ok()
}

fn write(connection: Option<Connection>, mut queue: mpsc::UnboundedReceiver<Command>) {
    let mut connection = connection;
    let mut kept: Vec<Row> = Vec::new();
    while let Some(command) = queue.blocking_recv() {
        let mut batch = vec![command];
        while batch.len() < BATCH {
            let Ok(command) = queue.try_recv() else { break };
            batch.push(command);
        }
        let mut changes = Vec::new();
        let mut waiting = Vec::new();
        for command in batch {
            match command {
                Command::Post(row) => kept.push(row),
                Command::ModeChange(change, done) => changes.push((change, done)),
                Command::Flush(done) => waiting.push(done),
            }
        }
        let outcome = match &mut connection {
            Some(connection) => commit(connection, &kept, changes.iter().map(|(change, _)| change)),
            None => Err(rusqlite::Error::InvalidPath("no connection".into())),
        };
        if let Some(connection) = &connection {
            // Whoever holds the file up has done so once; the sessions do not wait as long every time.
            let patience = if outcome.is_ok() { schema::BUSY } else { schema::STILL_BUSY };
            if let Err(error) = connection.busy_timeout(patience) {
                tracing::debug!(%error, "the store's patience could not be set");
            }
        }
        match &outcome {
            Ok(_) => kept.clear(),
            Err(error) => {
                tracing::error!(%error, rows = kept.len(), "the record could not be written");
                forget_oldest(&mut kept);
            }
        }
        // Whoever waited may have been cancelled meanwhile.
        let failed = |error: &dyn std::fmt::Display| StoreError(error.to_string());
        for done in waiting {
            let _ = done.send(outcome.as_ref().map(|_| ()).map_err(|error| failed(error)));
        }
        for (number, (_, done)) in changes.into_iter().enumerate() {
            let recorded = outcome.as_ref().map_err(|error| failed(error)).and_then(|outcomes| {
                outcomes
                    .get(number)
                    .map_or(Ok(()), |outcome| outcome.as_ref().map_err(|error| failed(error)).copied())
            });
            let _ = done.send(recorded);
        }
    }
}

/// While nothing can be written, what happened longest ago is given up first; which sessions there are is kept.
fn forget_oldest(kept: &mut Vec<Row>) {
    let mut excess = kept.len().saturating_sub(KEPT);
    kept.retain(|row| {
        let goes = excess > 0 && !matches!(row, Row::Session { .. });
        excess -= usize::from(goes);
        !goes
    });
}

/// Writes everything, or nothing. A row that can never be written (its session was deleted elsewhere, say) is left out
/// by itself, so that it does not stand in the way of the others; for a mode change the outcome says so.
fn commit<'a>(
    connection: &mut Connection,
    rows: &[Row],
    changes: impl Iterator<Item = &'a ModeChange>,
) -> rusqlite::Result<Vec<rusqlite::Result<()>>> {
    let mut transaction = connection.transaction()?;
    for row in rows {
        let written = by_itself(&mut transaction, |connection| row::insert(connection, row))?;
        if let Err(error) = written {
            tracing::error!(%error, "a row can never be recorded and is left out");
        }
    }
    let mut outcomes = Vec::new();
    for change in changes {
        outcomes.push(by_itself(&mut transaction, |connection| row::insert_mode_change(connection, change))?);
    }
    transaction.commit()?;
    Ok(outcomes)
}

/// Does something inside a transaction that may be undone by itself. The inner error is one of the row's own.
fn by_itself(
    transaction: &mut Transaction<'_>,
    work: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> rusqlite::Result<rusqlite::Result<()>> {
    let savepoint = transaction.savepoint()?;
    match work(&savepoint) {
        Ok(()) => savepoint.commit().map(Ok),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => Ok(Err(error)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
