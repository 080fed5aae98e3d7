//! The outbox of telemetry: span records that wait, and for each session the last entry of the audit log that
//! was exported. Rows leave the outbox only after a backend has accepted them.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use tokio::sync::watch;

use super::owner::StoreOwner;
use super::sql;
use crate::acp::SessionId;
use crate::chain::Link;
use crate::platform::files::keep_private;
use crate::span_record::SpanRecord;

/// Maximum bytes of the rows of one query, unless the first row has more.
const MAX_BYTES: usize = 1024 * 1024;

/// Wakes the exporters of this process.
#[derive(Debug, Clone, Default)]
pub struct OutboxBell(Arc<watch::Sender<u64>>);

/// A span record in the outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitingSpan {
    pub id: i64,
    pub session: SessionId,
    /// `None` if the row cannot be read.
    pub record: Option<SpanRecord>,
    /// Agent of the session.
    pub agent: Option<String>,
}

/// An entry of the audit log that is not exported yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingLink {
    pub session: SessionId,
    pub link: Link,
}

/// The two outboxes, each with one exporter at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outbox {
    Spans,
    Links,
}

/// Locked while an exporter reads the outbox and sends, so that no other process sends the same rows.
#[derive(Debug)]
pub struct OutboxLock {
    /// `None` for a store in memory.
    _file: Option<File>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxCounts {
    pub spans: u64,
    pub links: u64,
}

impl OutboxBell {
    pub fn ring(&self) {
        self.0.send_modify(|rings| *rings += 1);
    }

    pub fn listen(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

impl Outbox {
    pub(super) fn lock_name(self) -> &'static str {
        match self {
            Self::Spans => "spans.lock",
            Self::Links => "links.lock",
        }
    }
}

impl OutboxLock {
    /// `None` as a path stands for a store that no other process has. Returns `None` if another process exports.
    pub(super) fn take(path: Option<PathBuf>) -> io::Result<Option<Self>> {
        let Some(path) = path else { return Ok(Some(Self { _file: None })) };
        keep_private(&path)?;
        let file = OpenOptions::new().write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: Some(file) })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Removes exported records.
pub(super) fn remove_spans(connection: &mut Connection, ids: Vec<i64>) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for id in ids {
        sql::execute(&transaction, "DELETE FROM outbox_spans WHERE id = ?1", [id])?;
    }
    transaction.commit()
}

/// Moves the cursors of sessions to the last exported entries.
pub(super) fn advance_all(
    connection: &mut Connection,
    exported: BTreeMap<String, u64>,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for (session, number) in exported {
        advance(&transaction, &session, number)?;
    }
    transaction.commit()
}

/// A finished turn replaces the row that says that the turn runs.
pub(super) fn insert_span(
    connection: &Connection,
    session: &SessionId,
    record: &SpanRecord,
) -> rusqlite::Result<()> {
    let is_open = record.ended.is_none();
    if !is_open {
        // The index names the running turns only: thousands of rows of the session may wait.
        let sql = "DELETE FROM outbox_spans INDEXED BY outbox_spans_open WHERE open_span = ?1";
        sql::execute(connection, sql, [&record.link.span])?;
    }
    let body = serde_json::to_string(record)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    sql::execute(
        connection,
        "INSERT INTO outbox_spans (session_id, open_span, body) VALUES (?1, ?2, ?3)",
        params![&*session.0, is_open.then_some(&record.link.span), body],
    )
}

/// A session that is exported already keeps its cursor.
pub(super) fn insert_cursor(
    connection: &Connection,
    session: &SessionId,
    number: u64,
) -> rusqlite::Result<()> {
    let sql = "INSERT OR IGNORE INTO outbox_sessions (session_id, exported) VALUES (?1, ?2)";
    sql::execute(connection, sql, params![&*session.0, number.cast_signed()])
}

pub(super) fn waiting_spans(
    connection: &Connection,
    owner: &StoreOwner,
    limit: usize,
) -> rusqlite::Result<Vec<WaitingSpan>> {
    let mut waiting = interrupted(connection, owner, limit)?;
    let sql = "SELECT outbox_spans.id, session_id, body, agent FROM outbox_spans \
               JOIN sessions ON sessions.id = session_id WHERE open_span IS NULL ORDER BY outbox_spans.id";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let mut bytes = 0;
    while waiting.len() < limit
        && let Some(row) = rows.next()?
    {
        let body: String = row.get(2)?;
        bytes += body.len();
        if bytes > MAX_BYTES && !waiting.is_empty() {
            break;
        }
        waiting.push(WaitingSpan {
            id: row.get(0)?,
            session: SessionId::new(row.get::<_, String>(1)?),
            record: read(&body),
            agent: row.get(3)?,
        });
    }
    Ok(waiting)
}

fn read(body: &str) -> Option<SpanRecord> {
    serde_json::from_str(body)
        .inspect_err(|error| tracing::warn!(%error, "a span record cannot be read"))
        .ok()
}

/// Turns whose process has ended. The last event of the session is their end.
fn interrupted(
    connection: &Connection,
    owner: &StoreOwner,
    limit: usize,
) -> rusqlite::Result<Vec<WaitingSpan>> {
    let sql = "SELECT outbox_spans.id, session_id, body, agent, owner, updated_at FROM outbox_spans \
               JOIN sessions ON sessions.id = session_id WHERE open_span IS NOT NULL ORDER BY outbox_spans.id LIMIT ?1";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = sql::rows(connection, sql, [limit], |row| {
        let owned_by: Option<String> = row.get(4)?;
        let runs = owned_by.is_some_and(|owned_by| owned_by == owner.id || owner.is_other(&owned_by));
        let last_event = row.get::<_, i64>(5)?.saturating_mul(1000);
        let body: String = row.get(2)?;
        let record = read(&body).map(|record| SpanRecord {
            ended: Some(last_event.max(record.began)),
            error: Some("interrupted".into()),
            ..record
        });
        let span = WaitingSpan {
            id: row.get(0)?,
            session: SessionId::new(row.get::<_, String>(1)?),
            record,
            agent: row.get(3)?,
        };
        Ok((!runs).then_some(span))
    })?;
    Ok(rows.into_iter().flatten().collect())
}

pub(super) fn waiting_links(connection: &Connection, limit: usize) -> rusqlite::Result<Vec<WaitingLink>> {
    let sql = "SELECT chain.session_id, number, body, hash FROM outbox_sessions \
               CROSS JOIN chain ON chain.session_id = outbox_sessions.session_id AND number > exported \
               ORDER BY outbox_sessions.session_id, number";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let (mut waiting, mut bytes) = (Vec::new(), 0);
    while waiting.len() < limit
        && let Some(row) = rows.next()?
    {
        let body: String = row.get(2)?;
        bytes += body.len();
        if bytes > MAX_BYTES && !waiting.is_empty() {
            break;
        }
        let number = row.get::<_, i64>(1)?.cast_unsigned();
        waiting.push(WaitingLink {
            session: SessionId::new(row.get::<_, String>(0)?),
            link: Link { number, body, hash: row.get(3)? },
        });
    }
    Ok(waiting)
}

fn advance(connection: &Connection, session: &str, number: u64) -> rusqlite::Result<()> {
    let sql = "UPDATE outbox_sessions SET exported = max(exported, ?2) WHERE session_id = ?1";
    sql::execute(connection, sql, params![session, number.cast_signed()])?;
    forget_exported(connection, session)
}

/// Forgets a session that is closed and has no further entry.
pub(super) fn forget_exported(connection: &Connection, session: &str) -> rusqlite::Result<()> {
    // SQLite would prepare the deletion again for each session, and without telemetry no session is listed.
    let is_listed = "SELECT 1 FROM outbox_sessions WHERE session_id = ?1";
    if !connection.prepare_cached(is_listed)?.exists([session])? {
        return Ok(());
    }
    let sql = "DELETE FROM outbox_sessions WHERE session_id = ?1 \
               AND exported >= (SELECT max(number) FROM chain WHERE session_id = ?1) \
               AND (SELECT owner FROM sessions WHERE id = ?1) IS NULL";
    sql::execute(connection, sql, params![session])
}

pub(super) fn unexported(connection: &Connection) -> rusqlite::Result<HashSet<SessionId>> {
    let sql = "WITH RECURSIVE waiting (id) AS (SELECT session_id FROM outbox_spans UNION \
               SELECT outbox_sessions.session_id FROM outbox_sessions \
               WHERE exported < (SELECT max(number) FROM chain WHERE session_id = outbox_sessions.session_id) \
               UNION SELECT parent FROM sessions JOIN waiting USING (id) WHERE parent IS NOT NULL) \
               SELECT id FROM waiting";
    let ids = sql::rows(connection, sql, [], |row| row.get::<_, String>(0))?;
    Ok(ids.into_iter().map(SessionId::new).collect())
}

pub(super) fn counts(connection: &Connection) -> rusqlite::Result<OutboxCounts> {
    let count = |sql: &str| -> rusqlite::Result<u64> {
        let count = connection.query_row(sql, [], |row| row.get::<_, i64>(0)).optional()?;
        Ok(count.unwrap_or_default().cast_unsigned())
    };
    Ok(OutboxCounts {
        spans: count("SELECT count(*) FROM outbox_spans WHERE open_span IS NULL")?,
        links: count(
            "SELECT count(*) FROM outbox_sessions CROSS JOIN chain \
             ON chain.session_id = outbox_sessions.session_id AND number > exported",
        )?,
    })
}

#[cfg(test)]
mod tests;
