//! Runs the binary with system calls that fail, in a home folder of its own. strace makes the calls fail, so
//! the tests cover the whole binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

const STRACE: &str = "/usr/bin/strace";

/// A home folder with the folder `work`, and a model that makes one call.
pub(super) struct FaultFixture(tempfile::TempDir);

pub(super) struct FaultedRun {
    pub code: i32,
    /// The JSON that the run printed, or null.
    pub result: Value,
    pub errors: String,
    /// True if a system call failed as demanded.
    pub is_hit: bool,
}

impl FaultFixture {
    pub(super) fn new(tool: &str, arguments: &Value) -> Self {
        assert!(Path::new(STRACE).exists(), "this test needs {STRACE}: install the package strace");
        let fixture = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(fixture.path("work")).unwrap();
        let call = json!({ "tool_call": { "id": "c", "name": tool, "arguments": arguments } });
        let lines = [call, json!({ "stop": "done" }), json!({ "text": "Done." }), json!({ "stop": "done" })];
        std::fs::write(fixture.path("script.jsonl"), lines.map(|line| format!("{line}\n")).concat()).unwrap();
        fixture
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    pub(super) fn model(&self) -> String {
        format!("scripted:{}", self.path("script.jsonl").display())
    }

    /// Runs one prompt.
    pub(super) fn prompt(&self, paths: &[PathBuf], fault: Option<&str>) -> FaultedRun {
        let model = self.model();
        let arguments = ["--mode", "code", "--model", &model, "--output", "json", "-p", "go"];
        self.run(&arguments, paths, fault)
    }

    /// Runs the binary to its end. `fault` is an argument of strace's option `inject`. Only calls on `paths`
    /// fail, if there are any.
    pub(super) fn run(&self, arguments: &[&str], paths: &[PathBuf], fault: Option<&str>) -> FaultedRun {
        let (binary, trace) = (env!("CARGO_BIN_EXE_modegate"), self.path("trace"));
        let mut command = Command::new(if fault.is_some() { STRACE } else { binary });
        if let Some(fault) = fault {
            let (calls, _) = fault.split_once(':').unwrap();
            command.args(["-f", "-qq", "-o", trace.to_str().unwrap()]);
            command.args(["-e", &format!("trace={calls}"), "-e", &format!("inject={fault}")]);
            command.args(paths.iter().flat_map(|path| [Path::new("-P"), path.as_path()]));
            command.arg(binary);
        }
        let output = command
            .args(arguments)
            .current_dir(self.path("work"))
            .env_clear()
            .env("HOME", self.path(""))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        FaultedRun {
            code: output.status.code().unwrap_or(-1),
            result: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
            is_hit: fault.is_some() && std::fs::read_to_string(trace).unwrap().contains("INJECTED"),
        }
    }
}

/// Calls `check` with the numbers of system calls, until `check` returns false because the process makes
/// fewer calls. Returns how often `check` returned true. With `FAULTS=all`, each number is tried. Otherwise
/// the distance between the numbers grows.
pub(super) fn each_call(mut check: impl FnMut(usize) -> bool) -> usize {
    let is_all = std::env::var_os("FAULTS").is_some();
    let (mut at, mut hits) = (1, 0);
    while check(at) {
        hits += 1;
        at += if is_all { 1 } else { 1 + at / 2 };
    }
    hits
}
