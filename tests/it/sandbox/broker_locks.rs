//! Changes of a brokered command wait for the other writers of this user.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use modegate::file_lock::{FileLock, FileLocks};
use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::process::{Event, Process};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::fixture::SandboxFixture;
use crate::support::requirements::require_sandbox;
use crate::support::shell;

/// Longer than an unblocked command needs.
const WATCHED: Duration = Duration::from_millis(300);
const LIMIT: Duration = Duration::from_mins(1);

/// Lines that change `a.txt`.
const CHANGES: &[&str] = &[
    "echo x > a.txt",
    "echo x >> a.txt",
    "echo x 1<> a.txt",
    "truncate -s 3 a.txt",
    "rm a.txt",
    "mv a.txt b.txt",
    "mv other.txt a.txt",
    "sed -i s/old/new/ a.txt",
    "ln -s a.txt link && echo x > link",
    "cd sub && echo x > ../a.txt",
];

/// Locks `a.txt` as another writer does. Returns the folder of the locks, too.
fn lock(fixture: &SandboxFixture) -> (PathBuf, FileLock) {
    let folder = fixture.home().join("locks");
    let file = fixture.work().join("a.txt");
    let lock = FileLocks::in_folder(&folder).lock([file.as_path()], &|| false).unwrap();
    (folder, lock)
}

/// Runs a line that first prints `begun`, and `over` if it succeeds.
async fn start(fixture: &SandboxFixture, line: &str, locks: &Path) -> Process {
    let shell = shell(&fixture.home(), Sandbox::Workspace).with_file_locks(Some(locks));
    let sandbox = shell
        .brokered_agent(
            AgentFolders::of(&[fixture.work()], &[]),
            BrokerPolicy::Roots,
            None,
            AgentNetwork::OPEN,
        )
        .expect("the kernel can sandbox it");
    std::fs::write(fixture.work().join("other.txt"), "other\n").unwrap();
    shell.start(&format!("echo begun && {line} && echo over"), &fixture.work(), &sandbox).await.unwrap()
}

/// Returns true once the output has the word, and false if the process ends without it.
async fn prints(process: &mut Process, word: &str) -> bool {
    let mut output = String::new();
    while let Some(event) = process.next().await {
        if let Event::Output(bytes) = event {
            output += &String::from_utf8_lossy(&bytes);
            if output.contains(word) {
                return true;
            }
        }
    }
    false
}

async fn ends_within(limit: Duration, process: &mut Process) -> bool {
    tokio::time::timeout(limit, prints(process, "over")).await.unwrap_or(false)
}

#[tokio::test]
async fn changes_wait_while_another_writer_has_locked_the_file() {
    require_sandbox();
    for line in CHANGES {
        let fixture = SandboxFixture::new();
        let (folder, lock) = lock(&fixture);
        let mut process = start(&fixture, line, &folder).await;
        assert!(prints(&mut process, "begun").await, "{line}");
        assert!(!ends_within(WATCHED, &mut process).await, "{line}: did not wait");
        drop(lock);
        assert!(ends_within(LIMIT, &mut process).await, "{line}: did not go on");
    }
}

#[tokio::test]
async fn changes_of_other_files_do_not_wait() {
    require_sandbox();
    let fixture = SandboxFixture::new();
    let (folder, _lock) = lock(&fixture);
    let mut process = start(&fixture, "echo x > other.txt && mv other.txt b.txt && rm b.txt", &folder).await;
    assert!(ends_within(LIMIT, &mut process).await);
}

#[tokio::test]
async fn lock_that_is_never_released_only_delays_a_command() {
    require_sandbox();
    let fixture = SandboxFixture::new();
    let (folder, _lock) = lock(&fixture);
    let mut process = start(&fixture, "echo x > a.txt", &folder).await;
    assert!(ends_within(LIMIT, &mut process).await);
}

/// Takes a lease of a file, says so, and gives it back at the end of its input.
const LEASE_HOLDER: &str = "import fcntl, os, signal, sys\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n\
    file = os.open(sys.argv[1], os.O_RDONLY)\nfcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)\n\
    sys.stdout.write('.')\nsys.stdout.flush()\nsys.stdin.read()";

/// Lines that write to `a.txt`, and whether the kernel has them wait for the end of a lease.
const WRITES: &[(&str, bool)] = &[
    ("echo x >> a.txt", true),
    ("echo x 1<> a.txt", true),
    ("python3 -c \"import os; os.truncate('a.txt', 1)\"", true),
    (
        "! python3 -c \"import os; os.open('a.txt', os.O_WRONLY | os.O_NONBLOCK)\" 2> error && grep Errno.11 error",
        false,
    ),
];

fn lease(file: &Path) -> Child {
    let mut holder = Command::new("python3");
    holder.arg("-c").arg(LEASE_HOLDER).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    holder.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    holder
}

#[tokio::test]
async fn changes_wait_while_another_program_has_a_lease() {
    require_sandbox();
    for (line, waits) in WRITES {
        let fixture = SandboxFixture::new();
        let mut holder = lease(&fixture.work().join("a.txt"));
        let mut process = start(&fixture, line, &fixture.home().join("locks")).await;
        assert!(prints(&mut process, "begun").await, "{line}");
        let limit = if *waits { WATCHED } else { LIMIT };
        assert_eq!(ends_within(limit, &mut process).await, !waits, "{line}");
        drop(holder.stdin.take());
        if *waits {
            assert!(ends_within(LIMIT, &mut process).await, "{line}: did not go on");
        }
        holder.wait().unwrap();
    }
}
