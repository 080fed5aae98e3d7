//! What a turn and its actor say to each other. Plain data.

use std::path::PathBuf;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use super::compact::{Summarised, Summary};
use super::external_agent::Ready;
use super::mode_switch::Found;
use super::spawn::Spawned;
use crate::acp::ToolCallId;
use crate::event::{SessionEvent, ToolCallUpdateEvent};
use crate::external_agent::ExternalAgentError;
use crate::gate::Permit;
use crate::model::ModelRequest;
use crate::permission::CallFacts;
use crate::tool::background::BackgroundAgent;
use crate::tool::chat_question::ChatQuestion;
use crate::tool::{Job, Proposal, SessionAction, SnapshotHandle, ToolContent};
use crate::workspace::ContentHash;

/// What a turn tells or asks the actor.
pub(super) enum TurnMessage {
    /// Something happened.
    Event(SessionEvent, Option<OwnedSemaphorePermit>),
    /// A call that runs shows this.
    Progress { id: ToolCallId, content: ToolContent, send_permit: Option<OwnedSemaphorePermit> },
    /// A call is over; these files have been seen by the model, this job goes on, and these questions wait for the user.
    Finished {
        update: ToolCallUpdateEvent,
        seen: Vec<(PathBuf, ContentHash)>,
        job: Option<Job>,
        questions: Vec<ChatQuestion>,
        send_permit: Option<OwnedSemaphorePermit>,
    },
    /// What is the model to be asked, after this many requests? Nothing: they were as many as may be.
    NextRequest { made: u32, reply: oneshot::Sender<Option<Next>> },
    /// The last request was too long: what is the model to be asked to make room? Nothing: there is none to be made.
    Compact { reply: oneshot::Sender<Option<Summary>> },
    /// What a summary came to.
    Summarised(Summarised, Option<OwnedSemaphorePermit>),
    /// May this call run? No facts: there is no such tool. Its arguments may not fit: then it does not run, whatever the
    /// answer.
    Authorize {
        call: ToolCallId,
        facts: Option<CallFacts>,
        fits: bool,
        reply: oneshot::Sender<Authorization>,
    },
    /// The copies of the session's files, by which the changes of background jobs are found.
    Shadow { reply: oneshot::Sender<Option<SnapshotHandle>> },
    /// The model wants another mode, by a block in its text. The reply comes when that is settled, and may end the
    /// turn.
    InBand { found: Found, reply: oneshot::Sender<Option<&'static str>> },
    /// The model presents its plan and wants to leave the mode.
    Propose { call: ToolCallId, proposal: Proposal, reply: oneshot::Sender<Proposed> },
    /// Is the agent ready that answers here?
    ExternalAgent { reply: oneshot::Sender<Result<Ready, ExternalAgentError>> },
    /// Set about what the session itself carries out for a call, unless it is called off.
    SessionAction {
        call: ToolCallId,
        action: SessionAction,
        cancel: CancellationToken,
        reply: oneshot::Sender<Spawned>,
    },
    /// Ask the user whether this call may run.
    Ask {
        call: ToolCallId,
        facts: CallFacts,
        preview: Vec<ToolContent>,
        reply: oneshot::Sender<Authorization>,
    },
}

/// What a turn does next.
pub(super) enum Next {
    /// Ask the model; whether a switch in its own text is read.
    Ask { request: ModelRequest, reads_switches: bool },
    /// Make room first, and then see.
    Summarise(Summary),
}

/// Whether a call may run.
#[allow(clippy::large_enum_variant, reason = "one at a time, moved once")]
pub(super) enum Authorization {
    /// Run it; the content of its targets as the model last saw it, and the jobs there are.
    Granted {
        permit: Permit,
        known: Vec<Option<ContentHash>>,
        jobs: Vec<Job>,
        agents: Vec<BackgroundAgent>,
        snapshot: Option<SnapshotHandle>,
    },
    /// The user has to be asked.
    Ask,
    /// The user said no, or could not be asked. The text is for the model; too often in a row ends the turn.
    Rejected { message: String, too_often: bool },
    /// The mode denies it. The text is for the model; too often in a row ends the turn.
    Denied { rule: &'static str, message: String, too_often: bool },
    /// The turn is being cancelled.
    Cancelled,
}

/// What came of a proposal to leave the mode; the texts are for the model.
pub(super) enum Proposed {
    /// The mode has changed.
    Switched(String),
    /// It has not. The turn may have to end, so that the user can speak.
    Stayed { message: String, ends_turn: Option<&'static str> },
}
