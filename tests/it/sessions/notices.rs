//! Modegate's own messages, for clients with and without `session.notices`.

use std::time::Duration;

use modegate::model::ModelEvent;
use modegate::policy::{LayerOwner, Layers};
use serde_json::{Value, json};

use crate::sessions::load::{StoreFixture, text, turn};
use crate::support::{Setup, TestClient};

async fn initialized(fixture: &StoreFixture, setup: Setup, has_notices: bool) -> TestClient {
    let mut client = fixture.agent(setup);
    let capabilities = if has_notices { json!({ "session": { "notices": {} } }) } else { json!({}) };
    client.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities })).await;
    client
}

/// Returns notices as `(severity, title and description)`. The severity of a notice in a message is `None`.
fn notices(messages: &[Value]) -> Vec<(Option<String>, String)> {
    let updates = messages.iter().map(|message| &message["params"]["update"]);
    let as_notice = |update: &Value| match update["sessionUpdate"].as_str()? {
        "notice" => {
            let (severity, title) = (update["severity"].as_str()?, update["title"].as_str()?);
            let description = update["description"].as_str().unwrap_or_default();
            Some((Some(severity.to_owned()), format!("{title}|{description}")))
        }
        "agent_message_chunk" if update["_meta"]["modegate/notice"] == true => {
            Some((None, update["content"]["text"].as_str()?.to_owned()))
        }
        _ => None,
    };
    updates.filter_map(as_notice).collect()
}

/// Loads a session. Returns the messages up to the answer, and the next `after` messages.
async fn load(client: &mut TestClient, session: &str, after: usize) -> (Vec<Value>, Vec<Value>) {
    let params = json!({ "sessionId": session, "cwd": client.cwd(), "mcpServers": [] });
    let load = client.request("session/load", params).await;
    let before = client.until_answer(load).await;
    let mut later = Vec::new();
    for _ in 0..after {
        later.push(client.next().await);
    }
    (before, later)
}

#[tokio::test]
async fn passing_notices_are_not_replayed_and_answers_stay_messages() {
    let waiting = "Busy. Retrying in 2.0 s.\n".to_owned();
    let passing = (Some("warning".to_owned()), "Busy|Retrying in 2.0 s.".to_owned());
    for has_notices in [true, false] {
        let fixture = StoreFixture::new();
        let mut client = initialized(&fixture, Setup::default(), has_notices).await;
        let session = client.session().await;
        let wait = ModelEvent::Waiting { reason: "Busy".into(), wait: Duration::from_secs(2), limit: None };
        let seen = turn(&mut client, &session, "go", &[&[wait, text("Done.")]]).await;
        let expected = if has_notices { passing.clone() } else { (None, waiting.clone()) };
        assert_eq!(notices(&seen), [expected]);
        let command = client.prompt(&session, "/mode").await;
        let answers = notices(&client.until_answer(command).await);
        assert!(matches!(&*answers, [(None, text)] if text.starts_with("Mode: ")), "{answers:?}");
        client.end().await;
        let mut client = initialized(&fixture, Setup::default(), has_notices).await;
        let (replayed, _) = load(&mut client, &session, 1).await;
        let history = if has_notices { vec![] } else { vec![(None, waiting.clone())] };
        assert_eq!(notices(&replayed), [history, answers].concat(), "{has_notices}");
        client.end().await;
    }
}

#[tokio::test]
async fn session_load_shows_changes_since_the_last_time_once() {
    let gone = "Modegate no longer has the gone mode";
    let mut layers = Layers::default();
    layers.add("modes.yaml", "modes:\n  - id: gone\n    extends: code\n", LayerOwner::User).unwrap();
    for has_notices in [true, false] {
        let fixture = StoreFixture::new();
        let setup = Setup { modes: layers.modes.clone(), mode: "gone", ..Setup::default() };
        let mut client = initialized(&fixture, setup, has_notices).await;
        let session = client.session().await;
        turn(&mut client, &session, "go", &[&[text("Done.")]]).await;
        client.end().await;
        let mut client = initialized(&fixture, Setup::default(), has_notices).await;
        let (replayed, later) = load(&mut client, &session, 1 + usize::from(has_notices)).await;
        let mentions = |messages: &[Value], severity: Option<&str>| {
            let seen = notices(messages);
            seen.iter()
                .filter(|notice| notice.0.as_deref() == severity && notice.1.trim_start().starts_with(gone))
                .count()
        };
        assert_eq!(mentions(&replayed, None), usize::from(!has_notices), "{replayed:?}");
        assert_eq!(mentions(&later, Some("warning")), usize::from(has_notices), "{later:?}");
        let seen = turn(&mut client, &session, "go", &[&[text("Done.")]]).await;
        assert_eq!(notices(&seen), [], "it is shown once");
        client.end().await;
    }
}

#[tokio::test]
async fn warning_about_a_widened_mode_is_a_message() {
    for has_notices in [true, false] {
        let fixture = StoreFixture::new();
        let plan = || Setup { mode: "plan", ..Setup::default() };
        let mut client = initialized(&fixture, plan(), has_notices).await;
        let session = client.session().await;
        turn(&mut client, &session, "go", &[&[text("Done.")]]).await;
        client.end().await;
        let mut client = initialized(&fixture, plan(), has_notices).await;
        load(&mut client, &session, 1).await;
        let params = json!({ "sessionId": session, "modeId": "code" });
        let set = client.request("session/set_mode", params).await;
        client.until_answer(set).await;
        let seen = notices(&turn(&mut client, &session, "go", &[&[text("Done.")]]).await);
        let told = matches!(&*seen, [(None, text)] if text.starts_with("This session was left in plan mode"));
        assert!(told, "{has_notices}: {seen:?}");
        client.end().await;
    }
}

/// Only closing a session stores the mode in which the user left it.
#[tokio::test]
async fn widened_mode_is_reported_only_after_a_session_was_closed() {
    for is_closed in [true, false] {
        let fixture = StoreFixture::new();
        let mut client = initialized(&fixture, Setup { mode: "plan", ..Setup::default() }, false).await;
        let session = client.session().await;
        turn(&mut client, &session, "go", &[&[text("Done.")]]).await;
        if is_closed {
            client.call("session/close", json!({ "sessionId": session })).await;
        }
        load(&mut client, &session, 1).await;
        let set = client.request("session/set_mode", json!({ "sessionId": session, "modeId": "code" })).await;
        client.until_answer(set).await;
        let seen = notices(&turn(&mut client, &session, "go", &[&[text("Done.")]]).await);
        let is_reported = seen.iter().any(|(_, text)| text.starts_with("This session was left in plan mode"));
        assert_eq!(is_reported, is_closed, "{seen:?}");
        client.end().await;
    }
}
