//! Modegate's side of the fork server: starts it for the first command, and again if it was killed.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::fork_server::{ARGUMENT, Handed};
use super::{descriptors, orphans};

/// The fork server ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(in crate::process) struct ForkClient {
    binary: PathBuf,
    running: Arc<Mutex<Option<Running>>>,
}

#[derive(Debug)]
struct Running {
    /// Reaped when it ends, also after this is dropped.
    _server: tokio::process::Child,
    number: Option<Pid>,
    requests: UnixStream,
}

impl ForkClient {
    pub(in crate::process) fn new(binary: PathBuf) -> Self {
        Self { binary, running: Arc::default() }
    }

    /// Asks for a supervisor, which gets copies of the descriptors.
    pub(super) async fn fork(&self, handed: &Handed<BorrowedFd<'_>>) -> io::Result<()> {
        let mut running = self.running.lock().await;
        if let Some(server) = &*running {
            match server.hand_over(handed).await {
                Err(error) if is_gone(&error) => {
                    tracing::warn!("the process that starts commands was killed and is started again");
                    *running = None;
                }
                done => return done,
            }
        }
        running.insert(Running::start(&self.binary)?).hand_over(handed).await
    }

    /// The next command starts another fork server. Running commands go on.
    pub(super) async fn replace(&self) {
        *self.running.lock().await = None;
    }
}

impl Running {
    fn start(binary: &Path) -> io::Result<Self> {
        let (ours, theirs) = StdStream::pair()?;
        let mut start = tokio::process::Command::new(binary);
        start.arg(ARGUMENT).stdin(Stdio::from(OwnedFd::from(theirs)));
        start.stdout(Stdio::null()).stderr(Stdio::null());
        let (server, number) = orphans::start(|| start.spawn())?;
        ours.set_nonblocking(true)?;
        Ok(Self { _server: server, number, requests: UnixStream::from_std(ours)? })
    }

    /// Waits while the server has too many requests to read.
    async fn hand_over(&self, handed: &Handed<BorrowedFd<'_>>) -> io::Result<()> {
        let all = handed.all();
        self.requests.async_io(Interest::WRITABLE, || descriptors::send(&self.requests, 0, &all)).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            orphans::forget(number);
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    [Errno::PIPE, Errno::CONNRESET].iter().any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}
