//! `delegate`, `run_skill` and `handoff`: only parse arguments; the session carries the call out. Each call
//! of the other agent is decided under this session's mode and under its own (D40-D46).

use std::path::PathBuf;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec, arguments};
use crate::acp::ToolKind;
use crate::agents::AgentRegistry;
use crate::permission::{Effect, Target};
use crate::text::shorten;
use crate::workspace::Workspace;

const MAX_TASK: usize = 64 * 1024;

const TITLE: usize = 60;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionAction {
    /// A sub-agent's answer is the result.
    Delegate {
        /// `None` for the session's own agent.
        agent: Option<String>,
        task: String,
        is_background: bool,
    },
    /// Like [`Self::Delegate`], with a skill's instructions.
    Skill { skill: String, task: String },
    /// Another agent continues this conversation.
    Handoff { agent: String },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DelegateArguments {
    /// The complete task: the sub-agent does not see this conversation. State the expected answer.
    task: String,
    /// Id of the agent. Default: an agent like you.
    #[serde(default)]
    agent: Option<String>,
}

pub(super) struct Delegate(ToolSpec);

impl Delegate {
    pub(super) fn new(agents: &AgentRegistry) -> [Self; 2] {
        let agents = describe(agents);
        let spec = |name, what: &str| {
            let spec = ToolSpec::new::<DelegateArguments>(name, ToolKind::Other, Effect::Delegate, "");
            ToolSpec { description: format!("{what}\n\n{agents}").into(), ..spec }
        };
        let one = spec(
            "delegate",
            "Run a sub-agent on a task and wait for its answer. Use it to keep long searches out of this conversation, or for \
             an agent that suits the task better. The sub-agent has its own conversation, the same folders and the same mode, \
             and cannot ask the user. Several calls in one message run one after the other; use delegate_background to run \
             them in parallel.",
        );
        let other = spec(
            "delegate_background",
            "Like delegate, but you continue meanwhile. Returns the id of the agent. You are notified when it has finished; \
             view_background_agent returns its answer or waits for it. It ends with the session.",
        );
        [Self(one), Self(ToolSpec { is_background: true, ..other })]
    }
}

fn describe(agents: &AgentRegistry) -> String {
    let mut text = "The agents:".to_owned();
    for agent in agents.iter() {
        let (id, about) = (&agent.id, agent.description.trim());
        let reads = if agent.is_read_only { " (changes nothing)" } else { "" };
        text = format!("{text}\n- {id}{reads}: {about}");
    }
    text
}

#[async_trait]
impl Tool for Delegate {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let DelegateArguments { task, agent } = arguments(&self.0.name, given)?;
        check_task(&self.0.name, &task)?;
        let title = format!("{}: {}", agent.as_deref().unwrap_or("delegate"), short(&task));
        let mentions = agent.iter().map(PathBuf::from).collect();
        let action = SessionAction::Delegate { agent, task, is_background: self.0.is_background };
        Ok(Box::new(Call { action, title, mentions }))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SkillArguments {
    /// Name of the skill, from `list_skills`.
    skill: String,
    /// The complete task: the sub-agent does not see this conversation. State the expected answer.
    task: String,
}

pub const RUN: &str = "run_skill";

pub(super) struct RunSkill(ToolSpec);

impl RunSkill {
    pub(super) fn new() -> Self {
        Self(ToolSpec::new::<SkillArguments>(
            RUN,
            ToolKind::Other,
            Effect::Delegate,
            "Run a sub-agent like you on a task with a skill's instructions, and wait for its answer. It has its own conversation, \
             the same folders and the same mode, and cannot ask the user.",
        ))
    }
}

#[async_trait]
impl Tool for RunSkill {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let SkillArguments { skill, task } = arguments(&self.0.name, given)?;
        check_task(&self.0.name, &task)?;
        let title = format!("{skill}: {}", short(&task));
        let mentions = vec![PathBuf::from(&skill)];
        Ok(Box::new(Call { action: SessionAction::Skill { skill, task }, title, mentions }))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HandoffArguments {
    /// Id of the agent that continues.
    agent: String,
}

pub const HANDOFF: &str = "handoff";

pub(super) struct Handoff(ToolSpec);

impl Handoff {
    pub(super) fn new(agents: &AgentRegistry) -> Self {
        let spec = ToolSpec::new::<HandoffArguments>(HANDOFF, ToolKind::Other, Effect::Delegate, "");
        let what = "Hand this conversation over to another agent permanently, from the next step on. The mode stays the same.";
        Self(ToolSpec { description: format!("{what}\n\n{}", describe(agents)).into(), ..spec })
    }
}

#[async_trait]
impl Tool for Handoff {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let HandoffArguments { agent } = arguments(&self.0.name, given)?;
        let title = format!("Hand over to {agent}");
        let mentions = vec![PathBuf::from(&agent)];
        Ok(Box::new(Call { action: SessionAction::Handoff { agent }, title, mentions }))
    }
}

fn check_task(tool: &str, task: &str) -> Result<(), ToolError> {
    if task.trim().is_empty() {
        return Err(ToolError::arguments(tool, "task is empty; the other agent knows only the task"));
    }
    if task.len() > MAX_TASK {
        return Err(ToolError::arguments(tool, format!("task is longer than {} KiB", MAX_TASK / 1024)));
    }
    Ok(())
}

fn short(task: &str) -> String {
    let line = task.trim().lines().next().unwrap_or_default();
    shorten(line, TITLE).into_owned()
}

#[derive(Debug)]
struct Call {
    action: SessionAction,
    title: String,
    /// Agent or skill, which rules match.
    mentions: Vec<PathBuf>,
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    fn mentions(&self) -> Vec<PathBuf> {
        self.mentions.clone()
    }

    fn session_action(&self) -> Option<&SessionAction> {
        Some(&self.action)
    }

    async fn run(self: Box<Self>, _: RunContext) -> Result<ToolOutput, ToolError> {
        Err(ToolError::Failed("Only a session can run another agent.".into()))
    }
}
