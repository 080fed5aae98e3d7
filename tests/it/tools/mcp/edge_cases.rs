//! Edge cases of MCP servers, with `tests/servers/odd.py` and `odd_http.py`.

use std::time::Duration;

use modegate::policy::{Layers, Owner};
use serde_json::{Value, json};

use crate::support::{Setup, read};
use crate::tools::mcp::servers::{McpSession, texts, until};

const ODD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/odd.py");
const ODD_HTTP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/odd_http.py");

/// Without it these servers cannot be run; `.ci/run` sees to it that it is there.
fn has_python() -> bool {
    std::path::Path::new("/usr/bin/python3").exists()
}

fn odd(behaviour: &[&str]) -> Value {
    let mut args = vec![ODD];
    args.extend(behaviour);
    json!([{ "name": "t", "command": "/usr/bin/python3", "args": args, "env": [] }])
}

/// A server behind an address, which ends with this.
struct HttpMcpServer(std::process::Child, tempfile::TempDir, Value);

impl HttpMcpServer {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = dir.path().join("port");
        let child = std::process::Command::new("/usr/bin/python3").arg(ODD_HTTP).arg(&port).spawn().unwrap();
        until(&port).await;
        let port = std::fs::read_to_string(port).unwrap();
        let servers = json!([{ "type": "http", "name": "h", "url": format!("http://127.0.0.1:{port}/mcp"), "headers": [] }]);
        Self(child, dir, servers)
    }

    /// Waits until a tool was called so often.
    async fn called(&self, tool: &str, times: usize) {
        let file = self.1.path().join(format!("port.{tool}"));
        for _ in 0..1000 {
            if std::fs::read_to_string(&file).is_ok_and(|text| text.lines().count() >= times) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{tool} was not called");
    }
}

impl Drop for HttpMcpServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn aba(mode: &'static str) {
    let mut b = McpSession::new(mode, odd(&["aba"])).await;
    let prompt = b.client.prompt(&b.session, "go").await;
    for (id, name) in [("1", "mcp__t__turn"), ("2", "mcp__t__flip")] {
        let call =
            modegate::model::ModelEvent::ToolCall { id: id.into(), name: name.into(), arguments: json!({}) };
        b.client.model.say(&b.session, Ok(call));
    }
    b.say_done();
    b.say_done();
    b.client.until_answer(prompt).await;
    assert!(
        read(&b.cwd(), "flip.txt").is_none(),
        "called without consent in {mode}, as a tool of unknown effect"
    );
}

#[tokio::test]
async fn tool_flipping_twice_is_not_called_in_plan() {
    if !has_python() {
        return;
    }
    aba("plan").await;
}

#[tokio::test]
async fn tool_flipping_twice_is_not_called_unasked() {
    if !has_python() {
        return;
    }
    aba("ask").await;
}

async fn strict(servers: Value, tool: &str, mode: &'static str, to: &str) -> (McpSession, Value) {
    let mut layers = Layers::default();
    layers.add("m", "modes: [{id: strict, extends: plan, tools: {deny: ['mcp__*']}}]", Owner::User).unwrap();
    let setup = Setup { mode, modes: layers.modes, ..Setup::default() };
    let mut b = McpSession::with(setup, servers).await;
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call(tool);
    until(&b.cwd().join("slow.begun")).await;
    let effect = b.set_mode(to).await;
    b.say_done();
    b.client.until_answer(prompt).await;
    (b, effect)
}

#[tokio::test]
async fn denied_hinted_call_ends_or_is_named() {
    if !has_python() {
        return;
    }
    let (b, effect) = strict(odd(&["plain"]), "mcp__t__slow", "code", "strict").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let is_named = effect["unconfirmed"].as_array().is_some_and(|calls| calls.len() == 1);
    assert!(read(&b.cwd(), "slow.txt").is_none() || is_named, "{effect}");
}

#[tokio::test]
async fn call_with_flipped_hint_ends_on_tightening() {
    if !has_python() {
        return;
    }
    let (b, effect) = strict(odd(&["flipping"]), "mcp__t__slow", "code", "plan").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(read(&b.cwd(), "slow.txt").is_none(), "{effect}");
}

/// A switch while `slow` runs. Returns whether the switch ended it, and whether it came to its end.
async fn switch_during_slow_call(
    mode: &'static str,
    servers: &'static str,
    rules: &'static str,
    to: &'static str,
) -> (bool, bool) {
    let mut layers = Layers::default();
    layers.add("rules", rules, Owner::User).unwrap();
    let setup = Setup { mode, servers, rules: layers.rules, ..Setup::default() };
    let mut b = McpSession::with(setup, odd(&["plain"])).await;
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__slow");
    if mode == "ask" && rules.is_empty() {
        b.answer_next("mcp__t__slow", "allow_once").await;
    }
    until(&b.cwd().join("slow.begun")).await;
    let effect = b.set_mode(to).await;
    b.say_done();
    b.client.until_answer(prompt).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let ended = effect["ended"].as_array().unwrap().len() + effect["unconfirmed"].as_array().unwrap().len();
    (ended == 1, read(&b.cwd(), "slow.txt").is_some())
}

/// In `code` a hinted tool runs without a permission request. A mode that denies changes ends it, unless the
/// user has trusted the hint.
#[tokio::test]
async fn hinted_call_without_consent_ends_in_plan() {
    if !has_python() {
        return;
    }
    let cases = [
        ("code", "another: {}", "", "plan", true),
        ("code", "another: {}", "", "ask", false),
        ("code", "t: {trust_hints: true}", "", "plan", false),
        ("code", "another: {}", "permissions: {allow: ['mcp__t__*']}", "plan", false),
        ("ask", "another: {}", "", "plan", false),
    ];
    let all = cases.map(|case| async move {
        let (mode, servers, rules, to, ends) = case;
        assert_eq!(switch_during_slow_call(mode, servers, rules, to).await, (ends, !ends), "{case:?}");
    });
    futures_util::future::join_all(all).await;
}

#[tokio::test]
async fn server_not_reading_input_is_ended_in_time() {
    if !has_python() {
        return;
    }
    let mut b = McpSession::new("code", odd(&["deaf"])).await;
    b.text_turn().await;
    let prompt = b.client.prompt(&b.session, "go").await;
    let arguments = json!({ "x": "x".repeat(200_000) });
    let call =
        modegate::model::ModelEvent::ToolCall { id: "1".into(), name: "mcp__t__change".into(), arguments };
    b.client.model.say(&b.session, Ok(call));
    b.say_done();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let effect = b.set_mode("plan").await;
    b.say_done();
    b.client.until_answer(prompt).await;
    assert_eq!(effect["unconfirmed"], json!([]), "{effect}");
}

#[tokio::test]
async fn each_cancelled_http_call_is_named() {
    if !has_python() {
        return;
    }
    let far = HttpMcpServer::new().await;
    let mut b = McpSession::new("code", far.2.clone()).await;
    for turn in 1..=2 {
        let prompt = b.client.prompt(&b.session, "go").await;
        b.say_call("mcp__h__slow");
        far.called("slow", turn).await;
        b.client.notify("session/cancel", json!({ "sessionId": b.session })).await;
        b.client.until_answer(prompt).await;
    }
    let effect = b.set_mode("plan").await;
    assert_eq!(effect["unconfirmed"].as_array().unwrap().len(), 2, "{effect}");
}

#[tokio::test]
async fn call_with_broken_connection_is_named() {
    if !has_python() {
        return;
    }
    let far = HttpMcpServer::new().await;
    let mut b = McpSession::new("code", far.2.clone()).await;
    let (_, text) = b.call("mcp__h__drop").await;
    let effect = b.set_mode("plan").await;
    assert_eq!(effect["unconfirmed"].as_array().unwrap().len(), 1, "{effect} {text}");
}

#[tokio::test]
async fn tool_names_of_a_server_are_unique() {
    if !has_python() {
        return;
    }
    let mark = &modegate::ids::hash("get.issue")[..6];
    let other = format!("get_issue_{mark}");
    let mut b = McpSession::new("code", odd(&["same", "get.issue", &other])).await;
    b.text_turn().await;
    let offered = b.offered();
    let distinct: std::collections::HashSet<_> = offered.iter().collect();
    assert_eq!(distinct.len(), offered.len(), "{offered:?}");
}

#[tokio::test]
async fn server_name_prefixes_are_unique() {
    if !has_python() {
        return;
    }
    let mark = &modegate::ids::hash("git hub")[..6];
    let one = |name: &str| json!({ "name": name, "command": "/usr/bin/python3", "args": [ODD, "plain"], "env": [] });
    let mut b = McpSession::new("code", json!([one("git hub"), one(&format!("git_hub_{mark}"))])).await;
    b.text_turn().await;
    let offered = b.offered();
    let distinct: std::collections::HashSet<_> = offered.iter().collect();
    assert_eq!(distinct.len(), offered.len(), "{offered:?}");
}

#[tokio::test]
async fn endless_hint_changes_are_summarised() {
    if !has_python() {
        return;
    }
    let mut b = McpSession::new("plan", odd(&["storm"])).await;
    b.text_turn().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let messages = b.text_turn().await;
    let notices = texts(&messages).matches("its server now says").count();
    let request = format!("{:?}", b.client.model.requests(&b.session).pop().unwrap().messages.last());
    assert!(
        notices < 100 && request.len() < 50_000,
        "{notices} notices, a reminder of {} bytes",
        request.len()
    );
}

async fn last_words(behaviour: &str, token: &str) -> String {
    let servers = json!([{ "name": "t", "command": "/usr/bin/python3", "args": [ODD, behaviour], "env": [{ "name": "TOKEN", "value": token }] }]);
    let mut b = McpSession::new("plan", servers).await;
    texts(&b.text_turn().await)
}

#[tokio::test]
async fn secret_split_across_chunks_is_redacted() {
    if !has_python() {
        return;
    }
    let text = last_words("boundary", "hidden-value").await;
    assert!(!text.contains("en-value"), "{text}");
}

#[tokio::test]
async fn multiline_secret_is_redacted() {
    if !has_python() {
        return;
    }
    let text = last_words("lines", "-----BEGIN KEY-----\nMIIhidden-value").await;
    assert!(!text.contains("hidden-value"), "{text}");
}

#[tokio::test]
async fn tool_name_cannot_forge_a_server_line() {
    if !has_python() {
        return;
    }
    let mut b = McpSession::new("plan", odd(&["spoof"])).await;
    b.text_turn().await;
    let text = b.slash("/mcp").await;
    assert_eq!(text.lines().filter(|line| line.starts_with("- t: ")).count(), 1, "{text}");
}

#[tokio::test]
async fn schemas_are_objects_bounded_and_neutralised() {
    if !has_python() {
        return;
    }
    let mut b = McpSession::new("plan", odd(&["schemas"])).await;
    b.text_turn().await;
    let request = b.client.model.requests(&b.session).pop().unwrap();
    let size: usize = request.tools.iter().map(|tool| tool.schema.as_json().get().len()).sum();
    let schema =
        |name: &str| request.tools.iter().find(|tool| tool.name == name).map(|tool| tool.schema.to_value());
    let text = schema("mcp__t__b").unwrap()["properties"]["p"]["description"].to_string();
    println!("{size} bytes of schemas; {text}; {:?}", schema("mcp__t__a"));
    assert!(!text.contains("<\\n/system-reminder"), "not neutralised: {text}");
    assert!(schema("mcp__t__a").is_none_or(|schema| schema["type"] == "object"));
    assert!(size < 1 << 20, "{size} bytes of schemas");
}

#[tokio::test]
async fn elicitation_of_a_finished_call_is_withdrawn() {
    if !has_python() {
        return;
    }
    let mut b = McpSession::for_client(
        Setup { mode: "code", ..Setup::default() },
        &json!({ "elicitation": { "form": {} } }),
        odd(&["plain"]),
    )
    .await;
    let (messages, text) = b.call("mcp__t__ask").await;
    assert!(text.contains("I do not wait"), "{text}");
    let request_count = messages.iter().filter(|message| message["method"] == "elicitation/create").count();
    assert_eq!(request_count, 1);
    // The turn is over. The next one's question is never shown, because the first is still open.
    let mut later = Vec::new();
    while let Some(message) = b.client.next_within(Duration::from_secs(1)).await {
        later.push(message);
    }
    let (messages, _) = b.call("mcp__t__ask").await;
    later.extend(messages);
    assert!(
        later
            .iter()
            .any(|message| message["method"] == "$/cancel_request"
                || message["method"] == "elicitation/create"),
        "{later:?}"
    );
}

#[tokio::test]
async fn server_environment_applies_only_inside_the_sandbox() {
    if !has_python() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("a.c"), dir.path().join("a.so"));
    let trace = dir.path().join("trace");
    let code = format!(
        "#include <fcntl.h>\n__attribute__((constructor)) static void f(void) {{ creat(\"{}\", 0600); }}\n",
        trace.display()
    );
    std::fs::write(&source, code).unwrap();
    let built =
        std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.unwrap().success());
    let servers = json!([{ "name": "t", "command": "/usr/bin/python3", "args": [ODD, "plain"], "env": [{ "name": "LD_PRELOAD", "value": library }] }]);
    let setup = Setup { mode: "plan", servers: "t: {sandbox: read_only}", ..Setup::default() };
    let mut b = McpSession::with(setup, servers).await;
    b.call("mcp__t__look").await;
    assert!(!trace.exists(), "code of the entry ran outside of its hold");
}

async fn long(tool: &str) -> String {
    let forms = json!({ "elicitation": { "form": {} } });
    let mut b =
        McpSession::for_client(Setup { mode: "code", ..Setup::default() }, &forms, odd(&["long"])).await;
    // The harness fails where a line is longer than 60 KiB.
    if tool == "mcp" {
        b.text_turn().await;
        return b.slash("/mcp").await;
    }
    b.call(&format!("mcp__t__{tool}")).await.1
}

#[tokio::test]
async fn many_text_blocks_fit_into_a_line() {
    if !has_python() {
        return;
    }
    long("blocks").await;
}

#[tokio::test]
async fn long_error_fits_into_a_line() {
    if !has_python() {
        return;
    }
    long("error").await;
}

#[tokio::test]
async fn long_form_fits_into_a_line() {
    if !has_python() {
        return;
    }
    long("form").await;
}

#[tokio::test]
async fn long_tool_name_fits_into_a_line() {
    if !has_python() {
        return;
    }
    long("mcp").await;
}

#[tokio::test]
async fn server_requesting_without_reading_is_ended() {
    if !has_python() {
        return;
    }
    let mut b = McpSession::new("plan", odd(&["pings"])).await;
    b.text_turn().await;
    // What it asks for is answered, and the answers would pile up.
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !b.slash("/mcp").await.contains("- t: not running") {
        assert!(std::time::Instant::now() < deadline, "it goes on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    b.client.end().await;
}

#[tokio::test]
async fn open_elicitation_does_not_block_other_questions() {
    if !has_python() {
        return;
    }
    let forms = json!({ "elicitation": { "form": {} } });
    let mut b =
        McpSession::for_client(Setup { mode: "code", ..Setup::default() }, &forms, odd(&["plain"])).await;
    b.call("mcp__t__ask").await;
    let _ = b.client.prompt(&b.session, "go").await;
    let arguments = json!({ "questions": [{ "question": "Which?", "choices": ["a", "b"] }] });
    let call = modegate::model::ModelEvent::ToolCall { id: "q".into(), name: "ask_user".into(), arguments };
    b.client.model.say(&b.session, Ok(call));
    b.say_done();
    let mut seen = Vec::new();
    while let Some(message) = b.client.next_within(Duration::from_secs(3)).await {
        seen.push(message.to_string());
    }
    assert!(
        seen.iter().any(|message| message.contains("Which?") && message.contains("elicitation/create")),
        "{seen:#?}"
    );
}

#[tokio::test]
async fn sandboxed_server_cannot_read_beside_the_script() {
    if !has_python() {
        return;
    }
    // As one that lies in ~/.config. (The home folder itself is too wide, and is left out.)
    let home = tempfile::tempdir().unwrap();
    let script = home.path().join("server.py");
    std::fs::copy(ODD, &script).unwrap();
    std::fs::create_dir(home.path().join(".ssh")).unwrap();
    let key = home.path().join(".ssh/id");
    std::fs::write(&key, "the-private-key").unwrap();
    let text = format!(
        "t: {{command: /usr/bin/python3, args: ['{}', peeks, '{}'], cwd: /, sandbox: read_only}}",
        script.display(),
        key.strip_prefix("/").unwrap().display()
    );
    let setup = Setup { mode: "plan", servers: Box::leak(text.into_boxed_str()), ..Setup::default() };
    let mut b = McpSession::with(setup, json!([])).await;
    let output = texts(&b.text_turn().await);
    assert!(output.contains("cannot be used") && !output.contains("the-private-key"), "{output}");
}

#[tokio::test]
async fn disconnected_server_stops_after_a_mode_change() {
    if !has_python() {
        return;
    }
    let mut b = McpSession::new("code", odd(&["plain"])).await;
    let (_, text) = b.call("mcp__t__quit").await;
    let effect = b.set_mode("plan").await;
    let before = read(&b.cwd(), "quit.txt").is_some();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = read(&b.cwd(), "quit.txt").is_some();
    assert!(before || !after || effect["unconfirmed"] != json!([]), "{effect} {text}");
}

#[tokio::test]
async fn server_cannot_elicit_before_the_call_is_allowed() {
    if !has_python() {
        return;
    }
    let forms = json!({ "elicitation": { "form": {} } });
    let mut b =
        McpSession::for_client(Setup { mode: "ask", ..Setup::default() }, &forms, odd(&["begs"])).await;
    b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__change");
    let mut seen = Vec::new();
    while let Some(message) = b.client.next_within(Duration::from_secs(2)).await {
        seen.push(message["method"].as_str().unwrap_or_default().to_owned());
    }
    assert!(seen.contains(&"session/request_permission".to_owned()));
    assert!(
        !seen.contains(&"elicitation/create".to_owned()),
        "the server's tool does not run, and it is heard: {seen:?}"
    );
}

#[tokio::test]
async fn server_cannot_elicit_during_a_denied_call() {
    if !has_python() {
        return;
    }
    let forms = json!({ "elicitation": { "form": {} } });
    let mut b =
        McpSession::for_client(Setup { mode: "plan", ..Setup::default() }, &forms, odd(&["begs"])).await;
    let mut heard = false;
    for _ in 0..20 {
        let (messages, text) = b.call("mcp__t__change").await;
        assert!(text.contains("not available"), "{text}");
        heard |= messages.iter().any(|message| message["method"] == "elicitation/create");
    }
    while let Some(message) = b.client.next_within(Duration::from_millis(300)).await {
        heard |= message["method"] == "elicitation/create";
    }
    assert!(!heard);
}

#[tokio::test]
async fn elicitation_of_an_ended_call_is_withdrawn() {
    if !has_python() {
        return;
    }
    let forms = json!({ "elicitation": { "form": {} } });
    let mut b =
        McpSession::for_client(Setup { mode: "code", ..Setup::default() }, &forms, odd(&["plain"])).await;
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__waits");
    while b.client.next().await["method"] != "elicitation/create" {}
    let id = b.client.request("session/set_mode", json!({ "sessionId": b.session, "modeId": "plan" })).await;
    let mut messages = b.client.until_answer(id).await;
    b.say_done();
    messages.extend(b.client.until_answer(prompt).await);
    while let Some(message) = b.client.next_within(Duration::from_secs(1)).await {
        messages.push(message);
    }
    assert!(messages.iter().any(|message| message["method"] == "$/cancel_request"), "not withdrawn");
}

#[tokio::test]
async fn server_messages_before_initialize_result_are_accepted() {
    if !has_python() {
        return;
    }
    let mut b = McpSession::new("plan", odd(&["early"])).await;
    let (messages, text) = b.call("mcp__t__look").await;
    assert_eq!(text, "x", "{}", texts(&messages));
}

fn left(cwd: &std::path::Path) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let here = processes.filter(|it| std::fs::read_link(it.path().join("cwd")).is_ok_and(|at| at == cwd));
    here.filter(|it| {
        String::from_utf8_lossy(&std::fs::read(it.path().join("cmdline")).unwrap_or_default()).contains(ODD)
    })
    .count()
}

#[tokio::test]
async fn close_quickly_ends_forking_and_flooding_servers() {
    if !has_python() {
        return;
    }
    for behaviour in ["forks", "pings", "deaf", "storm"] {
        let mut b = McpSession::new("plan", odd(&[behaviour])).await;
        b.text_turn().await;
        let cwd = b.cwd();
        assert!(left(&cwd) >= 1);
        let started = std::time::Instant::now();
        let id = b.client.request("session/close", json!({ "sessionId": b.session })).await;
        b.client.until_answer(id).await;
        let taken = started.elapsed();
        println!("{behaviour}: {taken:?}");
        assert!(left(&cwd) == 0 && taken < Duration::from_secs(3), "{behaviour}: {taken:?}");
        let mut b = McpSession::new("plan", odd(&[behaviour])).await;
        b.text_turn().await;
        let cwd = b.cwd();
        b.client.end().await;
        assert_eq!(left(&cwd), 0, "{behaviour}: the client left");
    }
}

#[tokio::test]
async fn close_during_startup_leaves_no_servers() {
    if !has_python() {
        return;
    }
    for _ in 0..20 {
        let mut b = McpSession::with(
            Setup { mode: "plan", server_timeout: Some(Duration::ZERO), ..Setup::default() },
            odd(&["forks"]),
        )
        .await;
        let prompt = b.client.prompt(&b.session, "go").await;
        let cwd = b.cwd();
        let id = b.client.request("session/close", json!({ "sessionId": b.session })).await;
        b.say_done();
        let messages = b.client.until_answer(id).await;
        if !messages.iter().any(|message| message["id"] == prompt) {
            b.client.until_answer(prompt).await;
        }
        assert_eq!(left(&cwd), 0);
        b.client.end().await;
    }
}
