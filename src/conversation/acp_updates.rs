//! Encodes session events as ACP updates. Pure.
//!
//! Lines stay below 60 KiB, because a common client cannot read longer lines: long text is split, tool content
//! is cut with a note, and a large diff becomes its hunks as text. Exceptions are images, sounds and resources,
//! and the updates of an external agent, which are passed on whole.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::content::terminal_id;
use crate::acp::{
    CompactionStatus, CompactionUpdate, ConfigOptionUpdate, ContentBlock, ContentChunk, Cost,
    CurrentModeUpdate, Diff, MessageId, Meta, Notice, NoticeSeverity, SessionConfigOption, SessionId,
    SessionInfoUpdate, SessionReference, SessionUpdate, Terminal, ToolCall, ToolCallContent, ToolCallId,
    ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind, Update, UsageUpdate,
};
use crate::client::ClientDisplay;
use crate::conversation::content::{Location, PathChange, ToolContent, clip, fitting};
use crate::event::{Compaction, NoticeKind, SessionEvent, SwitchOutcome, ToolCallEvent, ToolCallUpdateEvent};
use crate::model::Usage;
use crate::text::{one_line, without_code_spans};

pub mod plans;

/// Marks messages of Modegate itself, which the model never sees.
pub const NOTICE_META: &str = "modegate/notice";

/// Marks text that a permission request is about, and that the client would not show otherwise.
pub const QUESTION_META: &str = "modegate/question";

/// In a permission request: the MCP server that claims that the call only reads.
pub const CLAIM_META: &str = "modegate/claim";

/// In a tool call update: the rule that denied the call.
pub const DENIED_META: &str = "modegate/denied";

/// In a tool call: the check that it runs.
pub const CHECK_META: &str = "modegate/check";

/// In a session info update: the outcome of a switch that the model requested.
pub const SWITCH_META: &str = "modegate/mode_switch";

/// In a call's update, for clients that accept details: true if the call was cancelled.
pub const CANCELLED_META: &str = "modegate/cancelled";

/// In a call's update, for clients that accept details: true if the client may cancel the call.
pub const CANCELLABLE_META: &str = "modegate/cancellable";

/// In a diff, for clients that accept details: the operation on the whole file.
pub const OPERATION_META: &str = "modegate/operation";

/// In a usage update: token counts of the last request and its reply.
pub const TOKENS_META: &str = "modegate/tokens";

// Limits, in bytes of JSON unless their comments say otherwise.

const CHUNK: usize = 32 * 1024;

const RAW_INPUT: usize = 12 * 1024;

/// Bytes of the content and the raw output of a call together.
const RESULT: usize = 56 * 1024;

/// A shorter raw output is left out.
const MIN_RAW_OUTPUT: usize = 256;

const RAW_STRING: usize = 2 * 1024;

/// Entries.
const LOCATIONS: usize = 20;

/// Bytes of the paths of all locations.
const PATHS: usize = 16 * 1024;

/// Characters.
const TITLE: usize = 200;

/// Updates that only some clients accept, and how the client displays the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is accepted on its own")]
pub struct OptionalUpdates {
    pub compactions: bool,
    pub notices: bool,
    /// Plans have ids, and the plan of a proposed mode change is one of them.
    pub plans: bool,
    pub subagents: bool,
    /// Details in `_meta` that the protocol of the updates has no form for.
    pub details: bool,
    pub display: ClientDisplay,
}

/// Passes the updates for an event to `send`, in order. `options` returns the config options after the event.
pub fn encode(
    event: &SessionEvent,
    accepted: OptionalUpdates,
    options: impl FnOnce() -> Vec<SessionConfigOption>,
    mut send: impl FnMut(Update),
) {
    match event {
        SessionEvent::AgentText { message_id, text, shown } => {
            let text = shown.as_ref().unwrap_or(text);
            chunks(text, message_id, |chunk| send(SessionUpdate::AgentMessageChunk(chunk).into()));
        }
        SessionEvent::AgentThought { message_id, text } => {
            chunks(text, message_id, |chunk| send(SessionUpdate::AgentThoughtChunk(chunk).into()));
        }
        SessionEvent::Notice { message_id, kind, text } => notice(text, message_id, *kind, accepted, send),
        SessionEvent::ToolCallStarted { id, name, kind } => {
            let call = ToolCall::new(id.clone(), title(name)).name(title(name)).kind(*kind);
            send(SessionUpdate::ToolCall(call).into());
        }
        SessionEvent::ToolCall(call) if call.is_announced => {
            send(SessionUpdate::ToolCallUpdate(call_details(call, accepted.display)).into());
        }
        SessionEvent::ToolCall(call) => {
            send(SessionUpdate::ToolCall(tool_call(call, accepted.display)).into());
        }
        SessionEvent::ToolCallUpdate(update) => {
            send(SessionUpdate::ToolCallUpdate(tool_call_update(update, accepted)).into());
        }
        SessionEvent::Plan { entries } => send(plans::tasks(entries, accepted.plans)),
        SessionEvent::Title { title } => {
            send(
                SessionUpdate::SessionInfoUpdate(
                    SessionInfoUpdate::new().title(clip(title, RAW_STRING).into_owned()),
                )
                .into(),
            );
        }
        SessionEvent::ModeChange { to, .. } => {
            send(Update::CurrentMode(CurrentModeUpdate::new(to.clone())));
            send(SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(options())).into());
        }
        SessionEvent::Switch { switch } => {
            let SwitchOutcome { from, to, analysis, outcome } = switch;
            let body =
                json!({ "from": from, "to": to, "analysis": clip(analysis, RAW_STRING), "outcome": outcome });
            let meta = Meta::from_iter([(SWITCH_META.to_owned(), body)]);
            send(SessionUpdate::SessionInfoUpdate(SessionInfoUpdate::new().meta(meta)).into());
        }
        SessionEvent::ForwardedUpdate { update } => send(Update::Schema(update.clone())),
        SessionEvent::ModelChange { .. } | SessionEvent::AgentChange { .. } => {
            send(SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(options())).into());
        }
        SessionEvent::Compaction { id, stage } if accepted.compactions => {
            send(SessionUpdate::CompactionUpdate(compaction_update(id, stage)).into());
        }
        SessionEvent::Compaction { id, stage: Compaction::Done { .. } } => {
            notice(
                "The older part of the conversation was summarised to free context.\n",
                &MessageId::new(id.as_str()),
                NoticeKind::Info,
                accepted,
                send,
            );
        }
        SessionEvent::Usage(usage) => send(SessionUpdate::UsageUpdate(usage_update(usage)).into()),
        // The client sent the user's message itself, and the response to its prompt tells it that the turn has
        // ended. Unfinished compactions matter only to clients that accept their updates.
        SessionEvent::UserMessage { .. }
        | SessionEvent::Undone { .. }
        | SessionEvent::SystemNote { .. }
        | SessionEvent::ReplyInterrupted { .. }
        | SessionEvent::PromptDropped { .. }
        | SessionEvent::ProviderState { .. }
        | SessionEvent::Compaction { .. }
        | SessionEvent::Stop { .. } => {}
    }
}

/// Encodes an event for a replay, which includes the user's messages. Passing notices are no part of the history.
pub fn encode_for_replay(
    event: &SessionEvent,
    accepted: OptionalUpdates,
    options: impl FnOnce() -> Vec<SessionConfigOption>,
    mut send: impl FnMut(Update),
) {
    let SessionEvent::UserMessage { message_id, content, typed, .. } = event else {
        return encode(event, accepted, options, |update| {
            let is_notice =
                matches!(&update, Update::Schema(update) if matches!(**update, SessionUpdate::Notice(_)));
            if !is_notice {
                send(update);
            }
        });
    };
    for block in typed.as_ref().unwrap_or(content) {
        match block {
            ContentBlock::Text(text) => {
                chunks(&text.text, message_id, |chunk| send(SessionUpdate::UserMessageChunk(chunk).into()));
            }
            block => {
                let chunk = ContentChunk::new(block.clone()).message_id(message_id.clone());
                send(SessionUpdate::UserMessageChunk(chunk).into());
            }
        }
    }
}

fn notice(
    text: &str,
    id: &MessageId,
    kind: NoticeKind,
    accepted: OptionalUpdates,
    mut send: impl FnMut(Update),
) {
    let severity = match kind {
        NoticeKind::Message => None,
        NoticeKind::Info => Some(NoticeSeverity::Info),
        NoticeKind::Warning => Some(NoticeSeverity::Warning),
        NoticeKind::Error => Some(NoticeSeverity::Error),
    };
    if let Some(severity) = severity.filter(|_| accepted.notices) {
        return send(SessionUpdate::Notice(passing_notice(text, severity)).into());
    }
    chunks(text, id, |chunk| {
        let meta = Meta::from_iter([(NOTICE_META.to_owned(), Value::Bool(true))]);
        send(SessionUpdate::AgentMessageChunk(chunk.meta(meta)).into());
    });
}

/// Passes the text that a question is about to `send`.
pub fn question(text: &str, id: &MessageId, mut send: impl FnMut(Update)) {
    chunks(text, id, |chunk| {
        let keys = [NOTICE_META, QUESTION_META];
        let meta = Meta::from_iter(keys.map(|key| (key.to_owned(), Value::Bool(true))));
        send(SessionUpdate::AgentMessageChunk(chunk.meta(meta)).into());
    });
}

/// Makes the first sentence the title. A sentence that is too long for a title is also in the description.
fn passing_notice(text: &str, severity: NoticeSeverity) -> Notice {
    let text = text.trim();
    let ends = [text.find('\n'), text.find(". ")];
    let (first, rest) = text.split_at(ends.into_iter().flatten().min().unwrap_or(text.len()));
    let rest = if first.chars().count() > TITLE { text } else { rest.trim_start_matches('.').trim() };
    let description = (!rest.is_empty()).then(|| clip(rest, CHUNK).into_owned());
    Notice::new(severity, title(first.trim_end_matches('.'))).description(description)
}

fn compaction_update(id: &str, stage: &Compaction) -> CompactionUpdate {
    let id = id.to_owned();
    match stage {
        Compaction::Started => CompactionUpdate::new(id, CompactionStatus::InProgress),
        Compaction::Done { summary, .. } => CompactionUpdate::new(id, CompactionStatus::Completed)
            .summary(vec![clip(summary, CHUNK).into_owned().into()]),
        Compaction::Failed { reason } => {
            CompactionUpdate::new(id, CompactionStatus::Failed).error(clip(reason, RAW_STRING).into_owned())
        }
        Compaction::Cancelled => CompactionUpdate::new(id, CompactionStatus::Cancelled),
    }
}

fn usage_update(usage: &Usage) -> UsageUpdate {
    let Usage { used, size, cache_read, cache_write, output, cost: _ } = *usage;
    let input = used.saturating_sub(output);
    let tokens =
        json!({ "input": input, "cacheRead": cache_read, "cacheWrite": cache_write, "output": output });
    UsageUpdate::new(used, size).meta(Meta::from_iter([(TOKENS_META.to_owned(), tokens)]))
}

fn chunks(text: &str, id: &MessageId, mut send: impl FnMut(ContentChunk)) {
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(fitting(rest, CHUNK));
        send(ContentChunk::new(piece.into()).message_id(id.clone()));
        rest = after;
    }
}

/// Titles of these kinds are Markdown, with code spans. Clients show the others as they are.
pub fn has_code_spans(kind: ToolKind) -> bool {
    !matches!(kind, ToolKind::Edit | ToolKind::Execute)
}

fn shown_title(text: &str, has_code_spans: bool, display: ClientDisplay) -> String {
    if has_code_spans && !display.markdown_titles { title(&without_code_spans(text)) } else { title(text) }
}

fn tool_call(call: &ToolCallEvent, display: ClientDisplay) -> ToolCall {
    ToolCall::new(call.id.clone(), shown_title(&call.title, has_code_spans(call.kind), display))
        .name(title(&call.name))
        .kind(call.kind)
        .locations(locations(&call.locations))
        .raw_input(Some(&call.arguments).filter(|arguments| !arguments.is_null()).map(raw_input))
        .meta(
            call.check
                .as_ref()
                .map(|id| Meta::from_iter([(CHECK_META.to_owned(), Value::from(id.as_str()))])),
        )
}

fn call_details(call: &ToolCallEvent, display: ClientDisplay) -> ToolCallUpdate {
    let whole = tool_call(call, display);
    let fields =
        ToolCallUpdateFields::new().title(whole.title).locations(whole.locations).raw_input(whole.raw_input);
    ToolCallUpdate::new(whole.tool_call_id, fields)
}

fn tool_call_update(update: &ToolCallUpdateEvent, accepted: OptionalUpdates) -> ToolCallUpdate {
    let mut fields = ToolCallUpdateFields::new().status(update.status);
    // The title of a command is repeated with its exit status.
    let display = accepted.display;
    let title = update.title.as_ref().filter(|_| update.exit_code.is_none() || !display.failed_commands);
    fields.title = title.map(|title| shown_title(&title.text, title.has_code_spans, display));
    if let Some(content) = &update.content {
        fields = fields.content(shown_content(content, accepted));
        fields.locations = changed_lines(content);
    }
    if update.exit_code.is_some() || update.status == ToolCallStatus::Failed {
        let room = RESULT.saturating_sub(json_length(&fields.content));
        fields.raw_output = raw_output(update, room);
    }
    let denied = update.denied.as_deref().map(|rule| (DENIED_META, Value::from(clip(rule, RAW_STRING))));
    let details = accepted.details.then(|| {
        [
            (CANCELLED_META, update.was_cancelled),
            (CANCELLABLE_META, update.status == ToolCallStatus::InProgress),
        ]
    });
    let details = details.into_iter().flatten().filter(|(_, is_true)| *is_true);
    let members = denied.into_iter().chain(details.map(|(key, _)| (key, Value::Bool(true))));
    let meta: Meta = members.map(|(key, value)| (key.to_owned(), value)).collect();
    ToolCallUpdate::new(update.id.clone(), fields).meta((!meta.is_empty()).then_some(meta))
}

fn json_length(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(0, |text| text.len())
}

/// The texts of a command or a failure, for clients that show no content: as much as `room` has bytes for.
fn raw_output(update: &ToolCallUpdateEvent, room: usize) -> Option<Value> {
    let texts = update.content.iter().flatten().filter_map(|content| match content.lasting() {
        ToolContent::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let texts: Vec<&str> = texts.collect();
    // The last text of a failure is its reason. Before it, the call keeps its shown content.
    let start = if update.exit_code.is_some() { 0 } else { texts.len().saturating_sub(1) };
    let text = texts[start..].join("\n");
    let mut output = json!({ "output": &text });
    let mut length = text.len();
    // Escapes take more bytes than the text.
    while json_length(&output) > room {
        length /= 2;
        if length < MIN_RAW_OUTPUT {
            return None;
        }
        output = json!({ "output": clip(&text, length) });
    }
    if let Some(code) = update.exit_code {
        output["exitCode"] = code.into();
    }
    Some(output)
}

/// Repeats the title in an update about something else: some clients take its absence for no title.
pub fn repeat_title(update: &mut Update, title: Option<&str>) {
    let (Update::Schema(schema), Some(title)) = (update, title) else { return };
    if let SessionUpdate::SessionInfoUpdate(info) = &mut **schema
        && info.title.is_undefined()
    {
        *info = SessionInfoUpdate::new().title(clip(title, RAW_STRING).into_owned()).meta(info.meta.take());
    }
}

/// Adds a display-only terminal to the announcement of a command. The client must know it before the first
/// output. A call is announced once, by [`SessionUpdate::ToolCall`].
pub fn announce_terminal(update: &mut Update, session: &SessionId, cwd: &Path) {
    let Update::Schema(schema) = update else { return };
    let SessionUpdate::ToolCall(call) = &mut **schema else { return };
    if call.kind == ToolKind::Execute {
        let id = terminal_id(session, &call.tool_call_id);
        let info = json!({ "terminal_id": id, "cwd": cwd.display().to_string() });
        call.meta.get_or_insert_default().insert("terminal_info".to_owned(), info);
    }
}

/// Adds the cost of the session so far, in billionths of a credit, to an update about usage.
pub fn set_cost(update: &mut Update, total: Option<u64>) {
    let (Update::Schema(schema), Some(total)) = (update, total) else { return };
    if let SessionUpdate::UsageUpdate(usage) = &mut **schema {
        #[expect(clippy::cast_precision_loss, reason = "more digits than a client shows")]
        let credits = total as f64 / 1e9;
        usage.cost = Some(Cost::new(credits, "credits"));
    }
}

pub fn progress(id: ToolCallId, content: &[ToolContent], accepted: OptionalUpdates) -> Update {
    let fields = ToolCallUpdateFields::new().content(shown_content(content, accepted));
    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields)).into()
}

pub fn text_content(text: &str) -> ToolCallContent {
    tool_call_content(&ToolContent::text(text))
}

/// Encodes a call with a preview. Adds a warning if the call counts as read-only merely because its MCP server
/// claims so.
pub fn call_for_permission(
    call: &ToolCallEvent,
    preview: &[ToolContent],
    claim: Option<&str>,
    accepted: OptionalUpdates,
) -> ToolCallUpdate {
    let name = &call.name;
    let mut call = tool_call(call, accepted.display);
    call.content = shown_content(preview, accepted);
    call.locations = changed_lines(preview).unwrap_or(call.locations);
    if let Some(server) = claim {
        call.content.insert(0, claim_warning(server, name).into());
        call.meta.get_or_insert_default().insert(CLAIM_META.to_owned(), Value::from(server));
    }
    call.into()
}

pub fn claim_warning(server: &str, tool: &str) -> String {
    format!(
        "The MCP server {server} claims that {tool} is read-only. Modegate cannot check the claim: the call may \
         change anything that the server can change."
    )
}

/// Encodes the content of a call, whose size the tools have limited. Operations are details.
fn shown_content(content: &[ToolContent], accepted: OptionalUpdates) -> Vec<ToolCallContent> {
    let shown = content.iter().filter(|content| match content {
        ToolContent::Operation(_) => accepted.details,
        ToolContent::Session(_) => accepted.subagents,
        _ => true,
    });
    shown.map(tool_call_content).collect()
}

pub fn tool_call_content(content: &ToolContent) -> ToolCallContent {
    match content {
        ToolContent::Operation(operation) => {
            let path = match operation {
                PathChange::Delete(path) => path,
                PathChange::Move { to, .. } | PathChange::Copy { to, .. } => to,
            };
            let meta = Meta::from_iter([(OPERATION_META.to_owned(), json!(operation))]);
            Diff::new(path.clone(), "").meta(meta).into()
        }
        ToolContent::Text(text) => text.clone().into(),
        ToolContent::Diff { path, old, new, .. } => {
            Diff::new(path.clone(), new.as_str()).old_text(old.clone()).into()
        }
        ToolContent::Block(block) => ContentBlock::clone(block).into(),
        ToolContent::Session(session) => ToolCallContent::Session(SessionReference::new(session.clone())),
        ToolContent::Terminal { id, .. } => ToolCallContent::Terminal(Terminal::new(id.clone())),
    }
}

/// The first lines of the changes; `None` if the content has none, so that the locations stay.
fn changed_lines(content: &[ToolContent]) -> Option<Vec<ToolCallLocation>> {
    let changed: Vec<Location> = content.iter().filter_map(ToolContent::location).collect();
    (!changed.is_empty()).then(|| locations(&changed))
}

fn locations(locations: &[Location]) -> Vec<ToolCallLocation> {
    let mut budget = PATHS;
    let shown = locations.iter().take(LOCATIONS).take_while(|place| {
        let remaining_budget = budget.checked_sub(place.path.as_os_str().len());
        budget = remaining_budget.unwrap_or_default();
        remaining_budget.is_some()
    });
    shown.map(|place| ToolCallLocation::new(place.path.clone()).line(place.line)).collect()
}

fn title(text: &str) -> String {
    one_line(text, TITLE)
}

fn raw_input(arguments: &Value) -> Value {
    if arguments.to_string().len() <= RAW_INPUT {
        return arguments.clone();
    }
    let mut shorter = arguments.clone();
    clip_strings(&mut shorter);
    let text = shorter.to_string();
    // A client that looks for a member finds none in a text, but the whole object would exceed the line.
    if text.len() <= RAW_INPUT { shorter } else { Value::String(clip(&text, RAW_INPUT).into_owned()) }
}

/// Cuts long strings. The parser of the arguments limits the recursion.
fn clip_strings(value: &mut Value) {
    match value {
        Value::String(text) => *text = clip(text, RAW_STRING).into_owned(),
        Value::Array(values) => values.iter_mut().for_each(clip_strings),
        Value::Object(members) => members.values_mut().for_each(clip_strings),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::SessionModeId;
    use crate::event::CallTitle;

    const LINE: usize = 60 * 1024;

    fn updates(event: &SessionEvent) -> Vec<Value> {
        let mut updates = Vec::new();
        let mode = SessionConfigOption::select(
            "mode",
            "Mode",
            "plan",
            Vec::<crate::acp::SessionConfigSelectOption>::new(),
        );
        encode(
            event,
            OptionalUpdates::default(),
            || vec![mode],
            |update| updates.push(serde_json::to_value(update).unwrap()),
        );
        updates
    }

    #[test]
    fn long_text_is_split_without_loss() {
        let text = "\u{1}é\"\u{1f600}".repeat(20_000);
        let event =
            SessionEvent::AgentText { message_id: MessageId::new("m"), text: text.clone(), shown: None };
        let updates = updates(&event);
        assert!(updates.iter().all(|update| update.to_string().len() < LINE));
        let joined: String =
            updates.iter().map(|update| update["content"]["text"].as_str().unwrap()).collect();
        assert_eq!(joined, text);
    }

    #[test]
    fn first_sentence_of_a_passing_notice_is_its_title() {
        let check = |text: &str, expected: (&str, Option<&str>)| {
            let Notice { title, description, .. } = passing_notice(text, NoticeSeverity::Info);
            assert_eq!((title.as_str(), description.as_deref()), expected);
        };
        check("Stopped.\n\n", ("Stopped", None));
        check("\nBusy. Retrying in 2.5 s.\n", ("Busy", Some("Retrying in 2.5 s.")));
        check("Two lines\n- a. b\n- c\n", ("Two lines", Some("- a. b\n- c")));
        check("Is `a.b` there? No.", ("Is `a.b` there? No", None));
        let long = format!("{}. And more.", "word ".repeat(100));
        let notice = passing_notice(&long, NoticeSeverity::Info);
        assert!(notice.title.chars().count() <= TITLE + 2, "{}", notice.title);
        assert_eq!(notice.description, Some(long));
        let large = "\u{1}é\"".repeat(100_000);
        let notice = passing_notice(&format!("Large\n{large}"), NoticeSeverity::Info);
        assert!(serde_json::to_string(&notice).unwrap().len() < LINE);
    }

    #[test]
    fn large_calls_and_results_stay_below_the_line_limit() {
        let call = SessionEvent::ToolCall(Box::new(ToolCallEvent {
            id: ToolCallId::new("c"),
            model_id: "c".into(),
            name: "n".repeat(200_000),
            title: "t\n".repeat(5000),
            kind: ToolKind::Edit,
            arguments: json!({ "path": "a", "content": "\u{1}".repeat(100_000), "more": vec!["x".repeat(5000); 100] }),
            locations: vec![Location { path: format!("/{}", "p".repeat(4000)).into(), line: None }; 20],
            is_announced: false,
            note: None,
            check: None,
        }));
        let half = "\"".repeat(10_000);
        let mut content = ToolContent::diffs("/a".as_ref(), Some(&half), &half, 1);
        content.push(ToolContent::text(&half));
        let result = SessionEvent::from(ToolCallUpdateEvent {
            status: ToolCallStatus::Failed,
            content: Some(content),
            ..ToolCallUpdateEvent::in_progress(ToolCallId::new("c"))
        });
        let output = SessionEvent::from(ToolCallUpdateEvent {
            status: ToolCallStatus::Failed,
            content: Some(vec![ToolContent::text(&"\u{1}".repeat(6000))]),
            exit_code: Some(1),
            ..ToolCallUpdateEvent::in_progress(ToolCallId::new("c"))
        });
        let denial = SessionEvent::from(ToolCallUpdateEvent {
            status: ToolCallStatus::Failed,
            denied: Some("r".repeat(100_000).into()),
            ..ToolCallUpdateEvent::in_progress(ToolCallId::new("c"))
        });
        for (event, is_cut) in [(&call, true), (&result, false), (&output, true), (&denial, true)] {
            let updates = updates(event);
            assert_eq!(updates.len(), 1);
            let update = updates[0].to_string();
            assert!(update.len() < LINE, "{}", update.len());
            assert_eq!(update.contains("more bytes are not shown"), is_cut);
        }
    }

    #[test]
    fn failed_command_is_in_the_title_for_clients_that_show_it_nowhere() {
        let event = ToolCallUpdateEvent {
            status: ToolCallStatus::Failed,
            exit_code: Some(3),
            title: Some(CallTitle::plain("exit 3 (exit 3)")),
            ..ToolCallUpdateEvent::in_progress(ToolCallId::new("c"))
        };
        for (display, title) in
            [(ClientDisplay::ALL, None), (ClientDisplay::UNKNOWN, Some("exit 3 (exit 3)".into()))]
        {
            assert_eq!(tool_call_update(&event, shown_as(display)).fields.title, title);
        }
        let denied = ToolCallUpdateEvent { exit_code: None, ..event };
        assert!(
            tool_call_update(&denied, shown_as(ClientDisplay::ALL)).fields.title.is_some(),
            "the control"
        );
    }

    fn shown_as(display: ClientDisplay) -> OptionalUpdates {
        OptionalUpdates { display, ..OptionalUpdates::default() }
    }

    #[test]
    fn failure_repeats_its_reason_alone() {
        let content = || Some(vec![ToolContent::text("the plan"), ToolContent::text("the reason")]);
        for (exit_code, output) in [(None, "the reason"), (Some(1), "the plan\nthe reason")] {
            let event = ToolCallUpdateEvent {
                exit_code,
                content: content(),
                ..ToolCallUpdateEvent::failed(ToolCallId::new("c"), "for the model")
            };
            let raw =
                tool_call_update(&event, shown_as(ClientDisplay::ALL)).fields.raw_output.unwrap_or_default();
            assert_eq!(raw["output"], output);
        }
    }

    #[test]
    fn mode_change_updates_both_the_mode_and_the_option() {
        let id = |id: &str| SessionModeId::new(id);
        let updates =
            updates(&SessionEvent::ModeChange { from: id("ask"), to: id("plan"), unconfirmed: vec![] });
        assert_eq!(
            updates[0],
            json!({ "sessionUpdate": "current_mode_update", "currentModeId": "plan", "modeId": "plan" })
        );
        assert_eq!(updates[1]["sessionUpdate"], "config_option_update");
        assert_eq!(updates[1]["configOptions"][0]["currentValue"], "plan");
        assert_eq!(updates.len(), 2);
    }
}
