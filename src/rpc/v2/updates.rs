//! Converts updates of version 1 to those of version 2. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{patch, responses};
use crate::acp::{
    AvailableCommandInput, CompactionStatus, ContentBlock, ContentChunk, MaybeUndefined, Meta, SessionUpdate,
    ToolCall, ToolCallLocation, ToolCallUpdate, Update, v2,
};

/// Messages of external agents need not have an id.
const UNNAMED_MESSAGE: &str = "msg_relayed";

/// A session has one plan.
const PLAN: &str = "plan";

/// Returns the updates of version 2, in order. Modes are options there, so a change of the mode alone is none.
pub(super) fn converted(update: Update) -> Vec<v2::SessionUpdate> {
    let Update::Schema(update) = update else { return Vec::new() };
    let converted = match *update {
        SessionUpdate::UserMessageChunk(chunk) => chunk_of(chunk).map(v2::SessionUpdate::UserMessageChunk),
        SessionUpdate::AgentMessageChunk(chunk) => chunk_of(chunk).map(v2::SessionUpdate::AgentMessageChunk),
        SessionUpdate::AgentThoughtChunk(chunk) => chunk_of(chunk).map(v2::SessionUpdate::AgentThoughtChunk),
        SessionUpdate::ToolCall(call) => return announced(call),
        SessionUpdate::ToolCallUpdate(update) => return changed(update),
        SessionUpdate::Plan(plan) => {
            let entries: Vec<v2::PlanEntry> = plan.entries.iter().filter_map(same_form).collect();
            let items = v2::PlanItems::new(PLAN, entries);
            Some(v2::SessionUpdate::PlanUpdate(v2::PlanUpdate::new(v2::PlanUpdateContent::Items(items))))
        }
        SessionUpdate::AvailableCommandsUpdate(update) => {
            let commands = update.available_commands.into_iter().map(|command| {
                let input = command.input.and_then(|input| match input {
                    AvailableCommandInput::Unstructured(input) => {
                        Some(v2::AvailableCommandInput::Text(v2::TextCommandInput::new(input.hint)))
                    }
                    _ => None,
                });
                let command = v2::Command::new(command.name, command.description).input(input);
                v2::AvailableCommand::Command(command)
            });
            let update = v2::AvailableCommandsUpdate::new(commands.collect());
            Some(v2::SessionUpdate::AvailableCommandsUpdate(update))
        }
        SessionUpdate::ConfigOptionUpdate(update) => {
            let options = responses::config_options(&update.config_options);
            Some(v2::SessionUpdate::ConfigOptionUpdate(v2::ConfigOptionUpdate::new(options)))
        }
        SessionUpdate::SessionInfoUpdate(update) => {
            let mut converted = v2::SessionInfoUpdate::new();
            (converted.title, converted.updated_at) = (update.title, update.updated_at);
            converted.meta = undefined_if_none(update.meta);
            Some(v2::SessionUpdate::SessionInfoUpdate(converted))
        }
        SessionUpdate::UsageUpdate(update) => {
            let mut converted = v2::UsageUpdate::new(update.used, update.size);
            converted.cost = undefined_if_none(update.cost.as_ref().and_then(same_form));
            converted.meta = undefined_if_none(update.meta);
            Some(v2::SessionUpdate::UsageUpdate(converted))
        }
        SessionUpdate::Notice(notice) => same_form::<v2::Notice>(&notice).map(v2::SessionUpdate::Notice),
        SessionUpdate::CompactionUpdate(update) => {
            let mut converted = v2::CompactionUpdate::new(update.compaction_id.0.clone());
            // Some clients need the status on each update.
            converted.status = MaybeUndefined::Value(match update.status {
                CompactionStatus::Completed => v2::CompactionStatus::Completed,
                CompactionStatus::Failed => v2::CompactionStatus::Failed,
                CompactionStatus::Cancelled => v2::CompactionStatus::Cancelled,
                _ => v2::CompactionStatus::InProgress,
            });
            if let MaybeUndefined::Value(summary) = &update.summary {
                converted.summary = MaybeUndefined::Value(summary.iter().filter_map(block).collect());
            }
            converted.error = update.error;
            Some(v2::SessionUpdate::CompactionUpdate(converted))
        }
        _ => None,
    };
    converted.into_iter().collect()
}

/// Returns the first update of a tool call, after that of the terminal that shows its output.
fn announced(call: ToolCall) -> Vec<v2::SessionUpdate> {
    let mut meta = call.meta;
    let mut updates = terminals(meta.as_mut());
    let mut converted = v2::ToolCallUpdate::new(call.tool_call_id.0);
    converted.name = undefined_if_none(call.name);
    converted.title = MaybeUndefined::Value(call.title);
    converted.kind = undefined_if_none(same_form(&call.kind));
    converted.status = undefined_if_none(same_form(&call.status));
    if !call.content.is_empty() {
        converted.content = MaybeUndefined::Value(patch::content(&call.content, &call.locations));
    }
    if !call.locations.is_empty() {
        converted.locations = MaybeUndefined::Value(locations(&call.locations));
    }
    converted.raw_input = undefined_if_none(call.raw_input);
    converted.raw_output = undefined_if_none(call.raw_output);
    converted.meta = undefined_if_none(meta.filter(|meta| !meta.is_empty()));
    updates.push(v2::SessionUpdate::ToolCallUpdate(converted));
    updates
}

/// Output of a terminal needs no update of its call.
fn changed(mut update: ToolCallUpdate) -> Vec<v2::SessionUpdate> {
    let mut updates = terminals(update.meta.as_mut());
    let converted = tool_call_update(update);
    if updates.is_empty() || converted != v2::ToolCallUpdate::new(converted.tool_call_id.clone()) {
        updates.push(v2::SessionUpdate::ToolCallUpdate(converted));
    }
    updates
}

pub(super) fn tool_call_update(update: ToolCallUpdate) -> v2::ToolCallUpdate {
    let (id, fields) = (update.tool_call_id, update.fields);
    let mut converted = v2::ToolCallUpdate::new(id.0);
    let shown_at = fields.locations.as_deref();
    converted.name = undefined_if_none(fields.name);
    converted.title = undefined_if_none(fields.title);
    converted.kind = undefined_if_none(fields.kind.as_ref().and_then(same_form));
    converted.status = undefined_if_none(fields.status.as_ref().and_then(same_form));
    let content = fields.content.map(|content| patch::content(&content, shown_at.unwrap_or_default()));
    converted.content = undefined_if_none(content);
    converted.locations = undefined_if_none(shown_at.map(locations));
    converted.raw_input = undefined_if_none(fields.raw_input);
    converted.raw_output = undefined_if_none(fields.raw_output);
    converted.meta = undefined_if_none(update.meta.filter(|meta| !meta.is_empty()));
    converted
}

/// Takes the metadata about a display-only terminal, whose updates version 2 has.
fn terminals(meta: Option<&mut Meta>) -> Vec<v2::SessionUpdate> {
    let Some(meta) = meta else { return Vec::new() };
    let mut updates = Vec::new();
    let id = |members: &Value| members["terminal_id"].as_str().unwrap_or_default().to_owned();
    if let Some(info) = meta.remove("terminal_info") {
        let mut update = v2::TerminalUpdate::new(id(&info));
        update.cwd = undefined_if_none(info["cwd"].as_str().map(Into::into));
        updates.push(v2::SessionUpdate::TerminalUpdate(update));
    }
    if let Some(output) = meta.remove("terminal_output") {
        let data = BASE64.encode(output["data"].as_str().unwrap_or_default());
        let chunk = v2::TerminalOutputChunk::new(id(&output), data);
        updates.push(v2::SessionUpdate::TerminalOutputChunk(chunk));
    }
    if let Some(exit) = meta.remove("terminal_exit") {
        let mut status = v2::TerminalExitStatus::new();
        status.exit_code = exit["exit_code"].as_i64();
        status.signal = exit["signal"].as_str().map(str::to_owned);
        let mut update = v2::TerminalUpdate::new(id(&exit));
        update.exit_status = MaybeUndefined::Value(status);
        updates.push(v2::SessionUpdate::TerminalUpdate(update));
    }
    updates
}

fn chunk_of(chunk: ContentChunk) -> Option<v2::ContentChunk> {
    let id = chunk.message_id.map_or_else(|| UNNAMED_MESSAGE.into(), |id| id.0);
    let mut converted = v2::ContentChunk::new(block(&chunk.content)?, v2::MessageId::new(id));
    converted.meta = chunk.meta;
    Some(converted)
}

/// Text, the most frequent content, takes no detour.
pub(super) fn block(block: &ContentBlock) -> Option<v2::ContentBlock> {
    match block {
        ContentBlock::Text(text) if text.annotations.is_none() && text.meta.is_none() => {
            Some(v2::ContentBlock::Text(v2::TextContent::new(text.text.as_str())))
        }
        block => same_form(block),
    }
}

/// Lines count from 1.
fn locations(locations: &[ToolCallLocation]) -> Vec<v2::ToolCallLocation> {
    let converted =
        locations.iter().map(|location| v2::ToolCallLocation::new(location.path.clone()).line(location.line));
    converted.collect()
}

fn undefined_if_none<T>(value: Option<T>) -> MaybeUndefined<T> {
    value.map_or(MaybeUndefined::Undefined, MaybeUndefined::Value)
}

/// Reads a value as a type with the same form in JSON.
pub(super) fn same_form<T: DeserializeOwned>(value: &impl Serialize) -> Option<T> {
    let value = serde_json::to_value(value).and_then(serde_json::from_value);
    value.inspect_err(|error| tracing::warn!(%error, "a value has no form in version 2 of the protocol")).ok()
}
