//! Tells the user about hosts and sockets that a brokered agent was refused.

use std::collections::BTreeMap;
use std::path::Path;

use super::RefusedAct;
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
    let how = if session.has_terminal_host() {
        format!("in the panel, or with --allow-host {host}")
    } else if is_wrapped(session) {
        format!("with --allow-host {host}")
    } else {
        format!("by adding {host} to the agent's sandbox.hosts")
    };
    let kind = session.kind();
    let text = format!("The {kind} {agent} tried to connect to {host}, which {which}. Allow it {how}.\n\n");
    let mut act = RefusedAct::new(format!("Connect to {host}"), sentence(&format!("{which} this host.")));
    act.host = Some(host.to_owned());
    denied(text, act.shown(session))
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
    let (path, kind) = (path.display(), session.kind());
    let changes_nothing = change_level(&limits.ceilings).is_none_or(|level| level == ChangeLevel::Nothing);
    let (reason, shown) = if changes_nothing {
        let which = denied_by(limits);
        let rest = format!("In modes that allow changes, it can be allowed {how}.");
        (format!("{which}. {rest}"), format!("{which} this socket. {rest}"))
    } else {
        let rest = format!("is not among its sockets. Allow it {how}.");
        (rest.clone(), format!("it {rest}"))
    };
    let act = RefusedAct::new(format!("Connect to the socket {path}"), format!("{}{risk}", sentence(&shown)));
    denied(
        format!("The {kind} {agent} tried to connect to the socket {path}, which {reason}{risk}\n\n"),
        act.shown(session),
    )
}

/// With an upper-case first letter.
pub(super) fn sentence(clause: &str) -> String {
    let mut letters = clause.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

pub(super) fn is_wrapped(session: &ExternalAgentHost) -> bool {
    session.agent.external_agent.as_ref().is_some_and(|definition| definition.inherits)
}

pub(super) fn denied_by(limits: &AgentLimits) -> String {
    if limits.is_mode_unrestricted {
        "this session does not allow".to_owned()
    } else {
        format!("{} mode does not allow", limits.mode)
    }
}

fn denied(notice: String, shown: Option<AgentOutput>) -> Vec<AgentOutput> {
    let denied = vec![
        AgentOutput::Denied { call: ToolCallId::new(TOOL), tool: TOOL, rule: HOST.into() },
        AgentOutput::NoticeInTurn(notice),
    ];
    denied.into_iter().chain(shown).collect()
}
