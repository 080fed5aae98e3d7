//! Mode switches that the model requests, and limits on the session's mode.

use modegate::mode::ToolList;
use modegate::model::{ModelEvent, ModelStop};
use modegate::policy::{LayerOwner, Layers};
use serde_json::{Value, json};

use crate::support::{Setup, TestClient};

fn layers(text: &str) -> Layers {
    let mut layers = Layers::default();
    layers.add("modes.yaml", text, LayerOwner::User).unwrap();
    layers
}

async fn begin(mode: &'static str, text: &str) -> (TestClient, String) {
    let mut client = TestClient::with(Setup { mode, modes: layers(text).modes, ..Setup::default() });
    let session = client.session().await;
    (client, session)
}

fn call(client: &TestClient, session: &str, name: &str, arguments: Value) {
    client.model.say(session, Ok(ModelEvent::ToolCall { id: name.into(), name: name.into(), arguments }));
}

fn done(client: &TestClient, session: &str) {
    client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
}

async fn question(client: &mut TestClient) -> Value {
    loop {
        let message = client.next().await;
        if message["method"] == "session/request_permission" {
            return message;
        }
        assert!(message.get("result").is_none(), "nobody was asked");
    }
}

async fn answer(client: &mut TestClient, question: &Value, option: &str) {
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
    client.send_line(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": outcome }).to_string()).await;
}

/// The description does not depend on the mode, so providers can cache it.
#[tokio::test]
pub(super) async fn exit_tool_names_the_modes_that_may_change_something() {
    let mut modes = layers("modes: [{id: docs, extends: ask}, {id: look, extends: plan}]").modes;
    modes.set_default_tool_list(ToolList::Mask);
    for mode in ["plan", "look", "docs"] {
        let mut client = TestClient::with(Setup { mode, modes: modes.clone(), ..Setup::default() });
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        done(&client, &session);
        client.until_answer(prompt).await;
        let tools = client.model.requests(&session).remove(0).tools;
        let exit = tools.iter().find(|tool| tool.name == "switch_mode").unwrap();
        assert!(exit.description.ends_with(" Modes: ask, code, docs."), "{mode}: {}", exit.description);
        client.end().await;
    }
}

#[tokio::test]
pub(super) async fn switch_restoring_an_always_grant_asks_the_user() {
    let text = "modes: [{id: twin, extends: ask}]";
    let (mut client, session) = begin("twin", text).await;
    let prompt = client.prompt(&session, "go").await;
    call(&client, &session, "write_file", json!({ "path": "a", "content": "x" }));
    done(&client, &session);
    let request = question(&mut client).await;
    answer(&mut client, &request, "allow_always").await;
    done(&client, &session);
    client.until_answer(prompt).await;
    let id = client.request("session/set_mode", json!({ "sessionId": session, "modeId": "ask" })).await;
    client.until_answer(id).await;
    let prompt = client.prompt(&session, "go").await;
    let block = "```yaml\nmode_switch: {analysis: The same., new_mode: twin}\n```\n";
    client.model.say(&session, Ok(ModelEvent::Text(block.into())));
    done(&client, &session);
    let request = question(&mut client).await;
    assert_eq!(request["params"]["toolCall"]["kind"], "switch_mode");
    answer(&mut client, &request, "reject").await;
    client.until_answer(prompt).await;
    client.end().await;
}

#[tokio::test]
pub(super) async fn three_rejected_in_band_switches_end_the_turn() {
    let (mut client, session) = begin("plan", "modes: []").await;
    let prompt = client.prompt(&session, "go").await;
    for _ in 0..3 {
        let block = "```yaml\nmode_switch: {analysis: Please., new_mode: code}\n```\n";
        client.model.say(&session, Ok(ModelEvent::Text(block.into())));
        call(&client, &session, "view_background", json!({}));
        done(&client, &session);
        let request = question(&mut client).await;
        answer(&mut client, &request, "reject").await;
    }
    let rest = client.until_answer(prompt).await;
    assert!(rest.iter().any(|message| message.to_string().contains("rejected three times")), "{rest:?}");
    client.end().await;
}

#[tokio::test]
pub(super) async fn switch_to_fewer_write_paths_applies_immediately() {
    let text = "modes: [{id: e, extends: plan, access: edit}, {id: d, extends: e, write_paths: ['docs/**']}]";
    let (mut client, session) = begin("e", text).await;
    let id = client.request("session/set_mode", json!({ "sessionId": session, "modeId": "d" })).await;
    let answered = client.until_answer(id).await.pop().unwrap();
    assert_eq!(answered["result"]["_meta"]["modegate/effect"]["applies"], "immediate");
    client.end().await;
}

#[tokio::test]
pub(super) async fn max_mode_limits_the_session_mode() {
    for (max_mode, is_written) in [(Some("plan"), false), (None, true)] {
        let mut client = TestClient::with(Setup { mode: "code", max_mode, ..Setup::default() });
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        call(&client, &session, "write_file", json!({ "path": "a", "content": "x" }));
        done(&client, &session);
        done(&client, &session);
        client.until_answer(prompt).await;
        assert_eq!(client.cwd().join("a").exists(), is_written, "{max_mode:?}");
        let offered = &client.model.requests(&session)[0].tools;
        assert_eq!(offered.iter().any(|tool| tool.name == "write_file"), is_written, "{max_mode:?}");
        client.end().await;
    }
}
