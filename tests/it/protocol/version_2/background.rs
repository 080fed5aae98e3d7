//! Background work in version 2: its list in the states of a session, and its end.

use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use super::{done, kind, kinds, prompt, session, set_mode, setup, until};
use crate::sessions::load::{call, text};
use crate::support::{Setup, TestClient, shell};

/// A session in `code`, whose model has started a job. The turn is over.
struct JobSession {
    client: TestClient,
    session: String,
    terminal: String,
    messages: Vec<Value>,
    _home: tempfile::TempDir,
}

fn background(message: &Value) -> &Value {
    &message["params"]["update"]["background"]
}

impl JobSession {
    async fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let mut client = TestClient::with(Setup { tools, live: true, ..setup("code") });
        let session = session(&mut client).await;
        let id = client.request("session/prompt", prompt(&session, "go", None)).await;
        let mut messages = client.until_answer(id).await;
        let command = json!({ "command": "echo begun; sleep 1000", "background": true });
        client.model.say(&session, Ok(call("c", "shell", command)));
        done(&client, &session);
        done(&client, &session);
        messages.extend(until(&mut client, "idle").await);
        let listed = background(messages.last().unwrap())[0].clone();
        let terminal = listed["terminalId"].as_str().unwrap_or_else(|| panic!("{messages:?}")).to_owned();
        assert_eq!(listed, json!({ "type": "terminal", "terminalId": terminal }));
        Self { client, session, terminal, messages, _home: home }
    }

    fn cancel(&self) -> Value {
        json!({ "sessionId": self.session, "terminalId": self.terminal })
    }

    /// Checks that the job's terminal ends, and leaves the list after that. Returns the place of its end.
    fn check_end(&self, messages: &[Value]) -> usize {
        let is_end = |message: &Value| {
            let update = &message["params"]["update"];
            update["terminalId"] == *self.terminal && update["exitStatus"].is_object()
        };
        let end = messages.iter().position(is_end).unwrap_or_else(|| panic!("{messages:?}"));
        let next_state =
            messages[end..].iter().find(|message| message["params"]["update"]["state"].is_string());
        assert_eq!(background(next_state.unwrap()), &json!([]));
        assert!(
            !messages[end + 1..]
                .iter()
                .any(|message| message["params"]["update"]["terminalId"] == *self.terminal),
            "an ended terminal has no updates"
        );
        end
    }
}

#[tokio::test]
async fn job_is_announced_before_it_is_listed_and_cancelled_by_its_terminal() {
    let mut job = JobSession::new().await;
    let first = job.messages.iter().position(|message| background(message)[0].is_object()).unwrap();
    let announced = job.messages[..first].iter().position(|message| {
        let update = &message["params"]["update"];
        update["terminalId"] == *job.terminal && update["capabilities"]["cancel"].is_object()
    });
    assert!(announced.is_some(), "{:?}", job.messages);
    let states = job.messages.iter().filter(|message| message["params"]["update"]["state"].is_string());
    assert!(states.clone().all(|state| background(state).is_array()), "each state lists background work");
    assert!(
        job.messages
            .iter()
            .any(|message| { message["params"]["update"]["content"][0]["terminalId"] == *job.terminal })
    );
    let cancel = job.cancel();
    let id = job.client.request("terminal/cancel", cancel.clone()).await;
    let mut messages = job.client.until_answer(id).await;
    assert_eq!(messages.last().unwrap()["result"], json!({}));
    while background(messages.last().unwrap()) != &json!([]) {
        messages.push(job.client.next().await);
    }
    job.check_end(&messages);
    assert_eq!(kind(messages.last().unwrap()), "idle");
    assert_eq!(messages.last().unwrap()["params"]["update"].get("stopReason"), None, "no turn has ended");
    let again = job.client.request("terminal/cancel", cancel).await;
    assert_eq!(job.client.until_answer(again).await.pop().unwrap()["error"]["code"], -32602);
    job.client.end().await;
}

#[tokio::test]
async fn cancelling_the_turn_does_not_end_the_job() {
    let mut job = JobSession::new().await;
    let session = job.session.clone();
    let id = job.client.request("session/prompt", prompt(&session, "more", None)).await;
    job.client.until_answer(id).await;
    let command = json!({ "command": "sleep 1000", "background": true });
    job.client.model.say(&session, Ok(call("d", "shell", command)));
    job.client.model.say(&session, Ok(call("e", "shell", json!({ "command": "sleep 1000" }))));
    done(&job.client, &session);
    let mut in_progress = 0;
    while in_progress < 2 {
        let message = job.client.next().await;
        in_progress += usize::from(message["params"]["update"]["status"] == "in_progress");
    }
    job.client.notify("session/cancel", json!({ "sessionId": session })).await;
    let idle = until(&mut job.client, "idle").await.pop().unwrap();
    assert_eq!(idle["params"]["update"]["stopReason"], "cancelled");
    assert_eq!(background(&idle).as_array().unwrap().len(), 2, "also the job of the cancelled turn goes on");
    let close = job.client.request("session/close", json!({ "sessionId": session })).await;
    let messages = job.client.until_answer(close).await;
    let ends = messages.iter().filter(|message| message["params"]["update"]["exitStatus"].is_object());
    assert_eq!(ends.count(), 2, "closing ends both");
    job.client.end().await;
}

#[tokio::test]
async fn denying_mode_reports_the_end_of_the_job_before_its_answer() {
    let mut job = JobSession::new().await;
    let looser = job.client.request("session/set_config_option", set_mode(&job.session, "ask")).await;
    let messages = job.client.until_answer(looser).await;
    assert!(!messages.iter().any(|message| message["params"]["update"]["exitStatus"].is_object()), "control");
    let tighter = job.client.request("session/set_config_option", set_mode(&job.session, "plan")).await;
    let messages = job.client.until_answer(tighter).await;
    let end = job.check_end(&messages);
    let order = kinds(&messages);
    let options = order.iter().position(|kind| *kind == "config_option_update").unwrap();
    assert!(end < options, "{order:?}");
    job.client.end().await;
}

const AGENTS: &str = "[{id: helper, description: Helps.}]";

#[tokio::test]
async fn background_agent_is_announced_listed_and_ended() {
    let mut client = TestClient::with(Setup { agents: AGENTS, live: true, ..setup("code") });
    let session = session(&mut client).await;
    let id = client.request("session/prompt", prompt(&session, "go", None)).await;
    let mut messages = client.until_answer(id).await;
    let arguments = json!({ "agent": "helper", "task": "look around", "background": true });
    client.model.say(&session, Ok(call("c", "delegate", arguments)));
    done(&client, &session);
    done(&client, &session);
    messages.extend(until(&mut client, "idle").await);
    let child = background(messages.last().unwrap())[0]["sessionId"].as_str().unwrap().to_owned();
    let is_child = |message: &&Value| message["params"]["update"]["sessionId"] == *child;
    let announced = messages.iter().find(is_child).unwrap();
    assert_eq!(kind(announced), "subagent_update");
    assert_eq!(announced["params"]["update"]["state"]["state"], "running");
    let task = messages.iter().find(|message| kind(message) == "session_message").unwrap();
    assert_eq!(task["params"]["update"]["recipientSessionId"], *child);
    let content =
        messages.iter().find(|message| message["params"]["update"]["content"][0]["type"] == "session");
    assert_eq!(content.unwrap()["params"]["update"]["content"][0]["sessionId"], *child);
    client.model.say(&child, Ok(text("all is well")));
    done(&client, &child);
    let mut rest = vec![client.next().await];
    while background(rest.last().unwrap()) != &json!([])
        || rest.last().unwrap()["params"]["update"]["sessionUpdate"] != "state_update"
    {
        rest.push(client.next().await);
    }
    let answer = rest.iter().find(|message| kind(message) == "session_message").unwrap();
    assert_eq!(answer["params"]["update"]["senderSessionId"], *child);
    assert!(answer.to_string().contains("all is well"));
    let ended = rest.iter().find(is_child).unwrap();
    assert_eq!(ended["params"]["update"]["state"]["state"], "idle");
    client.notify("session/cancel", json!({ "sessionId": session })).await;
    client.end().await;
}
