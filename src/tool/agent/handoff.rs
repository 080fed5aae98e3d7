//! `handoff`: another agent continues the conversation. The session carries the call out.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::session_action::{SessionAction, list};
use crate::acp::ToolKind;
use crate::agents::AgentRegistry;
use crate::permission::Effect;
use crate::tool::{Tool, ToolSpec};

pub(in crate::tool) const NAME: &str = "handoff";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HandoffArguments {
    /// Id of the agent that continues.
    agent: String,
}

pub(in crate::tool) fn tool(agents: &AgentRegistry) -> Arc<dyn Tool> {
    let description = "Hand this conversation over to another agent permanently, from the next step on. The mode stays the same.";
    let description = format!("{description}\n\n{}", list(agents));
    ToolSpec::new(NAME, ToolKind::Other, Effect::Delegate, description)
        .tool(|HandoffArguments { agent }, _| SessionAction::Handoff { agent }.prepared())
}
