//! The handle of a session, and the commands for its actor.
//!
//! A [`SessionHandle`] posts to the mailbox without waiting, so commands arrive in the order of the calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{LastTurn, ModeEffect, PromptEnd, options};
use crate::acp::{
    AvailableCommand, ContentBlock, MessageId, SessionConfigId, SessionConfigOption,
    SessionConfigOptionValue, SessionModeId, SetSessionConfigOptionResponse, SetSessionModeResponse,
    ToolCallId,
};
use crate::chain::Head;
use crate::conversation::system_prompt::ClientPrompt;
use crate::error::AgentError;
use crate::gate::{Ended, Gate};
use crate::model::{Effort, TraceContext};
use crate::permission::AskReason;
use crate::process::HostPattern;
use crate::session::insertion::PromptInsertion;
use crate::session::session_snapshot::{SessionOffer, SessionSnapshot};
use crate::store::ModeSource;
use crate::workspace::Workspace;

/// Maximum number of waiting requests. A client that exceeds it gets an error.
const MAILBOX: usize = 1024;

/// A command for the actor.
pub(super) struct Mail {
    /// Boxed, because a channel allocates slots for 32 messages.
    command: Box<SessionCommand>,
    /// Commands that cancel, tighten or close need none, so a flood cannot block them.
    slot: Option<OwnedSemaphorePermit>,
    /// Present if the request may be cancelled until the actor takes the command.
    cancel: Option<CancellationToken>,
}

impl Mail {
    /// Returns `None` if the request was cancelled.
    pub(super) fn take(self) -> Option<(SessionCommand, Option<OwnedSemaphorePermit>)> {
        let is_cancelled = self.cancel.is_some_and(|cancel| cancel.is_cancelled());
        (!is_cancelled).then_some((*self.command, self.slot))
    }
}

pub(super) enum SessionCommand {
    Prompt(Prompt),
    TakeBack,
    Cancel,
    /// The session may send its first updates once `answered` completes.
    Announce {
        answered: BoxFuture<'static, ()>,
        /// True if the answer has the slash commands.
        has_commands: bool,
    },
    Commands(oneshot::Sender<Vec<AvailableCommand>>),
    Offer(oneshot::Sender<SessionOffer>),
    /// Cancels one call that runs.
    CancelCall {
        call: ToolCallId,
        reply: oneshot::Sender<Result<(), AgentError>>,
    },
    /// Ends the command of a terminal that works in the background.
    CancelTerminal {
        terminal: String,
        reply: oneshot::Sender<Result<(), AgentError>>,
    },
    SetMode {
        mode: SessionModeId,
        source: ModeSource,
        reply: oneshot::Sender<ModeOutcome>,
    },
    /// Ends calls that an ancestor's new mode denies.
    Tighten(oneshot::Sender<(Vec<ToolCallId>, Ended)>),
    SetOption {
        option: SessionConfigId,
        value: SessionConfigOptionValue,
        reply: oneshot::Sender<Result<Vec<SessionConfigOption>, AgentError>>,
    },
    /// Replies once all events so far are stored, or storing them has failed.
    Recorded(oneshot::Sender<()>),
    Snapshot(oneshot::Sender<SessionSnapshot>),
    AskReason {
        call: ToolCallId,
        reply: oneshot::Sender<Option<AskReason>>,
    },
    Replay {
        cancel: CancellationToken,
        reply: oneshot::Sender<Result<SessionSnapshot, AgentError>>,
    },
    Undo {
        turn: Option<u64>,
        reply: oneshot::Sender<Result<Undone, AgentError>>,
    },
    LastTurn(oneshot::Sender<LastTurn>),
    /// Of an external agent whose turn runs.
    ChangesSoFar(oneshot::Sender<Vec<ChangeSoFar>>),
    UndoSoFar {
        /// `None` for all changes.
        path: Option<PathBuf>,
        reply: oneshot::Sender<Result<Undone, AgentError>>,
    },
    AllowHost {
        host: HostPattern,
        reply: oneshot::Sender<Result<(), AgentError>>,
    },
    Close(oneshot::Sender<Closed>),
}

#[derive(Debug)]
pub struct Closed {
    pub head: Head,
    /// Tighter modes that become ceilings again when the session is opened.
    pub unrecorded_modes: Vec<SessionModeId>,
    pub unfinished: Gate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    pub turn: u64,
    pub files: Vec<PathBuf>,
    /// Folders that are not empty, so undo leaves them.
    pub remaining_folders: Vec<PathBuf>,
    pub uncovered: Vec<String>,
    /// Files of which git's index still has the undone version.
    pub staged: Vec<PathBuf>,
}

/// A path that differs from its state before the turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeSoFar {
    pub path: PathBuf,
    pub kind: DiffKind,
    /// A unified diff without names, or a sentence about why there is none.
    pub diff: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffKind {
    Created,
    Changed,
    Deleted,
}

/// Effect (`None` if the mode was active already), the options if the mode was set as one of them, and the chain's
/// head if new to the client.
pub(super) type ModeOutcome =
    Result<(Option<ModeEffect>, Vec<SessionConfigOption>, Option<Head>), AgentError>;

pub(super) enum ModelSetting {
    Model(String),
    Effort(Effort),
}

#[derive(Debug, Default)]
pub struct PromptOptions {
    /// Whether the prompt joins a running turn. `None` leaves it to the user's setting.
    pub steers: Option<bool>,
    pub trace: Option<TraceContext>,
    /// Number of blocks at the start that a person typed; `None` if all. Slash commands count only there.
    pub typed_blocks: Option<usize>,
}

pub(super) struct Prompt {
    pub(super) content: Vec<ContentBlock>,
    /// True if the turn only summarises the conversation.
    pub(super) compacts: bool,
    /// The user's full input, if `content` is only a part.
    pub(super) typed: Option<Vec<ContentBlock>>,
    /// See [`PromptOptions::steers`].
    pub(super) steers: Option<bool>,
    pub(super) trace: Option<Arc<TraceContext>>,
    /// See [`PromptOptions::typed_blocks`].
    pub(super) typed_blocks: Option<usize>,
    /// `None` if the caller waits for the end of the turn only.
    pub(super) insertion: Option<PromptInsertion>,
    pub(super) cancel: CancellationToken,
    pub(super) reply: oneshot::Sender<Result<PromptEnd, AgentError>>,
}

impl Prompt {
    /// The blocks in which slash commands count.
    pub(super) fn typed_content(&self) -> &[ContentBlock] {
        let count = self.typed_blocks.map_or(self.content.len(), |count| count.min(self.content.len()));
        &self.content[..count]
    }
}

#[derive(Debug, Clone)]
pub struct SessionHandle {
    commands: mpsc::UnboundedSender<Mail>,
    slots: Arc<Semaphore>,
    workspace: Workspace,
    client_prompt: Option<Arc<ClientPrompt>>,
}

impl SessionHandle {
    pub(super) fn new(
        commands: mpsc::UnboundedSender<Mail>,
        workspace: Workspace,
        client_prompt: Option<Arc<ClientPrompt>>,
    ) -> Self {
        Self { commands, slots: Arc::new(Semaphore::new(MAILBOX)), workspace, client_prompt }
    }

    /// The system prompt that the client sent when it opened the session.
    pub fn client_prompt(&self) -> Option<&ClientPrompt> {
        self.client_prompt.as_deref()
    }

    /// Waits for the end of the turn. Cancelling the token withdraws the prompt.
    pub async fn prompt(
        &self,
        content: Vec<ContentBlock>,
        options: PromptOptions,
        cancel: CancellationToken,
    ) -> Result<PromptEnd, AgentError> {
        let mut answer = self.post_prompt(content, options, None, &cancel)?;
        tokio::select! {
            biased;
            answer = &mut answer => return answer.unwrap_or(Err(AgentError::SessionDied)),
            () = cancel.cancelled() => {}
        }
        // A queued prompt does not watch its token.
        let _ = self.post(SessionCommand::TakeBack);
        answer.await.unwrap_or(Err(AgentError::SessionDied))
    }

    /// Waits until the prompt has its place in the history, and returns the id of its message. Cancelling the
    /// token before that withdraws the prompt. A prompt with a key that the session knows is inserted once.
    pub async fn submit(
        &self,
        content: Vec<ContentBlock>,
        options: PromptOptions,
        key: Option<String>,
        cancel: CancellationToken,
    ) -> Result<MessageId, AgentError> {
        let (insertion, mut inserted) = PromptInsertion::new(key);
        let answer = self.post_prompt(content, options, Some(insertion), &cancel)?;
        let message_id = tokio::select! {
            biased;
            message_id = &mut inserted => message_id,
            () = cancel.cancelled() => {
                // A queued prompt does not watch its token.
                let _ = self.post(SessionCommand::TakeBack);
                inserted.await
            }
        };
        if let Ok(message_id) = message_id {
            return Ok(message_id);
        }
        match answer.await {
            Ok(Err(error)) => Err(error),
            // The end of a turn comes after the insertion, so the prompt was withdrawn, or the one that it repeats.
            Ok(Ok(_)) | Err(_) => Err(AgentError::Cancelled),
        }
    }

    fn post_prompt(
        &self,
        content: Vec<ContentBlock>,
        options: PromptOptions,
        insertion: Option<PromptInsertion>,
        cancel: &CancellationToken,
    ) -> Result<oneshot::Receiver<Result<PromptEnd, AgentError>>, AgentError> {
        let (reply, answer) = oneshot::channel();
        let PromptOptions { steers, trace, typed_blocks } = options;
        let before_insertion = insertion.is_some().then(|| cancel.clone());
        let prompt = Prompt {
            content,
            compacts: false,
            typed: None,
            steers,
            trace: trace.map(Arc::new),
            typed_blocks,
            insertion,
            cancel: cancel.clone(),
            reply,
        };
        self.post_with(SessionCommand::Prompt(prompt), before_insertion)?;
        Ok(answer)
    }

    /// Cancelling the token before the change begins withdraws it, here and in [`Self::set_config_option`].
    pub async fn set_mode(
        &self,
        mode: SessionModeId,
        cancel: &CancellationToken,
    ) -> Result<SetSessionModeResponse, AgentError> {
        let (effect, _, head) = self.change_mode(mode, ModeSource::SetMode, cancel).await?;
        Ok(SetSessionModeResponse::new().meta(effect.map(|effect| effect.to_meta(head.as_ref()))))
    }

    /// Like [`Self::set_mode`]. Returns true if all that the mode denies has ended for certain, and `None` if the
    /// session was in the mode already.
    pub async fn set_mode_confirmed(&self, mode: SessionModeId) -> Result<Option<bool>, AgentError> {
        let (effect, _, _) = self.change_mode(mode, ModeSource::SetMode, &CancellationToken::new()).await?;
        Ok(effect.map(|effect| effect.is_confirmed()))
    }

    /// Changes the mode of a session that is open nowhere else (D12).
    pub async fn set_mode_from_command_line(&self, mode: SessionModeId) -> Result<Option<Head>, AgentError> {
        Ok(self.change_mode(mode, ModeSource::CommandLine, &CancellationToken::new()).await?.2)
    }

    /// Waits until a new session is stored. The first turn reports a failure, because clients drop updates
    /// for a session that they do not know yet.
    pub async fn recorded(&self) {
        let _ = self.ask(SessionCommand::Recorded).await;
    }

    /// Waits until the session is restored.
    pub async fn snapshot(&self) -> Result<SessionSnapshot, AgentError> {
        self.ask(SessionCommand::Snapshot).await
    }

    pub async fn ask_reason(&self, call: ToolCallId) -> Option<AskReason> {
        self.ask(|reply| SessionCommand::AskReason { call, reply }).await.ok()?
    }

    /// Cancelling the token ends the replay.
    pub async fn replay(&self, cancel: &CancellationToken) -> Result<SessionSnapshot, AgentError> {
        self.ask(|reply| SessionCommand::Replay { cancel: cancel.clone(), reply }).await?
    }

    /// Undoes the given turn, or the last one that changed something.
    pub async fn undo(&self, turn: Option<u64>) -> Result<Undone, AgentError> {
        self.ask(|reply| SessionCommand::Undo { turn, reply }).await?
    }

    pub async fn last_turn(&self) -> Result<LastTurn, AgentError> {
        self.ask(SessionCommand::LastTurn).await
    }

    /// The changes of an external agent in the running turn. Empty if they are not recorded.
    pub async fn changes_so_far(&self) -> Result<Vec<ChangeSoFar>, AgentError> {
        self.ask(SessionCommand::ChangesSoFar).await
    }

    /// Undoes the change of one path in the running turn, or all changes. The turn goes on. The mode does not matter: it
    /// limits the agent, not the user.
    pub async fn undo_so_far(&self, path: Option<PathBuf>) -> Result<Undone, AgentError> {
        self.ask(|reply| SessionCommand::UndoSoFar { path, reply }).await?
    }

    /// Lets the running external agent connect to a further host until its process ends.
    pub async fn allow_host(&self, host: HostPattern) -> Result<(), AgentError> {
        self.ask(|reply| SessionCommand::AllowHost { host, reply }).await?
    }

    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    pub async fn set_config_option(
        &self,
        option: SessionConfigId,
        value: SessionConfigOptionValue,
        cancel: &CancellationToken,
    ) -> Result<SetSessionConfigOptionResponse, AgentError> {
        let text = value.as_value_id().map(|value| Arc::clone(&value.0));
        let (effect, options, head) = match (&*option.0, text) {
            (options::MODE_OPTION, Some(mode)) => {
                self.change_mode(SessionModeId::new(mode), ModeSource::ConfigOption, cancel).await?
            }
            (options::MODE_OPTION, None) => {
                let message = format!("the option {:?} takes the id of a value", &*option.0);
                return Err(AgentError::invalid_params(message, json!({ "expected": "a string" })));
            }
            _ => {
                let command = |reply| SessionCommand::SetOption { option, value, reply };
                let options = self.ask_unless_cancelled(cancel, command).await??;
                (None, options, None)
            }
        };
        Ok(SetSessionConfigOptionResponse::new(options)
            .meta(effect.map(|effect| effect.to_meta(head.as_ref()))))
    }

    pub fn cwd(&self) -> &Path {
        self.workspace.cwd()
    }

    pub fn cancel(&self) {
        if self.post(SessionCommand::Cancel).is_err() {
            tracing::debug!("ignored a cancel for a session that has ended");
        }
    }

    /// Waits for `answered`, because clients drop updates for sessions that they do not know yet.
    pub fn announce(&self, answered: BoxFuture<'static, ()>, has_commands: bool) {
        if self.post(SessionCommand::Announce { answered, has_commands }).is_err() {
            tracing::warn!("a session ended before it was announced");
        }
    }

    /// The slash commands.
    pub async fn commands(&self) -> Result<Vec<AvailableCommand>, AgentError> {
        self.ask(SessionCommand::Commands).await
    }

    pub async fn offer(&self) -> Result<SessionOffer, AgentError> {
        self.ask(SessionCommand::Offer).await
    }

    /// Cancels one call that runs. Its end follows as an update.
    pub async fn cancel_call(&self, call: ToolCallId, cancel: &CancellationToken) -> Result<(), AgentError> {
        self.ask_unless_cancelled(cancel, |reply| SessionCommand::CancelCall { call, reply }).await?
    }

    /// Ends the command of a terminal that works in the background. Its end follows as an update.
    pub async fn cancel_terminal(
        &self,
        terminal: String,
        cancel: &CancellationToken,
    ) -> Result<(), AgentError> {
        self.ask_unless_cancelled(cancel, |reply| SessionCommand::CancelTerminal { terminal, reply }).await?
    }

    /// Returns `None` if the session was gone already.
    pub async fn close(&self) -> Option<Closed> {
        self.ask(SessionCommand::Close).await.ok()
    }

    async fn change_mode(
        &self,
        mode: SessionModeId,
        source: ModeSource,
        cancel: &CancellationToken,
    ) -> ModeOutcome {
        self.ask_unless_cancelled(cancel, |reply| SessionCommand::SetMode { mode, source, reply }).await?
    }

    /// Posts before the first wait, so the order of the calls stays.
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> SessionCommand,
    ) -> Result<T, AgentError> {
        let (reply, answer) = oneshot::channel();
        self.post(command(reply))?;
        answer.await.map_err(|_| AgentError::SessionDied)
    }

    /// Like [`Self::ask`], but the actor drops the command if the token is cancelled before the actor takes it.
    async fn ask_unless_cancelled<T>(
        &self,
        cancel: &CancellationToken,
        command: impl FnOnce(oneshot::Sender<T>) -> SessionCommand,
    ) -> Result<T, AgentError> {
        let (reply, answer) = oneshot::channel();
        self.post_with(command(reply), Some(cancel.clone()))?;
        let died = |_| if cancel.is_cancelled() { AgentError::Cancelled } else { AgentError::SessionDied };
        answer.await.map_err(died)
    }

    pub(super) fn post(&self, command: SessionCommand) -> Result<(), AgentError> {
        self.post_with(command, None)
    }

    fn post_with(
        &self,
        command: SessionCommand,
        cancel: Option<CancellationToken>,
    ) -> Result<(), AgentError> {
        let slot = match command {
            SessionCommand::Cancel
            | SessionCommand::TakeBack
            | SessionCommand::Tighten(_)
            | SessionCommand::CancelCall { .. }
            | SessionCommand::CancelTerminal { .. }
            | SessionCommand::Close(_) => None,
            _ => Some(Arc::clone(&self.slots).try_acquire_owned().map_err(AgentError::too_many_requests)?),
        };
        let mail = Mail { command: Box::new(command), slot, cancel };
        self.commands.send(mail).map_err(|_| AgentError::SessionDied)
    }
}
