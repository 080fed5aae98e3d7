//! `modegate scripts`: two runs of each script in the gallery are equal, and the lines follow the schema.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::CompiledSchema;

fn run(cwd: &Path, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
    command.args(arguments).current_dir(cwd).env("HOME", cwd);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = run(&std::env::temp_dir(), arguments, "");
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn names() -> Vec<String> {
    printed(&["scripts", "list"]).lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// The long scripts get one prompt, to save time.
fn prompts(script: &str) -> usize {
    if ["commands", "flood", "limit"].contains(&script) { 1 } else { 5 }
}

/// Runs a conversation in a new folder, in version 1 or 2 of the protocol.
fn play(script: &str, version: u8) -> (Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let cwd = folder.path().canonicalize().unwrap();
    let request = |id: usize, method: &str, params: Value| {
        format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
    };
    let initialize = match version {
        1 => json!({ "protocolVersion": 1, "clientCapabilities": {} }),
        _ => json!({ "protocolVersion": 2, "info": { "name": "test", "version": "1" } }),
    };
    let mut input = request(1, "initialize", initialize);
    input += &request(2, "session/new", json!({ "cwd": cwd, "mcpServers": [] }));
    for id in 3..3 + prompts(script) {
        let prompt = json!([{ "type": "text", "text": "go" }]);
        input += &request(id, "session/prompt", json!({ "sessionId": "sess_1", "prompt": prompt }));
    }
    let arguments = ["--deterministic", "--store", "memory", "--mode", "code", "scripts", "run", script];
    let output = run(&cwd, &arguments, &input);
    let text = String::from_utf8(output.stdout).unwrap().replace(cwd.to_str().unwrap(), "$cwd");
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    (lines, text)
}

#[test]
fn scripts_end_every_turn_in_version_2() {
    for name in names() {
        let (lines, _) = play(&name, 2);
        for id in 1..3 + prompts(&name) {
            let is_answer = |line: &&Value| line["id"] == id && line.get("method").is_none();
            let answers: Vec<_> = lines.iter().filter(is_answer).collect();
            assert_eq!(answers.len(), 1, "{name} {id}");
            assert!(answers[0]["result"].is_object(), "{name}: {}", answers[0]);
        }
        let ends = lines.iter().filter(|line| line["params"]["update"]["stopReason"].is_string());
        assert_eq!(ends.count(), prompts(&name), "{name}");
    }
}

#[test]
fn scripts_are_deterministic_and_answer_every_prompt() {
    let names = names();
    assert_eq!(names.len(), 14);
    let mut updates = std::collections::BTreeSet::new();
    for name in names {
        let (lines, text) = play(&name, 1);
        // The times of commands differ.
        if !["commands", "images"].contains(&name.as_str()) {
            assert_eq!(play(&name, 1).1, text, "{name}");
        }
        for id in 1..3 + prompts(&name) {
            let is_answer = |line: &&Value| line["id"] == id && line.get("method").is_none();
            assert_eq!(lines.iter().filter(is_answer).count(), 1, "{name} {id}");
        }
        updates.extend(
            lines
                .iter()
                .filter_map(|line| line["params"]["update"]["sessionUpdate"].as_str().map(str::to_owned)),
        );
        updates
            .extend(lines.iter().filter_map(|line| line["result"]["stopReason"].as_str().map(str::to_owned)));
        let content = |line: &Value| line["params"]["update"]["content"][0]["content"]["type"] == "image";
        updates.extend(lines.iter().any(content).then(|| "image".into()));
        let cost = |line: &Value| line["params"]["update"]["cost"]["amount"].is_number();
        updates.extend(lines.iter().any(cost).then(|| "cost".into()));
    }
    for update in [
        "agent_message_chunk",
        "agent_thought_chunk",
        "available_commands_update",
        "current_mode_update",
        "plan",
        "session_info_update",
        "tool_call",
        "tool_call_update",
        "usage_update",
        "end_turn",
        "max_tokens",
        "max_turn_requests",
        "refusal",
        "image",
        "cost",
    ] {
        assert!(updates.contains(update), "no script shows {update}: {updates:?}");
    }
}

#[test]
fn lines_follow_the_schema() {
    let schema: Value = serde_json::from_str(&printed(&["scripts", "schema"])).unwrap();
    let schema = CompiledSchema::new(schema);
    for name in names() {
        for line in printed(&["scripts", "show", &name]).lines().filter(|line| !line.starts_with('#')) {
            schema
                .validate(&serde_json::from_str(line).unwrap())
                .unwrap_or_else(|error| panic!("{name}: {line}: {error}"));
        }
    }
    for line in [
        json!({ "txt": "a" }),
        json!({ "text": 1 }),
        json!({ "stop": "end" }),
        json!({ "text": "a", "thought": "b" }),
        json!({ "tool_call": { "id": "1" } }),
    ] {
        assert!(schema.validate(&line).is_err(), "{line}");
    }
}

#[test]
fn unknown_script_is_named_with_the_known_ones() {
    for arguments in [&["scripts", "run", "no"][..], &["scripts", "show", "no"], &["--model", "scripted:@no"]]
    {
        let output = run(&std::env::temp_dir(), arguments, "");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && errors.contains("agents, calls"),
            "{arguments:?}: {errors}"
        );
    }
}
