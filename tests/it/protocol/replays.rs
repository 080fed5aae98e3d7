//! Live recordings of the binary. Each recording replays. A recording with one changed member diverges at
//! this member.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::binary_client::BinaryClient;

/// A step of the client.
enum ClientStep {
    /// `session/new`, perhaps with a mode.
    New(Option<&'static str>),
    /// A prompt to the nth session, to its end.
    Prompt(usize, &'static str),
    /// A prompt to the nth session. The mode is set after the model's first text.
    PromptAndSwitch(usize, &'static str),
    /// A prompt to the nth session, which is cancelled after the model's first text.
    PromptAndCancel(usize),
    /// A prompt to the nth session, whose permission requests are answered two at a time, the later one first.
    PromptAndAnswerInReverse(usize),
    /// Prompts to two sessions at the same time.
    Both(usize, usize),
    /// `session/set_mode` of the nth session.
    SetMode(usize, &'static str),
    /// `session/list`.
    List,
    /// `session/close` and `session/load` of the nth session.
    Reload(usize),
}

pub(super) struct Scenario {
    pub name: &'static str,
    arguments: &'static [&'static str],
    /// The client's capabilities.
    capabilities: Value,
    /// True for a store in a file, false for one in memory.
    is_stored: bool,
    script: Vec<Value>,
    /// The option that the client chooses in permission requests.
    option: &'static str,
    steps: Vec<ClientStep>,
}

fn call(name: &str, arguments: &Value) -> [Value; 2] {
    [json!({ "tool_call": { "id": "c", "name": name, "arguments": arguments } }), json!({ "stop": "done" })]
}

fn text(text: &str) -> [Value; 2] {
    [json!({ "text": text }), json!({ "stop": "done" })]
}

fn write(path: &str) -> [Value; 2] {
    call("write_file", &json!({ "path": path, "content": "x\n" }))
}

#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn scenarios() -> Vec<Scenario> {
    use ClientStep::{
        Both, List, New, Prompt, PromptAndAnswerInReverse, PromptAndCancel, PromptAndSwitch, Reload, SetMode,
    };
    let scenario = |name, arguments, script: &[[Value; 2]], option, steps| Scenario {
        name,
        arguments,
        capabilities: json!({}),
        is_stored: false,
        script: script.concat(),
        option,
        steps,
    };
    let reads = ["a.txt", "b.txt", "c.txt", "d.txt"].map(
        |path| json!({ "tool_call": { "id": path, "name": "read_file", "arguments": { "path": path } } }),
    );
    let outside = ["/etc/hosts", "/etc/passwd"].map(
        |path| json!({ "tool_call": { "id": path, "name": "read_file", "arguments": { "path": path } } }),
    );
    let slow = [
        json!({ "text": "I begin." }),
        json!({ "delay_ms": 400 }),
        json!({ "text": " I go on." }),
        write("late.txt")[0].clone(),
        json!({ "stop": "done" }),
    ];
    let block = "So.\n```yaml\nmode_switch:\n  analysis: |\n    Why.\n  new_mode: MODE\n```\n";
    let delegate = call("delegate", &json!({ "task": "count the files", "agent": "explore" }));
    let child = [
        &[json!({ "for": "count the files" })][..],
        &call("list_directory", &json!({ "path": "." })),
        &text("Three."),
    ];
    let one = || vec![New(None), Prompt(0, "go")];
    vec![
        scenario("write", &["--mode", "code"], &[write("n.txt"), text("Done.")], "", one()),
        scenario("denial", &["--mode", "plan"], &[write("n.txt"), text("I plan.")], "", one()),
        scenario("ceiling", &["--max-mode", "plan"], &[write("n.txt"), text("I plan.")], "", one()),
        scenario("agent", &["--agent", "explore"], &[write("n.txt"), text("I look.")], "allow_once", one()),
        scenario(
            "permission_always",
            &[],
            &[write("n.txt"), write("n.txt"), text("Done.")],
            "allow_always",
            vec![New(None), Prompt(0, "go"), Prompt(0, "again")],
        ),
        scenario("permission_rejected", &[], &[write("n.txt"), text("Well.")], "reject_once", one()),
        scenario(
            "mode_changes",
            &[],
            &[text("Yes."), write("n.txt"), text("No.")],
            "",
            vec![
                New(Some("code")),
                Prompt(0, "a"),
                SetMode(0, "plan"),
                Prompt(0, "b"),
                SetMode(0, "architect"),
            ],
        ),
        Scenario {
            name: "mode_change_mid_turn",
            arguments: &["--mode", "code"],
            capabilities: json!({}),
            is_stored: false,
            script: [&slow[..], &text("Ended.")].concat(),
            option: "",
            steps: vec![New(None), PromptAndSwitch(0, "plan"), Prompt(0, "and now?")],
        },
        Scenario {
            name: "cancel",
            arguments: &["--mode", "code"],
            capabilities: json!({}),
            is_stored: false,
            script: [&slow[..], &text("Ended.")].concat(),
            option: "",
            steps: vec![New(None), PromptAndCancel(0), Prompt(0, "and now?")],
        },
        scenario(
            "in_band",
            // The client answers immediately.
            &["--mode", "code", "--accept-all"],
            &[text(&block.replace("MODE", "architect")), text(&block.replace("MODE", "code")), text("Hm.")],
            "code",
            vec![New(None), Prompt(0, "a"), Prompt(0, "b"), Prompt(0, "c")],
        ),
        scenario(
            "exit",
            &["--mode", "plan", "--accept-all"],
            &[call("switch_mode", &json!({ "plan": "1. Do it.\n" })), write("n.txt"), text("Done.")],
            "code",
            one(),
        ),
        scenario(
            "no_exit",
            &["--mode", "plan", "--no-exit"],
            &[call("switch_mode", &json!({ "plan": "1. Do it.\n" })), text("I cannot.")],
            "code",
            one(),
        ),
        Scenario {
            name: "terminal",
            arguments: &["--mode", "code"],
            capabilities: json!({ "_meta": { "terminal_output": true } }),
            is_stored: false,
            script: [call("shell", &json!({ "command": "echo one; sleep 0.3; echo two" })), text("Done.")]
                .concat(),
            option: "",
            steps: one(),
        },
        Scenario {
            name: "client_writes",
            arguments: &["--mode", "code"],
            capabilities: json!({ "fs": { "readTextFile": true, "writeTextFile": true } }),
            is_stored: true,
            script: [
                write("new/n.txt"),
                call("read_file", &json!({ "path": "new/n.txt" })),
                call("shell", &json!({ "command": "cat new/n.txt" })),
                text("Done."),
            ]
            .concat(),
            option: "",
            steps: vec![New(None), Prompt(0, "go"), Prompt(0, "/undo")],
        },
        Scenario {
            name: "answers_backwards",
            arguments: &[],
            capabilities: json!({}),
            is_stored: false,
            script: [&outside[..], &[json!({ "stop": "done" })], &text("Read.")].concat(),
            option: "allow_once",
            steps: vec![New(None), PromptAndAnswerInReverse(0)],
        },
        scenario(
            "two_sessions",
            &["--mode", "code"],
            &[write("n.txt"), text("Done."), text("Again.")],
            "",
            vec![New(None), New(Some("plan")), Prompt(1, "a"), Prompt(0, "b"), Both(0, 1)],
        ),
        Scenario {
            name: "undo",
            arguments: &["--mode", "code"],
            capabilities: json!({}),
            is_stored: true,
            script: [
                write("n.txt"),
                call("shell", &json!({ "command": "echo more >> a.txt; echo said" })),
                text("Done."),
            ]
            .concat(),
            option: "",
            steps: vec![New(None), Prompt(0, "go"), Prompt(0, "/undo"), List, Reload(0)],
        },
        Scenario {
            name: "sub_agent",
            arguments: &["--mode", "code"],
            capabilities: json!({}),
            is_stored: false,
            script: [&delegate[..], &text("There are three."), &child.concat()].concat(),
            option: "",
            // The id of the sub-agent's session is in no message, but the next session gets the id after it.
            steps: vec![New(None), Prompt(0, "go"), New(Some("plan")), Prompt(1, "hello")],
        },
        Scenario {
            name: "parallel_reads",
            arguments: &[],
            capabilities: json!({}),
            is_stored: false,
            script: [&reads[..], &[json!({ "stop": "done" })], &text("Read.")].concat(),
            option: "",
            steps: one(),
        },
        scenario(
            "command",
            &["--mode", "code"],
            &[call("shell", &json!({ "command": "echo one; sleep 0.4; echo two" })), text("Done.")],
            "",
            one(),
        ),
        scenario(
            "long_output",
            &["--mode", "code"],
            &[call("shell", &json!({ "command": "seq 5000" })), text("Done.")],
            "",
            one(),
        ),
        Scenario {
            is_stored: true,
            ..scenario(
                "memories",
                &["--mode", "code"],
                &[
                    call("save_memory", &json!({ "text": "Tabs." })),
                    call("read_memories", &json!({})),
                    text("Done."),
                ],
                "allow_once",
                one(),
            )
        },
    ]
}

/// A home, a working directory with a few files, and a copy of these files for replays.
pub(super) struct ReplayFixture(tempfile::TempDir);

impl ReplayFixture {
    pub(super) fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        for folder in ["home", "work", "files"] {
            fs::create_dir(fixture.path(folder)).unwrap();
        }
        for name in ["a.txt", "b.txt", "c.txt"] {
            for folder in ["work", "files"] {
                fs::write(fixture.path(folder).join(name), format!("{name}\n")).unwrap();
            }
        }
        fixture
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn replay(&self, recording: &Path, more: &[&str]) -> (i32, String) {
        let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(["replay", recording.to_str().unwrap(), "--files", self.path("files").to_str().unwrap()])
            .args(more)
            .current_dir(self.path("home"))
            .env("HOME", self.path("home"))
            .output()
            .unwrap();
        let text = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
        (status.code().unwrap_or(-1), text)
    }

    /// Records a live scenario. Returns the recording and the name of the model.
    pub(super) fn record(&self, scenario: &Scenario) -> (PathBuf, String) {
        let (script, recording) = (self.path("script.jsonl"), self.path("recording.jsonl"));
        let lines: String = scenario.script.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&script, lines).unwrap();
        let model = format!("scripted:{}", script.display());
        let store = self.path("store.db");
        let store = if scenario.is_stored { store.to_str().unwrap() } else { "memory" };
        let arguments = ["--model", &model, "--store", store, "--record", recording.to_str().unwrap()];
        let arguments = [&arguments[..], scenario.arguments].concat();
        self.converse(scenario, &arguments, "work", 1);
        (recording, model)
    }

    /// Runs the client's steps. Returns the agent's messages.
    pub(super) fn converse(
        &self,
        scenario: &Scenario,
        arguments: &[&str],
        cwd: &str,
        first_id: i64,
    ) -> Vec<Value> {
        let (binary, _) = BinaryClient::with(&self.path("home"), arguments, &scenario.capabilities);
        let mut client = Client {
            binary,
            cwd: self.path(cwd),
            option: scenario.option,
            id: first_id,
            sessions: vec![],
            batch_size: 1,
            batched_answers: vec![],
        };
        scenario.steps.iter().for_each(|step| client.take(step));
        client.binary.end()
    }
}

struct Client {
    binary: BinaryClient,
    cwd: PathBuf,
    option: &'static str,
    id: i64,
    sessions: Vec<String>,
    /// The number of answers to permission requests that are collected and then sent, the last one first.
    batch_size: usize,
    batched_answers: Vec<Value>,
}

impl Client {
    fn send(&mut self, method: &str, params: &Value) -> i64 {
        self.id += 1;
        self.binary.send(self.id, method, params);
        self.id
    }

    fn line(&mut self, line: &Value) {
        writeln!(self.binary.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Reads until all of these requests are answered, and answers the agent's requests. Sends `said` once,
    /// after the model's first text.
    fn until(&mut self, ids: &[i64], mut said: Option<Value>) -> Value {
        let mut open = ids.to_vec();
        let mut last = Value::Null;
        while !open.is_empty() {
            let message = self.binary.next();
            if message["method"] == "session/request_permission" {
                let options = message["params"]["options"].as_array().unwrap();
                let kind =
                    |option: &&Value| option["kind"] == self.option || option["optionId"] == self.option;
                let chosen = options.iter().find(kind).unwrap_or(&options[0])["optionId"].clone();
                let outcome = json!({ "outcome": { "outcome": "selected", "optionId": chosen } });
                self.batched_answers
                    .push(json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome }));
                if self.batched_answers.len() == self.batch_size {
                    for answer in std::mem::take(&mut self.batched_answers).iter().rev() {
                        self.line(answer);
                    }
                }
            } else if let Some(method @ ("fs/read_text_file" | "fs/write_text_file")) =
                message["method"].as_str()
            {
                let path = Path::new(message["params"]["path"].as_str().unwrap());
                let mut answer = json!({ "jsonrpc": "2.0", "id": message["id"] });
                if method == "fs/write_text_file" {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    fs::write(path, message["params"]["content"].as_str().unwrap()).unwrap();
                    answer["result"] = json!({});
                } else if let Ok(content) = fs::read_to_string(path) {
                    answer["result"] = json!({ "content": content });
                } else {
                    answer["error"] = json!({ "code": -32002, "message": "there is no such file" });
                }
                self.line(&answer);
            } else if message["params"]["update"]["sessionUpdate"] == "agent_message_chunk" {
                if let Some(line) = said.take() {
                    self.line(&line);
                }
            } else if message.get("method").is_none() {
                open.retain(|id| message["id"] != *id);
                last = message;
            }
        }
        last
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.send(method, params);
        self.until(&[id], None)
    }

    fn prompt(&mut self, session: usize, text: &str) -> i64 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.send("session/prompt", &json!({ "sessionId": self.sessions[session], "prompt": prompt }))
    }

    fn take(&mut self, step: &ClientStep) {
        let cwd = self.cwd.clone();
        match step {
            ClientStep::New(mode) => {
                let meta = mode.map_or(json!({}), |mode| json!({ "modegate/mode": mode }));
                let params = json!({ "cwd": cwd, "mcpServers": [], "_meta": meta });
                let answer = self.call("session/new", &params);
                self.sessions.push(answer["result"]["sessionId"].as_str().unwrap().to_owned());
            }
            ClientStep::Prompt(session, text) => {
                let id = self.prompt(*session, text);
                self.until(&[id], None);
            }
            ClientStep::PromptAndSwitch(session, mode) => {
                let id = self.prompt(*session, "go");
                self.id += 1;
                let params = json!({ "sessionId": self.sessions[*session], "modeId": mode });
                let line = json!({ "jsonrpc": "2.0", "id": self.id, "method": "session/set_mode", "params": params });
                self.until(&[id, self.id], Some(line));
            }
            ClientStep::PromptAndCancel(session) => {
                let id = self.prompt(*session, "go");
                let params = json!({ "sessionId": self.sessions[*session] });
                let line = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params });
                self.until(&[id], Some(line));
            }
            ClientStep::PromptAndAnswerInReverse(session) => {
                let id = self.prompt(*session, "go");
                self.batch_size = 2;
                self.until(&[id], None);
                self.batch_size = 1;
            }
            ClientStep::Both(one, other) => {
                let ids = [self.prompt(*one, "both"), self.prompt(*other, "both")];
                self.until(&ids, None);
            }
            ClientStep::SetMode(session, mode) => {
                let params = json!({ "sessionId": self.sessions[*session], "modeId": mode });
                self.call("session/set_mode", &params);
            }
            ClientStep::List => drop(self.call("session/list", &json!({}))),
            ClientStep::Reload(session) => {
                let session = self.sessions[*session].clone();
                self.call("session/close", &json!({ "sessionId": session }));
                let params = json!({ "sessionId": session, "cwd": cwd, "mcpServers": [] });
                self.call("session/load", &params);
            }
        }
    }
}

/// Collects the members that a replay compares exactly, with their paths.
fn members(path: &str, value: &Value, found: &mut Vec<(String, String)>) {
    const COMPARED: [&str; 8] =
        ["text", "status", "stopReason", "title", "currentModeId", "length", "outcome", "protocolVersion"];
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                let is_plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                let below = if is_plain { format!("{path}.{key}") } else { format!("{path}[{key:?}]") };
                if COMPARED.contains(&key.as_str()) && !value.is_object() && !value.is_array() {
                    let pointer = below.clone();
                    found.push((pointer, key.clone()));
                }
                self::members(&below, value, found);
            }
        }
        Value::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                members(&format!("{path}[{at}]"), value, found);
            }
        }
        _ => {}
    }
}

/// Changes the member at a path.
fn change(value: &mut Value, expected: &str, path: &str) {
    if path == expected {
        *value = match &*value {
            Value::Number(number) => json!(number.as_i64().unwrap_or(0) + 1),
            Value::String(text) => json!(format!("{text} (changed)")),
            other => json!([other]),
        };
        return;
    }
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                let is_plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
                let below = if is_plain { format!("{path}.{key}") } else { format!("{path}[{key:?}]") };
                change(value, expected, &below);
            }
        }
        Value::Array(values) => {
            for (at, value) in values.iter_mut().enumerate() {
                change(value, expected, &format!("{path}[{at}]"));
            }
        }
        _ => {}
    }
}

/// Returns at most `count` copies of a recording with one changed member each, spread over the whole
/// recording, with the path of the member.
fn changed(recording: &str, count: usize) -> Vec<(String, String)> {
    let lines: Vec<&str> = recording.lines().collect();
    let mut places = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let entry: Value = serde_json::from_str(line).unwrap();
        if entry["dir"] == "out" {
            let message: Value = serde_json::from_str(entry["line"].as_str().unwrap()).unwrap();
            let mut paths = Vec::new();
            members("$", &message, &mut paths);
            // A replay does not compare the output of running commands.
            let update = &message["params"]["update"];
            let is_shown = update["sessionUpdate"] != "tool_call_update" || update.get("status").is_some();
            places.extend(paths.into_iter().filter(|_| is_shown).map(|(path, _)| (at, path)));
        }
    }
    let step = places.len().div_ceil(count).max(1);
    let change_at = |(at, path): &(usize, String)| {
        let mut entry: Value = serde_json::from_str(lines[*at]).unwrap();
        let mut message: Value = serde_json::from_str(entry["line"].as_str().unwrap()).unwrap();
        change(&mut message, path, "$");
        entry["line"] = message.to_string().into();
        let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        lines[*at] = entry.to_string();
        (path.clone(), lines.join("\n") + "\n")
    };
    places.iter().step_by(step).map(change_at).collect()
}

#[test]
fn recordings_replay_and_changed_members_diverge() {
    let mut changes = 0;
    for scenario in scenarios() {
        let fixture = ReplayFixture::new();
        let name = scenario.name;
        let (recording, model) = fixture.record(&scenario);
        let recorded = fs::read_to_string(&recording).unwrap();
        for run in 0..2 {
            let (code, output) = fixture.replay(&recording, &["--model", &model]);
            assert!(code == 0 && output.starts_with("ok "), "{name}, run {run}: {output}");
        }
        for (path, text) in changed(&recorded, 4) {
            let other = fixture.path("other.jsonl");
            fs::write(&other, text).unwrap();
            let (code, output) = fixture.replay(&other, &["--model", &model]);
            assert_eq!(code, 1, "{name}, {path}: {output}");
            assert!(output.contains(&format!(", {path}\n")), "{name}, {path}: {output}");
            changes += 1;
        }
    }
    assert!(changes > 50, "only {changes} changes were tried");
}

/// A change of the client's input is a difference, too.
#[test]
fn changed_client_input_diverges() {
    let fixture = ReplayFixture::new();
    let scenario = scenarios().into_iter().find(|scenario| scenario.name == "permission_always").unwrap();
    let (recording, model) = fixture.record(&scenario);
    let text = fs::read_to_string(&recording).unwrap();
    let rejected: String = text
        .lines()
        .map(|line| {
            let is_answer = line.contains("\"dir\":\"in\"");
            if is_answer { line.replace("allow_always", "reject_once") } else { line.to_owned() }
        })
        .map(|line| line + "\n")
        .collect();
    assert_ne!(text, rejected);
    fs::write(&recording, rejected).unwrap();
    assert_eq!(fixture.replay(&recording, &["--model", &model]).0, 1);
}

/// Without `--model` a replay calls no provider, whatever keys and settings exist. A recording of another
/// model names the option that it needs.
#[test]
fn replay_calls_no_provider_unless_named() {
    let fixture = ReplayFixture::new();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", server.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    // The thread ends with the process.
    std::thread::spawn(move || {
        for stream in server.incoming() {
            counter.fetch_add(1, Ordering::SeqCst);
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            // The client may have closed the connection.
            let _ = stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    let config = fixture.path("home/.config/modegate/config.yaml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, format!("model: openai/m\nproviders: {{openai: {{base_url: '{url}'}}}}\n")).unwrap();
    let recording = |model: &str| {
        let header = json!({ "modegate_transcript": 2, "agent": "0", "options": { "model": model } });
        let lines = [
            json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": { "protocolVersion": 1 } }),
            json!({ "jsonrpc": "2.0", "id": 1, "method": "session/new", "params": { "cwd": "/w", "mcpServers": [] } }),
            json!({ "jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": { "sessionId": "sess_1", "prompt": [{ "type": "text", "text": "hello" }] } }),
        ];
        let out = json!({ "dir": "out", "line": json!({ "id": 1, "result": { "sessionId": "sess_1" } }).to_string() });
        let line = |line: &Value| json!({ "dir": "in", "line": line.to_string() }).to_string() + "\n";
        let path = fixture.path("r.jsonl");
        let text = format!("{header}\n{}{}{out}\n{}", line(&lines[0]), line(&lines[1]), line(&lines[2]));
        fs::write(&path, text).unwrap();
        path
    };
    let replay = |model: &str, more: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .arg("replay")
            .arg(recording(model))
            .args(more)
            .env("HOME", fixture.path("home"))
            .env("OPENAI_API_KEY", "k")
            .env("OPENAI_BASE_URL", &url)
            .env("MODEGATE_MODEL", "openai/m")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (asked.swap(0, Ordering::SeqCst), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(replay("offline", &[]).0, 0);
    for (model, needs) in
        [("openai/m", "which a replay calls only if named"), ("scripted", "--model scripted:FILE")]
    {
        let (requests, message) = replay(model, &[]);
        assert_eq!(requests, 0);
        assert!(message.contains(needs), "{message}");
    }
    assert!(replay("offline", &["--model", "openai/m"]).0 > 0, "the control: one that is named is asked");
}

/// A recording in plan mode, in which a call is denied.
struct DenialRecording {
    fixture: ReplayFixture,
    recording: PathBuf,
    model: String,
}

impl DenialRecording {
    fn new() -> Self {
        let fixture = ReplayFixture::new();
        let scenario = scenarios().into_iter().find(|scenario| scenario.name == "denial").unwrap();
        let (recording, model) = fixture.record(&scenario);
        Self { fixture, recording, model }
    }

    /// Replays with options before `replay`. Returns the exit code and the output.
    fn replay_with(&self, options: &[&str]) -> (i32, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(options)
            .args(["replay", self.recording.to_str().unwrap(), "--model", &self.model])
            .env("HOME", self.fixture.path("home"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), text)
    }
}

#[test]
fn recording_begins_with_its_options() {
    let denial = DenialRecording::new();
    let text = fs::read_to_string(&denial.recording).unwrap();
    let header: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let options = json!({ "mode": "plan", "model": "scripted", "store": "memory" });
    assert_eq!((&header["modegate_transcript"], &header["options"]), (&json!(2), &options));
}

#[cfg(unix)]
#[test]
fn recording_is_readable_for_its_user_only() {
    use std::os::unix::fs::PermissionsExt;
    let denial = DenialRecording::new();
    assert_eq!(fs::metadata(&denial.recording).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn replay_takes_options_of_the_recording_or_the_command_line() {
    let denial = DenialRecording::new();
    for same in [&[][..], &["--mode", "architect"], &["--no-exit"]] {
        assert_eq!(denial.replay_with(same).0, 0, "{same:?}");
    }
    let (code, message) = denial.replay_with(&["--mode", "code"]);
    assert!(code == 1 && message.contains("currentModeId") && message.contains("\"code\""), "{message}");
}

#[test]
fn replay_refuses_unknown_modes_and_agents() {
    let denial = DenialRecording::new();
    for (option, valid) in [
        (["--mode", "nosuchmode"], "the modes are ask, plan, code"),
        (["--max-mode", "nosuchmode"], "the modes are ask, plan, code"),
        (["--agent", "nobody"], "general"),
    ] {
        let (code, message) = denial.replay_with(&option);
        assert!(code == 1 && message.contains(valid), "{option:?}: {message}");
    }
    assert_eq!(denial.replay_with(&[]).0, 0, "the control");
    let text = fs::read_to_string(&denial.recording).unwrap();
    let unknown = text.replacen("\"mode\":\"plan\"", "\"mode\":\"nosuchmode\"", 1);
    fs::write(&denial.recording, unknown).unwrap();
    let (code, message) = denial.replay_with(&[]);
    assert!(code == 1 && message.contains("the modes are ask, plan, code"), "{message}");
}

#[test]
fn replay_refuses_options_that_it_does_not_use() {
    let denial = DenialRecording::new();
    for option in [
        &["-p", "x"][..],
        &["--continue"],
        &["--resume", "abcdef"],
        &["--output", "json"],
        &["--record", "x"],
        &["--lockstep"],
        &["--deterministic"],
        &["--eof-grace", "1"],
        &["--store", "memory"],
        &["--cwd", "/"],
        &["--max-steps", "3"],
    ] {
        let (code, message) = denial.replay_with(option);
        assert!(code == 2 && message.contains("replay does not take"), "{option:?}: {code} {message}");
    }
    assert_eq!(denial.replay_with(&[]).0, 0, "the control");
}

/// A recording without expected lines is neither equal nor different, and has a separate exit code.
#[test]
fn replay_without_expectations_exits_with_3() {
    let fixture = ReplayFixture::new();
    let initialize =
        json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": { "protocolVersion": 1 } });
    let header = json!({ "modegate_transcript": 2, "options": {} });
    let recorded = json!({ "dir": "in", "line": initialize.to_string() });
    for (name, text, code, says) in [
        (
            "a.in.jsonl",
            format!("{initialize}\n"),
            3,
            "there is no a.out.jsonl (--update writes it): nothing was checked",
        ),
        (
            "r.jsonl",
            format!("{header}\n{recorded}\n"),
            3,
            "the recording has no expected lines: nothing was checked",
        ),
        ("empty.jsonl", String::new(), 1, "the file is empty: it is no recording"),
        ("empty.in.jsonl", String::new(), 1, "the file is empty: there is nothing to play"),
        ("other.jsonl", format!("{initialize}\n"), 1, "no recording: its first line is no header"),
    ] {
        let path = fixture.path(name);
        fs::write(&path, text).unwrap();
        let (found, output) = fixture.replay(&path, &[]);
        assert!(
            found == code && output.contains(says) && !output.contains("DIVERGED"),
            "{name}: {found} {output}"
        );
    }
    let path = fixture.path("a.in.jsonl");
    assert_eq!(fixture.replay(&path, &["--update"]).0, 0);
    assert_eq!(fixture.replay(&path, &[]).0, 0, "the control");
    let (code, output) = fixture.replay(&fixture.path("r.jsonl"), &["--update"]);
    assert!(code == 1 && output.contains("a recording stays as it was made"), "{output}");
}

/// Links in the directory of `--files` are copied as links.
#[cfg(unix)]
#[test]
fn files_of_a_replay_may_contain_links() {
    let fixture = ReplayFixture::new();
    for (folder, content) in [("work", "linked\n"), ("files", "linked\n")] {
        let folder = fixture.path(folder);
        fs::write(folder.join("target.txt"), content).unwrap();
        std::os::unix::fs::symlink("target.txt", folder.join("link.txt")).unwrap();
        std::os::unix::fs::symlink("missing", folder.join("dangling")).unwrap();
    }
    let mut scenario = scenarios().into_iter().find(|scenario| scenario.name == "write").unwrap();
    let read = call("read_file", &json!({ "path": "link.txt" }));
    scenario.script = [read, text("Done.")].concat();
    let (recording, model) = fixture.record(&scenario);
    let (code, output) = fixture.replay(&recording, &["--model", &model]);
    assert!(code == 0 && output.starts_with("ok "), "{output}");
    fs::write(fixture.path("files").join("target.txt"), "other\n").unwrap();
    assert_eq!(fixture.replay(&recording, &["--model", &model]).0, 1, "the control");
}

/// The live session ends before its last notification, which the replay sends.
#[test]
fn recording_that_ends_early_replays() {
    let fixture = ReplayFixture::new();
    let input = fixture.path("input.jsonl");
    let lines = [
        json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": { "protocolVersion": 1 } }),
        json!({ "jsonrpc": "2.0", "id": 1, "method": "session/new", "params": { "cwd": fixture.path("work"), "mcpServers": [] } }),
    ];
    fs::write(&input, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let recording = fixture.path("recording.jsonl");
    let recorded = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--store", "memory", "--model", "offline", "--record", recording.to_str().unwrap()])
        .env("HOME", fixture.path("home"))
        .stdin(fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    assert!(recorded.status.success());
    let text = fs::read_to_string(&recording).unwrap();
    let (code, output) = fixture.replay(&recording, &[]);
    assert!(code == 0 && output.contains("ok "), "{output}");
    let end = text.find("available_commands_update").map_or(text.len(), |at| text[..at].rfind('\n').unwrap());
    fs::write(&recording, &text[..end]).unwrap();
    let (code, output) = fixture.replay(&recording, &[]);
    assert!(code == 0 && output.contains("ok "), "{output}");
    fs::write(&recording, text[..end].replace("currentModeId", "otherModeId")).unwrap();
    assert_eq!(fixture.replay(&recording, &[]).0, 1, "the control");
}

#[test]
fn recording_needs_a_new_file() {
    let fixture = ReplayFixture::new();
    let recording = fixture.path("recording.jsonl");
    for content in [None, Some("mine")] {
        if let Some(content) = content {
            fs::write(&recording, content).unwrap();
        }
        let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(["--store", "memory", "--model", "offline", "--record", recording.to_str().unwrap()])
            .env("HOME", fixture.path("home"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), content.is_none(), "{message}");
        let is_refused = message.contains("recording.jsonl exists already: name another file");
        assert_eq!(is_refused, content.is_some(), "{message}");
    }
    assert_eq!(fs::read_to_string(&recording).unwrap(), "mine");
}

#[cfg(unix)]
#[test]
fn failed_replays_leave_no_folder() {
    let fixture = ReplayFixture::new();
    let temporary = fixture.path("temporary");
    fs::create_dir(&temporary).unwrap();
    let line = json!({ "dir": "in", "line": r#"{"jsonrpc":"2.0","id":0,"method":"initialize"}"# });
    for (mode, code) in [(None, 1), (Some("nowhere"), 1), (Some("plan"), 3)] {
        let recording = fixture.path(&format!("{}.jsonl", mode.unwrap_or("missing")));
        if let Some(mode) = mode {
            let header = json!({ "modegate_transcript": 2, "options": { "mode": mode } });
            fs::write(&recording, format!("{header}\n{line}\n")).unwrap();
        }
        let output = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(["replay", recording.to_str().unwrap()])
            .env("HOME", fixture.path("home"))
            .env("TMPDIR", &temporary)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(code), "{mode:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::read_dir(&temporary).unwrap().next().is_none(), "{mode:?}");
    }
}
