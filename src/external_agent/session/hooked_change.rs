//! Acts of an external agent that hooks look at before they are decided: changes that the broker asks about, and
//! requests of the agent.

use tokio::sync::mpsc;

use super::change::Asker;
use super::message::{AgentMessage, ProcessMessage, Relayed, RelayedRequest};
use super::question::AskedQuestion;
use super::{AgentLimits, ExternalAgentHost};
use crate::hooks::runner::Hooks;
use crate::hooks::{EventFacts, HookEvent, HookFacts, HookRefusal, HookedCall};
use crate::permission::CallFacts;

/// A change that hooks have seen. `refusal` is `None` if it passed.
pub struct HookedChange {
    pub(super) question: AskedQuestion,
    pub(super) refusal: Option<HookRefusal>,
}

/// A request of the agent that hooks have seen, or that is not for them.
pub struct HookedRequest {
    pub(super) request: RelayedRequest,
    pub(super) refusal: Option<HookRefusal>,
}

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

/// Runs the hooks. [`ProcessMessage::ChangeHooked`] follows.
pub(super) fn run(question: AskedQuestion, facts: HookFacts, asker: &Asker<'_>) {
    let (hooks, messages, start) = (asker.host.hooks.clone(), asker.messages.clone(), asker.start);
    tokio::spawn(async move {
        let refusal = hooks.refusal(&facts).await;
        let hooked = HookedChange { question, refusal };
        // The session may be gone.
        let _ = messages.send(AgentMessage::Process(start, ProcessMessage::ChangeHooked(hooked)));
    });
}

/// Runs the hooks. [`Relayed::HookedRequest`] follows.
pub(super) fn run_request(
    request: RelayedRequest,
    facts: HookFacts,
    hooks: &Hooks,
    messages: mpsc::UnboundedSender<AgentMessage>,
) {
    let hooks = hooks.clone();
    tokio::spawn(async move {
        let refusal = hooks.refusal(&facts).await;
        let hooked = Relayed::HookedRequest(HookedRequest { request, refusal });
        // The session may be gone.
        let _ = messages.send(AgentMessage::Relayed(hooked, None));
    });
}
