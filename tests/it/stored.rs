//! The end of a call is stored before the client sees it, whoever makes the call; the session goes on meanwhile.

use std::time::Duration;

use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::delegation::call;
use crate::outside::{HELD, agents, home};
use crate::sessions::{self, Place};
use crate::support::{Harness, PATIENCE, Setup, shell};

/// How long the record is locked: less than the writer waits for it.
const LOCKED: Duration = Duration::from_millis(500);

fn status(message: &Value) -> Option<&str> {
    message["params"]["update"]["status"].as_str()
}

fn is_end(message: &Value) -> bool {
    status(message).is_some_and(|status| status == "completed" || status == "failed")
}

/// Reads until some message.
async fn until(h: &mut Harness, is_it: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut messages = Vec::new();
    loop {
        messages.push(h.next().await);
        if is_it(messages.last().unwrap()) {
            return messages;
        }
    }
}

/// While the record cannot be written no call is shown to have ended; the model is asked on all the same. Then the end is stored
/// when it is shown.
#[tokio::test]
async fn no_call_is_shown_to_have_ended_before_that_is_stored() {
    for (caller, id) in [
        ("session", "call_1_1"),
        ("delegate", "call_1_1/call_1_1"),
        ("delegate_background", "call_1_1/call_1_1"),
        ("external agent", "c9"),
    ] {
        let (place, home) = (Place::new(), home());
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let agents = agents("plain", HELD);
        let mut h = place.agent(Setup { mode: "code", tools, agents, live: true, ..Setup::default() });
        h.call("initialize", json!({ "protocolVersion": 1 })).await;
        let meta = if caller == "external agent" { json!({ "modegate/agent": "peer" }) } else { json!({}) };
        let new = json!({ "cwd": h.cwd(), "mcpServers": [], "_meta": meta });
        let session = h.call("session/new", new).await["result"]["sessionId"].as_str().unwrap().to_owned();
        let go = h.cwd().join("go");
        let prompt = h.prompt(&session, &format!("call-when {}", go.display())).await;
        let waits = call("shell", json!({ "command": "until [ -e go ]; do sleep 0.01; done" }));
        let worker = match caller {
            "session" => session.clone(),
            _ => "sess_2".to_owned(),
        };
        if caller.starts_with("delegate") {
            h.calls(&session, vec![call(caller, json!({ "task": "one" }))]);
        }
        if caller != "external agent" {
            h.calls(&worker, vec![waits]);
            h.stage.next_request(&worker).await;
        }
        let runs = |message: &Value| {
            message["params"]["update"]["toolCallId"] == id && status(message) == Some("in_progress")
        };
        until(&mut h, runs).await;
        if caller == "delegate_background" {
            // The call above has ended and is stored: what follows is about the one below.
            h.stage.next_request(&session).await;
            h.stage.next_request(&session).await;
        }
        while h.next_within(Duration::from_millis(200)).await.is_some() {}
        let other = Connection::open(place.store()).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        std::fs::write(&go, "").unwrap();
        let locked = tokio::time::Instant::now();
        if caller != "external agent" {
            // The session hears of the end, and goes on.
            h.stage.next_request(&worker).await;
        }
        while let Some(left) = LOCKED.checked_sub(locked.elapsed()) {
            if let Some(message) = h.next_within(left).await {
                assert!(!is_end(&message), "{caller}: shown while it cannot be stored: {message}");
            }
        }
        other.execute_batch("ROLLBACK").unwrap();
        let end = until(&mut h, |message| message["params"]["update"]["toolCallId"] == id && is_end(message));
        let messages = tokio::time::timeout(PATIENCE, end).await.unwrap();
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
            h.answers(&worker, "done");
        }
        if caller != "session" && caller != "external agent" {
            h.answers(&session, "done");
        }
        h.until_answer(prompt).await;
        while h.next_within(Duration::from_millis(200)).await.is_some() {}
        h.end().await;
    }
}

/// What was changed while the record could not be written was changed: it is no operation that a kill cut off.
#[tokio::test]
async fn a_change_that_was_made_while_the_record_was_locked_is_not_taken_back() {
    let place = Place::new();
    let mut h = place.agent(Setup { mode: "code", ..Setup::default() });
    let cwd = h.cwd();
    for name in ["a.txt", "b.txt"] {
        std::fs::write(cwd.join(name), "one\n").unwrap();
    }
    let session = h.session().await;
    let patch =
        ["a.txt", "b.txt"].map(|name| format!("--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-one\n+two\n"));
    let read = call("read_multiple_files", json!({ "paths": ["a.txt", "b.txt"] }));
    let patch = call("apply_patch", json!({ "patch": patch.concat() }));
    let done = || sessions::text("Done.");
    sessions::turn(&mut h, &session, "read", &[&[read], &[done()]]).await;
    let other = Connection::open(place.store()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    sessions::turn(&mut h, &session, "patch", &[&[patch], &[done()]]).await;
    other.execute_batch("ROLLBACK").unwrap();
    sessions::turn(&mut h, &session, "go on", &[&[done()]]).await;
    h.end().await;
    let count = |table: &str| -> i64 {
        other.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!((count("changes"), count("intents")), (2, 0));
    // Somebody puts one back: of an operation that was cut off, the other would be, too.
    std::fs::write(cwd.join("a.txt"), "one\n").unwrap();
    let mut h = place.agent(Setup::default());
    let shown = sessions::open(&mut h, "session/load", &session).await;
    assert!(!Value::from(shown).to_string().contains("cut off"));
    assert_eq!(std::fs::read_to_string(cwd.join("b.txt")).unwrap(), "two\n");
    std::fs::write(cwd.join("a.txt"), "two\n").unwrap();
    sessions::turn(&mut h, &session, "/undo", &[]).await;
    assert_eq!(
        std::fs::read_to_string(cwd.join("b.txt")).unwrap(),
        "one\n",
        "the control: an undo covers it"
    );
    h.end().await;
}
