//! Inputs of a request's tools and reminder. Requests with the same ones have the same tools and reminder.

use std::sync::Arc;

use crate::acp::SessionModeId;
use crate::conversation::reminder::{self, ReminderReader, Transition};
use crate::mode::Mode;
use crate::permission::{self, CallFacts, Ceilings, Grants};
use crate::session::SessionContext;
use crate::session::mode::policy::Policy;
use crate::tool::{self, Tool, ToolSpec};

/// Equal to others only if each part is the same one, not a copy of it.
pub(super) struct Conditions {
    context: Arc<SessionContext>,
    mode: SessionModeId,
    /// An ancestor's mode that is tighter than the session's own.
    above: Option<Arc<Mode>>,
    ceilings: Ceilings,
    grants: Grants,
    is_subagent: bool,
    pub tools: Vec<Arc<dyn Tool>>,
    has_background_work: bool,
    transition: Option<StatedTransition>,
}

/// A mode change for the reminder.
pub(super) struct StatedTransition {
    pub transition: Transition,
    /// Only a reminder that stands anyway still states the change.
    pub is_over: bool,
}

impl Conditions {
    pub(super) fn now(
        policy: &Policy,
        has_background_work: bool,
        transition: Option<StatedTransition>,
    ) -> Self {
        let context = Arc::clone(&policy.context);
        let mode = context.modes.resolve(&policy.mode.0).ok();
        Self {
            mode: policy.mode.clone(),
            above: mode.and_then(|mode| policy.ancestry.tighter_than(mode)),
            ceilings: policy.ceilings(),
            grants: policy.grants.clone(),
            is_subagent: policy.ancestry.parent.is_some(),
            tools: context.tools.all(),
            has_background_work,
            transition,
            context,
        }
    }

    pub(super) fn mode(&self) -> Option<&Mode> {
        self.context.modes.resolve(&self.mode.0).ok()
    }

    pub(super) fn available_tools(&self) -> Vec<Arc<dyn Tool>> {
        let is_available =
            |spec: &ToolSpec| permission::is_available(&self.ceilings, &self.grants, &spec.facts());
        tool::offered(&self.tools, self.has_background_work, is_available)
    }

    pub(super) fn reminder(&self, notes: &[&str]) -> Option<String> {
        let mode = self.mode()?;
        let tools: Vec<CallFacts> = self.tools.iter().map(|tool| tool.spec().facts()).collect();
        let modes: Vec<&str> = self.context.modes.iter().map(|mode| mode.id.as_str()).collect();
        let stated = self.transition.as_ref();
        let inputs = reminder::Inputs {
            mode: self.above.as_deref().unwrap_or(mode),
            reader: if self.is_subagent { ReminderReader::Subagent } else { ReminderReader::Agent },
            transition: stated.map(|stated| &stated.transition),
            is_attended: self.context.capabilities.answers,
            notes,
            ceilings: &self.ceilings,
            // An answer that allows must not change the text: the reminder would move, and providers' caches with it.
            grants: &self.grants.rejections(),
            tools: &tools,
            modes: &modes,
        };
        let drops_transition = stated.is_some_and(|stated| stated.is_over) && !reminder::is_standing(&inputs);
        reminder::compose(&reminder::Inputs {
            transition: inputs.transition.filter(|_| !drops_transition),
            ..inputs
        })
    }
}

impl PartialEq for Conditions {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            context,
            mode,
            above,
            ceilings,
            grants,
            is_subagent,
            tools,
            has_background_work,
            transition,
        } = other;
        Arc::ptr_eq(&self.context, context)
            && self.mode == *mode
            && are_same(self.above.as_slice(), above.as_slice())
            && are_same_ceilings(&self.ceilings, ceilings)
            && self.grants == *grants
            && self.is_subagent == *is_subagent
            && are_same(&self.tools, tools)
            && self.has_background_work == *has_background_work
            && self.transition == *transition
    }
}

impl PartialEq for StatedTransition {
    fn eq(&self, other: &Self) -> bool {
        let Self { transition: Transition { from, to, before, unconfirmed }, is_over } = other;
        self.transition.from == *from
            && self.transition.to == *to
            && are_same_ceilings(&self.transition.before, before)
            && self.transition.unconfirmed == *unconfirmed
            && self.is_over == *is_over
    }
}

fn are_same_ceilings(one: &Ceilings, other: &Ceilings) -> bool {
    are_same(&one.modes, &other.modes) && are_same(&one.rules, &other.rules)
}

fn are_same<T: ?Sized>(one: &[Arc<T>], other: &[Arc<T>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(this, that)| Arc::ptr_eq(this, that))
}
