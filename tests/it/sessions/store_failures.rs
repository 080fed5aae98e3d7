//! Unusable stores and stores that many sessions use at the same time. The user gets the reason, sessions
//! continue, and no mode becomes wider.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use modegate::acp::{MessageId, SessionId, SessionModeId};
use modegate::event::{NoticeKind, SessionEvent};
use modegate::store::{Row, Store, StoreLocation, Sync};
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::sessions::load::{StoreFixture, call, set_mode, text, turn};
use crate::support::{Setup, make_fifo};

/// Corrupts a store before it is opened. The returned connections stay open until the end.
type Corruption = fn(&Path) -> Vec<Connection>;

fn newer(path: &Path) -> Vec<Connection> {
    Connection::open(path).unwrap().pragma_update(None, "user_version", 999).unwrap();
    vec![]
}

fn garbage(path: &Path) -> Vec<Connection> {
    std::fs::write(path, "this is no database, and long enough to be looked at: ".repeat(100)).unwrap();
    vec![]
}

fn folder(path: &Path) -> Vec<Connection> {
    std::fs::create_dir(path).unwrap();
    vec![]
}

#[cfg(unix)]
fn fifo(path: &Path) -> Vec<Connection> {
    make_fifo(path);
    vec![]
}

fn locked(path: &Path) -> Vec<Connection> {
    let other = Connection::open(path).unwrap();
    other
        .execute_batch(
            "PRAGMA locking_mode = EXCLUSIVE; CREATE TABLE t (x); PRAGMA user_version = 9; BEGIN EXCLUSIVE",
        )
        .unwrap();
    vec![other]
}

fn fine(_: &Path) -> Vec<Connection> {
    vec![]
}

#[tokio::test]
async fn unusable_store_is_reported_and_sessions_use_memory() {
    let spoils: &[(Corruption, Option<&str>)] = &[
        (newer, Some("a newer Modegate wrote it (schema 999")),
        (garbage, Some("file is not a database")),
        (folder, Some("it is not a file")),
        #[cfg(unix)]
        (fifo, Some("it is not a file")),
        (locked, Some("database is locked")),
        (fine, None),
    ];
    for (spoil, expected) in spoils {
        let fixture = StoreFixture::new();
        let _kept = spoil(&fixture.store());
        let mut client = fixture.agent(Setup { mode: "plan", ..Setup::default() });
        let session = client.session().await;
        let write = || call("w", "write_file", json!({ "path": "a.txt", "content": "x" }));
        let seen = turn(&mut client, &session, "write", &[&[write()], &[text("No.")]]).await;
        let result = seen.iter().find(|message| message.to_string().contains("in memory only"));
        match expected {
            None => assert_eq!(result, None),
            Some(reason) => {
                let output = result.expect("it is said").to_string();
                assert!(output.contains(reason), "{output}");
            }
        }
        assert!(!client.cwd().join("a.txt").exists(), "plan mode holds");
        // Everything else works: the mode changes, and the session is listed, closed and loaded again.
        set_mode(&mut client, &session, "code").await;
        turn(&mut client, &session, "write", &[&[write()], &[]]).await;
        assert!(client.cwd().join("a.txt").exists(), "the control");
        let list = client.call("session/list", json!({})).await;
        assert_eq!(list["result"]["sessions"][0]["sessionId"], session);
        client.call("session/close", json!({ "sessionId": session })).await;
        let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
        let id = client.request("session/load", params).await;
        let answer = client.until_answer(id).await.pop().unwrap();
        assert_eq!(answer["result"]["modes"]["currentModeId"], "code");
        client.end().await;
    }
}

#[tokio::test]
async fn missing_store_file_is_reported_and_denies_loosening() {
    let fixture = StoreFixture::new();
    let mut client = fixture.agent(Setup { mode: "ask", ..Setup::default() });
    let session = client.session().await;
    turn(&mut client, &session, "hello", &[&[text("Yes.")]]).await;
    let away = fixture.folder.path().join("away.db");
    std::fs::rename(fixture.store(), &away).unwrap();
    let params = |mode: &str| json!({ "sessionId": session, "modeId": mode });
    assert_eq!(client.call("session/set_mode", params("code")).await["error"]["code"], -32603);
    let answer = client.call("session/set_mode", params("plan")).await;
    assert!(
        answer["error"]["message"].as_str().unwrap().contains("calls that plan denies are denied"),
        "{answer}"
    );
    let write = || call("w", "write_file", json!({ "path": "a.txt", "content": "x" }));
    let seen = turn(&mut client, &session, "write", &[&[write()], &[]]).await;
    assert!(
        seen.iter().any(|message| message.to_string().contains("the file was deleted or replaced")),
        "{seen:?}"
    );
    assert!(!client.cwd().join("a.txt").exists());
    // When the file is back, the earlier events are recorded, and the mode can be loosened.
    std::fs::rename(&away, fixture.store()).unwrap();
    set_mode(&mut client, &session, "code").await;
    turn(&mut client, &session, "write", &[&[write()], &[]]).await;
    assert!(client.cwd().join("a.txt").exists(), "the control");
    let record = Connection::open(fixture.store()).unwrap();
    let prompts: i64 = record
        .query_row("SELECT count(*) FROM events WHERE kind = 'user_message'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(prompts, 3);
    client.end().await;
}

/// Prompts of each session.
const PROMPTS: i64 = 4;

/// Sessions of each process.
const SESSIONS: usize = 50;

fn binary(store: &Path, script: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--mode", "code", "--store", store.to_str().unwrap()])
        .args(["--model", &format!("scripted:{}", script.display()), "--eof-grace", "60"])
        .env("HOME", store.parent().unwrap())
        .env("MODEGATE_LOG", "error")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Opens all sessions, then sends all prompts and mode changes without waiting.
fn run_many_sessions(mut child: Child, work: &Path) {
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut send = |id: usize, method: &str, params: Value| {
        writeln!(input, "{}", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .unwrap();
    };
    send(0, "initialize", json!({ "protocolVersion": 1 }));
    for id in 1..=SESSIONS {
        send(id, "session/new", json!({ "cwd": work, "mcpServers": [] }));
    }
    let mut ids = Vec::new();
    let mut open = 0;
    while ids.len() < SESSIONS || open > 0 {
        let message: Value = serde_json::from_str(&output.next().expect("it goes on")).unwrap();
        assert!(!message.to_string().contains("record"), "{message}");
        if message.get("id").is_none() {
            continue;
        }
        assert!(message.get("error").is_none(), "{message}");
        if let Some(session) = message["result"]["sessionId"].as_str() {
            ids.push(session.to_owned());
            if ids.len() == SESSIONS {
                for (number, session) in ids.iter().enumerate() {
                    for prompt in 0..PROMPTS {
                        let id = 1000 + number * 100 + usize::try_from(prompt).unwrap() * 2;
                        let text = json!([{ "type": "text", "text": format!("prompt {prompt}") }]);
                        let waits = json!({ "modegate/steer": false });
                        let params = json!({ "sessionId": session, "prompt": text, "_meta": waits });
                        send(id, "session/prompt", params);
                        let mode = if prompt % 2 == 0 { "plan" } else { "code" };
                        send(id + 1, "session/set_mode", json!({ "sessionId": session, "modeId": mode }));
                        open += 2;
                    }
                }
            }
        } else if message["id"].as_i64().is_some_and(|id| id >= 1000) {
            open -= 1;
        }
    }
    drop(input);
    let rest = child.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&rest.stderr).into_owned();
    assert!(rest.status.success() && !log.contains("locked"), "{log}");
}

#[test]
fn two_processes_with_fifty_sessions_lose_no_events() {
    let dir = tempfile::tempdir().unwrap();
    let (store, script, work) =
        (dir.path().join("store.db"), dir.path().join("script.jsonl"), dir.path().join("work"));
    std::fs::create_dir(&work).unwrap();
    std::fs::write(&script, "{\"text\":\"yes \",\"repeat\":5}\n{\"stop\":\"done\"}\n{\"loop\":true}\n")
        .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let child = binary(&store, &script);
            scope.spawn(|| run_many_sessions(child, &work));
        }
    });
    let record = Connection::open(&store).unwrap();
    let mut statement = record
        .prepare("SELECT session_id, kind, count(*), sum(length(json_extract(body, '$.text'))) FROM events GROUP BY 1, 2")
        .unwrap();
    let mut counts: HashMap<String, HashMap<String, (i64, i64)>> = HashMap::new();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let session: String = row.get(0).unwrap();
        let counted = (row.get(2).unwrap(), row.get::<_, Option<i64>>(3).unwrap().unwrap_or(0));
        counts.entry(session).or_default().insert(row.get(1).unwrap(), counted);
    }
    assert_eq!(counts.len(), 2 * SESSIONS);
    for counts in counts.values() {
        assert_eq!(counts["user_message"].0, PROMPTS);
        assert_eq!(counts["stop"].0, PROMPTS);
        assert_eq!(counts["mode_change"].0, PROMPTS);
        // A mode change during a message splits the message. No part is lost or stored twice.
        assert_eq!(counts["agent_text"].1, PROMPTS * i64::try_from("yes ".len() * 5).unwrap());
    }
}

const EVENTS: u64 = 10_000;

/// Length of the text of each event.
const BYTES: usize = 4_000;

#[tokio::test]
async fn long_session_loads_within_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (path, script) = (dir.path().join("store.db"), dir.path().join("script.jsonl"));
    std::fs::write(&script, "{\"text\":\"yes\"}\n{\"stop\":\"done\"}\n").unwrap();
    let work = dir.path().canonicalize().unwrap();
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    let id = SessionId::new("long");
    let row = Row::Session {
        parent: None,
        agent: "general".into(),
        id: id.clone(),
        cwd: work.clone(),
        directories: vec![],
        mode: SessionModeId::new("ask"),
        at: 1,
    };
    store.post(row);
    for seq in 0..EVENTS {
        let text = format!("{seq} ").repeat(BYTES / 5);
        let message_id = MessageId::new(format!("m{seq}"));
        // The client sees thoughts, and the model does not get old thoughts in full.
        let event = if seq % 2 == 0 {
            SessionEvent::UserMessage { message_id, content: vec![text.into()], typed: None, key: None }
        } else {
            SessionEvent::Notice { message_id, kind: NoticeKind::Message, text }
        };
        store.post(Row::Event { session: id.clone(), seq, turn: 1 + seq / 2, event, at: 2 });
        if seq % 1000 == 0 {
            store.flush().await.unwrap();
        }
    }
    store.flush().await.unwrap();
    store.post(Row::Release { session: id.clone() });
    store.flush().await.unwrap();
    drop(store);

    let mut child = binary(&path, &script);
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let folders = json!({ "sessionId": id, "cwd": work, "mcpServers": [] });
    for (number, method, params) in
        [(1, "initialize", json!({ "protocolVersion": 1 })), (2, "session/load", folders)]
    {
        writeln!(input, "{}", json!({ "jsonrpc": "2.0", "id": number, "method": method, "params": params }))
            .unwrap();
    }
    let most = |child: &Child| -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    output.next().unwrap();
    let before = most(&child);
    let mut updates = 0;
    loop {
        let message: Value = serde_json::from_str(&output.next().unwrap()).unwrap();
        if message["id"] == 2 {
            assert_eq!(message["result"]["modes"]["currentModeId"], "ask");
            break;
        }
        updates += 1;
    }
    let grown = most(&child) - before;
    assert_eq!(updates, EVENTS);
    // The conversation for the model, which is half of the text, stays in memory. Updates for the client do
    // not.
    let said = usize::try_from(EVENTS).unwrap() * BYTES / 1024;
    println!("{EVENTS} events, {said} KiB: loaded with {grown} KiB");
    assert!(grown < said, "{grown} KiB for {said} KiB");
    drop(input);
    child.wait().unwrap();
}
