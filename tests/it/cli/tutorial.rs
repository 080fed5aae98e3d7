//! Runs the examples of the tutorial and the README unchanged, in a new home and directory.

#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Stands for output that a page leaves out: within a line for any text, as a line for any lines.
const ELLIPSIS: &str = "…";

/// The line after the output of each example, followed by the exit code.
const END: &str = "@@ exit code ";

/// A fenced block: its language and its text.
struct Block<'a> {
    language: &'a str,
    text: &'a str,
}

/// Commands, and the output that the page shows for them, if there is any.
struct Example<'a> {
    commands: &'a str,
    shown: Option<&'a str>,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let fenced = page.split("\n```").skip(1).step_by(2).map(|fenced| fenced.split_once('\n').unwrap());
    fenced.map(|(language, text)| Block { language, text }).collect()
}

fn examples(page: &str) -> Vec<Example<'_>> {
    let blocks = blocks(page);
    let shown = |at: usize| blocks.get(at).filter(|block| block.language == "text").map(|block| block.text);
    let commands = blocks.iter().enumerate().filter(|(_, block)| block.language == "sh");
    commands.map(|(at, block)| Example { commands: block.text, shown: shown(at + 1) }).collect()
}

/// Runs the examples in one shell, in this directory, with a new home. Returns the output and the exit code
/// of each.
fn run(work: &Path, examples: &[Example<'_>]) -> Vec<(String, String)> {
    let home = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_modegate"));
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let script: String = examples
        .iter()
        .map(|example| format!("{{\n{}\n}} 2>&1\necho \"{END}$?\"\n", example.commands))
        .collect();
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(work)
        .env_clear()
        .env("HOME", home.path())
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let mut runs = vec![(String::new(), String::new())];
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (text, code) = runs.last_mut().unwrap();
        if let Some(found) = line.strip_prefix(END) {
            found.clone_into(code);
            runs.push((String::new(), String::new()));
        } else {
            text.extend([line.trim_end(), "\n"]);
        }
    }
    runs.pop();
    runs
}

/// Returns true if a line matches the page.
fn is_line_shown(line: &str, shown: &str) -> bool {
    let Some((start, rest)) = shown.split_once(ELLIPSIS) else { return line == shown };
    let Some(mut line) = line.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once(ELLIPSIS).unwrap_or(("", rest));
    for piece in middle.split(ELLIPSIS) {
        let Some(at) = line.find(piece) else { return false };
        line = &line[at + piece.len()..];
    }
    line.ends_with(end)
}

/// Compares output with the page. Returns the first line of the page that the output does not have.
fn missing<'a>(output: &str, shown: &'a str) -> Option<&'a str> {
    let mut lines = output.lines();
    let mut may_skip = false;
    for expected in shown.lines() {
        if expected == ELLIPSIS {
            may_skip = true;
            continue;
        }
        let is_found = if may_skip {
            lines.any(|line| is_line_shown(line, expected))
        } else {
            lines.next().is_some_and(|line| is_line_shown(line, expected))
        };
        if !is_found {
            return Some(expected);
        }
        may_skip = false;
    }
    (!may_skip && lines.next().is_some()).then_some("the end of the output")
}

fn check(work: &Path, examples: &[Example<'_>]) {
    let runs = run(work, examples);
    assert_eq!(runs.len(), examples.len(), "an example ended the shell");
    for (Example { commands, shown }, (output, code)) in examples.iter().zip(runs) {
        assert_eq!(code, "0", "{commands}\n{output}");
        let missing = shown.and_then(|shown| missing(&output, shown));
        assert_eq!(missing, None, "not in the output of\n{commands}\n{output}");
    }
}

#[test]
fn tutorial_examples_match_the_page() {
    let page = include_str!("../../../docs/start/tutorial.md");
    let examples = examples(page);
    assert!(examples.len() > 5, "the tutorial has examples");
    check(tempfile::tempdir().unwrap().path(), &examples);
}

#[test]
fn readme_session_matches_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let script = include_str!("../../../docs/hello.jsonl");
    fs::create_dir(dir.path().join("docs")).unwrap();
    fs::write(dir.path().join("docs/hello.jsonl"), script).unwrap();
    assert!(include_str!("../../../docs/start/tutorial.md").contains(script), "the two pages use one script");
    // The other commands of the README build, test and install.
    let mut examples = examples(include_str!("../../../README.md"));
    examples.retain(|example| example.shown.is_some());
    assert_eq!(examples.len(), 1);
    check(dir.path(), &examples);
}

#[test]
fn differing_output_is_detected() {
    let output = "one\ntwo sess_1 in x\nthree\n";
    for shown in ["one\n…\nthree\n", "…\ntwo sess_… in …\n…\n", "…\nthree\n…\n", "one\n…\n"] {
        assert_eq!(missing(output, shown), None, "{shown}");
    }
    for (shown, expected) in [
        ("one\nthree\n", "three"),
        ("…\nfour\n", "four"),
        ("…\ntwo sess_… at …\n…\n", "two sess_… at …"),
        ("one\n", "the end of the output"),
    ] {
        assert_eq!(missing(output, shown), Some(expected), "{shown}");
    }
}
