//! Shorthand for statements.

use rusqlite::{Connection, Params, Row};

use super::migrations::{BUSY_TIMEOUT, SHORT_BUSY_TIMEOUT};

pub(super) fn execute(connection: &Connection, sql: &str, values: impl Params) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute(values).map(drop)
}

pub(super) fn rows<T>(
    connection: &Connection,
    sql: &str,
    values: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare_cached(sql)?.query_map(values, read)?.collect()
}

/// Copies the write-ahead log into the file, as far as no other process reads it. Does not wait for other connections.
pub(super) fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Cuts the write-ahead log, which may contain deleted data. Another process that uses the log cuts it later.
pub(super) fn overwrite(connection: &Connection) {
    let cut = || {
        // The cut stops writers, so it must have little left to copy, and not wait for long.
        checkpoint(connection)?;
        connection.busy_timeout(SHORT_BUSY_TIMEOUT)?;
        let cut =
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>("busy"));
        connection.busy_timeout(BUSY_TIMEOUT)?;
        cut
    };
    match cut() {
        Ok(false) => {}
        Ok(true) => tracing::info!("the write-ahead log is in use and was not truncated"),
        Err(error) => tracing::info!(%error, "the write-ahead log was not truncated"),
    }
}
