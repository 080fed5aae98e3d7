//! Starts a session's turns, handles their messages and ends them.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::actor::{Actor, RunningTurn};
use super::authorize::DenialCount;
use super::change_mode::DEADLINE;
use super::compact;
use super::event_log::title;
use super::handle::{CommandEnd, Prompt};
use super::spawn::Spawned;
use super::turn::{self, Turn, TurnError};
use super::turn_message::TurnMessage;
use crate::acp::{ContentBlock, MessageId, StopReason};
use crate::conversation::acp_updates;
use crate::error::AgentError;
use crate::event::{Compaction, SessionEvent, ToolCallUpdateEvent};
use crate::model::{Failure, ModelError};
use crate::tool::chat_question::{self, ChatQuestion};
use crate::workspace::ContentHash;

/// Capacity of a turn's channel to the actor. Small, so that a slow client slows the turn down.
const FROM_TURN: usize = 64;

#[derive(Default)]
pub(super) struct Turns {
    pub(super) running: Option<RunningTurn>,
    pub(super) queue: VecDeque<Prompt>,
    /// Completes once the last answer is on its way; the next prompt waits for it.
    pub(super) awaiting_ack: Option<oneshot::Receiver<()>>,
    /// Content of files that the model last saw.
    pub(super) seen: HashMap<PathBuf, ContentHash>,
    /// Questions that the user may answer by number.
    pub(super) chat_questions: Vec<ChatQuestion>,
}

impl Actor {
    pub(super) async fn begin_turn(&mut self, prompt: Prompt) {
        let prompt = self.resolve_chat_answer(prompt);
        let Prompt { content, compacts, typed, cancel, reply } = prompt;
        self.log.turns += 1;
        let turn = self.log.turns;
        self.approvals.denials = DenialCount::default();
        self.switches.rejections = 0;
        let message_id = MessageId::new(format!("msg_{turn}_0"));
        let title = (turn == 1).then(|| title(&content)).flatten();
        let external_agent = self.policy.agent.external_agent.is_some().then(|| self.policy.agent.id.clone());
        self.deliver_notes();
        let to_it = if external_agent.is_some() { content.clone() } else { Vec::new() };
        self.log.record(SessionEvent::UserMessage { message_id, content, typed }, None).await;
        if let Some(title) = title {
            self.log.record(SessionEvent::Title { title }, None).await;
        }
        if external_agent.is_none() {
            self.freeze_system_prompt().await;
        }
        for (number, text) in std::mem::take(&mut self.notes.for_user).into_iter().enumerate() {
            let message_id = MessageId::new(format!("msg_{turn}_n{number}"));
            self.log.record_notice(message_id, text).await;
        }
        if external_agent.is_none() {
            // External agents have servers of their own.
            self.context.tools.servers().start();
        }
        let (to_actor, messages) = mpsc::channel(FROM_TURN);
        let running = Turn {
            number: turn,
            compacts,
            external_agent,
            prompt: to_it,
            model: Arc::clone(&self.context.model),
            tools: self.context.tools.clone(),
            workspace: self.workspace.clone(),
            parallel: self.context.parallel,
            live: self.context.live,
            server_timeout: self.context.server_timeout.unwrap_or_default(),
            cancel: cancel.clone(),
            client: self.log.client.clone(),
            client_io: self.client_io.clone(),
            actor: to_actor,
            changes: self.checkpoints.changes.0.clone(),
            intents: self.intents(),
            snapshot: self.checkpoints.snapshot.clone(),
        };
        let task = tokio::spawn(turn::run(running));
        let command = compacts.then(|| CommandEnd { answer: compact::notice_id(turn), has_failed: false });
        self.turns.running = Some(RunningTurn { messages, cancel, task, reply, command });
    }

    /// Replaces numbers that answer questions in the chat by the answers' text.
    fn resolve_chat_answer(&mut self, mut prompt: Prompt) -> Prompt {
        let questions = std::mem::take(&mut self.turns.chat_questions);
        let [ContentBlock::Text(text)] = prompt.content.as_slice() else { return prompt };
        if let Some(answer) = chat_question::answer(&questions, &text.text) {
            let typed = std::mem::replace(&mut prompt.content, vec![answer.into()]);
            prompt.typed.get_or_insert(typed);
        }
        prompt
    }

    pub(super) async fn turn_message(&mut self, message: TurnMessage) {
        match message {
            TurnMessage::Event(event, send_permit) => {
                if let SessionEvent::ToolCallUpdate(update) = &event
                    && update.result.is_some()
                {
                    self.close_server_requests(&update.id);
                }
                self.log.record(event, send_permit).await;
            }
            TurnMessage::Progress { id, content, send_permit } => {
                self.log.send(acp_updates::progress(id, &content), send_permit);
            }
            TurnMessage::Finished { update, seen, job, questions, send_permit } => {
                self.turns.chat_questions.extend(questions);
                self.turns.seen.extend(seen);
                if let Some(job) = job {
                    self.add_job(job);
                }
                self.close_server_requests(&update.id);
                self.log.record(SessionEvent::ToolCallUpdate(update), send_permit).await;
            }
            TurnMessage::NextRequest { made, reply } => {
                // The turn may be cancelled by now.
                let _ = reply.send(self.next_request(made));
            }
            TurnMessage::Compact { reply } => {
                let _ = reply.send(self.summary_on_overflow());
            }
            TurnMessage::Summarised(summarised, send_permit) => {
                self.summarised(summarised, send_permit).await;
            }
            TurnMessage::Authorize { call, facts, fits, reply } => {
                let _ = reply.send(self.authorize(call, facts, fits).await);
            }
            TurnMessage::Snapshot { reply } => {
                let _ = reply.send(self.made_snapshot());
            }
            TurnMessage::InBand { found, reply } => self.in_band(found, reply).await,
            TurnMessage::Propose { call, proposal, reply } => self.propose(call, proposal, reply),
            TurnMessage::ExternalAgent { reply } => self.ready_external_agent(Some(reply)).await,
            TurnMessage::SessionAction { call, action, cancel, reply } => {
                let spawned = if cancel.is_cancelled() {
                    // The mode changed, or the call was cancelled, after the permit.
                    Spawned::Refused("The call was cancelled before it started.".into())
                } else {
                    self.start_session_action(call, action).await
                };
                let _ = reply.send(spawned);
            }
            TurnMessage::Ask { call, facts, preview, reply } => {
                self.ask(call, facts, &preview, true, reply).await;
            }
        }
    }

    pub(super) async fn turn_over(&mut self) {
        let Some(turn) = self.turns.running.take() else { return };
        self.close_questions(|_| true);
        self.close_switches();
        let outcome = turn.task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a turn panicked");
            Err(TurnError::Died)
        });
        let cancelled = turn.cancel.is_cancelled();
        if cancelled {
            // Ends background work of this turn, but not of earlier turns.
            let (turn, mut gate) = (self.log.turns, std::mem::take(&mut self.gate));
            self.handle_reports_during(gate.end_turn(turn, DEADLINE)).await;
            self.restore_gate(gate);
        }
        if let Some(id) = self.log.conversation.compacting.take() {
            self.log.record(SessionEvent::Compaction { id, stage: Compaction::Cancelled }, None).await;
        }
        for id in self.log.conversation.take_open_calls() {
            let result = if cancelled { "Cancelled by the user." } else { "The call was not carried out." };
            self.log
                .record(SessionEvent::ToolCallUpdate(ToolCallUpdateEvent::failed(id, result)), None)
                .await;
        }
        let outcome = match outcome {
            _ if cancelled => Ok(StopReason::Cancelled),
            Ok(reason) => Ok(reason),
            Err(TurnError::Model(ModelError { failure: Failure::Key, text })) => {
                Err(AgentError::AuthRequired(text))
            }
            Err(TurnError::Model(error)) => Err(AgentError::Model(error.text)),
            Err(TurnError::Died) => Err(AgentError::Internal),
        };
        if let Ok(reason) = outcome {
            self.log.record(SessionEvent::Stop { reason }, None).await;
        }
        self.requests.forget_transition_after(self.log.turns);
        self.requests.switch_notes.retain(|(_, is_sent)| !is_sent);
        self.deliver_notes();
        self.log.save().await;
        self.reply(turn.reply, outcome, turn.command);
        if self.turns.awaiting_ack.is_none() {
            self.start_next().await;
        }
    }
}
