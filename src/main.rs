//! The binary: arguments, log, command line, exit code. Only this file names stdin and stdout.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use modegate::cli::{self, Cli, InputKind, Streams, UsageError};
use modegate::config::environment::{self, Environment};
use modegate::platform::{self, files};
use modegate::{process, telemetry};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    // First, because a process that forks must have one thread.
    if let Some(code) = process::begin(environment::first_argument(), &std::io::stdin()) {
        return code;
    }
    // Removes the keys from the environment, which is safe only with one thread.
    let environment = Environment::take();
    let cli = Cli::from_arguments();
    let _log = telemetry::start(environment.log_level.as_deref());
    let streams = Streams {
        input: std::io::stdin(),
        input_kind: input_kind(),
        output: std::io::stdout(),
        errors: std::io::stderr(),
    };
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let outcome = runtime.block_on(async {
                let stop = CancellationToken::new();
                tokio::spawn(stop_on_signal(stop.clone(), cli.shares_terminal()));
                cli::run(cli, environment, streams, stop).await
            });
            // Do not wait for threads that a slow disk blocks.
            runtime.shutdown_background();
            outcome
        });
    outcome.unwrap_or_else(|error| {
        let is_pipe = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
        if error.downcast_ref::<std::io::Error>().is_some_and(is_pipe) {
            // The reader of stdout has closed the pipe.
            return ExitCode::FAILURE;
        }
        let _ = writeln!(std::io::stderr(), "modegate: {error:#}");
        if error.is::<UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
    })
}

fn input_kind() -> InputKind {
    let input = std::io::stdin();
    if input.is_terminal() {
        InputKind::Terminal
    } else if files::is_file(&input) {
        InputKind::File
    } else {
        InputKind::Other
    }
}

async fn stop_on_signal(stop: CancellationToken, shares_terminal: bool) {
    platform::stop_requested(shares_terminal).await;
    stop.cancel();
}
