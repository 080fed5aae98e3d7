//! What the hints of a server's tool are worth: the decision part. Pure.
//!
//! A missing hint means that the tool changes things; a destructive one beats a read-only one (docker-agent PR 3140, and
//! MCP's own defaults). A hint is honoured only where the user trusts the server's hints, and what the user says of a tool
//! beats any hint, both ways. The decision is made anew from the hints of the moment before each call.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Effect;

/// What a server says of a tool (`annotations` in MCP).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hints {
    /// `readOnlyHint`.
    pub read_only: Option<bool>,
    /// `destructiveHint`.
    pub destructive: Option<bool>,
}

/// Which of a server's hints count: `trust_hints: true | false | [names]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "trust_hints is true, false, or a list of tools' names")]
pub enum Trust {
    /// All, or none.
    All(bool),
    /// Those of these tools.
    Of(Vec<String>),
}

/// What the user says of a tool, whatever its server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Override {
    /// It only reads.
    ReadOnly,
    /// It changes things.
    Changes,
}

/// What a tool does, as far as anybody can be believed.
pub fn effect(tool: &str, hints: Hints, trust: &Trust, said: Option<Override>) -> Effect {
    let is_trusted = match trust {
        Trust::All(all) => *all,
        Trust::Of(names) => names.iter().any(|name| name == tool),
    };
    let only_reads = match said {
        Some(said) => said == Override::ReadOnly,
        None => is_trusted && hints.read_only == Some(true) && hints.destructive != Some(true),
    };
    if only_reads { Effect::Read } else { Effect::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_counts_where_it_is_trusted_and_what_is_missing_changes_things() {
        let hints = |read_only, destructive| Hints { read_only, destructive };
        let trusted = Trust::All(true);
        for (read_only, destructive, expected) in [
            (None, None, Effect::Unknown),
            (Some(false), None, Effect::Unknown),
            (None, Some(false), Effect::Unknown),
            (Some(true), None, Effect::Read),
            (Some(true), Some(false), Effect::Read),
            (Some(true), Some(true), Effect::Unknown),
        ] {
            assert_eq!(effect("t", hints(read_only, destructive), &trusted, None), expected);
            assert_eq!(effect("t", hints(read_only, destructive), &Trust::All(false), None), Effect::Unknown);
            let said = |said| effect("t", hints(read_only, destructive), &trusted, Some(said));
            assert_eq!(said(Override::ReadOnly), Effect::Read);
            assert_eq!(said(Override::Changes), Effect::Unknown);
        }
        let some: Trust = serde_saphyr::from_str("[a, b]").unwrap();
        assert_eq!(effect("a", hints(Some(true), None), &some, None), Effect::Read);
        assert_eq!(effect("c", hints(Some(true), None), &some, None), Effect::Unknown);
        assert_eq!(serde_saphyr::from_str::<Trust>("false").unwrap(), Trust::All(false));
    }
}
