//! The reason why a change of a brokered agent is denied.

use super::host::sentence;
use super::{AgentLimits, ExternalAgentHost};
use crate::permission::denial_reason::denial_reason;
use crate::permission::{CallFacts, Denial};

/// The user reads the reason of a terminal program. An agent's model reads it, too.
pub(super) fn reason(
    facts: &CallFacts,
    denial: &Denial,
    host: &ExternalAgentHost,
    limits: &AgentLimits,
) -> String {
    if !host.is_terminal_program() {
        return denial.message.clone();
    }
    let reason = denial_reason(&limits.call_ceilings, facts, denial);
    let text = sentence(&reason.text);
    match (reason.is_of_own_mode, host.has_terminal_host()) {
        (false, _) => text,
        (true, true) => format!("{text} Another mode can be set in the panel, or with `modegate mode`."),
        (true, false) => format!("{text} Another mode can be set with `modegate mode`."),
    }
}
