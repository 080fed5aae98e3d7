//! Commands to the connection task of an external agent, and the effects of successful answers.

use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::acp::{SessionId, SessionModeId};

/// The result, or the error object.
pub type Answer = Result<Box<RawValue>, Box<RawValue>>;

#[derive(Debug)]
pub enum Command {
    Call {
        method: &'static str,
        params: Box<RawValue>,
        reply: Reply,
    },
    /// Sends `session/cancel`, and answers all open permission requests as cancelled (C1).
    Cancel,
    CloseInput,
}

/// Receiver of an answer. A dropped reply means that no answer will come.
#[derive(Debug)]
pub struct Reply {
    pub to: oneshot::Sender<Answer>,
    pub on_success: OnSuccess,
}

/// State change that a successful answer causes.
#[derive(Debug)]
pub enum OnSuccess {
    Ignore,
    /// A prompt. Sending it also ends the replay of history.
    TurnEnded,
    /// A created session, or the loaded one with this id.
    SessionStarted(Option<SessionId>),
    ModeSet(SessionModeId),
    OptionsSet,
}
