//! System calls for which no library has a safe wrapper, and related calls.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::sock_filter;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{self, Pid, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Returns the error of a call that returned -1.
pub(crate) fn checked<Number: PartialEq + From<i8>>(result: Number) -> io::Result<Number> {
    if result == Number::from(-1) { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[derive(Debug)]
pub enum Fork {
    Child,
    Parent(Pid),
}

/// The calling process must have one thread.
pub fn fork() -> io::Result<Fork> {
    // SAFETY: only the fork server and supervisors call this, before they start a second thread, so no
    // lock can belong to a thread that the child lacks.
    match checked(unsafe { libc::fork() })? {
        0 => Ok(Fork::Child),
        child => Pid::from_raw(child).map(Fork::Parent).ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

/// Blocks all signals, because a signal to a process group must not end a supervisor.
pub fn block_signals() -> io::Result<()> {
    mask_all_signals(libc::SIG_BLOCK)
}

pub fn unblock_signals() -> io::Result<()> {
    mask_all_signals(libc::SIG_UNBLOCK)
}

fn mask_all_signals(how: libc::c_int) -> io::Result<()> {
    let signals = signal_set(true);
    // SAFETY: `signals` is a valid set.
    checked(unsafe { libc::sigprocmask(how, &raw const signals, std::ptr::null_mut()) }).map(drop)
}

/// Children that end leave no zombies. Forked processes inherit this setting.
pub fn ignore_ended_children(ignore: bool) -> io::Result<()> {
    let handler = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither is a function, so no code runs on the signal.
    match unsafe { libc::signal(libc::SIGCHLD, handler) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The returned descriptor becomes readable when a child ends. Signals must be blocked.
pub fn child_signals() -> io::Result<OwnedFd> {
    let signals = signal_set(false);
    // SAFETY: `signals` is a valid set, and the result is a new descriptor without another owner.
    unsafe {
        let fd = libc::signalfd(-1, &raw const signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        Ok(OwnedFd::from_raw_fd(checked(fd)?))
    }
}

/// Blocks these signals, and returns a descriptor from which [`next_signal`] reads them.
pub fn receive_signals(signals: &[Signal]) -> io::Result<OwnedFd> {
    let set = set_of(signals);
    // SAFETY: `set` is a valid set, and the result is a new descriptor without another owner.
    unsafe {
        checked(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        Ok(OwnedFd::from_raw_fd(checked(fd)?))
    }
}

/// Takes a signal that has come. `None` if none has.
pub fn next_signal(signals: &OwnedFd) -> Option<Signal> {
    let mut info = [0; size_of::<libc::signalfd_siginfo>()];
    let count = rustix::io::read(signals, &mut info).ok()?;
    let number = info.get(..count)?.first_chunk()?;
    Signal::from_named_raw(i32::from_ne_bytes(*number))
}

/// Stops the process group of this process, and returns after it is continued. Does nothing if no shell could
/// continue the group. `SIGTSTP` may be blocked.
pub fn stop_own_group() -> io::Result<()> {
    with_mask(libc::SIG_UNBLOCK, Signal::TSTP, || {
        process::kill_current_process_group(Signal::TSTP).map_err(Into::into)
    })
}

/// Puts a process group into the foreground of the terminal of this session, also from the background.
pub fn set_foreground(terminal: &impl AsFd, group: Pid) -> io::Result<()> {
    with_mask(libc::SIG_BLOCK, Signal::TTOU, || {
        rustix::termios::tcsetpgrp(terminal, group).map_err(Into::into)
    })
}

/// Runs a call while a signal is blocked or not.
fn with_mask(how: libc::c_int, signal: Signal, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let changed = set_of(&[signal]);
    let mut before = signal_set(false);
    // SAFETY: both sets are valid.
    checked(unsafe { libc::sigprocmask(how, &raw const changed, &raw mut before) })?;
    let done = call();
    // SAFETY: `before` is a valid set.
    checked(unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) })?;
    done
}

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    // SAFETY: an all-zero set is a valid value, and the calls only write to it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, signal.as_raw());
        }
        set
    }
}

/// All signals, or only `SIGCHLD`.
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

/// Includes descriptors that Modegate inherited.
pub fn close_the_rest_on_exec() -> io::Result<()> {
    // SAFETY: the call takes numbers only, and closes nothing now.
    checked(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) }).map(drop)
}

/// Applies to executed programs too: root becomes an ordinary user.
pub fn drop_capabilities() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)?;
    Ok(())
}

/// Moves the calling process, which must have one thread, into new namespaces.
pub fn leave_namespaces(kinds: UnshareFlags) -> io::Result<()> {
    // SAFETY: the process has one thread, so no other one sees its descriptors.
    unsafe { rustix::thread::unshare_unsafe(kinds) }.map_err(Into::into)
}

/// Switches on the loopback interface of the network that the calling process is in.
pub fn switch_on_loopback() -> io::Result<()> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: an all-zero request is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(b"lo") {
        *place = byte.cast_signed();
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the call reads `request`, which is valid.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), SET_INTERFACE_FLAGS, &raw const request) }).map(drop)
}

/// Overwrites the value in `/proc/PID/environ`, the initial memory of the process, which must have one
/// thread.
pub fn wipe_variable(name: &str) {
    let Ok(name) = std::ffi::CString::new(name) else { return };
    // SAFETY: there is one thread, so the environment does not change during the call; the value is a string
    // that ends with a zero byte, in memory that belongs to this process.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if !value.is_null() {
            std::ptr::write_bytes(value, 0, libc::strlen(value));
        }
    }
}

/// Returns true if some process can write to the file through an open descriptor or a shared mapping, including
/// descriptors that are being passed through a socket.
///
/// # Errors
/// Returns an error if the file system cannot tell, or the file belongs to another user. `file` must be open for
/// reading only.
pub fn has_writers(file: BorrowedFd<'_>) -> io::Result<bool> {
    // The kernel refuses a read lease while the file is open for writing.
    match take_read_lease(file) {
        Ok(()) => set_lease(file, libc::F_UNLCK).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

/// Makes or finds a System V segment.
pub fn segment(key: i32, size: usize, flags: i32) -> io::Result<i32> {
    // SAFETY: the call gets no pointers.
    checked(unsafe { libc::shmget(key, size, flags) })
}

/// The segment of a key, of whatever size.
pub fn find_segment(key: i32) -> io::Result<i32> {
    segment(key, 0, 0)
}

/// Removes a segment when no process is attached to it any more.
pub fn remove_segment(id: i32) -> io::Result<()> {
    // SAFETY: this command needs no buffer.
    checked(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) }).map(drop)
}

/// Calls `read` with the address of a shared, read-only mapping of the file.
pub fn while_mapped<T>(file: BorrowedFd<'_>, read: impl FnOnce(usize) -> T) -> io::Result<T> {
    // SAFETY: the kernel chooses the address, and nothing is read from it.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), 1, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let result = read(address.addr());
    // SAFETY: this is the mapping from above.
    checked(unsafe { libc::munmap(address, 1) })?;
    Ok(result)
}

/// Locks one byte of an open file description against all others. Returns false if another one has it.
pub fn try_lock_byte(file: &File, offset: u64) -> io::Result<bool> {
    match change_lock(file, libc::F_WRLCK, offset, 1) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns true if the file system has no locks, such as NFS without its lock service.
pub fn has_no_locks(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL))
}

/// Releases all locks of an open file description, as closing the file does. Returns false if that fails.
pub fn unlock_all(file: &File) -> bool {
    change_lock(file, libc::F_UNLCK, 0, 0).is_ok()
}

fn change_lock(file: &File, kind: libc::c_int, offset: u64, length: libc::off_t) -> io::Result<()> {
    // SAFETY: an all-zero lock is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::c_short::try_from(kind).map_err(|_| io::ErrorKind::InvalidInput)?;
    lock.l_whence = libc::c_short::try_from(libc::SEEK_SET).map_err(|_| io::ErrorKind::InvalidInput)?;
    lock.l_start = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    lock.l_len = length;
    // SAFETY: the call reads `lock`, which is valid.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }).map(drop)
}

/// Changes the mode of a file, also by a path descriptor.
///
/// # Errors
/// Always fails before Linux 6.6.
pub fn change_mode(file: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    // `fchmodat2`, which has this number on every architecture.
    const NUMBER: libc::c_long = 452;
    // SAFETY: the path is valid and empty, and the other arguments are numbers.
    let changed = unsafe { libc::syscall(NUMBER, file.as_raw_fd(), c"".as_ptr(), mode, libc::AT_EMPTY_PATH) };
    checked(changed).map(drop)
}

/// Makes every program wait that opens the file for writing, until the descriptor is closed. `file` must be open for
/// reading only.
///
/// # Errors
/// Fails with [`io::ErrorKind::WouldBlock`] if the file has a writer, and if it belongs to another user.
pub fn take_read_lease(file: BorrowedFd<'_>) -> io::Result<()> {
    set_lease(file, libc::F_RDLCK)
}

/// Returns false if a program waits for the end of the lease, or opened the file for writing before
/// [`take_read_lease`].
pub fn has_read_lease(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
}

fn set_lease(file: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    checked(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) }).map(drop)
}

/// `SIOCSIFFLAGS`, whose type in `libc` is not that of a request everywhere.
const SET_INTERFACE_FLAGS: libc::Ioctl = 0x8914;

/// Index of the loopback interface in every network namespace.
const LOOPBACK: libc::c_int = 1;

/// Ties a socket to the loopback interface: whatever its address becomes, only this machine reaches it. Without
/// `CAP_NET_RAW`, no process unties it.
///
/// # Errors
/// Fails if the socket is tied to another interface.
pub fn tie_to_loopback(socket: BorrowedFd<'_>) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    let mut index = LOOPBACK;
    let mut size = libc::socklen_t::try_from(size_of_val(&index)).expect("a few bytes");
    let pointer = &raw mut index;
    // SAFETY: the pointer is valid for `size` bytes.
    let set = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, pointer.cast_const().cast(), size)
    };
    let Err(error) = checked(set) else { return Ok(()) };
    // SAFETY: as above; the call writes at most `size` bytes.
    let read = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, pointer.cast(), &raw mut size)
    };
    if checked(read).is_ok() && index == LOOPBACK { Ok(()) } else { Err(error) }
}

/// Filters the system calls of this process and of all that it starts, for good.
pub fn filter(program: &[sock_filter]) -> Result<(), String> {
    let filtered = rustix::thread::set_no_new_privs(true).map_err(io::Error::from);
    let filtered = filtered.and_then(|()| install_filter(program, 0));
    filtered.map(drop).map_err(|error| format!("system calls cannot be filtered: {error}"))
}

fn install_filter(program: &[sock_filter], flags: libc::c_ulong) -> io::Result<libc::c_long> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: `program` is valid for the call, which only reads it.
    checked(unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) })
}

pub fn has_seccomp() -> bool {
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads the action and changes nothing.
    let answer =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    answer == 0
}

/// Installs a filter. The returned descriptor receives the calls that the filter suspends.
pub fn listen(program: &[sock_filter]) -> io::Result<OwnedFd> {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let fd = install_filter(program, flags)?;
    let fd = i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the result is a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Tells tasks when the descriptor is ready. Needs a runtime. Fails for files.
pub fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open, and stays the same, until it is dropped.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}
