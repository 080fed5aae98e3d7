//! Making room in the model's context: the actor says when and keeps what came of it, the turn asks the model.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::OwnedSemaphorePermit;

use super::actor::Actor;
use super::compaction::{self, Fill};
use super::turn::{Turn, TurnError};
use super::turn_message::TurnMessage;
use crate::acp::{MessageId, StopReason};
use crate::event::{Compaction, SessionEvent};
use crate::model::{ModelError, ModelEvent, ModelRequest, ModelStop};

/// A summary that is to be made.
pub(super) struct Summary {
    /// Who is asked what.
    pub(super) request: ModelRequest,
    /// Unique in the session.
    id: String,
    /// How many of the last messages stay.
    retained: usize,
}

/// What a summary came to.
pub(super) struct Summarised {
    id: String,
    retained: usize,
    outcome: Result<String, ModelError>,
}

impl Actor {
    /// The summary to be made before the next request, if its context would be too full. Not twice in a turn in vain.
    pub(super) fn summary_if_due(&mut self) -> Option<Summary> {
        let context = self.context.models.facts(&self.session.active.model).context;
        let tokens = self.session.fill.estimate(self.session.history.bytes());
        let is_tried = self.session.summarised_in == Some(self.session.turns);
        let in_vain = is_tried && self.session.fill.is_unknown();
        if in_vain || !compaction::is_due(tokens, context) {
            return None;
        }
        self.summary(context)
    }

    /// A summary that makes room after a request was too long: whatever was thought to fit, it did not.
    pub(super) fn summary_on_overflow(&mut self) -> Option<Summary> {
        let context = self.context.models.facts(&self.session.active.model).context;
        self.summary(context.min(compaction::tokens(self.session.history.bytes())))
    }

    /// A summary of everything but the last messages; none where there is nothing else.
    fn summary(&mut self, context: u64) -> Option<Summary> {
        let messages = self.session.history.messages();
        let retained = compaction::retained(&messages, context)?;
        let ordinal = self.session.requests;
        self.session.requests += 1;
        let request = ModelRequest {
            session: self.session.id.clone(),
            ordinal,
            model: self.session.active.model.clone(),
            effort: self.session.active.effort,
            system: self.session.system.clone().unwrap_or_default(),
            // The same tools as before, so that what is cached stays so; none of them is to be called.
            tools: self.offers.shown(),
            allowed: Some(Arc::default()),
            messages: compaction::question(&messages, retained),
        };
        Some(Summary { request, id: format!("compaction_{}", self.session.compactions + 1), retained })
    }

    /// Puts a summary into the place of what it is of.
    pub(super) async fn summarised(
        &mut self,
        summarised: Summarised,
        send_permit: Option<OwnedSemaphorePermit>,
    ) {
        let Summarised { id, retained, outcome } = summarised;
        let stage = match outcome {
            Ok(summary) => {
                let messages = self.session.history.messages();
                let request = self.session.last_prompt.as_deref();
                let request = request.filter(|words| !compaction::is_kept(&messages, retained, words));
                let preamble = compaction::preamble(&summary, request, &self.session.plan);
                Compaction::Done { summary, preamble, retained }
            }
            Err(error) => {
                tracing::warn!(%error, "the conversation could not be summarised");
                self.session.fill = Fill::unknown();
                Compaction::Failed { reason: error.text }
            }
        };
        self.session.summarised_in = Some(self.session.turns);
        self.record(SessionEvent::Compaction { id, stage }, send_permit).await;
        self.save().await;
    }
}

impl Turn {
    /// Has the model write a summary, unless the turn is cancelled meanwhile.
    pub(super) async fn summarise_or_stop(&self, summary: Summary) -> Result<Option<StopReason>, TurnError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Ok(Some(StopReason::Cancelled)),
            done = self.summarise(summary) => done.map(|_| None),
        }
    }

    /// Summarises because the user wants it, and says if there is nothing to show for it.
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
            let message_id = MessageId::new(format!("msg_{}_1", self.number));
            self.post_event(SessionEvent::Notice { message_id, text }).await?;
        }
        Ok(StopReason::EndTurn)
    }

    /// Has the model write a summary. That it failed is the actor's to know: the turn goes on with what there is. Returns why
    /// there is none.
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
                // A part of a summary, or a refusal, is none.
                Some(Ok(ModelEvent::Stop(_))) => break Err(ModelError::new("the summary is not whole")),
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
