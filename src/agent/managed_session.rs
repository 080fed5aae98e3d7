//! Applies the organisation's policy to a session that is being opened.

use super::LoadedPolicy;
use crate::acp::McpServer;
use crate::error::AgentError;
use crate::managed_policy::{BY_POLICY, ManagedLimits};
use crate::server;
use crate::session::ExitSettings;
use crate::store::Store;
use crate::tool::Toolset;

/// Refuses a session that the policy does not allow here. `is_live` is false in deterministic runs.
pub(super) async fn check(policy: &LoadedPolicy, store: &Store, is_live: bool) -> Result<(), AgentError> {
    if let Some(refusal) = &policy.refusal {
        return Err(AgentError::InvalidRequest(refusal.clone()));
    }
    if !policy.managed.require.record {
        return Ok(());
    }
    // A deterministic run has no real times, so its record proves nothing.
    if !is_live {
        let text =
            format!("deterministic runs and replays are not possible, {BY_POLICY}: it requires a record");
        return Err(AgentError::InvalidRequest(text));
    }
    let reason = match (store.flush().await, store.is_in_memory()) {
        (Ok(()), false) => return Ok(()),
        (Err(error), _) => error.to_string(),
        (Ok(()), true) => store.substituted().unwrap_or("the store is in memory").to_owned(),
    };
    let text = format!("no session is opened, {BY_POLICY}: it requires a record, and {reason}");
    Err(AgentError::InvalidRequest(text))
}

pub(super) fn limited_tools(limits: &ManagedLimits, tools: Toolset) -> Toolset {
    let tools = tools.with_host_limit(limits.hosts.as_ref());
    if limits.require.sandbox || limits.require.broker {
        tools.requiring_sandbox(limits.require.broker)
    } else {
        tools
    }
}

pub(super) fn limited_exits(limits: &ManagedLimits, exits: ExitSettings) -> ExitSettings {
    ExitSettings { accepts_all: exits.accepts_all && limits.user_may.accept_all, ..exits }
}

/// The client's servers that the policy allows, for an external agent that starts them itself.
pub(super) fn limited_servers(limits: &ManagedLimits, servers: &[McpServer]) -> Vec<McpServer> {
    if !limits.limits_servers() {
        return servers.to_vec();
    }
    let mut allowed = servers.to_vec();
    allowed.retain(|server| {
        let transport = server::client_transport(server);
        transport.is_some_and(|(name, transport)| limits.allows_server(name, &transport))
    });
    allowed
}
