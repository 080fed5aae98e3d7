//! `view_background` and `stop_background` are offered while background work exists or can start, and the model
//! learns the end of such work once.

use modegate::model::{Block, ModelRequest};
use modegate::policy::{LayerOwner, Layers};
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::json;

use crate::agents::delegation::{AGENTS, call, new};
use crate::support::requirements::require_sandbox;
use crate::support::{Setup, TestClient, shell};

fn has_background_tools(client: &TestClient, session: &str) -> [bool; 2] {
    let request = client.model.requests(session).pop().unwrap();
    ["view_background", "stop_background"].map(|name| request.tools.iter().any(|tool| tool.name == name))
}

#[tokio::test]
async fn agents_without_background_work_lack_its_tools() {
    for (mode, agent, is_offered) in [
        ("code", "explore", false),
        ("plan", "explore", false),
        ("code", "writer", true),
        ("plan", "writer", true),
    ] {
        let setup = Setup { mode, agents: AGENTS, live: true, ..Setup::default() };
        let mut client = TestClient::with(setup);
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.calls(&root, vec![call("delegate", json!({ "task": "x", "agent": agent }))]);
        client.answers("sess_2", "done");
        client.answers(&root, "done");
        client.until_answer(prompt).await;
        assert_eq!(has_background_tools(&client, "sess_2"), [is_offered; 2], "{mode} {agent}");
        client.end().await;
    }
}

/// A mode without tools that start background work offers the tools that control it only while there is some.
#[tokio::test]
async fn background_tools_stay_while_there_is_background_work() {
    let mut layers = Layers::default();
    let quiet = "modes: [{id: quiet, extends: plan, tools: {deny: [delegate, 'shell*']}}]";
    layers.add("m", quiet, LayerOwner::User).unwrap();
    let setup = Setup { mode: "quiet", modes: layers.modes, live: true, ..Setup::default() };
    let mut client = TestClient::with(setup);
    let root = client.session().await;
    for (mode, is_offered) in [("quiet", false), ("code", true), ("quiet", true)] {
        let set = client.request("session/set_mode", json!({ "sessionId": root, "modeId": mode })).await;
        client.until_answer(set).await;
        let prompt = client.prompt(&root, "go").await;
        if mode == "code" {
            client.calls(&root, vec![call("delegate", json!({ "task": "x", "background": true }))]);
        }
        client.answers(&root, "done");
        client.until_answer(prompt).await;
        assert_eq!(has_background_tools(&client, &root), [is_offered; 2], "{mode}");
    }
    client.end().await;
}

fn job(line: &str) -> modegate::model::ModelEvent {
    call("shell", json!({ "command": line, "background": true }))
}

fn with_shell(home: &tempfile::TempDir) -> TestClient {
    require_sandbox();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    TestClient::with(Setup { mode: "code", tools, agents: AGENTS, live: true, ..Setup::default() })
}

fn notes(request: &ModelRequest) -> Vec<String> {
    let blocks = request.messages.iter().flat_map(|message| &message.blocks);
    let notes =
        blocks.filter_map(|block| if let Block::Note(text) = block { Some(text.clone()) } else { None });
    notes.collect()
}

fn last_result(request: &ModelRequest) -> String {
    let blocks = request.messages.iter().flat_map(|message| &message.blocks);
    let mut results = blocks.filter_map(|block| match block {
        Block::ToolResult { text, .. } => Some(text.clone()),
        _ => None,
    });
    results.next_back().unwrap_or_default()
}

#[tokio::test]
async fn wait_without_an_id_ends_with_any_work_and_shows_its_result() {
    let home = tempfile::tempdir().unwrap();
    let mut client = with_shell(&home);
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    let waits = "until [ -e go ]; do sleep 0.01; done; echo ready";
    let agent = call("delegate", json!({ "task": "one", "agent": "writer", "background": true }));
    client.calls(&root, vec![job("sleep 100"), job(waits), agent]);
    client.model.next_request(&root).await;
    client.model.next_request(&root).await;
    let wait = || vec![call("view_background", json!({ "wait": 60 }))];
    client.calls(&root, wait());
    std::fs::write(client.cwd().join("go"), "").unwrap();
    let seen = client.model.next_request(&root).await;
    let text = last_result(&seen);
    for part in [
        "job_1: sleep 100 [Still running.]",
        "\nready\n",
        "Exit status 0",
        "agent_1 (writer): writer: one [running]",
    ] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    client.answers("sess_2", "It is 42.");
    client.calls(&root, wait());
    let seen = client.model.next_request(&root).await;
    let text = last_result(&seen);
    assert!(
        text.contains("agent_1 (writer): writer: one [finished]") && text.contains("It is 42."),
        "{text}"
    );
    assert!(!text.contains("\nready\n"), "a result is shown once: {text}");
    client.answers(&root, "done");
    client.until_answer(prompt).await;
    let prompt = client.prompt(&root, "and now?").await;
    let request = client.model.next_request(&root).await;
    assert_eq!(notes(&request), Vec::<String>::new(), "the model has seen both ends");
    client.answers(&root, "done");
    client.until_answer(prompt).await;
    client.end().await;
}

/// Makes requests until a note has arrived. Returns all notes of a request after that.
async fn notes_after_the_first(client: &mut TestClient, root: &str) -> Vec<String> {
    for number in 0..500 {
        let prompt = client.prompt(root, &format!("prompt {number}")).await;
        let request = client.model.next_request(root).await;
        client.calls(root, vec![call("view_background", json!({}))]);
        client.model.next_request(root).await;
        client.answers(root, "so far");
        client.until_answer(prompt).await;
        if !notes(&request).is_empty() {
            return notes(client.model.requests(root).last().unwrap());
        }
    }
    panic!("no note");
}

#[tokio::test]
async fn note_of_an_end_has_the_answer_or_the_last_lines() {
    let home = tempfile::tempdir().unwrap();
    for (start, part, lacks) in [
        (job("seq 30"), "\n> 11\n> 12\n", "> 10\n"),
        (
            call("delegate", json!({ "task": "one", "agent": "writer", "background": true })),
            "\n> It is 42.",
            "view_",
        ),
    ] {
        let mut client = with_shell(&home);
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.calls(&root, vec![start]);
        client.answers("sess_2", "It is 42.");
        client.answers(&root, "I wait.");
        client.until_answer(prompt).await;
        let notes = notes_after_the_first(&mut client, &root).await;
        let [note] = notes.as_slice() else { panic!("{notes:?}") };
        assert!(note.contains(part) && !note.contains(lacks), "{note}");
        client.end().await;
    }
}

#[tokio::test]
async fn end_of_a_turn_names_the_agents_that_still_run() {
    for is_background in [true, false] {
        let mut client = new("code");
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        let task = json!({ "task": "one", "agent": "writer", "background": is_background });
        client.calls(&root, vec![call("delegate", task)]);
        if !is_background {
            client.answers("sess_2", "It is 42.");
        }
        client.answers(&root, "I wait.");
        let messages = client.until_answer(prompt).await;
        let is_told = format!("{messages:?}").contains("agent_1 (writer) still runs in the background");
        assert_eq!(is_told, is_background, "{messages:?}");
        client.end().await;
    }
}
