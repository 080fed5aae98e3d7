//! Options that a subcommand does not use are errors, not ignored.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory};

use super::scripts::ScriptsCommand;
use super::{Cli, CliCommand};

/// Hides a global option in a subcommand, and rejects it there.
pub(super) fn argument(name: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .hide(true)
        .value_parser(|_: &str| Err::<String, _>("this subcommand does not use the option"))
}

/// Returns the message about an option before the subcommand that the subcommand does not use.
pub(super) fn option_of(cli: &Cli, matches: &ArgMatches) -> Option<String> {
    let (name, used): (_, &[&str]) = match cli.command.as_ref()? {
        // For a login, clients append `setup` to the command line that starts the agent.
        CliCommand::Setup(_) | CliCommand::Wrap(_) | CliCommand::Scripts(ScriptsCommand::Run { .. }) => {
            return None;
        }
        CliCommand::Run(_) => {
            ("run", &["--mode", "--max-mode", "--agent", "--no-exit", "--model", "--cwd", "--store"])
        }
        CliCommand::Replay(_) => ("replay", &["--mode", "--max-mode", "--agent", "--no-exit", "--model"]),
        CliCommand::Modes(_) => ("modes", &["--max-mode", "--cwd", "--store"]),
        CliCommand::Agents(_) => ("agents", &["--mode", "--cwd"]),
        CliCommand::Sessions(_) => ("sessions", &["--mode", "--cwd", "--store"]),
        CliCommand::Store(_) => ("store", &["--store"]),
        CliCommand::Memories(_) => ("memories", &["--cwd", "--store"]),
        CliCommand::Doctor(_) => ("doctor", &["--cwd", "--store"]),
        CliCommand::Report(_) => ("report", &["--cwd", "--store"]),
        CliCommand::Values { .. } => ("__values", &["--cwd", "--store"]),
        CliCommand::Audit(_) => ("audit", &["--cwd", "--store"]),
        CliCommand::Permissions(_) => ("permissions", &["--cwd"]),
        CliCommand::Policy(_) => ("policy", &["--cwd"]),
        CliCommand::Trust(_) => ("trust", &["--cwd"]),
        CliCommand::Skills(_) => ("skills", &["--cwd"]),
        CliCommand::Mcp(_) => ("mcp", &["--cwd"]),
        CliCommand::Mode(_) => ("mode", &[]),
        CliCommand::Scripts(_) => ("scripts", &[]),
        CliCommand::Completions { .. } => ("completions", &[]),
        CliCommand::Man => ("man", &[]),
        CliCommand::Schema(_) => ("schema", &[]),
    };
    let command = Cli::command();
    let given = command.get_arguments().filter(|argument| {
        matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
    });
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
