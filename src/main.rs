//! The binary: arguments, log, command line, exit code. Only this file names stdin and stdout.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use modegate::cli::{self, Cli, InputKind, Streams, UsageError};
use modegate::config::environment::{self, Environment};
use modegate::telemetry;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    // First, because a process that forks must have one thread.
    #[cfg(target_os = "linux")]
    if environment::is_fork_server() {
        return fork_supervisors();
    }
    // Removes the keys from the environment, which is safe only with one thread.
    let environment = Environment::take();
    #[cfg(target_os = "linux")]
    modegate::process::orphans::adopt();
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

/// Starts supervisors for the Modegate process at the other end of stdin.
#[cfg(target_os = "linux")]
fn fork_supervisors() -> ExitCode {
    use std::os::fd::AsFd;
    match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(requests) => modegate::process::fork_server::run(requests),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "modegate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn input_kind() -> InputKind {
    if std::io::stdin().is_terminal() {
        return InputKind::Terminal;
    }
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        let file = std::io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from);
        if file.and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.is_file()) {
            return InputKind::File;
        }
    }
    InputKind::Other
}

async fn stop_on_signal(stop: CancellationToken, shares_terminal: bool) {
    #[cfg(unix)]
    let ended = async {
        use tokio::signal::unix::{SignalKind, signal};
        if shares_terminal {
            // The program with the terminal decides about the keys that interrupt and quit.
            let ignored = (signal(SignalKind::interrupt()), signal(SignalKind::quit()));
            let ends = (signal(SignalKind::terminate()), signal(SignalKind::hangup()));
            let (Ok(mut terminate), Ok(mut hang_up)) = ends else { return std::future::pending().await };
            tokio::select! {
                _ = terminate.recv() => {}
                _ = hang_up.recv() => {}
            }
            return drop(ignored);
        }
        let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
        tokio::select! {
            _ = terminate.recv() => {}
            interrupted = tokio::signal::ctrl_c() => if interrupted.is_err() {
                std::future::pending::<()>().await;
            },
        }
    };
    #[cfg(not(unix))]
    let ended = async {
        if shares_terminal || tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    ended.await;
    stop.cancel();
}
