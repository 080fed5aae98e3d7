//! Messages to the external agent of a session, from its tasks and from the actor, and its messages to the actor.
//! Plain data.

use std::borrow::Cow;
use std::path::PathBuf;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use super::moved_content::MovedContent;
use super::prompt::ReadyAgent;
use super::question::AskedQuestion;
use crate::acp::{
    AvailableCommand, RequestPermissionResponse, SessionConfigOption, SessionModeId, SessionUpdate,
    ToolCallId,
};
use crate::client::{ClientError, ClientRequest, ReplySender};
use crate::event::SessionEvent;
use crate::external_agent::{ExternalAgent, ExternalAgentError};
use crate::hooks::HookRefusal;
use crate::permission::CallFacts;
use crate::permission::external::ChangeLevel;
use crate::process::BrokerEvent;
use crate::process::program::Program;

pub enum AgentMessage {
    /// A turn's prompt waits for the agent.
    Prompt(WaitingPrompt),
    /// The agent starts before the first prompt.
    Prepare,
    ModeChanging,
    ModeChanged {
        tightened: bool,
    },
    TurnCancelled,
    TurnEnded,
    /// The session closes, but a turn may still run. The relay stops waiting for send permits.
    Closing,
    /// The session is closed, and no prompt is left. The agent's last handle is dropped.
    Closed,
    Relayed(Relayed, Option<OwnedSemaphorePermit>),
    /// From the process with this number, or about it.
    Process(u64, ProcessMessage),
    /// The user's answer to the question about a restart. `None` if a mode change voided the question.
    Restart(Option<bool>),
    Options(oneshot::Sender<Vec<SessionConfigOption>>),
}

pub enum ProcessMessage {
    /// The program runs, and may ask about changes before it has a session.
    ProgramStarted(Program),
    /// The process has its session, or failed to start.
    Started(Result<StartedAgent, ExternalAgentError>),
    /// The brokered process may make changes, or no longer may.
    Switched {
        /// The agent's own mode to restore when it may.
        mode_to_restore: Option<SessionModeId>,
    },
    /// The brokered process asks about a change, or no longer does.
    Broker {
        event: BrokerEvent,
        /// Of a file that waits to be moved.
        content: Option<MovedContent>,
    },
    /// Hooks have seen the change.
    ChangeHooked(HookedChange),
    ChangeAnswered(AnsweredChange),
    Ended {
        why: String,
    },
}

pub struct StartedAgent {
    pub agent: ExternalAgent,
    pub context: ContextState,
    /// The agent's own mode before the sandbox.
    pub mode_to_restore: Option<SessionModeId>,
    /// Folder for the record of its changes.
    pub record: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextState {
    Resumed,
    /// Contains the reason if the agent failed to load a session.
    New(Option<String>),
}

/// The client's answer to the question about a change.
pub struct AnsweredChange {
    pub number: u64,
    pub answer: Result<RequestPermissionResponse, ClientError>,
    /// Of a file that waits to be moved, after the answer.
    pub content: Option<MovedContent>,
}

/// A change that hooks have seen. `refusal` is `None` if it passed.
pub struct HookedChange {
    pub(super) question: AskedQuestion,
    pub(super) refusal: Option<HookRefusal>,
}

/// A request of the agent that hooks have seen, or that is not for them.
pub struct HookedRequest {
    pub(super) request: RelayedRequest,
    pub(super) refusal: Option<HookRefusal>,
}

/// Messages of the agent, in their order.
pub enum Relayed {
    Event(SessionEvent),
    Transient(Box<SessionUpdate>),
    Commands(Vec<AvailableCommand>),
    /// The agent's modes or options have changed.
    Options,
    Request(RelayedRequest),
    /// Hooks have seen the call of the request.
    HookedRequest(HookedRequest),
    Answered {
        number: RequestId,
        answer: Result<Value, ClientError>,
        reply: ReplySender,
    },
    /// The request needs no answer any more, or has one.
    Closed(RequestId),
}

/// Number of the agent's start, and number of its request.
pub(super) type RequestId = (u64, u64);

pub struct RelayedRequest {
    pub number: RequestId,
    pub content: ClientRequest,
    pub reply: ReplySender,
}

pub type ReadyReply = oneshot::Sender<Result<ReadyAgent, ExternalAgentError>>;

pub struct WaitingPrompt {
    pub reply: ReadyReply,
    pub turn: u64,
    /// Cancelled with the turn.
    pub cancel: CancellationToken,
}

impl WaitingPrompt {
    /// Lets the turns go on, as far as they still wait.
    pub fn answer_all(prompts: Vec<Self>, ready: &ReadyAgent) {
        for prompt in prompts {
            let _ = prompt.reply.send(Ok(ready.clone()));
        }
    }
}

/// Work for the session's actor, done in the order of the list before it handles another event.
pub enum AgentOutput {
    Record(SessionEvent, Option<OwnedSemaphorePermit>),
    /// Shows an update without recording it.
    Show(Box<SessionUpdate>, Option<OwnedSemaphorePermit>),
    Notice(String),
    /// Records a notice in the running turn, or else in the next one.
    NoticeInTurn(String),
    /// Records that the mode denied a call or a request.
    Denied {
        call: ToolCallId,
        tool: &'static str,
        rule: Cow<'static, str>,
    },
    /// Records a change that the agent may make.
    Permitted {
        call: ToolCallId,
        facts: Box<CallFacts>,
        has_user_consent: bool,
    },
    /// Sends a request to the client under a reserved id.
    Forward {
        id: u64,
        request: ClientRequest,
        reply: ReplySender,
    },
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
    /// Records the start of a process, which then gets the folder for the record of its changes.
    RecordStart {
        is_sandboxed: bool,
        /// True if each of its changes is decided for its path.
        is_decided: bool,
        recorded: oneshot::Sender<Option<PathBuf>>,
    },
    /// Records that the running process may make changes, which it may afterwards.
    RecordChanges {
        level: ChangeLevel,
        recorded: oneshot::Sender<()>,
    },
    /// Allows or refuses a change of a brokered agent.
    AnswerChange {
        program: Program,
        number: u64,
        allows: bool,
    },
    /// Begins a reply under the current ceilings.
    BeginReply,
    AnswerPrompts(Vec<WaitingPrompt>, Box<ReadyAgent>),
}
