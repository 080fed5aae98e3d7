//! `modegate replay --as-agent` plays the agent's side of a recording to a client with other ids and another
//! directory.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::replays::{ReplayFixture, scenarios};

/// Returns the agent's messages of a recording, with another client's directory.
fn recorded(recording: &str, from: &str, to: &str) -> Vec<Value> {
    let entries = recording.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let sent = entries.filter(|entry| entry["dir"] == "out");
    sent.map(|entry| serde_json::from_str(&entry["line"].as_str().unwrap().replace(from, to)).unwrap())
        .collect()
}

/// Removes the ids of the first requests, which differ in each conversation.
fn without_answered_ids(mut messages: Vec<Value>) -> Vec<Value> {
    for message in messages.iter_mut().filter(|message| message.get("method").is_none()) {
        message["id"] = Value::Null;
    }
    messages
}

#[test]
fn recorded_conversations_play_to_a_client_with_the_same_requests() {
    for scenario in scenarios() {
        let fixture = ReplayFixture::new();
        let (recording, _) = fixture.record(&scenario);
        let arguments = ["replay", "--as-agent", recording.to_str().unwrap()];
        fs::create_dir(fixture.path("elsewhere")).unwrap();
        let played = fixture.converse(&scenario, &arguments, "elsewhere", 500);
        let text = fs::read_to_string(&recording).unwrap();
        let [from, to] = ["work", "elsewhere"].map(|name| fixture.path(name).to_str().unwrap().to_owned());
        let expected = without_answered_ids(recorded(&text, &from, &to));
        assert_eq!(without_answered_ids(played), expected, "{}", scenario.name);
    }
}

/// Returns a recording of these lines. `>` marks a line of the client.
fn recording(lines: &[(char, Value)]) -> String {
    let line = |(at, (from, message)): (usize, &(char, Value))| {
        let dir = if *from == '>' { "in" } else { "out" };
        json!({ "ms": at * 100, "dir": dir, "line": message.to_string() }).to_string() + "\n"
    };
    let header = json!({ "modegate_transcript": 2, "options": { "wraps": "other" } });
    format!("{header}\n") + &lines.iter().enumerate().map(line).collect::<String>()
}

fn request(id: i64, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

fn result(id: i64, result: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

/// Returns the recording of a turn with a permission request, and of a request before and after it.
fn turn() -> String {
    let session = json!({ "sessionId": "s1" });
    let update = json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "s1", "update": {} } });
    recording(&[
        ('>', request(0, "initialize", &json!({}))),
        ('<', result(0, &json!({ "protocolVersion": 1 }))),
        ('>', request(1, "session/list", &json!({}))),
        ('<', result(1, &json!({ "sessions": [] }))),
        ('>', request(2, "session/new", &json!({ "cwd": "/old" }))),
        ('<', result(2, &session)),
        ('>', request(3, "session/prompt", &session)),
        ('<', update),
        (
            '<',
            request(0, "session/request_permission", &json!({ "sessionId": "s1", "path": "/old/a /older" })),
        ),
        ('>', result(0, &json!({ "outcome": { "outcome": "cancelled" } }))),
        ('<', result(3, &json!({ "stopReason": "end_turn" }))),
        ('>', request(4, "session/set_mode", &session)),
        ('<', result(4, &json!({}))),
    ])
}

/// Returns the exit code, the messages and the notes.
fn play(arguments: &[&str], recording: &str, input: &[Value]) -> (i32, Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    fs::write(&file, recording).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
    command.arg("replay").arg("--as-agent").arg(&file).args(arguments).env("HOME", folder.path());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines: String = input.iter().map(|line| format!("{line}\n")).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let messages = String::from_utf8(output.stdout).unwrap();
    let messages = messages.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code().unwrap(), messages, String::from_utf8(output.stderr).unwrap())
}

#[test]
fn requests_may_be_missing_early_or_unknown() {
    let session = json!({ "sessionId": "s1" });
    let (code, messages, notes) = play(
        &[],
        &turn(),
        &[
            request(10, "initialize", &json!({})),
            request(11, "session/new", &json!({ "cwd": "/new" })),
            request(12, "session/list", &json!({})),
            request(13, "session/prompt", &session),
            request(14, "session/set_mode", &session),
            request(15, "session/fork", &json!({})),
            result(0, &json!({ "outcome": { "outcome": "selected", "optionId": "a" } })),
            request(16, "session/prompt", &json!({ "sessionId": "s1" })),
        ],
    );
    let seen: Vec<Value> =
        messages.iter().map(|message| message.get("method").unwrap_or(&message["id"]).clone()).collect();
    let expected = json!([10, 11, 12, "session/update", "session/request_permission", 14, 15, 13, 16]);
    assert_eq!(json!(seen), expected, "{notes}");
    assert_eq!(messages[4]["params"]["path"], "/new/a /older");
    assert_eq!(
        (&messages[6]["error"]["code"], &messages[8]["error"]["code"]),
        (&json!(-32601), &json!(-32603))
    );
    assert_eq!(messages[7]["result"]["stopReason"], "end_turn");
    assert_eq!(code, 0, "{notes}");
    for note in [
        "line 4: session/list did not come before session/new",
        "line 4: session/list came at another place",
        "line 13: session/set_mode came at another place",
        "the recording has no session/fork here",
        "\"optionId\":\"a\"}, and {\"outcome\":\"cancelled\"} in the recording",
        "the recording has ended",
    ] {
        assert!(notes.contains(note), "{note}: {notes}");
    }
}

#[test]
fn client_that_leaves_early_is_an_error() {
    let (code, messages, notes) = play(&[], &turn(), &[request(10, "initialize", &json!({}))]);
    assert_eq!((code, messages.len()), (1, 1));
    assert!(notes.contains("the client ended before line 4: session/list"), "{notes}");
}

#[test]
fn unusable_recordings_and_options_are_named() {
    for (recording, arguments, code, says) in [
        ("{}", &[][..], 1, "no recording: its first line is no header"),
        ("{\"modegate_transcript\":2}", &[], 1, "the recording has no messages"),
        ("{\"modegate_transcript\":9}", &[], 1, "this one knows 1 to 2"),
        ("", &["--update"], 2, "cannot be used with '--update'"),
    ] {
        let (actual, _, notes) = play(arguments, recording, &[]);
        assert!(actual == code && notes.contains(says), "{actual} {notes}");
    }
    let arguments = ["--mode", "plan", "replay", "--as-agent", "no.jsonl"];
    let output = Command::new(env!("CARGO_BIN_EXE_modegate")).args(arguments).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && errors.contains("--as-agent does not take --mode"),
        "{errors}"
    );
}
