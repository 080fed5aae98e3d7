//! The tools that list, view and stop background agents. The session (`session/subagents`) owns the agents.

use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::background_list::missing;
use super::{PreparedCall, RunContext, Tool, ToolContent, ToolError, ToolOutput, ToolSpec, arguments};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::Workspace;

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
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoArguments {}

pub(super) struct List(ToolSpec);

impl List {
    pub(super) fn new() -> Self {
        let what = "List the background agents and their status.";
        Self(ToolSpec::new::<NoArguments>("list_background_agents", ToolKind::Read, Effect::Session, what))
    }
}

#[async_trait]
impl Tool for List {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let NoArguments {} = arguments(&self.0.name, given)?;
        Ok(Box::new(About::List))
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

pub(super) struct View(ToolSpec);

impl View {
    pub(super) fn new() -> Self {
        let what = "Show the answer of a background agent, or its output so far.";
        Self(ToolSpec::new::<ViewArguments>("view_background_agent", ToolKind::Read, Effect::Session, what))
    }
}

#[async_trait]
impl Tool for View {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let ViewArguments { agent, wait } = arguments(&self.0.name, given)?;
        if wait > MAX_WAIT {
            return Err(ToolError::arguments(&self.0.name, format!("wait is at most {MAX_WAIT}")));
        }
        Ok(Box::new(About::View(agent, Duration::from_secs(wait))))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StopArguments {
    /// Id of the agent: `agent_1`.
    agent: String,
}

pub(super) struct Stop(ToolSpec);

impl Stop {
    pub(super) fn new() -> Self {
        let what = "Stop a background agent and everything it started, and show its last output.";
        Self(ToolSpec::new::<StopArguments>("stop_background_agent", ToolKind::Other, Effect::Session, what))
    }
}

#[async_trait]
impl Tool for Stop {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let StopArguments { agent } = arguments(&self.0.name, given)?;
        Ok(Box::new(About::Stop(agent)))
    }
}

#[derive(Debug)]
enum About {
    List,
    View(String, Duration),
    Stop(String),
}

#[async_trait]
impl PreparedCall for About {
    fn title(&self) -> String {
        match self {
            Self::List => "List background agents".into(),
            Self::View(agent, _) => format!("View {agent}"),
            Self::Stop(agent) => format!("Stop {agent}"),
        }
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let agents = &context.agents;
        let text = match *self {
            Self::List if agents.is_empty() => "[There are no background agents.]".into(),
            Self::List => agents.iter().map(BackgroundAgent::describe).collect::<Vec<_>>().join("\n"),
            Self::View(id, wait) => {
                let agent = find(agents, &id)?;
                // A timeout is not an error.
                let _ = tokio::time::timeout(wait, over(agent)).await;
                agent.snapshot()
            }
            Self::Stop(id) => {
                let agent = find(agents, &id)?;
                agent.stop.cancel();
                over(agent).await;
                agent.snapshot()
            }
        };
        Ok(ToolOutput { content: vec![ToolContent::middle(&text)], text, ..ToolOutput::default() })
    }
}

async fn over(agent: &BackgroundAgent) {
    let mut status = agent.status.clone();
    // An error means that the sender is gone, so the agent is over, too.
    let _ = status.wait_for(|status| status.end.is_some()).await;
}

fn find<'a>(agents: &'a [BackgroundAgent], id: &str) -> Result<&'a BackgroundAgent, ToolError> {
    let found = agents.iter().find(|agent| agent.id == id);
    found.ok_or_else(|| missing("agent", id, agents.iter().map(|agent| agent.id.as_str())))
}
