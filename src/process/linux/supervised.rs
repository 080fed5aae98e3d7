//! A process on Linux, controlled through the connection to its supervisor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use secrecy::ExposeSecret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use super::fork_client::GuardClient;
use super::orphans;
use crate::process::{
    BrokerEvent, ChildStdio, Command, Event, ProcessFailure, Processes, RecordState, Streams, read,
};
use crate::sandbox::host::HostPattern;
use crate::sandbox::{BrokerPolicy, Confinement};
use crate::supervisor::descriptors::{self, SupervisorDescriptors};
use crate::supervisor::protocol::{
    self, BUILD, MAX_REPORT, MessageReader, SpawnRequest, SupervisorOrder, SupervisorReport,
};

const CHUNK: usize = 16 * 1024;

/// Maximum number of attempts to fork a supervisor. The fork server can be killed between two commands.
const MAX_FORKS: usize = 2;

/// Dropping kills the command and all its descendants, without confirmation.
#[derive(Debug)]
pub struct Process {
    supervisor: Pid,
    /// `None` if the supervisor was killed before it could be opened.
    pidfd: Option<OwnedFd>,
    guard: Arc<GuardClient>,
    control: UnixStream,
    input: Option<pipe::Sender>,
    output: Option<pipe::Receiver>,
    errors: Option<pipe::Receiver>,
    reports: MessageReader,
    /// True if the supervisor records changes.
    records: bool,
    /// Set once the supervisor has reported the end.
    left_behind: Option<usize>,
    /// Ends the processes of a supervisor that was killed before its last report.
    ending: Option<JoinHandle<bool>>,
    over: bool,
}

impl Processes {
    /// A failure to start can also arrive later, as [`Event::Failed`].
    pub async fn start(&self, command: Command) -> io::Result<Process> {
        let (streams, folder) = (command.streams, command.cwd);
        let request = SpawnRequest {
            build: BUILD.to_owned(),
            own_folder: self.own_folder(&command.confinement),
            settings: command.settings.iter().map(|(name, value)| variable(name, value)).collect(),
            own: command.own.iter().map(|(name, value)| variable(name, value.expose_secret())).collect(),
            program: command.program,
            arguments: command.arguments,
            environment: command.environment,
            confinement: command.confinement,
            terminal: command.terminal,
            waits: command.waits,
        };
        for _ in 0..MAX_FORKS {
            if let Some(process) = self.fork(streams, &folder, &request).await? {
                return Ok(process);
            }
            // It was killed a moment ago, or a command has lowered its limits.
            self.launcher.replace().await;
        }
        let why = "no process could be forked for it: the system has too many processes or too little memory";
        Err(io::Error::other(why))
    }

    /// Starts a supervisor. Returns `None` if none could be forked, so that none has read the request.
    async fn fork(
        &self,
        streams: Streams,
        folder: &Path,
        request: &SpawnRequest,
    ) -> io::Result<Option<Process>> {
        let (ours, theirs) = StdStream::pair()?;
        let CommandStreams { output, to_output, errors, to_errors } = CommandStreams::open(streams)?;
        let folder = fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let handed = SupervisorDescriptors {
            connection: theirs.as_fd(),
            folder: folder.as_fd(),
            output: to_output.as_fd(),
            errors: to_errors.as_fd(),
        };
        let guard = self.launcher.fork(&handed).await?;
        // Only the supervisor may keep them open.
        drop((theirs, to_output, to_errors));
        let (control, input, supervisor) = match begin(ours, streams, request).await {
            Ok(begun) => begun,
            Err(error) => {
                tracing::debug!(%error, "no supervisor could be forked");
                return Ok(None);
            }
        };
        let records =
            matches!(&request.confinement, Confinement::Brokered { broker, .. } if broker.record.is_some());
        orphans::remember(supervisor);
        Ok(Some(Process {
            supervisor,
            pidfd: pidfd_open(supervisor, PidfdFlags::NONBLOCK).ok(),
            guard,
            control,
            input,
            output: output.map(receiver).transpose()?,
            errors: errors.map(receiver).transpose()?,
            reports: MessageReader::new(MAX_REPORT),
            records,
            left_behind: None,
            ending: None,
            over: false,
        }))
    }
}

fn variable(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn receiver(pipe: io::PipeReader) -> io::Result<pipe::Receiver> {
    pipe::Receiver::from_owned_fd(pipe.into())
}

/// Standard output and standard error of a command, and the ends of pipes that this process reads.
struct CommandStreams {
    output: Option<io::PipeReader>,
    to_output: OwnedFd,
    errors: Option<io::PipeReader>,
    to_errors: OwnedFd,
}

impl CommandStreams {
    fn open(streams: Streams) -> io::Result<Self> {
        if streams == Streams::Own {
            let to_output = io::stdout().as_fd().try_clone_to_owned()?;
            let to_errors = io::stderr().as_fd().try_clone_to_owned()?;
            return Ok(Self { output: None, to_output, errors: None, to_errors });
        }
        let (output, to_output) = io::pipe()?;
        let (errors, to_errors) = match streams {
            Streams::Merged => (None, to_output.try_clone()?),
            _ => io::pipe().map(|(errors, to_errors)| (Some(errors), to_errors))?,
        };
        Ok(Self { output: Some(output), to_output: to_output.into(), errors, to_errors: to_errors.into() })
    }
}

/// Opens the command's input: that of this process, or a new pipe, of which no other process ever has the read end.
/// Returns the input and the other end of the pipe.
fn open_input(streams: Streams) -> io::Result<(Option<OwnedFd>, Option<pipe::Sender>)> {
    Ok(match streams {
        Streams::Merged | Streams::Apart => (None, None),
        Streams::Own => (Some(io::stdin().as_fd().try_clone_to_owned()?), None),
        Streams::Piped => {
            let (input, to_input) = io::pipe()?;
            (Some(input.into()), Some(pipe::Sender::from_owned_fd(to_input.into())?))
        }
    })
}

/// Sends the request, and reads the supervisor's number. Returns an error if the supervisor could not be forked.
async fn begin(
    ours: StdStream,
    streams: Streams,
    request: &SpawnRequest,
) -> io::Result<(UnixStream, Option<pipe::Sender>, Pid)> {
    let (input, to_input) = open_input(streams)?;
    let line = protocol::encode(request)?;
    let handed = input.as_ref().map(AsFd::as_fd);
    descriptors::send(&ours, line[0], handed.as_slice())?;
    drop(input);
    ours.set_nonblocking(true)?;
    let mut control = UnixStream::from_std(ours)?;
    if let Err(error) = control.write_all(&line[1..]).await {
        tracing::debug!(%error, "a supervisor did not read its request");
    }
    let mut number = [0; 4];
    control.read_exact(&mut number).await?;
    let supervisor = Pid::from_raw(i32::from_le_bytes(number)).ok_or(io::ErrorKind::InvalidData)?;
    Ok((control, to_input, supervisor))
}

impl Process {
    /// Returns stdout and stdin once. No output events follow.
    pub fn take_stdio(&mut self) -> Option<ChildStdio> {
        let (to, from) = (self.input.take()?, self.output.take()?);
        Some(ChildStdio { from: Box::new(from), to: Box::new(to) })
    }

    /// Returns `None` after [`Event::Gone`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        if self.over {
            return None;
        }
        loop {
            if let Some(event) = self.take_report() {
                return Some(event);
            }
            if let Some(left_behind) = self.left_behind {
                if let Some(event) = self.rest() {
                    return Some(event);
                }
                self.over = true;
                orphans::forget(self.supervisor);
                return Some(Event::Gone { left_behind, confirmed: true });
            }
            if let Some(ending) = &mut self.ending {
                let confirmed = ending.await.unwrap_or(false);
                self.over = true;
                return Some(Event::Gone { left_behind: 0, confirmed });
            }
            let mut report = [0; 1024];
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
                        return Some(Event::Error(errors));
                    }
                    self.errors = None;
                }
                read = self.control.read(&mut report) => match read {
                    Ok(length @ 1..) if self.reports.add(&report[..length]) => {}
                    // The supervisor was killed before its last report.
                    _ => {
                        orphans::forget(self.supervisor);
                        if std::mem::take(&mut self.records) {
                            return Some(Event::Broker(BrokerEvent::RecordSaved(RecordState::Cut)));
                        }
                        let (guard, supervisor) = (Arc::clone(&self.guard), self.pidfd.take());
                        self.ending = Some(tokio::spawn(async move { guard.end_orphans(supervisor).await }));
                    }
                },
            }
        }
    }

    /// Makes the supervisor send SIGTERM to the command's process group.
    pub async fn request_exit(&mut self) {
        self.order(SupervisorOrder::RequestExit).await;
    }

    /// [`BrokerEvent::PolicySet`] follows when the policy applies and nothing can be written under a looser
    /// one.
    pub async fn set_policy(&mut self, policy: BrokerPolicy) {
        self.order(SupervisorOrder::SetPolicy(policy)).await;
    }

    /// Answers a [`BrokerEvent::Asked`]. Numbers of other changes are ignored.
    pub async fn answer(&mut self, question: u64, allows: bool) {
        self.order(SupervisorOrder::Answer { question, allows }).await;
    }

    pub async fn allow_host(&mut self, host: HostPattern) {
        self.order(SupervisorOrder::AllowHost(host)).await;
    }

    pub async fn release(&mut self) {
        self.order(SupervisorOrder::Release).await;
    }

    /// [`BrokerEvent::RecordSaved`] follows.
    pub async fn save_record(&mut self) {
        self.order(SupervisorOrder::SaveRecord).await;
    }

    pub async fn end(&mut self) {
        // The command may be over.
        let _ = self.control.shutdown().await;
    }

    async fn order(&mut self, order: SupervisorOrder) {
        let line = protocol::encode(&order).expect("an order is plain data");
        // The command may be over.
        let _ = self.control.write_all(&line).await;
    }

    pub fn id(&self) -> Option<u32> {
        Some(self.supervisor.as_raw_nonzero().get().cast_unsigned())
    }

    fn rest(&mut self) -> Option<Event> {
        for (pipe, is_output) in [(&self.output, true), (&self.errors, false)] {
            let mut bytes = vec![0; CHUNK];
            // Reads directly, because the runtime may not have been notified yet.
            let read = pipe.as_ref().and_then(|pipe| rustix::io::read(pipe, &mut bytes).ok());
            if let Some(read) = read.filter(|read| *read > 0) {
                bytes.truncate(read);
                return Some(if is_output { Event::Output(bytes) } else { Event::Error(bytes) });
            }
        }
        None
    }

    /// Returns the event of the next report that has one. `None` until such a report is whole.
    fn take_report(&mut self) -> Option<Event> {
        loop {
            return Some(match self.reports.take()? {
                Ok(SupervisorReport::Failed(failure)) => Event::Failed(failure),
                Ok(SupervisorReport::Exited(exit)) => Event::Exited(exit),
                Ok(SupervisorReport::Job(state)) => Event::Job(state),
                Ok(SupervisorReport::Broker(event)) => Event::Broker(event),
                Ok(SupervisorReport::Gone { left_behind }) => {
                    self.left_behind = Some(left_behind);
                    continue;
                }
                Err(error) => {
                    let reason = format!("unreadable report from the supervisor: {error}");
                    Event::Failed(ProcessFailure { reason, status: None })
                }
            });
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        orphans::forget(self.supervisor);
    }
}
