//! What sessions and days have spent. One file serves all processes of a user, so a day's budget does, too.
//!
//! A row adds to its session and to its day in one transaction, so no process overwrites another's.

use rusqlite::{Connection, OptionalExtension, params};

use super::sql::execute;
use super::{Store, StoreError};
use crate::acp::SessionId;
use crate::budget::Spent;

impl Store {
    /// What all processes have spent on this day, as ISO 8601. Waits until the rows posted before are written.
    pub async fn spent_on(&self, day: &str) -> Result<Spent, StoreError> {
        let day = day.to_owned();
        self.query(move |connection, _| {
            find(connection, "SELECT tokens, micro_dollars, ms FROM spent_days WHERE day = ?1", &day)
        })
        .await
    }

    /// What a session and its sub-agents have spent. Sessions of earlier versions begin at nothing.
    pub async fn spent_in(&self, session: &SessionId) -> Result<Spent, StoreError> {
        let session = session.0.to_string();
        self.query(move |connection, _| {
            find(
                connection,
                "SELECT tokens, micro_dollars, ms FROM spent_sessions WHERE session_id = ?1",
                &session,
            )
        })
        .await
    }
}

fn find(connection: &Connection, sql: &str, key: &str) -> rusqlite::Result<Spent> {
    let mut statement = connection.prepare_cached(sql)?;
    let spent = statement.query_row([key], |row| {
        let amount = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
        Ok(Spent { tokens: amount(0)?, micro_dollars: amount(1)?, ms: amount(2)? })
    });
    Ok(spent.optional()?.unwrap_or_default())
}

/// A deleted session keeps no amount; its day does.
pub(super) fn insert(
    connection: &Connection,
    session: &SessionId,
    day: &str,
    spent: Spent,
) -> rusqlite::Result<()> {
    let Spent { tokens, micro_dollars, ms } = spent;
    let amounts = [tokens, micro_dollars, ms].map(|amount| i64::try_from(amount).unwrap_or(i64::MAX));
    let [tokens, micro_dollars, ms] = amounts;
    execute(
        connection,
        "INSERT INTO spent_days (day, tokens, micro_dollars, ms) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (day) DO UPDATE \
         SET tokens = tokens + excluded.tokens, micro_dollars = micro_dollars + excluded.micro_dollars, \
         ms = ms + excluded.ms",
        params![day, tokens, micro_dollars, ms],
    )?;
    execute(
        connection,
        "INSERT INTO spent_sessions (session_id, tokens, micro_dollars, ms) SELECT id, ?2, ?3, ?4 FROM sessions \
         WHERE id = ?1 ON CONFLICT (session_id) DO UPDATE SET tokens = tokens + excluded.tokens, \
         micro_dollars = micro_dollars + excluded.micro_dollars, ms = ms + excluded.ms",
        params![&*session.0, tokens, micro_dollars, ms],
    )
}
