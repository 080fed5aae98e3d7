//! The inputs of a request's tools and reminder. Requests under the same conditions have the same ones.

use std::sync::Arc;

use crate::acp::SessionModeId;
use crate::conversation::reminder::Transition;
use crate::mode::Mode;
use crate::permission::{Ceilings, Grants};
use crate::session::SessionContext;
use crate::session::mode::policy::Policy;
use crate::tool::Tool;

/// All that decides about the tools of a request. Equal only if each part is the same one, not a copy of it.
pub(super) struct Conditions {
    context: Arc<SessionContext>,
    mode: SessionModeId,
    /// An ancestor's mode that is tighter than the session's own.
    pub above: Option<Arc<Mode>>,
    pub ceilings: Ceilings,
    grants: Grants,
    pub is_subagent: bool,
    pub tools: Vec<Arc<dyn Tool>>,
    pub has_background_work: bool,
}

impl Conditions {
    pub(super) fn now(policy: &Policy, has_background_work: bool) -> Self {
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
            context,
        }
    }
}

impl PartialEq for Conditions {
    fn eq(&self, other: &Self) -> bool {
        let Self { context, mode, above, ceilings, grants, is_subagent, tools, has_background_work } = other;
        Arc::ptr_eq(&self.context, context)
            && self.mode == *mode
            && are_same(self.above.as_slice(), above.as_slice())
            && are_same_ceilings(&self.ceilings, ceilings)
            && self.grants == *grants
            && self.is_subagent == *is_subagent
            && are_same(&self.tools, tools)
            && self.has_background_work == *has_background_work
    }
}

/// A reminder without notes, and the mode change that it states or drops.
pub(super) struct ComposedReminder {
    transition: Option<(Transition, bool)>,
    pub text: Option<String>,
}

impl ComposedReminder {
    pub(super) fn new(transition: Option<(&Transition, bool)>, text: Option<String>) -> Self {
        Self { transition: transition.map(|(transition, is_over)| (transition.clone(), is_over)), text }
    }

    pub(super) fn is_of(&self, transition: Option<(&Transition, bool)>) -> bool {
        match (&self.transition, transition) {
            (None, None) => true,
            (Some((was, was_over)), Some((is, is_over))) => {
                let Transition { from, to, before, unconfirmed } = is;
                (&was.from, &was.to, was.unconfirmed, *was_over) == (from, to, *unconfirmed, is_over)
                    && are_same_ceilings(&was.before, before)
            }
            _ => false,
        }
    }
}

fn are_same_ceilings(one: &Ceilings, other: &Ceilings) -> bool {
    are_same(&one.modes, &other.modes) && are_same(&one.rules, &other.rules)
}

fn are_same<T: ?Sized>(one: &[Arc<T>], other: &[Arc<T>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(this, that)| Arc::ptr_eq(this, that))
}
