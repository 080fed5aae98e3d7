//! The short forms of messages of version 2. Other messages have the form of version 1, or none.

use serde_json::{Value, json};

use super::{
    CHUNKS, Members, Standard, commands, has_text, meta, optional, options, quoted, raw_output, session,
    target, text, texts, word,
};
use crate::protocol::plays::layout::Row;

pub(super) fn update(update: &Value, standard: &Standard) -> Option<Vec<Row>> {
    let mut members = Members::of(update)?;
    let kind = members.next("sessionUpdate")?.as_str()?;
    let row = match kind {
        "state_update" => state(&mut members)?,
        "user_message" => {
            let mut row = vec![kind.to_owned(), word(members.next("messageId")?)?];
            for block in members.next("content")?.as_array()? {
                row.push(text(block)?);
            }
            row
        }
        "replay_complete" => vec![kind.to_owned()],
        "config_option_update" => options(members.next("configOptions")?, standard)?,
        "available_commands_update" => commands(members.next("availableCommands")?, standard)?,
        "tool_call_update" => return call_update(members),
        _ => {
            let (_, name) = CHUNKS.iter().find(|(known, _)| *known == kind)?;
            let id = word(members.next("messageId")?)?;
            let content = text(members.next("content")?)?;
            let name = match members.next("_meta") {
                None => name,
                Some(meta) if *meta == json!({ "modegate/notice": true }) => "notice",
                Some(meta) if *meta == json!({ "modegate/notice": true, "modegate/question": true }) => {
                    "question"
                }
                Some(_) => return None,
            };
            vec![name.to_owned(), id, content]
        }
    };
    members.end()?;
    Some(vec![row])
}

fn state(members: &mut Members<'_>) -> Option<Row> {
    let mut row = vec![word(members.next("state")?)?];
    if let Some(reason) = members.next("stopReason") {
        row.push(word(reason)?);
    }
    let background = members.next("background")?;
    if *background != json!([]) {
        row.push(format!("background={background}"));
    }
    if let Some(value) = members.next("_meta") {
        row.extend(meta(value)?);
    }
    Some(row)
}

/// The first update of a call has its name. The content follows in the same row, or in separate rows if there are
/// several.
fn call_update(mut members: Members<'_>) -> Option<Vec<Row>> {
    let id = word(members.next("toolCallId")?)?;
    if let Some(name) = members.next("name") {
        let mut row = vec!["call".to_owned(), id, word(name)?];
        let title = quoted(members.next("title")?)?;
        row.extend([optional(members.next("kind"))?, title]);
        (members.next("status")? == "pending").then_some(())?;
        row.extend(target(&mut members)?);
        members.end()?;
        return Some(vec![row]);
    }
    let mut row = vec![id.starts_with("call_").then_some(id)?];
    let title = members.next("title").map(quoted);
    row.push(word(members.next("status")?)?);
    if let Some(title) = title {
        row.extend(["title".to_owned(), title?]);
    }
    let mut content = members.next("content").map_or(Some(Vec::new()), contents)?;
    let texts = texts(&content);
    row.extend(target(&mut members)?);
    if let Some(output) = members.next("rawOutput") {
        row.extend(raw_output(output, &texts)?);
    }
    if let Some(capabilities) = members.next("capabilities") {
        let name = if capabilities.is_null() { "no_cancel" } else { "cancel" };
        (capabilities.is_null() || *capabilities == json!({ "cancel": {} })).then_some(())?;
        row.push(name.to_owned());
    }
    if let Some(meta) = members.next("_meta") {
        let mut meta = Members::of(meta)?;
        row.push(format!("denied={}", word(meta.next("modegate/denied")?)?));
        meta.end()?;
    }
    members.end()?;
    if content.len() == 1 {
        row.append(&mut content.remove(0));
    }
    content.insert(0, row);
    Some(content)
}

/// Returns a row for each content of a call: a text, or the git patch of one file.
fn contents(content: &Value) -> Option<Vec<Row>> {
    let row = |content: &Value| {
        let mut members = Members::of(content)?;
        let row = match members.next("type")?.as_str()? {
            "content" => vec![text(members.next("content")?)?],
            "diff" => {
                let [change] = members.next("changes")?.as_array()?.as_slice() else { return None };
                let mut change = Members::of(change)?;
                (change.next("fileType")? == "text").then_some(())?;
                let operation = word(change.next("operation")?)?;
                let path = word(change.next("path")?)?;
                change.end()?;
                let mut git = Members::of(members.next("patch")?)?;
                (git.next("format")? == "git_patch").then_some(())?;
                let patched = quoted(git.next("text")?)?;
                git.end()?;
                vec!["diff".to_owned(), operation, path, patched]
            }
            _ => return None,
        };
        members.end()?;
        Some(row)
    };
    content.as_array()?.iter().map(row).collect()
}

pub(super) fn permission(params: &Value) -> Option<Vec<Row>> {
    let mut params = Members::of(params)?;
    let mut first = session(params.next("sessionId")?)?;
    let question = params.next("title")?;
    let mut subject = Members::of(params.next("subject")?)?;
    (subject.next("type")? == "tool_call").then_some(())?;
    let mut call = Members::of(subject.next("toolCall")?)?;
    subject.end()?;
    let id = word(call.next("toolCallId")?)?;
    let name = optional(call.next("name"))?;
    let title = call.next("title")?;
    (title == question).then_some(())?;
    let kind = word(call.next("kind")?)?;
    (call.next("status")? == "pending").then_some(())?;
    first.extend(["permission".to_owned(), id, name, kind, quoted(title)?]);
    let content = call.next("content").map_or(Some(Vec::new()), contents)?;
    first.extend(target(&mut call)?);
    call.end()?;
    let mut rows = vec![first];
    rows.extend(content);
    rows.extend(super::permission_options(params.next("options")?)?);
    params.end()?;
    Some(rows)
}

pub(super) fn result(value: &Value, standard: &Standard) -> Option<Row> {
    if has_text(value, &standard.initialized) {
        return Some(vec!["initialized".to_owned()]);
    }
    let mut members = Members::of(value)?;
    let mut row = Row::new();
    if let Some(id) = members.next("messageId") {
        row.extend(["message".to_owned(), word(id)?]);
    }
    if let Some(session) = members.next("sessionId") {
        row.extend(["session".to_owned(), word(session)?]);
    }
    if let Some(value) = members.next("configOptions") {
        row.extend(options(value, standard)?);
    }
    if let Some(value) = members.next("availableCommands") {
        row.extend(commands(value, standard)?);
    }
    if row.is_empty() {
        row.push("ok".to_owned());
    }
    if let Some(value) = members.next("_meta") {
        row.extend(meta(value)?);
    }
    members.end()?;
    Some(row)
}
