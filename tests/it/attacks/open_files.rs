//! Files that a program opened for writing in a looser mode, on several file systems. After a tighter mode is
//! confirmed, they do not change any more; a program that has closed its files goes on.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::process::{BrokerEvent, Event, Process};
use modegate::sandbox::BrokerPolicy;

use crate::support::requirements::{python, require_sandbox};
use crate::support::shell;

/// Opens `file` in the way of the first argument, prints a line, and counts in the file until it is killed.
const PROGRAM: &str = r#"
import ctypes, mmap, os, socket, sys, threading, time
def descriptor():
    return os.open("file", os.O_RDWR | os.O_CREAT)
def count_with(write):
    number = 0
    while True:
        number += 1
        try: write(b"%8d" % number)
        except OSError: pass
        time.sleep(0.01)
def start(write):
    print("ready", flush=True)
    count_with(write)
def mapping():
    held = descriptor()
    os.ftruncate(held, 8)
    mapped = mmap.mmap(held, 8)
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.path.samefile("/proc/self/fd/" + number, "file"): os.close(int(number))
        except OSError: pass
    def write(text): mapped[0:8] = text
    return write
def by_descriptor():
    held = descriptor()
    return lambda text: os.pwrite(held, text, 0)
def in_child(write):
    if os.fork() == 0: count_with(write)
    print("ready", flush=True)
    time.sleep(60)
def in_orphan(write):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: start(write)
        os._exit(0)
    os.wait()
    time.sleep(60)
def in_thread(write):
    # The main thread ends, and the list of its mappings is empty from then on.
    threading.Thread(target=lambda: (time.sleep(0.1), start(write))).start()
    ctypes.CDLL(None).pthread_exit(None)
def in_socket():
    held = descriptor()
    one, two = socket.socketpair()
    socket.send_fds(one, [b"x"], [held])
    os.close(held)
    print("ready", flush=True)
    time.sleep(10)
    _, got, _, _ = socket.recv_fds(two, 1, 1)
    count_with(lambda text: os.pwrite(got[0], text, 0))
def always_forking(write):
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        try: write(b"%8d" % number)
        except OSError: pass
        if os.fork() != 0: os._exit(0)
def closed():
    print("ready", flush=True)
    try:
        while True:
            os.close(descriptor())
            time.sleep(0.01)
    except OSError:
        print("refused", flush=True)
        time.sleep(60)
ways = {
    "descriptor": lambda: start(by_descriptor()),
    "descriptor-child": lambda: in_child(by_descriptor()),
    "descriptor-orphan": lambda: in_orphan(by_descriptor()),
    "descriptor-in-socket": in_socket,
    "mapping": lambda: start(mapping()),
    "mapping-child": lambda: in_child(mapping()),
    "mapping-orphan": lambda: in_orphan(mapping()),
    "mapping-thread": lambda: in_thread(mapping()),
    "mapping-forking": lambda: always_forking(mapping()),
    "closed": closed,
}
ways[sys.argv[1]]()
"#;

const WAYS: [&str; 9] = [
    "descriptor",
    "descriptor-child",
    "descriptor-orphan",
    "descriptor-in-socket",
    "mapping",
    "mapping-child",
    "mapping-orphan",
    "mapping-thread",
    "mapping-forking",
];

/// Time in which a program that can write does so.
const WATCH: Duration = Duration::from_millis(150);

async fn start(folder: &Path, way: &str) -> Process {
    require_sandbox();
    let roots = [folder.to_owned()];
    let shell = shell(folder, Sandbox::Workspace);
    let sandbox = shell
        .brokered_agent(AgentFolders::of(&roots, &[]), BrokerPolicy::Roots, None, AgentNetwork::OPEN)
        .unwrap();
    let code = PROGRAM.replace('\'', "'\\''");
    let line = format!("exec {} -c '{code}' {way}", python());
    let mut process = shell.start(&line, folder, &sandbox).await.unwrap();
    loop {
        match process.next().await.unwrap() {
            Event::Output(_) => return process,
            Event::Error(bytes) => panic!("{way}: {}", String::from_utf8_lossy(&bytes)),
            _ => {}
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Tightened {
    Confirmed {
        ended: usize,
    },
    /// Modegate ends the program.
    Unknown,
}

/// Adds the program's further output to `output`.
async fn tighten(process: &mut Process, output: &mut String) -> Tightened {
    process.set_policy(BrokerPolicy::Nothing).await;
    loop {
        match tokio::time::timeout(Duration::from_secs(20), process.next()).await.unwrap().unwrap() {
            Event::Broker(BrokerEvent::PolicySet { is_complete: true, ended }) => {
                return Tightened::Confirmed { ended };
            }
            Event::Output(bytes) => output.push_str(&String::from_utf8_lossy(&bytes)),
            // All processes were killed.
            Event::Gone { confirmed: true, .. } => return Tightened::Confirmed { ended: 1 },
            Event::Broker(BrokerEvent::PolicySet { .. }) | Event::Gone { .. } => return Tightened::Unknown,
            Event::Failed(reason) => panic!("{reason}"),
            _ => {}
        }
    }
}

async fn changes(file: &Path) -> bool {
    let before = std::fs::read(file).unwrap();
    tokio::time::sleep(WATCH).await;
    std::fs::read(file).unwrap() != before
}

async fn are_taken_back(folder: &Path) {
    for way in WAYS {
        let work = folder.join(way);
        std::fs::create_dir(&work).unwrap();
        let file = work.join("file");
        let mut process = start(&work, way).await;
        assert!(way == "descriptor-in-socket" || changes(&file).await, "{way}: the control");
        let tightened = tighten(&mut process, &mut String::new()).await;
        if way == "descriptor-in-socket" {
            assert_eq!(tightened, Tightened::Unknown, "no process that has the file can be found");
        } else {
            assert!(matches!(tightened, Tightened::Confirmed { ended: 1.. }), "{way}: {tightened:?}");
            assert!(!changes(&file).await, "{way}");
        }
        process.end().await;
    }
}

async fn end_nothing_once_closed(folder: &Path) {
    let work = folder.join("closed");
    std::fs::create_dir(&work).unwrap();
    let mut process = start(&work, "closed").await;
    let mut text = String::new();
    assert_eq!(tighten(&mut process, &mut text).await, Tightened::Confirmed { ended: 0 });
    while !text.contains("refused") {
        match tokio::time::timeout(Duration::from_secs(20), process.next()).await.unwrap().unwrap() {
            Event::Output(bytes) => text.push_str(&String::from_utf8_lossy(&bytes)),
            Event::Gone { .. } => panic!("the program has ended"),
            _ => {}
        }
    }
    process.end().await;
}

/// Names a folder of another file system.
const FOLDER: &str = "MODEGATE_TEST_FOLDER";

#[tokio::test]
async fn open_files_are_taken_back() {
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = std::env::var_os(FOLDER).map_or(own.path().to_owned(), PathBuf::from);
    are_taken_back(&folder).await;
    end_nothing_once_closed(&folder).await;
}

#[test]
fn open_files_are_taken_back_on_other_file_systems() {
    for mount in [
        "mount -t tmpfs tmpfs mount",
        "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work mount",
        // The layers are on two file systems, so numbers of files are not theirs.
        "mount -t tmpfs tmpfs other && mkdir other/upper other/work
         mount -t overlay overlay -o lowerdir=lower,upperdir=other/upper,workdir=other/work mount",
    ] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let script = format!(
            "set -e; mkdir lower upper work other mount; {mount}; export {FOLDER}=$PWD/mount
             exec \"$0\" --exact attacks::open_files::open_files_are_taken_back"
        );
        let mut namespace = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            namespace.arg("--map-root-user");
        }
        let ended = namespace
            .args(["--mount", "sh", "-c", &script])
            .arg(std::env::current_exe().unwrap())
            .current_dir(folder.path())
            .output()
            .expect("this test needs unshare, of the package util-linux");
        let output = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{mount}: {output}{}", String::from_utf8_lossy(&ended.stderr));
        assert!(output.contains("1 passed"), "{mount}: {output}");
    }
}
