//! Which calls end when the ceilings change.

use super::policy::{self, Policy};
use crate::permission::{self, CallFacts, CallSource, Ceilings, Effect, Grants, Verdict, external};
use crate::tool::Toolset;

/// Which running and asked calls a tighter mode ends.
#[derive(Clone)]
pub(crate) struct Tightened {
    ceilings: Ceilings,
    grants: Grants,
    tools: Toolset,
}

impl Tightened {
    pub(crate) fn new(policy: &Policy) -> Self {
        let (ceilings, grants) = (policy.ceilings(), policy.grants.clone());
        Self { ceilings, grants, tools: policy.context.tools.clone() }
    }

    fn decide(&self, facts: &CallFacts) -> Verdict {
        permission::decide(&self.ceilings, &self.grants, facts)
    }

    pub(crate) fn is_denied(&self, facts: &CallFacts) -> bool {
        if facts.source == CallSource::ExternalAgent {
            return external::denied(&self.ceilings, facts).is_some();
        }
        let is_denied = |facts: &CallFacts| matches!(self.decide(facts), Verdict::Deny(_));
        // A server may have changed its hints since the call began: either version can deny.
        is_denied(facts) || is_denied(&policy::current_facts(&self.tools, facts))
    }

    /// If only a server's claim supports a call, the call ends under a mode that denies changes.
    pub(crate) fn has_to_end(&self, facts: &CallFacts) -> bool {
        self.is_denied(facts)
            || (facts.claim.is_some()
                && matches!(self.decide(facts), Verdict::Ask(_))
                && matches!(self.decide(&as_a_change(facts)), Verdict::Deny(_)))
    }
}

fn as_a_change(facts: &CallFacts) -> CallFacts {
    CallFacts { effect: Effect::Unknown, claim: None, ..facts.clone() }
}
