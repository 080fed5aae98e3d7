//! A terminal program under a mode, on Linux.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::super::mode::remote::sockets;
use super::super::{usage_error, wrap};
use super::{FAILED, Hosting, ProgramRun, QuestionOption, RunArguments};
use crate::agent::Agent;
use crate::client;
use crate::config::environment::{self, Environment, variable};
use crate::config::user_file::{self, QuestionNotice};
use crate::config::{Config, Runtime, doctor_checks};
use crate::managed_policy::BY_POLICY;
use crate::process::{Exit, TerminalAccess, terminal};
use crate::terminal_host::keys::PanelKey;
use crate::terminal_host::{QuestionSignal, TerminalHost, TerminalSettings};
use crate::terminal_run::host_connection::HostConnection;
use crate::terminal_run::{self, FinishedRun, RunLines, TerminalJob};

/// The connection to the process that has the user's terminal.
pub(in crate::cli) type HostDescriptor = OwnedFd;

/// Takes the connection of a hosted process, which then has a terminal of its own. `None` in any other process.
pub(in crate::cli) fn take_host(
    arguments: &mut Vec<OsString>,
    input: &io::Stdin,
    output: &io::Stdout,
) -> Result<Option<HostDescriptor>, ExitCode> {
    if arguments.get(1).is_none_or(|argument| argument != terminal::HOSTED_ARGUMENT) {
        return Ok(None);
    }
    arguments.remove(1);
    terminal::become_hosted(input, output).map(Some).map_err(|error| failed(&error))
}

/// Hosts the program in a terminal of its own, if the system has such terminals.
pub(in crate::cli) fn host(
    arguments: &[OsString],
    run: &RunArguments,
    input: &io::Stdin,
    output: &io::Stdout,
) -> Hosting {
    let settings = match terminal_settings(run, environment::config_folder().as_deref()) {
        Ok(settings) => settings,
        Err(error) => {
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "modegate: {error}");
            return Hosting::Ended(ExitCode::from(2));
        }
    };
    let Ok(host) = TerminalHost::start(arguments, settings, input, output) else { return Hosting::Here };
    // Removes the keys from the environment, which the hosted process has.
    drop(Environment::take());
    Hosting::Ended(host.run().unwrap_or_else(|error| failed(&error)))
}

/// The options, or else the settings of the user.
fn terminal_settings(run: &RunArguments, config_folder: Option<&Path>) -> Result<TerminalSettings, String> {
    // The hosted process reports a file that cannot be used.
    let file = user_file::read(config_folder).ok().and_then(|file| file.run).unwrap_or_default();
    let key = match (&run.key, file.key.as_deref()) {
        _ if run.no_key => None,
        (None, Some("none")) => None,
        (Some(key), _) => Some(key.parse().map_err(|error| format!("--key: {error}"))?),
        (None, Some(key)) => Some(key.parse().map_err(|error| format!("run.key in config.yaml: {error}"))?),
        (None, None) => Some(PanelKey::default()),
    };
    let of_option = run.questions.map(|option| match option {
        QuestionOption::Panel => QuestionNotice::Panel,
        QuestionOption::Bell => QuestionNotice::Bell,
    });
    let questions = match of_option.or(file.questions) {
        None | Some(QuestionNotice::Panel) => QuestionSignal::Panel,
        Some(QuestionNotice::Bell) => QuestionSignal::Bell,
    };
    let has_title = !run.no_title && file.title.unwrap_or(true);
    // GNU screen has no alternate screen by default, and the console of Linux none at all.
    let keeps_main_screen = variable("STY").is_none() && variable("TERM").as_deref() != Some("linux");
    Ok(TerminalSettings { key, questions, is_quiet: run.quiet, has_title, keeps_main_screen })
}

fn failed(error: &io::Error) -> ExitCode {
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "modegate: the program's terminal: {error}");
    ExitCode::from(FAILED)
}

pub(in crate::cli) async fn run(
    program: ProgramRun,
    host: Option<HostDescriptor>,
    errors: impl Write,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    let Some(host) = host else {
        return run_program(program, None, errors, stop).await;
    };
    let host = HostConnection::open(host)?;
    let done = run_program(program, Some(&host), host.messages(), stop).await;
    let done = done.or_else(|error| {
        writeln!(host.messages(), "modegate: {error:#}")?;
        anyhow::Ok(ExitCode::from(FAILED))
    });
    host.close();
    done
}

async fn run_program(
    ProgramRun { arguments, mut flags, environment }: ProgramRun,
    connection: Option<&HostConnection>,
    mut errors: impl Write,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    let settings = match terminal_settings(&arguments, environment.config_folder.as_deref()) {
        Ok(settings) => settings,
        Err(error) => return usage_error(&mut errors, &error),
    };
    let RunArguments { mode, max_mode, limits, command, .. } = arguments;
    let lines = RunLines {
        is_quiet: settings.is_quiet,
        host_starts: connection.is_some() && settings.key.is_some(),
        host_asks: connection.is_some() && settings.questions == QuestionSignal::Panel,
    };
    let command_line = command.join(" ");
    let wrapped = wrap::WrapArguments::of_program(wrap::ProgramModes { mode, max_mode }, limits, command);
    if let Err(error) = wrapped.put(&mut flags, &environment, variable) {
        return usage_error(&mut errors, &error.replace("wrap", "run"));
    }
    if let Err(error) = wrap::check_policy(&mut flags, &environment) {
        return usage_error(&mut errors, &error);
    }
    let has_host_limit =
        flags.wrapped.as_ref().is_some_and(|(_, definition)| definition.host_limit.is_some());
    if let Some((_, definition)) = &mut flags.wrapped {
        let access = if connection.is_some() { TerminalAccess::Foreground } else { TerminalAccess::Shared };
        definition.terminal_program = Some(access);
        definition.hides_sandbox = lines.is_quiet;
    }
    match doctor_checks::check_broker(&environment).await {
        Ok(Ok(())) => {}
        Ok(Err(reason)) if has_host_limit => {
            writeln!(
                errors,
                "modegate: the program was not started: its network is limited {BY_POLICY}, and {reason}"
            )?;
            return Ok(ExitCode::from(FAILED));
        }
        Ok(Err(reason)) => {
            writeln!(errors, "modegate: the program's network stays open in every mode: {reason}")?;
        }
        Err(_) if terminal_run::is_nested() => {
            writeln!(
                errors,
                "modegate: the program cannot have a mode of its own: it runs in Modegate already, under that mode"
            )?;
            return Ok(ExitCode::from(FAILED));
        }
        Err(reason) => {
            writeln!(errors, "modegate: the program cannot be limited to a mode here: {reason}")?;
            return Ok(ExitCode::from(FAILED));
        }
    }
    let sockets = sockets(&environment)?;
    let config = match Config::new(&flags, environment) {
        Ok(config) => config.without_editor(),
        Err(error) => return usage_error(&mut errors, &format!("{error:#}")),
    };
    let program = flags.wrapped.map_or_else(String::new, |(id, _)| id);
    let (client, end) = client::channel();
    let (cwd, first) = (config.cwd.clone(), config.first.clone());
    let Runtime { context, host, telemetry, .. } = config.into_runtime().context("starting the record")?;
    let agent = Agent::new(context, host, client, first);
    let job = TerminalJob { cwd: &cwd, program, command_line, sockets: &sockets, host: connection, lines };
    let FinishedRun { ended, is_unrecorded } =
        match terminal_run::run(&agent, end, job, &mut errors, stop).await {
            Ok(finished) => finished,
            Err(error) => {
                writeln!(errors, "modegate: {error:#}")?;
                return Ok(ExitCode::from(FAILED));
            }
        };
    if let Some(telemetry) = telemetry
        && let Some(lost) = telemetry.finish().await
    {
        writeln!(errors, "modegate: {lost}")?;
    }
    match ended {
        // The program has done its work, but its changes cannot all be undone.
        Ok(Exit::Status(0)) if is_unrecorded => Ok(ExitCode::from(FAILED)),
        Ok(Exit::Status(status)) => Ok(ExitCode::from(u8::try_from(status).unwrap_or(1))),
        Ok(Exit::Signal(signal)) => {
            Ok(ExitCode::from(u8::try_from(signal).map_or(1, |signal| signal.saturating_add(128))))
        }
        Err(failure) => {
            writeln!(errors, "modegate: {}", failure.reason)?;
            Ok(ExitCode::from(failure.code.unwrap_or(FAILED)))
        }
    }
}
