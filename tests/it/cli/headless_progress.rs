//! Progress of a headless run: the lines of several calls in one message.

use serde_json::{Value, json};

use super::headless::run;

/// Runs a script of one message with these calls. Returns the JSON result and the progress.
fn run_calls(mode: &str, name: &str, arguments: &[Value]) -> (Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let call = |(id, arguments): (usize, &Value)| json!({ "tool_call": { "id": id.to_string(), "name": name, "arguments": arguments } });
    let calls = arguments.iter().enumerate().map(call);
    let stop = json!({ "stop": "done" });
    let lines = calls.chain([stop.clone(), json!({ "text": "Done." }), stop]);
    let script = dir.path().join("script.jsonl");
    std::fs::write(&script, lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let model = format!("scripted:{}", script.display());
    let arguments = ["--mode", mode, "--store", "memory", "--model", &model, "--output", "json", "-p", "go"];
    let (_, result, progress) = run(dir.path(), &arguments);
    (serde_json::from_str(&result).unwrap(), progress)
}

#[test]
fn each_result_stands_below_the_heading_of_its_call() {
    let paths = ["one.txt", "two.txt", "three.txt"].map(|path| json!({ "path": path }));
    let (_, progress) = run_calls("plan", "read_file", &paths);
    let lines: Vec<&str> = progress.lines().collect();
    for name in ["one.txt", "two.txt", "three.txt"] {
        let at = lines.iter().position(|line| line.starts_with("  failed: ") && line.contains(name));
        let at = at.unwrap_or_else(|| panic!("{name}: {progress}"));
        assert_eq!(lines[at - 1], format!("· Read `{name}`"), "{progress}");
    }
    // The control: the heading of a single call is printed once.
    let (_, progress) = run_calls("plan", "read_file", &paths[..1]);
    assert_eq!(progress.matches("· Read `one.txt`\n").count(), 1, "{progress}");
    assert!(progress.contains("· Read `one.txt`\n  failed: "), "{progress}");
}

#[test]
fn denied_calls_are_named_by_their_own_titles() {
    let files = ["one.txt", "two.txt"].map(|path| json!({ "path": path, "content": "x" }));
    let (result, progress) = run_calls("plan", "write_file", &files);
    assert_eq!(result["denied"], json!(["Write one.txt", "Write two.txt"]), "{progress}");
    for name in ["one.txt", "two.txt"] {
        assert!(progress.contains(&format!("· Write {name}\n  denied: ")), "{progress}");
    }
}
