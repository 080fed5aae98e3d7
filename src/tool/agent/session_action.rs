//! The calls that the session carries out itself. Each call of the other agent is decided under this session's
//! mode and under its own (D40-D46).

use std::path::PathBuf;

use crate::agents::AgentRegistry;
use crate::text::shorten;
use crate::tool::{CallAction, PreparedCall, ToolError};

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
        /// See [`AgentSpec::only_reads`](crate::agents::AgentSpec::only_reads).
        is_reader: bool,
    },
    /// Like [`Self::Delegate`], with a skill's instructions.
    Skill { skill: String, task: String },
    /// Another agent continues this conversation.
    Handoff { agent: String },
}

impl SessionAction {
    /// True if the action starts an agent that changes nothing for its whole life. `is_reply_read_only` is true if
    /// the ceilings of the reply, which its agents keep, deny all changes.
    pub fn starts_reader(&self, is_reply_read_only: bool) -> bool {
        match self {
            Self::Delegate { is_reader, .. } => *is_reader || is_reply_read_only,
            Self::Skill { .. } => is_reply_read_only,
            Self::Handoff { .. } => false,
        }
    }

    /// Rules match the agent or skill.
    pub(in crate::tool) fn prepared(self) -> Result<PreparedCall, ToolError> {
        let (title, of) = match &self {
            Self::Delegate { agent, task, .. } => {
                (title(agent.as_deref().unwrap_or("delegate"), task)?, agent.as_ref())
            }
            Self::Skill { skill, task } => (title(skill, task)?, Some(skill)),
            Self::Handoff { agent } => (format!("Hand over to {agent}"), Some(agent)),
        };
        let mentions = of.map(PathBuf::from).into_iter().collect();
        Ok(PreparedCall { mentions, ..PreparedCall::with_action(title, CallAction::Session(self)) })
    }
}

/// Returns an error for a task that no other agent can work on.
fn title(of: &str, task: &str) -> Result<String, ToolError> {
    let line = task.trim().lines().next();
    let line =
        line.ok_or_else(|| ToolError::arguments("task is empty; the other agent knows only the task"))?;
    if task.len() > MAX_TASK {
        return Err(ToolError::arguments(format!("task is longer than {} KiB", MAX_TASK / 1024)));
    }
    Ok(format!("{of}: {}", shorten(line, TITLE)))
}

pub(super) fn list(agents: &AgentRegistry) -> String {
    let mut text = "The agents:".to_owned();
    for agent in agents.iter() {
        let (id, about) = (&agent.id, agent.description.trim());
        let reads = if agent.is_read_only { " (changes nothing)" } else { "" };
        text = format!("{text}\n- {id}{reads}: {about}");
    }
    text
}
