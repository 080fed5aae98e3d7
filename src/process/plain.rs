//! A process on systems without a sandbox: the command itself, without a supervisor. Descendants are not
//! tracked. Only a command that exits on its own counts as confirmed.
#![allow(clippy::unused_async, reason = "on Linux the same functions wait")]

use std::io;
use std::process::Stdio;
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::process::{Child, ChildStderr, ChildStdout};

use super::{ChildStdio, Command, Event, Exit, Processes, Streams, read};
use crate::sandbox::BrokerPolicy;

const CHUNK: usize = 16 * 1024;

/// Time for the last output to arrive after the exit.
const OUTPUT_GRACE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Process {
    child: Child,
    output: Option<ChildStdout>,
    errors: Option<ChildStderr>,
    streams: Streams,
    exited: bool,
    ended: bool,
    over: bool,
}

impl Processes {
    /// Standard error has its own pipe, so the order of merged output may differ.
    #[cfg_attr(
        target_os = "linux",
        allow(dead_code, reason = "compiled here so that it is known to compile")
    )]
    pub async fn start_plain(&self, command: Command) -> io::Result<Process> {
        let mut start = tokio::process::Command::new(&command.program);
        start.args(&command.arguments).current_dir(&command.cwd).kill_on_drop(true);
        if let Some(environment) = command.environment {
            start.env_clear().envs(environment);
        }
        start.envs(command.settings.iter().copied());
        start.envs(command.own.iter().map(|(name, value)| (name, value.expose_secret())));
        let input = if command.streams == Streams::Piped { Stdio::piped() } else { Stdio::null() };
        if command.streams != Streams::Own {
            start.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = start.spawn()?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let streams = command.streams;
        Ok(Process { child, output, errors, streams, exited: false, ended: false, over: false })
    }
}

#[cfg(not(target_os = "linux"))]
impl Processes {
    pub async fn start(&self, command: Command) -> io::Result<Process> {
        self.start_plain(command).await
    }
}

impl Process {
    pub fn take_stdio(&mut self) -> Option<ChildStdio> {
        let (to, from) = (self.child.stdin.take()?, self.output.take()?);
        Some(ChildStdio { from: Box::new(from), to: Box::new(to) })
    }

    /// Returns `None` after [`Event::Gone`].
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
                    let code = status.ok().and_then(|status| status.code());
                    return Some(Event::Exited(code.map_or(Exit::Signal(0), Exit::Status)));
                }
                // A descendant can keep the pipes open forever.
                () = tokio::time::sleep(OUTPUT_GRACE), if self.exited => break,
            }
        }
        (!std::mem::replace(&mut self.over, true))
            .then_some(Event::Gone { left_behind: 0, confirmed: !self.ended })
    }

    pub async fn request_exit(&mut self) {
        self.end().await;
    }

    pub async fn end(&mut self) {
        self.ended = true;
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

    /// Nothing waits here.
    pub async fn release(&mut self) {}

    /// Nothing is recorded here.
    pub async fn save_record(&mut self) {}

    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Confinement;

    async fn check(streams: Streams, expected: &[Event]) {
        let command = Command {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), "echo bad >&2; exec 2>&-; sleep 0.1; echo good".into()],
            cwd: "/".into(),
            environment: None,
            settings: &[],
            confinement: Confinement::Off,
            streams,
            waits: false,
            own: Vec::new(),
            keeps_terminal: false,
        };
        let processes = Processes::new("unused".into(), "unused".into());
        let mut process = processes.start_plain(command).await.unwrap();
        let mut seen = Vec::new();
        while let Some(event) = process.next().await {
            if matches!(event, Event::Output(_) | Event::Error(_)) {
                seen.push(event);
            }
        }
        assert_eq!(seen, expected);
    }

    #[tokio::test]
    async fn separate_stderr_is_not_reported_as_output() {
        let (bad, good) = (b"bad\n".to_vec(), b"good\n".to_vec());
        check(Streams::Apart, &[Event::Error(bad.clone()), Event::Output(good.clone())]).await;
        check(Streams::Merged, &[Event::Output(bad), Event::Output(good)]).await;
    }
}
