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
    /// What it is to do, complete: it sees nothing of this conversation. Say what to answer with.
    task: String,
    /// Which agent, by its id. Default: one like you.
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
            "Have another agent work on a task, and wait for its answer: to keep long searches out of this conversation, or \
             because it knows better. It has its own conversation, works in the same folders and under the same mode, and asks \
             nobody. Several in one message are worked on one after the other; for work side by side use delegate_background.",
        );
        let other = spec(
            "delegate_background",
            "The same, while you go on: answers with the id of the agent at work. You are told when it has finished; \
             view_background_agent has its answer, or waits for it. It ends with the session.",
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
    /// The skill's name, as `list_skills` has it.
    skill: String,
    /// What is to be done by it, complete: whoever does it sees nothing of this conversation.
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
            "Have an agent like you work on a task by a skill, and wait for its answer. It has the skill's instructions before it, its \
             own conversation, works in the same folders and under the same mode, and asks nobody.",
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
    /// Which agent goes on, by its id.
    agent: String,
}

pub const HANDOFF: &str = "handoff";

pub(super) struct Handoff(ToolSpec);

impl Handoff {
    pub(super) fn new(agents: &AgentRegistry) -> Self {
        let spec = ToolSpec::new::<HandoffArguments>(HANDOFF, ToolKind::Other, Effect::Delegate, "");
        let what = "Let another agent go on with this conversation, from the next step on and for good. The mode stays what it is.";
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
        return Err(ToolError::arguments(tool, "task is empty: it is all that the other agent knows"));
    }
    if task.len() > MAX_TASK {
        return Err(ToolError::arguments(tool, format!("task is longer than {} KiB", MAX_TASK / 1024)));
    }
    Ok(())
}

fn short(task: &str) -> String {
    let line = task.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(TITLE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
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
        Err(ToolError::Failed("Only a session can have another agent work.".into()))
    }
}
