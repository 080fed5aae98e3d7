//! A turn that an external agent answers: gets its prompt unchanged, and ends when the agent ends it.

use super::handle::EndReason;
use super::turn::{Turn, TurnError};
use super::turn_message::TurnMessage;
use crate::acp::{ContentBlock, MessageId, StopReason};
use crate::event::{NoticeKind, SessionEvent};
use crate::external_agent::ExternalAgentError;
use crate::external_agent::session::PromptOutcome;
use crate::model::{Failure, ModelError};

const STOPPED: &str =
    "\nStopped: the mode has changed, so the agent was ended. The next prompt starts it again.\n";

pub(super) async fn run(turn: &Turn, content: Vec<ContentBlock>) -> Result<EndReason, TurnError> {
    let ready = tokio::select! {
        biased;
        () = turn.cancel.cancelled() => return Ok(StopReason::Cancelled.into()),
        ready = turn.ask_actor(|reply| TurnMessage::ExternalAgent { reply }) => ready?,
    };
    let outcome = match ready {
        Ok(ready) => ready.prompt(content, &turn.cancel).await,
        Err(_) if turn.cancel.is_cancelled() => return Ok(StopReason::Cancelled.into()),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(PromptOutcome::Stopped(reason)) => Ok(reason.into()),
        Ok(PromptOutcome::ModeChanged) => {
            let message_id = MessageId::new(format!("msg_{}_stopped", turn.number));
            turn.post_event(SessionEvent::Notice {
                message_id,
                kind: NoticeKind::Message,
                text: STOPPED.into(),
            })
            .await?;
            Ok(EndReason::ModeChanged)
        }
        Err(error) => Err(TurnError::Model(failure(turn, &error))),
    }
}

fn failure(turn: &Turn, error: &ExternalAgentError) -> ModelError {
    let agent = turn.external_agent.as_deref().unwrap_or_default();
    let text = format!("the agent {agent}: {error}");
    match error {
        ExternalAgentError::AuthRequired(_) => ModelError { failure: Failure::Key, text },
        _ => ModelError::new(text),
    }
}
