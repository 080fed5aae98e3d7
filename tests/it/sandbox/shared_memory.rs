//! Names of shared memory of brokered commands: those that a command has made are its own, under every policy.

use std::path::PathBuf;
use std::time::Duration;

use modegate::process::shell::{AgentNetwork, Sandbox};
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
    let sandbox = shell.brokered_agent(&roots, &[], policy, None, AgentNetwork::OPEN).unwrap();
    let line = format!("exec {} -c \"{script}\" 2>&1", python());
    shell.start(&line, folder.path(), &sandbox).await.unwrap()
}

/// Returns the output. No change is asked about.
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
        match tokio::time::timeout(Duration::from_secs(20), process.next()).await.unwrap().unwrap() {
            Event::Broker(BrokerEvent::PolicySet { ended, is_complete }) => break (ended, is_complete),
            _ => {}
        }
    };
    assert_eq!(set, (0, true));
    assert!(finish(&mut process).await.ends_with("kept 199"));
}
