//! Processes on systems without a supervisor. A command is killed with its descendants, a [`Group`].
#![allow(clippy::unused_async, reason = "on Linux the same functions wait")]
#![cfg_attr(
    target_os = "linux",
    allow(dead_code, unreachable_pub, unused_imports, reason = "compiled on Linux for its tests only")
)]

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::process::{Child, ChildStderr, ChildStdout};

#[cfg(not(target_os = "linux"))]
use super::Processes;
use super::{ChildStdio, Command, Event, Exit, Streams, TerminalAccess, read};
use crate::platform::files;
#[cfg(not(target_os = "linux"))]
use crate::sandbox;
use crate::sandbox::host::HostPattern;
use crate::sandbox::{BrokerPolicy, TEMPORARY_VARIABLES};
use group::Group;

mod group;

const CHUNK: usize = 16 * 1024;

/// Time for the last output to arrive after the exit.
const OUTPUT_GRACE: Duration = Duration::from_millis(50);

pub use group::ENDING;

/// Nothing has to run first.
pub fn begin(_: Option<OsString>, _: &io::Stdin, _: &io::Stdout) -> Option<ExitCode> {
    None
}

/// Starts commands without a process of its own.
#[derive(Debug, Clone)]
pub(super) struct Launcher;

impl Launcher {
    pub(super) fn new(_: PathBuf) -> Self {
        Self
    }

    /// Standard error has its own pipe, so the order of merged output may differ.
    #[allow(clippy::unused_self, reason = "the launcher of Linux has state")]
    fn start(&self, command: Command, own_folder: Option<&Path>) -> io::Result<Process> {
        let own_folder = own_folder.map(OwnFolder::create).transpose()?;
        let folder = own_folder.as_ref().map(|folder| folder.0.as_path());
        let (program, arguments) = confined(&command, folder, program(&command)).map_err(io::Error::other)?;
        let mut start = tokio::process::Command::new(program);
        start.args(arguments).current_dir(&command.cwd).kill_on_drop(true);
        if let Some(environment) = command.environment {
            start.env_clear().envs(environment);
        }
        start.envs(command.settings.iter().copied());
        start.envs(command.own.iter().map(|(name, value)| (name, value.expose_secret())));
        if let Some(folder) = folder {
            start.envs(TEMPORARY_VARIABLES.map(|name| (name, folder)));
        }
        let input = if command.streams == Streams::Piped { Stdio::piped() } else { Stdio::null() };
        if command.streams != Streams::Own {
            start.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let (mut child, group) = Group::spawn(&mut start, command.terminal != TerminalAccess::None)?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        Ok(Process {
            child,
            group,
            output,
            errors,
            streams: command.streams,
            exited: false,
            over: false,
            _own_folder: own_folder,
        })
    }
}

/// A folder for one command. Removed when dropped.
#[derive(Debug)]
struct OwnFolder(PathBuf);

impl OwnFolder {
    fn create(path: &Path) -> io::Result<Self> {
        files::create_private_folder(path)?;
        files::real_path(path).map(Self)
    }
}

impl Drop for OwnFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, folder = %self.0.display(), "a command's folder could not be removed");
        }
    }
}

/// Dropping kills the command and its group.
#[derive(Debug)]
pub struct Process {
    child: Child,
    group: Group,
    output: Option<ChildStdout>,
    errors: Option<ChildStderr>,
    streams: Streams,
    exited: bool,
    over: bool,
    _own_folder: Option<OwnFolder>,
}

#[cfg(not(target_os = "linux"))]
impl Processes {
    pub async fn start(&self, command: Command) -> io::Result<Process> {
        let own_folder = self.own_folder(&command.confinement);
        self.launcher.start(command, own_folder.as_deref())
    }
}

impl Process {
    pub fn take_stdio(&mut self) -> Option<ChildStdio> {
        let (to, from) = (self.child.stdin.take()?, self.output.take()?);
        Some(ChildStdio { from: Box::new(from), to: Box::new(to) })
    }

    /// Returns `None` after [`Event::Gone`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        while !self.over && (!self.exited || self.output.is_some() || self.errors.is_some()) {
            let (mut output, mut errors) = (Vec::with_capacity(CHUNK), Vec::with_capacity(CHUNK));
            tokio::select! {
                read = read(&mut self.output, &mut output) => {
                    if read.unwrap_or(0) > 0 {
                        return Some(Event::Output(output));
                    }
                    self.output = None;
                }
                read = read(&mut self.errors, &mut errors) => {
                    if read.unwrap_or(0) > 0 {
                        return Some(match self.streams {
                            Streams::Merged => Event::Output(errors),
                            Streams::Apart | Streams::Piped | Streams::Own => Event::Error(errors),
                        });
                    }
                    self.errors = None;
                }
                status = self.child.wait(), if !self.exited => {
                    self.exited = true;
                    self.group.leader_exited();
                    return Some(Event::Exited(status.map_or(Exit::Signal(0), exit)));
                }
                // A descendant can keep the pipes open forever.
                () = tokio::time::sleep(OUTPUT_GRACE), if self.exited => break,
            }
        }
        if self.over {
            return None;
        }
        let confirmed = self.group.is_gone().await;
        self.over = true;
        Some(Event::Gone { left_behind: 0, confirmed })
    }

    pub async fn request_exit(&mut self) {
        self.group.request_exit();
    }

    pub async fn end(&mut self) {
        self.group.kill();
        if let Err(error) = self.child.start_kill() {
            tracing::debug!(%error, "a command had already ended");
        }
    }

    /// Nothing is brokered here, so the policy could not be enforced.
    pub async fn set_policy(&mut self, _: BrokerPolicy) {
        self.end().await;
    }

    /// There are no questions here.
    pub async fn answer(&mut self, _: u64, _: bool) {}

    /// No host is refused here.
    pub async fn allow_host(&mut self, _: HostPattern) {}

    /// Nothing waits here.
    pub async fn release(&mut self) {}

    /// Nothing is recorded here.
    pub async fn save_record(&mut self) {}

    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }
}

/// Returns the program's file. The standard library finds no scripts on Windows, such as `agent.cmd`.
fn program(command: &Command) -> PathBuf {
    let variable = |name: &str| match &command.environment {
        Some(all) => all.iter().find(|(it, _)| it.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone()),
        None => env::var_os(name),
    };
    let folders: Vec<PathBuf> =
        variable("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let endings = variable("PATHEXT").and_then(|endings| endings.into_string().ok());
    let found = files::find_program(&command.program, &command.cwd, folders, endings.as_deref());
    found.unwrap_or_else(|| command.program.clone().into())
}

/// In the sandbox of the command. The error is a sentence.
#[cfg(not(target_os = "linux"))]
fn confined(
    command: &Command,
    own_folder: Option<&Path>,
    program: PathBuf,
) -> Result<(PathBuf, Vec<OsString>), String> {
    sandbox::command(&command.confinement, own_folder, program, command.arguments.clone())
}

/// On Linux only the tests of this module start commands here, without a sandbox.
#[cfg(target_os = "linux")]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
fn confined(
    command: &Command,
    _: Option<&Path>,
    program: PathBuf,
) -> Result<(PathBuf, Vec<OsString>), String> {
    Ok((program, command.arguments.iter().map(Into::into).collect()))
}

fn exit(status: ExitStatus) -> Exit {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return Exit::Signal(signal);
    }
    status.code().map_or(Exit::Signal(0), Exit::Status)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Confinement;

    fn start(line: &str, streams: Streams) -> Process {
        let command = Command {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), line.into()],
            cwd: "/".into(),
            environment: None,
            settings: &[],
            confinement: Confinement::Off,
            streams,
            waits: false,
            own: Vec::new(),
            terminal: TerminalAccess::None,
        };
        Launcher.start(command, None).unwrap()
    }

    async fn rest(process: &mut Process) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = process.next().await {
            events.push(event);
        }
        events
    }

    fn gone(confirmed: bool) -> Event {
        Event::Gone { left_behind: 0, confirmed }
    }

    #[tokio::test]
    async fn separate_stderr_is_not_reported_as_output() {
        let line = "echo bad >&2; exec 2>&-; sleep 0.1; echo good";
        let (bad, good) = (b"bad\n".to_vec(), b"good\n".to_vec());
        let ended = [Event::Exited(Exit::Status(0)), gone(true)];
        for (streams, first) in
            [(Streams::Apart, Event::Error(bad.clone())), (Streams::Merged, Event::Output(bad))]
        {
            let mut process = start(line, streams);
            let mut events = rest(&mut process).await;
            // The exit may be noticed before the last output.
            events.sort_by_key(|event| matches!(event, Event::Exited(_) | Event::Gone { .. }));
            let expected: Vec<Event> =
                [first, Event::Output(good.clone())].into_iter().chain(ended.clone()).collect();
            assert_eq!(events, expected);
        }
    }

    #[tokio::test]
    async fn descendants_end_with_their_command() {
        let mut process = start("(sleep 600 & echo $!); sleep 600", Streams::Merged);
        let Some(Event::Output(number)) = process.next().await else { panic!("no number") };
        let number = String::from_utf8(number).unwrap().trim().parse().unwrap();
        let grandchild = rustix::process::Pid::from_raw(number).unwrap();
        let runs = || is_running(grandchild);
        assert!(runs());
        process.end().await;
        assert_eq!(rest(&mut process).await, [Event::Exited(Exit::Signal(9)), gone(false)]);
        for _ in 0..200 {
            if !runs() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the grandchild still runs");
    }

    /// A zombie of another parent does not run.
    fn is_running(process: rustix::process::Pid) -> bool {
        let state = std::process::Command::new("ps")
            .args(["-o", "stat=", "-p", &process.as_raw_nonzero().to_string()])
            .output()
            .unwrap();
        let state = String::from_utf8(state.stdout).unwrap();
        !state.trim().is_empty() && !state.starts_with('Z')
    }

    #[tokio::test]
    async fn exit_can_be_requested() {
        let line = "trap 'echo asked; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
        let mut process = start(line, Streams::Merged);
        assert_eq!(process.next().await, Some(Event::Output(b"ready\n".to_vec())));
        process.request_exit().await;
        let events = rest(&mut process).await;
        assert!(events.contains(&Event::Output(b"asked\n".to_vec())), "{events:?}");
        assert!(events.contains(&Event::Exited(Exit::Status(3))), "{events:?}");
        assert_eq!(events.last(), Some(&gone(true)));
    }

    #[tokio::test]
    async fn signal_is_reported() {
        let mut process = start("kill -15 $$", Streams::Merged);
        assert_eq!(rest(&mut process).await, [Event::Exited(Exit::Signal(15)), gone(true)]);
    }
}
