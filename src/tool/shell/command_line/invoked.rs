//! Finds the programs that a line runs, also through other programs: `env git push`, `bash -c 'git push'`. Pure.

use std::collections::BTreeSet;

use super::code::{self, ArgumentUse};
use super::pieces::Pieces;
use super::variables::SingleWords;
use super::{CommandLine, CommandPlace, SHELL_OPTIONS, runners, scan, subcommands};
use crate::permission::{CommandWord, Invocation, Invocations};
use crate::platform::Platform;

/// Programs that run programs that run programs: more is not followed.
const MAX_DEPTH: usize = 8;

/// Time and memory are linear: each word is copied once per level.
const MAX_WORDS: usize = 128 * 1024;

/// A script that reads itself again and again is not followed.
const MAX_SCANNED: usize = 512 * 1024;

pub(super) fn invocations(line: &CommandLine) -> Invocations {
    let mut finder = Finder::default();
    finder.line(line, 0);
    finder.found
}

#[derive(Default)]
pub(super) struct Finder {
    pub(super) found: Invocations,
    words: usize,
    /// Bytes of scripts that were read.
    scanned: usize,
    /// True if a shell may read a pipe.
    has_pipe: bool,
    /// Here-documents and here-strings that no shell has read yet, and no interpreter.
    shell_inputs: Vec<Pieces>,
    interpreter_inputs: Vec<Pieces>,
    /// Variables that are set to more than one word, or to an unknown value.
    unusual: BTreeSet<String>,
}

impl Finder {
    fn line(&mut self, line: &CommandLine, depth: usize) {
        self.found.hides_commands |= line.is_unread || depth > MAX_DEPTH;
        if depth > MAX_DEPTH {
            return;
        }
        let is_pipe =
            |read: &String| read.contains("<(") || read.starts_with("/dev/fd") || read.starts_with("/proc");
        self.has_pipe |= line.reads.iter().any(is_pipe);
        self.has_pipe |= line.commands.iter().any(|command| command.place == CommandPlace::Piped);
        self.shell_inputs.extend(line.inputs.iter().cloned());
        self.interpreter_inputs.extend(line.inputs.iter().cloned());
        for variable in &line.variables {
            // With these, git has other sub-commands.
            self.found.hides_commands |= variable.name.starts_with("GIT_CONFIG");
            self.may_be_code(&variable.value);
            if !variable.is_single {
                self.unusual.insert(variable.name.clone());
            }
        }
        let single_words = SingleWords::new(line, &self.unusual);
        let commands: Vec<Vec<_>> = line
            .commands
            .iter()
            .map(|command| {
                let words = command.pieces.iter().enumerate();
                words.flat_map(|(at, pieces)| pieces.to_words(at == 0, &single_words)).collect()
            })
            .collect();
        for words in commands {
            // `time -p git push`
            let skipped = usize::from(words.first() == Some(&CommandWord::Text("-p".into())));
            self.command(&words[skipped..], depth);
        }
    }

    pub(super) fn may_be_code(&mut self, text: &str) {
        if !text.is_empty() {
            self.found.code.push(text.to_owned());
        }
    }

    fn command(&mut self, words: &[CommandWord], depth: usize) {
        let Some(program) = words.first() else { return };
        self.words += words.len();
        if depth > MAX_DEPTH || self.words > MAX_WORDS {
            self.found.hides_commands = true;
            return;
        }
        let name = match program {
            CommandWord::Text(program) => Platform::HERE.program_name(program),
            CommandWord::Start(_) | CommandWord::Any => "",
        };
        let mut essential = subcommands::without_options(name, words);
        if name == "git" {
            self.git(words, &mut essential, depth);
        }
        let rest = &words[1..];
        let deeper = depth + 1;
        let subcommand = essential.as_deref().unwrap_or(words).get(1);
        let subcommand = match subcommand {
            Some(CommandWord::Text(text)) => Some(text.as_str()),
            Some(CommandWord::Start(_) | CommandWord::Any) => None,
            None => Some(""),
        };
        let arguments = code::arguments_of(name, subcommand);
        self.found.commands.push(Invocation { words: words.to_vec(), essential });
        if let Some(subcommand) = name.strip_prefix("git-") {
            let git = ["git", subcommand].map(|word| CommandWord::Text(word.into()));
            self.command(&git.into_iter().chain(rest.iter().cloned()).collect::<Vec<_>>(), deeper);
        } else if let Some(runner) = runners::find(name) {
            self.runner(name, runner, rest, deeper);
        } else if code::is_shell(name) {
            self.shell(rest, deeper);
        } else if code::is_interpreter(name) {
            self.interpreter(name, rest, deeper);
        } else {
            match name {
                "eval" => self.script_of(rest, deeper),
                "trap" => self.script_of(&rest[..rest.len().min(1)], deeper),
                "watch" => self.script_of(without_leading_options(rest), deeper),
                "." | "source" => self.file(rest.first()),
                "hash" | "enable" => self.found.hides_commands |= rest.iter().any(is_option),
                "find" => self.find(rest, deeper),
                "parallel" => self.parallel(rest),
                _ => self.arguments(arguments, rest),
            }
        }
    }

    fn arguments(&mut self, arguments: ArgumentUse, words: &[CommandWord]) {
        if arguments == ArgumentUse::Inert {
            return;
        }
        if arguments == ArgumentUse::MayRun {
            self.found.arguments.push(words.to_vec());
        }
        for word in words {
            let (CommandWord::Text(text) | CommandWord::Start(text)) = word else { continue };
            let is_code = match arguments {
                ArgumentUse::MayRun => {
                    text.contains(|c: char| c.is_whitespace() || matches!(c, '=' | '!' | '$' | '`' | ';'))
                }
                _ => {
                    text.contains("$(")
                        || text.contains('`')
                        || (text.contains('=') && text.contains(' '))
                        || text.starts_with('!')
                }
            };
            if is_code {
                self.may_be_code(text);
            }
        }
    }

    fn runner(&mut self, name: &str, runner: &runners::CommandRunner, words: &[CommandWord], depth: usize) {
        if let ("command", Some(CommandWord::Text(option))) = (name, words.first())
            && (option.starts_with("-v") || option.starts_with("-V"))
        {
            return;
        }
        let Some((before, command)) = runner.split(words) else {
            return match (name, words.first()) {
                ("env", Some(CommandWord::Text(option))) => self.split_string(option, words, depth),
                _ => self.unknown_runner(name, words),
            };
        };
        for word in before {
            if let CommandWord::Text(text) | CommandWord::Start(text) = word {
                self.found.hides_commands |= text.starts_with("GIT_CONFIG");
                if let Some((variable, value)) = text.split_once('=').filter(|_| !text.starts_with('-')) {
                    self.may_be_code(value);
                    self.unusual.insert(variable.to_owned());
                }
            }
        }
        let mut command = command.to_vec();
        if name == "xargs" {
            fill_in(&mut command, before);
        }
        self.command(&command, depth);
    }

    /// A runner with an option that is not in the table.
    fn unknown_runner(&mut self, name: &str, words: &[CommandWord]) {
        self.found.hides_commands |= words.contains(&CommandWord::Any);
        let mut words = words.to_vec();
        if name == "xargs" {
            words.push(CommandWord::Any);
        }
        self.arguments(ArgumentUse::MayRun, &words);
    }

    /// `env -S 'git push'`
    fn split_string(&mut self, option: &str, words: &[CommandWord], depth: usize) {
        let attached = option.strip_prefix("--split-string=");
        let bundled =
            option.strip_prefix('-').and_then(|letters| letters.split_once('S')).map(|(_, value)| value);
        let text = match attached.or(bundled.filter(|_| !option.starts_with("--"))) {
            Some("") => words.get(1..),
            Some(value) => return self.script(&with_arguments(value, &words[1..]), depth),
            None if option == "--split-string" => words.get(1..),
            None => return self.unknown_runner("env", words),
        };
        match text {
            Some([CommandWord::Text(text), more @ ..]) => self.script(&with_arguments(text, more), depth),
            _ => self.found.hides_commands = true,
        }
    }

    fn shell(&mut self, words: &[CommandWord], depth: usize) {
        let (mut at, mut gets_code, mut reads_input) = (0, false, false);
        while let Some(CommandWord::Text(option)) = words.get(at).filter(|word| is_option(word)) {
            at += 1;
            if option == "--" || option == "-" {
                break;
            }
            if option.starts_with("--") {
                at += usize::from(SHELL_OPTIONS.contains(&option.as_str()));
                continue;
            }
            let letters = &option[1..];
            gets_code |= option.starts_with('-') && letters.contains('c');
            reads_input |= letters.contains('s');
            at += letters.matches(['o', 'O']).count();
        }
        let operand = words.get(at);
        if gets_code {
            return self.script_of(operand.map(std::slice::from_ref).unwrap_or_default(), depth);
        }
        match operand {
            Some(operand) if !reads_input => self.file(Some(operand)),
            _ => {
                self.found.hides_commands |= self.has_pipe;
                for input in std::mem::take(&mut self.shell_inputs) {
                    match input.text() {
                        Some(script) => self.script(script, depth),
                        None => self.found.hides_commands = true,
                    }
                }
            }
        }
        // A script may run its arguments.
        self.arguments(ArgumentUse::MayRun, words.get(at..).unwrap_or_default());
    }

    /// The code of a file is as unknown as that of any other program, but not that of a substitution.
    fn file(&mut self, file: Option<&CommandWord>) {
        self.found.hides_commands |= match file {
            Some(CommandWord::Text(path)) => path.starts_with("/dev/") || path.starts_with("/proc/"),
            Some(CommandWord::Start(_) | CommandWord::Any) => true,
            None => false,
        };
    }

    fn interpreter(&mut self, name: &str, words: &[CommandWord], depth: usize) {
        if let [CommandWord::Text(option), module @ ..] = words
            && option == "-m"
            && name.starts_with("python")
        {
            return self.command(module, depth);
        }
        let mut follows_option = false;
        let mut has_operand = false;
        for (at, word) in words.iter().enumerate() {
            match word {
                CommandWord::Text(text) => {
                    has_operand |= !is_option(word) || (text.len() > 1 && follows_option);
                    let is_code = text.contains(|c: char| {
                        !(c.is_alphanumeric()
                            || matches!(c, '-' | '_' | '.' | '/' | '=' | ',' | ':' | '+' | '@' | '%'))
                    });
                    if is_code {
                        self.foreign_code(text);
                    }
                    // In `-c`, `-e`, `-E`, `-r`, `-pe` and `--eval`, the next word is code.
                    follows_option = is_option(word)
                        && text
                            .trim_end_matches(|c: char| c.is_ascii_digit())
                            .ends_with(['c', 'e', 'E', 'r', 'p', 'l']);
                }
                CommandWord::Start(_) | CommandWord::Any => {
                    let is_program = code::has_code_operand(name) && !has_operand;
                    let is_anything = *word == CommandWord::Any && !code::has_code_operand(name);
                    self.found.hides_commands |= follows_option || is_anything || (is_program && at == 0);
                    has_operand = true;
                    follows_option = false;
                }
            }
        }
        let reads_input = words.iter().all(is_option);
        if reads_input {
            self.found.hides_commands |= self.has_pipe;
            for input in std::mem::take(&mut self.interpreter_inputs) {
                self.foreign_code(&input.known());
            }
        }
        if !code::has_code_operand(name) {
            self.arguments(ArgumentUse::MayRun, words);
        }
    }

    fn foreign_code(&mut self, code: &str) {
        self.found.hides_commands |= code::may_start_programs(code);
        self.may_be_code(code);
    }

    fn find(&mut self, words: &[CommandWord], depth: usize) {
        let mut rest = words;
        while let Some(at) = position(rest, &["-exec", "-execdir", "-ok", "-okdir"]) {
            rest = &rest[at + 1..];
            let end = position(rest, &[";", "+"]).unwrap_or(rest.len());
            let mut command = rest[..end].to_vec();
            replace(&mut command, "{}");
            self.command(&command, depth);
            rest = &rest[end..];
        }
    }

    /// GNU parallel adds the words behind `:::` to its command.
    fn parallel(&mut self, words: &[CommandWord]) {
        let is_command =
            |word: &&CommandWord| !matches!(word, CommandWord::Text(text) if text.starts_with(":::"));
        let command: Vec<_> =
            words.iter().take_while(is_command).cloned().chain([CommandWord::Any]).collect();
        self.arguments(ArgumentUse::MayRun, &command);
    }

    /// Reads words as a line of the shell, which joins them by blanks.
    fn script_of(&mut self, words: &[CommandWord], depth: usize) {
        let mut script = String::new();
        for word in words {
            let (CommandWord::Text(text) | CommandWord::Start(text)) = word else {
                self.found.hides_commands = true;
                continue;
            };
            self.found.hides_commands |= matches!(word, CommandWord::Start(_));
            script.extend([text, " "]);
        }
        self.script(&script, depth);
    }

    pub(super) fn script(&mut self, script: &str, depth: usize) {
        self.scanned += script.len();
        if self.scanned > MAX_SCANNED {
            self.found.hides_commands = true;
            return;
        }
        self.line(&scan::scan(script), depth + 1);
    }
}

/// Adds arguments to a script of one command.
fn with_arguments(script: &str, arguments: &[CommandWord]) -> String {
    arguments.iter().fold(script.to_owned(), |mut script, word| {
        match word {
            CommandWord::Text(text) => script.extend([" '", &text.replace('\'', "'\\''"), "'"]),
            CommandWord::Start(_) | CommandWord::Any => script.push_str(" $@"),
        }
        script
    })
}

fn is_option(word: &CommandWord) -> bool {
    matches!(word, CommandWord::Text(text) if text.starts_with(['-', '+']))
}

fn without_leading_options(words: &[CommandWord]) -> &[CommandWord] {
    let is_number =
        |word: &CommandWord| matches!(word, CommandWord::Text(text) if text.parse::<f64>().is_ok());
    let command = words.iter().position(|word| !is_option(word) && !is_number(word));
    &words[command.unwrap_or(words.len())..]
}

/// Adds the words that xargs reads from its input.
fn fill_in(command: &mut Vec<CommandWord>, options: &[CommandWord]) {
    let mut marks = Vec::new();
    for (at, option) in options.iter().enumerate() {
        let CommandWord::Text(option) = option else { continue };
        let value = match options.get(at + 1) {
            Some(CommandWord::Text(next)) if option == "-I" => Some(next.as_str()),
            _ if option == "-i" => Some("{}"),
            _ => option.strip_prefix("-I").filter(|mark| !mark.is_empty()),
        };
        marks.extend(value);
    }
    if command.is_empty() {
        return;
    }
    if marks.is_empty() {
        command.push(CommandWord::Any);
    }
    for mark in marks {
        replace(command, mark);
    }
}

/// The position of the first word that is one of `texts`.
fn position(words: &[CommandWord], texts: &[&str]) -> Option<usize> {
    words.iter().position(|word| matches!(word, CommandWord::Text(text) if texts.contains(&text.as_str())))
}

/// The mark stands for text that is known only when the command runs.
fn replace(command: &mut [CommandWord], mark: &str) {
    for word in command {
        if let CommandWord::Text(text) = word
            && let Some(at) = text.find(mark)
        {
            *word = CommandWord::Start(text[..at].to_owned());
        }
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests;
