//! Version 2 of the protocol: negotiation, the life of a prompt, modes, questions, replays and repeated prompts.
//! The test client checks every message against the schema of version 2.

mod background;
mod calls;
mod kills;
mod random;
mod replays;
mod wrapped;

use modegate::model::{Failure, ModelError, ModelEvent, ModelStop};
use serde_json::{Value, json};

use crate::sessions::load::{StoreFixture, call, text};
use crate::support::{Setup, TestClient};

fn setup(mode: &'static str) -> Setup {
    Setup { mode, ..Setup::default() }
}

fn initialize() -> Value {
    json!({ "protocolVersion": 2, "info": { "name": "test", "version": "1" } })
}

/// Opens a session on a connection of version 2.
async fn session(client: &mut TestClient) -> String {
    let answer = client.call("initialize", initialize()).await;
    assert_eq!(answer["result"]["protocolVersion"], 2, "{answer}");
    let cwd = client.cwd();
    let answer = client.call("session/new", json!({ "cwd": cwd })).await;
    assert!(!answer["result"]["availableCommands"].as_array().unwrap().is_empty(), "{answer}");
    answer["result"]["sessionId"].as_str().unwrap().to_owned()
}

/// Ends the reply of the model.
fn done(client: &TestClient, session: &str) {
    client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
}

/// The kind of an update, the state of a session, a method, or "answer".
fn kind(message: &Value) -> &str {
    let update = &message["params"]["update"];
    let words = [&update["state"], &update["sessionUpdate"], &message["method"]];
    words.into_iter().find_map(Value::as_str).unwrap_or("answer")
}

fn kinds(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(kind).collect()
}

/// Returns the messages up to and including the first of this kind.
async fn until(client: &mut TestClient, expected: &str) -> Vec<Value> {
    let mut messages = vec![client.next().await];
    while kind(messages.last().unwrap()) != expected {
        messages.push(client.next().await);
    }
    messages
}

fn prompt(session: &str, content: &str, key: Option<&str>) -> Value {
    let mut params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": content }] });
    if let Some(key) = key {
        params["idempotencyKey"] = key.into();
    }
    params
}

fn set_mode(session: &str, mode: &str) -> Value {
    json!({ "sessionId": session, "configId": "mode", "type": "id", "value": mode })
}

#[tokio::test]
async fn highest_version_that_both_have_is_chosen() {
    for (requested, expected) in [(1, 1), (2, 2), (9, 2)] {
        let mut client = TestClient::with(setup("ask"));
        let mut params = initialize();
        params["protocolVersion"] = requested.into();
        let answer = client.call("initialize", params).await;
        assert_eq!(answer["result"]["protocolVersion"], expected);
        client.end().await;
    }
}

#[tokio::test]
async fn initialize_is_checked_and_repeated_as_version_2_says() {
    let mut client = TestClient::with(setup("ask"));
    let code = |answer: &Value| answer["error"]["code"].clone();
    client.notify("session/cancel", json!({ "sessionId": "s" })).await;
    assert_eq!(code(&client.call("session/list", json!({})).await), -32600, "before initialize");
    let answer = client.call("initialize", json!({ "protocolVersion": 0 })).await;
    assert_eq!(code(&answer), -32022);
    assert_eq!(answer["error"]["data"]["requested"], 0);
    assert_eq!(answer["error"]["data"]["supported"], json!([1, 2]));
    assert_eq!(code(&client.call("initialize", json!({ "protocolVersion": 2 })).await), -32602, "no info");
    client
        .send_line(r#"{"jsonrpc":"2.0","id":null,"method":"initialize","params":{"protocolVersion":2}}"#)
        .await;
    assert_eq!(code(&client.next().await), -32600, "a null id");
    for _ in 0..2 {
        assert_eq!(client.call("initialize", initialize()).await["result"]["protocolVersion"], 2);
    }
    assert_eq!(code(&client.call("initialize", json!({ "protocolVersion": 1 })).await), -32600, "lower");
    assert_eq!(client.call("session/list", json!({})).await["result"]["sessions"], json!([]));
    assert_eq!(code(&client.call("initialize", initialize()).await), -32600, "after another request");
    client.send_line(r#"{"jsonrpc":"2.0","id":null,"method":"session/list","params":{}}"#).await;
    assert_eq!(code(&client.next().await), -32600, "a null id");
    for method in ["authenticate", "session/load", "session/set_mode", "session/fork"] {
        assert_eq!(code(&client.call(method, json!({ "sessionId": "s" })).await), -32601, "{method}");
    }
    let unknown = client.call("session/prompt", prompt("sess_none", "x", None)).await;
    assert_eq!(
        (code(&unknown), &unknown["error"]["data"]["sessionId"]),
        (json!(-32002), &json!("sess_none"))
    );
    client.end().await;
}

#[tokio::test]
async fn login_is_needed_after_a_logout() {
    let mut client = TestClient::with(setup("ask"));
    client.call("initialize", initialize()).await;
    let cwd = client.cwd();
    assert_eq!(client.call("auth/logout", json!({})).await["result"], json!({}));
    let refused = client.call("session/new", json!({ "cwd": cwd })).await;
    assert_eq!(refused["error"]["code"], -32000);
    assert_eq!(client.call("auth/login", json!({ "methodId": "environment" })).await["result"], json!({}));
    assert!(client.call("session/new", json!({ "cwd": cwd })).await["result"]["sessionId"].is_string());
    client.end().await;
}

#[tokio::test]
async fn initial_options_are_ignored_in_both_versions() {
    for (request, version) in [(json!({ "protocolVersion": 1 }), 1), (initialize(), 2)] {
        for (is_in_meta, expected) in [(false, "ask"), (true, "plan")] {
            let mut client = TestClient::with(setup("ask"));
            client.call("initialize", request.clone()).await;
            let mut params = json!({ "cwd": client.cwd(), "mcpServers": [] });
            if is_in_meta {
                params["_meta"] = json!({ "modegate/mode": "plan" });
            } else {
                params["configOptions"] = json!([{ "configId": "mode", "type": "id", "value": "plan" }]);
            }
            let answer = client.call("session/new", params).await;
            let mode = &answer["result"]["configOptions"][0]["currentValue"];
            assert_eq!(mode, expected, "version {version}");
            client.end().await;
        }
    }
}

#[tokio::test]
async fn invalid_servers_and_cursors_of_replays_are_rejected() {
    let mut client = TestClient::with(setup("ask"));
    client.call("initialize", initialize()).await;
    let cwd = client.cwd();
    let stdio = |name: &str, command: &str| json!({ "type": "stdio", "name": name, "command": command });
    for servers in [
        json!([stdio("a", "bin/a")]),
        json!([stdio("a", "/bin/a"), stdio("a", "/bin/b")]),
        json!([{ "type": "sse", "name": "a", "url": "http://127.0.0.1" }]),
        json!([{ "name": "a", "command": "/bin/a" }]),
    ] {
        let answer = client.call("session/new", json!({ "cwd": cwd, "mcpServers": servers })).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    let params = json!({ "sessionId": "sess_1", "cwd": cwd, "replayFrom": { "type": "message", "id": "m" } });
    assert_eq!(client.call("session/resume", params).await["error"]["code"], -32602);
    client.end().await;
}

#[tokio::test]
async fn prompt_is_answered_once_it_is_in_the_history() {
    let mut client = TestClient::with(setup("ask"));
    let session = session(&mut client).await;
    let id = client.request("session/prompt", prompt(&session, "hello", None)).await;
    let messages = client.until_answer(id).await;
    assert_eq!(kinds(&messages), ["running", "user_message", "session_info_update", "answer"]);
    let user = &messages[1]["params"]["update"];
    assert_eq!(user["content"], json!([{ "type": "text", "text": "hello" }]));
    assert_eq!(messages[3]["result"]["messageId"], user["messageId"]);
    client.model.say(&session, Ok(text("hi")));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let messages = until(&mut client, "idle").await;
    assert_eq!(messages[0]["params"]["update"]["content"]["text"], "hi");
    let idle = &messages.last().unwrap()["params"]["update"];
    assert_eq!(idle["stopReason"], "end_turn");
    client.end().await;
}

#[tokio::test]
async fn failure_after_the_insertion_is_a_stop_reason() {
    let mut client = TestClient::with(setup("ask"));
    let session = session(&mut client).await;
    let id = client.request("session/prompt", prompt(&session, "hello", None)).await;
    assert!(client.until_answer(id).await.last().unwrap()["result"].is_object());
    client.model.say(&session, Err(ModelError { failure: Failure::Other, text: "the model is gone".into() }));
    let idle = until(&mut client, "idle").await.pop().unwrap();
    let update = &idle["params"]["update"];
    assert_eq!((&update["stopReason"], &update["error"]["code"]), (&json!("error"), &json!(-32603)));
    let id = client.request("session/prompt", prompt(&session, "/mode", None)).await;
    let mut messages = client.until_answer(id).await;
    assert_eq!(kinds(&messages)[..2], ["running", "user_message"], "the session goes on");
    // A command is so short that its turn may end before the answer.
    if !kinds(&messages).contains(&"idle") {
        messages = until(&mut client, "idle").await;
    }
    assert!(kinds(&messages).contains(&"idle"));
    client.end().await;
}

#[tokio::test]
async fn cancel_answers_prompts_that_wait_and_ends_the_turn() {
    let mut client = TestClient::with(setup("ask"));
    let session = session(&mut client).await;
    let first = client.request("session/prompt", prompt(&session, "one", None)).await;
    client.until_answer(first).await;
    let second = client.request("session/prompt", prompt(&session, "two", None)).await;
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    let messages = client.until_answer(second).await;
    assert_eq!(messages.last().unwrap()["error"]["code"], -32800);
    let idle = match messages.iter().find(|message| kind(message) == "idle") {
        Some(idle) => idle.clone(),
        None => until(&mut client, "idle").await.pop().unwrap(),
    };
    assert_eq!(idle["params"]["update"]["stopReason"], "cancelled");
    client.end().await;
}

#[tokio::test]
async fn cancelled_request_takes_back_a_prompt_that_waits() {
    let mut client = TestClient::with(setup("ask"));
    let session = session(&mut client).await;
    let first = client.request("session/prompt", prompt(&session, "one", None)).await;
    client.until_answer(first).await;
    let second = client.request("session/prompt", prompt(&session, "two", None)).await;
    client.notify("$/cancel_request", json!({ "requestId": second })).await;
    assert_eq!(client.next().await["error"]["code"], -32800);
    client.model.say(&session, Ok(text("still here")));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let idle = until(&mut client, "idle").await.pop().unwrap();
    assert_eq!(idle["params"]["update"]["stopReason"], "end_turn");
    client.end().await;
}

/// Begins a turn that asks for permission to write `a.txt`. Returns the messages up to the question.
async fn ask_for_write(client: &mut TestClient, session: &str) -> Vec<Value> {
    let id = client.request("session/prompt", prompt(session, "write", None)).await;
    client.until_answer(id).await;
    client.model.say(session, Ok(call("c", "write_file", json!({ "path": "a.txt", "content": "new\n" }))));
    client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    until(client, "session/request_permission").await
}

#[tokio::test]
async fn question_requires_action_and_shows_the_change_as_a_patch() {
    let mut client = TestClient::with(setup("ask"));
    let session = session(&mut client).await;
    let messages = ask_for_write(&mut client, &session).await;
    // A client that is not known gets the change in the chat, too.
    assert_eq!(
        kinds(&messages),
        ["tool_call_update", "agent_message_chunk", "requires_action", "session/request_permission"]
    );
    let question = &messages[3];
    let call = &question["params"]["subject"]["toolCall"];
    let path = client.cwd().join("a.txt").display().to_string();
    let diff = &call["content"][0];
    assert_eq!(diff["changes"], json!([{ "operation": "add", "path": path, "fileType": "text" }]));
    let expected = format!(
        "diff --git {path} {path}\nnew file mode 100644\n--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+new\n"
    );
    assert_eq!(diff["patch"]["text"], expected);
    let selected = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
    let id = question["id"].clone();
    client.send_line(&json!({ "jsonrpc": "2.0", "id": id, "result": selected }).to_string()).await;
    let messages = until(&mut client, "tool_call_update").await;
    assert_eq!(kinds(&messages), ["running", "tool_call_update"]);
    let done = until(&mut client, "tool_call_update").await.pop().unwrap();
    assert_eq!(done["params"]["update"]["status"], "completed");
    assert_eq!(std::fs::read_to_string(client.cwd().join("a.txt")).unwrap(), "new\n");
    client.model.say(&session, Ok(text("done")));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let idle = until(&mut client, "idle").await.pop().unwrap();
    let head = &idle["params"]["update"]["_meta"]["modegate/head"];
    assert!(head["length"].is_u64(), "{idle}");
    client.end().await;
}

#[tokio::test]
async fn tighter_mode_withdraws_the_question_before_its_answer() {
    let mut client = TestClient::with(setup("ask"));
    let session = session(&mut client).await;
    let question = ask_for_write(&mut client, &session).await.pop().unwrap();
    let id = client.request("session/set_config_option", set_mode(&session, "plan")).await;
    let messages = client.until_answer(id).await;
    let order = kinds(&messages);
    let place =
        |kind: &str| order.iter().position(|known| *known == kind).unwrap_or_else(|| panic!("{order:?}"));
    assert!(place("$/cancel_request") < place("running"), "{order:?}");
    assert!(place("$/cancel_request") < place("config_option_update"), "{order:?}");
    let answer = messages.last().unwrap();
    assert!(answer["result"]["_meta"]["modegate/effect"].is_object(), "{answer}");
    assert_eq!(answer["result"]["configOptions"][0]["currentValue"], "plan");
    // A late consent is void.
    let selected = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
    let late = json!({ "jsonrpc": "2.0", "id": question["id"], "result": selected });
    client.send_line(&late.to_string()).await;
    client.model.say(&session, Ok(text("ok")));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    until(&mut client, "idle").await;
    assert!(!client.cwd().join("a.txt").exists());
    client.end().await;
}

#[tokio::test]
async fn unknown_modes_and_types_of_values_change_nothing() {
    let mut client = TestClient::with(setup("plan"));
    let session = session(&mut client).await;
    let mut untyped = set_mode(&session, "code");
    untyped.as_object_mut().unwrap().remove("type");
    let mut boolean = set_mode(&session, "code");
    (boolean["type"], boolean["value"]) = ("boolean".into(), true.into());
    for params in [set_mode(&session, "none"), untyped, boolean] {
        let answer = client.call("session/set_config_option", params.clone()).await;
        assert_eq!(answer["error"]["code"], -32602, "{params}");
    }
    let id = client.request("session/set_config_option", set_mode(&session, "code")).await;
    let messages = client.until_answer(id).await;
    assert_eq!(kinds(&messages), ["config_option_update", "answer"]);
    client.end().await;
}

#[tokio::test]
async fn repeated_prompt_is_inserted_once_also_after_a_restart() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(setup("ask"));
    let id = session(&mut client).await;
    let answer = client.call("session/prompt", prompt(&id, "x", Some(""))).await;
    assert_eq!(answer["error"]["code"], -32602, "an empty key");
    let long = "k".repeat(256);
    let answer = client.call("session/prompt", prompt(&id, "x", Some(&long))).await;
    assert_eq!(answer["error"]["code"], -32602, "a long key");
    let first = client.request("session/prompt", prompt(&id, "hello", Some("k1"))).await;
    let messages = client.until_answer(first).await;
    let message_id = messages.last().unwrap()["result"]["messageId"].clone();
    assert!(message_id.is_string());
    let repeated = client.call("session/prompt", prompt(&id, "hello", Some("k1"))).await;
    assert_eq!(repeated["result"]["messageId"], message_id);
    // A repeated prompt that waits is inserted once, too.
    let waiting = client.request("session/prompt", prompt(&id, "next", Some("k2"))).await;
    let again = client.request("session/prompt", prompt(&id, "next", Some("k2"))).await;
    client.model.say(&id, Ok(text("hi")));
    client.model.say(&id, Ok(ModelEvent::Stop(ModelStop::Done)));
    let mut messages = client.until_answer(waiting).await;
    messages.extend(client.until_answer(again).await);
    assert_eq!(kinds(&messages).iter().filter(|kind| **kind == "user_message").count(), 1);
    let answers: Vec<_> = messages.iter().filter(|message| kind(message) == "answer").collect();
    assert_eq!(answers[0]["result"], answers[1]["result"]);
    client.end().await;

    let mut client = fixture.agent(setup("ask"));
    client.call("initialize", initialize()).await;
    let cwd = client.cwd();
    let resumed = client.request("session/resume", json!({ "sessionId": id, "cwd": cwd })).await;
    let messages = client.until_answer(resumed).await;
    assert_eq!(kinds(&messages), ["idle", "answer"]);
    assert!(!messages[1]["result"]["availableCommands"].as_array().unwrap().is_empty());
    let repeated = client.call("session/prompt", prompt(&id, "hello", Some("k1"))).await;
    assert_eq!(repeated["result"]["messageId"], message_id);
    client.end().await;
}

#[tokio::test]
async fn replay_ends_with_one_mark_and_the_state() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(setup("ask"));
    let id = session(&mut client).await;
    let cwd = client.cwd();
    let open = json!({ "sessionId": id, "cwd": cwd, "replayFrom": { "type": "start" } });
    // An empty replay has the mark, too.
    let empty = client.request("session/resume", open.clone()).await;
    assert_eq!(kinds(&client.until_answer(empty).await), ["replay_complete", "idle", "answer"]);
    let first = client.request("session/prompt", prompt(&id, "hello", None)).await;
    client.until_answer(first).await;
    client.model.say(&id, Ok(text("hi")));
    client.model.say(&id, Ok(ModelEvent::Stop(ModelStop::Done)));
    until(&mut client, "idle").await;
    let closed = client.call("session/close", json!({ "sessionId": id })).await;
    assert!(closed["result"].is_object(), "{closed}");
    assert_eq!(client.call("session/close", json!({ "sessionId": id })).await["result"], json!({}));

    let replayed = client.request("session/resume", open).await;
    let messages = client.until_answer(replayed).await;
    let order = kinds(&messages);
    assert_eq!(order[0], "user_message_chunk", "{order:?}");
    assert!(order.contains(&"agent_message_chunk"), "{order:?}");
    assert_eq!(order[order.len() - 3..], ["replay_complete", "idle", "answer"]);
    assert_eq!(order.iter().filter(|kind| **kind == "replay_complete").count(), 1);
    let idle = &messages[order.len() - 2]["params"]["update"];
    assert_eq!(idle.get("stopReason"), None, "a snapshot ends no turn");
    let listed = client.call("session/list", json!({ "cwd": cwd })).await;
    assert_eq!(listed["result"]["sessions"][0]["sessionId"], id.as_str());
    assert_eq!(client.call("session/delete", json!({ "sessionId": id })).await["result"], json!({}));
    client.end().await;
}

#[tokio::test]
async fn long_prompts_are_shown_in_chunks() {
    let mut client = TestClient::with(setup("ask"));
    let session = session(&mut client).await;
    let long = "\u{1}é\"".repeat(30_000);
    let id = client.request("session/prompt", prompt(&session, &long, None)).await;
    let messages = client.until_answer(id).await;
    assert_eq!(kinds(&messages)[..2], ["running", "user_message"]);
    assert_eq!(messages[1]["params"]["update"]["content"], json!([]));
    let chunks = messages.iter().filter(|message| kind(message) == "user_message_chunk");
    let joined: String =
        chunks.map(|chunk| chunk["params"]["update"]["content"]["text"].as_str().unwrap()).collect();
    assert_eq!(joined, long);
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    until(&mut client, "idle").await;
    client.end().await;
}

#[tokio::test]
async fn plan_and_usage_have_the_forms_of_version_2() {
    let mut client = TestClient::with(setup("ask"));
    let session = session(&mut client).await;
    let id = client.request("session/prompt", prompt(&session, "plan", None)).await;
    client.until_answer(id).await;
    let entries = json!({ "items": [{ "content": "Look", "priority": "high", "status": "pending" }] });
    client.model.say(&session, Ok(call("p", "todo", entries)));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let plan = until(&mut client, "plan_update").await.pop().unwrap();
    let plan = &plan["params"]["update"]["plan"];
    assert_eq!((&plan["type"], &plan["planId"]), (&json!("items"), &json!("plan")));
    assert_eq!(plan["entries"][0]["content"], "Look");
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    until(&mut client, "idle").await;
    client.end().await;
}
