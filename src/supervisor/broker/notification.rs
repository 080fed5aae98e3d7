//! System calls that a filter suspends: receiving them, reading their arguments, and answering them.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::kernel::checked;

/// `SECCOMP_IOCTL_NOTIF_SET_FLAGS`.
const NOTIF_SET_FLAGS: libc::Ioctl = 0x4008_2104;

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`.
const SYNC_WAKE_UP: u32 = 1;

/// System call that a filter suspended.
#[derive(Debug, Clone, Copy)]
pub(super) struct SuspendedCall {
    pub id: u64,
    pub thread: u32,
    pub number: libc::c_long,
    pub arguments: [u64; 6],
}

/// The result that a suspended call gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallAnswer {
    /// The call returns this and does not run.
    Value(i64),
    /// The call fails with this positive error number and does not run.
    Error(i32),
    /// The call runs with the arguments that the caller's memory has by then, under the rest of the sandbox.
    Continue,
}

/// Receives and answers the calls that a filter suspends.
#[derive(Debug)]
pub(in crate::supervisor) struct CallListener(OwnedFd);

impl AsFd for CallListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl CallListener {
    /// `descriptor` is what installing the filter returned.
    pub(in crate::supervisor) fn new(descriptor: OwnedFd) -> Self {
        // The caller waits for the answer, so the thread that answers can have its processor: to wake an idle one takes
        // longer than the call. Fails before Linux 6.6, where calls only take longer.
        // SAFETY: the argument is a number.
        let _ = unsafe {
            libc::ioctl(descriptor.as_raw_fd(), NOTIF_SET_FLAGS, libc::c_ulong::from(SYNC_WAKE_UP))
        };
        Self(descriptor)
    }

    /// Returns false if no call can come any more, because all processes with the filter are gone.
    pub(super) fn has_callers(&self) -> bool {
        let mut listener = [PollFd::new(&self.0, PollFlags::empty())];
        let polled = rustix::event::poll(&mut listener, Some(&Timespec::default()));
        polled.is_err() || !listener[0].revents().contains(PollFlags::HUP)
    }

    /// Waits until the filter suspends a call. Fails with `ENOENT` if the caller is gone, and `EINTR` after a
    /// signal.
    pub(super) fn receive(&self) -> io::Result<SuspendedCall> {
        // SAFETY: an all-zero notification is valid, the kernel demands it, and the call fills it.
        let notification = unsafe {
            let mut notification: libc::seccomp_notif = std::mem::zeroed();
            checked(libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification))?;
            notification
        };
        let libc::seccomp_notif { id, pid, data, .. } = notification;
        Ok(SuspendedCall { id, thread: pid, number: data.nr.into(), arguments: data.args })
    }

    /// Fails with `ENOENT` if the caller is gone.
    pub(super) fn respond(&self, call: &SuspendedCall, answer: CallAnswer) -> io::Result<()> {
        let (val, error, flags) = match answer {
            CallAnswer::Value(value) => (value, 0, 0),
            // The kernel reports a positive number as success.
            CallAnswer::Error(number) => (0, -number.abs(), 0),
            CallAnswer::Continue => {
                (0, 0, u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1))
            }
        };
        let response = libc::seccomp_notif_resp { id: call.id, val, error, flags };
        // SAFETY: the call only reads `response`.
        let done =
            unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) };
        checked(done).map(drop)
    }

    /// If true, everything that was read from the call's thread before belongs to its caller.
    pub(super) fn is_suspended(&self, call: &SuspendedCall) -> bool {
        let id = call.id;
        // SAFETY: the call only reads `id`.
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
    }

    /// Copies a descriptor into the caller's table and returns its number there. The call stays suspended.
    pub(super) fn install(
        &self,
        call: &SuspendedCall,
        file: BorrowedFd<'_>,
        closes_on_exec: bool,
    ) -> io::Result<i32> {
        let flags = if closes_on_exec { libc::O_CLOEXEC } else { 0 };
        let request = libc::seccomp_notif_addfd {
            id: call.id,
            flags: 0,
            srcfd: file.as_raw_fd().cast_unsigned(),
            newfd: 0,
            newfd_flags: flags.cast_unsigned(),
        };
        // SAFETY: the call only reads `request`.
        checked(unsafe {
            libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const request)
        })
    }
}

/// Reads a thread's memory. Returns the number of bytes before the first unreadable page.
pub(super) fn read_memory(thread: u32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    const PAGE: usize = 4096;
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
    let start = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
    let end = start.checked_add(buffer.len()).ok_or(io::ErrorKind::InvalidInput)?;
    // The call never splits an element, so each element is part of one page.
    let mut parts = Vec::with_capacity(2);
    let mut at = start;
    while at < end {
        let next = end.min((at / PAGE + 1).saturating_mul(PAGE));
        parts.push(libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: next - at });
        at = next;
    }
    parts.truncate(1024);
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let count = libc::c_ulong::try_from(parts.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel writes to `local` only, which is `buffer`. It checks the remote addresses.
    let read = unsafe { libc::process_vm_readv(thread, &raw const local, 1, parts.as_ptr(), count, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Gives the calling thread a working directory and a umask of its own.
pub(super) fn separate_umask() -> io::Result<()> {
    // SAFETY: affects only the working directory and the umask of the calling thread.
    checked(unsafe { libc::unshare(libc::CLONE_FS) }).map(drop)
}

const _: () = assert!(size_of::<libc::seccomp_notif_addfd>() == 24);
