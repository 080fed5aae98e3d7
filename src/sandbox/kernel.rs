//! The calls of the kernel for which no library has a safe wrapper, and the few that belong with them.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::process::Pid;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The two sides of a fork.
#[derive(Debug)]
pub enum Fork {
    /// This is the new process.
    Child,
    /// This is the old one; the new one has this id.
    Parent(Pid),
}

/// Makes a copy of the calling process, which must have one thread.
pub fn fork() -> io::Result<Fork> {
    // SAFETY: the supervisor, which alone calls this, never starts a second thread, so no lock can be held by a thread
    // that the copy does not have.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        child => Pid::from_raw(child).map(Fork::Parent).ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

/// Blocks every signal, and returns what can be read when a child has ended. Nothing but the connection's end ends a
/// supervisor: what a terminal or a shell sends to a whole group of processes must not.
pub fn child_signals() -> io::Result<OwnedFd> {
    let (all, signals) = (signal_set(true), signal_set(false));
    // SAFETY: both are valid sets, and the result of `signalfd` is a new descriptor that nobody else owns.
    unsafe {
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()) == -1 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &raw const signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Gives signals back their usual effect, as a command expects it.
pub fn unblock_signals() -> io::Result<()> {
    let signals = signal_set(true);
    // SAFETY: `signals` is a valid set.
    match unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &raw const signals, std::ptr::null_mut()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// All signals, or the one that a child has ended.
fn signal_set(all: bool) -> libc::sigset_t {
    // SAFETY: an all-zero set is a valid value, and the calls only write to it.
    unsafe {
        let mut signals = std::mem::zeroed();
        if all {
            libc::sigfillset(&raw mut signals);
        } else {
            libc::sigemptyset(&raw mut signals);
            libc::sigaddset(&raw mut signals, libc::SIGCHLD);
        }
        signals
    }
}

/// Lets every descriptor but the standard three end with the next `exec`, those included that came from whoever started
/// Modegate.
pub fn close_the_rest_on_exec() -> io::Result<()> {
    // SAFETY: the call takes numbers only, and closes nothing now.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives up every capability, also for what is run from here: root is then a user like others.
pub fn drop_capabilities() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(())
}

/// Overwrites a variable's value where the system shows it (`/proc/PID/environ`). Taking it out of the environment does
/// not: the system shows the memory in which the process was handed it.
///
/// To be called while the process has one thread.
pub fn wipe_variable(name: &str) {
    let Ok(name) = std::ffi::CString::new(name) else { return };
    // SAFETY: there is one thread, so nobody changes the environment meanwhile; the value is a string that ends with a
    // zero byte, in memory that belongs to this process.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if !value.is_null() {
            std::ptr::write_bytes(value, 0, libc::strlen(value));
        }
    }
}

/// Whether the kernel filters system calls.
pub fn has_seccomp() -> bool {
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads the action and changes nothing.
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    answer == 0
}
