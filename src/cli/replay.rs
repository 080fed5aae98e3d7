//! Implements `modegate replay`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::Cli;
use crate::config;
use crate::config::environment::Environment;
use crate::platform::files::real_path;
use crate::transcript::launch_options::LaunchOptions;
use crate::transcript::replay::{Outcome, Replay};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Transcript (NAME.in.jsonl or a recording), or a directory of transcripts
    path: PathBuf,
    /// Save the actual output as the expected output
    #[arg(long)]
    update: bool,
    /// Directory whose copy is the working directory of a recording [default: an empty one]
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Model: offline, scripted:FILE or PROVIDER/NAME [default: offline, or the transcript's own script]
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
}

fn useless_option(cli: &Cli) -> Option<&'static str> {
    [
        ("--prompt", cli.prompt.is_some()),
        ("--continue", cli.resume_latest),
        ("--resume", cli.resume.is_some()),
        ("--cwd", cli.cwd.is_some()),
        ("--output", cli.output.is_some()),
        ("--store", cli.store.is_some()),
        ("--record", cli.record.is_some()),
        ("--lockstep", cli.lockstep),
        ("--deterministic", cli.deterministic),
        ("--eof-grace", cli.eof_grace.is_some()),
    ]
    .into_iter()
    .find_map(|(option, is_given)| is_given.then_some(option))
}

pub(super) fn run(
    cli: Cli,
    arguments: Arguments,
    environment: &Environment,
    mut output: impl Write,
    mut errors: impl Write,
) -> anyhow::Result<ExitCode> {
    if let Some(option) = useless_option(&cli) {
        let valid = "--mode, --max-mode, --agent, --no-exit and --model";
        writeln!(errors, "modegate: replay does not take {option}; it takes {valid}")?;
        return Ok(ExitCode::from(2));
    }
    let Arguments { path, update, files, model } = arguments;
    let mut options = LaunchOptions {
        mode: cli.mode,
        max_mode: cli.max_mode,
        agent: cli.agent,
        no_exit: cli.no_exit,
        model: model.or(cli.model),
        ..LaunchOptions::default()
    };
    let (binary, scratch) = config::replay_places()?;
    // Errors within a transcript are part of it, so they are logged only on request.
    let log = environment.log_level.is_none().then(|| ("MODEGATE_LOG".to_owned(), "error".into()));
    let mut variables: Vec<_> = log.into_iter().collect();
    if let Some(model) = &mut options.model {
        if let Some(file) = model.strip_prefix("scripted:") {
            let file = real_path(file).with_context(|| format!("--model {model}"))?;
            *model = format!("scripted:{}", file.display());
        } else if model != "offline" {
            variables.extend(config::provider_variables(environment));
        }
    }
    let replay = Replay { binary, scratch, update, files, options, environment: variables };
    let outcome = replay.run(&path, &mut output).with_context(|| format!("replaying {}", path.display()))?;
    let Outcome { diverged, unchecked, .. } = outcome;
    Ok(match (diverged, unchecked) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(3),
        _ => ExitCode::FAILURE,
    })
}
