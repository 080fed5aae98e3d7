//! Ceilings of a session and of its ancestors.
//!
//! The same list decides which tools are offered, which calls may run, and which calls must end.

use std::sync::Arc;

use crate::acp::SessionModeId;
use crate::agents::AgentSpec;
use crate::external_agent::capability::{self, Control};
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::permission::Ceilings;
use crate::process::shell::Shell;
use crate::session::SessionContext;

impl SessionContext {
    /// Returns the ceilings for all of these modes. An unknown mode yields none, which denies everything.
    pub(crate) fn ceilings<'a>(&self, ids: impl Iterator<Item = &'a SessionModeId>) -> Ceilings {
        let all = ids.map(|id| self.modes.ceilings(&id.0)).collect::<Result<Vec<_>, _>>();
        let mut modes = all.map(|all| all.concat()).unwrap_or_default();
        if !modes.is_empty() {
            modes.extend(self.further_limits().cloned());
        }
        Ceilings { modes, rules: vec![Arc::clone(&self.rules)] }
    }

    pub(crate) fn control_of(&self, external_agent: &ExternalAgentDefinition) -> Control {
        if external_agent.sandbox.is_none() || !self.tools.can_sandbox() {
            Control::None
        } else if external_agent.is_brokered() {
            Control::Broker
        } else {
            Control::Sandbox
        }
    }

    /// Tries the broker if the agent is to be brokered where that works. Call before [`Self::with_broker`].
    pub async fn try_broker(&self, agent: &AgentSpec) {
        if let Some(shell) = self.tools.shell().filter(|_| self.live && leaves_broker_open(agent)) {
            shell.try_broker().await;
        }
    }

    /// Decides whether the agent is brokered, if its definition leaves that open.
    pub fn with_broker(&self, agent: Arc<AgentSpec>) -> Arc<AgentSpec> {
        if !leaves_broker_open(&agent) {
            return agent;
        }
        let works = self.tools.shell().is_some_and(Shell::has_broker);
        let definition = agent.external_agent.as_deref().cloned();
        let external_agent = definition.map(|definition| Arc::new(definition.with_broker(works)));
        Arc::new(AgentSpec { external_agent, ..AgentSpec::clone(&agent) })
    }

    /// Returns an error if the organisation's policy requires the broker, and the agent would run without it. Call after
    /// [`Self::with_broker`].
    pub fn check_required_broker(&self, agent: &AgentSpec) -> Result<(), String> {
        let Some(definition) = agent.external_agent.as_ref().filter(|it| it.requires_broker) else {
            return Ok(());
        };
        if self.control_of(definition) == Control::Broker {
            return Ok(());
        }
        Err(format!(
            "the agent {} was not started: your organisation's policy requires the broker, which {}",
            agent.id,
            if self.tools.can_sandbox() {
                "its definition or an option has switched off, or which does not work here \
                (run modegate doctor)"
            } else {
                "this system does not support"
            }
        ))
    }

    pub fn limit_to_agent(&mut self, agent: &AgentSpec) {
        self.unsupported_modes = Arc::default();
        let Some(external_agent) = &agent.external_agent else { return };
        let control = self.control_of(external_agent);
        let (modes, unsupported) = capability::split(&self.modes, control, |mode| {
            let mut modes = self.modes.ceilings(&mode.id).unwrap_or_default();
            modes.extend(self.further_limits().chain(&agent.limits).cloned());
            capability::is_supported(&Ceilings { modes, rules: Vec::new() }, control)
        });
        (self.modes, self.unsupported_modes) = (Arc::new(modes), unsupported.into());
    }
}

fn leaves_broker_open(agent: &AgentSpec) -> bool {
    agent.external_agent.as_ref().is_some_and(|definition| definition.leaves_broker_open())
}

/// Adds ceilings. If either side has no modes, the result has none, which denies everything.
pub(crate) fn add(ceilings: &mut Ceilings, more: &Ceilings) {
    if more.modes.is_empty() {
        ceilings.modes.clear();
    }
    if !ceilings.modes.is_empty() {
        add_new(&mut ceilings.modes, &more.modes);
    }
    add_new(&mut ceilings.rules, &more.rules);
}

fn add_new<T>(list: &mut Vec<Arc<T>>, more: &[Arc<T>]) {
    let count = list.len();
    for new in more {
        if !list[..count].iter().any(|old| Arc::ptr_eq(old, new)) {
            list.push(Arc::clone(new));
        }
    }
}
