//! The scanner's stack of commands, words, quotes and expansions. Pure.

use super::CommandPlace;
use super::pieces::Pieces;

pub(super) const BEFORE_A_COMMAND: &[&str] = &[
    "if", "then", "elif", "else", "while", "until", "do", "!", "{", "}", "fi", "done", "esac", "time",
    "coproc",
];

/// Words of [`BEFORE_A_COMMAND`] whose constructs are not fully understood.
pub(super) const NOT_KNOWN: &[&str] = &["until", "time", "coproc", "esac"];

/// Words that begin a construct but no command.
pub(super) const NO_COMMANDS: &[&str] = &["for", "select", "case", "function", "[["];

pub(super) enum StackFrame {
    Commands(CommandList),
    Quotes,
    Braces,
    /// The number of open brackets.
    Arithmetic(usize),
    /// A here-document whose expansions count.
    Document,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    End,
    Bracket,
    Backtick,
}

pub(super) struct CommandList {
    pub(super) closing: Closing,
    pub(super) place: CommandPlace,
    pub(super) base: CommandPlace,
    pub(super) command: Option<ParsedCommand>,
    pub(super) word: Option<ParsedWord>,
    /// True in front of the `)` of a pattern of `case`.
    pub(super) in_pattern: bool,
    /// True behind an assignment, where `case` is the name of a program.
    pub(super) is_assigned: bool,
}

pub(super) struct ParsedCommand {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) words: Vec<ParsedWord>,
    pub(super) redirect: Option<Redirect>,
    pub(super) is_test: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Redirect {
    Reads,
    Writes,
    /// `>&` and `<&`: writes a file, unless a number or a dash follows.
    Copies,
    /// True if leading tabs are stripped.
    Document(bool),
    Text,
}

#[derive(Default)]
pub(super) struct ParsedWord {
    pub(super) start: usize,
    pub(super) bare: String,
    pub(super) is_expanded: bool,
    pub(super) is_pattern: bool,
    pub(super) is_quoted: bool,
    pub(super) pieces: Pieces,
}

impl ParsedWord {
    pub(super) fn is_bare(&self) -> bool {
        !self.is_quoted && !self.is_expanded
    }
}

impl CommandList {
    pub(super) fn new(closing: Closing, place: CommandPlace) -> Self {
        Self { closing, place, base: place, command: None, word: None, in_pattern: false, is_assigned: false }
    }
}

impl ParsedCommand {
    /// True for `case WORD in`.
    pub(super) fn is_case(&self) -> bool {
        matches!(self.words.as_slice(), [case, _, within, ..]
            if case.is_bare() && case.bare == "case" && within.is_bare() && within.bare == "in"
                && self.start == case.start)
    }

    pub(super) fn new(start: usize) -> Self {
        Self { start, end: start, words: Vec::new(), redirect: None, is_test: false }
    }
}

pub(super) fn is_assignment(word: &str) -> bool {
    let name = word.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map_or(word, |end| &word[..end]);
    let rest = &word[name.len()..];
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && (rest.starts_with('=') || rest.starts_with("+=") || (rest.starts_with('[') && rest.contains("]=")))
}
