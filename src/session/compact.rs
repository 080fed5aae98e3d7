//! Compaction in a session: the actor decides and applies the result, the turn requests the summary.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::OwnedSemaphorePermit;

use super::actor::Actor;
use super::turn::{Turn, TurnError};
use super::turn_message::TurnMessage;
use crate::acp::{MessageId, StopReason};
use crate::conversation::compaction::{self, Fill};
use crate::event::{Compaction, SessionEvent};
use crate::model::{ModelError, ModelEvent, ModelRequest, ModelStop};

pub(super) struct Summary {
    pub(super) request: ModelRequest,
    /// Unique within the session.
    id: String,
    retained: usize,
}

pub(super) struct Summarised {
    id: String,
    retained: usize,
    outcome: Result<String, ModelError>,
}

impl Actor {
    /// Returns a summary if the next request would nearly fill the context. A turn tries once per count of
    /// the provider.
    pub(super) fn summary_if_due(&mut self) -> Option<Summary> {
        let context = self.context.models.facts(&self.models.active.model).context;
        let tokens = self.log.conversation.fill.estimate(self.log.conversation.history.bytes());
        let already_tried = self.requests.summarised_in == Some(self.log.turns);
        let is_futile = already_tried && self.log.conversation.fill.is_unknown();
        if is_futile || !compaction::is_due(tokens, context) {
            return None;
        }
        self.summary(context)
    }

    /// Ignores the estimate: for a request that was too long, and for `/compact`.
    pub(super) fn summary_on_overflow(&mut self) -> Option<Summary> {
        let context = self.context.models.facts(&self.models.active.model).context;
        self.summary(context.min(compaction::tokens(self.log.conversation.history.bytes())))
    }

    fn summary(&mut self, context: u64) -> Option<Summary> {
        let messages = self.log.conversation.history.messages();
        let retained = compaction::retained(&messages, context)?;
        let ordinal = self.requests.count;
        self.requests.count += 1;
        let request = ModelRequest {
            session: self.log.id.clone(),
            ordinal,
            model: self.models.active.model.clone(),
            effort: self.models.active.effort,
            system: self.requests.system.clone().unwrap_or_default(),
            // The same tools keep the provider's cache valid; `allowed` permits none of them.
            tools: self.requests.offers.shown(),
            allowed: Some(Arc::default()),
            messages: compaction::question(&messages, retained),
        };
        Some(Summary {
            request,
            id: format!("compaction_{}", self.log.conversation.compactions + 1),
            retained,
        })
    }

    pub(super) async fn summarised(
        &mut self,
        summarised: Summarised,
        send_permit: Option<OwnedSemaphorePermit>,
    ) {
        let Summarised { id, retained, outcome } = summarised;
        if let Some(command) = self.turns.running.as_mut().and_then(|turn| turn.command.as_mut()) {
            match &outcome {
                Ok(_) => command.answer = MessageId::new(id.as_str()),
                Err(_) => command.has_failed = true,
            }
        }
        let stage = match outcome {
            Ok(summary) => {
                let messages = self.log.conversation.history.messages();
                let request = self.log.conversation.last_prompt.as_deref();
                let request = request.filter(|words| !compaction::is_retained(&messages, retained, words));
                let preamble = compaction::preamble(&summary, request, &self.log.conversation.plan);
                Compaction::Done { summary, preamble, retained }
            }
            Err(error) => {
                tracing::warn!(%error, "the conversation could not be summarised");
                self.log.conversation.fill = Fill::unknown();
                Compaction::Failed { reason: error.text }
            }
        };
        self.requests.summarised_in = Some(self.log.turns);
        self.log.record(SessionEvent::Compaction { id, stage }, send_permit).await;
        self.log.save().await;
    }
}

/// Id of the notice of a `/compact` that summarised nothing.
pub(super) fn notice_id(turn: u64) -> MessageId {
    MessageId::new(format!("msg_{turn}_1"))
}

impl Turn {
    pub(super) async fn summarise_or_stop(&self, summary: Summary) -> Result<Option<StopReason>, TurnError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Ok(Some(StopReason::Cancelled)),
            done = self.summarise(summary) => done.map(|_| None),
        }
    }

    /// Runs `/compact`, with a notice if there is no summary.
    pub(super) async fn compact(&self) -> Result<StopReason, TurnError> {
        let message = match self.ask_actor(|reply| TurnMessage::Compact { reply }).await? {
            None => Some("There is nothing to summarise yet.\n".to_owned()),
            Some(summary) => tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Ok(StopReason::Cancelled),
                done = self.summarise(summary) => {
                    done?.map(|reason| format!("Nothing was summarised: {reason}.\n"))
                }
            },
        };
        if let Some(text) = message {
            let message_id = notice_id(self.number);
            self.post_event(SessionEvent::Notice { message_id, text }).await?;
        }
        Ok(StopReason::EndTurn)
    }

    /// Returns the reason of a failure, which does not end the turn.
    async fn summarise(&self, summary: Summary) -> Result<Option<String>, TurnError> {
        let Summary { request, id, retained } = summary;
        self.post_event(SessionEvent::Compaction { id: id.clone(), stage: Compaction::Started }).await?;
        let mut reply = self.model.reply(request);
        let mut text = String::new();
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
                    | ModelEvent::Usage(_)
                    | ModelEvent::Waiting { .. },
                )) => {}
                Some(Err(error)) => break Err(error),
                None => break Err(ModelError::new("the summary ended early")),
            }
        };
        let send_permit = self.send_permit().await;
        let reason = outcome.as_ref().err().map(|error| error.text.clone());
        self.post(TurnMessage::Summarised(Summarised { id, retained, outcome }, send_permit)).await?;
        Ok(reason)
    }
}
