//! Connects hooks with decisions: a call that modes and rules do not deny waits for the hooks that may refuse it, and
//! hooks get the decisions.

use super::decider::{Authorization, Decided, Decider, Grant};
use crate::acp::{SessionModeId, ToolCallId};
use crate::client::TurnOutcome;
use crate::hooks::{EventFacts, HookDecision, HookEvent, HookFacts, HookRefusal, HookedCall};
use crate::permission::{CallFacts, HOOK};

/// The answer of the hooks about a call.
#[derive(Debug, Clone)]
pub(crate) enum HookOutcome {
    /// They have not run.
    NotRun,
    Passed,
    Refused(Box<HookRefusal>),
}

/// A call to decide.
pub(crate) struct CallRequest {
    pub(crate) call: ToolCallId,
    /// `None` for an unknown tool.
    pub(crate) facts: Option<Box<CallFacts>>,
    /// False if the arguments do not fit, so that the call never runs.
    pub(crate) fits: bool,
    pub(crate) hooks: HookOutcome,
}

impl Decider {
    /// Decides under the current mode, also after hooks have run. A hook cannot lift a denial.
    pub(crate) fn decide_with_hooks(&mut self, request: CallRequest) -> Decided {
        let CallRequest { call, facts, fits, hooks } = request;
        let facts = facts.map(|facts| *facts);
        let decided = self.decide(call.clone(), facts.clone(), fits);
        let Some(facts) = facts else { return decided };
        match (&decided, hooks) {
            (Decided::Final(Authorization::Denied { .. }), _) => {
                self.tell_of_call(HookEvent::Call, &call, &facts, Some(HookDecision::Deny));
                decided
            }
            (Decided::Ask(_) | Decided::Granted(_), HookOutcome::Refused(refusal)) => {
                self.tell_of_call(HookEvent::Call, &call, &facts, Some(HookDecision::Deny));
                Decided::Final(self.denied_by_hook(call, *refusal))
            }
            (Decided::Ask(_) | Decided::Granted(_), HookOutcome::NotRun)
                if self.policy.context.hooks.denies() =>
            {
                let hooked = self.call_facts(HookEvent::Call, &call, &facts, None);
                if self.policy.context.hooks.is_for(&hooked) {
                    return Decided::Final(Authorization::Hooks(Box::new(hooked)));
                }
                decided
            }
            (Decided::Ask(_), _) => {
                self.tell_of_call(HookEvent::Question, &call, &facts, None);
                decided
            }
            (Decided::Granted(_) | Decided::Final(_), _) => decided,
        }
    }

    pub(crate) fn tell_of_grant(&self, Grant { call, facts, .. }: &Grant) {
        self.tell_of_call(HookEvent::Call, call, facts, Some(HookDecision::Allow));
    }

    pub(crate) fn tell_of_start(&self) {
        self.policy
            .context
            .hooks
            .notify(|| self.hook_facts(HookEvent::SessionStart, EventFacts::SessionStart {}));
    }

    /// Enters a mode whose change is recorded.
    pub(crate) fn enter(&mut self, from: SessionModeId, to: SessionModeId, source: &'static str) {
        tracing::debug!(session = %self.log.id(), %from, %to, source, "the mode changed");
        self.log.traced(|trace| trace.changed_mode(&from.0, &to.0, source));
        let changed = EventFacts::ModeChange { from: from.to_string(), source };
        (self.policy.mode, self.policy.previous) = (to, Some(from));
        self.policy.context.hooks.notify(|| self.hook_facts(HookEvent::ModeChange, changed));
    }

    /// Tells the client and the hooks of the end of a turn.
    pub(crate) fn signal_end(&self, outcome: TurnOutcome) {
        let stop_reason = match &outcome {
            TurnOutcome::Stopped(reason) => {
                let name = serde_json::to_value(reason).ok();
                name.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
            }
            TurnOutcome::Failed { .. } => "error".to_owned(),
        };
        let ended = EventFacts::TurnEnd { stop_reason };
        self.policy.context.hooks.notify(|| self.hook_facts(HookEvent::TurnEnd, ended));
        self.log.signal_end(outcome);
    }

    fn tell_of_call(
        &self,
        event: HookEvent,
        call: &ToolCallId,
        facts: &CallFacts,
        decision: Option<HookDecision>,
    ) {
        self.policy.context.hooks.notify(|| self.call_facts(event, call, facts, decision));
    }

    fn call_facts(
        &self,
        event: HookEvent,
        call: &ToolCallId,
        facts: &CallFacts,
        decision: Option<HookDecision>,
    ) -> HookFacts {
        let call = HookedCall::new(call.to_string(), facts, decision);
        self.hook_facts(event, EventFacts::Call(Box::new(call)))
    }

    fn hook_facts(&self, event: HookEvent, of: EventFacts) -> HookFacts {
        HookFacts {
            event,
            session: self.log.id().to_string(),
            mode: self.policy.mode.to_string(),
            agent: self.policy.agent.id.clone(),
            folder: self.policy.context.hooks.folder().to_owned(),
            of,
        }
    }

    fn denied_by_hook(&mut self, call: ToolCallId, refusal: HookRefusal) -> Authorization {
        self.denied_by(call, HOOK, &refusal.recorded_rule(), refusal.message)
    }
}
