//! Builds the next model request: history, tools and reminder under the current ceilings.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use conditions::{Conditions, StatedTransition};

use super::context_window::ContextWindow;
use super::message::{Next, Summary};
use super::model_selection::Models;
use crate::conversation::neutralise::{map_strings, neutralise};
use crate::conversation::reminder::Transition;
use crate::conversation::reminder::placement::Placement;
use crate::conversation::system_prompt::{self, PromptRole};
use crate::mode::{InBand, Mode, ReminderPosition, ToolList};
use crate::model::{EncodedHistory, Message, ModelId, ModelRequest, ToolOffer, TraceContext};
use crate::session::event_log::EventLog;
use crate::session::mode::decider::Decider;
use crate::session::mode::switch::Switches;
use crate::session::servers;
use crate::store::Row;
use crate::tool::{Tool, ToolSpec};

mod conditions;
mod room;

/// Inputs of the next model request, apart from the policy and the conversation.
#[derive(Default)]
pub(crate) struct Requests {
    /// Number of requests so far.
    pub(crate) count: u64,
    /// System prompt, frozen at the first request.
    pub(crate) system: Option<Arc<str>>,
    pub(crate) trace: Option<Arc<TraceContext>>,
    encoded: Arc<EncodedHistory>,
    offers: Offers,
    /// The inputs of `offers` and `reminder`.
    conditions: Option<Box<Conditions>>,
    /// The reminder of a request without notes.
    reminder: Option<String>,
    is_reminded: bool,
    reminder_place: Placement,
    transition: Option<PendingTransition>,
    /// Turn of the last summary, and the bytes of the conversation after it.
    summarised_in: Option<(u64, usize)>,
    window: ContextWindow,
    /// Bytes of the user's older messages that this summary keeps.
    prompts_budget: usize,
    /// Model of the last request.
    pub(crate) asked: Option<ModelId>,
}

struct PendingTransition {
    transition: Transition,
    during: Option<u64>,
    acked: bool,
    /// Only a reminder that stands anyway still states the change.
    is_over: bool,
}

#[derive(Default)]
struct Offers {
    shown: Arc<[ToolOffer]>,
    /// Number of tools at the start of the list that a mode change keeps.
    lasting: usize,
    of: Vec<Arc<dyn Tool>>,
    available: Arc<[String]>,
}

impl Requests {
    pub(crate) fn resume(&mut self, system_prompt: Option<Arc<str>>, transition: Option<Transition>) {
        self.system = system_prompt;
        if let Some(transition) = transition {
            self.note_transition(transition, None);
        }
    }

    /// Merges the change with one that no request has contained yet. A change back cancels both.
    pub(crate) fn note_transition(&mut self, mut transition: Transition, during: Option<u64>) {
        if let Some(pending) = self.transition.take().filter(|pending| !pending.acked) {
            transition.from = pending.transition.from;
            transition.before = pending.transition.before;
            transition.unconfirmed += pending.transition.unconfirmed;
        }
        if transition.from != transition.to {
            self.transition = Some(PendingTransition { transition, during, acked: false, is_over: false });
        }
    }

    /// Ends the report of a mode change with the first turn that began after it. A reminder that stands without
    /// it keeps it until the next compaction, because another text would lose what providers have cached.
    pub(crate) fn end_transition_after(&mut self, turn: u64) {
        if let Some(pending) = &mut self.transition {
            pending.is_over |= pending.acked && pending.during != Some(turn);
        }
    }

    /// Builds the next request of a turn, under the current ceilings. `summary_due` precedes it.
    pub(crate) fn next(
        &mut self,
        decider: &mut Decider,
        models: &Models,
        switches: &mut Switches,
        has_background_work: bool,
    ) -> Next {
        decider.policy.begin_reply();
        let context = Arc::clone(&decider.policy.context);
        let mode = context.modes.resolve(&decider.policy.mode.0).ok();
        let conditions = Conditions::now(&decider.policy, has_background_work, self.stated_transition());
        let starting = servers::starting(&context.tools);
        if let Some(pending) = &mut self.transition {
            pending.acked = true;
        }
        let notes: Vec<&str> = starting.as_deref().into_iter().chain(switches.notes()).collect();
        let is_subagent = decider.policy.ancestry.parent.is_some();
        if self.conditions.as_deref() != Some(&conditions) {
            self.offers.update(&conditions);
            self.reminder = conditions.reminder(&[]);
            self.conditions = Some(Box::new(conditions));
        }
        let reminder = match &self.conditions {
            Some(conditions) if !notes.is_empty() => conditions.reminder(&notes),
            _ => self.reminder.clone(),
        };
        self.log_reminder(reminder.is_some(), decider);
        let position = position(mode);
        let reads_switches = !is_subagent && mode.is_some_and(|mode| mode.in_band_switch != InBand::Off);
        let is_masked = self.offers.shown.len() != self.offers.available.len();
        let reminder_bytes = reminder.as_ref().map_or(0, String::len);
        let messages = self.reminder_place.splice(decider.log.messages(), reminder, position);
        let conversation_bytes = decider.log.conversation().history.bytes();
        self.window.note_sent(self.fixed_bytes() + conversation_bytes + reminder_bytes, reminder_bytes);
        let allowed = is_masked.then(|| Arc::clone(&self.offers.available));
        let is_read_only = decider.policy.starts_only_readers();
        let request = self.request(models, &decider.log, allowed, messages);
        Next::Ask { request, reads_switches, is_read_only }
    }

    fn stated_transition(&self) -> Option<StatedTransition> {
        self.transition.as_ref().map(|pending| StatedTransition {
            transition: pending.transition.clone(),
            is_over: pending.is_over,
        })
    }

    /// Adds the reminder to a request for a summary, which offers the tools of the mode, too.
    pub(crate) fn remind(&self, summary: &mut Summary, decider: &Decider) {
        let conditions = Conditions::now(&decider.policy, false, self.stated_transition());
        let (reminder, position) = (conditions.reminder(&[]), position(conditions.mode()));
        let messages = std::mem::take(&mut summary.request.messages);
        summary.request.messages = self.reminder_place.clone().splice(messages, reminder, position);
    }

    /// Counts and builds a request. `allowed` restricts the tools of the list.
    fn request(
        &mut self,
        models: &Models,
        log: &EventLog,
        allowed: Option<Arc<[String]>>,
        messages: Vec<Arc<Message>>,
    ) -> ModelRequest {
        let ordinal = self.count;
        self.count += 1;
        self.asked = Some(models.active.model.clone());
        ModelRequest {
            session: log.id().clone(),
            ordinal,
            model: models.active.model.clone(),
            effort: models.active.effort,
            system: self.system.clone().unwrap_or_default(),
            tools: Arc::clone(&self.offers.shown),
            lasting_tools: self.offers.lasting,
            allowed,
            messages,
            trace: self.trace.clone(),
            encoded: Arc::clone(&self.encoded),
        }
    }

    /// Logs the insertion and removal of reminders (G20, G48).
    fn log_reminder(&mut self, is_inserted: bool, decider: &Decider) {
        let Decider { policy, log, .. } = decider;
        let (session, mode) = (log.id(), &policy.mode);
        if is_inserted {
            tracing::debug!(%session, %mode, "the reminder was inserted into the request");
        } else if self.is_reminded {
            tracing::debug!(%session, %mode, "the reminder was removed: the request has none");
        }
        self.is_reminded = is_inserted;
    }

    pub(crate) async fn freeze_system_prompt(&mut self, decider: &mut Decider, cwd: &Path) {
        let Decider { policy, log, .. } = decider;
        if self.system.is_some() {
            return;
        }
        let now = log.now_ms();
        let context = &policy.context;
        let (is_subagent, client) = (policy.ancestry.parent.is_some(), context.client_prompt.as_deref());
        let role = PromptRole { agent: &policy.agent, is_subagent, client, checks: &context.checks };
        let (sources, skills) = (&context.sources, &context.skills);
        let text = system_prompt::make(sources, skills, cwd, now, &role).await;
        log.queue(Row::SystemPrompt { session: log.id().clone(), text: Arc::clone(&text) });
        self.system = Some(text);
    }
}

/// Order of the list, so that a mode change keeps its start, and with it a provider's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ListPlace {
    EveryMode,
    ReadOnlyModes,
    ChangingModes,
}

impl ListPlace {
    fn of(spec: &ToolSpec) -> Self {
        if spec.effect.is_change() {
            Self::ChangingModes
        } else if spec.is_exit {
            Self::ReadOnlyModes
        } else {
            Self::EveryMode
        }
    }
}

fn position(mode: Option<&Mode>) -> ReminderPosition {
    mode.map(|mode| mode.reminder_position).unwrap_or_default()
}

impl Offers {
    /// Offers tools that the ceilings do not deny, or all tools if the mode masks them.
    fn update(&mut self, conditions: &Conditions) {
        let available = conditions.available_tools();
        let names = || available.iter().map(|tool| &*tool.spec().name);
        if !self.available.iter().map(String::as_str).eq(names()) {
            self.available = names().map(str::to_owned).collect();
        }
        let mut tools = match conditions.mode().and_then(|mode| mode.tool_list).unwrap_or_default() {
            ToolList::Hide => available,
            ToolList::Mask => conditions.tools.clone(),
        };
        tools.sort_by_key(|tool| ListPlace::of(tool.spec()));
        let is_same =
            self.of.len() == tools.len() && self.of.iter().zip(&tools).all(|(was, is)| Arc::ptr_eq(was, is));
        if !is_same {
            self.shown = tools.iter().map(|tool| offer(tool.spec())).collect();
            self.lasting = tools.partition_point(|tool| ListPlace::of(tool.spec()) == ListPlace::EveryMode);
            self.of = tools;
        }
    }
}

/// Neutralises the untrusted texts of MCP servers and project agents.
fn offer(spec: &ToolSpec) -> ToolOffer {
    let mut offer = spec.to_offer();
    if let Cow::Owned(safe) = neutralise(&offer.description) {
        offer.description = safe.into();
    }
    if let Cow::Owned(_) = spec.name {
        offer.schema = (&map_strings(offer.schema.to_value(), neutralise)).into();
    }
    offer
}
