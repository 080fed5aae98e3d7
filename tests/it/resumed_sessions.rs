//! Sessions that are opened again, copied, moved, closed in the middle of something, or fought over: nothing gets wider, and
//! nothing is lost or told wrongly.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use modegate::acp::{MessageId, SessionId};
use modegate::event::SessionEvent;
use modegate::model::{ModelError, ModelEvent, ModelStop};
use modegate::policy::{Layers, Owner};
use modegate::process::shell::Sandbox;
use modegate::store::{Location, Row, Store, Sync};
use modegate::tool::Toolset;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::sessions::{Place, call, open, set_mode, text, turn, updates};
use crate::support::{Setup, TestClient, shell};
use crate::undo::report;

fn with_shell(home: &std::path::Path) -> Setup {
    let tools = Toolset::built_in().with_shell(shell(home, Sandbox::Workspace));
    Setup { tools, ..code() }
}

fn code() -> Setup {
    Setup { mode: "code", ..Setup::default() }
}

fn layers(yaml: &str) -> Layers {
    let mut layers = Layers::default();
    layers.add("modes.yaml", yaml, Owner::User).unwrap();
    layers
}

fn write(content: &str) -> ModelEvent {
    call(content, "write_file", json!({ "path": "a.txt", "content": content }))
}

/// A prompt whose one write is allowed once and for all; how often the user was asked.
async fn allow_always(client: &mut TestClient, session: &str, content: &str) -> u32 {
    answer_always(client, session, content, "allow_always").await
}

/// A prompt with one write, about which the user says the same once and for all; how often the user was asked.
async fn answer_always(client: &mut TestClient, session: &str, content: &str, option: &str) -> u32 {
    answer_call(client, session, write(content), option).await
}

/// The same with another call.
async fn answer_call(client: &mut TestClient, session: &str, event: ModelEvent, option: &str) -> u32 {
    let id = client.prompt(session, "write").await;
    for event in [event, ModelEvent::Stop(ModelStop::Done), ModelEvent::Stop(ModelStop::Done)] {
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

/// Copies a session; the copy's id, and the answer.
async fn fork(client: &mut TestClient, session: &str) -> (String, Value) {
    let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let answer = client.call("session/fork", params).await;
    let id = answer["result"]["sessionId"].as_str().unwrap_or_default().to_owned();
    if !id.is_empty() {
        client.next().await;
    }
    (id, answer)
}

/// A file's content once it has it: what runs beside the turn is not told of.
async fn until_file(path: &std::path::Path, content: &str) {
    let wait = async {
        while std::fs::read_to_string(path).unwrap_or_default() != content {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::support::TIMEOUT, wait).await.expect("it is written");
}

fn text_of(messages: &[Value]) -> String {
    let text = messages.iter().map(|message| message["params"]["update"]["content"]["text"].as_str());
    text.map(Option::unwrap_or_default).collect()
}

async fn findings(place: &Place, session: &str) -> Vec<String> {
    report(&place.store(), session, None).await.findings
}

#[tokio::test]
async fn the_model_is_told_of_earlier_turns_as_it_was_when_they_were_new() {
    let place = Place::new();
    let mut client = place.agent(code());
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
    let mut client = place.agent(code());
    open(&mut client, "session/resume", &session).await;
    turn(&mut client, &session, "third", &[&[]]).await;
    let again = client.model.next_request(&session).await.messages;
    assert_eq!(format!("{:?}", &again[..live.len()]), format!("{live:?}"));
    assert_eq!(again.len(), live.len() + 2, "the last answer and the new prompt");
    client.end().await;
}

#[tokio::test]
async fn what_was_allowed_once_and_for_all_was_allowed_in_these_folders_and_not_in_a_copy() {
    let place = Place::new();
    let mut client = place.agent(Setup::default());
    let session = client.session().await;
    assert_eq!(allow_always(&mut client, &session, "1").await, 1);
    let (copy, _) = fork(&mut client, &session).await;
    assert_eq!(allow_always(&mut client, &copy, "2").await, 1, "in the copy it is asked for");
    assert_eq!(allow_always(&mut client, &session, "3").await, 0, "the control");
    client.end().await;
    let other = tempfile::tempdir().unwrap();
    let mut client = place.agent(Setup::default());
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
        assert_eq!(findings(&place, &id).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_audit_knows_where_files_lay_when_a_session_has_moved() {
    let place = Place::real();
    let client = place.agent(Setup::default());
    let rules =
        layers(&format!("permissions:\n  allow: [\"write_file({}/**)\"]\n", client.cwd().display())).rules;
    client.end().await;
    let setup = || Setup { rules: rules.clone(), ..Setup::default() };
    let mut client = place.agent(setup());
    let session = client.session().await;
    turn(&mut client, &session, "write", &[&[write("1")], &[]]).await;
    assert!(client.cwd().join("a.txt").exists(), "the rule allows it");
    client.end().await;
    let other = tempfile::tempdir().unwrap();
    let mut client = place.agent(setup());
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let params = json!({ "sessionId": session, "cwd": other.path(), "mcpServers": [] });
    client.call("session/resume", params).await;
    client.next().await;
    client.end().await;
    assert_eq!(findings(&place, &session).await, Vec::<String>::new());
}

#[tokio::test]
async fn chains_that_begin_late_say_so_and_one_that_is_gone_is_missed() {
    let place = Place::new();
    let mut client = place.agent(code());
    let session = client.session().await;
    turn(&mut client, &session, "write", &[&[write("1")], &[]]).await;
    client.end().await;
    let record = Connection::open(place.store()).unwrap();
    record.execute_batch("DELETE FROM chain").unwrap();
    assert_eq!(findings(&place, &session).await, ["the chain was deleted"]);
    // As in a record from before there were chains.
    record.execute_batch("UPDATE sessions SET chained = 0").unwrap();
    assert_eq!(findings(&place, &session).await, Vec::<String>::new());
    let mut client = place.agent(code());
    open(&mut client, "session/resume", &session).await;
    set_mode(&mut client, &session, "plan").await;
    set_mode(&mut client, &session, "code").await;
    turn(&mut client, &session, "write", &[&[write("2")], &[]]).await;
    client.end().await;
    let whole = report(&place.store(), &session, None).await;
    assert_eq!((whole.findings, whole.calls), (vec![], 1));
    record.execute_batch("DELETE FROM mode_changes WHERE id = 1").unwrap();
    assert!(!findings(&place, &session).await.is_empty(), "also of what is older, nothing may be missing");
}

#[tokio::test]
async fn a_copy_of_a_session_whose_mode_is_gone_begins_a_chain_of_its_own() {
    let place = Place::new();
    let modes = layers("modes:\n  - id: docs\n    extends: code\n").modes;
    let mut client = place.agent(Setup { modes, mode: "docs", ..Setup::default() });
    let session = client.session().await;
    turn(&mut client, &session, "write", &[&[write("1")], &[]]).await;
    client.end().await;
    let mut client = place.agent(Setup::default());
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let (copy, answer) = fork(&mut client, &session).await;
    assert_eq!(answer["result"]["modes"]["currentModeId"], "plan");
    turn(&mut client, &copy, "write", &[&[write("2")], &[]]).await;
    client.end().await;
    assert_eq!(findings(&place, &copy).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_tighter_mode_that_could_not_be_recorded_holds_when_the_session_is_opened_again() {
    let place = Place::new();
    let mut client = place.agent(code());
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    let away = place.folder.path().join("away.db");
    std::fs::rename(place.store(), &away).unwrap();
    let plan = json!({ "sessionId": session, "modeId": "plan" });
    assert_eq!(client.call("session/set_mode", plan).await["error"]["code"], -32603);
    let request = client.request("session/delete", json!({ "sessionId": session })).await;
    let deleted = client.until_answer(request).await.pop().unwrap();
    assert_eq!(deleted["error"]["code"], -32603, "{deleted}");
    std::fs::rename(&away, place.store()).unwrap();
    let (_, refused) = fork(&mut client, &session).await;
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
    let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let answer = client.call("session/resume", params).await;
    client.next().await;
    assert_eq!(answer["result"]["modes"]["currentModeId"], "code", "what the record says");
    turn(&mut client, &session, "write", &[&[write("1")], &[]]).await;
    assert!(!client.cwd().join("a.txt").exists());
    // A change that is recorded ends the hold.
    set_mode(&mut client, &session, "ask").await;
    set_mode(&mut client, &session, "code").await;
    turn(&mut client, &session, "write", &[&[write("2")], &[]]).await;
    assert!(client.cwd().join("a.txt").exists(), "the control");
    let (copy, _) = fork(&mut client, &session).await;
    assert!(!copy.is_empty(), "the control");
    client.end().await;
}

#[tokio::test]
async fn a_copy_made_in_the_middle_of_a_turn_has_what_was_seen() {
    let place = Place::new();
    let mut client = place.agent(code());
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
    let record = Connection::open(place.store()).unwrap();
    let sql = "SELECT group_concat(kind || body) FROM events WHERE session_id = ?1";
    let all: String = record.query_row(sql, [&copy], |row| row.get(0)).unwrap();
    assert!(all.contains("\"completed\"") && !all.contains("Interrupted"), "{all}");
    assert_eq!(all.matches("mode_change").count(), 2);
}

#[tokio::test]
async fn what_a_turn_changed_is_kept_although_the_session_is_closed_in_the_middle() {
    let home = tempfile::tempdir().unwrap();
    let place = Place::new();
    let mut client = place.agent(with_shell(home.path()));
    let file = client.cwd().join("a.txt");
    std::fs::write(&file, "one\n").unwrap();
    let session = client.session().await;
    client.prompt(&session, "go").await;
    let line = "echo two > a.txt; sleep 100";
    client.model.say(&session, Ok(call("s", "shell", json!({ "command": line }))));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    until_file(&file, "two\n").await;
    let close = client.request("session/close", json!({ "sessionId": session })).await;
    client.until_answer(close).await;
    client.end().await;
    let mut client = place.agent(with_shell(home.path()));
    open(&mut client, "session/resume", &session).await;
    let answer = text_of(&turn(&mut client, &session, "/undo", &[]).await);
    assert!(answer.contains("the state before turn 1"), "{answer}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\n");
    client.end().await;
}

#[tokio::test]
async fn what_a_job_in_the_background_changed_in_its_turn_is_put_back() {
    let home = tempfile::tempdir().unwrap();
    let place = Place::new();
    let mut client = place.agent(with_shell(home.path()));
    let file = client.cwd().join("a.txt");
    std::fs::write(&file, "one\n").unwrap();
    let session = client.session().await;
    let id = client.prompt(&session, "go").await;
    client.model.say(&session, Ok(call("s", "run_background_job", json!({ "command": "echo two > a.txt" }))));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    until_file(&file, "two\n").await;
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.until_answer(id).await;
    let answer = text_of(&turn(&mut client, &session, "/undo", &[]).await);
    assert!(answer.contains("the state before turn 1") && answer.contains("Note: Commands ran"), "{answer}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\n");
    client.end().await;
}

#[tokio::test]
async fn an_undo_that_was_stopped_half_way_is_finished_by_the_next() {
    let place = Place::new();
    let mut client = place.agent(code());
    std::fs::write(client.cwd().join("a.txt"), "one\n").unwrap();
    std::fs::write(client.cwd().join("e.txt"), "e\n").unwrap();
    let session = client.session().await;
    let write = |path: &str| call(path, "write_file", json!({ "path": path, "content": "changed" }));
    let writes = ["a.txt", "b.txt", "c.txt", "d/d.txt", "e.txt"].map(write);
    turn(&mut client, &session, "write", &[&writes, &[]]).await;
    // A file as before, and files and a folder that are gone again.
    std::fs::write(client.cwd().join("a.txt"), "one\n").unwrap();
    std::fs::remove_file(client.cwd().join("c.txt")).unwrap();
    std::fs::remove_dir_all(client.cwd().join("d")).unwrap();
    let answer = text_of(&turn(&mut client, &session, "/undo", &[]).await);
    assert!(answer.contains("the state before turn 1"), "{answer}");
    assert!(!client.cwd().join("b.txt").exists() && !client.cwd().join("d").exists());
    assert_eq!(std::fs::read_to_string(client.cwd().join("e.txt")).unwrap(), "e\n");
    let answer = text_of(&turn(&mut client, &session, "/undo 1", &[]).await);
    assert!(answer.contains("turn 1 was already undone"), "{answer}");
    client.end().await;
}

#[tokio::test]
async fn where_the_store_cannot_be_used_it_is_said_instead_of_not_found() {
    let place = Place::new();
    let mut client = place.agent(Setup::default());
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    client.end().await;
    let record = Connection::open(place.store()).unwrap();
    record.pragma_update(None, "user_version", 999).unwrap();
    let mut client = place.agent(Setup::default());
    let answer = open(&mut client, "session/load", &session).await;
    assert_eq!(answer[0]["error"]["code"], -32603);
    assert!(answer[0]["error"]["message"].as_str().unwrap().contains("newer Modegate"), "{answer:?}");
    let list = client.call("session/list", json!({})).await;
    assert!(list["result"]["_meta"]["modegate/notice"].as_str().unwrap().contains("newer Modegate"));
    client.end().await;
}

#[tokio::test]
async fn a_replay_shows_the_mode_that_was_on_then() {
    let place = Place::new();
    let mut client = place.agent(Setup { mode: "ask", ..Setup::default() });
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    set_mode(&mut client, &session, "plan").await;
    client.end().await;
    let choice = "UPDATE events SET seq = seq + 100 WHERE kind = 'mode_change'; \
        INSERT INTO events SELECT session_id, 50, 1, 'model_change', '{\"model\":\"offline\",\"effort\":\"default\"}', at \
        FROM events LIMIT 1";
    Connection::open(place.store()).unwrap().execute_batch(choice).unwrap();
    let mut client = place.agent(Setup::default());
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
async fn a_mode_change_is_heard_while_a_session_is_shown_to_a_client_that_does_not_read() {
    let place = Place::new();
    let mut client = place.agent(code());
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    client.call("session/close", json!({ "sessionId": session })).await;
    let record = Connection::open(place.store()).unwrap();
    let last: i64 = record.query_row("SELECT max(seq) FROM events", [], |row| row.get(0)).unwrap();
    let store = Store::open(Location::File(place.store()), Sync::Normal).unwrap();
    for number in 1..=3000 {
        store.post(Row::Event {
            session: SessionId::new(session.as_str()),
            seq: last.cast_unsigned() + number,
            turn: 1,
            at: 2,
            event: SessionEvent::Notice {
                message_id: MessageId::new(format!("n{number}")),
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
    let wait = async {
        while mode() != "plan" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::support::TIMEOUT, wait).await.expect("it is heard");
    // Now the client reads: everything is shown before the answer.
    let messages = client.until_answer(load).await;
    let notices = messages.iter().filter(|message| message["params"]["update"]["content"]["text"] == "x");
    assert_eq!(notices.count(), 3000);
    client.next().await;
    client.end().await;
}

#[tokio::test]
async fn what_could_not_be_written_yet_keeps_others_out_and_overwrites_nothing() {
    let place = Place::new();
    let mut one = place.agent(code());
    let session = one.session().await;
    turn(&mut one, &session, "one", &[&[text("1.")]]).await;
    let away = place.folder.path().join("away.db");
    std::fs::rename(place.store(), &away).unwrap();
    turn(&mut one, &session, "two", &[&[write("1")], &[text("2.")]]).await;
    let doomed = one.session().await;
    let request = one.request("session/delete", json!({ "sessionId": doomed })).await;
    let deleted = one.until_answer(request).await.pop().unwrap();
    assert_eq!(deleted["error"]["code"], -32603, "what is not certain is not said");
    one.call("session/close", json!({ "sessionId": session })).await;
    std::fs::rename(&away, place.store()).unwrap();
    let mut other = place.agent(code());
    let refused = open(&mut other, "session/load", &session).await;
    assert_eq!(refused[0]["error"]["code"], -32600, "{refused:?}");
    // With the next write everything is written, and it is let go of.
    let next = one.session().await;
    turn(&mut one, &next, "x", &[&[text("y")]]).await;
    let params = json!({ "sessionId": session, "cwd": other.cwd(), "mcpServers": [] });
    other.call("session/resume", params).await;
    other.next().await;
    turn(&mut other, &session, "three", &[&[text("3.")]]).await;
    one.call("session/delete", json!({ "sessionId": doomed })).await;
    one.end().await;
    other.end().await;
    let record = Connection::open(place.store()).unwrap();
    let sql = "SELECT group_concat(json_extract(body, '$.text'), ' ') FROM events WHERE session_id = ?1 AND kind = 'agent_text'";
    let all: String = record.query_row(sql, [&session], |row| row.get(0)).unwrap();
    assert_eq!(all, "1. 2. 3.");
    assert_eq!(findings(&place, &session).await, Vec::<String>::new());
    let gone: i64 =
        record.query_row("SELECT count(*) FROM sessions WHERE id = ?1", [&doomed], |row| row.get(0)).unwrap();
    assert_eq!(gone, 0);
}

#[tokio::test]
async fn a_head_counts_as_told_only_when_it_was() {
    let place = Place::new();
    let mut client = place.agent(code());
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
async fn each_process_keeps_its_lock_however_many_begin_at_once() {
    for round in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let (path, barrier) = (dir.path().join("store.db"), Arc::new(Barrier::new(6)));
        let begin = |_| {
            let (path, barrier) = (path.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                barrier.wait();
                Store::open(Location::File(path), Sync::Normal).unwrap()
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
async fn a_call_is_an_event_before_it_is_in_the_chain() {
    let place = Place::new();
    let mut client = place.agent(code());
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    // A kill between the two would leave a chain that speaks of a call that nobody knows.
    let watch = "CREATE TRIGGER watch BEFORE INSERT ON chain WHEN json_extract(NEW.body, '$.entry') = 'call' AND NOT EXISTS \
        (SELECT 1 FROM events WHERE kind = 'tool_call' AND json_extract(body, '$.id') = json_extract(NEW.body, '$.call')) \
        BEGIN SELECT RAISE(ABORT, 'too early'); END";
    Connection::open(place.store()).unwrap().execute_batch(watch).unwrap();
    turn(&mut client, &session, "write", &[&[write("1"), write("2")], &[write("3")], &[]]).await;
    client.end().await;
    let whole = report(&place.store(), &session, None).await;
    assert_eq!((whole.findings, whole.calls), (vec![], 3));
}

#[tokio::test]
async fn what_was_rejected_once_and_for_all_stays_rejected_in_a_copy_and_elsewhere() {
    let place = Place::new();
    let other = tempfile::tempdir().unwrap();
    let mut client = place.agent(Setup::default());
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
async fn an_always_of_an_earlier_version_is_dropped_and_the_user_is_told_once() {
    const TOLD: &str = "come from an earlier version";
    let home = tempfile::tempdir().unwrap();
    let place = Place::new();
    let setup = || Setup {
        tools: Toolset::built_in().with_shell(shell(home.path(), Sandbox::Off)),
        ..Setup::default()
    };
    let run = |id: &str, line: &str| call(id, "shell", json!({ "command": line }));
    let mut client = place.agent(setup());
    let session = client.session().await;
    assert_eq!(answer_call(&mut client, &session, run("1", "true"), "allow_always").await, 1);
    assert_eq!(answer_call(&mut client, &session, run("2", "false"), "reject_always").await, 1);
    assert_eq!(allow_always(&mut client, &session, "3").await, 1);
    client.end().await;
    // As an earlier version had kept them.
    let record = Connection::open(place.store()).unwrap();
    let old = "UPDATE grants SET kind = 'command', value = CASE allows WHEN 1 THEN 'true' ELSE 'false' END WHERE kind = 'line'";
    assert_eq!(record.execute(old, []).unwrap(), 2);
    drop(record);
    for (time, request_count) in [1, 0].into_iter().enumerate() {
        let mut client = place.agent(setup());
        open(&mut client, "session/resume", &session).await;
        let messages = turn(&mut client, &session, "go", &[&[text("done")]]).await;
        assert_eq!(format!("{messages:?}").contains(TOLD), time == 0, "{messages:?}");
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
