//! Variables that a line sets, and whether their values are single words. Pure.

use std::collections::BTreeSet;

use super::CommandLine;
use super::pieces::Pieces;
use super::stack::ParsedWord;

/// A value that an assignment or a `for` gives a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: String,
    /// True if the value is known and the shell makes one word of it.
    pub(super) is_single: bool,
    /// The known parts of the value.
    pub(super) value: String,
}

/// Variables of the shell and the user whose value is one word, unless the line sets them.
#[rustfmt::skip]
const USUAL: &[&str] = &[
    "HOME", "PWD", "OLDPWD", "TMPDIR", "UID", "EUID", "PPID", "RANDOM", "LINENO", "SECONDS", "HOSTNAME", "USER", "LOGNAME", "PATH", "SHELL", "LANG", "TERM",
];

/// Builtins that set variables by name. With one of them, no value is known.
const SETTING: &[&str] = &[
    "read",
    "readarray",
    "mapfile",
    "declare",
    "typeset",
    "local",
    "export",
    "readonly",
    "eval",
    "source",
    "printf",
    "getopts",
    "let",
    "unset",
    "IFS",
    "nameref",
];

/// More variables than a person writes are not looked at.
const MAX_VARIABLES: usize = 64;

impl Variable {
    pub(super) fn assigned(written: &str, pieces: &Pieces) -> Self {
        let name: String = written.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let prefix = format!("{name}=");
        let known_text = pieces.known();
        let value = known_text.strip_prefix(&prefix).or(known_text.split_once('=').map(|(_, value)| value));
        let is_plain = pieces.text().and_then(|text| text.strip_prefix(&prefix)).is_some_and(is_one_word);
        let value = value.unwrap_or_default().trim().to_owned();
        Self { name, is_single: is_plain, value }
    }

    /// The variable of `for NAME in WORDS`.
    pub(super) fn of_loop(words: &[ParsedWord]) -> Option<Self> {
        let [keyword, name, of, values @ ..] = words else { return None };
        if !is_bare_word(keyword, "for") || !is_bare_word(of, "in") {
            return None;
        }
        let is_single = values.iter().all(|word| word.pieces.text().is_some_and(is_one_word));
        Some(Self { name: name.bare.clone(), is_single, value: String::new() })
    }
}

fn is_bare_word(word: &ParsedWord, text: &str) -> bool {
    word.is_bare() && word.bare == text
}

fn is_one_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || matches!(c, '*' | '?' | '['))
}

pub(super) struct SingleWords<'a> {
    variables: &'a [Variable],
    /// True if the line may set variables in other ways.
    is_unknown: bool,
    /// Usual variables that an outer line sets to something else.
    unusual: &'a BTreeSet<String>,
}

impl<'a> SingleWords<'a> {
    pub(super) fn new(line: &'a CommandLine, unusual: &'a BTreeSet<String>) -> Self {
        let sets_more = SETTING.iter().any(|word| line.text.contains(word));
        let is_unknown = line.variables.len() > MAX_VARIABLES || sets_more;
        Self { variables: &line.variables, is_unknown, unusual }
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        if self.is_unknown {
            return false;
        }
        let mut values = self.variables.iter().filter(|variable| variable.name == name).peekable();
        match values.peek() {
            Some(_) => values.all(|value| value.is_single),
            None => USUAL.contains(&name) && !self.unusual.contains(name),
        }
    }
}
