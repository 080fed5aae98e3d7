//! Implements `modegate replay`.

use std::io::{BufReader, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{Cli, CliStreams, InputKind, usage_error};
use crate::config;
use crate::config::environment::Environment;
use crate::platform::AsDescriptor;
use crate::platform::files::real_path;
use crate::transcript::launch_options::LaunchOptions;
use crate::transcript::player::{AgentPlayer, PlayerOutput};
use crate::transcript::replay::{self, ReplayOutcome, TranscriptReplay};
use crate::transport::{Line, Transport};

#[derive(Debug, Args)]
pub(super) struct ReplayArguments {
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
    /// Play the agent's side of a recording to the client on stdin and stdout
    #[arg(long, conflicts_with_all = ["update", "files", "model"])]
    as_agent: bool,
    /// Keep the recorded times between messages [with --as-agent]
    #[arg(long, requires = "as_agent")]
    timing: bool,
}

pub(super) async fn run<I, O, E>(
    cli: Cli,
    arguments: ReplayArguments,
    environment: &Environment,
    streams: CliStreams<I, O, E>,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode>
where
    I: Read + AsDescriptor + Send + 'static,
    O: Write + AsDescriptor + Send + 'static,
    E: Write,
{
    if arguments.as_agent {
        return play_agent(&cli, &arguments, streams, stop).await;
    }
    let CliStreams { mut output, .. } = streams;
    let ReplayArguments { path, update, files, model, .. } = arguments;
    let mut options = LaunchOptions {
        mode: cli.mode,
        max_mode: cli.max_mode,
        agent: cli.agent,
        no_exit: cli.no_exit,
        accept_all: cli.accept_all,
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
    let replay = TranscriptReplay { binary, scratch, update, files, options, environment: variables };
    let outcome = replay.run(&path, &mut output);
    if outcome.is_err() {
        // Exists only if a replay has begun.
        let _ = std::fs::remove_dir_all(&replay.scratch);
    }
    let ReplayOutcome { diverged, unchecked, .. } =
        outcome.with_context(|| format!("replaying {}", path.display()))?;
    Ok(match (diverged, unchecked) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(3),
        _ => ExitCode::FAILURE,
    })
}

async fn play_agent<I, O, E>(
    cli: &Cli,
    arguments: &ReplayArguments,
    streams: CliStreams<I, O, E>,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode>
where
    I: Read + AsDescriptor + Send + 'static,
    O: Write + AsDescriptor + Send + 'static,
    E: Write,
{
    let CliStreams { input, input_kind, output, mut errors } = streams;
    let launch_option = [
        ("--mode", cli.mode.is_some()),
        ("--max-mode", cli.max_mode.is_some()),
        ("--agent", cli.agent.is_some()),
        ("--model", cli.model.is_some()),
        ("--no-exit", cli.no_exit),
        ("--accept-all", cli.accept_all),
    ];
    if let Some((option, _)) = launch_option.into_iter().find(|(_, is_given)| *is_given) {
        return usage_error(&mut errors, &format!("--as-agent does not take {option}; it takes --timing"));
    }
    if input_kind == InputKind::Terminal {
        return usage_error(
            &mut errors,
            "--as-agent speaks the Agent Client Protocol with a client, not a terminal",
        );
    }
    let path = arguments.path.display();
    let text = replay::text_of(&arguments.path)?;
    let mut player = AgentPlayer::new(&text).map_err(|error| anyhow!("{path}: {error}"))?;
    let Transport { mut incoming, outgoing, flushed } =
        Transport::start(BufReader::new(input), output).context("starting the transport")?;
    let mut outputs = player.start();
    'lines: loop {
        for output in outputs {
            match output {
                PlayerOutput::Note(text) => writeln!(errors, "modegate: {path}: {text}")?,
                PlayerOutput::Line { text, pause } => {
                    if arguments.timing {
                        tokio::select! {
                            () = tokio::time::sleep(pause) => {}
                            () = stop.cancelled() => break 'lines,
                        }
                    }
                    if outgoing.send(text).await.is_err() {
                        break 'lines;
                    }
                }
            }
        }
        let line = tokio::select! {
            line = incoming.recv() => line,
            () = stop.cancelled() => None,
        };
        outputs = match line {
            Some(Line::Bytes(line)) => player.receive(&String::from_utf8_lossy(&line)),
            Some(Line::TooLong) => player.receive(""),
            None => break,
        };
    }
    drop(outgoing);
    let _ = flushed.await;
    let Some(awaited) = player.awaited() else { return Ok(ExitCode::SUCCESS) };
    writeln!(errors, "modegate: {path}: the client ended before {awaited}")?;
    Ok(ExitCode::FAILURE)
}
