//! Reads all data for the audit of a session, in one transaction.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, TransactionBehavior, params};
use serde_json::Value;

use super::sessions::{self, StoredSession};
use super::{Store, StoreError};
use crate::acp::SessionId;
use crate::chain::Link;
use crate::ids::hash;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    pub session: StoredSession,
    pub mode_column: Option<String>,
    pub links: Vec<Link>,
    /// Texts that the chain names, by hash.
    pub texts: HashMap<String, String>,
    /// Rows in order: from, to, source.
    pub mode_changes: Vec<(Option<String>, String, String)>,
    /// Rows in order: call, rule.
    pub denials: Vec<(String, String)>,
    pub calls: Vec<ShownCall>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownCall {
    pub turn: u64,
    pub id: String,
    pub tool: String,
    pub arguments: String,
    /// True if an event reports the call as in progress or completed.
    pub ran: bool,
}

impl Store {
    pub async fn evidence(&self, id: &SessionId) -> Result<Option<Evidence>, StoreError> {
        let id = id.clone();
        self.work(move |connection, owner| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
            let Some(session) = sessions::find(&transaction, owner, &id)? else { return Ok(None) };
            read(&transaction, session).map(Some)
        })
        .await
    }
}

fn read(connection: &Connection, session: StoredSession) -> rusqlite::Result<Evidence> {
    let id = session.id.0.to_string();
    let sql = "SELECT hash, text FROM mode_texts WHERE hash IN (SELECT coalesce(body ->> '$.under', body ->> '$.text') \
               FROM chain WHERE session_id = ?1 AND json_valid(body))";
    let mut statement = connection.prepare(sql)?;
    let texts =
        statement.query_map(params![id], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    let sql = "SELECT from_mode, to_mode, source FROM mode_changes WHERE session_id = ?1 ORDER BY id";
    let mut statement = connection.prepare(sql)?;
    let changes = statement.query_map(params![id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let mode_changes = changes.collect::<Result<_, _>>()?;
    let sql = "SELECT tool_call_id, rule FROM denials WHERE session_id = ?1 ORDER BY id";
    let mut statement = connection.prepare(sql)?;
    let denials = statement.query_map(params![id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let denials = denials.collect::<Result<_, _>>()?;
    let (links, calls) = (sessions::links(connection, &session.id)?, calls(connection, &id)?);
    let sql = "SELECT mode FROM sessions WHERE id = ?1";
    let mode_column = connection.query_row(sql, [&id], |row| row.get(0))?;
    Ok(Evidence { session, mode_column, links, texts, mode_changes, denials, calls })
}

fn calls(connection: &Connection, id: &str) -> rusqlite::Result<Vec<ShownCall>> {
    let sql = "SELECT kind, turn, body FROM events WHERE session_id = ?1 \
               AND kind IN ('tool_call', 'tool_call_update') ORDER BY seq";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query(params![id])?;
    let (mut calls, mut ran) = (Vec::new(), HashSet::new());
    while let Some(row) = rows.next()? {
        let (kind, turn, body): (String, i64, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        // An unreadable event gives a call without an id. The chain still has the call.
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
        if kind == "tool_call" {
            calls.push(ShownCall {
                turn: turn.cast_unsigned(),
                id: text("id"),
                tool: text("name"),
                arguments: hash(&body["arguments"].to_string()),
                ran: false,
            });
        } else if body["status"] == "in_progress" || body["status"] == "completed" {
            ran.insert(text("id"));
        }
    }
    for call in &mut calls {
        call.ran = ran.contains(&call.id);
    }
    Ok(calls)
}
