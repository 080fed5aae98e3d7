//! Names of shared memory of brokered commands: those that a command has made are its own, under every policy.

use std::path::PathBuf;
use std::time::Duration;

use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::process::{BrokerEvent, Event, Process};
use modegate::sandbox::BrokerPolicy;

use crate::support::requirements::{python, require_sandbox};
use crate::support::shell;

const POLICIES: [BrokerPolicy; 3] = [BrokerPolicy::Nothing, BrokerPolicy::Ask, BrokerPolicy::Roots];

/// A file in `/dev/shm` that belongs to another program.
struct Theirs(PathBuf);

impl Theirs {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/modegate-{name}-{}", std::process::id()));
        std::fs::write(&path, "theirs").unwrap();
        Self(path)
    }

    fn content(&self) -> Option<String> {
        std::fs::read_to_string(&self.0).ok()
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // The command may have removed it, in the control.
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn start(folder: &tempfile::TempDir, script: &str, policy: BrokerPolicy) -> Process {
    require_sandbox();
    let shell = shell(folder.path(), Sandbox::Workspace);
    let roots = [folder.path().to_owned()];
    let sandbox =
        shell.brokered_agent(AgentFolders::of(&roots, &[]), policy, None, AgentNetwork::OPEN).unwrap();
    let line = format!("exec {} -c \"{script}\" 2>&1", python());
    shell.start(&line, folder.path(), &sandbox).await.unwrap()
}

/// Returns the output. Fails on a question.
async fn finish(process: &mut Process) -> String {
    let mut output = Vec::new();
    while let Some(event) = process.next().await {
        match event {
            Event::Output(bytes) | Event::Error(bytes) => output.extend(bytes),
            Event::Broker(BrokerEvent::Asked(question)) => panic!("asked: {question:?}"),
            Event::Failed(reason) => panic!("{reason}"),
            _ => {}
        }
    }
    String::from_utf8_lossy(&output).trim().to_owned()
}

async fn run(script: &str, policy: BrokerPolicy) -> String {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    finish(&mut start(&folder, script, policy).await).await
}

#[tokio::test]
async fn programs_share_memory_of_their_own() {
    for (script, expected) in [
        ("import multiprocessing as m; print(m.Pool(2).map(abs, [-1, -2]))", "[1, 2]"),
        ("import multiprocessing as m; s = m.Semaphore(2); s.acquire(); print(s.get_value())", "1"),
        (
            "from multiprocessing import shared_memory as m\na = m.SharedMemory(create=True, size=8)
b = m.SharedMemory(name=a.name); a.buf[0] = 7; print(b.buf[0]); b.close(); a.close(); a.unlink()",
            "7",
        ),
        (
            "import os; p = '/dev/shm/modegate-%d' % os.getpid(); q = p + '.2'
f = open(p, 'w'); os.link(p, q); os.rename(q, p + '.3'); os.chmod(p, 0o600); os.unlink(p); print('done')",
            "done",
        ),
    ] {
        for policy in POLICIES {
            assert_eq!(run(script, policy).await, expected, "{policy:?}: {script}");
        }
    }
}

/// Makes segments as `PostgreSQL` does. `{theirs}` is the id of another program's segment.
const SEGMENTS: &str = "import ctypes, os
c = ctypes.CDLL(None, use_errno=True); c.shmat.restype = ctypes.c_void_p
c.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
def call(f, *a):
    r = f(*a)
    return r if r not in (-1, 2**64 - 1) else -ctypes.get_errno()
NEW = 0o3000 | 0o600
key = 0x4d470000 + os.getpid() % 65536
one = call(c.shmget, key, 4096, NEW)
again, found = call(c.shmget, key, 4096, NEW), call(c.shmget, key, 0, 0)
at = call(c.shmat, one, None, 0)
ctypes.memset(at, 65, 1)
second = call(c.shmat, one, None, 0)
shared = ctypes.string_at(second, 1)
private = call(c.shmget, 0, 4096, 0o600)
removed = call(c.shmctl, one, 0, None)
theirs = [call(c.shmat, {theirs}, None, 0), call(c.shmctl, {theirs}, 0, None), call(c.shmget, {key}, 0, 0)]
call(c.shmctl, private, 0, None)
listed = call(c.shmctl, 0, 14, ctypes.create_string_buffer(1024))
print(one > 0 or one, again, found == one, shared, private > 0 or private, removed, theirs, listed)";

/// A System V segment of another program.
struct Segment {
    id: i32,
    key: i32,
}

impl Segment {
    fn new(number: i32) -> Self {
        let key = 0x4d48_0000 + i32::try_from(std::process::id() % 0x1000).unwrap() * 8 + number;
        Self { id: modegate::kernel::segment(key, 4096, 0o3600).unwrap(), key }
    }

    fn exists(&self) -> bool {
        modegate::kernel::find_segment(self.key).is_ok()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let _ = modegate::kernel::remove_segment(self.id);
    }
}

#[tokio::test]
async fn segments_of_others_stay_closed() {
    for (number, policy) in (0..).zip(POLICIES) {
        let theirs = Segment::new(number);
        let script = SEGMENTS.replace("{theirs}", &theirs.id.to_string());
        let script = script.replace("{key}", &theirs.key.to_string());
        let output = run(&script, policy).await;
        assert_eq!(output, "True -17 True b'A' True 0 [-13, -13, -13] -13", "{policy:?}");
        assert!(theirs.exists());
        let free = std::process::Command::new(python()).args(["-c", &script]).output().unwrap();
        let free = String::from_utf8_lossy(&free.stdout).into_owned();
        assert!(!theirs.exists() && !free.contains("-13"), "the control: {free}");
    }
}

/// Segments that a command leaves behind are removed.
#[tokio::test]
async fn segments_end_with_the_command() {
    let script =
        "import ctypes; c = ctypes.CDLL(None); print(c.shmget(0x4d490000 + {number}, 4096, 0o3600) > 0)";
    let script = script.replace("{number}", &std::process::id().to_string());
    for _ in 0..2 {
        assert_eq!(run(&script, BrokerPolicy::Nothing).await, "True");
    }
}

/// Attempts on the file of another program, each with true if it has an effect where the policy allows changes.
const ATTEMPTS: [&str; 7] = [
    "open(theirs, 'w').write('x')",
    "open(theirs, 'r+').write('x')",
    "os.unlink(theirs)",
    "os.truncate(theirs, 0)",
    "os.rename(own, theirs)",
    "os.rename(theirs, own + '.2')",
    "os.link(theirs, own + '.2'); open(own + '.2', 'w').write('x')",
];

#[tokio::test]
async fn memory_of_other_programs_stays_as_the_policy_says() {
    for (number, attempt) in ATTEMPTS.into_iter().enumerate() {
        for policy in [BrokerPolicy::Nothing, BrokerPolicy::Roots] {
            let theirs = Theirs::new(&format!("theirs-{number}-{policy:?}"));
            let script = format!(
                "import os\ntheirs = '{}'; own = theirs + '.own'; open(own, 'w').close()\n{attempt}",
                theirs.0.display()
            );
            let output = run(&script, policy).await;
            let is_changed = theirs.content().as_deref() != Some("theirs");
            assert_eq!(is_changed, policy == BrokerPolicy::Roots, "{policy:?}: {attempt}: {output}");
            let own = format!("{}.own", theirs.0.display());
            assert!(!std::path::Path::new(&own).exists(), "{attempt}: what the command made is removed");
        }
    }
}

#[tokio::test]
async fn tighter_policy_leaves_own_memory() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = "import time\nfrom multiprocessing import shared_memory as m
a = m.SharedMemory(create=True, size=8); print('ready', flush=True)
for n in range(200):\n a.buf[0] = n; time.sleep(0.01)
print('kept', a.buf[0]); a.close(); a.unlink()";
    let mut process = start(&folder, script, BrokerPolicy::Roots).await;
    while !matches!(process.next().await.unwrap(), Event::Output(_)) {}
    process.set_policy(BrokerPolicy::Nothing).await;
    let set = loop {
        let event = tokio::time::timeout(Duration::from_secs(20), process.next()).await.unwrap().unwrap();
        if let Event::Broker(BrokerEvent::PolicySet { ended, is_complete }) = event {
            break (ended, is_complete);
        }
    };
    assert_eq!(set, (0, true));
    assert!(finish(&mut process).await.ends_with("kept 199"));
}
