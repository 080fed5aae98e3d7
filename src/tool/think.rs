//! `think`: lets the model write down a thought. Has no effect.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{PreparedCall, Tool, ToolContent, ToolOutput, ToolSpec};
use crate::acp::ToolKind;
use crate::permission::Effect;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The thought.
    thought: String,
}

pub(super) fn tool() -> Arc<dyn Tool> {
    let what =
        "Write a thought down, to weigh what you have found before you go on. Nothing is read or changed.";
    let spec = ToolSpec::new("think", ToolKind::Think, Effect::Session, what);
    spec.tool(|Arguments { thought }, _| {
        Ok(PreparedCall::new("Think", async move |_| {
            let content = vec![ToolContent::Text(thought)];
            Ok(ToolOutput { content, ..ToolOutput::text("Noted.") })
        }))
    })
}
