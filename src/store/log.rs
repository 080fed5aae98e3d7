//! Reads recorded mode changes for users. Opens the database read-only.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::{StoreError, sql};

/// `at` is in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedChange {
    pub session: String,
    pub turn: i64,
    pub from: Option<String>,
    pub to: String,
    pub source: String,
    /// `user`, `agent` or `system`.
    pub actor: Option<String>,
    pub analysis: Option<String>,
    pub call: Option<String>,
    pub mode_hash: Option<String>,
    pub plan_hash: Option<String>,
    pub at: i64,
}

pub fn mode_changes(path: &Path, session: Option<&str>) -> Result<Vec<LoggedChange>, StoreError> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let sql = "SELECT session_id, turn, from_mode, to_mode, source, actor, analysis, tool_call_id, mode_hash, plan_hash, at \
               FROM mode_changes WHERE ?1 IS NULL OR session_id = ?1 ORDER BY id";
    let changes = sql::rows(&connection, sql, [session], |row| {
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
    Ok(changes)
}
