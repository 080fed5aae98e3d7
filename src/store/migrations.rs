//! Opens the database, and creates the current schema or migrates to it.
//!
//! `PRAGMA user_version` counts the migrations of a file. A file from a newer Modegate is rejected.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::Sync;
use super::files::{StoreFileKind, companion, kind, unusable_companion};
use super::owner::StoreOwner;
use crate::platform::files::{create_private_folders, keep_private};

/// Maximum wait for another process that uses the file.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum wait after a failed commit, until a commit succeeds.
pub(super) const SHORT_BUSY_TIMEOUT: Duration = Duration::from_millis(50);

/// Value of `PRAGMA auto_vacuum`: free pages are given back when Modegate asks.
const INCREMENTAL: i64 = 2;

const PAUSE: Duration = Duration::from_millis(20);

/// Creates a new store in one step. The migrations leave the same schema, and take longer.
pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// Migrations in order, for files of earlier versions. Never edit a released one; add another, and the
/// same change to `schema.sql`.
pub(super) const MIGRATIONS: [&str; 14] = [
    "
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        cwd TEXT NOT NULL,
        mode TEXT,
        title TEXT,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL
    );
    CREATE TABLE events (
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        seq INTEGER NOT NULL,
        turn INTEGER NOT NULL,
        kind TEXT NOT NULL,
        body TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (session_id, seq)
    ) WITHOUT ROWID;
    CREATE TABLE mode_changes (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        turn INTEGER NOT NULL,
        from_mode TEXT,
        to_mode TEXT NOT NULL,
        source TEXT NOT NULL,
        at INTEGER NOT NULL
    );
    CREATE INDEX mode_changes_by_session ON mode_changes (session_id, id);
    CREATE TABLE denials (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        turn INTEGER NOT NULL,
        tool_call_id TEXT NOT NULL,
        tool TEXT NOT NULL,
        mode TEXT NOT NULL,
        rule TEXT NOT NULL,
        at INTEGER NOT NULL
    );
    CREATE INDEX denials_by_session ON denials (session_id, id);
",
    "
    ALTER TABLE sessions ADD COLUMN system_prompt TEXT;
",
    "
    ALTER TABLE mode_changes ADD COLUMN analysis TEXT;
    ALTER TABLE mode_changes ADD COLUMN actor TEXT;
    ALTER TABLE mode_changes ADD COLUMN tool_call_id TEXT;
    ALTER TABLE mode_changes ADD COLUMN mode_hash TEXT;
    ALTER TABLE mode_changes ADD COLUMN plan_hash TEXT;
    CREATE TABLE mode_texts (
        hash TEXT PRIMARY KEY,
        text TEXT NOT NULL
    ) WITHOUT ROWID;
",
    "
    ALTER TABLE sessions ADD COLUMN owner TEXT;
    ALTER TABLE sessions ADD COLUMN directories TEXT;
    ALTER TABLE sessions ADD COLUMN model TEXT;
    ALTER TABLE sessions ADD COLUMN effort TEXT;
    ALTER TABLE sessions ADD COLUMN forked_from TEXT;
    ALTER TABLE sessions ADD COLUMN chained INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX sessions_by_time ON sessions (updated_at, id);
    CREATE TABLE grants (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        mode TEXT NOT NULL,
        allows INTEGER NOT NULL,
        kind TEXT NOT NULL,
        tool TEXT NOT NULL,
        value TEXT NOT NULL,
        turn INTEGER NOT NULL,
        at INTEGER NOT NULL,
        UNIQUE (session_id, mode, allows, kind, tool, value)
    );
    CREATE TABLE chain (
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        body TEXT NOT NULL,
        hash TEXT NOT NULL,
        PRIMARY KEY (session_id, number)
    ) WITHOUT ROWID;
    CREATE TABLE changes (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        turn INTEGER NOT NULL,
        path TEXT NOT NULL,
        before TEXT NOT NULL,
        after TEXT NOT NULL,
        content TEXT,
        undone_at INTEGER
    );
    CREATE INDEX changes_by_session ON changes (session_id, turn);
    CREATE INDEX changes_by_content ON changes (content);
    CREATE TABLE uncovered (
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        turn INTEGER NOT NULL,
        text TEXT NOT NULL,
        UNIQUE (session_id, turn, text)
    );
    CREATE TABLE contents (
        hash TEXT PRIMARY KEY,
        content BLOB NOT NULL
    );
    CREATE VIEW tool_calls AS
        SELECT session_id, seq, turn, json_extract(body, '$.id') AS id, json_extract(body, '$.name') AS name,
            json_extract(body, '$.title') AS title, json_extract(body, '$.arguments') AS arguments, at
        FROM events WHERE kind = 'tool_call';
    CREATE VIEW plans AS
        SELECT session_id, seq, turn, json_extract(body, '$.entries') AS entries, at FROM events WHERE kind = 'plan';
    CREATE VIEW usage AS
        SELECT session_id, seq, turn, json_extract(body, '$.used') AS used, json_extract(body, '$.size') AS size,
            json_extract(body, '$.cache_read') AS cache_read, json_extract(body, '$.cache_write') AS cache_write,
            json_extract(body, '$.output') AS output, at
        FROM events WHERE kind = 'usage';
",
    "
    CREATE TABLE memories (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        folder TEXT NOT NULL,
        text TEXT NOT NULL,
        category TEXT,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL
    );
    CREATE INDEX memories_by_folder ON memories (folder, number);
",
    "
    ALTER TABLE sessions ADD COLUMN parent TEXT REFERENCES sessions(id) ON DELETE CASCADE;
    ALTER TABLE sessions ADD COLUMN agent TEXT;
    CREATE INDEX sessions_by_parent ON sessions (parent);
",
    "
    ALTER TABLE sessions ADD COLUMN harness_session TEXT;
    ALTER TABLE sessions ADD COLUMN harness_mode TEXT;
",
    "
    ALTER TABLE changes ADD COLUMN compared INTEGER NOT NULL DEFAULT 0;
",
    "
    CREATE TABLE intents (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        turn INTEGER NOT NULL,
        token TEXT NOT NULL UNIQUE,
        body TEXT NOT NULL
    );
    CREATE INDEX intents_by_session ON intents (session_id, id);
",
    // `state` is null for a session in lists, else `empty` (no event yet), `copying` or `deleting`. Each list has
    // an index in its order, so that a page costs the same however many sessions there are.
    "
    ALTER TABLE sessions ADD COLUMN state TEXT;
    UPDATE sessions SET state = 'empty'
        WHERE NOT EXISTS (SELECT 1 FROM events WHERE session_id = sessions.id);
    DROP INDEX sessions_by_time;
    CREATE INDEX sessions_listed ON sessions (updated_at, id) WHERE parent IS NULL AND state IS NULL;
    CREATE INDEX sessions_listed_by_cwd ON sessions (cwd, updated_at, id)
        WHERE parent IS NULL AND state IS NULL;
    CREATE INDEX sessions_listed_by_agent ON sessions (agent, updated_at, id)
        WHERE parent IS NULL AND state IS NULL;
    CREATE INDEX sessions_by_state ON sessions (state) WHERE state IS NOT NULL;
",
    "
    CREATE TABLE signed_heads (
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        length INTEGER NOT NULL,
        hash TEXT NOT NULL,
        at INTEGER NOT NULL,
        key TEXT NOT NULL,
        signature TEXT NOT NULL,
        PRIMARY KEY (session_id, key)
    ) WITHOUT ROWID;
",
    // A day is a local date in ISO 8601.
    "
    CREATE TABLE spent_days (
        day TEXT PRIMARY KEY,
        tokens INTEGER NOT NULL,
        micro_dollars INTEGER NOT NULL,
        ms INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE spent_sessions (
        session_id TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
        tokens INTEGER NOT NULL,
        micro_dollars INTEGER NOT NULL,
        ms INTEGER NOT NULL
    ) WITHOUT ROWID;
",
    // `open_span` is the id of a turn that runs, and null for finished work.
    "
    CREATE TABLE outbox_sessions (
        session_id TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
        exported INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE outbox_spans (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
        open_span TEXT,
        body TEXT NOT NULL
    );
    CREATE INDEX outbox_spans_by_session ON outbox_spans (session_id, id);
    CREATE INDEX outbox_spans_open ON outbox_spans (open_span) WHERE open_span IS NOT NULL;
",
    // Prompts in `sessions` stay there: an earlier version may be running, and it reads and writes them.
    "
    CREATE TABLE system_prompts (
        session_id TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
        text TEXT NOT NULL
    ) WITHOUT ROWID;
",
];

#[derive(Debug, thiserror::Error)]
pub(super) enum OpenStoreError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("it is not a file")]
    NoFile,
    #[error("{} is not a file: remove it", .0.display())]
    NoCompanion(PathBuf),
    #[error("file is not a database; `modegate store reset` sets it aside")]
    NoDatabase,
    #[error("it is a database of another program")]
    OtherDatabase,
    #[error("a newer Modegate wrote it (schema {found}; this version supports up to {known})")]
    Newer { found: i64, known: usize },
    #[error("it has schema {found}, not {known}, and cannot be migrated because it is read-only")]
    Other { found: i64, known: usize },
}

pub(super) fn open_memory() -> Result<Connection, OpenStoreError> {
    migrate(Connection::open_in_memory()?)
}

pub(super) fn check_kind(path: &Path) -> Result<(), OpenStoreError> {
    match kind(path)? {
        StoreFileKind::Usable => {
            unusable_companion(path).map_or(Ok(()), |path| Err(OpenStoreError::NoCompanion(path)))
        }
        StoreFileKind::NoFile => Err(OpenStoreError::NoFile),
        StoreFileKind::NoDatabase => Err(OpenStoreError::NoDatabase),
        StoreFileKind::OtherDatabase => Err(OpenStoreError::OtherDatabase),
    }
}

pub(super) fn open_file(path: &Path, sync: Sync) -> Result<Connection, OpenStoreError> {
    check_kind(path)?;
    if let Some(folder) = path.parent() {
        create_private_folders(folder)?;
    }
    keep_private(path)?;
    let started = Instant::now();
    loop {
        match open_once(path, sync) {
            // SQLite does not wait for this lock if two processes create a new file.
            Err(OpenStoreError::Sqlite(error)) if is_busy(&error) && started.elapsed() < BUSY_TIMEOUT => {
                thread::sleep(PAUSE);
            }
            opened => return opened,
        }
    }
}

/// The schema must be current, because a migration would need write access.
pub(super) fn open_reading(path: &Path) -> Result<Connection, OpenStoreError> {
    check_kind(path)?;
    let connection = open_unchanged(path)?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if usize::try_from(version).is_ok_and(|found| found == MIGRATIONS.len()) {
        Ok(connection)
    } else {
        Err(OpenStoreError::Other { found: version, known: MIGRATIONS.len() })
    }
}

/// Opens a file for reading, so that it stays as it is, and its schema, too.
pub(super) fn open_unchanged(path: &Path) -> Result<Connection, OpenStoreError> {
    check_kind(path)?;
    // An interrupted change of the file is in the journal.
    let is_empty = |ending: &str| {
        std::fs::metadata(companion(path, ending)).map_or(true, |metadata| metadata.len() == 0)
    };
    let is_settled = is_empty("-wal") && is_empty("-journal");
    // With writers, the log must be read, too.
    let connection = if is_settled && !StoreOwner::is_any(path) {
        open_immutable(path)?
    } else {
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?
    };
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Opens a store that this process has open already, for queries and checkpoints.
pub(super) fn open_to_query(path: &Path) -> Result<Connection, OpenStoreError> {
    check_kind(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// True if the file can give free pages back in steps. Files of earlier versions cannot, until
/// [`compact`] has rewritten them.
pub(super) fn can_give_back(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("PRAGMA auto_vacuum", [], |row| Ok(row.get::<_, i64>(0)? == INCREMENTAL))
}

/// Rewrites the whole file without its free pages. Takes long for a large file, and no other process can write
/// meanwhile.
pub(super) fn compact(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    connection.execute_batch("VACUUM")
}

/// Tries the rights to a file, and reads its version. Does not read the log, so that SQLite creates no files.
pub(super) fn inspect(path: &Path) -> Result<(), OpenStoreError> {
    check_kind(path)?;
    std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    version(&open_immutable(path)?).map(drop)
}

/// `immutable` keeps SQLite from creating files beside the database.
fn open_immutable(path: &Path) -> rusqlite::Result<Connection> {
    let mut name = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        write!(name, "%{byte:02X}").expect("writing to a string cannot fail");
    }
    name.push_str("?immutable=1");
    Connection::open_with_flags(name, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn open_once(path: &Path, sync: Sync) -> Result<Connection, OpenStoreError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Has an effect on new files only.
    connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = match sync {
        Sync::Normal => "NORMAL",
        Sync::Full => "FULL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    // Deleted data may be private, so it is overwritten.
    connection.pragma_update(None, "secure_delete", true)?;
    migrate(connection)
}

/// Returns the number of migrations of a file. Fails for a file of a newer version.
pub(super) fn version(connection: &Connection) -> Result<usize, OpenStoreError> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let newest = MIGRATIONS.len();
    usize::try_from(version)
        .ok()
        .filter(|done| *done <= newest)
        .ok_or(OpenStoreError::Newer { found: version, known: newest })
}

fn migrate(mut connection: Connection) -> Result<Connection, OpenStoreError> {
    connection.pragma_update(None, "foreign_keys", true)?;
    let done = version(&connection)?;
    if done == 0 {
        apply(&mut connection, SCHEMA, 0, MIGRATIONS.len())?;
    }
    for (number, migration) in MIGRATIONS.iter().enumerate().skip(done) {
        apply(&mut connection, migration, number, number + 1)?;
    }
    Ok(connection)
}

/// Does nothing if the schema is later than `from`: another process may have migrated the file meanwhile.
fn apply(connection: &mut Connection, sql: &str, from: usize, to: usize) -> Result<(), OpenStoreError> {
    let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    if version(&transaction)? > from {
        return Ok(());
    }
    transaction.execute_batch(sql)?;
    let version = i64::try_from(to).expect("there are few migrations");
    transaction.pragma_update(None, "user_version", version)?;
    Ok(transaction.commit()?)
}
