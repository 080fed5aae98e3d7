//! The thread that owns the database: it gathers what is posted, commits it together, and tells whoever waits.

use std::collections::HashSet;
use std::sync::OnceLock;

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::files::Place;
use super::owner::Owner;
use super::{Command, Location, ModeChange, Row, StoreError, Sync, Work, insert, schema};
use crate::workspace::Changes;

/// Rows that are kept for another try when they cannot be written.
const KEPT: usize = 10_000;

/// Bytes of contents of files among these.
const KEPT_CONTENTS: usize = 64 * 1024 * 1024;

/// Said of a file that has no name any more.
const GONE: &str = "the file is gone";

/// Rows in one transaction.
const BATCH: usize = 1_000;

/// The database, and what this process is to others that use it.
pub(super) struct Database {
    connection: Connection,
    owner: Owner,
    /// The file, as it was opened.
    file: Option<Place>,
}

/// Opens the database of a record.
pub(super) fn open(location: &Location, sync: Sync) -> Result<Database, schema::OpenError> {
    let alone = |connection| Database { connection, owner: Owner::alone(), file: None };
    match location {
        Location::Memory => schema::open_memory().map(alone),
        Location::Reading(path) => schema::open_reading(path).map(alone),
        Location::File(path) => {
            let connection = schema::open_file(path, sync)?;
            Ok(Database { connection, owner: Owner::beside(path)?, file: Some(Place::of(path)?) })
        }
    }
}

/// The same, or a record in memory, and why.
pub(super) fn open_or_memory(
    location: &Location,
    sync: Sync,
    substituted: &OnceLock<String>,
) -> Option<Database> {
    open(location, sync)
        .or_else(|error| {
            // The user is told with the first turn, and whoever asks for sessions is, too.
            tracing::info!(%error, ?location, "the record cannot be kept there; it is kept in memory");
            let file = match location {
                Location::Memory => String::new(),
                Location::File(path) | Location::Reading(path) => format!(" {}", path.display()),
            };
            // Nobody else sets it for a file.
            let _ = substituted.set(format!("the store{file} cannot be used ({error})"));
            open(&Location::Memory, sync)
        })
        .inspect_err(|error| tracing::error!(%error, "the record cannot be kept at all"))
        .ok()
}

pub(super) fn write(database: Option<Database>, mut queue: mpsc::UnboundedReceiver<Command>) {
    let mut database = database;
    let mut retained: Vec<Row> = Vec::new();
    while let Some(command) = queue.blocking_recv() {
        let mut batch = Batch::default();
        let mut next = Some(command);
        while let Some(command) = next {
            batch.take(command, &mut retained);
            let is_full = batch.work.is_some() || batch.count >= BATCH;
            next = if is_full { None } else { queue.try_recv().ok() };
        }
        let Batch { changes, waiting, work, writes, .. } = batch;
        let outcome = match &mut database {
            Some(database) => commit(database, &retained, changes.iter().map(|(change, _)| &**change)),
            None => Err(rusqlite::Error::InvalidPath("no connection".into())),
        };
        if let Some(Database { connection, .. }) = &database {
            // Whoever holds the file up has done so once; the sessions do not wait as long every time.
            let timeout = if outcome.is_ok() { schema::BUSY } else { schema::STILL_BUSY };
            if let Err(error) = connection.busy_timeout(timeout) {
                tracing::debug!(%error, "the store's patience could not be set");
            }
        }
        match &outcome {
            Ok(_) => retained.clear(),
            Err(error) => {
                tracing::error!(%error, rows = retained.len(), "the record could not be written");
                forget_oldest(&mut retained);
            }
        }
        if let Some(work) = work {
            work(match (&outcome, &mut database) {
                (Ok(_), Some(Database { file: Some(file), .. })) if writes && !file.is_there() => {
                    Err(StoreError(GONE.into()))
                }
                (Ok(_), Some(Database { connection, owner, .. })) => Ok((connection, owner)),
                (Ok(_), None) => Err(StoreError("there is no record".into())),
                (Err(error), _) => Err(StoreError(error.to_string())),
            });
        }
        answer(&outcome, waiting, changes);
    }
}

type Done = oneshot::Sender<Result<(), StoreError>>;

/// What is committed together.
#[derive(Default)]
struct Batch {
    changes: Vec<(Box<ModeChange>, Done)>,
    waiting: Vec<Done>,
    work: Option<Work>,
    /// The work is one that writes.
    writes: bool,
    count: usize,
}

impl Batch {
    fn take(&mut self, command: Command, rows: &mut Vec<Row>) {
        self.count += 1;
        match command {
            Command::Post(posted) => rows.extend(posted),
            Command::ModeChange(change, done) => self.changes.push((change, done)),
            Command::Flush(done) => self.waiting.push(done),
            Command::Work(work) => self.work = Some(work),
            Command::Write(work) => (self.work, self.writes) = (Some(work), true),
        }
    }
}

/// Tells whoever waited. They may have been cancelled meanwhile.
fn answer(
    outcome: &rusqlite::Result<Vec<rusqlite::Result<()>>>,
    waiting: Vec<Done>,
    changes: Vec<(Box<ModeChange>, Done)>,
) {
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

/// While nothing can be written, what happened longest ago is given up first; which sessions there are is kept.
fn forget_oldest(retained: &mut Vec<Row>) {
    // An operation that is over needs no announcement any more.
    let concluded = |row: &Row| match row {
        Row::Changes { changes, .. } => changes.concludes.clone(),
        _ => None,
    };
    let over: HashSet<String> = retained.iter().filter_map(concluded).collect();
    retained.retain(|row| !matches!(row, Row::Intent { intent, .. } if over.contains(&intent.token)));
    let size = |row: &Row| match row {
        Row::Changes { changes, .. } => changes.contents.iter().map(|(_, content)| content.len()).sum(),
        Row::Intent { intent, .. } => intent.contents.iter().map(|(_, content)| content.len()).sum(),
        _ => 0,
    };
    let mut bytes: usize = retained.iter().map(size).sum();
    for row in retained.iter_mut() {
        let length = size(row);
        if bytes > KEPT_CONTENTS
            && length > 0
            && let Row::Changes { changes, .. } = row
        {
            bytes -= length;
            let paths: Vec<String> =
                changes.changed.iter().map(|changed| changed.path.display().to_string()).collect();
            let text = format!("Given up while the record could not be written: {}.", paths.join(", "));
            let concludes = changes.concludes.take();
            *changes = Changes { uncovered: vec![text], concludes, ..Changes::default() };
        }
    }
    let mut excess = retained.len().saturating_sub(KEPT);
    retained.retain(|row| {
        let goes = excess > 0 && !matches!(row, Row::Session { .. } | Row::Release { .. });
        excess -= usize::from(goes);
        !goes
    });
}

/// Writes everything, or nothing. A row that can never be written (its session was deleted elsewhere, say) is left out
/// by itself, so that it does not stand in the way of the others; for a mode change the outcome says so.
fn commit<'a>(
    database: &mut Database,
    rows: &[Row],
    changes: impl Iterator<Item = &'a ModeChange>,
) -> rusqlite::Result<Vec<rusqlite::Result<()>>> {
    let Database { connection, owner, file } = database;
    let mut changes = changes.peekable();
    if rows.is_empty() && changes.peek().is_none() {
        return Ok(Vec::new());
    }
    if file.as_ref().is_some_and(|file| !file.is_there()) {
        // SQLite would go on in a file that has no name any more.
        return Err(rusqlite::Error::InvalidPath(GONE.into()));
    }
    // Immediate: a transaction that turns from reading to writing would not wait for another process.
    let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for row in rows {
        let written = by_itself(&mut transaction, |connection| insert::insert(connection, row, owner))?;
        if let Err(error) = written {
            tracing::error!(%error, "a row can never be recorded and is left out");
        }
    }
    let mut outcomes = Vec::new();
    for change in changes {
        outcomes
            .push(by_itself(&mut transaction, |connection| insert::insert_mode_change(connection, change))?);
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
