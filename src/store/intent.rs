//! File changes that turns announced, stored until their result is known.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use serde_json::{Value, json};

use super::checkpoint::{content, insert_contents, invalid_json, read_file_state, write_file_state};
use super::sql;
use crate::acp::SessionId;
use crate::workspace::{Changed, FileState, Intent};

pub(super) fn list(connection: &Connection, id: &SessionId) -> rusqlite::Result<Vec<(u64, Intent)>> {
    let sql = "SELECT turn, token, body FROM intents WHERE session_id = ?1 ORDER BY id";
    sql::rows(connection, sql, [&*id.0], |row| {
        Ok((row.get::<_, i64>(0)?.cast_unsigned(), read(connection, row.get(1)?, &row.get::<_, String>(2)?)?))
    })
}

/// Leaves out paths that are not UTF-8, because they could not be found again.
pub(super) fn insert(
    connection: &Connection,
    id: &SessionId,
    turn: u64,
    intent: &Intent,
) -> rusqlite::Result<()> {
    insert_contents(connection, &intent.contents)?;
    let body = json!({
        "changed": intent.changed.iter().filter_map(change_value).collect::<Vec<_>>(),
        "contents": intent.contents.iter().map(|(hash, _)| hash).collect::<Vec<_>>(),
        "folders": intent.folders.iter().filter_map(|folder| folder.to_str()).collect::<Vec<_>>(),
        "uncovered": intent.uncovered,
        "in_place": intent.in_place.iter().filter_map(|path| path.to_str()).collect::<Vec<_>>(),
    });
    let sql = "INSERT OR IGNORE INTO intents (session_id, turn, token, body) VALUES (?1, ?2, ?3, ?4)";
    sql::execute(connection, sql, params![&*id.0, turn.cast_signed(), intent.token, body.to_string()])
}

fn change_value(Changed { path, before, after, .. }: &Changed) -> Option<Value> {
    let path = path.to_str()?;
    Some(json!({ "path": path, "before": write_file_state(before), "after": write_file_state(after) }))
}

/// Removes an intent, and returns the hashes of its contents.
pub(super) fn remove(connection: &Connection, id: &SessionId, token: &str) -> rusqlite::Result<Vec<String>> {
    let sql = "DELETE FROM intents WHERE session_id = ?1 AND token = ?2 RETURNING body";
    let bodies = sql::rows(connection, sql, params![&*id.0, token], |row| row.get::<_, String>(0))?;
    Ok(bodies.iter().flat_map(|body| content_hashes(body)).collect())
}

/// Removes one of a session's intents, and returns the hashes of its contents, or `None` if there is no intent.
pub(super) fn remove_next(connection: &Connection, id: &str) -> rusqlite::Result<Option<Vec<String>>> {
    let sql =
        "DELETE FROM intents WHERE id = (SELECT min(id) FROM intents WHERE session_id = ?1) RETURNING body";
    let body = sql::rows(connection, sql, [id], |row| row.get::<_, String>(0))?.pop();
    Ok(body.map(|body| content_hashes(&body)))
}

/// A text that cannot be read names no contents, so that the intent can be removed nevertheless.
fn content_hashes(body: &str) -> Vec<String> {
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let hashes = body["contents"].as_array().into_iter().flatten();
    hashes.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn read(connection: &Connection, token: String, body: &str) -> rusqlite::Result<Intent> {
    let body: Value = serde_json::from_str(body).map_err(invalid_json)?;
    let texts = |key: &str| body[key].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut intent = Intent {
        token,
        folders: texts("folders").map(PathBuf::from).collect(),
        uncovered: texts("uncovered").map(str::to_owned).collect(),
        in_place: texts("in_place").map(PathBuf::from).collect(),
        ..Intent::default()
    };
    for change in body["changed"].as_array().into_iter().flatten() {
        let text = |key: &str| change[key].as_str().unwrap_or_default();
        let (before, after) = (read_file_state(text("before"))?, read_file_state(text("after"))?);
        let path = Path::new(text("path")).to_owned();
        let new = Some(&after).filter(|_| intent.in_place.contains(&path));
        for state in std::iter::once(&before).chain(new) {
            if let FileState::File { hash, .. } = state
                && let Some(content) = content(connection, hash)?
            {
                intent.contents.push((hash.clone(), content));
            }
        }
        intent.changed.push(Changed { path, before, after, compared: false });
    }
    Ok(intent)
}
