//! The record of mode changes and denials, for people who ask for it. Reads only.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, params};

use super::StoreError;

/// One mode change, as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedChange {
    /// The session.
    pub session: String,
    /// The turn; 0 before the first.
    pub turn: i64,
    /// The mode before; none for the first of a session.
    pub from: Option<String>,
    /// The mode after.
    pub to: String,
    /// By which way.
    pub source: String,
    /// Who wanted it.
    pub actor: Option<String>,
    /// The model's reason.
    pub analysis: Option<String>,
    /// The model's call.
    pub call: Option<String>,
    /// The hash of what the mode came to; `mode_texts` has the text.
    pub mode_hash: Option<String>,
    /// The hash of the plan that was accepted with it.
    pub plan_hash: Option<String>,
    /// Milliseconds since 1970.
    pub at: i64,
}

/// The mode changes of a session, or of all, the oldest first.
pub fn mode_changes(path: &Path, session: Option<&str>) -> Result<Vec<LoggedChange>, StoreError> {
    let read = || -> rusqlite::Result<Vec<LoggedChange>> {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let mut statement = connection.prepare(
            "SELECT session_id, turn, from_mode, to_mode, source, actor, analysis, tool_call_id, mode_hash, plan_hash, at \
             FROM mode_changes WHERE ?1 IS NULL OR session_id = ?1 ORDER BY id",
        )?;
        let rows = statement.query_map(params![session], |row| {
            Ok(LoggedChange {
                session: row.get(0)?,
                turn: row.get(1)?,
                from: row.get(2)?,
                to: row.get(3)?,
                source: row.get(4)?,
                actor: row.get(5)?,
                analysis: row.get(6)?,
                call: row.get(7)?,
                mode_hash: row.get(8)?,
                plan_hash: row.get(9)?,
                at: row.get(10)?,
            })
        })?;
        rows.collect()
    };
    read().map_err(|error| StoreError(error.to_string()))
}

/// The mode that a session had last: that of the newest row, by its id (G43). None: there is no such session.
pub fn current_mode(path: &Path, session: &str) -> Result<Option<String>, StoreError> {
    Ok(mode_changes(path, Some(session))?.pop().map(|change| change.to))
}
