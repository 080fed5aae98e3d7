//! The short forms of the agent's messages in a play. Pure.
//!
//! A form shows every value that it does not fix. A message with another member, another order of members or
//! an unusual value has no form, and is printed as JSON. So different messages have different lines.

#[cfg(test)]
mod tests;
mod version_2;

use std::iter::Peekable;

use serde_json::{Value, json};

use super::input::SESSION;
use super::layout::Row;

const STOP_REASONS: [&str; 5] = ["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"];

/// Updates with a chunk of a message, and their forms.
pub(crate) const CHUNKS: [(&str, &str); 3] =
    [("agent_message_chunk", "text"), ("agent_thought_chunk", "thought"), ("user_message_chunk", "user")];

/// Parts of messages that most connections repeat. The short forms do not show them in full. The default matches
/// no message.
#[derive(Clone, Default)]
pub(crate) struct Standard {
    initialized: String,
    modes: String,
    options: String,
    commands: String,
    /// True for messages of version 2.
    pub(crate) is_v2: bool,
}

impl Standard {
    /// The same without parts to leave out.
    pub(crate) fn full(&self) -> Self {
        Self { is_v2: self.is_v2, ..Self::default() }
    }

    /// Takes the answers to `initialize` and `session/new` of version 2.
    pub(crate) fn version_2(initialized: &Value, session: &Value) -> Self {
        let commands = json!({ "params": { "update": session["result"] } });
        Self { is_v2: true, ..Self::new(initialized, session, &commands) }
    }

    /// Takes the answers to `initialize` and `session/new`, and the update with the commands.
    pub(crate) fn new(initialized: &Value, session: &Value, commands: &Value) -> Self {
        let mut options = session["result"]["configOptions"].clone();
        for option in options.as_array_mut().expect("a session has options") {
            option["currentValue"].take();
        }
        Self {
            initialized: initialized["result"].to_string(),
            modes: session["result"]["modes"]["availableModes"].to_string(),
            options: options.to_string(),
            commands: commands["params"]["update"]["availableCommands"].to_string(),
            is_v2: false,
        }
    }
}

/// Returns the rows of a message without its `jsonrpc` member.
pub(crate) fn rows(message: &Value, standard: &Standard) -> Vec<Row> {
    short(message, standard).unwrap_or_else(|| vec![vec![message.to_string()]])
}

fn short(message: &Value, standard: &Standard) -> Option<Vec<Row>> {
    let mut members = Members::of(message)?;
    let id = members.next("id").map(Value::to_string);
    let mut rows = if let Some(method) = members.next("method") {
        let (method, params) = (method.as_str()?, members.next("params")?);
        let known = match (&id, method) {
            (None, "session/update") => update(params, standard),
            (Some(_), "session/request_permission") if standard.is_v2 => version_2::permission(params),
            (Some(_), "session/request_permission") => permission(params),
            _ => None,
        };
        match known {
            Some(rows) => rows,
            None if method.contains('/') && is_plain(method) && params.is_object() => {
                vec![vec![method.to_owned(), params.to_string()]]
            }
            None => return None,
        }
    } else if let Some(value) = members.next("result") {
        let form = if standard.is_v2 { version_2::result(value, standard) } else { result(value, standard) };
        vec![form.unwrap_or_else(|| vec!["result".to_owned(), value.to_string()])]
    } else {
        vec![error(members.next("error")?)?]
    };
    members.end()?;
    rows[0].splice(0..0, id);
    Some(rows)
}

fn update(params: &Value, standard: &Standard) -> Option<Vec<Row>> {
    let mut params = Members::of(params)?;
    let session = session(params.next("sessionId")?)?;
    let value = params.next("update")?;
    params.end()?;
    let form = if standard.is_v2 { version_2::update(value, standard) } else { None };
    let form = form.or_else(|| known_update(value, standard));
    let mut rows = form.unwrap_or_else(|| vec![vec!["update".to_owned(), value.to_string()]]);
    rows[0].splice(0..0, session);
    Some(rows)
}

fn known_update(update: &Value, standard: &Standard) -> Option<Vec<Row>> {
    let mut members = Members::of(update)?;
    let kind = members.next("sessionUpdate")?.as_str()?;
    let row = match kind {
        "current_mode_update" => {
            let mode = members.next("currentModeId")?;
            (members.next("modeId")? == mode).then_some(vec!["mode".to_owned(), word(mode)?])?
        }
        "config_option_update" => options(members.next("configOptions")?, standard)?,
        "available_commands_update" => commands(members.next("availableCommands")?, standard)?,
        "session_info_update" => match members.next("title") {
            Some(title) => match members.next("_meta") {
                None => vec!["title".to_owned(), quoted(title)?],
                Some(meta) => {
                    let mut row = mode_switch(meta)?;
                    row.extend(["title".to_owned(), quoted(title)?]);
                    row
                }
            },
            None => mode_switch(members.next("_meta")?)?,
        },
        "tool_call" => {
            let (id, title, name) =
                (members.next("toolCallId")?, members.next("title")?, members.next("name")?);
            let mut row = vec!["call".to_owned(), word(id)?, word(name)?];
            row.extend([optional(members.next("kind"))?, quoted(title)?]);
            row.extend(target(&mut members)?);
            row
        }
        "tool_call_update" => return call_update(members),
        _ => chunk(CHUNKS.iter().find(|(known, _)| *known == kind)?.1, &mut members)?,
    };
    members.end()?;
    Some(vec![row])
}

fn chunk(name: &str, members: &mut Members<'_>) -> Option<Row> {
    let (content, id) = (members.next("content")?, word(members.next("messageId")?)?);
    let name = match members.next("_meta") {
        None => name,
        Some(meta) if name == "text" && *meta == json!({ "modegate/notice": true }) => "notice",
        Some(meta)
            if name == "text" && *meta == json!({ "modegate/notice": true, "modegate/question": true }) =>
        {
            "question"
        }
        Some(_) => return None,
    };
    Some(vec![name.to_owned(), id, text(content)?])
}

fn mode_switch(meta: &Value) -> Option<Row> {
    let mut meta = Members::of(meta)?;
    let mut switch = Members::of(meta.next("modegate/mode_switch")?)?;
    let (from, to) = (word(switch.next("from")?)?, word(switch.next("to")?)?);
    let (analysis, outcome) = (quoted(switch.next("analysis")?)?, word(switch.next("outcome")?)?);
    switch.end()?;
    meta.end()?;
    Some(vec!["mode_switch".to_owned(), from, "to".to_owned(), to, outcome, analysis])
}

/// The locations and the arguments of a call.
fn target(members: &mut Members<'_>) -> Option<Row> {
    let mut row = Row::new();
    if let Some(locations) = members.next("locations") {
        row.push("at".to_owned());
        let locations = locations.as_array()?;
        if locations.is_empty() {
            row.push("-".to_owned());
        }
        for location in locations {
            let mut location = Members::of(location)?;
            let path = word(location.next("path")?)?;
            let line = location.next("line").map(|line| format!(":{line}")).unwrap_or_default();
            location.end()?;
            row.push(path + &line);
        }
    }
    if let Some(arguments) = members.next("rawInput") {
        row.push(arguments.is_object().then(|| arguments.to_string())?);
    }
    Some(row)
}

/// The content follows in the same row, or in separate rows if there are several.
fn call_update(mut members: Members<'_>) -> Option<Vec<Row>> {
    let mut row = vec![call_id(members.next("toolCallId")?)?, word(members.next("status")?)?];
    if let Some(title) = members.next("title") {
        row.extend(["title".to_owned(), quoted(title)?]);
    }
    let mut content = members.next("content").map_or(Some(Vec::new()), contents)?;
    let texts = texts(&content);
    row.extend(target(&mut members)?);
    if let Some(output) = members.next("rawOutput") {
        row.extend(raw_output(output, &texts)?);
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

/// The texts among the rows of a content.
fn texts(content: &[Row]) -> Vec<String> {
    content.iter().filter(|row| row.len() == 1).map(|row| row[0].clone()).collect()
}

/// The exit status. The output repeats the texts of the content: all of a command's, or the last one of a failure.
fn raw_output(output: &Value, texts: &[String]) -> Option<Row> {
    let mut output = Members::of(output)?;
    let repeated = quoted(output.next("output")?)?;
    let texts: Option<Vec<String>> = texts.iter().map(|text| serde_json::from_str(text).ok()).collect();
    let texts = texts?;
    let code = output.next("exitCode");
    let first = if code.is_some() { 0 } else { texts.len().saturating_sub(1) };
    (quoted(&json!(texts[first..].join("\n")))? == repeated).then_some(())?;
    let row = code.map(|code| format!("exit={code}")).into_iter().collect();
    output.end()?;
    Some(row)
}

/// Returns a row for each content of a call: a text, or a diff with the old and the new text.
fn contents(content: &Value) -> Option<Vec<Row>> {
    let content = content.as_array()?;
    if content.is_empty() {
        return Some(vec![vec!["no".to_owned(), "content".to_owned()]]);
    }
    let row = |content: &Value| {
        let mut members = Members::of(content)?;
        let row = match members.next("type")?.as_str()? {
            "content" => vec![text(members.next("content")?)?],
            "diff" => {
                let mut row = vec!["diff".to_owned(), word(members.next("path")?)?];
                if let Some(old) = members.next("oldText") {
                    row.push(quoted(old)?);
                }
                row.extend(["->".to_owned(), quoted(members.next("newText")?)?]);
                row
            }
            _ => return None,
        };
        members.end()?;
        Some(row)
    };
    content.iter().map(row).collect()
}

fn permission(params: &Value) -> Option<Vec<Row>> {
    let mut params = Members::of(params)?;
    let mut first = session(params.next("sessionId")?)?;
    let mut call = Members::of(params.next("toolCall")?)?;
    let (id, kind) = (word(call.next("toolCallId")?)?, word(call.next("kind")?)?);
    let is_pending = call.next("status")? == "pending";
    let (title, name) = (quoted(call.next("title")?)?, optional(call.next("name"))?);
    first.extend(["permission".to_owned(), id, name, kind, title]);
    let content = call.next("content").map_or(Some(Vec::new()), contents)?;
    first.extend(target(&mut call)?);
    call.end()?;
    let mut rows = vec![is_pending.then_some(first)?];
    rows.extend(content);
    rows.extend(permission_options(params.next("options")?)?);
    params.end()?;
    Some(rows)
}

fn permission_options(options: &Value) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    for option in options.as_array()? {
        let mut option = Members::of(option)?;
        let (id, name) = (word(option.next("optionId")?)?, quoted(option.next("name")?)?);
        let kind = word(option.next("kind")?)?;
        option.end()?;
        let mut row = vec!["-".to_owned(), id.clone(), name];
        if kind != id {
            row.push(format!("({kind})"));
        }
        rows.push(row);
    }
    Some(rows)
}

/// Compares bytes, because the order of members counts.
fn has_text(value: &Value, json: &str) -> bool {
    let text = value.to_string();
    text == json
}

fn result(value: &Value, standard: &Standard) -> Option<Row> {
    if has_text(value, &standard.initialized) {
        return Some(vec!["initialized".to_owned()]);
    }
    let mut members = Members::of(value)?;
    let mut row = Row::new();
    if let Some(reason) = members.next("stopReason") {
        let known = STOP_REASONS.iter().find(|known| *reason == **known)?;
        row.push((*known).to_owned());
    }
    if let Some(session) = members.next("sessionId") {
        row.extend(["session".to_owned(), word(session)?]);
    }
    if let Some(modes) = members.next("modes") {
        let mut modes = Members::of(modes)?;
        row.extend(["mode".to_owned(), word(modes.next("currentModeId")?)?]);
        has_text(modes.next("availableModes")?, &standard.modes).then_some(())?;
        modes.end()?;
    }
    if let Some(value) = members.next("configOptions") {
        row.extend(options(value, standard)?);
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

/// Returns the length of the audit log and the effect of a mode change, without the effect's empty lists.
fn meta(value: &Value) -> Option<Row> {
    let mut members = Members::of(value)?;
    let mut row = Row::new();
    if let Some(head) = members.next("modegate/head") {
        let mut head = Members::of(head)?;
        row.push(format!("head={}", head.next("length")?));
        (head.next("hash")? == "$hash").then_some(())?;
        head.end()?;
    }
    if let Some(effect) = members.next("modegate/effect") {
        let mut effect = Members::of(effect)?;
        row.push(format!("applies={}", word(effect.next("applies")?)?));
        for name in ["ended", "unconfirmed", "closedRequests"] {
            let list = effect.next(name)?;
            if *list != json!([]) {
                row.push(format!("{name}={list}"));
            }
        }
        effect.end()?;
    }
    members.end()?;
    (!row.is_empty()).then_some(row)
}

/// Returns the row of an error whose details repeat its message.
fn error(value: &Value) -> Option<Row> {
    let mut members = Members::of(value)?;
    let (code, message) = (members.next("code")?.to_string(), members.next("message")?);
    let mut data = members.next("data")?.as_object()?.clone();
    members.end()?;
    (data.keys().next_back()? == "details").then_some(())?;
    (data.shift_remove("details")? == *message).then_some(())?;
    let mut row = vec!["error".to_owned(), code, quoted(message)?];
    if !data.is_empty() {
        row.push(Value::Object(data).to_string());
    }
    Some(row)
}

fn options(value: &Value, standard: &Standard) -> Option<Row> {
    let mut rest = value.clone();
    let mut row = vec!["options".to_owned()];
    for option in rest.as_array_mut()? {
        let current = option.get_mut("currentValue")?.take();
        let id = option.get("id").or_else(|| option.get("configId"))?;
        row.push(format!("{}={}", word(id)?, word(&current)?));
    }
    has_text(&rest, &standard.options).then_some(row)
}

fn commands(value: &Value, standard: &Standard) -> Option<Row> {
    has_text(value, &standard.commands).then_some(())?;
    let names = value.as_array()?.iter().map(|command| word(&command["name"]));
    [Some("commands".to_owned())].into_iter().chain(names).collect()
}

/// Returns nothing for the first session, and the id of any other.
fn session(id: &Value) -> Option<Row> {
    let word = word(id)?;
    if word == SESSION {
        return Some(Row::new());
    }
    word.starts_with("sess_").then(|| vec![word])
}

/// Returns the id if it has the usual prefix. At the beginning of a line, another id could look like a form.
fn call_id(id: &Value) -> Option<String> {
    word(id).filter(|id| id.starts_with("call_"))
}

fn text(content: &Value) -> Option<String> {
    let mut members = Members::of(content)?;
    let is_text = members.next("type")? == "text";
    let text = quoted(members.next("text")?)?;
    members.end()?;
    is_text.then_some(text)
}

fn optional(value: Option<&Value>) -> Option<String> {
    value.map_or(Some("-".to_owned()), word)
}

/// Returns a string, without quotes if it is a plain word.
fn word(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    Some(if is_plain(text) { text.to_owned() } else { value.to_string() })
}

fn quoted(value: &Value) -> Option<String> {
    value.is_string().then(|| value.to_string())
}

fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./$".contains(c))
        && text.contains(|c: char| c.is_ascii_alphanumeric())
}

/// The members of an object, read in their order.
struct Members<'a>(Peekable<serde_json::map::Iter<'a>>);

impl<'a> Members<'a> {
    fn of(value: &'a Value) -> Option<Self> {
        Some(Self(value.as_object()?.iter().peekable()))
    }

    /// Takes the next member if it has this name.
    fn next(&mut self, name: &str) -> Option<&'a Value> {
        self.0.next_if(|(next, _)| *next == name).map(|(_, value)| value)
    }

    /// Returns `None` if a member is left.
    fn end(&mut self) -> Option<()> {
        self.0.next().is_none().then_some(())
    }
}
