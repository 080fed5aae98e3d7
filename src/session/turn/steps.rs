//! The loop of a turn: asks the model, runs the tool calls of its reply, and repeats.

use futures_util::StreamExt;

use super::check_calls::{self, CheckRounds};
use super::external_turn;
use super::message::{Next, TurnMessage};
use super::non_answer::{MAX_NON_ANSWERS, NonAnswer};
use super::reply::{Ids, Interruptions, Listener, RequestScope, interruption_notice};
use super::{After, Announced, Turn, TurnError};
use super::{background, compact};
use crate::acp::{MessageId, StopReason};
use crate::conversation::mode_switch::{FoundSwitch, SwitchReader};
use crate::event::{NoticeKind, SessionEvent};
use crate::model::{Failure, ModelStop};
use crate::session::prompt_end::EndReason;

const REFUSED_AGAIN: &str =
    "\nStopped: the same call was refused again and again. Change the mode, or ask for something else.\n";

const NO_ANSWER: &str = "\nStopped: the model gave no answer, although it was asked again. Send the prompt again, or choose another model.\n";

pub(crate) async fn run(mut turn: Turn) -> Result<EndReason, TurnError> {
    if turn.external_agent.is_some() {
        let prompt = std::mem::take(&mut turn.prompt);
        return external_turn::run(&turn, prompt).await;
    }
    if let Some(snapshot) = &turn.snapshot {
        // Skips changes that background jobs made between turns.
        turn.keep_changes(snapshot.begin_turn(&turn.cancel).await);
    }
    let server_timeout = turn.context.server_timeout.unwrap_or_default();
    let late = tokio::select! {
        () = turn.cancel.cancelled() => Vec::new(),
        late = turn.context.tools.servers().settle(server_timeout) => late,
    };
    if !late.is_empty() {
        let text = format!(
            "MCP servers still starting: {}. The turn begins without them; their tools become available when they \
             answer.\n\n",
            late.join(", ")
        );
        let message_id = MessageId::new(format!("msg_{}_late", turn.number));
        turn.post_notice(message_id, NoticeKind::Info, text).await?;
    }
    let outcome = if turn.compacts {
        compact::run(&turn).await.map(Into::into)
    } else {
        let mut ids = Ids::new(turn.number);
        match run_steps(&turn, &mut ids).await {
            Ok(end @ EndReason::Stop(StopReason::EndTurn)) if turn.context.requires_checks => {
                check_calls::checked(&turn, &mut ids, end).await
            }
            outcome => outcome,
        }
    };
    // A command of this turn may have created the snapshot.
    if let Some(snapshot) = turn.ask_actor(|reply| TurnMessage::Snapshot { reply }).await? {
        turn.keep_changes(snapshot.end_turn(&turn.cancel).await);
    }
    outcome
}

async fn run_steps(turn: &Turn, ids: &mut Ids) -> Result<EndReason, TurnError> {
    let mut steps = 0;
    let mut interruptions = Interruptions::default();
    let mut non_answers = 0;
    let mut check_rounds = CheckRounds::default();
    loop {
        let next = turn.ask_actor(|reply| TurnMessage::NextRequest { made: steps, reply }).await?;
        let (request, switches, is_read_only) = match next {
            None => return Ok(StopReason::MaxTurnRequests.into()),
            Some(Next::Ask { request, reads_switches, is_read_only }) => {
                (request, reads_switches.then(SwitchReader::default), is_read_only)
            }
            Some(Next::Summarise(summary)) => match compact::summarise(turn, summary).await? {
                Some(reason) => return Ok(reason.into()),
                None => continue,
            },
            Some(Next::Looping { question }) => {
                turn.post_notice(ids.message(), NoticeKind::Message, question).await?;
                return Ok(EndReason::Looping);
            }
        };
        let (model, scope) = (request.model.clone(), RequestScope::of(&request));
        let reply = turn.request(request);
        let step = tokio::select! {
            biased;
            () = turn.cancel.cancelled() => return Ok(StopReason::Cancelled.into()),
            step = Listener::new(turn, ids, &model, switches, scope).listen(reply) => step,
        };
        let step = match step {
            Err(TurnError::Model(error)) if matches!(error.failure, Failure::ContextTooLong(_)) => {
                match compact::make_room(turn, error).await? {
                    Some(reason) => return Ok(reason.into()),
                    None => continue,
                }
            }
            Err(TurnError::Model(error)) => {
                let Some(wait) = interruptions.wait(&error) else { return Err(TurnError::Model(error)) };
                let text = interruption_notice(&error.text, wait);
                turn.post_notice(ids.message(), NoticeKind::Warning, text).await?;
                tokio::select! {
                    () = turn.cancel.cancelled() => return Ok(StopReason::Cancelled.into()),
                    () = tokio::time::sleep(wait) => continue,
                }
            }
            step => step?,
        };
        steps += 1;
        interruptions = Interruptions::default();
        let non_answer = NonAnswer::of(&step);
        if step.found != FoundSwitch::Nothing {
            let ends = turn.ask_actor(|reply| TurnMessage::InBand { found: step.found, reply }).await?;
            if let Some(text) = ends {
                turn.post_notice(ids.message(), NoticeKind::Message, text).await?;
                return Ok(StopReason::EndTurn.into());
            }
        }
        if step.stop == ModelStop::Refusal {
            return Ok(StopReason::Refusal.into());
        }
        if step.calls.is_empty() && non_answer.is_none() {
            if background::goes_on(turn, ids.message()).await?
                || check_calls::goes_on(turn, ids, &mut check_rounds).await?
            {
                continue;
            }
            return Ok(StopReason::EndTurn.into());
        }
        // A cut reply may have complete calls before the incomplete one.
        non_answers = if step.calls.is_empty() { non_answers + 1 } else { 0 };
        let end = match turn.run_calls(step.calls, is_read_only).await? {
            After::Continue => None,
            After::Stop(text) => Some((text.into_owned(), StopReason::EndTurn.into())),
            After::RefusedAgain => Some((REFUSED_AGAIN.to_owned(), EndReason::RefusedAgain)),
        };
        if let Some((text, reason)) = end {
            turn.post_notice(ids.message(), NoticeKind::Message, text).await?;
            return Ok(reason);
        }
        if !turn.cancel.is_cancelled() {
            check_calls::after_calls(turn, ids, &mut check_rounds).await?;
        }
        if turn.cancel.is_cancelled() {
            return Ok(StopReason::Cancelled.into());
        }
        if let Some(non_answer) = non_answer
            && let Some(reason) = answer_non_answer(turn, ids, &non_answer, non_answers).await?
        {
            return Ok(reason);
        }
    }
}

/// Tells the model and the user about a reply that is no answer. Returns the turn's end after too many in a row.
async fn answer_non_answer(
    turn: &Turn,
    ids: &mut Ids,
    non_answer: &NonAnswer,
    count: u32,
) -> Result<Option<EndReason>, TurnError> {
    let note = SessionEvent::SystemNote { text: non_answer.note(), quotes: None };
    turn.post_event(note).await?;
    if count > MAX_NON_ANSWERS {
        return Ok(Some(match non_answer {
            NonAnswer::Cut { .. } | NonAnswer::ContextFull { .. } => StopReason::MaxTokens.into(),
            NonAnswer::Wordless | NonAnswer::WrittenCall(_) => {
                turn.post_notice(ids.message(), NoticeKind::Message, NO_ANSWER).await?;
                EndReason::NoAnswer
            }
        }));
    }
    turn.post_notice(ids.message(), NoticeKind::Warning, non_answer.notice()).await?;
    if !matches!(non_answer, NonAnswer::ContextFull { .. }) {
        return Ok(None);
    }
    match turn.ask_actor(|reply| TurnMessage::Compact { refused: None, reply }).await? {
        Some(summary) => Ok(compact::summarise(turn, summary).await?.map(Into::into)),
        // There is nothing to summarise, so another request would not fit, either.
        None => Ok(Some(StopReason::MaxTokens.into())),
    }
}

impl Turn {
    /// Runs consecutive calls of one [`Group`](super::Group) concurrently, all others one by one.
    async fn run_calls(&self, calls: Vec<Announced>, is_read_only: bool) -> Result<After, TurnError> {
        let mut calls = calls.into_iter().peekable();
        while let Some(call) = calls.next() {
            let kind = call.group(is_read_only);
            let mut group = vec![call];
            while let Some(next) = calls.next_if(|next| kind.is_some() && next.group(is_read_only) == kind) {
                group.push(next);
            }
            let outcomes: Vec<_> = futures_util::stream::iter(group)
                .map(|call| self.run_call(call))
                .buffer_unordered(self.context.parallel)
                .collect()
                .await;
            for outcome in outcomes {
                match outcome? {
                    After::Continue => {}
                    end => return Ok(end),
                }
            }
            if self.cancel.is_cancelled() {
                break;
            }
        }
        Ok(After::Continue)
    }
}
