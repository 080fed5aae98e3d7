//! A conversation in version 2 of the protocol with the Rust SDK's client. Prints the checks that passed.
//!
//!     cargo run -- SCRIPT BINARY

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v2::{ConnectionTo, Responder, schema};
use agent_client_protocol::{AcpAgent, AcpAgentConfig, Agent, Client, Error};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

type Connection = ConnectionTo<Agent>;

/// The user's answer to the next questions.
#[derive(Clone)]
enum Answer {
    Select(&'static str),
    /// Selects the option after a second, as a person who reads the plan.
    Read(&'static str),
    /// Switches the mode, and then allows the call, which is too late.
    Tighten,
    Cancel,
}

fn check(holds: bool, what: &str) {
    println!("{} {what}", if holds { "ok" } else { "FAILED" });
    if !holds {
        std::process::exit(1);
    }
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("version-2-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path.canonicalize().unwrap()
}

/// The kind of an update, or the state of a session.
fn kind(update: &schema::SessionUpdate) -> String {
    let json = serde_json::to_value(update).unwrap();
    let kind = json.get("state").or(json.get("sessionUpdate"));
    kind.and_then(|kind| kind.as_str()).unwrap_or_default().to_owned()
}

struct Conversation {
    connection: Connection,
    updates: UnboundedReceiver<schema::UpdateSessionNotification>,
    answer: Arc<Mutex<Answer>>,
    seen: Vec<String>,
}

impl Conversation {
    async fn open(&self, cwd: &Path) -> Result<schema::SessionId, Error> {
        let request = schema::NewSessionRequest::new(cwd.to_path_buf());
        Ok(self.connection.send_request(request).block_task().await?.session_id)
    }

    /// Returns the stop reason of the next turn that ends.
    async fn until_idle(&mut self) -> String {
        loop {
            let notification = self.updates.recv().await.expect("the agent is there");
            self.seen.push(kind(&notification.update));
            if let schema::SessionUpdate::StateUpdate(schema::StateUpdate::Idle(idle)) = notification.update
                && let Some(reason) = idle.stop_reason
            {
                return serde_json::to_value(reason).unwrap().to_string();
            }
        }
    }

    async fn prompt(&mut self, session: &schema::SessionId, answer: Answer) -> Result<String, Error> {
        *self.answer.lock().unwrap() = answer;
        let request = schema::PromptRequest::new(session.clone(), vec!["go on".into()]);
        self.connection.send_request(request).block_task().await?;
        Ok(self.until_idle().await)
    }
}

async fn set_mode(connection: &Connection, session: &schema::SessionId, mode: &str) -> Result<String, Error> {
    let value = schema::SessionConfigOptionValue::id(schema::SessionConfigValueId::new(mode));
    let request = schema::SetSessionConfigOptionRequest::new(session.clone(), "mode", value);
    let answer = connection.send_request(request).block_task().await?;
    let options = serde_json::to_value(answer.config_options).unwrap();
    Ok(options[0]["currentValue"].as_str().unwrap_or_default().to_owned())
}

async fn answered(
    answer: Answer,
    connection: &Connection,
    session: &schema::SessionId,
) -> Result<schema::RequestPermissionResponse, Error> {
    let option = match answer {
        Answer::Select(option) => option,
        Answer::Read(option) => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            option
        }
        Answer::Tighten => {
            set_mode(connection, session, "plan").await?;
            "allow_once"
        }
        Answer::Cancel => {
            connection.send_notification(schema::CancelSessionNotification::new(session.clone()))?;
            return Ok(schema::RequestPermissionResponse::new(
                schema::CancelledPermissionOutcome::new().into(),
            ));
        }
    };
    Ok(schema::RequestPermissionResponse::new(schema::RequestPermissionOutcome::Selected(
        schema::SelectedPermissionOutcome::new(option),
    )))
}

async fn converse(mut all: Conversation) -> Result<(), Error> {
    let info = schema::Implementation::new("modegate-tests", "1");
    let request = schema::InitializeRequest::new(ProtocolVersion::V2, info);
    let answer = all.connection.send_request(request).block_task().await?;
    check(answer.protocol_version == ProtocolVersion::V2, "version 2");

    let cwd = folder("first");
    let first = all.open(&cwd).await?;
    let end = all.prompt(&first, Answer::Select("allow_once")).await?;
    check(end.contains("end_turn") && cwd.join("a.txt").exists(), "prompt, tool and permission");
    check(set_mode(&all.connection, &first, "plan").await? == "plan", "idle mode change");
    all.prompt(&first, Answer::Select("allow_once")).await?;
    check(!cwd.join("b.txt").exists(), "plan mode holds");
    all.prompt(&first, Answer::Read("code")).await?;
    check(all.seen.iter().any(|kind| kind == "plan_update") && cwd.join("c.txt").exists(), "plan exit");

    let other = folder("second");
    let second = all.open(&other).await?;
    all.prompt(&second, Answer::Tighten).await?;
    check(!other.join("a.txt").exists(), "mode change in mid-turn");
    let other = folder("third");
    let third = all.open(&other).await?;
    let end = all.prompt(&third, Answer::Cancel).await?;
    check(end.contains("cancelled") && !other.join("a.txt").exists(), "cancel");

    let close = schema::CloseSessionRequest::new(first.clone());
    all.connection.send_request(close.clone()).block_task().await?;
    while all.updates.try_recv().is_ok() {}
    let resume = schema::ResumeSessionRequest::new(first.clone(), cwd)
        .replay_from(schema::ReplayFrom::Start(schema::ReplayFromStart::new()));
    all.connection.send_request(resume).block_task().await?;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut seen = Vec::new();
    while let Ok(notification) = all.updates.try_recv() {
        seen.push(kind(&notification.update));
    }
    let marks = seen.iter().filter(|kind| *kind == "replay_complete").count();
    let has_prompt = seen.iter().any(|kind| kind == "user_message_chunk");
    check(marks == 1 && has_prompt && seen.last().is_some_and(|kind| kind == "idle"), "resume with replay");
    all.connection.send_request(close).block_task().await?;
    all.connection.send_request(schema::DeleteSessionRequest::new(first.clone())).block_task().await?;
    let listed = all.connection.send_request(schema::ListSessionsRequest::new()).block_task().await?;
    check(!listed.sessions.iter().any(|session| session.session_id == first), "close and delete");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().collect();
    let home = folder("home");
    let store = home.join("store.db").display().to_string();
    let config = AcpAgentConfig::new(&arguments[2])
        .args(["--model", &format!("scripted:{}", arguments[1]), "--store", &store])
        .env("HOME", home.display().to_string());
    let (sender, updates) = unbounded_channel();
    let answer = Arc::new(Mutex::new(Answer::Select("allow_once")));
    let user = Arc::clone(&answer);
    Client
        .v2()
        .name("modegate-tests")
        .on_receive_notification(
            async move |notification: schema::UpdateSessionNotification, _: Connection| {
                sender.send(notification).map_err(Error::into_internal_error)
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: schema::RequestPermissionRequest,
                        responder: Responder<schema::RequestPermissionResponse>,
                        connection: Connection| {
                let answer = user.lock().unwrap().clone();
                // The handler must return, so that the connection can read the answer to a request of this one.
                connection.spawn({
                    let connection = connection.clone();
                    async move {
                        responder.respond(answered(answer, &connection, &request.session_id).await?)
                    }
                })
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(AcpAgent::new(config), async move |connection| {
            converse(Conversation { connection, updates, answer, seen: Vec::new() }).await
        })
        .await
}
