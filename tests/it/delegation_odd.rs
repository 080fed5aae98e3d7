//! Agents that work for others, in ways of which a review thought: what is not a command, what ends late, what changes meanwhile.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use modegate::acp::SessionId;
use modegate::model::{ModelEvent, ModelStop};
use modegate::policy::{Layers, Owner};
use modegate::process::shell::Sandbox;
use modegate::store::{Location, Store, Sync};
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::delegation::{AGENTS, about, call, new, status, write};
use crate::servers::Bench;
use crate::support::{Harness, Setup, shell};

/// The messages up to and including the next question to the user.
async fn until_asked(h: &mut Harness) -> Vec<Value> {
    let mut messages = Vec::new();
    loop {
        messages.push(h.next().await);
        if messages.last().unwrap()["method"] == "session/request_permission" {
            return messages;
        }
    }
}

fn layers(text: &str) -> Layers {
    let mut layers = Layers::default();
    layers.add("m", text, Owner::User).unwrap();
    layers
}

/// A model writes a task, and a user types commands: what looks like one in a task is part of the task.
#[tokio::test]
async fn a_task_is_no_command() {
    for task in ["/code do it", "/undo", "/plan", "/compact"] {
        let mut h = new("ask");
        let root = h.session().await;
        let prompt = h.prompt(&root, "go").await;
        h.calls(&root, vec![call("delegate", json!({ "task": task }))]);
        h.answers("sess_2", "done");
        h.answers(&root, "done");
        let messages = h.until_answer(prompt).await;
        assert_eq!(status(&messages, "call_1_1"), "completed", "{task}");
        let first = format!("{:?}", h.stage.requests("sess_2")[0].messages);
        assert!(first.contains(task) && !first.contains("has switched"), "{first}");
        h.end().await;
    }
}

/// Who works for another is part of its record, and is taken off it with it and not before.
#[tokio::test]
async fn a_child_is_not_deleted_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let store = || Location::File(folder.path().join("s.db"));
    let mut h = Harness::with(Setup { mode: "code", live: true, store: store(), ..Setup::default() });
    let root = h.session().await;
    let prompt = h.prompt(&root, "go").await;
    h.calls(&root, vec![call("delegate", json!({ "task": "one" }))]);
    h.answers("sess_2", "done");
    h.answers(&root, "done");
    h.until_answer(prompt).await;
    let answer = h.call("session/delete", json!({ "sessionId": "sess_2" })).await;
    assert_eq!(answer["error"]["data"]["sessionId"], json!(root), "{answer}");
    h.end().await;
    let store = Store::open(store(), Sync::Normal).unwrap();
    assert!(store.session(&SessionId::new("sess_2")).await.unwrap().is_some());
    let old = store.sessions_before(i64::MAX).await.unwrap();
    assert_eq!(old, [SessionId::new(root.as_str())], "what is old is told by the session itself");
    store.delete_session(&SessionId::new(root)).await.unwrap();
    assert!(store.session(&SessionId::new("sess_2")).await.unwrap().is_none(), "the control");
}
