//! Requirements of an external agent under a list of ceilings. Pure.
//!
//! An external agent uses its own tools, so Modegate can only sandbox the whole process.

use super::{CallFacts, Ceilings, Denial, Effect};
use crate::mode::{Access, Consent, Mode, Network, ShellUse};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requirement {
    Unrestricted,
    Sandboxed,
    Unsupported,
}

/// Changes of files that a brokered agent may make. In Modegate's own tools, these are edits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeLevel {
    Nothing,
    /// Each change is decided for its path, and asked about where the mode asks.
    Decided,
    All,
}

/// Tools in the facts of a brokered agent's permit to change files.
const CHANGES: [(&str, ChangeLevel); 2] =
    [("decided_changes", ChangeLevel::Decided), ("all_changes", ChangeLevel::All)];

/// Returns the changes that a brokered agent may make. `None` if it cannot run.
pub fn change_level(ceilings: &Ceilings) -> Option<ChangeLevel> {
    let modes = &ceilings.modes;
    if modes.is_empty() || modes.iter().any(|mode| mode.network == Network::Deny) {
        return None;
    }
    if modes.iter().any(|mode| mode.access == Access::ReadOnly) {
        return Some(ChangeLevel::Nothing);
    }
    let decides = modes
        .iter()
        .any(|mode| requirement_of(mode) != Requirement::Unrestricted || mode.permission == Consent::Ask);
    let decides = decides || ceilings.rules.iter().any(|rules| rules.restrict());
    Some(if decides { ChangeLevel::Decided } else { ChangeLevel::All })
}

/// The facts of a brokered agent's permit to change files. `None` if it may change nothing.
pub fn facts_of_changes(level: ChangeLevel) -> Option<CallFacts> {
    let (tool, _) = CHANGES.iter().find(|(_, of)| *of == level)?;
    Some(CallFacts { tool: (*tool).into(), ..CallFacts::of_external_process(false) })
}

pub fn requirement(ceilings: &Ceilings) -> Requirement {
    ceilings.modes.iter().map(|mode| requirement_of(mode)).max().unwrap_or(Requirement::Unsupported)
}

pub fn requirement_of(mode: &Mode) -> Requirement {
    let has_lists = mode.tools.allow.is_some() || !mode.tools.deny.patterns.is_empty();
    if mode.network == Network::Deny {
        // The agent needs the network to reach its model.
        Requirement::Unsupported
    } else if mode.access == Access::Full && mode.shell == ShellUse::Full && !has_lists {
        Requirement::Unrestricted
    } else {
        Requirement::Sandboxed
    }
}

/// Denies all but reads and addresses where the ceilings require the sandbox.
pub fn denied(ceilings: &Ceilings, call: &CallFacts) -> Option<Denial> {
    if let Some((_, level)) = CHANGES.iter().find(|(tool, _)| *tool == call.tool) {
        let is_denied = change_level(ceilings).is_none_or(|most| most < *level);
        let message = "The agent may change fewer files here.";
        return is_denied.then(|| Denial { rule: "access", message: message.into() });
    }
    let message = match requirement(ceilings) {
        Requirement::Unrestricted => return None,
        Requirement::Sandboxed if call.effect.is_read_side() || call.effect == Effect::Network => {
            return None;
        }
        Requirement::Sandboxed => "An external agent changes nothing here.",
        Requirement::Unsupported => "No external agent runs here.",
    };
    Some(Denial { rule: "access", message: message.into() })
}
