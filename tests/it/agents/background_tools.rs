//! `view_background` and `stop_background` are offered while background work exists or can start.

use modegate::policy::{LayerOwner, Layers};
use serde_json::json;

use crate::agents::delegation::{AGENTS, call};
use crate::support::{Setup, TestClient};

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
