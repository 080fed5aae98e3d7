//! All that an audit of a session looks at, read at one moment.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, TransactionBehavior, params};
use serde_json::Value;

use super::sessions::{self, StoredSession};
use super::{Store, StoreError};
use crate::acp::SessionId;
use crate::chain::Link;
use crate::ids::hash;

/// What the record says of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The session.
    pub session: StoredSession,
    /// The mode in the row of the session, which is a copy of the newest change.
    pub mode_column: Option<String>,
    /// Its chain.
    pub links: Vec<Link>,
    /// The texts that the record names, by their hashes.
    pub texts: HashMap<String, String>,
    /// The mode changes of their own table, in order: from, to, by which way.
    pub mode_changes: Vec<(Option<String>, String, String)>,
    /// The denials of their own table, in order: the call and the rule.
    pub denials: Vec<(String, String)>,
    /// The calls that are events, in order.
    pub calls: Vec<ShownCall>,
}

/// A call as the events have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownCall {
    /// The turn.
    pub turn: u64,
    /// The call.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// The hash of its arguments.
    pub arguments: String,
    /// It was begun, or is said to have come to its end.
    pub ran: bool,
}

impl Store {
    /// What the record says of a session; nothing, if there is none of this id.
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
    // Those that the chain names. What is no JSON names none, and is found to be so later.
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
        // What cannot be read is no call that could be named; the chain says of it what there is to say.
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
