//! Implements `modegate mode`, which changes the mode of a program of `modegate run` from another terminal, and
//! answers its questions.

use std::io::{Read, Write};
use std::process::ExitCode;

use clap::Args;
use tokio_util::sync::CancellationToken;

use crate::config::environment::Environment;

#[cfg(target_os = "linux")]
pub(super) mod remote;

#[derive(Debug, Args)]
pub(super) struct ModeArguments {
    /// Session of the program: its id, or the last characters [default: the only one]
    session: Option<String>,
    /// The new mode, also without a session if one program runs [default: stay, show the mode, and answer questions]
    mode: Option<String>,
    /// Print the running programs, or the program after the change of its mode, as JSON, one per line
    #[arg(long)]
    json: bool,
}

#[cfg(not(target_os = "linux"))]
mod remote {
    use super::{Environment, ExitCode, ModeArguments, Read, Write};

    pub(super) async fn run(
        _: ModeArguments,
        _: &Environment,
        _: impl Read + Send + 'static,
        _: impl Write,
    ) -> anyhow::Result<ExitCode> {
        anyhow::bail!("`modegate run` needs the sandbox of Linux")
    }
}

pub(super) async fn run(
    arguments: ModeArguments,
    environment: &Environment,
    input: impl Read + Send + 'static,
    output: impl Write,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    let done = stop.run_until_cancelled(remote::run(arguments, environment, input, output)).await;
    done.unwrap_or(Ok(ExitCode::from(130)))
}
