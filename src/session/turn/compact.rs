//! The part of a turn that summarises the conversation.

use futures_util::StreamExt;

use super::message::{Room, Summarised, Summary, TurnMessage};
use super::reply::Interruptions;
use super::{Turn, TurnError, waiting};
use crate::acp::{MessageId, StopReason};
use crate::event::{Compaction, NoticeKind, SessionEvent};
use crate::model::{Failure, ModelError, ModelEvent, ModelRequest, ModelStop};

/// Requests for one summary that may be too long, each shorter than the one before.
const MAX_TOO_LONG: u32 = 4;

const CUT_SUMMARY: &str = "\n[The summary was cut here, at the output limit.]";

/// Id of the notice of a `/compact` that summarised nothing.
pub(crate) fn notice_id(turn: u64) -> MessageId {
    MessageId::new(format!("msg_{turn}_1"))
}

/// Summarises the conversation. Returns the turn's end if it was cancelled; a summary that fails does not end the turn.
pub(super) async fn summarise(turn: &Turn, summary: Summary) -> Result<Option<StopReason>, TurnError> {
    tokio::select! {
        biased;
        () = turn.cancel.cancelled() => Ok(Some(StopReason::Cancelled)),
        done = request(turn, summary) => done.map(|_| None),
    }
}

/// Makes the next request shorter than the one that was refused. Returns the turn's end if it was cancelled.
pub(super) async fn make_room(turn: &Turn, error: ModelError) -> Result<Option<StopReason>, TurnError> {
    match turn.ask_actor(|reply| TurnMessage::TooLong { error, reply }).await? {
        Room::Made => Ok(None),
        Room::Summarise(summary) => summarise(turn, summary).await,
        Room::Missing(error) => Err(TurnError::Model(error)),
    }
}

/// Runs `/compact`, with a notice if there is no summary.
pub(super) async fn run(turn: &Turn) -> Result<StopReason, TurnError> {
    let message = match turn.ask_actor(|reply| TurnMessage::Compact { refused: None, reply }).await? {
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
    let Summary { mut request, id, retained } = summary;
    turn.post_event(SessionEvent::Compaction { id: id.clone(), stage: Compaction::Started }).await?;
    let mut interruptions = Interruptions::default();
    let mut notices = 0;
    let mut too_long = 0;
    let outcome = loop {
        let outcome = summary_text(turn, request.clone(), &id, &mut notices).await?;
        let Err(error) = &outcome else { break outcome };
        if let Failure::ContextTooLong(excess) = error.failure
            && too_long < MAX_TOO_LONG
        {
            too_long += 1;
            let refused = Some(excess);
            let shorter = turn.ask_actor(|reply| TurnMessage::Compact { refused, reply }).await?;
            let Some(shorter) = shorter else { break outcome };
            request = shorter.request;
            continue;
        }
        let Some(wait) = interruptions.wait(error) else { break outcome };
        notice(turn, &id, &mut notices, waiting(&error.text, wait, None)).await?;
        tokio::time::sleep(wait).await;
    };
    let send_permit = turn.send_permit().await;
    let mut reason = outcome.as_ref().err().map(|error| error.text.clone());
    let summarised = Summarised { id: id.clone(), retained, outcome };
    if summarised.needs_list() {
        let why = reason.take().unwrap_or_default();
        let text = format!(
            "The model gave no summary ({why}), so the calls of the older part are listed instead.\n"
        );
        notice(turn, &id, &mut notices, text).await?;
    }
    turn.post(TurnMessage::Summarised(summarised, send_permit)).await?;
    Ok(reason)
}

async fn summary_text(
    turn: &Turn,
    request: ModelRequest,
    id: &str,
    notices: &mut u32,
) -> Result<Result<String, ModelError>, TurnError> {
    let mut reply = turn.request(request);
    let mut text = String::new();
    Ok(loop {
        match reply.next().await {
            Some(Ok(ModelEvent::Text(more))) => text.push_str(&more),
            Some(Ok(ModelEvent::Stop(_))) | None if text.trim().is_empty() => {
                break Err(ModelError { failure: Failure::NoAnswer, text: "the summary is empty".into() });
            }
            Some(Ok(ModelEvent::Stop(ModelStop::Done))) => break Ok(text),
            Some(Ok(ModelEvent::Stop(_))) => break Ok(text + CUT_SUMMARY),
            Some(Ok(ModelEvent::Waiting { reason, wait, limit })) => {
                notice(turn, id, notices, waiting(&reason, wait, limit)).await?;
            }
            Some(Ok(ModelEvent::Usage(usage))) => turn.post(TurnMessage::SummaryUsage(usage)).await?,
            Some(Ok(
                ModelEvent::Thought(_)
                | ModelEvent::ProviderState(_)
                | ModelEvent::ToolCallStarted { .. }
                | ModelEvent::ToolCall { .. },
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
