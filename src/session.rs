//! One conversation: its handle, the commands that its actor takes, and its state as plain data.
//!
//! A [`SessionHandle`] posts to the actor's mailbox without waiting, so commands arrive in the order in which they were
//! given; only the answers are awaited. The state in [`Session`] has one owner, the actor, and no lock.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::acp::{
    ContentBlock, Meta, PlanEntry, SessionConfigId, SessionConfigOption, SessionConfigOptionValue, SessionId,
    SessionModeId, SetSessionConfigOptionResponse, SetSessionModeResponse, StopReason, ToolCallId,
};
use crate::client::Client;
use crate::error::AgentError;
use crate::event::{Compaction, SessionEvent, ToolCallEvent};
use crate::gate::Ended;
use crate::ids::Source;
use crate::mode::Modes;
use crate::model::catalogue::Catalogue;
use crate::model::{Effort, Model};
use crate::permission::Grants;
use crate::store::{ModeSource, Store};
use crate::tool::Toolset;
use crate::workspace::{Stamp, Workspace};
use compaction::Fill;
use history::History;
use options::Choice;
use reminder::Transition;
use system_prompt::Sources;

mod actor;
mod authorize;
mod call;
mod change_mode;
mod choose;
pub mod command;
mod compact;
pub mod compaction;
pub mod encoder;
pub mod history;
pub mod options;
pub mod reminder;
mod request;
mod slash;
pub mod system_prompt;
mod turn;

/// Requests that wait for an actor. Only a client that floods one session fills it; it is told so.
const MAILBOX: usize = 1024;

/// A command and its slot in the mailbox. Cancels have none: nothing may crowd them out.
type Mail = (SessionCommand, Option<OwnedSemaphorePermit>);

/// What every session of a process shares.
#[derive(Clone)]
pub struct Shared {
    /// The modes there are.
    pub modes: Arc<Modes>,
    /// The tools there are.
    pub tools: Toolset,
    /// Who answers.
    pub model: Arc<dyn Model>,
    /// Whom one can choose.
    pub catalogue: Arc<Catalogue>,
    /// The client takes updates about compactions.
    pub compactions: bool,
    /// What system prompts are made of.
    pub sources: Arc<Sources>,
    /// The record.
    pub store: Store,
    /// Ids and the time.
    pub source: Source,
    /// Read-side calls of one message that run at once.
    pub parallel: usize,
}

/// The state of a session. Plain data; the actor owns it.
pub struct Session {
    /// Its id.
    id: SessionId,
    /// Its folders.
    workspace: Workspace,
    /// The mode that is on.
    mode: SessionModeId,
    /// Who answers, and how long it is to think.
    active: Choice,
    /// The same as the user chose it: a mode may have its own.
    chosen: Choice,
    /// What every request begins with, once the first is made.
    system: Option<Arc<str>>,
    /// A tighter mode that was asked for and could not be recorded: what it denies stays denied until a change can be.
    held: Option<SessionModeId>,
    /// The mode under which the model was last asked: its calls may do no more than it allowed.
    asked_under: Option<SessionModeId>,
    /// A mode change that the model has still to be told of.
    transition: Option<PendingTransition>,
    /// What happened and has not been handed to the store yet.
    unsaved: Vec<SessionEvent>,
    /// How many events have been.
    saved: u64,
    /// How full the model's context is.
    fill: Fill,
    /// The list of tasks, as it was shown last.
    plan: Vec<PlanEntry>,
    /// Compactions begun.
    compactions: u64,
    /// The one that is under way.
    compacting: Option<String>,
    /// The turn in which the conversation was summarised last, in vain or not.
    summarised_in: Option<u64>,
    /// The text of the last prompt, as the model has it.
    last_prompt: Option<String>,
    /// The events as the model sees them.
    history: History,
    /// Remembered answers.
    grants: Grants,
    /// The content of files as the model last saw it.
    seen: HashMap<PathBuf, Stamp>,
    /// Calls of which the client knows no more than the name.
    begun_calls: Vec<ToolCallId>,
    /// Calls that were announced and are not over.
    open_calls: HashMap<ToolCallId, ToolCallEvent>,
    /// Turns begun.
    turns: u64,
    /// Model requests made.
    requests: u64,
    /// What the user is to be told once, with the first turn.
    notices: Vec<String>,
}

/// A mode change on its way to the model.
struct PendingTransition {
    transition: Transition,
    /// The turn that was running when it happened, if one was.
    during: Option<u64>,
    /// Whether a request has told the model.
    told: bool,
}

/// What a mode change did, for the answer's `_meta["modegate/effect"]`.
#[derive(Debug, Default)]
pub struct ModeEffect {
    /// Something that was possible no longer is, or is now asked for.
    tightened: bool,
    /// Calls that were ended.
    ended: Ended,
    /// Permission requests that were closed as rejected.
    closed: Vec<ToolCallId>,
}

impl ModeEffect {
    fn to_meta(&self) -> Meta {
        let applies = if self.tightened { "immediate" } else { "next_request" };
        let effect = json!({
            "applies": applies,
            "ended": self.ended.confirmed,
            "unconfirmed": self.ended.unconfirmed,
            "closedRequests": self.closed,
        });
        Meta::from_iter([("modegate/effect".to_owned(), effect)])
    }
}

/// What an actor can be told to do.
enum SessionCommand {
    Prompt(Prompt),
    /// Prompts whose token is cancelled are to be answered.
    TakeBack,
    Cancel,
    /// Tell the client of the slash commands, once it knows the session.
    Greet(BoxFuture<'static, ()>),
    SetMode {
        mode: SessionModeId,
        source: ModeSource,
        /// No effect: the mode was on already. With it, the config options as they are then.
        reply: oneshot::Sender<ModeOutcome>,
    },
    Choose {
        wish: Wish,
        /// The config options as they are then.
        reply: oneshot::Sender<Result<Vec<SessionConfigOption>, AgentError>>,
    },
    Close(oneshot::Sender<()>),
}

/// What a mode change did, and the config options as they are then.
type ModeOutcome = Result<(Option<ModeEffect>, Vec<SessionConfigOption>), AgentError>;

/// What a user wants of who answers.
enum Wish {
    Model(String),
    Effort(Effort),
}

/// A prompt that is to be answered.
struct Prompt {
    content: Vec<ContentBlock>,
    cancel: CancellationToken,
    reply: oneshot::Sender<Result<PromptEnd, AgentError>>,
}

/// How a prompt's turn ended. Nothing of the next prompt happens before this is dropped: whoever answers a client keeps
/// it until the answer is on its way.
#[derive(Debug)]
pub struct PromptEnd {
    /// Why it ended.
    pub reason: StopReason,
    /// Only its end is of interest.
    _told: oneshot::Sender<()>,
}

/// How the rest of the process talks to a session. Cheap to clone, no logic.
#[derive(Debug, Clone)]
pub struct SessionHandle {
    commands: mpsc::UnboundedSender<Mail>,
    slots: Arc<Semaphore>,
}

impl std::fmt::Debug for SessionCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Prompt(_) => "Prompt",
            Self::TakeBack => "TakeBack",
            Self::Cancel => "Cancel",
            Self::Greet(_) => "Greet",
            Self::SetMode { .. } => "SetMode",
            Self::Choose { .. } => "Choose",
            Self::Close(_) => "Close",
        })
    }
}

impl SessionHandle {
    /// Starts a session's actor.
    pub fn start(
        id: SessionId,
        workspace: Workspace,
        mode: SessionModeId,
        notices: Vec<String>,
        shared: Shared,
        client: Client,
    ) -> Self {
        // Bounded by the slots; the calls in flight bound the rest.
        let (commands, mailbox) = mpsc::unbounded_channel();
        let chosen = Choice::of(&shared.catalogue);
        let active = options::entering(&shared.modes, &shared.catalogue, &mode, &chosen);
        let session = Session::new(id, workspace, mode, active, chosen, notices);
        tokio::spawn(actor::run(session, shared, client, mailbox));
        Self { commands, slots: Arc::new(Semaphore::new(MAILBOX)) }
    }

    /// Sends a prompt and waits for the end of its turn. Cancelling the token takes the prompt back.
    pub async fn prompt(
        &self,
        content: Vec<ContentBlock>,
        cancel: CancellationToken,
    ) -> Result<PromptEnd, AgentError> {
        let (reply, mut answer) = oneshot::channel();
        self.post(SessionCommand::Prompt(Prompt { content, cancel: cancel.clone(), reply }))?;
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
        let (effect, _) = self.change_mode(mode, ModeSource::SetMode).await?;
        Ok(SetSessionModeResponse::new().meta(effect.map(|effect| effect.to_meta())))
    }

    /// Sets a config option (`session/set_config_option`); the answer has all of them.
    pub async fn set_config_option(
        &self,
        option: SessionConfigId,
        value: SessionConfigOptionValue,
    ) -> Result<SetSessionConfigOptionResponse, AgentError> {
        let text = value.as_value_id().map(|value| Arc::clone(&value.0));
        let (effect, options) = match (&*option.0, text) {
            (options::MODE_OPTION, Some(mode)) => {
                self.change_mode(SessionModeId::new(mode), ModeSource::ConfigOption).await?
            }
            (options::MODEL_OPTION, Some(model)) => {
                (None, self.choose(Wish::Model(model.to_string())).await?)
            }
            (options::EFFORT_OPTION, Some(effort)) => {
                let effort =
                    Effort::parse(&effort).ok_or_else(|| choose::unknown_effort(&effort, &Effort::ALL))?;
                (None, self.choose(Wish::Effort(effort)).await?)
            }
            (options::MODE_OPTION | options::MODEL_OPTION | options::EFFORT_OPTION, None) => {
                let message = format!("the option {:?} takes the id of a value", &*option.0);
                return Err(AgentError::invalid_params(message, json!({ "expected": "a string" })));
            }
            (unknown, _) => {
                let valid = json!({ "validOptions": [options::MODE_OPTION, options::MODEL_OPTION, options::EFFORT_OPTION] });
                return Err(AgentError::invalid_params(format!("unknown config option {unknown:?}"), valid));
            }
        };
        Ok(SetSessionConfigOptionResponse::new(options).meta(effect.map(|effect| effect.to_meta())))
    }

    /// Ends the running turn and empties the queue (`session/cancel`).
    pub fn cancel(&self) {
        if self.post(SessionCommand::Cancel).is_err() {
            tracing::debug!("a session that is gone was cancelled");
        }
    }

    /// Tells the client of the slash commands once `answered` says that it knows the session: clients drop updates
    /// for sessions that they do not know.
    pub fn greet(&self, answered: BoxFuture<'static, ()>) {
        if self.post(SessionCommand::Greet(answered)).is_err() {
            tracing::warn!("a session ended before its client knew of it");
        }
    }

    /// Ends the session: turns are cancelled and answered, what happened is recorded.
    pub async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.post(SessionCommand::Close(reply)).is_ok() {
            // An error means that the actor is gone, which is what was wanted.
            let _ = closed.await;
        }
    }

    async fn change_mode(
        &self,
        mode: SessionModeId,
        source: ModeSource,
    ) -> Result<(Option<ModeEffect>, Vec<SessionConfigOption>), AgentError> {
        let (reply, answer) = oneshot::channel();
        self.post(SessionCommand::SetMode { mode, source, reply })?;
        answer.await.unwrap_or(Err(AgentError::SessionDied))
    }

    async fn choose(&self, wish: Wish) -> Result<Vec<SessionConfigOption>, AgentError> {
        let (reply, answer) = oneshot::channel();
        self.post(SessionCommand::Choose { wish, reply })?;
        answer.await.unwrap_or(Err(AgentError::SessionDied))
    }

    /// Posts without waiting: the order of arrival is the order of the calls.
    fn post(&self, command: SessionCommand) -> Result<(), AgentError> {
        let slot = match command {
            SessionCommand::Cancel | SessionCommand::TakeBack | SessionCommand::Close(_) => None,
            SessionCommand::Prompt(_)
            | SessionCommand::Greet(_)
            | SessionCommand::SetMode { .. }
            | SessionCommand::Choose { .. } => {
                Some(Arc::clone(&self.slots).try_acquire_owned().map_err(|_| {
                    let text = "too many requests wait for this session: wait for some answers first";
                    AgentError::InvalidRequest(text.into())
                })?)
            }
        };
        self.commands.send((command, slot)).map_err(|_| AgentError::SessionDied)
    }
}

/// What an error says of mode ids that would have been valid.
pub fn valid_modes(modes: &Modes) -> Value {
    json!({ "validModes": modes.iter().map(|mode| mode.id.as_str()).collect::<Vec<_>>() })
}

impl Session {
    fn new(
        id: SessionId,
        workspace: Workspace,
        mode: SessionModeId,
        active: Choice,
        chosen: Choice,
        notices: Vec<String>,
    ) -> Self {
        Self {
            id,
            workspace,
            mode,
            active,
            chosen,
            system: None,
            held: None,
            asked_under: None,
            transition: None,
            unsaved: Vec::new(),
            saved: 0,
            fill: Fill::default(),
            plan: Vec::new(),
            compactions: 0,
            compacting: None,
            summarised_in: None,
            last_prompt: None,
            history: History::default(),
            grants: Grants::default(),
            seen: HashMap::new(),
            begun_calls: Vec::new(),
            open_calls: HashMap::new(),
            turns: 0,
            requests: 0,
            notices,
        }
    }

    /// Takes up an event; pieces of one message become one event.
    fn push(&mut self, event: SessionEvent) {
        self.history.push(&event);
        match &event {
            SessionEvent::UserMessage { content, .. } => self.last_prompt = history::text_of(content),
            SessionEvent::ToolCallBegun { id, .. } => self.begun_calls.push(id.clone()),
            SessionEvent::ToolCall(call) => {
                self.begun_calls.retain(|id| *id != call.id);
                self.open_calls.insert(call.id.clone(), call.clone());
            }
            SessionEvent::ToolCallUpdate(update) if update.result.is_some() => {
                self.begun_calls.retain(|id| *id != update.id);
                self.open_calls.remove(&update.id);
            }
            SessionEvent::Plan { entries } => self.plan.clone_from(entries),
            SessionEvent::Usage(usage) => self.fill.count(usage.used, self.history.bytes()),
            SessionEvent::Compaction { id, stage: Compaction::Begun } => self.compacting = Some(id.clone()),
            SessionEvent::Compaction { stage, .. } => {
                self.compacting = None;
                if matches!(stage, Compaction::Done { .. }) {
                    self.fill = Fill::unknown();
                }
            }
            _ => {}
        }
        match self.unsaved.last_mut() {
            Some(last) if last.goes_on_with(&event) => last.append(event),
            _ => self.unsaved.push(event),
        }
    }

    /// Notes a mode change for the model. One that was taken back before the model heard of it is none.
    fn note_transition(&mut self, mut transition: Transition, during: Option<u64>) {
        if let Some(pending) = self.transition.take().filter(|pending| !pending.told) {
            transition.from = pending.transition.from;
            transition.unconfirmed += pending.transition.unconfirmed;
        }
        if transition.from != transition.to {
            self.transition = Some(PendingTransition { transition, during, told: false });
        }
    }

    /// The notice of a switch stands in every request until the first turn begun after it ends.
    fn forget_transition_after(&mut self, turn: u64) {
        if self.transition.as_ref().is_some_and(|pending| pending.told && pending.during != Some(turn)) {
            self.transition = None;
        }
    }
}
