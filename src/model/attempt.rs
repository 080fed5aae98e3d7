//! One short request to a model, for `modegate doctor` and `modegate setup`. Never waits for a busy server.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::{Block, Effort, Message, Model, ModelError, ModelEvent, ModelId, ModelRequest, Role};
use crate::acp::SessionId;

/// Longest wait for the first part of the reply.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Asks for a short reply, and stops reading at its first part.
pub async fn attempt(model: &dyn Model, id: ModelId) -> Result<(), ModelError> {
    let question = Message { role: Role::User, blocks: vec![Block::Text("Reply with OK.".into())] };
    let mut reply = model.reply(ModelRequest {
        session: SessionId::new("attempt"),
        ordinal: 1,
        model: id,
        effort: Effort::Default,
        system: "You are asked for a short reply, to see that you can be reached.".into(),
        tools: Arc::new([]),
        lasting_tools: 0,
        allowed: None,
        messages: vec![Arc::new(question)],
        trace: None,
        encoded: Arc::default(),
    });
    let first = async {
        while let Some(event) = reply.next().await {
            match event? {
                ModelEvent::Waiting { reason, wait, .. } if !wait.is_zero() => {
                    return Err(ModelError::new(reason));
                }
                ModelEvent::Waiting { .. } | ModelEvent::ProviderState(_) | ModelEvent::Usage(_) => {}
                ModelEvent::Text(_)
                | ModelEvent::Thought(_)
                | ModelEvent::ToolCallStarted { .. }
                | ModelEvent::ToolCall { .. }
                | ModelEvent::Stop(_) => return Ok(()),
            }
        }
        Err(ModelError::new("the reply has no content"))
    };
    tokio::time::timeout(TIMEOUT, first)
        .await
        .unwrap_or_else(|_| Err(ModelError::new(format!("no answer within {} s", TIMEOUT.as_secs()))))
}
