//! Mode changes while external agents work: open permission requests, delegation, and changed files.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use modegate::model::{ModelEvent, ModelStop};
use modegate::policy::Layers;
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::agents::external::sessions::{
    ExternalAgentClient, SANDBOXED, agent_text, agents, home, processes_of,
};
use crate::support::{Setup, TestClient, shell};

/// No file changes after the answer to `session/set_mode`, and the delegation fails.
#[tokio::test]
async fn tightening_ends_delegated_external_agents() {
    for is_background in [false, true] {
        let home = home();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let agents = agents("ticking", SANDBOXED);
        let mut client =
            TestClient::with(Setup { mode: "code", agents, tools, live: true, ..Setup::default() });
        let root = client.session().await;
        let ticks = client.cwd().join("ticks");
        let prompt = client.prompt(&root, "go").await;
        let task = format!("tick {}", ticks.display());
        let arguments = json!({ "agent": "peer", "task": task, "background": is_background });
        let call =
            |name: &str, arguments| ModelEvent::ToolCall { id: name.into(), name: name.into(), arguments };
        let done = || Ok(ModelEvent::Stop(ModelStop::Done));
        client.model.say(&root, Ok(call("delegate", arguments)));
        client.model.say(&root, done());
        let mut messages = Vec::new();
        // The control: the agent writes.
        while std::fs::metadata(&ticks).map_or(0, |meta| meta.len()) < 3 {
            messages.extend(client.next_within(Duration::from_millis(5)).await);
        }
        let set = client.request("session/set_mode", json!({ "sessionId": root, "modeId": "plan" })).await;
        let outputs = client.until_answer(set).await;
        let after = std::fs::read(&ticks).unwrap();
        assert_eq!(processes_of("ticking"), 0);
        let effect = &outputs.last().unwrap()["result"]["_meta"]["modegate/effect"];
        assert_eq!(
            (&effect["ended"], &effect["unconfirmed"]),
            (&json!(["call_1_1/agent"]), &json!([])),
            "{effect}"
        );
        messages.extend(outputs);
        if is_background {
            let view = json!({ "id": "agent_1", "wait": 60 });
            client.model.say(&root, Ok(call("view_background", view)));
            client.model.say(&root, done());
        }
        client.model.say(&root, done());
        messages.extend(client.until_answer(prompt).await);
        let id = if is_background { "call_2_1" } else { "call_1_1" };
        let text = messages
            .iter()
            .map(|message| message["params"]["update"].to_string())
            .filter(|update| is_background || update.contains(id))
            .collect::<String>();
        assert!(text.contains("was stopped because"), "{is_background}: {text}");
        assert_eq!(std::fs::read(&ticks).unwrap(), after, "nothing is written after the answer");
        client.end().await;
    }
}

/// The text after the command is not sent to the agent.
#[tokio::test]
async fn slash_command_for_unsupported_mode_is_rejected() {
    let mut client = ExternalAgentClient::of("code", agents("unheld", "")).await.unwrap();
    for command in ["/plan call", "/architect call", "/mode plan", "/plan"] {
        let messages = client.prompt(command, None).await;
        assert!(
            agent_text(&messages).contains("this agent does not support plan mode"),
            "{command}: {messages:?}"
        );
        assert!(!agent_text(&messages).contains("done"), "{command}");
    }
    let messages = client.prompt("/ask call", None).await;
    assert!(agent_text(&messages).contains("done"), "the control: {messages:?}");
    client.end().await;
}

/// The question whether to restart the agent belongs to a mode. A mode change voids the question and its
/// answer.
#[tokio::test]
async fn mode_change_voids_the_restart_question() {
    let mut client = ExternalAgentClient::new("plan", "plain").await;
    assert!(client.write("a").await.contains("Permission denied"), "the control");
    client.mode("code").await;
    let path = client.path("b").display().to_string();
    let running = client.client.prompt(&client.session.clone(), &format!("write {path}")).await;
    while client.client.next().await["method"] != "session/request_permission" {}
    let set = json!({ "sessionId": client.session, "modeId": "plan" });
    let set = client.client.request("session/set_mode", set).await;
    let mut messages = client.until(set, None).await;
    if messages.iter().all(|message| message["id"] != running) {
        messages.extend(client.until(running, None).await);
    }
    assert!(agent_text(&messages).contains("Permission denied"), "{messages:?}");
    for _ in 0..2 {
        client.mode("code").await;
        let messages = client.prompt(&format!("write {path}"), Some("stay")).await;
        assert!(
            messages.iter().any(|message| message["method"] == "session/request_permission"),
            "{messages:?}"
        );
        client.mode("plan").await;
    }
    assert!(!client.path("b").exists());
    client.end().await;
}

/// The new mode withdraws an open permission request that it denies, also of an agent that continues. A late
/// approval has no effect.
#[tokio::test]
async fn tightening_withdraws_open_agent_requests() {
    let mut client = ExternalAgentClient::new("plan", "plain").await;
    client.prompt("say 1", None).await;
    client.mode("ask").await;
    // The user lets the agent continue in the sandbox.
    client.prompt("say 1", Some("stay")).await;
    let running = client.client.prompt(&client.session.clone(), "permission").await;
    let request = loop {
        let message = client.client.next().await;
        if message["method"] == "session/request_permission" {
            break message;
        }
    };
    let set = json!({ "sessionId": client.session, "modeId": "plan" });
    let set = client.client.request("session/set_mode", set).await;
    let mut messages = client.until(set, None).await;
    let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
    assert_eq!((&effect["ended"], &effect["closedRequests"]), (&json!([]), &json!(["c1"])), "held already");
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "yes" } });
    let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": outcome });
    client.client.send_line(&answer.to_string()).await;
    if messages.iter().all(|message| message["id"] != running) {
        messages.extend(client.until(running, None).await);
    }
    assert!(messages.iter().any(|message| message["method"] == "$/cancel_request"), "{messages:?}");
    assert!(!agent_text(&messages).contains("yes"), "{messages:?}");
    // The control: an answered request is not withdrawn.
    client.mode("ask").await;
    let messages = client.prompt("permission", Some("yes")).await;
    assert!(agent_text(&messages).contains("yes"), "{messages:?}");
    let answer = client.mode("plan").await;
    assert_eq!(answer["result"]["_meta"]["modegate/effect"]["closedRequests"], json!([]), "{answer}");
    client.end().await;
}

/// The mode change names a write that the client has not answered.
#[tokio::test]
async fn unanswered_client_write_is_named_on_tightening() {
    for (is_answered, expected) in [(false, json!(["agent_write_1_0"])), (true, json!([]))] {
        let home = home();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let agents = agents("plain", SANDBOXED);
        let mut client =
            TestClient::with(Setup { mode: "code", agents, tools, live: true, ..Setup::default() });
        let can = json!({ "fs": { "writeTextFile": true, "readTextFile": true } });
        client.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": can })).await;
        let new = json!({ "cwd": client.cwd(), "mcpServers": [], "_meta": { "modegate/agent": "peer" } });
        let session =
            client.call("session/new", new).await["result"]["sessionId"].as_str().unwrap().to_owned();
        let mut agent_client = ExternalAgentClient { client, home, session };
        let path = agent_client.path("b").display().to_string();
        let running =
            agent_client.client.prompt(&agent_client.session.clone(), &format!("fs-write {path}")).await;
        let request = loop {
            let message = agent_client.client.next().await;
            if message["method"] == "fs/write_text_file" {
                break message;
            }
        };
        let mut messages = Vec::new();
        if is_answered {
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": {} });
            agent_client.client.send_line(&answer.to_string()).await;
            messages.extend(agent_client.until(running, None).await);
        }
        let set = json!({ "sessionId": agent_client.session, "modeId": "plan" });
        let set = agent_client.client.request("session/set_mode", set).await;
        messages.extend(agent_client.until(set, None).await);
        let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
        assert_eq!(effect["unconfirmed"], expected, "{effect}");
        if messages.iter().all(|message| message["id"] != running) {
            agent_client.until(running, None).await;
        }
        // The next write is refused. The client gets a notice and no request.
        let messages = agent_client.prompt(&format!("fs-write {path}"), None).await;
        assert!(messages.iter().all(|message| message["method"] != "fs/write_text_file"), "{messages:?}");
        assert!(agent_text(&messages).contains("Refused by Modegate: plan mode allows no changes (write "));
        // The same applies if the user lets the agent continue in the sandbox.
        agent_client.mode("code").await;
        let messages = agent_client.prompt(&format!("fs-write {path}"), Some("stay")).await;
        assert!(
            agent_text(&messages)
                .contains("Refused by Modegate: another limit of this session allows no changes (write ")
        );
        agent_client.end().await;
    }
}

/// If the agent can no longer be sandboxed, a fork would have a looser mode. No copy is stored.
#[tokio::test]
async fn fork_is_rejected_when_the_mode_becomes_unsupported() {
    let home = home();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let files = Arc::new(Mutex::new(Layers::default()));
    let setup =
        Setup { mode: "plan", agents: agents("plain", SANDBOXED), tools, live: true, ..Setup::default() };
    let mut client = TestClient::with(Setup { files: Some(Arc::clone(&files)), ..setup });
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let new = json!({ "cwd": client.cwd(), "mcpServers": [], "_meta": { "modegate/agent": "peer" } });
    let session = client.call("session/new", new).await["result"]["sessionId"].as_str().unwrap().to_owned();
    let mut agent_client = ExternalAgentClient { client, home, session };
    assert!(agent_client.write("a").await.contains("Permission denied"));
    for mode in files.lock().unwrap().modes.iter_mut().filter(|mode| mode.id == "plan") {
        mode.network = modegate::mode::Network::Deny;
    }
    let again =
        json!({ "sessionId": agent_client.session, "cwd": agent_client.client.cwd(), "mcpServers": [] });
    let answer = agent_client.client.call("session/fork", again.clone()).await;
    assert_eq!(answer["error"]["data"]["code"], "unsupported_mode", "{answer}");
    let count = async |agent_client: &mut ExternalAgentClient| {
        let list = agent_client.client.request("session/list", json!({})).await;
        let answer = agent_client.until(list, None).await.pop().unwrap();
        answer["result"]["sessions"].as_array().unwrap().len()
    };
    assert_eq!(count(&mut agent_client).await, 1);
    for mode in files.lock().unwrap().modes.iter_mut().filter(|mode| mode.id == "plan") {
        mode.network = modegate::mode::Network::Allow;
    }
    let id = agent_client.client.request("session/fork", again).await;
    let answer = agent_client.until(id, None).await.pop().unwrap();
    assert!(answer["result"]["sessionId"].is_string(), "the control: {answer}");
    assert_eq!(count(&mut agent_client).await, 2);
    agent_client.write("b").await;
    assert!(!agent_client.path("b").exists());
    agent_client.end().await;
}

/// An unknown initial mode stands for the built-in plan mode. An agent without `sandbox` is rejected.
#[tokio::test]
async fn unknown_initial_mode_means_plan_or_rejection() {
    for (more, is_begun) in [(SANDBOXED, true), ("", false)] {
        let started = ExternalAgentClient::of("gone", agents("first", more)).await;
        assert_eq!(started.is_ok(), is_begun);
        match started {
            Ok(mut client) => {
                assert!(client.write("a").await.contains("Permission denied"));
                client.end().await;
            }
            Err(answer) => assert_eq!(answer["error"]["data"]["code"], "unsupported_mode", "{answer}"),
        }
        assert_eq!(processes_of("first"), 0);
    }
}

#[tokio::test]
async fn sandbox_arguments_apply_only_while_sandboxed() {
    let of = agents("loads", ", sandbox: {state_dirs: ['~/.peer'], broker: false, args: [--held, now]}");
    let mut client = ExternalAgentClient::of("plan", of).await.unwrap();
    for (mode, output) in [("plan", "told: --held now"), ("code", "told: "), ("plan", "told: --held now")] {
        let set = json!({ "sessionId": client.session, "modeId": mode });
        let id = client.client.request("session/set_mode", set).await;
        client.until(id, None).await;
        let text = agent_text(&client.prompt("told", None).await);
        assert!(text.ends_with(output), "{mode}: {text}");
    }
    client.end().await;
}

#[tokio::test]
async fn client_prompt_is_rejected_for_an_external_agent() {
    let prompt = json!({ "mode": "append", "content": [{ "type": "text", "text": "Answer in rhymes." }] });
    for (agent, prompt, is_rejected) in
        [("peer", prompt.clone(), true), ("peer", Value::Null, false), ("general", prompt, false)]
    {
        let home = home();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let setup = Setup { mode: "code", agents: agents("plain", SANDBOXED), tools, ..Setup::default() };
        let mut client = TestClient::with(setup);
        client.call("initialize", json!({ "protocolVersion": 1 })).await;
        let meta = json!({ "modegate/agent": agent });
        let new = json!({ "cwd": client.cwd(), "mcpServers": [], "_meta": meta, "systemPrompt": prompt });
        let answer = client.call("session/new", new).await;
        assert_eq!(answer["error"]["code"] == -32602, is_rejected, "{agent}: {answer}");
        assert_eq!(answer["result"]["sessionId"].is_string(), !is_rejected, "{agent}: {answer}");
        client.end().await;
    }
}
