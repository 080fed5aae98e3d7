//! Parses a command line for people: its programs, redirects, and the scope of an "always" answer. Pure.
//!
//! Serves permission requests, rules and remembered answers. This is no security boundary: the sandbox limits
//! a command. Anything uncertain is covered word for word, or needs a permission request each time.

mod ansi;
mod code;
mod expansions;
mod git;
mod invoked;
mod literal;
mod pieces;
mod programs;
mod redirects;
mod runners;
mod scan;
mod stack;
mod subcommands;
mod variables;

use std::fmt::Write;

use self::pieces::Pieces;
use self::stack::ParsedWord;
use self::variables::Variable;
use crate::permission::{CommandScope, CommandWord, Commands};
use crate::platform::Platform;
use crate::text::{is_unseen, visible};

/// Programs that models know from Codex, where `apply_patch` is also a command.
const TOOLS_AS_PROGRAMS: [&str; 2] = ["apply_patch", "applypatch"];

/// The answer to a line that runs one of them.
pub(super) const TOOL_AS_PROGRAM: &str = "apply_patch is no program here, so nothing has run. It is a tool: if it is \
    among the tools of the request, call it with the patch as `patch`, without a command around it.";

/// Programs that only print: a rule for one allows any arguments, even expanded ones.
#[rustfmt::skip]
const SAYING: &[&str] = &[
    ":", "basename", "dirname", "echo", "expr", "false", "free", "groups", "id", "lscpu", "nproc", "pwd", "seq", "sleep", "true",
    "tty", "type", "uname", "uptime", "which", "whoami",
];

/// Programs that only read and print: a rule for one allows patterns that stay in the folder.
#[rustfmt::skip]
const READING: &[&str] = &[
    "cat", "cd", "cmp", "comm", "cut", "df", "diff", "du", "egrep", "fgrep", "grep", "head", "hexdump", "jq", "ls", "md5sum", "nl",
    "od", "paste", "readlink", "realpath", "rev", "sha1sum", "sha256sum", "stat", "strings", "tac", "tail", "tr", "wc",
];

/// Words that change the meaning of other words, or run their arguments. No rule allows them.
#[rustfmt::skip]
const SHELL_WORDS: &[&str] = &[
    ".", "alias", "bind", "builtin", "command", "compgen", "complete", "coproc", "declare", "enable", "eval", "exec", "export",
    "fc", "getopts", "hash", "history", "jobs", "let", "local", "mapfile", "popd", "printf", "pushd", "read", "readarray", "readonly", "set", "shopt",
    "source", "test", "[", "time", "trap", "typeset", "unset", "wait", "sudo", "doas", "su", "env", "xargs", "sh", "bash", "dash", "zsh",
    "ksh", "fish", "nohup", "setsid", "timeout", "nice", "watch", "ssh", "parallel",
];

/// Long options of shells with a value as the next word.
const SHELL_OPTIONS: &[&str] = &["--rcfile", "--init-file"];

/// Maximum bytes for an "always" answer: the user has not seen all of a longer line.
const MAX_SHOWN: usize = 4 * 1024;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CommandLine {
    text: String,
    commands: Vec<Simple>,
    reads: Vec<String>,
    writes: Vec<String>,
    /// True if some construct is not fully understood.
    is_opaque: bool,
    /// True if a part is not even searched for commands.
    is_unread: bool,
    variables: Vec<Variable>,
    /// Texts of here-documents and here-strings.
    inputs: Vec<Pieces>,
}

#[derive(Debug, PartialEq, Eq)]
struct Simple {
    start: usize,
    text: String,
    /// Without quotes, assignments and the directory of the program.
    plain: String,
    /// The words, with their known parts.
    pieces: Vec<Pieces>,
    place: CommandPlace,
    is_understood: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandPlace {
    Plain,
    Piped,
    Substituted,
}

/// Reads a line whose folder is unknown.
pub fn commands_of(line: &str) -> Commands {
    CommandLine::parse(line).to_commands(None, false)
}

impl CommandLine {
    /// Parses a line in time linear in its length.
    pub(super) fn parse(text: &str) -> Self {
        let mut line = scan::scan(text);
        line.is_opaque = line.is_opaque || !is_visible(text);
        line
    }

    /// The facts for rules and remembered answers. `folder` is the working directory if it is not the
    /// session's own: there the same words can mean something else. `is_inside` is true if all of
    /// [`Self::paths`] lie in the session's folders.
    pub(super) fn to_commands(&self, folder: Option<&str>, is_inside: bool) -> Commands {
        let of = |scope: fn(String) -> CommandScope, text: &str, depends: bool| {
            scope(text.to_owned()).within(folder.filter(|_| depends))
        };
        let program = |text: &str| {
            let covered = programs::covered(&literal::literal_words(text)?)?;
            Some(of(CommandScope::program, &covered.shown, covered.depends_on_folder))
        };
        let mut always = Vec::new();
        if self.text.len() <= MAX_SHOWN && is_visible(&self.text) {
            always.extend(program(&self.text).filter(|_| is_inside));
            always.push(of(CommandScope::line, &self.text, true));
        }
        let mut parts = Vec::new();
        if self.commands.len() > 1 {
            for command in &self.commands {
                parts.extend(program(&command.text));
                parts.push(of(CommandScope::line, &command.text, true));
            }
        }
        Commands::Line {
            line: self.text.clone(),
            texts: self.commands.iter().map(|command| command.text.clone()).collect(),
            plain: self.commands.iter().map(|command| command.plain.clone()).collect(),
            is_understood: self.is_understood(),
            always,
            parts,
            invocations: Some(Box::new(invoked::invocations(self))),
            before: None,
        }
    }

    /// Paths that must lie in the session's folders before an answer covers more than exactly this line.
    pub(super) fn paths(&self) -> Vec<String> {
        let covered = literal::literal_words(&self.text).and_then(|words| programs::covered(&words));
        covered.map(|covered| covered.paths).unwrap_or_default()
    }

    /// True if the line runs a tool of Modegate as if it were a program, also through other programs.
    pub(super) fn runs_a_tool(&self) -> bool {
        TOOLS_AS_PROGRAMS.iter().any(|program| self.runs(program))
    }

    fn runs(&self, program: &str) -> bool {
        let word = CommandWord::Text(program.to_owned());
        self.text.contains(program)
            && invoked::invocations(self).commands.iter().any(|command| command.words.first() == Some(&word))
    }

    /// True if the exit status may be that of one command of several.
    pub(super) fn has_several_commands(&self) -> bool {
        self.commands.len() > 1
    }

    /// True if rules for each of the commands allow the whole line.
    fn is_understood(&self) -> bool {
        !self.is_opaque
            && self.text.len() <= MAX_SHOWN
            && self.writes.is_empty()
            && self.reads.iter().all(|read| read == "/dev/null")
            && self.commands.iter().all(|command| command.is_understood)
    }

    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        if self.commands.len() > 1 {
            for (number, command) in self.commands.iter().enumerate() {
                let place = match command.place {
                    CommandPlace::Plain => "",
                    CommandPlace::Piped => " (reads the output of the one before)",
                    CommandPlace::Substituted => " (its output becomes part of the command)",
                };
                let first = command.text.lines().next().unwrap_or_default();
                let _ = writeln!(text, "{}. `{}`{place}", number + 1, visible(first));
            }
        }
        for (what, places) in [("Reads", &self.reads), ("Writes", &self.writes)] {
            if !places.is_empty() {
                // A line feed in a file name must not start a new line here.
                let places = visible(&places.join(", ")).replace('\n', "\\n");
                let _ = writeln!(text, "{what}: {places}");
            }
        }
        text
    }
}

impl Simple {
    fn new(start: usize, text: String, words: &[ParsedWord], place: CommandPlace) -> Self {
        let mut plain: Vec<&str> = words.iter().map(|word| word.bare.as_str()).collect();
        let is_understood = words.split_first().is_some_and(|(program, rest)| {
            let says = SAYING.contains(&program.bare.as_str());
            let reads = READING.contains(&program.bare.as_str());
            is_literal_word(program)
                && !SHELL_WORDS.contains(&program.bare.as_str())
                && rest.iter().all(|word| {
                    is_literal_word(word) || says || (reads && !word.is_expanded && stays_inside(&word.bare))
                })
        });
        if let Some(program) = plain.first_mut() {
            *program = Platform::HERE.program_name(program);
        }
        let pieces = words.iter().map(|word| word.pieces.clone()).collect();
        Self { start, plain: plain.join(" "), text, pieces, place, is_understood }
    }
}

fn is_literal_word(word: &ParsedWord) -> bool {
    !word.is_expanded && !word.is_pattern
}

fn stays_inside(pattern: &str) -> bool {
    !pattern.starts_with(['/', '~']) && !pattern.contains("..") && !pattern.contains("=/")
}

fn is_visible(text: &str) -> bool {
    let is_misleading =
        |c: char| (is_unseen(c) && c != '\n' && c != '\t') || (c.is_whitespace() && !c.is_ascii());
    !text.contains(is_misleading)
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
