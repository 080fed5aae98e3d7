//! Decides how much the annotations of an MCP tool count. Pure.
//!
//! A missing hint means that the tool changes things (docker-agent PR 3140, and MCP's defaults). A destructive hint
//! beside a read-only one has no meaning in MCP, but casts doubt on both: such a tool is only trusted by its name.
//! A hint is only a claim unless the user trusts it or the sandbox enforces it; otherwise the user must consent. The
//! user's own setting overrides hints.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Effect;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Belief {
    Reads,
    ClaimsToRead,
    MayChange,
}

impl Belief {
    pub fn effect(self) -> Effect {
        match self {
            Self::Reads | Self::ClaimsToRead => Effect::Read,
            Self::MayChange => Effect::Unknown,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hints {
    pub read_only: Option<bool>,
    pub destructive: Option<bool>,
}

/// Tool hints of a server to trust: `true`, `false`, or a list of tool names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "trust_hints is true, false, or a list of tools' names")]
pub enum Trust {
    /// Trusts all hints of the server, or none.
    All(bool),
    /// Trusts the hints of these tools only.
    Of(Vec<String>),
}

/// Effect of a tool, which takes precedence over its server's hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Override {
    /// The tool only reads.
    ReadOnly,
    /// The tool may change something.
    Changes,
}

#[derive(Debug, Clone, Copy)]
pub struct HintContext<'a> {
    /// `None` if the user has not configured `trust_hints`.
    pub trust: Option<&'a Trust>,
    pub tool_override: Option<Override>,
    /// True if the server is sandboxed without write access.
    pub only_reads: bool,
}

pub fn belief(tool: &str, hints: Hints, word: &HintContext<'_>) -> Belief {
    match word.tool_override {
        Some(Override::ReadOnly) => return Belief::Reads,
        Some(Override::Changes) => return Belief::MayChange,
        None => {}
    }
    if hints.read_only != Some(true) {
        return Belief::MayChange;
    }
    match word.trust {
        Some(Trust::All(true)) if hints.destructive == Some(true) => Belief::ClaimsToRead,
        Some(Trust::All(true)) => Belief::Reads,
        Some(Trust::Of(names)) if names.iter().any(|name| name == tool) => Belief::Reads,
        Some(Trust::All(false) | Trust::Of(_)) => Belief::MayChange,
        None if word.only_reads => Belief::Reads,
        None => Belief::ClaimsToRead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_need_trust_and_missing_hints_mean_changes() {
        use Belief::{ClaimsToRead, MayChange, Reads};
        let hints = |read_only, destructive| Hints { read_only, destructive };
        let of = |hints, trust: Option<&Trust>, tool_override, only_reads| {
            belief("t", hints, &HintContext { trust, tool_override, only_reads })
        };
        for (read_only, destructive, is_hinted) in [
            (None, None, false),
            (Some(false), None, false),
            (None, Some(false), false),
            (Some(true), None, true),
            (Some(true), Some(false), true),
            (Some(true), Some(true), true),
        ] {
            let hints = hints(read_only, destructive);
            let if_hinted = |belief| if is_hinted { belief } else { MayChange };
            for (trust, only_reads, expected) in [
                (Some(Trust::All(true)), false, if destructive == Some(true) { ClaimsToRead } else { Reads }),
                (Some(Trust::All(false)), true, MayChange),
                (Some(Trust::Of(vec!["t".into()])), false, Reads),
                (Some(Trust::Of(vec!["other".into()])), true, MayChange),
                (None, true, Reads),
                (None, false, ClaimsToRead),
            ] {
                let what = format!("{hints:?} {trust:?} {only_reads}");
                assert_eq!(of(hints, trust.as_ref(), None, only_reads), if_hinted(expected), "{what}");
                assert_eq!(of(hints, trust.as_ref(), Some(Override::ReadOnly), only_reads), Reads, "{what}");
                assert_eq!(
                    of(hints, trust.as_ref(), Some(Override::Changes), only_reads),
                    MayChange,
                    "{what}"
                );
            }
        }
        assert_eq!(serde_saphyr::from_str::<Trust>("false").unwrap(), Trust::All(false));
        assert_eq!(
            serde_saphyr::from_str::<Trust>("[a, b]").unwrap(),
            Trust::Of(vec!["a".into(), "b".into()])
        );
    }
}
