//! The model of a session: config options for model and thinking, modes with their own, hidden or masked
//! tools, and compaction.

use std::sync::Arc;

use modegate::mode::{Modes, ToolList};
use modegate::model::catalog::{Described, ModelCatalog, Reachable, provider};
use modegate::model::excess::Excess;
use modegate::model::{Block, Effort, Failure, ModelError, ModelEvent, ModelStop, Role, Usage};
use serde_json::{Value, json};

use crate::support::{Setup, TestClient};

pub(crate) fn catalogue(context: u64) -> Arc<ModelCatalog> {
    let described = vec![Described { name: "small".into(), context: Some(context), images: Some(false) }];
    let reachable =
        |id: &str, described| Reachable { provider: provider(id).unwrap(), has_key: true, described };
    Arc::new(ModelCatalog::new(vec![reachable("anthropic", described), reachable("gemini", Vec::new())]))
}

/// The built-in modes, with a separate model and thinking in plan.
fn modes() -> Modes {
    let mut modes = Modes::built_in();
    let plan = modes.iter_mut().find(|mode| mode.id == "plan").unwrap();
    plan.model = Some("gemini/gemini-4-carbon".into());
    plan.thinking = Some(Effort::High);
    modes
}

fn current(options: &Value) -> Vec<(String, String)> {
    let option = |option: &Value| {
        (option["id"].as_str().unwrap().to_owned(), option["currentValue"].as_str().unwrap().to_owned())
    };
    options.as_array().unwrap().iter().map(option).collect()
}

fn of(mode: &str, model: &str, effort: &str) -> Vec<(String, String)> {
    [("mode", mode), ("model", model), ("reasoning_effort", effort)]
        .map(|(id, value)| (id.to_owned(), value.to_owned()))
        .into()
}

async fn set(client: &mut TestClient, session: &str, option: &str, value: &str) -> Vec<Value> {
    let params = json!({ "sessionId": session, "configId": option, "value": value });
    let id = client.request("session/set_config_option", params).await;
    client.until_answer(id).await
}

#[tokio::test]
async fn modes_override_model_and_thinking_until_left() {
    let mut client =
        TestClient::with(Setup { models: catalogue(200_000), modes: modes(), ..Setup::default() });
    let session = client.session().await;
    let small = "anthropic/small";
    let messages = set(&mut client, &session, "model", "anthropic/claude-sonnet-5-5").await;
    assert_eq!(messages.len(), 2, "one update and the answer");
    assert_eq!(messages[0]["params"]["update"]["sessionUpdate"], "config_option_update");
    let answer = &messages[1]["result"]["configOptions"];
    assert_eq!(current(answer), of("ask", "anthropic/claude-sonnet-5-5", "default"));
    assert_eq!(&messages[0]["params"]["update"]["configOptions"], answer);
    set(&mut client, &session, "reasoning_effort", "low").await;

    let entered = set(&mut client, &session, "mode", "plan").await;
    assert_eq!(entered.len(), 3, "a mode update, an option update and the answer");
    assert_eq!(current(&entered[2]["result"]["configOptions"]), of("plan", "gemini/gemini-4-carbon", "high"));
    set(&mut client, &session, "reasoning_effort", "medium").await;
    let remaining = set(&mut client, &session, "mode", "code").await;
    assert_eq!(
        current(&remaining[2]["result"]["configOptions"]),
        of("code", "anthropic/claude-sonnet-5-5", "medium")
    );

    for (option, value, valid) in [
        ("model", "gpt", small),
        ("reasoning_effort", "enormous", "medium"),
        ("speed", "x", "reasoning_effort"),
    ] {
        let answer = set(&mut client, &session, option, value).await.pop().unwrap();
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(answer["error"]["data"].to_string().contains(valid), "{answer}");
    }
    let no_key = set(&mut client, &session, "model", "openai/x").await.pop().unwrap();
    assert_eq!(no_key["error"]["code"], -32000, "{no_key}");
    client.prompt(&session, "hello").await;
    let request = client.model.next_request(&session).await;
    assert_eq!((request.model.as_str(), request.effort), ("anthropic/claude-sonnet-5-5", Effort::Medium));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.end().await;
}

#[tokio::test]
async fn mask_offers_all_tools_and_names_the_allowed() {
    for (list, shown, allowed) in [(ToolList::Hide, false, false), (ToolList::Mask, true, true)] {
        let mut modes = Modes::built_in();
        modes.set_default_tool_list(list);
        let mut client = TestClient::with(Setup { mode: "plan", modes, ..Setup::default() });
        let session = client.session().await;
        let prompt = client.prompt(&session, "hello").await;
        let request = client.model.next_request(&session).await;
        assert_eq!(request.tools.iter().any(|tool| tool.name == "write_file"), shown);
        assert_eq!(request.allowed.is_some(), allowed);
        assert!(request.allowed.iter().flat_map(|names| names.iter()).all(|name| name != "write_file"));
        // In both variants, the call is refused.
        let arguments = json!({ "path": "a.txt", "content": "x" });
        client
            .model
            .say(&session, Ok(ModelEvent::ToolCall { id: "1".into(), name: "write_file".into(), arguments }));
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        let messages = client.until_answer(prompt).await;
        let denied = |message: &&Value| message["params"]["update"]["_meta"]["modegate/denied"].is_string();
        assert_eq!(messages.iter().filter(denied).count(), 1, "{messages:#?}");
        assert!(!client.cwd().join("a.txt").exists());
        client.end().await;
    }
}

/// Lets the model send a text and the size of the used context.
fn answers(client: &TestClient, session: &str, text: &str, used: u64) {
    for event in [
        ModelEvent::Text(text.into()),
        ModelEvent::Usage(Usage { used, size: 1000, ..Usage::default() }),
        ModelEvent::Stop(ModelStop::Done),
    ] {
        client.model.say(session, Ok(event));
    }
}

#[tokio::test]
async fn full_context_is_summarised_and_reported() {
    for takes_updates in [true, false] {
        let mut client =
            TestClient::with(Setup { models: catalogue(1000), mode: "plan", ..Setup::default() });
        let capabilities = if takes_updates { json!({ "session": { "compaction": {} } }) } else { json!({}) };
        client.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities })).await;
        let session = client.session().await;
        for (number, used) in [(1, 300), (2, 900)] {
            let prompt = client.prompt(&session, &format!("Question {number}?")).await;
            client.model.next_request(&session).await;
            answers(&client, &session, &"word ".repeat(80), used);
            client.until_answer(prompt).await;
        }
        let prompt = client.prompt(&session, "Question 3?").await;
        let asked = client.model.next_request(&session).await;
        let [.., Block::Text(question)] = &asked.messages.last().unwrap().blocks[..] else { panic!() };
        let reminders = asked.messages.iter().flat_map(|message| &message.blocks);
        let reminders = reminders.filter(|block| matches!(block, Block::Reminder(_)));
        assert_eq!(reminders.count(), 1, "plan mode goes on");
        assert!(question.contains("will be cut here"), "{question}");
        assert!(asked.allowed.is_some_and(|names| names.is_empty()), "no tool is to be called");
        answers(&client, &session, "They asked two things.", 950);
        let request = client.model.next_request(&session).await;
        let Block::Text(opening) = &request.messages[0].blocks[0] else { panic!() };
        assert!(
            opening
                .starts_with("<summary of=\"the conversation so far\">\nThey asked two things.\n</summary>"),
            "{opening}"
        );
        assert!(opening.contains("<message>\nQuestion 1?\n</message>"), "{opening}");
        let last = &request.messages.last().unwrap().blocks;
        assert!(last.contains(&Block::Text("Question 3?".into())), "{last:?}");
        assert!(matches!(last.last(), Some(Block::Reminder(_))), "plan mode goes on: {last:?}");
        answers(&client, &session, "Here.", 400);
        let messages = client.until_answer(prompt).await;
        let stages: Vec<_> =
            messages.iter().filter_map(|message| message["params"]["update"]["status"].as_str()).collect();
        let told =
            messages.iter().any(|message| message.to_string().contains("was summarised to free context"));
        assert_eq!(
            (stages, told),
            if takes_updates { (vec!["in_progress", "completed"], false) } else { (vec![], true) }
        );
        client.end().await;
    }
}

#[tokio::test]
async fn overlong_request_is_retried_after_compaction() {
    let mut client = TestClient::with(Setup { models: catalogue(100_000), ..Setup::default() });
    let session = client.session().await;
    for number in 0..4 {
        let prompt = client.prompt(&session, &format!("Question {number}? {}", "word ".repeat(200))).await;
        client.model.next_request(&session).await;
        answers(&client, &session, &"Yes. ".repeat(200), 0);
        client.until_answer(prompt).await;
    }
    let too_long =
        || Err(ModelError { failure: Failure::ContextTooLong(Excess::default()), text: "too long".into() });
    let prompt = client.prompt(&session, "Two?").await;
    let size = |request: &modegate::model::ModelRequest| {
        request.messages.iter().flat_map(|message| &message.blocks).map(Block::bytes).sum::<usize>()
    };
    let before = size(&client.model.next_request(&session).await);
    client.model.say(&session, too_long());
    client.model.next_request(&session).await;
    answers(&client, &session, "One was asked.", 0);
    let request = client.model.next_request(&session).await;
    assert!(size(&request) < before / 2, "there is room: {} of {before}", size(&request));
    let roles: Vec<Role> = request.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles.last(), Some(&Role::User));
    assert!(roles.windows(2).all(|pair| pair[0] != pair[1]), "{roles:?}");
    // A request that stays too long is an error, and not repeated forever.
    for _ in 0..12 {
        client.model.say(&session, too_long());
    }
    let answer = client.until_answer(prompt).await.pop().unwrap();
    assert_eq!(answer["error"]["message"], "too long", "{answer}");
    let requests = client.model.requests(&session).len();
    assert!(requests <= 4 + 2 + 8, "{requests} requests");
    client.end().await;
}
