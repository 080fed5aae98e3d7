//! `switch_mode`: the model presents its plan and asks to leave the mode. Only parses arguments; the session
//! switches.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{
    ClientIo, PreparedCall, RunContext, Tool, ToolContent, ToolError, ToolOutput, ToolSpec, arguments,
};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::Workspace;

const MAX_STEPS: usize = 50;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The complete plan in Markdown, on which the user decides.
    plan: String,
    /// Steps of the plan, in order, one line each. They become the task list. At most 50.
    #[serde(default)]
    steps: Vec<String>,
    /// Id of the mode to switch to. Default: the exit configured for this mode.
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

pub(super) struct SwitchMode(ToolSpec);

impl SwitchMode {
    pub(super) fn new() -> Self {
        let spec = ToolSpec::new::<Arguments>(
            "switch_mode",
            ToolKind::SwitchMode,
            Effect::Session,
            "Present the finished plan to the user and ask to leave this mode. The user decides; a rejection means that the \
             mode stays. Call it once the plan is complete, not before.",
        );
        Self(ToolSpec { is_exit: true, ..spec })
    }
}

#[async_trait]
impl Tool for SwitchMode {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { plan, steps, mode } = arguments(&self.0.name, given)?;
        let bad = |reason: &str| ToolError::arguments(&self.0.name, reason);
        if plan.trim().is_empty() {
            return Err(bad("plan is empty; the user decides on the plan"));
        }
        if steps.len() > MAX_STEPS {
            return Err(bad("steps has more than 50 entries"));
        }
        Ok(Box::new(Call(Proposal { plan, steps, mode })))
    }
}

#[derive(Debug)]
struct Call(Proposal);

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        "Plan ready: leave this mode?".into()
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    fn proposal(&self) -> Option<&Proposal> {
        Some(&self.0)
    }

    async fn preview(&mut self, _: &ClientIo) -> Result<Vec<ToolContent>, ToolError> {
        Ok(vec![ToolContent::text(&self.0.plan)])
    }

    async fn run(self: Box<Self>, _: RunContext) -> Result<ToolOutput, ToolError> {
        Err(ToolError::Failed("Only a session can switch its mode.".into()))
    }
}
