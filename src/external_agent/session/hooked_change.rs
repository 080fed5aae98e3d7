//! Acts of an external agent that hooks look at before the session decides: changes that the broker asks about, and
//! requests of the agent.

use tokio::sync::mpsc;

use super::message::AgentMessage;
use super::{AgentLimits, ExternalAgentHost};
use crate::hooks::runner::Hooks;
use crate::hooks::{EventFacts, HookEvent, HookFacts, HookRefusal, HookedCall};
use crate::permission::CallFacts;

/// Returns `None` if no hook may refuse the call.
pub(super) fn facts(
    call: String,
    facts: &CallFacts,
    host: &ExternalAgentHost,
    limits: &AgentLimits,
) -> Option<HookFacts> {
    let facts = HookFacts {
        event: HookEvent::Call,
        session: host.session.to_string(),
        mode: limits.mode.to_string(),
        agent: host.agent.id.clone(),
        folder: host.cwd.clone(),
        of: EventFacts::Call(Box::new(HookedCall::new(call, facts, None))),
    };
    host.hooks.is_for(&facts).then_some(facts)
}

/// Runs the hooks, and then posts the message with their refusal.
pub(super) fn run(
    facts: HookFacts,
    hooks: &Hooks,
    messages: mpsc::UnboundedSender<AgentMessage>,
    then: impl FnOnce(Option<HookRefusal>) -> AgentMessage + Send + 'static,
) {
    let hooks = hooks.clone();
    tokio::spawn(async move {
        let refusal = hooks.refusal(&facts).await;
        // The session may be gone.
        let _ = messages.send(then(refusal));
    });
}
