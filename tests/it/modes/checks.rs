//! Checks: the user's own commands after changes. Modes, rules and the sandbox treat each as a call of the
//! model, which reads new findings only.

use std::sync::{Arc, Mutex};

use modegate::model::{Block, ModelEvent, ModelStop};
use modegate::policy::{LayerOwner, Layers};
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::support::requirements::require_sandbox;
use crate::support::waiting::until_exists;
use crate::support::{Setup, TestClient, read, shell};

/// Fails with the lines of `a.txt` that say `bad`.
const LINT: &str = "checks: [{id: lint, command: '! grep -Hn bad a.txt'}]";

/// A session with the shell tools and the user's file.
struct Checked {
    client: TestClient,
    session: String,
    _home: tempfile::TempDir,
}

impl Checked {
    async fn begin(mode: &'static str, file: &str) -> Self {
        require_sandbox();
        let home = tempfile::tempdir().unwrap();
        let mut layers = Layers::default();
        layers.add("modes.yaml", file, LayerOwner::User).unwrap();
        let files = Some(Arc::new(Mutex::new(layers)));
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let mut client = TestClient::with(Setup { mode, tools, files, ..Setup::default() });
        let session = client.session().await;
        Self { client, session, _home: home }
    }

    fn say_calls(&self, calls: &[(&str, Value)]) {
        self.say_calls_in(&self.session, calls);
    }

    fn say_calls_in(&self, session: &str, calls: &[(&str, Value)]) {
        for (number, (tool, arguments)) in calls.iter().enumerate() {
            let id = format!("m{number}_{}", self.client.model.requests(session).len());
            let (name, arguments) = ((*tool).to_owned(), arguments.clone());
            self.client.model.say(session, Ok(ModelEvent::ToolCall { id, name, arguments }));
        }
        self.client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }

    fn say_answer(&self) {
        self.say_answer_in(&self.session);
    }

    fn say_answer_in(&self, session: &str) {
        self.client.model.say(session, Ok(ModelEvent::Text("Done.".into())));
        self.client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }

    /// Runs a turn with these calls in one reply, and then an answer.
    async fn turn(&mut self, calls: &[(&str, Value)]) -> Vec<Value> {
        let prompt = self.client.prompt(&self.session, "go").await;
        self.say_calls(calls);
        self.say_answer();
        self.client.until_answer(prompt).await
    }

    async fn write(&mut self, content: &str) -> Vec<Value> {
        self.turn(&[write("a.txt", content)]).await
    }

    fn notes(&self) -> Vec<String> {
        self.notes_of(&self.session)
    }

    /// The notes behind the results that the model of a session read last.
    fn notes_of(&self, session: &str) -> Vec<String> {
        let request = self.client.model.requests(session).pop().unwrap();
        let blocks = request.messages.last().unwrap().blocks.clone();
        let notes = blocks.into_iter().filter_map(|block| match block {
            Block::Note(text) => Some(text),
            _ => None,
        });
        let plain = |note: String| {
            note.trim_start_matches("<system-note>\n").trim_end_matches("\n</system-note>").to_owned()
        };
        notes.map(plain).collect()
    }

    async fn set_mode(&mut self, mode: &str) {
        let params = json!({ "sessionId": self.session, "modeId": mode });
        let id = self.client.request("session/set_mode", params).await;
        self.client.until_answer(id).await;
    }

    /// Answers the permission request of a check with this option, and returns the messages up to the end.
    async fn answer(&mut self, prompt: i64, option: usize) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let message = self.client.next().await;
            if message["method"] == "session/request_permission" {
                let chosen = &message["params"]["options"][option]["optionId"];
                let outcome = json!({ "outcome": { "outcome": "selected", "optionId": chosen } });
                let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome });
                self.client.send_line(&answer.to_string()).await;
            }
            let is_end = message["id"] == prompt && message.get("method").is_none();
            messages.push(message);
            if is_end {
                return messages;
            }
        }
    }
}

fn write(path: &str, content: &str) -> (&'static str, Value) {
    ("write_file", json!({ "path": path, "content": content }))
}

/// The check of each call that runs one.
fn checks(messages: &[Value]) -> Vec<String> {
    let updates = messages.iter().map(|message| &message["params"]["update"]);
    let ids = updates.filter_map(|update| update["_meta"]["modegate/check"].as_str());
    ids.map(str::to_owned).collect()
}

/// The last update of the last check's call.
fn last_end(messages: &[Value]) -> Value {
    let is_check = |update: &&Value| {
        update["toolCallId"].as_str().is_some_and(|id| id.starts_with("check_"))
            && update["status"].is_string()
    };
    let mut updates = messages.iter().map(|message| &message["params"]["update"]);
    updates.rfind(is_check).cloned().unwrap_or_default()
}

fn questions(messages: &[Value]) -> usize {
    messages.iter().filter(|message| message["method"] == "session/request_permission").count()
}

#[tokio::test]
pub(super) async fn check_runs_once_after_the_calls_of_a_reply() {
    let mut session = Checked::begin("code", LINT).await;
    let calls = [write("a.txt", "good\nbad\n"), write("b.txt", "b"), write("c.txt", "c")];
    let messages = session.turn(&calls).await;
    assert_eq!(checks(&messages), ["lint"]);
    let mut updates = messages.iter().map(|message| &message["params"]["update"]);
    let announced = updates.find(|update| update["toolCallId"] == "check_1_1").unwrap();
    assert_eq!(announced["kind"], "execute", "{announced}");
    assert_eq!(announced["title"], "Check lint: ! grep -Hn bad a.txt");
    let end = last_end(&messages);
    assert_eq!(end["status"], "failed");
    assert!(end.to_string().contains("a.txt:2:bad"), "the client sees the output: {end}");
    let note = "The check lint failed after your changes: `! grep -Hn bad a.txt`, exit status 1. It had not run in \
                this session before, so a part may be older than your changes.\n> a.txt:2:bad";
    assert_eq!(session.notes(), [note]);
    let request = session.client.model.requests(&session.session).pop().unwrap();
    let calls = request.messages.iter().flat_map(|message| &message.blocks);
    let calls = calls.filter(|block| matches!(block, Block::ToolCall { .. }));
    assert_eq!(calls.count(), 3, "the call of the check is not the model's");
    assert!(
        request.system.contains("- lint, after your calls: ! grep -Hn bad a.txt\n</checks>"),
        "{}",
        request.system
    );
    session.client.end().await;
}

#[tokio::test]
pub(super) async fn model_reads_only_new_findings() {
    let mut session = Checked::begin("code", LINT).await;
    for (content, expected) in [
        ("good\n", None),
        ("good\nbad\n", Some("New since its last run:\n> a.txt:2:bad")),
        ("good\nmore\nbad\n", Some("The check lint still fails, with nothing new.")),
        ("bad 2\nmore\nbad\n", Some("New since its last run:\n> a.txt:1:bad 2")),
        ("good\nmore\n", Some("The check lint passes now.")),
        ("fine\n", None),
    ] {
        let messages = session.write(content).await;
        assert_eq!(checks(&messages), ["lint"]);
        let notes = session.notes();
        assert_eq!(notes.len(), usize::from(expected.is_some()), "{content}: {notes:?}");
        assert!(
            notes.iter().all(|note| note.ends_with(expected.unwrap_or_default())),
            "{content}: {notes:?}"
        );
    }
    session.client.end().await;
}

#[tokio::test]
pub(super) async fn check_is_due_only_after_changes_of_its_files() {
    let file =
        "checks:\n- {id: text, command: 'echo x >> ran', paths: ['*.txt']}\n- {id: all, command: 'true'}";
    let mut session = Checked::begin("code", file).await;
    let cwd = session.client.cwd();
    assert_eq!(checks(&session.turn(&[write("a.rs", "a")]).await), ["all"]);
    assert_eq!(
        checks(&session.turn(&[("read_file", json!({ "path": "a.rs" }))]).await),
        Vec::<String>::new()
    );
    assert_eq!(checks(&session.write("a").await), ["text", "all"]);
    // The file that the check itself writes makes none due.
    assert_eq!(checks(&session.turn(&[("list_directory", json!({}))]).await), Vec::<String>::new());
    assert_eq!(read(&cwd, "ran").as_deref(), Some("x\n"));
    session.client.end().await;
}

#[tokio::test]
pub(super) async fn deny_rule_also_refuses_a_check() {
    for (rules, is_denied) in [("permissions: {deny: ['shell(touch *)']}", true), ("", false)] {
        let file = format!("checks: [{{id: lint, command: touch ran}}]\n{rules}");
        let mut session = Checked::begin("code", &file).await;
        let messages = session.turn(&[write("a.txt", "a")]).await;
        let end = last_end(&messages);
        assert_eq!(session.client.cwd().join("ran").exists(), !is_denied);
        let expected = if is_denied { json!("deny_rule") } else { Value::Null };
        assert_eq!(end["_meta"]["modegate/denied"], expected, "{end}");
        let notes = session.notes();
        assert_eq!(notes.len(), usize::from(is_denied), "{notes:?}");
        assert!(
            notes
                .iter()
                .all(|note| note.starts_with("The check lint did not run to its end:\n> The rule deny"))
        );
        session.client.end().await;
    }
}

/// A refusal of a check counts neither as one of the model's nor as a reason to end the turn.
#[tokio::test]
pub(super) async fn refused_check_is_tried_once_in_a_turn() {
    let file = "checks: [{id: lint, command: touch ran}]\npermissions: {deny: ['shell(touch *)']}";
    let mut session = Checked::begin("code", file).await;
    let prompt = session.client.prompt(&session.session, "go").await;
    for number in 0..6 {
        session.say_calls(&[write("a.txt", &number.to_string())]);
    }
    session.say_answer();
    let messages = session.client.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn");
    assert_eq!(session.client.model.requests(&session.session).len(), 7, "the turn went on to the answer");
    assert_eq!(checks(&messages), ["lint"]);
    assert_eq!(checks(&session.write("b").await), ["lint"], "the next turn tries again");
    session.client.end().await;
}

#[tokio::test]
pub(super) async fn check_needs_permission_where_commands_do() {
    let file = "checks: [{id: lint, command: touch ran}]\npermissions: {allow: [write_file]}";
    for (option, runs) in [("allow_once", true), ("reject_once", false)] {
        let mut session = Checked::begin("ask", file).await;
        let prompt = session.client.prompt(&session.session, "go").await;
        session.say_calls(&[write("a.txt", "a")]);
        session.say_answer();
        let number = if option == "allow_once" { 0 } else { 2 };
        let messages = session.answer(prompt, number).await;
        assert_eq!(questions(&messages), 1, "{messages:?}");
        let asked =
            messages.iter().find(|message| message["method"] == "session/request_permission").unwrap();
        assert_eq!(asked["params"]["options"][number]["kind"], option, "{asked}");
        assert_eq!(asked["params"]["toolCall"]["title"], "Check lint: touch ran");
        assert_eq!(session.client.cwd().join("ran").exists(), runs);
        session.client.end().await;
    }
}

#[tokio::test]
pub(super) async fn read_only_check_asks_nothing_and_changes_nothing() {
    let file =
        "checks: [{id: lint, command: 'touch ran', read_only: true}]\npermissions: {allow: [write_file]}";
    let mut session = Checked::begin("ask", file).await;
    let messages = session.write("a").await;
    assert_eq!((questions(&messages), checks(&messages)), (0, vec!["lint".to_owned()]));
    assert!(!session.client.cwd().join("ran").exists());
    assert!(session.notes()[0].contains("Permission denied"), "{:?}", session.notes());
    session.client.end().await;
    let mut session = Checked::begin("code", &file.replace(", read_only: true", "")).await;
    session.write("a").await;
    assert!(session.client.cwd().join("ran").exists(), "the control");
    session.client.end().await;
}

/// A mode without commands edits files and has no checks, also not by another tool.
#[tokio::test]
pub(super) async fn mode_without_commands_runs_no_check() {
    let file = "checks: [{id: lint, command: touch ran}]\n\
                modes: [{id: edits, access: edit, permission: auto, shell: read_only}]";
    let mut session = Checked::begin("code", file).await;
    session.set_mode("edits").await;
    let messages = session.write("a").await;
    assert_eq!((checks(&messages), session.notes()), (Vec::new(), Vec::new()));
    assert!(!session.client.cwd().join("ran").exists());
    session.set_mode("code").await;
    assert_eq!(checks(&session.write("b").await), ["lint"], "the control");
    session.client.end().await;
}

#[tokio::test]
pub(super) async fn plan_ends_a_check_that_runs() {
    let file = "checks: [{id: lint, command: 'touch began; sleep 60; touch ended'}]";
    let mut session = Checked::begin("code", file).await;
    let prompt = session.client.prompt(&session.session, "go").await;
    session.say_calls(&[write("a.txt", "a")]);
    until_exists(&session.client.cwd().join("began")).await;
    let params = json!({ "sessionId": session.session, "modeId": "plan" });
    let switch = session.client.request("session/set_mode", params).await;
    let mut messages = session.client.until_answer(switch).await;
    session.say_calls(&[write("a.txt", "b")]);
    session.say_answer();
    messages.extend(session.client.until_answer(prompt).await);
    assert_eq!(checks(&messages), ["lint"], "none is due in plan, whose calls change nothing");
    let end = last_end(&messages);
    assert_eq!(end["status"], "failed");
    assert!(end.to_string().contains("does not allow this call"), "{end}");
    assert_eq!(read(&session.client.cwd(), "a.txt").as_deref(), Some("a"));
    assert!(!session.client.cwd().join("ended").exists());
    session.client.end().await;
}

#[tokio::test]
pub(super) async fn cancelled_turn_ends_its_check() {
    let file = "checks: [{id: lint, command: 'touch began; sleep 60; touch ended'}]";
    let mut session = Checked::begin("code", file).await;
    let prompt = session.client.prompt(&session.session, "go").await;
    session.say_calls(&[write("a.txt", "a")]);
    until_exists(&session.client.cwd().join("began")).await;
    session.client.notify("session/cancel", json!({ "sessionId": session.session })).await;
    let messages = session.client.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    assert_eq!(last_end(&messages)["status"], "failed");
    assert_eq!(session.client.model.requests(&session.session).len(), 1);
    session.client.end().await;
}

#[tokio::test]
pub(super) async fn check_ends_at_its_timeout() {
    let mut session = Checked::begin("code", "checks: [{id: lint, command: 'sleep 60', timeout: 1}]").await;
    session.write("a").await;
    let note =
        "The check lint did not run to its end:\n> Stopped: the timeout of 1 s expired. Ended by signal 15";
    assert_eq!(session.notes(), [note]);
    session.client.end().await;
}

/// A sub-agent is a session of its own, whose changes are also those of the session above it.
#[tokio::test]
pub(super) async fn sub_agent_and_the_session_above_it_run_checks() {
    let file = LINT.replace("}]", "}, {id: last, command: 'false', when: end}]");
    let mut session = Checked::begin("code", &file).await;
    let prompt = session.client.prompt(&session.session, "go").await;
    session.say_calls(&[("delegate", json!({ "task": "one" }))]);
    session.say_calls_in("sess_2", &[write("a.txt", "bad\n")]);
    session.say_answer_in("sess_2");
    for _ in 0..2 {
        session.say_answer();
    }
    session.client.until_answer(prompt).await;
    let found =
        |notes: Vec<String>, id: &str| notes.iter().any(|note| note.starts_with(&format!("The check {id}")));
    assert!(found(session.notes_of("sess_2"), "lint") && found(session.notes(), "last"));
    let requests = session.client.model.requests(&session.session);
    assert!(format!("{:?}", requests[1].messages).contains("The check lint failed"), "after the delegation");
    assert!(
        !format!("{:?}", session.client.model.requests("sess_2")).contains("The check last"),
        "not at its end"
    );
    session.client.end().await;
}

/// Checks at the end of a turn bring the model back as long as they find something new, three times at most.
#[tokio::test]
pub(super) async fn check_at_the_end_brings_the_model_back() {
    let mut session = Checked::begin("code", &LINT.replace("}]", ", when: end}]")).await;
    let prompt = session.client.prompt(&session.session, "go").await;
    for content in ["bad\n", "x\nbad\nbad b\n", "good\n"] {
        session.say_calls(&[write("a.txt", content)]);
        session.say_answer();
    }
    let messages = session.client.until_answer(prompt).await;
    assert_eq!(checks(&messages), ["lint", "lint", "lint"]);
    assert_eq!(session.client.model.requests(&session.session).len(), 6);
    let prompt = session.client.prompt(&session.session, "go").await;
    for number in 0..4 {
        session.say_calls(&[write("a.txt", &format!("bad {}\n", "x".repeat(number)))]);
        session.say_answer();
    }
    let messages = session.client.until_answer(prompt).await;
    assert_eq!(checks(&messages).len(), 4);
    assert_eq!(session.client.model.requests(&session.session).len(), 14, "three rounds, and no more");
    session.client.end().await;
}

/// The page's examples are files that can be used.
#[test]
fn examples_of_the_page_are_valid() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guides/checks.md")).unwrap();
    let examples: Vec<&str> =
        page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!examples.is_empty());
    for example in examples {
        let mut layers = Layers::default();
        layers.add("modes.yaml", example, LayerOwner::User).unwrap();
        assert_eq!(layers.checks.iter().map(|check| check.id.as_str()).collect::<Vec<_>>(), ["lint", "test"]);
    }
}
