//! How a turn ended, for the caller of the prompt.

use tokio::sync::oneshot;

use crate::acp::{MessageId, StopReason};
use crate::budget::BudgetUse;
use crate::chain::Head;
use crate::gate::RuleReport;
use crate::session::TurnSpent;

/// End of a turn. The caller keeps this value until the answer is on its way, because dropping it starts the
/// next prompt.
#[derive(Debug)]
pub struct PromptEnd {
    pub reason: EndReason,
    pub head: Option<Head>,
    /// `None` if the prompt was for the model.
    pub command: Option<CommandEnd>,
    pub(super) _ack: oneshot::Sender<()>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LastTurn {
    pub turn: u64,
    /// Number of model requests.
    pub steps: u32,
    /// Paths below the working directory are relative to it.
    pub changed_files: Vec<String>,
    /// Sentences about changes that Modegate does not know.
    pub uncovered: Vec<String>,
    /// Rules that refused changes of the session's commands.
    pub refused_changes: Vec<RuleReport>,
    /// Background jobs that still run: id and command line.
    pub running_jobs: Vec<String>,
    /// Required checks that have not passed: id and reason.
    pub failed_checks: Vec<String>,
    /// True if changes may be unknown, because their record failed.
    pub has_unrecorded_changes: bool,
    /// Why the turn is not recorded, as a clause.
    pub unrecorded: Option<String>,
    pub spent: TurnSpent,
}

/// Why a turn ended. More exact than ACP's stop reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    Stop(StopReason),
    /// The same call was refused again and again.
    RefusedAgain,
    /// The model repeated the same calls with the same results. The turn ends with a question.
    Looping,
    /// The model gave no answer to repeated requests.
    NoAnswer,
    /// Required checks have not passed.
    ChecksFailed,
    /// The external agent was ended, because the new mode denies its process.
    ModeChanged,
    /// This budget is used up.
    BudgetExceeded(BudgetUse),
}

impl EndReason {
    pub fn stop_reason(self) -> StopReason {
        match self {
            Self::Stop(reason) => reason,
            Self::RefusedAgain | Self::Looping | Self::NoAnswer | Self::ChecksFailed | Self::ModeChanged => {
                StopReason::EndTurn
            }
            Self::BudgetExceeded(_) => StopReason::MaxTurnRequests,
        }
    }

    pub fn exceeded_budget(self) -> Option<BudgetUse> {
        if let Self::BudgetExceeded(exceeded) = self { Some(exceeded) } else { None }
    }
}

impl From<StopReason> for EndReason {
    fn from(reason: StopReason) -> Self {
        Self::Stop(reason)
    }
}

/// End of a slash command that Modegate itself answers.
#[derive(Debug, Clone)]
pub struct CommandEnd {
    /// The notice with the command's answer.
    pub answer: MessageId,
    pub has_failed: bool,
}
