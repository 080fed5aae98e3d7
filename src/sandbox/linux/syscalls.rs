//! seccomp filter for read-only commands: an allowlist. Other calls, including those of future kernels, fail with
//! `ENOSYS`, and common ones with `EPERM` or `EOPNOTSUPP`, which programs handle.

use std::os::fd::OwnedFd;

use libc::{c_int, c_long, sock_filter};

use super::bpf::{self, ALLOW, BpfRule, Calls, KILL, SUSPEND, fail, has_bits, is, is_one_of, when};
use super::workspace_syscalls::{IOPRIO_WHO_PROCESS, PRIO_PROCESS, priority_of_others};
use crate::kernel;

#[rustfmt::skip]
pub(super) const ALLOWED: &[c_long] = &[
    // files that are open, and names; Landlock decides which can be opened and made
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64, libc::SYS_pwrite64,
    libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2, libc::SYS_openat,
    libc::SYS_openat2, libc::SYS_close, libc::SYS_close_range, libc::SYS_fstat, libc::SYS_newfstatat,
    libc::SYS_statx, libc::SYS_statfs, libc::SYS_fstatfs, libc::SYS_lseek, libc::SYS_faccessat,
    libc::SYS_faccessat2, libc::SYS_readlinkat, libc::SYS_getdents64, libc::SYS_getcwd, libc::SYS_chdir,
    libc::SYS_fchdir, libc::SYS_umask, libc::SYS_dup, libc::SYS_dup3, libc::SYS_pipe2, libc::SYS_flock,
    libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync_file_range, libc::SYS_fallocate, libc::SYS_fadvise64,
    libc::SYS_readahead, libc::SYS_ftruncate, libc::SYS_truncate, libc::SYS_sendfile, libc::SYS_splice,
    libc::SYS_tee, libc::SYS_vmsplice, libc::SYS_copy_file_range, libc::SYS_mkdirat, libc::SYS_unlinkat,
    libc::SYS_symlinkat, libc::SYS_linkat, libc::SYS_renameat2, libc::SYS_mknodat, libc::SYS_memfd_create,
    // waiting
    libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2, libc::SYS_eventfd2, libc::SYS_signalfd4, libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime, libc::SYS_timerfd_gettime,
    // memory
    libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_brk, libc::SYS_mremap, libc::SYS_msync,
    libc::SYS_mincore, libc::SYS_madvise, libc::SYS_mlock, libc::SYS_mlock2, libc::SYS_munlock, libc::SYS_mlockall,
    libc::SYS_munlockall, libc::SYS_membarrier, libc::SYS_pkey_alloc, libc::SYS_pkey_free, libc::SYS_pkey_mprotect,
    libc::SYS_get_mempolicy, libc::SYS_set_mempolicy, libc::SYS_mbind,
    // own processes and threads; without capabilities the kernel allows no other ids, and GNU make sets them
    // in every child
    libc::SYS_execve, libc::SYS_execveat, libc::SYS_exit, libc::SYS_exit_group, libc::SYS_wait4, libc::SYS_waitid,
    libc::SYS_pidfd_open, libc::SYS_set_tid_address, libc::SYS_set_robust_list, libc::SYS_get_robust_list,
    libc::SYS_rseq, libc::SYS_futex, libc::SYS_futex_waitv,
    libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self,
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getpgid, libc::SYS_setpgid, libc::SYS_getsid,
    libc::SYS_setsid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid,
    libc::SYS_getresuid, libc::SYS_getresgid, libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setreuid,
    libc::SYS_setregid, libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setfsuid, libc::SYS_setfsgid,
    libc::SYS_getgroups, libc::SYS_capget, libc::SYS_getrusage,
    libc::SYS_times, libc::SYS_getrlimit, libc::SYS_setrlimit, libc::SYS_getpriority, libc::SYS_ioprio_get,
    libc::SYS_sched_yield, libc::SYS_sched_getaffinity, libc::SYS_sched_getparam, libc::SYS_sched_getscheduler,
    libc::SYS_sched_getattr, libc::SYS_sched_get_priority_max, libc::SYS_sched_get_priority_min,
    libc::SYS_sched_rr_get_interval, libc::SYS_getcpu,
    // signals that the command waits for
    libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait, libc::SYS_rt_sigsuspend, libc::SYS_sigaltstack, libc::SYS_restart_syscall,
    // time, and the machine
    libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_clock_gettime, libc::SYS_clock_getres,
    libc::SYS_gettimeofday, libc::SYS_getitimer, libc::SYS_setitimer, libc::SYS_timer_create,
    libc::SYS_timer_settime, libc::SYS_timer_gettime, libc::SYS_timer_getoverrun, libc::SYS_timer_delete,
    libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom,
    // the ends of its own socket pairs
    libc::SYS_sendmsg, libc::SYS_recvmsg, libc::SYS_sendto, libc::SYS_recvfrom, libc::SYS_shutdown,
    libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_getsockname, libc::SYS_getpeername,
];

#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
pub(super) const ALLOWED_OLD: &[c_long] = &[
    libc::SYS_open, libc::SYS_creat, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink,
    libc::SYS_getdents, libc::SYS_dup2, libc::SYS_pipe, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_unlink,
    libc::SYS_symlink, libc::SYS_link, libc::SYS_rename, libc::SYS_renameat, libc::SYS_mknod, libc::SYS_poll,
    libc::SYS_select, libc::SYS_epoll_create, libc::SYS_epoll_wait, libc::SYS_eventfd, libc::SYS_signalfd,
    libc::SYS_fork, libc::SYS_vfork, libc::SYS_getpgrp, libc::SYS_arch_prctl, libc::SYS_alarm, libc::SYS_pause,
    libc::SYS_time,
];

#[cfg(target_arch = "aarch64")]
pub(super) const ALLOWED_OLD: &[c_long] = &[libc::SYS_renameat];

// Calls that `libc` does not name, at least for musl on ARM. Numbers from 424 on are the same on every architecture.
#[cfg(target_arch = "x86_64")]
pub(super) const SYS_IO_PGETEVENTS: c_long = 333;
#[cfg(target_arch = "aarch64")]
pub(super) const SYS_IO_PGETEVENTS: c_long = 292;
pub(super) const SYS_CACHESTAT: c_long = 451;
pub const SYS_FCHMODAT2: c_long = 452;
pub(super) const SYS_MAP_SHADOW_STACK: c_long = 453;
pub(super) const SYS_FUTEX_WAKE: c_long = 454;
pub(super) const SYS_FUTEX_WAIT: c_long = 455;
pub(super) const SYS_FUTEX_REQUEUE: c_long = 456;
pub(super) const SYS_STATMOUNT: c_long = 457;
pub(super) const SYS_LISTMOUNT: c_long = 458;
pub(super) const SYS_MSEAL: c_long = 462;

/// Rights, owners and times of files, which Landlock does not restrict.
#[rustfmt::skip]
pub const ATTRIBUTES: &[c_long] = &[
    libc::SYS_fchmod, libc::SYS_fchmodat, SYS_FCHMODAT2, libc::SYS_fchown, libc::SYS_fchownat,
    libc::SYS_utimensat,
];

#[rustfmt::skip]
pub const EXTENDED_ATTRIBUTES: &[c_long] = &[
    libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr, libc::SYS_removexattr, libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];

#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
pub const ATTRIBUTES_OLD: &[c_long] = &[
    libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat,
];

#[cfg(target_arch = "aarch64")]
pub const ATTRIBUTES_OLD: &[c_long] = &[];

/// `O_TMPFILE` without `O_DIRECTORY`.
pub const TMPFILE: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// Allowed only in a network of the command's own.
#[rustfmt::skip]
const SOCKETS: &[c_long] = &[
    libc::SYS_socket, libc::SYS_connect, libc::SYS_bind, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4,
];

#[rustfmt::skip]
pub(super) const OTHER_PROCESSES: &[c_long] = &[
    libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_pidfd_getfd,
    libc::SYS_kcmp, libc::SYS_process_madvise, libc::SYS_process_mrelease, libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

#[rustfmt::skip]
pub(super) const MOUNTS_AND_NAMESPACES: &[c_long] = &[
    libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_chroot, libc::SYS_unshare, libc::SYS_setns,
    libc::SYS_fsopen, libc::SYS_fsmount, libc::SYS_move_mount, libc::SYS_open_tree, libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at, libc::SYS_name_to_handle_at,
];

/// Interfaces that bypass the file system.
#[rustfmt::skip]
pub(super) const FILE_BYPASSES: &[c_long] = &[
    libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd, libc::SYS_fanotify_init, libc::SYS_keyctl,
    libc::SYS_add_key, libc::SYS_request_key,
];

/// Shared with other processes by a key or a name.
#[rustfmt::skip]
pub(super) const SHARED: &[c_long] = &[
    libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_semget, libc::SYS_semop, libc::SYS_semtimedop,
    libc::SYS_semctl, libc::SYS_msgget, libc::SYS_msgsnd, libc::SYS_msgrcv, libc::SYS_msgctl,
    libc::SYS_mq_open, libc::SYS_mq_unlink,
];

#[rustfmt::skip]
pub(super) const SYSTEM_SETTINGS: &[c_long] = &[
    libc::SYS_setgroups, libc::SYS_sethostname, libc::SYS_setdomainname,
    libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_adjtimex, libc::SYS_clock_adjtime,
    libc::SYS_syslog, libc::SYS_reboot, libc::SYS_acct, libc::SYS_swapon, libc::SYS_swapoff,
    libc::SYS_quotactl, libc::SYS_quotactl_fd,
    libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module,
];

/// Calls that fail with `EPERM`. A call without a rule is [`UNKNOWN`].
const REFUSED_GROUPS: &[&[c_long]] = &[
    SOCKETS,
    OTHER_PROCESSES,
    MOUNTS_AND_NAMESPACES,
    FILE_BYPASSES,
    SHARED,
    SYSTEM_SETTINGS,
    REFUSED_TO_READERS,
];

#[rustfmt::skip]
#[cfg(target_arch = "x86_64")]
const REFUSED_TO_READERS: &[c_long] = &[libc::SYS_capset, libc::SYS_io_uring_setup, libc::SYS_iopl, libc::SYS_ioperm];

#[cfg(target_arch = "aarch64")]
const REFUSED_TO_READERS: &[c_long] = &[libc::SYS_capset, libc::SYS_io_uring_setup];

/// Landlock does not restrict attributes, so those of any file would be readable and writable. After
/// `EOPNOTSUPP`, `cp -a` goes on without.
#[rustfmt::skip]
const UNSUPPORTED: &[c_long] = &[
    libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_fgetxattr, libc::SYS_listxattr, libc::SYS_llistxattr,
    libc::SYS_flistxattr,
];

/// Excludes leases, which delay other writers, and `F_SETOWN`, which can signal other processes.
#[rustfmt::skip]
pub(super) const FCNTL: &[i32] = &[
    libc::F_DUPFD, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL, libc::F_GETLK, libc::F_SETLK,
    libc::F_SETLKW, libc::F_GETOWN, libc::F_OFD_GETLK, libc::F_OFD_SETLK, libc::F_OFD_SETLKW, libc::F_GETLEASE,
    libc::F_DUPFD_CLOEXEC, libc::F_SETPIPE_SZ, libc::F_GETPIPE_SZ, libc::F_ADD_SEALS, libc::F_GET_SEALS,
];

/// Operations of `prctl` on the caller alone. `PR_SCHED_CORE` changes other processes.
#[rustfmt::skip]
pub(super) const PRCTL: &[i32] = &[
    libc::PR_SET_PDEATHSIG, libc::PR_GET_PDEATHSIG, libc::PR_GET_DUMPABLE, libc::PR_SET_DUMPABLE,
    libc::PR_GET_KEEPCAPS, libc::PR_SET_KEEPCAPS, libc::PR_GET_TIMING, libc::PR_SET_TIMING, libc::PR_SET_NAME,
    libc::PR_GET_NAME, libc::PR_GET_SECCOMP, libc::PR_SET_SECCOMP, libc::PR_CAPBSET_READ, libc::PR_CAPBSET_DROP,
    libc::PR_GET_TSC, libc::PR_SET_TSC, libc::PR_GET_SECUREBITS, libc::PR_SET_TIMERSLACK,
    libc::PR_GET_TIMERSLACK, libc::PR_MCE_KILL, libc::PR_MCE_KILL_GET, libc::PR_SET_CHILD_SUBREAPER,
    libc::PR_GET_CHILD_SUBREAPER, libc::PR_SET_NO_NEW_PRIVS, libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_GET_TID_ADDRESS, libc::PR_SET_THP_DISABLE, libc::PR_GET_THP_DISABLE, libc::PR_SET_FP_MODE,
    libc::PR_GET_FP_MODE, libc::PR_CAP_AMBIENT,
    50, 51, // PR_SVE_SET_VL, PR_SVE_GET_VL
    52, 53, // PR_GET_SPECULATION_CTRL, PR_SET_SPECULATION_CTRL
    54, 55, 56, // PR_PAC_RESET_KEYS, PR_SET_TAGGED_ADDR_CTRL, PR_GET_TAGGED_ADDR_CTRL
    59, 60, 61, // PR_SET_SYSCALL_USER_DISPATCH, PR_PAC_SET_ENABLED_KEYS, PR_PAC_GET_ENABLED_KEYS
    63, 64, // PR_SME_SET_VL, PR_SME_GET_VL
    65, 66, 67, 68, // PR_SET_MDWE, PR_GET_MDWE, PR_SET_MEMORY_MERGE, PR_GET_MEMORY_MERGE
    0x4155_5856, 0x5356_4d41, 0x5961_6d61, // PR_GET_AUXV, PR_SET_VMA, PR_SET_PTRACER
];

/// Allowed only if Landlock limits signals to the command's own processes.
#[rustfmt::skip]
pub(super) const SIGNALS: &[c_long] = &[
    libc::SYS_kill, libc::SYS_tkill, libc::SYS_tgkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
];

/// Allowed only with 0, the calling process, as first argument.
#[rustfmt::skip]
const SELF_ONLY: &[c_long] = &[
    libc::SYS_prlimit64, libc::SYS_sched_setaffinity, libc::SYS_sched_setscheduler, libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
];

/// `CLONE_NEWNS`, `CGROUP`, `UTS`, `IPC`, `USER`, `PID` and `NET`.
pub(super) const NEW_NAMESPACES: c_int = 0x7e02_0000;

/// Second byte of `ioctl` requests that do not change files.
pub(super) const TERMINALS: c_int = 0x5400;

/// Type or paste into a terminal, or take the console.
const TYPING: [c_int; 3] = [0x5412, 0x541c, 0x541d];

pub(super) const GET_FLAGS: c_int = 0x8008_6601_u32.cast_signed();

#[cfg(target_arch = "x86_64")]
pub(super) const OWN_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const OWN_ARCHITECTURE: u32 = 0xc000_00b7;

const UNKNOWN: u32 = fail(libc::ENOSYS);

/// A listener of the command could run calls that are suspended.
pub(super) const NEW_LISTENER: c_int = 8;

/// The variants of the filter.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::struct_excessive_bools, reason = "each is independent of the others")]
pub(super) struct ReaderLimits {
    /// Landlock limits signals to the command's own processes.
    pub(super) signals_held: bool,
    /// The command is in a network of its own.
    pub(super) has_network: bool,
    /// The supervisor opens files for the command.
    pub(super) limits_reads: bool,
}

/// The returned descriptor receives calls of [`ATTRIBUTES`] if `suspends` and the kernel can. Otherwise they
/// are refused.
pub(super) fn filter(limits: ReaderLimits, suspends: bool) -> Result<Option<OwnedFd>, String> {
    if suspends || limits.limits_reads {
        match kernel::listen(&program(limits, true)) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if limits.limits_reads => {
                return Err(format!("system calls cannot be suspended, so files cannot be denied: {error}"));
            }
            Err(_) => {}
        }
    }
    kernel::filter(&program(ReaderLimits { limits_reads: false, ..limits }, false)).map(|()| None)
}

pub(super) fn program(limits: ReaderLimits, suspends: bool) -> Vec<sock_filter> {
    // 32-bit programs have other call numbers, so they are killed.
    bpf::program(&[(OWN_ARCHITECTURE, calls(limits, suspends))], UNKNOWN, KILL)
}

fn calls(limits: ReaderLimits, suspends: bool) -> Calls {
    let ReaderLimits { signals_held, has_network, limits_reads } = limits;
    let mut calls = Calls::default();
    for allowed in [ALLOWED, ALLOWED_OLD] {
        calls.set(allowed, ALLOW);
    }
    for unsupported in [UNSUPPORTED, EXTENDED_ATTRIBUTES] {
        calls.set(unsupported, fail(libc::EOPNOTSUPP));
    }
    for refused in REFUSED_GROUPS {
        calls.set(refused, fail(libc::EPERM));
    }
    calls.set(SIGNALS, if signals_held { ALLOW } else { fail(libc::EPERM) });
    for attributes in [ATTRIBUTES, ATTRIBUTES_OLD] {
        calls.set(attributes, if suspends { SUSPEND } else { fail(libc::EPERM) });
    }
    calls.set(SELF_ONLY, when(is(0, 0), ALLOW, UNKNOWN));
    calls.set(&[libc::SYS_clone], when(has_bits(0, NEW_NAMESPACES), UNKNOWN, ALLOW));
    calls.set(&[libc::SYS_seccomp], when(has_bits(1, NEW_LISTENER), UNKNOWN, ALLOW));
    calls.set(&[libc::SYS_socketpair], pairs(UNKNOWN));
    calls.set(&[libc::SYS_fcntl], when(is_one_of(1, FCNTL), ALLOW, UNKNOWN));
    calls.set(&[libc::SYS_prctl], when(is_one_of(0, PRCTL), ALLOW, fail(libc::EINVAL)));
    calls.set(&[libc::SYS_setpriority], priority_of_others(PRIO_PROCESS, UNKNOWN));
    calls.set(&[libc::SYS_ioprio_set], priority_of_others(IOPRIO_WHO_PROCESS, UNKNOWN));
    calls.set(&[libc::SYS_ioctl], requests(UNKNOWN, &[GET_FLAGS], &[TERMINALS], UNKNOWN));
    if limits_reads {
        suspend_reads(&mut calls);
    }
    if has_network {
        calls.replace(SOCKETS, ALLOW);
        calls.replace(&[libc::SYS_socket], sockets_of_own_network());
    }
    calls
}

/// TCP and UDP, and the netlink socket that lists addresses. A UNIX socket could reach any program on this machine.
fn sockets_of_own_network() -> BpfRule {
    let refused = fail(libc::EPERM);
    let is_kind = is_one_of(1, &[libc::SOCK_STREAM, libc::SOCK_DGRAM]).masked(0xf);
    let is_protocol = is_one_of(2, &[0, libc::IPPROTO_TCP, libc::IPPROTO_UDP]);
    let internet = when(is_kind, when(is_protocol, ALLOW, refused), refused);
    let others = when(is(0, libc::AF_NETLINK), when(is(2, 0), ALLOW, refused), refused);
    when(is_one_of(0, &[libc::AF_INET, libc::AF_INET6]), internet, others)
}

/// Suspends the calls that open files, except for folders and path descriptors. The arguments of `openat2` are in
/// memory, where they could change after a look at them; programs fall back to `openat`.
pub(super) fn suspend_reads(calls: &mut Calls) {
    let harmless = |flags| when(has_bits(flags, libc::O_PATH | libc::O_DIRECTORY), ALLOW, SUSPEND);
    replace_opens(calls, |flags| when(has_bits(flags, WRITING), SUSPEND, harmless(flags)));
    calls.replace(&[libc::SYS_openat2], UNKNOWN);
}

/// Flags of calls that could write.
pub(super) const WRITING: c_int = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | TMPFILE;

#[cfg(target_arch = "x86_64")]
pub(super) const OPENS: &[c_long] = &[libc::SYS_openat, libc::SYS_open];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OPENS: &[c_long] = &[libc::SYS_openat];

/// Replaces the rule of [`OPENS`], by the argument with the flags.
pub(super) fn replace_opens(calls: &mut Calls, rule: impl Fn(u32) -> BpfRule) {
    calls.replace(&[libc::SYS_openat], rule(2));
    #[cfg(target_arch = "x86_64")]
    calls.replace(&[libc::SYS_open], rule(1));
}

/// Connected pairs reach no other process. Datagram sockets can send to any name.
pub(super) fn pairs(refused: u32) -> BpfRule {
    let is_connected = is_one_of(1, &[libc::SOCK_STREAM, libc::SOCK_SEQPACKET]).masked(0xf);
    when(is(0, libc::AF_UNIX), when(is_connected, ALLOW, refused), refused)
}

/// Allows `ioctl` with the requests in `allowed`, and with all of some kinds, which are the second bytes of requests.
pub(super) fn requests(typing: u32, allowed: &[c_int], kinds: &[c_int], otherwise: u32) -> BpfRule {
    let is_of_kind = is_one_of(1, kinds).masked(0xffff_ff00);
    let others = when(is_one_of(1, allowed), ALLOW, when(is_of_kind, ALLOW, otherwise));
    when(is_one_of(1, &TYPING), typing, others)
}

#[cfg(test)]
pub(super) mod tests;
