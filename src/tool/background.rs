//! The tools that list, view and stop background agents. The session (`session/subagents`) owns the agents.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::background_list::{self, Listed, find};
use super::{NoArguments, PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec};
use crate::acp::ToolKind;
use crate::permission::Effect;

/// Maximum seconds that `view_background_agent` may wait.
const MAX_WAIT: u64 = 100;

#[derive(Debug, Clone)]
pub struct BackgroundAgent {
    pub id: String,
    pub agent: String,
    /// The task, on one line.
    pub title: String,
    pub status: watch::Receiver<BackgroundStatus>,
    /// Cancel to end the agent.
    pub stop: CancellationToken,
}

#[derive(Debug, Clone, Default)]
pub struct BackgroundStatus {
    pub output: String,
    pub end: Option<Finished>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finished {
    pub text: String,
    pub has_failed: bool,
    /// The last task list, for people.
    pub plan: String,
}

impl BackgroundAgent {
    pub fn is_over(&self) -> bool {
        self.status.borrow().end.is_some()
    }

    fn describe(&self) -> String {
        let Self { id, agent, title, status, .. } = self;
        let state = match &status.borrow().end {
            None => "running",
            Some(Finished { has_failed: true, .. }) => "failed",
            Some(Finished { has_failed: false, .. }) => "finished",
        };
        format!("{id} ({agent}): {title} [{state}]")
    }

    fn snapshot(&self) -> String {
        let status = self.status.borrow();
        match &status.end {
            Some(Finished { text, has_failed, .. }) => {
                let state = if *has_failed { "It failed." } else { "It has finished." };
                format!("[{state}]\n{text}")
            }
            None if status.output.is_empty() => "[Running. No output yet.]".into(),
            None => format!("{}\n[Running.]", status.output),
        }
    }

    async fn over(&self) {
        let mut status = self.status.clone();
        // An error means that the sender is gone, so the agent is over, too.
        let _ = status.wait_for(|status| status.end.is_some()).await;
    }
}

impl Listed for BackgroundAgent {
    const KIND: &'static str = "agent";

    fn id(&self) -> &str {
        &self.id
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ViewArguments {
    /// Id of the agent: `agent_1`.
    agent: String,
    /// Seconds to wait for it to finish, at most 100. Default: 0.
    #[serde(default)]
    wait: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StopArguments {
    /// Id of the agent: `agent_1`.
    agent: String,
}

pub(super) fn list() -> Arc<dyn Tool> {
    let what = "List the background agents and their status.";
    let spec = ToolSpec::new("list_background_agents", ToolKind::Read, Effect::Session, what);
    spec.tool(|NoArguments {}, _| {
        Ok(PreparedCall::new("List background agents", async |context: RunContext| {
            let lines: Vec<String> = context.agents.iter().map(BackgroundAgent::describe).collect();
            Ok(background_list::list::<BackgroundAgent>(&lines))
        }))
    })
}

pub(super) fn view() -> Arc<dyn Tool> {
    let what = "Show the answer of a background agent, or its output so far.";
    let spec = ToolSpec::new("view_background_agent", ToolKind::Read, Effect::Session, what);
    spec.tool(|ViewArguments { agent: id, wait }, _| {
        if wait > MAX_WAIT {
            return Err(ToolError::arguments(format!("wait is at most {MAX_WAIT}")));
        }
        Ok(PreparedCall::new(format!("View {id}"), async move |context: RunContext| {
            let agent = find(&context.agents, &id)?;
            // A timeout is not an error.
            let _ = tokio::time::timeout(Duration::from_secs(wait), agent.over()).await;
            Ok(ToolOutput::long_text(agent.snapshot()))
        }))
    })
}

pub(super) fn stop() -> Arc<dyn Tool> {
    let what = "Stop a background agent and everything it started, and show its last output.";
    let spec = ToolSpec::new("stop_background_agent", ToolKind::Other, Effect::Session, what);
    spec.tool(|StopArguments { agent: id }, _| {
        Ok(PreparedCall::new(format!("Stop {id}"), async move |context: RunContext| {
            let agent = find(&context.agents, &id)?;
            agent.stop.cancel();
            agent.over().await;
            Ok(ToolOutput::long_text(agent.snapshot()))
        }))
    })
}
