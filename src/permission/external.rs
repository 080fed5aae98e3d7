//! Requirements of an external agent under a list of ceilings. Pure.
//!
//! An external agent uses its own tools, so Modegate can only sandbox the whole process.

use super::{CallFacts, Ceilings, Denial, Effect};
use crate::mode::{Access, Mode, Network, ShellUse};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requirement {
    Unrestricted,
    Sandboxed,
    Unsupported,
}

/// Returns the strictest requirement.
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
