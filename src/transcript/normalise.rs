//! Removes from the agent's messages what differs in every run, and nothing else. Session ids, and hashes in
//! `_meta` that cover ids or times, are numbered in the order of their appearance. Times and request ids
//! become placeholders, chunks of one message are joined, and transient updates are dropped. Pure.

use std::collections::HashMap;

use serde_json::Value;

#[derive(Debug, PartialEq)]
pub(super) struct NormalisedMessage {
    pub number: usize,
    /// Messages of one lane keep their order, even if lanes run concurrently.
    pub lane: String,
    pub value: Value,
}

/// Without `with_model`, drops the options that name the model.
pub(super) fn normalise(messages: &[Value], with_model: bool) -> Vec<NormalisedMessage> {
    let mut names = NormalisedNames { with_model, ..NormalisedNames::default() };
    let mut normalised: Vec<NormalisedMessage> = Vec::new();
    for (at, value) in messages.iter().enumerate() {
        if is_transient(value) {
            continue;
        }
        let mut value = value.clone();
        names.message(&mut value);
        let lane = lane(&value);
        if let Some(text) = piece(&value)
            && let Some(last) = normalised.iter_mut().rev().find(|message| message.lane == lane)
            && let Some(so_far) = piece(&last.value)
        {
            last.value["params"]["update"]["content"]["text"] = format!("{so_far}{text}").into();
            continue;
        }
        normalised.push(NormalisedMessage { number: at + 1, lane, value });
    }
    normalised
}

/// True for interim output of a call, which a replay does not send.
pub(super) fn is_transient(message: &Value) -> bool {
    let update = &message["params"]["update"];
    update["sessionUpdate"] == "tool_call_update"
        && update.get("status").is_none()
        && update.get("title").is_none()
        && update.get("rawInput").is_none()
}

fn piece(message: &Value) -> Option<&str> {
    let update = &message["params"]["update"];
    update["sessionUpdate"].as_str().filter(|kind| kind.ends_with("_chunk"))?;
    update["messageId"].as_str()?;
    update["content"]["text"].as_str()
}

/// Options that depend on the model.
const MODEL_OPTIONS: [&str; 2] = ["model", "reasoning_effort"];

fn lane(message: &Value) -> String {
    let params = &message["params"];
    let session = value_text(&params["sessionId"]);
    match message["method"].as_str() {
        None => format!("answer {}", message["id"]),
        Some("session/update") => {
            let update = &params["update"];
            let kind = value_text(&update["sessionUpdate"]);
            match (&update["toolCallId"], &update["messageId"]) {
                (Value::String(call), _) => format!("{session} call {call}"),
                (_, Value::String(id)) => format!("{session} {kind} {id}"),
                // Sent concurrently with other messages.
                _ if kind == "available_commands_update" => format!("{session} commands"),
                _ => format!("{session} state"),
            }
        }
        Some(method) => match asked_call(params) {
            Value::String(call) => format!("{session} call {call}"),
            _ => format!("{session} {method}"),
        },
    }
}

/// The id of the call that a question is about, in either version of the protocol.
fn asked_call(params: &Value) -> &Value {
    match &params["toolCall"] {
        Value::Null => &params["subject"]["toolCall"]["toolCallId"],
        call => &call["toolCallId"],
    }
}

fn value_text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[derive(Default)]
struct NormalisedNames {
    with_model: bool,
    sessions: HashMap<String, usize>,
    folders: HashMap<String, usize>,
    hashes: HashMap<String, usize>,
    /// Method and tool call by request id.
    requests: HashMap<String, String>,
}

impl NormalisedNames {
    fn message(&mut self, message: &mut Value) {
        self.value("", message, false);
        let is_call = message.get("method").is_some();
        if is_call && let Some(id) = message.get("id").map(ToString::to_string) {
            // All sessions share one counter, so ids depend on timing.
            let about = format!("{} {}", message["method"], asked_call(&message["params"]));
            message["id"] = "${REQUEST}".into();
            self.requests.insert(id, about);
        }
        if message["method"] == "$/cancel_request"
            && let Some(about) = self.requests.get(&message["params"]["requestId"].to_string())
        {
            message["params"]["requestId"] = about.as_str().into();
        }
    }

    fn value(&mut self, key: &str, value: &mut Value, is_meta: bool) {
        match value {
            Value::String(text) => self.text(key, text, is_meta),
            Value::Array(values) => {
                if key == "configOptions" && !self.with_model {
                    values.retain(|option| {
                        !MODEL_OPTIONS.iter().any(|id| option["id"] == *id || option["configId"] == *id)
                    });
                }
                for value in values {
                    self.value(key, value, is_meta);
                }
            }
            Value::Object(members) => {
                for (key, value) in members {
                    self.value(key, value, is_meta || key.starts_with("modegate/"));
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn text(&mut self, key: &str, text: &mut String, is_meta: bool) {
        if is_meta && text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let next = self.hashes.len() + 1;
            let number = *self.hashes.entry(std::mem::take(text)).or_insert(next);
            *text = format!("${{HASH:{number}}}");
        } else if key == "updatedAt" && text.contains('T') && text.ends_with('Z') {
            *text = "${TIME}".into();
        } else if let (true, Some((_, id))) = (key == "nextCursor", text.split_once('/')) {
            *text = self.count(&format!("${{TIME}}/{id}"));
        } else {
            *text = replaced(&self.count(text), "(", memory_times, |_| "(${TIME}".into());
        }
    }

    fn count(&mut self, text: &str) -> String {
        let text = replaced(text, "sess_", session_id, |id| {
            let next = self.sessions.len() + 1;
            format!("${{SESSION:{}}}", self.sessions.entry(id.to_owned()).or_insert(next))
        });
        replaced(&text, "modegate-", output_folder, |id| {
            let next = self.folders.len() + 1;
            format!("${{FOLDER:{}}}", self.folders.entry(id.to_owned()).or_insert(next))
        })
    }
}

/// Replaces each part that begins with `start`, has the length that `length` returns, and is one of its kind.
fn replaced(
    text: &str,
    start: &str,
    length: fn(&str) -> Option<usize>,
    mut name: impl FnMut(&str) -> String,
) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(start) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let part = length(from);
        let (part, after) = from.split_at(part.unwrap_or(start.len()));
        out.push_str(&if length(from).is_some() { name(part) } else { part.to_owned() });
        rest = after;
    }
    out + rest
}

fn session_id(text: &str) -> Option<usize> {
    let start = "sess_".len();
    let end = text[start..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(text.len(), |end| start + end);
    (end > start).then_some(end)
}

/// A folder for the output of commands: `modegate-` and a UUID.
fn output_folder(text: &str) -> Option<usize> {
    let end = "modegate-".len() + 36;
    let id = text.get("modegate-".len()..end)?;
    id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-').then_some(end)
}

/// The times behind the id of a memory: `(2026-11-22 10:00:00, changed 2026-11-23 10:00:00): `.
fn memory_times(text: &str) -> Option<usize> {
    const TIME: &str = "0000-00-00 00:00:00";
    let after_time = |text: &str, at: usize| {
        let time = text.get(at..at + TIME.len())?.bytes();
        let is_time = time.zip(TIME.bytes()).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            form => byte == form,
        });
        is_time.then_some(at + TIME.len())
    };
    let created = after_time(text, 1)?;
    let end = match text[created..].strip_prefix(", changed ") {
        Some(_) => after_time(text, created + ", changed ".len())?,
        None => created,
    };
    text[end..].starts_with("): ").then_some(end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values(messages: &[Value]) -> Vec<Value> {
        normalise(messages, true).into_iter().map(|message| message.value).collect()
    }

    #[test]
    fn only_ids_hashes_and_times_are_normalised() {
        let hash = |digit: &str| digit.repeat(64);
        let head = |id: i64, hash: String| json!({ "id": id, "result": { "_meta": { "modegate/head": { "length": 3, "hash": hash } } } });
        let messages = [
            json!({ "id": 1, "result": { "sessionId": "sess_b", "parent": "sess_a" } }),
            head(2, hash("a")),
            head(3, hash("b")),
            head(4, hash("a")),
            json!({ "id": 5, "result": { "updatedAt": "2026-11-22T10:00:00Z", "text": hash("a"), "updated": 7 } }),
        ];
        let expected = [
            json!({ "id": 1, "result": { "sessionId": "${SESSION:1}", "parent": "${SESSION:2}" } }),
            head(2, "${HASH:1}".into()),
            head(3, "${HASH:2}".into()),
            head(4, "${HASH:1}".into()),
            json!({ "id": 5, "result": { "updatedAt": "${TIME}", "text": hash("a"), "updated": 7 } }),
        ];
        assert_eq!(values(&messages), expected);
    }

    #[test]
    fn folders_of_outputs_and_times_of_memories_are_normalised() {
        let id = |digit: &str| format!("{}-0000-7000-8000-{}", digit.repeat(8), digit.repeat(12));
        let texts = |texts: &[String]| values(&[json!({ "texts": texts })])[0]["texts"].clone();
        let path = |digit: &str| format!("/tmp/modegate-{}/output_1.txt", id(digit));
        let named = texts(&[path("a"), path("b"), path("a"), "/tmp/modegate-x/output_1.txt".into()]);
        let folder = |number: i64| format!("/tmp/${{FOLDER:{number}}}/output_1.txt");
        assert_eq!(named, json!([folder(1), folder(2), folder(1), "/tmp/modegate-x/output_1.txt"]));
        let (first, second) = ("2026-11-22 10:00:00", "2026-11-23 10:00:00");
        let named = texts(&[
            format!("m1 [x] ({first}): a (b)\nm2 ({first}, changed {second}): c\n"),
            format!("({first})"),
        ]);
        assert_eq!(named, json!(["m1 [x] (${TIME}): a (b)\nm2 (${TIME}): c\n", format!("({first})")]));
    }

    #[test]
    fn chunks_are_joined_and_transient_updates_omitted() {
        let update = |update: Value| json!({ "method": "session/update", "params": { "sessionId": "sess_a", "update": update } });
        let chunk = |id: &str, text: &str| {
            update(
                json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text }, "messageId": id }),
            )
        };
        let call = |status: Option<&str>| {
            update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": status }))
        };
        let mut progress = call(None);
        progress["params"]["update"].as_object_mut().unwrap().remove("status");
        let messages = [
            chunk("m", "a"),
            chunk("m", "b"),
            call(Some("in_progress")),
            progress,
            call(Some("completed")),
            chunk("n", "c"),
        ];
        let values = values(&messages);
        assert_eq!(values.len(), 4);
        assert_eq!(values[0]["params"]["update"]["content"]["text"], "ab");
        assert_eq!(values[2]["params"]["update"]["status"], "completed");
        assert_eq!(values[3]["params"]["update"]["content"]["text"], "c");
    }
}
