//! Starts what answers the calls that a command's sandbox suspends.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{self, Resource, Rlimit};

use super::broker::{Broker, BrokerThreads, CallListener, Reads, RecordWriter, Roots, RuledChanges};
use super::protocol::{SpawnRequest, TerminalAccess};
use crate::file_lock::FileLocks;
use crate::kernel;
use crate::sandbox::denied_reads::DeniedReads;
use crate::sandbox::{BrokerPolicy, Brokered, Confinement};

/// Answers the calls that the sandbox suspends.
pub(super) enum CallAnswerer {
    None,
    /// The main thread, because few calls come.
    Here(Arc<Broker>),
    /// Threads of their own, so that nothing delays the watch on the connection.
    Threads(BrokerThreads),
}

impl CallAnswerer {
    pub(super) fn start(
        listener: Option<OwnedFd>,
        request: &SpawnRequest,
        connection: &UnixStream,
    ) -> io::Result<Self> {
        let Some(listener) = listener.map(CallListener::new) else { return Ok(Self::None) };
        // The broker has the rights of the command.
        kernel::drop_capabilities()?;
        let own_folder = request.own_folder.as_slice();
        match &request.confinement {
            Confinement::Brokered { write, broker } => {
                // Rights, times and attributes of a single file outside of the roots do not change.
                let own_folders: Vec<_> =
                    write.iter().chain(own_folder).filter(|path| path.is_dir()).cloned().collect();
                let protected: Vec<_> = broker.protected.iter().chain(&broker.record).cloned().collect();
                let roots = Roots::open(&broker.roots, &broker.unrecorded, &own_folders, &protected)?;
                raise_descriptor_limit();
                let mut started = Broker::new(listener, roots, broker.policy);
                configure(&mut started, broker, connection)?;
                started.share_memory();
                if request.terminal != TerminalAccess::None {
                    started.allow_own_terminal();
                }
                BrokerThreads::start(started).map(Self::Threads)
            }
            Confinement::ReadOnly { read, build, denied: Some(denied) } => {
                let own_folders: Vec<_> = own_folder.iter().chain(build).cloned().collect();
                let readable = read.iter().chain(&own_folders).cloned().collect();
                let roots = Roots::open(&[], &[], &own_folders, &[])?;
                let mut broker = Broker::new(listener, roots, BrokerPolicy::Nothing);
                broker.limit_reads(limited_reads(denied, Some(readable))?);
                BrokerThreads::start(broker).map(Self::Threads)
            }
            Confinement::ReadOnly { build, denied: None, .. } => {
                let own_folders: Vec<_> = own_folder.iter().chain(build).cloned().collect();
                let roots = Roots::open(&[], &[], &own_folders, &[])?;
                Ok(Self::Here(Arc::new(Broker::new(listener, roots, BrokerPolicy::Nothing))))
            }
            _ => {
                let roots = Roots::open(&[], &[], own_folder, &[])?;
                Ok(Self::Here(Arc::new(Broker::new(listener, roots, BrokerPolicy::Nothing))))
            }
        }
    }
}

/// Records changes in `broker.record`, and limits reads, changes and hosts as the request demands.
fn configure(started: &mut Broker, broker: &Brokered, connection: &UnixStream) -> io::Result<()> {
    started.report_to(connection.try_clone()?);
    if let Some(folder) = &broker.record {
        started.record(RecordWriter::new(folder.clone(), broker.unrecorded.clone(), broker.roots.clone()));
    }
    started.limit_caches(broker.caches.clone());
    started.share_locks(broker.locks.as_deref().map(FileLocks::in_folder).unwrap_or_default());
    if let Some(denied) = &broker.denied {
        started.limit_reads(limited_reads(denied, None)?);
    }
    if let Some(denied) = &broker.denied_changes {
        started.deny_changes(RuledChanges::new(denied).map_err(invalid)?);
    }
    if let Some(hosts) = &broker.hosts {
        started.limit_network(hosts.clone(), broker.egress)?;
        started.allow_sockets(broker.sockets.clone())?;
    }
    Ok(())
}

fn limited_reads(denied: &DeniedReads, readable: Option<Vec<PathBuf>>) -> io::Result<Reads> {
    Reads::new(denied, readable).map_err(invalid)
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

/// Fails if the command has lowered the limit for good.
fn raise_descriptor_limit() {
    let limits = process::getrlimit(Resource::Nofile);
    let most = Rlimit { current: limits.maximum, ..limits };
    let _ = process::setrlimit(Resource::Nofile, most);
}
