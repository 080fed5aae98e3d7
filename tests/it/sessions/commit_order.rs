//! The end of a call is stored before the client sees it, in the session and in sub-agents. The session
//! continues in the meantime.

use std::time::Duration;

use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::agents::delegation::call;
use crate::agents::external::sessions::{SANDBOXED, agents, home};
use crate::sessions::load::{self as sessions, StoreFixture};
use crate::support::{Setup, TIMEOUT, TestClient, shell};

/// Shorter than the writer's wait for the lock.
const LOCKED: Duration = Duration::from_millis(500);

fn status(message: &Value) -> Option<&str> {
    message["params"]["update"]["status"].as_str()
}

fn is_end(message: &Value) -> bool {
    status(message).is_some_and(|status| status == "completed" || status == "failed")
}

/// Reads until a message matches.
async fn until(client: &mut TestClient, predicate: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut messages = Vec::new();
    loop {
        messages.push(client.next().await);
        if predicate(messages.last().unwrap()) {
            return messages;
        }
    }
}

/// While the store is locked, no call is shown as ended, but the next request to the model is sent.
#[tokio::test]
async fn call_end_is_stored_before_being_shown() {
    for (caller, id) in [
        ("session", "call_1_1"),
        ("delegate", "call_1_1/call_1_1"),
        ("delegate in the background", "call_1_1/call_1_1"),
        ("external agent", "c9"),
    ] {
        let (fixture, home) = (StoreFixture::new(), home());
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let agents = agents("plain", SANDBOXED);
        let mut client = fixture.agent(Setup { mode: "code", tools, agents, live: true, ..Setup::default() });
        client.call("initialize", json!({ "protocolVersion": 1 })).await;
        let meta = if caller == "external agent" { json!({ "modegate/agent": "peer" }) } else { json!({}) };
        let new = json!({ "cwd": client.cwd(), "mcpServers": [], "_meta": meta });
        let session =
            client.call("session/new", new).await["result"]["sessionId"].as_str().unwrap().to_owned();
        let go = client.cwd().join("go");
        let prompt = client.prompt(&session, &format!("call-when {}", go.display())).await;
        let waits = call("shell", json!({ "command": "until [ -e go ]; do sleep 0.01; done" }));
        let worker = match caller {
            "session" => session.clone(),
            _ => "sess_2".to_owned(),
        };
        if caller.starts_with("delegate") {
            let background = caller != "delegate";
            client
                .calls(&session, vec![call("delegate", json!({ "task": "one", "background": background }))]);
        }
        if caller != "external agent" {
            client.calls(&worker, vec![waits]);
            client.model.next_request(&worker).await;
        }
        let runs = |message: &Value| {
            message["params"]["update"]["toolCallId"] == id && status(message) == Some("in_progress")
        };
        until(&mut client, runs).await;
        if caller == "delegate in the background" {
            // The end of the first call is stored. The rest of the test is about the second call.
            client.model.next_request(&session).await;
            client.model.next_request(&session).await;
        }
        while client.next_within(Duration::from_millis(200)).await.is_some() {}
        let other = Connection::open(fixture.store()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        std::fs::write(&go, "").unwrap();
        let locked = tokio::time::Instant::now();
        if caller != "external agent" {
            // The session receives the end of the call, and continues.
            client.model.next_request(&worker).await;
        }
        while let Some(left) = LOCKED.checked_sub(locked.elapsed()) {
            if let Some(message) = client.next_within(left).await {
                assert!(!is_end(&message), "{caller}: shown while it cannot be stored: {message}");
            }
        }
        other.execute_batch("ROLLBACK").unwrap();
        let end =
            until(&mut client, |message| message["params"]["update"]["toolCallId"] == id && is_end(message));
        let messages = tokio::time::timeout(TIMEOUT, end).await.unwrap();
        assert_eq!(status(messages.last().unwrap()), Some("completed"), "{caller}: {messages:?}");
        let stored: i64 = other
            .query_row(
                "SELECT count(*) FROM events WHERE session_id = ?1 AND instr(body, ?2) AND instr(body, 'completed')",
                [session.as_str(), &format!("{id:?}")],
                |row| row.get(0),
            )
            .unwrap();
        assert_eq!(stored, 1, "{caller}: it is stored when it is shown");
        if caller != "external agent" {
            client.answers(&worker, "done");
        }
        if caller != "session" && caller != "external agent" {
            client.answers(&session, "done");
        }
        client.until_answer(prompt).await;
        while client.next_within(Duration::from_millis(200)).await.is_some() {}
        client.end().await;
    }
}

/// A change that was made while the store was locked is complete, unlike an operation that a kill
/// interrupted.
#[tokio::test]
async fn changes_made_while_the_store_is_locked_remain() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "code", ..Setup::default() });
    let cwd = client.cwd();
    for name in ["a.txt", "b.txt"] {
        std::fs::write(cwd.join(name), "one\n").unwrap();
    }
    let session = client.session().await;
    let patch =
        ["a.txt", "b.txt"].map(|name| format!("--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-one\n+two\n"));
    let read = |path: &str| call("read_file", json!({ "path": path }));
    let patch = call("apply_patch", json!({ "patch": patch.concat() }));
    let done = || sessions::text("Done.");
    sessions::turn(&mut client, &session, "read", &[&[read("a.txt"), read("b.txt")], &[done()]]).await;
    let other = Connection::open(fixture.store()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    sessions::turn(&mut client, &session, "patch", &[&[patch], &[done()]]).await;
    other.execute_batch("ROLLBACK").unwrap();
    sessions::turn(&mut client, &session, "go on", &[&[done()]]).await;
    client.end().await;
    let count = |table: &str| -> i64 {
        other.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("changes"), count("intents")), (2, 0));
    // The user restores one of the files. Only an interrupted operation would restore the other one, too.
    std::fs::write(cwd.join("a.txt"), "one\n").unwrap();
    let mut client = fixture.agent(Setup::default());
    let shown = sessions::open(&mut client, "session/load", &session).await;
    assert!(!Value::from(shown).to_string().contains("was interrupted"));
    assert_eq!(std::fs::read_to_string(cwd.join("b.txt")).unwrap(), "two\n");
    std::fs::write(cwd.join("a.txt"), "two\n").unwrap();
    sessions::turn(&mut client, &session, "/undo", &[]).await;
    assert_eq!(
        std::fs::read_to_string(cwd.join("b.txt")).unwrap(),
        "one\n",
        "the control: an undo covers it"
    );
    client.end().await;
}
