//! Mode switches that are asked for, and limits on what a session may do.

use modegate::model::{ModelEvent, ModelStop};
use modegate::policy::{Layers, Owner};
use serde_json::{Value, json};

use crate::support::{Harness, Setup};

fn layers(text: &str) -> Layers {
    let mut layers = Layers::default();
    layers.add("modes.yaml", text, Owner::User).unwrap();
    layers
}

async fn begin(mode: &'static str, text: &str) -> (Harness, String) {
    let mut harness = Harness::with(Setup { mode, modes: layers(text).modes, ..Setup::default() });
    let session = harness.session().await;
    (harness, session)
}

fn call(harness: &Harness, session: &str, name: &str, arguments: Value) {
    harness.stage.say(session, Ok(ModelEvent::ToolCall { id: name.into(), name: name.into(), arguments }));
}

fn done(harness: &Harness, session: &str) {
    harness.stage.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
}

async fn question(harness: &mut Harness) -> Value {
    loop {
        let message = harness.next().await;
        if message["method"] == "session/request_permission" {
            return message;
        }
        assert!(message.get("result").is_none(), "nobody was asked");
    }
}

async fn answer(harness: &mut Harness, question: &Value, option: &str) {
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
    harness
        .send_line(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": outcome }).to_string())
        .await;
}

#[tokio::test]
async fn a_switch_that_would_wake_an_answer_is_asked_for() {
    let text = "modes: [{id: twin, extends: ask}]";
    let (mut harness, session) = begin("twin", text).await;
    let prompt = harness.prompt(&session, "go").await;
    call(&harness, &session, "write_file", json!({ "path": "a", "content": "x" }));
    done(&harness, &session);
    let asked = question(&mut harness).await;
    answer(&mut harness, &asked, "allow_always").await;
    done(&harness, &session);
    harness.until_answer(prompt).await;
    let id = harness.request("session/set_mode", json!({ "sessionId": session, "modeId": "ask" })).await;
    harness.until_answer(id).await;
    let prompt = harness.prompt(&session, "go").await;
    let block = "```yaml\nmode_switch: {analysis: The same., new_mode: twin}\n```\n";
    harness.stage.say(&session, Ok(ModelEvent::Text(block.into())));
    done(&harness, &session);
    let asked = question(&mut harness).await;
    assert_eq!(asked["params"]["toolCall"]["kind"], "switch_mode");
    answer(&mut harness, &asked, "reject").await;
    harness.until_answer(prompt).await;
    harness.end().await;
}

#[tokio::test]
async fn three_rejections_end_a_turn_also_in_band() {
    let (mut harness, session) = begin("plan", "modes: []").await;
    let prompt = harness.prompt(&session, "go").await;
    for round in 0..3 {
        let block = "```yaml\nmode_switch: {analysis: Please., new_mode: code}\n```\n";
        harness.stage.say(&session, Ok(ModelEvent::Text(block.into())));
        call(&harness, &session, "think", json!({ "thought": format!("{round}") }));
        done(&harness, &session);
        let asked = question(&mut harness).await;
        answer(&mut harness, &asked, "reject").await;
    }
    let rest = harness.until_answer(prompt).await;
    assert!(rest.iter().any(|message| message.to_string().contains("rejected three times")), "{rest:?}");
    harness.end().await;
}

#[tokio::test]
async fn where_fewer_paths_may_be_written_a_switch_is_a_tightening() {
    let text = "modes: [{id: e, extends: plan, access: edit}, {id: d, extends: e, write_paths: ['docs/**']}]";
    let (mut harness, session) = begin("e", text).await;
    let id = harness.request("session/set_mode", json!({ "sessionId": session, "modeId": "d" })).await;
    let answered = harness.until_answer(id).await.pop().unwrap();
    assert_eq!(answered["result"]["_meta"]["modegate/effect"]["applies"], "immediate");
    harness.end().await;
}

#[tokio::test]
async fn no_mode_of_a_session_can_do_more_than_the_command_line_says() {
    let setup = Setup { mode: "code", max_mode: Some("plan"), ..Setup::default() };
    let mut harness = Harness::with(setup);
    let session = harness.session().await;
    let prompt = harness.prompt(&session, "go").await;
    call(&harness, &session, "write_file", json!({ "path": "a", "content": "x" }));
    done(&harness, &session);
    done(&harness, &session);
    harness.until_answer(prompt).await;
    assert!(!harness.cwd().join("a").exists());
    assert!(!harness.stage.requests(&session)[0].tools.iter().any(|tool| tool.name == "write_file"));
    harness.end().await;
}
