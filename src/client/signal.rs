//! Events of prompts, turns and replays, beside the updates of a session. Plain data.

use crate::acp::{ContentBlock, MessageId, StopReason};

#[derive(Debug, Clone)]
pub enum SessionSignal {
    /// A prompt has its place in the history.
    PromptInserted {
        message_id: MessageId,
        content: Vec<ContentBlock>,
    },
    TurnBegan,
    TurnEnded(TurnOutcome),
    ReplayEnded,
    /// The client needs the state of the session before the next answer.
    StateRequested,
    Closed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnOutcome {
    Stopped(StopReason),
    /// With a JSON-RPC code.
    Failed {
        code: i32,
        message: String,
    },
}
