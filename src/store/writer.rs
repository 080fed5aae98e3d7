//! The thread that owns the database: commits posted rows in batches and answers waiting callers.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, oneshot};

use super::files::IdentifiedFile;
use super::insert::SessionUpdate;
use super::owner::StoreOwner;
use super::reader::QueryThread;
use super::{
    ModeChange, Row, StoreCommand, StoreError, StoreLocation, StoreWork, Substitute, Sync, insert,
    migrations, sql,
};
use crate::workspace::Changes;

/// Maximum number of rows kept for a retry.
const MAX_RETRY_ROWS: usize = 10_000;

/// Maximum bytes of file contents in kept rows.
const MAX_RETRY_BYTES: usize = 64 * 1024 * 1024;

const FILE_GONE: &str = "the file was deleted or replaced";

/// Prepared statements that are kept: more than there are in the code.
pub(super) const STATEMENTS: usize = 64;

/// Maximum number of commands in one transaction.
const BATCH: usize = 1_000;

/// Rows of one transaction after a failure: an attempt costs the same however many rows wait.
const RETRIED_ROWS: usize = 256;

pub(super) struct Database {
    connection: Connection,
    owner: Arc<StoreOwner>,
    file: Option<IdentifiedFile>,
    /// Opened with the first query. `None` inside if there is no second connection.
    reader: OnceLock<Option<QueryThread>>,
}

impl Database {
    fn new(connection: Connection, owner: StoreOwner, file: Option<IdentifiedFile>) -> Self {
        Self { connection, owner: Arc::new(owner), file, reader: OnceLock::new() }
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
    let alone = |connection| Database::new(connection, StoreOwner::alone(), None);
    match location {
        StoreLocation::Memory => migrations::open_memory().map(alone),
        StoreLocation::Reading(path) => migrations::open_reading(path).map(alone),
        StoreLocation::File(path) => {
            let connection = migrations::open_file(path, sync)?;
            connection.set_prepared_statement_cache_capacity(STATEMENTS);
            Ok(Database::new(connection, StoreOwner::beside(path)?, Some(IdentifiedFile::of(path)?)))
        }
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

pub(super) fn write(database: Option<Database>, mut queue: mpsc::UnboundedReceiver<StoreCommand>) {
    let mut database = database;
    let mut retained: Vec<Row> = Vec::new();
    let mut has_failed = false;
    while let Some(command) = queue.blocking_recv() {
        let mut batch = Batch::default();
        let mut next = Some(command);
        while let Some(command) = next {
            batch.take(command, &mut retained);
            let is_full = batch.work.is_some() || batch.count >= BATCH;
            next = if is_full { None } else { queue.try_recv().ok() };
        }
        let Batch { changes, waiting, work, .. } = batch;
        let rows = if has_failed { RETRIED_ROWS } else { usize::MAX };
        let outcome = match &mut database {
            Some(database) => commit(database, &mut retained, rows, &changes),
            None => Err(StoreError("it could not be opened".into())),
        };
        if let Some(Database { connection, .. }) = &database {
            // Another process kept the file busy. Later batches wait less, until one succeeds.
            let timeout =
                if outcome.is_ok() { migrations::BUSY_TIMEOUT } else { migrations::SHORT_BUSY_TIMEOUT };
            if let Err(error) = connection.busy_timeout(timeout) {
                tracing::debug!(%error, "the store's busy timeout could not be set");
            }
        }
        if let Err(error) = &outcome {
            if !has_failed {
                // Each session tells its user.
                tracing::warn!(%error, rows = retained.len(), "the session store could not be written");
            }
            forget_oldest(&mut retained);
        }
        has_failed = outcome.is_err();
        if let Some((kind, work)) = work {
            run(kind, work, &outcome, &mut database);
        }
        answer(outcome, waiting, changes);
    }
}

fn run<T>(kind: WorkKind, work: StoreWork, outcome: &Result<T, StoreError>, database: &mut Option<Database>) {
    match (outcome, database, kind) {
        // A query would not see the rows that could not be written.
        (Err(error), ..) => work(Err(error.clone())),
        (Ok(_), None, _) => work(Err(StoreError("it could not be opened".into()))),
        (Ok(_), Some(database), WorkKind::Write | WorkKind::Query) if database.is_gone() => {
            work(Err(StoreError(FILE_GONE.into())));
        }
        (Ok(_), Some(database), WorkKind::Query) => database.query(work),
        (Ok(_), Some(database), _) => work(Ok((&mut database.connection, &database.owner))),
    }
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
    outcome: Result<Vec<rusqlite::Result<()>>, StoreError>,
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

/// Limits the rows kept while writing fails. Concluded intents go first, then the oldest file contents, then
/// the oldest rows. Rows that start or release a session stay.
fn forget_oldest(retained: &mut Vec<Row>) {
    let concluded = |row: &Row| match row {
        Row::Changes { changes, .. } => changes.concludes.clone(),
        _ => None,
    };
    let over: HashSet<String> = retained.iter().filter_map(concluded).collect();
    retained.retain(|row| !matches!(row, Row::Intent { intent, .. } if over.contains(&intent.token)));
    let mut bytes: usize = retained.iter().map(content_bytes).sum();
    for row in retained.iter_mut() {
        let length = content_bytes(row);
        if bytes > MAX_RETRY_BYTES
            && length > 0
            && let Row::Changes { changes, .. } = row
        {
            bytes -= length;
            let paths: Vec<String> =
                changes.changed.iter().map(|changed| changed.path.display().to_string()).collect();
            let text = format!(
                "The session store could not be written, so changes of these files cannot be undone: {}.",
                paths.join(", ")
            );
            let intent = changes.concludes.take();
            *changes = Changes { uncovered: vec![text], concludes: intent, ..Changes::default() };
        }
    }
    let mut excess = retained.len().saturating_sub(MAX_RETRY_ROWS);
    retained.retain(|row| {
        let is_discarded = excess > 0 && !matches!(row, Row::Session { .. } | Row::Release { .. });
        excess -= usize::from(is_discarded);
        !is_discarded
    });
}

fn content_bytes(row: &Row) -> usize {
    match row {
        Row::Changes { changes, .. } => changes.contents.iter().map(|(_, content)| content.len()).sum(),
        Row::Intent { intent, .. } => intent.contents.iter().map(|(_, content)| content.len()).sum(),
        _ => 0,
    }
}

/// Writes everything and empties `rows`. `limit` is the number of rows in one transaction; on error, the rows of
/// the transactions before are written, and the others stay. A row that violates a constraint, such as one of a
/// deleted session, is left out, so that it does not block the others.
fn commit(
    database: &mut Database,
    rows: &mut Vec<Row>,
    limit: usize,
    changes: &[(Box<ModeChange>, Done)],
) -> Result<Vec<rusqlite::Result<()>>, StoreError> {
    if rows.is_empty() && changes.is_empty() {
        return Ok(Vec::new());
    }
    if database.is_gone() {
        // SQLite would keep writing to the deleted file.
        return Err(StoreError(FILE_GONE.into()));
    }
    let Database { connection, owner, .. } = database;
    if let ([], [(change, _)]) = (&rows[..], changes) {
        // The transaction is the savepoint.
        let outcome = in_transaction(connection, |connection| insert::insert_mode_change(connection, change));
        return Ok(vec![unless_violated(outcome)?]);
    }
    while rows.len() > limit {
        in_transaction(connection, |connection| insert_all(connection, &rows[..limit], owner))?;
        rows.drain(..limit);
    }
    let outcomes = in_transaction(connection, |connection| {
        insert_all(connection, rows, owner)?;
        changes
            .iter()
            .map(|(change, _)| in_savepoint(connection, || insert::insert_mode_change(connection, change)))
            .collect()
    })?;
    rows.clear();
    Ok(outcomes)
}

fn insert_all(connection: &Connection, rows: &[Row], owner: &StoreOwner) -> rusqlite::Result<()> {
    let mut updates = Vec::new();
    for row in rows {
        let write = || insert::insert(connection, row, owner);
        let written = match row {
            // One statement has its whole effect or none, without a savepoint, which copies each changed page.
            Row::Event { .. } => unless_violated(write())?,
            _ => in_savepoint(connection, write)?,
        };
        match written {
            Ok(()) => SessionUpdate::add(&mut updates, row),
            Err(error) => tracing::warn!(%error, "a row cannot be stored and is dropped"),
        }
    }
    updates.iter().try_for_each(|update| update.write(connection))
}

/// Commits, or rolls back on error. The library's own transactions parse their statements each time.
fn in_transaction<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    // Immediate: a transaction that turns from reading to writing would not wait for another process.
    sql::execute(connection, "BEGIN IMMEDIATE", [])?;
    let done = work(connection).and_then(|done| {
        sql::execute(connection, "COMMIT", [])?;
        Ok(done)
    });
    // SQLite has rolled back already after some errors.
    if done.is_err() && !connection.is_autocommit() {
        sql::execute(connection, "ROLLBACK", [])?;
    }
    done
}

/// Runs `work` in a savepoint. The inner error is a constraint violation of this row.
fn in_savepoint(
    connection: &Connection,
    work: impl FnOnce() -> rusqlite::Result<()>,
) -> rusqlite::Result<rusqlite::Result<()>> {
    sql::execute(connection, "SAVEPOINT one", [])?;
    let outcome = unless_violated(work())?;
    if outcome.is_err() {
        sql::execute(connection, "ROLLBACK TO one", [])?;
    }
    sql::execute(connection, "RELEASE one", [])?;
    Ok(outcome)
}

/// The inner error is a constraint violation, the outer one any other.
fn unless_violated(outcome: rusqlite::Result<()>) -> rusqlite::Result<rusqlite::Result<()>> {
    match outcome {
        Err(error) if error.sqlite_error_code() != Some(ErrorCode::ConstraintViolation) => Err(error),
        outcome => Ok(outcome),
    }
}
