//! Sessions as they are kept: finding, listing, opening, forking and deleting them.

use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::entry::ScopeRow;
use super::{Owner, Store, StoreError};
use crate::acp::SessionId;
use crate::chain::{Head, Link};
use crate::permission::Scope;

/// A session as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// Its id.
    pub id: SessionId,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its other folders.
    pub directories: Vec<PathBuf>,
    /// The mode of the newest row of its mode changes, as it is stored (G43); without a row, the mode it began in. `None` if
    /// that is null or blank.
    pub mode: Option<String>,
    /// Its title, once it has one.
    pub title: Option<String>,
    /// Milliseconds since 1970.
    pub created_at: i64,
    /// Milliseconds since 1970.
    pub updated_at: i64,
    /// What every request begins with, once the first was made.
    pub system: Option<String>,
    /// Whom the user chose to answer, and how long to think, if the user did.
    pub chosen: Option<(String, String)>,
    /// Events so far.
    pub events: u64,
    /// Turns begun so far.
    pub turns: u64,
    /// Where its chain has come to.
    pub head: Head,
    /// Another process has it open.
    pub is_open_elsewhere: bool,
    /// Its chain was begun.
    pub is_chained: bool,
    /// The session that it was copied from, if it was.
    pub forked_from: Option<String>,
    /// The session that it works for, if a client did not begin it.
    pub parent: Option<SessionId>,
    /// Which agent it is; nothing in records of old.
    pub agent: Option<String>,
    /// The session of somebody else's agent that answers in it, if that one takes it up again. A copy has none: two would write
    /// to it.
    pub external_session: Option<String>,
    /// The mode that this one left for the hold.
    pub external_mode: Option<String>,
}

/// A remembered answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredGrant {
    /// The mode in which it holds.
    pub mode: String,
    /// Yes or no.
    pub allows: bool,
    /// What it covers.
    pub scope: Scope,
}

/// Which sessions are listed, the newest first.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Those of this working directory only.
    pub cwd: Option<PathBuf>,
    /// Those of this agent only.
    pub agent: Option<String>,
    /// Those behind this one.
    pub after: Option<(i64, SessionId)>,
    /// At most so many.
    pub limit: usize,
    /// Those in which nothing has happened are listed only if they are among these.
    pub active: Vec<SessionId>,
}

/// Why a session is not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is none of this id.
    #[error("there is no such session")]
    Unknown,
    /// Another process has it open.
    #[error("the session is open in another process")]
    Busy,
    /// It worked for this one, and is not to be had by itself: what held above it would be lost.
    #[error("the session worked for {0}: open that one")]
    Below(SessionId),
    /// The record cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

// The newest change decides the mode, by its id (G43); the column beside it is a copy, and all that the oldest rows have.
const COLUMNS: &str = "id, cwd, directories, \
    coalesce((SELECT to_mode FROM mode_changes WHERE session_id = sessions.id ORDER BY mode_changes.id DESC LIMIT 1), mode), \
    title, created_at, updated_at, system_prompt, model, effort, owner, \
    (SELECT coalesce(max(seq) + 1, 0) FROM events WHERE session_id = sessions.id), \
    coalesce((SELECT turn FROM events WHERE session_id = sessions.id ORDER BY seq DESC LIMIT 1), 0), \
    (SELECT max(number) FROM chain WHERE session_id = sessions.id), chained, forked_from, parent, agent, \
    harness_session, harness_mode";

impl Store {
    /// A session, whoever has it open.
    pub async fn session(&self, id: &SessionId) -> Result<Option<StoredSession>, StoreError> {
        let id = id.clone();
        self.work(move |connection, owner| find(connection, owner, &id)).await
    }

    /// Opens a session for this process: no other can open it until it is released or this process is gone.
    pub async fn open_session(&self, id: &SessionId) -> Result<StoredSession, OpenError> {
        let id = id.clone();
        let open = move |connection: &mut Connection, owner: &Owner| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let Some(session) = find(&transaction, owner, &id)? else { return Ok(Err(OpenError::Unknown)) };
            if let Some(parent) = session.parent {
                return Ok(Err(OpenError::Below(parent)));
            }
            if session.is_open_elsewhere {
                return Ok(Err(OpenError::Busy));
            }
            transaction.execute("UPDATE sessions SET owner = ?2 WHERE id = ?1", params![&*id.0, owner.id])?;
            transaction.commit()?;
            Ok(Ok(session))
        };
        self.work(open).await?
    }

    /// Sessions, the newest first.
    pub async fn sessions(&self, listing: Listing) -> Result<Vec<StoredSession>, StoreError> {
        self.work(move |connection, owner| {
            let (at, id) = listing.after.map_or((i64::MAX, None), |(at, id)| (at, Some(id.0.to_string())));
            let cwd = listing.cwd.map(|cwd| cwd.to_string_lossy().into_owned());
            let active = serde_json::json!(listing.active).to_string();
            let sql = format!(
                "SELECT {COLUMNS} FROM sessions WHERE (updated_at < ?1 OR (updated_at = ?1 AND id < ?2)) \
                 AND (?3 IS NULL OR cwd = ?3) AND (?6 IS NULL OR agent = ?6) AND parent IS NULL AND (EXISTS (SELECT 1 FROM events WHERE session_id = sessions.id) \
                 OR id IN (SELECT value FROM json_each(?4))) ORDER BY updated_at DESC, id DESC LIMIT ?5"
            );
            let limit = i64::try_from(listing.limit).unwrap_or(i64::MAX);
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![at, id, cwd, active, limit, listing.agent], |row| {
                read(row, connection, owner)
            })?;
            rows.collect()
        })
        .await
    }

    /// The mode before the last change of a session's mode; nothing, if there was none.
    pub async fn mode_before(&self, id: &SessionId) -> Result<Option<String>, StoreError> {
        let id = id.clone();
        self.work(move |connection, _| {
            let sql = "SELECT from_mode FROM mode_changes WHERE session_id = ?1 ORDER BY id DESC LIMIT 1";
            connection.query_row(sql, [&*id.0], |row| row.get(0)).optional().map(Option::flatten)
        })
        .await
    }

    /// How many mode changes and denials of a session have rows.
    pub async fn counts(&self, id: &SessionId) -> Result<(u64, u64), StoreError> {
        let id = id.clone();
        self.work(move |connection, _| {
            let count = |table: &str| {
                let sql = format!("SELECT count(*) FROM {table} WHERE session_id = ?1");
                connection.query_row(&sql, [&*id.0], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
            };
            Ok((count("mode_changes")?, count("denials")?))
        })
        .await
    }

    /// The answers that are remembered in a session.
    pub async fn grants(&self, id: &SessionId) -> Result<Vec<StoredGrant>, StoreError> {
        let id = id.clone();
        self.work(move |connection, _| {
            let sql = "SELECT mode, allows, kind, tool, value FROM grants WHERE session_id = ?1 ORDER BY id";
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map(params![&*id.0], |row| {
                let scope = ScopeRow { kind: row.get(2)?, tool: row.get(3)?, value: row.get(4)? };
                Ok((row.get(0)?, row.get(1)?, scope))
            })?;
            let rows: Vec<(String, bool, ScopeRow)> = rows.collect::<Result<_, _>>()?;
            // An answer that covers nothing that is known is none.
            let grant = |(mode, allows, scope): (String, bool, ScopeRow)| {
                Some(StoredGrant { mode, allows, scope: scope.to_scope()? })
            };
            Ok(rows.into_iter().filter_map(grant).collect())
        })
        .await
    }

    /// The sessions whose id is this, or begins or ends with it.
    pub async fn sessions_like(&self, part: &str) -> Result<Vec<SessionId>, StoreError> {
        let part = part.to_owned();
        self.work(move |connection, _| {
            // With or without what every id begins with.
            let sql = "SELECT id FROM sessions WHERE id = ?1 OR substr(id, 1, length(?1)) = ?1 \
                       OR substr(id, 1, length(?1) + 5) = 'sess_' || ?1 \
                       OR substr(id, -length(?1)) = ?1 ORDER BY id = ?1 DESC, id LIMIT 10";
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map([&part], |row| Ok(SessionId::new(row.get::<_, String>(0)?)))?;
            let found: Vec<SessionId> = rows.collect::<Result<_, _>>()?;
            Ok(if found.first().is_some_and(|id| *id.0 == *part) { found[..1].to_vec() } else { found })
        })
        .await
    }

    /// Sessions in which nothing has happened since a time. Those that worked for another go with that one.
    pub async fn sessions_before(&self, at: i64) -> Result<Vec<SessionId>, StoreError> {
        self.work(move |connection, _| {
            let mut statement = connection
                .prepare("SELECT id FROM sessions WHERE updated_at < ?1 AND parent IS NULL ORDER BY id")?;
            let rows = statement.query_map([at], |row| Ok(SessionId::new(row.get::<_, String>(0)?)))?;
            rows.collect()
        })
        .await
    }

    /// Copies a session, as it is kept now, under a new id, which this process has open. Its chain begins anew, and what was
    /// allowed once and for all was allowed in the other.
    pub async fn fork_session(
        &self,
        id: &SessionId,
        new: &SessionId,
        at: i64,
    ) -> Result<StoredSession, OpenError> {
        let (id, new) = (id.clone(), new.clone());
        let fork = move |connection: &mut Connection, owner: &Owner| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let Some(original) = find(&transaction, owner, &id)? else { return Ok(Err(OpenError::Unknown)) };
            if let Some(parent) = original.parent {
                return Ok(Err(OpenError::Below(parent)));
            }
            transaction.execute(
                "INSERT INTO sessions (id, cwd, mode, title, created_at, updated_at, system_prompt, owner, directories, \
                 model, effort, forked_from, agent) SELECT ?2, cwd, ?5, title, ?3, ?3, system_prompt, ?4, directories, model, \
                 effort, id, agent FROM sessions WHERE id = ?1",
                params![&*id.0, &*new.0, at, owner.id, original.mode],
            )?;
            for sql in [
                "INSERT INTO events (session_id, seq, turn, kind, body, at) \
                 SELECT ?2, seq, turn, kind, body, at FROM events WHERE session_id = ?1",
                "INSERT INTO grants (session_id, mode, allows, kind, tool, value, turn, at) \
                 SELECT ?2, mode, allows, kind, tool, value, turn, at FROM grants \
                 WHERE session_id = ?1 AND NOT allows ORDER BY id",
            ] {
                transaction.execute(sql, params![&*id.0, &*new.0])?;
            }
            let session = find(&transaction, owner, &new)?;
            transaction.commit()?;
            Ok(session.ok_or(OpenError::Unknown))
        };
        self.work(fork).await?
    }

    /// Deletes a session and all that belongs to it. One that is not there is gone already (S11).
    ///
    /// # Errors
    /// Another process has it open, or it worked for another, with which it goes.
    pub async fn delete_session(&self, id: &SessionId) -> Result<(), OpenError> {
        let id = id.clone();
        let delete = move |connection: &mut Connection, owner: &Owner| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            match find(&transaction, owner, &id)? {
                Some(StoredSession { parent: Some(parent), .. }) => {
                    return Ok(Err(OpenError::Below(parent)));
                }
                Some(session) if session.is_open_elsewhere => return Ok(Err(OpenError::Busy)),
                Some(_) | None => {}
            }
            transaction.execute("DELETE FROM sessions WHERE id = ?1", params![&*id.0])?;
            let sql = "DELETE FROM contents WHERE NOT EXISTS (SELECT 1 FROM changes WHERE content = hash) \
                       AND NOT EXISTS (SELECT 1 FROM intents, json_each(intents.body, '$.contents') WHERE value = hash)";
            transaction.execute(sql, [])?;
            transaction.commit()?;
            // What was deleted is not to be found in the log of writes either. Another process may be at it: then it does this.
            if let Err(error) = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())) {
                tracing::debug!(%error, "the log of writes was not cut");
            }
            Ok(Ok(()))
        };
        self.work(delete).await?
    }
}

/// The chain of a session, whole.
pub(super) fn links(connection: &Connection, id: &SessionId) -> rusqlite::Result<Vec<Link>> {
    let sql = "SELECT number, body, hash FROM chain WHERE session_id = ?1 ORDER BY number";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map(params![&*id.0], |row| {
        let number = row.get::<_, i64>(0)?.cast_unsigned();
        Ok(Link { number, body: row.get(1)?, hash: row.get(2)? })
    })?;
    rows.collect()
}

pub(super) fn find(
    connection: &Connection,
    owner: &Owner,
    id: &SessionId,
) -> rusqlite::Result<Option<StoredSession>> {
    let mut statement =
        connection.prepare_cached(&format!("SELECT {COLUMNS} FROM sessions WHERE id = ?1"))?;
    statement.query_row(params![&*id.0], |row| read(row, connection, owner)).optional()
}

fn read(row: &rusqlite::Row<'_>, connection: &Connection, owner: &Owner) -> rusqlite::Result<StoredSession> {
    let id = SessionId::new(row.get::<_, String>(0)?);
    let directories: Option<String> = row.get(2)?;
    let (model, effort): (Option<String>, Option<String>) = (row.get(8)?, row.get(9)?);
    let owned_by: Option<String> = row.get(10)?;
    let length: Option<i64> = row.get(13)?;
    let head = match length {
        None => Head::start(&id.0),
        Some(length) => {
            let sql = "SELECT hash FROM chain WHERE session_id = ?1 AND number = ?2";
            let hash =
                connection.prepare_cached(sql)?.query_row(params![&*id.0, length], |row| row.get(0))?;
            Head { length: length.cast_unsigned(), hash }
        }
    };
    Ok(StoredSession {
        cwd: PathBuf::from(row.get::<_, String>(1)?),
        // What is no list names no folder: a session never gets more folders by it.
        directories: directories.and_then(|list| serde_json::from_str(&list).ok()).unwrap_or_default(),
        mode: row.get::<_, Option<String>>(3)?.filter(|mode| !mode.trim().is_empty()),
        title: row.get(4)?,
        created_at: row.get(5)?,
        updated_at: row.get(6)?,
        system: row.get(7)?,
        chosen: model.zip(effort),
        events: row.get::<_, i64>(11)?.cast_unsigned(),
        turns: row.get::<_, i64>(12)?.cast_unsigned(),
        head,
        is_chained: row.get(14)?,
        forked_from: row.get(15)?,
        parent: row.get::<_, Option<String>>(16)?.map(SessionId::new),
        agent: row.get(17)?,
        external_session: row.get(18)?,
        external_mode: row.get(19)?,
        is_open_elsewhere: owned_by.is_some_and(|owned_by| owner.is_other(&owned_by)),
        id,
    })
}
