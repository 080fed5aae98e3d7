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
use crate::support::{Harness, Setup, shell};
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
async fn allow_always(h: &mut Harness, session: &str, content: &str) -> u32 {
    answer_always(h, session, content, "allow_always").await
}

/// A prompt with one write, about which the user says the same once and for all; how often the user was asked.
async fn answer_always(h: &mut Harness, session: &str, content: &str, option: &str) -> u32 {
    answer_call(h, session, write(content), option).await
}

/// The same with another call.
async fn answer_call(h: &mut Harness, session: &str, event: ModelEvent, option: &str) -> u32 {
    let id = h.prompt(session, "write").await;
    for event in [event, ModelEvent::Stop(ModelStop::Done), ModelEvent::Stop(ModelStop::Done)] {
        h.stage.say(session, Ok(event));
    }
    let mut asked = 0;
    loop {
        let message = h.next().await;
        if message["method"] == "session/request_permission" {
            asked += 1;
            let outcome = json!({ "outcome": "selected", "optionId": option });
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "outcome": outcome } });
            h.send_line(&answer.to_string()).await;
        } else if message["id"] == id && message.get("method").is_none() {
            return asked;
        }
    }
}

/// Copies a session; the copy's id, and the answer.
async fn fork(h: &mut Harness, session: &str) -> (String, Value) {
    let params = json!({ "sessionId": session, "cwd": h.cwd(), "mcpServers": [] });
    let answer = h.call("session/fork", params).await;
    let id = answer["result"]["sessionId"].as_str().unwrap_or_default().to_owned();
    if !id.is_empty() {
        h.next().await;
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
    tokio::time::timeout(crate::support::PATIENCE, wait).await.expect("it is written");
}

fn said(messages: &[Value]) -> String {
    let said = messages.iter().map(|message| message["params"]["update"]["content"]["text"].as_str());
    said.map(Option::unwrap_or_default).collect()
}

async fn findings(place: &Place, session: &str) -> Vec<String> {
    report(&place.store(), session, None).await.findings
}

#[tokio::test]
async fn the_model_is_told_of_earlier_turns_as_it_was_when_they_were_new() {
    let place = Place::new();
    let mut h = place.agent(code());
    let session = h.session().await;
    let read = |id: &str| call(id, "read_file", json!({ "path": "none.txt" }));
    let steps: &[&[ModelEvent]] = &[
        &[text("I look."), read("x1")],
        &[read("x2"), read("x3")],
        &[ModelEvent::Thought("Hm.".into()), text("Still."), read("x4")],
        &[text("Final.")],
    ];
    turn(&mut h, &session, "first", steps).await;
    turn(&mut h, &session, "second", &[&[read("x5")], &[text("Done.")]]).await;
    let mut last = None;
    for _ in 0..6 {
        last = Some(h.stage.next_request(&session).await);
    }
    let (live, _) = (last.unwrap().messages, h.end().await);
    let mut h = place.agent(code());
    open(&mut h, "session/resume", &session).await;
    turn(&mut h, &session, "third", &[&[]]).await;
    let again = h.stage.next_request(&session).await.messages;
    assert_eq!(format!("{:?}", &again[..live.len()]), format!("{live:?}"));
    assert_eq!(again.len(), live.len() + 2, "the last answer and the new prompt");
    h.end().await;
}

#[tokio::test]
async fn what_was_allowed_once_and_for_all_was_allowed_in_these_folders_and_not_in_a_copy() {
    let place = Place::new();
    let mut h = place.agent(Setup::default());
    let session = h.session().await;
    assert_eq!(allow_always(&mut h, &session, "1").await, 1);
    let (copy, _) = fork(&mut h, &session).await;
    assert_eq!(allow_always(&mut h, &copy, "2").await, 1, "in the copy it is asked for");
    assert_eq!(allow_always(&mut h, &session, "3").await, 0, "the control");
    h.end().await;
    let other = tempfile::tempdir().unwrap();
    let mut h = place.agent(Setup::default());
    h.call("initialize", json!({ "protocolVersion": 1 })).await;
    let params = json!({ "sessionId": session, "cwd": other.path(), "mcpServers": [] });
    h.call("session/resume", params.clone()).await;
    h.next().await;
    h.call("session/close", json!({ "sessionId": session })).await;
    h.call("session/resume", params).await;
    h.next().await;
    assert_eq!(
        allow_always(&mut h, &session, "4").await,
        1,
        "elsewhere it is asked for, also the second time"
    );
    h.end().await;
    for id in [session, copy] {
        assert_eq!(findings(&place, &id).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_audit_knows_where_files_lay_when_a_session_has_moved() {
    let place = Place::real();
    let h = place.agent(Setup::default());
    let rules = layers(&format!("permissions:\n  allow: [\"write_file({}/**)\"]\n", h.cwd().display())).rules;
    h.end().await;
    let setup = || Setup { rules: rules.clone(), ..Setup::default() };
    let mut h = place.agent(setup());
    let session = h.session().await;
    turn(&mut h, &session, "write", &[&[write("1")], &[]]).await;
    assert!(h.cwd().join("a.txt").exists(), "the rule allows it");
    h.end().await;
    let other = tempfile::tempdir().unwrap();
    let mut h = place.agent(setup());
    h.call("initialize", json!({ "protocolVersion": 1 })).await;
    let params = json!({ "sessionId": session, "cwd": other.path(), "mcpServers": [] });
    h.call("session/resume", params).await;
    h.next().await;
    h.end().await;
    assert_eq!(findings(&place, &session).await, Vec::<String>::new());
}

#[tokio::test]
async fn chains_that_begin_late_say_so_and_one_that_is_gone_is_missed() {
    let place = Place::new();
    let mut h = place.agent(code());
    let session = h.session().await;
    turn(&mut h, &session, "write", &[&[write("1")], &[]]).await;
    h.end().await;
    let record = Connection::open(place.store()).unwrap();
    record.execute_batch("DELETE FROM chain").unwrap();
    assert_eq!(findings(&place, &session).await, ["the chain is gone"]);
    // As in a record from before there were chains.
    record.execute_batch("UPDATE sessions SET chained = 0").unwrap();
    assert_eq!(findings(&place, &session).await, Vec::<String>::new());
    let mut h = place.agent(code());
    open(&mut h, "session/resume", &session).await;
    set_mode(&mut h, &session, "plan").await;
    set_mode(&mut h, &session, "code").await;
    turn(&mut h, &session, "write", &[&[write("2")], &[]]).await;
    h.end().await;
    let whole = report(&place.store(), &session, None).await;
    assert_eq!((whole.findings, whole.calls), (vec![], 1));
    record.execute_batch("DELETE FROM mode_changes WHERE id = 1").unwrap();
    assert!(!findings(&place, &session).await.is_empty(), "also of what is older, nothing may be missing");
}

#[tokio::test]
async fn a_copy_of_a_session_whose_mode_is_gone_begins_a_chain_of_its_own() {
    let place = Place::new();
    let modes = layers("modes:\n  - id: docs\n    extends: code\n").modes;
    let mut h = place.agent(Setup { modes, mode: "docs", ..Setup::default() });
    let session = h.session().await;
    turn(&mut h, &session, "write", &[&[write("1")], &[]]).await;
    h.end().await;
    let mut h = place.agent(Setup::default());
    h.call("initialize", json!({ "protocolVersion": 1 })).await;
    let (copy, answer) = fork(&mut h, &session).await;
    assert_eq!(answer["result"]["modes"]["currentModeId"], "plan");
    turn(&mut h, &copy, "write", &[&[write("2")], &[]]).await;
    h.end().await;
    assert_eq!(findings(&place, &copy).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_tighter_mode_that_could_not_be_recorded_holds_when_the_session_is_opened_again() {
    let place = Place::new();
    let mut h = place.agent(code());
    let session = h.session().await;
    turn(&mut h, &session, "hello", &[&[text("Yes.")]]).await;
    let away = place.folder.path().join("away.db");
    std::fs::rename(place.store(), &away).unwrap();
    let plan = json!({ "sessionId": session, "modeId": "plan" });
    assert_eq!(h.call("session/set_mode", plan).await["error"]["code"], -32603);
    let request = h.request("session/delete", json!({ "sessionId": session })).await;
    let deleted = h.until_answer(request).await.pop().unwrap();
    assert_eq!(deleted["error"]["code"], -32603, "{deleted}");
    std::fs::rename(&away, place.store()).unwrap();
    let (_, refused) = fork(&mut h, &session).await;
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
    let params = json!({ "sessionId": session, "cwd": h.cwd(), "mcpServers": [] });
    let answer = h.call("session/resume", params).await;
    h.next().await;
    assert_eq!(answer["result"]["modes"]["currentModeId"], "code", "what the record says");
    turn(&mut h, &session, "write", &[&[write("1")], &[]]).await;
    assert!(!h.cwd().join("a.txt").exists());
    // A change that is recorded ends the hold.
    set_mode(&mut h, &session, "ask").await;
    set_mode(&mut h, &session, "code").await;
    turn(&mut h, &session, "write", &[&[write("2")], &[]]).await;
    assert!(h.cwd().join("a.txt").exists(), "the control");
    let (copy, _) = fork(&mut h, &session).await;
    assert!(!copy.is_empty(), "the control");
    h.end().await;
}

#[tokio::test]
async fn a_copy_made_in_the_middle_of_a_turn_has_what_was_seen() {
    let place = Place::new();
    let mut h = place.agent(code());
    let session = h.session().await;
    set_mode(&mut h, &session, "ask").await;
    set_mode(&mut h, &session, "code").await;
    let id = h.prompt(&session, "go").await;
    h.stage.say(&session, Ok(write("1")));
    h.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    for _ in 0..2 {
        h.stage.next_request(&session).await;
    }
    let params = json!({ "sessionId": session, "cwd": h.cwd(), "mcpServers": [] });
    let request = h.request("session/fork", params).await;
    let seen = h.until_answer(request).await;
    let copy = seen.last().unwrap()["result"]["sessionId"].as_str().unwrap().to_owned();
    assert!(seen.iter().any(|message| message["params"]["update"]["status"] == "completed"));
    h.next().await;
    h.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    h.until_answer(id).await;
    h.end().await;
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
    let mut h = place.agent(with_shell(home.path()));
    let file = h.cwd().join("a.txt");
    std::fs::write(&file, "one\n").unwrap();
    let session = h.session().await;
    h.prompt(&session, "go").await;
    let line = "echo two > a.txt; sleep 100";
    h.stage.say(&session, Ok(call("s", "shell", json!({ "command": line }))));
    h.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    until_file(&file, "two\n").await;
    let close = h.request("session/close", json!({ "sessionId": session })).await;
    h.until_answer(close).await;
    h.end().await;
    let mut h = place.agent(with_shell(home.path()));
    open(&mut h, "session/resume", &session).await;
    let answer = said(&turn(&mut h, &session, "/undo", &[]).await);
    assert!(answer.contains("as before turn 1"), "{answer}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\n");
    h.end().await;
}

#[tokio::test]
async fn what_a_job_in_the_background_changed_in_its_turn_is_put_back() {
    let home = tempfile::tempdir().unwrap();
    let place = Place::new();
    let mut h = place.agent(with_shell(home.path()));
    let file = h.cwd().join("a.txt");
    std::fs::write(&file, "one\n").unwrap();
    let session = h.session().await;
    let id = h.prompt(&session, "go").await;
    h.stage.say(&session, Ok(call("s", "run_background_job", json!({ "command": "echo two > a.txt" }))));
    h.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    until_file(&file, "two\n").await;
    h.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    h.until_answer(id).await;
    let answer = said(&turn(&mut h, &session, "/undo", &[]).await);
    assert!(answer.contains("as before turn 1") && answer.contains("Note: Commands ran"), "{answer}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\n");
    h.end().await;
}

#[tokio::test]
async fn an_undo_that_was_stopped_half_way_is_finished_by_the_next() {
    let place = Place::new();
    let mut h = place.agent(code());
    std::fs::write(h.cwd().join("a.txt"), "one\n").unwrap();
    std::fs::write(h.cwd().join("e.txt"), "e\n").unwrap();
    let session = h.session().await;
    let write = |path: &str| call(path, "write_file", json!({ "path": path, "content": "changed" }));
    let writes = ["a.txt", "b.txt", "c.txt", "d/d.txt", "e.txt"].map(write);
    turn(&mut h, &session, "write", &[&writes, &[]]).await;
    // A file as before, and files and a folder that are gone again.
    std::fs::write(h.cwd().join("a.txt"), "one\n").unwrap();
    std::fs::remove_file(h.cwd().join("c.txt")).unwrap();
    std::fs::remove_dir_all(h.cwd().join("d")).unwrap();
    let answer = said(&turn(&mut h, &session, "/undo", &[]).await);
    assert!(answer.contains("as before turn 1"), "{answer}");
    assert!(!h.cwd().join("b.txt").exists() && !h.cwd().join("d").exists());
    assert_eq!(std::fs::read_to_string(h.cwd().join("e.txt")).unwrap(), "e\n");
    let answer = said(&turn(&mut h, &session, "/undo 1", &[]).await);
    assert!(answer.contains("turn 1 was undone already"), "{answer}");
    h.end().await;
}

#[tokio::test]
async fn where_the_store_cannot_be_used_it_is_said_instead_of_not_found() {
    let place = Place::new();
    let mut h = place.agent(Setup::default());
    let session = h.session().await;
    turn(&mut h, &session, "hello", &[&[text("Yes.")]]).await;
    h.end().await;
    let record = Connection::open(place.store()).unwrap();
    record.pragma_update(None, "user_version", 999).unwrap();
    let mut h = place.agent(Setup::default());
    let answer = open(&mut h, "session/load", &session).await;
    assert_eq!(answer[0]["error"]["code"], -32603);
    assert!(answer[0]["error"]["message"].as_str().unwrap().contains("newer version"), "{answer:?}");
    let list = h.call("session/list", json!({})).await;
    assert!(list["result"]["_meta"]["modegate/notice"].as_str().unwrap().contains("newer version"));
    h.end().await;
}

#[tokio::test]
async fn a_replay_shows_the_mode_that_was_on_then() {
    let place = Place::new();
    let mut h = place.agent(Setup { mode: "ask", ..Setup::default() });
    let session = h.session().await;
    turn(&mut h, &session, "hello", &[&[text("Yes.")]]).await;
    set_mode(&mut h, &session, "plan").await;
    h.end().await;
    let choice = "UPDATE events SET seq = seq + 100 WHERE kind = 'mode_change'; \
        INSERT INTO events SELECT session_id, 50, 1, 'model_change', '{\"model\":\"offline\",\"effort\":\"default\"}', at \
        FROM events LIMIT 1";
    Connection::open(place.store()).unwrap().execute_batch(choice).unwrap();
    let mut h = place.agent(Setup::default());
    let messages = open(&mut h, "session/load", &session).await;
    let modes: Vec<Value> = updates(&messages)
        .into_iter()
        .filter(|update| update["sessionUpdate"] == "config_option_update")
        .map(|update| update["configOptions"][0]["currentValue"].clone())
        .collect();
    assert_eq!(modes, ["ask", "plan"]);
    h.end().await;
}

#[tokio::test]
async fn a_mode_change_is_heard_while_a_session_is_shown_to_a_client_that_does_not_read() {
    let place = Place::new();
    let mut h = place.agent(code());
    let session = h.session().await;
    turn(&mut h, &session, "hello", &[&[text("Yes.")]]).await;
    h.call("session/close", json!({ "sessionId": session })).await;
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
    open(&mut h, "session/resume", &session).await;
    let params = json!({ "sessionId": session, "cwd": h.cwd(), "mcpServers": [] });
    let load = h.request("session/load", params).await;
    h.request("session/set_mode", json!({ "sessionId": session, "modeId": "plan" })).await;
    let mode = || -> String { record.query_row("SELECT mode FROM sessions", [], |row| row.get(0)).unwrap() };
    let wait = async {
        while mode() != "plan" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, wait).await.expect("it is heard");
    // Now the client reads: everything is shown before the answer.
    let messages = h.until_answer(load).await;
    let notices = messages.iter().filter(|message| message["params"]["update"]["content"]["text"] == "x");
    assert_eq!(notices.count(), 3000);
    h.next().await;
    h.end().await;
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
    let mut h = place.agent(code());
    let session = h.session().await;
    let id = h.prompt(&session, "go").await;
    h.stage.say(&session, Ok(write("1")));
    h.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    h.stage.say(&session, Err(ModelError::new("the model failed")));
    assert!(h.until_answer(id).await.last().unwrap().get("error").is_some());
    let messages = turn(&mut h, &session, "again", &[&[text("ok")]]).await;
    assert!(messages.last().unwrap()["result"]["_meta"]["modegate/head"].is_object());
    let messages = turn(&mut h, &session, "again", &[&[text("ok")]]).await;
    assert!(messages.last().unwrap()["result"].get("_meta").is_none(), "no news");
    h.end().await;
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
    let mut h = place.agent(code());
    let session = h.session().await;
    turn(&mut h, &session, "hello", &[&[text("Yes.")]]).await;
    // A kill between the two would leave a chain that speaks of a call that nobody knows.
    let watch = "CREATE TRIGGER watch BEFORE INSERT ON chain WHEN json_extract(NEW.body, '$.entry') = 'call' AND NOT EXISTS \
        (SELECT 1 FROM events WHERE kind = 'tool_call' AND json_extract(body, '$.id') = json_extract(NEW.body, '$.call')) \
        BEGIN SELECT RAISE(ABORT, 'too early'); END";
    Connection::open(place.store()).unwrap().execute_batch(watch).unwrap();
    turn(&mut h, &session, "write", &[&[write("1"), write("2")], &[write("3")], &[]]).await;
    h.end().await;
    let whole = report(&place.store(), &session, None).await;
    assert_eq!((whole.findings, whole.calls), (vec![], 3));
}

#[tokio::test]
async fn what_was_rejected_once_and_for_all_stays_rejected_in_a_copy_and_elsewhere() {
    let place = Place::new();
    let other = tempfile::tempdir().unwrap();
    let mut h = place.agent(Setup::default());
    let session = h.session().await;
    assert_eq!(answer_always(&mut h, &session, "1", "reject_always").await, 1);
    let (copy, _) = fork(&mut h, &session).await;
    assert_eq!(allow_always(&mut h, &copy, "2").await, 0, "it is not even asked");
    h.call("session/close", json!({ "sessionId": session })).await;
    let params = json!({ "sessionId": session, "cwd": other.path(), "mcpServers": [] });
    h.call("session/resume", params).await;
    h.next().await;
    assert_eq!(allow_always(&mut h, &session, "3").await, 0);
    assert!(!h.cwd().join("a.txt").exists() && !other.path().join("a.txt").exists());
    h.end().await;
}

#[tokio::test]
async fn an_always_of_an_earlier_version_is_dropped_and_the_user_is_told_once() {
    const TOLD: &str = "were given to an earlier version";
    let home = tempfile::tempdir().unwrap();
    let place = Place::new();
    let setup = || Setup {
        tools: Toolset::built_in().with_shell(shell(home.path(), Sandbox::Off)),
        ..Setup::default()
    };
    let run = |id: &str, line: &str| call(id, "shell", json!({ "command": line }));
    let mut h = place.agent(setup());
    let session = h.session().await;
    assert_eq!(answer_call(&mut h, &session, run("1", "true"), "allow_always").await, 1);
    assert_eq!(answer_call(&mut h, &session, run("2", "false"), "reject_always").await, 1);
    assert_eq!(allow_always(&mut h, &session, "3").await, 1);
    h.end().await;
    // As an earlier version had kept them.
    let record = Connection::open(place.store()).unwrap();
    let old = "UPDATE grants SET kind = 'command', value = CASE allows WHEN 1 THEN 'true' ELSE 'false' END WHERE kind = 'line'";
    assert_eq!(record.execute(old, []).unwrap(), 2);
    drop(record);
    for (time, asked) in [1, 0].into_iter().enumerate() {
        let mut h = place.agent(setup());
        open(&mut h, "session/resume", &session).await;
        let messages = turn(&mut h, &session, "go", &[&[text("done")]]).await;
        assert_eq!(format!("{messages:?}").contains(TOLD), time == 0, "{messages:?}");
        let id = time.to_string();
        assert_eq!(
            answer_call(&mut h, &session, run(&format!("a{id}"), "true"), "allow_always").await,
            asked
        );
        assert_eq!(
            answer_call(&mut h, &session, run(&format!("b{id}"), "true; false"), "allow_once").await,
            0,
            "rejected still"
        );
        assert_eq!(allow_always(&mut h, &session, &format!("c{id}")).await, 0, "the control");
        h.end().await;
    }
}
