//! The end of sub-agents by a cancel, close, delete, tighter mode, flood or kill. No work continues, no
//! request stays open, and every call gets an end.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use modegate::model::ModelEvent;
use modegate::process::shell::Sandbox;
use modegate::store::{Store, StoreLocation, Sync};
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::agents::delegation::{AGENTS, about, call, status, write};
use crate::support::binary_client::BinaryClient;
use crate::support::editor_client::{EditorClient, all};
use crate::support::{Setup, TestClient, shell};

/// A command that writes forever.
fn ticker(name: &str) -> ModelEvent {
    call("shell", json!({ "command": format!("while true; do date +%N >> {name}; sleep 0.01; done") }))
}

fn with_shell(home: &Path) -> Setup {
    let tools = Toolset::built_in().with_shell(shell(home, Sandbox::Workspace));
    Setup { mode: "code", agents: AGENTS, tools, live: true, ..Setup::default() }
}

/// Reads messages until a file has grown.
async fn until_it_ticks(client: &mut TestClient, path: &Path) -> Vec<Value> {
    let mut messages = Vec::new();
    while std::fs::metadata(path).map_or(0, |meta| meta.len()) < 40 {
        messages.extend(client.next_within(Duration::from_millis(5)).await);
    }
    messages
}

/// Reads messages up to and including a permission request.
async fn until_asked(client: &mut TestClient) -> Vec<Value> {
    let mut messages = vec![client.next().await];
    while messages.last().unwrap()["method"] != "session/request_permission" {
        messages.push(client.next().await);
    }
    messages
}

fn is_withdrawn(messages: &[Value], request: &Value) -> bool {
    let predicate = |message: &Value| {
        message["method"] == "$/cancel_request" && message["params"]["requestId"] == request["id"]
    };
    messages.iter().any(predicate)
}

/// Returns the calls whose end the client has not seen.
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

/// A late approval has no effect.
#[tokio::test]
async fn cancel_withdraws_sub_agent_requests() {
    let mut client = TestClient::with(Setup { mode: "ask", agents: AGENTS, live: true, ..Setup::default() });
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": "writer" }))]);
    client.calls("sess_2", vec![write("a")]);
    let mut messages = until_asked(&mut client).await;
    let request = messages.last().unwrap().clone();
    client.notify("session/cancel", json!({ "sessionId": root })).await;
    messages.extend(client.until_answer(prompt).await);
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    assert!(is_withdrawn(&messages, &request), "{messages:?}");
    let yes = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
    client.send_line(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": yes }).to_string()).await;
    let prompt = client.prompt(&root, "again").await;
    client.answers(&root, "yes");
    messages.extend(client.until_answer(prompt).await);
    assert!(!client.cwd().join("a").exists());
    assert_eq!(open(&messages), Vec::<String>::new());
    client.end().await;
}

/// Both end before the mode change is answered, which names them.
#[tokio::test]
async fn tightening_ends_parallel_sub_agents() {
    let home = tempfile::tempdir().unwrap();
    let mut client = TestClient::with(with_shell(home.path()));
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    let begin = |task: &str| call("delegate", json!({ "task": task, "agent": "writer", "background": true }));
    client.calls(&root, vec![begin("one"), begin("two")]);
    client.answers(&root, "they work");
    let mut messages = client.until_answer(prompt).await;
    client.calls("sess_2", vec![ticker("one"), write("late")]);
    client.calls("sess_3", vec![ticker("two"), write("late")]);
    let (one, two) = (client.cwd().join("one"), client.cwd().join("two"));
    // The control: both write.
    messages.extend(until_it_ticks(&mut client, &one).await);
    messages.extend(until_it_ticks(&mut client, &two).await);
    let set = client.request("session/set_mode", json!({ "sessionId": root, "modeId": "plan" })).await;
    messages.extend(client.until_answer(set).await);
    let after = [&one, &two].map(|path| std::fs::read(path).unwrap());
    let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
    let mut ended: Vec<&str> = effect["ended"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    ended.sort_unstable();
    assert_eq!(ended, ["call_1_1/call_1_1", "call_1_2/call_1_1"], "{effect}");
    assert_eq!(effect["unconfirmed"], json!([]), "{effect}");
    client.answers("sess_2", "one");
    client.answers("sess_3", "two");
    let prompt = client.prompt(&root, "and now?").await;
    let view = |id: &str| call("view_background", json!({ "id": id, "wait": 30 }));
    client.calls(&root, vec![view("agent_1"), view("agent_2")]);
    client.answers(&root, "done");
    messages.extend(client.until_answer(prompt).await);
    assert_eq!([&one, &two].map(|path| std::fs::read(path).unwrap()), after, "nothing after the answer");
    assert!(!client.cwd().join("late").exists());
    assert_eq!(open(&messages), Vec::<String>::new());
    client.end().await;
}

/// Background sub-agents end, too: no command continues, no request stays open, and every call has an end, also
/// after a load.
#[tokio::test]
async fn close_and_delete_end_all_sub_agents() {
    for way in ["session/close", "session/delete"] {
        let home = tempfile::tempdir().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = || StoreLocation::File(folder.path().join("s.db"));
        let setup = Setup { mode: "ask", store: store(), ..with_shell(home.path()) };
        let mut client = TestClient::with(setup);
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        let begin = |task: &str, background: bool| {
            call("delegate", json!({ "task": task, "agent": "writer", "background": background }))
        };
        client.calls(&root, vec![begin("one", true), begin("two", false)]);
        client.calls("sess_2", vec![ticker("ticks")]);
        let mut messages = until_asked(&mut client).await;
        let yes = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
        let id = messages.last().unwrap()["id"].clone();
        client.send_line(&json!({ "jsonrpc": "2.0", "id": id, "result": yes }).to_string()).await;
        client.calls("sess_3", vec![write("a")]);
        messages.extend(until_asked(&mut client).await);
        let request = messages.last().unwrap().clone();
        let ticks = client.cwd().join("ticks");
        messages.extend(until_it_ticks(&mut client, &ticks).await);
        let close = client.request(way, json!({ "sessionId": root })).await;
        let mut answers = 0;
        while answers < 2 {
            let message = client.next().await;
            answers += usize::from(message["id"] == close || message["id"] == prompt);
            assert!(message.get("error").is_none(), "{way}: {message}");
            messages.push(message);
        }
        let after = std::fs::read(&ticks).unwrap();
        let ended = messages.iter().find(|message| message["id"] == prompt && message["result"].is_object());
        assert_eq!(ended.unwrap()["result"]["stopReason"], "cancelled", "{way}");
        assert!(is_withdrawn(&messages, &request), "{way}: {messages:?}");
        assert_eq!(open(&messages), Vec::<String>::new(), "{way}");
        if way == "session/close" {
            let load = json!({ "sessionId": root, "cwd": client.cwd(), "mcpServers": [] });
            let load = client.request("session/load", load).await;
            let shown = client.until_answer(load).await;
            assert!(about(&shown, "call_1_1/call_1_1").len() > 1, "{shown:?}");
            assert_eq!(status(&shown, "call_1_2/call_1_1"), "failed");
            assert_eq!(open(&shown), Vec::<String>::new());
            client.next().await;
        }
        assert_eq!(std::fs::read(&ticks).unwrap(), after, "{way}");
        assert!(!client.cwd().join("a").exists());
        client.end().await;
        let store = Store::open(store(), Sync::Normal).unwrap();
        for id in [root.as_str(), "sess_2", "sess_3"] {
            let kept = store.session(&modegate::acp::SessionId::new(id)).await.unwrap();
            assert_eq!(kept.is_some(), way == "session/close", "{way} {id}");
        }
    }
}

/// The client does not read during the flood. Afterwards it reads complete messages.
#[tokio::test]
async fn flooding_sub_agent_can_be_ended() {
    for way in ["session/cancel", "session/close", "session/set_mode"] {
        let mut client =
            TestClient::with(Setup { mode: "code", agents: AGENTS, live: true, ..Setup::default() });
        std::fs::write(client.cwd().join("long"), "\u{1}\u{2}é\"\n".repeat(20_000)).unwrap();
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": "writer" }))]);
        for _ in 0..20_000 {
            client.model.say("sess_2", Ok(ModelEvent::Text("\u{1}\u{2}é\"".repeat(30))));
        }
        let mut calls = vec![call("read_file", json!({ "path": "long" }))];
        calls.extend((0..500).map(|_| call("view_background", json!({}))));
        client.calls("sess_2", calls);
        let mut messages = Vec::new();
        while messages
            .iter()
            .all(|message: &Value| message["params"]["update"]["toolCallId"] != "call_1_1/call_1_9")
        {
            messages.push(client.next().await);
        }
        match way {
            "session/cancel" => {
                client.notify(way, json!({ "sessionId": root })).await;
                messages.extend(client.until_answer(prompt).await);
                assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
            }
            "session/close" => {
                let close = client.request(way, json!({ "sessionId": root })).await;
                messages.extend(client.until_answer(close).await);
            }
            _ => {
                // The new mode allows the flood, which changes nothing.
                let set = client.request(way, json!({ "sessionId": root, "modeId": "plan" })).await;
                messages.extend(client.until_answer(set).await);
                client.answers("sess_2", "two");
                client.answers(&root, "one");
                messages.extend(client.until_answer(prompt).await);
                assert_eq!(status(&messages, "call_1_1/call_1_500"), "completed");
            }
        }
        assert_eq!(open(&messages), Vec::<String>::new(), "{way}");
        // The client sees only a part of the text.
        assert!(about(&messages, "call_1_1").len() < 200, "{way}");
        client.end().await;
    }
}

/// Starts the binary with this store and model. Returns once the model has sent text.
fn started(dir: &Path, script: &Path) -> BinaryClient {
    let (store, model) = (dir.join("s.db"), format!("scripted:{}", script.display()));
    BinaryClient::start(dir, &["--mode", "code", "--store", store.to_str().unwrap(), "--model", &model]).0
}

/// Each load after the kill shows an end for every call. The records of the session and its sub-agent are
/// complete, and the command line can read them.
#[test]
fn sub_agent_calls_show_as_failed_after_a_kill() {
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
    let mut binary = started(&dir, &script);
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
        let mut binary = started(&dir, &script);
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
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), text)
    };
    for id in [session.as_str(), &below[0].0, &below[1].0] {
        let (code, text) = ask(&["audit", id]);
        assert!(code == 0 && text.contains("ok       the hash chain is valid"), "{text}");
    }
    let child = below.iter().find(|(_, parent)| *parent == session).unwrap();
    let (code, text) = ask(&["sessions", "show", &child.0]);
    assert!(code == 0 && text.contains(&format!("parent   {session}")), "{text}");
    assert!(text.contains("agent    general") && text.contains("the first task"), "{text}");
    // The sub-agent's session is deleted with the parent's session, and not before.
    let (code, text) = ask(&["sessions", "prune", "--all", "--older-than", "0h", "--dry-run"]);
    assert!(code == 0 && text.starts_with(&format!("would delete {session}  ")), "{text}");
    assert!(text.ends_with("1 session would be deleted\n") && text.lines().count() == 2, "{text}");
    let (code, text) = ask(&["sessions", "set-mode", &child.0, "plan"]);
    assert!(code == 1 && text.contains(&session), "{text}");
}

/// Terminals of the client make no difference.
#[tokio::test]
#[cfg_attr(not(target_os = "linux"), ignore = "only Linux has the supervisor")]
async fn sub_agent_command_ends_before_set_mode_answers() {
    let mut client = EditorClient::new("code", all()).await;
    let task = call("delegate", json!({ "task": "one" }));
    let prompt = client.client.prompt(&client.session, "go").await;
    client.client.calls(&client.session, vec![task]);
    client.client.calls("sess_2", vec![ticker("ticks")]);
    client.until_file_exists("ticks").await;
    let (_, effect) = client.set_mode("plan").await;
    let after = client.saved("ticks");
    assert_eq!(
        (&effect["ended"], &effect["unconfirmed"]),
        (&json!(["call_1_1/call_1_1"]), &json!([])),
        "{effect}"
    );
    assert_eq!(client.count("$/cancel_request"), 0, "nothing was given up waiting for");
    assert_eq!(client.methods(), [""; 0], "the client runs nothing");
    client.client.answers("sess_2", "two");
    client.client.answers(&client.session, "one");
    client.until_answer(prompt).await;
    assert_eq!(client.saved("ticks"), after);
    client.end().await;
}
