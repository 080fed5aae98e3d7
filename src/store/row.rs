//! Events and rows as SQL values. The JSON of an event's body is this file's own: domain types know nothing of it.

use rusqlite::{Connection, params};
use serde_json::{Value, json};

use super::{Denial, ModeChange, Row, Why};
use crate::event::{Compaction, SessionEvent, SwitchOutcome};
use crate::model::Usage;
use crate::tool::{Location, ToolContent};

/// Writes a row. The same row twice is written once.
pub fn insert(connection: &Connection, row: &Row) -> rusqlite::Result<()> {
    match row {
        Row::Session { id, cwd, mode, at } => execute(
            connection,
            "INSERT OR IGNORE INTO sessions (id, cwd, mode, created_at, updated_at) VALUES (?1, ?2, ?3, ?4, ?4)",
            params![&*id.0, cwd.to_string_lossy(), &*mode.0, at],
        ),
        Row::SystemPrompt { session, text } => execute(
            connection,
            "UPDATE sessions SET system_prompt = ?2 WHERE id = ?1",
            params![&*session.0, &**text],
        ),
        Row::Event { session, seq, turn, event, at } => {
            let (kind, body) = event_body(event);
            execute(
                connection,
                "INSERT OR REPLACE INTO events (session_id, seq, turn, kind, body, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![&*session.0, seq.cast_signed(), turn.cast_signed(), kind, body.to_string(), at],
            )?;
            let title = match event {
                SessionEvent::Title { title } => Some(title),
                _ => None,
            };
            execute(
                connection,
                "UPDATE sessions SET updated_at = ?2, title = coalesce(?3, title) WHERE id = ?1",
                params![&*session.0, at, title],
            )
        }
        Row::ModeChange(change) => insert_mode_change(connection, change),
        Row::Denial(Denial { session, turn, call, tool, mode, rule, at }) => execute(
            connection,
            "INSERT INTO denials (session_id, turn, tool_call_id, tool, mode, rule, at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![&*session.0, turn.cast_signed(), &*call.0, tool, &*mode.0, rule, at],
        ),
    }
}

/// Writes a mode change and makes it the session's mode.
pub fn insert_mode_change(connection: &Connection, change: &ModeChange) -> rusqlite::Result<()> {
    let ModeChange { session, turn, from, to, why, text: (hash, text), at } = change;
    let Why { source, analysis, call, plan, keeps_hold: _ } = why;
    execute(
        connection,
        "INSERT OR IGNORE INTO mode_texts (hash, text) VALUES (?1, ?2)",
        params![hash, text],
    )?;
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
            hash,
            plan,
            at
        ],
    )?;
    execute(
        connection,
        "UPDATE sessions SET mode = ?2, updated_at = ?3 WHERE id = ?1",
        params![&*session.0, &*to.0, at],
    )
}

fn execute(connection: &Connection, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute(values).map(drop)
}

/// An event's kind and body.
pub fn event_body(event: &SessionEvent) -> (&'static str, Value) {
    match event {
        SessionEvent::UserMessage { message_id, content } => {
            ("user_message", json!({ "message_id": message_id, "content": content }))
        }
        SessionEvent::AgentText { message_id, text, shown: None } => {
            ("agent_text", json!({ "message_id": message_id, "text": text }))
        }
        SessionEvent::AgentText { message_id, text, shown } => {
            ("agent_text", json!({ "message_id": message_id, "text": text, "shown": shown }))
        }
        SessionEvent::Switch { switch: SwitchOutcome { from, to, analysis, outcome } } => {
            ("mode_switch", json!({ "from": from, "to": to, "analysis": analysis, "outcome": outcome }))
        }
        SessionEvent::AgentThought { message_id, text } => {
            ("agent_thought", json!({ "message_id": message_id, "text": text }))
        }
        SessionEvent::Notice { message_id, text } => {
            ("notice", json!({ "message_id": message_id, "text": text }))
        }
        SessionEvent::ToolCallBegun { id, name, kind } => {
            ("tool_call_begun", json!({ "id": id, "name": name, "kind": kind }))
        }
        SessionEvent::ToolCall(call) => (
            "tool_call",
            json!({
                "id": call.id,
                "model_id": call.model_id,
                "name": call.name,
                "title": call.title,
                "kind": call.kind,
                "arguments": call.arguments,
                "announced": call.is_announced,
                "locations": call.locations.iter().map(location).collect::<Vec<_>>(),
            }),
        ),
        SessionEvent::ToolCallUpdate(update) => (
            "tool_call_update",
            json!({
                "id": update.id,
                "status": update.status,
                "content": update.content.as_ref().map(|all| all.iter().map(content).collect::<Vec<_>>()),
                "result": update.result,
                "denied": update.denied,
            }),
        ),
        SessionEvent::Plan { entries } => ("plan", json!({ "entries": entries })),
        SessionEvent::Title { title } => ("title", json!({ "title": title })),
        SessionEvent::ModeChange { from, to, unconfirmed } => {
            ("mode_change", json!({ "from": from, "to": to, "unconfirmed": unconfirmed }))
        }
        SessionEvent::Sealed { seal } => {
            ("sealed", json!({ "model": seal.origin.as_str(), "data": seal.data }))
        }
        SessionEvent::ModelChange { model, effort } => {
            ("model_change", json!({ "model": model.as_str(), "effort": effort.as_str() }))
        }
        SessionEvent::Usage(Usage { used, size, cache_read, cache_write, output }) => (
            "usage",
            json!({
                "used": used,
                "size": size,
                "cache_read": cache_read,
                "cache_write": cache_write,
                "output": output,
            }),
        ),
        SessionEvent::Compaction { id, stage } => {
            let body = match stage {
                Compaction::Begun => json!({ "id": id, "stage": "begun" }),
                Compaction::Done { summary, opening, kept } => {
                    json!({ "id": id, "stage": "done", "summary": summary, "opening": opening, "kept": kept })
                }
                Compaction::Failed { reason } => json!({ "id": id, "stage": "failed", "reason": reason }),
                Compaction::Cancelled => json!({ "id": id, "stage": "cancelled" }),
            };
            ("compaction", body)
        }
        SessionEvent::Stop { reason } => ("stop", json!({ "reason": reason })),
    }
}

fn location(location: &Location) -> Value {
    json!({ "path": location.path, "line": location.line })
}

fn content(content: &ToolContent) -> Value {
    match content {
        ToolContent::Text(text) => json!({ "text": text }),
        ToolContent::Diff { path, old, new } => json!({ "path": path, "old": old, "new": new }),
    }
}
