//! `delegate` calls in one message. Sub-agents that change nothing run at the same time, all others one by
//! one.

use std::process::Command;

use modegate::model::{Block, ModelEvent};
use modegate::store::StoreLocation;
use serde_json::json;

use crate::agents::delegation::{AGENTS, about, call, status, write};
use crate::support::{Setup, TestClient};

fn parallel(mode: &'static str) -> Setup {
    Setup { mode, agents: AGENTS, live: true, parallel: 8, ..Setup::default() }
}

fn delegate(task: &str, agent: &str) -> ModelEvent {
    ModelEvent::ToolCall {
        id: task.into(),
        name: "delegate".into(),
        arguments: json!({ "task": task, "agent": agent }),
    }
}

/// Returns the results in the last message of the model's second request.
fn results(client: &TestClient, session: &str) -> Vec<(String, String)> {
    let requests = client.model.requests(session);
    let blocks = requests[1].messages.iter().flat_map(|message| &message.blocks);
    let result = |block: &Block| match block {
        Block::ToolResult { id, text, .. } => Some((id.clone(), text.clone())),
        _ => None,
    };
    blocks.filter_map(result).collect()
}

/// Results have the order of the calls, whichever sub-agent ends first. In code, `reader` could start a
/// writer, so it does not overlap.
#[tokio::test]
async fn only_sub_agents_that_change_nothing_overlap() {
    for (mode, agent, overlaps) in [
        ("code", "explore", true),
        ("code", "writer", false),
        ("code", "reader", false),
        ("plan", "writer", true),
        ("plan", "reader", true),
    ] {
        let mut client = TestClient::with(parallel(mode));
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.calls(&root, vec![delegate("one", agent), delegate("two", agent)]);
        client.model.next_request("sess_2").await;
        client.calls("sess_2", vec![call("list_directory", json!({}))]);
        client.model.next_request("sess_2").await;
        let mut messages = Vec::new();
        if overlaps {
            client.model.next_request("sess_3").await;
            client.answers("sess_3", "second");
            while !about(&messages, "call_1_2").iter().any(|update| update["status"] == "completed") {
                messages.push(client.next().await);
            }
        } else {
            assert!(client.model.requests("sess_3").is_empty(), "{mode} {agent}");
            client.answers("sess_3", "second");
        }
        client.answers("sess_2", "first");
        client.answers(&root, "done");
        messages.extend(client.until_answer(prompt).await);
        assert_eq!(
            (status(&messages, "call_1_1"), status(&messages, "call_1_2")),
            ("completed", "completed")
        );
        let expected = [("one", "first"), ("two", "second")].map(|(id, text)| (id.into(), text.into()));
        assert_eq!(results(&client, &root), expected, "{mode} {agent}");
        client.end().await;
    }
}

#[tokio::test]
async fn writers_of_a_plan_reply_do_not_write_after_loosening() {
    let mut client = TestClient::with(parallel("plan"));
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![delegate("one", "writer"), delegate("two", "writer")]);
    client.model.next_request("sess_2").await;
    client.model.next_request("sess_3").await;
    let set = client.request("session/set_mode", json!({ "sessionId": root, "modeId": "code" })).await;
    client.until_answer(set).await;
    for (session, path) in [("sess_2", "a"), ("sess_3", "b")] {
        client.calls(session, vec![write(path)]);
        client.answers(session, "done");
    }
    client.calls(&root, vec![delegate("three", "writer")]);
    client.calls("sess_4", vec![write("c")]);
    client.answers("sess_4", "done");
    client.answers(&root, "done");
    let messages = client.until_answer(prompt).await;
    for (call, path, is_done) in [
        ("call_1_1/call_1_1", "a", false),
        ("call_1_2/call_1_1", "b", false),
        ("call_1_3/call_1_1", "c", true),
    ] {
        assert_eq!(status(&messages, call), if is_done { "completed" } else { "failed" }, "{path}");
        assert_eq!(client.cwd().join(path).exists(), is_done, "{path}");
    }
    client.end().await;
}

#[tokio::test]
async fn cancel_ends_all_parallel_sub_agents() {
    let mut client = TestClient::with(parallel("code"));
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![delegate("one", "explore"), delegate("two", "explore")]);
    client.model.next_request("sess_2").await;
    client.model.next_request("sess_3").await;
    client.notify("session/cancel", json!({ "sessionId": root })).await;
    let messages = client.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    for id in ["call_1_1", "call_1_2"] {
        assert_eq!(status(&messages, id), "failed", "{id}");
    }
    let prompt = client.prompt(&root, "again").await;
    client.answers(&root, "yes");
    client.until_answer(prompt).await;
    client.end().await;
}

/// The audit log of the session and its sub-agents stays valid.
#[tokio::test]
async fn parallel_sub_agents_ask_separately() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.db");
    let store = StoreLocation::File(file.clone());
    let mut client = TestClient::with(Setup { store, ..parallel("code") });
    let root = client.session().await;
    let outside = client.dir.path().join("outside.txt");
    std::fs::write(&outside, "content").unwrap();
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![delegate("one", "explore"), delegate("two", "explore")]);
    for session in ["sess_2", "sess_3"] {
        client.calls(session, vec![call("read_file", json!({ "path": outside }))]);
        client.answers(session, "done");
    }
    client.answers(&root, "done");
    let mut requests = Vec::new();
    while requests.len() < 2 {
        let message = client.next().await;
        if message["method"] == "session/request_permission" {
            requests.push(message);
        }
    }
    for request in requests.iter().rev() {
        let is_first = request["params"]["toolCall"]["toolCallId"] == "call_1_1/call_1_1";
        let option = if is_first { "reject_once" } else { "allow_once" };
        let result = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
        client.send_line(&answer.to_string()).await;
    }
    let messages = client.until_answer(prompt).await;
    assert_eq!(status(&messages, "call_1_1/call_1_1"), "failed");
    assert_eq!(status(&messages, "call_1_2/call_1_1"), "completed");
    client.end().await;
    for id in [root.as_str(), "sess_2", "sess_3"] {
        let mut audit = Command::new(env!("CARGO_BIN_EXE_modegate"));
        audit.args(["--store", file.to_str().unwrap(), "audit", id]).env("HOME", folder.path());
        let output = audit.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}
