//! `delegate_background`: runs a sub-agent that outlives its call. Only checks arguments; the session carries the call
//! out.

use std::sync::Arc;

use super::delegate::Arguments;
use super::session_action::{SessionAction, list};
use super::{Tool, ToolSpec};
use crate::acp::ToolKind;
use crate::agents::AgentRegistry;
use crate::permission::Effect;

pub(super) fn tool(agents: &AgentRegistry) -> Arc<dyn Tool> {
    let what = "Like delegate, but you continue meanwhile. Returns the id of the agent. You are notified when it has finished; \
                view_background_agent returns its answer or waits for it. It ends with the session.";
    let what = format!("{what}\n\n{}", list(agents));
    let spec = ToolSpec::new("delegate_background", ToolKind::Other, Effect::Delegate, what);
    ToolSpec { is_background: true, ..spec }.tool(|Arguments { task, agent }, _| {
        SessionAction::Delegate { agent, task, is_background: true }.prepared()
    })
}
