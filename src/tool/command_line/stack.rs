//! What a scan has open: lists of commands, a command with its words, quotes and expansions. Pure.

use super::Place;

/// Words before which, and behind which, a command stands.
pub(super) const BEFORE_A_COMMAND: &[&str] = &[
    "if", "then", "elif", "else", "while", "until", "do", "!", "{", "}", "fi", "done", "esac", "time",
    "coproc",
];

/// The same, of constructs that are not known whole.
pub(super) const NOT_KNOWN: &[&str] = &["until", "time", "coproc", "esac"];

/// Words with which something begins that is no command.
pub(super) const NO_COMMANDS: &[&str] = &["for", "select", "case", "function", "[["];

/// What is open.
pub(super) enum Frame {
    Commands(Commands),
    /// `"…"`.
    Quotes,
    /// `${…}`.
    Braces,
    /// `((…))` and `$((…))`, with how many brackets are open.
    Arithmetic(usize),
}

/// What ends a list of commands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    End,
    Bracket,
    Backtick,
}

/// A list of commands, of which one may have begun.
pub(super) struct Commands {
    pub(super) closing: Closing,
    /// Where the next command stands.
    pub(super) place: Place,
    /// Where commands of the list stand that read no other's output.
    pub(super) base: Place,
    pub(super) command: Option<Command>,
    pub(super) word: Option<Word>,
}

/// A command that has begun.
pub(super) struct Command {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) words: Vec<Word>,
    /// What a redirect does whose target is to come.
    pub(super) redirect: Option<Redirect>,
    pub(super) is_test: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Redirect {
    Reads,
    Writes,
    /// Writes, unless a number or a dash comes.
    Copies,
    /// A here-document, and whether tabs are left out.
    Document(bool),
    /// A here-string.
    Text,
}

/// A word that has begun.
#[derive(Default)]
pub(super) struct Word {
    pub(super) start: usize,
    /// Without quotes and backslashes.
    pub(super) bare: String,
    /// The shell changes it: a substitution or a variable.
    pub(super) is_expanded: bool,
    /// The shell may make several of it: a pattern, a brace, a tilde.
    pub(super) is_pattern: bool,
    pub(super) is_quoted: bool,
}

impl Word {
    /// Whether nothing in it was quoted, and the shell does not change it.
    pub(super) fn is_bare(&self) -> bool {
        !self.is_quoted && !self.is_expanded
    }
}

impl Commands {
    pub(super) fn new(closing: Closing, place: Place) -> Self {
        Self { closing, place, base: place, command: None, word: None }
    }
}

impl Command {
    pub(super) fn new(start: usize) -> Self {
        Self { start, end: start, words: Vec::new(), redirect: None, is_test: false }
    }
}

/// Whether a word sets a variable: `A=`, `A+=`, `A[1]=`.
pub(super) fn is_assignment(word: &str) -> bool {
    let name = word.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map_or(word, |end| &word[..end]);
    let rest = &word[name.len()..];
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && (rest.starts_with('=') || rest.starts_with("+=") || (rest.starts_with('[') && rest.contains("]=")))
}
