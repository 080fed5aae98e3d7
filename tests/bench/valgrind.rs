//! Counts the instructions of a process with valgrind, and drives the binary as an editor does.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::baseline::{Figure, percent};
use crate::cases::{Case, Run};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_modegate");

/// Makes this program run a case instead of measuring.
pub(crate) const CASE_FLAG: &str = "--case";

pub(crate) fn is_installed() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Measures with one, two and three times the case's iterations. The differences between them contain no
/// set-up. The spread is the difference between these differences.
pub(crate) fn measure(case: &Case) -> Figure {
    let [once, twice, thrice] = std::thread::scope(|scope| {
        let runs = [1, 2, 3].map(|times| scope.spawn(move || count(case, times * case.iterations)));
        runs.map(|run| run.join().unwrap())
    });
    let (value, spread) = if case.iterations == 0 {
        let (least, most) = (once.min(twice).min(thrice), once.max(twice).max(thrice));
        (least, percent(least, most))
    } else {
        let value = (thrice - once) / (2 * case.iterations);
        (value, percent(twice - once, thrice - twice).abs())
    };
    Figure { name: case.name, value, spread: Some(spread) }
}

/// The instructions of a whole process.
fn count(case: &Case, iterations: u64) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("valgrind.log");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"])
        .arg(format!("--log-file={}", log.display()))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", folder.path())
        .env("MODEGATE_LOG", "error");
    match case.run {
        Run::Inside(_) => {
            command.arg(std::env::current_exe().unwrap());
            command.args([CASE_FLAG, case.name, &iterations.to_string()]);
            assert!(command.status().unwrap().success(), "{} failed", case.name);
        }
        Run::Binary(drive) => {
            let chunks =
                format!(r#"{{"text":"Three words and a few more. ","repeat":{}}}"#, iterations.max(1));
            let mut editor =
                Editor::start(&mut command, folder.path(), &(chunks + "\n{\"stop\":\"done\"}\n"));
            drive(&mut editor, iterations);
            editor.end();
        }
        Run::Reading => {
            std::fs::write(folder.path().join("file.txt"), "Some lines.\n".repeat(50)).unwrap();
            let call = json!({ "tool_call": { "id": "c", "name": "read_file", "arguments": { "path": "file.txt" } } });
            let script = format!(
                "{call}\n{{\"stop\":\"done\"}}\n{{\"text\":\"read\"}}\n{{\"stop\":\"done\"}}\n{{\"loop\":true}}\n"
            );
            let mut editor = Editor::start(&mut command, folder.path(), &script);
            (0..iterations).for_each(|_| editor.prompt());
            editor.end();
        }
    }
    let log = std::fs::read_to_string(log).unwrap();
    let total = log.lines().find_map(|line| line.split_once("I refs:").or(line.split_once("I   refs:")));
    let (_, total) = total.unwrap_or_else(|| panic!("valgrind printed no total:\n{log}"));
    total.trim().replace(',', "").parse().unwrap()
}

/// A client of the binary with one session.
pub(crate) struct Editor {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    next_id: u64,
    cwd: String,
    session: String,
}

impl Editor {
    /// Starts the binary with a model that plays `script`.
    fn start(command: &mut Command, cwd: &Path, script: &str) -> Self {
        let file = cwd.join("model.jsonl");
        std::fs::write(&file, script).unwrap();
        command.args([BINARY, "--store", "memory", "--model"]).arg(format!("scripted:{}", file.display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let cwd = cwd.to_str().unwrap().to_owned();
        let mut editor = Self { child, input, output, next_id: 0, cwd, session: String::new() };
        editor.call("initialize", &json!({ "protocolVersion": 1 }));
        editor.session = editor.new_session();
        editor
    }

    pub(crate) fn new_session(&mut self) -> String {
        let answer = self.call("session/new", &json!({ "cwd": self.cwd, "mcpServers": [] }));
        answer["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    pub(crate) fn set_mode(&mut self, mode: &str) {
        self.call("session/set_mode", &json!({ "sessionId": self.session, "modeId": mode }));
    }

    pub(crate) fn prompt(&mut self) {
        let prompt = json!([{ "type": "text", "text": "go on" }]);
        self.call("session/prompt", &json!({ "sessionId": self.session, "prompt": prompt }));
    }

    /// Sends a request and reads up to its answer.
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        writeln!(self.input, "{}", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .unwrap();
        loop {
            let mut line = String::new();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "{BINARY} ended before it answered {method}"
            );
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message;
            }
        }
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success(), "{BINARY} failed");
    }
}
