//! `delegate`: runs a sub-agent. Only checks arguments; the session carries the call out.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::BackgroundRole;
use super::session_action::{SessionAction, list};
use crate::acp::ToolKind;
use crate::agents::AgentRegistry;
use crate::permission::Effect;
use crate::tool::{PreparedCall, Tool, ToolSpec};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DelegateArguments {
    /// The complete task, and the answer you expect: the sub-agent does not see this conversation.
    task: String,
    /// Id of the agent. Default: an agent like you.
    #[serde(default)]
    agent: Option<String>,
    /// Return at once with an id for `view_background`; you are notified of the end. Default: false.
    #[serde(default)]
    background: bool,
}

pub(in crate::tool) fn tool(agents: &AgentRegistry) -> Arc<dyn Tool> {
    let description = "Run a sub-agent on a task and wait for its answer, to keep long searches out of this conversation. It has its \
                own conversation, the same folders and mode, and cannot ask the user. Calls in one message run at the same \
                time if their agents change nothing or run in the background.";
    let description = format!("{description}\n\n{}", list(agents));
    let spec = ToolSpec::new("delegate", ToolKind::Other, Effect::Delegate, description);
    let agents = agents.clone();
    ToolSpec { background: BackgroundRole::Starts, ..spec }.tool(
        move |DelegateArguments { task, agent, background: is_background }, _| {
            let agent_spec = agent.as_deref().and_then(|id| agents.resolve(id).ok());
            let is_reader = agent_spec.is_some_and(|agent| agent.only_reads());
            let call = SessionAction::Delegate { agent, task, is_background, is_reader }.prepared()?;
            Ok(PreparedCall { is_background, ..call })
        },
    )
}
