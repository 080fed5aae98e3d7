//! Hooks that refuse calls, that fail, and that get events.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use modegate::hooks::runner::Hooks;
use modegate::hooks::{self, HookDefinition};
use modegate::process::Processes;
use modegate::store::StoreLocation;
use serde_json::{Value, json};

use super::undo::report;
use crate::agents::delegation::{AGENTS, call, status, write};
use crate::support::{Setup, TestClient};

/// Hooks in YAML; `{dir}` stands for this folder.
pub(crate) fn hooks(dir: &Path, yaml: &str) -> Hooks {
    let definitions: Vec<HookDefinition> =
        serde_saphyr::from_str(&yaml.replace("{dir}", dir.to_str().unwrap())).unwrap();
    let processes = Processes::new(env!("CARGO_BIN_EXE_modegate").into(), std::env::temp_dir());
    let environment = vec![
        ("PATH".into(), "/usr/bin:/bin".into()),
        ("OTEL_EXPORTER_OTLP_HEADERS".into(), "authorization=hidden".into()),
    ];
    Hooks::new(hooks::complete(&[], &definitions).unwrap(), processes, environment)
}

/// Writes a shell script that the hooks start.
pub(crate) fn script(dir: &Path, name: &str, body: &str) {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub(crate) fn deny(extra: &str) -> String {
    format!("- {{id: guard, on: [call], kind: deny, command: [\"{{dir}}/guard\"]{extra}}}")
}

async fn client_with(dir: &Path, yaml: &str) -> (TestClient, String) {
    let setup =
        Setup { mode: "code", hooks: hooks(dir, yaml), agents: AGENTS, live: true, ..Setup::default() };
    let mut client = TestClient::with(setup);
    let session = client.session().await;
    (client, session)
}

/// Lets the model write a file. Returns the messages of the turn.
async fn write_file(client: &mut TestClient, session: &str) -> Vec<Value> {
    let prompt = client.prompt(session, "go").await;
    client.calls(session, vec![write("a")]);
    client.answers(session, "Done.");
    client.until_answer(prompt).await
}

fn updates_with<'a>(messages: &'a [Value], key: &str) -> Vec<&'a Value> {
    let updates = messages.iter().map(|message| &message["params"]["update"]);
    updates.filter(|update| !update["_meta"][key].is_null()).collect()
}

#[tokio::test]
async fn deny_hook_refuses_and_every_failure_refuses() {
    for (body, extra, refusal) in [
        ("cat >/dev/null", "", None),
        ("exit 0", "", None),
        (r#"echo '{"decision":"deny","reason":"no writes today"}'"#, "", Some("no writes today")),
        ("exit 3", "", Some("it ended with status 3")),
        ("kill -9 $$", "", Some("signal 9 ended it")),
        ("echo yes", "", Some("its output is neither empty nor")),
        (r#"echo '{"decision":"allow"}'"#, "", Some("its output is neither empty nor")),
        ("head -c 200000 /dev/zero", "", Some("so the call is refused")),
        ("sleep 60", ", timeout_s: 1", Some("it did not end within 1 s")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        script(dir.path(), "guard", body);
        let (mut client, session) = client_with(dir.path(), &deny(extra)).await;
        let messages = write_file(&mut client, &session).await;
        assert_eq!(client.cwd().join("a").exists(), refusal.is_none(), "{body}: {messages:?}");
        let denied = updates_with(&messages, "modegate/denied");
        assert_eq!(denied.len(), usize::from(refusal.is_some()), "{body}");
        if let Some(refusal) = refusal {
            assert_eq!(denied[0]["_meta"]["modegate/denied"], "hook");
            let requests = client.model.requests(&session);
            let told = crate::support::scripted_model::last_message(&requests[1]).join("\n");
            assert!(told.contains("Refused by the hook guard: ") && told.contains(refusal), "{told}");
        }
        client.end().await;
    }
}

#[tokio::test]
async fn missing_program_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let (mut client, session) = client_with(dir.path(), &deny("")).await;
    let messages = write_file(&mut client, &session).await;
    assert!(!client.cwd().join("a").exists());
    assert_eq!(updates_with(&messages, "modegate/denied").len(), 1, "{messages:?}");
    client.end().await;
}

#[tokio::test]
async fn hook_gets_the_facts_and_no_secrets() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "guard", &format!("cat > {0}/facts; env > {0}/env", dir.path().display()));
    let (mut client, session) = client_with(dir.path(), &deny(", effects: [edit]")).await;
    write_file(&mut client, &session).await;
    let facts: Value = serde_json::from_slice(&fs::read(dir.path().join("facts")).unwrap()).unwrap();
    let expected = json!({
        "event": "call", "session": session, "mode": "code", "agent": "general", "folder": client.cwd(),
        "call": "call_1_1", "decision": null, "tool": "write_file", "effect": "edit", "source": "tool",
        "paths": [client.cwd().join("a")], "commandLine": null, "address": null, "server": null,
        "isBackground": false,
    });
    assert_eq!(facts, expected);
    has_members(&facts);
    let environment = fs::read_to_string(dir.path().join("env")).unwrap();
    assert!(environment.contains("PATH=") && !environment.contains("hidden"), "{environment}");
    client.end().await;
}

/// Fails unless `docs/guides/hooks.md` lists each member of the object.
fn has_members(facts: &Value) {
    let page = include_str!("../../../docs/guides/hooks.md");
    let table: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    for member in facts.as_object().unwrap().keys() {
        let name = format!("`{member}`");
        assert!(table.iter().any(|row| row.split('|').nth(1).unwrap().contains(&name)), "{member}");
    }
}

#[tokio::test]
async fn user_is_not_asked_about_what_a_hook_refuses() {
    for (body, asks) in [("exit 1", false), ("exit 0", true)] {
        let dir = tempfile::tempdir().unwrap();
        script(dir.path(), "guard", &format!("echo x >> {}/runs; {body}", dir.path().display()));
        let setup = Setup { mode: "ask", hooks: hooks(dir.path(), &deny("")), ..Setup::default() };
        let mut client = TestClient::with(setup);
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        client.calls(&session, vec![write("a")]);
        client.answers(&session, "Done.");
        let mut messages = Vec::new();
        while messages.last().is_none_or(|last: &Value| last["id"] != prompt || last.get("method").is_some())
        {
            let message = client.next().await;
            if message["method"] == "session/request_permission" {
                let yes = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
                let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": yes });
                client.send_line(&answer.to_string()).await;
            }
            messages.push(message);
        }
        let asked = messages.iter().any(|message| message["method"] == "session/request_permission");
        assert_eq!((asked, client.cwd().join("a").exists()), (asks, asks), "{messages:?}");
        let runs = fs::read_to_string(dir.path().join("runs")).unwrap();
        assert_eq!(runs, "x\n", "one run for a call, also with an answer");
        client.end().await;
    }
}

#[tokio::test]
async fn hook_lifts_no_denial_and_is_not_asked_about_it() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "guard", &format!("echo x >> {}/runs", dir.path().display()));
    let setup = Setup { mode: "plan", hooks: hooks(dir.path(), &deny("")), ..Setup::default() };
    let mut client = TestClient::with(setup);
    let session = client.session().await;
    let messages = write_file(&mut client, &session).await;
    assert_eq!(updates_with(&messages, "modegate/denied")[0]["_meta"]["modegate/denied"], "access");
    assert!(!dir.path().join("runs").exists());
    client.end().await;
}

/// Waits until a file exists.
async fn until_exists(path: &Path) {
    let started = Instant::now();
    while !path.exists() {
        assert!(started.elapsed() < Duration::from_secs(20), "{} does not appear", path.display());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn mode_change_during_a_hook_decides_the_call() {
    for (mode, writes) in [("plan", false), ("ask", true)] {
        let dir = tempfile::tempdir().unwrap();
        let body =
            format!("touch {0}/started; while [ ! -e {0}/go ]; do sleep 0.02; done", dir.path().display());
        script(dir.path(), "guard", &body);
        let (mut client, session) = client_with(dir.path(), &deny("")).await;
        let prompt = client.prompt(&session, "go").await;
        client.calls(&session, vec![write("a")]);
        client.answers(&session, "Done.");
        until_exists(&dir.path().join("started")).await;
        // In ask, the user allows the call.
        let target = if writes { "code" } else { mode };
        let set = client.request("session/set_mode", json!({ "sessionId": session, "modeId": target })).await;
        client.until_answer(set).await;
        fs::write(dir.path().join("go"), "").unwrap();
        let messages = client.until_answer(prompt).await;
        assert_eq!(client.cwd().join("a").exists(), writes, "{messages:?}");
        client.end().await;
    }
}

#[tokio::test]
async fn cancelled_turn_ends_the_hook_and_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let body = format!("sleep 300 & echo $! > {0}/child; touch {0}/started; wait", dir.path().display());
    script(dir.path(), "guard", &body);
    let (mut client, session) = client_with(dir.path(), &deny(", timeout_s: 60")).await;
    let prompt = client.prompt(&session, "go").await;
    client.calls(&session, vec![write("a")]);
    until_exists(&dir.path().join("started")).await;
    let child = fs::read_to_string(dir.path().join("child")).unwrap();
    let process = Path::new("/proc").join(child.trim());
    assert!(process.exists(), "the control");
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    let messages = client.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    let started = Instant::now();
    while process.exists() {
        assert!(started.elapsed() < Duration::from_secs(5), "the child of the hook still runs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!client.cwd().join("a").exists());
    client.end().await;
}

#[tokio::test]
async fn notify_hook_is_told_of_each_event_and_delays_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = "- {id: watch, on: [call, question, mode_change, session_start, turn_end], kind: notify, \
                command: [\"{dir}/watch\"]}";
    script(dir.path(), "watch", &format!("cat >> {0}/log; echo >> {0}/log", dir.path().display()));
    let hooks = hooks(dir.path(), yaml);
    let setup = Setup { mode: "code", hooks: hooks.clone(), ..Setup::default() };
    let mut client = TestClient::with(setup);
    let session = client.session().await;
    write_file(&mut client, &session).await;
    let set = client.request("session/set_mode", json!({ "sessionId": session, "modeId": "plan" })).await;
    client.until_answer(set).await;
    let prompt = client.prompt(&session, "again").await;
    client.calls(&session, vec![write("b")]);
    client.answers(&session, "Done.");
    client.until_answer(prompt).await;
    hooks.settle(Duration::from_secs(20)).await;
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).map(|event| {
        has_members(&event);
        let more = [&event["decision"], &event["from"], &event["stopReason"]];
        let more = more.into_iter().find_map(Value::as_str).unwrap_or_default();
        format!("{} {} {more}", event["event"].as_str().unwrap(), event["mode"].as_str().unwrap())
    });
    assert_eq!(
        events.collect::<Vec<_>>(),
        [
            "session_start code ",
            "call code allow",
            "turn_end code end_turn",
            "mode_change plan code",
            "call plan deny",
            "turn_end plan end_turn",
        ]
    );
    client.end().await;
}

#[tokio::test]
async fn slow_notify_hook_delays_no_turn_and_loses_only_the_excess() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "watch", "sleep 60");
    let yaml = "- {id: watch, on: [call], kind: notify, command: [\"{dir}/watch\"], timeout_s: 60}";
    let (mut client, session) = client_with(dir.path(), yaml).await;
    let started = Instant::now();
    let prompt = client.prompt(&session, "go").await;
    for _ in 0..40 {
        let calls = (0..8).map(|_| call("list_directory", json!({}))).collect();
        client.calls(&session, calls);
        client.calls(&session, vec![write("a")]);
    }
    client.answers(&session, "Done.");
    let messages = client.until_answer(prompt).await;
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(status(&messages, "call_1_1"), "completed");
    client.end().await;
}

#[tokio::test]
async fn refusal_is_recorded_with_the_hook_and_passes_the_audit() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "guard", "exit 1");
    let store = dir.path().join("store.db");
    let setup = Setup {
        mode: "code",
        hooks: hooks(dir.path(), &deny("")),
        store: StoreLocation::File(store.clone()),
        ..Setup::default()
    };
    let mut client = TestClient::with(setup);
    let session = client.session().await;
    write_file(&mut client, &session).await;
    client.end().await;
    let report = report(&store, &session, None).await;
    assert_eq!((report.denials, report.findings), (1, Vec::new()));
    let sql = "SELECT count(*) FROM denials, chain WHERE denials.session_id = ?1 AND denials.rule = 'hook:guard' \
               AND chain.session_id = ?1 AND json_extract(chain.body, '$.rule') = 'hook:guard'";
    let count = rusqlite::Connection::open(&store).unwrap().query_row(sql, [&session], |row| row.get(0));
    assert_eq!(count, Ok(1));
}

#[test]
fn projects_cannot_define_hooks() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(".modegate")).unwrap();
    fs::write(dir.path().join(".modegate/modes.yaml"), "hooks:\n  - id: a\n").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["modes", "check"])
        .current_dir(dir.path())
        .env_clear()
        .env("HOME", dir.path().join("home"))
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(!output.status.success() && text.contains("hooks"), "{text}");
}
