//! Reads a file made with `--record`. Pure.
//!
//! Directory and session ids become placeholders that `lockstep` resolves. Lines sent during a turn keep
//! their place. Answers to write requests carry the file to write. Adjacent answers to one session follow the
//! order of its requests, because a replay runs one call at a time.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::WRITE_META;
use super::launch_options::{LaunchOptions, VERSION};
use super::normalise::is_transient;
use super::open_requests::OpenRequests;
use super::recorder::VERSION_KEY;

#[derive(Debug, Default)]
pub(super) struct Recording {
    pub options: LaunchOptions,
    pub input: String,
    pub expected: Vec<Value>,
}

#[derive(Deserialize)]
struct RecordingHeader {
    #[serde(default)]
    options: LaunchOptions,
}

pub(super) struct RecordingEntry {
    /// Line of the file, from 1.
    pub number: usize,
    /// Since the start of the recording.
    pub time: Duration,
    pub is_from_agent: bool,
    pub line: String,
}

struct NamedRequest {
    id: String,
    /// Counts the client's requests from 1.
    request: usize,
}

struct RecordedPermission {
    id: String,
    session: Value,
    write: Option<Value>,
}

struct InputLine {
    text: String,
    /// Number and session of the answered request.
    answers: Option<(usize, Value)>,
}

pub(super) type RealPath<'a> = &'a dyn Fn(&str) -> Option<String>;

/// `None` if the first line is no header. `real` finds canonical paths: the agent uses them where the client
/// uses a link.
pub(super) fn read(text: &str, real: RealPath<'_>) -> Option<Result<Recording, String>> {
    let options = match options(text)? {
        Ok(options) => options,
        Err(error) => return Some(Err(error)),
    };
    if let Some(agent) = &options.wraps {
        return Some(Err(format!(
            "it was recorded with the external agent {agent}, which a replay does not start"
        )));
    }
    Some(conversation(entries(text), real).map(|recording| Recording { options, ..recording }))
}

/// `None` if the first line is no header. Fails for an unknown version or option.
pub(super) fn options(text: &str) -> Option<Result<LaunchOptions, String>> {
    let first: Value = serde_json::from_str(text.lines().next()?).ok()?;
    let version = first.get(VERSION_KEY)?;
    if !version.as_u64().is_some_and(|version| (1..=u64::from(VERSION)).contains(&version)) {
        return Some(Err(format!("a recording of version {version}; this one knows 1 to {VERSION}")));
    }
    let header = serde_json::from_value::<RecordingHeader>(first);
    Some(header.map(|header| header.options).map_err(|error| format!("the options in its header: {error}")))
}

pub(super) fn entries(text: &str) -> impl Iterator<Item = RecordingEntry> {
    text.lines().enumerate().skip(1).filter_map(|(at, line)| {
        let entry: Value = serde_json::from_str(line).unwrap_or_default();
        let Some(line) = entry["line"].as_str() else {
            // A killed process leaves an incomplete last line.
            tracing::debug!(line = at + 1, "a line of the recording cannot be read");
            return None;
        };
        let time = Duration::from_millis(entry["ms"].as_u64().unwrap_or_default());
        Some(RecordingEntry {
            number: at + 1,
            time,
            is_from_agent: entry["dir"] != "in",
            line: line.to_owned(),
        })
    })
}

fn conversation(
    entries: impl Iterator<Item = RecordingEntry>,
    real: RealPath<'_>,
) -> Result<Recording, String> {
    let mut recording = Recording::default();
    let mut folders: Vec<String> = Vec::new();
    let mut sessions: Vec<NamedRequest> = Vec::new();
    let (mut input, mut asked) = (Vec::<InputLine>::new(), Vec::<RecordedPermission>::new());
    // `sent` counts the messages that a replay sends, too.
    let (mut requests, mut open, mut sent) = (Vec::<String>::new(), OpenRequests::default(), 0_u64);
    for RecordingEntry { is_from_agent, mut line, .. } in entries {
        let mut message: Value = serde_json::from_str(&line).unwrap_or_default();
        let id = message.get("id").map(ToString::to_string);
        let is_call = message.get("method").is_some();
        if !is_from_agent {
            note_folders(&message, real, &mut folders)?;
            if is_call && !open.is_empty() && message["params"].is_object() {
                message["params"]["_meta"]["modegate/after"] = sent.into();
                line = message.to_string();
            }
            let mut answers = None;
            match id {
                Some(id) if is_call => {
                    requests.push(id.clone());
                    open.add(id, &message);
                }
                Some(id) => {
                    if let Some(at) = asked.iter().rposition(|asked| asked.id == id) {
                        answers = Some((at, asked[at].session.clone()));
                        if let (Some(write), true) = (&asked[at].write, message.get("result").is_some()) {
                            message["result"] = json!({ "_meta": { WRITE_META: write } });
                            line = message.to_string();
                        }
                    }
                }
                None => {}
            }
            let mut text = in_any_folder(&line, &folders);
            for NamedRequest { id, request } in &sessions {
                text = text.replace(id, &format!("${{SESSION:{request}}}"));
            }
            input.push(InputLine { text, answers });
            continue;
        }
        if let (true, Some(id)) = (is_call, &id) {
            asked.push(asked_for(id.clone(), &message));
        }
        sent += u64::from(!is_transient(&message));
        if is_call {
            open.notified(&message);
        }
        if let (false, Some(id)) = (is_call, id) {
            open.answered(&id, &message);
            let request = requests.iter().rposition(|request| *request == id);
            if let (Some(session), Some(at)) = (message["result"]["sessionId"].as_str(), request) {
                sessions.push(NamedRequest { id: session.to_owned(), request: at + 1 });
            }
        }
        let message = serde_json::from_str(&in_any_folder(&line, &folders)).unwrap_or(Value::String(line));
        recording.expected.push(message);
    }
    in_order_of_requests(&mut input);
    recording.input = input.into_iter().map(|line| line.text + "\n").collect();
    Ok(recording)
}

fn asked_for(id: String, message: &Value) -> RecordedPermission {
    let params = &message["params"];
    let is_write = message["method"] == "fs/write_text_file";
    let write = is_write.then(|| json!({ "path": params["path"], "content": params["content"] }));
    RecordedPermission { id, session: params["sessionId"].clone(), write }
}

fn in_order_of_requests(input: &mut [InputLine]) {
    for end in 1..input.len() {
        for at in (1..=end).rev() {
            let (Some((before, session)), Some((after, other))) =
                (&input[at - 1].answers, &input[at].answers)
            else {
                break;
            };
            if session != other || before <= after {
                break;
            }
            input.swap(at - 1, at);
        }
    }
}

fn note_folders(message: &Value, real: RealPath<'_>, folders: &mut Vec<String>) -> Result<(), String> {
    let params = &message["params"];
    if params["additionalDirectories"].as_array().is_some_and(|more| !more.is_empty()) {
        return Err("it has sessions with additional folders, in which a replay would change files".into());
    }
    if let Some(folder) = params["cwd"].as_str().filter(|folder| folder.starts_with('/') && folder.len() > 1)
    {
        for folder in [Some(folder.to_owned()), real(folder)].into_iter().flatten() {
            let quoted = Value::from(folder).to_string();
            let quoted = quoted[1..quoted.len() - 1].to_owned();
            if !folders.contains(&quoted) {
                folders.push(quoted);
            }
        }
        // Longest first: one folder may contain another.
        folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
    }
    Ok(())
}

fn in_any_folder(line: &str, folders: &[String]) -> String {
    folders.iter().fold(line.to_owned(), |line, folder| line.replace(folder, "${CWD}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Option<Result<Recording, String>> {
        super::read(text, &|folder| (folder == "/link").then(|| "/home/me/x".to_owned()))
    }

    fn recorded(lines: &[(&str, Value)]) -> String {
        let header = json!({ "modegate_transcript": 2, "options": { "mode": "plan", "store": "memory" } });
        let line = |(dir, line): &(&str, Value)| {
            json!({ "ms": 1, "dir": dir, "line": line.to_string() }).to_string()
        };
        std::iter::once(header.to_string()).chain(lines.iter().map(line)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn ids_and_folders_become_placeholders() {
        let text = recorded(&[
            ("in", json!({ "id": 0, "method": "session/new", "params": { "cwd": "/link" } })),
            ("out", json!({ "id": 0, "result": { "sessionId": "sess_abc" } })),
            ("in", json!({ "id": "p", "method": "session/prompt", "params": { "sessionId": "sess_abc" } })),
            (
                "out",
                json!({ "method": "session/update", "params": { "update": { "sessionUpdate": "tool_call_update", "toolCallId": "c", "content": [] } } }),
            ),
            (
                "out",
                json!({ "method": "session/update", "params": { "sessionId": "sess_abc", "update": { "text": "/home/me/x/a" } } }),
            ),
            ("in", json!({ "method": "session/cancel", "params": { "sessionId": "sess_abc" } })),
        ]);
        let recording = read(&text).unwrap().unwrap();
        assert_eq!(recording.options.mode.as_deref(), Some("plan"));
        let input: Vec<Value> =
            recording.input.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(input[0]["params"]["cwd"], "${CWD}");
        assert_eq!(input[1]["params"]["sessionId"], "${SESSION:1}");
        // One answer and one update: transient updates do not count.
        assert_eq!(input[2]["params"]["_meta"]["modegate/after"], 2);
        assert_eq!(recording.expected.len(), 3);
        assert_eq!(recording.expected[2]["params"]["update"]["text"], "${CWD}/a");
    }

    #[test]
    fn responses_follow_request_order_and_include_written_files() {
        let ask = |id: i64, session: &str| json!({ "id": id, "method": "session/request_permission", "params": { "sessionId": session } });
        let write = json!({ "id": 4, "method": "fs/write_text_file", "params": { "sessionId": "a", "path": "/w/x/f", "content": "c" } });
        let answer = |id: i64| json!({ "id": id, "result": { "of": id } });
        let text = recorded(&[
            ("in", json!({ "id": 0, "method": "session/new", "params": { "cwd": "/w/x" } })),
            ("out", ask(0, "a")),
            ("out", ask(1, "a")),
            ("out", ask(2, "b")),
            ("in", answer(1)),
            ("in", answer(0)),
            ("in", answer(2)),
            ("out", ask(3, "a")),
            ("out", write),
            ("in", answer(4)),
            ("in", json!({ "method": "session/cancel", "params": { "sessionId": "a" } })),
            ("in", answer(3)),
        ]);
        let input = read(&text).unwrap().unwrap().input;
        let input: Vec<Value> = input.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let ids: Vec<&Value> = input[1..].iter().map(|line| &line["id"]).collect();
        assert_eq!(ids, [&json!(0), &json!(1), &json!(2), &json!(4), &Value::Null, &json!(3)]);
        assert_eq!(input[1], answer(0));
        let expected = json!({ "_meta": { WRITE_META: { "path": "${CWD}/f", "content": "c" } } });
        assert_eq!(input[4]["result"], expected);
    }

    #[test]
    fn unsupported_recordings_are_reported() {
        assert!(read("").is_none() && read("{}").is_none() && read("{\"id\":1}").is_none());
        let error = |text: &str| read(text).unwrap().unwrap_err();
        assert!(error(r#"{"modegate_transcript":99}"#).contains("knows 1 to 2"));
        assert!(
            error(r#"{"modegate_transcript":2,"options":{"speed":1}}"#).contains("unknown field `speed`")
        );
        assert!(error(r#"{"modegate_transcript":2,"options":{"wraps":"gemini"}}"#).contains("gemini"));
        let more = json!({ "id": 0, "method": "session/new", "params": { "cwd": "/a", "additionalDirectories": ["/b"] } });
        assert!(error(&recorded(&[("in", more)])).contains("additional folders"));
        assert!(read(r#"{"modegate_transcript":1,"agent":"0.1.0"}"#).unwrap().is_ok(), "earlier recordings");
    }
}
