//! Shorthand for statements.

use rusqlite::{Connection, Params, Row};

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

/// Cuts the write-ahead log, which may contain deleted data. Another process that uses the log cuts it later.
pub(super) fn overwrite(connection: &Connection) {
    let cut = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>("busy"));
    match cut {
        Ok(false) => {}
        Ok(true) => tracing::info!("the write-ahead log is in use and was not truncated"),
        Err(error) => tracing::info!(%error, "the write-ahead log was not truncated"),
    }
}
