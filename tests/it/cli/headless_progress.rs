//! Progress of a headless run: the lines of several calls in one message.

use serde_json::{Value, json};

use super::headless::run;

/// Runs a script of one message with these calls. Returns the JSON result and the progress.
fn run_calls(mode: &str, name: &str, arguments: &[Value]) -> (Value, String) {
    run_calls_with(&["--mode", mode], name, arguments)
}

fn run_calls_with(options: &[&str], name: &str, arguments: &[Value]) -> (Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let call = |(id, arguments): (usize, &Value)| json!({ "tool_call": { "id": id.to_string(), "name": name, "arguments": arguments } });
    let calls = arguments.iter().enumerate().map(call);
    let stop = json!({ "stop": "done" });
    let lines = calls.chain([stop.clone(), json!({ "text": "Done." }), stop]);
    let script = dir.path().join("script.jsonl");
    std::fs::write(&script, lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let model = format!("scripted:{}", script.display());
    let arguments = ["--store", "memory", "--model", &model, "--output", "json", "-p", "go"];
    let (_, result, progress) = run(dir.path(), &[options, &arguments].concat());
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
    let reason = "write_file is not available in plan mode, which changes nothing";
    let denied = |title: &str, call: &Value| json!({ "title": title, "tool": "write_file", "rule": "access", "reason": reason, "callId": call });
    let ids = [&result["denied"][0]["callId"], &result["denied"][1]["callId"]];
    assert!(ids[0].is_string() && ids[0] != ids[1], "{result}");
    assert_eq!(result["denied"], json!([denied("Write one.txt", ids[0]), denied("Write two.txt", ids[1])]));
    for name in ["one.txt", "two.txt"] {
        assert!(progress.contains(&format!("· Write {name}\n  denied: ")), "{progress}");
    }
}

#[test]
fn quiet_run_prints_only_the_denials_that_decide() {
    let files = ["one.txt", "two.txt"].map(|path| json!({ "path": path, "content": "x" }));
    let (_, progress) = run_calls_with(&["--mode", "ask", "--quiet"], "write_file", &files);
    let denied = |name: &str| {
        let why = "needs permission, and a headless run has no user to ask; use --mode code to allow changes without asking";
        format!("denied: Write {name}: {why}\n")
    };
    let expected = format!("{}{}modegate: 2 calls were denied\n", denied("one.txt"), denied("two.txt"));
    assert_eq!(progress, expected);
    // In plan mode, an answer is enough.
    assert_eq!(run_calls_with(&["--mode", "plan", "-q"], "write_file", &files).1, "");
    let (_, progress) = run_calls_with(&["--mode", "ask"], "write_file", &files);
    assert!(progress.contains("modegate: ask mode") && progress.contains("· Write one.txt"), "{progress}");
}

#[test]
fn verbose_run_prints_arguments_and_results() {
    let arguments = [json!({ "path": "script.jsonl", "limit": 1 })];
    let (_, progress) = run_calls_with(&["--mode", "plan", "-v"], "read_file", &arguments);
    assert!(progress.contains("\n  path=script.jsonl limit=1\n"), "{progress}");
    assert!(progress.contains("{\"tool_call\":"), "the first line of the file: {progress}");
    let (_, progress) = run_calls_with(&["--mode", "plan"], "read_file", &arguments);
    assert!(!progress.contains("path=") && !progress.contains("tool_call"), "{progress}");
}

#[test]
fn quiet_and_verbose_exclude_each_other_and_need_a_prompt() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(dir.path(), &["-q", "-v", "-p", "x"]).0, 2);
    for option in ["-q", "-v"] {
        let (code, _, errors) = run(dir.path(), &[option]);
        assert_eq!((code, errors.trim_end()), (2, "modegate: --quiet and --verbose are for -p"), "{option}");
    }
}

/// The run does less than its options say, so that a quiet one says it, too.
#[test]
fn quiet_run_tells_that_it_is_limited() {
    let dir = tempfile::tempdir().unwrap();
    let prompt =
        || super::headless::run(dir.path(), &["--model", "offline", "--mode", "code", "-q", "-p", "hi"]).2;
    assert!(!prompt().contains("limited"), "the control: {}", prompt());
    let file = dir.path().join("home/.config/modegate/modes.yaml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "modes: {mine: {extneds: plan}}\n").unwrap();
    assert!(prompt().contains("limited to plan because a modes file cannot be used"), "{}", prompt());
}
