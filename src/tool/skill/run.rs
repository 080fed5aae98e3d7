//! `run_skill`: runs a sub-agent with a skill's instructions. The session carries the call out.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::acp::ToolKind;
use crate::permission::Effect;
use crate::tool::{SessionAction, Tool, ToolSpec};

pub const NAME: &str = "run_skill";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunSkillArguments {
    /// Name of the skill, from `list_skills`.
    skill: String,
    /// The complete task: the sub-agent does not see this conversation. State the expected answer.
    task: String,
}

pub(super) fn tool() -> Arc<dyn Tool> {
    let description = "Run a sub-agent like you on a task with a skill's instructions, and wait for its answer. It has its own conversation, \
                the same folders and the same mode, and cannot ask the user.";
    ToolSpec::new(NAME, ToolKind::Other, Effect::Delegate, description)
        .tool(|RunSkillArguments { skill, task }, _| SessionAction::Skill { skill, task }.prepared())
}
