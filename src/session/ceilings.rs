//! Ceilings of a session and of its ancestors.
//!
//! The same list decides which tools are offered, which calls may run, and which calls must end.

use std::sync::Arc;

use super::SessionContext;
use super::actor::Actor;
use super::change_mode::DEADLINE;
use crate::acp::{SessionModeId, ToolCallId};
use crate::agents::AgentSpec;
use crate::agents::external::ExternalAgentDefinition;
use crate::external_agent::capability;
use crate::gate::Ended;
use crate::mode::Mode;
use crate::permission::rules::Rules;
use crate::permission::{self, CallFacts, Ceilings, Effect, Verdict};

impl SessionContext {
    /// Returns the ceilings for all of these modes. An unknown mode yields none, which denies everything.
    pub(super) fn ceilings<'a>(&self, ids: impl Iterator<Item = &'a SessionModeId>) -> Ceilings {
        let all = ids.map(|id| self.modes.ceilings(&id.0)).collect::<Result<Vec<_>, _>>();
        let mut modes = all.map(|all| all.concat()).unwrap_or_default();
        if !modes.is_empty() {
            modes.extend(self.max_modes.iter().chain(&self.fallback_ceiling).cloned());
        }
        Ceilings { modes, rules: vec![Arc::clone(&self.rules)] }
    }

    pub(super) fn can_sandbox(&self, external_agent: &ExternalAgentDefinition) -> bool {
        external_agent.sandbox.is_some() && self.tools.can_sandbox()
    }

    pub fn limit_to_agent(&mut self, agent: &AgentSpec) {
        self.unsupported_modes = Arc::default();
        let Some(external_agent) = &agent.external_agent else { return };
        let can_sandbox = self.can_sandbox(external_agent);
        let is_supported = |mode: &Mode| {
            let mut modes = self.modes.ceilings(&mode.id).unwrap_or_default();
            modes.extend(self.max_modes.iter().chain(&self.fallback_ceiling).chain(&agent.limits).cloned());
            capability::is_supported(&Ceilings { modes, rules: Vec::new() }, can_sandbox)
        };
        let (modes, unsupported) = capability::split(&self.modes, is_supported);
        (self.modes, self.unsupported_modes) = (Arc::new(modes), unsupported.into());
    }
}

/// Adds ceilings. If either side has no modes, the result has none, which denies everything.
pub(super) fn add(ceilings: &mut Ceilings, more: &Ceilings) {
    if more.modes.is_empty() {
        ceilings.modes.clear();
    }
    if !ceilings.modes.is_empty() {
        let contains = |mode: &&Arc<Mode>| ceilings.modes.iter().any(|it| Arc::ptr_eq(it, mode));
        let new: Vec<_> = more.modes.iter().filter(|mode| !contains(mode)).cloned().collect();
        ceilings.modes.extend(new);
    }
    let contains = |rules: &&Arc<Rules>| ceilings.rules.iter().any(|it| Arc::ptr_eq(it, rules));
    let new: Vec<_> = more.rules.iter().filter(|rules| !contains(rules)).cloned().collect();
    ceilings.rules.extend(new);
}

impl Actor {
    /// Closes questions about calls that are now denied and ends such calls, here and in all sub-agents,
    /// which decide under the new ceilings from the first line on (D40-D44).
    pub(super) async fn end_denied_calls(&mut self) -> (Vec<ToolCallId>, Ended) {
        self.policy.publish_ceilings();
        let (ceilings, grants) = (self.policy.ceilings(), self.policy.grants.clone());
        // A server may have changed its hints since the call began: either version can deny.
        let tools = self.context.tools.clone();
        let is_denied = move |facts: &CallFacts| {
            let is =
                |facts: &CallFacts| matches!(permission::decide(&ceilings, &grants, facts), Verdict::Deny(_));
            if facts.tool == capability::EXTERNAL_AGENT {
                return capability::is_denied(&ceilings, facts);
            }
            is(facts) || is(&super::servers::now(&tools, facts))
        };
        let mut closed = self.close_questions(&is_denied);
        // If only a server's claim supports a call, the call ends under a mode that denies changes.
        let (ceilings, grants) = (self.policy.ceilings(), self.policy.grants.clone());
        let has_to_end = move |facts: &CallFacts| {
            let decide = |facts: &CallFacts| permission::decide(&ceilings, &grants, facts);
            let as_a_change = || CallFacts { effect: Effect::Unknown, claim: None, ..facts.clone() };
            is_denied(facts)
                || (facts.claim.is_some()
                    && matches!(decide(facts), Verdict::Ask(_))
                    && matches!(decide(&as_a_change()), Verdict::Deny(_)))
        };
        closed.extend(self.external_agent.close_denied_requests(&self.policy.limits()));
        let below = self.tighten_subagents();
        let mut gate = std::mem::take(&mut self.gate);
        let ending = async { tokio::join!(gate.end(has_to_end, DEADLINE), below) };
        let (mut ended, (closed_below, below)) = self.handle_reports_during(ending).await;
        self.restore_gate(gate);
        closed.extend(closed_below);
        ended.confirmed.extend(below.confirmed);
        ended.unconfirmed.extend(below.unconfirmed);
        (closed, ended)
    }
}
