//! Transcripts: the binary replays them to the same bytes in any directory. Also recordings, and errors of
//! both.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use agent_client_protocol_schema::v1 as schema;
use serde_json::Value;

/// Returns the folder of the transcripts.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/transcripts")
}

fn modegate(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_modegate"))
        .current_dir(dir)
        .args(arguments)
        .env_clear()
        .env("HOME", dir)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn names() -> Vec<String> {
    let names = fs::read_dir(folder()).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.strip_suffix(".in.jsonl").map(str::to_owned)
    });
    names.collect()
}

#[test]
fn transcripts_replay_identically_in_any_directory() {
    assert!(names().len() >= 10, "the transcripts are gone");
    let elsewhere = tempfile::tempdir().unwrap();
    for dir in [Path::new(env!("CARGO_MANIFEST_DIR")), elsewhere.path()] {
        let output = modegate(dir, &["replay", folder().to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    }
}

#[test]
fn transcripts_cover_every_method_and_update() {
    let mut seen = Vec::new();
    for name in names() {
        for side in ["in", "out"] {
            let path = folder().join(format!("{name}.{side}.jsonl"));
            for line in fs::read_to_string(path).unwrap().lines() {
                let message: Value = serde_json::from_str(line).unwrap_or_default();
                for word in [
                    &message["method"],
                    &message["params"]["update"]["sessionUpdate"],
                    &message["result"]["stopReason"],
                ] {
                    seen.push(word.as_str().unwrap_or_default().to_owned());
                }
            }
        }
    }
    for word in [
        "initialize",
        "authenticate",
        "session/new",
        "session/prompt",
        "session/set_mode",
        "session/set_config_option",
        "session/cancel",
        "$/cancel_request",
        "session/request_permission",
        "agent_message_chunk",
        "agent_thought_chunk",
        "tool_call",
        "tool_call_update",
        "plan",
        "current_mode_update",
        "config_option_update",
        "available_commands_update",
        "session_info_update",
        "usage_update",
        "end_turn",
        "max_tokens",
        "refusal",
        "cancelled",
    ] {
        assert!(seen.iter().any(|seen| seen == word), "no transcript has {word}");
    }
}

/// `docs/reference/acp.md` lists the methods and updates of ACP that no play and no transcript has.
#[test]
fn protocol_page_lists_methods_without_fixtures() {
    let mut seen = BTreeSet::new();
    for file in fs::read_dir(folder()).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            continue;
        }
        for line in fs::read_to_string(path).unwrap().lines() {
            let message: Value = serde_json::from_str(line).unwrap_or_default();
            for word in [&message["method"], &message["params"]["update"]["sessionUpdate"]] {
                seen.extend(word.as_str().map(str::to_owned));
            }
        }
    }
    let mut all = BTreeSet::new();
    for names in [
        serde_json::to_value(schema::AGENT_METHOD_NAMES).unwrap(),
        serde_json::to_value(schema::CLIENT_METHOD_NAMES).unwrap(),
    ] {
        all.extend(names.as_object().unwrap().values().map(|name| name.as_str().unwrap().to_owned()));
    }
    let methods = all.clone();
    let updates = serde_json::to_value(schemars::schema_for!(schema::SessionUpdate)).unwrap();
    for update in updates["oneOf"].as_array().unwrap() {
        all.insert(update["properties"]["sessionUpdate"]["const"].as_str().unwrap().to_owned());
    }
    assert!(
        all.len() >= 25 && all.is_superset(&BTreeSet::from(["session/prompt".into(), "plan".into()])),
        "{all:?}"
    );
    // Plays have a method as a word or in JSON, and an update as its form or in JSON.
    for play in crate::protocol::plays::plays() {
        let text = fs::read_to_string(play).unwrap();
        let words: BTreeSet<&str> = text.split([' ', '"', '\n']).collect();
        let has_form = |name: &str| {
            let mut forms = crate::protocol::plays::CHUNKS.iter().filter(|(update, _)| *update == name);
            forms.any(|(_, form)| text.contains(&format!("\n<- {form} ")))
        };
        let is_shown = |name: &&String| {
            let is_update = text.contains(&format!("\"sessionUpdate\":\"{name}\"")) || has_form(name);
            is_update || methods.contains(*name) && words.contains(name.as_str())
        };
        seen.extend(all.iter().filter(is_shown).cloned());
    }
    let missing: BTreeSet<String> = all.difference(&seen).cloned().collect();
    let page = include_str!("../../../docs/reference/acp.md");
    let listed =
        page.split("No play and no transcript has ").nth(1).expect("the list in docs/reference/acp.md");
    let listed = listed.split("\n\n").next().unwrap();
    let listed: BTreeSet<String> = listed.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(listed, missing);
}

#[test]
fn replay_shows_divergence_and_update_accepts_output() {
    let dir = tempfile::tempdir().unwrap();
    for side in ["in", "out", "model"] {
        let name = format!("connect.{side}.jsonl");
        fs::copy(folder().join(&name), dir.path().join(&name)).unwrap();
    }
    let expected = dir.path().join("connect.out.jsonl");
    let right = fs::read_to_string(&expected).unwrap();
    fs::write(&expected, right.replace("there.", "here.")).unwrap();
    let output = modegate(dir.path(), &["replay", "connect.in.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output);
    assert!(shown.contains("DIVERGED connect") && shown.contains("first difference at line"), "{shown}");
    let (wrong, actual) = (shown.find("here.").unwrap(), shown.find("there.").unwrap());
    assert!(wrong < actual, "{shown}");
    assert_eq!(modegate(dir.path(), &["replay", "--update", "."]).status.code(), Some(0));
    assert_eq!(fs::read_to_string(&expected).unwrap(), right);
}

#[test]
fn deterministic_recording_can_be_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let name = "offline_plan";
    let input = fs::File::open(folder().join(format!("{name}.in.jsonl"))).unwrap();
    let files = folder().join(format!("{name}.files"));
    let recording = dir.path().join("recording.jsonl");
    // A file at stdin is paced without an option. `${CWD}` is a placeholder only in deterministic runs.
    let status = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--deterministic", "--store", "memory", "--record", recording.to_str().unwrap()])
        .current_dir(&files)
        .stdin(input)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let recorded = fs::read_to_string(&recording).unwrap();
    let first: Value = serde_json::from_str(recorded.lines().next().unwrap()).unwrap();
    assert_eq!(first["modegate_transcript"], 2);
    let second: Value = serde_json::from_str(recorded.lines().nth(1).unwrap()).unwrap();
    assert_eq!((&second["dir"], second["ms"].is_u64()), (&"in".into(), true));
    let with = ["replay", "recording.jsonl", "--files", files.to_str().unwrap()];
    let output = modegate(dir.path(), &with);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    // In an empty directory the model finds nothing, so the replay diverges.
    let output = modegate(dir.path(), &["replay", "recording.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("DIVERGED recording.jsonl"), "{}", text(&output));
    // A recording does not overwrite an existing file.
    let output = modegate(dir.path(), &["--record", "recording.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&recording).unwrap(), recorded);
}

/// Records the transcript of version 2, replays the recording, and plays its agent to the recorded client.
#[test]
fn recording_of_version_2_can_be_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let recording = dir.path().join("recording.jsonl");
    let model = format!("scripted:{}", folder().join("version_2.model.jsonl").display());
    let input = fs::File::open(folder().join("version_2.in.jsonl")).unwrap();
    let arguments = ["--deterministic", "--store", "memory", "--model", &model, "--record"];
    let status = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(arguments)
        .arg(&recording)
        .current_dir(dir.path())
        .stdin(input)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let output = modegate(dir.path(), &["replay", "recording.jsonl", "--model", &model]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let mut program = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["replay", "--as-agent"])
        .arg(&recording)
        .env("HOME", dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut client = program.stdin.take().unwrap();
    let mut played = BufReader::new(program.stdout.take().unwrap()).lines();
    for line in fs::read_to_string(&recording).unwrap().lines().skip(1) {
        let message: Value = serde_json::from_str(line).unwrap();
        let recorded = message["line"].as_str().unwrap();
        if message["dir"] == "in" {
            writeln!(client, "{recorded}").unwrap();
        } else {
            let recorded: Value = serde_json::from_str(recorded).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&played.next().unwrap().unwrap()).unwrap(), recorded);
        }
    }
    drop(client);
    assert!(program.wait().unwrap().success());
}

#[test]
fn replay_does_not_touch_the_recorded_folder() {
    let dir = tempfile::tempdir().unwrap();
    let meta = serde_json::json!({ "modegate/mode": "code" });
    let prompt = serde_json::json!([{ "type": "text", "text": "create made.txt with x" }]);
    let lines = [
        serde_json::json!({ "id": 0, "method": "initialize", "params": { "protocolVersion": 1 } }),
        serde_json::json!({ "id": 1, "method": "session/new", "params": { "cwd": dir.path(), "mcpServers": [], "_meta": meta } }),
        serde_json::json!({ "id": 2, "method": "session/prompt", "params": { "sessionId": "sess_1", "prompt": prompt } }),
    ];
    let input = dir.path().join("in.jsonl");
    fs::write(&input, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--deterministic", "--store", "memory", "--record", "r.jsonl"])
        .current_dir(dir.path())
        .stdin(fs::File::open(&input).unwrap())
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let made = dir.path().join("made.txt");
    fs::remove_file(&made).expect("it was made when it was recorded");
    let output = modegate(dir.path(), &["replay", "r.jsonl"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(!made.exists());
}

#[test]
fn invalid_replay_inputs_exit_with_errors() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    assert_eq!(modegate(dir.path(), &["replay", "."]).status.code(), Some(1), "an empty folder");
    write("v.jsonl", "{\"modegate_transcript\":99}\n");
    assert_eq!(modegate(dir.path(), &["replay", "v.jsonl"]).status.code(), Some(1), "a later version");
    write("x.in.jsonl", "{\"id\":0,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1}}\n");
    assert_eq!(
        modegate(dir.path(), &["replay", "x.in.jsonl"]).status.code(),
        Some(3),
        "nothing is expected yet"
    );
    write("x.model.jsonl", "garbage");
    let update = ["replay", "x.in.jsonl", "--update"];
    assert_eq!(modegate(dir.path(), &update).status.code(), Some(1), "no script");
}

#[test]
fn broken_requests_do_not_block_a_transcript() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [
        r#"{"id":0,"method":"initialize","params":{"protocolVersion":1}}"#,
        r#"{"id":{},"method":"x"}"#,
        r#"{"id":7,"id":8,"method":"x"}"#,
        r#"{"id":true,"method":"x"}"#,
        "nonsense",
        r#"{"id":1,"method":"no/such"}"#,
    ];
    fs::write(dir.path().join("x.in.jsonl"), lines.join("\n")).unwrap();
    modegate(dir.path(), &["replay", "x.in.jsonl", "--update"]);
    let actual = fs::read_to_string(dir.path().join("x.out.jsonl")).unwrap();
    assert_eq!(actual.lines().count(), lines.len(), "{actual}");
}

#[test]
fn file_at_stdin_is_paced_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let lines = fs::read_to_string(folder().join("permission_answers.in.jsonl")).unwrap();
    let input = dir.path().join("in.jsonl");
    fs::write(&input, lines.replace("${CWD}", dir.path().to_str().unwrap())).unwrap();
    let script = fs::read_to_string(folder().join("permission_answers.model.jsonl")).unwrap();
    let model = dir.path().join("model.jsonl");
    fs::write(&model, script).unwrap();
    // With real ids the prompts name a session that does not exist. Each is still answered in turn.
    let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--store", "memory", "--model", &format!("scripted:{}", model.display())])
        .stdin(fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    let ids: Vec<String> = text(&output)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|message| message.get("method").is_none())
        .map(|message| message["id"].to_string())
        .collect();
    assert_eq!(ids, ["0", "1", "2", "3"]);
    assert_eq!(output.status.code(), Some(0));
}
