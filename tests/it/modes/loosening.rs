//! A reply that started in a tighter mode gains nothing when the mode is loosened. This includes its own
//! calls and the work that they start (D14, D40-D45).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use modegate::model::ModelEvent;
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::agents::delegation::{call, write};
use crate::agents::external::sessions::{ExternalAgentClient, SANDBOXED, agent_text, agents, home};
use crate::support::{Setup, TestClient, shell};

/// The moment of loosening, relative to the call that starts the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoosenedAt {
    /// The control: the reply begins in the looser mode.
    Never,
    /// The reply has begun, and the call is not announced yet.
    Before,
    /// The started work runs.
    While,
    /// The call is over, and the started work runs.
    After,
}

const BACKGROUND: &str = "delegate in the background";

const DELEGATIONS: [&str; 4] = ["delegate", BACKGROUND, "run_skill", "delegate to the external agent"];

fn shell_write(path: &str) -> ModelEvent {
    call("shell", json!({ "command": format!("echo x > {path}") }))
}

/// Sets a mode, and allows every permission request.
async fn set(client: &mut TestClient, session: &str, mode: &str) -> Vec<Value> {
    let id = client.request("session/set_mode", json!({ "sessionId": session, "modeId": mode })).await;
    until(client, |message| message["id"] == id && message.get("method").is_none()).await
}

/// Reads until a message matches, and allows every permission request.
async fn until(client: &mut TestClient, predicate: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut messages = Vec::new();
    loop {
        let message = client.next().await;
        if message["method"] == "session/request_permission" {
            let option = message["params"]["options"][0]["optionId"].clone();
            let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome });
            client.send_line(&answer.to_string()).await;
        }
        messages.push(message);
        if predicate(messages.last().unwrap()) {
            return messages;
        }
    }
}

fn is_over(message: &Value, call: &str) -> bool {
    let update = &message["params"]["update"];
    update["toolCallId"] == call
        && ["completed", "failed"].contains(&update["status"].as_str().unwrap_or("-"))
}

/// Covers every delegation tool, every moment, work at every depth, and every tool that writes.
#[tokio::test]
async fn loosening_does_not_widen_work_started_by_a_reply() {
    for delegation_kind in DELEGATIONS {
        for when in [LoosenedAt::Never, LoosenedAt::Before, LoosenedAt::While, LoosenedAt::After] {
            for mode in ["ask", "code"] {
                // A blocking call leaves no work behind.
                if when == LoosenedAt::After && delegation_kind != BACKGROUND {
                    continue;
                }
                check(delegation_kind, when, mode).await;
            }
        }
    }
}

async fn check(delegation_kind: &str, when: LoosenedAt, mode: &'static str) {
    let case = format!("{delegation_kind}, {when:?}, {mode}");
    let is_written = when == LoosenedAt::Never;
    let (home, folder) = (home(), tempfile::tempdir().unwrap());
    let skills = crate::tools::skills::some(folder.path(), &[("one", "One.", "Do it.")]);
    let setup = Setup {
        mode: if is_written { mode } else { "plan" },
        agents: agents("plain", SANDBOXED),
        tools: Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace)),
        skills: Arc::new(Mutex::new(skills)),
        live: true,
        ..Setup::default()
    };
    let mut client = TestClient::with(setup);
    let root = client.session().await;
    let prompt = client.prompt(&root, "go").await;
    client.model.next_request(&root).await;
    let mut messages = Vec::new();
    if when == LoosenedAt::Before {
        messages.extend(set(&mut client, &root, mode).await);
    }
    let go = client.cwd().join("go");
    let is_external = delegation_kind.ends_with("external agent");
    let (tool, arguments) = match delegation_kind {
        "run_skill" => ("run_skill", json!({ "task": "one", "skill": "one" })),
        _ if is_external => {
            ("delegate", json!({ "task": format!("asks-when {}", go.display()), "agent": "peer" }))
        }
        _ => ("delegate", json!({ "task": "one", "background": delegation_kind == BACKGROUND })),
    };
    client.calls(&root, vec![call(tool, arguments), write("own"), shell_write("own_shell")]);
    if is_external {
        messages.extend(
            until(&mut client, |message| message["params"]["update"]["toolCallId"] == "call_1_1/c9").await,
        );
    } else {
        client.model.next_request("sess_2").await;
    }
    match when {
        LoosenedAt::While => messages.extend(set(&mut client, &root, mode).await),
        LoosenedAt::After => {
            messages.extend(until(&mut client, |message| is_over(message, "call_1_3")).await);
            client.model.next_request(&root).await;
            messages.extend(set(&mut client, &root, mode).await);
        }
        LoosenedAt::Never | LoosenedAt::Before => {}
    }
    let mut paths = vec!["own", "own_shell"];
    std::fs::write(&go, "").unwrap();
    if is_external {
        paths.push("go.txt");
    } else {
        let two = call("delegate", json!({ "task": "two" }));
        client.calls("sess_2", vec![write("below"), shell_write("below_shell"), two]);
        client.calls("sess_3", vec![write("deep"), shell_write("deep_shell")]);
        client.answers("sess_3", "three");
        // The sub-agent's next reply has the same limits as its first.
        client.calls("sess_2", vec![write("later"), shell_write("later_shell")]);
        client.answers("sess_2", "two");
        paths.extend(["below", "below_shell", "deep", "deep_shell", "later", "later_shell"]);
    }
    if delegation_kind == BACKGROUND {
        client.calls(&root, vec![call("view_background", json!({ "id": "agent_1", "wait": 60 }))]);
    }
    client.calls(&root, vec![write("next"), shell_write("next_shell")]);
    client.answers(&root, "one");
    messages.extend(
        until(&mut client, |message| message["id"] == prompt && message.get("method").is_none()).await,
    );
    for path in paths {
        assert_eq!(client.cwd().join(path).exists(), is_written, "{case}: {path}: {messages:?}");
    }
    for path in ["next", "next_shell"] {
        // The session's next reply has its own mode. The control of the other checks, too.
        assert!(client.cwd().join(path).exists(), "{case}: {path}: {messages:?}");
    }
    if !is_external {
        for session in ["sess_2", "sess_3"] {
            for request in client.model.requests(session) {
                let offers = |name: &str| request.tools.iter().any(|tool| tool.name == name);
                assert_eq!(offers("write_file") && offers("shell"), is_written, "{case}: {session}");
                let messages = format!("{:?}", request.messages);
                assert_eq!(
                    messages.contains("Plan mode is on"),
                    !is_written,
                    "{case}: {session}: {messages}"
                );
            }
        }
    }
    while client.next_within(Duration::from_millis(100)).await.is_some() {}
    client.end().await;
}

/// The rest of the reply is refused, also background jobs and calls after a handoff. The next reply is not.
#[tokio::test]
async fn loosening_does_not_widen_the_rest_of_a_reply() {
    for (mode, when) in
        [("code", LoosenedAt::Before), ("ask", LoosenedAt::Before), ("code", LoosenedAt::Never)]
    {
        let home = home();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let is_written = when == LoosenedAt::Never;
        let start = if is_written { mode } else { "plan" };
        let mut client = TestClient::with(Setup {
            mode: start,
            agents: crate::agents::delegation::AGENTS,
            tools,
            live: true,
            ..Setup::default()
        });
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.model.next_request(&root).await;
        let mut messages = Vec::new();
        if when == LoosenedAt::Before {
            messages.extend(set(&mut client, &root, mode).await);
        }
        let job =
            |path: &str| call("shell", json!({ "command": format!("echo x > {path}"), "background": true }));
        // A handoff does not widen the rest of the reply.
        client.calls(
            &root,
            vec![
                job("job"),
                call("handoff", json!({ "agent": "writer" })),
                write("own"),
                shell_write("own_shell"),
                job("job_2"),
            ],
        );
        client.calls(&root, vec![write("next"), shell_write("next_shell"), job("next_job")]);
        client.calls(
            &root,
            vec![call("shell", json!({ "command": "until [ -e next_job ]; do sleep 0.01; done" }))],
        );
        client.answers(&root, "done");
        messages.extend(
            until(&mut client, |message| message["id"] == prompt && message.get("method").is_none()).await,
        );
        for path in ["job", "own", "own_shell", "job_2"] {
            assert_eq!(client.cwd().join(path).exists(), is_written, "{mode} {when:?}: {path}: {messages:?}");
        }
        for path in ["next", "next_shell", "next_job"] {
            assert!(client.cwd().join(path).exists(), "{mode} {when:?}: {path}: {messages:?}");
        }
        client.end().await;
    }
}

/// A prompt that was sent to an external agent in plan stays under plan until its turn ends. The agent's
/// requests are denied, with and without a sandbox.
#[tokio::test]
async fn external_agent_keeps_the_mode_of_the_prompt() {
    for (start, mode, expected) in [
        ("plan", "code", "cancelled"),
        ("plan", "ask", "cancelled"),
        ("ask", "code", "asked"),
        ("code", "code", "given"),
    ] {
        let mut client = ExternalAgentClient::new(start, "plain").await;
        let session = client.session.clone();
        let go = client.path("go");
        let prompt = client.client.prompt(&session, &format!("asks-when {}", go.display())).await;
        let mut messages =
            until(&mut client.client, |message| agent_text(std::slice::from_ref(message)) == "begun").await;
        messages.extend(set(&mut client.client, &session, mode).await);
        std::fs::write(&go, "").unwrap();
        messages.extend(
            until(&mut client.client, |message| message["id"] == prompt && message.get("method").is_none())
                .await,
        );
        let is_asked = messages.iter().any(|message| message["method"] == "session/request_permission");
        let text = agent_text(&messages);
        assert_eq!(is_asked, expected == "asked", "{start} {mode}: {text}");
        assert_eq!(text.contains("cancelled"), expected == "cancelled", "{start} {mode}: {text}");
        assert_eq!(client.path("go.txt").exists(), expected != "cancelled", "{start} {mode}: {text}");
        if start == "plan" {
            // The control: the next prompt has the current mode.
            let text = agent_text(
                &client.prompt(&format!("write {}", client.path("b").display()), Some("restart")).await,
            );
            assert!(client.path("b").exists(), "{start} {mode}: {text}");
        }
        client.end().await;
    }
}

#[tokio::test]
async fn refusal_names_the_mode_in_which_its_reply_began() {
    let mut client = TestClient::with(Setup { mode: "plan", ..Setup::default() });
    let session = client.session().await;
    let prompt = client.prompt(&session, "go").await;
    client.model.next_request(&session).await;
    set(&mut client, &session, "code").await;
    client.calls(&session, vec![write("stale.txt")]);
    client.calls(&session, vec![write("next.txt")]);
    client.answers(&session, "done");
    let messages = client.until_answer(prompt).await;
    let refusal = "The reply with this call began in plan mode, which does not allow write_file.";
    assert!(messages.iter().any(|message| message.to_string().contains(refusal)), "{messages:?}");
    let request = format!("{:?}", client.model.requests(&session).pop().unwrap());
    let advice = "The session is in code mode now: call write_file again in the next reply.";
    assert!(request.contains(&format!("{refusal} {advice}")), "{request}");
    assert!(!client.cwd().join("stale.txt").exists());
    assert!(client.cwd().join("next.txt").exists(), "the control");
    client.end().await;
    // In plan mode the usual reason is given.
    let mut client = TestClient::with(Setup { mode: "plan", ..Setup::default() });
    let session = client.session().await;
    let prompt = client.prompt(&session, "go").await;
    client.calls(&session, vec![write("denied.txt")]);
    client.answers(&session, "done");
    let messages = client.until_answer(prompt).await;
    assert!(messages.iter().any(|message| message.to_string().contains("is not available in plan mode")));
    assert!(!messages.iter().any(|message| message.to_string().contains("The reply with this call")));
    client.end().await;
}
