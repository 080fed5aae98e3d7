//! Messages of an external agent's tasks to its session, and effects of the session. Plain data.

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::change::ChangeAnswer;
use super::permission::{Forwarded, RequestId};
use super::run::Started;
use crate::acp::{AvailableCommand, SessionConfigOption, SessionModeId, SessionUpdate, ToolCallId};
use crate::client::{ClientError, ClientRequest, ReplySender};
use crate::event::SessionEvent;
use crate::external_agent::ExternalAgentError;
use crate::permission::CallFacts;
use crate::permission::external::ChangeLevel;
use crate::process::BrokerEvent;

pub enum Message {
    Relayed(Relayed, Option<OwnedSemaphorePermit>),
    /// The process with the number `start` has its session, or failed to start.
    Started {
        start: u64,
        outcome: Result<Started, ExternalAgentError>,
    },
    /// The brokered process with the number `start` may make changes, or no longer may.
    Switched {
        start: u64,
        /// The agent's own mode to restore when it may.
        previous_mode: Option<SessionModeId>,
    },
    /// A brokered process asks about a change, or no longer does.
    Broker {
        start: u64,
        event: BrokerEvent,
    },
    /// The client's answer to the question about a change.
    ChangeAnswered {
        start: u64,
        change: u64,
        answer: ChangeAnswer,
    },
    /// The process with the number `start` has ended.
    Ended {
        start: u64,
        why: String,
    },
    /// The user's answer to the question about a restart. `None` if a mode change voided the question.
    Restart(Option<bool>),
    Options(oneshot::Sender<Vec<SessionConfigOption>>),
}

/// Messages of the agent, in their order.
pub enum Relayed {
    Event(SessionEvent),
    Transient(Box<SessionUpdate>),
    Commands(Vec<AvailableCommand>),
    /// The agent's modes or options have changed.
    Options,
    Request(Request),
    /// The client has answered a permission request.
    Answered {
        number: RequestId,
        answer: Result<Value, ClientError>,
        reply: ReplySender,
    },
    /// The request needs no answer any more, or has one.
    Closed(RequestId),
}

pub struct Request {
    pub number: RequestId,
    pub content: ClientRequest,
    pub reply: ReplySender,
}

/// Work for the session's actor, done in the order of the list before it handles another event.
pub enum Effect {
    Record(SessionEvent, Option<OwnedSemaphorePermit>),
    /// Shows an update without recording it.
    Show(Box<SessionUpdate>, Option<OwnedSemaphorePermit>),
    /// Records a notice to the user.
    Notice(String),
    /// Records a notice in the running turn, or else in the next one.
    NoticeInTurn(String),
    /// Records that the mode denied a call or a request.
    Denied {
        call: ToolCallId,
        tool: &'static str,
        rule: &'static str,
    },
    /// Records a change that the agent may make.
    Permitted {
        call: ToolCallId,
        facts: Box<CallFacts>,
        has_user_consent: bool,
    },
    /// Calls [`super::ExternalAgentSession::forward`].
    Forward(Box<Forwarded>),
    /// Records, before the agent gets its prompt, that undo does not cover its changes.
    Uncovered(String),
    /// Stores the agent's session, and its own mode before the sandbox, for the next start.
    Retain {
        session: Option<String>,
        mode: Option<String>,
    },
    ShowCommands,
    ShowOptions,
    ReplyOptions(oneshot::Sender<Vec<SessionConfigOption>>),
    Answer(ReplySender, Result<Value, ClientError>),
    /// Records the start of a process, then calls [`super::ExternalAgentSession::start`].
    Start {
        is_sandboxed: bool,
        /// A brokered process can connect only to allowed hosts until its policy changes.
        limits_network: bool,
    },
    /// Records that the running process may make changes, then calls
    /// [`super::ExternalAgentSession::permit_changes`].
    PermitChanges(ChangeLevel),
    /// Allows or refuses a change of a brokered agent.
    AnswerChange {
        number: u64,
        allows: bool,
    },
    /// Calls [`super::ExternalAgentSession::ask_to_restart`] if a turn is running.
    AskToRestart,
    /// Begins a reply under the current ceilings, then calls
    /// [`super::ExternalAgentSession::answer_waiting`].
    BeginReply,
}
