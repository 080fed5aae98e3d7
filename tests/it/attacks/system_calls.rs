//! System calls that reach other programs without a file: objects with a key, leases, priorities, and
//! processor affinity.

use std::process::{Command, Stdio};

use modegate::config::environment::Environment;
use modegate::config::policies::Policies;

use super::held::{ALL, Held, IN_PLAN, has_effect, successes};
use crate::sandbox::commands::free;
use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::{python, require_sandbox};

/// Attacks on objects of another program: a semaphore, a queue and shared memory.
const SHARED: &[&str] = &[
    "{helper} semop {semaphore}",
    "{helper} semop-raw {semaphore}",
    "{helper} semtimedop {semaphore}",
    "{helper} semtimedop-forever {semaphore}",
    "{helper} semctl {semaphore}",
    "{helper} msgsnd {queue}",
    "{helper} shmat {memory}",
    "{helper} semget",
    "{helper} msgget",
    "{helper} mq",
];

/// Attacks on another program, and on files that the attacker may only read.
const OTHERS: &[&str] = &[
    "{helper} lease-write {outside}/kept.txt",
    "{helper} lease-after-fork {outside}/kept.txt",
    "{helper} lease {outside}/kept.txt",
    "{helper} affinity {victim}",
    "{helper} affinity-thread {victim}",
    "{helper} scheduler {victim}",
    "{helper} sched-param {victim}",
    "{helper} sched-attr {victim}",
    "{helper} setpriority {victim}",
    "{helper} group-priority {victim}",
    "{helper} ioprio {victim}",
    "{helper} prlimit {victim}",
    "{helper} move-pages {victim} {address}",
    "{helper} migrate-pages {victim}",
];

const IN_PLAN_ONLY: &[&str] = &[
    "{helper} notify {outside}",
    "{helper} sched-core {victim}",
    "{helper} mrelease {victim}",
    "{helper} kcmp {victim}",
    "{helper} pidfd-getfd {victim}",
    "{helper} listener a.txt",
];

/// A semaphore, a queue and shared memory of the test.
struct SharedObjects([String; 3]);

impl SharedObjects {
    fn helper(arguments: &[&str]) -> String {
        let fixture = SandboxFixture::new();
        let output = Command::new(fixture.work().join("helper")).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn new() -> Self {
        let text = Self::helper(&["make-shared"]);
        let ids: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        Self(ids.try_into().unwrap())
    }

    fn fill_in(&self, line: &str) -> String {
        let [semaphore, queue, memory] = &self.0;
        line.replace("{semaphore}", semaphore).replace("{queue}", queue).replace("{memory}", memory)
    }
}

impl Drop for SharedObjects {
    fn drop(&mut self) {
        let [semaphore, queue, memory] = &self.0;
        Self::helper(&["remove-shared", semaphore, queue, memory]);
    }
}

#[tokio::test]
async fn objects_shared_by_a_key_stay_out_of_reach_in_plan() {
    require_sandbox();
    let shared = SharedObjects::new();
    let lines: Vec<_> = SHARED.iter().map(|line| shared.fill_in(line)).collect();
    let lines: Vec<_> = lines.iter().map(String::as_str).collect();
    let (successes, counting) = successes(&lines, IN_PLAN).await;
    assert!(successes.is_empty(), "{}", successes.join("\n"));
    assert!(counting >= 9, "only {counting} of {} count", lines.len());
}

/// The broker makes segments of the program's own (`sandbox/shared_memory`).
#[tokio::test]
async fn segments_are_made_with_the_broker_only() {
    require_sandbox();
    let (successes, counting) = successes(&["{helper} shmget"], &[Held::ReadOnly, Held::Agent]).await;
    assert!(successes.is_empty(), "{}", successes.join("\n"));
    assert_eq!(counting, 1);
}

#[tokio::test]
async fn other_programs_and_foreign_files_are_not_disturbed() {
    require_sandbox();
    let (all, counting) = successes(OTHERS, ALL).await;
    assert!(all.is_empty(), "{}", all.join("\n"));
    // Some attacks need a newer kernel.
    assert!(counting >= 11, "only {counting} of {} count", OTHERS.len());
    let (in_plan, counting) = successes(IN_PLAN_ONLY, IN_PLAN).await;
    assert!(in_plan.is_empty(), "{}", in_plan.join("\n"));
    assert!(counting >= 4, "only {counting} of {} count", IN_PLAN_ONLY.len());
}

/// Ordinary uses of the same calls.
const USEFUL: &[&str] = &[
    "{helper} own-ids && {helper} own-priority",
    "taskset -p 1 $$ > /dev/null || true; taskset 1 true",
    "(flock 9; echo x) 9< a.txt",
    "exec 5<>$TMPDIR/f 6>&5; echo x >&6",
    "python3 -c 'import fcntl, os; f = open(os.environ[\"TMPDIR\"] + \"/l\", \"w\"); fcntl.lockf(f, fcntl.LOCK_EX)'",
    "python3 -c 'import threading; t = threading.Thread(target=print, name=\"x\"); t.start(); t.join()'",
];

#[tokio::test]
async fn locks_threads_and_own_processors_work() {
    require_sandbox();
    for held in ALL {
        for line in USEFUL {
            let line = line.replace("python3", python());
            // The temporary folder of this sandbox is not in the fixture.
            let line = if *held == Held::Workspace { format!("export TMPDIR=$PWD; {line}") } else { line };
            let (text, exit) = held.run(&SandboxFixture::new(), &line).await;
            assert_eq!(exit, Some(modegate::process::Exit::Status(0)), "{held:?} {line}: {text}");
        }
    }
}

/// Rules that cannot be read at the moment count as the strictest rules.
#[tokio::test]
async fn lease_on_rules_does_not_lift_them() {
    let fixture = SandboxFixture::new();
    let folder = fixture.home().join(".config/modegate");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["modes.yaml", "permissions.yaml"] {
        let file = folder.join(name);
        std::fs::write(&file, "{}\n").unwrap();
        let mut environment = Environment::default();
        environment.config_folder = Some(folder.clone());
        let problems = || Policies::new(&environment, None, false).own().problems.len();
        assert_eq!(problems(), 0, "the control");
        let code = "import fcntl, signal, sys, time\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n\
            f = open(sys.argv[1])\nfcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)\nprint(1, flush=True)\n\
            sys.stdin.read()";
        let mut holder = Command::new(python())
            .args(["-c", code])
            .arg(&file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read(holder.stdout.as_mut().unwrap(), &mut [0; 8]).unwrap();
        assert_eq!(problems(), 1, "{name}");
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert_eq!(problems(), 0, "{name}");
    }
    let control = free(&fixture, "{helper} lease-write {outside}/kept.txt").await;
    assert!(has_effect(&control), "{control}");
}
