//! The running turn of a session, and the prompts that wait for it.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::message::TurnMessage;
use crate::acp::{ContentBlock, MessageId, StopReason};
use crate::budget::BudgetUse;
use crate::client::TurnOutcome;
use crate::error::AgentError;
use crate::event::ToolCallUpdateEvent;
use crate::model::{Failure, ModelError};
use crate::permission::Target;
use crate::session::event_log::EventLog;
use crate::session::handle::Prompt;
use crate::session::insertion::InsertedPrompt;
use crate::session::prompt_end::{CommandEnd, EndReason, PromptEnd};
use crate::session::turn::TurnError;
use crate::tool::LastSeen;
use crate::tool::user::chat_question::{self, ChatQuestion};

const MAX_WAITING: usize = 8;

/// Capacity of a turn's channel to the actor. Small, so that a slow client slows the turn down.
pub(crate) const FROM_TURN: usize = 64;

pub(crate) type PromptReply = oneshot::Sender<Result<PromptEnd, AgentError>>;

#[derive(Default)]
pub(crate) struct Turns {
    pub(crate) running: Option<RunningTurn>,
    waiting: VecDeque<Prompt>,
    /// Complete once the last answers are on their way; the next prompt waits for them.
    awaiting_acks: VecDeque<oneshot::Receiver<()>>,
    /// Number of model requests in the running turn, or else in the last one.
    pub(crate) steps: u32,
    seen: HashMap<PathBuf, LastSeen>,
    /// Files that errors show to the model in its next request.
    shown: Vec<(PathBuf, LastSeen)>,
    /// Questions that the user may answer by number.
    pub(crate) chat_questions: Vec<ChatQuestion>,
}

pub(crate) struct RunningTurn {
    pub(crate) messages: mpsc::Receiver<TurnMessage>,
    pub(crate) cancel: CancellationToken,
    pub(crate) task: JoinHandle<Result<EndReason, TurnError>>,
    pub(crate) reply: PromptReply,
    /// Prompts that have joined the turn. They get its stop reason.
    pub(crate) joined: Vec<Prompt>,
    /// End of the command whose only work is this turn.
    pub(crate) command: Option<CommandEnd>,
    /// The budget that ends the turn.
    pub(crate) exceeded: Option<BudgetUse>,
}

#[allow(clippy::large_enum_variant, reason = "one at a time, moved once")]
pub(crate) enum TurnEvent {
    Message(TurnMessage),
    /// All messages of the running turn have been received.
    Over,
    /// The last answers are on their way.
    Acked,
}

impl RunningTurn {
    /// Waits for the task of a turn whose messages have ended.
    pub(crate) async fn outcome(self) -> (Result<EndReason, AgentError>, PromptReply, Option<CommandEnd>) {
        let outcome = self.task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a turn panicked");
            Err(TurnError::Died)
        });
        let outcome = match outcome {
            _ if self.cancel.is_cancelled() => Ok(StopReason::Cancelled.into()),
            Ok(reason) => Ok(reason),
            Err(TurnError::Model(ModelError { failure: Failure::Key, text })) => {
                Err(AgentError::AuthRequired(text))
            }
            Err(TurnError::Model(error)) => Err(AgentError::Model(error.text)),
            Err(TurnError::Died) => Err(AgentError::Internal),
        };
        let exceeded = self.exceeded.map(|exceeded| Ok(EndReason::BudgetExceeded(exceeded)));
        (exceeded.unwrap_or(outcome), self.reply, self.command)
    }
}

impl Turns {
    /// Records files that the model has read or written.
    pub(crate) fn saw(&mut self, files: Vec<(PathBuf, LastSeen)>) {
        self.shown.retain(|(path, _)| files.iter().all(|(seen, _)| seen != path));
        self.seen.extend(files);
    }

    /// Records files whose changes an error shows. Calls that the model has made already do not know them.
    pub(crate) fn show(&mut self, files: Vec<(PathBuf, LastSeen)>) {
        self.shown.extend(files);
    }

    /// The model makes its next calls.
    pub(crate) fn saw_shown(&mut self) {
        self.seen.extend(self.shown.drain(..));
    }

    pub(crate) fn last_seen(&self, targets: &[Target]) -> Vec<Option<LastSeen>> {
        targets.iter().map(|target| self.seen.get(&target.path).cloned()).collect()
    }

    /// After an undo. A note tells the model of it.
    pub(crate) fn forget(&mut self, files: &[PathBuf]) {
        self.seen.retain(|path, _| !files.contains(path));
        self.shown.retain(|(path, _)| !files.contains(path));
    }

    /// The conversation has been summarised.
    pub(crate) fn leave_context(&mut self) {
        self.shown.clear();
        self.seen.values_mut().for_each(|seen| seen.is_in_context = false);
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// True if no turn is running that may still start something.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.running.as_ref().is_none_or(|turn| turn.cancel.is_cancelled())
    }

    pub(crate) fn cancel_token(&self) -> Option<CancellationToken> {
        self.running.as_ref().map(|turn| turn.cancel.clone())
    }

    /// Notes the budget that ends the running turn. Returns false if one is noted already, or no turn runs.
    pub(crate) fn exceed(&mut self, exceeded: BudgetUse) -> bool {
        let running = self.running.as_mut();
        running.is_some_and(|turn| turn.exceeded.replace(exceeded).is_none())
    }

    /// True if the next prompt can start.
    pub(crate) fn is_ready(&self) -> bool {
        self.running.is_none() && self.awaiting_acks.is_empty()
    }

    /// Cancel-safe: a dropped call loses no event.
    pub(crate) async fn next(&mut self) -> TurnEvent {
        tokio::select! {
            biased;
            message = next_message(&mut self.running) => {
                message.map_or(TurnEvent::Over, TurnEvent::Message)
            }
            () = acked(&mut self.awaiting_acks) => TurnEvent::Acked,
        }
    }

    pub(crate) fn wait(&mut self, prompt: Prompt) {
        if self.waiting.len() < MAX_WAITING {
            return self.waiting.push_back(prompt);
        }
        let text =
            format!("{MAX_WAITING} prompts are already waiting in this session: wait for an answer first");
        let _ = prompt.reply.send(Err(AgentError::InvalidRequest(text)));
    }

    pub(crate) fn next_prompt(&mut self) -> Option<Prompt> {
        if self.is_ready() { self.waiting.pop_front() } else { None }
    }

    /// Returns `None` if a prompt with the same key is in the history, or waits: then the repeated one is told of
    /// the same message.
    pub(crate) fn unless_repeated(
        &mut self,
        mut prompt: Prompt,
        known_keys: &HashMap<String, MessageId>,
    ) -> Option<Prompt> {
        let Some(insertion) = prompt.insertion.take_if(|insertion| insertion.key.is_some()) else {
            return Some(prompt);
        };
        if let Some(message_id) = insertion.key.as_ref().and_then(|key| known_keys.get(key)) {
            insertion.tell(message_id);
            return None;
        }
        let mut insertions = self.waiting.iter_mut().filter_map(|prompt| prompt.insertion.as_mut());
        if let Some(first) = insertions.find(|first| first.key == insertion.key) {
            first.add(insertion);
            return None;
        }
        prompt.insertion = Some(insertion);
        Some(prompt)
    }

    /// Lets the next prompt join the running turn if it steers, and returns its message. No prompt overtakes
    /// another.
    pub(crate) fn join_next(
        &mut self,
        number: u64,
        may_steer: impl Fn(&Prompt) -> bool,
    ) -> Option<InsertedPrompt> {
        let running = self.running.as_mut().filter(|turn| !turn.cancel.is_cancelled())?;
        let prompt = self.waiting.front_mut().filter(|prompt| may_steer(prompt))?;
        let message = InsertedPrompt {
            message_id: MessageId::new(format!("msg_{number}_p{}", running.joined.len() + 1)),
            content: prompt.content.clone(),
            typed: prompt.typed.clone(),
            insertion: prompt.insertion.take(),
        };
        running.joined.extend(self.waiting.pop_front());
        Some(message)
    }

    /// Cancels the running turn if a prompt that has joined it is cancelled.
    pub(crate) fn cancel_with_joined(&self) {
        if let Some(turn) = &self.running
            && turn.joined.iter().any(|prompt| prompt.cancel.is_cancelled())
        {
            turn.cancel.cancel();
        }
    }

    pub(crate) fn answer_cancelled(&mut self, is_cancelled: impl Fn(&Prompt) -> bool, log: &mut EventLog) {
        let (cancelled, waiting): (VecDeque<_>, _) = self.waiting.drain(..).partition(is_cancelled);
        self.waiting = waiting;
        for prompt in cancelled {
            self.reply(prompt.reply, Ok(StopReason::Cancelled.into()), None, log);
        }
    }

    pub(crate) fn reply(
        &mut self,
        reply: PromptReply,
        outcome: Result<EndReason, AgentError>,
        command: Option<CommandEnd>,
        log: &mut EventLog,
    ) {
        let (ack, awaiting_ack) = oneshot::channel();
        let head = outcome.is_ok().then(|| log.unacked_head()).flatten();
        if reply.send(outcome.map(|reason| PromptEnd { reason, head, command, _ack: ack })).is_ok() {
            self.awaiting_acks.push_back(awaiting_ack);
        }
    }

    /// Replaces numbers that answer questions in the chat by the answers' text.
    pub(crate) fn resolve_chat_answer(&mut self, mut prompt: Prompt) -> Prompt {
        let questions = std::mem::take(&mut self.chat_questions);
        let [ContentBlock::Text(text)] = prompt.content.as_slice() else { return prompt };
        if let Some(answer) = chat_question::answer(&questions, &text.text) {
            let typed = std::mem::replace(&mut prompt.content, vec![answer.into()]);
            prompt.typed.get_or_insert(typed);
        }
        prompt
    }
}

/// Ends the calls that a turn left open.
pub(crate) fn end_open_calls(
    outcome: &Result<EndReason, AgentError>,
    is_cancelled: bool,
    log: &mut EventLog,
) {
    let result = match outcome {
        Ok(EndReason::BudgetExceeded(_)) => "Ended, because a budget is used up.",
        _ if is_cancelled => "Cancelled by the user.",
        _ => "The call was not carried out.",
    };
    for id in log.conversation_mut().take_open_calls() {
        log.record(ToolCallUpdateEvent::failed(id, result).cancelled(is_cancelled).into(), None);
    }
}

/// Returns the end of a turn in the client's terms.
pub(crate) fn outcome(outcome: &Result<EndReason, AgentError>) -> TurnOutcome {
    match outcome {
        Ok(reason) => TurnOutcome::Stopped(reason.stop_reason()),
        Err(error) => TurnOutcome::Failed { code: error.code(), message: error.to_string() },
    }
}

/// ACP's stop reason, or the kind of the error.
pub(crate) fn traced_outcome(outcome: &Result<EndReason, AgentError>) -> Result<&'static str, &'static str> {
    match outcome.as_ref().map(|reason| reason.stop_reason()) {
        Ok(StopReason::EndTurn) => Ok("end_turn"),
        Ok(StopReason::MaxTokens) => Ok("max_tokens"),
        Ok(StopReason::MaxTurnRequests) => Ok("max_turn_requests"),
        Ok(StopReason::Refusal) => Ok("refusal"),
        Ok(StopReason::Cancelled) => Ok("cancelled"),
        Ok(_) => Ok("other"),
        Err(AgentError::AuthRequired(_)) => Err("key"),
        Err(AgentError::Model(_)) => Err("model"),
        Err(_) => Err("_OTHER"),
    }
}

async fn next_message(turn: &mut Option<RunningTurn>) -> Option<TurnMessage> {
    match turn {
        Some(turn) => turn.messages.recv().await,
        None => std::future::pending().await,
    }
}

async fn acked(awaiting_acks: &mut VecDeque<oneshot::Receiver<()>>) {
    if awaiting_acks.is_empty() {
        std::future::pending::<()>().await;
    }
    while let Some(awaiting_ack) = awaiting_acks.front_mut() {
        // The sender is only ever dropped.
        let _ = awaiting_ack.await;
        awaiting_acks.pop_front();
    }
}
