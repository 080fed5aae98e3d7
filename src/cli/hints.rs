//! Errors of the command line, with tips for words that other agents understand.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use super::{Cli, write_error};
use crate::mode::Modes;
use crate::mode::definition::is_misspelt;
use crate::model::catalog::provider;

/// Commands that Modegate does not have, each with the way to do the same here.
const COMMANDS: [(&[&str], &str); 17] = [
    (
        &["exec", "e", "ask", "chat", "query", "prompt", "review", "print"],
        "to run one prompt: modegate -p \"TEXT\"",
    ),
    (
        &["login", "auth", "connect"],
        "to store the key of a provider: modegate setup; to log in at an MCP server: modegate mcp login",
    ),
    (
        &["logout"],
        "to remove a stored key: modegate setup --remove PROVIDER; at an MCP server: modegate mcp logout",
    ),
    (&["version"], "the version: modegate --version"),
    (
        &["update", "upgrade", "self-update"],
        "Modegate does not update itself: install the newer version as you installed this one",
    ),
    (
        &["config", "settings", "configure"],
        "settings are in config.yaml: `modegate doctor` names the directory, `modegate schema config` prints the keys",
    ),
    (&["init"], "nothing has to be made: models read the AGENTS.md of a project if it has one"),
    (
        &["resume", "continue", "c"],
        "to continue the most recent session here: modegate --continue -p \"TEXT\"",
    ),
    (
        &["undo", "revert", "rewind"],
        "to undo the last turn that changed something: modegate sessions undo last",
    ),
    (&["session", "history", "list", "ls"], "sessions of this directory: modegate sessions list"),
    (
        &["export", "share"],
        "to print a session: modegate sessions export last; as a page: modegate report last -o FILE.html",
    ),
    (&["serve", "acp", "server", "stdio"], "without a command, modegate speaks ACP over stdin and stdout"),
    (
        &["models", "model", "providers"],
        "to choose a model: --model PROVIDER/NAME; to store one: modegate setup",
    ),
    (&["apply"], "to carry out a plan: modegate --mode code --from-plan FILE"),
    (&["sandbox", "debug"], "to run a command in a sandbox: modegate run --mode plan -- COMMAND"),
    (&["stats", "usage", "cost"], "tokens and cost of a session: modegate report last -o FILE.html"),
    (&["allow", "deny", "permission", "allowed-tools"], "to add a rule: modegate permissions allow RULE"),
];

/// Options that Modegate does not have, each with the way to do the same here.
const OPTIONS: [(&[&str], &str); 13] = [
    (&["--print", "--query", "--message", "--prompt-interactive", "-i"], "to run one prompt: -p \"TEXT\""),
    (
        &[
            "--yolo",
            "-y",
            "--yes",
            "--full-auto",
            "--auto",
            "--dangerously-skip-permissions",
            "--dangerously-bypass-approvals-and-sandbox",
            "--allow-dangerously-skip-permissions",
            "--allow-all-tools",
        ],
        "to allow changes without questions: --mode code; commands stay in the sandbox",
    ),
    (
        &["--permission-mode", "--approval-mode", "--ask-for-approval", "-a"],
        "to choose what is allowed: --mode plan, ask or code",
    ),
    (&["--sandbox", "-s"], "commands always run in a sandbox; to allow no change: --mode plan"),
    (
        &["--output-format", "--format", "--json", "-o"],
        "to choose the output: --output text, json or stream-json",
    ),
    (
        &[
            "--allowedTools",
            "--allowed-tools",
            "--disallowedTools",
            "--disallowed-tools",
            "--allow-tool",
            "--deny-tool",
        ],
        "to allow or deny calls: modegate permissions allow RULE, or deny RULE",
    ),
    (&["--max-turns"], "to limit the model requests of a turn: --max-steps N"),
    (&["--max-budget-usd"], "to limit the cost of a turn: --max-cost USD"),
    (
        &["--session", "--session-id", "-r"],
        "to continue a session: --resume ID; `modegate sessions list` lists them",
    ),
    (&["-c"], "to continue the most recent session here: --continue"),
    (&["-m"], "to choose a model: --model PROVIDER/NAME"),
    (&["-C", "--cd", "--dir", "--directory"], "to choose the directory: --cwd DIR"),
    (&["--acp", "--experimental-acp", "--stdio"], "without -p, modegate speaks ACP over stdin and stdout"),
];

/// Commands that are not suggested for a similar word, because they delete.
const DELETING: [&str; 5] = ["delete", "prune", "remove", "reset", "revoke"];

const QUOTE_THE_PROMPT: &str = "to run all words as one prompt, quote them: modegate -p \"TEXT\"";

/// Prints the error or the help that was asked for, and ends the process.
pub(super) fn exit(error: clap::Error, arguments: &[OsString]) -> ! {
    let error = with_tip(error, arguments);
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    if error.use_stderr() {
        let text = error.render().to_string();
        // All errors of Modegate begin alike.
        let _ = write_error(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
        std::process::exit(error.exit_code());
    }
    error.exit()
}

fn with_tip(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let unknown = match error.kind() {
        ErrorKind::InvalidSubcommand => error.get(ContextKind::InvalidSubcommand),
        ErrorKind::UnknownArgument => error.get(ContextKind::InvalidArg),
        ErrorKind::InvalidValue => error.get(ContextKind::InvalidValue),
        _ => None,
    };
    let Some(ContextValue::String(word)) = unknown else { return error };
    let word = word.clone();
    let tip = match error.kind() {
        ErrorKind::InvalidValue => {
            command_above(&Cli::command(), &word, arguments).and_then(|above| tip_below(above, &word))
        }
        ErrorKind::InvalidSubcommand => {
            keep_near_commands(&mut error, &word);
            let has_suggestion = error.get(ContextKind::SuggestedSubcommand).is_some();
            tip_of_command(&word, arguments, has_suggestion)
        }
        _ => tip(&word, arguments),
    };
    let Some(tip) = tip else { return error };
    for other in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
        error.remove(other);
    }
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// Keeps the suggested commands that the word is a misspelling of.
fn keep_near_commands(error: &mut clap::Error, word: &str) {
    let suggested = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names,
        Some(ContextValue::String(name)) => vec![name],
        _ => return,
    };
    let is_near = |name: &String| is_misspelt(word, name) && !DELETING.contains(&name.as_str());
    let near: Vec<String> = suggested.into_iter().filter(is_near).collect();
    if near.is_empty() {
        // Clap's own list of tips is empty then, and prints a blank line.
        error.remove(ContextKind::Suggested);
    } else {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(near));
    }
}

/// A word that is no command is probably a part of a prompt.
fn tip_of_command(word: &str, arguments: &[OsString], has_suggestion: bool) -> Option<String> {
    let mut before = arguments.iter().map_while(|argument| argument.to_str().filter(|it| *it != word));
    if before.any(|argument| argument == "-p" || argument.starts_with("--prompt")) {
        return Some(QUOTE_THE_PROMPT.to_owned());
    }
    let next = arguments.iter().skip_while(|argument| *argument != word).nth(1);
    let has_more_words = next.is_some_and(|next| !next.to_string_lossy().starts_with('-'));
    let prompt =
        if has_more_words { QUOTE_THE_PROMPT } else { "to run it as a prompt: modegate -p \"TEXT\"" };
    let may_be_prompt = !has_suggestion && command_above(&Cli::command(), word, arguments).is_none();
    tip(word, arguments).or_else(|| may_be_prompt.then(|| prompt.to_owned()))
}

fn tip(word: &str, arguments: &[OsString]) -> Option<String> {
    let command = Cli::command();
    if let Some(above) = command_above(&command, word, arguments) {
        return tip_below(above, word);
    }
    let entry = COMMANDS.iter().chain(&OPTIONS).find(|(words, _)| words.contains(&word));
    if let Some((_, tip)) = entry {
        return Some((*tip).to_owned());
    }
    if let Ok(mode) = Modes::built_in().resolve(word) {
        return Some(format!("to choose a mode: --mode {}", mode.id));
    }
    None
}

/// The command that the word follows.
fn command_above<'a>(command: &Command, word: &str, arguments: &'a [OsString]) -> Option<&'a str> {
    let mut before =
        arguments.iter().skip(1).map_while(|argument| argument.to_str().filter(|it| *it != word));
    before.find(|argument| command.find_subcommand(argument).is_some())
}

/// The tables above are not for words that follow a command.
fn tip_below(above: &str, word: &str) -> Option<String> {
    match (above, word) {
        ("modes" | "policy", "schema") => Some(format!("to print the schema: modegate schema {above}")),
        ("modes", mode) if Modes::built_in().resolve(mode).is_ok() => Some(format!(
            "to print a mode: modegate modes show {mode}; to change that of a running program: modegate mode {mode}"
        )),
        ("sessions", "resume" | "continue") => {
            Some("to continue a session: modegate --resume ID -p \"TEXT\"".to_owned())
        }
        ("store", "set-aside" | "aside") => Some("to set the store aside: modegate store reset".to_owned()),
        ("setup", id) if provider(id).is_some() => {
            Some(format!("to store the key of a provider: modegate setup --provider {id}"))
        }
        ("setup", "--list") => Some("what is stored, without the keys: modegate doctor".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_tables_are_neither_commands_nor_options_of_modegate() {
        let command = Cli::command();
        for word in COMMANDS.iter().flat_map(|(words, _)| *words) {
            assert!(command.find_subcommand(word).is_none(), "{word}");
        }
        for option in OPTIONS.iter().flat_map(|(words, _)| *words) {
            let is_option = command.get_arguments().any(|argument| {
                option.strip_prefix("--").is_some_and(|name| argument.get_long() == Some(name))
                    || argument.get_short().is_some_and(|name| *option == format!("-{name}"))
            });
            assert!(!is_option, "{option}");
        }
    }

    #[test]
    fn tips_below_commands() {
        let tip_of = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            tip(line.rsplit(' ').next().unwrap_or_default(), &arguments)
        };
        assert_eq!(tip_of("modegate modes schema").unwrap(), "to print the schema: modegate schema modes");
        assert_eq!(tip_of("modegate policy schema").unwrap(), "to print the schema: modegate schema policy");
        assert!(tip_of("modegate modes plan").unwrap().contains("modegate modes show plan"));
        assert!(tip_of("modegate setup --list").unwrap().ends_with("modegate doctor"));
        assert_eq!(tip_of("modegate sessions login"), None);
        assert!(tip_of("modegate login").is_some());
    }

    /// Words behind `modegate` in a tip are a command line that exists.
    #[test]
    fn tips_name_commands_and_options_that_exist() {
        let command = Cli::command();
        for (_, tip) in COMMANDS.iter().chain(&OPTIONS) {
            for line in tip.split("modegate ").skip(1) {
                let word = line.split([' ', '`', ';', ',']).next().unwrap_or_default();
                let exists =
                    word.starts_with('-') || word == "speaks" || command.find_subcommand(word).is_some();
                assert!(exists, "{word} in {tip}");
            }
        }
    }
}
