//! Agents that work for others, when things end: the user cancels, closes, deletes or tightens while they work, they flood, or
//! the process is killed. Nothing of them goes on, no question stays open, and no call is shown to be at work for ever.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use modegate::model::ModelEvent;
use modegate::process::shell::Sandbox;
use modegate::store::{Location, Store, Sync};
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::delegation::{AGENTS, about, call, status, write};
use crate::guest::{Guest, all};
use crate::spoken::Spoken;
use crate::support::{Harness, Setup, shell};

/// A command that writes for ever.
fn ticker(name: &str) -> ModelEvent {
    call("shell", json!({ "command": format!("while true; do date +%N >> {name}; sleep 0.01; done") }))
}

fn with_shell(home: &Path) -> Setup {
    let tools = Toolset::built_in().with_shell(shell(home, Sandbox::Workspace));
    Setup { mode: "code", agents: AGENTS, tools, live: true, ..Setup::default() }
}

/// Reads messages until a file has grown.
async fn until_it_ticks(h: &mut Harness, path: &Path) -> Vec<Value> {
    let mut messages = Vec::new();
    while std::fs::metadata(path).map_or(0, |meta| meta.len()) < 40 {
        messages.extend(h.next_within(Duration::from_millis(5)).await);
    }
    messages
}

/// Reads messages up to a permission request, which is the last of them.
async fn until_asked(h: &mut Harness) -> Vec<Value> {
    let mut messages = vec![h.next().await];
    while messages.last().unwrap()["method"] != "session/request_permission" {
        messages.push(h.next().await);
    }
    messages
}

fn is_taken_back(messages: &[Value], request: &Value) -> bool {
    let is_it = |message: &Value| {
        message["method"] == "$/cancel_request" && message["params"]["requestId"] == request["id"]
    };
    messages.iter().any(is_it)
}

/// The calls of which a client has seen no end.
fn open(messages: &[Value]) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    for message in messages {
        let update = &message["params"]["update"];
        let Some(id) = update["toolCallId"].as_str() else { continue };
        if update["sessionUpdate"] == "tool_call" {
            open.push(id.to_owned());
        }
        if ["completed", "failed"].iter().any(|end| update["status"] == *end) {
            open.retain(|other| other != id);
        }
    }
    open
}

/// A cancel takes back what a child asks, and a yes that comes later is none.
#[tokio::test]
async fn a_cancel_takes_back_what_a_child_asks() {
    let mut h = Harness::with(Setup { mode: "ask", agents: AGENTS, live: true, ..Setup::default() });
    let root = h.session().await;
    let prompt = h.prompt(&root, "go").await;
    h.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": "writer" }))]);
    h.calls("sess_2", vec![write("a")]);
    let mut messages = until_asked(&mut h).await;
    let request = messages.last().unwrap().clone();
    h.notify("session/cancel", json!({ "sessionId": root })).await;
    messages.extend(h.until_answer(prompt).await);
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    assert!(is_taken_back(&messages, &request), "{messages:?}");
    let yes = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
    h.send_line(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": yes }).to_string()).await;
    let prompt = h.prompt(&root, "again").await;
    h.answers(&root, "yes");
    messages.extend(h.until_answer(prompt).await);
    assert!(!h.cwd().join("a").exists());
    assert_eq!(open(&messages), Vec::<String>::new());
    h.end().await;
}

/// Two that run side by side are both ended before the mode change is answered, and named.
#[tokio::test]
async fn tightening_ends_all_that_run_side_by_side() {
    let home = tempfile::tempdir().unwrap();
    let mut h = Harness::with(with_shell(home.path()));
    let root = h.session().await;
    let prompt = h.prompt(&root, "go").await;
    let begin = |task: &str| call("delegate_background", json!({ "task": task, "agent": "writer" }));
    h.calls(&root, vec![begin("one"), begin("two")]);
    h.answers(&root, "they work");
    let mut messages = h.until_answer(prompt).await;
    h.calls("sess_2", vec![ticker("one"), write("late")]);
    h.calls("sess_3", vec![ticker("two"), write("late")]);
    let (one, two) = (h.cwd().join("one"), h.cwd().join("two"));
    // The control: both write.
    messages.extend(until_it_ticks(&mut h, &one).await);
    messages.extend(until_it_ticks(&mut h, &two).await);
    let set = h.request("session/set_mode", json!({ "sessionId": root, "modeId": "plan" })).await;
    messages.extend(h.until_answer(set).await);
    let after = [&one, &two].map(|path| std::fs::read(path).unwrap());
    let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
    let mut ended: Vec<&str> = effect["ended"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    ended.sort_unstable();
    assert_eq!(ended, ["call_1_1/call_1_1", "call_1_2/call_1_1"], "{effect}");
    assert_eq!(effect["unconfirmed"], json!([]), "{effect}");
    h.answers("sess_2", "one");
    h.answers("sess_3", "two");
    let prompt = h.prompt(&root, "and now?").await;
    let view = |id: &str| call("view_background_agent", json!({ "agent": id, "wait": 30 }));
    h.calls(&root, vec![view("agent_1"), view("agent_2")]);
    h.answers(&root, "done");
    messages.extend(h.until_answer(prompt).await);
    assert_eq!([&one, &two].map(|path| std::fs::read(path).unwrap()), after, "nothing after the answer");
    assert!(!h.cwd().join("late").exists());
    assert_eq!(open(&messages), Vec::<String>::new());
    h.end().await;
}

/// Whoever closes or deletes a session ends all that works for it, here and in the background: no command goes on, no question
/// stays open, every call has its end, now and when the session is loaded again.
#[tokio::test]
async fn closing_and_deleting_end_all_that_works_for_a_session() {
    for way in ["session/close", "session/delete"] {
        let home = tempfile::tempdir().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = || Location::File(folder.path().join("s.db"));
        let setup = Setup { mode: "ask", store: store(), ..with_shell(home.path()) };
        let mut h = Harness::with(setup);
        let root = h.session().await;
        let prompt = h.prompt(&root, "go").await;
        let task = |task: &str| json!({ "task": task, "agent": "writer" });
        h.calls(&root, vec![call("delegate_background", task("one")), call("delegate", task("two"))]);
        h.calls("sess_2", vec![ticker("ticks")]);
        let mut messages = until_asked(&mut h).await;
        let yes = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
        let id = messages.last().unwrap()["id"].clone();
        h.send_line(&json!({ "jsonrpc": "2.0", "id": id, "result": yes }).to_string()).await;
        h.calls("sess_3", vec![write("a")]);
        messages.extend(until_asked(&mut h).await);
        let request = messages.last().unwrap().clone();
        let ticks = h.cwd().join("ticks");
        messages.extend(until_it_ticks(&mut h, &ticks).await);
        let close = h.request(way, json!({ "sessionId": root })).await;
        let mut answers = 0;
        while answers < 2 {
            let message = h.next().await;
            answers += usize::from(message["id"] == close || message["id"] == prompt);
            assert!(message.get("error").is_none(), "{way}: {message}");
            messages.push(message);
        }
        let after = std::fs::read(&ticks).unwrap();
        let ended = messages.iter().find(|message| message["id"] == prompt && message["result"].is_object());
        assert_eq!(ended.unwrap()["result"]["stopReason"], "cancelled", "{way}");
        assert!(is_taken_back(&messages, &request), "{way}: {messages:?}");
        assert_eq!(open(&messages), Vec::<String>::new(), "{way}");
        if way == "session/close" {
            let load = json!({ "sessionId": root, "cwd": h.cwd(), "mcpServers": [] });
            let load = h.request("session/load", load).await;
            let shown = h.until_answer(load).await;
            assert!(about(&shown, "call_1_1/call_1_1").len() > 1, "{shown:?}");
            assert_eq!(status(&shown, "call_1_2/call_1_1"), "failed");
            assert_eq!(open(&shown), Vec::<String>::new());
            h.next().await;
        }
        assert_eq!(std::fs::read(&ticks).unwrap(), after, "{way}");
        assert!(!h.cwd().join("a").exists());
        h.end().await;
        let store = Store::open(store(), Sync::Normal).unwrap();
        for id in [root.as_str(), "sess_2", "sess_3"] {
            let kept = store.session(&modegate::acp::SessionId::new(id)).await.unwrap();
            assert_eq!(kept.is_some(), way == "session/close", "{way} {id}");
        }
    }
}

/// One that floods a client that does not read is ended all the same, and what the client reads then is whole.
#[tokio::test]
async fn one_that_floods_is_ended_like_any_other() {
    for way in ["session/cancel", "session/close", "session/set_mode"] {
        let mut h = Harness::with(Setup { mode: "code", agents: AGENTS, live: true, ..Setup::default() });
        std::fs::write(h.cwd().join("long"), "\u{1}\u{2}é\"\n".repeat(20_000)).unwrap();
        let root = h.session().await;
        let prompt = h.prompt(&root, "go").await;
        h.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": "writer" }))]);
        for _ in 0..20_000 {
            h.stage.say("sess_2", Ok(ModelEvent::Text("\u{1}\u{2}é\"".repeat(30))));
        }
        let mut calls = vec![call("read_file", json!({ "path": "long" }))];
        calls.extend((0..500).map(|n| call("think", json!({ "thought": format!("{n}") }))));
        h.calls("sess_2", calls);
        let mut messages = Vec::new();
        while messages
            .iter()
            .all(|message: &Value| message["params"]["update"]["toolCallId"] != "call_1_1/call_1_9")
        {
            messages.push(h.next().await);
        }
        match way {
            "session/cancel" => {
                h.notify(way, json!({ "sessionId": root })).await;
                messages.extend(h.until_answer(prompt).await);
                assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
            }
            "session/close" => {
                let close = h.request(way, json!({ "sessionId": root })).await;
                messages.extend(h.until_answer(close).await);
            }
            _ => {
                // The mode is changed and the flood goes on, as it changes nothing.
                let set = h.request(way, json!({ "sessionId": root, "modeId": "plan" })).await;
                messages.extend(h.until_answer(set).await);
                h.answers("sess_2", "two");
                h.answers(&root, "one");
                messages.extend(h.until_answer(prompt).await);
                assert_eq!(status(&messages, "call_1_1/call_1_500"), "completed");
            }
        }
        assert_eq!(open(&messages), Vec::<String>::new(), "{way}");
        // What it says is shown as far as an answer goes, and no further.
        assert!(about(&messages, "call_1_1").len() < 200, "{way}");
        h.end().await;
    }
}

/// A binary with this store and model that has begun to talk.
fn begun(dir: &Path, script: &Path) -> Spoken {
    let (store, model) = (dir.join("s.db"), format!("scripted:{}", script.display()));
    Spoken::start(dir, &["--mode", "code", "--store", store.to_str().unwrap(), "--model", &model]).0
}

/// Killed while one works for another, a session has an end for every call when it is loaded again: also the next time. The
/// record of both is whole, and can be read from the command line.
#[test]
fn what_was_at_work_when_the_process_was_killed_is_shown_as_failed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let work = dir.join("work");
    std::fs::create_dir(&work).unwrap();
    let call = |name: &str, arguments: Value| json!({ "tool_call": { "id": name, "name": name, "arguments": arguments } });
    let lines = [
        call("delegate", json!({ "task": "the first task" })),
        json!({ "stop": "done" }),
        json!({ "for": "the first task" }),
        call("write_file", json!({ "path": "a.txt", "content": "x" })),
        json!({ "stop": "done" }),
        call("delegate", json!({ "task": "the second task" })),
        json!({ "stop": "done" }),
        json!({ "for": "the second task" }),
        call("shell", json!({ "command": "echo begun > b.txt; sleep 1000" })),
        json!({ "stop": "done" }),
    ];
    let script = dir.join("script.jsonl");
    std::fs::write(&script, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let mut binary = begun(&dir, &script);
    let folders = json!({ "cwd": work, "mcpServers": [] });
    let answer = binary.call(2, "session/new", &folders).pop().unwrap();
    let session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "go" }] });
    binary.send(3, "session/prompt", &prompt);
    let deepest = "call_1_1/call_1_2/call_1_1";
    loop {
        let update = binary.next()["params"]["update"].take();
        if update["toolCallId"] == deepest && update["status"] == "in_progress" {
            break;
        }
    }
    binary.child.kill().unwrap();
    binary.child.wait().unwrap();
    for _ in 0..2 {
        let mut binary = begun(&dir, &script);
        let load = json!({ "sessionId": session, "cwd": work, "mcpServers": [] });
        let shown = binary.call(2, "session/load", &load);
        assert!(shown.last().unwrap()["result"].is_object(), "{shown:?}");
        for id in ["call_1_1", "call_1_1/call_1_2", deepest] {
            let last = about(&shown, id).pop().unwrap();
            assert_eq!(last["status"], "failed", "{id}");
            assert!(last["content"].to_string().contains("may have had effects"), "{id}: {last}");
        }
        assert_eq!(status(&shown, "call_1_1/call_1_1"), "completed", "the control");
        assert_eq!(open(&shown), Vec::<String>::new());
        drop(binary.child.stdin.take());
        binary.child.wait().unwrap();
    }
    let store = dir.join("s.db");
    let sql = "SELECT id, parent FROM sessions WHERE parent IS NOT NULL ORDER BY created_at, id";
    let connection = rusqlite::Connection::open(&store).unwrap();
    let below: Vec<(String, String)> = connection
        .prepare(sql)
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    drop(connection);
    assert_eq!(below.len(), 2, "{below:?}");
    let ask = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(["--store", store.to_str().unwrap()])
            .args(arguments)
            .env("HOME", &dir)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), said)
    };
    for id in [session.as_str(), &below[0].0, &below[1].0] {
        let (code, said) = ask(&["audit", id]);
        assert!(code == 0 && said.contains("ok       the chain holds together"), "{said}");
    }
    let child = below.iter().find(|(_, parent)| *parent == session).unwrap();
    let (code, said) = ask(&["sessions", "show", &child.0]);
    assert!(code == 0 && said.contains(&format!("parent   {session}")), "{said}");
    assert!(said.contains("agent    general") && said.contains("the first task"), "{said}");
    // They go with the session that they worked for, and not before.
    let (code, said) = ask(&["sessions", "prune", "--older-than", "0h", "--dry-run"]);
    assert_eq!((code, said), (0, format!("would delete {session}\n1 sessions would be deleted\n")));
    let (code, said) = ask(&["sessions", "set-mode", &child.0, "plan"]);
    assert!(code == 1 && said.contains(&session), "{said}");
}

/// A sub-agent's command is ended before a mode change above it is answered, also where the client has terminals.
#[tokio::test]
async fn a_sub_agents_command_ends_before_a_tighter_mode_is_answered() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let mut guest = Guest::new("code", all()).await;
    let task = call("delegate", json!({ "task": "one" }));
    let prompt = guest.harness.prompt(&guest.session, "go").await;
    guest.harness.calls(&guest.session, vec![task]);
    guest.harness.calls("sess_2", vec![ticker("ticks")]);
    guest.until_there("ticks").await;
    let (_, effect) = guest.set_mode("plan").await;
    let after = guest.saved("ticks");
    assert_eq!(
        (&effect["ended"], &effect["unconfirmed"]),
        (&json!(["call_1_1/call_1_1"]), &json!([])),
        "{effect}"
    );
    assert_eq!(guest.count("$/cancel_request"), 0, "nothing was given up waiting for");
    assert_eq!(guest.methods(), [""; 0], "the client runs nothing");
    guest.harness.answers("sess_2", "two");
    guest.harness.answers(&guest.session, "one");
    guest.until_answer(prompt).await;
    assert_eq!(guest.saved("ticks"), after);
    guest.end().await;
}
