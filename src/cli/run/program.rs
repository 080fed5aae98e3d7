//! A terminal program under a mode, on Linux.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::super::mode::remote::sockets;
use super::super::{usage_error, wrap};
use super::{FAILED, RunArguments};
use crate::agent::Agent;
use crate::client;
use crate::config::environment::{Environment, variable};
use crate::config::{Config, Flags, Runtime, doctor_checks};
use crate::process::Exit;
use crate::terminal_run::{self, FinishedRun, TerminalJob};

pub(in crate::cli) async fn run(
    arguments: RunArguments,
    mut flags: Flags,
    environment: Environment,
    mut errors: impl Write,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    let RunArguments { mode, state_dir, allow_host, allow_socket, command } = arguments;
    let command_line = command.join(" ");
    let wrapped = wrap::WrapArguments::of_program(mode, state_dir, allow_host, allow_socket, command);
    if let Err(error) = wrapped.put(&mut flags, &environment, variable) {
        return usage_error(&mut errors, &error.replace("wrap", "run"));
    }
    if let Some((_, definition)) = &mut flags.wrapped {
        definition.is_terminal_program = true;
    }
    match doctor_checks::check_broker(&environment).await {
        Ok(Ok(())) => {}
        Ok(Err(reason)) => {
            writeln!(errors, "modegate: the program's network stays open in every mode: {reason}")?;
        }
        Err(reason) => {
            writeln!(errors, "modegate: the program cannot be limited to a mode here: {reason}")?;
            return Ok(ExitCode::from(FAILED));
        }
    }
    let sockets = sockets(&environment)?;
    let config = match Config::new(&flags, environment) {
        Ok(config) => config,
        Err(error) => return usage_error(&mut errors, &format!("{error:#}")),
    };
    let program = flags.wrapped.map_or_else(String::new, |(id, _)| id);
    let (client, end) = client::channel();
    let (cwd, first) = (config.cwd.clone(), config.first.clone());
    let Runtime { context, host, .. } = config.into_runtime().context("starting the record")?;
    let agent = Agent::new(context, host, client, first);
    let job = TerminalJob { cwd: &cwd, program, command_line, sockets: &sockets };
    let FinishedRun { ended, is_unrecorded } =
        match terminal_run::run(&agent, end, job, &mut errors, stop).await {
            Ok(finished) => finished,
            Err(error) => {
                writeln!(errors, "modegate: {error:#}")?;
                return Ok(ExitCode::from(FAILED));
            }
        };
    match ended {
        // The program has done its work, but its changes cannot all be undone.
        Ok(Exit::Status(0)) if is_unrecorded => Ok(ExitCode::from(FAILED)),
        Ok(Exit::Status(status)) => Ok(ExitCode::from(u8::try_from(status).unwrap_or(1))),
        Ok(Exit::Signal(signal)) => {
            Ok(ExitCode::from(u8::try_from(signal).map_or(1, |signal| signal.saturating_add(128))))
        }
        Err(reason) => {
            writeln!(errors, "modegate: {reason}")?;
            Ok(ExitCode::from(FAILED))
        }
    }
}
