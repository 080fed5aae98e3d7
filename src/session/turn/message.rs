//! Messages from a turn to its actor, with their replies. Plain data.

use std::borrow::Cow;
use std::path::PathBuf;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use crate::acp::{MessageId, ToolCallId};
use crate::conversation::content::ToolContent;
use crate::conversation::instructions::Instructions;
use crate::conversation::mode_switch::FoundSwitch;
use crate::conversation::question_text::CallPreview;
use crate::event::{SessionEvent, ToolCallUpdateEvent};
use crate::external_agent::session::ReadyReply;
use crate::model::excess::Excess;
use crate::model::{Failure, ModelError, ModelRequest, Usage};
use crate::permission::{CallFacts, Target};
use crate::session::due_checks::CheckMessage;
use crate::session::mode::decider::Authorization;
use crate::session::mode::switch::Proposed;
use crate::session::prompt_end::CommandEnd;
use crate::session::subagent::spawn::Spawned;
use crate::tool::agent::background::BackgroundAgent;
use crate::tool::user::chat_question::ChatQuestion;
use crate::tool::{CommandOutput, Job, LastSeen, Proposal, SessionAction, SnapshotHandle};

/// Streamed text passes as these messages, and each is moved several times, so large parts are boxed.
pub(crate) enum TurnMessage {
    Event(SessionEvent, Option<OwnedSemaphorePermit>),
    /// Current content of a running call.
    Progress {
        id: ToolCallId,
        content: ToolContent,
        send_permit: Option<OwnedSemaphorePermit>,
    },
    Finished(Box<FinishedCall>, Option<OwnedSemaphorePermit>),
    /// Files whose changes the error of a call shows.
    Shown(Vec<(PathBuf, LastSeen)>),
    /// Asks for the next step; `None` once `made` has reached the mode's limit, or a budget is used up.
    NextRequest {
        made: u32,
        reply: oneshot::Sender<Option<Next>>,
    },
    /// Asks for a summary; `None` if there is nothing to summarise. `refused` says that the last request for one
    /// was too long.
    Compact {
        refused: Option<Excess>,
        reply: oneshot::Sender<Option<Summary>>,
    },
    /// A request was refused as too long.
    TooLong {
        error: ModelError,
        reply: oneshot::Sender<Room>,
    },
    Summarised(Summarised, Option<OwnedSemaphorePermit>),
    /// Of a request for a summary, which is no event.
    SummaryUsage(Usage),
    /// Asks for a permit. `facts` is `None` for an unknown tool. If the arguments do not fit, the call never
    /// runs.
    Authorize {
        call: ToolCallId,
        facts: Option<Box<CallFacts>>,
        fits: bool,
        reply: oneshot::Sender<Authorization>,
    },
    /// Asks for the background work that the end of the session would end.
    BackgroundAtEnd {
        reply: oneshot::Sender<Background>,
    },
    Snapshot {
        reply: oneshot::Sender<Option<SnapshotHandle>>,
    },
    Check(CheckMessage),
    /// Replies once the switch is settled, with a text if the turn must end.
    InBand {
        found: FoundSwitch,
        reply: oneshot::Sender<Option<Cow<'static, str>>>,
    },
    /// The model's proposal to leave the mode.
    Propose {
        call: ToolCallId,
        proposal: Proposal,
        reply: oneshot::Sender<Proposed>,
    },
    ExternalAgent {
        reply: ReadyReply,
    },
    AgentChanges(Vec<Target>),
    SessionAction {
        call: ToolCallId,
        action: SessionAction,
        cancel: CancellationToken,
        reply: oneshot::Sender<Spawned>,
    },
    Ask {
        call: ToolCallId,
        facts: Box<CallFacts>,
        preview: CallPreview,
        reply: oneshot::Sender<Authorization>,
    },
}

// Larger values are moved by a call of `memcpy`.
const _: () = assert!(size_of::<TurnMessage>() <= 128);

pub(crate) struct FinishedCall {
    pub(crate) update: ToolCallUpdateEvent,
    /// Files that the model now knows.
    pub(crate) seen: Vec<(PathBuf, LastSeen)>,
    pub(crate) instructions: Vec<Instructions>,
    pub(crate) job: Option<Job>,
    pub(crate) questions: Vec<ChatQuestion>,
    /// Of a check.
    pub(crate) command_output: Option<CommandOutput>,
    /// For the user.
    pub(crate) warnings: Vec<String>,
}

pub(crate) enum Next {
    /// `reads_switches` is true if the reply may contain mode switches, `is_read_only` if agents that it starts
    /// change nothing for their whole life.
    Ask { request: ModelRequest, reads_switches: bool, is_read_only: bool },
    /// Summarise, then ask for the next step.
    Summarise(Summary),
    /// The model repeats itself, so the turn ends with a question to the user.
    Looping { question: String },
}

pub(crate) enum Background {
    Nothing,
    /// A note for the model waits.
    News,
    Agents(Vec<BackgroundAgent>),
}

/// What follows a request that was too long.
pub(crate) enum Room {
    /// The next request is shorter.
    Made,
    /// A summary makes room.
    Summarise(Summary),
    /// Nothing can be left out. The error says what does not fit.
    Missing(ModelError),
}

pub(crate) struct Summary {
    pub(crate) request: ModelRequest,
    /// Unique within the session.
    pub(crate) id: String,
    pub(crate) retained: usize,
}

pub(crate) struct Summarised {
    pub(crate) id: String,
    pub(crate) retained: usize,
    pub(crate) outcome: Result<String, ModelError>,
}

impl Summarised {
    /// True if only the model failed to write a summary, so that Modegate lists what was done.
    pub(crate) fn needs_list(&self) -> bool {
        matches!(
            self.outcome,
            Err(ModelError { failure: Failure::NoAnswer | Failure::ContextTooLong(_), .. })
        )
    }

    /// Makes the summary the answer of the command that requested it.
    pub(crate) fn end_command(&self, command: &mut CommandEnd) {
        match &self.outcome {
            Err(_) if !self.needs_list() => command.has_failed = true,
            _ => command.answer = MessageId::new(self.id.as_str()),
        }
    }
}
