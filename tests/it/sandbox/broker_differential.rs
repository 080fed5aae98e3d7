//! Runs the same random system calls brokered and without a sandbox. Results and files are equal, except for
//! the listed differences.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use modegate::process::shell::{AgentFolders, AgentNetwork, Sandbox};
use modegate::process::{DeniedActs, DenyingRule};
use modegate::sandbox::BrokerPolicy;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::sandbox::commands::finish;
use crate::support::requirements::require_sandbox;
use crate::support::shell;

/// Sequences of system calls in one process, each in a separate folder.
const SEQUENCES: usize = 60;

/// Runs of the process. `MODEGATE_DIFFERENTIAL_RUNS` sets another number, and other calls each time.
const RUNS: u32 = 3;

/// The user that runs the calls without a sandbox if the test runs as root.
const NOBODY: u32 = 65534;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = PROGRAM.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("calls");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/escape/calls.c");
        let built = Command::new("cc").args(["-O1", "-w"]).arg(source).arg("-o").arg(&program).status();
        assert!(built.unwrap().success(), "tests/escape/calls.c");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        (dir, program)
    });
    program
}

/// Returns true for a difference between a call's results without a sandbox and brokered. The first argument
/// is the call.
type IsDifference = fn(&str, &str, &str) -> bool;

/// Intended differences and differences that no known program notices, with their reasons.
const DIFFERENCES: &[(&str, IsDifference)] = &[
    (
        "RESOLVE_CACHED always fails with EAGAIN, after which programs try again without it",
        |call, _, brokered| {
            call.starts_with("openat2")
                && call.split(' ').nth(5) == Some("32")
                && brokered == error(libc::EAGAIN)
        },
    ),
    ("a descriptor that was opened with O_PATH can change attributes", |call, plain, _| {
        is_of_descriptor(call) && plain == error(libc::EBADF)
    }),
    ("attributes change by name, so the file's folders must be open to the user", |call, _, brokered| {
        is_of_descriptor(call) && [libc::EPERM, libc::EACCES].map(error).contains(&brokered.into())
    }),
    (
        "a call with a path of another place fails with EXDEV, EACCES or EPERM before other checks",
        |call, plain, brokered| {
            let errors = [libc::EXDEV, libc::EACCES, libc::EPERM].map(error);
            (call.contains("/proc/") || call.contains("/dev/") || call.contains("@empty"))
                && plain.starts_with("-1")
                && errors.contains(&brokered.into())
        },
    ),
    ("a link to a folder, which no system allows, fails with EACCES", |call, plain, brokered| {
        call.starts_with("link") && plain == error(libc::EPERM) && brokered == error(libc::EACCES)
    }),
    ("a call that sets neither time is checked like others", |call, plain, _| {
        call.matches(&libc::UTIME_OMIT.to_string()).count() == 2 && plain == "0 0"
    }),
    (
        "AT_EMPTY_PATH is for descriptors that the caller opened, and the broker opens its descriptors",
        |call, plain, brokered| {
            call.starts_with("linkat") && plain.starts_with("-1") && brokered == error(libc::ENOENT)
        },
    ),
];

/// Further differences if the supervisor opens files for reading.
const READING_DIFFERENCES: &[(&str, IsDifference)] = &[
    ("a descriptor for reading does not report O_NOFOLLOW", |call, plain, brokered| {
        let without = |result: &str| {
            let parts = result.split(' ').enumerate().map(|(index, part)| {
                let flags = u32::from_str_radix(part, 8).unwrap_or_default();
                if index == 2 {
                    format!("{:o}", flags & !libc::O_NOFOLLOW.cast_unsigned())
                } else {
                    part.into()
                }
            });
            parts.collect::<Vec<String>>()
        };
        call.starts_with("open") && plain != brokered && without(plain) == without(brokered)
    }),
    ("a folder that cannot be looked through is not moved", |call, _, brokered| {
        call.starts_with("rename") && brokered == error(libc::EACCES)
    }),
];

/// Returns the result of a failed call.
fn error(number: i32) -> String {
    format!("-1 {number}")
}

fn is_of_descriptor(call: &str) -> bool {
    ["fchmod ", "fchown ", "fsetxattr ", "fremovexattr "].iter().any(|name| call.starts_with(name))
}

/// Names of existing files, and of missing ones.
const NAMES: &str = "a b hard d d/a d/e d/new new new/x empty locked closed closed/a closed/new hidden/a pipe \
    to_a to_d to_d/a to_d/new dangling loop loop/x around to_d_slash to_d_slash/a to_a_slash \
    twice dangling_slash to_new d/up/a d/up/new here/here/b nothing a/x to_a/x nothing/x \
    d/e/x . .. d/. d/.. d/e/../a d/../to_d/../new to_d/..";

fn names() -> impl Strategy<Value = String> {
    let known = select(NAMES.split_whitespace().chain([""]).collect::<Vec<_>>());
    let odd = select(vec![
        "@null",
        "@bad",
        "@empty",
        "@long",
        "@name",
        "@end:d/a",
        "@end:new",
        "@cut:d/a",
        "/proc/self/fd/%0",
        "/proc/self/fd/%1",
        "/dev/fd/%1",
        "/dev/fd/%2",
        "/proc/self/fd/99",
    ]);
    let prefix = prop_oneof![
        12 => Just(""), 1 => Just("./"), 1 => Just("d/../"), 1 => Just("%R/"), 1 => Just("here/"), 1 => Just("%R//d/.././"),
    ];
    let suffix =
        prop_oneof![12 => Just(""), 1 => Just("/"), 1 => Just("//"), 1 => Just("/."), 1 => Just("/..")];
    let plain = (prefix, known, suffix).prop_map(|(prefix, name, suffix)| {
        let path = format!("{prefix}{name}{suffix}");
        if path.is_empty() { "@empty".to_owned() } else { path }
    });
    prop_oneof![10 => plain, 1 => odd.prop_map(str::to_owned)]
}

fn number(values: Vec<i64>) -> impl Strategy<Value = String> {
    select(values).prop_map(|value| value.to_string())
}

fn slot() -> impl Strategy<Value = String> {
    (0..4_u8).prop_map(|slot| slot.to_string())
}

fn folder() -> impl Strategy<Value = String> {
    prop_oneof![8 => Just("cwd".to_owned()), 5 => slot(), 1 => Just("bad".to_owned())]
}

fn flags() -> impl Strategy<Value = String> {
    let access = select(vec![libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR, libc::O_ACCMODE]);
    let creation = select(vec![0, 0, libc::O_CREAT, libc::O_CREAT, libc::O_CREAT | libc::O_EXCL]);
    let other = proptest::sample::subsequence(
        vec![
            libc::O_TRUNC,
            libc::O_APPEND,
            libc::O_NOFOLLOW,
            libc::O_DIRECTORY,
            libc::O_PATH,
            libc::O_NONBLOCK,
            libc::O_CLOEXEC,
            libc::O_SYNC,
            libc::O_NOATIME,
            libc::O_NOCTTY,
        ],
        0..3,
    );
    let ordinary = (access, creation, other).prop_map(|(access, creation, other)| {
        access | creation | other.iter().fold(0, |all, flag| all | flag)
    });
    let unnamed = select(vec![
        libc::O_TMPFILE | libc::O_RDWR,
        libc::O_TMPFILE | libc::O_WRONLY | libc::O_EXCL,
        libc::O_TMPFILE,
        libc::O_TMPFILE | libc::O_RDWR | libc::O_NOFOLLOW,
    ]);
    prop_oneof![8 => ordinary, 1 => unnamed, 1 => Just(libc::O_DIRECTORY), 1 => Just(libc::O_PATH)]
        .prop_map(|flags| flags.to_string())
}

fn call(name: &'static str, arguments: Vec<BoxedStrategy<String>>) -> BoxedStrategy<String> {
    arguments.prop_map(move |arguments| format!("{name} {}", arguments.join(" "))).boxed()
}

fn calls() -> impl Strategy<Value = String> {
    let path = || names().boxed();
    let at = || folder().boxed();
    let fd = || slot().boxed();
    let one_of = |values: &[i64]| number(values.to_vec()).boxed();
    let mode = || one_of(&[0o644, 0o600, 0o755, 0o777, 0o000, 0o444, 0o1777]);
    let seconds = || one_of(&[0, 1, 77, 1000, -5]);
    let parts = || one_of(&[0, 5, 999_999_999, 1_000_000_000, libc::UTIME_OMIT, -1]);
    let attribute = || select(vec!["user.one", "user.two"]).prop_map(str::to_owned).boxed();
    let flag = || flags().boxed();
    let open = prop_oneof![
        4 => call("open", vec![path(), flag(), mode(), fd()]),
        4 => call("openat", vec![at(), path(), flag(), mode(), fd()]),
        3 => call("openat2", vec![at(), path(), flag(), mode(), one_of(&[0, 1, 2, 4, 8, 16, 32]), fd()]),
        1 => call("creat", vec![path(), mode(), fd()]),
    ];
    let entries = prop_oneof![
        call("mkdir", vec![path(), mode()]),
        call("mkdirat", vec![at(), path(), mode()]),
        call("rmdir", vec![path()]),
        call("unlink", vec![path()]),
        call("unlinkat", vec![at(), path(), one_of(&[0, 0x200, 0x100])]),
        call("rename", vec![path(), path()]),
        call("renameat2", vec![at(), path(), at(), path(), one_of(&[0, 1, 2, 3, 8])]),
        call("link", vec![path(), path()]),
        call("linkat", vec![at(), path(), at(), path(), one_of(&[0, 0x400, 0x1000, 0x1400, 0x200])]),
        call("symlink", vec![path(), path()]),
        call("symlinkat", vec![path(), at(), path()]),
        call("mknod", vec![path(), one_of(&[0o100_644, 0o010_644, 0o644, 0o040_755])]),
        call("mknodat", vec![at(), path(), one_of(&[0o100_600, 0o010_600])]),
        call("truncate", vec![path(), one_of(&[0, 3, 100, -1])]),
    ];
    let attributes = prop_oneof![
        call("chmod", vec![path(), mode()]),
        call("fchmod", vec![fd(), mode()]),
        call("fchmodat", vec![at(), path(), mode()]),
        call("fchmodat2", vec![at(), path(), mode(), one_of(&[0, 0x100, 0x1000, 0x1100, 0x200])]),
        call("chown", vec![path(), one_of(&[-1]), one_of(&[-1])]),
        call("fchown", vec![fd(), one_of(&[-1, 12345]), one_of(&[-1])]),
        call(
            "fchownat",
            vec![at(), path(), one_of(&[-1, 12345]), one_of(&[-1]), one_of(&[0, 0x100, 0x1000, 1])]
        ),
        call(
            "utimensat",
            vec![at(), path(), seconds(), parts(), seconds(), parts(), one_of(&[0, 0x100, 0x1000, 2])]
        ),
        call(
            "utimes",
            vec![path(), seconds(), one_of(&[0, 7, 999_999, 1_000_000, -1]), seconds(), one_of(&[0, 7])]
        ),
        call("setxattr", vec![path(), attribute(), one_of(&[1, 22]), one_of(&[0, 1, 2, 3, 4])]),
        call("lsetxattr", vec![path(), attribute(), one_of(&[1, 22]), one_of(&[0, 1])]),
        call("fsetxattr", vec![fd(), attribute(), one_of(&[1, 22]), one_of(&[0, 1])]),
        call("removexattr", vec![path(), attribute()]),
        call("fremovexattr", vec![fd(), attribute()]),
    ];
    let others = prop_oneof![
        call("close", vec![fd()]),
        call("write", vec![fd(), one_of(&[1, 22, 333])]),
        call("ftruncate", vec![fd(), one_of(&[0, 4])]),
        call("chdir", vec![path()]),
        call("fchdir", vec![fd()]),
        call("umask", vec![one_of(&[0o22, 0o77, 0, 0o777, 0o2])]),
        call("stat", vec![path()]),
    ];
    prop_oneof![5 => open, 6 => entries, 3 => attributes, 3 => others]
}

fn script(sequences: &[Vec<String>]) -> String {
    sequences.iter().fold(String::new(), |text, calls| text + "case\n" + &calls.join("\n") + "\n")
}

/// Returns the results of each sequence, without the names of folders.
fn results(output: &str) -> Vec<Vec<String>> {
    let cases = output.split("case ").skip(1);
    cases.map(|case| case.lines().skip(1).map(str::to_owned).collect()).collect()
}

/// Returns the type, mode, target, content, names, attributes and set times of everything below a folder.
fn files(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut numbers: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut paths = vec![folder.to_owned()];
    while let Some(path) = paths.pop() {
        let name = path.strip_prefix(folder).unwrap().to_owned();
        // An ordinary user cannot read every folder.
        let Ok(meta) = path.symlink_metadata() else {
            all.insert(name, "closed".into());
            continue;
        };
        let first = numbers.entry(meta.ino()).or_insert_with(|| name.clone());
        let mut facts = format!("{:o} {} {}", meta.mode(), meta.nlink(), first.display());
        if let Ok(target) = fs::read_link(&path) {
            let target = target.to_string_lossy().replace(&*folder.to_string_lossy(), "%R");
            let _ = write!(facts, " -> {target}");
        }
        if meta.is_file() {
            let _ = write!(facts, " {:?}", String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()));
        }
        for name in ["user.one", "user.two"] {
            let mut value = [0; 16];
            if let Ok(length) = rustix::fs::lgetxattr(&path, name, &mut value) {
                let _ = write!(facts, " {name}={:?}", &value[..length]);
            }
        }
        // Only times that a call has set are this early.
        for (seconds, part) in [(meta.atime(), meta.atime_nsec()), (meta.mtime(), meta.mtime_nsec())] {
            if seconds < 1_000_000 {
                let _ = write!(facts, " {seconds}.{part}");
            }
        }
        if meta.is_dir() {
            let mut below: Vec<_> =
                fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
            below.sort();
            paths.extend(below.into_iter().rev());
        }
        all.insert(name, facts);
    }
    all
}

struct Folders {
    dir: tempfile::TempDir,
    runs: u32,
    /// Patterns of files that the brokered process may not read.
    denied: Vec<String>,
    /// Rules that deny changes.
    rules: Vec<DenyingRule>,
}

impl Folders {
    /// Runs sequences both ways. Returns a description of the first difference that is not listed.
    fn compare(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        sequences: &[Vec<String>],
    ) -> Result<(), String> {
        self.runs += 1;
        let path = |name: &str| self.dir.path().join(format!("{name}{}", self.runs));
        let (plain, brokered, file) = (path("plain"), path("other"), path("script"));
        fs::create_dir(&plain).unwrap();
        fs::create_dir(&brokered).unwrap();
        fs::write(&file, script(sequences)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&plain, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let output = Command::new(program()).arg(&file).arg("plain").current_dir(&plain).output().unwrap();
        let expected = results(&String::from_utf8(output.stdout).unwrap());
        let text = runtime.block_on(async {
            let shell = shell(self.dir.path(), Sandbox::Workspace).denying_reads(self.denied.clone());
            let roots = [brokered.clone()];
            let folders = AgentFolders::of(&roots, &[]);
            let restrictions = if self.rules.is_empty() {
                shell.brokered_agent(folders, BrokerPolicy::Roots, None, AgentNetwork::OPEN).unwrap()
            } else {
                shell.denying_changes(self.rules.clone()).workspace(&roots)
            };
            let line = format!("exec {} {}", program().display(), file.display());
            finish(shell.start(&line, &brokered, &restrictions).await.unwrap()).await.0
        });
        let actual = results(&text);
        if expected.len() != sequences.len() || actual.len() != sequences.len() {
            return Err(format!(
                "{} and {} cases of {}: {text}",
                expected.len(),
                actual.len(),
                sequences.len()
            ));
        }
        for (index, calls) in sequences.iter().enumerate() {
            self.compare_results(calls, &expected[index], &actual[index])?
                .then(|| {
                    let folders = [&plain, &brokered].map(|folder| files(&folder.join(index.to_string())));
                    compare_files(calls, &folders[0], &folders[1])
                })
                .transpose()?;
        }
        Ok(())
    }

    /// Returns false if a listed difference makes the rest incomparable.
    fn compare_results(
        &self,
        calls: &[String],
        expected: &[String],
        actual: &[String],
    ) -> Result<bool, String> {
        for (number, call) in calls.iter().enumerate() {
            // The line's number differs from case to case.
            let result = |lines: &[String]| {
                lines
                    .get(number)
                    .map_or_else(String::new, |line| line.split_once(' ').unwrap_or_default().1.to_owned())
            };
            let (expected, actual) = (result(expected), result(actual));
            if expected == actual {
                continue;
            }
            let further = READING_DIFFERENCES.iter().filter(|_| !self.denied.is_empty());
            if DIFFERENCES.iter().chain(further).any(|(_, is_one)| is_one(call, &expected, &actual)) {
                return Ok(false);
            }
            let before = calls[..number].join("\n");
            return Err(format!("{before}\n{call}\nplain: {expected}\nbrokered: {actual}"));
        }
        Ok(true)
    }
}

fn compare_files(
    calls: &[String],
    expected: &BTreeMap<PathBuf, String>,
    actual: &BTreeMap<PathBuf, String>,
) -> Result<(), String> {
    if expected == actual {
        return Ok(());
    }
    let mut text = calls.join("\n");
    let paths: std::collections::BTreeSet<_> = expected.keys().chain(actual.keys()).collect();
    for path in paths.into_iter().filter(|path| expected.get(*path) != actual.get(*path)) {
        let (plain, brokered) = (expected.get(path), actual.get(path));
        let _ = write!(text, "\n{}: plain {plain:?}, brokered {brokered:?}", path.display());
    }
    Err(text)
}

#[test]
fn brokered_calls_equal_calls_without_a_sandbox() {
    compare(Vec::new(), Vec::new());
}

/// Each change is compared with a rule that matches nothing.
#[test]
fn brokered_calls_under_rules_equal_calls_without_a_sandbox() {
    let rule = DenyingRule { name: String::new(), pattern: "**/denied".into(), denies: DeniedActs::All };
    compare(Vec::new(), vec![rule]);
}

/// The supervisor opens every file, and no pattern matches.
#[test]
fn brokered_reads_equal_reads_without_a_sandbox() {
    compare(vec!["**/denied".to_owned()], Vec::new());
}

fn compare(denied: Vec<String>, rules: Vec<DenyingRule>) {
    require_sandbox();
    let limits_reads = !denied.is_empty();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The folder is open to the other user.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let folders = std::cell::RefCell::new(Folders { dir, runs: 0, denied, rules });
    let asked = std::env::var("MODEGATE_DIFFERENTIAL_RUNS").ok().and_then(|runs| runs.parse().ok());
    let config = Config {
        cases: asked.unwrap_or(RUNS),
        max_shrink_iters: 300,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = match asked {
        Some(_) => TestRunner::new(config),
        None => TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)),
    };
    let sequences = proptest::collection::vec(proptest::collection::vec(calls(), 1..25), 1..=SEQUENCES);
    let result = runner.run(&sequences, |mut sequences| {
        if limits_reads {
            // `openat2` fails with `ENOSYS`, after which programs use `openat`.
            for calls in &mut sequences {
                calls.retain(|call| !call.starts_with("openat2"));
            }
        }
        folders.borrow_mut().compare(&runtime, &sequences).map_err(TestCaseError::fail)
    });
    if let Err(proptest::test_runner::TestError::Fail(reason, _)) = &result {
        panic!("{reason}");
    }
    result.unwrap();
}
