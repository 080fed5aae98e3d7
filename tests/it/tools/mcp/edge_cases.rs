//! Edge cases of MCP servers, with `tests/servers/odd.py` and `odd_http.py`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use modegate::policy::{LayerOwner, Layers};
use serde_json::{Value, json};

use crate::support::requirements::python;
use crate::support::waiting::{until, until_exists};
use crate::support::{Setup, read};
use crate::tools::mcp::elicitation::with_forms;
use crate::tools::mcp::servers::{McpSession, status, texts};

const ODD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/odd.py");
const ODD_HTTP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/odd_http.py");

pub(crate) fn odd(behaviour: &[&str]) -> Value {
    let mut args = vec![ODD];
    args.extend(behaviour);
    json!([{ "name": "t", "command": python(), "args": args, "env": [] }])
}

/// The server process, its folder, and its entry for `session/new`.
struct HttpMcpServer(std::process::Child, tempfile::TempDir, Value);

impl HttpMcpServer {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = dir.path().join("port");
        let child = std::process::Command::new(python()).arg(ODD_HTTP).arg(&port).spawn().unwrap();
        until_exists(&port).await;
        let port = std::fs::read_to_string(port).unwrap();
        let servers = json!([{ "type": "http", "name": "h", "url": format!("http://127.0.0.1:{port}/mcp"), "headers": [] }]);
        Self(child, dir, servers)
    }

    /// Waits until a tool has been called this many times.
    async fn called(&self, tool: &str, times: usize) {
        let file = self.1.path().join(format!("port.{tool}"));
        let calls = || std::fs::read_to_string(&file).map_or(0, |text| text.lines().count());
        until(&format!("{times} calls of {tool}"), || calls() >= times).await;
    }
}

impl Drop for HttpMcpServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets the model call `turn`, during which the server lists its tools twice more, and then `flip`. Returns
/// the result of `flip`, and true if the server received the call.
async fn call_after_lists(behaviour: &str, mode: &'static str) -> (String, bool) {
    let mut b = McpSession::new(mode, odd(&[behaviour])).await;
    let prompt = b.client.prompt(&b.session, "go").await;
    for (id, name) in [("1", "mcp__t__turn"), ("2", "mcp__t__flip")] {
        let call =
            modegate::model::ModelEvent::ToolCall { id: id.into(), name: name.into(), arguments: json!({}) };
        b.client.model.say(&b.session, Ok(call));
    }
    b.say_done();
    b.say_done();
    b.client.until_answer(prompt).await;
    (b.last_tool_result(), read(&b.cwd(), "flip.txt").is_some())
}

const HINTS_CHANGED: &str = "mcp__t__flip was not called: the server changed the tool's hints.";

#[tokio::test]
async fn tool_flipping_twice_is_not_called_in_plan() {
    let (text, is_called) = call_after_lists("aba", "plan").await;
    assert!(!is_called && text.contains(HINTS_CHANGED), "{text}");
    let (text, is_called) = call_after_lists("steady", "code").await;
    assert!(is_called && text == "flip was called", "the control: {text}");
}

#[tokio::test]
async fn tool_flipping_twice_is_not_called_unasked() {
    let (text, is_called) = call_after_lists("aba", "ask").await;
    assert!(!is_called && text.contains(HINTS_CHANGED), "{text}");
}

/// Returns the folders in `/proc` of the servers that work in a folder.
fn processes_in(cwd: &Path) -> Vec<PathBuf> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let here = processes.filter(|process| std::fs::read_link(process.join("cwd")).is_ok_and(|at| at == cwd));
    here.filter(|process| {
        String::from_utf8_lossy(&std::fs::read(process.join("cmdline")).unwrap_or_default()).contains(ODD)
    })
    .collect()
}

/// Switches the mode while `slow` runs, and then lets `slow` continue. `is_asked` if the call needs permission.
/// Returns the effect of the switch, and true if `slow` ran to its end.
async fn switch_during_slow_call(setup: Setup, how: &str, is_asked: bool, to: &str) -> (Value, bool) {
    let mut b = McpSession::with(setup, odd(&[how])).await;
    let cwd = b.cwd();
    let prompt = b.client.prompt(&b.session, "go").await;
    b.say_call("mcp__t__slow");
    if is_asked {
        b.answer_next("mcp__t__slow", "allow_once").await;
    }
    until_exists(&cwd.join("slow.begun")).await;
    let servers = processes_in(&cwd);
    let effect = b.set_mode(to).await;
    std::fs::write(cwd.join("slow.go"), "").unwrap();
    b.say_done();
    b.client.until_answer(prompt).await;
    let is_done = || cwd.join("slow.txt").exists();
    let is_ended = || !processes_in(&cwd).iter().any(|process| servers.contains(process));
    until("the end of slow", || is_done() || is_ended()).await;
    (effect, is_done())
}

#[tokio::test]
async fn hinted_call_ends_in_a_mode_that_denies_the_tool() {
    let mut layers = Layers::default();
    layers
        .add("m", "modes: [{id: strict, extends: plan, tools: {deny: ['mcp__*']}}]", LayerOwner::User)
        .unwrap();
    let setup = Setup { mode: "code", modes: layers.modes, ..Setup::default() };
    let (effect, is_done) = switch_during_slow_call(setup, "plain", false, "strict").await;
    assert!(effect["ended"] == json!(["call_1_1"]) && !is_done, "{effect}");
}

#[tokio::test]
async fn call_with_flipped_hint_ends_on_tightening() {
    let setup = Setup { mode: "code", ..Setup::default() };
    let (effect, is_done) = switch_during_slow_call(setup, "flipping", false, "plan").await;
    assert!(effect["ended"] == json!(["call_1_1"]) && !is_done, "{effect}");
}

/// In `code` a hinted tool runs without a permission request. A mode that denies changes ends the call unless
/// the user trusts the hint.
#[tokio::test]
async fn hinted_call_without_consent_ends_in_plan() {
    let cases = [
        ("code", "another: {}", "", "plan", true),
        // The new mode asks for such calls, and does not deny them.
        ("code", "another: {}", "", "ask", false),
        // Consent by an entry, by a rule, and by the answer to a permission request.
        ("code", "t: {trust_hints: true}", "", "plan", false),
        ("code", "another: {}", "permissions: {allow: ['mcp__t__*']}", "plan", false),
        ("ask", "another: {}", "", "plan", false),
    ];
    let all = cases.map(|case| async move {
        let (mode, servers, rules, to, ends) = case;
        let mut layers = Layers::default();
        layers.add("rules", rules, LayerOwner::User).unwrap();
        let setup = Setup { mode, servers, rules: layers.rules, ..Setup::default() };
        let (effect, is_done) = switch_during_slow_call(setup, "plain", mode == "ask", to).await;
        let ended =
            effect["ended"].as_array().unwrap().len() + effect["unconfirmed"].as_array().unwrap().len();
        assert_eq!((ended == 1, is_done), (ends, !ends), "{case:?}: {effect}");
    });
    futures_util::future::join_all(all).await;
}

#[tokio::test]
async fn server_not_reading_input_is_ended_in_time() {
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
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!(["call_2_1"]), &json!([])), "{effect}");
}

#[tokio::test]
async fn each_cancelled_http_call_is_named() {
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
    assert_eq!(effect["unconfirmed"], json!(["call_1_1", "call_2_1"]), "{effect}");
}

#[tokio::test]
async fn call_with_broken_connection_is_named() {
    let far = HttpMcpServer::new().await;
    let mut b = McpSession::new("code", far.2.clone()).await;
    // The control: an answered call is over and not named.
    assert_eq!(b.call("mcp__h__quick").await.1, "x");
    let (messages, text) = b.call("mcp__h__drop").await;
    assert_eq!(
        (status(&messages).as_str(), text.as_str()),
        ("failed", "The MCP server \"h\" cannot be used: the connection is closed.")
    );
    let effect = b.set_mode("plan").await;
    assert_eq!(effect["unconfirmed"], json!(["call_2_1"]), "{effect}");
}

/// Checks the number of offered tools, and that their names are unique.
fn check_distinct(offered: &[String], count: usize) {
    let distinct: std::collections::HashSet<_> = offered.iter().collect();
    assert_eq!((offered.len(), distinct.len()), (count, count), "{offered:?}");
}

#[tokio::test]
async fn tool_names_of_a_server_are_unique() {
    let mark = &modegate::ids::hash("get.issue")[..6];
    let other = format!("get_issue_{mark}");
    let mut b = McpSession::new("code", odd(&["same", "get.issue", &other])).await;
    b.text_turn().await;
    check_distinct(&b.offered(), 2);
}

#[tokio::test]
async fn server_name_prefixes_are_unique() {
    let mark = &modegate::ids::hash("git hub")[..6];
    let one = |name: &str| json!({ "name": name, "command": python(), "args": [ODD, "plain"], "env": [] });
    let mut b = McpSession::new("code", json!([one("git hub"), one(&format!("git_hub_{mark}"))])).await;
    b.text_turn().await;
    check_distinct(&b.offered(), 14);
}

#[tokio::test]
async fn endless_hint_changes_are_summarised() {
    let mut b = McpSession::new("plan", odd(&["storm"])).await;
    b.text_turn().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let messages = b.text_turn().await;
    let notices = texts(&messages).matches("The MCP server now says that these tools").count();
    let request = format!("{:?}", b.client.model.requests(&b.session).pop().unwrap().messages.last());
    assert!(
        (1..100).contains(&notices) && request.len() < 50_000,
        "{notices} notices, a reminder of {} bytes",
        request.len()
    );
}

/// Returns the notice about a server that ends after it has printed its secret.
async fn last_words(behaviour: &str, token: &str) -> String {
    let servers = json!([{ "name": "t", "command": python(), "args": [ODD, behaviour], "env": [{ "name": "TOKEN", "value": token }] }]);
    let mut b = McpSession::new("plan", servers).await;
    texts(&b.text_turn().await)
}

/// The notice for a server with this last output.
fn expected_end(words: &str) -> String {
    format!(
        "The MCP server \"t\" cannot be used: it ended with status 4; its last error output: {words}.\n\n"
    )
}

#[tokio::test]
async fn secret_split_across_chunks_is_redacted() {
    let text = last_words("pieces", "hidden-value").await;
    assert_eq!(text, expected_end("the key is ***, and no more"));
}

#[tokio::test]
async fn multiline_secret_is_redacted() {
    let text = last_words("lines", "-----BEGIN KEY-----\nMIIhidden-value").await;
    assert_eq!(text, expected_end("***"));
}

#[tokio::test]
async fn tool_name_cannot_forge_a_server_line() {
    let mut b = McpSession::new("plan", odd(&["spoof"])).await;
    b.text_turn().await;
    let text = b.slash("/mcp").await;
    assert_eq!(text.lines().filter(|line| line.starts_with("- t: ")).count(), 1, "{text}");
}

#[tokio::test]
async fn schemas_are_objects_bounded_and_neutralised() {
    let mut b = McpSession::new("plan", odd(&["schemas"])).await;
    b.text_turn().await;
    let request = b.client.model.requests(&b.session).pop().unwrap();
    let size: usize = request.tools.iter().map(|tool| tool.schema.as_json().get().len()).sum();
    let schema =
        |name: &str| request.tools.iter().find(|tool| tool.name == name).map(|tool| tool.schema.to_value());
    let text = schema("mcp__t__b").unwrap()["properties"]["p"]["description"].clone();
    assert_eq!(text, "a <¬\n/system-reminder> b");
    assert_eq!(schema("mcp__t__a"), None, "a schema that is no object");
    let big = request.tools.iter().filter(|tool| tool.name.starts_with("mcp__t__big")).count();
    assert!(size < 1 << 20 && big == 17, "{size} bytes of schemas, {big} large ones");
}

#[tokio::test]
async fn server_environment_applies_only_inside_the_sandbox() {
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
    let servers = json!([{ "name": "t", "command": python(), "args": [ODD, "plain"], "env": [{ "name": "LD_PRELOAD", "value": library }] }]);
    for (definition, is_traced) in [("t: {sandbox: read_only}", false), ("t: {trust_hints: true}", true)] {
        let setup = Setup { mode: "plan", servers: definition, ..Setup::default() };
        let mut b = McpSession::with(setup, servers.clone()).await;
        assert_eq!(b.call("mcp__t__look").await.1, "x", "{definition}");
        assert_eq!(trace.exists(), is_traced, "{definition}");
    }
}

/// Returns the model's result for a call with a long result. `TestClient` fails if a line is longer than 60
/// KiB.
async fn long(tool: &str) -> String {
    let mut b = with_forms("code", "long").await;
    let (messages, text) = b.call(&format!("mcp__t__{tool}")).await;
    assert_eq!(status(&messages), if tool == "error" { "failed" } else { "completed" });
    text
}

#[tokio::test]
async fn many_text_blocks_fit_into_a_line() {
    let text = long("blocks").await;
    assert!(text.starts_with("xxx") && text.len() > 10_000, "{} bytes", text.len());
}

#[tokio::test]
async fn long_error_fits_into_a_line() {
    let text = long("error").await;
    assert!(text.contains("xxx") && text.len() > 10_000, "{} bytes", text.len());
}

#[tokio::test]
async fn long_form_fits_into_a_line() {
    assert_eq!(long("form").await, "I do not wait");
}

#[tokio::test]
async fn long_tool_name_fits_into_a_line() {
    let mut b = with_forms("code", "long").await;
    b.text_turn().await;
    let text = b.slash("/mcp").await;
    assert!(text.starts_with("- t: ready, 5 tools\n  - may change something: mcp__t__yyyyy"), "{text}");
    assert!(text.contains("\n  - omitted: yyyyy") && text.len() < 1000, "{} bytes", text.len());
}

#[tokio::test]
async fn server_requesting_without_reading_is_ended() {
    let mut b = McpSession::new("plan", odd(&["pings"])).await;
    b.text_turn().await;
    // Modegate answers the server's requests. The unread answers would pile up.
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while !b.slash("/mcp").await.contains("- t: not running") {
        assert!(std::time::Instant::now() < deadline, "it goes on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    b.client.end().await;
}

#[tokio::test]
async fn sandboxed_server_cannot_read_beside_the_script() {
    // The script lies in a folder of its own, as in `~/.config`. A script directly in the home folder would be
    // different: the sandbox never opens the whole home folder for reading.
    let home = tempfile::tempdir().unwrap();
    let script = home.path().join("server.py");
    std::fs::copy(ODD, &script).unwrap();
    std::fs::create_dir(home.path().join(".ssh")).unwrap();
    let key = home.path().join(".ssh/id");
    std::fs::write(&key, "the-private-key").unwrap();
    for (sandbox, is_read) in [("read_only", false), ("off", true)] {
        let text = format!(
            "t: {{command: {}, args: ['{}', peeks, '{}'], cwd: /, sandbox: {sandbox}}}",
            python(),
            script.display(),
            key.strip_prefix("/").unwrap().display()
        );
        let setup = Setup { mode: "plan", servers: Box::leak(text.into_boxed_str()), ..Setup::default() };
        let mut b = McpSession::with(setup, json!([])).await;
        let output = texts(&b.text_turn().await);
        assert!(output.contains("cannot be used"), "{sandbox}: {output}");
        assert_eq!(output.contains("the-private-key"), is_read, "{sandbox}: {output}");
    }
}

/// The server ignores signals and writes continuously. Only killing the process stops it.
#[tokio::test]
async fn disconnected_server_stops_after_a_mode_change() {
    let mut b = McpSession::new("code", odd(&["plain"])).await;
    let (_, text) = b.call("mcp__t__quit").await;
    assert!(text.contains("the connection is closed"), "{text}");
    let effect = b.set_mode("plan").await;
    let written = read(&b.cwd(), "quit.txt").map(|text| text.len());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(written > Some(0), "the control: the server wrote");
    assert_eq!(read(&b.cwd(), "quit.txt").map(|text| text.len()), written, "{effect}");
}

#[tokio::test]
async fn server_messages_before_initialize_result_are_accepted() {
    let mut b = McpSession::new("plan", odd(&["early"])).await;
    let (messages, text) = b.call("mcp__t__look").await;
    assert_eq!(text, "x", "{}", texts(&messages));
}

#[tokio::test]
async fn close_quickly_ends_forking_and_flooding_servers() {
    for behaviour in ["forks", "pings", "deaf", "storm"] {
        let mut b = McpSession::new("plan", odd(&[behaviour])).await;
        b.text_turn().await;
        let cwd = b.cwd();
        assert!(!processes_in(&cwd).is_empty());
        let started = std::time::Instant::now();
        let id = b.client.request("session/close", json!({ "sessionId": b.session })).await;
        b.client.until_answer(id).await;
        let taken = started.elapsed();
        println!("{behaviour}: {taken:?}");
        assert!(processes_in(&cwd).is_empty() && taken < Duration::from_secs(3), "{behaviour}: {taken:?}");
        let mut b = McpSession::new("plan", odd(&[behaviour])).await;
        b.text_turn().await;
        let cwd = b.cwd();
        b.client.end().await;
        assert!(processes_in(&cwd).is_empty(), "{behaviour}: the client left");
    }
}

#[tokio::test]
async fn close_during_startup_leaves_no_servers() {
    let mut started = 0;
    for round in 0..20 {
        let mut b = McpSession::with(
            Setup { mode: "plan", server_timeout: Some(Duration::ZERO), ..Setup::default() },
            odd(&["forks"]),
        )
        .await;
        let prompt = b.client.prompt(&b.session, "go").await;
        let cwd = b.cwd();
        tokio::time::sleep(Duration::from_millis(round * 10)).await;
        started += usize::from(!processes_in(&cwd).is_empty());
        let id = b.client.request("session/close", json!({ "sessionId": b.session })).await;
        b.say_done();
        let messages = b.client.until_answer(id).await;
        if !messages.iter().any(|message| message["id"] == prompt) {
            b.client.until_answer(prompt).await;
        }
        assert!(processes_in(&cwd).is_empty());
        b.client.end().await;
    }
    assert!(started > 0, "the control: no server ran in any round");
}

#[tokio::test]
async fn malformed_tools_are_omitted_and_named() {
    let mut b = McpSession::new("code", odd(&["malformed"])).await;
    b.text_turn().await;
    let text = b.slash("/mcp").await;
    assert!(text.starts_with("- t: ready, 2 tools") && text.contains("mcp__t__look"), "{text}");
    for part in [
        "omitted: text: invalid type: string",
        "repaired the schema of list: its schema is a list",
        "omitted: a tool without a name: ",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn faulty_schemas_are_repaired_or_omitted_and_named() {
    let mut b = McpSession::new("code", odd(&["faulty"])).await;
    b.text_turn().await;
    let names = ["coin", "none", "php", "filter", "look"].map(|name| format!("mcp__t__{name}"));
    assert_eq!(b.offered(), names);
    let request = b.client.model.requests(&b.session).pop().unwrap();
    let schema = |name: &str| {
        request.tools.iter().find(|tool| tool.name == format!("mcp__t__{name}")).unwrap().schema.to_value()
    };
    let empty = json!({ "type": "object", "properties": {} });
    let coin =
        json!({ "type": "object", "properties": { "coin": { "type": "string" } }, "required": ["coin"] });
    assert_eq!((schema("coin"), schema("none"), schema("php")), (coin, empty.clone(), empty));
    let text = b.slash("/mcp").await;
    for part in [
        "repaired the schema of coin: has its list of required properties among the properties",
        "repaired the schema of none: it has no schema (and 1 more fault)",
        "omitted: nested: it requires the argument \"b c\", a name that providers refuse",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("of look"), "{text}");
    // The server gets the property names of its own schema.
    let (_, text) = b.call_with("mcp__t__filter", json!({ "filter": "a", "other": 1 })).await;
    assert_eq!(text, r#"{"other": 1, "$filter": "a"}"#);
}

/// Returns the path in the notice of a shortened result.
fn file_of(text: &str) -> String {
    let path = text.split_once("left out; all of it: ").unwrap_or_else(|| panic!("{text}")).1;
    std::fs::read_to_string(path.split_once(']').unwrap().0).unwrap()
}

#[tokio::test]
async fn long_results_are_cut_and_kept_in_a_file() {
    let mut b = McpSession::new("plan", odd(&["large"])).await;
    let (_, text) = b.call("mcp__t__page").await;
    assert!(text.starts_with("line 0\nline 1\n") && text.ends_with("line 4998\nline 4999\n"), "{text}");
    assert!((9 * 1024..11 * 1024).contains(&text.len()), "{} bytes", text.len());
    assert_eq!(file_of(&text), (0..5000).map(|number| format!("line {number}\n")).collect::<String>());
    // The control: a short result is complete.
    assert_eq!(b.call("mcp__t__look").await.1, "x");
}

#[tokio::test]
async fn content_of_unknown_types_is_named_and_kept_in_a_file() {
    let mut b = McpSession::new("plan", odd(&["large"])).await;
    let (messages, text) = b.call("mcp__t__unknown").await;
    let note = "[content of the unknown type \"video\": 50026 bytes of JSON, at the end of this result]";
    assert!(text.starts_with(&format!("a film\n{note}\n")) && text.len() < 11 * 1024, "{text}");
    assert_eq!(status(&messages), "completed");
    assert_eq!(file_of(&text).len(), "a film\n".len() + note.len() + 1 + 50_026);
}

#[tokio::test]
async fn a_result_beyond_the_limit_fails_immediately() {
    let mut b = McpSession::new("plan", odd(&["large"])).await;
    let started = std::time::Instant::now();
    let (messages, text) = b.call("mcp__t__huge").await;
    assert_eq!(status(&messages), "failed");
    assert_eq!(
        text,
        "The answer is larger than 16 MiB and was not read. Ask for less, for example a part or a page."
    );
    // The limit of a call is 300 s.
    assert!(started.elapsed() < Duration::from_mins(1), "{:?}", started.elapsed());
    // The server still runs.
    assert_eq!(b.call("mcp__t__look").await.1, "x");
}

/// Runs the binary, because only the binary reads its environment.
#[test]
fn servers_get_proxies_and_certificates_but_no_keys() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join(".config/modegate");
    std::fs::create_dir_all(&config).unwrap();
    let server = |sandbox: &str| {
        format!(
            "servers: {{t: {{command: {}, args: ['{ODD}', large], trust_hints: true, sandbox: {sandbox}}}}}\n",
            python()
        )
    };
    let work = home.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let script = home.path().join("script.jsonl");
    let lines = [
        json!({ "tool_call": { "id": "1", "name": "mcp__t__environment", "arguments": {} } }),
        json!({ "stop": "done" }),
        json!({ "stop": "done" }),
    ];
    std::fs::write(&script, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let given = [
        ("HTTPS_PROXY", "http://user:proxy-password@proxy.example:3128"),
        ("no_proxy", "localhost"),
        ("SSL_CERT_FILE", "/etc/ssl/ca.pem"),
        ("NODE_EXTRA_CA_CERTS", "/etc/ssl/company.pem"),
        ("REQUESTS_CA_BUNDLE", "/etc/ssl/ca.pem"),
        ("OPENAI_API_KEY", "a-provider-key"),
        ("MY_SECRET_TOKEN", "a-secret"),
        ("my_proxy", "not a proxy"),
    ];
    for (sandbox, expected) in [("off", 5), ("read_only", 0)] {
        std::fs::write(config.join("modes.yaml"), server(sandbox)).unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(["--store", "memory", "--mode", "plan", "--output", "stream-json", "-p", "go", "--model"])
            .arg(format!("scripted:{}", script.display()))
            .env_clear()
            .envs([("PATH", std::env::var("PATH").unwrap()), ("HOME", home.path().to_str().unwrap().into())])
            .envs(given)
            .current_dir(&work)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        crate::support::headless_output::check_lines(&text);
        assert!(text.contains("PATH"), "{sandbox}: {text} {}", String::from_utf8_lossy(&output.stderr));
        let seen: Vec<_> =
            given.iter().filter(|(name, _)| text.contains(*name)).map(|(name, _)| *name).collect();
        assert_eq!(seen, given[..expected].iter().map(|(name, _)| *name).collect::<Vec<_>>(), "{sandbox}");
    }
}
