//! Calls that wait for a named pipe, for the lock or the lease of another program or for a server, each on a thread of
//! its own.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketAddrUnix};

use super::notification::{CallAnswer, SuspendedCall};
use super::outcome::{Postponed, WaitReason};
use super::pending::PendingCall;
use super::recorder::CallCopies;
use super::{Broker, reads, threads, tracee};
use crate::file_lock::MAX_WAIT;
use crate::sandbox::BrokerPolicy;

/// How often a writer looks for a reader of its named pipe, and how often a call tries a lock or a file with a lease.
const WAIT_INTERVAL: Duration = Duration::from_millis(5);

/// Calls that wait at the same time.
const MAX_WAITING_CALLS: usize = 64;

impl Broker {
    /// Opens a named pipe for reading, which waits for a writer. If none comes, the thread ends with this process.
    pub(super) fn open_pipe(self: &Arc<Self>, call: SuspendedCall, pipe: OwnedFd, flags: OFlags) {
        let broker = Arc::clone(self);
        let is_free = self.waiting_calls.fetch_add(1, Ordering::Relaxed) < MAX_WAITING_CALLS;
        let wait = move || {
            let answer = match reads::open_pipe(&pipe, flags) {
                Ok(file) => broker.hand_over(&call, file, flags.contains(OFlags::CLOEXEC)),
                Err(error) => CallAnswer::Error(error.raw_os_error()),
            };
            // The caller may be gone.
            let _ = broker.listener.respond(&call, answer);
            broker.waiting_calls.fetch_sub(1, Ordering::Relaxed);
        };
        if !is_free || threads::start("pipe", wait).is_err() {
            self.waiting_calls.fetch_sub(1, Ordering::Relaxed);
            let _ = self.listener.respond(&call, CallAnswer::Error(Errno::AGAIN.raw_os_error()));
        }
    }

    /// Connects a copy of the caller's UNIX socket, which waits while too many clients wait for the server.
    pub(super) fn connect_unix(self: &Arc<Self>, call: SuspendedCall, socket: OwnedFd, to: OwnedFd) {
        let broker = Arc::clone(self);
        let is_free = self.waiting_calls.fetch_add(1, Ordering::Relaxed) < MAX_WAITING_CALLS;
        let connect = move || {
            let connected = broker.connect_if_allowed(&socket, &to);
            // Closed before the caller goes on, which may close the connection.
            drop(socket);
            let answer = connected
                .map_or_else(|error| CallAnswer::Error(error.raw_os_error()), |()| CallAnswer::Value(0));
            // The caller may be gone.
            let _ = broker.listener.respond(&call, answer);
            broker.waiting_calls.fetch_sub(1, Ordering::Relaxed);
        };
        if !is_free || threads::start("connect", connect).is_err() {
            self.waiting_calls.fetch_sub(1, Ordering::Relaxed);
            let _ = self.listener.respond(&call, CallAnswer::Error(Errno::AGAIN.raw_os_error()));
        }
    }

    fn connect_if_allowed(&self, socket: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
        rustix::net::connect(socket, &SocketAddrUnix::new(tracee::own_path(to))?)?;
        // A tighter policy closes the connections that it finds, and this one may be newer.
        if *self.policy.read().unwrap_or_else(PoisonError::into_inner) == BrokerPolicy::Nothing {
            rustix::net::shutdown(socket, Shutdown::Both)?;
            return Err(Errno::ACCESS);
        }
        Ok(())
    }

    /// Tries a call again until it need not wait, the caller is gone, or the policy refuses it. Locks are ignored
    /// after [`MAX_WAIT`], as programs outside of the sandbox do: their holder may have been stopped.
    pub(super) fn wait(self: &Arc<Self>, pending: PendingCall, reason: WaitReason) {
        let broker = Arc::clone(self);
        let has_place = self.waiting_calls.fetch_add(1, Ordering::Relaxed) < MAX_WAITING_CALLS;
        let waiting = pending.clone();
        let wait = move || {
            broker.try_until_answered(waiting);
            broker.waiting_calls.fetch_sub(1, Ordering::Relaxed);
        };
        if has_place && threads::start("waiting", wait).is_ok() {
            return;
        }
        self.waiting_calls.fetch_sub(1, Ordering::Relaxed);
        let error = match reason {
            WaitReason::Reader => Errno::NXIO,
            WaitReason::Lease => Errno::AGAIN,
            WaitReason::Lock => {
                return self.answer_or_wait(PendingCall { takes_locks: false, ..pending });
            }
        };
        let _ = self.listener.respond(&pending.call, CallAnswer::Error(error.raw_os_error()));
    }

    fn try_until_answered(self: &Arc<Self>, mut pending: PendingCall) {
        threads::separate_umask();
        let copies = RefCell::new(CallCopies::new(self.copies.clone()));
        let started = Instant::now();
        while self.listener.is_suspended(&pending.call) {
            match self.answer(&pending, &copies) {
                Some(Postponed::Wait(_)) => thread::sleep(WAIT_INTERVAL),
                None => return,
                // Another file has the name.
                Some(Postponed::Copy(_)) => return self.answer_or_wait(pending),
                // The policy has changed, or another file has the name.
                Some(Postponed::Ask(_) | Postponed::OpenPipe { .. } | Postponed::Connect { .. }) => {
                    return self.answer_or_wait(PendingCall { allowed: None, ..pending });
                }
            }
            pending.takes_locks &= started.elapsed() < MAX_WAIT;
        }
    }
}
