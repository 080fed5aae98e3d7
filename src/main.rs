//! The binary: arguments, log, command line, exit code. Only this file names stdin and stdout.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use modegate::cli::{self, Cli, CliStart, CliStreams, InputKind, UsageError};
use modegate::config::environment::{self, Environment};
use modegate::headless::ProgressTerminal;
use modegate::platform::{self, AsDescriptor, files};
use modegate::process;
use modegate::telemetry::{self, LevelFilter};
use tokio_util::sync::CancellationToken;

/// musl's allocator has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Standard output. Its errors name it, because the system's message alone does not.
struct Stdout(io::Stdout);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(of_output)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(of_output)
    }
}

#[cfg(unix)]
impl AsDescriptor for Stdout {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(windows)]
impl AsDescriptor for Stdout {
    fn as_handle(&self) -> std::os::windows::io::BorrowedHandle<'_> {
        self.0.as_handle()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn of_output(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("writing to stdout: {error}"))
}

fn main() -> ExitCode {
    // First, because a process that forks must have one thread.
    let arguments = environment::arguments();
    if let Some(code) = process::begin(arguments.get(1).cloned(), &io::stdin(), &io::stdout()) {
        return code;
    }
    let mut cli = match Cli::begin(arguments, &io::stdin(), &io::stdout()) {
        CliStart::Continue(cli) => *cli,
        CliStart::Ended(code) => return code,
    };
    // Removes the keys from the environment, which is safe only with one thread.
    let environment = Environment::take();
    // A client may keep a log; other users read the messages of the command itself.
    let default_level = if cli.may_serve() { LevelFilter::WARN } else { LevelFilter::ERROR };
    let _log = telemetry::start(environment.log_level.as_deref(), default_level);
    if io::stderr().is_terminal() {
        let (has_no_color, is_capable) = (environment.has_no_color, environment.has_capable_terminal);
        cli.show_progress_on(ProgressTerminal {
            width: || platform::terminal_width(&io::stderr()),
            is_capable,
            shows_answer: io::stdout().is_terminal(),
            has_colors: is_capable && !has_no_color,
        });
    }
    let streams = CliStreams {
        input: io::stdin(),
        input_kind: input_kind(),
        output: Stdout(io::stdout()),
        errors: io::stderr(),
    };
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let outcome = runtime.block_on(async {
                let stop = CancellationToken::new();
                tokio::spawn(stop_on_signal(stop.clone(), cli.shares_terminal()));
                Box::pin(cli::run(cli, environment, streams, stop)).await
            });
            // Do not wait for threads that a slow disk blocks.
            runtime.shutdown_background();
            outcome
        });
    outcome.unwrap_or_else(|error| {
        if error.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe) {
            // The reader of stdout has closed the pipe.
            return ExitCode::FAILURE;
        }
        let _ = cli::write_error(format_args!("{error:#}"));
        if error.is::<UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
    })
}

fn input_kind() -> InputKind {
    let input = io::stdin();
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
