//! `delegate`: runs a sub-agent. Only checks arguments; the session carries the call out.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::session_action::{SessionAction, list};
use super::{Tool, ToolSpec};
use crate::acp::ToolKind;
use crate::agents::AgentRegistry;
use crate::permission::Effect;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    /// The complete task: the sub-agent does not see this conversation. State the expected answer.
    pub task: String,
    /// Id of the agent. Default: an agent like you.
    #[serde(default)]
    pub agent: Option<String>,
}

pub(super) fn tool(agents: &AgentRegistry) -> Arc<dyn Tool> {
    let what = "Run a sub-agent on a task and wait for its answer. Use it to keep long searches out of this conversation, or for \
                an agent that suits the task better. The sub-agent has its own conversation, the same folders and the same mode, \
                and cannot ask the user. Several calls in one message run one after the other; use delegate_background to run \
                them in parallel.";
    let what = format!("{what}\n\n{}", list(agents));
    ToolSpec::new("delegate", ToolKind::Other, Effect::Delegate, what).tool(|Arguments { task, agent }, _| {
        SessionAction::Delegate { agent, task, is_background: false }.prepared()
    })
}
