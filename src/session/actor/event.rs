//! What wakes the loop of a session.

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::external_agent::session::AgentMessage;
use crate::gate::RuleReport;
use crate::session::handle::{Closed, Mail, SessionCommand};
use crate::session::mode::ancestry::TurnChanges;
use crate::session::mode::permission_options::PermissionReply;
use crate::session::subagent::relay::SubagentReport;
use crate::session::turn::turns::TurnEvent;
use crate::tool::mcp::ServerEvent;

#[allow(clippy::large_enum_variant, reason = "one at a time, moved once")]
pub(super) enum ActorEvent {
    Command(SessionCommand, Option<OwnedSemaphorePermit>),
    Close(oneshot::Sender<Closed>),
    CancelledCommand,
    /// The last handle is gone.
    NoHandle,
    /// The answer to a permission request with this id.
    Answer(u64, PermissionReply),
    SwitchAnswer(u64, PermissionReply),
    Report(SubagentReport),
    ExternalAgent(AgentMessage),
    JobEnded(String),
    Changes(TurnChanges),
    ChangeRefused(RuleReport),
    /// A budget of time may need a warning, or end the turn.
    BudgetDue,
    Turn(TurnEvent),
    Server(ServerEvent),
    /// A send permit for the next update of a replay.
    Replay(OwnedSemaphorePermit),
}

impl ActorEvent {
    pub(super) fn of(mail: Mail) -> Self {
        match mail.take() {
            None => Self::CancelledCommand,
            Some((SessionCommand::Close(done), _)) => Self::Close(done),
            Some((command, slot)) => Self::Command(command, slot),
        }
    }
}
