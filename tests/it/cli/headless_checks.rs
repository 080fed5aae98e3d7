//! Headless runs with checks: required ones decide the exit code.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::headless::run;
use crate::support::requirements::require_sandbox;

/// Fails with the lines of `a.txt` that say `bad`.
const LINT: &str = "checks: [{id: lint, command: '! grep -Hn bad a.txt'}]\n";

fn write(content: &str) -> Value {
    let arguments = json!({ "path": "a.txt", "content": content });
    json!({ "tool_call": { "id": "c", "name": "write_file", "arguments": arguments } })
}

fn answer() -> Value {
    json!({ "text": "Done." })
}

/// A folder with the user's modes file.
fn folder(file: &str) -> tempfile::TempDir {
    require_sandbox();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("home/.config/modegate");
    fs::create_dir_all(&config).unwrap();
    fs::create_dir_all(dir.path().join("work")).unwrap();
    fs::write(config.join("modes.yaml"), file).unwrap();
    dir
}

/// Runs replies of one line each. Returns the exit code and the result.
fn run_replies(dir: &Path, replies: &[Value], options: &[&str]) -> (i32, Value) {
    let script = dir.join("script.jsonl");
    let lines = replies.iter().map(|line| format!("{line}\n{}\n", json!({ "stop": "done" })));
    fs::write(&script, lines.collect::<String>()).unwrap();
    let model = format!("scripted:{}", script.display());
    let work = dir.join("work");
    let mut arguments =
        vec!["--cwd", work.to_str().unwrap(), "--output", "json", "-p", "go", "--model", &model];
    arguments.extend(options);
    if !options.contains(&"--mode") {
        arguments.extend(["--mode", "code"]);
    }
    let (code, output, errors) = run(dir, &arguments);
    (code, serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}{errors}")))
}

const REQUIRED: &[&str] = &["--store", "memory", "--require-checks"];

#[test]
fn required_check_that_passes_in_the_end_is_a_success() {
    let dir = folder(LINT);
    let replies = [write("bad\n"), answer(), write("good\n"), answer()];
    let (code, result) = run_replies(dir.path(), &replies, REQUIRED);
    assert_eq!((code, &result["failedChecks"], &result["steps"]), (0, &json!([]), &json!(4)), "{result}");
}

#[test]
fn required_check_that_fails_has_its_own_exit_code() {
    let text = "required checks have not passed: lint: exit status 1";
    // The model changes the file each time, or not again after the first note.
    let tries: Vec<Value> = (0..9).flat_map(|number| [write(&format!("bad {number}\n")), answer()]).collect();
    for (replies, steps) in [(tries, 8), (vec![write("bad\n"), answer(), answer()], 3)] {
        let dir = folder(LINT);
        let (code, result) = run_replies(dir.path(), &replies, REQUIRED);
        assert_eq!((code, &result["error"], &result["steps"]), (8, &json!(text), &json!(steps)), "{result}");
        assert_eq!(result["failedChecks"], json!(["lint: exit status 1"]));
        assert_eq!(result["stopReason"], "end_turn");
    }
    let dir = folder(LINT);
    let (code, _) = run_replies(dir.path(), &[write("bad\n"), answer()], &["--store", "memory"]);
    assert_eq!(code, 0, "the control: a check that is not required fails no run");
}

/// A run that changes nothing is no success either if its checks fail.
#[test]
fn required_checks_run_without_a_change() {
    for (content, expected) in [("bad\n", 8), ("good\n", 0)] {
        let dir = folder(LINT);
        fs::write(dir.path().join("work/a.txt"), content).unwrap();
        let (code, result) = run_replies(dir.path(), &[answer(), answer()], REQUIRED);
        assert_eq!(code, expected, "{content}: {result}");
    }
    let dir = folder(LINT);
    fs::write(dir.path().join("work/a.txt"), "bad\n").unwrap();
    let (code, result) =
        run_replies(dir.path(), &[answer()], &["--store", "memory", "--require-checks", "--mode", "plan"]);
    assert_eq!(code, 0, "a mode that changes nothing requires none: {result}");
}

#[test]
fn required_check_that_cannot_run_fails_the_run() {
    for (file, expected) in [
        ("", "--require-checks: no checks may run here"),
        (
            "checks: [{id: lint, command: 'true'}]\npermissions: {deny: ['shell(true *)']}",
            "required checks have not passed: lint: The rule deny shell(true *)",
        ),
        (
            "checks: [{id: lint, command: 'true'}]\n\
             modes: [{id: code, access: edit, permission: auto}]",
            "required checks have not passed: lint: shell is not available in code mode",
        ),
        ("checks: [{id: lint, command: sleep 60, timeout: 1}]", "lint: Stopped: the timeout of 1 s expired"),
    ] {
        let dir = folder(file);
        let (code, result) = run_replies(dir.path(), &[write("a"), answer()], REQUIRED);
        let error = result["error"].as_str().unwrap_or_default();
        assert!(code == 8 && error.contains(expected), "{file}: {result}");
    }
}

/// A check is nothing that the model attempted.
#[test]
fn denied_check_that_is_not_required_keeps_the_exit_code() {
    let dir = folder("checks: [{id: lint, command: touch x}]\npermissions: {allow: [write_file]}");
    let options = ["--store", "memory", "--mode", "ask"];
    let (code, result) = run_replies(dir.path(), &[write("a"), answer()], &options);
    assert_eq!((code, &result["denied"][0]["title"]), (0, &json!("Check lint: touch x")), "{result}");
    let dir = folder("permissions: {allow: [write_file]}");
    let call = json!({ "tool_call": { "id": "c", "name": "shell", "arguments": { "command": "touch x" } } });
    let (code, _) = run_replies(dir.path(), &[call, answer()], &options);
    assert_eq!(code, 3, "the control: the same call of the model");
}

#[test]
fn settings_can_require_checks() {
    for (settings, expected) in [("require_checks: true\n", 8), ("", 0)] {
        let dir = folder("checks: [{id: lint, command: 'false'}]");
        fs::write(dir.path().join("home/.config/modegate/config.yaml"), settings).unwrap();
        let (code, _, errors) = run(
            dir.path(),
            &[
                "--cwd",
                dir.path().join("work").to_str().unwrap(),
                "--store",
                "memory",
                "--model",
                "offline",
                "--mode",
                "code",
                "-p",
                "create b.txt with x",
            ],
        );
        assert_eq!(code, expected, "{settings}: {errors}");
        assert!(dir.path().join("work/b.txt").exists(), "{errors}");
    }
}

/// The audit decides a check again as a call of the model, and the record names it.
#[test]
fn record_of_a_run_has_its_checks() {
    let dir = folder(LINT);
    let store = dir.path().join("store.db");
    let store = store.to_str().unwrap();
    let (code, result) = run_replies(dir.path(), &[write("bad\n"), answer()], &["--store", store]);
    assert_eq!(code, 0, "{result}");
    let id = result["sessionId"].as_str().unwrap();
    let (code, audit, errors) = run(dir.path(), &["--store", store, "audit", id]);
    assert!(code == 0 && audit.contains("ok"), "{audit}{errors}");
    let (_, events, errors) =
        run(dir.path(), &["--store", store, "sessions", "export", id, "--format", "jsonl"]);
    assert!(events.contains("\"check\":\"lint\""), "{events}{errors}");
}
