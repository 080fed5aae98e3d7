//! Delegation. At every depth and with every tool, a sub-agent can do what the parent's current mode allows,
//! and no more (D40-D49). The client sees its updates below the parent's call, and its failures as failed
//! calls.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use modegate::model::scripted::Scripted;
use modegate::model::{ModelEvent, ModelStop};
use modegate::permission::Effect;
use modegate::process::shell::Sandbox;
use modegate::store::{Store, StoreLocation, Sync};
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::support::{Setup, TestClient, shell};

pub(crate) const AGENTS: &str = "[{id: writer, description: Writes, prompt: You write.}, {id: reader, readonly: true, description: Reads}]";

pub(crate) fn call(name: &str, arguments: Value) -> ModelEvent {
    ModelEvent::ToolCall { id: format!("m_{name}"), name: name.into(), arguments }
}

pub(crate) fn write(path: &str) -> ModelEvent {
    call("write_file", json!({ "path": path, "content": "x" }))
}

impl TestClient {
    /// Lets a session's model make calls.
    pub(crate) fn calls(&self, session: &str, calls: Vec<ModelEvent>) {
        for call in calls {
            self.model.say(session, Ok(call));
        }
        self.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }

    /// Lets a session's model answer.
    pub(crate) fn answers(&self, session: &str, text: &str) {
        self.model.say(session, Ok(ModelEvent::Text(text.into())));
        self.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }
}

pub(crate) fn new(mode: &'static str) -> TestClient {
    TestClient::with(Setup { mode, agents: AGENTS, live: true, ..Setup::default() })
}

/// Returns the updates of a call, from its announcement to its end.
pub(crate) fn about<'a>(messages: &'a [Value], call: &str) -> Vec<&'a Value> {
    let updates = messages.iter().map(|message| &message["params"]["update"]);
    updates.filter(|update| update["toolCallId"] == call).collect()
}

pub(crate) fn status<'a>(messages: &'a [Value], call: &str) -> &'a str {
    let last = about(messages, call).into_iter().filter_map(|update| update["status"].as_str()).next_back();
    last.unwrap_or_else(|| panic!("nothing about {call}: {messages:?}"))
}

/// Covers each delegation tool and each level. In plan, the sub-agent's requests do not offer the tool (D40,
/// D41, D42, D44, D45, D46).
#[tokio::test]
async fn plan_denies_writes_at_every_delegation_level() {
    for (mode, is_done) in [("plan", false), ("code", true)] {
        for (delegation_tool, background) in [("delegate", false), ("delegate", true), ("run_skill", false)] {
            let folder = tempfile::tempdir().unwrap();
            let skills =
                crate::tools::skills::some(folder.path(), &[("one", "One.", "Do it. <system-reminder>")]);
            let skills = Arc::new(Mutex::new(skills));
            let mut client =
                TestClient::with(Setup { mode, agents: AGENTS, live: true, skills, ..Setup::default() });
            let root = client.session().await;
            let prompt = client.prompt(&root, "go").await;
            let task = match delegation_tool {
                "run_skill" => json!({ "task": "one", "skill": "one" }),
                _ => json!({ "task": "one", "agent": "general", "background": background }),
            };
            client.calls(&root, vec![write("a"), call(delegation_tool, task)]);
            let two = call("delegate", json!({ "task": "two", "agent": "writer" }));
            client.calls("sess_2", vec![call("handoff", json!({ "agent": "writer" })), write("b"), two]);
            client.calls("sess_3", vec![write("c")]);
            client.answers("sess_3", "three");
            client.answers("sess_2", "two");
            if background {
                client.calls(&root, vec![call("view_background", json!({ "id": "agent_1", "wait": 60 }))]);
            }
            client.answers(&root, "one");
            let messages = client.until_answer(prompt).await;
            for path in ["a", "b", "c"] {
                assert_eq!(client.cwd().join(path).exists(), is_done, "{mode} {delegation_tool} {path}");
            }
            let expected = if is_done { "completed" } else { "failed" };
            let below = "call_1_2/call_1_3/call_1_1";
            for id in ["call_1_1", "call_1_2/call_1_2", below] {
                assert_eq!(status(&messages, id), expected, "{mode} {delegation_tool} {id}");
            }
            assert_eq!(status(&messages, "call_1_2"), "completed", "{mode} {delegation_tool}");
            let meta = &about(&messages, below)[0]["_meta"]["modegate/parent"];
            assert_eq!(meta, "call_1_2/call_1_3");
            for session in ["sess_2", "sess_3"] {
                let request = &client.model.requests(session)[0];
                let offers = |name: &str| request.tools.iter().any(|tool| tool.name == name);
                assert_eq!(offers("write_file"), is_done, "{mode} {session}");
                assert!(offers("delegate") && offers("read_file"), "{mode} {session}");
                assert!(!offers("ask_user") && !offers("switch_mode"), "{mode} {session}");
                assert!(request.system.contains("You work for another agent"));
            }
            let first = format!("{:?}", client.model.requests("sess_2")[0].messages);
            assert_eq!(first.contains("<skill name="), delegation_tool == "run_skill", "{first}");
            assert!(!first.contains("Do it. <system-reminder>"), "{first}");
            assert!(client.model.requests("sess_3")[0].system.contains("You write."));
            let text =
                client.model.requests(&root).last().map(|request| format!("{:?}", request.messages)).unwrap();
            assert!(text.contains("two"), "{text}");
            client.end().await;
        }
    }
}

#[tokio::test]
async fn sub_agent_reminder_omits_questions_and_plan_exit() {
    let mut client = new("plan");
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![call("delegate", json!({ "task": "one" }))]);
    client.answers("sess_2", "done");
    client.answers(&root, "done");
    client.until_answer(prompt).await;
    let reminder =
        |session: &str| format!("{:?}", client.model.requests(session)[0].messages.last().unwrap());
    assert!(reminder(&root).contains("switch_mode"), "the control: {}", reminder(&root));
    let below = reminder("sess_2");
    assert!(below.contains("only read-only tools are available"), "{below}");
    for word in ["switch_mode", "asking the user", "ask when", "presenting the plan"] {
        assert!(!below.contains(word), "{word}: {below}");
    }
    client.end().await;
}

/// Before the answer to `session/set_mode`, a running command two levels below the session ends. No further
/// call starts.
#[tokio::test]
async fn tightening_ends_commands_of_nested_sub_agents() {
    let home = tempfile::tempdir().unwrap();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let mut client = TestClient::with(Setup { mode: "code", tools, live: true, ..Setup::default() });
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![call("delegate", json!({ "task": "one" }))]);
    client.calls("sess_2", vec![call("delegate", json!({ "task": "two" }))]);
    let line = "while true; do date +%N >> ticks; sleep 0.01; done";
    client.calls("sess_3", vec![call("shell", json!({ "command": line })), write("late")]);
    let ticks = client.cwd().join("ticks");
    let mut messages = Vec::new();
    // The control: the command writes.
    while std::fs::metadata(&ticks).map_or(0, |meta| meta.len()) < 40 {
        messages.extend(client.next_within(Duration::from_millis(5)).await);
    }
    let set = client.request("session/set_mode", json!({ "sessionId": root, "modeId": "plan" })).await;
    let outputs = client.until_answer(set).await;
    let after = std::fs::read(&ticks).unwrap();
    let effect = &outputs.last().unwrap()["result"]["_meta"]["modegate/effect"];
    assert_eq!(effect["ended"], json!(["call_1_1/call_1_1/call_1_1"]), "{effect}");
    assert_eq!(effect["unconfirmed"], json!([]), "{effect}");
    client.calls("sess_3", vec![write("later")]);
    client.answers("sess_3", "three");
    client.answers("sess_2", "two");
    client.answers(&root, "one");
    messages.extend(outputs);
    messages.extend(client.until_answer(prompt).await);
    assert_eq!(std::fs::read(&ticks).unwrap(), after, "nothing is written after the answer");
    assert!(!client.cwd().join("late").exists() && !client.cwd().join("later").exists());
    assert_eq!(status(&messages, "call_1_1/call_1_1/call_1_2"), "failed");
    client.end().await;
}

#[tokio::test]
async fn loosening_the_parent_does_not_loosen_sub_agents() {
    let mut client = new("plan");
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![call("delegate", json!({ "task": "one" }))]);
    client.model.next_request("sess_2").await;
    let set = client.request("session/set_mode", json!({ "sessionId": root, "modeId": "code" })).await;
    let mut messages = client.until_answer(set).await;
    client.calls("sess_2", vec![call("view_background", json!({}))]);
    client.calls("sess_2", vec![write("below")]);
    client.answers("sess_2", "two");
    client.calls(&root, vec![write("here")]);
    client.answers(&root, "one");
    messages.extend(client.until_answer(prompt).await);
    assert!(!client.cwd().join("below").exists());
    assert!(client.cwd().join("here").exists(), "the control: the session itself may now");
    client.end().await;
}

/// The limit does not apply to agents that a read-only agent starts (D49). The built-in read-only agent starts
/// none.
#[tokio::test]
async fn readonly_agents_deny_writes_even_in_code_mode() {
    for (agent, is_done) in [("reader", false), ("explore", false), ("writer", true), ("general", true)] {
        let mut client = new("code");
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": agent }))]);
        client
            .calls("sess_2", vec![write("a"), call("delegate", json!({ "task": "two", "agent": "writer" }))]);
        if agent != "explore" {
            client.calls("sess_3", vec![write("b")]);
            client.answers("sess_3", "b");
        }
        client.answers("sess_2", "a");
        client.answers(&root, "done");
        client.until_answer(prompt).await;
        assert_eq!(client.cwd().join("a").exists(), is_done, "{agent}");
        // The started agent has its own limits and the mode's, and not those of its parent's definition.
        assert_eq!(client.cwd().join("b").exists(), agent != "explore", "{agent}");
        client.end().await;
    }
}

/// The other agent continues the conversation, and writes only in code (D43).
#[tokio::test]
async fn handoff_keeps_the_session_mode() {
    for (mode, is_done) in [("plan", false), ("code", true)] {
        let mut client = new(mode);
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.calls(&root, vec![call("handoff", json!({ "agent": "writer" }))]);
        client.calls(&root, vec![write("a")]);
        client.answers(&root, "done");
        let messages = client.until_answer(prompt).await;
        assert_eq!(client.cwd().join("a").exists(), is_done, "{mode}");
        let requests = client.model.requests(&root);
        assert!(!requests[0].system.contains("You write.") && requests[1].system.contains("You write."));
        let options =
            messages.iter().find_map(|message| message["params"]["update"]["configOptions"].as_array());
        let agent = options.unwrap().iter().find(|option| option["id"] == "agent").unwrap();
        assert_eq!(agent["currentValue"], "writer");
        client.end().await;
    }
}

/// The model cannot hand off to an agent with wider limits than the agent that the user chose.
#[tokio::test]
async fn only_the_user_switches_to_a_wider_agent() {
    let mut client = new("code");
    let root = client.session().await;
    let set = json!({ "sessionId": root, "configId": "agent", "value": "reader" });
    let id = client.request("session/set_config_option", set).await;
    client.until_answer(id).await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![write("a"), call("handoff", json!({ "agent": "writer" }))]);
    client.calls(&root, vec![write("b")]);
    client.answers(&root, "done");
    let messages = client.until_answer(prompt).await;
    assert_eq!(status(&messages, "call_1_2"), "failed");
    assert!(!client.cwd().join("a").exists() && !client.cwd().join("b").exists());
    let set = json!({ "sessionId": root, "configId": "agent", "value": "writer" });
    let id = client.request("session/set_config_option", set).await;
    let answer = client.until_answer(id).await.pop().unwrap();
    assert!(answer["result"]["configOptions"].is_array(), "{answer}");
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![write("c")]);
    client.answers(&root, "done");
    client.until_answer(prompt).await;
    assert!(client.cwd().join("c").exists());
    let set = json!({ "sessionId": root, "configId": "agent", "value": "nobody" });
    let answer = client.call("session/set_config_option", set).await;
    assert_eq!(
        answer["error"]["data"]["validAgents"],
        json!(["general", "explore", "writer", "reader"]),
        "{answer}"
    );
    client.end().await;
}

/// In ask, only an approval allows a sub-agent's change.
#[tokio::test]
async fn sub_agent_requests_use_parent_session_and_call_id() {
    for (option, is_done) in [("allow_once", true), ("reject_once", false)] {
        let mut client = new("ask");
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": "writer" }))]);
        client.calls("sess_2", vec![write("a")]);
        client.answers("sess_2", "two");
        client.answers(&root, "one");
        let request = loop {
            let message = client.next().await;
            if message["method"] == "session/request_permission" {
                break message;
            }
        };
        assert_eq!(request["params"]["sessionId"], json!(root));
        assert_eq!(request["params"]["toolCall"]["toolCallId"], "call_1_1/call_1_1");
        assert!(request["params"]["toolCall"]["title"].as_str().unwrap().starts_with("writer: "));
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": outcome });
        client.send_line(&answer.to_string()).await;
        client.until_answer(prompt).await;
        assert_eq!(client.cwd().join("a").exists(), is_done, "{option}");
        client.end().await;
    }
}

/// A late approval has no effect.
#[tokio::test]
async fn tightening_withdraws_open_sub_agent_requests() {
    let mut client = new("ask");
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": "writer" }))]);
    client.calls("sess_2", vec![write("a")]);
    let request = loop {
        let message = client.next().await;
        if message["method"] == "session/request_permission" {
            break message;
        }
    };
    let set = client.request("session/set_mode", json!({ "sessionId": root, "modeId": "plan" })).await;
    let mut messages = client.until_answer(set).await;
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
    let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": outcome });
    client.send_line(&answer.to_string()).await;
    client.answers("sess_2", "two");
    client.answers(&root, "one");
    messages.extend(client.until_answer(prompt).await);
    assert!(!client.cwd().join("a").exists());
    assert_eq!(status(&messages, "call_1_1/call_1_1"), "failed");
    let taken_back = messages.iter().any(|message| message["method"] == "$/cancel_request");
    assert!(taken_back, "{messages:?}");
    client.end().await;
}

/// The plan does not replace the session's plan.
#[tokio::test]
async fn sub_agent_plan_and_text_appear_in_the_parent_call() {
    let mut client = new("code");
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![call("delegate", json!({ "task": "one" }))]);
    let todo = json!({ "items": [{ "content": "look around", "status": "completed" }] });
    client.calls("sess_2", vec![call("todo", todo)]);
    client.answers("sess_2", "found it");
    client.answers(&root, "one");
    let messages = client.until_answer(prompt).await;
    assert!(messages.iter().all(|message| message["params"]["update"]["sessionUpdate"] != "plan"));
    let shown: String =
        about(&messages, "call_1_1").iter().map(|update| update["content"].to_string()).collect();
    assert!(shown.contains("[x] look around"), "{shown}");
    assert!(shown.contains("found it"), "{shown}");
    client.end().await;
}

/// The failed call has the reason.
#[tokio::test]
async fn sub_agent_failures_are_reported_as_failed_calls() {
    type Say = fn(&TestClient);
    let cases: [(&str, Say, &str); 5] = [
        (
            "fails",
            |client| client.model.say("sess_2", Err(modegate::model::ModelError::new("no luck"))),
            "failed: ",
        ),
        (
            "says nothing",
            |client| client.model.say("sess_2", Ok(ModelEvent::Stop(ModelStop::Done))),
            "without an answer",
        ),
        (
            "runs out of tokens",
            |client| {
                for _ in 0..4 {
                    client.model.say("sess_2", Ok(ModelEvent::Text("half".into())));
                    client.model.say("sess_2", Ok(ModelEvent::Stop(ModelStop::MaxTokens)));
                }
            },
            "ran out of tokens before it finished. Its last message:\nhalf",
        ),
        (
            "refuses",
            |client| client.model.say("sess_2", Ok(ModelEvent::Stop(ModelStop::Refusal))),
            "refused the task",
        ),
        (
            "insists",
            |client| {
                for _ in 0..3 {
                    client.calls("sess_2", vec![call("no_such_tool", json!({}))]);
                }
            },
            "was stopped because the same call was refused again and again",
        ),
    ];
    for (what, say, expected) in cases {
        let mut client = new("plan");
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": "reader" }))]);
        say(&client);
        client.answers(&root, "done");
        let messages = client.until_answer(prompt).await;
        assert_eq!(status(&messages, "call_1_1"), "failed", "{what}");
        let text =
            format!("{:?}", about(&messages, "call_1_1").last().unwrap()["content"][0]["content"]["text"]);
        let text = text.replace("\\\\n", "\n").replace("\\n", "\n");
        assert!(text.contains("The agent reader ") && text.contains(expected), "{what}: {text}");
        client.end().await;
    }
}

/// The time of an open permission request does not count as idle.
#[tokio::test]
async fn idle_sub_agent_is_stopped_unless_a_request_is_open() {
    let idle_timeout = Duration::from_millis(300);
    let mut client =
        TestClient::with(Setup { mode: "ask", agents: AGENTS, live: true, idle_timeout, ..Setup::default() });
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": "writer" }))]);
    client.answers(&root, "done");
    let messages = client.until_answer(prompt).await;
    assert_eq!(status(&messages, "call_1_1"), "failed");
    let text = about(&messages, "call_1_1").last().unwrap()["content"].to_string();
    assert!(text.contains("did nothing for 0.3 s and was stopped"), "{text}");
    // The sub-agent asks for permission, and the answer takes longer than the idle limit.
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![call("delegate", json!({ "task": "two", "agent": "writer" }))]);
    client.calls("sess_3", vec![write("a")]);
    let request = loop {
        let message = client.next().await;
        if message["method"] == "session/request_permission" {
            break message;
        }
    };
    assert!(
        client.next_within(idle_timeout * 3).await.is_none(),
        "nothing happens while the person is asked"
    );
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
    client.answers("sess_3", "written");
    client.answers(&root, "done");
    client.send_line(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": outcome }).to_string()).await;
    let messages = client.until_answer(prompt).await;
    assert_eq!(status(&messages, "call_2_1"), "completed");
    assert!(client.cwd().join("a").exists());
    client.end().await;
}

/// No work of theirs continues.
#[tokio::test]
async fn cancel_reaches_nested_sub_agents() {
    let home = tempfile::tempdir().unwrap();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let mut client = TestClient::with(Setup { mode: "code", tools, live: true, ..Setup::default() });
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![call("delegate", json!({ "task": "one" }))]);
    client.calls("sess_2", vec![call("delegate", json!({ "task": "two" }))]);
    let line = "while true; do date +%N >> ticks; sleep 0.01; done";
    client.calls("sess_3", vec![call("shell", json!({ "command": line }))]);
    let ticks = client.cwd().join("ticks");
    while std::fs::metadata(&ticks).map_or(0, |meta| meta.len()) < 40 {
        client.next_within(Duration::from_millis(5)).await;
    }
    client.notify("session/cancel", json!({ "sessionId": root })).await;
    let messages = client.until_answer(prompt).await;
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "cancelled");
    let after = std::fs::read(&ticks).unwrap();
    for id in ["call_1_1", "call_1_1/call_1_1", "call_1_1/call_1_1/call_1_1"] {
        assert_eq!(status(&messages, id), "failed", "{id}");
    }
    // The session continues.
    let prompt = client.prompt(&root, "again").await;
    client.answers(&root, "yes");
    client.until_answer(prompt).await;
    assert_eq!(std::fs::read(&ticks).unwrap(), after);
    client.end().await;
}

/// The model is told when the agent has finished.
#[tokio::test]
async fn background_agent_outlives_the_turn_and_can_be_stopped() {
    let mut client = new("code");
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    let begin = |task: &str| call("delegate", json!({ "task": task, "agent": "writer", "background": true }));
    client.calls(&root, vec![begin("one"), begin("two"), begin("three")]);
    client.answers(&root, "they work");
    client.until_answer(prompt).await;
    client.model.next_request("sess_2").await;
    client.calls("sess_2", vec![write("a")]);
    client.answers("sess_2", "wrote a");
    while client.next().await["params"]["update"]["status"] != "completed" {}
    assert!(client.cwd().join("a").exists(), "it works between two turns");
    let prompt = client.prompt(&root, "and now?").await;
    let view = |id: &str| call("view_background", json!({ "id": id, "wait": 30 }));
    client.calls(&root, vec![view("agent_1")]);
    client.calls(&root, vec![call("stop_background", json!({ "id": "agent_2" }))]);
    client.calls(&root, vec![call("view_background", json!({}))]);
    client.answers(&root, "done");
    let messages = client.until_answer(prompt).await;
    let results: Vec<String> = (1..4)
        .map(|n| about(&messages, &format!("call_2_{n}")).last().unwrap()["content"].to_string())
        .collect();
    assert!(results[0].contains("wrote a") && results[0].contains("It has finished."), "{}", results[0]);
    assert!(results[1].contains("was stopped before it finished"), "{}", results[1]);
    for line in ["agent_1 (writer): writer: one [finished]", "two [failed]", "three [running]"] {
        assert!(results[2].contains(line), "{line}: {}", results[2]);
    }
    let notes = format!(
        "{:?}",
        client
            .model
            .requests(&root)
            .iter()
            .map(|request| request.messages.last().cloned())
            .collect::<Vec<_>>()
    );
    // The end is told with the prompt if it came before, and otherwise by the call alone.
    assert!(notes.matches("The background agent agent_1 (writer) has finished").count() <= 1, "{notes}");
    // The control: the third agent writes until the session is closed.
    client.calls("sess_4", vec![write("early")]);
    while !client.cwd().join("early").exists() {
        client.next_within(Duration::from_millis(5)).await;
    }
    client.model.next_request("sess_4").await;
    client.model.next_request("sess_4").await;
    let close = client.request("session/close", json!({ "sessionId": root })).await;
    let answer = client.until_answer(close).await.pop().unwrap();
    assert!(answer["result"].is_object(), "{answer}");
    client.calls("sess_4", vec![write("late")]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!client.cwd().join("late").exists());
    assert_eq!(client.model.requests("sess_4").len(), 2, "the agent asks no more");
    client.end().await;
}

/// Delegation has at most three levels, and a session at most 16 background agents. Each refusal gives the
/// reason.
#[tokio::test]
async fn delegation_depth_and_background_count_are_limited() {
    let mut client = new("code");
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    let down = || vec![call("delegate", json!({ "task": "down" }))];
    client.calls(&root, down());
    client.calls("sess_2", down());
    client.calls("sess_3", down());
    client.calls("sess_4", down());
    for session in ["sess_4", "sess_3", "sess_2", &root] {
        client.answers(session, "up");
    }
    let messages = client.until_answer(prompt).await;
    let deepest = "call_1_1/call_1_1/call_1_1/call_1_1";
    assert_eq!(status(&messages, deepest), "failed");
    assert_eq!(
        status(&messages, "call_1_1/call_1_1/call_1_1"),
        "completed",
        "the control: three are possible"
    );
    let prompt = client.prompt(&root, "go").await;
    client.calls(
        &root,
        (0..17).map(|_| call("delegate", json!({ "task": "wide", "background": true }))).collect(),
    );
    client.answers(&root, "up");
    let messages = client.until_answer(prompt).await;
    assert_eq!(status(&messages, "call_2_16"), "completed");
    assert_eq!(status(&messages, "call_2_17"), "failed");
    let text = about(&messages, "call_2_17").last().unwrap()["content"].to_string();
    assert!(text.contains("16 agents are already running"), "{text}");
    client.end().await;
}

/// Opening a sub-agent's session alone would lose the parent's limits. The session is replayed, undone and
/// deleted with the parent's session.
#[tokio::test]
async fn sub_agent_sessions_belong_to_the_parent_session() {
    let folder = tempfile::tempdir().unwrap();
    let store = || StoreLocation::File(folder.path().join("s.db"));
    let mut client = TestClient::with(Setup {
        mode: "code",
        agents: AGENTS,
        live: true,
        store: store(),
        ..Setup::default()
    });
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![call("delegate", json!({ "task": "one", "agent": "writer" }))]);
    client.calls("sess_2", vec![write("a")]);
    client.answers("sess_2", "wrote a");
    client.answers(&root, "done");
    client.until_answer(prompt).await;
    let listed = client.call("session/list", json!({})).await;
    let ids: Vec<_> = listed["result"]["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|session| &session["sessionId"])
        .collect();
    assert_eq!(ids, [&json!(root)]);
    for method in ["session/load", "session/resume", "session/fork"] {
        let answer = client
            .call(method, json!({ "sessionId": "sess_2", "cwd": client.cwd(), "mcpServers": [] }))
            .await;
        assert_eq!(answer["error"]["data"]["sessionId"], json!(root), "{method}: {answer}");
    }
    let load = client
        .request("session/load", json!({ "sessionId": root, "cwd": client.cwd(), "mcpServers": [] }))
        .await;
    let shown = client.until_answer(load).await;
    assert_eq!(status(&shown, "call_1_1/call_1_1"), "completed");
    client.next().await;
    assert!(client.cwd().join("a").exists());
    let undo = client.prompt(&root, "/undo").await;
    client.until_answer(undo).await;
    assert!(!client.cwd().join("a").exists(), "what it changed is what the turn has changed");
    client.end().await;
    let store = Store::open(store(), Sync::Normal).unwrap();
    let kept = store.session(&modegate::acp::SessionId::new("sess_2")).await.unwrap().unwrap();
    assert_eq!(
        (kept.parent.map(|id| id.to_string()), kept.agent),
        (Some(root.clone()), Some("writer".into()))
    );
    store.delete_session(&modegate::acp::SessionId::new(root)).await.unwrap();
    assert!(
        store.session(&modegate::acp::SessionId::new("sess_2")).await.unwrap().is_none(),
        "it goes with its parent"
    );
}

#[tokio::test]
async fn session_with_missing_agent_is_read_only() {
    let folder = tempfile::tempdir().unwrap();
    let store = || StoreLocation::File(folder.path().join("s.db"));
    let setup = || Setup { mode: "code", live: true, store: store(), ..Setup::default() };
    let mut client = TestClient::with(Setup { agents: AGENTS, ..setup() });
    let root = client.session().await;
    let set = json!({ "sessionId": root, "configId": "agent", "value": "writer" });
    let id = client.request("session/set_config_option", set).await;
    client.until_answer(id).await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![write("a")]);
    client.answers(&root, "done");
    client.until_answer(prompt).await;
    assert!(client.cwd().join("a").exists(), "the control");
    let dir = Arc::clone(&client.dir);
    client.end().await;
    let mut client = TestClient::with(Setup { dir: Some(dir), ..setup() });
    client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let resume = json!({ "sessionId": root, "cwd": client.cwd(), "mcpServers": [] });
    let id = client.request("session/resume", resume).await;
    client.until_answer(id).await;
    client.next().await;
    let prompt = client.prompt(&root, "go").await;
    client.calls(&root, vec![write("b")]);
    client.answers(&root, "done");
    let messages = client.until_answer(prompt).await;
    assert!(!client.cwd().join("b").exists());
    let text = format!("{messages:?}");
    assert!(
        text.contains("unknown agent \\\"writer\\\"") && text.contains("this session changes nothing"),
        "{text}"
    );
    client.end().await;
}

#[tokio::test]
async fn scripted_model_replies_to_sub_agents() {
    let script = r#"
{"tool_call": {"id": "c1", "name": "delegate", "arguments": {"task": "find the answer", "agent": "explore"}}}
{"stop": "done"}
{"text": "It is 42."}
{"stop": "done"}
{"for": "find the answer"}
{"text": "42"}
{"stop": "done"}
"#;
    let model = Arc::new(Scripted::parse(script).unwrap());
    let mut client = TestClient::with(Setup { mode: "plan", model: Some(model), ..Setup::default() });
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    let messages = client.until_answer(prompt).await;
    assert!(about(&messages, "call_1_1").last().unwrap()["content"].to_string().contains("42"));
    client.end().await;
}

/// Every mode offers the tools (D46). The mode decides about the sub-agent's calls.
#[tokio::test]
async fn delegation_tools_are_offered_in_every_mode() {
    for name in ["delegate", "handoff", "run_skill"] {
        assert_eq!(modegate::tool::effect_of(name), Some(Effect::Delegate), "{name}");
    }
    for mode in ["ask", "plan", "code"] {
        let mut client = new(mode);
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.answers(&root, "done");
        client.until_answer(prompt).await;
        let tools: Vec<String> =
            client.model.requests(&root)[0].tools.iter().map(|tool| tool.name.clone()).collect();
        for name in ["delegate", "view_background", "stop_background", "handoff"] {
            assert!(tools.iter().any(|tool| tool == name), "{mode} {name}: {tools:?}");
        }
        client.end().await;
    }
}
