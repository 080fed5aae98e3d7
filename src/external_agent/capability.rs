//! Modes that an external agent supports (D47). Pure.
//!
//! An external agent uses its own tools, so Modegate can only sandbox the whole process: it then changes
//! nothing, unless its changes are brokered.

use serde_json::json;

use crate::error::AgentError;
use crate::mode::{Access, Consent, Mode, Modes, canonical};
use crate::permission::Ceilings;
use crate::permission::external::{ChangeLevel, Requirement, change_level, requirement, requirement_of};

const UNSANDBOXED_DESCRIPTION: &str =
    "The agent decides when to ask first; Modegate does not limit changes made without asking";

/// How Modegate can limit an external agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// The agent runs without limits, or not at all.
    None,
    /// The agent can be sandboxed, and then changes nothing.
    Sandbox,
    /// Modegate carries out the agent's changes.
    Broker,
}

/// Returns true if the agent must be sandboxed, or `None` if it cannot run (D47).
pub fn is_sandboxed(ceilings: &Ceilings, control: Control) -> Option<bool> {
    if control == Control::Broker {
        return change_level(ceilings).map(|level| level == ChangeLevel::Nothing);
    }
    match requirement(ceilings) {
        Requirement::Unrestricted => Some(false),
        Requirement::Sandboxed => (control == Control::Sandbox).then_some(true),
        Requirement::Unsupported => None,
    }
}

/// The session's own mode is the first ceiling. A sandboxed agent cannot edit, so it supports no edit mode.
pub fn is_supported(ceilings: &Ceilings, control: Control) -> bool {
    let is_some_edit = ceilings.modes.first().is_some_and(|own| own.access == Access::Edit);
    is_sandboxed(ceilings, control).is_some_and(|sandboxed| !(sandboxed && is_some_edit))
}

/// Returns the supported modes and the ids of the others.
pub fn split(modes: &Modes, control: Control, is_supported: impl Fn(&Mode) -> bool) -> (Modes, Vec<String>) {
    let mut supported = modes.clone();
    let unsupported: Vec<String> =
        modes.iter().filter(|mode| !is_supported(mode)).map(|mode| mode.id.clone()).collect();
    supported.retain(|mode| !unsupported.contains(&mode.id));
    for mode in supported.iter_mut() {
        if control == Control::Broker
            || requirement_of(mode) != Requirement::Unrestricted
            || mode.permission != Consent::Ask
        {
            continue;
        }
        // Modegate cannot make the agent ask, so the description must not promise that.
        UNSANDBOXED_DESCRIPTION.clone_into(&mut mode.description);
    }
    (supported, unsupported)
}

/// Returns the error for an existing mode that is unsupported, or for any mode if none is supported (D47).
pub fn unsupported(requested: &str, unsupported: &[String], supported: &Modes) -> Option<AgentError> {
    let id = canonical(requested);
    let is_any_supported = supported.iter().next().is_some();
    if is_any_supported && !unsupported.contains(&id) {
        return None;
    }
    let supported: Vec<&str> = supported.iter().map(|mode| mode.id.as_str()).collect();
    let message = format!(
        "unsupported_mode: this agent does not support {id} mode, because it uses its own tools and the sandbox cannot \
         enforce the mode. Possible modes: {}",
        if supported.is_empty() { "none".to_owned() } else { supported.join(", ") }
    );
    Some(AgentError::invalid_params(
        message,
        json!({ "code": "unsupported_mode", "modeId": id, "possible": supported }),
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mode::definition::ModeDefinition;
    use crate::permission::rules::RuleTexts;
    use crate::permission::{CallFacts, external};

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
    fn strictest_ceiling_sets_the_requirement() {
        let edit = "access: edit";
        for (modes, expected, with_sandbox, without_sandbox) in [
            (&["code"][..], Requirement::Unrestricted, true, true),
            (&["ask"], Requirement::Unrestricted, true, true),
            (&["plan"], Requirement::Sandboxed, true, false),
            (&["code", "plan"], Requirement::Sandboxed, true, false),
            (&["plan", "code"], Requirement::Sandboxed, true, false),
            (&[edit], Requirement::Sandboxed, false, false),
            (&["plan", edit], Requirement::Sandboxed, true, false),
            (&["access: full\nshell: full\ntools: {deny: [x]}"], Requirement::Sandboxed, true, false),
            (&["access: full\nshell: read_only"], Requirement::Sandboxed, true, false),
            (&["access: full\nshell: full\nnetwork: deny"], Requirement::Unsupported, false, false),
            (&["plan", "access: read_only\nnetwork: deny"], Requirement::Unsupported, false, false),
            (&[], Requirement::Unsupported, false, false),
        ] {
            let ceilings = ceilings(modes);
            let found = (
                requirement(&ceilings),
                is_supported(&ceilings, Control::Sandbox),
                is_supported(&ceilings, Control::None),
            );
            assert_eq!(found, (expected, with_sandbox, without_sandbox), "{modes:?}");
            let is_denied = |is_sandboxed| {
                external::denied(&ceilings, &CallFacts::of_external_process(is_sandboxed)).is_some()
            };
            assert_eq!(is_denied(false), expected != Requirement::Unrestricted, "{modes:?}");
            assert_eq!(is_denied(true), expected == Requirement::Unsupported, "{modes:?}");
        }
    }

    #[test]
    fn brokered_agents_follow_the_mode() {
        for (modes, expected) in [
            (&["code"][..], Some(ChangeLevel::All)),
            (&["ask"], Some(ChangeLevel::Decided)),
            (&["code", "ask"], Some(ChangeLevel::Decided)),
            (&["plan"], Some(ChangeLevel::Nothing)),
            (&["ask", "plan"], Some(ChangeLevel::Nothing)),
            (&["access: edit"], Some(ChangeLevel::Decided)),
            (&["access: full\nshell: full\ntools: {deny: [x]}"], Some(ChangeLevel::Decided)),
            (&["access: full\nshell: full\nnetwork: deny"], None),
            (&[], None),
        ] {
            let mut ceilings = ceilings(modes);
            assert_eq!(change_level(&ceilings), expected, "{modes:?}");
            for level in [ChangeLevel::Decided, ChangeLevel::All] {
                let facts = external::facts_of_changes(level).unwrap();
                let is_denied = external::denied(&ceilings, &facts).is_some();
                assert_eq!(is_denied, expected.is_none_or(|most| most < level), "{modes:?} {level:?}");
            }
            let is_edit = modes == ["access: edit"];
            assert_eq!(is_supported(&ceilings, Control::Broker), expected.is_some(), "{modes:?}");
            assert!(!is_edit || !is_supported(&ceilings, Control::Sandbox), "the control");
            let rules: RuleTexts = serde_saphyr::from_str("deny: ['edit_file(**/.env)']").unwrap();
            ceilings.rules.push(Arc::new(rules.compile(true).unwrap()));
            let expected = expected.map(|level| level.min(ChangeLevel::Decided));
            assert_eq!(change_level(&ceilings), expected, "{modes:?} with a rule");
        }
    }

    #[test]
    fn unsupported_mode_differs_from_unknown_mode() {
        let (supported, unsupported_modes) =
            split(&Modes::built_in(), Control::Sandbox, |mode| mode.access == Access::Full);
        let error = unsupported("Architect", &unsupported_modes, &supported).unwrap();
        assert_eq!(error.code(), -32602);
        let AgentError::InvalidParams { data, .. } = error else { panic!("{error}") };
        assert_eq!(
            data,
            json!({ "code": "unsupported_mode", "modeId": "plan", "possible": ["ask", "code"] })
        );
        assert!(unsupported("nope", &unsupported_modes, &supported).is_none());
        assert!(unsupported("code", &unsupported_modes, &supported).is_none());
    }
}
