//! Headless runs whose model gives no answer, repeats itself, or has background work.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::headless::run;

/// Runs a script of replies, each a list of lines, in code mode. Returns the exit code and the result.
fn outcome(replies: &[Vec<Value>]) -> (i32, Value) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.txt"), "x").unwrap();
    run_script(dir.path(), &lines(replies))
}

fn lines(replies: &[Vec<Value>]) -> String {
    let stop = json!({ "stop": "done" });
    let lines = replies.iter().flat_map(|reply| reply.iter().chain([&stop])).map(Value::to_string);
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn run_script(dir: &Path, script: &str) -> (i32, Value) {
    let path = dir.join("script.jsonl");
    fs::write(&path, script).unwrap();
    let model = format!("scripted:{}", path.display());
    let arguments =
        ["--store", "memory", "--model", &model, "--mode", "code", "--output", "json", "-p", "go"];
    let (code, output, errors) = run(dir, &arguments);
    (code, serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}{errors}")))
}

fn text(text: &str) -> Vec<Value> {
    vec![json!({ "text": text })]
}

fn thought() -> Vec<Value> {
    vec![json!({ "thought": "hm" })]
}

fn call(name: &str, arguments: &Value) -> Vec<Value> {
    vec![json!({ "tool_call": { "id": "c", "name": name, "arguments": arguments } })]
}

fn edit(number: usize) -> Vec<Value> {
    call("edit_file", &json!({ "path": "a.txt", "old_text": "zzz", "new_text": number.to_string() }))
}

#[test]
fn answer_without_text_is_never_a_success() {
    let todo = || call("todo", &json!({ "items": [] }));
    for (replies, expected, error) in [
        (vec![thought(), text("Here.")], 0, None),
        (vec![todo(), thought(), text("Here.")], 0, None),
        (vec![thought(); 4], 1, Some("the model gave no answer, although it was asked again")),
        (vec![text(" \n"); 4], 1, Some("the model gave no answer, although it was asked again")),
        (
            vec![text("<tool_call>{\"name\": \"todo\"}"); 4],
            1,
            Some("the model gave no answer, although it was asked again"),
        ),
        (vec![vec![]], 1, Some("the answer is empty")),
        (vec![todo(), vec![]], 1, Some("the answer is empty")),
    ] {
        let (code, result) = outcome(&replies);
        assert_eq!(code, expected, "{replies:?}: {result}");
        assert_eq!(result["error"].as_str(), error, "{replies:?}");
    }
}

#[test]
fn model_that_repeats_itself_ends_the_run_with_its_own_code() {
    let (code, result) = outcome(&vec![edit(0); 6]);
    assert_eq!((code, &result["steps"]), (7, &json!(6)), "{result}");
    assert_eq!(result["error"], "the model repeated the same calls with the same results");
    let notice = result["notices"].as_array().unwrap().last().unwrap().as_str().unwrap();
    assert!(
        notice.contains("The model made the same call 6 times with the same result: Edit a.txt."),
        "{notice}"
    );
    let mut work: Vec<Vec<Value>> = (0..30).map(edit).collect();
    work.push(text("It cannot be done."));
    let (code, result) = outcome(&work);
    assert_eq!((code, &result["steps"]), (0, &json!(31)), "{result}");
}

#[test]
fn run_waits_for_its_background_agents() {
    let dir = tempfile::tempdir().unwrap();
    let delegate = call("delegate", &json!({ "task": "SUB", "background": true }));
    let main = lines(&[delegate, text("I wait."), text("It is 42.")]);
    let script = format!("{main}{}\n{{\"delay_ms\":300}}\n{}", json!({ "for": "SUB" }), lines(&[text("42")]));
    let (code, result) = run_script(dir.path(), &script);
    assert_eq!((code, &result["text"]), (0, &json!("I wait.\n\nIt is 42.")), "{result}");
    assert_eq!(result["notices"], json!([]));
}

/// A server as a background job runs forever, so the run does not wait for jobs.
#[cfg(target_os = "linux")]
#[test]
fn jobs_that_end_with_the_run_are_named() {
    crate::support::requirements::require_sandbox();
    let job = call("shell", &json!({ "command": "sleep 600", "background": true }));
    let (code, result) = outcome(&[job, text("It runs."), text("It still runs.")]);
    assert_eq!((code, &result["steps"]), (0, &json!(3)), "{result}");
    let notice = "Background jobs were still running and end with this run: job_1 (sleep 600)";
    assert_eq!(result["notices"], json!([notice]), "{result}");
}

#[test]
fn path_outside_that_does_not_exist_needs_no_user() {
    let read = |path: &str| call("read_file", &json!({ "path": path }));
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("kept.txt"), "x").unwrap();
    let path = |name: &str| outside.path().join(name).display().to_string();
    for (replies, expected, denied) in [
        (vec![read(&path("a.txt")), text("Not there.")], 0, 0),
        (vec![read(&path("unlike.txt")), text("Not there.")], 0, 0),
        // The controls: a file that is there needs the user, unless the file of the same name was meant.
        (vec![read(&path("kept.txt")), text("Denied.")], 3, 1),
        (vec![read(&path("kept.txt")), read("a.txt"), text("Done.")], 3, 1),
    ] {
        let (code, result) = outcome(&replies);
        assert_eq!((code, result["denied"].as_array().unwrap().len()), (expected, denied), "{result}");
    }
}

#[test]
fn last_attempt_decides_the_exit_code() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("a.txt"), "other").unwrap();
    let read = |path: &str| call("read_file", &json!({ "path": path }));
    let path = outside.path().join("a.txt").display().to_string();
    let (code, result) = outcome(&[read(&path), read("a.txt"), text("x")]);
    assert_eq!((code, result["denied"].as_array().unwrap().len()), (0, 1), "{result}");
    let (code, _) = outcome(&[read("a.txt"), read(&path), text("x")]);
    assert_eq!(code, 3, "the control: the denial is the last attempt");
}
