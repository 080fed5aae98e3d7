//! Runs pairs of calls of two threads at the same time, while a third thread makes, moves and removes what they name.
//! Brokered calls fail with no error that the kernel alone would not give.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use modegate::process::Exit;
use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::sandbox::BrokerPolicy;

use crate::sandbox::commands::finish_within;
use crate::support::requirements::require_sandbox;
use crate::support::shell;

/// Runs, with other orders of the pairs each time. `RACES` sets another number, and `SEED` the first order.
const RUNS: u32 = 1;

/// Threads that make the same folders.
const INSTALLERS: u32 = 8;

/// Longer than a busy machine needs for a program.
const LIMIT: Duration = Duration::from_mins(2);

/// Openings of a file that moves.
const OPENINGS: u32 = 4_000;

/// Errors of the calls in `races.c` by another thread's changes: no entry, exists, not a folder, a folder, not empty.
const ERRORS: [i32; 6] = [0, libc::ENOENT, libc::EEXIST, libc::ENOTDIR, libc::EISDIR, libc::ENOTEMPTY];

/// Errors of single calls: a link that is not followed, an unnamed file in a deleted folder of ext4, and `openat2` where
/// reading is limited.
const FURTHER_ERRORS: [(&str, i32); 4] = [
    ("no_follow", libc::ELOOP),
    ("unnamed", libc::EPERM),
    ("create_beneath", libc::ENOSYS),
    ("create_by_long_how", libc::ENOSYS),
];

pub(super) fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, std::path::PathBuf)> = OnceLock::new();
    let (_, program) = PROGRAM.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("races");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escape/races.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-w"]).arg(source).arg("-o").arg(&program).arg("-lpthread");
        assert!(compiler.status().unwrap().success(), "tests/escape/races.c");
        (dir, program)
    });
    program
}

/// Runs the program without a sandbox.
fn plain(arguments: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(program()).args(arguments.split(' ')).current_dir(dir.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

async fn brokered(arguments: &str, denied: &[&str]) -> String {
    brokered_in(tempfile::tempdir().unwrap().path(), arguments, denied).await
}

async fn brokered_in(dir: &Path, arguments: &str, denied: &[&str]) -> String {
    let denied = denied.iter().map(|pattern| (*pattern).to_owned()).collect();
    let shell = shell(dir, Sandbox::Workspace).denying_reads(denied);
    let roots = [dir.to_owned()];
    let restrictions = shell
        .brokered_agent(AgentFolders::of(&roots, &[]), BrokerPolicy::Roots, None, AgentNetwork::OPEN)
        .unwrap();
    // The output of a command has a limit.
    let line = format!("{} {arguments} > output", program().display());
    let (text, exit) = finish_within(LIMIT, shell.start(&line, dir, &restrictions).await.unwrap()).await;
    assert!(matches!(exit, Some(Exit::Status(0))), "{exit:?} {text}");
    std::fs::read_to_string(dir.join("output")).unwrap()
}

/// Returns the errors of each call, with the call that they raced with.
fn errors(text: &str) -> BTreeMap<(String, i32), String> {
    let mut errors = BTreeMap::new();
    for line in text.lines() {
        let [call, other, error, _] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        errors.insert((call.to_owned(), error.parse().unwrap()), other.to_owned());
    }
    errors
}

fn unexpected(errors: &BTreeMap<(String, i32), String>) -> Vec<String> {
    let is_expected =
        |call: &str, error: i32| ERRORS.contains(&error) || FURTHER_ERRORS.contains(&(call, error));
    let unexpected = errors.iter().filter(|((call, error), _)| !is_expected(call, *error));
    unexpected.map(|((call, error), other)| format!("{call}: error {error}, with {other}")).collect()
}

#[tokio::test]
async fn racing_calls_fail_as_without_a_sandbox() {
    require_sandbox();
    let number = |name: &str, default: u32| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let first = number("SEED", std::process::id());
    for seed in (first..).take(number("RACES", RUNS) as usize) {
        let arguments = format!("pairs {seed}");
        let control = errors(&plain(&arguments));
        assert_eq!(unexpected(&control), Vec::<String>::new(), "seed {seed}, without a sandbox");
        for denied in [&[][..], &["**/denied"]] {
            let errors = errors(&brokered(&arguments, denied).await);
            assert_eq!(unexpected(&errors), Vec::<String>::new(), "seed {seed}, denied: {denied:?}");
            assert!(errors.len() > 40, "few of the calls succeed and fail: {errors:?}");
        }
    }
}

/// Threads that move a file out of its folder and back. They end when this is dropped, because those of a failed test
/// would slow down all later ones.
struct Movers {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Movers {
    fn start(dir: &Path) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let start_one = |_| {
            let is_over = Arc::clone(&is_over);
            let [inside, outside] = ["d/f", "source"].map(|name| dir.join(name));
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // One of the two names is missing.
                    let _ = std::fs::rename(&inside, &outside);
                    let _ = std::fs::rename(&outside, &inside);
                }
            })
        };
        let threads = (0..4).map(start_one).collect();
        Self { is_over, threads }
    }
}

impl Drop for Movers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Other programs, which are not in the sandbox, move the file out of its folder and back.
#[tokio::test]
async fn file_that_moves_away_is_opened() {
    require_sandbox();
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    let movers = Movers::start(dir.path());
    let text = brokered_in(dir.path(), &format!("open {OPENINGS}"), &[]).await;
    drop(movers);
    let errors = errors(&text);
    assert!(errors.len() == 1 && errors.contains_key(&("create".into(), 0)), "{errors:?}");
}

#[tokio::test]
async fn threads_that_make_nested_folders_never_fail() {
    require_sandbox();
    let arguments = format!("tree {INSTALLERS}");
    for text in [plain(&arguments), brokered(&arguments, &[]).await] {
        let errors = errors(&text);
        assert!(errors.len() == 1 && errors.contains_key(&("install".into(), 0)), "{errors:?}");
    }
}
