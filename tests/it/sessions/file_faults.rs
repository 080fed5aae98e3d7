//! A fault of the disk at each step of a change of files, and of its undo: the files are as before or as after, the
//! result says which, and nothing is lost.
//!
//! strace makes system calls fail, so the whole binary is tested. `FAULTS=all` tries each call with each
//! error; otherwise the distance grows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use super::store_faults::STRACE;

/// Calls of the system that change a folder or create a file.
const STEPS: [&str; 5] = ["openat2", "renameat2", "unlinkat", "mkdirat", "fchmod"];

const ERRORS: [&str; 2] = ["ENOSPC", "EIO"];

/// Larger than the limit of [`full_disk_in_the_middle_of_a_file_leaves_it_as_it_was`].
const LARGE: usize = 3 << 20;

type Files = BTreeMap<PathBuf, Vec<u8>>;

fn acts() -> [(&'static str, Value); 5] {
    let patch = "--- a/old.txt\n+++ b/old.txt\n@@\n-b\n+B\n--- a/gone.txt\n+++ /dev/null\n@@\n-x\n\
        --- /dev/null\n+++ b/deep/er/new.txt\n@@\n+new\n";
    [
        ("write_file", json!({ "path": "new/deep/a.txt", "content": "new\n" })),
        ("edit_file", json!({ "path": "old.txt", "old_text": "b\n", "new_text": "B\n" })),
        ("apply_patch", json!({ "patch": patch })),
        ("move_file", json!({ "from": "old.txt", "to": "sub/moved.txt" })),
        ("delete_file", json!({ "path": "gone.txt" })),
    ]
}

struct FileFaultFixture(tempfile::TempDir);

impl FileFaultFixture {
    fn new(tool: &str, arguments: &Value) -> Self {
        assert!(Path::new(STRACE).exists(), "this test needs {STRACE}: install the package strace");
        let fixture = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(fixture.path("work")).unwrap();
        for (name, text) in [("old.txt", "a\nb\nc\n"), ("gone.txt", "x\n")] {
            std::fs::write(fixture.path("work").join(name), text).unwrap();
        }
        let call = json!({ "tool_call": { "id": "c", "name": tool, "arguments": arguments } });
        let lines = [call, json!({ "stop": "done" }), json!({ "text": "Done." }), json!({ "stop": "done" })];
        std::fs::write(fixture.path("script.jsonl"), lines.map(|line| format!("{line}\n")).concat()).unwrap();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    /// Runs Modegate, which fails as `fault` says: an argument of strace's option `inject`. Returns also whether the
    /// fault has happened.
    fn modegate(&self, arguments: &[&str], fault: Option<&str>) -> (Output, bool) {
        let (binary, trace) = (env!("CARGO_BIN_EXE_modegate"), self.path("trace"));
        let mut command = Command::new(if fault.is_some() { STRACE } else { binary });
        if let Some(fault) = fault {
            let (calls, _) = fault.split_once(':').unwrap();
            command.args(["-f", "-qq", "-o", trace.to_str().unwrap()]);
            command.args(["-e", &format!("trace={calls}"), "-e", &format!("inject={fault}"), binary]);
        }
        let output = command
            .args(arguments)
            .current_dir(self.path("work"))
            .env_clear()
            .env("HOME", self.path(""))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let is_hit = fault.is_some() && std::fs::read_to_string(trace).unwrap().contains("INJECTED");
        (output, is_hit)
    }

    fn run(&self, fault: Option<&str>) -> (Value, bool) {
        let model = format!("scripted:{}", self.path("script.jsonl").display());
        let arguments = ["--mode", "code", "--model", &model, "--output", "json", "-p", "go"];
        let (output, is_hit) = self.modegate(&arguments, fault);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!errors.contains("panicked"), "{fault:?}: {errors}");
        (serde_json::from_slice(&output.stdout).unwrap_or_default(), is_hit)
    }

    /// `result` is that of the run.
    fn undo(&self, result: &Value, fault: Option<&str>) -> (Output, bool) {
        self.modegate(&["sessions", "undo", result["sessionId"].as_str().unwrap()], fault)
    }

    fn files(&self) -> Files {
        let mut files = Files::new();
        let mut folders = vec![self.path("work")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else {
                    let path = entry.path().strip_prefix(self.path("work")).unwrap().to_owned();
                    files.insert(path, std::fs::read(entry.path()).unwrap());
                }
            }
        }
        files
    }
}

/// Names of the files that differ, without temporary files, which a failing disk may leave behind.
fn changed(before: &Files, after: &Files) -> Vec<String> {
    let mut names: Vec<_> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    names.retain(|name| before.get(*name) != after.get(*name));
    let names = names.into_iter().map(|name| name.to_str().unwrap().to_owned());
    names.filter(|name| !name.contains(".modegate-")).collect()
}

/// `check` is called with each fault until one does not happen any more. Returns the number of faults.
fn each_fault(mut check: impl FnMut(&str) -> bool) -> usize {
    let mut hits = 0;
    let is_all = std::env::var_os("FAULTS").is_some();
    let errors = if is_all { &ERRORS[..] } else { &ERRORS[..1] };
    for (step, error) in STEPS.iter().flat_map(|step| errors.iter().map(move |error| (step, error))) {
        let mut at = 1;
        while check(&format!("{step}:error={error}:when={at}")) {
            hits += 1;
            at += if is_all { 1 } else { 1 + at / 2 };
        }
    }
    hits
}

#[test]
fn change_with_a_fault_at_any_step_is_whole_or_did_not_happen() {
    for (tool, arguments) in acts() {
        let whole = FileFaultFixture::new(tool, &arguments);
        let before = whole.files();
        whole.run(None);
        let all = changed(&before, &whole.files());
        assert!(!all.is_empty(), "the control: {tool}");
        let hits = each_fault(|fault| {
            let fixture = FileFaultFixture::new(tool, &arguments);
            let (result, is_hit) = fixture.run(Some(fault));
            let changed_files = changed(&before, &fixture.files());
            let report = format!("{tool}, {fault}: {changed_files:?}: {result}");
            assert!(changed_files.is_empty() || changed_files == all, "{report}");
            // What cannot be read after the change is named.
            let uncovered = result["uncoveredChanges"].to_string();
            // A moved file is named by its old path.
            let is_moved = tool == "move_file" && uncovered.contains("old.txt");
            let (unknown, known): (Vec<_>, Vec<_>) =
                changed_files.into_iter().partition(|file| is_moved || uncovered.contains(file.as_str()));
            // No result: Modegate did not start.
            if !result.is_null() {
                assert_eq!(result["changedFiles"], json!(known), "{report}");
            }
            if !known.is_empty() {
                let (output, _) = fixture.undo(&result, None);
                let errors = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(changed(&before, &fixture.files()), unknown, "{report}: {errors}");
            }
            is_hit
        });
        assert!(hits > 3, "the control: {tool}: only {hits} faults");
    }
}

#[test]
fn undo_with_a_fault_at_any_step_can_be_repeated() {
    for (tool, arguments) in acts() {
        let hits = each_fault(|fault| {
            let fixture = FileFaultFixture::new(tool, &arguments);
            let before = fixture.files();
            let (result, _) = fixture.run(None);
            let after = fixture.files();
            let (output, is_hit) = fixture.undo(&result, Some(fault));
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!errors.contains("panicked"), "{tool}, {fault}: {errors}");
            let different = changed(&before, &fixture.files());
            assert!(
                different.iter().all(|file| changed(&before, &after).contains(file)),
                "{tool}, {fault}: {errors}"
            );
            assert!(!output.status.success() || different.is_empty(), "{tool}, {fault}: {different:?}");
            // Modegate may not have started.
            let is_named =
                errors.contains("only partly undone") && different.iter().all(|file| errors.contains(file));
            let is_unchanged = different == changed(&before, &after);
            assert!(
                output.status.success() || is_unchanged || is_named,
                "{tool}, {fault}: {different:?}: {errors}"
            );
            fixture.undo(&result, None);
            assert_eq!(changed(&before, &fixture.files()), Vec::<String>::new(), "{tool}, {fault}: {errors}");
            is_hit
        });
        assert!(hits > 3, "the control: {tool}: only {hits} faults");
    }
}

/// The limit of a file's size stands for the end of the disk, also in the middle of a write.
#[test]
fn full_disk_in_the_middle_of_a_file_leaves_it_as_it_was() {
    let large = "x".repeat(LARGE);
    let acts = [
        ("write_file", json!({ "path": "new/a.txt", "content": large })),
        ("edit_file", json!({ "path": "old.txt", "old_text": "b\n", "new_text": large })),
    ];
    for (tool, arguments) in acts {
        // In KiB. The store stays smaller.
        for limit in ["2048", "2500", "3071", "unlimited"] {
            let fixture = FileFaultFixture::new(tool, &arguments);
            let before = fixture.files();
            let line = format!(
                "trap '' XFSZ; ulimit -f {limit}; exec {} --store memory --mode code --model scripted:{} --output json -p go",
                env!("CARGO_BIN_EXE_modegate"),
                fixture.path("script.jsonl").display()
            );
            let output = Command::new("/bin/bash")
                .args(["-c", &line])
                .current_dir(fixture.path("work"))
                .env_clear()
                .env("HOME", fixture.path(""))
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let changed_files = changed(&before, &fixture.files());
            assert_eq!(result["changedFiles"], json!(changed_files), "{tool}, {limit}: {result}");
            assert_eq!(changed_files.is_empty(), limit != "unlimited", "{tool}, {limit}: {result}");
            let names: Vec<_> = fixture.files().into_keys().collect();
            assert!(names.iter().all(|name| !name.to_str().unwrap().contains(".modegate-")), "{names:?}");
        }
    }
}
