//! Rules about changes of files, and the commands that a session runs: calls of `shell`, jobs, checks, and commands of
//! sub-agents. `sandbox/denied_changes.rs` has the ways to change a file.

use std::path::Path;

use modegate::process::shell::Sandbox;
use modegate::store::StoreLocation;
use modegate::tool::Toolset;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::agents::delegation::{AGENTS, call, write};
use crate::sessions::resume::layers;
use crate::sessions::undo::report;
use crate::support::requirements::require_sandbox;
use crate::support::{Setup, TestClient, read, shell};

const RULE: &str = "permissions: {deny: ['Edit(src/**)'], allow: [shell]}";
const NOTE: &str = "[The rule deny {apply_patch,delete_file,edit_file,move_file,write_file}(src/**) does not allow this, \
                    in any mode: changes of ";

const DENIAL: &str = "deny {apply_patch,delete_file,edit_file,move_file,write_file}(src/**)";

/// A session whose folder has `src/a` and `b`. Dropping the third value removes the home.
async fn begin(mode: &'static str, rules: &str, sandbox: Sandbox) -> (TestClient, String, tempfile::TempDir) {
    require_sandbox();
    let home = tempfile::tempdir().unwrap();
    let tools = Toolset::built_in().with_shell(shell(home.path(), sandbox));
    let store = StoreLocation::File(home.path().join("store.db"));
    let rules = layers(rules).rules;
    let setup = Setup { mode, tools, rules, store, agents: AGENTS, live: true, ..Setup::default() };
    let mut client = TestClient::with(setup);
    std::fs::create_dir(client.cwd().join("src")).unwrap();
    for name in ["src/a", "b"] {
        std::fs::write(client.cwd().join(name), "old\n").unwrap();
    }
    let session = client.session().await;
    (client, session, home)
}

/// Runs a turn with one call of the tool, and returns its result.
async fn result(client: &mut TestClient, session: &str, tool: &str, arguments: Value) -> String {
    let prompt = client.prompt(session, "go").await;
    client.calls(session, vec![call(tool, arguments)]);
    client.answers(session, "done");
    client.until_answer(prompt).await;
    last_result(client, session)
}

fn last_result(client: &TestClient, session: &str) -> String {
    let request = client.model.requests(session).pop().unwrap();
    let mut blocks = request.messages.iter().rev().flat_map(|message| message.blocks.iter().rev());
    let text = blocks.find_map(|block| match block {
        modegate::model::Block::ToolResult { text, .. } => Some(text.clone()),
        _ => None,
    });
    text.unwrap_or_default()
}

/// The session, call, tool, mode and rule of each denial that the store has at this moment.
fn denials(home: &Path) -> Vec<String> {
    let store = Connection::open(home.join("store.db")).unwrap();
    let columns = "session_id || ' ' || tool_call_id || ' ' || tool || ' ' || mode || ' ' || rule";
    let sql = format!("SELECT {columns} FROM denials ORDER BY id");
    let mut statement = store.prepare(&sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

/// The result names the rule, whatever the command made of the refusal.
#[tokio::test]
async fn deny_rule_keeps_shell_from_changing_files() {
    for (mode, rules, sandbox, is_denied) in [
        ("code", RULE, Sandbox::Workspace, true),
        ("code", RULE, Sandbox::Broker, true),
        ("ask", RULE, Sandbox::Workspace, true),
        ("code", "permissions: {deny: ['write_file(src/**)']}", Sandbox::Workspace, true),
        ("code", "permissions: {deny: ['*(src/a)']}", Sandbox::Workspace, true),
        // A command does not wait for an answer at each write, and without the broker it is not stopped.
        ("code", "permissions: {ask: ['Edit(src/**)']}", Sandbox::Workspace, false),
        ("code", RULE, Sandbox::Off, false),
        ("code", "permissions: {deny: ['Edit(docs/**)']}", Sandbox::Workspace, false),
        ("code", "permissions: {}", Sandbox::Workspace, false),
    ] {
        let (mut client, session, _home) = begin(mode, rules, sandbox).await;
        let line = "echo new > src/a; echo new > b; true";
        let text = result(&mut client, &session, "shell", json!({ "command": line })).await;
        let expected = if is_denied { "old\n" } else { "new\n" };
        assert_eq!(read(&client.cwd(), "src/a").as_deref(), Some(expected), "{rules} {sandbox:?}: {text}");
        assert_eq!(read(&client.cwd(), "b").as_deref(), Some("new\n"), "{rules} {sandbox:?}: {text}");
        assert_eq!(text.contains("[The rule deny "), is_denied, "{rules} {sandbox:?}: {text}");
        assert_eq!(text.contains("/src/a.]"), is_denied, "{rules} {sandbox:?}: {text}");
        assert!(!is_denied || rules != RULE || text.contains(NOTE), "{text}");
        client.end().await;
    }
}

/// One for each call and rule, however often the command tries. It is stored before the client sees the call's end, and
/// the call is no denied call: the turn goes on, and the audit finds nothing.
#[tokio::test]
async fn refused_changes_of_a_command_are_a_denial_in_the_record() {
    let two_rules = "permissions: {deny: ['Edit(src/**)', '*(b)'], allow: [shell]}";
    for (mode, rules, line, expected) in [
        ("code", RULE, "echo x > src/a; echo x > src/c; echo x > src/a; true", &[DENIAL][..]),
        ("code", RULE, "echo x > src/a", &[DENIAL]),
        ("ask", RULE, "rm src/a; mv src/a c", &[DENIAL]),
        ("code", two_rules, "echo x > src/a; echo x > b; echo x > src/a", &[DENIAL, "deny *(b)"]),
        ("code", RULE, "echo x > b; cat src/a", &[]),
        ("code", RULE, "echo x > b; false", &[]),
        ("code", "permissions: {}", "echo x > src/a", &[]),
    ] {
        let (mut client, session, home) = begin(mode, rules, Sandbox::Workspace).await;
        let prompt = client.prompt(&session, "go").await;
        client.calls(&session, vec![call("shell", json!({ "command": line }))]);
        client.answers(&session, "done");
        loop {
            let message = client.next().await;
            let update = &message["params"]["update"];
            if update["toolCallId"] == "call_1_1"
                && (update["status"] == "completed" || update["status"] == "failed")
            {
                assert_eq!(update["_meta"]["modegate/denied"], Value::Null, "{message}");
                break;
            }
        }
        let row = |rule: &&str| format!("{session} call_1_1 shell {mode} {rule}");
        let expected: Vec<String> = expected.iter().map(row).collect();
        assert_eq!(denials(home.path()), expected, "{line}");
        client.until_answer(prompt).await;
        client.end().await;
        assert_eq!(denials(home.path()), expected, "{line}");
        let report = report(&home.path().join("store.db"), &session, None).await;
        assert_eq!((report.denials, report.findings), (expected.len(), Vec::new()), "{line}");
    }
}

#[tokio::test]
async fn deny_rule_keeps_jobs_from_changing_files() {
    for (name, is_denied) in [("src/a", true), ("b", false)] {
        let (mut client, session, home) = begin("code", RULE, Sandbox::Workspace).await;
        let job = json!({ "command": format!("echo new > {name}"), "background": true });
        result(&mut client, &session, "shell", job).await;
        let view = json!({ "id": "job_1", "wait": 30 });
        let text = result(&mut client, &session, "view_background", view).await;
        let expected = if is_denied { "old\n" } else { "new\n" };
        assert_eq!(read(&client.cwd(), name).as_deref(), Some(expected), "{text}");
        assert_eq!(text.contains(NOTE), is_denied, "{text}");
        client.end().await;
        // The call that started the job.
        let expected = is_denied.then(|| format!("{session} call_1_1 shell code {DENIAL}"));
        assert_eq!(denials(home.path()), Vec::from_iter(expected), "{text}");
    }
}

#[tokio::test]
async fn deny_rule_keeps_sub_agents_from_changing_files() {
    for (name, is_denied) in [("src/a", true), ("b", false)] {
        let (mut client, root, home) = begin("code", RULE, Sandbox::Workspace).await;
        let prompt = client.prompt(&root, "go").await;
        client.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": "writer" }))]);
        let line = format!("echo new > {name}");
        client.calls("sess_2", vec![call("shell", json!({ "command": line }))]);
        client.answers("sess_2", "one");
        client.answers(&root, "done");
        client.until_answer(prompt).await;
        let text = last_result(&client, "sess_2");
        let expected = if is_denied { "old\n" } else { "new\n" };
        assert_eq!(read(&client.cwd(), name).as_deref(), Some(expected), "{text}");
        assert_eq!(text.contains(NOTE), is_denied, "{text}");
        client.end().await;
        let expected = is_denied.then(|| format!("sess_2 call_1_1 shell code {DENIAL}"));
        assert_eq!(denials(home.path()), Vec::from_iter(expected), "{text}");
    }
}

/// A check runs as a call of `shell`.
#[tokio::test]
async fn deny_rule_keeps_checks_from_changing_files() {
    for (name, is_denied) in [("src/a", true), ("b", false)] {
        let home = tempfile::tempdir().unwrap();
        let file = format!("checks: [{{id: format, command: 'echo new > {name}'}}]\n{RULE}");
        let files = Some(std::sync::Arc::new(std::sync::Mutex::new(layers(&file))));
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let store = StoreLocation::File(home.path().join("store.db"));
        let mut client = TestClient::with(Setup { mode: "code", tools, files, store, ..Setup::default() });
        std::fs::create_dir(client.cwd().join("src")).unwrap();
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        client.calls(&session, vec![write("c")]);
        client.answers(&session, "done");
        let messages = client.until_answer(prompt).await;
        assert_eq!(client.cwd().join(name).exists(), !is_denied, "{messages:?}");
        let is_named = messages.iter().any(|message| message.to_string().contains(NOTE));
        assert_eq!(is_named, is_denied, "{messages:?}");
        client.end().await;
        let expected = is_denied.then(|| format!("{session} check_1_1 shell code {DENIAL}"));
        assert_eq!(denials(home.path()), Vec::from_iter(expected), "{messages:?}");
    }
}
