//! MCP servers: the tools that each mode offers and allows, and servers whose hints are wrong or change, or
//! that hang, flood or exit.
//!
//! The servers are `tests/servers/server.sh`, which works in the session's folder.

use std::path::Path;
use std::time::{Duration, Instant};

use modegate::model::{ModelEvent, ModelStop};
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::support::requirements::{python, require_sandbox};
use crate::support::waiting::until_exists;
use crate::support::{Setup, TestClient, read, shell};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/server.sh");

/// A session with MCP servers.
pub(crate) struct McpSession {
    pub client: TestClient,
    pub session: String,
    _home: tempfile::TempDir,
}

/// The client's entry for a server with this behaviour.
pub(crate) fn server(name: &str, behaviour: &str) -> Value {
    json!({ "name": name, "command": "/bin/bash", "args": [SCRIPT, behaviour], "env": [] })
}

/// Configuration entries with `trust_hints` for these servers.
fn trusted_hint_entries(servers: &Value) -> &'static str {
    let name = |server: &Value| Some((server["name"].as_str()?.to_owned(), json!({ "trust_hints": true })));
    let entries: serde_json::Map<String, Value> =
        servers.as_array().into_iter().flatten().filter_map(name).collect();
    // JSON is also YAML.
    Box::leak(Value::Object(entries).to_string().into_boxed_str())
}

/// A session without servers in the user's configuration.
fn setup_without_entries(mode: &'static str) -> Setup {
    Setup { mode, servers: "another: {}", ..Setup::default() }
}

impl McpSession {
    pub(crate) async fn new(mode: &'static str, servers: Value) -> Self {
        Self::with(Setup { mode, ..Setup::default() }, servers).await
    }

    pub(crate) async fn with(setup: Setup, servers: Value) -> Self {
        Self::for_client(setup, &json!({}), servers).await
    }

    /// Opens a session. If the setup has no configuration entries for servers, the user trusts all hints.
    pub(crate) async fn for_client(setup: Setup, capabilities: &Value, servers: Value) -> Self {
        let setup = if setup.servers.is_empty() {
            Setup { servers: trusted_hint_entries(&servers), ..setup }
        } else {
            setup
        };
        let home = tempfile::tempdir().unwrap();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let timeout = setup.server_timeout.or(Some(Duration::from_mins(1)));
        let mut client = TestClient::with(Setup { tools, server_timeout: timeout, ..setup });
        std::fs::write(client.cwd().join("a.txt"), "content of a").unwrap();
        client.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities })).await;
        let answer = client.call("session/new", json!({ "cwd": client.cwd(), "mcpServers": servers })).await;
        let session = answer["result"]["sessionId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        while client.next().await["params"]["update"]["sessionUpdate"] != "available_commands_update" {}
        Self { client, session, _home: home }
    }

    pub(crate) fn cwd(&self) -> std::path::PathBuf {
        self.client.cwd()
    }

    pub(crate) fn say_call(&self, tool: &str) {
        self.say_call_with(tool, json!({}));
    }

    fn say_call_with(&self, tool: &str, arguments: Value) {
        let id = format!("m{}", self.client.model.requests(&self.session).len());
        let call = ModelEvent::ToolCall { id, name: tool.into(), arguments };
        self.client.model.say(&self.session, Ok(call));
        self.client.model.say(&self.session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }

    pub(crate) fn say_done(&self) {
        self.client.model.say(&self.session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }

    /// Lets the model make one call in a separate turn. Returns all messages but the answer, and the model's
    /// result.
    pub(crate) async fn call(&mut self, tool: &str) -> (Vec<Value>, String) {
        self.call_with(tool, json!({})).await
    }

    pub(crate) async fn call_with(&mut self, tool: &str, arguments: Value) -> (Vec<Value>, String) {
        let prompt = self.client.prompt(&self.session, "go").await;
        self.say_call_with(tool, arguments);
        self.say_done();
        let mut messages = self.client.until_answer(prompt).await;
        assert_eq!(messages.pop().unwrap()["result"]["stopReason"], "end_turn");
        (messages, self.last_tool_result())
    }

    /// As `call`, for a user who chooses this option. Returns the permission request, if there was one.
    async fn answer_call(&mut self, tool: &str, option: &str) -> (Option<Value>, String) {
        let prompt = self.client.prompt(&self.session, "go").await;
        self.say_call(tool);
        self.say_done();
        let mut request = None;
        loop {
            let message = self.client.next().await;
            if message["method"] == "session/request_permission" {
                self.choose(&message["id"], option).await;
                assert!(request.replace(message).is_none(), "asked twice");
            } else if message["id"] == prompt {
                assert_eq!(message["result"]["stopReason"], "end_turn", "{message}");
                return (request, self.last_tool_result());
            }
        }
    }

    /// Answers the next permission request, which must be for this tool.
    pub(crate) async fn answer_next(&mut self, tool: &str, option: &str) {
        loop {
            let message = self.client.next().await;
            if message["method"] == "session/request_permission" {
                assert!(message["params"]["toolCall"].to_string().contains(tool), "{message}");
                return self.choose(&message["id"], option).await;
            }
        }
    }

    /// Answers a permission request.
    pub(crate) async fn choose(&mut self, question: &Value, option: &str) {
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        let answer = json!({ "jsonrpc": "2.0", "id": question, "result": outcome });
        self.client.send_line(&answer.to_string()).await;
    }

    /// Runs turns until the model is offered the tool, or no longer offered it.
    async fn until_offered(&mut self, tool: &str, is_there: bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        self.text_turn().await;
        while self.offered().iter().any(|name| name == tool) != is_there {
            assert!(Instant::now() < deadline, "{:?}", self.offered());
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.text_turn().await;
        }
    }

    /// Runs a turn without a call.
    pub(crate) async fn text_turn(&mut self) -> Vec<Value> {
        let prompt = self.client.prompt(&self.session, "go").await;
        self.say_done();
        self.client.until_answer(prompt).await
    }

    pub(crate) fn last_tool_result(&self) -> String {
        let request = self.client.model.requests(&self.session).pop().unwrap();
        let results = request.messages.iter().rev().flat_map(|message| message.blocks.iter().rev());
        let mut results = results.filter_map(|block| match block {
            modegate::model::Block::ToolResult { text, .. } => Some(text.clone()),
            _ => None,
        });
        results.next().unwrap_or_default()
    }

    /// Returns the names of MCP tools in the last request.
    pub(crate) fn offered(&self) -> Vec<String> {
        let request = self.client.model.requests(&self.session).pop().unwrap();
        let names = request.tools.iter().map(|tool| tool.name.clone());
        names.filter(|name| name.starts_with("mcp__")).collect()
    }

    pub(crate) async fn slash(&mut self, command: &str) -> String {
        let prompt = self.client.prompt(&self.session, command).await;
        texts(&self.client.until_answer(prompt).await)
    }

    pub(crate) async fn set_mode(&mut self, mode: &str) -> Value {
        let params = json!({ "sessionId": self.session, "modeId": mode });
        let id = self.client.request("session/set_mode", params).await;
        let answer = self.client.until_answer(id).await.pop().unwrap();
        answer["result"]["_meta"]["modegate/effect"].clone()
    }
}

/// Returns the texts that the user sees.
pub(crate) fn texts(messages: &[Value]) -> String {
    let texts = messages.iter().filter_map(|message| message["params"]["update"]["content"]["text"].as_str());
    texts.collect()
}

pub(crate) fn status(messages: &[Value]) -> String {
    let mut statuses = messages.iter().filter_map(|message| message["params"]["update"]["status"].as_str());
    statuses.next_back().unwrap_or_default().to_owned()
}

/// Checks in every mode which tools are offered, and the result of a call that the model makes anyway.
#[tokio::test]
async fn each_mode_offers_mcp_tools_by_trusted_hints() {
    for (mode, writes) in [("plan", false), ("code", true)] {
        let mut b = McpSession::new(mode, json!([server("t", "good")])).await;
        let (_, text) = b.call("mcp__t__look").await;
        assert!(text.contains("content of a"), "{mode}: {text}");
        let offered = b.offered();
        let has = |tool: &str| offered.iter().any(|name| name == tool);
        assert!(has("mcp__t__look") && has("mcp__t__lie"), "{offered:?}");
        assert_eq!((has("mcp__t__note"), has("mcp__t__both")), (writes, true), "{offered:?}");
        let (messages, text) = b.call("mcp__t__note").await;
        assert_eq!(status(&messages), if writes { "completed" } else { "failed" });
        assert_eq!(read(&b.cwd(), "note.txt").is_some(), writes, "{text}");
        assert_eq!(text.contains("not available in plan mode"), !writes, "{text}");
        b.client.end().await;
    }
    let mut b = McpSession::new("ask", json!([server("t", "good")])).await;
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__note");
    b.say_done();
    let request = loop {
        let message = b.client.next().await;
        if message["method"] == "session/request_permission" {
            break message;
        }
    };
    assert!(request["params"]["options"][1]["name"].as_str().unwrap().contains("mcp__t__note"), "{request}");
    assert!(read(&b.cwd(), "note.txt").is_none());
    let outcome = json!({ "outcome": "selected", "optionId": "allow_once" });
    b.client
        .send_line(
            &json!({ "jsonrpc": "2.0", "id": request["id"], "result": { "outcome": outcome } }).to_string(),
        )
        .await;
    b.client.until_answer(prompt).await;
    assert!(read(&b.cwd(), "note.txt").is_some());
    b.client.end().await;
}

/// The sandbox makes the write of a wrongly hinted tool fail. Without the sandbox, the same call writes.
#[tokio::test]
async fn sandbox_stops_writes_of_a_wrongly_hinted_tool() {
    require_sandbox();
    for (servers, writes, offered) in [
        ("t: {sandbox: read_only}", false, true),
        ("t: {sandbox: off, trust_hints: true}", true, true),
        ("t: {trust_hints: false}", false, false),
        ("t: {trust_hints: [look]}", false, false),
        ("t: {trust_hints: true, tools: {lie: changes}}", false, false),
    ] {
        let setup = Setup { mode: "plan", servers, ..Setup::default() };
        let mut b = McpSession::with(setup, json!([server("t", "good")])).await;
        let (_, text) = b.call("mcp__t__lie").await;
        assert_eq!(read(&b.cwd(), "lie.txt").is_some(), writes, "{servers}: {text}");
        assert_eq!(b.offered().contains(&"mcp__t__lie".to_owned()), offered, "{servers}");
        let (_, text) = b.call("mcp__t__look").await;
        let looks = !servers.contains("false");
        assert_eq!(text.contains("content of a"), looks, "{servers}: {text}");
        b.client.end().await;
    }
    // The user's entry also overrides a hint in the other direction.
    let setup = Setup { mode: "plan", servers: "t: {tools: {note: read_only}}", ..Setup::default() };
    let mut b = McpSession::with(setup, json!([server("t", "good")])).await;
    b.call("mcp__t__note").await;
    assert!(read(&b.cwd(), "note.txt").is_some());
    b.client.end().await;
}

/// In modes that deny or ask for changes, the first call of a hinted tool asks. A rejection denies the call,
/// an approval allows it. The control is `code`.
#[tokio::test]
async fn hinted_tool_is_listed_and_first_call_asks() {
    let hinted = ["both", "flip", "lie", "look", "stubborn", "turn", "write_file"];
    let all = ["both", "flip", "lie", "look", "note", "slow", "stubborn", "turn", "write_file"];
    for (mode, expected, asks) in
        [("plan", &hinted[..], true), ("ask", &all[..], true), ("code", &all[..], false)]
    {
        let mut b = McpSession::with(setup_without_entries(mode), json!([server("t", "good")])).await;
        b.text_turn().await;
        let mut offered = b.offered();
        offered.sort();
        let expected: Vec<String> = expected.iter().map(|tool| format!("mcp__t__{tool}")).collect();
        assert_eq!(offered, expected, "{mode}");
        let (request, output) = b.answer_call("mcp__t__lie", "reject_once").await;
        assert_eq!(request.is_some(), asks, "{mode}: {output}");
        assert_eq!(read(&b.cwd(), "lie.txt").is_some(), !asks, "{mode}: {output}");
        if let Some(request) = request {
            let text = request["params"]["toolCall"]["content"][0]["content"]["text"].as_str().unwrap();
            assert!(
                text.contains(
                    "The MCP server t claims that mcp__t__lie is read-only. Modegate cannot check the claim"
                ),
                "{request}"
            );
            assert_eq!(request["params"]["toolCall"]["_meta"]["modegate/claim"], "t");
            assert_ne!(request["params"]["toolCall"]["kind"], "read");
            let option = request["params"]["options"][1]["name"].as_str().unwrap();
            assert_eq!(
                option,
                format!("Always allow what the MCP server t says only reads (this session, {mode} mode)")
            );
            let (request, _) = b.answer_call("mcp__t__lie", "allow_once").await;
            assert!(request.is_some() && read(&b.cwd(), "lie.txt").is_some(), "{mode}");
            // "Allow once" is valid for one call. "Always" is valid in this mode for as long as the server
            // claims to read.
            let (request, output) = b.answer_call("mcp__t__look", "allow_always").await;
            assert!(request.is_some() && output.contains("content of a"), "{mode}: {output}");
            for tool in ["look", "stubborn", "look"] {
                assert!(b.answer_call(&format!("mcp__t__{tool}"), "").await.0.is_none(), "{mode}: {tool}");
            }
            let other = if mode == "plan" { "ask" } else { "plan" };
            b.set_mode(other).await;
            assert!(b.answer_call("mcp__t__look", "reject_once").await.0.is_some(), "another mode asks anew");
            b.set_mode(mode).await;
            assert!(b.answer_call("mcp__t__look", "").await.0.is_none(), "and this one remembers");
        }
        b.client.end().await;
    }
}

/// Consent comes from an entry for the server or the tool, from a rule, or from a sandbox without write
/// access. A tool whose hint the user distrusts is not offered.
#[tokio::test]
async fn server_consent_comes_from_entry_rule_or_sandbox() {
    require_sandbox();
    for (servers, rules, asked, ran) in [
        ("another: {}", "", true, false),
        ("t: {sandbox: off}", "", true, false),
        ("t: {trust_hints: true}", "", false, true),
        ("t: {trust_hints: [look]}", "", false, true),
        ("t: {tools: {look: read_only}}", "", false, true),
        ("t: {trust_hints: false}", "", false, false),
        ("t: {trust_hints: [lie]}", "", false, false),
        ("t: {sandbox: read_only}", "", false, true),
        ("t: {sandbox: workspace}", "", true, false),
        ("another: {}", "permissions: {allow: ['mcp__t__*']}", false, true),
        ("another: {}", "permissions: {allow: ['mcp__t__lie']}", true, false),
        ("another: {}", "permissions: {deny: ['mcp__t__look']}", false, false),
        ("t: {trust_hints: true}", "permissions: {ask: ['mcp__t__look']}", true, false),
        ("another: {}", "permissions: {ask: ['mcp__t__look'], allow: ['mcp__t__look']}", true, false),
    ] {
        let mut layers = modegate::policy::Layers::default();
        layers.add("rules", rules, modegate::policy::LayerOwner::User).unwrap();
        let setup = Setup { mode: "plan", servers, rules: layers.rules, ..Setup::default() };
        let mut b = McpSession::with(setup, json!([server("t", "good")])).await;
        let (question, text) = b.answer_call("mcp__t__look", "reject_once").await;
        assert_eq!(question.is_some(), asked, "{servers} {rules}: {text}");
        assert_eq!(text.contains("content of a"), ran, "{servers} {rules}: {text}");
        b.client.end().await;
    }
}

/// The user sees the arguments of a changing call, also in a client that does not show raw input.
#[tokio::test]
async fn permission_request_contains_the_arguments() {
    let mut b = McpSession::new("ask", json!([server("t", "good")])).await;
    for (arguments, expected) in [
        (json!({ "text": "a\n```\nb" }), json!(["```json\n{\n  \"text\": \"a\\n```\\nb\"\n}\n```\n"])),
        (json!({}), json!([])),
    ] {
        let prompt = b.client.prompt(&b.session, "go").await;
        b.say_call_with("mcp__t__note", arguments);
        b.say_done();
        let question = loop {
            let message = b.client.next().await;
            if message["method"] == "session/request_permission" {
                break message;
            }
        };
        let content = question["params"]["toolCall"]["content"].as_array().unwrap();
        let texts: Vec<_> = content.iter().map(|part| part["content"]["text"].clone()).collect();
        assert_eq!(json!(texts), expected);
        b.choose(&question["id"], "reject_once").await;
        b.client.until_answer(prompt).await;
    }
    b.client.end().await;
}

/// Loading a session restarts its servers. The user has not seen their new claims.
#[tokio::test]
async fn hint_consent_ends_when_the_session_closes() {
    let servers = || json!([server("t", "good")]);
    let mut b = McpSession::with(setup_without_entries("plan"), servers()).await;
    assert!(b.answer_call("mcp__t__look", "allow_always").await.0.is_some());
    assert!(b.answer_call("mcp__t__look", "").await.0.is_none(), "as long as the session is open");
    let answer = b.client.call("session/close", json!({ "sessionId": b.session })).await;
    assert!(answer["error"].is_null(), "{answer}");
    let params = json!({ "sessionId": b.session, "cwd": b.cwd(), "mcpServers": servers() });
    let load = b.client.request("session/load", params).await;
    let answer = b.client.until_answer(load).await.pop().unwrap();
    assert!(answer["error"].is_null(), "{answer}");
    let (request, text) = b.answer_call("mcp__t__look", "reject_once").await;
    assert!(request.is_some(), "{text}");
    b.client.end().await;
}

/// The tool is listed and asks again, even if the user has answered before.
#[tokio::test]
async fn hint_change_to_read_only_asks_again() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/odd.py");
    let servers = json!([{ "name": "t", "command": python(), "args": [script, "toggles"], "env": [] }]);
    let mut b = McpSession::with(setup_without_entries("plan"), servers).await;
    let (request, _) = b.answer_call("mcp__t__turn", "allow_always").await;
    assert!(request.is_some(), "the first call of the server asks");
    // The tool no longer claims to read: it is not offered, and a call is refused.
    b.until_offered("mcp__t__flip", false).await;
    assert!(b.offered().contains(&"mcp__t__turn".to_owned()), "{:?}", b.offered());
    assert!(b.answer_call("mcp__t__flip", "").await.1.contains("not available in plan mode"));
    let (request, _) = b.answer_call("mcp__t__turn", "").await;
    assert!(request.is_none(), "nothing new is claimed, so the answer holds");
    // The tool claims to read again.
    b.until_offered("mcp__t__flip", true).await;
    let (request, _) = b.answer_call("mcp__t__flip", "reject_once").await;
    assert!(request.is_some() && read(&b.cwd(), "flip.txt").is_none(), "it asks again");
    let (request, _) = b.answer_call("mcp__t__flip", "allow_always").await;
    assert!(request.is_some() && read(&b.cwd(), "flip.txt").is_some());
    assert!(b.answer_call("mcp__t__flip", "").await.0.is_none(), "until it flips once more");
    b.client.end().await;
}

/// A call is decided by the newest hint. The change is recorded.
#[tokio::test]
async fn changed_hint_applies_before_the_next_call() {
    let mut b = McpSession::new("plan", json!([server("t", "good")])).await;
    let (_, text) = b.call("mcp__t__flip").await;
    assert_eq!(text, "flip was called");
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__turn");
    b.say_call("mcp__t__flip");
    b.say_call("mcp__t__flip");
    b.say_done();
    let messages = b.client.until_answer(prompt).await;
    assert!(
        texts(&messages)
            .contains("The MCP server now says that these tools may change something: mcp__t__flip."),
        "{messages:?}"
    );
    assert!(b.last_tool_result().contains("not available in plan mode"), "{}", b.last_tool_result());
    let results = format!("{:?}", b.client.model.requests(&b.session).pop().unwrap().messages);
    assert_eq!(results.matches("flip was called").count(), 1, "{results}");
    assert!(!b.offered().contains(&"mcp__t__flip".to_owned()));
    b.client.end().await;
}

/// A session with working, slow and broken servers, after the turns in which the broken ones were reported. Also
/// returns the texts of these turns.
async fn with_broken_servers() -> (McpSession, String) {
    let broken = |name: &str, behaviour: &str| json!({ "name": name, "command": "/bin/bash", "args": [SCRIPT, behaviour], "env": [{ "name": "TOKEN", "value": "hidden-value" }] });
    let servers = json!([
        broken("gone", "gone"),
        broken("hanging", "hang"),
        { "name": "missing", "command": "/does/not/exist", "args": [], "env": [] },
        { "type": "http", "name": "far", "url": "http://127.0.0.1:1/mcp?key=hidden-value", "headers": [] },
        { "type": "sse", "name": "old", "url": "http://127.0.0.1:1/sse", "headers": [] },
        broken("flooding", "flood"),
        broken("torrent", "torrent"),
        broken("garbage", "garbage"),
        server("good", "good"),
    ]);
    let setup = Setup { mode: "plan", server_timeout: Some(Duration::from_secs(3)), ..Setup::default() };
    let mut b = McpSession::with(setup, servers).await;
    let mut text = texts(&b.text_turn().await);
    // On a busy machine the servers take longer to fail. Notices of a later turn then name them.
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_there = |offered: &[String], name: &str| offered.iter().any(|tool| tool == name);
    while !["gone", "missing", "far"].iter().all(|name| text.contains(&format!("\"{name}\" cannot")))
        || !["mcp__good__look", "mcp__garbage__look"].iter().all(|tool| is_there(&b.offered(), tool))
    {
        assert!(Instant::now() < deadline, "{text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        text += &texts(&b.text_turn().await);
    }
    (b, text)
}

#[tokio::test]
async fn working_servers_are_used_beside_broken_ones() {
    let (mut b, _) = with_broken_servers().await;
    for tool in ["mcp__good__look", "mcp__garbage__look"] {
        let (_, output) = b.call(tool).await;
        assert!(output.contains("content of a"), "{tool}: {output}");
    }
    b.client.end().await;
}

/// Notices to the user and the model name the servers that a turn begins without.
#[tokio::test]
async fn turn_does_not_wait_for_slow_servers() {
    let (b, text) = with_broken_servers().await;
    assert!(
        text.contains("MCP servers still starting: hanging, flooding, torrent. The turn begins without them"),
        "{text}"
    );
    let request = format!("{:?}", b.client.model.requests(&b.session)[0].messages.last());
    assert!(
        request.contains("still starting; their tools become available with a later request:"),
        "{request}"
    );
    assert!(request.contains("hanging, flooding, torrent"), "{request}");
    b.client.end().await;
}

#[tokio::test]
async fn broken_servers_are_reported_without_secrets() {
    let (b, text) = with_broken_servers().await;
    for notice in [
        "does not support the deprecated SSE transport",
        "\"gone\" cannot be used: it ended with status 4; its last error output: cannot start without ***",
        "\"missing\" cannot be used: /does/not/exist cannot be run",
        "\"far\" cannot be used: it cannot be reached",
    ] {
        assert!(text.contains(notice), "{notice}: {text}");
    }
    assert!(!text.contains("hidden-value"), "{text}");
    b.client.end().await;
}

#[tokio::test]
async fn calls_of_unavailable_servers_say_why() {
    let (mut b, _) = with_broken_servers().await;
    for (tool, expected) in [
        ("mcp__missing__look", "The MCP server \"missing\" cannot be used: /does/not/exist cannot be run"),
        ("mcp__hanging__look", "The MCP server \"hanging\" is still starting"),
        ("mcp__good__nothing", "There is no such tool"),
        ("mcp__unknown__look", "There is no such tool"),
    ] {
        // Each turn starts a failed server again, at most three times.
        let mut output = b.call(tool).await.1;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !output.starts_with(expected) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
            output = b.call(tool).await.1;
        }
        assert!(output.starts_with(expected), "{tool}: {output}");
    }
    b.client.end().await;
}

#[tokio::test]
async fn mcp_command_lists_the_state_of_each_server() {
    let (mut b, _) = with_broken_servers().await;
    let text = b.slash("/mcp").await;
    for line in [
        "does not support the deprecated SSE transport",
        "- hanging: starting",
        "- flooding: starting",
        "- torrent: starting",
        "- good: ready, 9 tools",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    b.client.end().await;
}

/// A server that does not answer is ended when the mode is tightened during its call. The next call that
/// needs the server starts it again.
#[tokio::test]
async fn tightening_ends_a_running_mcp_call() {
    let mut b = McpSession::with(
        Setup { mode: "code", live: true, ..Setup::default() },
        json!([server("t", "good")]),
    )
    .await;
    b.text_turn().await;
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__slow");
    let mut progress = String::new();
    while !progress.contains("1 of 2: half") {
        progress = b.client.next().await.to_string();
    }
    until_exists(&b.cwd().join("slow.begun")).await;
    let started = Instant::now();
    let effect = b.set_mode("plan").await;
    assert_eq!(effect["ended"].as_array().unwrap().len(), 1, "{effect}");
    assert_eq!(effect["unconfirmed"], json!([]), "{effect}");
    assert!(started.elapsed() >= Duration::from_secs(1), "it has a moment");
    b.say_done();
    b.client.until_answer(prompt).await;
    assert!(
        b.last_tool_result().contains("Stopped: the session's mode has changed"),
        "{}",
        b.last_tool_result()
    );
    // The next call starts the server again.
    let (_, text) = b.call("mcp__t__look").await;
    assert!(text.contains("content of a"), "{text}");
    assert_eq!(read(&b.cwd(), "started.log").unwrap().lines().count(), 2);
    assert_eq!(server_processes_in(&b.cwd()), 1, "the new one");
    b.client.end().await;
}

/// A cancel leaves the server of the call running. A tighter mode afterwards ends it.
#[tokio::test]
async fn tightening_ends_servers_of_cancelled_calls() {
    let mut b = McpSession::new("code", json!([server("t", "good")])).await;
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__slow");
    until_exists(&b.cwd().join("slow.begun")).await;
    b.client.notify("session/cancel", json!({ "sessionId": b.session })).await;
    let answer = b.client.until_answer(prompt).await.pop().unwrap();
    assert_eq!(answer["result"]["stopReason"], "cancelled");
    assert!(b.slash("/mcp").await.contains("- t: ready"));
    let effect = b.set_mode("plan").await;
    assert_eq!(
        (effect["ended"].as_array().unwrap().len(), &effect["unconfirmed"]),
        (1, &json!([])),
        "{effect}"
    );
    assert!(b.slash("/mcp").await.contains("- t: not running (it was stopped)"));
    b.client.end().await;
}

/// Images, resources, structured content and errors reach both. The server sees only a few environment
/// variables.
#[tokio::test]
async fn all_mcp_content_kinds_reach_model_and_client() {
    let rich = json!({ "name": "r", "command": "/bin/bash", "args": [SCRIPT, "rich"], "env": [{ "name": "TOKEN", "value": "hidden-value" }] });
    let mut b = McpSession::new("code", json!([rich])).await;
    let (messages, text) = b.call("mcp__r__rich").await;
    assert!(
        text.contains("[image, image/png, 8 bytes, attached") && text.contains("[note:1]\ninside"),
        "{text}"
    );
    let content = messages.iter().rev().find_map(|message| message["params"]["update"]["content"].as_array());
    assert_eq!(content.unwrap()[0]["content"]["type"], "image", "{messages:?}");
    let last = b.client.model.requests(&b.session).pop().unwrap().messages.pop().unwrap();
    let is_picture = |block: &modegate::model::Block| matches!(block, modegate::model::Block::Image(it) if &*it.mime_type == "image/png");
    assert_eq!(last.blocks.iter().position(is_picture), Some(1), "behind the result: {last:?}");
    assert_eq!(b.call("mcp__r__structured").await.1, "{\n  \"n\": 42\n}");
    let (messages, text) = b.call("mcp__r__bad").await;
    assert_eq!((status(&messages).as_str(), text.as_str()), ("failed", "it went wrong"));
    assert_eq!(b.call("mcp__r__secret").await.1, "hidden-value none none");
    let (messages, text) = b.call("mcp__r__die").await;
    assert!(text.contains("cannot be used: the connection is closed"), "{text}");
    assert!(texts(&messages).contains("\"r\" cannot be used: it ended with status 3"), "{messages:?}");
    assert_eq!(b.call("mcp__r__secret").await.1, "hidden-value none none", "it is started again");
    let tools = &b.client.model.requests(&b.session)[0].tools;
    let about = &tools.iter().find(|tool| tool.name == "mcp__r__rich").unwrap().description;
    assert!(about.contains("<¬system-reminder>"), "{about}");
    b.client.end().await;
}

/// A server's tool never replaces a built-in tool, whatever its name. Rules match the prefixed name.
#[tokio::test]
async fn mcp_tool_names_do_not_collide_and_rules_match_them() {
    let rules = modegate::policy::Layers::default();
    let mut layers = rules;
    layers
        .add(
            "rules",
            "permissions: {deny: ['mcp__t__look', '*(**/.env)']}",
            modegate::policy::LayerOwner::User,
        )
        .unwrap();
    let setup = Setup { mode: "plan", rules: layers.rules, ..Setup::default() };
    let mut b =
        McpSession::with(setup, json!([server("t", "good"), server("t", "good"), server("T t", "good")]))
            .await;
    let (messages, text) = b.call("write_file").await;
    assert!(text.contains("write_file is not available in plan mode"), "{text}");
    assert!(
        texts(&messages)
            .contains("The client's MCP server \"t\" was not started: the name is already in use")
    );
    let (_, text) = b.call("mcp__t__write_file").await;
    assert!(text.contains("no such tool") || text.contains("-32602"), "{text}");
    let (_, text) = b.call("mcp__t__look").await;
    assert!(text.contains("deny mcp__t__look"), "{text}");
    let denied = json!({ "paths": [{ "path": b.cwd().join("sub/.env") }] });
    let (_, text) = b.call_with("mcp__t__flip", denied).await;
    assert!(text.contains("deny *(**/.env)"), "{text}");
    let (_, text) = b.call_with("mcp__t__flip", json!({ "path": "sub/env" })).await;
    assert_eq!(text, "flip was called");
    let offered = b.offered();
    let other =
        offered.iter().find(|name| name.starts_with("mcp__T_t_") && name.ends_with("__look")).unwrap();
    let (_, text) = b.call(&other.clone()).await;
    assert!(text.contains("content of a"), "{text}");
    b.client.end().await;
}

/// Counts the processes of the test server that work in a folder.
fn server_processes_in(cwd: &Path) -> usize {
    let is_servers = |entry: &std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(SCRIPT) || line.contains("sleep 1000") || line.contains("deaf.txt")
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let there = all.filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|at| at == cwd));
    there.filter(is_servers).count()
}

/// The processes that the server started end, too.
#[tokio::test]
async fn exited_server_leaves_no_processes() {
    let mut b = McpSession::new("code", json!([server("r", "rich")])).await;
    let (_, text) = b.call("mcp__r__deaf").await;
    assert!(text.contains("cannot be used: the connection is closed"), "{text}");
    assert!(read(&b.cwd(), "deaf.txt").is_some(), "it did begin");
    assert_eq!(server_processes_in(&b.cwd()), 0);
    let output = b.slash("/undo").await;
    assert!(output.contains("Changes made by mcp__r__deaf of the MCP server r are not tracked"), "{output}");
    b.client.end().await;
}

#[tokio::test]
async fn close_ends_the_sessions_servers() {
    let setup = Setup { mode: "code", server_timeout: Some(Duration::from_secs(1)), ..Setup::default() };
    let mut b = McpSession::with(setup, json!([server("t", "good"), server("h", "hang")])).await;
    b.call("mcp__t__look").await;
    let cwd = b.cwd();
    assert!(server_processes_in(&cwd) >= 2);
    b.client.call("session/close", json!({ "sessionId": b.session })).await;
    assert_eq!(server_processes_in(&cwd), 0);
    b.client.end().await;
}

/// Neither the user nor the model is asked.
#[tokio::test]
async fn sampling_request_is_method_not_found() {
    let mut b = McpSession::new("code", json!([server("r", "rich")])).await;
    let (messages, answered) = b.call("mcp__r__sample").await;
    assert!(answered.contains("code:-32601"), "{answered}");
    assert!(messages.iter().all(|message| message["method"] != "session/request_permission"), "{messages:?}");
    let requests = b.client.model.requests(&b.session);
    assert!(requests.iter().all(|request| !request.tools.is_empty()), "no request without tools");
    b.client.end().await;
}

/// The question names the server. It needs a client with forms, and a rule can deny it.
#[tokio::test]
async fn server_elicitation_reaches_the_user() {
    let forms = json!({ "elicitation": { "form": {} } });
    for (capabilities, rules, expected) in [
        (forms.clone(), "", Ok("colour:blue")),
        (
            forms,
            "permissions: {deny: ['mcp_elicitation__*']}",
            Err("The rule deny mcp_elicitation__* does not allow this"),
        ),
        (json!({}), "", Err("cannot")),
    ] {
        let mut layers = modegate::policy::Layers::default();
        layers.add("rules", rules, modegate::policy::LayerOwner::User).unwrap();
        let setup = Setup { mode: "plan", rules: layers.rules, ..Setup::default() };
        let mut b = McpSession::for_client(setup, &capabilities, json!([server("r", "rich")])).await;
        let prompt = b.client.prompt(&b.session, "go").await;
        b.say_call("mcp__r__elicit");
        b.say_done();
        if expected.is_ok() {
            let request = loop {
                let message = b.client.next().await;
                if message["method"] == "elicitation/create" {
                    break message;
                }
            };
            assert_eq!(request["params"]["message"], "The MCP server \"r\" asks: Which colour?");
            assert_eq!(request["params"]["toolCallId"], "call_1_1");
            assert_eq!(
                request["params"]["requestedSchema"]["properties"]["colour"]["enum"],
                json!(["red", "blue"])
            );
            let answer = json!({ "action": "accept", "content": { "colour": "blue" } });
            b.client
                .send_line(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": answer }).to_string())
                .await;
        }
        b.client.until_answer(prompt).await;
        let (Ok(text) | Err(text)) = expected;
        assert!(b.last_tool_result().contains(text), "{rules}: {}", b.last_tool_result());
        let started = read(&b.cwd(), "begun.json").unwrap();
        assert_eq!(started.contains("elicitation"), capabilities != json!({}), "{started}");
        b.client.end().await;
    }
}
