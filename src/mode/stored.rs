//! Chooses the mode in which a session opens. Pure.

use super::{DEFAULT, Mode, Modes, UnknownMode};

#[derive(Debug, Clone, Copy, Default)]
pub struct Defaults<'a> {
    pub command_line: Option<&'a str>,
    pub configured: Option<&'a str>,
}

#[derive(Debug)]
pub struct Effective<'a> {
    pub mode: &'a Mode,
    /// Set if the requested mode does not exist. Then `mode` is the most restrictive one.
    pub unknown: Option<Unknown>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Unknown {
    Stored(UnknownMode),
    Default(UnknownMode),
}

impl Modes {
    pub fn default_mode(&self, defaults: Defaults<'_>) -> Result<&Mode, UnknownMode> {
        self.resolve(defaults.command_line.or(defaults.configured).unwrap_or(DEFAULT))
    }

    /// Returns the mode of a stored session (D3). A null or blank mode reads as the default, an alias as its
    /// mode, and an unknown mode as the most restrictive one.
    pub fn effective(&self, stored: Option<&str>, defaults: Defaults<'_>) -> Effective<'_> {
        let stored_mode = match stored.filter(|id| !id.trim().is_empty()) {
            Some(id) => self.resolve(id).map_err(Unknown::Stored),
            None => self.default_mode(defaults).map_err(Unknown::Default),
        };
        match stored_mode {
            Ok(mode) => Effective { mode, unknown: None },
            Err(unknown) => Effective { mode: self.most_restrictive(), unknown: Some(unknown) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Combines every stored value with every configured default and every `--mode`.
    #[test]
    fn unknown_stored_mode_opens_in_plan() {
        let modes = Modes::built_in();
        let defaults = [None, Some("ask"), Some("plan"), Some("build"), Some("gone")];
        let stored = [
            (None, None),
            (Some(""), None),
            (Some(" \t\n"), None),
            (Some("ask"), Some("ask")),
            (Some("plan"), Some("plan")),
            (Some("PLAN"), Some("plan")),
            (Some("architect"), Some("plan")),
            (Some("code"), Some("code")),
            (Some("Build"), Some("code")),
            (Some("gone"), Some("unknown")),
            (Some("plan "), Some("unknown")),
        ];
        let named = |id: &str| match id {
            "build" => "code".to_owned(),
            "gone" => "unknown".to_owned(),
            id => id.to_owned(),
        };
        for (text, names) in stored {
            for command_line in defaults {
                for configured in defaults {
                    let effective = modes.effective(text, Defaults { command_line, configured });
                    let requested = names.map_or_else(
                        || command_line.or(configured).map_or("ask".to_owned(), named),
                        str::to_owned,
                    );
                    let case = format!("{text:?}, --mode {command_line:?}, default_mode {configured:?}");
                    let is_stored = matches!(effective.unknown, Some(Unknown::Stored(_)));
                    assert_eq!(effective.unknown.is_some(), requested == "unknown", "{case}");
                    assert_eq!(is_stored, names == Some("unknown"), "{case}");
                    let opens = if requested == "unknown" { "plan" } else { requested.as_str() };
                    assert_eq!(effective.mode.id, opens, "{case}");
                }
            }
        }
    }
}
