//! Modegate's side of the fork server and its guard: starts them for the first command, and again if the fork server
//! was killed.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::orphans;
use crate::supervisor::descriptors::{self, SupervisorDescriptors};
use crate::supervisor::protocol::{
    self, FORK_SERVER_ARGUMENT, GuardOrder, GuardReport, MAX_REPORT, MessageReader,
};

/// How long the kernel may take to hand over the children of a killed supervisor.
const HAND_OVER: Duration = Duration::from_secs(1);

/// Time limit of the guard for ending processes, which takes about a second. A guard can be stopped by a signal.
const GUARD_LIMIT: Duration = Duration::from_secs(5);

/// The fork server ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(in crate::process) struct ForkClient {
    binary: PathBuf,
    running: Arc<Mutex<Option<ForkServer>>>,
}

#[derive(Debug)]
struct ForkServer {
    requests: UnixStream,
    guard: Arc<GuardClient>,
}

/// The guard and all processes below it end when the last handle is dropped, or this process is gone.
#[derive(Debug)]
pub(super) struct GuardClient {
    /// Reaped when it ends, also after this is dropped.
    _guard: tokio::process::Child,
    number: Option<Pid>,
    connection: Mutex<GuardConnection>,
}

#[derive(Debug)]
enum GuardConnection {
    Open(UnixStream, MessageReader),
    /// The guard has reported that no process is left.
    NothingLeft,
    /// A report has not come in time. A late one must not answer the next order.
    Silent,
}

impl ForkClient {
    pub(in crate::process) fn new(binary: PathBuf) -> Self {
        Self { binary, running: Arc::default() }
    }

    /// Asks for a supervisor, which gets copies of the descriptors. Returns its guard.
    pub(super) async fn fork(
        &self,
        handed: &SupervisorDescriptors<BorrowedFd<'_>>,
    ) -> io::Result<Arc<GuardClient>> {
        let mut running = self.running.lock().await;
        if let Some(server) = &*running {
            match server.hand_over(handed).await {
                Err(error) if is_gone(&error) => {
                    tracing::warn!("the process that starts commands was killed and is started again");
                    *running = None;
                }
                done => return done.map(|()| Arc::clone(&server.guard)),
            }
        }
        let started = running.insert(ForkServer::start(&self.binary)?);
        started.hand_over(handed).await?;
        Ok(Arc::clone(&started.guard))
    }

    /// The next command starts another fork server. Running commands go on.
    pub(super) async fn replace(&self) {
        *self.running.lock().await = None;
    }
}

impl ForkServer {
    fn start(binary: &Path) -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        let (to_guard, of_guard) = StdStream::pair()?;
        let mut start = tokio::process::Command::new(binary);
        start.arg(FORK_SERVER_ARGUMENT).stdin(Stdio::from(OwnedFd::from(theirs)));
        start.stdout(Stdio::from(OwnedFd::from(of_guard))).stderr(Stdio::null());
        let (guard, number) = orphans::start(|| start.spawn())?;
        // Their ends here would hide the end of the other processes.
        drop(start);
        ours.set_nonblocking(true)?;
        to_guard.set_nonblocking(true)?;
        let connection = Mutex::new(GuardConnection::Open(
            UnixStream::from_std(to_guard)?,
            MessageReader::new(MAX_REPORT),
        ));
        let guard = Arc::new(GuardClient { _guard: guard, number, connection });
        Ok(Self { requests: UnixStream::from_std(ours)?, guard })
    }

    /// Waits while the server has too many requests to read.
    async fn hand_over(&self, handed: &SupervisorDescriptors<BorrowedFd<'_>>) -> io::Result<()> {
        let all = handed.all();
        self.requests.async_io(Interest::WRITABLE, || descriptors::send(&self.requests, 0, &all)).await
    }
}

impl GuardClient {
    /// Ends the processes of a killed supervisor. Returns true if none is left.
    pub(super) async fn end_orphans(&self, supervisor: Option<OwnedFd>) -> bool {
        if let Some(supervisor) = supervisor {
            // The end of its connection comes before its children have another parent. After an error, too, the
            // guard looks.
            let _ = tokio::task::spawn_blocking(move || wait_until_gone(&supervisor)).await;
        }
        match self.ask().await {
            Ok(is_complete) => is_complete,
            // The guard was killed, so the processes are children of this one.
            Err(_) => tokio::task::spawn_blocking(orphans::end_all).await.unwrap_or(false),
        }
    }

    async fn ask(&self) -> io::Result<bool> {
        let mut guard = self.connection.lock().await;
        let (connection, reports) = match &mut *guard {
            GuardConnection::Open(connection, reports) => (connection, reports),
            GuardConnection::NothingLeft => return Ok(true),
            GuardConnection::Silent => return Ok(false),
        };
        let line = protocol::encode(&GuardOrder::EndOrphans { supervisors: orphans::known() })?;
        // The guard may have ended, after its last report.
        let _ = connection.write_all(&line).await;
        let Ok(report) = tokio::time::timeout(GUARD_LIMIT, read_report(connection, reports)).await else {
            *guard = GuardConnection::Silent;
            return Ok(false);
        };
        Ok(match report? {
            GuardReport::OrphansEnded { is_complete } => is_complete,
            GuardReport::NothingLeft => {
                *guard = GuardConnection::NothingLeft;
                true
            }
        })
    }
}

async fn read_report(connection: &mut UnixStream, reports: &mut MessageReader) -> io::Result<GuardReport> {
    loop {
        if let Some(report) = reports.take() {
            return Ok(report?);
        }
        let mut bytes = [0; 1024];
        let count = connection.read(&mut bytes).await?;
        if count == 0 || !reports.add(&bytes[..count]) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

impl Drop for GuardClient {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            orphans::forget(number);
        }
    }
}

/// Waits for the end of a process, given its process descriptor. Blocks for about a second at most.
fn wait_until_gone(process: &OwnedFd) -> io::Result<()> {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    let limit = Timespec::try_from(HAND_OVER).map_err(io::Error::other)?;
    rustix::event::poll(&mut ended, Some(&limit))?;
    Ok(())
}

fn is_gone(error: &io::Error) -> bool {
    [Errno::PIPE, Errno::CONNRESET].iter().any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}
