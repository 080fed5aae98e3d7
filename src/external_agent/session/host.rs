//! Tells the user about hosts and sockets that a brokered agent was refused.

use std::collections::BTreeMap;
use std::path::Path;

use super::change::TOOL;
use super::{AgentLimits, AgentOutput, ExternalAgentHost};
use crate::acp::ToolCallId;
use crate::external_agent::sockets;
use crate::permission::HOST;
use crate::permission::external::{ChangeLevel, change_level};

/// `host` is a name, or an address with its port.
pub(super) fn refused(host: &str, session: &ExternalAgentHost, limits: &AgentLimits) -> Vec<AgentOutput> {
    let agent = &session.agent.id;
    let which = denied_by(limits);
    let how = if is_wrapped(session) {
        format!("with --allow-host {host}")
    } else {
        format!("by adding {host} to the agent's sandbox.hosts")
    };
    let text = format!("The agent {agent} tried to connect to {host}, which {which}. Allow it {how}.\n\n");
    denied(text)
}

/// `path` is that of a UNIX socket.
pub(super) fn socket_refused(
    path: &Path,
    session: &ExternalAgentHost,
    limits: &AgentLimits,
) -> Vec<AgentOutput> {
    let agent = &session.agent.id;
    let definition = session.agent.external_agent.iter();
    let variables: BTreeMap<String, String> = session
        .shell
        .iter()
        .zip(definition)
        .flat_map(|(shell, definition)| shell.agent_variables(definition.inherits, &definition.env))
        .collect();
    let (name, risk) = sockets::described(path, &|name| variables.get(name).cloned());
    let how = if is_wrapped(session) {
        format!("with --allow-socket {name}")
    } else {
        format!("by adding {name} to the agent's sandbox.sockets")
    };
    let path = path.display();
    let reason = if change_level(&limits.ceilings).is_none_or(|level| level == ChangeLevel::Nothing) {
        format!("{}. In modes that allow changes, it can be allowed {how}.", denied_by(limits))
    } else {
        format!("it is not among its sockets. Allow it {how}.")
    };
    denied(format!("The agent {agent} tried to connect to the socket {path}, which {reason}{risk}\n\n"))
}

pub(super) fn is_wrapped(session: &ExternalAgentHost) -> bool {
    session.agent.external_agent.as_ref().is_some_and(|definition| definition.inherits)
}

fn denied_by(limits: &AgentLimits) -> String {
    if limits.is_mode_unrestricted {
        "this session does not allow".to_owned()
    } else {
        format!("{} mode does not allow", limits.mode)
    }
}

fn denied(notice: String) -> Vec<AgentOutput> {
    vec![
        AgentOutput::Denied { call: ToolCallId::new(TOOL), tool: TOOL, rule: HOST },
        AgentOutput::NoticeInTurn(notice),
    ]
}
