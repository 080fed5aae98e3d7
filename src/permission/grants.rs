//! Remembered "always" answers, each for one mode of one session. Pure.

use std::collections::HashSet;
use std::path::PathBuf;

/// Command lines that an answer covers. Scopes are compared by their displayed text, so an answer covers what
/// the user saw.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CommandScope {
    Line {
        text: String,
        folder: Option<String>,
    },
    Program {
        shown: String,
        /// `None` also if the folder makes no difference.
        folder: Option<String>,
    },
}

const MAX_LABEL: usize = 80;

impl CommandScope {
    pub fn line(text: String) -> Self {
        Self::Line { text, folder: None }
    }

    pub fn program(shown: String) -> Self {
        Self::Program { shown, folder: None }
    }

    #[must_use]
    pub fn within(mut self, named: Option<&str>) -> Self {
        let (Self::Line { folder, .. } | Self::Program { folder, .. }) = &mut self;
        *folder = named.map(str::to_owned);
        self
    }

    fn label(&self) -> String {
        match self {
            Self::Line { text, .. } if text.chars().count() > MAX_LABEL || text.contains(['\n', '`']) => {
                "exactly this command line".into()
            }
            scope => scope.to_string(),
        }
    }
}

impl std::fmt::Display for CommandScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let folder = match self {
            Self::Line { text, folder } => {
                write!(f, "exactly `{text}`")?;
                folder
            }
            Self::Program { shown, folder } => {
                write!(f, "{shown}")?;
                folder
            }
        };
        folder.as_ref().map_or(Ok(()), |folder| write!(f, ", in {folder}"))
    }
}

/// Calls that an answer covers, within one mode of one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    Tool(String),
    Below(String, PathBuf),
    Run(String, CommandScope),
    /// Prefix in records from before [`CommandScope`] existed.
    Command(String, String),
    Origin(String, String),
    /// All tools that this MCP server claims only read, up to this value of [`super::Claim::flips`].
    Claims(String, u64),
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tool(tool) => write!(f, "{tool}"),
            // This tool reads no folders.
            Self::Below(tool, path) if tool == "read_file" => write!(f, "{tool} of {}", path.display()),
            Self::Below(tool, path) => write!(f, "{tool} below {}", path.display()),
            Self::Run(_, command) => write!(f, "{command}"),
            Self::Command(_, command) => write!(f, "`{command}`"),
            Self::Origin(tool, origin) => write!(f, "{tool} from {origin}"),
            Self::Claims(server, _) => write!(f, "what the MCP server {server} says only reads"),
        }
    }
}

impl Scope {
    pub fn label(&self) -> String {
        match self {
            Self::Run(_, command) => command.label(),
            scope => scope.to_string(),
        }
    }
}

/// A grant has no effect in any other mode.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grants {
    allowed: HashSet<(String, Scope)>,
    rejected: HashSet<(String, Scope)>,
}

impl Grants {
    pub fn allow(&mut self, mode: &str, scope: Scope) {
        self.allowed.insert((mode.to_owned(), scope));
    }

    /// The answers that always reject.
    #[must_use]
    pub fn rejections(&self) -> Self {
        Self { allowed: HashSet::new(), rejected: self.rejected.clone() }
    }

    pub fn reject(&mut self, mode: &str, scope: Scope) {
        self.rejected.insert((mode.to_owned(), scope));
    }

    /// True if the answers may allow more in `mode` than in `over`.
    pub fn may_allow_more(&self, mode: &str, over: &str) -> bool {
        self.allowed.iter().any(|(given_in, _)| given_in == mode)
            || self.rejected.iter().any(|(given_in, _)| given_in == over)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &'static str, &Scope)> {
        let allowed = self.allowed.iter().map(|(mode, scope)| (mode.as_str(), "allow", scope));
        allowed.chain(self.rejected.iter().map(|(mode, scope)| (mode.as_str(), "reject", scope)))
    }

    pub(super) fn is_allowed(&self, mode: &str, scope: &Scope) -> bool {
        Self::any_covers(&self.allowed, mode, scope)
    }

    pub(super) fn is_rejected(&self, mode: &str, scope: &Scope) -> bool {
        Self::any_covers(&self.rejected, mode, scope)
    }

    pub(super) fn rejects_words(&self, mode: &str, tool: &str, words: &str) -> Option<&Scope> {
        let rejected = self.rejected.iter().filter(|(given_in, _)| given_in == mode).map(|(_, scope)| scope);
        rejected.into_iter().find(|scope| match scope {
            Scope::Command(of, rejected) if of == tool => {
                // Earlier versions append the folder to the words.
                let rejected = rejected.split(" (in ").next().unwrap_or_default();
                words.strip_prefix(rejected).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            }
            _ => false,
        })
    }

    fn any_covers(answers: &HashSet<(String, Scope)>, mode: &str, scope: &Scope) -> bool {
        answers.iter().any(|(given_in, answer)| {
            given_in == mode
                && match (answer, scope) {
                    (Scope::Below(tool, above), Scope::Below(requested, path)) => {
                        tool == requested && path.starts_with(above)
                    }
                    (answer, scope) => answer == scope,
                }
        })
    }
}
