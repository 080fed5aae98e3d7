//! The part of a turn that summarises the conversation.

use futures_util::StreamExt;

use super::reply::Interruptions;
use super::{Turn, TurnError, waiting};
use crate::acp::{MessageId, StopReason};
use crate::event::{Compaction, NoticeKind, SessionEvent};
use crate::model::{ModelError, ModelEvent, ModelRequest, ModelStop};
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
        turn.post_notice(notice_id(turn.number), NoticeKind::Message, text).await?;
    }
    Ok(StopReason::EndTurn)
}

/// Returns the reason of a failure, which does not end the turn.
async fn request(turn: &Turn, summary: Summary) -> Result<Option<String>, TurnError> {
    let Summary { request, id, retained } = summary;
    turn.post_event(SessionEvent::Compaction { id: id.clone(), stage: Compaction::Started }).await?;
    let mut interruptions = Interruptions::default();
    let mut notices = 0;
    let outcome = loop {
        let outcome = summary_text(turn, request.clone(), &id, &mut notices).await?;
        let Err(error) = &outcome else { break outcome };
        let Some(wait) = interruptions.wait(error) else { break outcome };
        notice(turn, &id, &mut notices, waiting(&error.text, wait)).await?;
        tokio::time::sleep(wait).await;
    };
    let send_permit = turn.send_permit().await;
    let reason = outcome.as_ref().err().map(|error| error.text.clone());
    turn.post(TurnMessage::Summarised(Summarised { id, retained, outcome }, send_permit)).await?;
    Ok(reason)
}

async fn summary_text(
    turn: &Turn,
    request: ModelRequest,
    id: &str,
    notices: &mut u32,
) -> Result<Result<String, ModelError>, TurnError> {
    let mut reply = turn.context.model.reply(request);
    let mut text = String::new();
    Ok(loop {
        match reply.next().await {
            Some(Ok(ModelEvent::Text(more))) => text.push_str(&more),
            Some(Ok(ModelEvent::Stop(_))) | None if text.trim().is_empty() => {
                break Err(ModelError::new("the summary is empty"));
            }
            Some(Ok(ModelEvent::Stop(ModelStop::Done))) => break Ok(text),
            Some(Ok(ModelEvent::Stop(_))) => break Err(ModelError::new("the summary is incomplete")),
            Some(Ok(ModelEvent::Waiting { reason, wait })) => {
                notice(turn, id, notices, waiting(&reason, wait)).await?;
            }
            Some(Ok(
                ModelEvent::Thought(_)
                | ModelEvent::ProviderState(_)
                | ModelEvent::ToolCallStarted { .. }
                | ModelEvent::ToolCall { .. }
                | ModelEvent::Usage(_),
            )) => {}
            Some(Err(error)) => break Err(error),
            None => break Err(ModelError::new("the summary ended early")),
        }
    })
}

async fn notice(turn: &Turn, id: &str, notices: &mut u32, text: String) -> Result<(), TurnError> {
    *notices += 1;
    let message_id = MessageId::new(format!("{id}_{notices}"));
    turn.post_notice(message_id, NoticeKind::Warning, text).await
}
