//! Implements `modegate mode`, which changes the mode of a program of `modegate run` from another terminal, and
//! answers its questions.

use clap::Args;
pub(super) use remote::run;

#[cfg(target_os = "linux")]
pub(super) mod remote;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Session of the program: its id, or the last characters [default: the only one]
    session: Option<String>,
    /// The new mode [default: stay, show the mode, and answer questions]
    mode: Option<String>,
}

#[cfg(not(target_os = "linux"))]
mod remote {
    use std::io::{Read, Write};
    use std::process::ExitCode;

    use super::Arguments;
    use crate::config::environment::Environment;

    pub(in crate::cli) async fn run(
        _: Arguments,
        _: &Environment,
        _: impl Read + Send + 'static,
        _: impl Write,
    ) -> anyhow::Result<ExitCode> {
        anyhow::bail!("`modegate run` needs the sandbox of Linux")
    }
}
