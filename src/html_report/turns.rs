//! Arranges the events of a session as turns with their steps. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::SessionRecord;
use crate::acp::{
    ContentBlock, PlanEntry, PlanEntryStatus, SessionUpdate, StopReason, ToolCallContent, ToolCallStatus,
    ToolCallUpdateFields,
};
use crate::conversation::content::{PathChange, ToolContent, plain_text};
use crate::event::{Compaction, NoticeKind, SessionEvent, SwitchOutcome, ToolCallUpdateEvent};
use crate::line_diff::{self, lines};
use crate::model::Usage;
use crate::store::entry::{ChainEntry, RecordedConsent, refuses_acts};
use crate::store::events::StoredEvent;

/// Everything from one prompt to the next.
#[derive(Debug, Default)]
pub(super) struct ReportTurn {
    /// 0 for what happened before the first prompt.
    pub number: u64,
    pub begun_at: i64,
    pub ended_at: i64,
    pub steps: Vec<ReportStep>,
    pub stop: Option<StopReason>,
}

#[derive(Debug)]
pub(super) struct ReportStep {
    pub at: i64,
    pub kind: StepKind,
}

#[derive(Debug)]
pub(super) enum StepKind {
    Prompt(String),
    Answer(String),
    Thought(String),
    Notice(NoticeKind, String),
    NoteToModel(String),
    Call(ReportCall),
    Plan(Vec<(bool, String)>),
    ModeChange { from: String, to: String, source: Option<String> },
    Switch(SwitchOutcome),
    Model(String),
    Agent(String),
    Summary(String),
    Undone { turn: u64, files: Vec<String> },
    Usage(Usage),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallEnd {
    Running,
    Completed,
    Failed,
    Denied,
    Cancelled,
}

#[derive(Debug)]
pub(super) struct ReportCall {
    pub id: String,
    pub tool: String,
    pub title: String,
    pub arguments: String,
    pub end: CallEnd,
    pub exit_code: Option<i32>,
    /// The rule of a denial.
    pub denied: Option<String>,
    /// Rules that refused changes of its command.
    pub refused_by: Vec<String>,
    /// What permitted the call, if it is in the audit log.
    pub consent: Option<RecordedConsent>,
    /// Number of its entry in the audit log.
    pub entry: Option<u64>,
    pub contents: Vec<CallContent>,
}

#[derive(Debug)]
pub(super) enum CallContent {
    Text(String),
    /// Unified lines of a change.
    Diff(String, String),
    Operation(String),
}

/// Facts of the audit log, by call, and the sources of mode changes in their order.
#[derive(Debug, Default)]
struct LoggedFacts {
    consents: HashMap<String, (u64, RecordedConsent)>,
    denials: HashMap<String, (u64, String)>,
    refused_changes: HashMap<String, Vec<String>>,
    sources: Vec<(String, String)>,
}

impl LoggedFacts {
    fn read(record: &SessionRecord) -> Self {
        let mut facts = Self::default();
        for link in &record.evidence.links {
            match ChainEntry::read(&link.body) {
                Ok(ChainEntry::Call { call, consent, .. }) => {
                    facts.consents.insert(call, (link.number, consent));
                }
                Ok(ChainEntry::Denial { call, rule, .. }) if refuses_acts(&rule) => {
                    facts.refused_changes.entry(call).or_default().push(rule);
                }
                Ok(ChainEntry::Denial { call, rule, .. }) => {
                    facts.denials.insert(call, (link.number, rule));
                }
                Ok(ChainEntry::Mode { from: Some(_), to, source, .. }) => facts.sources.push((to, source)),
                // The audit reports entries that cannot be read.
                Ok(_) | Err(_) => {}
            }
        }
        facts.sources.reverse();
        facts
    }

    /// Returns the source of the next change to a mode.
    fn source_of(&mut self, to: &str) -> Option<String> {
        let at = self.sources.iter().rposition(|(mode, _)| mode == to)?;
        let (_, source) = self.sources.remove(at);
        Some(source)
    }
}

pub(super) fn turns(record: &SessionRecord) -> Vec<ReportTurn> {
    let mut arranged =
        Arranged { turns: Vec::new(), calls: HashMap::new(), facts: LoggedFacts::read(record) };
    for stored in &record.events {
        arranged.add(stored);
    }
    arranged.turns
}

struct Arranged {
    turns: Vec<ReportTurn>,
    /// Turn and step of each call.
    calls: HashMap<String, (usize, usize)>,
    facts: LoggedFacts,
}

impl Arranged {
    fn add(&mut self, stored: &StoredEvent) {
        if self.turns.last().is_none_or(|turn| turn.number != stored.turn) {
            let (number, at) = (stored.turn, stored.at);
            self.turns.push(ReportTurn { number, begun_at: at, ended_at: at, ..ReportTurn::default() });
        }
        if let Some(turn) = self.turns.last_mut() {
            turn.ended_at = turn.ended_at.max(stored.at);
        }
        match &stored.event {
            SessionEvent::ToolCall(call) => self.begin_call(
                stored.at,
                &call.id.0,
                &call.name,
                (call.title.clone(), pretty(&call.arguments)),
            ),
            SessionEvent::ToolCallUpdate(update) => self.update_call(update),
            SessionEvent::ForwardedUpdate { update } => self.forwarded(stored.at, update),
            SessionEvent::Stop { reason } => {
                if let Some(turn) = self.turns.last_mut() {
                    turn.stop = Some(*reason);
                }
            }
            event => {
                if let Some(kind) = self.step_of(event) {
                    self.push(stored.at, kind);
                }
            }
        }
    }

    fn push(&mut self, at: i64, kind: StepKind) {
        if let Some(turn) = self.turns.last_mut() {
            turn.steps.push(ReportStep { at, kind });
        }
    }

    /// Returns the step of an event that is no call.
    fn step_of(&mut self, event: &SessionEvent) -> Option<StepKind> {
        Some(match event {
            SessionEvent::UserMessage { content, typed, .. } => {
                StepKind::Prompt(plain_text(typed.as_ref().unwrap_or(content)))
            }
            SessionEvent::AgentText { text, shown, .. } => {
                StepKind::Answer(shown.as_ref().unwrap_or(text).clone())
            }
            SessionEvent::AgentThought { text, .. } => StepKind::Thought(text.clone()),
            SessionEvent::Notice { kind, text, .. } => StepKind::Notice(*kind, text.clone()),
            SessionEvent::SystemNote { text: note, .. }
            | SessionEvent::ReplyInterrupted { note }
            | SessionEvent::PromptDropped { note } => StepKind::NoteToModel(note.clone()),
            SessionEvent::Plan { entries } => StepKind::Plan(plan(entries)),
            SessionEvent::ModeChange { from, to, .. } => StepKind::ModeChange {
                from: from.to_string(),
                to: to.to_string(),
                source: self.facts.source_of(&to.0),
            },
            SessionEvent::Switch { switch } => StepKind::Switch(switch.clone()),
            SessionEvent::ModelChange { model, .. } => StepKind::Model(model.to_string()),
            SessionEvent::AgentChange { agent } => StepKind::Agent(agent.clone()),
            SessionEvent::Compaction { stage: Compaction::Done { summary, .. }, .. } => {
                StepKind::Summary(summary.clone())
            }
            SessionEvent::Undone { turn, files } => StepKind::Undone { turn: *turn, files: files.clone() },
            SessionEvent::Usage(usage) => StepKind::Usage(*usage),
            _ => return None,
        })
    }

    fn begin_call(&mut self, at: i64, id: &str, tool: &str, (title, arguments): (String, String)) {
        let Some(turn) = self.turns.len().checked_sub(1) else { return };
        let consent = self.facts.consents.get(id);
        let denial = self.facts.denials.get(id);
        let call = ReportCall {
            id: id.to_owned(),
            tool: tool.to_owned(),
            title,
            arguments,
            end: CallEnd::Running,
            exit_code: None,
            denied: denial.map(|(_, rule)| rule.clone()),
            refused_by: self.facts.refused_changes.get(id).cloned().unwrap_or_default(),
            consent: consent.map(|(_, consent)| *consent),
            entry: consent.map(|(number, _)| *number).or(denial.map(|(number, _)| *number)),
            contents: Vec::new(),
        };
        self.calls.insert(id.to_owned(), (turn, self.turns[turn].steps.len()));
        self.push(at, StepKind::Call(call));
    }

    fn call(&mut self, id: &str) -> Option<&mut ReportCall> {
        let (turn, step) = *self.calls.get(id)?;
        match &mut self.turns[turn].steps[step].kind {
            StepKind::Call(call) => Some(call),
            _ => None,
        }
    }

    fn update_call(&mut self, update: &ToolCallUpdateEvent) {
        let Some(call) = self.call(&update.id.0) else { return };
        if let Some(title) = &update.title {
            call.title.clone_from(&title.text);
        }
        if let Some(contents) = &update.content {
            call.contents = contents.iter().filter_map(|content| shown(content.lasting())).collect();
        }
        if let Some(rule) = &update.denied {
            call.denied = Some(rule.to_string());
        }
        call.exit_code = update.exit_code.or(call.exit_code);
        set_end(call, update.status, update.was_cancelled);
        if let (true, Some(result)) = (call.contents.is_empty(), &update.result) {
            call.contents.push(CallContent::Text(result.clone()));
        }
    }

    /// An update of a sub-agent or an external agent.
    fn forwarded(&mut self, at: i64, update: &SessionUpdate) {
        match update {
            SessionUpdate::ToolCall(call) => {
                let arguments = call.raw_input.as_ref().map(pretty).unwrap_or_default();
                let id = call.tool_call_id.to_string();
                self.begin_call(at, &id, "", (call.title.clone(), arguments));
                let fields = ToolCallUpdateFields::new().status(call.status).content(call.content.clone());
                self.update_forwarded(&id, &fields);
            }
            SessionUpdate::ToolCallUpdate(update) => {
                self.update_forwarded(&update.tool_call_id.to_string(), &update.fields);
            }
            SessionUpdate::AgentMessageChunk(chunk) => self.append(at, &chunk.content, StepKind::Answer),
            SessionUpdate::AgentThoughtChunk(chunk) => self.append(at, &chunk.content, StepKind::Thought),
            _ => {}
        }
    }

    /// Pieces of an external agent's message are events of their own.
    fn append(&mut self, at: i64, block: &ContentBlock, kind: fn(String) -> StepKind) {
        let piece = plain_text(std::slice::from_ref(block));
        let last = self.turns.last_mut().and_then(|turn| turn.steps.last_mut());
        let step = kind(piece.clone());
        match (last.map(|step| &mut step.kind), &step) {
            (Some(StepKind::Answer(text)), StepKind::Answer(_))
            | (Some(StepKind::Thought(text)), StepKind::Thought(_)) => text.push_str(&piece),
            _ => self.push(at, step),
        }
    }

    fn update_forwarded(&mut self, id: &str, fields: &ToolCallUpdateFields) {
        let Some(call) = self.call(id) else { return };
        if let Some(title) = &fields.title {
            call.title.clone_from(title);
        }
        if let Some(contents) = &fields.content {
            call.contents = contents.iter().filter_map(shown_forwarded).collect();
        }
        if let Some(status) = fields.status {
            set_end(call, status, false);
        }
    }
}

fn set_end(call: &mut ReportCall, status: ToolCallStatus, was_cancelled: bool) {
    call.end = match status {
        ToolCallStatus::Completed => CallEnd::Completed,
        ToolCallStatus::Failed if was_cancelled => CallEnd::Cancelled,
        ToolCallStatus::Failed if call.denied.is_some() => CallEnd::Denied,
        ToolCallStatus::Failed => CallEnd::Failed,
        _ => return,
    };
}

fn shown(content: &ToolContent) -> Option<CallContent> {
    match content {
        ToolContent::Text(text) => Some(CallContent::Text(text.clone())),
        ToolContent::Diff { path, old, new, .. } => {
            Some(diff(&path.display().to_string(), old.as_deref(), new))
        }
        ToolContent::Block(block) => Some(CallContent::Text(plain_text(std::slice::from_ref(&**block)))),
        ToolContent::Operation(change) => Some(CallContent::Operation(describe(change))),
        ToolContent::Session(session) => Some(CallContent::Operation(format!("sub-agent session {session}"))),
        ToolContent::Terminal { .. } => None,
    }
}

fn shown_forwarded(content: &ToolCallContent) -> Option<CallContent> {
    match content {
        ToolCallContent::Content(content) => {
            Some(CallContent::Text(plain_text(std::slice::from_ref(&content.content))))
        }
        ToolCallContent::Diff(change) => {
            let path = change.path.display().to_string();
            Some(diff(&path, change.old_text.as_deref(), &change.new_text))
        }
        _ => None,
    }
}

fn describe(change: &PathChange) -> String {
    match change {
        PathChange::Delete(path) => format!("deleted {}", path.display()),
        PathChange::Move { from, to } => format!("moved {} to {}", from.display(), to.display()),
        PathChange::Copy { from, to } => format!("copied {} to {}", from.display(), to.display()),
    }
}

fn diff(path: &str, old: Option<&str>, new: &str) -> CallContent {
    let (before, after) = (lines(old.unwrap_or_default()), lines(new));
    let hunks = line_diff::hunks(&before, &after);
    let name = if old.is_none() { format!("{path} (new)") } else { path.to_owned() };
    CallContent::Diff(name.clone(), line_diff::unified((path, path), &before, &after, &hunks))
}

fn plan(entries: &[PlanEntry]) -> Vec<(bool, String)> {
    entries.iter().map(|entry| (entry.status == PlanEntryStatus::Completed, entry.content.clone())).collect()
}

fn pretty(value: &serde_json::Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// The modes in which the session was, each with the time from which.
pub(super) fn mode_spans(record: &SessionRecord) -> Vec<(i64, String)> {
    let modes = record.evidence.links.iter().filter_map(|link| match ChainEntry::read(&link.body) {
        Ok(ChainEntry::Mode { to, at, .. }) => Some((at, to)),
        _ => None,
    });
    modes.collect()
}

/// Turns whose files were restored.
pub(super) fn undone(turns: &[ReportTurn]) -> BTreeSet<u64> {
    let steps = turns.iter().flat_map(|turn| &turn.steps);
    steps
        .filter_map(|step| if let StepKind::Undone { turn, .. } = &step.kind { Some(*turn) } else { None })
        .collect()
}

/// Number of calls for each tool.
pub(super) fn calls_by_tool(turns: &[ReportTurn]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in calls(turns) {
        let tool = if call.tool.is_empty() { "(external agent)" } else { &call.tool };
        *counts.entry(tool.to_owned()).or_insert(0) += 1;
    }
    counts
}

pub(super) fn calls(turns: &[ReportTurn]) -> impl Iterator<Item = &ReportCall> {
    turns.iter().flat_map(|turn| &turn.steps).filter_map(|step| match &step.kind {
        StepKind::Call(call) => Some(call),
        _ => None,
    })
}

pub(super) fn usages(turns: &[ReportTurn]) -> Vec<Usage> {
    let steps = turns.iter().flat_map(|turn| &turn.steps);
    steps
        .filter_map(|step| if let StepKind::Usage(usage) = &step.kind { Some(*usage) } else { None })
        .collect()
}
