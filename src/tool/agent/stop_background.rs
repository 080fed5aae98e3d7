//! `stop_background`: stops a background job or agent.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::BackgroundRole;
use super::background_list::{BackgroundEntry, find};
use crate::acp::ToolKind;
use crate::permission::Effect;
use crate::tool::shell::jobs::lost;
use crate::tool::{PreparedCall, Tool, ToolOutput, ToolSpec};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StopBackgroundArguments {
    /// `job_1` or `agent_1`.
    id: String,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Stop a background job or agent with everything it started, and show its last output.";
    let spec = ToolSpec::new("stop_background", ToolKind::Other, Effect::Session, description);
    ToolSpec { background: BackgroundRole::Controls, ..spec }.tool(|StopBackgroundArguments { id }, _| {
        Ok(PreparedCall::on_state(format!("Stop {id}"), async move |_, state| {
            let text = match find(&state.jobs, &state.agents, &id)? {
                BackgroundEntry::Job(job) => {
                    job.stop().await;
                    job.ending().await;
                    job.seen_end.mark();
                    job.unseen().await.ok_or_else(lost)?.describe()
                }
                BackgroundEntry::Agent(agent) => {
                    agent.stop.cancel();
                    agent.over().await;
                    agent.snapshot()
                }
            };
            Ok(ToolOutput::long_text(text))
        }))
    })
}
