//! Start and end of external agents: during startup, during a flood, with a turn or a session, and after a
//! reload.

use std::path::Path;

use modegate::model::{ModelEvent, ModelStop};
use modegate::process::shell::Sandbox;
use modegate::store::StoreLocation;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::agents::external::sessions::{
    ExternalAgentClient, SANDBOXED, agent_text, agents, client, home, processes_of,
};
use crate::support::{Setup, TestClient, shell};

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |meta| meta.len())
}

/// The agent ends before the answer to `session/set_mode`. The waiting prompt goes to a sandboxed agent.
#[tokio::test]
async fn tightening_ends_an_agent_stuck_in_startup() {
    for (how, more) in [("stuck-new", ""), ("stuck-mode", ", modes: {full: plan}")] {
        let more = format!("{SANDBOXED}{more}");
        let mut client = ExternalAgentClient::of("code", agents(how, &more)).await.unwrap();
        let ticks = client.path("ticks");
        let running = client
            .client
            .prompt(&client.session.clone(), &format!("write {}", client.path("b").display()))
            .await;
        // The control: without the sandbox, the agent writes.
        while length(&ticks) < 3 {
            client.client.next_within(std::time::Duration::from_millis(5)).await;
        }
        let set = json!({ "sessionId": client.session, "modeId": "plan" });
        let set = client.client.request("session/set_mode", set).await;
        let mut messages = client.until(set, None).await;
        let after = length(&ticks);
        let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
        assert_eq!(
            (&effect["ended"], &effect["unconfirmed"]),
            (&json!(["agent"]), &json!([])),
            "{how}: {effect}"
        );
        if messages.iter().all(|message| message["id"] != running) {
            messages.extend(client.until(running, None).await);
        }
        assert!(agent_text(&messages).contains("Permission denied"), "{how}: {messages:?}");
        assert_eq!(length(&ticks), after, "{how}: nothing is written after the answer");
        assert!(!client.path("b").exists());
        client.end().await;
        assert_eq!(processes_of(how), 0);
    }
}

/// No process of the agent remains.
#[tokio::test]
async fn close_ends_an_agent_during_startup() {
    let mut client = ExternalAgentClient::new("code", "stuck-closed").await;
    let ticks = client.path("ticks");
    while length(&ticks) < 3 {
        client.client.next_within(std::time::Duration::from_millis(5)).await;
    }
    assert!(processes_of("stuck-closed") > 0, "the control");
    let close = client.client.request("session/close", json!({ "sessionId": client.session })).await;
    client.until(close, None).await;
    assert_eq!(processes_of("stuck-closed"), 0);
    let (after, _dir) = (length(&ticks), std::sync::Arc::clone(&client.client.dir));
    client.end().await;
    assert_eq!(length(&ticks), after);
}

/// The process belongs to the session. A cancel of the turn that started it leaves it running.
#[tokio::test]
async fn cancelling_the_first_turn_keeps_the_agent_running() {
    let mut client = ExternalAgentClient::new("code", "plain").await;
    for _ in 0..2 {
        // The next prompt starts the agent.
        client.prompt("die", None).await;
        let running = client.client.prompt(&client.session.clone(), "hang").await;
        while agent_text(&[client.client.next().await]) != "begun" {}
        client.client.notify("session/cancel", json!({ "sessionId": client.session })).await;
        client.until(running, None).await;
        assert_eq!(agent_text(&client.prompt("say 1", None).await), "0", "it is the same one");
    }
    client.end().await;
}

/// No process of the agent remains.
#[tokio::test]
async fn close_ends_a_flooding_agent() {
    let mut client = ExternalAgentClient::new("code", "flooding").await;
    client.client.prompt(&client.session.clone(), "flood").await;
    while agent_text(&[client.client.next().await]).is_empty() {}
    assert!(processes_of("flooding") > 0, "the control");
    let close = client.client.request("session/close", json!({ "sessionId": client.session })).await;
    let messages = client.until(close, None).await;
    assert!(messages.last().unwrap()["result"].is_object());
    assert_eq!(processes_of("flooding"), 0);
    client.end().await;
}

/// A session that another process loads has its stored mode. The agent's calls and messages get new ids. A
/// notice reports lost context if the agent cannot load its own session.
#[tokio::test]
async fn reloaded_session_keeps_mode_and_uses_new_ids() {
    for how in ["plain", "loads"] {
        let folder = tempfile::tempdir().unwrap();
        let (place, home) = (std::sync::Arc::new(tempfile::tempdir().unwrap()), home());
        let setup = || Setup {
            mode: "code",
            agents: agents(how, SANDBOXED),
            tools: Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace)),
            live: true,
            store: StoreLocation::File(folder.path().join("s.db")),
            dir: Some(std::sync::Arc::clone(&place)),
            ..Setup::default()
        };
        let mut client = TestClient::with(setup());
        client.call("initialize", json!({ "protocolVersion": 1 })).await;
        let new = json!({ "cwd": client.cwd(), "mcpServers": [], "_meta": { "modegate/agent": "peer" } });
        let session =
            client.call("session/new", new).await["result"]["sessionId"].as_str().unwrap().to_owned();
        let mut agent_client = ExternalAgentClient {
            client,
            home: crate::agents::external::sessions::home(),
            session: session.clone(),
        };
        let first = agent_client.prompt("call", None).await;
        agent_client.mode("plan").await;
        agent_client.end().await;

        let mut client = TestClient::with(setup());
        client.call("initialize", json!({ "protocolVersion": 1 })).await;
        let load = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
        let load = client.request("session/load", load).await;
        let mut agent_client =
            ExternalAgentClient { client, home: crate::agents::external::sessions::home(), session };
        let loaded = agent_client.until(load, None).await;
        assert_eq!(loaded.last().unwrap()["result"]["modes"]["currentModeId"], "plan");
        let mut second = agent_client.prompt("call", None).await;
        second.extend(agent_client.prompt("say 1", None).await);
        let times = usize::from(how == "plain");
        assert_eq!(
            agent_text(&second).matches("has lost the earlier conversation").count(),
            times,
            "{second:?}"
        );
        let names = |messages: &[Value]| -> Vec<String> {
            let updates = messages.iter().map(|message| &message["params"]["update"]);
            let ids = updates.filter(|update| update["sessionUpdate"] != "user_message_chunk");
            let ids = ids.flat_map(|update| [update["toolCallId"].as_str(), update["messageId"].as_str()]);
            ids.flatten().map(str::to_owned).collect()
        };
        let old = names(&first);
        assert!(old.contains(&"c9".to_owned()), "{old:?}");
        assert!(names(&second).iter().all(|id| !old.contains(id)), "{old:?} {:?}", names(&second));
        let text = agent_client.write("b").await;
        assert!(!agent_client.path("b").exists(), "{text}");
        agent_client.end().await;
    }
}

/// A call that the agent leaves open fails.
#[tokio::test]
async fn completed_calls_stay_completed_when_the_agent_ends() {
    for (task, expected) in [("call", &["completed"][..]), ("open", &["in_progress", "failed"])] {
        let home = home();
        let mut test_client = client("code", agents("shows", ""), home.path());
        let root = test_client.session().await;
        let prompt = test_client.prompt(&root, "go").await;
        let arguments = json!({ "agent": "peer", "task": task });
        let call = ModelEvent::ToolCall { id: "m".into(), name: "delegate".into(), arguments };
        test_client.model.say(&root, Ok(call));
        test_client.model.say(&root, Ok(ModelEvent::Stop(ModelStop::Done)));
        test_client.model.say(&root, Ok(ModelEvent::Stop(ModelStop::Done)));
        let messages = test_client.until_answer(prompt).await;
        let updates = messages.iter().map(|message| &message["params"]["update"]);
        let shown: Vec<_> = updates
            .filter(|update| update["toolCallId"] == "call_1_1/c9")
            .filter_map(|update| update["status"].as_str())
            .collect();
        assert_eq!(shown, expected, "{task}: {messages:?}");
        test_client.end().await;
    }
}

/// Undo warns about an agent that ran without the sandbox in any turn.
#[tokio::test]
async fn undo_warns_about_unsandboxed_agent_changes() {
    for (mode, is_shown) in [("code", true), ("plan", false)] {
        let mut client = ExternalAgentClient::new(mode, "plain").await;
        for turn in ["1", "2"] {
            client.write("a").await;
            let text = agent_text(&client.prompt(&format!("/undo {turn}"), None).await);
            assert_eq!(text.contains("cannot be undone"), is_shown, "{mode} {turn}: {text}");
        }
        client.end().await;
    }
}
