//! One conversation: what all of them share, and the state of one as plain data.
//!
//! The state in [`Session`] has one owner, the actor, and no lock; everybody else has a [`SessionHandle`].

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::acp::{McpServer, PlanEntry, SessionId, SessionModeId, ToolCallId};
use crate::agents::{AgentRegistry, AgentSpec};
use crate::chain::Head;
use crate::client::ClientCapabilities;
use crate::event::{Compaction, SessionEvent, ToolCallEvent};
use crate::ids::Source;
use crate::mode::{Mode, Modes};
use crate::model::Model;
use crate::model::catalog::ModelCatalog;
use crate::permission::Grants;
use crate::permission::rules::Rules;
use crate::skill::Skills;
use crate::store::Store;
use crate::store::sessions::StoredSession;
use crate::tool::chat_question::ChatQuestion;
use crate::tool::{Job, Toolset};
use crate::workspace::{ContentHash, Workspace};
pub use handle::{Closed, PromptEnd, SessionHandle, SessionSnapshot, Undone};
pub use mode_effect::{HEAD_META, ModeEffect, head_meta, valid_modes};

use ancestry::Ancestry;
use ceilings::ReplyCeilings;
use compaction::Fill;
use history::History;
use open_calls::OpenCalls;
use options::ModelSelection;
use reminder::Transition;
use system_prompt::Sources;
use user_command::UserCommand;

mod actor;
pub mod ancestry;
mod authorize;
mod call;
pub mod capability;
mod ceilings;
mod change_mode;
mod checkpoint;
pub mod command;
mod compact;
pub mod compaction;
pub mod encoder;
mod event_log;
mod exit;
mod exit_form;
pub mod external_agent;
mod handle;
mod handoff;
pub mod history;
mod interruption;
mod mode_effect;
pub mod mode_switch;
mod model_notes;
mod model_selection;
pub mod neutralise;
mod open_calls;
pub mod options;
mod permission_options;
mod question;
pub mod reminder;
mod request;
mod restore;
mod servers;
mod session_action;
mod set_option;
mod slash_commands;
mod spawn;
mod subagent;
mod subagent_relay;
pub mod subagents;
mod switch;
pub mod system_prompt;
mod turn;
mod turn_life;
mod turn_message;
pub mod user_command;

/// How sessions leave a mode at the model's proposal.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExitSettings {
    /// The model cannot propose a mode that allows more: what `--no-exit` says.
    pub is_off: bool,
    /// An acceptance that comes sooner is reported as one that no person gave; zero reports none.
    pub reading_time: Duration,
}

/// What every session of a process shares.
#[derive(Clone)]
pub struct SessionContext {
    /// The modes there are.
    pub modes: Arc<Modes>,
    /// Modes that there are and that are not possible for this session's agent.
    pub unsupported_modes: Arc<[String]>,
    /// The user's rules.
    pub rules: Arc<Rules>,
    /// The agents there are.
    pub agents: Arc<AgentRegistry>,
    /// How long a session at work for another may be without a sign of life.
    pub idle_timeout: Duration,
    /// The commands that users wrote.
    pub commands: Arc<[UserCommand]>,
    /// The skills.
    pub skills: Arc<Skills>,
    /// No session can do more than these modes, as they were when the process began: what `--max-mode` says.
    pub max_modes: Vec<Arc<Mode>>,
    /// The session can do no more than this mode either, because a file cannot be used.
    pub fallback_ceiling: Option<Arc<Mode>>,
    /// The tools there are.
    pub tools: Toolset,
    /// Who answers.
    pub model: Arc<dyn Model>,
    /// Whom one can choose.
    pub models: Arc<ModelCatalog>,
    /// The client takes updates about compactions.
    pub compactions: bool,
    /// What the client can do.
    pub capabilities: ClientCapabilities,
    /// What system prompts are made of.
    pub sources: Arc<Sources>,
    /// The record.
    pub store: Store,
    /// Ids and the time.
    pub source: Source,
    /// Read-side calls of one message that run at once.
    pub parallel: usize,
    /// What runs is shown while it runs: not where every run has to give the same bytes.
    pub live: bool,
    /// How sessions leave a mode at the model's proposal.
    pub exits: ExitSettings,
    /// How long the first request waits for servers that are starting; none: servers are not started at all, because every
    /// run has to give the same bytes.
    pub server_timeout: Option<Duration>,
}

/// The state of a session. Plain data; the actor owns it.
pub struct Session {
    /// Its id.
    id: SessionId,
    /// Its folders.
    workspace: Workspace,
    /// Which agent it is.
    agent: Arc<AgentSpec>,
    /// Where it stands among sessions.
    ancestry: Ancestry,
    /// The mode that is on.
    mode: SessionModeId,
    /// Who answers, and how long it is to think.
    active: ModelSelection,
    /// The same as the user chose it: a mode may have its own.
    chosen: ModelSelection,
    /// What every request begins with, once the first is made.
    system: Option<Arc<str>>,
    /// Tighter modes that were asked for and could not be recorded: what they deny stays denied until a change can be.
    unrecorded_modes: Vec<SessionModeId>,
    /// What held when the reply began whose calls run now: they, and all that they start, may do no more than that allowed.
    reply_ceilings: Option<ReplyCeilings>,
    /// The last request had a reminder.
    is_reminded: bool,
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
    seen: HashMap<PathBuf, ContentHash>,
    /// Calls of which the client knows no more than the name.
    started_calls: Vec<ToolCallId>,
    /// Calls that were announced and are not over.
    open_calls: HashMap<ToolCallId, ToolCallEvent>,
    /// Calls of sessions below, likewise.
    relayed_open_calls: OpenCalls,
    /// The mode before the first change that was recorded.
    first_mode: Option<SessionModeId>,
    /// The mode that was left for the one that is on.
    previous: Option<SessionModeId>,
    /// What the model is to know of switches that it wanted, and whether a request has said it.
    pending_switch_notes: Vec<(String, bool)>,
    /// Facts that the model is to know and to keep, and that are no events yet.
    pending_model_notes: Vec<String>,
    /// What was begun in the background, in order; also what is over.
    jobs: Vec<Job>,
    /// Where the chain of its record has come to.
    head: Head,
    /// How far of it the client has been told.
    acked: u64,
    /// The hash of what the last recorded call was decided under.
    recorded_under: Option<String>,
    /// Slash commands that were answered.
    answered: u64,
    /// Turns begun.
    turns: u64,
    /// Model requests made.
    requests: u64,
    /// Questions in the chat that the next prompt answers.
    questions: Vec<ChatQuestion>,
    /// What the user is to be told once, with the first turn.
    pending_user_notices: Vec<String>,
    /// What the user was told of servers.
    server_notices: u64,
}

/// What a session begins with.
pub struct SessionInit {
    /// Its id.
    pub id: SessionId,
    /// Its folders.
    pub workspace: Workspace,
    /// Its mode.
    pub mode: SessionModeId,
    /// What the user is to be told with the first turn.
    pub pending_user_notices: Vec<String>,
    /// Tighter modes that could not be recorded when it was open before.
    pub unrecorded_modes: Vec<SessionModeId>,
    /// Whether it goes on from somewhere.
    pub origin: Origin,
    /// Which agent it is.
    pub agent: Arc<AgentSpec>,
    /// Where it stands among sessions.
    pub ancestry: Ancestry,
    /// The MCP servers that somebody else's agent is to use.
    pub servers: Vec<McpServer>,
    /// Who answers, where that is not the one that everybody begins with.
    pub chosen: Option<ModelSelection>,
}

/// Where a session comes from.
pub enum Origin {
    /// It is new.
    New,
    /// It goes on from what is kept of it.
    Stored(Box<StoredSession>),
    /// It is the copy of another, which is kept as this.
    Copy(Box<StoredSession>),
}

/// A mode change on its way to the model.
struct PendingTransition {
    transition: Transition,
    /// The turn that was running when it happened, if one was.
    during: Option<u64>,
    /// Whether a request has told the model.
    acked: bool,
}

impl Session {
    fn new(start: SessionInit, active: ModelSelection, chosen: ModelSelection) -> Self {
        let SessionInit {
            id, workspace, mode, pending_user_notices, unrecorded_modes, agent, ancestry, ..
        } = start;
        Self {
            head: Head::start(&id.0),
            acked: 0,
            recorded_under: None,
            answered: 0,
            id,
            workspace,
            agent,
            ancestry,
            mode,
            active,
            chosen,
            system: None,
            unrecorded_modes,
            reply_ceilings: None,
            is_reminded: false,
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
            started_calls: Vec::new(),
            open_calls: HashMap::new(),
            relayed_open_calls: OpenCalls::default(),
            first_mode: None,
            previous: None,
            pending_switch_notes: Vec::new(),
            pending_model_notes: Vec::new(),
            jobs: Vec::new(),
            turns: 0,
            requests: 0,
            questions: Vec::new(),
            pending_user_notices,
            server_notices: 0,
        }
    }

    /// Takes up an event that is new; pieces of one message become one event.
    fn apply_new(&mut self, event: SessionEvent) {
        self.apply(&event);
        match self.unsaved.last_mut() {
            Some(last) if last.can_merge(&event) => last.append(event),
            _ => self.unsaved.push(event),
        }
    }

    /// What an event, new or of old, makes of the session.
    fn apply(&mut self, event: &SessionEvent) {
        self.history.apply(event);
        match event {
            SessionEvent::UserMessage { content, .. } if content.is_empty() => self.answered += 1,
            SessionEvent::UserMessage { content, .. } => self.last_prompt = history::text_of(content),
            SessionEvent::ToolCallStarted { id, .. } => self.started_calls.push(id.clone()),
            SessionEvent::ToolCall(call) => {
                self.started_calls.retain(|id| *id != call.id);
                self.open_calls.insert(call.id.clone(), call.clone());
            }
            SessionEvent::ToolCallUpdate(update) if update.result.is_some() => {
                self.started_calls.retain(|id| *id != update.id);
                self.open_calls.remove(&update.id);
            }
            SessionEvent::Relayed { update } => self.relayed_open_calls.apply(update),
            SessionEvent::Plan { entries } => self.plan.clone_from(entries),
            SessionEvent::Usage(usage) => self.fill.count(usage.used, self.history.bytes()),
            SessionEvent::Compaction { id, stage: Compaction::Started } => {
                self.compactions += 1;
                self.compacting = Some(id.clone());
            }
            SessionEvent::Compaction { stage, .. } => {
                self.compacting = None;
                if matches!(stage, Compaction::Done { .. }) {
                    self.fill = Fill::unknown();
                }
            }
            SessionEvent::ModeChange { from, .. } if self.first_mode.is_none() => {
                self.first_mode = Some(from.clone());
            }
            // The rest is for the client, or is kept by who brings it about.
            _ => {}
        }
    }

    /// Notes a mode change for the model. One that was taken back before the model heard of it is none.
    fn note_transition(&mut self, mut transition: Transition, during: Option<u64>) {
        if let Some(pending) = self.transition.take().filter(|pending| !pending.acked) {
            transition.from = pending.transition.from;
            transition.before = pending.transition.before;
            transition.unconfirmed += pending.transition.unconfirmed;
        }
        if transition.from != transition.to {
            self.transition = Some(PendingTransition { transition, during, acked: false });
        }
    }

    /// The notice of a switch stands in every request until the first turn begun after it ends.
    fn forget_transition_after(&mut self, turn: u64) {
        if self.transition.as_ref().is_some_and(|pending| pending.acked && pending.during != Some(turn)) {
            self.transition = None;
        }
    }
}
