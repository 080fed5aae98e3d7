//! Events of prompts, turns, replays and background work, beside the updates of a session. Plain data.

use std::path::PathBuf;

use tokio::sync::OwnedSemaphorePermit;

use crate::acp::{ContentBlock, MessageId, Meta, SessionId, StopReason};

#[derive(Debug)]
pub enum SessionSignal {
    /// A prompt has its place in the history.
    PromptInserted {
        message_id: MessageId,
        content: Vec<ContentBlock>,
    },
    TurnBegan,
    TurnEnded {
        outcome: TurnOutcome,
        meta: Option<Meta>,
    },
    /// The client has asked for the history. Until the end of the replay, it gets nothing else of the session.
    ReplayRequested,
    /// All updates so far are part of the history that follows.
    ReplayBegan,
    ReplayEnded,
    ReplayFailed,
    /// The client needs the state of the session before the next answer.
    StateRequested,
    WorkBegan(BackgroundWork),
    /// Output of a terminal that works in the background. Dropping the permit admits another streamed update.
    WorkOutput {
        terminal: String,
        text: String,
        send_permit: Option<OwnedSemaphorePermit>,
    },
    WorkEnded(EndedWork),
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

/// Work that goes on after the call that began it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackgroundWork {
    Terminal { id: String, command: String, cwd: PathBuf },
    Subagent(SessionId),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndedWork {
    Terminal { id: String, exit: TerminalExit },
    Subagent(SessionId),
}

/// How the command of a terminal ended: with a status or by a signal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TerminalExit {
    pub code: Option<i32>,
    pub signal: Option<String>,
}
