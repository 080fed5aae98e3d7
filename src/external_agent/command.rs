//! What the task that speaks to a harness is told, and what answers mean to it.

use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::acp::{SessionId, SessionModeId};

/// What a harness answered: its result, or its error object.
pub type Answer = Result<Box<RawValue>, Box<RawValue>>;

/// What the task is told.
#[derive(Debug)]
pub enum Command {
    /// Ask the harness something.
    Call {
        /// The method.
        method: &'static str,
        /// Its parameters.
        params: Box<RawValue>,
        /// What the answer is for.
        reply: Reply,
    },
    /// The turn is to end: says so, and answers the questions about permission that are open (C1).
    Cancel,
    /// Nothing more is said to it: its input ends.
    CloseInput,
}

/// Who waits for an answer, and what holds once it is there. A reply that is dropped means that there will be none.
#[derive(Debug)]
pub struct Reply {
    /// Where the answer goes.
    pub to: oneshot::Sender<Answer>,
    /// What a good one means.
    pub on_success: OnSuccess,
}

/// What a good answer means, from then on.
#[derive(Debug)]
pub enum OnSuccess {
    /// Nothing but what it says.
    Ignore,
    /// The turn is over. Once it is asked, what it says is new.
    TurnEnded,
    /// The session has begun: a new one, or this one of old, of which nothing is passed on before.
    SessionStarted(Option<SessionId>),
    /// The mode is this one.
    ModeSet(SessionModeId),
    /// The options are those that it lists.
    OptionsSet,
}
