//! Builds the next model request: history, tools and reminder under the current ceilings.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::actor::Actor;
use super::turn_message::Next;
use crate::conversation::neutralise::neutralise;
use crate::conversation::reminder::{self, Reader, Transition};
use crate::conversation::system_prompt::{self, Role};
use crate::mode::{InBand, Mode, ToolList};
use crate::model::{ModelRequest, ToolOffer};
use crate::permission::{self, CallFacts};
use crate::store::Row;
use crate::tool::{Tool, ToolSpec};

/// What the next model request depends on, apart from the policy and the conversation.
#[derive(Default)]
pub(super) struct Requests {
    /// Number of requests so far.
    pub(super) count: u64,
    /// System prompt, frozen at the first request.
    pub(super) system: Option<Arc<str>>,
    pub(super) offers: Offers,
    pub(super) is_reminded: bool,
    pub(super) transition: Option<PendingTransition>,
    /// Notes about mode switches, and whether a request has contained them.
    pub(super) switch_notes: Vec<(String, bool)>,
    /// Turn of the last summary.
    pub(super) summarised_in: Option<u64>,
}

pub(super) struct PendingTransition {
    pub(super) transition: Transition,
    during: Option<u64>,
    pub(super) acked: bool,
}

#[derive(Default)]
pub(super) struct Offers {
    shown: Arc<[ToolOffer]>,
    of: Vec<Arc<dyn Tool>>,
    available: Arc<[String]>,
}

impl Requests {
    /// Merges the change with one that no request has contained yet. A change back cancels both.
    pub(super) fn note_transition(&mut self, mut transition: Transition, during: Option<u64>) {
        if let Some(pending) = self.transition.take().filter(|pending| !pending.acked) {
            transition.from = pending.transition.from;
            transition.before = pending.transition.before;
            transition.unconfirmed += pending.transition.unconfirmed;
        }
        if transition.from != transition.to {
            self.transition = Some(PendingTransition { transition, during, acked: false });
        }
    }

    /// Drops a reported mode change at the end of the first turn that began after it.
    pub(super) fn forget_transition_after(&mut self, turn: u64) {
        if self.transition.as_ref().is_some_and(|pending| pending.acked && pending.during != Some(turn)) {
            self.transition = None;
        }
    }
}

impl Offers {
    pub(super) fn shown(&self) -> Arc<[ToolOffer]> {
        Arc::clone(&self.shown)
    }
}

impl Actor {
    /// Returns `None`, without side effects, once the turn has used all requests that the mode allows.
    pub(super) fn next_request(&mut self, requests: u32) -> Option<Next> {
        let modes = Arc::clone(&self.context.modes);
        let mode = modes.resolve(&self.policy.mode.0).ok();
        if requests >= mode.map_or(1, |mode| mode.max_steps) {
            return None;
        }
        if let Some(summary) = self.summary_if_due() {
            return Some(Next::Summarise(summary));
        }
        self.deliver_notes();
        self.policy.begin_reply();
        self.offer_tools(mode);
        let starting = self.servers_starting();
        let ceilings = self.policy.ceilings();
        let tools: Vec<CallFacts> = self.context.tools.all().iter().map(|tool| tool.spec().facts()).collect();
        let transition = self.requests.transition.as_mut().map(|pending| {
            pending.acked = true;
            &pending.transition
        });
        let mut notes: Vec<&str> = starting.as_deref().into_iter().collect();
        for (text, is_sent) in &mut self.requests.switch_notes {
            *is_sent = true;
            notes.push(text.as_str());
        }
        let mode_ids: Vec<&str> = modes.iter().map(|mode| mode.id.as_str()).collect();
        let is_subagent = self.policy.ancestry.parent.is_some();
        // An ancestor's mode may be tighter than the session's own.
        let above = mode.and_then(|own| self.policy.ancestry.tighter_than(own));
        let reminder = above.as_deref().or(mode).and_then(|mode| {
            reminder::compose(&reminder::Inputs {
                mode,
                reader: if is_subagent { Reader::Subagent } else { Reader::Agent },
                transition,
                notes: &notes,
                ceilings: &ceilings,
                grants: &self.policy.grants,
                tools: &tools,
                modes: &mode_ids,
            })
        });
        self.log_reminder(reminder.is_some());
        let position = mode.map(|mode| mode.reminder_position).unwrap_or_default();
        let reads_switches = !is_subagent && mode.is_some_and(|mode| mode.in_band_switch != InBand::Off);
        let ordinal = self.requests.count;
        self.requests.count += 1;
        let is_masked = self.requests.offers.shown.len() != self.requests.offers.available.len();
        let request = ModelRequest {
            session: self.log.id.clone(),
            ordinal,
            model: self.models.active.model.clone(),
            effort: self.models.active.effort,
            system: self.requests.system.clone().unwrap_or_default(),
            tools: Arc::clone(&self.requests.offers.shown),
            allowed: is_masked.then(|| Arc::clone(&self.requests.offers.available)),
            messages: reminder::splice(self.log.conversation.history.messages(), reminder, position),
        };
        Some(Next::Ask { request, reads_switches })
    }

    /// Logs the insertion and removal of reminders (G20, G48).
    fn log_reminder(&mut self, is_inserted: bool) {
        let (session, mode) = (&self.log.id, &self.policy.mode);
        if is_inserted {
            tracing::debug!(%session, %mode, "the reminder was inserted into the request");
        } else if self.requests.is_reminded {
            tracing::debug!(%session, %mode, "the reminder was removed: the request has none");
        }
        self.requests.is_reminded = is_inserted;
    }

    pub(super) async fn freeze_system_prompt(&mut self) {
        if self.requests.system.is_some() {
            return;
        }
        let now = self.log.now_ms();
        let role = Role { agent: &self.policy.agent, is_subagent: self.policy.ancestry.parent.is_some() };
        let (sources, skills) = (&self.context.sources, &self.context.skills);
        let text = system_prompt::make(sources, skills, self.workspace.cwd(), now, &role).await;
        self.log.store.post(Row::SystemPrompt { session: self.log.id.clone(), text: Arc::clone(&text) });
        self.requests.system = Some(text);
    }

    /// Offers tools that the ceilings do not deny, or all tools if the mode masks them.
    fn offer_tools(&mut self, mode: Option<&Mode>) {
        let (ceilings, grants) = (self.policy.ceilings(), &self.policy.grants);
        let all = self.context.tools.all();
        let is_available =
            |tool: &Arc<dyn Tool>| permission::is_available(&ceilings, grants, &tool.spec().facts());
        let available: Vec<Arc<dyn Tool>> = all.iter().filter(|tool| is_available(tool)).cloned().collect();
        let names = || available.iter().map(|tool| &*tool.spec().name);
        if !self.requests.offers.available.iter().map(String::as_str).eq(names()) {
            self.requests.offers.available = names().map(str::to_owned).collect();
        }
        let shown = match mode.and_then(|mode| mode.tool_list).unwrap_or_default() {
            ToolList::Hide => available,
            ToolList::Mask => all,
        };
        let is_same = self.requests.offers.of.len() == shown.len()
            && self.requests.offers.of.iter().zip(&shown).all(|(was, is)| Arc::ptr_eq(was, is));
        if !is_same {
            self.requests.offers.shown = shown.iter().map(|tool| offer(tool.spec())).collect();
            self.requests.offers.of = shown;
        }
    }
}

/// Neutralises the untrusted texts of MCP servers and project agents.
fn offer(spec: &ToolSpec) -> ToolOffer {
    let mut offer = spec.to_offer();
    if let Cow::Owned(safe) = neutralise(&offer.description) {
        offer.description = safe;
    }
    if let Cow::Owned(_) = spec.name {
        offer.schema = (&neutralise_strings(offer.schema.to_value())).into();
    }
    offer
}

fn neutralise_strings(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(neutralise(&text).into_owned()),
        Value::Array(values) => values.into_iter().map(neutralise_strings).collect(),
        Value::Object(members) => {
            let member =
                |(name, value): (String, Value)| (neutralise(&name).into_owned(), neutralise_strings(value));
            Value::Object(members.into_iter().map(member).collect())
        }
        value => value,
    }
}
