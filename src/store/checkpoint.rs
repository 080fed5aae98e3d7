//! File changes of turns, with the contents needed to undo them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{intent, removal, sql};
use crate::acp::SessionId;
use crate::path_bytes;
use crate::workspace::{Changed, Changes, FileState};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub turn: u64,
    pub changed: Vec<Changed>,
    pub contents: HashMap<String, Vec<u8>>,
    /// Changes of this turn and later ones that cannot be undone, as sentences for users. Turns that were undone
    /// do not count.
    pub uncovered: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundCheckpoint {
    Checkpoint(Checkpoint),
    Nothing {
        was_undone: bool,
        /// As in [`Checkpoint`], of the requested turn, or of the last one that was not undone.
        uncovered: Vec<String>,
    },
}

pub(super) fn find(
    connection: &Connection,
    id: &SessionId,
    turn: Option<u64>,
) -> rusqlite::Result<FoundCheckpoint> {
    let requested_turn = turn.map(u64::cast_signed);
    let sql = "SELECT max(turn) FROM changes WHERE session_id = ?1 AND undone_at IS NULL AND (?2 IS NULL OR turn = ?2)";
    let last_turn: Option<i64> =
        connection.query_row(sql, params![&*id.0, requested_turn], |row| row.get(0))?;
    if let Some(turn) = last_turn {
        return Ok(FoundCheckpoint::Checkpoint(read(connection, id, turn)?));
    }
    let sql = "SELECT EXISTS (SELECT 1 FROM changes WHERE session_id = ?1 AND turn = ?2)";
    let was_undone = connection.query_row(sql, params![&*id.0, requested_turn], |row| row.get(0))?;
    let sql = "WITH found AS (SELECT turn, text, rowid AS row FROM uncovered WHERE session_id = ?1 AND turn NOT IN \
               (SELECT turn FROM changes WHERE session_id = ?1)) SELECT text FROM found \
               WHERE turn = coalesce(?2, (SELECT max(turn) FROM found)) ORDER BY row";
    let uncovered = sql::rows(connection, sql, params![&*id.0, requested_turn], |row| row.get(0))?;
    Ok(FoundCheckpoint::Nothing { was_undone, uncovered })
}

/// Returns the changes of each turn, also of those that were undone.
pub(super) fn list(connection: &Connection, id: &SessionId) -> rusqlite::Result<BTreeMap<u64, Vec<Changed>>> {
    let sql = "SELECT path, before, after, compared, turn FROM changes WHERE session_id = ?1 ORDER BY id";
    let rows = sql::rows(connection, sql, params![&*id.0], |row| {
        Ok((row.get::<_, i64>(4)?.cast_unsigned(), read_change(row)?))
    })?;
    let mut turns = BTreeMap::<u64, Vec<Changed>>::new();
    for (turn, changed) in rows {
        turns.entry(turn).or_default().push(changed);
    }
    Ok(turns)
}

pub(super) fn list_uncovered(
    connection: &Connection,
    id: &SessionId,
) -> rusqlite::Result<Vec<(u64, String)>> {
    let sql = "SELECT turn, text FROM uncovered WHERE session_id = ?1 ORDER BY turn, rowid";
    sql::rows(connection, sql, [&*id.0], |row| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?)))
}

pub(super) fn mark_undone(
    connection: &Connection,
    id: &SessionId,
    turn: u64,
    at: i64,
) -> rusqlite::Result<()> {
    let sql = "UPDATE changes SET undone_at = ?3 WHERE session_id = ?1 AND turn = ?2 AND undone_at IS NULL";
    sql::execute(connection, sql, params![&*id.0, turn.cast_signed(), at])
}

pub(super) fn insert(
    connection: &Connection,
    id: &SessionId,
    turn: u64,
    changes: &Changes,
) -> rusqlite::Result<()> {
    let turn = turn.cast_signed();
    insert_contents(connection, &changes.contents)?;
    let mut held: HashSet<String> = changes.contents.iter().map(|(hash, _)| hash.clone()).collect();
    if let Some(token) = &changes.concludes {
        held.extend(intent::remove(connection, id, token)?);
    }
    let sql = "INSERT INTO changes (session_id, turn, path, before, after, content, compared) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    for Changed { path, before, after, compared } in &changes.changed {
        let content = match before {
            FileState::File { hash, .. } => {
                held.remove(hash);
                Some(hash)
            }
            FileState::Absent | FileState::Link { .. } | FileState::Folder { .. } => None,
        };
        let (before, after) = (write_file_state(before), write_file_state(after));
        let values = params![&*id.0, turn, write_path(path), before, after, content, compared];
        sql::execute(connection, sql, values)?;
    }
    let sql = "INSERT OR IGNORE INTO uncovered (session_id, turn, text) VALUES (?1, ?2, ?3)";
    for text in &changes.uncovered {
        sql::execute(connection, sql, params![&*id.0, turn, text])?;
    }
    // Such as those of an edit that failed, and the new content of a file that was written in place.
    removal::remove_contents(connection, held)
}

pub(super) fn insert_contents(
    connection: &Connection,
    contents: &[(String, Vec<u8>)],
) -> rusqlite::Result<()> {
    let sql = "INSERT OR IGNORE INTO contents (hash, content) VALUES (?1, ?2)";
    for (hash, content) in contents {
        sql::execute(connection, sql, params![hash, content])?;
    }
    Ok(())
}

pub(super) fn content(connection: &Connection, hash: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    let mut statement = connection.prepare_cached("SELECT content FROM contents WHERE hash = ?1")?;
    statement.query_row([hash], |row| row.get(0)).optional()
}

fn read(connection: &Connection, id: &SessionId, turn: i64) -> rusqlite::Result<Checkpoint> {
    let sql = "SELECT path, before, after, compared FROM changes \
               WHERE session_id = ?1 AND turn = ?2 AND undone_at IS NULL ORDER BY id";
    let changed = sql::rows(connection, sql, params![&*id.0, turn], read_change)?;
    let mut contents = HashMap::new();
    for Changed { before, .. } in &changed {
        if let FileState::File { hash, .. } = before
            && !contents.contains_key(hash)
        {
            contents.extend(content(connection, hash)?.map(|content| (hash.clone(), content)));
        }
    }
    let sql = "SELECT text FROM uncovered WHERE session_id = ?1 AND turn >= ?2 AND turn NOT IN \
               (SELECT turn FROM changes WHERE session_id = ?1 AND undone_at IS NOT NULL) ORDER BY turn, rowid";
    let uncovered = sql::rows(connection, sql, params![&*id.0, turn], |row| row.get(0))?;
    Ok(Checkpoint { turn: turn.cast_unsigned(), changed, contents, uncovered })
}

/// A text, or bytes for a path that is not UTF-8.
fn write_path(path: &Path) -> Value {
    match path.to_str() {
        Some(text) => Value::Text(text.to_owned()),
        None => Value::Blob(path.as_os_str().as_encoded_bytes().to_vec()),
    }
}

fn read_path(row: &Row<'_>) -> rusqlite::Result<PathBuf> {
    Ok(match row.get(0)? {
        Value::Blob(bytes) => path_bytes::from_bytes(bytes),
        _ => row.get::<_, String>(0)?.into(),
    })
}

fn read_change(row: &Row<'_>) -> rusqlite::Result<Changed> {
    Ok(Changed {
        path: read_path(row)?,
        before: read_file_state(&row.get::<_, String>(1)?)?,
        after: read_file_state(&row.get::<_, String>(2)?)?,
        compared: row.get(3)?,
    })
}

pub(super) fn write_file_state(state: &FileState) -> String {
    serde_json::to_string(state).expect("a state is texts and numbers")
}

pub(super) fn read_file_state(text: &str) -> rusqlite::Result<FileState> {
    serde_json::from_str(text).map_err(invalid_json)
}

pub(super) fn invalid_json(error: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
}
