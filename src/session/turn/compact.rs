//! The part of a turn that summarises the conversation.

use futures_util::StreamExt;

use super::{Turn, TurnError, waiting};
use crate::acp::{MessageId, StopReason};
use crate::event::{Compaction, SessionEvent};
use crate::model::{ModelError, ModelEvent, ModelStop};
use crate::session::turn_message::{Summarised, Summary, TurnMessage};

/// Id of the notice of a `/compact` that summarised nothing.
pub(in crate::session) fn notice_id(turn: u64) -> MessageId {
    MessageId::new(format!("msg_{turn}_1"))
}

pub(super) async fn summarise(turn: &Turn, summary: Summary) -> Result<Option<StopReason>, TurnError> {
    tokio::select! {
        biased;
        () = turn.cancel.cancelled() => Ok(Some(StopReason::Cancelled)),
        done = request(turn, summary) => done.map(|_| None),
    }
}

/// Runs `/compact`, with a notice if there is no summary.
pub(super) async fn run(turn: &Turn) -> Result<StopReason, TurnError> {
    let message = match turn.ask_actor(|reply| TurnMessage::Compact { reply }).await? {
        None => Some("There is nothing to summarise yet.\n".to_owned()),
        Some(summary) => tokio::select! {
            biased;
            () = turn.cancel.cancelled() => return Ok(StopReason::Cancelled),
            done = request(turn, summary) => {
                done?.map(|reason| format!("Nothing was summarised: {reason}.\n"))
            }
        },
    };
    if let Some(text) = message {
        let message_id = notice_id(turn.number);
        turn.post_event(SessionEvent::Notice { message_id, text }).await?;
    }
    Ok(StopReason::EndTurn)
}

/// Returns the reason of a failure, which does not end the turn.
async fn request(turn: &Turn, summary: Summary) -> Result<Option<String>, TurnError> {
    let Summary { request, id, retained } = summary;
    turn.post_event(SessionEvent::Compaction { id: id.clone(), stage: Compaction::Started }).await?;
    let mut reply = turn.model.reply(request);
    let mut text = String::new();
    let mut waits = 0;
    let outcome = loop {
        match reply.next().await {
            Some(Ok(ModelEvent::Text(more))) => text.push_str(&more),
            Some(Ok(ModelEvent::Stop(_))) | None if text.trim().is_empty() => {
                break Err(ModelError::new("the summary is empty"));
            }
            Some(Ok(ModelEvent::Stop(ModelStop::Done))) => break Ok(text),
            Some(Ok(ModelEvent::Stop(_))) => break Err(ModelError::new("the summary is incomplete")),
            Some(Ok(
                ModelEvent::Thought(_)
                | ModelEvent::ProviderState(_)
                | ModelEvent::ToolCallStarted { .. }
                | ModelEvent::ToolCall { .. }
                | ModelEvent::Usage(_),
            )) => {}
            Some(Ok(ModelEvent::Waiting { reason, wait })) => {
                waits += 1;
                let message_id = MessageId::new(format!("{id}_{waits}"));
                turn.post_event(SessionEvent::Notice { message_id, text: waiting(&reason, wait) }).await?;
            }
            Some(Err(error)) => break Err(error),
            None => break Err(ModelError::new("the summary ended early")),
        }
    };
    let send_permit = turn.send_permit().await;
    let reason = outcome.as_ref().err().map(|error| error.text.clone());
    turn.post(TurnMessage::Summarised(Summarised { id, retained, outcome }, send_permit)).await?;
    Ok(reason)
}
