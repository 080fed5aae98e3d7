//! `switch_mode`: the model presents its plan and asks to leave the mode. Only parses arguments; the session
//! switches.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::acp::ToolKind;
use crate::mode::{Mode, Modes};
use crate::permission::{Effect, compare};
use crate::tool::{CallAction, PreparedCall, Preview, Tool, ToolError, ToolSpec};

const MAX_STEPS: usize = 50;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SwitchModeArguments {
    /// The complete plan in Markdown, on which the user decides.
    plan: String,
    /// Its steps, one line each, at most 50. They become the task list.
    #[serde(default)]
    steps: Vec<String>,
    /// Id of the mode. Default: the exit of this mode.
    #[serde(default)]
    mode: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    pub plan: String,
    pub steps: Vec<String>,
    /// `None` for the default exit of the mode.
    pub mode: Option<String>,
}

/// Names the modes that may change something, whatever the current mode is, so that the prompt cache stays valid.
pub(in crate::tool) fn tool(modes: &Modes) -> Arc<dyn Tool> {
    let may_change =
        |mode: &&Mode| modes.ceilings(&mode.id).is_ok_and(|ceilings| !compare::changes_nothing(&ceilings));
    let ids: Vec<&str> = modes.iter().filter(may_change).map(|mode| mode.id.as_str()).collect();
    let description = format!(
        "Present the finished plan to the user and ask to leave this mode. The user decides; a rejection means that the mode \
         stays. Call it once the plan is complete, not before. Modes: {}.",
        ids.join(", ")
    );
    let spec = ToolSpec::new("switch_mode", ToolKind::SwitchMode, Effect::Session, description);
    ToolSpec { is_exit: true, ..spec }.tool(|arguments, _| prepare(arguments))
}

fn prepare(
    SwitchModeArguments { plan, steps, mode }: SwitchModeArguments,
) -> Result<PreparedCall, ToolError> {
    if plan.trim().is_empty() {
        return Err(ToolError::arguments("plan is empty; the user decides on the plan"));
    }
    if steps.len() > MAX_STEPS {
        return Err(ToolError::arguments("steps has more than 50 entries"));
    }
    let preview = Preview::text(&plan);
    let action = CallAction::Propose(Proposal { plan, steps, mode });
    Ok(PreparedCall { preview, ..PreparedCall::with_action("Plan ready: leave this mode?", action) })
}
