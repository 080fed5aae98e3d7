//! Tells the user about hosts that a brokered agent was refused.

use super::change::TOOL;
use super::{AgentLimits, AgentOutput, ExternalAgentHost};
use crate::acp::ToolCallId;
use crate::permission::HOST;

/// `host` is a name, or an address with its port.
pub(super) fn refused(host: &str, session: &ExternalAgentHost, limits: &AgentLimits) -> Vec<AgentOutput> {
    let agent = &session.agent.id;
    let is_wrapped = session.agent.external_agent.as_ref().is_some_and(|definition| definition.inherits);
    let which = if limits.is_mode_unrestricted {
        "this session does not allow".to_owned()
    } else {
        format!("{} mode does not allow", limits.mode)
    };
    let how = if is_wrapped {
        format!("with --allow-host {host}")
    } else {
        format!("by adding {host} to the agent's sandbox.hosts")
    };
    let text = format!("The agent {agent} tried to connect to {host}, which {which}. Allow it {how}.\n\n");
    vec![
        AgentOutput::Denied { call: ToolCallId::new(TOOL), tool: TOOL, rule: HOST },
        AgentOutput::NoticeInTurn(text),
    ]
}
