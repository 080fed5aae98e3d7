//! Other modes and rules in the place of those that hold, and what the model may switch by itself.

use std::sync::{Arc, Mutex};

use modegate::model::{ModelEvent, ModelStop};
use modegate::policy::{Layers, Owner};
use serde_json::{Value, json};

use crate::support::{Harness, Setup};

fn layers(text: &str) -> Layers {
    let mut layers = Layers::default();
    layers.add("modes.yaml", text, Owner::User).unwrap();
    layers
}

/// A session in a mode, whose files can be changed while it runs.
async fn begin(mode: &'static str, text: &str) -> (Harness, String, Arc<Mutex<Layers>>) {
    let files = Arc::new(Mutex::new(layers(text)));
    let mut harness = Harness::with(Setup { mode, files: Some(Arc::clone(&files)), ..Setup::default() });
    let session = harness.session().await;
    (harness, session, files)
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

async fn reload(harness: &mut Harness, session: &str) -> Vec<Value> {
    let id = harness.request("_modegate/reload", json!({ "sessionId": session })).await;
    harness.until_answer(id).await
}

const WIDE: &str = "modes: [{id: m, extends: code}]";
const NARROW: &str = "modes: [{id: m, extends: plan, exits_to: d}, {id: d, extends: ask, write_paths: [docs/**], shell: read_only}]";

#[tokio::test]
async fn a_reload_that_loosens_holds_from_the_next_request_and_one_that_tightens_at_once() {
    let (mut harness, session, files) = begin("m", NARROW).await;
    let prompt = harness.prompt(&session, "go").await;
    harness.stage.next_request(&session).await;
    *files.lock().unwrap() = layers(WIDE);
    let answered = reload(&mut harness, &session).await.pop().unwrap();
    assert_eq!(answered["result"]["modes"]["currentModeId"], "m");
    call(&harness, &session, "write_file", json!({ "path": "early", "content": "x" }));
    done(&harness, &session);
    call(&harness, &session, "write_file", json!({ "path": "next", "content": "x" }));
    done(&harness, &session);
    done(&harness, &session);
    harness.until_answer(prompt).await;
    let exists = |name: &str| harness.cwd().join(name).exists();
    assert_eq!((exists("early"), exists("next")), (false, true));
    *files.lock().unwrap() = layers(NARROW);
    reload(&mut harness, &session).await;
    let prompt = harness.prompt(&session, "go").await;
    call(&harness, &session, "write_file", json!({ "path": "late", "content": "x" }));
    done(&harness, &session);
    done(&harness, &session);
    harness.until_answer(prompt).await;
    assert!(!harness.cwd().join("late").exists());
    harness.end().await;
}

#[tokio::test]
async fn a_mode_that_is_gone_is_left_for_the_most_restrictive_and_a_question_about_it_is_void() {
    let (mut harness, session, files) = begin("m", NARROW).await;
    let prompt = harness.prompt(&session, "go").await;
    call(&harness, &session, "switch_mode", json!({ "plan": "1. x" }));
    done(&harness, &session);
    let asked = question(&mut harness).await;
    assert!(asked["params"]["options"].to_string().contains("\"d\""), "{asked}");
    // What was asked for was a mode for documentation.
    *files.lock().unwrap() = layers("modes: [{id: d, extends: code}]");
    let messages = reload(&mut harness, &session).await;
    assert_eq!(messages.last().unwrap()["result"]["modes"]["currentModeId"], "plan");
    answer(&mut harness, &asked, "d").await;
    done(&harness, &session);
    let rest = harness.until_answer(prompt).await;
    let switched = |message: &Value| message["params"]["update"]["currentModeId"] == "d";
    assert!(!rest.iter().any(switched), "{rest:?}");
    harness.end().await;
}

#[tokio::test]
async fn a_switch_that_would_wake_an_answer_is_asked_for() {
    let text = "modes: [{id: twin, extends: ask}]";
    let (mut harness, session, _files) = begin("twin", text).await;
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
    let (mut harness, session, _files) = begin("plan", "modes: []").await;
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
    let (mut harness, session, _files) = begin("e", text).await;
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
