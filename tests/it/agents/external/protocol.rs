//! The ACP client for external agents. The agents are `tests/servers/external_agent.py`, which carries out
//! the words of a prompt, and Modegate's own binary.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use modegate::acp::{ContentBlock, SessionId, StopReason, TextContent};
use modegate::client::{self, Client, ClientCapabilities, ClientEnd, ClientError, Outgoing};
use modegate::external_agent::{ExternalAgent, ExternalAgentError, StartRequest};
use modegate::process::sandbox_paths::User;
use modegate::process::shell::{Sandbox, Shell};
use modegate::process::{BrokerPolicy, Processes};
use modegate::sandbox::Support;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::requirements::{python, require_sandbox};
use crate::support::{TIMEOUT, shell};

const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/external_agent.py");

/// A folder with a working directory and a home.
struct AgentFolders(tempfile::TempDir);

impl AgentFolders {
    fn new() -> Self {
        let folders = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(folders.cwd()).unwrap();
        std::fs::create_dir_all(folders.home()).unwrap();
        folders
    }

    fn cwd(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap().join("work")
    }

    fn home(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap().join("home")
    }

    fn request(&self, definition: Value) -> StartRequest {
        StartRequest {
            name: "peer".into(),
            definition: serde_json::from_value(definition).unwrap(),
            policy: BrokerPolicy::Nothing,
            sandboxed: false,
            cwd: self.cwd(),
            directories: Vec::new(),
            servers: Vec::new(),
            capabilities: ClientCapabilities { answers: true, reads: true, ..ClientCapabilities::default() },
            load: None,
            record: None,
        }
    }

    fn peer(&self, how: &str) -> StartRequest {
        let env = json!({ "KEY": "hidden-value" });
        let sandbox = json!({ "state_dirs": ["~/.peer"] });
        self.request(json!({ "command": python(), "args": [PEER, how], "env": env, "sandbox": sandbox }))
    }

    async fn start(&self, request: StartRequest) -> Result<RunningAgent, ExternalAgentError> {
        let (client, end) = client::channel();
        let shell = shell(&self.home(), Sandbox::Workspace);
        let test_client = ExternalAgent::start(
            request,
            &shell,
            SessionId::new("ours"),
            client.clone(),
            std::future::pending(),
        )
        .await?;
        Ok(RunningAgent { agent: test_client, client, end, open: Vec::new() })
    }
}

/// A running external agent, and the client end of its session.
struct RunningAgent {
    agent: ExternalAgent,
    /// Keeps the channel open.
    client: Client,
    end: ClientEnd,
    open: Vec<Outgoing>,
}

impl RunningAgent {
    async fn new(how: &str) -> Self {
        let folders = AgentFolders::new();
        folders.start(folders.peer(how)).await.unwrap()
    }

    /// Handles an outgoing message and returns a summary of it. Reads are answered, and other requests stay
    /// open.
    fn handle_outgoing(&mut self, outgoing: Outgoing) -> String {
        match outgoing {
            Outgoing::Update(notification, _) | Outgoing::Replayed(notification, _) => {
                assert_eq!(&*notification.session_id.0, "ours");
                let update = serde_json::to_value(&notification.update).unwrap();
                let text = update["content"]["text"].as_str().or(update["sessionUpdate"].as_str());
                text.unwrap().to_owned()
            }
            Outgoing::Request { id, request, reply } => {
                let params = serde_json::to_value(&request).unwrap();
                assert_eq!(params["sessionId"], "ours");
                let method = request.method();
                match method {
                    "fs/read_text_file" => reply.send(Ok(json!({ "content": "text" }))).unwrap(),
                    _ => self.open.push(Outgoing::Request { id, request, reply }),
                }
                format!("asked {method}")
            }
            Outgoing::Withdraw(id) => format!("withdrawn {id}"),
            Outgoing::ElicitationCompleted(id) => format!("completed {id}"),
            Outgoing::Answer { .. } | Outgoing::Barrier(_) | Outgoing::Signal(..) => {
                panic!("nobody was asked")
            }
        }
    }

    /// Runs a prompt. Returns its end and all messages before it. `on` gets each message when it arrives.
    async fn prompt_and(
        &mut self,
        words: &str,
        mut on: impl FnMut(&mut Self, &str, &CancellationToken),
    ) -> (Result<StopReason, ExternalAgentError>, Vec<String>) {
        let cancel = CancellationToken::new();
        let client = self.agent.clone();
        let content = vec![ContentBlock::Text(TextContent::new(words))];
        let mut prompt = Box::pin(client.prompt(content, cancel.clone()));
        let mut messages = Vec::new();
        let ended = tokio::time::timeout(TIMEOUT, async {
            loop {
                tokio::select! {
                    biased;
                    ended = &mut prompt => return ended,
                    Some(outgoing) = self.end.recv() => {
                        messages.push(self.handle_outgoing(outgoing));
                        on(self, messages.last().unwrap(), &cancel);
                    }
                }
            }
        });
        let ended = ended.await.expect("the prompt did not end");
        while let Ok(outgoing) = self.end.try_recv() {
            messages.push(self.handle_outgoing(outgoing));
        }
        (ended, messages)
    }

    async fn prompt(&mut self, words: &str) -> (Result<StopReason, ExternalAgentError>, Vec<String>) {
        self.prompt_and(words, |_, _, _| ()).await
    }

    /// Runs a prompt that must end normally. Returns the messages.
    async fn prompt_to_end(&mut self, words: &str) -> Vec<String> {
        let (ended, messages) = self.prompt(words).await;
        assert_eq!(ended, Ok(StopReason::EndTurn), "{words}: {messages:?}");
        messages
    }

    /// Answers the oldest open request.
    fn answer(&mut self, answer: Result<Value, ClientError>) {
        let Outgoing::Request { reply, .. } = self.open.remove(0) else { unreachable!() };
        // The request may have been withdrawn.
        let _ = reply.send(answer);
    }
}

fn selected() -> Value {
    json!({ "outcome": { "outcome": "selected", "optionId": "yes" } })
}

#[tokio::test]
async fn updates_arrive_in_order_before_the_prompt_answer() {
    let mut running = RunningAgent::new("plain").await;
    let expected: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    assert_eq!(running.prompt_to_end("say 5000").await, expected);
    assert_eq!(running.prompt_to_end("say 1").await, ["0"]);
    assert_eq!((running.agent.session_id(), running.agent.can_load()), ("its-1", false));
    assert!(running.agent.end().await);
    assert_eq!(running.agent.over().await, "it was stopped");
    let (gone, _) = running.prompt("say 1").await;
    assert_eq!(gone, Err(ExternalAgentError::Ended("it was stopped".into())));
}

#[tokio::test]
async fn completion_of_an_address_is_passed_on_once() {
    let folders = AgentFolders::new();
    let capabilities = ClientCapabilities { answers: true, urls: true, ..ClientCapabilities::default() };
    let request = StartRequest { capabilities, ..folders.peer("plain") };
    let mut running = folders.start(request).await.unwrap();
    let (_, messages) = running
        .prompt_and("visits", |running, message, _| {
            if message.starts_with("asked") {
                running.answer(Ok(json!({ "action": "accept" })));
            }
        })
        .await;
    let expected = ["asked elicitation/create", r#"{"action": "accept"}"#, "completed e1", "done"];
    assert_eq!(messages, expected);
}

#[tokio::test]
async fn agent_requests_are_forwarded_to_the_client() {
    let mut running = RunningAgent::new("plain").await;
    let read = ["asked fs/read_text_file", r#"{"content": "text"}"#];
    assert_eq!(running.prompt_to_end("read").await, read);
    let (_, messages) = running
        .prompt_and("permission", |running, message, _| {
            if message.starts_with("asked") {
                running.answer(Ok(selected()));
            }
        })
        .await;
    assert_eq!(messages[1], r#"{"outcome": {"optionId": "yes", "outcome": "selected"}}"#);
    let (_, messages) = running
        .prompt_and("permission", |running, message, _| {
            if message.starts_with("asked") {
                running.answer(Err(ClientError::Gone));
            }
        })
        .await;
    assert_eq!(messages[1], "-32603", "nobody being there is no consent");
    assert_eq!(running.prompt_to_end("unknown").await, ["-32601"]);
    let messages = running.prompt_to_end("withdraw").await;
    assert!(messages[0].starts_with("asked") && messages[1].starts_with("withdrawn"), "{messages:?}");
    assert_eq!(messages[2], "-32800");
    running.open.clear();
    let (ended, messages) = running
        .prompt_and("twice", |running, message, _| {
            if message == "-32600" {
                running.answer(Ok(selected()));
            }
        })
        .await;
    assert_eq!((ended, messages.len()), (Ok(StopReason::EndTurn), 3), "{messages:?}");
    // An answer belongs to its own request, even if a later request has the same id.
    let mut request_count = 0;
    let (_, messages) = running
        .prompt_and("reuses", |running, message, _| {
            request_count += usize::from(message.starts_with("asked"));
            if request_count == 2 && running.open.len() == 2 {
                running.answer(Ok(selected()));
                running.answer(Err(ClientError::Gone));
            }
        })
        .await;
    assert_eq!((request_count, messages.last().unwrap().as_str()), (2, "-32603"), "{messages:?}");
    let messages = running.prompt_to_end("many").await;
    assert_eq!(messages.last().unwrap(), "refused 44", "so many are open at once");
}

#[tokio::test]
async fn unsupported_client_methods_are_not_forwarded() {
    let folders = AgentFolders::new();
    let request = StartRequest { capabilities: ClientCapabilities::default(), ..folders.peer("plain") };
    let mut running = folders.start(request).await.unwrap();
    assert_eq!(running.prompt_to_end("read").await, ["-32601"]);
}

#[tokio::test]
async fn malformed_lines_are_skipped_and_the_agent_continues() {
    let mut running = RunningAgent::new("plain").await;
    assert_eq!(running.prompt_to_end("garbage").await, ["fine"]);
    let (ended, _) = running.prompt("shape").await;
    assert!(matches!(ended, Err(ExternalAgentError::Malformed(_))), "{ended:?}");
    let (ended, _) = running.prompt("error").await;
    let error = ended.unwrap_err().to_string();
    assert_eq!(error, "it answered with an error: Internal error: no quota for ***");
    assert_eq!(running.prompt_to_end("say 1").await, ["0"], "it goes on");
}

#[tokio::test]
async fn exited_agent_is_reported_with_stderr_without_secrets() {
    let mut running = RunningAgent::new("plain").await;
    let (ended, messages) = running.prompt("die").await;
    let why = "it ended with status 3; its last error output: bad key ***";
    assert_eq!((ended, messages), (Err(ExternalAgentError::Ended(why.into())), vec!["before".to_owned()]));
    assert_eq!(running.agent.over().await, why);
}

#[tokio::test]
async fn agents_exceeding_line_or_input_limits_are_ended() {
    for (words, why) in [
        ("long", "it sent a line of more than 32 MiB, and was stopped"),
        ("asks-much", "it does not read its input, and was stopped"),
    ] {
        let mut running = RunningAgent::new("plain").await;
        let (ended, _) = running.prompt(words).await;
        assert_eq!(ended, Err(ExternalAgentError::Ended(why.into())));
        assert_eq!(running.agent.over().await, why);
    }
}

/// If the client takes no updates, a flooding agent waits once the channel is full. A cancel is still
/// handled.
#[tokio::test]
async fn flooding_agent_waits_for_the_client() {
    let mut running = RunningAgent::new("plain").await;
    let cancel = CancellationToken::new();
    let client = running.agent.clone();
    let words = vec![ContentBlock::Text(TextContent::new("flood"))];
    let prompt = tokio::spawn({
        let cancel = cancel.clone();
        async move { client.prompt(words, cancel).await }
    });
    let mut stored = Vec::new();
    while stored.len() < 256 {
        stored.push(tokio::time::timeout(TIMEOUT, running.end.recv()).await.unwrap().unwrap());
    }
    let room = running.client.send_permit();
    assert!(tokio::time::timeout(Duration::from_millis(100), room).await.is_err(), "there is no room");
    assert!(running.end.try_recv().is_err(), "and nothing more is sent");
    stored.clear();
    assert!(running.end.recv().await.is_some(), "the control: with room it goes on");
    cancel.cancel();
    assert_eq!(prompt.await.unwrap(), Ok(StopReason::Cancelled));
}

#[tokio::test]
async fn cancelled_turn_ends_gracefully_or_ends_the_process() {
    let cancel_at = |word: &'static str| {
        move |_: &mut RunningAgent, message: &str, cancel: &CancellationToken| {
            if message.starts_with(word) {
                cancel.cancel();
            }
        }
    };
    let mut running = RunningAgent::new("plain").await;
    let (ended, messages) = running.prompt_and("hang", cancel_at("begun")).await;
    assert_eq!((ended, messages), (Ok(StopReason::Cancelled), vec!["begun".to_owned(), "last".to_owned()]));
    let (ended, messages) = running.prompt_and("asks", cancel_at("asked")).await;
    assert_eq!(ended, Ok(StopReason::Cancelled), "an error after a cancel is none");
    assert!(messages[1].starts_with("withdrawn"), "{messages:?}");
    assert_eq!(messages[2], r#"{"outcome": {"outcome": "cancelled"}}"#);
    assert_eq!(running.prompt_to_end("say 1").await, ["0"], "it goes on");
    let started = Instant::now();
    let (ended, _) = running.prompt_and("deaf", cancel_at("begun")).await;
    assert_eq!(ended, Ok(StopReason::Cancelled));
    assert!(started.elapsed() >= Duration::from_secs(2), "it is given a moment");
    assert_eq!(running.agent.over().await, "it was stopped");
}

#[tokio::test]
async fn modes_and_options_follow_the_latest_update() {
    for how in ["plain", "options"] {
        let running = RunningAgent::new(how).await;
        let current = |running: &RunningAgent| running.agent.modes().unwrap().current_mode_id.0.to_string();
        assert_eq!(current(&running), "auto", "{how}");
        assert_eq!(running.agent.set_mode("plan").await, Ok(()));
        assert_eq!(current(&running), "plan", "{how}");
        let unknown = running.agent.set_mode("other").await;
        let text = "mode \"other\" of its own: its modes are auto, plan";
        assert_eq!(unknown, Err(ExternalAgentError::Unknown(text.into())));
        if how == "plain" {
            let refused = running.agent.set_mode("auto").await.unwrap_err();
            assert_eq!(refused.to_string(), "it answered with an error: not now");
            assert_eq!(current(&running), "plan");
        } else {
            assert_eq!(running.agent.options().len(), 1);
        }
        running.agent.shut_down().await;
    }
    let mut running = RunningAgent::new("plain").await;
    assert_eq!(running.prompt_to_end("moves").await, ["current_mode_update"]);
    assert_eq!(&*running.agent.modes().unwrap().current_mode_id.0, "plan");
}

#[tokio::test]
async fn session_start_and_load_succeed_or_return_errors() {
    let folders = AgentFolders::new();
    let mut running = folders.start(folders.peer("early")).await.unwrap();
    assert_eq!(running.prompt_to_end("say 1").await, ["early", "late", "0"]);
    for how in ["loads", "older"] {
        let request = StartRequest { load: Some("its-1".into()), ..folders.peer(how) };
        let mut running = folders.start(request).await.unwrap();
        assert_eq!(running.prompt_to_end("say 1").await, ["0"], "{how}: nothing of old");
        assert!(running.agent.can_load());
    }
    for (how, load, expected) in [
        ("auth", None, "it requires a login; run it in a terminal to log in (Authentication required)"),
        ("version", None, "it does not follow ACP: it does not support version 1 of the protocol"),
        ("dies", None, "it ended with status 4; its last error output: no such model"),
        ("plain", Some("its-1"), "it cannot load its sessions"),
        ("loads", Some("other"), "it answered with an error: no such session"),
    ] {
        let request = StartRequest { load: load.map(str::to_owned), ..folders.peer(how) };
        let error = folders.start(request).await.err().unwrap();
        assert_eq!(error.to_string(), expected);
    }
    for (definition, expected) in [
        (json!({ "command": "/no/such" }), "/no/such cannot be run: No such file or directory (os error 2)"),
        (json!({ "command": "" }), "it was not started: its `command` is empty"),
    ] {
        let error = folders.start(folders.request(definition)).await.err().unwrap();
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn sandboxed_agent_writes_only_the_state_directory() {
    require_sandbox();
    let folders = AgentFolders::new();
    let state = format!("write {}", folders.home().join(".peer/state").display());
    let work = format!("write {}", folders.cwd().join("new").display());
    let mut held = folders.start(StartRequest { sandboxed: true, ..folders.peer("plain") }).await.unwrap();
    assert_eq!(held.prompt_to_end(&state).await, ["written"]);
    assert_eq!(held.prompt_to_end(&work).await, ["Permission denied"]);
    assert!(!folders.cwd().join("new").exists());
    let mut free = folders.start(folders.peer("plain")).await.unwrap();
    assert_eq!(free.prompt_to_end(&work).await, ["written"], "the control");
    assert!(folders.cwd().join("new").exists());
    let mut request = StartRequest { sandboxed: true, ..folders.peer("plain") };
    request.definition.sandbox = None;
    let error = folders.start(request).await.err().unwrap().to_string();
    assert!(error.contains("its definition has no `sandbox` key"), "{error}");
    let processes = Processes::new(env!("CARGO_BIN_EXE_modegate").into(), std::env::temp_dir());
    let nothing = Support::Linux { landlock: 0, seccomp: false };
    let user = User { home: Some(folders.home()), ..User::default() };
    let shell_without_sandbox =
        Shell::new(processes, Some("/bin/sh".into()), user, Vec::new(), Sandbox::Workspace, nothing);
    let request = StartRequest { sandboxed: true, ..folders.peer("plain") };
    let started = ExternalAgent::start(
        request,
        &shell_without_sandbox,
        SessionId::new("ours"),
        client::channel().0,
        std::future::pending(),
    )
    .await;
    let error = ExternalAgentError::from(started.unwrap_err());
    assert!(error.to_string().contains("this system cannot sandbox it"), "{error}");
}

#[tokio::test]
async fn dropping_all_handles_ends_the_agent_task() {
    let running = RunningAgent::new("plain").await;
    let test_client = running.agent.clone();
    let over = tokio::spawn({
        let test_client = test_client.clone();
        async move { test_client.over().await }
    });
    assert!(test_client.shut_down().await);
    assert_eq!(over.await.unwrap(), "it ended with status 0");
    let mut running = RunningAgent::new("plain").await;
    running.prompt_to_end("say 1").await;
    let RunningAgent { agent: test_client, client, mut end, .. } = running;
    drop((test_client, client));
    // The task owns a client end, which closes with the task.
    let ended = tokio::time::timeout(TIMEOUT, end.recv()).await.expect("the task did not end");
    assert!(ended.is_none());
}

#[tokio::test]
async fn modegate_runs_as_an_external_agent() {
    let folders = AgentFolders::new();
    let script = folders.home().join("script.jsonl");
    let call = r#"{"tool_call": {"id": "c1", "name": "write_file", "arguments": {"path": "new.txt", "content": "x"}}}"#;
    let end = r#"{"stop": "done"}"#;
    std::fs::write(
        &script,
        format!(
            "{{\"text\": \"I write\"}}\n{call}\n{end}\n{{\"text\": \"bye\"}}\n{end}\n{{\"loop\": true}}\n"
        ),
    )
    .unwrap();
    let model = format!("scripted:{}", script.display());
    let data = json!(["~/.local/share/modegate", "~/.config/modegate"]);
    let definition = json!({ "command": env!("CARGO_BIN_EXE_modegate"), "args": ["--model", model], "sandbox": { "state_dirs": data } });
    for (sandboxed, mode, expected) in [(true, "code", false), (false, "plan", false), (false, "code", true)]
    {
        let request = StartRequest {
            sandboxed,
            capabilities: ClientCapabilities::default(),
            ..folders.request(definition.clone())
        };
        let mut running = folders.start(request).await.unwrap();
        running.agent.set_mode(mode).await.unwrap();
        let messages = running.prompt_to_end("go").await;
        let is_whole =
            ["I write", "\n\nbye"].iter().all(|text| messages.iter().any(|message| message == text));
        assert!(is_whole, "{messages:?}");
        assert_eq!(folders.cwd().join("new.txt").exists(), expected, "{sandboxed} {mode}: {messages:?}");
        let agent_session = running.agent.session_id().to_owned();
        assert!(running.agent.shut_down().await);
        let request =
            StartRequest { sandboxed, load: Some(agent_session), ..folders.request(definition.clone()) };
        let running = folders.start(request).await.unwrap();
        assert_eq!(&*running.agent.modes().unwrap().current_mode_id.0, mode, "its mode is kept");
    }
}
