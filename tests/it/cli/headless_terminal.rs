//! Headless runs on a terminal: the live line, colours, and what stays on the screen.

use std::path::Path;

use serde_json::json;

use super::headless::{modegate, run};
use crate::support::requirements::require_sandbox;
use crate::support::user_terminal::TestTerminal;

const SPINNER: &str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏";

/// A run whose model says something, runs a command that waits for the file `go`, and ends with an answer.
struct TerminalRun {
    dir: tempfile::TempDir,
    model: String,
}

impl TerminalRun {
    fn new() -> Self {
        require_sandbox();
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        // The output differs from the text of the command.
        write("wait.sh", "echo out\"put\" 1; until [ -e go ]; do sleep 0.02; done\n");
        let call =
            json!({ "tool_call": { "id": "1", "name": "shell", "arguments": { "command": "sh wait.sh" } } });
        let stop = json!({ "stop": "done" });
        let lines =
            [json!({ "text": "Let me look." }), call, stop.clone(), json!({ "text": "All done." }), stop];
        write("script.jsonl", &lines.map(|line| format!("{line}\n")).concat());
        let model = format!("scripted:{}", dir.path().join("script.jsonl").display());
        Self { dir, model }
    }

    fn arguments<'a>(&'a self, options: &[&'a str]) -> Vec<&'a str> {
        let common = ["--store", "memory", "--mode", "code", "--model", &self.model, "-p", "go"];
        [&common[..], options].concat()
    }

    fn start(&self, options: &[&str], environment: &[(&str, &str)]) -> TestTerminal {
        let mut command = modegate(self.dir.path(), &self.arguments(options));
        command.env("PATH", "/usr/bin:/bin").env("TERM", "xterm-256color").env_remove("NO_COLOR");
        command.envs(environment.iter().copied());
        TestTerminal::start(&command)
    }

    fn let_command_end(&self) {
        std::fs::write(self.dir.path().join("go"), "").unwrap();
    }
}

/// The rows of the screen that are not empty.
fn rows(terminal: &TestTerminal) -> Vec<String> {
    let mut emulator = vt100::Parser::new(24, 80, 0);
    emulator.process(&terminal.output);
    let rows = emulator.screen().rows(0, 80).map(|row| row.trim_end().to_owned());
    rows.filter(|row| !row.is_empty()).collect()
}

fn cursor_column(terminal: &TestTerminal) -> u16 {
    let mut emulator = vt100::Parser::new(24, 80, 0);
    emulator.process(&terminal.output);
    emulator.screen().cursor_position().1
}

fn has_live_line(rows: &[String]) -> bool {
    rows.iter().any(|row| row.starts_with(|c| SPINNER.contains(c)))
}

fn has_colors(terminal: &TestTerminal) -> bool {
    terminal.has_shown("\x1b[0m")
}

#[test]
fn live_line_shows_the_command_and_leaves_nothing_behind() {
    let run = TerminalRun::new();
    let mut terminal = run.start(&[], &[]);
    terminal.wait_for("output 1");
    let live = rows(&terminal).pop().unwrap();
    assert!(live.starts_with(|c| SPINNER.contains(c)), "{live}");
    for part in [" · code mode · ", "s · ", "sh wait.sh", " · output 1"] {
        assert!(live.contains(part), "{part}: {live}");
    }
    run.let_command_end();
    assert!(terminal.end().success());
    let rows = rows(&terminal);
    assert!(!has_live_line(&rows) && !rows.iter().any(|row| row.contains("output 1")), "{rows:?}");
    for line in ["Let me look.", "· sh wait.sh", "All done."] {
        assert!(rows.iter().any(|row| row == line), "{line}: {rows:?}");
    }
    assert_eq!(cursor_column(&terminal), 0);
    assert!(has_colors(&terminal));
}

#[test]
fn live_line_fits_a_narrow_terminal() {
    let run = TerminalRun::new();
    let mut terminal = run.start(&[], &[]);
    terminal.resize(20, 24);
    let drawn = |terminal: &TestTerminal| {
        let text = String::from_utf8_lossy(&terminal.output).into_owned();
        let line = text.rsplit('\r').find(|part| part.contains("mode") && part.contains('…'))?;
        Some(line.replace("\x1b[2m", "").split('\x1b').next()?.to_owned())
    };
    terminal.wait_until("drawn", |terminal| drawn(terminal).is_some());
    let line = drawn(&terminal).unwrap();
    assert_eq!(line.chars().count(), 19, "{line:?}");
    run.let_command_end();
    assert!(terminal.end().success());
}

#[test]
fn interrupted_run_leaves_no_live_line() {
    let run = TerminalRun::new();
    let mut terminal = run.start(&[], &[]);
    terminal.wait_for("output 1");
    terminal.send("\x03");
    assert_eq!(terminal.end().code(), Some(130));
    let rows = rows(&terminal);
    assert!(!has_live_line(&rows), "{rows:?}");
    assert!(rows.iter().any(|row| row == "modegate: the run was interrupted"), "{rows:?}");
}

#[test]
fn environment_and_quiet_decide_what_a_terminal_gets() {
    let run = TerminalRun::new();
    let mut plain = run.start(&[], &[("NO_COLOR", "1")]);
    plain.wait_for("output 1");
    run.let_command_end();
    assert!(plain.end().success());
    assert!(plain.has_shown("\x1b[K") && !has_colors(&plain), "{:?}", String::from_utf8_lossy(&plain.output));
    assert!(!String::from_utf8_lossy(&plain.output).contains("\x1b[3"), "no colour");
    let mut empty = run.start(&[], &[("NO_COLOR", "")]);
    assert!(empty.end().success() && has_colors(&empty), "an empty NO_COLOR does not count");
    let mut dumb = run.start(&[], &[("TERM", "dumb")]);
    assert!(dumb.end().success() && !dumb.has_shown("\x1b"), "{:?}", String::from_utf8_lossy(&dumb.output));
    let mut quiet = run.start(&["--quiet"], &[]);
    assert!(quiet.end().success());
    assert_eq!(String::from_utf8_lossy(&quiet.output), "Let me look.\r\n\r\nAll done.\r\n");
}

#[test]
fn pipe_gets_no_escape_sequences() {
    let run_on_pipe = TerminalRun::new();
    run_on_pipe.let_command_end();
    let dir: &Path = run_on_pipe.dir.path();
    let (code, answer, progress) = run(dir, &run_on_pipe.arguments(&[]));
    assert_eq!((code, answer.as_str()), (0, "Let me look.\n\nAll done.\n"), "{progress}");
    assert!(!progress.contains(['\x1b', '\r']) && progress.contains("\n· sh wait.sh\n"), "{progress:?}");
}
