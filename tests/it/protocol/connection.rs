//! Connections with timing that a play cannot show: cancels of running requests, the grace period, floods,
//! and panics.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use modegate::model::{Model, ModelEvent, ModelRequest, ModelStop, Reply};
use serde_json::json;

use crate::support::{Setup, TestClient, read};

#[tokio::test]
async fn request_ids_are_returned_unchanged() {
    let mut client = TestClient::new();
    for id in ["-9223372036854775808", "0", "1.50", "\"\"", "\"1\"", "\"\\u0041\"", "null"] {
        client
            .send_line(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{{"protocolVersion":1}}}}"#
            ))
            .await;
        let answer = client.next().await;
        assert_eq!(answer["id"], serde_json::from_str::<serde_json::Value>(id).unwrap());
    }
    client.end().await;
}

#[tokio::test]
async fn turn_gets_grace_after_end_of_input() {
    for (grace, expected) in [(Duration::from_mins(1), "end_turn"), (Duration::ZERO, "cancelled")] {
        let mut client = TestClient::with(Setup { grace, ..Setup::default() });
        let session = client.session().await;
        client.prompt(&session, "go").await;
        client.model.next_request(&session).await;
        client.close_input();
        if !grace.is_zero() {
            client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        }
        let rest = client.end().await;
        assert_eq!(rest.last().unwrap()["result"]["stopReason"], expected);
    }
}

#[tokio::test]
async fn open_request_at_disconnect_is_not_consent() {
    let mut client = TestClient::with(Setup { grace: Duration::from_mins(1), ..Setup::default() });
    let cwd = client.cwd();
    let session = client.session().await;
    client.prompt(&session, "go").await;
    let arguments = json!({ "path": "a.txt", "content": "x" });
    let name = "write_file".into();
    client.model.say(&session, Ok(ModelEvent::ToolCall { id: "w".into(), name, arguments }));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    assert_eq!(client.next().await["params"]["update"]["title"], "go");
    assert_eq!(client.next().await["params"]["update"]["sessionUpdate"], "tool_call");
    assert_eq!(client.next().await["params"]["update"]["sessionUpdate"], "agent_message_chunk");
    assert_eq!(client.next().await["method"], "session/request_permission");
    client.close_input();
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let rest = client.end().await;
    assert_eq!(rest[0]["params"]["update"]["status"], "failed");
    assert_eq!(rest[1]["result"]["stopReason"], "end_turn");
    assert_eq!(read(&cwd, "a.txt"), None);
}

/// A model that panics.
struct Panics;

impl Model for Panics {
    fn reply(&self, request: ModelRequest) -> Reply {
        assert!(request.ordinal > 0, "the first reply panics, on purpose");
        stream::iter([Ok(ModelEvent::Stop(ModelStop::Done))]).boxed()
    }
}

#[tokio::test]
async fn panicking_turn_is_answered_and_session_continues() {
    let mut client = TestClient::with(Setup { model: Some(Arc::new(Panics)), ..Setup::default() });
    let session = client.session().await;
    let id = client.prompt(&session, "go").await;
    assert_eq!(client.until_answer(id).await.last().unwrap()["error"]["code"], -32603);
    let id = client.prompt(&session, "go").await;
    assert_eq!(client.until_answer(id).await.last().unwrap()["result"]["stopReason"], "end_turn");
    client.end().await;
}

#[tokio::test]
async fn unread_client_loses_nothing_and_can_cancel() {
    let mut client = TestClient::new();
    let session = client.session().await;
    let id = client.prompt(&session, "go on and on").await;
    for number in 0..5_000 {
        client.model.say(&session, Ok(ModelEvent::Text(format!("{number} "))));
    }
    // The client does not read, so the turn fills the channel and waits. The cancel is handled nevertheless.
    client.model.next_request(&session).await;
    tokio::task::yield_now().await;
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    let messages = client.until_answer(id).await;
    let (answer, updates) = messages.split_last().unwrap();
    // The first update is the session's title.
    let updates = &updates[1..];
    assert_eq!(answer["result"]["stopReason"], "cancelled");
    let text: String = updates
        .iter()
        .map(|update| update["params"]["update"]["content"]["text"].as_str().unwrap())
        .collect();
    let numbers: Vec<String> = (0..updates.len()).map(|number| format!("{number} ")).collect();
    assert_eq!(text, numbers.concat(), "what came is whole and in order");
    assert!(updates.len() < 5_000, "the cancel came before the end");
    client.end().await;
}

#[tokio::test]
async fn cancel_is_handled_during_a_flood() {
    let mut client = TestClient::new();
    let session = client.session().await;
    let prompt = client.prompt(&session, "go").await;
    client.model.next_request(&session).await;
    let mut answers = Vec::new();
    for number in 0..4_000 {
        let mode = if number % 2 == 0 { "plan" } else { "code" };
        answers
            .push(client.request("session/set_mode", json!({ "sessionId": session, "modeId": mode })).await);
    }
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    let messages = client.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    answers.retain(|id| messages.iter().all(|message| message["id"] != *id));
    let rest = client.end().await;
    assert_eq!(rest.iter().filter(|message| message["id"].is_i64()).count(), answers.len());
}

#[tokio::test]
async fn waiting_turns_do_not_block_other_sessions() {
    let mut client = TestClient::new();
    let mut waiting = Vec::new();
    for _ in 0..300 {
        let session = client.session().await;
        client.prompt(&session, "wait").await;
        client.model.next_request(&session).await;
        assert_eq!(client.next().await["params"]["update"]["title"], "wait");
        waiting.push(session);
    }
    let session = client.session().await;
    let id = client.prompt(&session, "go").await;
    client.model.say(&session, Ok(ModelEvent::Text("Here.".into())));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    assert_eq!(client.until_answer(id).await.len(), 3);
    client.end().await;
}

#[tokio::test]
async fn endless_turn_stops_at_the_request_limit() {
    let mut client = TestClient::with(Setup { mode: "plan", ..Setup::default() });
    let session = client.session().await;
    let id = client.prompt(&session, "go").await;
    for number in 0..510 {
        let (name, arguments) = ("list_directory".into(), json!({ "path": number.to_string() }));
        client.model.say(&session, Ok(ModelEvent::ToolCall { id: "t".into(), name, arguments }));
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }
    let answer = client.until_answer(id).await.pop().unwrap();
    assert_eq!(answer["result"]["stopReason"], "max_turn_requests");
    assert_eq!(client.model.requests(&session).len(), 500);
    client.end().await;
}
