//! The answer of each filter to each system call, compared with `fixtures/system_calls.txt`. A changed list is a
//! changed line of that file, which `UPDATE_EXPECT=1 cargo test answers_to_all_system_calls` writes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use libc::sock_filter;

use super::bpf::{ALLOW, KILL, SUSPEND, fail, number};
use super::syscalls::{OWN_ARCHITECTURE, ReaderLimits};
use super::{agent_syscalls, broker_syscalls, syscalls, workspace_syscalls};

/// The calls from 0 on.
const NAMES: &str = "
    read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask
    rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore
    madvise shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile socket
    connect accept sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname getpeername socketpair
    setsockopt getsockopt clone fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget
    msgsnd msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename
    mkdir rmdir creat link unlink symlink readlink chmod fchmod chown fchown lchown umask gettimeofday
    getrlimit getrusage sysinfo times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid
    getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid getresgid
    getpgid setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend
    sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs getpriority setpriority
    sched_setparam sched_getparam sched_setscheduler sched_getscheduler sched_get_priority_max
    sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall vhangup modify_ldt
    pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2 swapon
    swapoff reboot sethostname setdomainname iopl ioperm create_module init_module delete_module
    get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid
    readahead setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
    removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity set_thread_area
    io_setup io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie epoll_create
    epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address restart_syscall semtimedop
    fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete clock_settime
    clock_gettime clock_getres clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind
    set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
    kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init inotify_add_watch
    inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat
    linkat symlinkat readlinkat fchmodat faccessat pselect6 ppoll unshare set_robust_list get_robust_list
    splice tee sync_file_range vmsplice move_pages utimensat epoll_pwait signalfd timerfd_create eventfd
    fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3 pipe2
    inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark
    prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv
    process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create
    kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect
    pkey_alloc pkey_free statx io_pgetevents rseq
";

/// The calls from [`FIRST_LATER`] on, whose numbers are the same on every architecture.
const LATER_NAMES: &str = "
    pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig
    fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2
    mount_setattr quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret
    process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake
    futex_wait futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
    setxattrat getxattrat listxattrat removexattrat open_tree_attr
";

const FIRST_LATER: u32 = 424;

const X32: u32 = 0x4000_0000;
const OTHER_ARCHITECTURE: u32 = 0x4000_0003;

/// Beyond the newest call of every kernel.
const LAST: u32 = 1024;

fn names() -> BTreeMap<u32, &'static str> {
    let first = (0..).zip(NAMES.split_whitespace());
    first.chain((FIRST_LATER..).zip(LATER_NAMES.split_whitespace())).collect()
}

/// A filter of each confinement.
fn filters() -> [(&'static str, Vec<sock_filter>); 4] {
    [
        ("read-only", syscalls::program(LIMITS, true)),
        ("agent", agent_syscalls::program(agent_syscalls::calls())),
        ("brokered", broker_syscalls::program(false, false)),
        ("workspace", workspace_syscalls::program()),
    ]
}

const LIMITS: ReaderLimits = ReaderLimits { signals_held: true, has_network: false, limits_reads: false };

/// Filters that differ from one of [`filters`] for some calls.
fn variants() -> [(&'static str, &'static str, Vec<sock_filter>); 7] {
    let reading = |limits, suspends| syscalls::program(limits, suspends);
    [
        ("read-only", "nothing is suspended", reading(LIMITS, false)),
        ("read-only", "signals reach others", reading(ReaderLimits { signals_held: false, ..LIMITS }, true)),
        ("read-only", "own network", reading(ReaderLimits { has_network: true, ..LIMITS }, true)),
        ("read-only", "denied files", reading(ReaderLimits { limits_reads: true, ..LIMITS }, true)),
        ("brokered", "limited hosts", broker_syscalls::program(true, false)),
        ("brokered", "denied files", broker_syscalls::program(false, true)),
        ("brokered", "limited hosts, denied files", broker_syscalls::program(true, true)),
    ]
}

/// The value that an instruction compares.
#[derive(Clone, Copy)]
enum Loaded {
    Known(u32),
    Argument { offset: u32, mask: u32 },
}

impl Loaded {
    fn name(self) -> String {
        let Self::Argument { offset, mask } = self else { panic!("not an argument") };
        let half = if offset % 8 == 4 { ".high" } else { "" };
        let mask = if mask == u32::MAX { String::new() } else { format!("&{mask:#x}") };
        format!("arg{}{half}{mask}", (offset - 16) / 8)
    }
}

/// Tests of arguments that lead to an answer.
struct AnswerPath {
    tests: Vec<String>,
    /// The argument that the last test compares, and the values that lead to the answer.
    last: Option<(String, Vec<String>)>,
    answer: u32,
}

/// Follows all paths of a program for one call. The first path whose tests succeed is taken.
struct Explorer<'a> {
    program: &'a [sock_filter],
    architecture: u32,
    number: u32,
    paths: Vec<AnswerPath>,
}

impl Explorer<'_> {
    fn explore(&mut self, mut at: usize, mut loaded: Loaded, tests: &mut Vec<(String, String)>) {
        loop {
            let sock_filter { code, jt, jf, k } = self.program[at];
            at += 1;
            match (code, loaded) {
                (0x20, _) => {
                    loaded = match k {
                        0 => Loaded::Known(self.number),
                        4 => Loaded::Known(self.architecture),
                        offset => Loaded::Argument { offset, mask: u32::MAX },
                    }
                }
                (0x54, Loaded::Argument { offset, .. }) => loaded = Loaded::Argument { offset, mask: k },
                (0x05, _) => at += k as usize,
                (0x15 | 0x25, Loaded::Known(value)) => {
                    let holds = if code == 0x15 { value == k } else { value > k };
                    at += usize::from(if holds { jt } else { jf });
                }
                (0x15 | 0x45, Loaded::Argument { .. }) => {
                    let name = if code == 0x15 { loaded.name() } else { format!("{}&", loaded.name()) };
                    tests.push((name, format!("{k:#x}")));
                    self.explore(at + usize::from(jt), loaded, tests);
                    tests.pop();
                    at += usize::from(jf);
                }
                (0x06, _) => return self.add(tests, k),
                _ => panic!("instruction {code:#x}"),
            }
        }
    }

    /// Paths that differ by the value of the last test alone become one.
    fn add(&mut self, tests: &[(String, String)], answer: u32) {
        let Some(((name, value), before)) = tests.split_last() else {
            return self.paths.push(AnswerPath { tests: Vec::new(), last: None, answer });
        };
        let tests: Vec<String> = before.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if let Some(AnswerPath { tests: same, last: Some((argument, values)), answer: given }) =
            self.paths.last_mut()
            && (&*same, &*argument, *given) == (&tests, name, answer)
        {
            return values.push(value.clone());
        }
        self.paths.push(AnswerPath { tests, last: Some((name.clone(), vec![value.clone()])), answer });
    }
}

fn rule(program: &[sock_filter], architecture: u32, number: u32) -> String {
    let mut explorer = Explorer { program, architecture, number, paths: Vec::new() };
    explorer.explore(0, Loaded::Known(0), &mut Vec::new());
    let rules = explorer.paths.into_iter().map(|AnswerPath { mut tests, last, answer }| {
        tests.extend(last.map(|(argument, values)| format!("{argument}={}", values.join("|"))));
        if tests.is_empty() { name(answer) } else { format!("{}: {}", tests.join(" "), name(answer)) }
    });
    rules.collect::<Vec<_>>().join("; ")
}

fn name(answer: u32) -> String {
    let errors = [
        (0, "success"),
        (libc::EPERM, "EPERM"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENOTTY, "ENOTTY"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    ];
    let error = errors.iter().find(|(error, _)| fail(*error) == answer);
    match answer {
        ALLOW => "allow".into(),
        SUSPEND => "suspend".into(),
        KILL => "kill".into(),
        _ => error.map_or_else(|| format!("{answer:#x}"), |(_, name)| (*name).into()),
    }
}

fn is_by_argument(rule: &str) -> bool {
    rule.contains(':')
}

const HEADER: &str = "\
Written by `UPDATE_EXPECT=1 cargo test answers_to_all_system_calls`. x86-64.

allow: the call runs. suspend: the supervisor decides. success: the call does nothing and returns 0. kill: the process
ends. An error: the call fails with it. argument: see below.

";

const BY_ARGUMENT: &str = "
By argument. The first test that holds decides. arg1&=0x3: has any of these bits. arg2.high: its upper half.
";

fn text() -> String {
    let names = names();
    let mut text = HEADER.to_owned();
    add_table(&mut text, &names);
    add_rules_by_argument(&mut text, &names);
    add_variants(&mut text, &names);
    add_other_numbers(&mut text);
    text
}

fn rules_of(filters: &[(&str, Vec<sock_filter>); 4], call: u32) -> [String; 4] {
    filters.each_ref().map(|(_, program)| rule(program, OWN_ARCHITECTURE, call))
}

fn add_table(text: &mut String, names: &BTreeMap<u32, &str>) {
    let filters = filters();
    let mut row = |name: &str, cells: [String; 4]| {
        let line = format!("{name:25}{:11}{:11}{:11}{}", cells[0], cells[1], cells[2], cells[3]);
        writeln!(text, "{}", line.trim_end()).unwrap();
    };
    row("call", filters.each_ref().map(|(name, _)| (*name).to_owned()));
    let cell = |rule: String| if is_by_argument(&rule) { "argument".into() } else { rule };
    for (call, name) in names {
        row(name, rules_of(&filters, *call).map(cell));
    }
    row("any other", rules_of(&filters, LAST).map(cell));
}

fn add_rules_by_argument(text: &mut String, names: &BTreeMap<u32, &str>) {
    text.push_str(BY_ARGUMENT);
    let filters = filters();
    for (call, name) in names {
        let mut confinements: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for ((confinement, _), rule) in filters.iter().zip(rules_of(&filters, *call)) {
            if is_by_argument(&rule) {
                confinements.entry(rule).or_default().push(confinement);
            }
        }
        for (rule, confinements) in confinements {
            writeln!(text, "{name} ({}): {rule}", confinements.join(", ")).unwrap();
        }
    }
}

fn add_variants(text: &mut String, names: &BTreeMap<u32, &str>) {
    let filters = filters();
    for (base, variant, program) in variants() {
        let (_, base_program) = filters.iter().find(|(name, _)| *name == base).unwrap();
        writeln!(text, "\n{base}, {variant}").unwrap();
        for (call, name) in names {
            let rule_of = |program| rule(program, OWN_ARCHITECTURE, *call);
            if rule_of(&program) != rule_of(base_program) {
                writeln!(text, "{name}: {}", rule_of(&program)).unwrap();
            }
        }
    }
}

fn add_other_numbers(text: &mut String) {
    for (table, architecture, start) in
        [("x32", OWN_ARCHITECTURE, X32), ("32-bit programs", OTHER_ARCHITECTURE, 0)]
    {
        for (confinement, program) in filters() {
            let others = rule(&program, architecture, start + LAST);
            writeln!(text, "\n{confinement}, {table}\nany other: {others}").unwrap();
            for call in 0..LAST {
                let rule = rule(&program, architecture, start + call);
                if rule != others {
                    writeln!(text, "{call}: {rule}").unwrap();
                }
            }
        }
    }
}

#[test]
fn answers_to_all_system_calls_are_as_recorded() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/system_calls.txt");
    let text = text();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap();
    let lines = text.lines().zip(expected.lines()).filter(|(line, expected)| line != expected);
    let changed: Vec<String> =
        lines.map(|(line, expected)| format!("-{expected}\n+{line}\n")).take(20).collect();
    assert!(changed.is_empty(), "answers changed; UPDATE_EXPECT=1 writes them:\n{}", changed.concat());
    assert_eq!(text, expected);
}

#[test]
fn each_call_with_an_answer_of_its_own_has_a_name() {
    let names = names();
    for (call, name) in [(libc::SYS_read, "read"), (libc::SYS_rseq, "rseq"), (libc::SYS_mseal, "mseal")] {
        assert_eq!(names.get(&number(call)), Some(&name));
    }
    let variants = variants().into_iter().map(|(_, _, program)| program);
    for program in filters().into_iter().map(|(_, program)| program).chain(variants) {
        let rule = |call| rule(&program, OWN_ARCHITECTURE, call);
        for call in (0..LAST).filter(|call| !names.contains_key(call)) {
            assert_eq!(rule(call), rule(LAST), "{call} has no name in this test");
        }
    }
}
