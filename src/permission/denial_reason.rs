//! The reason of a denial for people: the message of a [`Denial`] addresses the model. Pure.

use super::{ACCESS, CallFacts, CallSource, Ceilings, Denial, denied_by};
use crate::mode::{Access, Mode, ShellUse};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenialReason {
    /// A sentence that may begin with a small letter.
    pub text: String,
    /// True if the session's own mode denies the call, so that another mode may allow it.
    pub is_of_own_mode: bool,
}

/// Returns the reason of a denial that [`super::decide`] returned for this call.
pub fn denial_reason(ceilings: &Ceilings, call: &CallFacts, denial: &Denial) -> DenialReason {
    let position =
        ceilings.modes.iter().position(|mode| denied_by(mode, call).is_some_and(|other| other == *denial));
    let position = position.filter(|_| call.source != CallSource::ExternalAgent);
    let limit = position.and_then(|position| limit(&ceilings.modes[position], call, denial));
    DenialReason {
        text: limit.unwrap_or_else(|| denial.message.clone()),
        is_of_own_mode: position == Some(0),
    }
}

/// `None` if the message of the denial is for people, too.
fn limit(mode: &Mode, call: &CallFacts, denial: &Denial) -> Option<String> {
    let limit = match denial.rule {
        "tools" => format!("does not offer {}", call.tool),
        ACCESS => match mode.access {
            Access::ReadOnly => "changes nothing".to_owned(),
            Access::Edit => "edits files and runs nothing".to_owned(),
            Access::Full => return None,
        },
        "shell" if mode.shell < call.shell => match mode.shell {
            ShellUse::Off => "runs no commands".to_owned(),
            ShellUse::ReadOnly | ShellUse::Full => "runs read-only commands only".to_owned(),
        },
        "network" => "does not allow network access".to_owned(),
        _ => return None,
    };
    Some(format!("{} {limit}.", mode.label()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mode::Modes;
    use crate::mode::definition::ModeDefinition;
    use crate::permission::rules::RuleTexts;
    use crate::permission::{Effect, Grants, Verdict, decide};

    fn reason(modes: &[&str], call: &CallFacts) -> DenialReason {
        let modes = modes.iter().map(|text| {
            if let Ok(mode) = Modes::built_in().resolve(text) {
                return Arc::new(mode.clone());
            }
            let definition: ModeDefinition = serde_saphyr::from_str(text).unwrap();
            Arc::new(definition.complete(None).unwrap())
        });
        let rules: RuleTexts = serde_saphyr::from_str("deny: [secret]").unwrap();
        let rules = vec![Arc::new(rules.compile(true).unwrap())];
        let ceilings = Ceilings { modes: modes.collect(), rules };
        match decide(&ceilings, &Grants::default(), call) {
            Verdict::Deny(denial) => denial_reason(&ceilings, call, &denial),
            verdict => panic!("{verdict:?}"),
        }
    }

    #[test]
    fn reason_names_the_limit_and_leaves_out_what_the_model_may_do() {
        const EDIT: &str = "{id: m, access: edit}";
        const LIST: &str = "{id: m, access: full, shell: full, tools: {allow: [todo]}}";
        const OFFLINE: &str = "{id: m, access: full, shell: full, network: deny}";
        const QUIET: &str = "{id: m, access: full, shell: off}";
        let shell = CallFacts { shell: ShellUse::Full, ..CallFacts::of_tool("shell", Effect::Execute) };
        for (modes, call, expected, is_of_own_mode) in [
            (
                &["plan"][..],
                CallFacts::of_tool("edit_file", Effect::Edit),
                "plan mode changes nothing.",
                true,
            ),
            (&["code", "plan"], CallFacts::of_tool("x", Effect::Edit), "plan mode changes nothing.", false),
            (&[EDIT], shell.clone(), "m mode edits files and runs nothing.", true),
            (&[LIST], CallFacts::of_tool("x", Effect::Read), "m mode does not offer x.", true),
            (
                &[OFFLINE],
                CallFacts::of_tool("x", Effect::Network),
                "m mode does not allow network access.",
                true,
            ),
            (&[QUIET], shell, "m mode runs no commands.", true),
            (
                &["plan"],
                CallFacts::of_tool("secret", Effect::Edit),
                "The rule deny secret does not allow this, in any mode.",
                false,
            ),
        ] {
            let expected = DenialReason { text: expected.into(), is_of_own_mode };
            assert_eq!(reason(modes, &call), expected, "{modes:?}");
        }
    }
}
