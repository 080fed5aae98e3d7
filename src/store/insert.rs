//! Writes rows to the database.

use std::collections::HashMap;
use std::path::PathBuf;

use rusqlite::{Connection, params};

use super::entry::ScopeRow;
use super::owner::StoreOwner;
use super::sessions::StoredGrant;
use super::sql::execute;
use super::{ChangeReason, DenialRow, ModeChange, Row, body, checkpoint, intent, outbox, spending};
use crate::acp::{SessionId, SessionModeId};
use crate::chain::Link;
use crate::event::SessionEvent;
use crate::signing::SignedHead;

/// Existing sessions, answers, texts and intents are not written again.
pub(super) fn insert(connection: &Connection, row: &Row, owner: &StoreOwner) -> rusqlite::Result<()> {
    match row {
        Row::Session { id, cwd, directories, parent, agent, mode, at } => execute(
            connection,
            "INSERT OR IGNORE INTO sessions (id, cwd, directories, mode, created_at, updated_at, owner, parent, agent, \
             state) VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7, ?8, 'empty')",
            params![
                &*id.0,
                cwd.to_string_lossy(),
                list(directories),
                &*mode.0,
                at,
                owner.id,
                parent.as_ref().map(|parent| parent.0.to_string()),
                agent
            ],
        ),
        Row::Folders { session, cwd, directories, is_elsewhere } => {
            if *is_elsewhere {
                execute(connection, "DELETE FROM grants WHERE session_id = ?1 AND allows", [&*session.0])?;
            }
            execute(
                connection,
                "UPDATE sessions SET cwd = ?2, directories = ?3 WHERE id = ?1",
                params![&*session.0, cwd.to_string_lossy(), list(directories)],
            )
        }
        Row::Agent { session, agent } => {
            execute(connection, "UPDATE sessions SET agent = ?2 WHERE id = ?1", params![&*session.0, agent])
        }
        Row::ExternalAgent { session, external_session, external_mode } => execute(
            connection,
            "UPDATE sessions SET harness_session = ?2, harness_mode = ?3 WHERE id = ?1",
            params![&*session.0, external_session, external_mode],
        ),
        Row::Chosen { session, model, effort } => execute(
            connection,
            "UPDATE sessions SET model = ?2, effort = ?3 WHERE id = ?1",
            params![&*session.0, model, effort],
        ),
        Row::Grant { session, turn, grant: StoredGrant { mode, allows, scope }, link, at } => {
            insert_link(connection, &session.0, link)?;
            let ScopeRow { kind, tool, value } = scope.into();
            execute(
                connection,
                "INSERT OR IGNORE INTO grants (session_id, mode, allows, kind, tool, value, turn, at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![&*session.0, mode, allows, kind, tool, value, turn.cast_signed(), at],
            )
        }
        Row::OutdatedGrants { session } => execute(
            connection,
            "DELETE FROM grants WHERE session_id = ?1 AND allows AND kind = 'command'",
            [&*session.0],
        ),
        Row::ClaimsChanged { session, server } => execute(
            connection,
            "DELETE FROM grants WHERE session_id = ?1 AND kind = 'claims' AND tool = ?2",
            params![&*session.0, server],
        ),
        Row::Link { session, link } => insert_link(connection, &session.0, link),
        Row::SignedHead { session, head } => insert_signed_head(connection, &session.0, head),
        Row::Changes { session, turn, changes } => checkpoint::insert(connection, session, *turn, changes),
        Row::Intent { session, turn, intent } => intent::insert(connection, session, *turn, intent),
        Row::Release { session } => release(connection, &session.0, owner),
        Row::Text { hash, text } => insert_text(connection, hash, text),
        Row::SystemPrompt { session, text } => execute(
            connection,
            "INSERT OR REPLACE INTO system_prompts (session_id, text) VALUES (?1, ?2)",
            params![&*session.0, &**text],
        ),
        Row::Event { session, seq, turn, event, at } => {
            let (kind, body) = body_text(event);
            execute(
                connection,
                "INSERT INTO events (session_id, seq, turn, kind, body, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![&*session.0, seq.cast_signed(), turn.cast_signed(), kind, body, at],
            )
        }
        Row::ModeChange(change) => insert_mode_change(connection, change),
        Row::Denial(denial) => insert_denial(connection, denial),
        Row::Spent { session, day, spent } => spending::insert(connection, session, day, *spent),
        Row::Span { session, record } => outbox::insert_span(connection, session, record),
        Row::Exported { session, number } => outbox::insert_cursor(connection, session, *number),
    }
}

/// Updates of sessions' rows for the events and mode changes of one transaction. An update for each would also
/// update the indexes each time.
#[derive(Debug, Default)]
pub(super) struct SessionRowUpdates<'a>(Vec<SessionRowUpdate<'a>>);

/// Update for events and mode changes of a session that follow each other.
#[derive(Debug)]
struct SessionRowUpdate<'a> {
    session: &'a SessionId,
    at: i64,
    title: Option<&'a str>,
    mode: Option<&'a SessionModeId>,
    /// True if an event makes the session one that is listed.
    has_events: bool,
}

impl<'a> SessionRowUpdates<'a> {
    /// Adds a row, if it is an event or a mode change.
    pub(super) fn add(&mut self, row: &'a Row) {
        match row {
            Row::Event { session, event, at, .. } => {
                let update = self.of(session, *at);
                update.has_events = true;
                if let SessionEvent::Title { title } = event {
                    update.title = Some(title);
                }
            }
            Row::ModeChange(change) => self.add_mode_change(change),
            _ => {}
        }
    }

    pub(super) fn add_mode_change(&mut self, change: &'a ModeChange) {
        self.of(&change.session, change.at).mode = Some(&change.to);
    }

    fn of(&mut self, session: &'a SessionId, at: i64) -> &mut SessionRowUpdate<'a> {
        if self.0.last().is_none_or(|last| last.session != session) {
            self.0.push(SessionRowUpdate { session, at, title: None, mode: None, has_events: false });
        }
        let update = self.0.last_mut().expect("one was added");
        update.at = at;
        update
    }

    pub(super) fn write(self, connection: &Connection, times: &mut ListTimes) -> rusqlite::Result<()> {
        for update in self.0 {
            times.times.insert(update.session.clone(), update.at);
            update.write(connection)?;
        }
        if times.are_delayed { Ok(()) } else { times.write(connection) }
    }
}

impl SessionRowUpdate<'_> {
    /// SQLite also writes the indexes of each column that a statement names.
    fn write(self, connection: &Connection) -> rusqlite::Result<()> {
        let Self { session, at: _, title, mode, has_events } = self;
        let id = &*session.0;
        if let Some(title) = title {
            execute(connection, "UPDATE sessions SET title = ?2 WHERE id = ?1", params![id, title])?;
        }
        if let Some(mode) = mode {
            execute(connection, "UPDATE sessions SET mode = ?2 WHERE id = ?1", params![id, &*mode.0])?;
        }
        if has_events {
            execute(connection, "UPDATE sessions SET state = NULL WHERE id = ?1 AND state = 'empty'", [id])?;
        }
        Ok(())
    }
}

/// Times of the last events of sessions, which the lists do not have yet. Each costs a page of each list.
#[derive(Debug, Default)]
pub(super) struct ListTimes {
    times: HashMap<SessionId, i64>,
    /// True if a later transaction writes them.
    pub are_delayed: bool,
}

impl ListTimes {
    pub(super) fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Call [`Self::clear`] after the commit.
    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        self.times.iter().try_for_each(|(session, at)| {
            let sql = "UPDATE sessions SET updated_at = ?2 WHERE id = ?1 AND updated_at <> ?2";
            execute(connection, sql, params![&*session.0, at])
        })
    }

    pub(super) fn clear(&mut self) {
        self.times.clear();
    }
}

/// An event may have many megabytes, so its JSON value is dropped before the row is written.
fn body_text(event: &SessionEvent) -> (&'static str, String) {
    let (kind, body) = body::write(event);
    (kind, body.to_string())
}

fn insert_denial(connection: &Connection, denial: &DenialRow) -> rusqlite::Result<()> {
    let DenialRow { session, turn, call, tool, mode, rule, link, at } = denial;
    insert_link(connection, &session.0, link)?;
    execute(
        connection,
        "INSERT INTO denials (session_id, turn, tool_call_id, tool, mode, rule, at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![&*session.0, turn.cast_signed(), &*call.0, tool, &*mode.0, rule, at],
    )
}

/// Does not set the session's mode, which [`SessionRowUpdates`] does.
pub(super) fn insert_mode_change(connection: &Connection, change: &ModeChange) -> rusqlite::Result<()> {
    let ModeChange { session, turn, from, to, why, text, link, at } = change;
    let ChangeReason { source, analysis, call, plan, keeps_unrecorded: _ } = why;
    insert_text(connection, &text.hash, &text.text)?;
    insert_link(connection, &session.0, link)?;
    execute(
        connection,
        "INSERT INTO mode_changes (session_id, turn, from_mode, to_mode, source, actor, analysis, tool_call_id, mode_hash, \
         plan_hash, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        params![
            &*session.0,
            turn.cast_signed(),
            from.as_ref().map(|mode| mode.0.to_string()),
            &*to.0,
            source.as_str(),
            source.actor(),
            analysis,
            call.as_ref().map(|call| call.0.to_string()),
            text.hash,
            plan,
            at
        ],
    )
}

fn insert_link(connection: &Connection, session: &str, link: &Link) -> rusqlite::Result<()> {
    if link.number == 1 {
        execute(connection, "UPDATE sessions SET chained = 1 WHERE id = ?1", params![session])?;
    }
    execute(
        connection,
        "INSERT INTO chain (session_id, number, body, hash) VALUES (?1, ?2, ?3, ?4)",
        params![session, link.number.cast_signed(), link.body, link.hash],
    )
}

fn release(connection: &Connection, session: &str, owner: &StoreOwner) -> rusqlite::Result<()> {
    let sql = "UPDATE sessions SET owner = NULL WHERE id = ?1 AND owner = ?2";
    execute(connection, sql, params![session, owner.id])?;
    outbox::forget_exported(connection, session)
}

fn insert_signed_head(connection: &Connection, session: &str, head: &SignedHead) -> rusqlite::Result<()> {
    let SignedHead { length, hash, at, signature } = head;
    execute(
        connection,
        "INSERT OR REPLACE INTO signed_heads (session_id, length, hash, at, key, signature) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![session, length.cast_signed(), hash, at, signature.key.to_string(), signature.value],
    )
}

fn insert_text(connection: &Connection, hash: &str, text: &str) -> rusqlite::Result<()> {
    let sql = "INSERT OR IGNORE INTO mode_texts (hash, text) VALUES (?1, ?2)";
    execute(connection, sql, params![hash, text])
}

/// Leaves out folders that are not UTF-8, because they could not be found again.
fn list(folders: &[PathBuf]) -> String {
    let texts: Vec<&str> = folders.iter().filter_map(|folder| folder.to_str()).collect();
    serde_json::json!(texts).to_string()
}
