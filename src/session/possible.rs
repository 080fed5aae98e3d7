//! Which modes are possible for an agent whose tools are its own (D47): under a mode that does not allow everything it works
//! only where the kernel holds it, and then it changes nothing. Pure.

use serde_json::json;

use crate::acp::ToolKind;
use crate::error::AgentError;
use crate::mode::{Access, Consent, Mode, Modes, Network, ShellUse, canonical};
use crate::permission::{CallFacts, Ceilings, Effect};

/// The name under which the process of such an agent stands at the gate.
pub const PROCESS: &str = "harness";

/// What is said of a mode that asks for changes.
const AS_IT_ASKS: &str = "Changes as the agent itself asks for them; what it does without asking is not held";

/// What it takes for such an agent to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Nothing: everything is allowed.
    Free,
    /// It has to be held: then it changes nothing.
    Held,
    /// Nobody can hold it to this.
    Impossible,
}

/// What it takes under these ceilings. Rules about Modegate's own tools say nothing of its.
pub fn need(ceilings: &Ceilings) -> Need {
    ceilings.modes.iter().map(|mode| need_of(mode)).max().unwrap_or(Need::Impossible)
}

fn need_of(mode: &Mode) -> Need {
    let has_lists = mode.tools.allow.is_some() || !mode.tools.deny.patterns.is_empty();
    if mode.network == Network::Deny {
        // Its model is somewhere in the network.
        Need::Impossible
    } else if mode.access == Access::Full && mode.shell == ShellUse::Full && !has_lists {
        Need::Free
    } else {
        Need::Held
    }
}

/// Whether such an agent is held where it works under these ceilings; none: it cannot work under them (D47).
pub fn is_held(ceilings: &Ceilings, can_hold: bool) -> Option<bool> {
    match need(ceilings) {
        Need::Free => Some(false),
        Need::Held => can_hold.then_some(true),
        Need::Impossible => None,
    }
}

/// Whether such an agent can work under these ceilings, the first of which is its session's own mode. One that lets some files
/// be edited is not to be had: held, the agent edits none.
pub fn is_possible(ceilings: &Ceilings, can_hold: bool) -> bool {
    let is_some_edit = ceilings.modes.first().is_some_and(|own| own.access == Access::Edit);
    is_held(ceilings, can_hold).is_some_and(|is_held| !(is_held && is_some_edit))
}

/// How its process stands at the gate.
pub fn facts(is_held: bool) -> CallFacts {
    let effect = if is_held { Effect::Read } else { Effect::Execute };
    CallFacts { is_background: true, ..CallFacts::of_tool(PROCESS, effect) }
}

/// Whether its process has to end under these ceilings.
pub fn is_denied(ceilings: &Ceilings, process: &CallFacts) -> bool {
    match need(ceilings) {
        Need::Free => false,
        Need::Held => process.effect != Effect::Read,
        Need::Impossible => true,
    }
}

/// What becomes of something that it asks leave for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// It is given.
    Given,
    /// The user is asked.
    Asked,
    /// It is refused.
    Refused,
}

/// Decides on a call of a tool of its own for which it asks leave.
pub fn leave(ceilings: &Ceilings, kind: Option<ToolKind>) -> Leave {
    let any = |is: fn(&Mode) -> bool| ceilings.modes.iter().any(|mode| is(mode));
    let need = need(ceilings);
    match kind {
        _ if need == Need::Impossible => Leave::Refused,
        Some(ToolKind::Fetch) if any(|mode| mode.network == Network::Ask) => Leave::Asked,
        Some(ToolKind::Read | ToolKind::Search | ToolKind::Think | ToolKind::Fetch) => Leave::Given,
        _ if need == Need::Held => Leave::Refused,
        _ if any(|mode| mode.permission == Consent::Ask) => Leave::Asked,
        _ => Leave::Given,
    }
}

/// The modes that are possible, described as they are for it, and the ids of the others.
pub fn split(modes: &Modes, is_possible: impl Fn(&Mode) -> bool) -> (Modes, Vec<String>) {
    let mut possible = modes.clone();
    let impossible: Vec<String> =
        modes.iter().filter(|mode| !is_possible(mode)).map(|mode| mode.id.clone()).collect();
    possible.retain(|mode| !impossible.contains(&mode.id));
    let asks = |mode: &&mut Mode| need_of(mode) == Need::Free && mode.permission == Consent::Ask;
    for mode in possible.iter_mut().filter(asks) {
        // Nobody can make it ask: what people choose by is not to say so.
        AS_IT_ASKS.clone_into(&mut mode.description);
    }
    (possible, impossible)
}

/// What is said of a mode that there is, and that is not possible here (D47), or of any where none is possible; none: there is no
/// such mode.
pub fn unsupported(asked: &str, impossible: &[String], possible: &Modes) -> Option<AgentError> {
    let id = canonical(asked);
    let is_any_possible = possible.iter().next().is_some();
    if is_any_possible && !impossible.contains(&id) {
        return None;
    }
    let possible: Vec<&str> = possible.iter().map(|mode| mode.id.as_str()).collect();
    let message = format!(
        "{id} mode is not possible for this agent: its tools are its own, and it cannot be held to that"
    );
    Some(AgentError::invalid_params(
        message,
        json!({ "code": "unsupported_mode", "modeId": id, "possible": possible }),
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mode::definition::ModeDefinition;

    fn ceilings(modes: &[&str]) -> Ceilings {
        let built_in = Modes::built_in();
        let mode = |text: &&str| {
            if let Ok(modes) = built_in.ceilings(text) {
                return Arc::clone(&modes[0]);
            }
            let definition: ModeDefinition = serde_saphyr::from_str(&format!("id: m\n{text}")).unwrap();
            Arc::new(definition.complete(None).unwrap())
        };
        Ceilings { modes: modes.iter().map(mode).collect(), rules: Vec::new() }
    }

    #[test]
    fn the_strictest_ceiling_says_what_it_takes() {
        let edit = "access: edit";
        for (modes, expected, held, not) in [
            (&["code"][..], Need::Free, true, true),
            (&["ask"], Need::Free, true, true),
            (&["plan"], Need::Held, true, false),
            (&["code", "plan"], Need::Held, true, false),
            (&["plan", "code"], Need::Held, true, false),
            (&[edit], Need::Held, false, false),
            (&["plan", edit], Need::Held, true, false),
            (&["access: full\nshell: full\ntools: {deny: [x]}"], Need::Held, true, false),
            (&["access: full\nshell: read_only"], Need::Held, true, false),
            (&["access: full\nshell: full\nnetwork: deny"], Need::Impossible, false, false),
            (&["plan", "access: read_only\nnetwork: deny"], Need::Impossible, false, false),
            (&[], Need::Impossible, false, false),
        ] {
            let ceilings = ceilings(modes);
            let found = (need(&ceilings), is_possible(&ceilings, true), is_possible(&ceilings, false));
            assert_eq!(found, (expected, held, not), "{modes:?}");
            assert_eq!(is_denied(&ceilings, &facts(false)), expected != Need::Free, "{modes:?}");
            assert_eq!(is_denied(&ceilings, &facts(true)), expected == Need::Impossible, "{modes:?}");
        }
    }

    #[test]
    fn leave_is_given_for_what_reads_and_for_the_rest_as_the_modes_say() {
        let read = Some(ToolKind::Read);
        for (modes, kind, expected) in [
            (&["plan"][..], read, Leave::Given),
            (&["plan"], Some(ToolKind::Edit), Leave::Refused),
            (&["plan"], Some(ToolKind::SwitchMode), Leave::Refused),
            (&["plan"], None, Leave::Refused),
            (&["plan"], Some(ToolKind::Fetch), Leave::Asked),
            (&["ask"], Some(ToolKind::Execute), Leave::Asked),
            (&["code"], Some(ToolKind::Execute), Leave::Given),
            (&["code", "ask"], None, Leave::Asked),
            (&["code", "plan"], None, Leave::Refused),
            (&[], read, Leave::Refused),
        ] {
            assert_eq!(leave(&ceilings(modes), kind), expected, "{modes:?} {kind:?}");
        }
    }

    #[test]
    fn a_mode_that_is_not_possible_is_said_to_be_and_one_that_is_unknown_is_not() {
        let (possible, impossible) = split(&Modes::built_in(), |mode| mode.access == Access::Full);
        let error = unsupported("Architect", &impossible, &possible).unwrap();
        assert_eq!(error.code(), -32602);
        let AgentError::InvalidParams { data, .. } = error else { panic!("{error}") };
        assert_eq!(
            data,
            json!({ "code": "unsupported_mode", "modeId": "plan", "possible": ["ask", "code"] })
        );
        assert!(unsupported("nope", &impossible, &possible).is_none());
        assert!(unsupported("code", &impossible, &possible).is_none());
    }
}
