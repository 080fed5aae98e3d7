//! File changes that turns announced, stored until their result is known.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use serde_json::{Value, json};

use super::checkpoint::{content, insert_contents, read_file_state, write_file_state};
use super::{Store, StoreError};
use crate::acp::SessionId;
use crate::workspace::{Changed, FileState, Intent};

impl Store {
    pub async fn intents(&self, id: &SessionId) -> Result<Vec<(u64, Intent)>, StoreError> {
        let id = id.clone();
        self.work(move |connection, _| {
            let sql = "SELECT turn, token, body FROM intents WHERE session_id = ?1 ORDER BY id";
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map(params![&*id.0], |row| {
                Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?, row.get::<_, String>(2)?))
            })?;
            let mut intents = Vec::new();
            for row in rows {
                let (turn, token, body) = row?;
                intents.push((turn, read(connection, token, &body)?));
            }
            Ok(intents)
        })
        .await
    }
}

/// Leaves out paths that are not UTF-8, because they could not be found again.
pub(super) fn insert(
    connection: &Connection,
    id: &SessionId,
    turn: u64,
    intent: &Intent,
) -> rusqlite::Result<()> {
    insert_contents(connection, &intent.contents)?;
    let change = |Changed { path, before, after, .. }: &Changed| {
        let path = path.to_str()?;
        Some(
            json!({ "path": path, "before": write_file_state(before).to_string(), "after": write_file_state(after).to_string() }),
        )
    };
    let body = json!({
        "changed": intent.changed.iter().filter_map(change).collect::<Vec<_>>(),
        "contents": intent.contents.iter().map(|(hash, _)| hash).collect::<Vec<_>>(),
        "folders": intent.folders.iter().filter_map(|folder| folder.to_str()).collect::<Vec<_>>(),
        "uncovered": intent.uncovered,
    });
    let sql = "INSERT OR IGNORE INTO intents (session_id, turn, token, body) VALUES (?1, ?2, ?3, ?4)";
    let mut statement = connection.prepare_cached(sql)?;
    statement.execute(params![&*id.0, turn.cast_signed(), intent.token, body.to_string()]).map(drop)
}

fn read(connection: &Connection, token: String, body: &str) -> rusqlite::Result<Intent> {
    let body: Value = serde_json::from_str(body).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })?;
    let texts = |key: &str| body[key].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut intent = Intent {
        token,
        folders: texts("folders").map(PathBuf::from).collect(),
        uncovered: texts("uncovered").map(str::to_owned).collect(),
        ..Intent::default()
    };
    for change in body["changed"].as_array().into_iter().flatten() {
        let text = |key: &str| change[key].as_str().unwrap_or_default();
        let (before, after) = (read_file_state(text("before"))?, read_file_state(text("after"))?);
        let path = Path::new(text("path")).to_owned();
        if let FileState::File { hash, .. } = &before
            && let Some(content) = content(connection, hash)?
        {
            intent.contents.push((hash.clone(), content));
        }
        intent.changed.push(Changed { path, before, after, compared: false });
    }
    Ok(intent)
}
