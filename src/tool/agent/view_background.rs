//! `view_background`: shows or lists background jobs and agents.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::background::{BackgroundAgent, BackgroundRole};
use super::background_list::{BackgroundEntry, find};
use crate::acp::ToolKind;
use crate::permission::Effect;
use crate::tool::shell::jobs::{describe, lost};
use crate::tool::{PreparedCall, SessionState, Tool, ToolError, ToolOutput, ToolSpec};

/// Maximum seconds to wait.
const MAX_WAIT: u64 = 600;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ViewBackgroundArguments {
    /// `job_1` or `agent_1`. Default: list all with their status.
    #[serde(default)]
    id: Option<String>,
    /// Seconds to wait for its end, at most 600. Default: 0.
    #[serde(default)]
    wait: u64,
    /// Show the output of a job from its start. Default: false.
    #[serde(default)]
    all: bool,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Show the status of background work: the output of a job since you last looked, or an agent's answer.";
    let spec = ToolSpec::new("view_background", ToolKind::Read, Effect::Session, description);
    let timeout = Duration::from_secs(MAX_WAIT + 10);
    let spec = ToolSpec { timeout, background: BackgroundRole::Controls, ..spec };
    spec.tool(|ViewBackgroundArguments { id, wait, all }, _| {
        if wait > MAX_WAIT {
            return Err(ToolError::arguments(format!("wait is at most {MAX_WAIT}")));
        }
        let Some(id) = id else {
            return Ok(PreparedCall::on_state("List background work", async |_, state| {
                Ok(list(&state).await)
            }));
        };
        let wait = Duration::from_secs(wait);
        Ok(PreparedCall::on_state(format!("View {id}"), async move |_, state| {
            let text = match find(&state.jobs, &state.agents, &id)? {
                BackgroundEntry::Job(job) => {
                    // A timeout is not an error.
                    let _ = tokio::time::timeout(wait, job.ending()).await;
                    let snapshot = if all { job.snapshot().await } else { job.unseen().await };
                    let snapshot = snapshot.ok_or_else(lost)?;
                    let is_old = snapshot.output.is_empty() && snapshot.written > 0;
                    let nothing = if is_old { "[No new output.]\n" } else { "" };
                    format!("{nothing}{}", snapshot.describe())
                }
                BackgroundEntry::Agent(agent) => {
                    let _ = tokio::time::timeout(wait, agent.over()).await;
                    agent.snapshot()
                }
            };
            Ok(ToolOutput::long_text(text))
        }))
    })
}

async fn list(state: &SessionState) -> ToolOutput {
    let mut lines = Vec::new();
    for job in &state.jobs {
        lines.push(describe(job).await);
    }
    lines.extend(state.agents.iter().map(BackgroundAgent::describe));
    if lines.is_empty() {
        lines.push("[Nothing was started in the background.]".to_owned());
    }
    ToolOutput::long_text(lines.join("\n"))
}
