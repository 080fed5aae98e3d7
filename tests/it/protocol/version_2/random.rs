//! Ten thousand random requests over twenty sessions of version 2.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use modegate::model::scripted::Scripted;
use serde_json::{Value, json};

use super::{initialize, kind, prompt, set_mode, setup};
use crate::support::{Setup, TestClient};

const SESSIONS: usize = 20;
const REQUESTS: usize = 10_000;
const MODES: [&str; 3] = ["ask", "plan", "code"];

/// Requests without an answer.
const WINDOW: usize = 40;

const SCRIPT: &str = r#"{"text": "Hello"}
{"tool_call": {"id": "r", "name": "read_file", "arguments": {"path": "a.txt"}}}
{"tool_call": {"id": "w", "name": "write_file", "arguments": {"path": "b.txt", "content": "x"}}}
{"tool_call": {"id": "t", "name": "todo", "arguments": {"items": [{"content": "Look"}]}}}
{"stop": "done"}
{"text": "Done"}
{"stop": "done"}
{"loop": true}
"#;

/// A request without an answer.
struct OpenRequest {
    method: &'static str,
    session: String,
    replays: bool,
    key: Option<String>,
}

/// A session, as the client has seen it.
#[derive(Default)]
struct SeenSession {
    ended_calls: HashSet<String>,
    open_replays: usize,
    replay_marks: usize,
    /// Kind of the last message.
    last: String,
    has_state: bool,
    messages_by_key: HashMap<String, Value>,
    inserted: HashSet<String>,
}

/// Returns a pseudo-random number. The same seed gives the same numbers.
fn next(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*seed >> 33).unwrap()
}

fn request(seed: &mut u64, session: &str, cwd: &std::path::Path) -> (&'static str, Value, Option<String>) {
    let number = next(seed);
    match next(seed) % 16 {
        0..2 => {
            let key = number.is_multiple_of(3).then(|| format!("k{}", number % 50));
            ("session/prompt", prompt(session, "go", key.as_deref()), key)
        }
        2..8 => ("session/set_config_option", set_mode(session, MODES[number % 3]), None),
        8 => ("session/set_config_option", set_mode(session, "none"), None),
        9 => ("session/resume", json!({ "sessionId": session, "cwd": cwd }), None),
        10 if number.is_multiple_of(16) => {
            let start = json!({ "type": "start" });
            ("session/resume", json!({ "sessionId": session, "cwd": cwd, "replayFrom": start }), None)
        }
        10..12 => ("session/prompt", prompt(session, "/help", None), None),
        12 => ("session/close", json!({ "sessionId": session }), None),
        13 => ("session/list", json!({ "cwd": cwd }), None),
        14 => ("tool_call/cancel", json!({ "sessionId": session, "toolCallId": "none" }), None),
        _ => ("terminal/cancel", json!({ "sessionId": session, "terminalId": "none" }), None),
    }
}

/// Error codes that the method may have here. Each request may be cancelled.
fn codes(method: &str) -> &'static [i64] {
    match method {
        // The session is closed, or the ninth prompt waits.
        "session/prompt" => &[-32002, -32600, -32800],
        // The session is closed, or another request opens or closes it.
        "session/set_config_option" | "tool_call/cancel" | "terminal/cancel" => {
            &[-32002, -32600, -32602, -32800]
        }
        "session/resume" | "session/close" => &[-32600, -32800],
        _ => &[-32800],
    }
}

#[derive(Default)]
struct Seen {
    open: HashMap<i64, OpenRequest>,
    sessions: HashMap<String, SeenSession>,
    replays: usize,
    cancelled: usize,
}

impl Seen {
    /// Takes a message. Returns an answer for the agent, if the message is a question.
    fn take(&mut self, message: &Value) -> Option<Value> {
        let session = message["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
        match message["method"].as_str() {
            Some("session/update") => self.update(&session, &message["params"]["update"], kind(message)),
            Some("session/request_permission") => {
                let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
                return Some(json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome }));
            }
            Some(_) => {}
            None => self.answer(message),
        }
        None
    }

    fn update(&mut self, session: &str, update: &Value, kind: &str) {
        let seen = self.sessions.entry(session.to_owned()).or_default();
        kind.clone_into(&mut seen.last);
        match update["sessionUpdate"].as_str().unwrap() {
            "state_update" => {
                seen.has_state = true;
                assert!(update["background"].is_array(), "{update}");
            }
            "replay_complete" => seen.replay_marks += 1,
            "user_message" => {
                seen.inserted.insert(update["messageId"].as_str().unwrap().to_owned());
            }
            "tool_call_update" => {
                let call = update["toolCallId"].as_str().unwrap().to_owned();
                let is_replay = seen.open_replays > 0;
                assert!(
                    is_replay || !seen.ended_calls.contains(&call),
                    "an update of an ended call: {update}"
                );
                if matches!(update["status"].as_str(), Some("completed" | "failed" | "cancelled")) {
                    seen.ended_calls.insert(call);
                }
            }
            _ => {}
        }
    }

    fn answer(&mut self, message: &Value) {
        let id = message["id"].as_i64().unwrap();
        let request = self.open.remove(&id).unwrap_or_else(|| panic!("answered twice: {message}"));
        let OpenRequest { method, session, replays, key } = request;
        let seen = self.sessions.entry(session).or_default();
        seen.open_replays -= usize::from(replays);
        if let Some(code) = message["error"]["code"].as_i64() {
            assert!(codes(method).contains(&code), "{method}: {message}");
            self.cancelled += usize::from(code == -32800);
            return;
        }
        match method {
            "session/resume" => {
                let is_state = matches!(seen.last.as_str(), "idle" | "running" | "requires_action");
                assert!(is_state, "the state precedes the answer, not {}", seen.last);
                if replays {
                    assert!(seen.replay_marks > 0, "{message}");
                    seen.replay_marks -= 1;
                    self.replays += 1;
                }
            }
            "session/prompt" => {
                // The state waits for the end of a replay.
                assert!(seen.has_state || seen.open_replays > 0, "a state precedes the answer");
                let message_id = &message["result"]["messageId"];
                if let Some(key) = key {
                    let first = seen.messages_by_key.entry(key).or_insert_with(|| message_id.clone());
                    assert_eq!(first, message_id, "a key names one message");
                }
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn every_request_is_answered_once_and_after_its_state() {
    let model = Arc::new(Scripted::parse(SCRIPT).unwrap());
    let setup = Setup { model: Some(model), ..setup("ask") };
    let mut client = TestClient::with(setup);
    let cwd = client.cwd();
    std::fs::write(cwd.join("a.txt"), "a\n").unwrap();
    client.call("initialize", initialize()).await;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let answer = client.call("session/new", json!({ "cwd": cwd })).await;
        sessions.push(answer["result"]["sessionId"].as_str().unwrap().to_owned());
    }
    let (mut state, mut seen) = (11, Seen::default());
    for _ in 0..REQUESTS {
        let session = &sessions[next(&mut state) % SESSIONS];
        if next(&mut state).is_multiple_of(12) {
            client.notify("session/cancel", json!({ "sessionId": session })).await;
        }
        let (method, params, key) = request(&mut state, session, &cwd);
        let replays = params["replayFrom"].is_object();
        let id = client.request(method, params).await;
        seen.sessions.entry(session.clone()).or_default().open_replays += usize::from(replays);
        seen.open.insert(id, OpenRequest { method, session: session.clone(), replays, key });
        if next(&mut state).is_multiple_of(10) {
            let cancelled = id - i64::try_from(next(&mut state) % 3).unwrap();
            client.notify("$/cancel_request", json!({ "requestId": cancelled })).await;
        }
        while seen.open.len() >= WINDOW {
            let message = client.next().await;
            if let Some(answer) = seen.take(&message) {
                client.send_line(&answer.to_string()).await;
            }
        }
    }
    while !seen.open.is_empty() {
        let message = client.next().await;
        if let Some(answer) = seen.take(&message) {
            client.send_line(&answer.to_string()).await;
        }
    }
    assert!(seen.replays > 10, "{} replays", seen.replays);
    assert!(seen.cancelled > 100, "{} cancelled requests", seen.cancelled);
    let marks: usize = seen.sessions.values().map(|session| session.replay_marks).sum();
    assert_eq!(marks, 0, "one mark for each replay");
    let inserted: usize = seen.sessions.values().map(|session| session.inserted.len()).sum();
    assert!(inserted > 100, "{inserted} prompts");
    client.close_input();
    while client.next_within(Duration::from_millis(500)).await.is_some() {}
    client.end().await;
}
