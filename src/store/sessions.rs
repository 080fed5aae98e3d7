//! Finds, lists and opens stored sessions. Only one process can have a session open.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::entry::ScopeRow;
use super::{StoreError, StoreOwner, sql};
use crate::acp::SessionId;
use crate::chain::{Head, Link};
use crate::event::{PROGRAM_META, PROGRAM_PROMPT};
use crate::permission::Scope;

/// A stored session. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    pub id: SessionId,
    pub cwd: PathBuf,
    pub directories: Vec<PathBuf>,
    /// Mode after the newest change (G43), or the initial mode. `None` if null or blank.
    pub mode: Option<String>,
    pub title: Option<String>,
    pub created_at: i64,
    pub updated_at: i64,
    /// The system prompt. `None` in lists.
    pub system: Option<String>,
    /// Model and effort, if the user chose them.
    pub chosen: Option<(String, String)>,
    pub events: u64,
    pub turns: u64,
    pub head: Head,
    pub is_open_elsewhere: bool,
    /// True once the chain had an entry, even if the chain was deleted later.
    pub is_chained: bool,
    pub forked_from: Option<String>,
    pub parent: Option<SessionId>,
    pub agent: Option<String>,
    /// If the external agent can load it again. Forks have none: two sessions would write to it.
    pub external_session: Option<String>,
    /// The external agent's mode before the sandbox required its read-only mode.
    pub external_mode: Option<String>,
}

/// The part of a [`StoredSession`] that lists show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedSession {
    pub id: SessionId,
    pub cwd: PathBuf,
    pub directories: Vec<PathBuf>,
    pub mode: Option<String>,
    pub title: Option<String>,
    pub updated_at: i64,
    pub is_open_elsewhere: bool,
    pub forked_from: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredGrant {
    pub mode: String,
    pub allows: bool,
    pub scope: Scope,
}

#[derive(Debug, Clone, Default)]
pub struct SessionQuery {
    pub cwd: Option<PathBuf>,
    pub agent: Option<String>,
    pub after: Option<(i64, SessionId)>,
    pub limit: usize,
    /// Text of the title or of a prompt, in any case of ASCII letters.
    pub search: Option<String>,
    pub runs: ListedRuns,
}

/// Treatment of the sessions of `modegate run`, which take no prompts, in a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListedRuns {
    #[default]
    Included,
    LeftOut,
}

/// A session that was not used for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldSession {
    pub id: SessionId,
    pub title: Option<String>,
    /// In milliseconds since 1970.
    pub updated_at: i64,
    pub is_open: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenSessionError {
    #[error("there is no such session")]
    Unknown,
    #[error("the session is open in another process: close it there, or end that process")]
    Busy,
    /// A sub-agent's session. Opened alone, it would lose the limits of its parents.
    #[error("the session belongs to a sub-agent of {0}: open {0} instead")]
    Below(SessionId),
    #[error(transparent)]
    Store(#[from] StoreError),
}

// The newest row by id decides the mode (G43). The column `mode` is a copy, and the only source in the oldest
// databases.
pub(super) const LISTED_COLUMNS: &str = "id, cwd, directories, \
    coalesce((SELECT to_mode FROM mode_changes WHERE session_id = sessions.id ORDER BY mode_changes.id DESC LIMIT 1), mode), \
    title, updated_at, owner, forked_from";

// They follow `LISTED_COLUMNS`, and look up the newest event and the newest entry of the audit log.
const OTHER_COLUMNS: &str = "created_at, model, effort, \
    (SELECT coalesce(max(seq) + 1, 0) FROM events WHERE session_id = sessions.id), \
    coalesce((SELECT turn FROM events WHERE session_id = sessions.id ORDER BY seq DESC LIMIT 1), 0), \
    (SELECT max(number) FROM chain WHERE session_id = sessions.id), chained, parent, agent, harness_session, harness_mode";

/// The call that stands for a program is among them.
const FIRST_EVENTS: u64 = 256;

/// Sessions that are neither copied nor deleted at the moment.
const VISIBLE: &str = "coalesce(state, 'empty') = 'empty'";

pub(super) fn open(
    connection: &mut Connection,
    owner: &StoreOwner,
    id: &SessionId,
) -> rusqlite::Result<Result<StoredSession, OpenSessionError>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let Some(session) = find(&transaction, owner, id)? else { return Ok(Err(OpenSessionError::Unknown)) };
    if let Some(parent) = session.parent {
        return Ok(Err(OpenSessionError::Below(parent)));
    }
    if session.is_open_elsewhere {
        return Ok(Err(OpenSessionError::Busy));
    }
    transaction.execute("UPDATE sessions SET owner = ?2 WHERE id = ?1", params![&*id.0, owner.id])?;
    transaction.commit()?;
    Ok(Ok(session))
}

pub(super) fn list(
    connection: &Connection,
    owner: &StoreOwner,
    listing: SessionQuery,
) -> rusqlite::Result<Vec<ListedSession>> {
    page(connection, LISTED_COLUMNS, listing, |row| read_listed(row, owner))
}

pub(super) fn list_with_counts(
    connection: &Connection,
    owner: &StoreOwner,
    listing: SessionQuery,
) -> rusqlite::Result<Vec<StoredSession>> {
    let columns = format!("{LISTED_COLUMNS}, {OTHER_COLUMNS}");
    page(connection, &columns, listing, |row| read(row, connection, owner))
}

fn page<T>(
    connection: &Connection,
    columns: &str,
    listing: SessionQuery,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    let sql = list_sql(columns, &listing);
    // No id follows this one, if the list begins.
    let (at, id) = listing.after.map_or((i64::MAX, "\u{10ffff}".into()), |(at, id)| (at, id.0.to_string()));
    let cwd = listing.cwd.map(|cwd| cwd.to_string_lossy().into_owned());
    let limit = i64::try_from(listing.limit).unwrap_or(i64::MAX);
    let search = listing.search.as_deref().map(containing);
    sql::rows(connection, &sql, params![at, id, limit, cwd, listing.agent, search], read)
}

/// A pattern of `LIKE` for all texts with this part.
fn containing(part: &str) -> String {
    let escaped = part.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_");
    format!("%{escaped}%")
}

/// The query names its index: the planner would take the one by parents and sort all sessions for each page.
pub(super) fn list_sql(columns: &str, listing: &SessionQuery) -> String {
    let (index, filter) = filter(listing, [4, 5, 6]);
    format!(
        "SELECT {columns} FROM sessions INDEXED BY {index} WHERE parent IS NULL AND state IS NULL AND {filter} \
         AND (updated_at, id) < (?1, ?2) ORDER BY updated_at DESC, id DESC LIMIT ?3"
    )
}

/// Numbers of the parameters stand for the directory, the agent and the pattern.
fn filter(listing: &SessionQuery, [cwd, agent, search]: [u8; 3]) -> (&'static str, String) {
    let index = match (&listing.cwd, &listing.agent) {
        (Some(_), _) => "sessions_listed_by_cwd",
        (None, Some(_)) => "sessions_listed_by_agent",
        (None, None) => "sessions_listed",
    };
    let (cwd, agent) =
        (equality("cwd", cwd, listing.cwd.is_some()), equality("agent", agent, listing.agent.is_some()));
    let search = match listing.search {
        Some(_) => format!(
            r"(title LIKE ?{search} ESCAPE '\' OR EXISTS (SELECT 1 FROM events, json_tree(body, '$.content') AS part
             WHERE session_id = sessions.id AND kind = 'user_message' AND part.key = 'text'
             AND part.atom LIKE ?{search} ESCAPE '\'))"
        ),
        None => format!("?{search} IS NULL"),
    };
    let runs = match listing.runs {
        ListedRuns::Included => "1".to_owned(),
        ListedRuns::LeftOut => format!("NOT {}", of_program()),
    };
    (index, format!("{cwd} AND {agent} AND {search} AND {runs}"))
}

/// True for a session of `modegate run`. The title spares most other sessions a search in their events.
fn of_program() -> String {
    format!(
        "(coalesce(instr(title, '{PROGRAM_PROMPT}'), 1) = 1 \
         AND EXISTS (SELECT 1 FROM events WHERE session_id = sessions.id AND seq < {FIRST_EVENTS} \
         AND kind = 'relayed' AND json_extract(body, '$.update._meta.\"{PROGRAM_META}\"')))"
    )
}

pub(super) fn is_of_program(connection: &Connection, id: &SessionId) -> rusqlite::Result<bool> {
    let sql = format!("SELECT {} FROM sessions WHERE id = ?1", of_program());
    connection.query_row(&sql, [&*id.0], |row| row.get(0)).optional().map(Option::unwrap_or_default)
}

/// Without the condition, the parameter counts nevertheless.
fn equality(column: &str, number: u8, is_given: bool) -> String {
    if is_given { format!("{column} = ?{number}") } else { format!("?{number} IS NULL") }
}

/// The number of sessions in the whole list.
pub(super) fn count(connection: &Connection, listing: &SessionQuery) -> rusqlite::Result<u64> {
    let (index, filter) = filter(listing, [1, 2, 3]);
    let sql = format!(
        "SELECT count(*) FROM sessions INDEXED BY {index} WHERE parent IS NULL AND state IS NULL AND {filter}"
    );
    let cwd = listing.cwd.as_ref().map(|cwd| cwd.to_string_lossy().into_owned());
    connection
        .query_row(&sql, params![cwd, listing.agent, listing.search.as_deref().map(containing)], |row| {
            row.get::<_, i64>(0)
        })
        .map(i64::cast_unsigned)
}

pub(super) fn mode_before(connection: &Connection, id: &SessionId) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT from_mode FROM mode_changes WHERE session_id = ?1 ORDER BY id DESC LIMIT 1";
    connection.query_row(sql, [&*id.0], |row| row.get(0)).optional().map(Option::flatten)
}

pub(super) fn counts(connection: &Connection, id: &SessionId) -> rusqlite::Result<(u64, u64)> {
    let count = |table: &str| {
        let sql = format!("SELECT count(*) FROM {table} WHERE session_id = ?1");
        connection.query_row(&sql, [&*id.0], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
    };
    Ok((count("mode_changes")?, count("denials")?))
}

pub(super) fn grants(connection: &Connection, id: &SessionId) -> rusqlite::Result<Vec<StoredGrant>> {
    let sql = "SELECT mode, allows, kind, tool, value FROM grants WHERE session_id = ?1 ORDER BY id";
    let grants = sql::rows(connection, sql, [&*id.0], |row| {
        let scope = ScopeRow { kind: row.get(2)?, tool: row.get(3)?, value: row.get(4)? };
        let (mode, allows) = (row.get(0)?, row.get(1)?);
        Ok(scope.to_scope().map(|scope| StoredGrant { mode, allows, scope }))
    })?;
    Ok(grants.into_iter().flatten().collect())
}

pub(super) fn like(connection: &Connection, part: &str) -> rusqlite::Result<Vec<SessionId>> {
    let sql = format!(
        "SELECT id FROM sessions WHERE (id = ?1 OR substr(id, 1, length(?1)) = ?1 \
         OR substr(id, 1, length(?1) + 5) = 'sess_' || ?1 OR substr(id, -length(?1)) = ?1) AND {VISIBLE} \
         ORDER BY id = ?1 DESC, id LIMIT 10"
    );
    let mut matching_ids = sql::rows(connection, &sql, [part], session_id)?;
    if matching_ids.first().is_some_and(|id| *id.0 == *part) {
        matching_ids.truncate(1);
    }
    Ok(matching_ids)
}

/// Sessions of a directory, or of all, that were last used before a time, the oldest first. Sub-agent sessions are
/// left out, because they are deleted with their parent.
pub(super) fn before(
    connection: &Connection,
    owner: &StoreOwner,
    at: i64,
    cwd: Option<&Path>,
    limit: usize,
) -> rusqlite::Result<Vec<OldSession>> {
    let sql = format!(
        "SELECT id, title, updated_at, owner FROM sessions \
         WHERE parent IS NULL AND {VISIBLE} AND updated_at < ?1 AND (?2 IS NULL OR cwd = ?2) \
         ORDER BY updated_at, id LIMIT ?3"
    );
    let cwd = cwd.map(|cwd| cwd.to_string_lossy().into_owned());
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    sql::rows(connection, &sql, params![at, cwd, limit], |row| {
        let open_in: Option<String> = row.get(3)?;
        Ok(OldSession {
            id: session_id(row)?,
            title: row.get(1)?,
            updated_at: row.get(2)?,
            is_open: open_in.is_some_and(|process| process == owner.id || owner.is_other(&process)),
        })
    })
}

fn session_id(row: &rusqlite::Row<'_>) -> rusqlite::Result<SessionId> {
    row.get::<_, String>(0).map(SessionId::new)
}

pub(super) fn links(connection: &Connection, id: &SessionId) -> rusqlite::Result<Vec<Link>> {
    let sql = "SELECT number, body, hash FROM chain WHERE session_id = ?1 ORDER BY number";
    sql::rows(connection, sql, [&*id.0], |row| {
        let number = row.get::<_, i64>(0)?.cast_unsigned();
        Ok(Link { number, body: row.get(1)?, hash: row.get(2)? })
    })
}

pub(super) fn find(
    connection: &Connection,
    owner: &StoreOwner,
    id: &SessionId,
) -> rusqlite::Result<Option<StoredSession>> {
    let sql = format!("SELECT {LISTED_COLUMNS}, {OTHER_COLUMNS} FROM sessions WHERE id = ?1 AND {VISIBLE}");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row(params![&*id.0], |row| read(row, connection, owner)).optional()?;
    found.map(|session| Ok(StoredSession { system: system_prompt(connection, id)?, ..session })).transpose()
}

fn system_prompt(connection: &Connection, id: &SessionId) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT coalesce(text, system_prompt) FROM sessions LEFT JOIN system_prompts ON session_id = id \
        WHERE id = ?1";
    connection.prepare_cached(sql)?.query_row(params![&*id.0], |row| row.get(0))
}

fn read_listed(row: &rusqlite::Row<'_>, owner: &StoreOwner) -> rusqlite::Result<ListedSession> {
    let directories: Option<String> = row.get(2)?;
    let owned_by: Option<String> = row.get(6)?;
    Ok(ListedSession {
        id: session_id(row)?,
        cwd: PathBuf::from(row.get::<_, String>(1)?),
        // An invalid list counts as empty, so that a session never gains folders from it.
        directories: directories.and_then(|list| serde_json::from_str(&list).ok()).unwrap_or_default(),
        mode: row.get::<_, Option<String>>(3)?.filter(|mode| !mode.trim().is_empty()),
        title: row.get(4)?,
        updated_at: row.get(5)?,
        is_open_elsewhere: owned_by.is_some_and(|owned_by| owner.is_other(&owned_by)),
        forked_from: row.get(7)?,
    })
}

fn read(
    row: &rusqlite::Row<'_>,
    connection: &Connection,
    owner: &StoreOwner,
) -> rusqlite::Result<StoredSession> {
    let ListedSession { id, cwd, directories, mode, title, updated_at, is_open_elsewhere, forked_from } =
        read_listed(row, owner)?;
    let (model, effort): (Option<String>, Option<String>) = (row.get(9)?, row.get(10)?);
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
        system: None,
        created_at: row.get(8)?,
        chosen: model.zip(effort),
        events: row.get::<_, i64>(11)?.cast_unsigned(),
        turns: row.get::<_, i64>(12)?.cast_unsigned(),
        head,
        is_chained: row.get(14)?,
        parent: row.get::<_, Option<String>>(15)?.map(SessionId::new),
        agent: row.get(16)?,
        external_session: row.get(17)?,
        external_mode: row.get(18)?,
        id,
        cwd,
        directories,
        mode,
        title,
        updated_at,
        is_open_elsewhere,
        forked_from,
    })
}
