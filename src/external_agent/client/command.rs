//! Commands to the connection of an external agent.

use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::acp::{SessionId, SessionModeId};

pub(super) type PeerAnswer = Result<Box<RawValue>, Box<RawValue>>;

#[derive(Debug)]
pub(super) enum ConnectionCommand {
    Call {
        method: &'static str,
        params: Box<RawValue>,
        reply: CallReply,
    },
    /// Also answers open permission requests as cancelled (C1).
    Cancel,
    CloseInput,
}

/// A dropped reply means that no answer will come.
#[derive(Debug)]
pub(super) struct CallReply {
    pub to: oneshot::Sender<PeerAnswer>,
    pub on_success: OnSuccess,
}

#[derive(Debug)]
pub(super) enum OnSuccess {
    Ignore,
    TurnEnded,
    /// The id is `None` for a created session.
    SessionStarted(Option<SessionId>),
    ModeSet(SessionModeId),
    OptionsSet,
}
