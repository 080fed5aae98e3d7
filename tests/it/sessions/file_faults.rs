//! A failing system call at each step of a change of files, and of its undo. All files have their old or all have
//! their new content, the result says which, and no content is lost.
//!
//! `FAULTS=all` tries each call with each error.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::strace::{FaultFixture, FaultedRun, each_call};

/// System calls that change a folder or create a file.
const STEPS: [&str; 5] = ["openat2", "renameat2", "unlinkat", "mkdirat", "fchmod"];

const ERRORS: [&str; 2] = ["ENOSPC", "EIO"];

/// Larger than the limits of [`full_disk_during_a_write_keeps_the_old_content`].
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

struct FileFaultFixture(FaultFixture);

impl FileFaultFixture {
    fn new(tool: &str, arguments: &Value) -> Self {
        let fixture = Self(FaultFixture::new(tool, arguments));
        for (name, text) in [("old.txt", "a\nb\nc\n"), ("gone.txt", "x\n")] {
            std::fs::write(fixture.work().join(name), text).unwrap();
        }
        fixture
    }

    fn work(&self) -> PathBuf {
        self.0.path("work")
    }

    fn run(&self, fault: Option<&str>) -> FaultedRun {
        let run = self.0.prompt(&[], fault);
        assert!(!run.errors.contains("panicked"), "{fault:?}: {}", run.errors);
        run
    }

    /// Undoes the change of the run that had this result.
    fn undo(&self, result: &Value, fault: Option<&str>) -> FaultedRun {
        self.0.run(&["sessions", "undo", result["sessionId"].as_str().unwrap()], &[], fault)
    }

    fn files(&self) -> Files {
        let mut files = Files::new();
        let mut folders = vec![self.work()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else {
                    let path = entry.path().strip_prefix(self.work()).unwrap().to_owned();
                    files.insert(path, std::fs::read(entry.path()).unwrap());
                }
            }
        }
        files
    }
}

/// Returns the names of the files that differ, without temporary files, which a failing disk may leave behind.
fn changed(before: &Files, after: &Files) -> Vec<String> {
    let mut names: Vec<_> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    names.retain(|name| before.get(*name) != after.get(*name));
    let names = names.into_iter().map(|name| name.to_str().unwrap().to_owned());
    names.filter(|name| !name.contains(".modegate-")).collect()
}

/// Calls `check` with each fault until `check` returns false because the fault did not happen. Returns the number of
/// faults that happened.
fn each_fault(mut check: impl FnMut(&str) -> bool) -> usize {
    let is_all = std::env::var_os("FAULTS").is_some();
    let errors = if is_all { &ERRORS[..] } else { &ERRORS[..1] };
    let faults = STEPS.iter().flat_map(|step| errors.iter().map(move |error| (step, error)));
    faults.map(|(step, error)| each_call(|at| check(&format!("{step}:error={error}:when={at}")))).sum()
}

#[test]
fn change_with_a_fault_at_any_step_is_complete_or_absent() {
    for (tool, arguments) in acts() {
        let whole = FileFaultFixture::new(tool, &arguments);
        let before = whole.files();
        whole.run(None);
        let all = changed(&before, &whole.files());
        assert!(!all.is_empty(), "the control: {tool}");
        let hits = each_fault(|fault| {
            let fixture = FileFaultFixture::new(tool, &arguments);
            let FaultedRun { result, is_hit, .. } = fixture.run(Some(fault));
            let changed_files = changed(&before, &fixture.files());
            let report = format!("{tool}, {fault}: {changed_files:?}: {result}");
            assert!(changed_files.is_empty() || changed_files == all, "{report}");
            // The result names files that cannot be read after the change.
            let uncovered = result["uncoveredChanges"].to_string();
            // For a moved file, the result has the old path.
            let is_moved = tool == "move_file" && uncovered.contains("old.txt");
            let (unknown, known): (Vec<_>, Vec<_>) =
                changed_files.into_iter().partition(|file| is_moved || uncovered.contains(file.as_str()));
            // Without a result, the fault kept Modegate from starting.
            if !result.is_null() {
                assert_eq!(result["changedFiles"], json!(known), "{report}");
            }
            if !known.is_empty() {
                let FaultedRun { errors, .. } = fixture.undo(&result, None);
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
            let FaultedRun { result, .. } = fixture.run(None);
            let after = fixture.files();
            let FaultedRun { code, errors, is_hit, .. } = fixture.undo(&result, Some(fault));
            assert!(!errors.contains("panicked"), "{tool}, {fault}: {errors}");
            let different = changed(&before, &fixture.files());
            assert!(
                different.iter().all(|file| changed(&before, &after).contains(file)),
                "{tool}, {fault}: {errors}"
            );
            assert!(code != 0 || different.is_empty(), "{tool}, {fault}: {different:?}");
            // If the fault kept Modegate from starting, the files are unchanged.
            let is_named =
                errors.contains("only partly undone") && different.iter().all(|file| errors.contains(file));
            let is_unchanged = different == changed(&before, &after);
            assert!(code == 0 || is_unchanged || is_named, "{tool}, {fault}: {different:?}: {errors}");
            fixture.undo(&result, None);
            assert_eq!(changed(&before, &fixture.files()), Vec::<String>::new(), "{tool}, {fault}: {errors}");
            is_hit
        });
        assert!(hits > 3, "the control: {tool}: only {hits} faults");
    }
}

/// A limit on file sizes stands for a full disk. A write can reach it after its first bytes.
#[test]
fn full_disk_during_a_write_keeps_the_old_content() {
    let large = "x".repeat(LARGE);
    let acts = [
        ("write_file", json!({ "path": "new/a.txt", "content": large })),
        ("edit_file", json!({ "path": "old.txt", "old_text": "b\n", "new_text": large })),
    ];
    for (tool, arguments) in acts {
        // Limits in KiB.
        for limit in ["2048", "2500", "3071", "unlimited"] {
            let fixture = FileFaultFixture::new(tool, &arguments);
            let before = fixture.files();
            let line = format!(
                "trap '' XFSZ; ulimit -f {limit}; exec {} --store memory --mode code --model {} --output json -p go",
                env!("CARGO_BIN_EXE_modegate"),
                fixture.0.model()
            );
            let output = Command::new("/bin/bash")
                .args(["-c", &line])
                .current_dir(fixture.work())
                .env_clear()
                .env("HOME", fixture.0.path(""))
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
