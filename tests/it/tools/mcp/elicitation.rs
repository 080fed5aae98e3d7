//! Questions of MCP servers to the user: an MCP server can ask only during a running call, and the end of the
//! call withdraws the question.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::Setup;
use crate::tools::mcp::edge_cases::odd;
use crate::tools::mcp::servers::McpSession;

/// Opens a session whose client has forms, with a server of this behaviour.
pub(crate) async fn with_forms(mode: &'static str, behaviour: &str) -> McpSession {
    let forms = json!({ "elicitation": { "form": {} } });
    McpSession::for_client(Setup { mode, ..Setup::default() }, &forms, odd(&[behaviour])).await
}

fn is_form(message: &Value) -> bool {
    message["method"] == "elicitation/create"
}

/// Returns the messages until none arrives for this time.
async fn until_quiet(b: &mut McpSession, time: Duration) -> Vec<Value> {
    let mut messages = Vec::new();
    while let Some(message) = b.client.next_within(time).await {
        messages.push(message);
    }
    messages
}

async fn until_form(b: &mut McpSession) {
    while !is_form(&b.client.next().await) {}
}

/// Checks that one of the messages withdraws the first question.
fn check_withdrawn(messages: &[Value]) {
    let question = messages.iter().find(|message| is_form(message)).expect("a question");
    let mut withdrawn = messages.iter().filter(|message| message["method"] == "$/cancel_request");
    assert!(withdrawn.any(|message| message["params"]["requestId"] == question["id"]), "{messages:?}");
}

/// The completion of an unknown address is ignored, and so is the second one.
#[tokio::test]
async fn completion_of_an_address_is_passed_on_once() {
    let urls = json!({ "elicitation": { "url": {} } });
    let setup = Setup { mode: "code", ..Setup::default() };
    let mut b = McpSession::for_client(setup, &urls, odd(&["visits"])).await;
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__visit");
    let mut messages = vec![b.client.next().await];
    while !is_form(messages.last().unwrap()) {
        messages.push(b.client.next().await);
    }
    let question = messages.pop().unwrap();
    assert_eq!(
        (&question["params"]["mode"], &question["params"]["elicitationId"]),
        (&json!("url"), &json!("e1"))
    );
    let accepted = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept" } });
    b.client.send_line(&accepted.to_string()).await;
    b.say_done();
    let mut messages = b.client.until_answer(prompt).await;
    // The end of the turn may overtake it.
    messages.extend(until_quiet(&mut b, Duration::from_secs(1)).await);
    let completed: Vec<&Value> =
        messages.iter().filter(|message| message["method"] == "elicitation/complete").collect();
    assert_eq!(completed.len(), 1, "{messages:?}");
    assert_eq!(completed[0]["params"], json!({ "elicitationId": "e1" }));
    b.client.end().await;
}

#[tokio::test]
async fn elicitation_of_a_finished_call_is_withdrawn() {
    let mut b = with_forms("code", "plain").await;
    let (mut messages, text) = b.call("mcp__t__ask").await;
    assert!(text.contains("I do not wait"), "{text}");
    messages.extend(until_quiet(&mut b, Duration::from_secs(1)).await);
    check_withdrawn(&messages);
    b.client.end().await;
}

#[tokio::test]
async fn elicitation_of_an_ended_call_is_withdrawn() {
    let mut b = with_forms("code", "plain").await;
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__waits");
    let mut messages = vec![b.client.next().await];
    while !is_form(messages.last().unwrap()) {
        messages.push(b.client.next().await);
    }
    let id = b.client.request("session/set_mode", json!({ "sessionId": b.session, "modeId": "plan" })).await;
    messages.extend(b.client.until_answer(id).await);
    b.say_done();
    messages.extend(b.client.until_answer(prompt).await);
    messages.extend(until_quiet(&mut b, Duration::from_secs(1)).await);
    check_withdrawn(&messages);
    b.client.end().await;
}

#[tokio::test]
async fn open_elicitation_does_not_block_other_questions() {
    let mut b = with_forms("code", "plain").await;
    b.call("mcp__t__ask").await;
    let _ = b.client.prompt(&b.session, "go").await;
    let arguments = json!({ "questions": [{ "question": "Which?", "choices": ["a", "b"] }] });
    let call = modegate::model::ModelEvent::ToolCall { id: "q".into(), name: "ask_user".into(), arguments };
    b.client.model.say(&b.session, Ok(call));
    b.say_done();
    let seen = until_quiet(&mut b, Duration::from_secs(3)).await;
    assert!(
        seen.iter().any(|message| is_form(message) && message.to_string().contains("Which?")),
        "{seen:#?}"
    );
}

#[tokio::test]
async fn server_cannot_elicit_before_the_call_is_allowed() {
    let mut b = with_forms("ask", "begs").await;
    b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__waits");
    let seen = until_quiet(&mut b, Duration::from_secs(2)).await;
    let request = seen.iter().find(|message| message["method"] == "session/request_permission");
    assert!(!seen.iter().any(is_form), "the call does not run, and the server is heard: {seen:?}");
    // The control: during the call, the question reaches the user.
    b.choose(&request.unwrap()["id"], "allow_once").await;
    until_form(&mut b).await;
    until_quiet(&mut b, Duration::from_millis(500)).await;
}

#[tokio::test]
async fn server_cannot_elicit_during_a_denied_call() {
    let mut b = with_forms("plan", "begs").await;
    for _ in 0..20 {
        let (messages, text) = b.call("mcp__t__waits").await;
        assert!(text.contains("not available"), "{text}");
        assert!(!messages.iter().any(is_form), "{messages:?}");
    }
    let messages = until_quiet(&mut b, Duration::from_millis(300)).await;
    assert!(!messages.iter().any(is_form), "{messages:?}");
    // The control: during an allowed call, the question reaches the user.
    b.set_mode("code").await;
    b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__waits");
    until_form(&mut b).await;
    until_quiet(&mut b, Duration::from_millis(500)).await;
}
