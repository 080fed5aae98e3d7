//! Reads modes from another tool's SQLite database (G46): one table `agent_modes`, opened read-only.

use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::migrations::BUSY_TIMEOUT;
use super::sql;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModeRow {
    pub name: String,
    pub prompt: Option<String>,
    /// `None` allows all tools, and an empty text allows no tool.
    pub allowed_tools: Option<String>,
}

pub fn read(path: &Path) -> Result<Vec<ModeRow>, String> {
    // SQLite would block forever on a FIFO.
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err(expected_table("not a regular file"));
    }
    let rows = || {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // The file is untrusted: its views and triggers must not call functions.
        connection.pragma_update(None, "trusted_schema", false)?;
        let sql = "SELECT coalesce(name, ''), prompt, allowed_tools FROM agent_modes ORDER BY lower(trim(name)), name";
        sql::rows(&connection, sql, [], |row| {
            Ok(ModeRow { name: row.get(0)?, prompt: row.get(1)?, allowed_tools: row.get(2)? })
        })
    };
    rows().map_err(|error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => expected_table("not a database"),
        // A missing table or column.
        Some(ErrorCode::Unknown) => expected_table(&error.to_string()),
        Some(_) | None => error.to_string(),
    })
}

fn expected_table(found: &str) -> String {
    format!("{found}: expected a SQLite database with a table agent_modes (name, prompt, allowed_tools)")
}
