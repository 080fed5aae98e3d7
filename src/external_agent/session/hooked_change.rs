//! Changes of a brokered agent that hooks look at before they are decided.

use super::AgentLimits;
use super::change::Asker;
use super::message::{AgentMessage, ProcessMessage};
use super::question::AskedQuestion;
use crate::hooks::{EventFacts, HookEvent, HookFacts, HookRefusal, HookedCall};
use crate::permission::CallFacts;

/// A change that hooks have seen. `refusal` is `None` if it passed.
pub struct HookedChange {
    pub(super) question: AskedQuestion,
    pub(super) refusal: Option<HookRefusal>,
}

/// Returns `None` if no hook may refuse the change.
pub(super) fn facts(
    question: &AskedQuestion,
    facts: &CallFacts,
    asker: &Asker<'_>,
    limits: &AgentLimits,
) -> Option<HookFacts> {
    let host = asker.host;
    let call = format!("agent_change_{}_{}", asker.start, question.change.number);
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
