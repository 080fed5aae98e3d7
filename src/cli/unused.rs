//! Options that a subcommand does not use are errors, not ignored.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory, Id};

use super::scripts::Action;
use super::{Cli, Command};

/// Hides a global option in a subcommand, and rejects it there.
pub(super) fn argument(name: &'static str) -> Arg {
    let reject = |_: &str| Err::<String, _>("this subcommand does not use the option");
    Arg::new(name).long(name).hide(true).value_parser(reject)
}

/// Returns the message about an option before the subcommand that the subcommand does not use.
pub(super) fn option_of(cli: &Cli, matches: &ArgMatches) -> Option<String> {
    let (name, used): (_, &[&str]) = match cli.command.as_ref()? {
        // For a login, clients append `setup` to the command line that starts the agent.
        Command::Setup(_) | Command::Wrap(_) | Command::Scripts(Action::Run { .. }) => return None,
        Command::Run(_) => {
            ("run", &["--mode", "--max-mode", "--agent", "--no-exit", "--model", "--cwd", "--store"])
        }
        Command::Replay(_) => ("replay", &["--mode", "--max-mode", "--agent", "--no-exit", "--model"]),
        Command::Modes(_) => ("modes", &["--max-mode", "--cwd", "--store"]),
        Command::Agents(_) => ("agents", &["--mode", "--cwd"]),
        Command::Sessions(_) => ("sessions", &["--mode", "--cwd", "--store"]),
        Command::Store(_) => ("store", &["--store"]),
        Command::Memories(_) => ("memories", &["--cwd", "--store"]),
        Command::Doctor(_) => ("doctor", &["--cwd", "--store"]),
        Command::Audit(_) => ("audit", &["--store"]),
        Command::Permissions(_) => ("permissions", &["--cwd"]),
        Command::Trust { .. } => ("trust", &["--cwd"]),
        Command::Skills(_) => ("skills", &["--cwd"]),
        Command::Mcp(_) => ("mcp", &["--cwd"]),
        Command::Mode(_) => ("mode", &[]),
        Command::Scripts(_) => ("scripts", &[]),
        Command::Completions { .. } => ("completions", &[]),
        Command::Man => ("man", &[]),
    };
    let is_given = |id: &Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    let command = Cli::command();
    let given = command.get_arguments().filter(|argument| is_given(argument.get_id()));
    let option = given
        .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
        .find(|option| !used.contains(&option.as_str()))?;
    let valid = if used.is_empty() {
        "options go behind its name".to_owned()
    } else {
        format!("before its name it takes {}", used.join(", "))
    };
    Some(format!("{name} does not take {option}; {valid}, and `modegate {name} --help` lists the others"))
}
