//! Ten thousand mixed requests over twenty sessions, sent without waiting.

use std::collections::HashMap;

use modegate::model::{ModelEvent, ModelStop};
use serde_json::{Value, json};

use crate::support::TestClient;

const SESSIONS: usize = 20;
const REQUESTS: usize = 10_000;
const MODES: [&str; 3] = ["ask", "plan", "code"];

/// The expected outcome of a request.
#[derive(Debug, Clone, PartialEq)]
enum Expected {
    Result,
    Error(i64),
    /// A mode change of the nth session.
    Mode(usize, &'static str),
}

/// Returns a pseudo-random number. The same seed gives the same numbers.
fn next(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*seed >> 33).unwrap()
}

fn request(seed: &mut u64, sessions: &[String]) -> (&'static str, Value, Expected) {
    let at = next(seed) % SESSIONS;
    let (session, mode) = (&sessions[at], MODES[next(seed) % 3]);
    let prompt = |session: &str, text: String| json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
    match next(seed) % 14 {
        10 => ("session/prompt", prompt(session, format!("/{mode}")), Expected::Mode(at, mode)),
        11 => ("session/prompt", prompt(session, "/help".into()), Expected::Result),
        12 => ("session/prompt", prompt("sess_none", "hello".into()), Expected::Error(-32002)),
        13 => ("session/new", json!({ "cwd": "relative", "mcpServers": [] }), Expected::Error(-32602)),
        0..4 => {
            ("session/set_mode", json!({ "sessionId": session, "modeId": mode }), Expected::Mode(at, mode))
        }
        4..7 => (
            "session/set_config_option",
            json!({ "sessionId": session, "configId": "mode", "value": mode }),
            Expected::Mode(at, mode),
        ),
        7 => ("session/set_mode", json!({ "sessionId": session, "modeId": "nope" }), Expected::Error(-32602)),
        8 => ("no/such/method", json!({}), Expected::Error(-32601)),
        _ => ("initialize", json!({ "protocolVersion": 1 }), Expected::Result),
    }
}

/// Takes a message. Returns true if it was an answer.
fn take(
    message: &Value,
    expected: &mut HashMap<i64, Expected>,
    sessions: &[String],
    messages: &mut [Vec<String>],
) -> bool {
    if let Some(mode) = message["params"]["update"]["currentModeId"].as_str() {
        let session = message["params"]["sessionId"].as_str().unwrap();
        let at = sessions.iter().position(|id| id == session).unwrap();
        messages[at].push(mode.to_owned());
    }
    let Some(id) = message["id"].as_i64() else { return false };
    match expected.remove(&id).unwrap_or_else(|| panic!("answered twice: {message}")) {
        Expected::Error(code) => assert_eq!(message["error"]["code"], code),
        Expected::Result | Expected::Mode(..) => assert!(message["result"].is_object(), "{message}"),
    }
    true
}

#[tokio::test]
async fn every_request_is_answered_once_and_in_order() {
    let mut client = TestClient::new();
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(client.session().await);
    }
    // Every session has a running turn, until all other requests are answered.
    let mut prompts = Vec::new();
    for session in &sessions {
        prompts.push(client.prompt(session, "wait").await);
    }
    let mut seed = 7;
    let mut expected = HashMap::new();
    let mut pending: Vec<Vec<&str>> = vec![vec!["ask"]; SESSIONS];
    let mut messages: Vec<Vec<String>> = vec![vec!["ask".into()]; SESSIONS];
    let mut answered = 0;
    // All requests are sent before the first answer is read.
    for _ in 0..REQUESTS {
        let (method, params, outcome) = request(&mut seed, &sessions);
        let id = client.request(method, params).await;
        if let Expected::Mode(at, mode) = outcome
            && pending[at].last() != Some(&mode)
        {
            pending[at].push(mode);
        }
        expected.insert(id, outcome);
    }
    while answered < REQUESTS {
        answered += usize::from(take(&client.next().await, &mut expected, &sessions, &mut messages));
    }
    assert!(expected.is_empty());
    assert_eq!(messages, pending, "modes changed in the order of the requests");
    for session in &sessions {
        client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }
    for _ in &prompts {
        let answer = client.next().await;
        assert!(prompts.contains(&answer["id"].as_i64().unwrap()));
        assert_eq!(answer["result"]["stopReason"], "end_turn");
    }
    assert_eq!(client.end().await, Vec::<Value>::new());
}
