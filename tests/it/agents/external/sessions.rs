//! External agents as the agent of a session. Read-only modes sandbox or reject them (D47, D48), and the
//! session shows their updates and requests. The agent is `tests/servers/external_agent.py`, which carries
//! out the words of a prompt.

use std::path::{Path, PathBuf};
use std::time::Duration;

use modegate::permission::rules::Rules;
use modegate::process::shell::Sandbox;
use modegate::store::{Store, StoreLocation, Sync};
use modegate::tool::Toolset;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::requirements::python;
use crate::support::{Setup, TestClient, shell};

pub(crate) const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/external_agent.py");

/// A client with a session of the external agent.
pub(crate) struct ExternalAgentClient {
    pub client: TestClient,
    pub home: TempDir,
    pub session: String,
}

/// Definitions of agents. The first is `peer`, the test agent.
pub(crate) fn agents(how: &str, more: &str) -> &'static str {
    let peer = format!(
        "[{{id: peer, harness: {{command: {}, args: ['{PEER}', {how}], env: {{KEY: hidden-value}}{more}}}}}]",
        python()
    );
    Box::leak(peer.into_boxed_str())
}

pub(crate) const SANDBOXED: &str = ", sandbox: {state_dirs: ['~/.peer'], broker: false}";

pub(crate) fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub(crate) fn client(mode: &'static str, agents: &'static str, home: &Path) -> TestClient {
    client_with_rules(mode, agents, home, Rules::default())
}

fn client_with_rules(mode: &'static str, agents: &'static str, home: &Path, rules: Rules) -> TestClient {
    let tools = Toolset::built_in().with_shell(shell(home, Sandbox::Workspace));
    TestClient::with(Setup { mode, agents, tools, rules, live: true, ..Setup::default() })
}

impl ExternalAgentClient {
    /// Opens a session of the test agent, which can be sandboxed.
    pub(crate) async fn new(mode: &'static str, how: &str) -> Self {
        Self::of(mode, agents(how, SANDBOXED)).await.unwrap()
    }

    pub(crate) async fn with_rules(mode: &'static str, rules: Rules) -> Self {
        let home = home();
        let client = client_with_rules(mode, agents("plain", SANDBOXED), home.path(), rules);
        Self::open(client, home, json!({ "fs": { "writeTextFile": true } })).await.unwrap()
    }

    pub(crate) async fn of(mode: &'static str, agents: &'static str) -> Result<Self, Value> {
        let home = home();
        Self::open(client(mode, agents, home.path()), home, json!({})).await
    }

    pub(crate) async fn open(
        mut test_client: TestClient,
        home: TempDir,
        capabilities: Value,
    ) -> Result<Self, Value> {
        let initialize = json!({ "protocolVersion": 1, "clientCapabilities": capabilities });
        test_client.call("initialize", initialize).await;
        let meta = json!({ "modegate/agent": "peer" });
        let answer = test_client
            .call("session/new", json!({ "cwd": test_client.cwd(), "mcpServers": [], "_meta": meta }))
            .await;
        let Some(session) = answer["result"]["sessionId"].as_str().map(str::to_owned) else {
            test_client.end().await;
            return Err(answer);
        };
        Ok(Self { client: test_client, home, session })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.client.cwd().join(name)
    }

    /// Runs a prompt to its end. Permission requests are answered with this option.
    pub(crate) async fn prompt(&mut self, text: &str, option: Option<&str>) -> Vec<Value> {
        let id = self.client.prompt(&self.session, text).await;
        self.until(id, option).await
    }

    pub(crate) async fn until(&mut self, id: i64, option: Option<&str>) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let message = self.client.next().await;
            if let (Some(option), true) = (option, message["method"] == "session/request_permission") {
                let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
                let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome });
                self.client.send_line(&answer.to_string()).await;
            }
            let is_last = message["id"] == id && message.get("method").is_none();
            messages.push(message);
            if is_last {
                return messages;
            }
        }
    }

    /// Lets the agent write a file through the client, which accepts the write.
    pub(crate) async fn write_through_client(&mut self, path: &str) -> Vec<Value> {
        let id = self.client.prompt(&self.session, &format!("fs-write {path}")).await;
        let mut messages = Vec::new();
        while messages.last().is_none_or(|message: &Value| message["id"] != id) {
            let message = self.client.next().await;
            if message["method"] == "fs/write_text_file" {
                let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": {} });
                self.client.send_line(&answer.to_string()).await;
            }
            messages.push(message);
        }
        messages
    }

    pub(crate) async fn write(&mut self, name: &str) -> String {
        let path = self.path(name).display().to_string();
        agent_text(&self.prompt(&format!("write {path}"), None).await)
    }

    pub(crate) async fn mode(&mut self, mode: &str) -> Value {
        let id = self
            .client
            .request("session/set_mode", json!({ "sessionId": self.session, "modeId": mode }))
            .await;
        self.until(id, None).await.pop().unwrap()
    }

    pub(crate) async fn end(self) {
        self.client.end().await;
    }
}

/// Returns the agent's text.
pub(crate) fn agent_text(messages: &[Value]) -> String {
    let update = |message: &Value| {
        let update = &message["params"]["update"];
        let is_text = update["sessionUpdate"] == "agent_message_chunk";
        is_text.then(|| update["content"]["text"].as_str().unwrap().to_owned())
    };
    messages.iter().filter_map(update).collect()
}

pub(crate) fn processes_of(peer: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains("external_agent.py") && line.contains(peer)).count()
}

#[tokio::test]
async fn external_agent_writes_only_state_in_plan() {
    for (mode, is_written) in [("plan", false), ("code", true), ("ask", true)] {
        let mut client = ExternalAgentClient::new(mode, "plain").await;
        let text = client.write("new.txt").await;
        assert_eq!(client.path("new.txt").exists(), is_written, "{mode}: {text}");
        assert_eq!(text.ends_with("written"), is_written, "{mode}: {text}");
        assert_eq!(text.contains("Permission denied"), !is_written, "{mode}: {text}");
        assert_eq!(
            text.contains("in plan mode all changes that it attempts fail"),
            !is_written,
            "{mode}: {text}"
        );
        // The agent's state folder is writable in every mode.
        let state = client.home.path().canonicalize().unwrap().join(".peer");
        std::fs::create_dir_all(&state).unwrap();
        let path = state.join("state.txt");
        let text = agent_text(&client.prompt(&format!("write {}", path.display()), None).await);
        assert!(text.ends_with("written") && path.exists(), "{mode}: {text}");
        client.end().await;
    }
}

/// The agent is rejected before a process starts, and its session does not offer these modes (D47, D48).
#[tokio::test]
async fn agent_without_sandbox_is_rejected_in_plan() {
    let agents = agents("unheld", "");
    let answer = ExternalAgentClient::of("plan", agents).await.err().unwrap();
    let details = &answer["error"]["message"];
    let expected = json!({ "code": "unsupported_mode", "modeId": "plan", "possible": ["ask", "code"], "details": details });
    assert_eq!((&answer["error"]["code"], &answer["error"]["data"]), (&json!(-32602), &expected), "{answer}");
    assert_eq!(processes_of("unheld"), 0);
    // The control: in code, the agent starts.
    let mut agent_client = ExternalAgentClient::of("code", agents).await.unwrap();
    assert!(agent_client.write("a").await.ends_with("written"));
    assert_eq!(processes_of("unheld"), 1);
    let answer = agent_client.mode("architect").await;
    assert_eq!(answer["error"]["data"], expected, "{answer}");
    let set = json!({ "sessionId": agent_client.session, "configId": "mode", "value": "plan" });
    let answer = agent_client.client.call("session/set_config_option", set).await;
    assert_eq!(answer["error"]["data"], expected, "{answer}");
    assert!(agent_client.write("b").await.ends_with("written"), "nothing has changed");
    agent_client.end().await;
    assert_eq!(processes_of("unheld"), 0);
    // The modes that the session offers.
    let home = home();
    let mut test_client = client("code", agents, home.path());
    test_client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let meta = json!({ "modegate/agent": "peer" });
    let new = json!({ "cwd": test_client.cwd(), "mcpServers": [], "_meta": meta });
    let answer = test_client.call("session/new", new).await;
    let ids: Vec<_> = answer["result"]["modes"]["availableModes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mode| mode["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["ask", "code"]);
    let described = answer["result"]["modes"]["availableModes"][0]["description"].as_str().unwrap();
    assert!(described.contains("The agent decides when to ask first"), "nothing makes it ask: {described}");
    while test_client.next_within(Duration::from_millis(300)).await.is_some() {}
    test_client.end().await;
}

/// In plan, delegation to an external agent without `sandbox` is rejected before a process starts. With
/// `sandbox`, the agent runs in it.
#[tokio::test]
async fn delegation_sandboxes_or_rejects_external_agents() {
    for (more, mode, is_run, is_written) in
        [("", "plan", false, false), (SANDBOXED, "plan", true, false), ("", "code", true, true)]
    {
        let home = home();
        let mut test_client = client(mode, agents("delegated", more), home.path());
        let root = test_client.session().await;
        let path = test_client.cwd().join("new.txt");
        let prompt = test_client.prompt(&root, "go").await;
        let arguments = json!({ "agent": "peer", "task": format!("write {}", path.display()) });
        let call =
            modegate::model::ModelEvent::ToolCall { id: "m".into(), name: "delegate".into(), arguments };
        let done = || Ok(modegate::model::ModelEvent::Stop(modegate::model::ModelStop::Done));
        test_client.model.say(&root, Ok(call));
        test_client.model.say(&root, done());
        test_client.model.say(&root, done());
        let messages = test_client.until_answer(prompt).await;
        let last = messages
            .iter()
            .map(|message| &message["params"]["update"])
            .rfind(|update| update["toolCallId"] == "call_1_1" && update["status"].is_string())
            .unwrap();
        let text = last["content"].to_string();
        assert_eq!(last["status"], if is_run { "completed" } else { "failed" }, "{mode} {more}: {text}");
        assert_eq!(text.contains("unsupported_mode"), !is_run, "{mode} {more}: {text}");
        assert_eq!(path.exists(), is_written, "{mode} {more}: {text}");
        test_client.end().await;
        assert_eq!(processes_of("delegated"), 0);
    }
}

/// Tightening during a turn ends the agent before the mode change is answered. The next prompt starts the
/// agent in the sandbox, and a notice reports a lost conversation.
#[tokio::test]
async fn tightening_restarts_the_agent_in_the_sandbox() {
    for (how, is_lost) in [("plain", true), ("loads", false)] {
        let mut client = ExternalAgentClient::new("code", how).await;
        assert!(client.write("a").await.ends_with("written"), "the control");
        let running = client.client.prompt(&client.session.clone(), "deaf").await;
        while agent_text(&[client.client.next().await]) != "begun" {}
        let set = json!({ "sessionId": client.session, "modeId": "plan" });
        let set = client.client.request("session/set_mode", set).await;
        let mut messages = client.until(set, None).await;
        let answer = messages.last().unwrap();
        assert_eq!(answer["result"]["_meta"]["modegate/effect"]["ended"], json!(["agent"]), "{answer}");
        // The agent's last output and the end of its turn can come before that answer.
        if messages.iter().all(|message| message["id"] != running) {
            messages.extend(client.until(running, None).await);
        }
        assert!(agent_text(&messages).contains("the mode has changed"), "{messages:?}");
        let end = messages.iter().find(|message| message["id"] == running).unwrap();
        assert_eq!(end["result"]["stopReason"], "end_turn");
        let text = client.write("b").await;
        assert!(!client.path("b").exists(), "{text}");
        assert_eq!(text.contains("has lost the earlier conversation"), is_lost, "{how}: {text}");
        client.end().await;
    }
}

/// The waiting prompt goes to the next process, which is sandboxed.
#[tokio::test]
async fn tightening_ends_an_agent_during_startup() {
    let mut client = ExternalAgentClient::new("code", "slow").await;
    let path = client.path("b");
    let running = client.client.prompt(&client.session.clone(), &format!("write {}", path.display())).await;
    let set = json!({ "sessionId": client.session, "modeId": "plan" });
    let set = client.client.request("session/set_mode", set).await;
    let mut messages = client.until(set, None).await;
    let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!(["agent"]), &json!([])), "{effect}");
    assert_eq!(processes_of("slow"), 0, "nothing of it is left");
    messages.extend(client.until(running, None).await);
    assert!(agent_text(&messages).contains("Permission denied"), "{messages:?}");
    assert!(!path.exists());
    client.end().await;
}

/// If the agent cannot load its session, only the restart option restarts it.
#[tokio::test]
async fn loosening_asks_before_a_restart_loses_context() {
    for (how, option, is_asked, is_written) in [
        ("plain", "stay", true, false),
        ("plain", "restart", true, true),
        ("plain", "nonsense", true, false),
        ("loads", "", false, true),
    ] {
        let mut client = ExternalAgentClient::new("plan", how).await;
        assert!(client.write("a").await.contains("Permission denied"), "the control");
        client.mode("code").await;
        let path = client.path("b").display().to_string();
        let messages = client.prompt(&format!("write {path}"), Some(option)).await;
        let asked = messages.iter().any(|message| message["method"] == "session/request_permission");
        assert_eq!(asked, is_asked, "{how} {option}");
        assert_eq!(client.path("b").exists(), is_written, "{how} {option}: {messages:?}");
        client.end().await;
    }
}

/// The agent's permission requests are denied in plan, with a record and a notice. Code approves them, and
/// ask passes them to the user.
#[tokio::test]
async fn mode_decides_agent_permission_requests() {
    for (mode, is_asked, outcome) in
        [("plan", false, "cancelled"), ("code", false, "yes"), ("ask", true, "yes")]
    {
        let folder = tempfile::tempdir().unwrap();
        let home = home();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let store = || StoreLocation::File(folder.path().join("s.db"));
        let agents = agents("plain", SANDBOXED);
        let setup = Setup { mode, agents, tools, live: true, store: store(), ..Setup::default() };
        let mut client = TestClient::with(setup);
        client.call("initialize", json!({ "protocolVersion": 1 })).await;
        let meta = json!({ "modegate/agent": "peer" });
        let new = json!({ "cwd": client.cwd(), "mcpServers": [], "_meta": meta });
        let session =
            client.call("session/new", new).await["result"]["sessionId"].as_str().unwrap().to_owned();
        let mut agent_client = ExternalAgentClient { client, home, session: session.clone() };
        let messages = agent_client.prompt("permission", Some("yes")).await;
        let requests: Vec<_> =
            messages.iter().filter(|message| message["method"] == "session/request_permission").collect();
        assert_eq!(requests.len(), usize::from(is_asked), "{mode}");
        assert!(requests.iter().all(|request| request["params"]["sessionId"] == json!(session)), "{mode}");
        assert!(agent_text(&messages).contains(outcome), "{mode}: {messages:?}");
        let told =
            format!("{messages:?}").contains("Refused by Modegate: plan mode allows no changes (Write)");
        assert_eq!(told, mode == "plan", "{messages:?}");
        agent_client.end().await;
        let store = Store::open(store(), Sync::Normal).unwrap();
        let denials = store.counts(&modegate::acp::SessionId::new(session)).await.unwrap().1;
        assert_eq!(denials, u64::from(mode == "plan"), "{mode}");
    }
}

/// The agent's options are listed after the session's own options, and can be set.
#[tokio::test]
async fn agent_modes_and_options_are_session_options() {
    let mut client = ExternalAgentClient::new("code", "plain").await;
    let options = loop {
        let message = client.client.next().await;
        if message["params"]["update"]["sessionUpdate"] == "config_option_update" {
            break message["params"]["update"]["configOptions"].clone();
        }
    };
    let value = |options: &Value, id: &str| {
        let option = options.as_array().unwrap().iter().find(|option| option["id"] == id);
        option.map(|option| option["currentValue"].clone()).unwrap_or_default()
    };
    assert_eq!((value(&options, "mode"), value(&options, "agent_mode")), (json!("code"), json!("auto")));
    assert_eq!(value(&options, "model"), Value::Null, "its model is its own affair");
    let set = |id: &str, value: &str| json!({ "sessionId": client.session, "configId": id, "value": value });
    let (good, bad, unknown) = (set("agent_mode", "plan"), set("agent_mode", "gone"), set("depth", "3"));
    let answer = client.client.request("session/set_config_option", good).await;
    let answer = client.until(answer, None).await.pop().unwrap();
    assert_eq!(value(&answer["result"]["configOptions"], "agent_mode"), "plan", "{answer}");
    assert_eq!(value(&answer["result"]["configOptions"], "mode"), "code", "{answer}");
    for wrong in [bad, unknown] {
        let id = client.client.request("session/set_config_option", wrong).await;
        let answer = client.until(id, None).await.pop().unwrap();
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        let valid = &answer["error"]["data"];
        let is_named = valid["validValues"] == json!(["auto", "plan"]) || valid["validOptions"].is_array();
        assert!(is_named, "{answer}");
    }
    client.end().await;
}

#[tokio::test]
async fn plan_sets_the_agents_own_read_only_mode() {
    for (mode, expected) in [("plan", "plan"), ("code", "auto")] {
        let mut client = ExternalAgentClient::new(mode, "plain").await;
        let options = loop {
            let message = client.client.next().await;
            if message["params"]["update"]["sessionUpdate"] == "config_option_update" {
                break message["params"]["update"]["configOptions"].clone();
            }
        };
        let agent_mode =
            options.as_array().unwrap().iter().find(|option| option["id"] == "agent_mode").unwrap();
        assert_eq!(agent_mode["currentValue"], expected);
        client.end().await;
    }
}

/// An agent that loads its session is still in the read-only mode that was set for the sandbox. Without the
/// sandbox, its previous mode is restored.
#[tokio::test]
async fn leaving_the_sandbox_restores_the_agents_own_mode() {
    let mut client = ExternalAgentClient::new("plan", "keeps").await;
    for (mode, expected) in [("plan", "plan"), ("code", "auto"), ("plan", "plan"), ("ask", "auto")] {
        client.mode(mode).await;
        let messages = client.prompt("say 1", None).await;
        assert_eq!(shown_agent_mode(&messages).unwrap(), expected, "{mode}");
    }
    client.end().await;
}

/// Returns the agent's mode in the last update.
pub(crate) fn shown_agent_mode(messages: &[Value]) -> Option<&Value> {
    let options =
        messages.iter().rev().find_map(|message| message["params"]["update"]["configOptions"].as_array());
    options?.iter().find(|option| option["id"] == "agent_mode").map(|option| &option["currentValue"])
}

/// The agent advertises loading, and fails to load its session.
#[tokio::test]
async fn failed_session_load_makes_later_restarts_ask() {
    let mut client = ExternalAgentClient::new("plan", "forgets").await;
    for (mode, is_asked, is_lost) in
        [("plan", false, false), ("code", false, true), ("plan", false, true), ("code", true, false)]
    {
        client.mode(mode).await;
        let messages = client.prompt("say 1", Some("restart")).await;
        let asked = messages.iter().any(|message| message["method"] == "session/request_permission");
        let lost = agent_text(&messages).contains("has lost the earlier conversation");
        assert_eq!((asked, lost), (is_asked, is_lost), "{mode}: {messages:?}");
    }
    client.end().await;
}

/// A reopened session continues if the agent loads its own session, and otherwise reports the lost context
/// once. A fork has no session of the agent, because two sessions would write to it.
#[tokio::test]
async fn reopened_session_continues_or_reports_lost_context() {
    for (how, method, times) in [
        ("plain", "session/load", 1),
        ("forgets", "session/load", 1),
        ("loads", "session/load", 0),
        ("loads", "session/resume", 0),
        ("loads", "session/fork", 1),
    ] {
        let mut client = ExternalAgentClient::new("plan", how).await;
        let lost =
            |messages: &[Value]| agent_text(messages).matches("has lost the earlier conversation").count();
        assert_eq!(lost(&client.prompt("say 1", None).await), 0, "the control");
        let close = client.client.request("session/close", json!({ "sessionId": client.session })).await;
        client.until(close, None).await;
        let again = json!({ "sessionId": client.session, "cwd": client.client.cwd(), "mcpServers": [] });
        let again = client.client.request(method, again).await;
        let mut messages = client.until(again, None).await;
        if let Some(copy) = messages.last().unwrap()["result"]["sessionId"].as_str() {
            client.session = copy.to_owned();
        }
        messages.extend(client.prompt("say 1", None).await);
        messages.extend(client.prompt("say 1", None).await);
        assert_eq!(lost(&messages), times, "{how} {method}: {messages:?}");
        client.end().await;
    }
}

/// Each call is announced before its other updates, in whatever order the agent sends them, and also if the
/// client sees no permission request for the call. A call that the agent leaves open fails with the turn and
/// keeps its content.
#[tokio::test]
async fn every_agent_call_is_announced_first_and_once() {
    for (mode, prompt, expected) in [
        ("code", "calls", &["tool_call c2", "tool_call_update Read"][..]),
        ("code", "permission", &["tool_call Write", "tool_call_update failed"]),
        ("ask", "permission", &["tool_call Write", "tool_call_update failed"]),
        ("plan", "permission", &["tool_call Write", "tool_call_update Refused", "tool_call_update failed"]),
    ] {
        let mut client = ExternalAgentClient::new(mode, "plain").await;
        let messages = client.prompt(prompt, Some("yes")).await;
        let calls: Vec<_> = messages
            .iter()
            .map(|message| &message["params"]["update"])
            .filter(|update| update["toolCallId"].is_string())
            .map(|update| {
                let kind = update["sessionUpdate"].as_str().unwrap();
                let is_refusal = update["content"].to_string().contains("Refused by Modegate");
                let title = update["title"].as_str().or(is_refusal.then_some("Refused"));
                format!("{kind} {}", title.or(update["status"].as_str()).unwrap_or_default())
            })
            .collect();
        assert_eq!(calls, expected, "{mode} {prompt}");
        client.end().await;
    }
}

/// The error is one sentence, and the session continues.
#[tokio::test]
async fn agent_errors_are_prompt_errors_without_secrets() {
    let mut client = ExternalAgentClient::new("code", "plain").await;
    for (prompt, expected) in [
        ("die", "the agent peer: it ended with status 3"),
        ("error", "the agent peer: it answered with an error: Internal error: no quota for ***"),
    ] {
        let messages = client.prompt(prompt, None).await;
        let error = &messages.last().unwrap()["error"];
        assert!(error["message"].as_str().unwrap().starts_with(expected), "{error}");
        assert!(!format!("{messages:?}").contains("hidden-value"));
    }
    assert!(client.write("a").await.ends_with("written"), "it was started again");
    client.end().await;
    let mut client = ExternalAgentClient::new("code", "auth").await;
    let messages = client.prompt("say 1", None).await;
    assert_eq!(messages.last().unwrap()["error"]["code"], -32000, "{messages:?}");
    client.end().await;
    let mut client = ExternalAgentClient::new("code", "dies").await;
    let messages = client.prompt("say 1", None).await;
    let error = messages.last().unwrap()["error"]["message"].as_str().unwrap();
    assert!(error.contains("no such model"), "{error}");
    client.end().await;
}

/// An agent that ignores the cancel loses its turn, too. Its earlier text arrives before the answer.
#[tokio::test]
async fn cancel_ends_the_agents_turn() {
    for how in ["hang", "deaf"] {
        let mut client = ExternalAgentClient::new("code", "plain").await;
        let running = client.client.prompt(&client.session.clone(), how).await;
        while agent_text(&[client.client.next().await]) != "begun" {}
        client.client.notify("session/cancel", json!({ "sessionId": client.session })).await;
        let messages = client.until(running, None).await;
        assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled", "{how}");
        assert!(client.write("a").await.ends_with("written"), "{how}");
        client.end().await;
    }
}

#[tokio::test]
async fn agent_text_arrives_complete_before_the_answer() {
    let mut client = ExternalAgentClient::new("code", "plain").await;
    let messages = client.prompt("say 1000", None).await;
    let expected: String = (0..1000).map(|n| n.to_string()).collect();
    assert_eq!(agent_text(&messages), expected);
    client.end().await;
}
