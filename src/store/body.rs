//! Encodes events as JSON and decodes them. Stored events may come from an earlier version or be edited by
//! hand, so anything that cannot be decoded is an error, never a guess.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::conversation::content::{Location, ToolContent};
use crate::event::{
    CallTitle, Compaction, NoticeKind, SessionEvent, SwitchOutcome, ToolCallEvent, ToolCallUpdateEvent,
};
use crate::model::{Effort, ModelId, ProviderState, Usage};

pub(super) fn write(event: &SessionEvent) -> (&'static str, Value) {
    match event {
        SessionEvent::UserMessage { message_id, content, typed, key } => {
            let body = json!({ "message_id": message_id, "content": content });
            ("user_message", with(with(body, "typed", typed.as_ref()), "key", key.as_ref()))
        }
        SessionEvent::AgentText { message_id, text, shown } => {
            let body = json!({ "message_id": message_id, "text": text });
            ("agent_text", with(body, "shown", shown.as_ref()))
        }
        SessionEvent::Switch { switch: SwitchOutcome { from, to, analysis, outcome } } => {
            ("mode_switch", json!({ "from": from, "to": to, "analysis": analysis, "outcome": outcome }))
        }
        SessionEvent::AgentThought { message_id, text } => {
            ("agent_thought", json!({ "message_id": message_id, "text": text }))
        }
        SessionEvent::Notice { message_id, kind: NoticeKind::Message, text } => {
            ("notice", json!({ "message_id": message_id, "text": text }))
        }
        SessionEvent::Notice { message_id, kind, text } => {
            ("notice", json!({ "message_id": message_id, "kind": kind, "text": text }))
        }
        SessionEvent::SystemNote { text, quotes } => {
            ("system_note", with(json!({ "text": text }), "quotes", quotes.as_ref()))
        }
        SessionEvent::ReplyInterrupted { note } => ("reply_interrupted", json!({ "note": note })),
        SessionEvent::PromptDropped { note } => ("prompt_dropped", json!({ "note": note })),
        SessionEvent::ToolCallStarted { id, name, kind } => {
            ("tool_call_begun", json!({ "id": id, "name": name, "kind": kind }))
        }
        SessionEvent::ToolCall(call) => ("tool_call", write_call(call)),
        SessionEvent::ToolCallUpdate(update) => ("tool_call_update", write_update(update)),
        SessionEvent::Plan { entries } => ("plan", json!({ "entries": entries })),
        SessionEvent::Title { title } => ("title", json!({ "title": title })),
        SessionEvent::ModeChange { from, to, unconfirmed } => {
            ("mode_change", json!({ "from": from, "to": to, "unconfirmed": unconfirmed }))
        }
        SessionEvent::ProviderState { state } => {
            ("sealed", json!({ "model": state.origin.as_str(), "data": state.data }))
        }
        SessionEvent::ModelChange { model, effort } => {
            ("model_change", json!({ "model": model.as_str(), "effort": effort.as_str() }))
        }
        SessionEvent::AgentChange { agent } => ("agent_change", json!({ "agent": agent })),
        SessionEvent::ForwardedUpdate { update } => ("relayed", json!({ "update": update })),
        SessionEvent::Usage(Usage { used, size, cache_read, cache_write, output, cost }) => {
            let body = json!({
                "used": used,
                "size": size,
                "cache_read": cache_read,
                "cache_write": cache_write,
                "output": output,
            });
            ("usage", with(body, "cost", cost.as_ref()))
        }
        SessionEvent::Compaction { id, stage } => ("compaction", write_compaction(id, stage)),
        SessionEvent::Undone { turn, files } => ("undone", json!({ "turn": turn, "files": files })),
        SessionEvent::Stop { reason } => ("stop", json!({ "reason": reason })),
    }
}

/// Adds a member if there is a value.
fn with(mut body: Value, key: &str, value: Option<&impl Serialize>) -> Value {
    if let Some(value) = value {
        body[key] = json!(value);
    }
    body
}

fn write_call(call: &ToolCallEvent) -> Value {
    let body = json!({
        "id": call.id,
        "model_id": call.model_id,
        "name": call.name,
        "title": call.title,
        "kind": call.kind,
        "arguments": call.arguments,
        "announced": call.is_announced,
        "locations": call.locations.iter().map(write_location).collect::<Vec<_>>(),
    });
    with(with(body, "note", call.note.as_ref()), "check", call.check.as_ref())
}

fn write_update(update: &ToolCallUpdateEvent) -> Value {
    let ToolCallUpdateEvent { id, status, title, content, result, denied, exit_code, was_cancelled } = update;
    let content = content.as_ref().map(|all| all.iter().map(write_content).collect::<Vec<_>>());
    let body = json!({ "id": id, "status": status, "content": content, "result": result, "denied": denied });
    let title = title.as_ref().map(|title| json!({ "text": title.text, "code_spans": title.has_code_spans }));
    let body = with(with(body, "title", title.as_ref()), "exit_code", exit_code.as_ref());
    with(body, "cancelled", was_cancelled.then_some(&true))
}

fn write_compaction(id: &str, stage: &Compaction) -> Value {
    match stage {
        Compaction::Started => json!({ "id": id, "stage": "begun" }),
        Compaction::Done { summary, preamble, retained } => {
            json!({ "id": id, "stage": "done", "summary": summary, "opening": preamble, "kept": retained })
        }
        Compaction::Failed { reason } => json!({ "id": id, "stage": "failed", "reason": reason }),
        Compaction::Cancelled => json!({ "id": id, "stage": "cancelled" }),
    }
}

// For display only, so a lossy path is enough.
fn write_location(location: &Location) -> Value {
    json!({ "path": location.path.to_string_lossy(), "line": location.line })
}

fn write_content(content: &ToolContent) -> Value {
    match content {
        ToolContent::Text(text) => json!({ "text": text }),
        ToolContent::Diff { path, old, new, line } => {
            json!({ "path": path.to_string_lossy(), "old": old, "new": new, "line": line })
        }
        ToolContent::Block(block) => json!({ "block": block }),
        ToolContent::Operation(operation) => json!({ "operation": operation }),
        ToolContent::Session(session) => json!({ "session": session }),
        // The terminal ends with its client.
        ToolContent::Terminal { .. } => write_content(content.lasting()),
    }
}

pub(super) fn read(kind: &str, body: &str) -> Result<SessionEvent, String> {
    let mut body = EventBody::parse(body)?;
    Ok(match kind {
        "user_message" => SessionEvent::UserMessage {
            message_id: body.take("message_id")?,
            content: body.take("content")?,
            typed: body.take("typed")?,
            key: body.take("key")?,
        },
        "agent_text" => SessionEvent::AgentText {
            message_id: body.take("message_id")?,
            text: body.take("text")?,
            shown: body.take("shown")?,
        },
        "agent_thought" => {
            SessionEvent::AgentThought { message_id: body.take("message_id")?, text: body.take("text")? }
        }
        "notice" => SessionEvent::Notice {
            message_id: body.take("message_id")?,
            kind: body.take::<Option<NoticeKind>>("kind")?.unwrap_or_default(),
            text: body.take("text")?,
        },
        "system_note" => SessionEvent::SystemNote { text: body.take("text")?, quotes: body.take("quotes")? },
        "reply_interrupted" => SessionEvent::ReplyInterrupted { note: body.take("note")? },
        "prompt_dropped" => SessionEvent::PromptDropped { note: body.take("note")? },
        "mode_switch" => SessionEvent::Switch {
            switch: SwitchOutcome {
                from: body.take("from")?,
                to: body.take("to")?,
                analysis: body.take("analysis")?,
                outcome: body.take::<String>("outcome")?.into(),
            },
        },
        "tool_call_begun" => SessionEvent::ToolCallStarted {
            id: body.take("id")?,
            name: body.take("name")?,
            kind: body.take("kind")?,
        },
        "tool_call" => SessionEvent::ToolCall(Box::new(read_call(&mut body)?)),
        "tool_call_update" => read_update(&mut body)?.into(),
        "plan" => SessionEvent::Plan { entries: body.take("entries")? },
        "title" => SessionEvent::Title { title: body.take("title")? },
        "mode_change" => SessionEvent::ModeChange {
            from: body.take("from")?,
            to: body.take("to")?,
            unconfirmed: body.take("unconfirmed")?,
        },
        "sealed" => SessionEvent::ProviderState {
            state: ProviderState { origin: body.model("model")?, data: Arc::new(body.take("data")?) },
        },
        "model_change" => {
            let effort: String = body.take("effort")?;
            let effort = Effort::parse(&effort).ok_or_else(|| format!("unknown effort {effort:?}"))?;
            SessionEvent::ModelChange { model: body.model("model")?, effort }
        }
        "agent_change" => SessionEvent::AgentChange { agent: body.take("agent")? },
        "relayed" => SessionEvent::ForwardedUpdate { update: body.take("update")? },
        "usage" => SessionEvent::Usage(Usage {
            used: body.take("used")?,
            size: body.take("size")?,
            cache_read: body.take("cache_read")?,
            cache_write: body.take("cache_write")?,
            output: body.take("output")?,
            cost: body.take("cost")?,
        }),
        "compaction" => SessionEvent::Compaction { id: body.take("id")?, stage: read_stage(&mut body)? },
        "undone" => SessionEvent::Undone { turn: body.take("turn")?, files: body.take("files")? },
        "stop" => SessionEvent::Stop { reason: body.take("reason")? },
        unknown => return Err(format!("unknown event kind {unknown:?}")),
    })
}

fn read_call(body: &mut EventBody) -> Result<ToolCallEvent, String> {
    let locations: Vec<Map<String, Value>> = body.take("locations")?;
    let location = |map| {
        let mut body = EventBody(map);
        Ok::<_, String>(Location {
            path: body.take::<String>("path")?.into(),
            line: body.take::<Option<u32>>("line")?,
        })
    };
    Ok(ToolCallEvent {
        id: body.take("id")?,
        model_id: body.take("model_id")?,
        name: body.take("name")?,
        title: body.take("title")?,
        kind: body.take("kind")?,
        arguments: body.take("arguments")?,
        locations: locations.into_iter().map(location).collect::<Result<_, _>>()?,
        is_announced: body.take::<Option<bool>>("announced")?.unwrap_or_default(),
        note: body.take("note")?,
        check: body.take("check")?,
    })
}

fn read_update(body: &mut EventBody) -> Result<ToolCallUpdateEvent, String> {
    let content: Option<Vec<Map<String, Value>>> = body.take("content")?;
    let content =
        content.map(|all| all.into_iter().map(read_content).collect::<Result<_, _>>()).transpose()?;
    let title: Option<Map<String, Value>> = body.take("title")?;
    let title = title.map(|map| read_title(EventBody(map))).transpose()?;
    Ok(ToolCallUpdateEvent {
        id: body.take("id")?,
        status: body.take("status")?,
        title,
        content,
        result: body.take("result")?,
        denied: body.take::<Option<String>>("denied")?.map(Into::into),
        exit_code: body.take("exit_code")?,
        was_cancelled: body.take::<Option<bool>>("cancelled")?.unwrap_or_default(),
    })
}

fn read_title(mut body: EventBody) -> Result<CallTitle, String> {
    Ok(CallTitle { text: body.take("text")?, has_code_spans: body.take("code_spans")? })
}

fn read_content(map: Map<String, Value>) -> Result<ToolContent, String> {
    let mut body = EventBody(map);
    if let Some(text) = body.take("text")? {
        return Ok(ToolContent::Text(text));
    }
    if let Some(block) = body.take("block")? {
        return Ok(ToolContent::Block(block));
    }
    if let Some(operation) = body.take("operation")? {
        return Ok(ToolContent::Operation(operation));
    }
    if let Some(session) = body.take("session")? {
        return Ok(ToolContent::Session(session));
    }
    Ok(ToolContent::Diff {
        path: body.take::<String>("path")?.into(),
        old: body.take("old")?,
        new: body.take("new")?,
        line: body.take("line")?,
    })
}

fn read_stage(body: &mut EventBody) -> Result<Compaction, String> {
    let stage: String = body.take("stage")?;
    Ok(match stage.as_str() {
        "begun" => Compaction::Started,
        "done" => Compaction::Done {
            summary: body.take("summary")?,
            preamble: body.take("opening")?,
            retained: body.take("kept")?,
        },
        "failed" => Compaction::Failed { reason: body.take("reason")? },
        "cancelled" => Compaction::Cancelled,
        unknown => return Err(format!("unknown compaction stage {unknown:?}")),
    })
}

struct EventBody(Map<String, Value>);

impl EventBody {
    fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map(Self).map_err(|error| error.to_string())
    }

    /// A missing member decodes as null.
    fn take<T: DeserializeOwned>(&mut self, key: &str) -> Result<T, String> {
        let value = self.0.remove(key).unwrap_or_default();
        serde_json::from_value(value).map_err(|error| format!("{key}: {error}"))
    }

    fn model(&mut self, key: &str) -> Result<ModelId, String> {
        Ok(ModelId::new(self.take::<String>(key)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::{
        ContentBlock, MessageId, PlanEntry, PlanEntryPriority, PlanEntryStatus, SessionId, SessionModeId,
        StopReason, ToolCallId, ToolCallStatus, ToolKind,
    };
    use crate::conversation::content::PathChange;
    use crate::event::InstructionSource;

    fn check(event: &SessionEvent) {
        let (kind, body) = write(event);
        assert_eq!(read(kind, &body.to_string()).as_ref(), Ok(event));
    }

    #[test]
    fn every_event_round_trips() {
        let message_id = MessageId::new("m");
        let mode = SessionModeId::new;
        let text = || "é \u{1f600} \"x\"\n".to_owned();
        let content = vec![ContentBlock::from("hello")];
        let call = ToolCallEvent {
            id: ToolCallId::new("c"),
            model_id: "x".into(),
            name: "read_file".into(),
            title: "Read a".into(),
            kind: ToolKind::Read,
            arguments: json!({ "b": 1, "a": [null] }),
            locations: vec![Location { path: "/w/a".into(), line: Some(3) }],
            is_announced: true,
            note: Some(text()),
            check: Some("lint".into()),
        };
        let diff = ToolContent::Diff { path: "/w/a".into(), old: None, new: text(), line: Some(3) };
        let moved = ToolContent::Operation(PathChange::Move { from: "/w/a".into(), to: "/w/b".into() });
        let update = ToolCallUpdateEvent {
            id: ToolCallId::new("c"),
            status: ToolCallStatus::Failed,
            title: Some(CallTitle { text: text(), has_code_spans: true }),
            content: Some(vec![
                ToolContent::Text(text()),
                diff,
                moved,
                ToolContent::Session(SessionId::new("s")),
            ]),
            result: Some(text()),
            denied: Some("access".into()),
            exit_code: Some(3),
            was_cancelled: true,
        };
        let done = Compaction::Done { summary: text(), preamble: text(), retained: 3 };
        let entry = PlanEntry::new("Look", PlanEntryPriority::High, PlanEntryStatus::InProgress);
        let model = || ModelId::new("p/m");
        let state = ProviderState { origin: model(), data: Arc::new(json!({ "s": "x" })) };
        let usage = Usage { used: 1, size: 2, cache_read: 3, cache_write: 4, output: 5, cost: Some(6) };
        let switch = SwitchOutcome {
            from: mode("ask"),
            to: "plan".into(),
            analysis: text(),
            outcome: "switched".into(),
        };
        let compaction = |stage| SessionEvent::Compaction { id: "k".into(), stage };
        for event in [
            SessionEvent::UserMessage {
                message_id: message_id.clone(),
                content: content.clone(),
                typed: None,
                key: None,
            },
            SessionEvent::UserMessage {
                message_id: message_id.clone(),
                content: Vec::new(),
                typed: Some(content),
                key: Some("k".into()),
            },
            SessionEvent::AgentText { message_id: message_id.clone(), text: text(), shown: None },
            SessionEvent::AgentText { message_id: message_id.clone(), text: text(), shown: Some(text()) },
            SessionEvent::AgentThought { message_id: message_id.clone(), text: text() },
            SessionEvent::Notice { message_id: message_id.clone(), kind: NoticeKind::Message, text: text() },
            SessionEvent::Notice { message_id, kind: NoticeKind::Warning, text: text() },
            SessionEvent::SystemNote { text: text(), quotes: None },
            SessionEvent::SystemNote { text: text(), quotes: Some(InstructionSource::File(text())) },
            SessionEvent::SystemNote { text: text(), quotes: Some(InstructionSource::Server(text())) },
            SessionEvent::ReplyInterrupted { note: text() },
            SessionEvent::PromptDropped { note: text() },
            SessionEvent::Switch { switch },
            SessionEvent::ToolCallStarted {
                id: ToolCallId::new("c"),
                name: "n".into(),
                kind: ToolKind::Edit,
            },
            SessionEvent::ToolCall(Box::new(call)),
            ToolCallUpdateEvent::in_progress(ToolCallId::new("c")).into(),
            update.into(),
            SessionEvent::Plan { entries: vec![entry] },
            SessionEvent::Title { title: text() },
            SessionEvent::ModeChange {
                from: mode("ask"),
                to: mode("plan"),
                unconfirmed: vec![ToolCallId::new("c")],
            },
            SessionEvent::ProviderState { state },
            SessionEvent::ModelChange { model: model(), effort: Effort::High },
            SessionEvent::Usage(usage),
            SessionEvent::Usage(Usage { cost: None, ..usage }),
            compaction(Compaction::Started),
            compaction(done),
            compaction(Compaction::Failed { reason: text() }),
            compaction(Compaction::Cancelled),
            SessionEvent::Undone { turn: 3, files: vec!["a".into()] },
            SessionEvent::Stop { reason: StopReason::EndTurn },
        ] {
            check(&event);
        }
    }

    #[test]
    fn unreadable_event_bodies_are_reported() {
        for (kind, body, text) in [
            ("agent_text", "{}", "message_id: "),
            ("agent_text", "no", "expected"),
            ("stop", r#"{"reason":"bored"}"#, "reason: unknown variant"),
            ("dance", "{}", "unknown event kind \"dance\""),
        ] {
            let error = read(kind, body).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }
}
