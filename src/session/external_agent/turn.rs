//! A turn of an external agent: passes on the prompt unchanged, and ends when the agent ends it.

use tokio::sync::oneshot;

use crate::acp::{ContentBlock, MessageId, StopReason};
use crate::event::SessionEvent;
use crate::external_agent::ExternalAgentError;
use crate::model::{Failure, ModelError};
use crate::session::turn::{Turn, TurnError};
use crate::session::turn_message::TurnMessage;

pub(in crate::session) const STOPPED: &str =
    "\nStopped: the mode has changed, so the agent was ended. The next prompt starts it again.\n";

impl Turn {
    pub(in crate::session) async fn prompt_external_agent(
        &self,
        content: Vec<ContentBlock>,
    ) -> Result<StopReason, TurnError> {
        let ready = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Ok(StopReason::Cancelled),
            ready = self.ask_actor(|reply| TurnMessage::ExternalAgent { reply }) => ready?,
        };
        let ready = match ready {
            Ok(ready) => ready,
            Err(_) if self.cancel.is_cancelled() => return Ok(StopReason::Cancelled),
            Err(error) => return Err(TurnError::Model(self.failure(&error))),
        };
        let outcome = ready.agent.prompt(content, self.cancel.clone()).await;
        let (fence, passed) = oneshot::channel::<()>();
        if ready.fences.send(fence).await.is_ok() {
            // The sender is only ever dropped.
            let _ = passed.await;
        }
        if ready.stopped.is_cancelled() && !self.cancel.is_cancelled() {
            let message_id = MessageId::new(format!("msg_{}_stopped", self.number));
            self.post_event(SessionEvent::Notice { message_id, text: STOPPED.into() }).await?;
            return Ok(StopReason::EndTurn);
        }
        outcome.map_err(|error| TurnError::Model(self.failure(&error)))
    }

    fn failure(&self, error: &ExternalAgentError) -> ModelError {
        let agent = self.external_agent.as_deref().unwrap_or_default();
        let text = format!("the agent {agent}: {error}");
        match error {
            ExternalAgentError::AuthRequired(_) => ModelError { failure: Failure::Key, text },
            _ => ModelError::new(text),
        }
    }
}
