//! Remembered answers: what the user said once and for all, in one mode of one session. Pure.

use std::collections::HashSet;
use std::path::PathBuf;

/// What a remembered answer covers, always within one mode of one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Every call of a tool inside the roots.
    Tool(String),
    /// Calls of a tool that read below a path outside the roots.
    Below(String, PathBuf),
    /// Calls of a tool that run this.
    Command(String, String),
    /// Calls of a tool that fetch from this server: scheme, name and port.
    Origin(String, String),
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tool(tool) => write!(f, "{tool}"),
            Self::Below(tool, path) => write!(f, "{tool} below {}", path.display()),
            Self::Command(_, command) => write!(f, "{command}"),
            Self::Origin(tool, origin) => write!(f, "{tool} from {origin}"),
        }
    }
}

/// Remembered answers. A grant is inert in every mode but the one it was given in.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    allowed: HashSet<(String, Scope)>,
    rejected: HashSet<(String, Scope)>,
}

impl Grants {
    /// Remembers "allow always" in a mode.
    pub fn allow(&mut self, mode: &str, scope: Scope) {
        self.allowed.insert((mode.to_owned(), scope));
    }

    /// Remembers "reject always" in a mode.
    pub fn reject(&mut self, mode: &str, scope: Scope) {
        self.rejected.insert((mode.to_owned(), scope));
    }

    /// Whether what is remembered lets more pass in one mode than in another: a yes of the first, or a no of the second.
    pub fn favour(&self, mode: &str, over: &str) -> bool {
        self.allowed.iter().any(|(given_in, _)| given_in == mode)
            || self.rejected.iter().any(|(given_in, _)| given_in == over)
    }

    /// What is remembered: in which mode, which way, and of what. In no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &'static str, &Scope)> {
        let allowed = self.allowed.iter().map(|(mode, scope)| (mode.as_str(), "allow", scope));
        allowed.chain(self.rejected.iter().map(|(mode, scope)| (mode.as_str(), "reject", scope)))
    }

    pub(super) fn is_allowed(&self, mode: &str, scope: &Scope) -> bool {
        Self::holds(&self.allowed, mode, scope)
    }

    pub(super) fn is_rejected(&self, mode: &str, scope: &Scope) -> bool {
        Self::holds(&self.rejected, mode, scope)
    }

    fn holds(answers: &HashSet<(String, Scope)>, mode: &str, scope: &Scope) -> bool {
        answers.iter().any(|(given_in, answer)| {
            given_in == mode
                && match (answer, scope) {
                    (Scope::Below(tool, above), Scope::Below(asked, path)) => {
                        tool == asked && path.starts_with(above)
                    }
                    (answer, scope) => answer == scope,
                }
        })
    }
}
