//! ACP client for external agents, over the pipes of a supervised process. Messages of an agent go to a
//! [`Client`] in the order of arrival. Makes no permission decisions. Dropping the last [`ExternalAgent`]
//! shuts the agent down.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::acp::{
    ContentBlock, McpServer, PromptCapabilities, PromptRequest, PromptResponse, SessionConfigId,
    SessionConfigOption, SessionConfigOptionValue, SessionId, SessionModeId, SessionModeState,
    SetSessionConfigOptionRequest, SetSessionConfigOptionResponse, SetSessionModeRequest, StopReason,
};
use crate::client::{Client, ClientCapabilities};
use crate::external_agent::definition::{ExternalAgentDefinition, offered_mode};
use crate::process::program::Program;
use crate::process::secrets::Secrets;
use crate::process::shell::Shell;
use crate::process::{BrokerPolicy, HostPattern};
use command::{CallReply, ConnectionCommand, OnSuccess};
pub use error::{ExternalAgentError, StartError};
pub use login::{LOGIN_ARGUMENT, WrappedAgent};
pub use start::StartingAgent;
use state::AgentState;
pub use terminal_program::{EXIT_META, JOB_META, PROGRAM_CALL, REFUSED_META};

mod command;
mod connection;
mod content;
mod error;
mod login;
mod messages;
mod requests;
mod start;
mod state;
mod terminal_program;

const TIMEOUT: Duration = Duration::from_secs(10);

const GRACE: Duration = Duration::from_secs(2);

const EXIT_GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub struct StartRequest {
    pub name: String,
    pub definition: ExternalAgentDefinition,
    /// True if the process can write only to its state folders at first.
    pub sandboxed: bool,
    /// Files that a brokered process may change at first.
    pub policy: BrokerPolicy,
    pub cwd: PathBuf,
    pub directories: Vec<PathBuf>,
    pub servers: Vec<McpServer>,
    /// Announced to the agent; requests beyond them are refused.
    pub capabilities: ClientCapabilities,
    pub load: Option<String>,
    /// Folder for the record of a brokered agent's changes.
    pub record: Option<PathBuf>,
}

impl StartRequest {
    /// The session's folders.
    pub fn roots(&self) -> Vec<PathBuf> {
        std::iter::once(&self.cwd).chain(&self.directories).cloned().collect()
    }
}

#[derive(Debug, Clone)]
pub struct ExternalAgent(Arc<AgentShared>);

#[derive(Debug)]
struct AgentShared {
    peer: Peer,
    session_id: SessionId,
    /// Name and version in the agent's words.
    about: Option<String>,
    copied: Vec<PathBuf>,
    can_load: bool,
    prompt_capabilities: PromptCapabilities,
}

#[derive(Debug, Clone)]
struct Peer {
    commands: mpsc::UnboundedSender<ConnectionCommand>,
    state: watch::Receiver<AgentState>,
    program: Program,
    secrets: Secrets,
}

impl ExternalAgent {
    /// Creates or loads a session. All messages go to `client` under the id `session`; replayed history is
    /// dropped until the first prompt. The agent is ended as soon as `unwanted` completes, or after 30 s
    /// without a session.
    pub async fn start(
        order: StartRequest,
        shell: &Shell,
        session: SessionId,
        client: Client,
        unwanted: impl Future<Output = ()>,
    ) -> Result<Self, StartError> {
        StartingAgent::spawn(order, shell, session, client).await?.begin(unwanted).await
    }

    pub fn about(&self) -> Option<&str> {
        self.0.about.as_deref()
    }

    pub fn can_load(&self) -> bool {
        self.0.can_load
    }

    pub fn session_id(&self) -> &str {
        &self.0.session_id.0
    }

    pub fn modes(&self) -> Option<SessionModeState> {
        self.0.peer.state.borrow().all_modes()
    }

    pub fn options(&self) -> Vec<SessionConfigOption> {
        self.0.peer.state.borrow().options.clone()
    }

    pub fn missing_mode(&self, id: &str) -> Option<String> {
        let modes = self.modes();
        let is_missing = modes.as_ref().and_then(|modes| offered_mode(modes, id)).is_none();
        let modes = modes.map(|modes| modes.available_modes).unwrap_or_default();
        let ids: Vec<&str> = modes.iter().map(|mode| &*mode.id.0).collect();
        let valid = if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
        is_missing.then(|| format!("mode {id:?} of its own: its modes are {valid}"))
    }

    /// Changes the mode, by config option if necessary, within 10 s.
    pub async fn set_mode(&self, id: &str) -> Result<(), ExternalAgentError> {
        if let Some(missing) = self.missing_mode(id) {
            return Err(ExternalAgentError::Unknown(missing));
        }
        let option = self.0.peer.state.borrow().option_of_mode();
        if let Some(option) = option {
            let value = SessionConfigOptionValue::value_id(id.to_owned());
            return self.set_option(&option, value).await.map(drop);
        }
        let mode = SessionModeId::new(id.to_owned());
        let request = SetSessionModeRequest::new(self.0.session_id.clone(), mode.clone());
        // Some agents answer with null.
        let _: Option<serde::de::IgnoredAny> =
            self.0.peer.call_with_timeout("session/set_mode", &request, OnSuccess::ModeSet(mode)).await?;
        Ok(())
    }

    pub async fn set_option(
        &self,
        id: &SessionConfigId,
        value: SessionConfigOptionValue,
    ) -> Result<Vec<SessionConfigOption>, ExternalAgentError> {
        let request = SetSessionConfigOptionRequest::new(self.0.session_id.clone(), id.clone(), value);
        let answer: SetSessionConfigOptionResponse = self
            .0
            .peer
            .call_with_timeout("session/set_config_option", &request, OnSuccess::OptionsSet)
            .await?;
        Ok(answer.config_options)
    }

    /// Returns after all updates of the turn have gone to the client. A cancelled turn returns within 2 s: if
    /// the agent has not answered by then, its process is ended.
    pub async fn prompt(
        &self,
        content: Vec<ContentBlock>,
        cancel: CancellationToken,
    ) -> Result<StopReason, ExternalAgentError> {
        if cancel.is_cancelled() {
            return Ok(StopReason::Cancelled);
        }
        let content = content::supported_content(content, &self.0.prompt_capabilities)?;
        let request = PromptRequest::new(self.0.session_id.clone(), content);
        let answer = self.0.peer.call::<PromptResponse>("session/prompt", &request, OnSuccess::TurnEnded);
        let mut answer = std::pin::pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => return answer.map(|answer| answer.stop_reason),
            () = cancel.cancelled() => {}
        }
        self.0.peer.send(ConnectionCommand::Cancel);
        // Some agents answer a cancelled turn with an error.
        if tokio::time::timeout(GRACE, answer).await.is_err() {
            self.end().await;
        }
        Ok(StopReason::Cancelled)
    }

    /// Lets a brokered process connect to a further host.
    pub async fn allow_host(&self, host: HostPattern) {
        self.0.peer.program.allow_host(host).await;
    }

    /// Kills all processes. Returns true if all are confirmed gone.
    pub async fn end(&self) -> bool {
        self.0.peer.program.end().await
    }

    /// Shuts down gracefully. Returns true if all processes are confirmed gone.
    pub async fn shut_down(&self) -> bool {
        self.0.peer.send(ConnectionCommand::CloseInput);
        self.0.peer.program.shut_down().await.confirmed
    }

    /// Files in the state folders that had names elsewhere, and were replaced by copies before the start.
    pub fn copied(&self) -> &[PathBuf] {
        &self.0.copied
    }

    pub fn program(&self) -> &Program {
        &self.0.peer.program
    }

    pub fn is_over(&self) -> bool {
        self.0.peer.program.status().over.is_some()
    }

    pub async fn over(&self) -> String {
        self.0.peer.program.over().await;
        self.0.peer.end_reason()
    }
}

impl Peer {
    fn send(&self, command: ConnectionCommand) {
        let _ = self.commands.send(command);
    }

    async fn call<A: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &impl Serialize,
        on_success: OnSuccess,
    ) -> Result<A, ExternalAgentError> {
        let (to, answer) = oneshot::channel();
        let reply = CallReply { to, on_success };
        let params: Box<RawValue> =
            to_raw_value(params).map_err(|error| ExternalAgentError::Malformed(error.to_string()))?;
        self.send(ConnectionCommand::Call { method, params, reply });
        match answer.await {
            Ok(Ok(result)) => serde_json::from_str(result.get()).map_err(|error| {
                // The error may quote the answer, so secrets are removed.
                ExternalAgentError::Malformed(
                    self.secrets.redact(&format!("the answer to {method}: {error}")),
                )
            }),
            Ok(Err(error)) => Err(ExternalAgentError::from_error_object(&error, &self.secrets)),
            Err(_) => Err(self.disconnect_error().await),
        }
    }

    async fn call_with_timeout<A: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &impl Serialize,
        on_success: OnSuccess,
    ) -> Result<A, ExternalAgentError> {
        let answer = tokio::time::timeout(TIMEOUT, self.call(method, params, on_success)).await;
        answer.unwrap_or(Err(ExternalAgentError::TimedOut(method, TIMEOUT)))
    }

    async fn disconnect_error(&self) -> ExternalAgentError {
        let _ = tokio::time::timeout(EXIT_GRACE, self.program.over()).await;
        ExternalAgentError::Ended(self.end_reason())
    }

    fn end_reason(&self) -> String {
        let fault = self.state.borrow().fault;
        let over = self.program.status().over.map(|over| over.how);
        // Every exit closes the output, so the exit status says more.
        let why = match (fault.filter(|fault| *fault != connection::CLOSED), over) {
            (Some(fault), _) => format!("{fault}, and was stopped"),
            (None, Some(over)) => over,
            (None, None) => connection::CLOSED.to_owned(),
        };
        self.program.with_last_error(&why)
    }
}
