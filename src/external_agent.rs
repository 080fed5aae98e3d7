//! Other people's agents, spoken to as their client: ACP over the input and output of a supervised process.
//!
//! A [`ExternalAgent`] is a handle on one that runs and has one session. What it says goes to a [`Client`], in the order in which it
//! said it; it decides nothing about what it is told or asked. With the last handle it is ended in its own way.

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
use crate::agents::external::ExternalAgentDefinition;
use crate::client::{Client, ClientCapabilities};
use crate::process::program::Program;
use crate::process::secrets::Secrets;
use crate::process::shell::Shell;
use command::{Command, OnSuccess, Reply};
pub use error::{ExternalAgentError, StartError};
use state::AgentState;

mod command;
mod connection;
mod content;
mod error;
mod lines;
mod messages;
mod requests;
mod start;
mod state;

/// How long a harness may take to change a mode or an option.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take to end a turn that was cancelled.
const GRACE: Duration = Duration::from_secs(2);

/// How long the last of what a process wrote, and how it ended, may take to arrive.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// What starting one needs.
#[derive(Debug, Clone)]
pub struct StartRequest {
    /// Its name, for the log.
    pub name: String,
    /// How it is written.
    pub definition: ExternalAgentDefinition,
    /// The kernel holds it to its state folders.
    pub sandboxed: bool,
    /// Where it works.
    pub cwd: PathBuf,
    /// The other folders of its session.
    pub directories: Vec<PathBuf>,
    /// The MCP servers that it is to use.
    pub servers: Vec<McpServer>,
    /// What it is told that its client can do; nothing else is passed on.
    pub capabilities: ClientCapabilities,
    /// Its own session that it is to load; none: it begins a new one.
    pub load: Option<String>,
}

/// One that runs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ExternalAgent(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    peer: Peer,
    session_id: SessionId,
    can_load: bool,
    prompt_capabilities: PromptCapabilities,
}

/// The way to the task that speaks to it.
#[derive(Debug, Clone)]
struct Peer {
    commands: mpsc::UnboundedSender<Command>,
    state: watch::Receiver<AgentState>,
    program: Program,
    secrets: Secrets,
}

impl ExternalAgent {
    /// Starts one, and has it begin, or load, its session. Everything that it sends then goes to `client` as said of `session`;
    /// what it tells of before, while it loads and until it is prompted, is dropped. Once `unwanted` is over it is ended, however far it has come.
    ///
    /// # Errors
    /// It cannot be started or held, does not speak the protocol, refuses, takes longer than 30 s, or is not wanted any more.
    pub async fn start(
        order: StartRequest,
        shell: &Shell,
        session: SessionId,
        client: Client,
        unwanted: impl Future<Output = ()>,
    ) -> Result<Self, StartError> {
        start::start(order, shell, (session, client), unwanted).await
    }

    /// Whether it can take up its sessions of old.
    pub fn can_load(&self) -> bool {
        self.0.can_load
    }

    /// Its own id of its session.
    pub fn session_id(&self) -> &str {
        &self.0.session_id.0
    }

    /// Its modes, as it said last; those of one that has an option for its mode, too.
    pub fn modes(&self) -> Option<SessionModeState> {
        self.0.peer.state.borrow().all_modes()
    }

    /// Its options, as it said last.
    pub fn options(&self) -> Vec<SessionConfigOption> {
        self.0.peer.state.borrow().options.clone()
    }

    /// What it has not, with what it has instead, where that is a mode of this id; none: it has it.
    pub fn missing_mode(&self, id: &str) -> Option<String> {
        let modes = self.modes().map(|modes| modes.available_modes).unwrap_or_default();
        let ids: Vec<&str> = modes.iter().map(|mode| &*mode.id.0).collect();
        let valid = if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
        (!ids.contains(&id)).then(|| format!("mode {id:?} of its own: its modes are {valid}"))
    }

    /// Changes its mode, by the option for it where it has no other way.
    ///
    /// # Errors
    /// It has no such mode, refuses, is over, or takes longer than 10 s.
    pub async fn set_mode(&self, id: &str) -> Result<(), ExternalAgentError> {
        if let Some(missing) = self.missing_mode(id) {
            return Err(ExternalAgentError::Unknown(missing));
        }
        let option = self.0.peer.state.borrow().option_of_mode();
        if let Some(option) = option {
            return self
                .set_option(&option, SessionConfigOptionValue::value_id(id.to_owned()))
                .await
                .map(drop);
        }
        let mode = SessionModeId::new(id.to_owned());
        let request = SetSessionModeRequest::new(self.0.session_id.clone(), mode.clone());
        // Some answer with null.
        let _: Option<serde::de::IgnoredAny> =
            self.0.peer.call_with_timeout("session/set_mode", &request, OnSuccess::ModeSet(mode)).await?;
        Ok(())
    }

    /// Changes one of its options. Returns all of them.
    ///
    /// # Errors
    /// As for [`Self::set_mode`].
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

    /// Has it answer a prompt. Returns when it says that it is done, after all that it said before has gone to the client; once
    /// cancelled, within 2 s, after which the process is ended (see [`Self::over`]).
    ///
    /// # Errors
    /// It takes not all of the content, answers with an error, or is over.
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
        self.0.peer.send(Command::Cancel);
        // Whatever it answers now: some say that it was an error.
        if tokio::time::timeout(GRACE, answer).await.is_err() {
            self.end().await;
        }
        Ok(StopReason::Cancelled)
    }

    /// Ends it at once, with all that it has started. Whether nothing of it is left, for certain.
    pub async fn end(&self) -> bool {
        self.0.peer.program.end().await
    }

    /// Lets it end in its own way: its input ends, then it is asked, then it is ended. Whether nothing of it is left, for certain.
    pub async fn shut_down(&self) -> bool {
        self.0.peer.send(Command::CloseInput);
        self.0.peer.program.shut_down().await.confirmed
    }

    /// Whether its process is gone.
    pub fn is_over(&self) -> bool {
        self.0.peer.program.status().over.is_some()
    }

    /// Waits until its process is gone. Returns why, as a sentence without its end.
    pub async fn over(&self) -> String {
        self.0.peer.program.over().await;
        self.0.peer.end_reason()
    }
}

impl Peer {
    /// Tells the task something. Where it is over there is nothing to be told.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Asks something, and waits for the answer.
    async fn call<A: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &impl Serialize,
        on_success: OnSuccess,
    ) -> Result<A, ExternalAgentError> {
        let (to, answer) = oneshot::channel();
        let reply = Reply { to, on_success };
        let params: Box<RawValue> =
            to_raw_value(params).map_err(|error| ExternalAgentError::Malformed(error.to_string()))?;
        self.send(Command::Call { method, params, reply });
        match answer.await {
            Ok(Ok(result)) => serde_json::from_str(result.get()).map_err(|error| {
                // What it sent is not in the words of the library, but for the name of what is missing.
                ExternalAgentError::Malformed(
                    self.secrets.take_out(&format!("its answer to {method}: {error}")),
                )
            }),
            Ok(Err(error)) => Err(ExternalAgentError::from_error_object(&error, &self.secrets)),
            Err(_) => Err(self.disconnect_error().await),
        }
    }

    /// The same, within 10 s.
    async fn call_with_timeout<A: DeserializeOwned>(
        &self,
        method: &'static str,
        params: &impl Serialize,
        on_success: OnSuccess,
    ) -> Result<A, ExternalAgentError> {
        let answer = tokio::time::timeout(TIMEOUT, self.call(method, params, on_success)).await;
        answer.unwrap_or(Err(ExternalAgentError::TimedOut(method, TIMEOUT)))
    }

    /// Why there is no answer any more.
    async fn disconnect_error(&self) -> ExternalAgentError {
        // It may be about to be over.
        let _ = tokio::time::timeout(EXIT_GRACE, self.program.over()).await;
        ExternalAgentError::Ended(self.end_reason())
    }

    /// Why it is over: what it did wrong, or how it ended, with its last words.
    fn end_reason(&self) -> String {
        let fault = self.state.borrow().fault;
        let over = self.program.status().over.map(|over| over.how);
        // That it closed its output is what every end looks like.
        let why = match (fault.filter(|fault| *fault != connection::CLOSED), over) {
            (Some(fault), _) => format!("{fault}, and was ended"),
            (None, Some(over)) => over,
            (None, None) => connection::CLOSED.to_owned(),
        };
        self.program.with_last_error(&why)
    }
}
