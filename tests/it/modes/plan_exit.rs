//! The exit from plan mode that the model proposes: forms and permission requests, the model's result, and
//! clients that approve automatically.

use std::time::Duration;

use modegate::model::{ModelEvent, ModelStop};
use modegate::session::ExitSettings;
use serde_json::{Value, json};

use crate::support::{Setup, TestClient};

const PLAN: &str = "1. Do it.";

/// A client, and its user's answer to the plan.
struct PlanUser {
    client: TestClient,
    session: String,
    answer: Value,
    /// The delay of the answer.
    after: Duration,
}

/// The outcome of a prompt in which the model proposes a plan.
struct Outcome {
    messages: Vec<Value>,
    /// The result that the model receives, and the tools of that request.
    model_text: String,
    /// The mode after the turn.
    mode: String,
}

async fn client(has_forms: bool, setup: Setup, answer: Value) -> PlanUser {
    let mut client = TestClient::with(Setup { mode: "plan", ..setup });
    let capabilities = if has_forms { json!({ "elicitation": { "form": {} } }) } else { json!({}) };
    client.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities })).await;
    let session = client.session().await;
    PlanUser { client, session, answer, after: Duration::ZERO }
}

fn option(id: &str) -> Value {
    json!({ "outcome": { "outcome": "selected", "optionId": id } })
}

fn form(content: &Value) -> Value {
    json!({ "action": "accept", "content": content })
}

impl PlanUser {
    async fn prompt(mut self, event: ModelEvent) -> Outcome {
        let prompt = self.client.prompt(&self.session, "go").await;
        self.client.model.say(&self.session, Ok(event));
        for _ in 0..2 {
            self.client.model.say(&self.session, Ok(ModelEvent::Stop(ModelStop::Done)));
        }
        let mut messages: Vec<Value> = Vec::new();
        while messages.last().is_none_or(|message| message["id"] != prompt || message.get("method").is_some())
        {
            let message = self.client.next().await;
            if message.get("method").is_some() && message.get("id").is_some() {
                tokio::time::sleep(self.after).await;
                let line = json!({ "jsonrpc": "2.0", "id": message["id"], "result": self.answer });
                self.client.send_line(&line.to_string()).await;
            }
            messages.push(message);
        }
        let request = self.client.model.requests(&self.session).pop().unwrap();
        let text = crate::support::scripted_model::summary(&request);
        let current =
            |message: &Value| message["params"]["update"]["currentModeId"].as_str().map(str::to_owned);
        let mode = messages.iter().rev().find_map(current).unwrap_or_else(|| "plan".into());
        self.client.end().await;
        Outcome { messages, model_text: text, mode }
    }

    async fn propose(self) -> Outcome {
        let arguments = json!({ "plan": PLAN });
        self.prompt(ModelEvent::ToolCall { id: "a".into(), name: "switch_mode".into(), arguments }).await
    }
}

impl Outcome {
    fn asked(&self) -> Vec<&Value> {
        let is_request = |message: &&Value| message.get("method").is_some() && message.get("id").is_some();
        self.messages.iter().filter(is_request).collect()
    }

    fn notices(&self) -> String {
        let notice = |message: &Value| {
            let update = &message["params"]["update"];
            let is_notice = update["_meta"]["modegate/notice"] == true;
            is_notice.then(|| update["content"]["text"].as_str().unwrap_or_default().to_owned())
        };
        self.messages.iter().filter_map(notice).collect()
    }
}

/// A client with forms gets no permission request, because some clients approve those automatically.
#[tokio::test]
pub(super) async fn form_answer_decides_the_plan_exit() {
    for (answer, mode, text) in [
        (
            form(&json!({ "decision": "code" })),
            "code",
            "The user accepted the plan and switched to code mode.",
        ),
        (form(&json!({ "decision": "ask" })), "ask", "switched to ask mode. Carry the plan out"),
        (form(&json!({ "decision": "code", "feedback": "tests, too" })), "code", "The user adds: tests, too"),
        (
            form(&json!({ "decision": "reject" })),
            "plan",
            "The user rejected the mode change. The mode stays.",
        ),
        (form(&json!({ "decision": "reject", "feedback": "less" })), "plan", "In the user's words: less"),
        (form(&json!({ "feedback": "less" })), "plan", "In the user's words: less"),
        (
            form(&json!({ "decision": "elsewhere" })),
            "plan",
            "an option that was not offered, which does not count as consent",
        ),
        (form(&json!({})), "plan", "The user rejected the mode change."),
        (json!({ "action": "accept" }), "plan", "The user rejected the mode change."),
        (json!({ "action": "decline" }), "plan", "The user rejected the mode change."),
        (json!({ "action": "cancel" }), "plan", "The question to the user was cancelled."),
        (json!({ "action": 7 }), "plan", "The user could not be asked"),
        // A client that accepts every permission request cannot answer a form.
        (option("code"), "plan", "The user could not be asked"),
    ] {
        let outcome = client(true, Setup::default(), answer.clone()).await.propose().await;
        assert_eq!(outcome.mode, mode, "{answer}");
        assert!(outcome.model_text.contains(text), "{answer}: {}", outcome.model_text);
        let requests = outcome.asked();
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0]["method"], "elicitation/create");
        let properties = &requests[0]["params"]["requestedSchema"]["properties"];
        let titles: Vec<_> =
            properties["decision"]["oneOf"].as_array().unwrap().iter().map(|one| &one["title"]).collect();
        assert_eq!(titles, ["Implement in Ask mode", "Implement in Code mode", "Keep planning"]);
        // Some clients show the members in the order of the schema, and nothing but the message.
        assert_eq!(properties.as_object().unwrap().keys().collect::<Vec<_>>(), ["decision", "feedback"]);
        assert!(requests[0]["params"]["message"].as_str().unwrap().starts_with(PLAN));
        assert_eq!(properties["feedback"]["title"], "What should change in the plan?");
    }
}

/// The pending call shows its title and the plan, both with forms and without.
#[tokio::test]
pub(super) async fn plan_is_shown_before_the_exit_question() {
    for has_forms in [false, true] {
        let answer = if has_forms { json!({ "action": "decline" }) } else { option("reject") };
        let outcome = client(has_forms, Setup::default(), answer).await.propose().await;
        let is_pending = |message: &Value| {
            let update = &message["params"]["update"];
            update["status"] == "pending"
                && update["title"].as_str().is_some_and(|title| !title.is_empty())
                && update["content"][0]["content"]["text"] == PLAN
        };
        let shown = outcome.messages.iter().position(is_pending).expect("shown");
        let request = outcome.messages.iter().position(|message| message.get("id").is_some()).unwrap();
        assert!(shown < request, "{:?}", outcome.messages);
        // The form has the plan in its message.
        assert_eq!(outcome.notices().contains(PLAN), !has_forms, "{}", outcome.notices());
    }
}

/// The options have the kinds that ACP defines. Each id is a mode or a rejection.
#[tokio::test]
pub(super) async fn without_forms_plan_exit_is_a_permission_request() {
    let outcome = client(false, Setup::default(), option("reject")).await.propose().await;
    let options = outcome.asked()[0]["params"]["options"].clone();
    let options: Vec<_> = options
        .as_array()
        .unwrap()
        .iter()
        .map(|option| ["optionId", "name", "kind"].map(|key| option[key].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(
        options,
        [
            ["ask", "Implement in Ask mode", "allow_once"],
            ["code", "Implement in Code mode", "allow_always"],
            ["reject", "Keep planning", "reject_once"],
            ["reject_with_feedback", "Keep planning, and say what to change", "reject_once"],
        ]
    );
    assert_eq!(outcome.mode, "plan");
    let accepted = client(false, Setup::default(), option("ask")).await.propose().await;
    assert_eq!(accepted.mode, "ask", "the control");
}

#[tokio::test]
pub(super) async fn plan_exit_result_respects_max_mode() {
    for (max_mode, is_free, limit) in [
        (None, true, false),
        (Some("code"), true, false),
        (Some("ask"), true, true),
        (Some("plan"), false, false),
    ] {
        for (has_forms, answer) in [(false, option("code")), (true, form(&json!({ "decision": "code" })))] {
            let setup = Setup { max_mode, ..Setup::default() };
            let outcome = client(has_forms, setup, answer).await.propose().await;
            let text = &outcome.model_text;
            assert_eq!(text.contains("Carry the plan out"), is_free, "{max_mode:?} {text}");
            // If no mode would allow more, there is no exit, and the user is not asked.
            assert_eq!(text.contains("There is no such tool"), !is_free, "{max_mode:?} {text}");
            assert_eq!(outcome.asked().len(), usize::from(is_free), "{max_mode:?}");
            assert_eq!(outcome.mode, if is_free { "code" } else { "plan" });
            assert_eq!(
                text.contains("Another limit of this session still applies: it"),
                limit,
                "{max_mode:?} {text}"
            );
        }
    }
}

/// A switch block asks only if the target allows more under the limits of the session.
#[tokio::test]
pub(super) async fn in_band_switch_without_an_effect_is_not_asked() {
    let block = "```yaml\nmode_switch: {analysis: Ready., new_mode: code}\n```\n";
    for (max_mode, is_asked) in [(Some("plan"), false), (Some("ask"), true), (None, true)] {
        let setup = Setup { max_mode, ..Setup::default() };
        let outcome = client(false, setup, option("code")).await.prompt(ModelEvent::Text(block.into())).await;
        assert_eq!(outcome.asked().len(), usize::from(is_asked), "{max_mode:?}");
        assert_eq!(outcome.mode, if is_asked { "code" } else { "plan" }, "{max_mode:?}");
        let outcomes: Vec<_> = outcome
            .messages
            .iter()
            .filter_map(|message| {
                message["params"]["update"]["_meta"]["modegate/mode_switch"]["outcome"].as_str()
            })
            .collect();
        assert_eq!(outcomes, [if is_asked { "switched" } else { "limited" }], "{max_mode:?}");
    }
}

#[tokio::test]
pub(super) async fn exit_to_an_unknown_mode_is_answered_with_the_modes() {
    for (mode, is_known) in [("nope", false), ("build", true)] {
        let arguments = json!({ "plan": PLAN, "mode": mode });
        let call = ModelEvent::ToolCall { id: "a".into(), name: "switch_mode".into(), arguments };
        let outcome = client(false, Setup::default(), option("code")).await.prompt(call).await;
        assert_eq!(outcome.asked().len(), usize::from(is_known), "{mode}");
        let text = &outcome.model_text;
        assert_eq!(
            text.contains("the modes are ask, plan, code. Call switch_mode again"),
            !is_known,
            "{text}"
        );
    }
}

#[tokio::test]
pub(super) async fn mode_and_permissions_commands_show_max_mode() {
    for (max_mode, is_shown) in [(Some("plan"), true), (None, false)] {
        let mut client = TestClient::with(Setup { mode: "code", max_mode, ..Setup::default() });
        let session = client.session().await;
        for command in ["/mode", "/permissions"] {
            let prompt = client.prompt(&session, command).await;
            let messages = client.until_answer(prompt).await;
            let text: String = messages
                .iter()
                .filter_map(|message| message["params"]["update"]["content"]["text"].as_str())
                .collect();
            let limit = "This session can do no more than plan mode allows, because --max-mode is set.\n";
            assert_eq!(text.contains(limit), is_shown, "{command}: {text}");
        }
        client.end().await;
    }
}

/// The client accepted, not a person: the mode stays, the turn ends, and the user learns how to leave the mode.
#[tokio::test]
pub(super) async fn acceptance_faster_than_reading_does_not_count() {
    let long = Duration::from_mins(1);
    let short = Duration::from_millis(5);
    let block = "```yaml\nmode_switch: {analysis: Ready., new_mode: code}\n```\n";
    let proposal = || ModelEvent::ToolCall {
        id: "a".into(),
        name: "switch_mode".into(),
        arguments: json!({ "plan": PLAN }),
    };
    for (event, commands) in
        [(proposal(), "/ask or /code"), (ModelEvent::Text(block.into()), "/code, or select")]
    {
        for (answer, after, reading_time, accepts_all, expected, is_automatic) in [
            (option("code"), Duration::ZERO, long, false, "plan", true),
            (option("code"), Duration::ZERO, long, true, "code", false),
            (option("code"), short * 4, short, false, "code", false),
            (option("code"), Duration::ZERO, Duration::ZERO, false, "code", false),
            (option("reject"), Duration::ZERO, long, false, "plan", false),
        ] {
            let exits = ExitSettings { reading_time, accepts_all, is_off: false };
            let mut client = client(false, Setup { exits, ..Setup::default() }, answer.clone()).await;
            client.after = after;
            let outcome = client.prompt(event.clone()).await;
            let text = outcome.notices();
            assert_eq!(outcome.mode, expected, "{answer} {text}");
            assert_eq!(text.contains("faster than a person can read"), is_automatic, "{answer} {text}");
            assert_eq!(text.contains("Plan mode stays."), is_automatic, "{answer} {text}");
            if is_automatic {
                assert!(text.contains("--accept-all") && text.contains(commands), "{text}");
            }
        }
    }
}

/// The same for a form.
#[tokio::test]
pub(super) async fn form_accepted_faster_than_reading_does_not_count() {
    for (accepts_all, expected) in [(false, "plan"), (true, "code")] {
        let exits = ExitSettings { reading_time: Duration::from_mins(1), accepts_all, is_off: false };
        let answer = form(&json!({ "decision": "code" }));
        let outcome = client(true, Setup { exits, ..Setup::default() }, answer).await.propose().await;
        assert_eq!(outcome.mode, expected, "{}", outcome.notices());
    }
}

/// The tool is not offered, and a switch block in the model's text does not loosen the mode.
#[tokio::test]
pub(super) async fn no_exit_removes_the_tool_and_in_band_exits() {
    for is_off in [true, false] {
        let setup = || {
            let tools = modegate::tool::Toolset::built_in();
            let tools = if is_off { tools.without_exit() } else { tools };
            let exits = ExitSettings { is_off, ..ExitSettings::default() };
            Setup { tools, exits, ..Setup::default() }
        };
        let outcome = client(false, setup(), option("code")).await.propose().await;
        assert_eq!(
            (outcome.mode.as_str(), outcome.asked().len()),
            if is_off { ("plan", 0) } else { ("code", 1) }
        );
        assert_eq!(outcome.model_text.contains("There is no such tool"), is_off, "{}", outcome.model_text);
        let block = "```yaml\nmode_switch: {analysis: Just asking., new_mode: code}\n```\n";
        let outcome =
            client(false, setup(), option("code")).await.prompt(ModelEvent::Text(block.into())).await;
        assert_eq!(
            (outcome.mode.as_str(), outcome.asked().len()),
            if is_off { ("plan", 0) } else { ("code", 1) }
        );
        let block = "```yaml\nmode_switch: {analysis: Stay., new_mode: plan}\n```\n";
        let outcome =
            client(false, setup(), option("code")).await.prompt(ModelEvent::Text(block.into())).await;
        assert_eq!((outcome.mode.as_str(), outcome.asked().len()), ("plan", 0));
    }
}
