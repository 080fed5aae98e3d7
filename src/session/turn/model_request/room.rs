//! Makes room in the model's context: by summaries, and by shortening what older messages contain.
//!
//! A summary that frees enough comes first, then results are shortened, then a list replaces the older
//! messages. Only the newest prompt can be too long by itself.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::Requests;
use crate::conversation::compaction::{self, Fill, Verbatim};
use crate::conversation::fitting::{self, Shortened};
use crate::event::{Compaction, SessionEvent};
use crate::model::catalog::image_limits;
use crate::model::excess::Excess;
use crate::model::{Block, Failure, ModelError, ToolOffer};
use crate::permission::Effect;
use crate::session::event_log::EventLog;
use crate::session::mode::decider::Decider;
use crate::session::mode::policy::Policy;
use crate::session::turn::context_window::{ContextFrame, StepNumber, prompt_too_long};
use crate::session::turn::message::{Room, Summarised, Summary};
use crate::session::turn::model_selection::Models;
use crate::text::grouped;

/// Bytes in Base64 of the images that stay in a request that was refused without a reason.
const MAX_REFUSED_IMAGES: usize = 1024 * 1024;

impl Requests {
    /// Bytes of the tools and the system prompt. 0 before the first request.
    pub(super) fn fixed_bytes(&self) -> usize {
        let tools: usize = self.offers.shown.iter().map(offer_bytes).sum();
        if tools == 0 { 0 } else { tools + self.system.as_ref().map_or(0, |system| system.len()) }
    }

    pub(crate) fn frame<'a>(&self, models: &'a Models, policy: &Policy) -> ContextFrame<'a> {
        let model = &models.active.model;
        let context = policy.context.context_tokens(model);
        // Without a limit, nothing is measured.
        let fixed = if context == u64::MAX { 0 } else { self.fixed_bytes() };
        ContextFrame { model, context, fixed }
    }

    /// Returns a summary if the next request would nearly fill the context and a summary helps. A turn tries again
    /// only once the conversation has grown.
    pub(crate) fn summary_if_due(
        &mut self,
        frame: ContextFrame<'_>,
        models: &Models,
        log: &mut EventLog,
    ) -> Option<Summary> {
        let conversation = log.conversation();
        let bytes = conversation.history.bytes();
        let tokens = conversation.fill.estimate(bytes, frame.fixed);
        let is_futile = conversation.fill.is_unknown()
            && self.summarised_in.is_some_and(|(turn, after)| {
                turn == log.turn() && bytes <= after.saturating_add(compaction::bytes_of(frame.context / 5))
            });
        if is_futile || !compaction::is_due(tokens, frame.context) {
            return None;
        }
        // Rather than summarising a few words, shorten the result that fills the context.
        let messages = log.messages();
        let retained = compaction::retained(&messages, frame.context)?;
        if !compaction::is_worthwhile(&messages, retained)
            && log.conversation().history.can_shorten(bytes / 5 * 4)
        {
            return None;
        }
        self.summary(frame.context, frame, models, log)
    }

    /// Ignores the estimate: for `/compact`, and for a request that was too long. `refused` says that the last
    /// request for a summary was.
    pub(crate) fn summary_of_all(
        &mut self,
        refused: Option<Excess>,
        frame: ContextFrame<'_>,
        models: &Models,
        log: &mut EventLog,
    ) -> Option<Summary> {
        if let Some(excess) = refused {
            self.window.refuse(frame.model, excess, (log.turn(), u32::MAX));
        }
        let context = frame.context.min(compaction::tokens(log.conversation().history.bytes()));
        self.summary(context, frame, models, log)
    }

    /// `context` determines how many messages stay.
    fn summary(
        &mut self,
        context: u64,
        frame: ContextFrame<'_>,
        models: &Models,
        log: &mut EventLog,
    ) -> Option<Summary> {
        let messages = log.messages();
        let retained = compaction::retained(&messages, context)?;
        self.prompts_budget = compaction::prompts_budget(context);
        let mut question = compaction::question(&messages, retained);
        // The history keeps what only the request for a summary cannot contain.
        fitting::shorten(&mut question, None, self.window.summary_budget(frame));
        let size: usize = question.iter().flat_map(|message| &message.blocks).map(Block::bytes).sum();
        self.window.note_sent(frame.fixed + size, 0);
        // The same tools keep the provider's cache valid, but the request allows none of them.
        let request = self.request(models, log, Some(Arc::default()), question);
        Some(Summary { request, id: format!("compaction_{}", log.conversation().compactions + 1), retained })
    }

    /// Replaces results that later calls repeat once the next request fills half of the context, long before it
    /// needs a summary.
    pub(crate) fn supersede(frame: ContextFrame<'_>, decider: &mut Decider) {
        let conversation = decider.log.conversation_mut();
        let bytes = conversation.history.bytes();
        if conversation.fill.estimate(bytes, frame.fixed) <= frame.context / 2 {
            return;
        }
        let tools = decider.policy.context.tools.all();
        let specs = tools.iter().map(|tool| tool.spec());
        let readers: HashSet<&str> =
            specs.filter(|spec| spec.effect == Effect::Read).map(|spec| &*spec.name).collect();
        let saved = conversation.history.supersede(|name| readers.contains(name));
        if saved > 0 {
            conversation.fill.shorten(bytes, saved);
            tracing::debug!(saved, "superseded results were replaced");
        }
    }

    /// Shortens older content if the next request would not fit otherwise.
    pub(crate) fn fit(&mut self, frame: ContextFrame<'_>, log: &mut EventLog) -> Shortened {
        let (count, bytes) = image_limits(frame.model);
        log.conversation_mut().history.limit_images(count, bytes);
        self.window.fit(log.conversation_mut(), frame)
    }

    /// Makes room after the server refused a request as too long: by a summary, by shortening results, by a list
    /// of what was done; and if the newest prompt alone is too long, by leaving that out.
    pub(crate) fn too_long(
        &mut self,
        error: ModelError,
        step: StepNumber,
        frame: ContextFrame<'_>,
        models: &Models,
        log: &mut EventLog,
    ) -> (Room, Shortened) {
        let excess = match error.failure {
            Failure::ContextTooLong(excess) => excess,
            _ => Excess::default(),
        };
        let Some(refusals) = self.window.refuse(frame.model, excess, step) else {
            return (Room::Missing(error), Shortened::default());
        };
        // Without numbers, the body may be too large rather than the context too small.
        if excess == Excess::default()
            && log.conversation_mut().history.limit_images(usize::MAX, MAX_REFUSED_IMAGES)
        {
            return (Room::Made, Shortened::default());
        }
        let messages = log.messages();
        let context = frame.context.min(compaction::tokens(log.conversation().history.bytes()));
        let retained = compaction::retained(&messages, context);
        if refusals == 1
            && retained.is_some_and(|retained| compaction::is_worthwhile(&messages, retained))
            && let Some(summary) = self.summary(context, frame, models, log)
        {
            return (Room::Summarise(summary), Shortened::default());
        }
        let shortened = self.window.fit(log.conversation_mut(), frame);
        if shortened.saved > 0 {
            return (Room::Made, shortened);
        }
        let least = compaction::retained(&messages, 0).filter(|least| messages.len() > least + 1);
        if let Some(least) = least {
            self.list_older(least, log);
            return (Room::Made, shortened);
        }
        (Room::Missing(self.drop_prompt(error, excess, frame, log)), shortened)
    }

    /// Replaces all messages but the last ones by a list.
    fn list_older(&mut self, retained: usize, log: &mut EventLog) {
        let id = format!("compaction_{}", log.conversation().compactions + 1);
        log.record(SessionEvent::Compaction { id: id.clone(), stage: Compaction::Started }, None);
        let messages = log.messages();
        let summary = compaction::listed(&messages[..messages.len() - retained]);
        let stage = self.done(summary, retained, log);
        log.record(SessionEvent::Compaction { id, stage }, None);
    }

    /// Leaves out the newest prompt if it is what does not fit. Returns the error for the user.
    fn drop_prompt(
        &self,
        error: ModelError,
        excess: Excess,
        frame: ContextFrame<'_>,
        log: &mut EventLog,
    ) -> ModelError {
        let bytes = log.conversation().history.unanswered_prompt_bytes();
        let Some(bytes) = bytes.filter(|bytes| *bytes >= self.window.sent() / 4) else { return error };
        let size = grouped(bytes);
        let note =
            format!("The user's message here ({size} bytes) was too long for your context and is left out.");
        log.record(SessionEvent::PromptDropped { note }, None);
        let limit = excess.limit.unwrap_or(frame.context);
        ModelError { text: prompt_too_long(bytes, limit, frame.model), ..error }
    }

    pub(crate) async fn summarised(
        &mut self,
        summarised: Summarised,
        send_permit: Option<OwnedSemaphorePermit>,
        log: &mut EventLog,
    ) {
        let needs_list = summarised.needs_list();
        let Summarised { id, retained, outcome } = summarised;
        let outcome = if needs_list {
            let messages = log.messages();
            Ok(compaction::listed(&messages[..messages.len().saturating_sub(retained)]))
        } else {
            outcome
        };
        let stage = match outcome {
            Ok(summary) => self.done(summary, retained, log),
            Err(error) => {
                tracing::warn!(%error, "the conversation could not be summarised");
                log.conversation_mut().fill = Fill::unknown();
                Compaction::Failed { reason: error.text }
            }
        };
        log.record(SessionEvent::Compaction { id, stage }, send_permit);
        self.summarised_in = Some((log.turn(), log.conversation().history.bytes()));
        log.save().await;
    }

    /// The reminder of the next request stands behind the summary, and no longer states an earlier switch.
    fn done(&mut self, summary: String, retained: usize, log: &mut EventLog) -> Compaction {
        self.reminder_place.reset();
        self.transition.take_if(|pending| pending.is_over);
        let messages = log.messages();
        let conversation = log.conversation();
        let prompts = conversation.prompts.iter().map(String::as_str);
        let prompts: Vec<&str> =
            prompts.filter(|words| !compaction::is_retained(&messages, retained, words)).collect();
        let verbatim = Verbatim {
            prompts: &prompts,
            forgotten: conversation.forgotten_prompts,
            budget: self.prompts_budget,
            accepted_plan: conversation.accepted_plan.as_deref(),
            tasks: &conversation.plan,
        };
        let preamble = compaction::preamble(&summary, verbatim);
        Compaction::Done { summary, preamble, retained }
    }
}

fn offer_bytes(offer: &ToolOffer) -> usize {
    offer.name.len() + offer.description.len() + offer.schema.as_json().get().len()
}
