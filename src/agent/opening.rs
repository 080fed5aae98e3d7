//! What a session is made of before there is one: what holds in its folders, and the agent and the mode that it begins with.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Policy;
use crate::acp::{McpServer, SessionModeId};
use crate::error::AgentError;
use crate::roster::AgentSpec;
use crate::session::{Shared, possible};
use crate::store::sessions::StoredSession;
use crate::tool::mcp::ServerEvent;
use crate::workspace::Workspace;

/// What a session is made of, but for its id and its mode.
pub(super) struct Opening {
    pub workspace: Workspace,
    pub servers: mpsc::UnboundedReceiver<ServerEvent>,
    pub shared: Shared,
    pub policy: Policy,
    pub notices: Vec<String>,
    /// What is to be said of Modegate's own model and commands: nothing where somebody else's agent answers.
    pub of_its_own: Vec<String>,
    /// The client's servers, as it named them.
    pub theirs: Vec<McpServer>,
}

impl Opening {
    /// The agent of this id; one that is not there any more only reads, and the user is told.
    pub fn agent(&mut self, id: Option<&str>) -> Arc<AgentSpec> {
        let (agent, doubt) = self.shared.agents.stored(id);
        self.notices.extend(doubt);
        agent
    }

    /// The agent and the mode of a session that is kept.
    ///
    /// # Errors
    /// The mode is not possible for the agent.
    pub fn kept(&mut self, kept: &StoredSession) -> Result<(Arc<AgentSpec>, SessionModeId), AgentError> {
        let agent = self.agent(kept.agent.as_deref());
        // Of all modes: the tightest that is possible for the agent may be looser than what was on.
        let mode = self.shared.modes.stored(kept.mode.as_deref()).0.mode_id();
        self.shared.hold_to(&agent);
        let Shared { modes, impossible, .. } = &self.shared;
        match possible::unsupported(&mode.0, impossible, modes) {
            Some(error) => Err(error),
            None => Ok((agent, mode)),
        }
    }
}
