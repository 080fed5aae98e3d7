//! Replays of a session in which a turn runs, and the end of sessions.

use modegate::model::{ModelEvent, ModelStop};
use serde_json::{Value, json};

use super::{ask_for_write, kinds, prompt, session, setup, until};
use crate::sessions::load::text;
use crate::support::TestClient;

#[tokio::test]
async fn live_updates_wait_for_the_end_of_a_replay() {
    let mut client = TestClient::with(setup("ask"));
    let session = session(&mut client).await;
    for number in 0..30 {
        let id = client.request("session/prompt", prompt(&session, "earlier", None)).await;
        client.until_answer(id).await;
        client.model.say(&session, Ok(text(&format!("answer {number}"))));
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        until(&mut client, "idle").await;
    }
    let id = client.request("session/prompt", prompt(&session, "now", None)).await;
    client.until_answer(id).await;
    let cwd = client.cwd();
    let open = json!({ "sessionId": session, "cwd": cwd, "replayFrom": { "type": "start" } });
    let replay = client.request("session/resume", open).await;
    for _ in 0..20 {
        client.model.say(&session, Ok(text("live ")));
    }
    let messages = client.until_answer(replay).await;
    let order = kinds(&messages);
    let end = order.iter().position(|kind| *kind == "replay_complete").unwrap();
    assert_eq!(order.iter().filter(|kind| **kind == "replay_complete").count(), 1);
    let shown = |messages: &[Value]| {
        messages.iter().map(|message| message.to_string().matches("live ").count()).sum::<usize>()
    };
    let replayed = &order[..end];
    assert_eq!(replayed[0], "user_message_chunk", "the history comes first: {order:?}");
    assert_eq!(order[order.len() - 2..], ["running", "answer"]);
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let rest = until(&mut client, "idle").await;
    assert_eq!(shown(&messages) + shown(&rest), 20, "nothing is lost or shown twice");
    client.end().await;
}

#[tokio::test]
async fn closing_cancels_the_turn_before_the_answer() {
    let mut client = TestClient::with(setup("ask"));
    let session = session(&mut client).await;
    ask_for_write(&mut client, &session).await;
    let waiting = client.request("session/prompt", prompt(&session, "next", None)).await;
    let close = client.request("session/close", json!({ "sessionId": session })).await;
    let mut messages = client.until_answer(close).await;
    let idle = messages.iter().find(|message| super::kind(message) == "idle").unwrap();
    assert_eq!(idle["params"]["update"]["stopReason"], "cancelled");
    let call = messages.iter().find(|message| message["params"]["update"]["status"] == "cancelled");
    assert!(call.is_some(), "the call of the turn ends as cancelled");
    assert!(kinds(&messages).contains(&"$/cancel_request"), "the question is withdrawn");
    if !messages.iter().any(|message| message["id"] == waiting && message.get("method").is_none()) {
        messages.extend(client.until_answer(waiting).await);
    }
    let answer = messages.iter().find(|message| message["id"] == waiting).unwrap();
    assert_eq!(answer["error"]["code"], -32800);
    assert_eq!(client.end().await, Vec::<Value>::new(), "nothing comes after the answers");
}
