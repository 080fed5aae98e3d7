//! Deletes sessions in short steps, so that other sessions can store their rows in between.
//!
//! A session is marked first, which hides it from every process. Steps then remove its rows and give the space
//! back. If a process ends in between, the mark stays, and the next deletion goes on.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior, params};

use super::owner::StoreOwner;
use super::sessions::{self, OpenSessionError, StoredSession};
use super::{Store, StoreError, intent, migrations, sql};
use crate::acp::SessionId;

/// Time after which a step ends.
pub(super) const STEP: Duration = Duration::from_millis(6);

/// Rows that one statement deletes.
const ROWS: usize = 32;

/// Free pages that one statement gives back.
const PAGES: usize = 32;

/// Sessions that one step marks.
const MARKED: usize = 100;

/// Tables with rows of a session that need no file contents, and the column that counts the rows.
const TABLES: [(&str, &str); 8] = [
    ("events", "seq"),
    ("chain", "number"),
    ("signed_heads", "key"),
    ("mode_changes", "id"),
    ("denials", "id"),
    ("grants", "id"),
    ("uncovered", "rowid"),
    ("outbox_spans", "id"),
];

/// Fails for a session that is open elsewhere or belongs to a sub-agent. An unknown id is not an error
/// (S11).
pub(super) async fn delete(store: &Store, id: &SessionId) -> Result<(), OpenSessionError> {
    let marked = id.clone();
    match store.work(move |connection, owner| mark(connection, owner, &marked)).await? {
        Ok(()) | Err(OpenSessionError::Unknown) => Ok(remove_marked(store).await?),
        Err(error) => Err(error),
    }
}

/// Deletes sessions that no process has open, and returns them.
pub(super) async fn delete_all(store: &Store, ids: Vec<SessionId>) -> Result<HashSet<SessionId>, StoreError> {
    let deleted = delete_rows(store, ids).await?;
    remove_marked(store).await?;
    Ok(deleted)
}

/// As [`delete_all`], but the space stays in the file for other rows.
pub(super) async fn delete_rows(
    store: &Store,
    ids: Vec<SessionId>,
) -> Result<HashSet<SessionId>, StoreError> {
    let mut deleted = HashSet::new();
    for part in ids.chunks(MARKED) {
        let part = part.to_vec();
        deleted.extend(store.work(move |connection, owner| mark_all(connection, owner, part)).await?);
    }
    remove_rows(store).await?;
    Ok(deleted)
}

async fn remove_rows(store: &Store) -> Result<(), StoreError> {
    while store.work(|connection, _| remove(connection)).await? {
        // Other commands of this process have run in between. A checkpoint here keeps commits short.
        store.query(|connection, _| sql::checkpoint(connection)).await?;
    }
    Ok(())
}

/// Removes the rows of all marked sessions and abandoned copies, and gives the space back.
pub(super) async fn remove_marked(store: &Store) -> Result<(), StoreError> {
    store.work(mark_abandoned).await?;
    remove_rows(store).await?;
    remove_unneeded(store).await?;
    while store.work(|connection, _| give_back(connection)).await? {
        store.query(|connection, _| sql::checkpoint(connection)).await?;
    }
    overwrite_log(store).await
}

/// Removes the contents that earlier versions left behind, once in a process.
async fn remove_unneeded(store: &Store) -> Result<(), StoreError> {
    if store.has_removed_unneeded.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut next = Some(String::new());
    while let Some(after) = next {
        next = store.work(move |connection, _| remove_unneeded_after(connection, after)).await?;
        store.query(|connection, _| sql::checkpoint(connection)).await?;
    }
    store.has_removed_unneeded.store(true, Ordering::Relaxed);
    Ok(())
}

/// Cuts the write-ahead log, which may contain deleted data.
pub(super) async fn overwrite_log(store: &Store) -> Result<(), StoreError> {
    let overwrite = |connection: &mut Connection, _: &StoreOwner| {
        sql::overwrite(connection);
        Ok(())
    };
    store.query(overwrite).await
}

/// Hides a session and those of its sub-agents from every process.
fn mark(
    connection: &mut Connection,
    owner: &StoreOwner,
    id: &SessionId,
) -> rusqlite::Result<Result<(), OpenSessionError>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let marked = mark_one(&transaction, owner, id)?;
    transaction.commit()?;
    Ok(marked)
}

fn mark_one(
    connection: &Connection,
    owner: &StoreOwner,
    id: &SessionId,
) -> rusqlite::Result<Result<(), OpenSessionError>> {
    match sessions::find(connection, owner, id)? {
        Some(StoredSession { parent: Some(parent), .. }) => return Ok(Err(OpenSessionError::Below(parent))),
        Some(session) if session.is_open_elsewhere => return Ok(Err(OpenSessionError::Busy)),
        Some(_) => {}
        None => return Ok(Err(OpenSessionError::Unknown)),
    }
    let sql = "WITH RECURSIVE marked (id) AS (SELECT ?1 UNION SELECT sessions.id FROM sessions, marked \
               WHERE sessions.parent = marked.id) \
               UPDATE sessions SET state = 'deleting', owner = NULL WHERE id IN marked";
    sql::execute(connection, sql, [&*id.0]).map(Ok)
}

/// Marks sessions and returns them, without those that are open, gone, or belong to another session.
pub(super) fn mark_all(
    connection: &mut Connection,
    owner: &StoreOwner,
    ids: Vec<SessionId>,
) -> rusqlite::Result<Vec<SessionId>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut marked = Vec::new();
    for id in ids {
        // This process may have opened the session after the caller listed it.
        if !is_open_here(&transaction, owner, &id)? && mark_one(&transaction, owner, &id)?.is_ok() {
            marked.push(id);
        }
    }
    transaction.commit()?;
    Ok(marked)
}

fn is_open_here(connection: &Connection, owner: &StoreOwner, id: &SessionId) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ?1 AND owner = ?2)";
    connection.query_row(sql, params![&*id.0, owner.id], |row| row.get(0))
}

/// Marks copies that were not completed because their process ended.
fn mark_abandoned(connection: &mut Connection, owner: &StoreOwner) -> rusqlite::Result<()> {
    let sql = "SELECT id, owner FROM sessions WHERE state = 'copying'";
    let copies = sql::rows(connection, sql, [], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?.unwrap_or_default()))
    })?;
    for (id, copied_by) in copies {
        if copied_by != owner.id && !owner.is_other(&copied_by) {
            sql::execute(connection, "UPDATE sessions SET state = 'deleting' WHERE id = ?1", [&id])?;
        }
    }
    Ok(())
}

/// Removes rows of marked sessions for one step. Returns false once no session is marked.
fn remove(connection: &mut Connection) -> rusqlite::Result<bool> {
    let started = Instant::now();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Sub-agents first: the row of a session takes theirs with it.
    let sql = "SELECT id FROM sessions INDEXED BY sessions_by_state WHERE state = 'deleting' AND NOT EXISTS \
               (SELECT 1 FROM sessions AS below WHERE below.parent = sessions.id) LIMIT 1";
    while started.elapsed() < STEP {
        let Some(id) = sql::rows(&transaction, sql, [], |row| row.get::<_, String>(0))?.pop() else {
            transaction.commit()?;
            return Ok(false);
        };
        remove_part(&transaction, &id)?;
    }
    transaction.commit()?;
    Ok(true)
}

/// Removes a few rows of a session, or the session once no row is left.
fn remove_part(connection: &Connection, id: &str) -> rusqlite::Result<()> {
    for (table, column) in TABLES {
        let sql = format!(
            "DELETE FROM {table} WHERE session_id = ?1 AND {column} IN \
             (SELECT {column} FROM {table} WHERE session_id = ?1 LIMIT {ROWS})"
        );
        let removed = connection.prepare_cached(&sql)?.execute([id])?;
        if removed == ROWS {
            return Ok(());
        }
    }
    if let Some(contents) = intent::remove_next(connection, id)? {
        return remove_contents(connection, contents);
    }
    let sql = format!("SELECT id, content FROM changes WHERE session_id = ?1 LIMIT {ROWS}");
    let changes = sql::rows(connection, &sql, [id], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, Option<String>>(1)?))
    })?;
    let count = changes.len();
    for (change, content) in changes {
        sql::execute(connection, "DELETE FROM changes WHERE id = ?1", [change])?;
        remove_contents(connection, content)?;
    }
    if count < ROWS {
        sql::execute(connection, "DELETE FROM sessions WHERE id = ?1", [id])?;
    }
    Ok(())
}

/// Removes unneeded contents for one step, in the order of their hashes. Returns the last hash of the step, or
/// `None` at the end.
fn remove_unneeded_after(connection: &mut Connection, after: String) -> rusqlite::Result<Option<String>> {
    let started = Instant::now();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let sql = format!("SELECT hash FROM contents WHERE hash > ?1 ORDER BY hash LIMIT {ROWS}");
    let mut last = Some(after);
    while let Some(after) = &last
        && started.elapsed() < STEP
    {
        let hashes = sql::rows(&transaction, &sql, [after], |row| row.get::<_, String>(0))?;
        last = hashes.last().cloned();
        remove_contents(&transaction, hashes)?;
    }
    transaction.commit()?;
    Ok(last)
}

/// Removes contents of files, unless a change or an intent needs them.
pub(super) fn remove_contents(
    connection: &Connection,
    hashes: impl IntoIterator<Item = String>,
) -> rusqlite::Result<()> {
    let sql = "DELETE FROM contents WHERE hash = ?1 AND NOT EXISTS (SELECT 1 FROM changes WHERE content = ?1) \
               AND NOT EXISTS (SELECT 1 FROM intents, json_each(intents.body, '$.contents') WHERE value = ?1)";
    hashes.into_iter().try_for_each(|hash| sql::execute(connection, sql, [hash]))
}

/// Gives free pages back to the file system for one step. Returns false once there are none, or if the file is
/// of an earlier version, which [`compact`] changes.
fn give_back(connection: &mut Connection) -> rusqlite::Result<bool> {
    let started = Instant::now();
    if !migrations::can_give_back(connection)? {
        return Ok(false);
    }
    while started.elapsed() < STEP {
        if free_pages(connection)? == 0 {
            return Ok(false);
        }
        let mut statement = connection.prepare_cached(&format!("PRAGMA incremental_vacuum({PAGES})"))?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
    }
    Ok(true)
}

pub(super) fn free_pages(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
}
