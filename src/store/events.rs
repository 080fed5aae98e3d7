//! Reads the stored events of a session. An event that cannot be decoded becomes a notice.

use rusqlite::{Connection, params};

use super::{body, sql};
use crate::acp::{MessageId, SessionId};
use crate::event::{NoticeKind, SessionEvent};

/// `at` is in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    /// Position in the session, from 0.
    pub seq: u64,
    pub turn: u64,
    pub event: SessionEvent,
    pub at: i64,
}

pub(super) fn list(
    connection: &Connection,
    id: &SessionId,
    from: u64,
    limit: usize,
) -> rusqlite::Result<Vec<StoredEvent>> {
    let sql = "SELECT seq, turn, kind, body, at FROM events WHERE session_id = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    sql::rows(connection, sql, params![&*id.0, from.cast_signed(), limit], |row| {
        let seq = row.get::<_, i64>(0)?.cast_unsigned();
        let (kind, body): (String, String) = (row.get(2)?, row.get(3)?);
        Ok(StoredEvent {
            seq,
            turn: row.get::<_, i64>(1)?.cast_unsigned(),
            event: body::read(&kind, &body).unwrap_or_else(|error| unreadable(seq, &error)),
            at: row.get(4)?,
        })
    })
}

pub fn body_of(event: &SessionEvent) -> (&'static str, serde_json::Value) {
    body::write(event)
}

fn unreadable(seq: u64, error: &str) -> SessionEvent {
    tracing::warn!(seq, error, "an event of a session cannot be read");
    SessionEvent::Notice {
        message_id: MessageId::new(format!("msg_unreadable_{seq}")),
        kind: NoticeKind::Message,
        text: "An event at this point cannot be read from the session store.\n".into(),
    }
}
