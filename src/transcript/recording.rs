//! A file that `--record` made, as a replay needs it: the options of the process, the client's lines, and what was answered.
//! Pure.
//!
//! The client's lines are played in another directory and in sessions with other ids: both are replaced by names that
//! `lockstep` resolves. What was said in the middle of a turn goes at the same place again.

use serde::Deserialize;
use serde_json::Value;

use super::normalise::is_transient;
use super::options::{LaunchOptions, VERSION};
use super::record::VERSION_KEY;

/// A recording.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// What the process was started with.
    pub options: LaunchOptions,
    /// The client's lines.
    pub input: String,
    /// The agent's messages.
    pub expected: Vec<Value>,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    options: LaunchOptions,
}

/// A session that an answer named.
struct Named {
    id: String,
    /// The number of the client's request, from 1.
    request: usize,
}

/// Reads a recording. `None` if the text is none: its first line has no header.
///
/// # Errors
/// The recording cannot be replayed; the error is a sentence.
pub(super) fn read(text: &str) -> Option<Result<Recording, String>> {
    let first: Value = serde_json::from_str(text.lines().next()?).ok()?;
    let version = first.get(VERSION_KEY)?;
    if !version.as_u64().is_some_and(|version| (1..=u64::from(VERSION)).contains(&version)) {
        return Some(Err(format!("a recording of version {version}; this one knows 1 to {VERSION}")));
    }
    let options = match serde_json::from_value::<Header>(first) {
        Ok(header) => header.options,
        Err(error) => return Some(Err(format!("the options in its header: {error}"))),
    };
    if let Some(agent) = &options.wraps {
        return Some(Err(format!(
            "it was recorded with the external agent {agent}, which a replay does not start"
        )));
    }
    Some(conversation(text.lines().skip(1)).map(|recording| Recording { options, ..recording }))
}

fn conversation<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Recording, String> {
    let mut recording = Recording::default();
    let mut folders: Vec<String> = Vec::new();
    let mut sessions: Vec<Named> = Vec::new();
    // The client's requests; which of them are open; and how much the agent has said that it says in a replay, too.
    let (mut requests, mut open, mut sent) = (Vec::<String>::new(), Vec::<String>::new(), 0_u64);
    for (at, line) in lines.enumerate() {
        let entry: Value = serde_json::from_str(line).unwrap_or_default();
        let Some(line) = entry["line"].as_str() else {
            // The end of a recording whose process was killed.
            tracing::debug!(line = at + 2, "a line of the recording cannot be read");
            continue;
        };
        let mut message: Value = serde_json::from_str(line).unwrap_or_default();
        let id = message.get("id").map(ToString::to_string);
        let is_call = message.get("method").is_some();
        let mut line = line.to_owned();
        if entry["dir"] == "in" {
            note_folders(&message, &mut folders)?;
            if is_call && !open.is_empty() && message["params"].is_object() {
                message["params"]["_meta"]["modegate/after"] = sent.into();
                line = message.to_string();
            }
            if let (true, Some(id)) = (is_call, id) {
                requests.push(id.clone());
                open.push(id);
            }
            let mut line = in_any_folder(&line, &folders);
            for Named { id, request } in &sessions {
                line = line.replace(id, &format!("${{SESSION:{request}}}"));
            }
            recording.input.push_str(&line);
            recording.input.push('\n');
            continue;
        }
        sent += u64::from(!is_transient(&message));
        if let (false, Some(id)) = (is_call, id) {
            open.retain(|open| *open != id);
            let request = requests.iter().rposition(|request| *request == id);
            if let (Some(session), Some(at)) = (message["result"]["sessionId"].as_str(), request) {
                sessions.push(Named { id: session.to_owned(), request: at + 1 });
            }
        }
        let message = serde_json::from_str(&in_any_folder(&line, &folders)).unwrap_or(Value::String(line));
        recording.expected.push(message);
    }
    Ok(recording)
}

/// Notes the working directory that a request names. Nothing is played where it was recorded.
fn note_folders(message: &Value, folders: &mut Vec<String>) -> Result<(), String> {
    let params = &message["params"];
    if params["additionalDirectories"].as_array().is_some_and(|more| !more.is_empty()) {
        return Err("it has sessions with additional folders, in which a replay would change files".into());
    }
    if let Some(folder) = params["cwd"].as_str().filter(|folder| folder.starts_with('/') && folder.len() > 1)
    {
        let quoted = Value::from(folder).to_string();
        let quoted = quoted[1..quoted.len() - 1].to_owned();
        if !folders.contains(&quoted) {
            folders.push(quoted);
            // The longest first: one folder may lie in another.
            folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
        }
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

    fn recorded(lines: &[(&str, Value)]) -> String {
        let header = json!({ "modegate_transcript": 2, "options": { "mode": "plan", "store": "memory" } });
        let line = |(dir, line): &(&str, Value)| {
            json!({ "ms": 1, "dir": dir, "line": line.to_string() }).to_string()
        };
        std::iter::once(header.to_string()).chain(lines.iter().map(line)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn ids_and_folders_get_names_and_lines_in_a_turn_keep_their_place() {
        let text = recorded(&[
            ("in", json!({ "id": 0, "method": "session/new", "params": { "cwd": "/home/me/x" } })),
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
        // The answer and one update: what is shown for the moment only is not said again.
        assert_eq!(input[2]["params"]["_meta"]["modegate/after"], 2);
        assert_eq!(recording.expected.len(), 3);
        assert_eq!(recording.expected[2]["params"]["update"]["text"], "${CWD}/a");
    }

    #[test]
    fn what_cannot_be_replayed_is_said() {
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
