//! The call that stands for a question about a change, in the client.

use super::message::AgentOutput;
use crate::acp::{SessionUpdate, ToolCallId, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields};
use crate::conversation::acp_updates::text_content;
use crate::event::SessionEvent;

/// The end of the call that stands for a question.
pub(super) fn concluded(call: ToolCallId, refusal: Option<&str>) -> AgentOutput {
    let fields = match refusal {
        None => ToolCallUpdateFields::new().status(ToolCallStatus::Completed),
        Some(why) => {
            ToolCallUpdateFields::new().status(ToolCallStatus::Failed).content(vec![text_content(why)])
        }
    };
    let update = Box::new(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call, fields)));
    AgentOutput::Record(SessionEvent::ForwardedUpdate { update }, None)
}
