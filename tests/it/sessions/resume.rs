//! Sessions that are reopened, forked, moved, closed during work, or opened by two processes. No limit
//! becomes wider, and no event is lost or wrong.

use std::sync::{Arc, Barrier};

use modegate::acp::{MessageId, SessionId};
use modegate::event::{NoticeKind, SessionEvent};
use modegate::model::{ModelError, ModelEvent, ModelStop};
use modegate::policy::{LayerOwner, Layers};
use modegate::process::shell::Sandbox;
use modegate::store::{Row, Store, StoreLocation, Sync};
use modegate::tool::Toolset;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::sessions::load::{StoreFixture, call, open, set_mode, text, turn, updates};
use crate::sessions::undo::{SANDBOXES, report};
use crate::support::waiting::{until, until_content};
use crate::support::{Setup, TestClient, shell};

fn with_shell(home: &std::path::Path, sandbox: Sandbox) -> Setup {
    let tools = Toolset::built_in().with_shell(shell(home, sandbox));
    Setup { tools, ..code() }
}

fn code() -> Setup {
    Setup { mode: "code", ..Setup::default() }
}

pub(crate) fn layers(yaml: &str) -> Layers {
    let mut layers = Layers::default();
    layers.add("modes.yaml", yaml, LayerOwner::User).unwrap();
    layers
}

fn write(content: &str) -> ModelEvent {
    call(content, "write_file", json!({ "path": "a.txt", "content": content }))
}

/// Sends a prompt with one write, and answers "always allow". Returns the number of permission requests.
async fn allow_always(client: &mut TestClient, session: &str, content: &str) -> u32 {
    answer_always(client, session, content, "allow_always").await
}

/// Sends a prompt with one write, and answers permission requests with this "always" option. Returns the
/// number of permission requests.
async fn answer_always(client: &mut TestClient, session: &str, content: &str, option: &str) -> u32 {
    answer_call(client, session, write(content), option).await
}

/// As `answer_always`, with any call.
async fn answer_call(client: &mut TestClient, session: &str, event: ModelEvent, option: &str) -> u32 {
    let id = client.prompt(session, "write").await;
    let read = call("read", "read_file", json!({ "path": "a.txt" }));
    for event in [read, event, ModelEvent::Stop(ModelStop::Done), ModelEvent::Stop(ModelStop::Done)] {
        client.model.say(session, Ok(event));
    }
    let mut request_count = 0;
    loop {
        let message = client.next().await;
        if message["method"] == "session/request_permission" {
            request_count += 1;
            let outcome = json!({ "outcome": "selected", "optionId": option });
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "outcome": outcome } });
            client.send_line(&answer.to_string()).await;
        } else if message["id"] == id && message.get("method").is_none() {
            return request_count;
        }
    }
}

/// Forks a session. Returns the fork's id and the answer.
async fn fork(client: &mut TestClient, session: &str) -> (String, Value) {
    let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let answer = client.call("session/fork", params).await;
    let id = answer["result"]["sessionId"].as_str().unwrap_or_default().to_owned();
    if !id.is_empty() {
        client.next().await;
    }
    (id, answer)
}

fn text_of(messages: &[Value]) -> String {
    let text = messages.iter().map(|message| message["params"]["update"]["content"]["text"].as_str());
    text.map(Option::unwrap_or_default).collect()
}

async fn findings(fixture: &StoreFixture, session: &str) -> Vec<String> {
    report(&fixture.store(), session, None).await.findings
}

#[tokio::test]
async fn resumed_request_repeats_earlier_turns_exactly() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(code());
    let session = client.session().await;
    let read = |id: &str| call(id, "read_file", json!({ "path": "none.txt" }));
    let steps: &[&[ModelEvent]] = &[
        &[text("I look."), read("x1")],
        &[read("x2"), read("x3")],
        &[ModelEvent::Thought("Hm.".into()), text("Still."), read("x4")],
        &[text("Final.")],
    ];
    turn(&mut client, &session, "first", steps).await;
    turn(&mut client, &session, "second", &[&[read("x5")], &[text("Done.")]]).await;
    let mut last = None;
    for _ in 0..6 {
        last = Some(client.model.next_request(&session).await);
    }
    let (live, _) = (last.unwrap().messages, client.end().await);
    let mut client = fixture.agent(code());
    open(&mut client, "session/resume", &session).await;
    turn(&mut client, &session, "third", &[&[]]).await;
    let again = client.model.next_request(&session).await.messages;
    assert_eq!(format!("{:?}", &again[..live.len()]), format!("{live:?}"));
    assert_eq!(again.len(), live.len() + 2, "the last answer and the new prompt");
    client.end().await;
}

#[tokio::test]
async fn always_grants_exclude_forks_and_other_folders() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup::default());
    let session = client.session().await;
    assert_eq!(allow_always(&mut client, &session, "1").await, 1);
    let (copy, _) = fork(&mut client, &session).await;
    assert_eq!(allow_always(&mut client, &copy, "2").await, 1, "in the copy it is asked for");
    assert_eq!(allow_always(&mut client, &session, "3").await, 0, "the control");
    client.end().await;
    let other = tempfile::tempdir().unwrap();
    let mut client = fixture.agent(Setup::default());
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let params = json!({ "sessionId": session, "cwd": other.path(), "mcpServers": [] });
    client.call("session/resume", params.clone()).await;
    client.next().await;
    client.call("session/close", json!({ "sessionId": session })).await;
    client.call("session/resume", params).await;
    client.next().await;
    assert_eq!(
        allow_always(&mut client, &session, "4").await,
        1,
        "elsewhere it is asked for, also the second time"
    );
    client.end().await;
    for id in [session, copy] {
        assert_eq!(findings(&fixture, &id).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn audit_handles_sessions_moved_to_another_folder() {
    let fixture = StoreFixture::real();
    let client = fixture.agent(Setup::default());
    let rules =
        layers(&format!("permissions:\n  allow: [\"write_file({}/**)\"]\n", client.cwd().display())).rules;
    client.end().await;
    let setup = || Setup { rules: rules.clone(), ..Setup::default() };
    let mut client = fixture.agent(setup());
    let session = client.session().await;
    turn(&mut client, &session, "write", &[&[write("1")], &[]]).await;
    assert!(client.cwd().join("a.txt").exists(), "the rule allows it");
    client.end().await;
    let other = tempfile::tempdir().unwrap();
    let mut client = fixture.agent(setup());
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let params = json!({ "sessionId": session, "cwd": other.path(), "mcpServers": [] });
    client.call("session/resume", params).await;
    client.next().await;
    client.end().await;
    assert_eq!(findings(&fixture, &session).await, Vec::<String>::new());
}

#[tokio::test]
async fn missing_chain_is_found_and_late_chains_are_valid() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(code());
    let session = client.session().await;
    turn(&mut client, &session, "write", &[&[write("1")], &[]]).await;
    client.end().await;
    let record = Connection::open(fixture.store()).unwrap();
    record.execute_batch("DELETE FROM chain").unwrap();
    assert_eq!(findings(&fixture, &session).await, ["the chain was deleted"]);
    // As in a store that was written before chains existed.
    record.execute_batch("UPDATE sessions SET chained = 0").unwrap();
    assert_eq!(findings(&fixture, &session).await, Vec::<String>::new());
    let mut client = fixture.agent(code());
    open(&mut client, "session/resume", &session).await;
    set_mode(&mut client, &session, "plan").await;
    set_mode(&mut client, &session, "code").await;
    turn(&mut client, &session, "write", &[&[write("2")], &[]]).await;
    client.end().await;
    let whole = report(&fixture.store(), &session, None).await;
    assert_eq!((whole.findings, whole.calls), (vec![], 1));
    record.execute_batch("DELETE FROM mode_changes WHERE id = 1").unwrap();
    assert!(!findings(&fixture, &session).await.is_empty(), "also of what is older, nothing may be missing");
}

#[tokio::test]
async fn fork_of_session_with_missing_mode_starts_own_chain() {
    let fixture = StoreFixture::new();
    let modes = layers("modes:\n  - id: docs\n    extends: code\n").modes;
    let mut client = fixture.agent(Setup { modes, mode: "docs", ..Setup::default() });
    let session = client.session().await;
    turn(&mut client, &session, "write", &[&[write("1")], &[]]).await;
    client.end().await;
    let mut client = fixture.agent(Setup::default());
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let (copy, answer) = fork(&mut client, &session).await;
    assert_eq!(answer["result"]["modes"]["currentModeId"], "plan");
    turn(&mut client, &copy, "write", &[&[write("2")], &[]]).await;
    client.end().await;
    assert_eq!(findings(&fixture, &copy).await, Vec::<String>::new());
}

#[tokio::test]
async fn unrecorded_tightening_applies_after_resume() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(code());
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    let away = fixture.folder.path().join("away.db");
    std::fs::rename(fixture.store(), &away).unwrap();
    let plan = json!({ "sessionId": session, "modeId": "plan" });
    assert_eq!(client.call("session/set_mode", plan).await["error"]["code"], -32603);
    let request = client.request("session/delete", json!({ "sessionId": session })).await;
    let deleted = client.until_answer(request).await.pop().unwrap();
    assert_eq!(deleted["error"]["code"], -32603, "{deleted}");
    std::fs::rename(&away, fixture.store()).unwrap();
    let (_, refused) = fork(&mut client, &session).await;
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
    let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let answer = client.call("session/resume", params).await;
    client.next().await;
    assert_eq!(answer["result"]["modes"]["currentModeId"], "code", "what the record says");
    turn(&mut client, &session, "write", &[&[write("1")], &[]]).await;
    assert!(!client.cwd().join("a.txt").exists());
    // A recorded change ends the restriction.
    set_mode(&mut client, &session, "ask").await;
    set_mode(&mut client, &session, "code").await;
    turn(&mut client, &session, "write", &[&[write("2")], &[]]).await;
    assert!(client.cwd().join("a.txt").exists(), "the control");
    let (copy, _) = fork(&mut client, &session).await;
    assert!(!copy.is_empty(), "the control");
    client.end().await;
}

#[tokio::test]
async fn fork_during_a_turn_includes_visible_events() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(code());
    let session = client.session().await;
    set_mode(&mut client, &session, "ask").await;
    set_mode(&mut client, &session, "code").await;
    let id = client.prompt(&session, "go").await;
    client.model.say(&session, Ok(write("1")));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    for _ in 0..2 {
        client.model.next_request(&session).await;
    }
    let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let request = client.request("session/fork", params).await;
    let seen = client.until_answer(request).await;
    let copy = seen.last().unwrap()["result"]["sessionId"].as_str().unwrap().to_owned();
    assert!(seen.iter().any(|message| message["params"]["update"]["status"] == "completed"));
    client.next().await;
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.until_answer(id).await;
    client.end().await;
    let record = Connection::open(fixture.store()).unwrap();
    let sql = "SELECT group_concat(kind || body) FROM events WHERE session_id = ?1";
    let all: String = record.query_row(sql, [&copy], |row| row.get(0)).unwrap();
    assert!(all.contains("\"completed\"") && !all.contains("Interrupted"), "{all}");
    assert_eq!(all.matches("mode_change").count(), 2);
}

#[tokio::test]
async fn close_during_a_command_keeps_changes_undoable() {
    for sandbox in SANDBOXES {
        let home = tempfile::tempdir().unwrap();
        let fixture = StoreFixture::new();
        let mut client = fixture.agent(with_shell(home.path(), sandbox));
        let file = client.cwd().join("a.txt");
        std::fs::write(&file, "one\n").unwrap();
        let session = client.session().await;
        client.prompt(&session, "go").await;
        let line = "echo two > a.txt; sleep 100";
        client.model.say(&session, Ok(call("s", "shell", json!({ "command": line }))));
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        until_content(&file, "two\n").await;
        let close = client.request("session/close", json!({ "sessionId": session })).await;
        client.until_answer(close).await;
        client.end().await;
        let mut client = fixture.agent(with_shell(home.path(), sandbox));
        open(&mut client, "session/resume", &session).await;
        let answer = text_of(&turn(&mut client, &session, "/undo", &[]).await);
        assert!(answer.contains("the changes of turn 1"), "{answer}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\n");
        client.end().await;
    }
}

#[tokio::test]
async fn background_job_changes_are_undone() {
    for sandbox in SANDBOXES {
        let home = tempfile::tempdir().unwrap();
        let fixture = StoreFixture::new();
        let mut client = fixture.agent(with_shell(home.path(), sandbox));
        let file = client.cwd().join("a.txt");
        std::fs::write(&file, "one\n").unwrap();
        let session = client.session().await;
        let id = client.prompt(&session, "go").await;
        client.model.say(
            &session,
            Ok(call("s", "shell", json!({ "command": "echo two > a.txt", "background": true }))),
        );
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        until_content(&file, "two\n").await;
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        client.until_answer(id).await;
        let answer = text_of(&turn(&mut client, &session, "/undo", &[]).await);
        assert!(
            answer.contains("the changes of turn 1") && answer.contains("Note: Commands ran"),
            "{answer}"
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\n");
        client.end().await;
    }
}

#[tokio::test]
async fn undo_completes_a_partly_restored_turn() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(code());
    std::fs::write(client.cwd().join("a.txt"), "one\n").unwrap();
    std::fs::write(client.cwd().join("e.txt"), "e\n").unwrap();
    let session = client.session().await;
    let write = |path: &str| call(path, "write_file", json!({ "path": path, "content": "changed" }));
    let writes = ["a.txt", "b.txt", "c.txt", "d/d.txt", "e.txt"].map(write);
    turn(&mut client, &session, "write", &[&writes, &[]]).await;
    // One file has its old content, and the new files and the folder are gone.
    std::fs::write(client.cwd().join("a.txt"), "one\n").unwrap();
    std::fs::remove_file(client.cwd().join("c.txt")).unwrap();
    std::fs::remove_dir_all(client.cwd().join("d")).unwrap();
    let answer = text_of(&turn(&mut client, &session, "/undo", &[]).await);
    assert!(answer.contains("the changes of turn 1"), "{answer}");
    assert!(!client.cwd().join("b.txt").exists() && !client.cwd().join("d").exists());
    assert_eq!(std::fs::read_to_string(client.cwd().join("e.txt")).unwrap(), "e\n");
    let answer = text_of(&turn(&mut client, &session, "/undo 1", &[]).await);
    assert!(answer.contains("turn 1 was already undone"), "{answer}");
    client.end().await;
}

#[tokio::test]
async fn unusable_store_is_reported_instead_of_not_found() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup::default());
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    client.end().await;
    let record = Connection::open(fixture.store()).unwrap();
    record.pragma_update(None, "user_version", 999).unwrap();
    let mut client = fixture.agent(Setup::default());
    let answer = open(&mut client, "session/load", &session).await;
    assert_eq!(answer[0]["error"]["code"], -32603);
    assert!(answer[0]["error"]["message"].as_str().unwrap().contains("newer Modegate"), "{answer:?}");
    let list = client.call("session/list", json!({})).await;
    assert!(list["result"]["_meta"]["modegate/notice"].as_str().unwrap().contains("newer Modegate"));
    client.end().await;
}

#[tokio::test]
async fn session_load_replays_the_mode_of_each_moment() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "ask", ..Setup::default() });
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    set_mode(&mut client, &session, "plan").await;
    client.end().await;
    let choice = "UPDATE events SET seq = seq + 100 WHERE kind = 'mode_change'; \
        INSERT INTO events SELECT session_id, 50, 1, 'model_change', '{\"model\":\"offline\",\"effort\":\"default\"}', at \
        FROM events LIMIT 1";
    Connection::open(fixture.store()).unwrap().execute_batch(choice).unwrap();
    let mut client = fixture.agent(Setup::default());
    let messages = open(&mut client, "session/load", &session).await;
    let modes: Vec<Value> = updates(&messages)
        .into_iter()
        .filter(|update| update["sessionUpdate"] == "config_option_update")
        .map(|update| update["configOptions"][0]["currentValue"].clone())
        .collect();
    assert_eq!(modes, ["ask", "plan"]);
    client.end().await;
}

#[tokio::test]
async fn mode_change_applies_while_load_output_is_unread() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(code());
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    client.call("session/close", json!({ "sessionId": session })).await;
    let record = Connection::open(fixture.store()).unwrap();
    let last: i64 = record.query_row("SELECT max(seq) FROM events", [], |row| row.get(0)).unwrap();
    let store = Store::open(StoreLocation::File(fixture.store()), Sync::Normal).unwrap();
    for number in 1..=3000 {
        store.post(Row::Event {
            session: SessionId::new(session.as_str()),
            seq: last.cast_unsigned() + number,
            turn: 1,
            at: 2,
            event: SessionEvent::Notice {
                message_id: MessageId::new(format!("n{number}")),
                kind: NoticeKind::Message,
                text: "x".into(),
            },
        });
    }
    store.flush().await.unwrap();
    open(&mut client, "session/resume", &session).await;
    let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let load = client.request("session/load", params).await;
    client.request("session/set_mode", json!({ "sessionId": session, "modeId": "plan" })).await;
    let mode = || -> String { record.query_row("SELECT mode FROM sessions", [], |row| row.get(0)).unwrap() };
    until("plan mode in the store", || mode() == "plan").await;
    // When the client reads again, it gets all updates before the answer.
    let messages = client.until_answer(load).await;
    let text_of =
        |message: &Value| message["params"]["update"]["content"]["text"].as_str().map(str::to_owned);
    let notices = messages.iter().filter_map(text_of).filter(|text| text.trim() == "x");
    assert_eq!(notices.count(), 3000);
    client.next().await;
    client.end().await;
}

#[tokio::test]
async fn pending_store_writes_lock_out_other_processes() {
    let fixture = StoreFixture::new();
    let mut one = fixture.agent(code());
    let session = one.session().await;
    turn(&mut one, &session, "one", &[&[text("1.")]]).await;
    let away = fixture.folder.path().join("away.db");
    std::fs::rename(fixture.store(), &away).unwrap();
    turn(&mut one, &session, "two", &[&[write("1")], &[text("2.")]]).await;
    let doomed = one.session().await;
    let request = one.request("session/delete", json!({ "sessionId": doomed })).await;
    let deleted = one.until_answer(request).await.pop().unwrap();
    assert_eq!(deleted["error"]["code"], -32603, "what is not certain is not said");
    one.call("session/close", json!({ "sessionId": session })).await;
    std::fs::rename(&away, fixture.store()).unwrap();
    let mut other = fixture.agent(code());
    let refused = open(&mut other, "session/load", &session).await;
    assert_eq!(refused[0]["error"]["code"], -32600, "{refused:?}");
    // The next write succeeds, and the lock is released.
    let next = one.session().await;
    turn(&mut one, &next, "x", &[&[text("y")]]).await;
    let params = json!({ "sessionId": session, "cwd": other.cwd(), "mcpServers": [] });
    other.call("session/resume", params).await;
    other.next().await;
    turn(&mut other, &session, "three", &[&[text("3.")]]).await;
    one.call("session/delete", json!({ "sessionId": doomed })).await;
    one.end().await;
    other.end().await;
    let record = Connection::open(fixture.store()).unwrap();
    let sql = "SELECT group_concat(json_extract(body, '$.text'), ' ') FROM events WHERE session_id = ?1 AND kind = 'agent_text'";
    let all: String = record.query_row(sql, [&session], |row| row.get(0)).unwrap();
    assert_eq!(all, "1. 2. 3.");
    assert_eq!(findings(&fixture, &session).await, Vec::<String>::new());
    let gone: i64 =
        record.query_row("SELECT count(*) FROM sessions WHERE id = ?1", [&doomed], |row| row.get(0)).unwrap();
    assert_eq!(gone, 0);
}

#[tokio::test]
async fn unsent_chain_head_is_sent_with_the_next_answer() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(code());
    let session = client.session().await;
    let id = client.prompt(&session, "go").await;
    client.model.say(&session, Ok(write("1")));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.model.say(&session, Err(ModelError::new("the model failed")));
    assert!(client.until_answer(id).await.last().unwrap().get("error").is_some());
    let messages = turn(&mut client, &session, "again", &[&[text("ok")]]).await;
    assert!(messages.last().unwrap()["result"]["_meta"]["modegate/head"].is_object());
    let messages = turn(&mut client, &session, "again", &[&[text("ok")]]).await;
    assert!(messages.last().unwrap()["result"].get("_meta").is_none(), "no news");
    client.end().await;
}

#[tokio::test]
async fn concurrent_processes_get_separate_store_locks() {
    for round in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let (path, barrier) = (dir.path().join("store.db"), Arc::new(Barrier::new(6)));
        let begin = |_| {
            let (path, barrier) = (path.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                barrier.wait();
                Store::open(StoreLocation::File(path), Sync::Normal).unwrap()
            })
        };
        let threads: Vec<_> = (0..6).map(begin).collect();
        let stores: Vec<Store> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        for store in &stores {
            assert!(store.private_folder().await.is_some(), "round {round}");
        }
        let files = std::fs::read_dir(dir.path().join("store.db-owners")).unwrap().count();
        assert_eq!(files, stores.len(), "round {round}");
    }
}

#[tokio::test]
async fn call_events_are_stored_before_chain_entries() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(code());
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    // A kill between the two would leave a chain entry for an unknown call.
    let watch = "CREATE TRIGGER watch BEFORE INSERT ON chain WHEN json_extract(NEW.body, '$.entry') = 'call' AND NOT EXISTS \
        (SELECT 1 FROM events WHERE kind = 'tool_call' AND json_extract(body, '$.id') = json_extract(NEW.body, '$.call')) \
        BEGIN SELECT RAISE(ABORT, 'too early'); END";
    Connection::open(fixture.store()).unwrap().execute_batch(watch).unwrap();
    turn(&mut client, &session, "write", &[&[write("1"), write("2")], &[write("3")], &[]]).await;
    client.end().await;
    let whole = report(&fixture.store(), &session, None).await;
    assert_eq!((whole.findings, whole.calls), (vec![], 3));
}

#[tokio::test]
async fn always_rejections_cover_forks_and_other_folders() {
    let fixture = StoreFixture::new();
    let other = tempfile::tempdir().unwrap();
    let mut client = fixture.agent(Setup::default());
    let session = client.session().await;
    assert_eq!(answer_always(&mut client, &session, "1", "reject_always").await, 1);
    let (copy, _) = fork(&mut client, &session).await;
    assert_eq!(allow_always(&mut client, &copy, "2").await, 0, "it is not even asked");
    client.call("session/close", json!({ "sessionId": session })).await;
    let params = json!({ "sessionId": session, "cwd": other.path(), "mcpServers": [] });
    client.call("session/resume", params).await;
    client.next().await;
    assert_eq!(allow_always(&mut client, &session, "3").await, 0);
    assert!(!client.cwd().join("a.txt").exists() && !other.path().join("a.txt").exists());
    client.end().await;
}

#[tokio::test]
async fn outdated_always_grants_are_dropped_with_a_notice() {
    const DROPPED_GRANTS_NOTICE: &str = "come from an earlier version";
    let home = tempfile::tempdir().unwrap();
    let fixture = StoreFixture::new();
    let setup = || Setup {
        tools: Toolset::built_in().with_shell(shell(home.path(), Sandbox::Off)),
        ..Setup::default()
    };
    let run = |id: &str, line: &str| call(id, "shell", json!({ "command": line }));
    let mut client = fixture.agent(setup());
    let session = client.session().await;
    assert_eq!(answer_call(&mut client, &session, run("1", "true"), "allow_always").await, 1);
    assert_eq!(answer_call(&mut client, &session, run("2", "false"), "reject_always").await, 1);
    assert_eq!(allow_always(&mut client, &session, "3").await, 1);
    client.end().await;
    // As an earlier version stored them.
    let record = Connection::open(fixture.store()).unwrap();
    let old = "UPDATE grants SET kind = 'command', value = CASE allows WHEN 1 THEN 'true' ELSE 'false' END WHERE kind = 'line'";
    assert_eq!(record.execute(old, []).unwrap(), 2);
    drop(record);
    for (time, request_count) in [1, 0].into_iter().enumerate() {
        let mut client = fixture.agent(setup());
        open(&mut client, "session/resume", &session).await;
        let messages = turn(&mut client, &session, "go", &[&[text("done")]]).await;
        assert_eq!(format!("{messages:?}").contains(DROPPED_GRANTS_NOTICE), time == 0, "{messages:?}");
        let id = time.to_string();
        assert_eq!(
            answer_call(&mut client, &session, run(&format!("a{id}"), "true"), "allow_always").await,
            request_count
        );
        assert_eq!(
            answer_call(&mut client, &session, run(&format!("b{id}"), "true; false"), "allow_once").await,
            0,
            "rejected still"
        );
        assert_eq!(allow_always(&mut client, &session, &format!("c{id}")).await, 0, "the control");
        client.end().await;
    }
}
