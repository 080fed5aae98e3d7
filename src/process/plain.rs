//! A process on systems where nothing can be held: the command itself, without a supervisor.
//!
//! Its end is asked for and waited for; what it has started elsewhere is not known. A command that came to its own end is
//! taken to be over; one that was ended is never confirmed.
#![allow(clippy::unused_async, reason = "on Linux the same functions wait")]

use std::io;
use std::process::Stdio;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStderr, ChildStdout};

use super::{Command, Event, Exit, Processes};

/// Bytes that are read at once.
const CHUNK: usize = 16 * 1024;

/// A process. Dropping it ends it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    output: Option<ChildStdout>,
    errors: Option<ChildStderr>,
    exited: bool,
    ended: bool,
    over: bool,
}

impl Processes {
    /// Starts a command. Its errors always go apart: there is no pipe that two can share.
    ///
    /// # Errors
    /// The program or the working directory is not there.
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
        start.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = start.spawn()?;
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        Ok(Process { child, output, errors, exited: false, ended: false, over: false })
    }
}

#[cfg(not(target_os = "linux"))]
impl Processes {
    /// Starts a command.
    ///
    /// # Errors
    /// The program or the working directory is not there.
    pub async fn start(&self, command: Command) -> io::Result<Process> {
        self.start_plain(command).await
    }
}

impl Process {
    /// What happens next; nothing after [`Event::Gone`].
    pub async fn next(&mut self) -> Option<Event> {
        while !self.over {
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
                        return Some(Event::Output(errors));
                    }
                    self.errors = None;
                }
                status = self.child.wait(), if !self.exited => {
                    self.exited = true;
                    let code = status.ok().and_then(|status| status.code());
                    return Some(Event::Exited(code.map_or(Exit::Signal(0), Exit::Status)));
                }
                else => break,
            }
            // What it started may hold the pipes open for ever.
            if self.exited {
                break;
            }
        }
        (!std::mem::replace(&mut self.over, true))
            .then_some(Event::Gone { left_behind: 0, confirmed: !self.ended })
    }

    /// Asks the command to end; here that ends it.
    pub async fn ask_to_end(&mut self) {
        self.end().await;
    }

    /// Ends the command.
    pub async fn end(&mut self) {
        self.ended = true;
        if let Err(error) = self.child.start_kill() {
            tracing::debug!(%error, "a command was over already");
        }
    }

    /// The command's process id, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }
}

/// Reads from a pipe that is still open; pends on one that is not.
async fn read<R: AsyncRead + Unpin>(pipe: &mut Option<R>, buffer: &mut Vec<u8>) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read_buf(buffer).await,
        None => std::future::pending().await,
    }
}
