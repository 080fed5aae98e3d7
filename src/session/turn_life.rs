//! A turn's life in its session: how it begins, what its messages change, and how it ends.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::actor::{Actor, RunningTurn};
use super::authorize::DenialCount;
use super::begun::Begun;
use super::change_mode::BOUND;
use super::encoder;
use super::handle::Prompt;
use super::record::title;
use super::turn::{self, Turn, TurnError};
use super::turn_message::TurnMessage;
use crate::acp::{ContentBlock, MessageId, StopReason};
use crate::error::AgentError;
use crate::event::{Compaction, SessionEvent, ToolCallUpdateEvent};
use crate::model::{Failure, ModelError};
use crate::tool::chat_question;

/// Messages from a turn that wait for the loop. Small, so that a client that does not read slows the turn down.
const FROM_TURN: usize = 64;

impl Actor {
    pub(super) async fn begin_turn(&mut self, prompt: Prompt) {
        let prompt = self.in_words(prompt);
        let Prompt { content, compacts, typed, cancel, reply } = prompt;
        self.session.turns += 1;
        let turn = self.session.turns;
        self.denials = DenialCount::default();
        self.switch_rejections = 0;
        let message_id = MessageId::new(format!("msg_{turn}_0"));
        let title = (turn == 1).then(|| title(&content)).flatten();
        let outside = self.session.agent.harness.is_some().then(|| self.session.agent.id.clone());
        self.deliver_notes();
        let to_it = if outside.is_some() { content.clone() } else { Vec::new() };
        self.record(SessionEvent::UserMessage { message_id, content, typed }, None).await;
        if let Some(title) = title {
            self.record(SessionEvent::Title { title }, None).await;
        }
        if outside.is_none() {
            self.freeze_system_prompt().await;
        }
        for (number, text) in std::mem::take(&mut self.session.notices).into_iter().enumerate() {
            let message_id = MessageId::new(format!("msg_{turn}_n{number}"));
            self.record(SessionEvent::Notice { message_id, text }, None).await;
        }
        if outside.is_none() {
            // It has its own.
            self.shared.tools.servers().start();
        }
        let (to_actor, messages) = mpsc::channel(FROM_TURN);
        let running = Turn {
            number: turn,
            compacts,
            outside,
            prompt: to_it,
            model: Arc::clone(&self.shared.model),
            tools: self.shared.tools.clone(),
            workspace: self.session.workspace.clone(),
            parallel: self.shared.parallel,
            live: self.shared.live,
            patience: self.shared.patience.unwrap_or_default(),
            cancel: cancel.clone(),
            client: self.client.clone(),
            editor: self.editor.clone(),
            actor: to_actor,
            changes: self.changes.0.clone(),
            intents: self.intents(),
            shadow: self.shadow.clone(),
        };
        let task = tokio::spawn(turn::run(running));
        self.turn = Some(RunningTurn { messages, cancel, task, reply });
    }

    /// A prompt, in words if it answers questions in the chat by numbers.
    fn in_words(&mut self, mut prompt: Prompt) -> Prompt {
        let questions = std::mem::take(&mut self.session.questions);
        let [ContentBlock::Text(text)] = prompt.content.as_slice() else { return prompt };
        if let Some(answer) = chat_question::answer(&questions, &text.text) {
            let typed = std::mem::replace(&mut prompt.content, vec![answer.into()]);
            prompt.typed.get_or_insert(typed);
        }
        prompt
    }

    pub(super) async fn turn_message(&mut self, message: TurnMessage) {
        match message {
            TurnMessage::Event(event, room) => {
                if let SessionEvent::ToolCallUpdate(update) = &event
                    && update.result.is_some()
                {
                    self.close_wishes(&update.id);
                }
                self.record(event, room).await;
            }
            TurnMessage::Progress { id, content, room } => {
                self.client.update(self.session.id.clone(), encoder::progress(id, &content), room);
            }
            TurnMessage::Finished { update, seen, job, questions, room } => {
                self.session.questions.extend(questions);
                self.session.seen.extend(seen);
                if let Some(job) = job {
                    self.add_job(job);
                }
                self.close_wishes(&update.id);
                self.record(SessionEvent::ToolCallUpdate(update), room).await;
            }
            TurnMessage::NextRequest { made, reply } => {
                // The turn may have been cancelled while it asked.
                let _ = reply.send(self.next_request(made));
            }
            TurnMessage::MakeRoom { reply } => {
                let _ = reply.send(self.summary_to_make_room());
            }
            TurnMessage::Summarised(summarised, room) => self.summarised(summarised, room).await,
            TurnMessage::Authorize { call, facts, fits, reply } => {
                let _ = reply.send(self.authorize(call, facts, fits).await);
            }
            TurnMessage::Shadow { reply } => {
                let _ = reply.send(self.made_shadow());
            }
            TurnMessage::InBand { found, reply } => self.in_band(found, reply).await,
            TurnMessage::Propose { call, proposal, reply } => self.propose(call, proposal, reply),
            TurnMessage::Outside { reply } => self.ready_outer(Some(reply)).await,
            TurnMessage::Errand { call, errand, cancel, reply } => {
                let begun = if cancel.is_cancelled() {
                    // A mode change or a cancel came after the leave.
                    Begun::Refused("It was called off before it began.".into())
                } else {
                    self.begin_errand(call, errand).await
                };
                let _ = reply.send(begun);
            }
            TurnMessage::Ask { call, facts, preview, reply } => {
                self.ask(call, facts, &preview, true, reply).await;
            }
        }
    }

    pub(super) async fn turn_over(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        self.close_questions(|_| true);
        self.close_switches();
        let outcome = turn.task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a turn died");
            Err(TurnError::Died)
        });
        let cancelled = turn.cancel.is_cancelled();
        if cancelled {
            // What the turn began and was to go on after it ends with it; what earlier turns began goes on.
            let (turn, mut gate) = (self.session.turns, std::mem::take(&mut self.gate));
            self.hearing(gate.end_turn(turn, BOUND)).await;
            self.put_back(gate);
        }
        if let Some(id) = self.session.compacting.take() {
            self.record(SessionEvent::Compaction { id, stage: Compaction::Cancelled }, None).await;
        }
        let begun = std::mem::take(&mut self.session.begun_calls);
        let mut open: Vec<_> = self.session.open_calls.keys().cloned().chain(begun).collect();
        open.sort_by(|a, b| a.0.cmp(&b.0));
        for id in open {
            let result = if cancelled { "Cancelled by the user." } else { "The call was not carried out." };
            self.record(SessionEvent::ToolCallUpdate(ToolCallUpdateEvent::failed(id, result)), None).await;
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
            self.record(SessionEvent::Stop { reason }, None).await;
        }
        self.session.forget_transition_after(self.session.turns);
        self.session.for_model.retain(|(_, told)| !told);
        self.deliver_notes();
        self.save().await;
        self.tell(turn.reply, outcome);
        if self.telling.is_none() {
            self.start_next().await;
        }
    }
}
