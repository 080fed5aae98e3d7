//! The command's process, from the fork until the command is executed in its sandbox.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{self, Pid, Signal};

use super::protocol::{ProcessFailure, SpawnRequest, TerminalAccess};
use super::startup::StartupReport;
use crate::kernel;
use crate::sandbox::{self, Confinement, TEMPORARY_VARIABLES};

/// Variable with options of the C library's resolver.
const RESOLVER_OPTIONS: &str = "RES_OPTIONS";

/// Exit codes of shells.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

/// Executes the command in the sandbox. On failure reports the reason.
pub(super) fn become_command(
    request: &SpawnRequest,
    input: Option<OwnedFd>,
    startup: &StartupReport,
    supervisor: Pid,
) -> ! {
    // Opened first: in the sandbox, the supervisor may have to open it, which waits for this process.
    let terminal = input.as_ref().filter(|_| request.terminal == TerminalAccess::Foreground);
    let terminal = terminal.map(OwnedFd::try_clone).transpose();
    let opened = input.map_or_else(|| File::open("/dev/null").map(Stdio::from), |input| Ok(input.into()));
    let prepared = prepare(request, supervisor).and_then(|listener| {
        if let Some(listener) = listener {
            startup.send_listener(&listener).map_err(|error| unprepared(&error))?;
        }
        Ok((opened.map_err(|error| unprepared(&error))?, terminal.map_err(|error| unprepared(&error))?))
    });
    let (input, terminal) =
        prepared.unwrap_or_else(|reason| startup.give_up(&ProcessFailure { reason, status: None }));
    // The end of the supervisor ends this process.
    if request.waits && !startup.wait_for_release() {
        std::process::exit(127);
    }
    // As late as possible: no report tells that the user has stopped the process before the command is executed.
    if let Some(terminal) = terminal
        && let Err(error) = kernel::set_foreground(&terminal, process::getpgrp())
    {
        startup.give_up(&ProcessFailure { reason: unprepared(&error), status: None });
    }
    let error = command_line(request, input).exec();
    startup.give_up(&failure(&request.program, &error))
}

fn unprepared(error: &io::Error) -> String {
    format!("the command's process cannot be prepared: {error}")
}

/// Returns the descriptor for the calls that the sandbox suspends.
fn prepare(request: &SpawnRequest, supervisor: Pid) -> Result<Option<OwnedFd>, String> {
    separate(request, supervisor).map_err(|error| unprepared(&error))?;
    if request.confinement != Confinement::Off {
        // With 1 instead of 0 the kernel does not start a core dump handler either. A lower limit stays:
        // raising it takes privileges.
        let maximum = process::getrlimit(process::Resource::Core).maximum;
        let limit = Some(maximum.map_or(1, |maximum| maximum.min(1)));
        let limit = process::Rlimit { current: limit, maximum: limit };
        process::setrlimit(process::Resource::Core, limit)
            .map_err(|error| format!("core dumps cannot be switched off: {error}"))?;
    }
    sandbox::confine(&request.confinement, request.own_folder.as_deref())
}

/// Leaves Modegate's session or process group, and keeps none of its descriptors.
fn separate(request: &SpawnRequest, supervisor: Pid) -> io::Result<()> {
    match request.terminal {
        TerminalAccess::None => drop(process::setsid()?),
        TerminalAccess::Shared => {}
        TerminalAccess::Foreground => process::setpgid(None, None)?,
    }
    process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have been killed before.
    if process::getppid() != Some(supervisor) {
        return Err(io::Error::other("its supervisor was killed"));
    }
    kernel::unblock_signals()?;
    // Tolerated only if there is no sandbox.
    kernel::close_the_rest_on_exec()
        .or_else(|error| if request.confinement == Confinement::Off { Ok(()) } else { Err(error) })
}

fn command_line(request: &SpawnRequest, input: Stdio) -> Command {
    let mut command = Command::new(&request.program);
    command.args(&request.arguments).stdin(input);
    if let Some(environment) = &request.environment {
        command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
    }
    command.envs(request.settings.iter().map(|(name, value)| (name, value)));
    command.envs(request.own.iter().map(|(name, value)| (name, value)));
    if let Some(options) = resolver_options(request, &command) {
        command.env(RESOLVER_OPTIONS, options);
    }
    if let Some(folder) = &request.own_folder {
        command.envs(TEMPORARY_VARIABLES.map(|name| (name, folder)));
    }
    command
}

/// Programs must ask for names over TCP, which the broker answers. `None` if their network is not limited.
fn resolver_options(request: &SpawnRequest, command: &Command) -> Option<OsString> {
    let Confinement::Brokered { broker, .. } = &request.confinement else { return None };
    broker.hosts.as_ref()?;
    let requested =
        command.get_envs().find(|(name, _)| *name == RESOLVER_OPTIONS).and_then(|(_, value)| value);
    let inherited = || env::var_os(RESOLVER_OPTIONS).filter(|_| request.environment.is_none());
    let mut options = requested.map(OsString::from).or_else(inherited).unwrap_or_default();
    options.push(" use-vc");
    Some(options)
}

fn failure(program: &str, error: &io::Error) -> ProcessFailure {
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let is_line = is_missing && program.contains(char::is_whitespace);
    let hint = if is_line { "; a command is the program alone, and `args` lists its arguments" } else { "" };
    let reason = if is_missing && !program.contains('/') {
        "it was not found on PATH".to_owned()
    } else {
        error.to_string()
    };
    let status = if is_missing { NOT_FOUND } else { NOT_EXECUTABLE };
    ProcessFailure { reason: format!("{program} cannot be run: {reason}{hint}"), status: Some(status) }
}
