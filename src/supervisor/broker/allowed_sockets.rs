//! UNIX sockets outside of a brokered command's folders that it may connect to.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::fs::Stat;

use super::resolve::is_same;
use super::tracee;
use crate::supervisor::connection;
use crate::supervisor::protocol::{BrokerEvent, SupervisorReport};

/// Refused sockets that are reported. More are refused without a report.
const MAX_REPORTED: usize = 64;

#[derive(Debug, Default)]
pub(super) struct AllowedSockets {
    paths: Vec<PathBuf>,
    /// Refused sockets that were reported.
    refused: Mutex<HashSet<PathBuf>>,
    /// Connection to Modegate.
    connection: Option<UnixStream>,
}

impl AllowedSockets {
    pub(super) fn new(paths: Vec<PathBuf>, connection: Option<UnixStream>) -> Self {
        Self { paths, refused: Mutex::default(), connection }
    }

    /// True if a listed path leads to the socket now. Its server can have replaced it.
    pub(super) fn contains(&self, socket: &Stat) -> bool {
        self.paths.iter().any(|path| rustix::fs::stat(path).is_ok_and(|listed| is_same(&listed, socket)))
    }

    /// Reports a refused socket, once.
    pub(super) fn report(&self, socket: &OwnedFd) {
        let Ok(path) = tracee::name_of(socket) else { return };
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() < MAX_REPORTED
            && refused.insert(path.clone())
            && let Some(connection) = &self.connection
        {
            connection::report(connection, &SupervisorReport::Broker(BrokerEvent::SocketRefused(path)));
        }
    }
}
