//! Copies a session in short steps, so that other sessions can store their rows in between. No process sees the
//! copy before it is complete.

use std::time::Instant;

use rusqlite::{Connection, TransactionBehavior, params};

use super::owner::StoreOwner;
use super::removal::{self, STEP};
use super::sessions::{self, OpenSessionError, StoredSession};
use super::{Store, sql};
use crate::acp::SessionId;

/// Events that one statement copies.
const EVENTS: i64 = 32;

#[derive(Debug, Clone)]
struct ForkProgress {
    from: SessionId,
    to: SessionId,
    /// The first event that is not copied yet.
    next: i64,
    /// The first event that came after the copy began.
    end: i64,
}

/// The copy starts a new chain and gets no remembered allow answers.
pub(super) async fn fork(
    store: &Store,
    id: &SessionId,
    new: &SessionId,
    at: i64,
) -> Result<StoredSession, OpenSessionError> {
    let (from, to) = (id.clone(), new.clone());
    let begun = store.work(move |connection, owner| begin(connection, owner, &from, &to, at)).await??;
    let mut copy = begun;
    while copy.next < copy.end {
        let step = copy.clone();
        let copied = store.work(move |connection, owner| copy_part(connection, owner, &step)).await;
        match copied.map_err(OpenSessionError::from).and_then(|copied| copied) {
            Ok(next) => copy.next = next,
            Err(error) => {
                // The next deletion removes the rows that are copied, if this one fails.
                let _ = discard(store, copy.to).await;
                return Err(error);
            }
        }
    }
    store.work(move |connection, owner| complete(connection, owner, &copy)).await?
}

async fn discard(store: &Store, copy: SessionId) -> Result<(), OpenSessionError> {
    let sql = "UPDATE sessions SET state = 'deleting', owner = NULL WHERE id = ?1";
    store.work(move |connection, _| sql::execute(connection, sql, [&*copy.0])).await?;
    Ok(removal::remove_marked(store).await?)
}

fn begin(
    connection: &mut Connection,
    owner: &StoreOwner,
    id: &SessionId,
    new: &SessionId,
    at: i64,
) -> rusqlite::Result<Result<ForkProgress, OpenSessionError>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let Some(original) = sessions::find(&transaction, owner, id)? else {
        return Ok(Err(OpenSessionError::Unknown));
    };
    if let Some(parent) = original.parent {
        return Ok(Err(OpenSessionError::Below(parent)));
    }
    transaction.execute(
        "INSERT INTO sessions (id, cwd, mode, title, created_at, updated_at, owner, directories, \
         model, effort, forked_from, agent, state) SELECT ?2, cwd, ?5, title, ?3, ?3, ?4, directories, \
         model, effort, id, agent, 'copying' FROM sessions WHERE id = ?1",
        params![&*id.0, &*new.0, at, owner.id, original.mode],
    )?;
    transaction.execute(
        "INSERT INTO system_prompts (session_id, text) SELECT ?1, ?2 WHERE ?2 IS NOT NULL",
        params![&*new.0, original.system],
    )?;
    transaction.execute(
        "INSERT INTO grants (session_id, mode, allows, kind, tool, value, turn, at) \
         SELECT ?2, mode, allows, kind, tool, value, turn, at FROM grants \
         WHERE session_id = ?1 AND NOT allows ORDER BY id",
        params![&*id.0, &*new.0],
    )?;
    transaction.commit()?;
    Ok(Ok(ForkProgress { from: id.clone(), to: new.clone(), next: 0, end: original.events.cast_signed() }))
}

/// Copies events for one step. Returns the first event that is not copied yet.
fn copy_part(
    connection: &mut Connection,
    owner: &StoreOwner,
    copy: &ForkProgress,
) -> rusqlite::Result<Result<i64, OpenSessionError>> {
    let started = Instant::now();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Deleted meanwhile: the copy would lack events.
    if sessions::find(&transaction, owner, &copy.from)?.is_none() {
        return Ok(Err(OpenSessionError::Unknown));
    }
    let mut next = copy.next;
    while next < copy.end && started.elapsed() < STEP {
        let until = (next + EVENTS).min(copy.end);
        sql::execute(
            &transaction,
            "INSERT INTO events (session_id, seq, turn, kind, body, at) \
             SELECT ?2, seq, turn, kind, body, at FROM events WHERE session_id = ?1 AND seq >= ?3 AND seq < ?4",
            params![&*copy.from.0, &*copy.to.0, next, until],
        )?;
        next = until;
    }
    transaction.commit()?;
    Ok(Ok(next))
}

fn complete(
    connection: &mut Connection,
    owner: &StoreOwner,
    copy: &ForkProgress,
) -> rusqlite::Result<Result<StoredSession, OpenSessionError>> {
    let sql = "UPDATE sessions SET state = CASE WHEN ?2 > 0 THEN NULL ELSE 'empty' END WHERE id = ?1";
    sql::execute(connection, sql, params![&*copy.to.0, copy.end])?;
    Ok(sessions::find(connection, owner, &copy.to)?.ok_or(OpenSessionError::Unknown))
}
