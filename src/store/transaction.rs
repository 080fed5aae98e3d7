//! Transactions of the writer: all rows of a batch, or a part of them after a failure.

use rusqlite::{Connection, ErrorCode};

use super::insert::{self, ListTimes, SessionRowUpdates};
use super::owner::StoreOwner;
use super::{ModeChange, Row, sql};

/// Whether a mode change was recorded. The error is a violated constraint.
pub(super) type ChangeOutcome = rusqlite::Result<()>;

/// Writes everything and empties `rows`. `limit` is the number of rows in one transaction; on error, the rows of
/// the transactions before are written, and the others stay. A row that violates a constraint, such as one of a
/// deleted session, is left out, so that it does not block the others.
pub(super) fn commit(
    connection: &Connection,
    owner: &StoreOwner,
    rows: &mut Vec<Row>,
    limit: usize,
    changes: &[&ModeChange],
    times: &mut ListTimes,
) -> rusqlite::Result<Vec<ChangeOutcome>> {
    while rows.len() > limit {
        in_transaction(connection, || {
            insert_all(&rows[..limit], connection, owner)?.write(connection, times)
        })?;
        rows.drain(..limit);
    }
    let outcomes = match changes {
        [] if rows.is_empty() && times.is_empty() => Vec::new(),
        [] => {
            in_transaction(connection, || insert_all(rows, connection, owner)?.write(connection, times))?;
            Vec::new()
        }
        [change] => {
            // The transaction is the savepoint, which would copy each changed page.
            let outcome = in_transaction(connection, || {
                let mut updates = insert_all(rows, connection, owner)?;
                insert::insert_mode_change(connection, change)?;
                updates.add_mode_change(change);
                updates.write(connection, times)
            });
            let recorded = unless_violated(outcome)?;
            if recorded.is_err() {
                commit(connection, owner, rows, limit, &[], times)?;
            }
            vec![recorded]
        }
        changes => in_transaction(connection, || {
            let mut updates = insert_all(rows, connection, owner)?;
            let mut outcomes = Vec::new();
            for change in changes {
                let recorded = in_savepoint(connection, || insert::insert_mode_change(connection, change))?;
                if recorded.is_ok() {
                    updates.add_mode_change(change);
                }
                outcomes.push(recorded);
            }
            updates.write(connection, times)?;
            Ok(outcomes)
        })?,
    };
    rows.clear();
    if !times.are_delayed {
        times.clear();
    }
    Ok(outcomes)
}

/// Returns the updates of the rows' sessions, which are not written yet.
fn insert_all<'a>(
    rows: &'a [Row],
    connection: &Connection,
    owner: &StoreOwner,
) -> rusqlite::Result<SessionRowUpdates<'a>> {
    let mut updates = SessionRowUpdates::default();
    for row in rows {
        let write = || insert::insert(connection, row, owner);
        let written = match row {
            // One statement has its whole effect or none, without a savepoint, which copies each changed page.
            Row::Event { .. } => unless_violated(write())?,
            _ => in_savepoint(connection, write)?,
        };
        match written {
            Ok(()) => updates.add(row),
            Err(error) => tracing::warn!(%error, "a row cannot be stored and is dropped"),
        }
    }
    Ok(updates)
}

/// Begins a transaction that writes.
pub(super) fn begin(connection: &Connection) -> rusqlite::Result<()> {
    // Immediate: a transaction that turns from reading to writing would not wait for another process.
    sql::execute(connection, "BEGIN IMMEDIATE", [])
}

/// Commits, or rolls back on error. A caller may have begun the transaction. The library's own transactions parse
/// their statements each time.
fn in_transaction<T>(
    connection: &Connection,
    work: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    if connection.is_autocommit() {
        begin(connection)?;
    }
    let done = work().and_then(|done| {
        sql::execute(connection, "COMMIT", [])?;
        Ok(done)
    });
    // SQLite has rolled back already after some errors.
    if done.is_err() && !connection.is_autocommit() {
        sql::execute(connection, "ROLLBACK", [])?;
    }
    done
}

/// Runs `work` in a savepoint. The inner error is a constraint violation of this row.
fn in_savepoint(
    connection: &Connection,
    work: impl FnOnce() -> rusqlite::Result<()>,
) -> rusqlite::Result<rusqlite::Result<()>> {
    sql::execute(connection, "SAVEPOINT one", [])?;
    let outcome = unless_violated(work())?;
    if outcome.is_err() {
        sql::execute(connection, "ROLLBACK TO one", [])?;
    }
    sql::execute(connection, "RELEASE one", [])?;
    Ok(outcome)
}

/// The inner error is a constraint violation, the outer one any other.
fn unless_violated(outcome: rusqlite::Result<()>) -> rusqlite::Result<rusqlite::Result<()>> {
    match outcome {
        Err(error) if error.sqlite_error_code() != Some(ErrorCode::ConstraintViolation) => Err(error),
        outcome => Ok(outcome),
    }
}
