//! `view_background`: shows or lists background jobs and agents.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, select_all};
use schemars::JsonSchema;
use serde::Deserialize;

use super::background::BackgroundRole;
use super::background_list::{BackgroundEntry, find};
use crate::acp::ToolKind;
use crate::permission::Effect;
use crate::text::first_line;
use crate::tool::shell::jobs::{describe, lost};
use crate::tool::{Job, PreparedCall, SessionState, Tool, ToolError, ToolOutput, ToolSpec};

/// Maximum seconds to wait.
const MAX_WAIT: u64 = 600;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ViewBackgroundArguments {
    /// `job_1` or `agent_1`. Default: list all with their status.
    #[serde(default)]
    id: Option<String>,
    /// Seconds to wait for its end, without an id for any end; at most 600. Default: 0.
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
        let wait = Duration::from_secs(wait);
        let Some(id) = id else {
            let title = if wait.is_zero() { "List background work" } else { "Wait for background work" };
            return Ok(PreparedCall::on_state(title, async move |_, state| {
                if wait.is_zero() {
                    return Ok(list(&state, false).await);
                }
                // A timeout is not an error.
                let _ = tokio::time::timeout(wait, any_end(&state)).await;
                Ok(list(&state, true).await)
            }));
        };
        Ok(PreparedCall::on_state(format!("View {id}"), async move |_, state| {
            let text = match find(&state.jobs, &state.agents, &id)? {
                BackgroundEntry::Job(job) => {
                    // A timeout is not an error.
                    let _ = tokio::time::timeout(wait, job.ending()).await;
                    view(job, all).await?
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

/// The output that the model has not seen, or all of it.
async fn view(job: &Job, all: bool) -> Result<String, ToolError> {
    let snapshot = if all { job.snapshot().await } else { job.unseen().await };
    let snapshot = snapshot.ok_or_else(lost)?;
    if snapshot.end.is_some() {
        job.seen_end.mark();
    }
    let is_old = snapshot.output.is_empty() && snapshot.written > 0;
    let nothing = if is_old { "[No new output.]\n" } else { "" };
    Ok(format!("{nothing}{}", snapshot.describe()))
}

/// Waits until some work ends. Returns at once if some has ended that the model has not seen, or if none runs.
async fn any_end(state: &SessionState) {
    let has_news = state.jobs.iter().any(|job| job.is_over() && !job.seen_end.is_marked())
        || state.agents.iter().any(|agent| agent.is_over() && !agent.seen_end.is_marked());
    let jobs = state.jobs.iter().filter(|job| !job.is_over()).map(|job| job.ending().boxed());
    let agents = state.agents.iter().filter(|agent| !agent.is_over()).map(|agent| agent.over().boxed());
    let ends: Vec<_> = jobs.chain(agents).collect();
    if !has_news && !ends.is_empty() {
        select_all(ends).await;
    }
}

/// A line for each, or the results of the work that has ended since the model last looked.
async fn list(state: &SessionState, shows_results: bool) -> ToolOutput {
    let mut lines = Vec::new();
    for job in &state.jobs {
        let is_news = shows_results && job.is_over() && !job.seen_end.is_marked();
        let result = if is_news { view(job, false).await.ok() } else { None };
        lines.push(match result {
            Some(text) => format!("{}: {}\n{text}", job.id, first_line(&job.line)),
            None => describe(job).await,
        });
    }
    for agent in &state.agents {
        let is_news = shows_results && agent.is_over() && !agent.seen_end.is_marked();
        let result = if is_news { format!("\n{}", agent.snapshot()) } else { String::new() };
        lines.push(agent.describe() + &result);
    }
    if lines.is_empty() {
        lines.push("[Nothing was started in the background.]".to_owned());
    }
    ToolOutput::long_text(lines.join("\n"))
}
