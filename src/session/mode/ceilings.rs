//! Ceilings of a session and of its ancestors.
//!
//! The same list decides which tools are offered, which calls may run, and which calls must end.

use std::sync::Arc;

use crate::acp::SessionModeId;
use crate::agents::AgentSpec;
use crate::external_agent::capability::{self, Control};
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::permission::Ceilings;
use crate::session::SessionContext;

impl SessionContext {
    /// Returns the ceilings for all of these modes. An unknown mode yields none, which denies everything.
    pub(crate) fn ceilings<'a>(&self, ids: impl Iterator<Item = &'a SessionModeId>) -> Ceilings {
        let all = ids.map(|id| self.modes.ceilings(&id.0)).collect::<Result<Vec<_>, _>>();
        let mut modes = all.map(|all| all.concat()).unwrap_or_default();
        if !modes.is_empty() {
            modes.extend(self.max_modes.iter().chain(&self.fallback_ceiling).cloned());
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

    pub fn limit_to_agent(&mut self, agent: &AgentSpec) {
        self.unsupported_modes = Arc::default();
        let Some(external_agent) = &agent.external_agent else { return };
        let control = self.control_of(external_agent);
        let (modes, unsupported) = capability::split(&self.modes, control, |mode| {
            let mut modes = self.modes.ceilings(&mode.id).unwrap_or_default();
            modes.extend(self.max_modes.iter().chain(&self.fallback_ceiling).chain(&agent.limits).cloned());
            capability::is_supported(&Ceilings { modes, rules: Vec::new() }, control)
        });
        (self.modes, self.unsupported_modes) = (Arc::new(modes), unsupported.into());
    }
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
