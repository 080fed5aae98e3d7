//! The guard: parent of the fork server, and of every process whose supervisor was killed.
//!
//! It ends such processes when Modegate asks, and all that is left when Modegate is gone, also if Modegate, the fork
//! server and the supervisors were killed together. It has one thread, its own session and its own name, so that
//! neither a signal to Modegate's process group nor `killall modegate` ends it. It starts nothing.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::process::{self, Pid};

use super::children::{self, Children};
use super::protocol::{self, FORK_SERVER_ARGUMENT, GuardOrder, GuardReport, MAX_ORDER, MessageReader};
use crate::kernel;

pub(super) const ARGUMENT: &str = "__guard";

/// Name in the list of processes. Differs from Modegate's, by which users kill it.
const NAME: &std::ffi::CStr = c"mg-guard";

/// Time in which supervisors end their commands after the end of Modegate.
const GRACE: Duration = Duration::from_millis(400);

/// Time in which supervisors then remove the folders of their commands.
const DEADLINE: Duration = Duration::from_secs(10);

/// Interval between looks for the end of killed processes.
const INTERVAL: Duration = Duration::from_millis(5);

/// Turns this process, which has forked the fork server, into the guard. `connection` leads to Modegate.
pub(super) fn begin(connection: &OwnedFd) -> ExitCode {
    let failure = execute_again(connection);
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "modegate: {failure}");
    connection.try_clone().map_or(ExitCode::FAILURE, run)
}

/// Executes this binary again, for a name of its own in the list of processes. The setting of the subreaper stays.
/// Returns only an error.
fn execute_again(connection: &OwnedFd) -> io::Error {
    let prepared =
        rustix::stdio::dup2_stdin(connection).and_then(|()| rustix::stdio::dup2_stdout(io::stderr()));
    if let Err(error) = prepared {
        return error.into();
    }
    Command::new("/proc/self/exe").arg0(NAME.to_string_lossy().as_ref()).arg(ARGUMENT).exec()
}

/// Returns when Modegate and all processes below this one are gone.
pub(super) fn run(connection: OwnedFd) -> ExitCode {
    match guard(UnixStream::from(connection)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "modegate: this subcommand is internal to Modegate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn guard(connection: UnixStream) -> io::Result<()> {
    kernel::block_signals()?;
    rustix::thread::set_name(NAME)?;
    // A group that children may share with Modegate is not killed as a whole.
    let own_group = process::getpgrp();
    // Fails only for the leader of a group, which needs none.
    let _ = process::setsid();
    process::chdir("/")?;
    let mut children = Children::open()?;
    let mut guard = OrphanGuard {
        fork_server: children.list()?.first().copied(),
        shared_group: own_group,
        children,
        signals: kernel::child_signals()?,
    };
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, source) in [connection.as_fd(), guard.signals.as_fd()].into_iter().enumerate() {
        epoll::add(&epoll, source, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
    }
    let (mut connection, mut orders) = (connection, MessageReader::new(MAX_ORDER));
    loop {
        guard.wait(&epoll, None);
        guard.reap();
        match read_order(&mut connection, &mut orders) {
            Ok(Some(GuardOrder::EndOrphans { supervisors })) => {
                let is_complete = guard.end_orphans(&supervisors);
                report(&mut connection, &GuardReport::OrphansEnded { is_complete })?;
            }
            Ok(None) => {}
            // Also if Modegate sends what this binary does not know.
            Err(_) => break,
        }
        if guard.children.list()?.is_empty() {
            return report(&mut connection, &GuardReport::NothingLeft);
        }
    }
    epoll::delete(&epoll, &connection)?;
    guard.end_all(&epoll);
    Ok(())
}

fn report(connection: &mut UnixStream, report: &GuardReport) -> io::Result<()> {
    // Modegate may be gone, which the next read shows.
    let _ = connection.write_all(&protocol::encode(report)?);
    Ok(())
}

/// Returns `None` if no whole order has come. Never waits.
fn read_order(connection: &mut UnixStream, orders: &mut MessageReader) -> io::Result<Option<GuardOrder>> {
    connection.set_nonblocking(true)?;
    let mut bytes = [0; 4096];
    match connection.read(&mut bytes) {
        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) if !orders.add(&bytes[..count]) => return Err(io::ErrorKind::InvalidData.into()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => return Err(error),
    }
    connection.set_nonblocking(false)?;
    Ok(orders.take().transpose()?)
}

struct OrphanGuard {
    /// `None` once it is gone.
    fork_server: Option<Pid>,
    /// The process group of Modegate.
    shared_group: Pid,
    children: Children,
    signals: OwnedFd,
}

impl OrphanGuard {
    fn wait(&self, epoll: &OwnedFd, limit: Option<Duration>) {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // After an error, too, the caller looks at everything.
        let _ = epoll::wait(epoll, &mut events[..], limit.as_ref());
        let _ = rustix::io::read(&self.signals, &mut [0; 1024]);
    }

    fn reap(&mut self) {
        while let Ok(Some((pid, _))) = process::wait(process::WaitOptions::NOHANG) {
            self.fork_server.take_if(|server| *server == pid);
        }
    }

    /// Returns true if no process is left without a supervisor. Blocks for about a second at most.
    fn end_orphans(&mut self, supervisors: &[i32]) -> bool {
        let fork_server = self.fork_server;
        children::end_others(&mut self.children, self.shared_group, |pid| {
            fork_server == Some(pid) || supervisors.contains(&pid.as_raw_nonzero().get())
        })
    }

    /// Modegate is gone, so every supervisor ends its command, and then the fork server ends.
    fn end_all(&mut self, epoll: &OwnedFd) {
        let started = Instant::now();
        loop {
            self.reap();
            let Ok(all) = self.children.list() else { return };
            if all.is_empty() {
                return;
            }
            let (supervisors, orphans): (Vec<Pid>, Vec<Pid>) =
                all.into_iter().partition(|pid| is_supervisor(*pid));
            for orphan in orphans {
                children::kill(orphan, self.shared_group);
            }
            let elapsed = started.elapsed();
            for supervisor in supervisors.iter().flat_map(|pid| [vec![*pid], children::of(*pid)].concat()) {
                let is_stuck = !children::of(supervisor).is_empty() && self.fork_server != Some(supervisor);
                if elapsed > DEADLINE || elapsed > GRACE && is_stuck {
                    // It may have just ended.
                    let _ = process::kill_process(supervisor, process::Signal::KILL);
                }
            }
            self.wait(epoll, Some(INTERVAL));
        }
    }
}

/// Returns true for the fork server and supervisors.
fn is_supervisor(pid: Pid) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let role = arguments.split(|byte| *byte == 0).nth(1);
    role == Some(FORK_SERVER_ARGUMENT.as_bytes())
        && matches!((program(&pid.to_string()), program("self")), (Ok(one), Ok(own))
            if (one.st_dev, one.st_ino) == (own.st_dev, own.st_ino))
}

fn program(process: &str) -> rustix::io::Result<rustix::fs::Stat> {
    rustix::fs::stat(format!("/proc/{process}/exe"))
}
