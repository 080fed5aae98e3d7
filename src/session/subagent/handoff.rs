//! Handoff of a session to another agent, by the user or by the model.
//!
//! The mode stays (D43). The system prompt, the limits and the model become those of the new agent.

use std::sync::Arc;

use serde_json::json;

use crate::agents::AgentSpec;
use crate::error::AgentError;
use crate::permission::compare;
use crate::session::event_log::EventLog;
use crate::session::mode::policy::Policy;
use crate::store::Row;
use crate::store::entry::ChainEntry;

/// Returns the agent that the user chose. Refuses to switch from or to an external agent.
pub(crate) fn chosen(id: &str, policy: &Policy) -> Result<Arc<AgentSpec>, AgentError> {
    let agent = policy.context.agents.resolve(id).cloned().map_err(|unknown| {
        AgentError::invalid_params(unknown.to_string(), json!({ "validAgents": unknown.valid }))
    })?;
    let now = &policy.agent;
    if agent.id != now.id && (agent.external_agent.is_some() || now.external_agent.is_some()) {
        let text = "an external agent cannot join or leave a running session: start a new session";
        return Err(AgentError::InvalidRequest(text.into()));
    }
    Ok(agent)
}

/// Returns the agent that the model chose. Refuses an agent that may do more than the current one.
pub(crate) fn proposed(id: &str, policy: &Policy) -> Result<Arc<AgentSpec>, String> {
    let agent = policy.context.agents.resolve(id).cloned();
    let agent = agent.map_err(|unknown| format!("Not handed over: {unknown}."))?;
    let now = &policy.agent;
    if agent.id == now.id {
        return Err(format!("{} is already the current agent.", agent.id));
    }
    if agent.external_agent.is_some() {
        return Err(format!(
            "{} is an external agent and cannot continue this conversation. Delegate to it instead.",
            agent.id
        ));
    }
    if compare::allows_more(&agent.limits, &now.limits) {
        return Err(format!(
            "{} may do more than {}, so only the user can hand over to it. Delegate to it instead.",
            agent.id, now.id
        ));
    }
    Ok(agent)
}

pub(crate) fn record(from: &AgentSpec, to: &AgentSpec, log: &mut EventLog) {
    let (turn, at) = (log.turn(), log.now_ms());
    log.chain(&ChainEntry::Agent { turn, from: from.id.clone(), to: to.id.clone(), at });
    log.queue(Row::Agent { session: log.id().clone(), agent: to.id.clone() });
}
