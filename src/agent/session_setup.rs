//! What a session is made of before there is one: what holds in its folders, and the agent and the mode that it begins with.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Policy;
use super::open::most_restrictive;
use crate::acp::{McpServer, SessionId, SessionModeId};
use crate::agents::AgentSpec;
use crate::error::AgentError;
use crate::mode::stored::Unknown;
use crate::permission::compare;
use crate::session::{SessionContext, capability};
use crate::store::sessions::StoredSession;
use crate::tool::mcp::ServerEvent;
use crate::workspace::Workspace;

/// What a session is made of, but for its id and its mode.
pub(super) struct SessionSetup {
    pub workspace: Workspace,
    pub servers: mpsc::UnboundedReceiver<ServerEvent>,
    pub context: SessionContext,
    pub policy: Policy,
    pub pending_user_notices: Vec<String>,
    /// What is to be said of Modegate's own model and commands: nothing where somebody else's agent answers.
    pub own_notices: Vec<String>,
    /// The client's servers, as it named them.
    pub client_servers: Vec<McpServer>,
}

impl SessionSetup {
    /// The agent of this id; one that is not there any more only reads, and the user is told.
    pub fn agent(&mut self, id: Option<&str>) -> Arc<AgentSpec> {
        let (agent, doubt) = self.context.agents.stored(id);
        self.pending_user_notices.extend(doubt);
        agent
    }

    /// The mode of a session for which none is stored or asked for. `command_line` is the value of `--mode`; without it, a
    /// session opens in the mode of `--max-mode` if that allows less than the default.
    ///
    /// A default that no longer exists is replaced by the most restrictive mode, which then also is a ceiling.
    pub fn default_mode(&mut self, command_line: Option<&SessionModeId>) -> SessionModeId {
        let mode = self.effective_mode(None, command_line);
        let SessionContext { modes, max_modes, fallback_ceiling, .. } = &self.context;
        match modes.resolve(&mode.0) {
            Ok(default) if command_line.is_none() && fallback_ceiling.is_none() => {
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
        let modes = Arc::clone(&self.context.modes);
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
                self.pending_user_notices.push(text);
                self.context.fallback_ceiling = most_restrictive();
            }
        }
        effective.mode.mode_id()
    }

    /// The agent and the mode of a stored session. `command_line` is the value of `--mode`.
    ///
    /// # Errors
    /// The mode is not possible for the agent.
    pub fn stored_agent_and_mode(
        &mut self,
        stored: &StoredSession,
        command_line: Option<&SessionModeId>,
    ) -> Result<(Arc<AgentSpec>, SessionModeId), AgentError> {
        let agent = self.agent(stored.agent.as_deref());
        // Of all modes: the tightest that is possible for the agent may be looser than what was on.
        let mode = self.effective_mode(stored.mode.as_deref().map(|mode| (&stored.id, mode)), command_line);
        self.context.limit_to_agent(&agent);
        let SessionContext { modes, unsupported_modes: unsupported, .. } = &self.context;
        match capability::unsupported(&mode.0, unsupported, modes) {
            Some(error) => Err(error),
            None => Ok((agent, mode)),
        }
    }
}
