//! Saves what can be read of a damaged store in a new one, and keeps the damaged file. If a step fails, the store
//! stays in its place, or the error names the files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::check::{self, Soundness, is_damage};
use super::files::{COMPANIONS, companion};
use super::migrations::{self, OpenStoreError};
use super::owner::StoreOwner;
use super::{StoreError, Sync, sql};
use crate::ids;
use crate::platform::files::create_private_folders;

/// Each table, with the columns in whose order it is read. Sessions come first, because rows of others belong to
/// them.
const TABLES: [(&str, &str); 18] = [
    ("sessions", "rowid"),
    ("events", "session_id, seq"),
    ("chain", "session_id, number"),
    ("signed_heads", "session_id, key"),
    ("mode_changes", "id"),
    ("denials", "id"),
    ("grants", "id"),
    ("changes", "id"),
    ("uncovered", "rowid"),
    ("intents", "id"),
    ("outbox_sessions", "session_id"),
    ("outbox_spans", "id"),
    ("mode_texts", "hash"),
    ("contents", "rowid"),
    ("memories", "number"),
    ("spent_days", "day"),
    ("spent_sessions", "session_id"),
    ("system_prompts", "session_id"),
];

/// Tables that are read session by session where their order is interrupted.
const BY_SESSION: [&str; 2] = ["events", "chain"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    pub sessions: u64,
    pub events: u64,
    pub memories: u64,
    /// Tables with rows that could not be read.
    pub incomplete: Vec<&'static str>,
    /// The old file.
    pub kept: PathBuf,
}

/// Name of the new store in the working folder.
const NEW: &str = "new.db";

/// Writes a new store with all that can be read of this one, which stays beside it. Fails, and changes nothing, if
/// another process has the store open, a newer version wrote it, or nothing can be read. Returns `None`, and changes
/// nothing, if no damage is found, unless `is_forced`.
pub fn salvage(path: &Path, is_forced: bool) -> Result<Option<Salvaged>, StoreError> {
    let owner = require_closed(path)?;
    migrations::check_kind(path)?;
    let folder = working_folder(path)?;
    let outcome = copy_all(path, &folder, is_forced).and_then(|saved| {
        let Some(saved) = saved else { return Ok(None) };
        require_alone(&owner)?;
        Ok(Some(Salvaged { kept: replace(path, &folder.join(NEW))?, ..saved }))
    });
    // Without a store in its place, the folder has the new one.
    if path.exists()
        && let Err(error) = std::fs::remove_dir_all(&folder)
    {
        tracing::info!(%error, folder = %folder.display(), "a temporary folder stays");
    }
    outcome
}

/// Renames the file of a store, so that the next session starts a new one. Returns the new name. Fails if another
/// process has the store open.
pub fn reset(path: &Path) -> Result<PathBuf, StoreError> {
    let _owner = require_closed(path)?;
    set_aside(path)
}

/// While the owner lives, other calls of [`salvage`] and [`reset`] fail.
fn require_closed(path: &Path) -> Result<StoreOwner, StoreError> {
    if !path.is_file() {
        return Err(StoreError("there is no such file".into()));
    }
    let owner = StoreOwner::beside(path)?;
    require_alone(&owner)?;
    Ok(owner)
}

fn require_alone(owner: &StoreOwner) -> Result<(), StoreError> {
    if owner.is_alone() {
        return Ok(());
    }
    Err(StoreError("another process has it open: close your editors and other runs first".into()))
}

fn working_folder(path: &Path) -> Result<PathBuf, StoreError> {
    let folder = companion(path, &format!("-salvage-{}", ids::unique()));
    create_private_folders(&folder)?;
    Ok(folder)
}

/// Moves `new` to the place of a store, whose new name is returned.
fn replace(path: &Path, new: &Path) -> Result<PathBuf, StoreError> {
    let kept_path = set_aside(path)?;
    let Err(error) = std::fs::rename(new, path) else { return Ok(kept_path) };
    Err(match rename_all(&kept_path, path) {
        Ok(()) => StoreError(format!("the new store cannot be moved to its place: {error}")),
        Err(StoreError(again)) => StoreError(format!(
            "the new store cannot be moved to its place: {error}; move {} there. {again}; the old file is {}",
            new.display(),
            kept_path.display()
        )),
    })
}

/// Gives a store another name, which is returned.
fn set_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let kept_path = companion(path, &format!(".old-{}", ids::unique()));
    rename_all(path, &kept_path)?;
    Ok(kept_path)
}

/// Renames a store and its companions, or none of them.
fn rename_all(from: &Path, to: &Path) -> Result<(), StoreError> {
    let companions = COMPANIONS.map(|ending| (companion(from, ending), companion(to, ending)));
    let renamed = companions.iter().try_for_each(|(from, to)| rename_existing(from, to));
    let Err(error) = renamed.and_then(|()| std::fs::rename(from, to)) else { return Ok(()) };
    let text = format!("{} cannot be renamed: {error}", from.display());
    for (from, to) in companions.iter().filter(|(_, to)| to.exists()) {
        if let Err(error) = std::fs::rename(to, from) {
            return Err(StoreError(format!("{text}; {} is now {} ({error})", from.display(), to.display())));
        }
    }
    Err(StoreError(text))
}

fn rename_existing(from: &Path, to: &Path) -> std::io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Works on a copy, because SQLite changes a file when it reads the log.
fn copy_all(path: &Path, folder: &Path, is_forced: bool) -> Result<Option<Salvaged>, StoreError> {
    let copy = folder.join("copy.db");
    std::fs::copy(path, &copy)?;
    match std::fs::copy(companion(path, "-wal"), companion(&copy, "-wal")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        Ok(_) | Err(_) => {}
    }
    let old = Connection::open(&copy)?;
    if is_sound(&old)? && !is_forced {
        return Ok(None);
    }
    let new = migrations::open_file(&folder.join(NEW), Sync::Full)?;
    new.pragma_update(None, "foreign_keys", false)?;
    new.execute_batch("BEGIN IMMEDIATE")?;
    let mut incomplete = Vec::new();
    for (table, order) in TABLES {
        if !copy_table(&old, &new, table, order)? {
            incomplete.push(table);
        }
    }
    settle(&new)?;
    new.execute_batch("COMMIT")?;
    let count = |table: &str| {
        let sql = format!("SELECT count(*) FROM {table}");
        new.query_row(&sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
    };
    let (sessions, events, memories) = (count("sessions")?, count("events")?, count("memories")?);
    if sessions + memories == 0 {
        return Err(StoreError(
            "nothing in it can be read; `modegate store reset` sets it aside and starts a new one".into(),
        ));
    }
    sql::overwrite(&new);
    new.close().map_err(|(_, error)| error)?;
    Ok(Some(Salvaged { sessions, events, memories, incomplete, kept: PathBuf::new() }))
}

/// Fails for a store that a newer version wrote.
fn is_sound(old: &Connection) -> Result<bool, StoreError> {
    match migrations::version(old) {
        Err(OpenStoreError::Sqlite(error)) if is_damage(&error) => {}
        version => drop(version?),
    }
    match check::check(old, None) {
        Ok(soundness) => Ok(matches!(soundness, Soundness::Sound)),
        Err(error) if is_damage(&error) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns false if some rows could not be read.
fn copy_table(old: &Connection, new: &Connection, table: &str, order: &str) -> Result<bool, StoreError> {
    let columns = |connection: &Connection| -> rusqlite::Result<Vec<String>> {
        sql::rows(connection, "SELECT name FROM pragma_table_info(?1)", [table], |row| row.get(0))
    };
    // An old schema has fewer columns; a table that it lacks has none.
    let old_columns = match columns(old) {
        Ok(known) => known,
        Err(error) if is_damage(&error) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let columns: Vec<String> = columns(new)?.into_iter().filter(|name| old_columns.contains(name)).collect();
    if columns.is_empty() {
        return Ok(true);
    }
    let copy = TableCopy { old, new, table, columns };
    if copy.read("", order)? {
        return Ok(true);
    }
    copy.read("", &descending(order))?;
    if BY_SESSION.contains(&table) {
        for session in known_sessions(old, new)? {
            let filter = format!("WHERE session_id = '{}'", session.replace('\'', "''"));
            if !copy.read(&filter, order)? {
                copy.read(&filter, &descending(order))?;
            }
        }
    }
    Ok(false)
}

fn descending(order: &str) -> String {
    order.split(", ").map(|column| format!("{column} DESC")).collect::<Vec<_>>().join(", ")
}

struct TableCopy<'a> {
    old: &'a Connection,
    new: &'a Connection,
    table: &'a str,
    columns: Vec<String>,
}

impl TableCopy<'_> {
    /// Copies rows until one cannot be read. Returns true if there was none. Rows that exist already are left out.
    fn read(&self, filter: &str, order: &str) -> Result<bool, StoreError> {
        let Self { old, new, table, columns } = self;
        let names = columns.join(", ");
        let values = (1..=columns.len()).map(|number| format!("?{number}")).collect::<Vec<_>>().join(", ");
        let mut insert =
            new.prepare_cached(&format!("INSERT OR IGNORE INTO {table} ({names}) VALUES ({values})"))?;
        let query = format!("SELECT {names} FROM {table} {filter} ORDER BY {order}");
        let Ok(mut select) = old.prepare(&query) else { return Ok(false) };
        let mut rows = select.query([])?;
        let mut is_complete = true;
        loop {
            match rows.next() {
                Ok(Some(row)) => {
                    let values: rusqlite::Result<Vec<Value>> =
                        (0..columns.len()).map(|number| row.get(number)).collect();
                    match values {
                        Ok(values) => drop(insert.execute(params_from_iter(values))?),
                        // Such as text that is no UTF-8: the rows after it can be read.
                        Err(_) => is_complete = false,
                    }
                }
                Ok(None) => return Ok(is_complete),
                Err(_) => return Ok(false),
            }
        }
    }
}

/// The sessions of all rows that were read so far, and those in the indexes of the damaged store.
fn known_sessions(old: &Connection, new: &Connection) -> Result<BTreeSet<String>, StoreError> {
    let mut columns = BTreeSet::new();
    let queries = [
        (new, "SELECT id FROM sessions"),
        (new, "SELECT DISTINCT session_id FROM events"),
        (old, "SELECT id FROM sessions ORDER BY id"),
        (old, "SELECT session_id FROM mode_changes ORDER BY session_id, id"),
    ];
    for (connection, sql) in queries {
        let Ok(mut statement) = connection.prepare(sql) else { continue };
        let mut rows = statement.query([])?;
        while let Ok(Some(row)) = rows.next() {
            columns.extend(row.get::<_, String>(0));
        }
    }
    Ok(columns)
}

/// Gives events without a session one, and removes other rows without a session.
fn settle(new: &Connection) -> Result<(), StoreError> {
    new.execute_batch(
        "INSERT OR IGNORE INTO sessions (id, cwd, mode, title, created_at, updated_at)
            SELECT session_id, '/', NULL, 'Salvaged: its directory and mode are unknown', min(at), max(at)
            FROM events WHERE session_id NOT IN (SELECT id FROM sessions) GROUP BY session_id;
        UPDATE sessions SET owner = NULL;
        UPDATE sessions SET parent = NULL WHERE parent NOT IN (SELECT id FROM sessions);
        UPDATE sessions SET state = nullif(state, 'empty') WHERE id IN (SELECT session_id FROM events);",
    )?;
    for (table, _) in TABLES {
        if !matches!(table, "sessions" | "mode_texts" | "contents" | "memories" | "spent_days") {
            new.execute_batch(&format!(
                "DELETE FROM {table} WHERE session_id NOT IN (SELECT id FROM sessions)"
            ))?;
        }
    }
    Ok(())
}
