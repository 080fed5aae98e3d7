//! The command line: clap's types and one thin function per way of running.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::config::{Config, Flags};
use crate::headless::{self, Outcome};
use crate::transport::Transport;
use crate::{client, rpc};

/// An ACP coding agent whose modes hold.
///
/// Without -p it speaks the Agent Client Protocol over stdin and stdout: that is how editors start it. With -p it runs
/// one prompt in the current directory and prints the answer.
#[derive(Debug, Parser)]
#[command(name = "modegate", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// Run this one prompt and exit
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// The mode of new sessions: ask, plan or code [default: ask]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// Who answers: offline or scripted:FILE [default: offline]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Where sessions are recorded: a file, or memory [default: in the user's data folder]
    #[arg(long, value_name = "PATH")]
    pub store: Option<String>,
    /// Seconds that turns may go on after the end of the input [default: 1]
    #[arg(long, value_name = "SECONDS")]
    pub eof_grace: Option<f64>,
}

const EXIT_CODES: &str = "Exit codes with -p: 0 done, 1 error, 2 usage, 3 denied or no plan, 130 interrupted";

const ON_A_TERMINAL: &str =
    "modegate speaks the Agent Client Protocol with an editor; there is nothing to type here.

In an editor   set its agent command to: modegate
Headless       modegate --mode plan -p \"where is the retry logic?\"
More           modegate --help
";

/// The process's streams, handed in so that nothing else names them.
pub struct Streams<I, O, E> {
    /// Where requests come from.
    pub input: I,
    /// Whether a person sits at the input.
    pub input_is_terminal: bool,
    /// Where answers go.
    pub output: O,
    /// Where progress and errors go.
    pub errors: E,
}

/// Runs what was asked for. `stop` ends it at once.
pub async fn run<I, O, E>(
    cli: Cli,
    mut streams: Streams<I, O, E>,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode>
where
    I: Read + Send + 'static,
    O: Write + Send + 'static,
    E: Write,
{
    let Cli { prompt, mode, model, store, eof_grace } = cli;
    let config = match Config::new(&Flags { mode, model, store, eof_grace }) {
        Ok(config) => config,
        Err(error) => {
            writeln!(streams.errors, "modegate: {error:#}")?;
            return Ok(ExitCode::from(2));
        }
    };
    match prompt {
        Some(prompt) => run_headless(prompt, config, streams, stop).await,
        None if streams.input_is_terminal => {
            streams.errors.write_all(ON_A_TERMINAL.as_bytes())?;
            Ok(ExitCode::from(2))
        }
        None => serve(config, streams, stop).await,
    }
}

async fn serve<I, O, E>(
    config: Config,
    streams: Streams<I, O, E>,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode>
where
    I: Read + Send + 'static,
    O: Write + Send + 'static,
{
    let (client, end) = client::channel();
    let transport = Transport::start(streams.input, streams.output).context("starting the transport")?;
    let (mode, grace) = (config.mode.clone(), config.eof_grace);
    let shared = config.into_shared().context("starting the record")?;
    let agent = Arc::new(Agent::new(shared, client.clone(), mode));
    rpc::serve(transport, agent, (client, end), grace, stop).await;
    Ok(ExitCode::SUCCESS)
}

async fn run_headless<I, O: Write, E: Write>(
    prompt: String,
    config: Config,
    mut streams: Streams<I, O, E>,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    let (client, end) = client::channel();
    let (cwd, mode) = (config.cwd.clone(), config.mode.clone());
    let shared = config.into_shared().context("starting the record")?;
    let agent = Agent::new(shared, client, mode);
    let outcome =
        headless::run(&agent, end, &cwd, prompt, &mut streams.output, &mut streams.errors, stop).await?;
    Ok(ExitCode::from(match outcome {
        Outcome::Done => 0,
        Outcome::Failed => 1,
        Outcome::Denied => 3,
        Outcome::Interrupted => 130,
    }))
}
