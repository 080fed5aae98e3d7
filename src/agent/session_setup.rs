//! Prepares a session: its configuration, agent and initial mode.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::LoadedPolicy;
use super::open::most_restrictive;
use crate::acp::{McpServer, SessionId, SessionModeId};
use crate::agents::AgentSpec;
use crate::error::AgentError;
use crate::external_agent::capability;
use crate::mode::stored::Unknown;
use crate::permission::compare;
use crate::session::SessionContext;
use crate::store::sessions::StoredSession;
use crate::tool::mcp::ServerEvent;
use crate::workspace::Workspace;

pub(super) struct SessionSetup {
    pub workspace: Workspace,
    pub servers: Option<mpsc::UnboundedReceiver<ServerEvent>>,
    pub context: SessionContext,
    pub policy: LoadedPolicy,
    pub pending_user_notices: Vec<String>,
    /// About Modegate's own model and commands; dropped for external agents.
    pub own_notices: Vec<String>,
    pub client_servers: Vec<McpServer>,
}

impl SessionSetup {
    /// Returns a read-only substitute, with a message to the user, if the agent no longer exists.
    pub(super) fn agent(&mut self, id: Option<&str>) -> Arc<AgentSpec> {
        let (agent, doubt) = self.context.agents.stored(id);
        self.pending_user_notices.extend(doubt);
        agent
    }

    /// Decides whether an external agent is brokered.
    pub(super) async fn with_broker(&self, agent: Arc<AgentSpec>) -> Result<Arc<AgentSpec>, AgentError> {
        self.context.try_broker(&agent).await;
        let agent = self.context.with_broker(agent);
        self.context.check_required_broker(&agent).map_err(AgentError::InvalidRequest)?;
        Ok(agent)
    }

    /// Returns the mode of a session without a stored or requested mode: `--mode` (`command_line`), else the
    /// configured default or the mode of `--max-mode`, whichever allows less. The most restrictive mode
    /// replaces an unknown default, and also becomes a ceiling.
    pub(super) fn default_mode(&mut self, command_line: Option<&SessionModeId>) -> SessionModeId {
        let mode = self.effective_mode(None, command_line);
        let SessionContext { modes, max_modes, managed_modes, fallback_ceiling, .. } = &self.context;
        match modes.resolve(&mode.0) {
            Ok(default) if command_line.is_none() && fallback_ceiling.is_none() => {
                let default = compare::tighter_of(modes, default, max_modes);
                let limits = managed_modes.iter().map(std::slice::from_ref);
                limits.fold(default, |default, limit| compare::tighter_of(modes, default, limit)).mode_id()
            }
            _ => mode,
        }
    }

    fn effective_mode(
        &mut self,
        stored: Option<(&SessionId, &str)>,
        command_line: Option<&SessionModeId>,
    ) -> SessionModeId {
        let modes = Arc::clone(&self.context.modes);
        let effective = modes.effective(stored.map(|(_, mode)| mode), self.policy.defaults(command_line));
        match &effective.unknown {
            None => {}
            Some(Unknown::Stored(unknown)) => {
                let session = stored.map(|(id, _)| id.to_string()).unwrap_or_default();
                tracing::warn!(session, "the stored mode does not exist any more: {unknown}");
            }
            Some(Unknown::Default(unknown)) => {
                tracing::warn!("the default mode does not exist any more: {unknown}");
                let text = format!("{unknown}. This session begins in {} mode.\n\n", effective.mode.id);
                self.pending_user_notices.push(text);
                self.context.fallback_ceiling = most_restrictive();
            }
        }
        effective.mode.mode_id()
    }

    pub(super) async fn stored_agent_and_mode(
        &mut self,
        stored: &StoredSession,
        command_line: Option<&SessionModeId>,
    ) -> Result<(Arc<AgentSpec>, SessionModeId), AgentError> {
        let agent = self.agent(stored.agent.as_deref());
        let agent = self.with_broker(agent).await?;
        // Among all modes first: the strictest mode of the agent may allow more than the stored mode.
        let mode = self.effective_mode(stored.mode.as_deref().map(|mode| (&stored.id, mode)), command_line);
        self.context.limit_to_agent(&agent);
        let SessionContext { modes, unsupported_modes: unsupported, .. } = &self.context;
        match capability::unsupported(&mode.0, unsupported, modes) {
            Some(error) => Err(error),
            None => Ok((agent, mode)),
        }
    }
}
