//! Steering: a prompt that arrives during a turn joins the turn at its next model request.

use modegate::model::{Block, ModelEvent, ModelRequest, ModelStop};
use serde_json::{Value, json};

use crate::sessions::load::{StoreFixture, call, open, set_mode, text, turn};
use crate::support::scripted_model::{last_message, tools};
use crate::support::{Setup, TestClient, read};

/// Starts a turn whose first reply calls a tool, and sends a second prompt before the reply ends. Returns the
/// ids.
async fn steer(client: &mut TestClient, session: &str, first: ModelEvent, meta: Value) -> (i64, i64) {
    let prompt = client.prompt(session, "go").await;
    client.model.next_request(session).await;
    client.model.say(session, Ok(first));
    while client.next().await["params"]["update"]["sessionUpdate"] != "tool_call" {}
    let content = json!([{ "type": "text", "text": "and count" }]);
    let params = json!({ "sessionId": session, "prompt": content, "_meta": meta });
    let steering = client.request("session/prompt", params).await;
    // The answer to this request shows that the prompt before it was received.
    let list = client.request("session/list", json!({})).await;
    client.until_answer(list).await;
    (prompt, steering)
}

fn reply(client: &TestClient, session: &str, events: &[ModelEvent]) {
    for event in events {
        client.model.say(session, Ok(event.clone()));
    }
    client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
}

fn list() -> ModelEvent {
    call("c", "list_directory", json!({}))
}

#[tokio::test]
async fn setting_and_meta_decide_whether_a_prompt_steers() {
    for (steering, meta, joins) in [
        (true, json!({}), true),
        (true, json!({ "modegate/steer": false }), false),
        (false, json!({}), false),
        (false, json!({ "modegate/steer": true }), true),
    ] {
        let mut client = TestClient::with(Setup { steering, ..Setup::default() });
        let session = client.session().await;
        let (first, second) = steer(&mut client, &session, list(), meta.clone()).await;
        reply(&client, &session, &[]);
        let request = client.model.next_request(&session).await;
        let has_joined = last_message(&request).contains(&"text \"and count\"".to_owned());
        assert_eq!(has_joined, joins, "{steering} {meta}: {request:?}");
        reply(&client, &session, &[text("One.")]);
        client.until_answer(first).await;
        if !joins {
            reply(&client, &session, &[text("Two.")]);
        }
        let end = client.until_answer(second).await.pop().unwrap();
        assert_eq!(end["result"]["stopReason"], "end_turn", "{end}");
        assert_eq!(client.model.requests(&session).len(), if joins { 2 } else { 3 });
        client.end().await;
    }
}

#[tokio::test]
async fn cancel_of_either_prompt_ends_both() {
    for cancels_second in [false, true] {
        let mut client = TestClient::with(Setup { steering: true, ..Setup::default() });
        let session = client.session().await;
        let (first, second) = steer(&mut client, &session, list(), json!({})).await;
        reply(&client, &session, &[]);
        client.model.next_request(&session).await;
        let id = if cancels_second { second } else { first };
        client.notify("$/cancel_request", json!({ "requestId": id })).await;
        let mut messages = client.until_answer(first).await;
        messages.extend(client.until_answer(second).await);
        let is_end = |message: &&Value| message["id"] == first || message["id"] == second;
        let ends: Vec<_> = messages.iter().filter(is_end).map(|end| &end["result"]["stopReason"]).collect();
        assert_eq!(ends, ["cancelled", "cancelled"], "{messages:#?}");
        turn(&mut client, &session, "still there?", &[&[text("Yes.")]]).await;
        client.end().await;
    }
}

#[tokio::test]
async fn calls_before_a_steering_prompt_keep_their_mode() {
    let mut client = TestClient::with(Setup { mode: "plan", steering: true, ..Setup::default() });
    let session = client.session().await;
    let write = call("w", "write_file", json!({ "path": "a.txt", "content": "x" }));
    let (first, second) = steer(&mut client, &session, write, json!({})).await;
    set_mode(&mut client, &session, "code").await;
    reply(&client, &session, &[]);
    let request = client.model.next_request(&session).await;
    assert!(tools(&request).contains("write_file"), "the new mode applies to the next reply");
    assert!(last_message(&request).contains(&"text \"and count\"".to_owned()), "{request:?}");
    assert_eq!(read(&client.cwd(), "a.txt"), None);
    let again = call("v", "write_file", json!({ "path": "b.txt", "content": "x" }));
    reply(&client, &session, &[again]);
    reply(&client, &session, &[text("Done.")]);
    client.until_answer(first).await;
    client.until_answer(second).await;
    assert!(read(&client.cwd(), "b.txt").is_some(), "the control");
    client.end().await;
}

fn stable(request: &ModelRequest) -> Vec<Block> {
    let blocks = request.messages.iter().flat_map(|message| message.blocks.clone());
    blocks.filter(|block| !matches!(block, Block::Reminder(_))).collect()
}

#[tokio::test]
async fn steering_prompt_is_stored_replayed_and_undone() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "code", steering: true, ..Setup::default() });
    let session = client.session().await;
    let write = call("w", "write_file", json!({ "path": "a.txt", "content": "x" }));
    let (first, second) = steer(&mut client, &session, list(), json!({})).await;
    reply(&client, &session, &[]);
    reply(&client, &session, &[write]);
    reply(&client, &session, &[text("Done.")]);
    client.until_answer(first).await;
    client.until_answer(second).await;
    let last = stable(client.model.requests(&session).last().unwrap());
    client.end().await;

    let mut client = fixture.agent(Setup::default());
    let messages = open(&mut client, "session/load", &session).await;
    let updates = messages.iter().map(|message| &message["params"]["update"]);
    let said: Vec<_> = updates
        .filter(|update| update["sessionUpdate"] == "user_message_chunk")
        .map(|update| update["content"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["go", "and count"]);
    turn(&mut client, &session, "again", &[&[text("Yes.")]]).await;
    let next = stable(&client.model.requests(&session)[0]);
    assert_eq!(next[..last.len()], last);
    assert!(read(&client.cwd(), "a.txt").is_some());
    set_mode(&mut client, &session, "code").await;
    turn(&mut client, &session, "/undo 1", &[]).await;
    assert_eq!(read(&client.cwd(), "a.txt"), None);
    client.end().await;
}
