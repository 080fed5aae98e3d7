//! A session's handle and the commands that its actor takes.
//!
//! A [`SessionHandle`] posts to the actor's mailbox without waiting, so commands arrive in the order in which they were
//! given; only the answers are awaited.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::options::{self, ModelSelection};
use super::{ModeEffect, Origin, Session, SessionContext, SessionInit, actor};
use crate::acp::{
    ContentBlock, SessionConfigId, SessionConfigOption, SessionConfigOptionValue, SessionModeId,
    SessionModeState, SetSessionConfigOptionResponse, SetSessionModeResponse, StopReason, ToolCallId,
};
use crate::chain::Head;
use crate::client::Client;
use crate::error::AgentError;
use crate::gate::{Ended, Gate};
use crate::model::{Effort, ModelId};
use crate::store::ModeSource;
use crate::tool::mcp::ServerEvent;
use crate::workspace::Workspace;

/// Requests that wait for an actor. Only a client that floods one session fills it; it is told so.
const MAILBOX: usize = 1024;

/// A command and its slot in the mailbox. Cancels have none: nothing may crowd them out.
pub(super) type Mail = (SessionCommand, Option<OwnedSemaphorePermit>);

/// What an actor can be told to do.
pub(super) enum SessionCommand {
    Prompt(Prompt),
    /// Prompts whose token is cancelled are to be answered.
    TakeBack,
    Cancel,
    /// Tell the client of the slash commands, once it knows the session.
    AnnounceCommands(BoxFuture<'static, ()>),
    SetMode {
        mode: SessionModeId,
        source: ModeSource,
        /// No effect: the mode was on already. With it, the config options as they are then.
        reply: oneshot::Sender<ModeOutcome>,
    },
    /// What holds above has changed: end what is denied from now on, and say which questions were closed and what has ended.
    Tighten(oneshot::Sender<(Vec<ToolCallId>, Ended)>),
    /// Set an option that is none of these: another agent goes on, or somebody else's has it.
    SetOption {
        option: SessionConfigId,
        value: SessionConfigOptionValue,
        /// The config options as they are then.
        reply: oneshot::Sender<Result<Vec<SessionConfigOption>, AgentError>>,
    },
    /// Say when what has happened so far is on the record, or cannot be.
    Recorded(oneshot::Sender<()>),
    /// Say how the session stands.
    Snapshot(oneshot::Sender<SessionSnapshot>),
    /// Show the client all that happened.
    Replay(oneshot::Sender<Result<SessionSnapshot, AgentError>>),
    /// Put back what a turn changed, for the user at the command line.
    Undo {
        turn: Option<u64>,
        reply: oneshot::Sender<Result<Undone, AgentError>>,
    },
    Close(oneshot::Sender<Closed>),
}

/// What is left of a session that was closed.
#[derive(Debug)]
pub struct Closed {
    /// Where the chain of its record has come to.
    pub head: Head,
    /// Tighter modes that could not be recorded: what they deny stays denied when it is opened again.
    pub unrecorded_modes: Vec<SessionModeId>,
    /// What could not be ended.
    pub unfinished: Gate,
}

/// What was put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// The turn that changed it.
    pub turn: u64,
    /// Files that are as they were before it.
    pub files: Vec<PathBuf>,
    /// Folders that it made and that stay, because something lies in them.
    pub remaining_folders: Vec<PathBuf>,
    /// What could not be covered, in sentences for people.
    pub uncovered: Vec<String>,
}

/// What a client is told of a session that it opens.
#[derive(Debug)]
pub struct SessionSnapshot {
    /// The modes, and which is on.
    pub modes: SessionModeState,
    /// The config options.
    pub options: Vec<SessionConfigOption>,
    /// Where the chain of its record has come to.
    pub head: Head,
    /// Tighter modes hold that could not be recorded.
    pub has_unrecorded_modes: bool,
    /// The model that answers; `None` if an external agent does.
    pub model: Option<ModelId>,
    /// The offline model answers because no other is set up, not because anybody chose it.
    pub is_fallback: bool,
    /// Nothing can be changed in the mode that is on.
    pub is_read_only: bool,
}

/// What a mode change did, the config options as they are then, and where the chain has come to, if that is news.
pub(super) type ModeOutcome =
    Result<(Option<ModeEffect>, Vec<SessionConfigOption>, Option<Head>), AgentError>;

/// What a user wants of who answers.
pub(super) enum ModelSetting {
    Model(String),
    Effort(Effort),
}

/// A prompt that is to be answered.
pub(super) struct Prompt {
    pub(super) content: Vec<ContentBlock>,
    /// Nothing is for the model but to summarise what there is.
    pub(super) compacts: bool,
    /// What the user typed, where that is more.
    pub(super) typed: Option<Vec<ContentBlock>>,
    pub(super) cancel: CancellationToken,
    pub(super) reply: oneshot::Sender<Result<PromptEnd, AgentError>>,
}

/// How a prompt's turn ended. Nothing of the next prompt happens before this is dropped: whoever answers a client keeps
/// it until the answer is on its way.
#[derive(Debug)]
pub struct PromptEnd {
    /// Why it ended.
    pub reason: StopReason,
    /// Where the chain of the session's record has come to, if that is news.
    pub head: Option<Head>,
    /// Only its end is of interest.
    pub(super) _ack: oneshot::Sender<()>,
}

/// How the rest of the process talks to a session. Cheap to clone, no logic.
#[derive(Debug, Clone)]
pub struct SessionHandle {
    commands: mpsc::UnboundedSender<Mail>,
    slots: Arc<Semaphore>,
    workspace: Workspace,
}

impl std::fmt::Debug for SessionCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Prompt(_) => "Prompt",
            Self::TakeBack => "TakeBack",
            Self::Cancel => "Cancel",
            Self::AnnounceCommands(_) => "AnnounceCommands",
            Self::SetMode { .. } => "SetMode",
            Self::Recorded(_) => "Recorded",
            Self::Snapshot(_) => "Snapshot",
            Self::Replay(_) => "Replay",
            Self::Undo { .. } => "Undo",
            Self::Close(_) => "Close",
            Self::Tighten(_) => "Tighten",
            Self::SetOption { .. } => "SetOption",
        })
    }
}

impl SessionHandle {
    /// Starts a session's actor.
    /// `servers` is what its servers report.
    pub fn start(
        mut init: SessionInit,
        servers: mpsc::UnboundedReceiver<ServerEvent>,
        context: SessionContext,
        client: Client,
    ) -> Self {
        // Bounded by the slots; the calls in flight bound the rest.
        let (commands, mailbox) = mpsc::unbounded_channel();
        let chosen = init.chosen.take().unwrap_or_else(|| ModelSelection::of(&context.models));
        let active = options::entering(&context.modes, &context.models, &init.mode, &init.agent, &chosen);
        context.model.prepare(&active.model);
        let folders = init.workspace.clone();
        let origin = std::mem::replace(&mut init.origin, Origin::New);
        let agent_servers = std::mem::take(&mut init.servers);
        let session = Session::new(init, active, chosen);
        tokio::spawn(actor::run(session, origin, context, client, (servers, agent_servers), mailbox));
        Self { commands, slots: Arc::new(Semaphore::new(MAILBOX)), workspace: folders }
    }

    /// Sends a prompt and waits for the end of its turn. Cancelling the token takes the prompt back.
    pub async fn prompt(
        &self,
        content: Vec<ContentBlock>,
        cancel: CancellationToken,
    ) -> Result<PromptEnd, AgentError> {
        let (reply, mut answer) = oneshot::channel();
        self.post(SessionCommand::Prompt(Prompt {
            content,
            compacts: false,
            typed: None,
            cancel: cancel.clone(),
            reply,
        }))?;
        tokio::select! {
            biased;
            answer = &mut answer => return answer.unwrap_or(Err(AgentError::SessionDied)),
            () = cancel.cancelled() => {}
        }
        // A prompt that still waits in the queue does not look at its token. A session that is gone answers by itself.
        let _ = self.post(SessionCommand::TakeBack);
        answer.await.unwrap_or(Err(AgentError::SessionDied))
    }

    /// Changes the mode (`session/set_mode`).
    pub async fn set_mode(&self, mode: SessionModeId) -> Result<SetSessionModeResponse, AgentError> {
        let (effect, _, head) = self.change_mode(mode, ModeSource::SetMode).await?;
        Ok(SetSessionModeResponse::new().meta(effect.map(|effect| effect.to_meta(head.as_ref()))))
    }

    /// Changes the mode of a session that nobody else has open, for the command line (D12). Returns where the chain of its
    /// record has come to, if it has changed.
    pub async fn set_mode_from_command_line(&self, mode: SessionModeId) -> Result<Option<Head>, AgentError> {
        Ok(self.change_mode(mode, ModeSource::CommandLine).await?.2)
    }

    /// Waits until a new session is on the record. That it cannot be is told to the user with the first turn: a client drops
    /// what it is told of a session that it does not know yet.
    pub async fn recorded(&self) {
        let (reply, recorded) = oneshot::channel();
        if self.post(SessionCommand::Recorded(reply)).is_ok() {
            // An error means that the session is gone, which whoever asks it for something learns.
            let _ = recorded.await;
        }
    }

    /// How the session stands, once it has been taken up.
    pub async fn snapshot(&self) -> Result<SessionSnapshot, AgentError> {
        let (reply, answer) = oneshot::channel();
        self.post(SessionCommand::Snapshot(reply))?;
        answer.await.map_err(|_| AgentError::SessionDied)
    }

    /// Shows the client all that happened in the session, and says how it stands.
    pub async fn replay(&self) -> Result<SessionSnapshot, AgentError> {
        let (reply, answer) = oneshot::channel();
        self.post(SessionCommand::Replay(reply))?;
        answer.await.unwrap_or(Err(AgentError::SessionDied))
    }

    /// Puts back what a turn changed, or the last one that changed something: for the user at the command line.
    ///
    /// # Errors
    /// There is nothing to undo, or something was changed since: nothing was put back, unless the text says so.
    pub async fn undo(&self, turn: Option<u64>) -> Result<Undone, AgentError> {
        let (reply, answer) = oneshot::channel();
        self.post(SessionCommand::Undo { turn, reply })?;
        answer.await.unwrap_or(Err(AgentError::SessionDied))
    }

    /// The session's folders.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    /// Sets a config option (`session/set_config_option`); the answer has all of them.
    pub async fn set_config_option(
        &self,
        option: SessionConfigId,
        value: SessionConfigOptionValue,
    ) -> Result<SetSessionConfigOptionResponse, AgentError> {
        let text = value.as_value_id().map(|value| Arc::clone(&value.0));
        let (effect, options, head) = match (&*option.0, text) {
            (options::MODE_OPTION, Some(mode)) => {
                self.change_mode(SessionModeId::new(mode), ModeSource::ConfigOption).await?
            }
            (options::MODE_OPTION, None) => {
                let message = format!("the option {:?} takes the id of a value", &*option.0);
                return Err(AgentError::invalid_params(message, json!({ "expected": "a string" })));
            }
            _ => {
                let (reply, answer) = oneshot::channel();
                self.post(SessionCommand::SetOption { option, value, reply })?;
                (None, answer.await.unwrap_or(Err(AgentError::SessionDied))?, None)
            }
        };
        Ok(SetSessionConfigOptionResponse::new(options)
            .meta(effect.map(|effect| effect.to_meta(head.as_ref()))))
    }

    /// The session's working directory.
    pub fn cwd(&self) -> &Path {
        self.workspace.cwd()
    }

    /// Ends the running turn and empties the queue (`session/cancel`).
    pub fn cancel(&self) {
        if self.post(SessionCommand::Cancel).is_err() {
            tracing::debug!("a session that is gone was cancelled");
        }
    }

    /// Tells the client of the slash commands once `answered` says that it knows the session: clients drop updates
    /// for sessions that they do not know.
    pub fn announce_commands(&self, answered: BoxFuture<'static, ()>) {
        if self.post(SessionCommand::AnnounceCommands(answered)).is_err() {
            tracing::warn!("a session ended before its client knew of it");
        }
    }

    /// Ends the session: turns are cancelled and answered, what happened is recorded. Nothing comes back if it was gone already.
    pub async fn close(&self) -> Option<Closed> {
        let (reply, closed) = oneshot::channel();
        self.post(SessionCommand::Close(reply)).ok()?;
        closed.await.ok()
    }

    async fn change_mode(&self, mode: SessionModeId, source: ModeSource) -> ModeOutcome {
        let (reply, answer) = oneshot::channel();
        self.post(SessionCommand::SetMode { mode, source, reply })?;
        answer.await.unwrap_or(Err(AgentError::SessionDied))
    }

    /// Posts without waiting: the order of arrival is the order of the calls.
    pub(super) fn post(&self, command: SessionCommand) -> Result<(), AgentError> {
        let slot = match command {
            SessionCommand::Cancel
            | SessionCommand::TakeBack
            | SessionCommand::Tighten(_)
            | SessionCommand::Close(_) => None,
            SessionCommand::Prompt(_)
            | SessionCommand::AnnounceCommands(_)
            | SessionCommand::SetMode { .. }
            | SessionCommand::Recorded(_)
            | SessionCommand::Snapshot(_)
            | SessionCommand::Replay(_)
            | SessionCommand::Undo { .. }
            | SessionCommand::SetOption { .. } => {
                Some(Arc::clone(&self.slots).try_acquire_owned().map_err(|_| {
                    let text = "too many requests wait for this session: wait for some answers first";
                    AgentError::InvalidRequest(text.into())
                })?)
            }
        };
        self.commands.send((command, slot)).map_err(|_| AgentError::SessionDied)
    }
}
