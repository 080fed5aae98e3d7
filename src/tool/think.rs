//! `think`: lets the model write down a thought. Has no effect.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{PreparedCall, RunContext, Tool, ToolContent, ToolError, ToolOutput, ToolSpec, arguments};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::Workspace;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The thought.
    thought: String,
}

pub(super) struct Think(ToolSpec);

impl Think {
    pub(super) fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "think",
            ToolKind::Think,
            Effect::Session,
            "Write a thought down, to weigh what you have found before you go on. Nothing is read or changed.",
        ))
    }
}

#[async_trait]
impl Tool for Think {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { thought } = arguments(&self.0.name, given)?;
        Ok(Box::new(Call { thought }))
    }
}

#[derive(Debug)]
struct Call {
    thought: String,
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        "Think".into()
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    async fn run(self: Box<Self>, _: RunContext) -> Result<ToolOutput, ToolError> {
        let content = vec![ToolContent::Text(self.thought)];
        Ok(ToolOutput { text: "Noted.".into(), content, ..ToolOutput::default() })
    }
}
