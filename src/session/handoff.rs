//! Handoff of a session to another agent, by the user or by the model.
//!
//! The mode stays (D43). The system prompt, the limits and the model become those of the new agent.

use std::sync::Arc;

use serde_json::json;

use super::actor::Actor;
use crate::acp::SessionConfigOption;
use crate::agents::AgentSpec;
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::permission::compare;
use crate::store::Row;
use crate::store::entry::Entry;

impl Actor {
    /// Refuses to switch from or to an external agent.
    pub(super) async fn set_agent(&mut self, id: &str) -> Result<Vec<SessionConfigOption>, AgentError> {
        let agent = self.context.agents.resolve(id).cloned().map_err(|unknown| {
            AgentError::invalid_params(unknown.to_string(), json!({ "validAgents": unknown.valid }))
        })?;
        if agent.id != self.policy.agent.id
            && (agent.external_agent.is_some() || self.policy.agent.external_agent.is_some())
        {
            let text = "an external agent cannot join or leave a running session: start a new session";
            return Err(AgentError::InvalidRequest(text.into()));
        }
        self.become_agent(agent).await;
        Ok(self.options())
    }

    /// Refuses an agent that may do more than the current one.
    pub(super) async fn handoff(&mut self, id: &str) -> Result<String, String> {
        let unknown = |error| format!("Not handed over: {error}.");
        let agent = self.context.agents.resolve(id).cloned().map_err(unknown)?;
        let now = &self.policy.agent;
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
        let text = format!("{} continues from the next step on. The mode stays the same.", agent.id);
        self.become_agent(agent).await;
        Ok(text)
    }

    async fn become_agent(&mut self, agent: Arc<AgentSpec>) {
        if agent.id == self.policy.agent.id {
            return;
        }
        let (turn, at) = (self.log.turns, self.log.now_ms());
        let before = std::mem::replace(&mut self.policy.agent, Arc::clone(&agent));
        self.log.chain(&Entry::Agent { turn, from: before.id.clone(), to: agent.id.clone(), at });
        self.log.store.post(Row::Agent { session: self.log.id.clone(), agent: agent.id.clone() });
        if self.requests.system.take().is_some() {
            self.requests.freeze_system_prompt(&self.policy, &self.log, self.workspace.cwd()).await;
        }
        self.end_denied_calls().await;
        let selection = self.models.of_mode(&self.policy);
        self.models.active = selection;
        let options = self.options();
        self.log.record_with_options(SessionEvent::AgentChange { agent: agent.id.clone() }, options).await;
    }
}
