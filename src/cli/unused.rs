//! Options that a subcommand does not use are errors, not ignored.

use clap::Arg;

use super::scripts::Action;
use super::{Cli, Command};

/// Hides a global option in a subcommand, and rejects it there.
pub(super) fn argument(name: &'static str) -> Arg {
    let reject = |_: &str| Err::<String, _>("this subcommand does not use the option");
    Arg::new(name).long(name).hide(true).value_parser(reject)
}

/// Returns the message about an option before the subcommand that the subcommand does not use.
pub(super) fn option_of(cli: &Cli) -> Option<String> {
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
        Command::Memories(_) => ("memories", &["--cwd", "--store"]),
        Command::Doctor => ("doctor", &["--cwd", "--store"]),
        Command::Audit(_) => ("audit", &["--store"]),
        Command::Permissions(_) => ("permissions", &["--cwd"]),
        Command::Trust { .. } => ("trust", &["--cwd"]),
        Command::Skills(_) => ("skills", &["--cwd"]),
        Command::Mode(_) => ("mode", &[]),
        Command::Scripts(_) => ("scripts", &[]),
        Command::Completions { .. } => ("completions", &[]),
        Command::Man => ("man", &[]),
    };
    let limits = cli.limits;
    let (option, _) = [
        ("--prompt", cli.prompt.is_some()),
        ("--mode", cli.mode.is_some()),
        ("--agent", cli.agent.is_some()),
        ("--max-mode", cli.max_mode.is_some()),
        ("--no-exit", cli.no_exit),
        ("--model", cli.model.is_some()),
        ("--continue", cli.resume_latest),
        ("--resume", cli.resume.is_some()),
        ("--cwd", cli.cwd.is_some()),
        ("--output", cli.output.is_some()),
        ("--from-plan", cli.from_plan.is_some()),
        ("--max-steps", limits.max_steps.is_some()),
        ("--max-tokens", limits.max_tokens.is_some()),
        ("--timeout", limits.timeout.is_some()),
        ("--store", cli.store.is_some()),
        ("--record", cli.record.is_some()),
        ("--lockstep", cli.lockstep),
        ("--deterministic", cli.deterministic),
        ("--eof-grace", cli.eof_grace.is_some()),
    ]
    .into_iter()
    .find(|(option, is_given)| *is_given && !used.contains(option))?;
    let valid = if used.is_empty() {
        "options go behind its name".to_owned()
    } else {
        format!("before its name it takes {}", used.join(", "))
    };
    Some(format!("{name} does not take {option}; {valid}, and `modegate {name} --help` lists the others"))
}
