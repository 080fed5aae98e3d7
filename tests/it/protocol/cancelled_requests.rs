//! `$/cancel_request` for every request of both versions: one answer, and nothing is left behind.

use std::collections::BTreeSet;
use std::sync::Arc;

use modegate::model::{ModelEvent, ModelStop};
use modegate::rpc::{dispatch, v2};
use serde_json::{Value, json};

use crate::sessions::load::{StoreFixture, text, turn};
use crate::support::{Setup, TestClient};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Version {
    One,
    Two,
}

/// The answer to a request whose cancellation comes before its work is done.
#[derive(Debug, PartialEq)]
enum Expected {
    /// Another thread may be faster than the cancellation. Then the answer is the result.
    Error,
    /// In version 1, a cancelled prompt has a stop reason.
    StopReason,
    /// The request has no wait, or has begun and cannot be undone.
    Result,
}

/// Two sessions: `open` is active, and `stored` has a history.
struct Sessions {
    open: String,
    stored: String,
}

/// Returns the parameters of a request and what cancels it.
fn request(method: &str, version: Version, cwd: &std::path::Path, sessions: &Sessions) -> (Value, Expected) {
    let Sessions { open, stored } = sessions;
    let content = json!([{ "type": "text", "text": "hello" }]);
    let stored = json!({ "sessionId": stored, "cwd": cwd, "mcpServers": [] });
    match (method, version) {
        ("initialize", Version::One) => (json!({ "protocolVersion": 1 }), Expected::Result),
        ("initialize", Version::Two) => (initialize_2(), Expected::Result),
        ("authenticate" | "auth/login", _) => (json!({ "methodId": "environment" }), Expected::Error),
        ("logout" | "auth/logout", _) => (json!({}), Expected::Result),
        ("session/new", _) => (json!({ "cwd": cwd, "mcpServers": [] }), Expected::Error),
        ("session/load" | "session/fork", _) | ("session/resume", Version::One) => (stored, Expected::Error),
        ("session/resume", Version::Two) => {
            let mut params = stored;
            params["replayFrom"] = json!({ "type": "start" });
            (params, Expected::Error)
        }
        ("session/list", _) => (json!({}), Expected::Error),
        ("session/close" | "session/delete", _) => (json!({ "sessionId": open }), Expected::Result),
        ("session/prompt", Version::One) => {
            (json!({ "sessionId": open, "prompt": content }), Expected::StopReason)
        }
        ("session/prompt", Version::Two) => {
            (json!({ "sessionId": open, "prompt": content }), Expected::Error)
        }
        ("session/set_mode", _) => (json!({ "sessionId": open, "modeId": "plan" }), Expected::Error),
        ("session/set_config_option", Version::One) => {
            (json!({ "sessionId": open, "configId": "mode", "value": "plan" }), Expected::Error)
        }
        ("session/set_config_option", Version::Two) => {
            (json!({ "sessionId": open, "configId": "mode", "type": "id", "value": "plan" }), Expected::Error)
        }
        // The control is refused: nothing with this id runs.
        ("tool_call/cancel", _) => (json!({ "sessionId": open, "toolCallId": "none" }), Expected::Error),
        ("terminal/cancel", _) => (json!({ "sessionId": open, "terminalId": "none" }), Expected::Error),
        _ => panic!("add {method}"),
    }
}

fn initialize_2() -> Value {
    json!({ "protocolVersion": 2, "info": { "name": "test", "version": "1" } })
}

/// The methods of a version that are requests.
fn methods(version: Version) -> BTreeSet<&'static str> {
    let client = TestClient::new();
    let agent = Arc::clone(&client.agent);
    let table = match version {
        Version::One => dispatch::requests(agent),
        Version::Two => v2::requests(agent),
    };
    table.method_names().collect()
}

async fn initialize(client: &mut TestClient, version: Version) {
    let params = match version {
        // Only such a client gets `logout`.
        Version::One => {
            json!({ "protocolVersion": 1, "clientCapabilities": { "auth": { "terminal": true } } })
        }
        Version::Two => initialize_2(),
    };
    let answer = client.call("initialize", params).await;
    assert!(answer["result"].is_object(), "{answer}");
}

/// Stores a session with a history.
async fn store(fixture: &StoreFixture) -> String {
    let mut client = fixture.agent(Setup::default());
    let stored = client.session().await;
    turn(&mut client, &stored, "one", &[&[text("1")]]).await;
    client.end().await;
    stored
}

/// Returns the messages until the answer of a request that comes later.
async fn until_fence(client: &mut TestClient) -> Vec<Value> {
    let fence = client.request("session/list", json!({})).await;
    client.until_answer(fence).await
}

fn answers(messages: &[Value], id: i64) -> Vec<&Value> {
    messages.iter().filter(|message| message["id"] == id && message.get("method").is_none()).collect()
}

/// Sends a request and its cancellation, so that the agent reads both before it works.
async fn request_and_cancel(client: &mut TestClient, method: &str, params: Value) -> i64 {
    let both = async {
        let id = client.request(method, params).await;
        client.notify("$/cancel_request", json!({ "requestId": id })).await;
        id
    };
    // No yield between the lines.
    tokio::task::unconstrained(both).await
}

/// Sends a request, with or without its cancellation. Returns its answer.
async fn answer(method: &str, version: Version, is_cancelled: bool) -> Value {
    let fixture = StoreFixture::new();
    let stored = store(&fixture).await;
    let mut client = fixture.agent(Setup::default());
    initialize(&mut client, version).await;
    let cwd = client.cwd();
    let opened = client.request("session/new", json!({ "cwd": cwd, "mcpServers": [] })).await;
    let open = client.until_answer(opened).await.pop().unwrap()["result"]["sessionId"].clone();
    let open = open.as_str().unwrap().to_owned();
    if version == Version::One {
        client.next().await;
    }
    let sessions = Sessions { open, stored };
    let (params, _) = request(method, version, &cwd, &sessions);
    if method == "initialize" && version == Version::Two {
        // It can be repeated only before other requests.
        client.end().await;
        client = fixture.agent(Setup::default());
    }
    let id = if is_cancelled {
        let id = request_and_cancel(&mut client, method, params).await;
        client.notify("$/cancel_request", json!({ "requestId": "unknown" })).await;
        id
    } else {
        if method == "session/prompt" {
            client.model.say(&sessions.open, Ok(ModelEvent::Stop(ModelStop::Done)));
        }
        client.request(method, params).await
    };
    let mut messages = client.until_answer(id).await;
    // A second cancellation is ignored, too.
    client.notify("$/cancel_request", json!({ "requestId": id })).await;
    messages.extend(until_fence(&mut client).await);
    let answers = answers(&messages, id);
    assert_eq!(answers.len(), 1, "{method}: {messages:?}");
    let answer = answers[0].clone();
    let has_failed = answer["error"]["code"] == -32800;
    if has_failed {
        assert_eq!(client.agent.len(), 1, "{method}: only the session that was open before");
    }
    client.close_input();
    while client.next_within(crate::support::TIMEOUT).await.is_some() {}
    client.end().await;
    // No session of the store stays owned or copied.
    let mut client = fixture.agent(Setup::default());
    initialize(&mut client, Version::One).await;
    let listed = client.call("session/list", json!({})).await;
    let listed: Vec<&str> = listed["result"]["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|session| session["sessionId"].as_str().unwrap())
        .collect();
    let copies = usize::from(!has_failed && method == "session/fork");
    let others = listed.iter().filter(|id| **id != sessions.open).count();
    assert_eq!(others, 1 + copies, "{method}: {listed:?}");
    let load = json!({ "sessionId": sessions.stored, "cwd": cwd, "mcpServers": [] });
    let id = client.request("session/load", load).await;
    let loaded = client.until_answer(id).await.pop().unwrap();
    assert!(loaded["result"].is_object(), "{method}: {loaded}");
    client.close_input();
    while client.next_within(crate::support::TIMEOUT).await.is_some() {}
    client.end().await;
    answer
}

async fn every_request_can_be_cancelled(version: Version) {
    for method in methods(version) {
        let sessions = Sessions { open: String::new(), stored: String::new() };
        let (_, expected) = request(method, version, std::path::Path::new("/"), &sessions);
        let normal = answer(method, version, false).await;
        assert_ne!(normal["error"]["code"], -32800, "the control of {method}: {normal}");
        assert_ne!(normal["result"]["stopReason"], "cancelled", "the control of {method}: {normal}");
        let mut cancelled = answer(method, version, true).await;
        for _ in 0..20 {
            if expected == Expected::Error && cancelled.get("result").is_some() {
                cancelled = answer(method, version, true).await;
            }
        }
        match expected {
            Expected::Error => assert_eq!(cancelled["error"]["code"], -32800, "{method}: {cancelled}"),
            Expected::StopReason => assert_eq!(cancelled["result"]["stopReason"], "cancelled", "{method}"),
            Expected::Result => assert!(cancelled["result"].is_object(), "{method}: {cancelled}"),
        }
    }
}

#[tokio::test]
async fn every_request_of_version_1_can_be_cancelled() {
    every_request_can_be_cancelled(Version::One).await;
}

#[tokio::test]
async fn every_request_of_version_2_can_be_cancelled() {
    every_request_can_be_cancelled(Version::Two).await;
}

#[tokio::test]
async fn cancelled_mode_change_changes_nothing() {
    for (is_cancelled, expected) in [(false, "plan"), (true, "ask")] {
        let mut client = TestClient::new();
        let session = client.session().await;
        let params = json!({ "sessionId": session, "modeId": "plan" });
        let id = if is_cancelled {
            request_and_cancel(&mut client, "session/set_mode", params).await
        } else {
            client.request("session/set_mode", params).await
        };
        client.until_answer(id).await;
        let resume = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
        let resumed = client.call("session/resume", resume).await;
        assert_eq!(resumed["result"]["modes"]["currentModeId"], expected);
        client.next().await;
        client.end().await;
    }
}

#[tokio::test]
async fn cancelled_replay_ends_in_its_middle() {
    for version in [Version::One, Version::Two] {
        let fixture = StoreFixture::new();
        let mut client = fixture.agent(Setup::default());
        let session = client.session().await;
        for number in 0..300 {
            turn(&mut client, &session, &format!("prompt {number}"), &[&[text("answer")]]).await;
        }
        client.end().await;
        for is_cancelled in [true, false] {
            let mut client = fixture.agent(Setup::default());
            initialize(&mut client, version).await;
            let mut params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
            let method = if version == Version::One { "session/load" } else { "session/resume" };
            if version == Version::Two {
                params["replayFrom"] = json!({ "type": "start" });
            }
            let id = client.request(method, params).await;
            let mut messages = vec![client.next().await];
            if is_cancelled {
                client.notify("$/cancel_request", json!({ "requestId": id })).await;
            }
            messages.extend(client.until_answer(id).await);
            let marks = messages
                .iter()
                .filter(|message| message["params"]["update"]["sessionUpdate"] == "replay_complete")
                .count();
            if is_cancelled {
                assert_eq!(messages.last().unwrap()["error"]["code"], -32800);
                assert!(messages.len() < 600, "{version:?}: {} messages", messages.len());
                assert_eq!(marks, 0);
                let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "x" }] });
                let refused = client.call("session/prompt", prompt).await;
                assert_eq!(refused["error"]["code"], -32002, "the session is closed again");
            } else {
                assert!(messages.last().unwrap()["result"].is_object());
                assert!(messages.len() > 600, "{version:?}: {} messages", messages.len());
                assert_eq!(marks, usize::from(version == Version::Two));
            }
            client.close_input();
            while client.next_within(crate::support::TIMEOUT).await.is_some() {}
            client.end().await;
        }
    }
}
