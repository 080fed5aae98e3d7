//! Clients that send the name of a known client: text that must be read is where that client shows it.

use std::collections::BTreeMap;
use std::time::Duration;

use modegate::model::{ModelEvent, ModelStop};
use modegate::session::ExitSettings;
use serde_json::{Value, json};

use crate::support::editor_client::EditorClient;
use crate::support::{Setup, TestClient};

const PLAN: &str = "1. Write the test first.";

fn files() -> Value {
    json!({ "fs": { "readTextFile": true, "writeTextFile": true } })
}

/// The text of messages before the first permission request.
fn read_before_the_question(messages: &[Value]) -> String {
    let question = messages.iter().position(|message| message["method"] == "session/request_permission");
    text_of(&messages[..question.expect("a question")])
}

fn text_of(messages: &[Value]) -> String {
    let updates = messages.iter().map(|message| &message["params"]["update"]);
    let chunks = updates.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
    chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
}

/// Clients that show a change or a new file themselves get no message about it.
#[tokio::test]
async fn change_is_shown_before_it_is_allowed() {
    for (name, has_change, has_new_file) in [
        ("another", false, false),
        ("vscode-acp-client", false, false),
        ("vscode-acp-chat", false, false),
        ("vscode-acp", false, false),
        ("acpx", false, false),
        ("toad", true, false),
        ("CodeCompanion.nvim", true, true),
        ("agent-shell", true, true),
        ("zed", true, true),
    ] {
        let mut client = EditorClient::named_with("ask", name, files()).await;
        client.file("a.txt", "old\n", None);
        let edit = json!({ "path": "a.txt", "old_text": "old", "new_text": "new" });
        let write = json!({ "path": "n.txt", "content": "fresh\n" });
        for (tool, arguments, is_shown, lines) in
            [("edit_file", edit, has_change, "-old\n+new\n"), ("write_file", write, has_new_file, "+fresh\n")]
        {
            let prompt = client.begin(&[(tool, arguments)]).await;
            let messages = client.until_answer(prompt).await;
            let text = read_before_the_question(&messages);
            assert_eq!(text.contains(lines), !is_shown, "{name} {tool}: {text}");
            let (_, request) =
                client.requests.iter().rfind(|(method, _)| method.ends_with("permission")).unwrap();
            assert_eq!(request["toolCall"]["content"][0]["type"], "diff", "{name} {tool}");
        }
        client.end().await;
    }
}

/// A list of options can cover the chat, or the chat has moved on: the title has a short change, and otherwise
/// says that the chat has the change.
#[tokio::test]
async fn title_of_a_question_away_from_the_chat_has_the_change_or_its_place() {
    let long = format!("echo {}", "x".repeat(100));
    for (tool, arguments, title, elsewhere) in [
        (
            "edit_file",
            json!({ "path": "a.txt", "old_text": "old", "new_text": "new" }),
            "Edit a.txt: -old +new",
            "Edit a.txt",
        ),
        (
            "write_file",
            json!({ "path": "n.txt", "content": "fresh\n" }),
            "Write n.txt: +fresh",
            "Write n.txt",
        ),
        (
            "write_file",
            json!({ "path": "n.txt", "content": "one\ntwo\n" }),
            "Write n.txt (+2 -0, see the chat)",
            "Write n.txt",
        ),
        (
            "shell",
            json!({ "command": &long }),
            &format!("{}… (all of it is in the chat)", &long[..52]),
            &long,
        ),
        ("shell", json!({ "command": "echo one" }), "echo one", "echo one"),
    ] {
        for (name, expected) in [("vscode-acp-client", title), ("another", elsewhere)] {
            let mut client = EditorClient::named_with("ask", name, files()).await;
            client.file("a.txt", "old\n", None);
            let prompt = client.begin(&[(tool, arguments.clone())]).await;
            let messages = client.until_answer(prompt).await;
            let (_, request) =
                client.requests.iter().find(|(method, _)| method.ends_with("permission")).unwrap();
            assert_eq!(request["toolCall"]["title"], expected, "{name}");
            let text = read_before_the_question(&messages);
            if expected.contains("the chat") && tool == "shell" {
                assert!(text.contains(&long), "{text}");
            }
            assert!(!text.ends_with("\n\n"), "blank lines would move the change out of view: {text}");
            client.end().await;
        }
    }
}

/// The title has a short command. A longer one is in a message.
#[tokio::test]
async fn command_is_shown_before_it_is_allowed() {
    for (name, is_shown) in [("another", false), ("vscode-acp-client", false), ("zed", true)] {
        for (command, is_in_title) in [("echo one", true), ("echo one\necho two", false)] {
            let mut client = EditorClient::named_with("ask", name, json!({})).await;
            let prompt = client.begin(&[("shell", json!({ "command": command }))]).await;
            let messages = client.until_answer(prompt).await;
            let text = read_before_the_question(&messages);
            assert_eq!(text.contains(command), !is_shown && !is_in_title, "{name}: {text}");
            client.end().await;
        }
    }
}

#[tokio::test]
async fn plan_is_shown_before_it_is_accepted() {
    for (name, is_shown) in [
        ("another", false),
        ("vscode-acp-client", false),
        ("vscode-acp-chat", false),
        ("vscode-acp", false),
        ("CodeCompanion.nvim", false),
        ("acpx", false),
        ("agent-shell", true),
        ("toad", true),
        ("zed", true),
    ] {
        let mut client = EditorClient::named_with("plan", name, files()).await;
        let prompt = client.begin(&[("switch_mode", json!({ "plan": PLAN }))]).await;
        let messages = client.until_answer(prompt).await;
        assert_eq!(read_before_the_question(&messages).contains(PLAN), !is_shown, "{name}");
        let (_, request) = &client.requests[0];
        let title = match name {
            "vscode-acp-client" => "The plan is in the chat. Implement it in Ask or Code mode?",
            _ => "Implement the plan in Ask mode (allow once) or Code mode (allow always)?",
        };
        assert_eq!(request["toolCall"]["title"], title);
        client.end().await;
    }
}

/// A client that accepts everything does not leave plan mode, however slowly it answers.
#[tokio::test]
async fn client_that_accepts_everything_stays_in_plan_mode() {
    for (name, accepts_all, is_left) in
        [("vscode-acp", false, false), ("vscode-acp", true, true), ("vscode-acp-client", false, true)]
    {
        let exits = ExitSettings { reading_time: Duration::ZERO, accepts_all, is_off: false };
        let mut client = TestClient::with(Setup { mode: "plan", exits, ..Setup::default() });
        let info = json!({ "protocolVersion": 1, "clientInfo": { "name": name, "version": "0.2.0" } });
        client.call("initialize", info).await;
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        let arguments = json!({ "plan": PLAN });
        let proposal = ModelEvent::ToolCall { id: "a".into(), name: "switch_mode".into(), arguments };
        client.model.say(&session, Ok(proposal));
        for _ in 0..2 {
            client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        }
        let mut messages = Vec::new();
        while messages
            .last()
            .is_none_or(|message: &Value| message["id"] != prompt || message.get("method").is_some())
        {
            let message = client.next().await;
            if message["method"] == "session/request_permission" {
                let answer = json!({ "outcome": { "outcome": "selected", "optionId": "code" } });
                let line = json!({ "jsonrpc": "2.0", "id": message["id"], "result": answer });
                client.send_line(&line.to_string()).await;
            }
            messages.push(message);
        }
        let has_left = messages.iter().any(|message| message["params"]["update"]["currentModeId"] == "code");
        assert_eq!(has_left, is_left, "{name} {accepts_all}");
        let text = text_of(&messages);
        assert_eq!(text.contains("it accepts every question without asking you"), !is_left, "{text}");
        client.end().await;
    }
}

/// The last title, status and content of each call.
fn calls_of(messages: &[Value]) -> BTreeMap<String, [Value; 4]> {
    let mut calls: BTreeMap<String, [Value; 4]> = BTreeMap::new();
    for update in messages.iter().map(|message| &message["params"]["update"]) {
        let Some(id) = update["toolCallId"].as_str() else { continue };
        let call = calls.entry(id.to_owned()).or_default();
        for (value, key) in call.iter_mut().zip(["title", "status", "content", "rawOutput"]) {
            if let Some(new) = update.get(key) {
                *value = new.clone();
            }
        }
    }
    calls
}

async fn live_and_loaded(client: &mut EditorClient, calls: &[(&str, Value)]) -> BTreeMap<String, [Value; 4]> {
    let prompt = client.begin(calls).await;
    let live = calls_of(&client.until_answer(prompt).await);
    let cwd = client.client.cwd();
    let params = json!({ "sessionId": client.session, "cwd": cwd, "mcpServers": [] });
    let load = client.client.request("session/load", params).await;
    let loaded = calls_of(&client.until_answer(load).await);
    assert_eq!(live, loaded);
    live
}

#[tokio::test]
async fn refused_calls_say_so_in_title_and_text_also_after_a_load() {
    let write = ("write_file", json!({ "path": "n.txt", "content": "x\n" }));
    for (mode, title, text) in [
        (
            "plan",
            "Write n.txt (denied)",
            "Denied: write_file is not available in plan mode, which changes nothing.",
        ),
        ("ask", "Write n.txt (rejected)", "The user rejected this call."),
    ] {
        let mut client = EditorClient::named_with(mode, "another", files()).await;
        let answer = json!({ "outcome": { "outcome": "selected", "optionId": "reject_once" } });
        client.override_answer("session/request_permission", answer);
        let calls = live_and_loaded(&mut client, std::slice::from_ref(&write)).await;
        let content = json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
        let expected = [json!(title), json!("failed"), content, json!({ "output": text })];
        assert_eq!(calls["call_1_1"], expected, "{mode}");
        client.end().await;
    }
}

#[tokio::test]
async fn command_that_fails_is_failed_with_its_output_also_after_a_load() {
    for (command, status, code, title) in [
        ("echo out; exit 3", "failed", 3, "echo out; exit 3 (exit 3)"),
        ("echo out", "completed", 0, "echo out"),
    ] {
        let mut client = EditorClient::named_with("code", "another", json!({})).await;
        let calls = live_and_loaded(&mut client, &[("shell", json!({ "command": command }))]).await;
        let [shown_title, shown_status, _, output] = &calls["call_1_1"];
        assert_eq!((shown_title, shown_status), (&json!(title), &json!(status)), "{command}");
        assert_eq!(output["exitCode"], code, "{command}");
        assert!(output["output"].as_str().unwrap().starts_with("out\n"), "{output}");
        // For the model, the call is no error.
        let request = client.client.model.requests(&client.session).pop().unwrap();
        let request = format!("{request:?}");
        assert!(request.contains("is_error: false") && !request.contains("is_error: true"), "{request}");
        client.end().await;
    }
}

#[tokio::test]
async fn plan_stays_in_its_call_also_after_a_load() {
    for (option, title, status) in
        [("ask", "Plan accepted, in Ask mode", "completed"), ("reject", "Plan not accepted", "failed")]
    {
        let mut client = EditorClient::named_with("plan", "another", json!({})).await;
        let answer = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        client.override_answer("session/request_permission", answer);
        let calls = live_and_loaded(&mut client, &[("switch_mode", json!({ "plan": PLAN }))]).await;
        let [shown_title, shown_status, content, _] = &calls["call_1_1"];
        assert_eq!((shown_title, shown_status), (&json!(title), &json!(status)));
        assert_eq!(content[0]["content"]["text"], PLAN);
        assert!(!content.to_string().contains("Carry the plan out"), "{content}");
        client.end().await;
    }
}

/// Clients that ignore ids of messages would join them.
#[tokio::test]
async fn messages_of_a_turn_are_separated_also_after_a_load() {
    let mut client = EditorClient::named_with("code", "another", json!({})).await;
    let prompt = client.client.prompt(&client.session, "go").await;
    let arguments = json!({ "path": "." });
    let list = ModelEvent::ToolCall { id: "a".into(), name: "list_directory".into(), arguments };
    let done = || ModelEvent::Stop(ModelStop::Done);
    for event in [ModelEvent::Text("First.".into()), list, done(), ModelEvent::Text("Second.".into()), done()]
    {
        client.client.model.say(&client.session, Ok(event));
    }
    let live = client.until_answer(prompt).await;
    assert_eq!(text_of(&live), "First.\n\nSecond.");
    let params = json!({ "sessionId": client.session, "cwd": client.client.cwd(), "mcpServers": [] });
    let load = client.client.request("session/load", params).await;
    assert_eq!(text_of(&client.until_answer(load).await), "First.\n\nSecond.");
    // The model's own text stays as it was.
    let request = client.client.model.requests(&client.session).pop().unwrap();
    assert!(!format!("{request:?}").contains("\\n\\nSecond"), "{request:?}");
    client.end().await;
}

#[tokio::test]
async fn titles_have_code_spans_where_the_client_renders_them() {
    for (name, title) in
        [("another", "Read `a.txt`"), ("zed", "Read `a.txt`"), ("vscode-acp-client", "Read a.txt")]
    {
        let mut client = EditorClient::named_with("code", name, json!({})).await;
        client.file("a.txt", "x\n", None);
        let calls = live_and_loaded(&mut client, &[("read_file", json!({ "path": "a.txt" }))]).await;
        assert_eq!(calls["call_1_1"][0], title, "{name}");
        client.end().await;
    }
}

/// A client of version 1 gets plans with ids and sub-agents only if it announces them.
#[tokio::test]
async fn plans_and_sub_agents_are_shown_as_announced() {
    for (capabilities, is_announced) in [(json!({}), false), (json!({ "plan": {}, "subagents": {} }), true)] {
        let setup = Setup { mode: "code", agents: "[{id: helper, description: Helps.}]", ..Setup::default() };
        let mut client = TestClient::with(setup);
        client.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities })).await;
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        let call = |id: &str, name: &str, arguments: Value| {
            Ok(ModelEvent::ToolCall { id: id.into(), name: name.into(), arguments })
        };
        let items = json!({ "items": [{ "content": "Look" }] });
        client.model.say(&session, call("t", "todo", items));
        client.model.say(&session, call("d", "delegate", json!({ "agent": "helper", "task": "look" })));
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        client.model.say("sess_2", Ok(ModelEvent::Text("Seen.".into())));
        for session in ["sess_2", &session] {
            client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
        }
        let messages = client.until_answer(prompt).await;
        let kinds: Vec<_> = messages
            .iter()
            .filter_map(|message| message["params"]["update"]["sessionUpdate"].as_str())
            .collect();
        let count = |kind: &str| kinds.iter().filter(|known| **known == kind).count();
        let expected = if is_announced { [0, 1, 2, 2] } else { [1, 0, 0, 0] };
        let counted = ["plan", "plan_update", "subagent_update", "session_message"].map(count);
        assert_eq!(counted, expected, "{kinds:?}");
        client.end().await;
    }
}
