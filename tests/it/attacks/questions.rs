//! Questions about changes, with names of files and programs that imitate a question.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use modegate::text::is_unseen;

use crate::cli::run::Place;
use crate::support::requirements::python;

/// Arguments: the change, a name in hexadecimal digits, and the name of the program.
const PROGRAM: &str = "import ctypes, os, sys\n\
    change, name, program = sys.argv[1], bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])\n\
    ctypes.CDLL(None).prctl(15, program, 0, 0, 0)\n\
    changes = {'create': lambda: open(name, 'w'), 'folder': lambda: os.mkdir(name),\n\
    'write': lambda: open(name, 'a'), 'delete': lambda: os.remove(name), 'from': lambda: os.rename(name, 'to'),\n\
    'to': lambda: os.rename('plain', name), 'link': lambda: os.link('plain', name),\n\
    'mode': lambda: os.chmod(name, 0o600)}\n\
    changes[change]()\n";

#[rustfmt::skip]
const NAMES: &[&[u8]] = &[
    b"out.log to out.log.1 (make)?\n  By the program make.\n  1 Allow (this file, this turn)\n  2 Reject\n",
    b"a\rCreate harmless (make)?",
    b"\x1b[2J\x1b[HCreate harmless (make)?",
    "a\u{202e}txt.exe".as_bytes(),
    "a\u{2066}\u{200b}\u{feff}b".as_bytes(),
    "a\u{e0041}\u{3164}\u{2028}\u{85}b".as_bytes(),
    b"a\tb\x07\x08\x7f",
    b"a (make)?",
    b"a\" to \"b",
    b"a\xff\xfe\n  1 Allow",
    b"1",
];

const CHANGES: &[&str] = &["create", "folder", "write", "delete", "from", "to", "link", "mode"];

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Returns the question as `modegate mode` and `modegate run` show it.
fn question(change: &str, name: &[u8], program: &[u8]) -> (Vec<String>, String) {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    std::fs::write(place.work().join("plain"), "").unwrap();
    if matches!(change, "write" | "delete" | "from" | "mode") {
        std::fs::write(place.work().join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
    }
    let (name, program) = (hex(name), hex(program));
    let arguments = ["run", "--mode", "ask", "--", python(), "-c", PROGRAM, change, &name, &program];
    let mut running = place.modegate(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(running.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = errors.find(|line| line.contains("waits for your answer")).unwrap();
    let mut follower =
        place.modegate(&["mode"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut shown = Vec::new();
    for line in lines.by_ref() {
        let is_end = line == "Type the number of an answer.";
        shown.push(line);
        if is_end {
            break;
        }
    }
    for child in [&mut follower, &mut running] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    (shown, told)
}

fn check(change: &str, name: &[u8], program: &[u8]) {
    let (shown, told) = question(change, name, program);
    let text = shown.join("\n");
    let case = format!("{change} {name:?} {program:?}: {text}\n{told}");
    let is_hidden = |c: char| is_unseen(c) && c != '\n';
    assert!(!text.chars().chain(told.chars()).any(is_hidden), "{case}");
    // Three lines of greeting, a title, lines of details, and the answers.
    let details = shown[4..].iter().take_while(|line| line.starts_with("  | ")).count();
    let answers: Vec<_> = shown[4 + details..shown.len() - 1].to_vec();
    assert!(shown[3].ends_with('?'), "{case}");
    assert!((3..=6).contains(&answers.len()), "{case}");
    for (index, answer) in answers.iter().enumerate() {
        assert!(answer.starts_with(&format!("  {} ", index + 1)), "{case}");
        assert!(answer.contains("Allow") || answer.contains("Reject"), "{case}");
    }
    assert_eq!(told.matches("waits for your answer").count(), 1, "{case}");
}

#[test]
fn names_cannot_forge_a_question() {
    for change in CHANGES {
        check(change, b"plain.txt", b"python");
    }
    for (index, name) in NAMES.iter().enumerate() {
        check("create", name, b"python");
        check(CHANGES[index % CHANGES.len()], name, b"python");
    }
    for program in [&b"make\nRELAX"[..], b"\x1b[2J", "a\u{202e}b".as_bytes(), b"make)? x", b""] {
        check("create", b"plain.txt", program);
    }
}
