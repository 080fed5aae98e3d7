//! Remembered answers: what the user said once and for all, in one mode of one session. Pure.

use std::collections::HashSet;
use std::path::PathBuf;

/// What a remembered answer covers of command lines. What it is shown as is what it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CommandScope {
    /// Exactly this line.
    Line {
        /// The line.
        text: String,
        /// Where it runs, if that is not the session's own folder.
        folder: Option<String>,
    },
    /// A program, with what may vary.
    Program {
        /// What is covered, for people.
        shown: String,
        /// Where it runs, if that is not the session's own folder and makes a difference.
        folder: Option<String>,
    },
}

/// Characters of a line that is shown in an option.
const MAX_LABEL: usize = 80;

impl CommandScope {
    /// Exactly this line, in the session's own folder.
    pub fn line(text: String) -> Self {
        Self::Line { text, folder: None }
    }

    /// A program, in the session's own folder.
    pub fn program(shown: String) -> Self {
        Self::Program { shown, folder: None }
    }

    /// The same in a folder.
    #[must_use]
    pub fn within(mut self, named: Option<&str>) -> Self {
        let (Self::Line { folder, .. } | Self::Program { folder, .. }) = &mut self;
        *folder = named.map(str::to_owned);
        self
    }

    /// What it covers, beside the whole line.
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

/// What a remembered answer covers, always within one mode of one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Every call of a tool inside the roots.
    Tool(String),
    /// Calls of a tool that read below a path outside the roots.
    Below(String, PathBuf),
    /// Calls of a tool that run this.
    Run(String, CommandScope),
    /// What answers to command lines covered before [`CommandScope`] was there: only old records have it.
    Command(String, String),
    /// Calls of a tool that fetch from this server: scheme, name and port.
    Origin(String, String),
    /// Calls of every tool of which this MCP server says that it only reads, until it begins to say so of another one: the
    /// number is how often it has.
    Claims(String, u64),
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tool(tool) => write!(f, "{tool}"),
            Self::Below(tool, path) => write!(f, "{tool} below {}", path.display()),
            Self::Run(_, command) => write!(f, "{command}"),
            Self::Command(_, command) => write!(f, "`{command}`"),
            Self::Origin(tool, origin) => write!(f, "{tool} from {origin}"),
            Self::Claims(server, _) => write!(f, "what the MCP server {server} says only reads"),
        }
    }
}

impl Scope {
    /// What it covers, for an option beside which the whole call is shown.
    pub fn label(&self) -> String {
        match self {
            Self::Run(_, command) => command.label(),
            scope => scope.to_string(),
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

    /// Whether an old "reject always" is about a command, by its first words.
    pub(super) fn rejects_words(&self, mode: &str, tool: &str, words: &str) -> Option<&Scope> {
        let is_about = |scope: &Scope| match scope {
            Scope::Command(of, rejected) if of == tool => {
                // It may name a folder behind the words.
                let rejected = rejected.split(" (in ").next().unwrap_or_default();
                words.strip_prefix(rejected).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            }
            _ => false,
        };
        self.rejected
            .iter()
            .find(|(given_in, scope)| given_in == mode && is_about(scope))
            .map(|(_, scope)| scope)
    }

    fn holds(answers: &HashSet<(String, Scope)>, mode: &str, scope: &Scope) -> bool {
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
