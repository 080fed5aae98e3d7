//! `modegate run` and `modegate sessions undo`. An undo restores or names each changed path, and never loses
//! content that exists only once.
//!
//! `UNDO_RUNS=200 SEED=7 cargo test run_undo -- --nocapture` makes more random runs.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::run::Place;
use crate::support::requirements::python;
use crate::support::waiting::block_until;

const LARGE: usize = 11 << 20;

/// Returns the files and links below a folder. Only the first line of a large file counts.
fn content(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut content = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let name = path.strip_prefix(folder).unwrap().to_owned();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                let target = std::fs::read_link(path).unwrap();
                content.insert(name, [b"-> ", target.as_os_str().as_bytes()].concat());
            } else {
                let mut text = std::fs::read(path).unwrap();
                let line = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
                text.truncate(line);
                content.insert(name, text);
            }
        }
    }
    content
}

/// Runs a script in `code` mode and undoes it. Returns the output of the undo.
fn run_and_undo(place: &Place, script: &[&str]) -> String {
    let (_, output, messages) = place.run(&[&["run", "--mode", "code", "--"], script].concat());
    assert!(!messages.contains("cannot be run"), "{messages}");
    let session = messages.split("modegate mode ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let session = session.unwrap_or_else(|| panic!("no session in: {output}{messages}"));
    let (_, undone, why) = place.run(&["sessions", "undo", session]);
    format!("{output}{messages}{undone}{why}")
}

struct UndoCase {
    script: &'static str,
    /// Paths that the undo must name. Without one, all files must be restored.
    named: &'static [&'static str],
    /// Files that must have their earlier content nevertheless, and files that must keep the program's
    /// content.
    kept: &'static [(&'static str, &'static str)],
}

const CASES: &[UndoCase] = &[
    UndoCase {
        script: r"rm a; echo evil > b; touch $'\xff'; mv c $'c\xfe'; ln -s $'\xfd' l",
        named: &[],
        kept: &[],
    },
    UndoCase { script: r"mv $'\xe9' plain; echo x > $'\xe8'", named: &[], kept: &[] },
    UndoCase { script: "head -c 100 large > t; mv t large", named: &["large"], kept: &[] },
    UndoCase { script: "mv large moved", named: &["large"], kept: &[("moved", "large")] },
    UndoCase { script: "ln large second; rm large", named: &["large"], kept: &[("second", "large")] },
    UndoCase {
        script: "mv folder other",
        named: &["folder/large"],
        kept: &[("other/large", "inner"), ("folder/x", "x")],
    },
    UndoCase { script: "mv .git/hook stolen", named: &["version control"], kept: &[("stolen", "hook")] },
    UndoCase { script: "touch s; rm s; mv .git/hook s", named: &["version control"], kept: &[("s", "hook")] },
    UndoCase { script: "echo x > a; mv .git/hook a", named: &["version control"], kept: &[("a", "hook")] },
    UndoCase { script: "mv .git/hook a", named: &["version control"], kept: &[("a", "hook")] },
    UndoCase {
        script: "python3 exchange.py .git/hook a",
        named: &["version control"],
        kept: &[("a", "hook")],
    },
    UndoCase {
        script: "mkdir d; echo x > d/hook; rm -r d; mv .git d",
        named: &["version control"],
        kept: &[("d/hook", "hook")],
    },
    UndoCase {
        script: "python3 exchange.py full folder",
        named: &["large"],
        kept: &[("full/large", "inner")],
    },
    UndoCase { script: "python3 exchange.py full small; rm -r small", named: &[], kept: &[] },
    UndoCase { script: "mkdir n; mv -T full n; rm -r n", named: &[], kept: &[] },
    UndoCase { script: "mv -T full folder; mv -T folder full; true", named: &[], kept: &[] },
    // The program gets no lease, and fails.
    UndoCase { script: "! python3 leased.py a", named: &[], kept: &[] },
    UndoCase { script: "mkfifo p; mv a p; mv b a", named: &[], kept: &[] },
];

const EXCHANGE: &str = "import ctypes,sys\n\
    assert ctypes.CDLL(None).renameat2(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2) == 0\n";

/// Takes a lease on a file, so that nothing can copy the file, and replaces the file.
const LEASED: &str = "import fcntl,os,signal,sys\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n\
    f = os.open(sys.argv[1], os.O_RDONLY)\nfcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
    open('t', 'w').write('evil')\nos.rename('t', sys.argv[1])\n";

fn prepare(work: &Path) {
    for folder in ["folder", "full", "small", ".git"] {
        std::fs::create_dir(work.join(folder)).unwrap();
    }
    let large = |text: &str| [text.as_bytes(), b"\n", &vec![b'x'; LARGE]].concat();
    for (name, text) in [("large", "large"), ("folder/large", "inner")] {
        std::fs::write(work.join(name), large(text)).unwrap();
    }
    let small = ["a", "b", "c", "folder/x", "full/x", "full/y", "small/x", "small/z"];
    for name in small {
        std::fs::write(work.join(name), format!("{}\n", name.rsplit('/').next().unwrap())).unwrap();
    }
    std::fs::write(work.join(".git/hook"), "hook\n").unwrap();
    std::fs::write(work.join(OsStr::from_bytes(b"\xe9")), "latin\n").unwrap();
    std::fs::write(work.join("exchange.py"), EXCHANGE).unwrap();
    std::fs::write(work.join("leased.py"), LEASED).unwrap();
}

#[test]
fn undo_restores_or_names_each_path() {
    python();
    for UndoCase { script, named, kept } in CASES {
        let place = Place::new();
        let work = place.work();
        prepare(&work);
        let before = content(&work);
        let printed = run_and_undo(&place, &["bash", "-c", script]);
        let after = content(&work);
        for name in *named {
            assert!(printed.contains(name), "{script}: {name} is not named: {printed}");
        }
        for (file, text) in *kept {
            assert_eq!(
                after.get(Path::new(file)).map(Vec::as_slice),
                Some(text.as_bytes()),
                "{script}: {printed}"
            );
        }
        if named.is_empty() {
            assert_eq!(after, before, "{script}: {printed}");
        }
    }
}

/// Random moves, exchanges, links and changes. None of them destroys the content of a large file.
const RANDOM: &str = r"
import ctypes, os, random, sys
random.seed(int(sys.argv[1])); libc = ctypes.CDLL(None, use_errno=True)
rename = lambda a, b, flags: libc.renameat2(-100, a, -100, b, flags)
def everything():
    return [os.path.join(d, n) for d, ds, fs in os.walk(b'.') for n in ds + fs if b'.git' not in d and n != b'.git']
def first_line(path):
    try: return open(path, 'rb').readline()[:20]
    except OSError: return b''
def is_large(path): return os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) > 10 << 20
def holds_large(path): return is_large(path) or any(is_large(os.path.join(d, n)) for d, _, fs in os.walk(path) for n in fs)
names = [b'n%d' % n for n in range(6)] + [b'n\xff', b'n\n', 'né'.encode()]
for step in range(30):
    all = everything(); a = random.choice(all); folder = random.choice([d for d in all + [b'.'] if os.path.isdir(d) and not os.path.islink(d)])
    b = random.choice([os.path.join(folder, random.choice(names)), random.choice(all)]); action = random.randrange(9)
    try:
        if action < 3 and not holds_large(b): rename(a, b, 0)
        elif action == 3: rename(a, b, 2)
        elif action == 4: rename(a, b, 1)
        elif action == 5: os.link(a, b, follow_symlinks=False)
        elif action == 6 and not is_large(a): os.unlink(a)
        elif action == 7 and not is_large(a) and not os.path.islink(a): open(a, 'ab').write(b'more\n')
        elif action == 8: random.choice([lambda: os.mkdir(b), lambda: os.symlink(random.choice(names), b), lambda: open(b, 'xb').write(b'new\n')])()
    except OSError: pass
";

#[test]
fn random_changes_are_undone_and_large_files_never_lost() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (runs, first) = (number("UNDO_RUNS", 4), number("SEED", 7));
    let interpreter = python();
    for seed in first..first + runs {
        let place = Place::new();
        let work = place.work();
        prepare(&work);
        let script = place.dir.path().join("random.py");
        std::fs::write(&script, RANDOM).unwrap();
        let before = content(&work);
        let printed = run_and_undo(&place, &[interpreter, script.to_str().unwrap(), &seed.to_string()]);
        let after = content(&work);
        for text in ["large", "inner", "hook"] {
            let is_there = after.values().any(|found| found == text.as_bytes());
            assert!(is_there, "seed {seed}: the content {text} is lost: {printed}");
        }
        let is_named = printed.contains("cannot be undone") || printed.contains("not undone");
        assert!(after == before || is_named, "seed {seed}: {printed}");
    }
}

/// Returns the folder of a running program's record.
fn record_folder(home: &Path) -> Option<PathBuf> {
    let mut folders = vec![home.join(".local/share/modegate")];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        for path in entries.filter(|path| path.is_dir()) {
            if path.to_str().is_some_and(|path| path.ends_with("-agent")) {
                return Some(path);
            }
            folders.push(path);
        }
    }
    None
}

#[test]
fn failed_record_has_a_message_an_audit_entry_and_an_exit_code() {
    for is_broken in [false, true] {
        let place = Place::new();
        let script = "echo old > a; until [ -e go ]; do sleep 0.01; done; echo new > b";
        let mut command = place.modegate(&["run", "--mode", "code", "--", "sh", "-c", script]);
        let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
        block_until("a", || place.work().join("a").exists());
        if is_broken {
            std::fs::remove_dir_all(record_folder(place.dir.path()).expect("a record")).unwrap();
        }
        std::fs::write(place.work().join("go"), "").unwrap();
        let out = child.wait_with_output().unwrap();
        let messages = String::from_utf8_lossy(&out.stderr).into_owned();
        let session = messages.split("modegate mode ").nth(1).unwrap().split_whitespace().next().unwrap();
        let (_, audit, _) = place.run(&["audit", session]);
        let (_, undone, why) = place.run(&["sessions", "undo", session]);
        let reports = ["could not be saved", "unreadable"]
            .map(|text| [&messages, &audit, &format!("{undone}{why}")].map(|place| place.contains(text)));
        let is_named = reports.iter().any(|all| all.iter().all(|is_there| *is_there));
        assert_eq!(is_named, is_broken, "{messages}\n{audit}\n{undone}{why}");
        assert_eq!(out.status.code(), Some(if is_broken { 125 } else { 0 }), "{messages}");
        assert_eq!(place.work().join("b").exists(), is_broken, "{undone}{why}");
    }
}
