//! Clients whose input comes from a file. They leave the user's store alone, and every replay ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

struct PipedFixture(tempfile::TempDir);

impl PipedFixture {
    fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        for folder in ["home", "work"] {
            fs::create_dir(fixture.path(folder)).unwrap();
        }
        let prompt = json!([{ "type": "text", "text": "go" }]);
        let lines = [
            json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": { "protocolVersion": 1 } }),
            json!({ "jsonrpc": "2.0", "id": 1, "method": "session/new",
                "params": { "cwd": fixture.path("work"), "mcpServers": [] } }),
            json!({ "jsonrpc": "2.0", "id": 2, "method": "session/list", "params": {} }),
            json!({ "jsonrpc": "2.0", "id": 3, "method": "session/prompt",
                "params": { "sessionId": "sess_1", "prompt": prompt } }),
        ];
        fs::write(fixture.path("in.jsonl"), lines.map(|line| format!("{line}\n")).concat()).unwrap();
        fs::write(fixture.path("script.jsonl"), "{\"text\":\"yes\"}\n{\"stop\":\"done\"}\n").unwrap();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn play(&self, arguments: &[&str]) -> (String, String) {
        let model = format!("scripted:{}", self.path("script.jsonl").display());
        let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(arguments)
            .args(["--model", &model])
            .current_dir(self.path("work"))
            .env_clear()
            .env("HOME", self.path("home"))
            .stdin(File::open(self.path("in.jsonl")).unwrap())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    }

    fn user_store(&self) -> PathBuf {
        self.path("home/.local/share/modegate/modegate.db")
    }
}

#[test]
fn deterministic_runs_in_one_home_give_the_same_bytes_and_store_nothing() {
    let fixture = PipedFixture::new();
    let (first, log) = fixture.play(&["--lockstep", "--deterministic"]);
    assert!(first.contains("end_turn") && first.contains("\"sessions\":[]"), "{first}");
    assert_eq!(log, "");
    assert_eq!(fixture.play(&["--lockstep", "--deterministic"]), (first, log));
    assert!(!fixture.user_store().exists());
    // Without `--store`, a client from a file uses no store either.
    let (output, _) = fixture.play(&[]);
    assert!(output.contains("\"sessionId\":\"sess_") && !fixture.user_store().exists(), "{output}");
    let store = fixture.path("named.db");
    fixture.play(&["--deterministic", "--store", store.to_str().unwrap()]);
    assert!(store.exists(), "the control");
}

/// Waits for a process. Kills the process after `limit` and returns false.
fn ends(child: &mut Child, limit: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    false
}

fn spoiled(lines: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    let mut add = |lines: &[String]| all.push(lines.join("\n") + "\n");
    for (number, line) in lines.iter().enumerate() {
        let message: Value = serde_json::from_str(line).unwrap();
        let rest: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let with = |line: Option<String>| {
            let mut lines = rest.clone();
            match line {
                Some(line) => lines[number] = line,
                None => drop(lines.remove(number)),
            }
            lines
        };
        add(&with(None));
        let is_answer = message.get("result").is_some();
        let members: &[&str] = if is_answer { &["id", "result"] } else { &["params"] };
        for member in members {
            let mut message = message.clone();
            message.as_object_mut().unwrap().remove(*member);
            add(&with(Some(message.to_string())));
        }
        if is_answer {
            for (member, value) in
                [("id", json!("0")), ("id", json!(99)), ("result", json!(null)), ("result", json!([]))]
            {
                let mut message = message.clone();
                message[member] = value;
                add(&with(Some(message.to_string())));
            }
            add(&with(Some(line[..line.len() / 2].to_owned())));
        }
    }
    all
}

#[test]
fn replay_of_a_corrupted_transcript_ends() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/transcripts");
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixtures.join("two_sessions.model.jsonl"), dir.path().join("t.model.jsonl")).unwrap();
    let text = fs::read_to_string(fixtures.join("two_sessions.in.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let expected = fs::read_to_string(fixtures.join("two_sessions.out.jsonl")).unwrap();
    fs::write(dir.path().join("t.out.jsonl"), expected).unwrap();
    let replay = || {
        Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(["replay", dir.path().join("t.in.jsonl").to_str().unwrap()])
            .env("HOME", dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    fs::write(dir.path().join("t.in.jsonl"), &text).unwrap();
    assert!(replay().wait().unwrap().success(), "the control");
    for spoiled in spoiled(&lines) {
        fs::write(dir.path().join("t.in.jsonl"), &spoiled).unwrap();
        assert!(ends(&mut replay(), Duration::from_mins(1)), "{spoiled}");
    }
}
