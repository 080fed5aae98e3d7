//! Modes that change while other people's agents work: what is asked, what is open, what is delegated, what files say.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use modegate::model::{ModelEvent, ModelStop};
use modegate::policy::Layers;
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::json;

use crate::outside::{Guest, HELD, agents, home, processes_of, said};
use crate::support::{Harness, Setup, shell};

/// A parent is tightened while what it delegated to is at work: nothing is written after the answer, and it is no success.
#[tokio::test]
async fn tightening_ends_what_is_delegated_to_one() {
    for tool in ["delegate", "delegate_background"] {
        let home = home();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let agents = agents("ticking", HELD);
        let mut h = Harness::with(Setup { mode: "code", agents, tools, live: true, ..Setup::default() });
        let root = h.session().await;
        let ticks = h.cwd().join("ticks");
        let prompt = h.prompt(&root, "go").await;
        let arguments = json!({ "agent": "peer", "task": format!("tick {}", ticks.display()) });
        let call =
            |name: &str, arguments| ModelEvent::ToolCall { id: name.into(), name: name.into(), arguments };
        let done = || Ok(ModelEvent::Stop(ModelStop::Done));
        h.stage.say(&root, Ok(call(tool, arguments)));
        h.stage.say(&root, done());
        let mut messages = Vec::new();
        // The control: it writes.
        while std::fs::metadata(&ticks).map_or(0, |meta| meta.len()) < 3 {
            messages.extend(h.next_within(Duration::from_millis(5)).await);
        }
        let set = h.request("session/set_mode", json!({ "sessionId": root, "modeId": "plan" })).await;
        let told = h.until_answer(set).await;
        let after = std::fs::read(&ticks).unwrap();
        assert_eq!(processes_of("ticking"), 0);
        let effect = &told.last().unwrap()["result"]["_meta"]["modegate/effect"];
        assert_eq!(
            (&effect["ended"], &effect["unconfirmed"]),
            (&json!(["call_1_1/agent"]), &json!([])),
            "{effect}"
        );
        messages.extend(told);
        let is_background = tool == "delegate_background";
        if is_background {
            let view = json!({ "agent": "agent_1", "wait": 60 });
            h.stage.say(&root, Ok(call("view_background_agent", view)));
            h.stage.say(&root, done());
        }
        h.stage.say(&root, done());
        messages.extend(h.until_answer(prompt).await);
        let id = if is_background { "call_2_1" } else { "call_1_1" };
        let text = messages
            .iter()
            .map(|message| message["params"]["update"].to_string())
            .filter(|update| is_background || update.contains(id))
            .collect::<String>();
        assert!(text.contains("was stopped, because"), "{tool}: {text}");
        assert_eq!(std::fs::read(&ticks).unwrap(), after, "nothing is written after the answer");
        h.end().await;
    }
}

/// A slash command for a mode that is not possible is refused, and what stands behind it does not go to the agent.
#[tokio::test]
async fn a_slash_command_for_an_impossible_mode_is_refused() {
    let mut guest = Guest::of("code", agents("unheld", "")).await.unwrap();
    for command in ["/plan call", "/architect call", "/mode plan", "/plan"] {
        let messages = guest.prompt(command, None).await;
        assert!(
            said(&messages).contains("plan mode is not possible for this agent"),
            "{command}: {messages:?}"
        );
        assert!(!said(&messages).contains("done"), "{command}");
    }
    let messages = guest.prompt("/ask call", None).await;
    assert!(said(&messages).contains("done"), "the control: {messages:?}");
    guest.end().await;
}

/// Whether it may be started anew is asked of the mode that is on: the question is void with it, and so is a no.
#[tokio::test]
async fn the_question_whether_to_start_anew_goes_with_its_mode() {
    let mut guest = Guest::new("plan", "plain").await;
    assert!(guest.write("a").await.contains("Permission denied"), "the control");
    guest.mode("code").await;
    let path = guest.path("b").display().to_string();
    let running = guest.h.prompt(&guest.session.clone(), &format!("write {path}")).await;
    while guest.h.next().await["method"] != "session/request_permission" {}
    let set = json!({ "sessionId": guest.session, "modeId": "plan" });
    let set = guest.h.request("session/set_mode", set).await;
    let mut messages = guest.until(set, None).await;
    if messages.iter().all(|message| message["id"] != running) {
        messages.extend(guest.until(running, None).await);
    }
    assert!(said(&messages).contains("Permission denied"), "{messages:?}");
    for _ in 0..2 {
        guest.mode("code").await;
        let messages = guest.prompt(&format!("write {path}"), Some("stay")).await;
        assert!(
            messages.iter().any(|message| message["method"] == "session/request_permission"),
            "{messages:?}"
        );
        guest.mode("plan").await;
    }
    assert!(!guest.path("b").exists());
    guest.end().await;
}

/// A request for permission that is open when a mode is set that refuses it is taken back, also of one that goes on; a late yes
/// is none.
#[tokio::test]
async fn an_open_request_for_permission_is_taken_back() {
    let mut guest = Guest::new("plan", "plain").await;
    guest.prompt("say 1", None).await;
    guest.mode("ask").await;
    // The user has it go on held.
    guest.prompt("say 1", Some("stay")).await;
    let running = guest.h.prompt(&guest.session.clone(), "permission").await;
    let request = loop {
        let message = guest.h.next().await;
        if message["method"] == "session/request_permission" {
            break message;
        }
    };
    let set = json!({ "sessionId": guest.session, "modeId": "plan" });
    let set = guest.h.request("session/set_mode", set).await;
    let mut messages = guest.until(set, None).await;
    let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
    assert_eq!((&effect["ended"], &effect["closedRequests"]), (&json!([]), &json!(["c1"])), "held already");
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "yes" } });
    let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": outcome });
    guest.h.send_line(&answer.to_string()).await;
    if messages.iter().all(|message| message["id"] != running) {
        messages.extend(guest.until(running, None).await);
    }
    assert!(messages.iter().any(|message| message["method"] == "$/cancel_request"), "{messages:?}");
    assert!(!said(&messages).contains("yes"), "{messages:?}");
    // The control: one that was answered is no open request any more.
    guest.mode("ask").await;
    let messages = guest.prompt("permission", Some("yes")).await;
    assert!(said(&messages).contains("yes"), "{messages:?}");
    let answer = guest.mode("plan").await;
    assert_eq!(answer["result"]["_meta"]["modegate/effect"]["closedRequests"], json!([]), "{answer}");
    guest.end().await;
}

/// A write that the client has and has not answered is named when a mode denies it.
#[tokio::test]
async fn a_write_that_the_client_has_is_named() {
    for (is_answered, expected) in [(false, json!(["agent_write_1_0"])), (true, json!([]))] {
        let home = home();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let agents = agents("plain", HELD);
        let mut h = Harness::with(Setup { mode: "code", agents, tools, live: true, ..Setup::default() });
        let can = json!({ "fs": { "writeTextFile": true, "readTextFile": true } });
        h.call("initialize", json!({ "protocolVersion": 1, "clientCapabilities": can })).await;
        let new = json!({ "cwd": h.cwd(), "mcpServers": [], "_meta": { "modegate/agent": "peer" } });
        let session = h.call("session/new", new).await["result"]["sessionId"].as_str().unwrap().to_owned();
        let mut guest = Guest { h, home, session };
        let path = guest.path("b").display().to_string();
        let running = guest.h.prompt(&guest.session.clone(), &format!("fs-write {path}")).await;
        let request = loop {
            let message = guest.h.next().await;
            if message["method"] == "fs/write_text_file" {
                break message;
            }
        };
        let mut messages = Vec::new();
        if is_answered {
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": {} });
            guest.h.send_line(&answer.to_string()).await;
            messages.extend(guest.until(running, None).await);
        }
        let set = json!({ "sessionId": guest.session, "modeId": "plan" });
        let set = guest.h.request("session/set_mode", set).await;
        messages.extend(guest.until(set, None).await);
        let effect = &messages.last().unwrap()["result"]["_meta"]["modegate/effect"];
        assert_eq!(effect["unconfirmed"], expected, "{effect}");
        if messages.iter().all(|message| message["id"] != running) {
            guest.until(running, None).await;
        }
        // The next is refused, and the client is not asked but told.
        let messages = guest.prompt(&format!("fs-write {path}"), None).await;
        assert!(messages.iter().all(|message| message["method"] != "fs/write_text_file"), "{messages:?}");
        assert!(said(&messages).contains("Refused by Modegate: plan mode changes nothing (write "));
        // So it is where the user has it go on held.
        guest.mode("code").await;
        let messages = guest.prompt(&format!("fs-write {path}"), Some("stay")).await;
        assert!(
            said(&messages).contains("Refused by Modegate: the agent is held and changes nothing (write ")
        );
        guest.end().await;
    }
}

/// A session whose mode the agent can no longer be sandboxed to is not forked into a looser mode, and no copy is stored.
#[tokio::test]
async fn a_fork_is_refused_when_its_mode_has_become_unsupported() {
    let home = home();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let files = Arc::new(Mutex::new(Layers::default()));
    let setup = Setup { mode: "plan", agents: agents("plain", HELD), tools, live: true, ..Setup::default() };
    let mut h = Harness::with(Setup { files: Some(Arc::clone(&files)), ..setup });
    h.call("initialize", json!({ "protocolVersion": 1 })).await;
    let new = json!({ "cwd": h.cwd(), "mcpServers": [], "_meta": { "modegate/agent": "peer" } });
    let session = h.call("session/new", new).await["result"]["sessionId"].as_str().unwrap().to_owned();
    let mut guest = Guest { h, home, session };
    assert!(guest.write("a").await.contains("Permission denied"));
    for mode in files.lock().unwrap().modes.iter_mut().filter(|mode| mode.id == "plan") {
        mode.network = modegate::mode::Network::Deny;
    }
    let again = json!({ "sessionId": guest.session, "cwd": guest.h.cwd(), "mcpServers": [] });
    let answer = guest.h.call("session/fork", again.clone()).await;
    assert_eq!(answer["error"]["data"]["code"], "unsupported_mode", "{answer}");
    let count = async |guest: &mut Guest| {
        let list = guest.h.request("session/list", json!({})).await;
        let answer = guest.until(list, None).await.pop().unwrap();
        answer["result"]["sessions"].as_array().unwrap().len()
    };
    assert_eq!(count(&mut guest).await, 1);
    for mode in files.lock().unwrap().modes.iter_mut().filter(|mode| mode.id == "plan") {
        mode.network = modegate::mode::Network::Allow;
    }
    let id = guest.h.request("session/fork", again).await;
    let answer = guest.until(id, None).await.pop().unwrap();
    assert!(answer["result"]["sessionId"].is_string(), "the control: {answer}");
    assert_eq!(count(&mut guest).await, 2);
    guest.write("b").await;
    assert!(!guest.path("b").exists());
    guest.end().await;
}

/// A first mode that there is not any more leaves the built-in plan: an agent that cannot be held to it is refused at once.
#[tokio::test]
async fn a_first_mode_that_is_gone_is_the_tightest_or_is_refused() {
    for (more, is_begun) in [(HELD, true), ("", false)] {
        let begun = Guest::of("gone", agents("first", more)).await;
        assert_eq!(begun.is_ok(), is_begun);
        match begun {
            Ok(mut guest) => {
                assert!(guest.write("a").await.contains("Permission denied"));
                guest.end().await;
            }
            Err(answer) => assert_eq!(answer["error"]["data"]["code"], "unsupported_mode", "{answer}"),
        }
        assert_eq!(processes_of("first"), 0);
    }
}

/// What an agent is told where it is held it is told there alone.
#[tokio::test]
async fn what_a_held_one_is_told_besides_it_is_told_only_then() {
    let of = agents("loads", ", sandbox: {state_dirs: ['~/.peer'], args: [--held, now]}");
    let mut guest = Guest::of("plan", of).await.unwrap();
    for (mode, told) in [("plan", "told: --held now"), ("code", "told: "), ("plan", "told: --held now")] {
        let set = json!({ "sessionId": guest.session, "modeId": mode });
        let id = guest.h.request("session/set_mode", set).await;
        guest.until(id, None).await;
        let text = said(&guest.prompt("told", None).await);
        assert!(text.ends_with(told), "{mode}: {text}");
    }
    guest.end().await;
}
