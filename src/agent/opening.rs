//! What a session is made of before there is one: what holds in its folders, and the agent and the mode that it begins with.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Policy;
use super::open::most_restrictive;
use crate::acp::{McpServer, SessionId, SessionModeId};
use crate::error::AgentError;
use crate::mode::stored::Unknown;
use crate::permission::compare;
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

    /// The mode of a session for which none is stored or asked for. `command_line` is the value of `--mode`; without it, a
    /// session opens in the mode of `--max-mode` if that allows less than the default.
    ///
    /// A default that no longer exists is replaced by the most restrictive mode, which then also is a ceiling.
    pub fn default_mode(&mut self, command_line: Option<&SessionModeId>) -> SessionModeId {
        let mode = self.effective_mode(None, command_line);
        let Shared { modes, max_modes, held_to, .. } = &self.shared;
        match modes.resolve(&mode.0) {
            Ok(default) if command_line.is_none() && held_to.is_none() => {
                compare::tighter_of(modes, default, max_modes).mode_id()
            }
            _ => mode,
        }
    }

    /// The mode that a session opens in. `stored` is what the store has for it.
    fn effective_mode(
        &mut self,
        stored: Option<(&SessionId, &str)>,
        command_line: Option<&SessionModeId>,
    ) -> SessionModeId {
        let modes = Arc::clone(&self.shared.modes);
        let effective = modes.effective(stored.map(|(_, mode)| mode), self.policy.defaults(command_line));
        match &effective.unknown {
            None => {}
            // The session itself tells the user.
            Some(Unknown::Stored(unknown)) => {
                let session = stored.map(|(id, _)| id.to_string()).unwrap_or_default();
                tracing::warn!(session, "the stored mode does not exist any more: {unknown}");
            }
            // The mode existed when the process started.
            Some(Unknown::Default(unknown)) => {
                tracing::warn!("the default mode does not exist any more: {unknown}");
                let text = format!("{unknown}. This session begins in {} mode.\n\n", effective.mode.id);
                self.notices.push(text);
                self.shared.held_to = most_restrictive();
            }
        }
        effective.mode.mode_id()
    }

    /// The agent and the mode of a stored session. `command_line` is the value of `--mode`.
    ///
    /// # Errors
    /// The mode is not possible for the agent.
    pub fn kept(
        &mut self,
        kept: &StoredSession,
        command_line: Option<&SessionModeId>,
    ) -> Result<(Arc<AgentSpec>, SessionModeId), AgentError> {
        let agent = self.agent(kept.agent.as_deref());
        // Of all modes: the tightest that is possible for the agent may be looser than what was on.
        let mode = self.effective_mode(kept.mode.as_deref().map(|mode| (&kept.id, mode)), command_line);
        self.shared.hold_to(&agent);
        let Shared { modes, impossible, .. } = &self.shared;
        match possible::unsupported(&mode.0, impossible, modes) {
            Some(error) => Err(error),
            None => Ok((agent, mode)),
        }
    }
}
