//! Reads all data for the audit of a session, in one transaction.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use rusqlite::{Connection, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::entry::{ChainEntry, refuses_acts};
use super::owner::StoreOwner;
use super::sessions::{self, StoredSession};
use super::sql;
use crate::acp::SessionId;
use crate::chain::Link;
use crate::ids::hash;
use crate::signing::{PublicKey, Signature, SignedHead};

/// All that an audit reads of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Evidence {
    pub session: AuditedSession,
    pub mode_column: Option<String>,
    pub links: Vec<Link>,
    /// The last one of each key.
    pub signed_heads: Vec<SignedHead>,
    /// Texts that the chain names, by hash.
    pub texts: BTreeMap<String, String>,
    /// The rows of mode changes, as the entries that the chain should have.
    pub mode_changes: Vec<ChainEntry>,
    /// The rows of denials, in the same form.
    pub denials: Vec<ChainEntry>,
    pub calls: Vec<ShownCall>,
}

impl Evidence {
    /// Acts of an external agent or of a program that were refused at the system call: their number for each rule. For
    /// a rule that refused changes of commands, the number of calls.
    pub fn refused_acts(&self) -> BTreeMap<&str, usize> {
        let calls: HashSet<&str> = self.calls.iter().map(|call| call.id.as_str()).collect();
        let mut acts = BTreeMap::new();
        for denial in &self.denials {
            if let ChainEntry::Denial { call, rule, .. } = denial
                && (!calls.contains(call.as_str()) || refuses_acts(rule))
            {
                *acts.entry(rule.as_str()).or_insert(0) += 1;
            }
        }
        acts
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditedSession {
    pub id: SessionId,
    pub cwd: PathBuf,
    /// True once the chain had an entry, even if the chain was deleted later.
    pub is_chained: bool,
}

/// A call in the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShownCall {
    pub turn: u64,
    pub id: String,
    pub tool: String,
    /// Their hash.
    pub arguments: String,
    /// The check that the call runs.
    pub check: Option<String>,
    /// True if an event reports the call as in progress or completed.
    pub ran: bool,
}

pub(super) fn find(
    connection: &mut Connection,
    owner: &StoreOwner,
    id: &SessionId,
) -> rusqlite::Result<Option<Evidence>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
    let Some(session) = sessions::find(&transaction, owner, id)? else { return Ok(None) };
    read(&transaction, session).map(Some)
}

fn read(connection: &Connection, session: StoredSession) -> rusqlite::Result<Evidence> {
    let id = session.id.0.to_string();
    let texts = "SELECT hash, text FROM mode_texts WHERE hash IN (SELECT coalesce(body ->> '$.under', body ->> '$.text') \
                 FROM chain WHERE session_id = ?1 AND json_valid(body))";
    let changes = "SELECT turn, from_mode, to_mode, source, coalesce(mode_hash, ''), plan_hash, at \
                   FROM mode_changes WHERE session_id = ?1 ORDER BY id";
    let denials =
        "SELECT turn, tool_call_id, tool, mode, rule, at FROM denials WHERE session_id = ?1 ORDER BY id";
    let mode = "SELECT mode FROM sessions WHERE id = ?1";
    Ok(Evidence {
        mode_column: connection.query_row(mode, [&id], |row| row.get(0))?,
        links: sessions::links(connection, &session.id)?,
        texts: sql::rows(connection, texts, [&id], |row| Ok((row.get(0)?, row.get(1)?)))?
            .into_iter()
            .collect(),
        mode_changes: sql::rows(connection, changes, [&id], |row| {
            Ok(ChainEntry::Mode {
                turn: row.get::<_, i64>(0)?.cast_unsigned(),
                from: row.get(1)?,
                to: row.get(2)?,
                source: row.get(3)?,
                text: row.get(4)?,
                plan: row.get(5)?,
                at: row.get(6)?,
            })
        })?,
        denials: sql::rows(connection, denials, [&id], |row| {
            Ok(ChainEntry::Denial {
                turn: row.get::<_, i64>(0)?.cast_unsigned(),
                call: row.get(1)?,
                tool: row.get(2)?,
                mode: row.get(3)?,
                rule: row.get(4)?,
                at: row.get(5)?,
            })
        })?,
        calls: calls(connection, &id)?,
        signed_heads: signed_heads(connection, &id)?,
        session: AuditedSession { id: session.id, cwd: session.cwd, is_chained: session.is_chained },
    })
}

fn signed_heads(connection: &Connection, id: &str) -> rusqlite::Result<Vec<SignedHead>> {
    let sql = "SELECT length, hash, at, key, signature FROM signed_heads WHERE session_id = ?1 ORDER BY key";
    sql::rows(connection, sql, [id], |row| {
        Ok(SignedHead {
            length: row.get::<_, i64>(0)?.cast_unsigned(),
            hash: row.get(1)?,
            at: row.get(2)?,
            signature: Signature { key: PublicKey::unchecked(row.get(3)?), value: row.get(4)? },
        })
    })
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
                check: body["check"].as_str().map(str::to_owned),
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
