//! Replies that break off. The request is repeated, nothing of the reply runs, and the history marks its
//! text.

use std::time::Duration;

use modegate::model::{Block, Failure, ModelError, ModelEvent, ModelRequest, ModelStop};
use serde_json::{Value, json};

use crate::models::http_server::Reply;
use crate::models::providers::wires;
use crate::models::remote::{asking, shown};
use crate::models::{invariants, provider_streams};
use crate::sessions::load::{StoreFixture, call, open, text, turn};
use crate::support::{Setup, read};

const MARK: &str = "Your reply above broke off.";

/// Returns beginnings of a stream. Each has one more frame than the one before, and none is complete.
fn beginnings(id: &str, stream: &[u8]) -> Vec<String> {
    let stream = std::str::from_utf8(stream).unwrap();
    let end = if id == "ollama" { "\n" } else { "\n\n" };
    let frames: Vec<&str> = stream.split_inclusive(end).collect();
    let last = frames.iter().position(|frame| ends_a_reply(frame)).unwrap();
    (1..=last).map(|count| frames[..count].concat()).collect()
}

fn ends_a_reply(frame: &str) -> bool {
    ["message_delta", "finish_reason\":\"", "response.completed", "finishReason\":\"", "\"done\":true"]
        .iter()
        .any(|end| frame.contains(end))
}

/// Every provider's stream breaks at every frame, after thoughts, text and calls.
#[tokio::test]
async fn reply_that_breaks_off_is_requested_again() {
    for (id, ..) in wires() {
        let write = [("c1", "write_file", json!({ "path": "a.txt", "content": "x" }))];
        let whole = provider_streams::reply(id, "I write it.", &write);
        for (number, beginning) in beginnings(id, &whole).into_iter().enumerate() {
            let at = format!("{id}, after {} frames", number + 1);
            let replies = [beginning.into_bytes(), whole.clone(), provider_streams::text(id, "Done.")];
            let (mut agent, server) =
                asking(id, Setup { mode: "code", ..Setup::default() }, replies.map(Reply::stream)).await;
            let session = agent.session().await;
            let prompt = agent.prompt(&session, "write").await;
            let mut messages = vec![agent.next().await];
            while messages.last().unwrap()["id"] != prompt {
                messages.push(agent.next().await);
                if messages.last().unwrap().to_string().contains("Retrying in 0.5 s") {
                    skip(Duration::from_millis(500)).await;
                }
            }
            assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn", "{at}: {messages:#?}");
            assert!(shown(&messages).ends_with("I write it.\n\nDone."), "{at}: {messages:#?}");
            assert_eq!(shown(&messages).matches("Retrying").count(), 1, "{at}: {messages:#?}");
            assert_eq!(read(&agent.cwd(), "a.txt").as_deref(), Some("x"), "{at}");
            assert_eq!(unfinished(&messages), Vec::<Value>::new(), "{at}: {messages:#?}");
            let requests = server.requests();
            assert_eq!(requests.len(), 3, "{at}");
            for request in &requests {
                invariants::check(id, &request.body());
            }
            let first = shown(&messages).split("Retrying").next().unwrap().contains("I write it.");
            assert_eq!(requests[1].text.contains(MARK), first, "{at}: {}", requests[1].text);
            agent.end().await;
        }
    }
}

/// Advances the paused clock.
async fn skip(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Returns the calls without an end.
fn unfinished(messages: &[Value]) -> Vec<Value> {
    let updates: Vec<&Value> = messages.iter().map(|message| &message["params"]["update"]).collect();
    let ended = |id: &Value| {
        let is_end = |update: &&&Value| {
            update["toolCallId"] == *id && ["completed", "failed"].iter().any(|end| update["status"] == *end)
        };
        updates.iter().filter(is_end).count() == 1
    };
    let calls = updates.iter().filter(|update| update["sessionUpdate"] == "tool_call");
    calls.map(|call| call["toolCallId"].clone()).filter(|id| !ended(id)).collect()
}

fn broken() -> ModelError {
    ModelError { failure: Failure::Interrupted { wait: Duration::ZERO }, text: "the line is cut".into() }
}

fn blocks(request: &ModelRequest) -> Vec<Block> {
    let blocks = request.messages.iter().flat_map(|message| message.blocks.clone());
    blocks.filter(|block| !matches!(block, Block::Reminder(_))).collect()
}

#[tokio::test]
async fn mark_of_a_broken_reply_survives_a_reload() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "code", ..Setup::default() });
    let session = client.session().await;
    for event in [text("Half"), call("c", "list_directory", json!({}))] {
        client.model.say(&session, Ok(event));
    }
    client.model.say(&session, Err(broken()));
    turn(&mut client, &session, "go", &[&[text("Whole.")]]).await;
    let last = blocks(client.model.requests(&session).last().unwrap());
    assert!(
        matches!(&last[..], [_, Block::Text(half), Block::Note(note)] if half == "Half" && note.contains(MARK)),
        "{last:?}"
    );
    client.end().await;

    let mut client = fixture.agent(Setup::default());
    open(&mut client, "session/load", &session).await;
    turn(&mut client, &session, "again", &[&[text("Yes.")]]).await;
    let reloaded = blocks(&client.model.requests(&session)[0]);
    assert_eq!(reloaded[..3], last[..], "{reloaded:?}");
    client.end().await;
}

#[tokio::test]
async fn summary_that_breaks_off_is_requested_again() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "code", ..Setup::default() });
    let session = client.session().await;
    for number in 0..3 {
        turn(&mut client, &session, "hello", &[&[text(&format!("Hello {number}. {}", "word ".repeat(200)))]])
            .await;
    }
    client.model.say(&session, Ok(text("Half")));
    client.model.say(&session, Err(broken()));
    let messages = turn(&mut client, &session, "/compact", &[&[text("All is well.")]]).await;
    assert!(shown(&messages).contains("the line is cut. Retrying in 0.0 s."), "{messages:#?}");
    turn(&mut client, &session, "again", &[&[text("Yes.")]]).await;
    let last = format!("{:?}", client.model.requests(&session).pop().unwrap().messages);
    assert!(last.contains("All is well.") && !last.contains("Half"), "{last}");
    client.end().await;
}

#[tokio::test]
async fn reply_that_fills_the_context_continues_after_a_summary() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "code", ..Setup::default() });
    let session = client.session().await;
    for number in 0..3 {
        turn(&mut client, &session, "hello", &[&[text(&format!("Hello {number}. {}", "word ".repeat(200)))]])
            .await;
    }
    client.model.say(&session, Ok(text("Half")));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::ContextFull)));
    let messages = turn(&mut client, &session, "go", &[&[text("All is well.")], &[text("Whole.")]]).await;
    assert!(shown(&messages).ends_with("Whole."), "{messages:#?}");
    let last = format!("{:?}", client.model.requests(&session).pop().unwrap().messages);
    assert!(last.contains("All is well.") && last.contains("it filled your context"), "{last}");
    client.end().await;
}
