//! Makes the span records of a session: from its events, and from measurements of its turns. Exists only while
//! telemetry is on, decides nothing, and never waits: the store's thread writes the records.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::acp::{SessionId, SessionUpdate, ToolCallId, ToolCallStatus};
use crate::conversation::open_calls::is_end;
use crate::event::{SessionEvent, ToolCallUpdateEvent};
use crate::ids::Source;
use crate::model::{TraceContext, Usage};
use crate::span_record::{SpanContents, SpanLink, SpanRecord, TracedUsage, TracedWork};
use crate::store::outbox::OutboxBell;
use crate::store::{Row, Store};
use contents::{MAX_TEXT, messages, text_of};

pub(crate) use contents::{bounded, cut};

mod contents;

/// Says that the work of a session is recorded for export.
#[derive(Debug, Clone)]
pub struct Traced {
    pub bell: OutboxBell,
    pub records: TracedParts,
    /// The call that started the session. `None` for a session that a client opened.
    pub above: Option<SpanLink>,
}

/// The parts of a session to export.
#[derive(Debug, Clone, Copy)]
pub struct TracedParts {
    pub spans: bool,
    pub audit_log: bool,
    /// Prompts, answers, arguments and results in span records.
    pub contents: bool,
}

/// Writes the span records of one session.
#[derive(Debug, Clone)]
struct SpanWriter {
    session: SessionId,
    store: Store,
    source: Source,
    bell: OutboxBell,
    records: TracedParts,
    // Unbounded: taken at each call and each message.
    rows: mpsc::UnboundedSender<Row>,
}

/// The span of a running turn, for the parts of the turn that measure themselves.
#[derive(Debug, Clone)]
pub(crate) struct TurnTrace {
    writer: SpanWriter,
    number: u64,
    link: SpanLink,
}

/// The facts of a turn that begins.
pub(crate) struct TurnStart<'a> {
    pub number: u64,
    pub agent: &'a str,
    pub mode: &'a str,
    pub model: &'a str,
    pub is_external: bool,
    /// Trace context of the prompt.
    pub parent: Option<&'a TraceContext>,
}

/// How a permission request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PermissionOutcome {
    Allowed,
    Rejected,
    Unreachable,
    Withdrawn,
}

pub(super) struct SessionTrace {
    writer: SpanWriter,
    rows: mpsc::UnboundedReceiver<Row>,
    above: Option<SpanLink>,
    turn: Option<OpenTurn>,
    calls: HashMap<ToolCallId, TracedCall>,
    /// Open permission requests, by request id.
    questions: HashMap<u64, SpanRecord>,
    mode_changes: u64,
}

struct OpenTurn {
    trace: TurnTrace,
    record: SpanRecord,
    is_external: bool,
    usage: TracedUsage,
    /// Of the last message.
    answer: String,
    answer_id: String,
}

struct TracedCall {
    record: SpanRecord,
    has_started: bool,
    is_rejected: bool,
}

impl SpanWriter {
    /// Keeps a record for the next rows of the session, so that it needs no transaction of its own, which a turn could
    /// wait for.
    fn write(&self, record: SpanRecord) {
        if self.records.spans {
            // The session may have ended.
            let _ = self.rows.send(Row::Span { session: self.session.clone(), record: Box::new(record) });
        }
    }
}

impl TurnTrace {
    /// In microseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        self.writer.source.now_us()
    }

    pub(crate) fn has_contents(&self) -> bool {
        self.writer.records.contents
    }

    pub(crate) fn write(&self, record: SpanRecord) {
        self.writer.write(record);
    }

    /// A record that has neither ended nor failed. `part` is unique in the turn.
    pub(crate) fn begin(&self, part: &str, began: i64, work: TracedWork) -> SpanRecord {
        SpanRecord {
            link: self.link.part(&self.writer.session.0, self.number, part),
            parent: Some(self.link.span.clone()),
            turn: self.number,
            began,
            ended: None,
            error: None,
            work,
            contents: None,
        }
    }
}

impl PermissionOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Rejected => "rejected",
            Self::Unreachable => "unreachable",
            Self::Withdrawn => "withdrawn",
        }
    }
}

impl From<&Usage> for TracedUsage {
    fn from(usage: &Usage) -> Self {
        Self {
            input: usage.used.saturating_sub(usage.output),
            output: usage.output,
            cache_read: usage.cache_read,
            cache_write: usage.cache_write,
        }
    }
}

impl SessionTrace {
    pub(super) fn new(session: SessionId, traced: Traced, store: Store, source: Source) -> Self {
        let Traced { bell, records, above } = traced;
        let (sender, rows) = mpsc::unbounded_channel();
        Self {
            writer: SpanWriter { session, store, source, bell, records, rows: sender },
            rows,
            above,
            turn: None,
            calls: HashMap::new(),
            questions: HashMap::new(),
            mode_changes: 0,
        }
    }

    /// Exports the entries of the audit log after `exported`, and all later ones.
    pub(super) fn export_after(&self, exported: u64) {
        if !self.writer.records.audit_log {
            return;
        }
        self.writer.store.post(Row::Exported { session: self.writer.session.clone(), number: exported });
        self.writer.bell.ring();
    }

    /// Takes the records since the last call.
    pub(super) fn take_rows(&mut self) -> Vec<Row> {
        let rows: Vec<Row> = std::iter::from_fn(|| self.rows.try_recv().ok()).collect();
        if !rows.is_empty() {
            self.writer.bell.ring();
        }
        rows
    }

    /// New entries of the audit log wait.
    pub(super) fn ring(&self) {
        self.writer.bell.ring();
    }

    /// The running turn.
    pub(super) fn turn(&self) -> Option<&TurnTrace> {
        self.turn.as_ref().map(|turn| &turn.trace)
    }

    /// Also records that the turn runs, so that its span has an end if the process is killed.
    pub(super) fn begin_turn(&mut self, start: &TurnStart<'_>) {
        let client = start.parent.and_then(|context| SpanLink::of_parent(&context.parent));
        let above = self.above.clone().or(client);
        let link = SpanLink::of_turn(&self.writer.session.0, start.number, above.as_ref());
        let record = SpanRecord {
            link: link.clone(),
            parent: above.map(|above| above.span),
            turn: start.number,
            began: self.writer.source.now_us(),
            ended: None,
            error: None,
            work: TracedWork::Turn {
                agent: start.agent.to_owned(),
                mode: start.mode.to_owned(),
                model: start.model.to_owned(),
                stop: None,
                usage: TracedUsage::default(),
            },
            contents: self.writer.records.contents.then(SpanContents::default),
        };
        self.writer.write(record.clone());
        let trace = TurnTrace { writer: self.writer.clone(), number: start.number, link };
        let is_external = start.is_external;
        let (answer, answer_id) = (String::new(), String::new());
        self.turn =
            Some(OpenTurn { trace, record, is_external, usage: TracedUsage::default(), answer, answer_id });
    }

    /// `outcome` is ACP's stop reason, or the kind of the error.
    pub(super) fn end_turn(&mut self, outcome: Result<&str, &str>) {
        for call in std::mem::take(&mut self.calls).into_values() {
            self.end_call(call, Some("cancelled".to_owned()));
        }
        let Some(OpenTurn { mut record, usage: total, answer, .. }) = self.turn.take() else { return };
        record.ended = Some(self.writer.source.now_us());
        record.error = outcome.err().map(str::to_owned);
        if let TracedWork::Turn { stop, usage, .. } = &mut record.work {
            (*stop, *usage) = (outcome.ok().map(str::to_owned), total);
        }
        if let Some(contents) = &mut record.contents {
            contents.output = messages("assistant", &answer);
        }
        self.writer.write(record);
    }

    /// Reads an event of the session.
    pub(super) fn observe(&mut self, event: &SessionEvent) {
        match event {
            SessionEvent::UserMessage { content, .. } => {
                if let Some(contents) = self.turn.as_mut().and_then(|turn| turn.record.contents.as_mut())
                    && contents.input.is_null()
                {
                    contents.input = messages("user", &text_of(content));
                }
            }
            SessionEvent::AgentText { message_id, text, .. } => self.observe_text(&message_id.0, text),
            SessionEvent::Usage(usage) => {
                if let Some(turn) = &mut self.turn {
                    turn.usage += usage.into();
                }
            }
            SessionEvent::ToolCall(call) => {
                self.begin_call(&call.id, &call.name, Some(&call.arguments), false);
            }
            SessionEvent::ToolCallUpdate(update) => self.observe_update(update),
            SessionEvent::ForwardedUpdate { update } => self.observe_forwarded(update),
            _ => {}
        }
    }

    fn observe_text(&mut self, message: &str, text: &str) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.record.contents.is_some()) {
            if turn.answer_id != message {
                message.clone_into(&mut turn.answer_id);
                turn.answer.clear();
            }
            if turn.answer.len() < MAX_TEXT {
                turn.answer.push_str(text);
            }
        }
    }

    fn observe_update(&mut self, update: &ToolCallUpdateEvent) {
        if update.status == ToolCallStatus::InProgress {
            return self.start_call(&update.id);
        }
        if !is_end(update.status) {
            return;
        }
        let Some(mut call) = self.calls.remove(&update.id) else { return };
        if let TracedWork::ToolCall { denied, exit_code, .. } = &mut call.record.work {
            *denied = update.denied.as_deref().map(str::to_owned);
            *exit_code = update.exit_code;
        }
        if let (Some(contents), Some(result)) = (&mut call.record.contents, &update.result) {
            contents.output = cut(result).into();
        }
        let error = match update {
            ToolCallUpdateEvent { status: ToolCallStatus::Completed, .. } => None,
            ToolCallUpdateEvent { denied: Some(_), .. } => Some("denied"),
            ToolCallUpdateEvent { was_cancelled: true, .. } => Some("cancelled"),
            _ if call.is_rejected => Some("rejected"),
            ToolCallUpdateEvent { exit_code: Some(_), .. } => Some("exit_code"),
            _ => Some("tool_error"),
        };
        self.end_call(call, error.map(str::to_owned));
    }

    /// Calls of an external agent, by their kind: the names of its tools are its own. Those of a sub-agent are
    /// recorded by its session.
    fn observe_forwarded(&mut self, update: &SessionUpdate) {
        if !self.turn.as_ref().is_some_and(|turn| turn.is_external) {
            return;
        }
        let (id, status) = match update {
            SessionUpdate::ToolCall(call) => {
                let kind = json!(call.kind);
                self.begin_call(
                    &call.tool_call_id,
                    kind.as_str().unwrap_or("other"),
                    call.raw_input.as_ref(),
                    true,
                );
                (&call.tool_call_id, Some(call.status))
            }
            SessionUpdate::ToolCallUpdate(update) => (&update.tool_call_id, update.fields.status),
            _ => return,
        };
        match status {
            Some(ToolCallStatus::InProgress) => self.start_call(id),
            Some(status) if is_end(status) => {
                if let Some(call) = self.calls.remove(id) {
                    let error = (status != ToolCallStatus::Completed).then(|| "tool_error".to_owned());
                    self.end_call(call, error);
                }
            }
            _ => {}
        }
    }

    fn begin_call(&mut self, id: &ToolCallId, tool: &str, arguments: Option<&Value>, is_external: bool) {
        let Some(turn) = &self.turn else { return };
        let TracedWork::Turn { mode, .. } = &turn.record.work else { return };
        let work = TracedWork::ToolCall {
            call: id.to_string(),
            tool: tool.to_owned(),
            mode: mode.clone(),
            server: None,
            denied: None,
            exit_code: None,
            is_external,
        };
        let mut record = turn.trace.begin(&format!("call {id}"), turn.trace.now(), work);
        let input = arguments.filter(|_| self.writer.records.contents);
        record.contents = input.map(|input| SpanContents { input: bounded(input), output: Value::Null });
        self.calls.insert(id.clone(), TracedCall { record, has_started: false, is_rejected: false });
    }

    /// The span of a call is its execution: waits for the user are spans of their own.
    fn start_call(&mut self, id: &ToolCallId) {
        let now = self.writer.source.now_us();
        if let Some(call) = self.calls.get_mut(id).filter(|call| !call.has_started) {
            (call.record.began, call.has_started) = (now, true);
        }
    }

    fn end_call(&self, mut call: TracedCall, error: Option<String>) {
        let now = self.writer.source.now_us();
        call.record.ended = Some(now);
        if !call.has_started {
            // A refused call has not run.
            call.record.began = now;
        }
        call.record.error = error;
        self.writer.write(call.record);
    }

    /// The MCP server that has the tool of a call.
    pub(super) fn note_server(&mut self, call: &ToolCallId, name: Option<&str>) {
        let Some(call) = self.calls.get_mut(call) else { return };
        if let TracedWork::ToolCall { server, .. } = &mut call.record.work {
            *server = name.map(str::to_owned);
        }
    }

    /// The span of a call, for a session that the call starts.
    pub(super) fn link_of_call(&self, call: &ToolCallId) -> Option<SpanLink> {
        self.calls.get(call).map(|call| call.record.link.clone())
    }

    /// A permission request with this id was sent.
    pub(super) fn asked(&mut self, number: u64, call: &ToolCallId, asked_in: &str) {
        let Some(turn) = self.turn.as_ref() else { return };
        let Some(TracedCall { record: SpanRecord { work: TracedWork::ToolCall { tool, .. }, .. }, .. }) =
            self.calls.get(call)
        else {
            return;
        };
        let work = TracedWork::Permission {
            call: call.to_string(),
            tool: tool.clone(),
            mode: asked_in.to_owned(),
            outcome: String::new(),
        };
        let record = turn.trace.begin(&format!("permission {call} {number}"), turn.trace.now(), work);
        self.questions.insert(number, record);
    }

    /// The question is obsolete.
    pub(super) fn withdrawn(&mut self, number: u64) {
        self.answered(number, PermissionOutcome::Withdrawn);
    }

    pub(super) fn answered(&mut self, number: u64, answer: PermissionOutcome) {
        let Some(mut record) = self.questions.remove(&number) else { return };
        record.ended = Some(self.writer.source.now_us());
        if let TracedWork::Permission { outcome, call, .. } = &mut record.work {
            answer.as_str().clone_into(outcome);
            if let Some(call) = self.calls.get_mut(&ToolCallId::new(call.as_str())) {
                call.is_rejected = answer == PermissionOutcome::Rejected;
            }
        }
        self.writer.write(record);
    }

    /// Outside of a turn, the change is a trace of its own.
    pub(super) fn changed_mode(&mut self, from: &str, to: &str, source: &str) {
        let now = self.writer.source.now_us();
        self.mode_changes += 1;
        let work = TracedWork::ModeChange {
            from: Some(from.to_owned()),
            to: to.to_owned(),
            source: source.to_owned(),
        };
        let part = format!("mode {} {now}", self.mode_changes);
        let mut record = if let Some(trace) = self.turn() {
            trace.begin(&part, now, work)
        } else {
            let session = &self.writer.session.0;
            let link = SpanLink::of_turn(session, 0, None);
            let trace = SpanLink::of_turn(&format!("{session} {part}"), 0, self.above.as_ref()).trace;
            let link = SpanLink { trace, ..link.part(session, 0, &part) };
            let parent = self.above.as_ref().map(|above| above.span.clone());
            SpanRecord { link, parent, turn: 0, began: now, ended: None, error: None, work, contents: None }
        };
        record.ended = Some(now);
        if let Some(OpenTurn { record: SpanRecord { work: TracedWork::Turn { mode, .. }, .. }, .. }) =
            &mut self.turn
        {
            to.clone_into(mode);
        }
        self.writer.write(record);
        let rows = self.take_rows();
        self.writer.store.post_all(rows);
    }
}
