//! Refused acts of a terminal program, for the user who watches it. Also acts without a notice.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{AgentOutput, ExternalAgentHost};
use crate::acp::{SessionUpdate, ToolCallUpdate, ToolCallUpdateFields};
use crate::external_agent::client::{PROGRAM_CALL, REFUSED_META};

/// An act that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedAct {
    /// Such as `Create notes.txt (sh)`.
    pub act: String,
    /// A sentence.
    pub reason: String,
    /// The host, if allowing it would have allowed the act.
    pub host: Option<String>,
}

impl RefusedAct {
    pub(super) fn new(act: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { act: act.into(), reason: reason.into(), host: None }
    }

    /// `None` if the agent has an interface of its own in the client.
    pub(super) fn shown(&self, session: &ExternalAgentHost) -> Option<AgentOutput> {
        if !session.is_terminal_program() {
            return None;
        }
        let meta = json!({ REFUSED_META: self });
        let update =
            ToolCallUpdate::new(PROGRAM_CALL, ToolCallUpdateFields::new()).meta(meta.as_object().cloned());
        Some(AgentOutput::Show(Box::new(SessionUpdate::ToolCallUpdate(update)), None))
    }
}
