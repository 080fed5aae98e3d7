//! Kills the binary at random moments of a busy session, and when the client reads the end of a call. The
//! next load shows all that the client saw.
//!
//! `KILLS=200 SEED=n cargo test kills -- --nocapture` runs more rounds.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::external::sessions::PEER;
use crate::sessions::load::{is_user_message, updates};
use crate::sessions::undo::report;
use crate::support::requirements::python;

/// After this many kills, a new session begins.
const ROUNDS: u64 = 25;

const MODES: [&str; 3] = ["plan", "code", "ask"];

/// A model script with every kind of event, in a loop.
fn script(dir: &Path) -> String {
    let write = json!({ "path": "a.txt", "content": "written\n" });
    let lines = [
        json!({ "thought": "Hm. ", "repeat": 3 }),
        json!({ "text": "word ", "repeat": 40 }),
        json!({ "delay_ms": 2 }),
        json!({ "tool_call": { "id": "r", "name": "read_file", "arguments": { "path": "a.txt" } } }),
        json!({ "tool_call": { "id": "w", "name": "write_file", "arguments": write } }),
        json!({ "tool_call": { "id": "t", "name": "todo", "arguments": { "items": [{ "content": "Look" }] } } }),
        json!({ "stop": "done" }),
        json!({ "text": "and so on ", "repeat": 20 }),
        json!({ "usage": { "used": 10, "size": 100 } }),
        json!({ "stop": "done" }),
        json!({ "loop": true }),
    ];
    write_script(dir, &lines)
}

/// Writes a script for the scripted model. Returns its model id.
pub(crate) fn write_script(dir: &Path, lines: &[Value]) -> String {
    let file = dir.join("script.jsonl");
    std::fs::write(&file, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    format!("scripted:{}", file.display())
}

pub(crate) struct Agent {
    pub child: Child,
    pub input: ChildStdin,
    output: BufReader<ChildStdout>,
    next: i64,
}

impl Agent {
    fn start(dir: &Path) -> Self {
        Self::with(dir, &["--model", &script(dir)])
    }

    /// Starts the binary with these arguments, and initializes it.
    pub(crate) fn with(dir: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(["--store", dir.join("store.db").to_str().unwrap()])
            .args(arguments)
            .env("HOME", dir)
            .env("MODEGATE_LOG", "error")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut agent = Self { child, input, output, next: 0 };
        agent.call("initialize", &json!({ "protocolVersion": 1 })).expect("it answers");
        agent
    }

    /// Sends a request. A write error is ignored, because the agent may be dead.
    fn send(&mut self, method: &str, params: &Value) -> i64 {
        self.next += 1;
        let line = json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params });
        let _ = writeln!(self.input, "{line}");
        self.next
    }

    /// Returns the next message, or `None` after the last complete line of a dead agent.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line).ok()?;
        line.ends_with('\n').then(|| serde_json::from_str(&line).unwrap())
    }

    /// Returns the messages up to the answer, or `None` if the agent dies before it.
    pub(crate) fn call(&mut self, method: &str, params: &Value) -> Option<Vec<Value>> {
        let id = self.send(method, params);
        let mut messages = Vec::new();
        loop {
            messages.push(self.next()?);
            let last = messages.last().unwrap();
            if last["id"] == id && last.get("method").is_none() {
                return Some(messages);
            }
        }
    }
}

/// The messages that a client has received when its agent dies.
#[derive(Default)]
struct ClientKnowledge {
    seen: Vec<Value>,
    /// The number of messages up to the answer to the last prompt.
    answered: usize,
    /// The last acknowledged mode.
    mode: Option<String>,
    /// A requested mode without an acknowledgement.
    asked: Option<String>,
}

/// Sends prompts and mode changes without waiting, until the agent dies.
fn send_work_until_killed(agent: &mut Agent, session: &str, random: &mut u64) -> ClientKnowledge {
    let mut known = ClientKnowledge::default();
    loop {
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "go on" }] });
        let prompt = agent.send("session/prompt", &prompt);
        let mode = MODES[usize::try_from(random_below(random, 3)).unwrap()];
        let set = agent.send("session/set_mode", &json!({ "sessionId": session, "modeId": mode }));
        known.asked = Some(mode.to_owned());
        let mut open = 2;
        while open > 0 {
            let Some(message) = agent.next() else { return known };
            if message["method"] == "session/request_permission" {
                let outcome = json!({ "outcome": "selected", "optionId": "allow_once" });
                let answer =
                    json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "outcome": outcome } });
                let _ = writeln!(agent.input, "{answer}");
            } else if message["id"] == set {
                assert!(message.get("result").is_some(), "{message}");
                (known.mode, known.asked) = (known.asked.take(), None);
                open -= 1;
            } else if message["id"] == prompt {
                assert!(message.get("result").is_some(), "{message}");
                open -= 1;
            }
            let answered = message["id"] == prompt;
            known.seen.push(message);
            if answered {
                known.answered = known.seen.len();
            }
        }
    }
}

/// The updates that a load repeats. Messages before a question are not stored, nor is the blank line behind them.
fn stored_updates(messages: &[Value]) -> Vec<Value> {
    let stored = updates(messages).into_iter();
    let stored = stored.filter(|update| update["_meta"]["modegate/question"] != true);
    stored
        .map(|mut update| {
            if let Some(text) = update["content"]["text"].as_str() {
                update["content"]["text"] = text.trim_start_matches('\n').into();
            }
            update
        })
        .collect()
}

fn is_end(update: &Value) -> bool {
    ["completed", "failed"].contains(&update["status"].as_str().unwrap_or_default())
}

/// Returns the updates that must be stored: those of answered prompts, those before the message or call that
/// the client saw last, and the end of a call with everything before it.
fn completed(known: &ClientKnowledge) -> Vec<Value> {
    let mut sure = stored_updates(&known.seen[..known.answered]).len();
    let all = stored_updates(&known.seen);
    for (at, update) in all.iter().enumerate() {
        let kind = update["sessionUpdate"].as_str().unwrap();
        if ["agent_message_chunk", "agent_thought_chunk", "tool_call"].contains(&kind) {
            sure = sure.max(at);
        }
        if is_end(update) {
            sure = at + 1;
        }
    }
    all[..sure].to_vec()
}

pub(crate) fn random_below(random: &mut u64, below: u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) % below
}

#[tokio::test]
async fn events_seen_before_a_kill_are_reloaded() {
    let variable = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (rounds, seed) = (variable("KILLS", 8), variable("SEED", 1));
    let mut random = seed;
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().canonicalize().unwrap().join("work");
    std::fs::create_dir(&work).unwrap();
    let folders = |session: &str| json!({ "sessionId": session, "cwd": work, "mcpServers": [] });
    let mut session = String::new();
    let mut shown: Vec<Value> = Vec::new();
    let mut known = ClientKnowledge::default();
    let (mut turns, mut open) = (0, 0);
    for round in 0..rounds {
        let mut agent = Agent::start(dir.path());
        if round % ROUNDS == 0 {
            let answer = agent.call("session/new", &folders("")).unwrap().pop().unwrap();
            session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
            shown.clear();
        } else {
            let messages = agent.call("session/load", &folders(&session)).unwrap();
            let answer = messages.last().unwrap()["result"].clone();
            assert!(answer.is_object(), "round {round}: {messages:?}");
            let mode = answer["modes"]["currentModeId"].as_str().unwrap().to_owned();
            let acknowledged = known.mode.is_none() || known.mode.as_deref() == Some(&mode);
            assert!(acknowledged || known.asked.as_deref() == Some(&mode), "round {round}: {mode}");
            shown.extend(completed(&known));
            let replay = stored_updates(&messages);
            let replay: Vec<Value> = replay.into_iter().filter(|update| !is_user_message(update)).collect();
            for (at, expected) in shown.iter().enumerate() {
                assert_eq!(replay.get(at), Some(expected), "round {round}, seed {seed}, update {at}");
            }
            // The load also replays the mode change.
            let changes = replay.iter().filter(|update| update["sessionUpdate"] == "current_mode_update");
            let mut changes = changes;
            let last = changes.next_back().map(|update| update["currentModeId"].as_str().unwrap());
            assert!(
                // Without a change, the mode is that of new sessions.
                last.unwrap_or(MODES[2]) == mode || (last.is_none() && known.mode.is_none()),
                "round {round}: {last:?}, {mode}"
            );
            shown = replay;
            check_record(dir.path(), &session, round).await;
        }
        let greeting = agent.next().unwrap();
        assert_eq!(greeting["params"]["update"]["sessionUpdate"], "available_commands_update");
        let wait = Duration::from_millis(3 + random_below(&mut random, 120));
        let pid = rustix::process::Pid::from_raw(agent.child.id().cast_signed()).unwrap();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(wait);
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        });
        known = send_work_until_killed(&mut agent, &session, &mut random);
        killer.join().unwrap();
        agent.child.wait().unwrap();
        turns += known.seen.iter().filter(|message| message["result"]["stopReason"].is_string()).count();
        open += usize::from(known.answered < known.seen.len());
    }
    println!("{rounds} kills, {turns} turns answered in between, {open} in the middle of one, seed {seed}");
    assert!(turns + open > 0, "no kill came after a prompt");
}

/// The maker of the calls.
#[derive(Debug, Clone, Copy)]
enum Caller {
    Session,
    SubAgent,
    ExternalAgent,
}

impl Caller {
    /// Returns the arguments of the binary, without `--store`.
    fn arguments(self, dir: &Path) -> Vec<String> {
        let call = |id: &str, name: &str, arguments: Value| json!({ "tool_call": { "id": id, "name": name, "arguments": arguments } });
        let done = json!({ "stop": "done" });
        let works = [
            call("r", "read_file", json!({ "path": "a.txt" })),
            call("s", "search_files", json!({ "pattern": "x" })),
            call("m", "read_file", json!({ "path": "missing.txt" })),
            call("w", "write_file", json!({ "path": "b.txt", "content": "x" })),
            done.clone(),
            json!({ "text": "Done." }),
            done.clone(),
            json!({ "loop": true }),
        ];
        let delegates = [
            call("d", "delegate", json!({ "task": "the work" })),
            done.clone(),
            json!({ "text": "Done." }),
            done,
            json!({ "loop": true }),
            json!({ "for": "the work" }),
        ];
        let lines = match self {
            Self::ExternalAgent => {
                return ["wrap", "--", python(), PEER, "plain"].map(str::to_owned).to_vec();
            }
            Self::Session => works.to_vec(),
            Self::SubAgent => [&delegates[..], &works].concat(),
        };
        let file = dir.join("calls.jsonl");
        std::fs::write(&file, lines.iter().map(|line| format!("{line}\n")).collect::<Vec<_>>().concat())
            .unwrap();
        ["--model".to_owned(), format!("scripted:{}", file.display())].to_vec()
    }
}

/// Kills the process as soon as the client reads the end of a call. The next load has that end.
#[tokio::test]
async fn calls_seen_completed_stay_completed_after_a_kill() {
    let variable = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (rounds, mut random) = (variable("KILLS", 6), variable("SEED", 1));
    for caller in [Caller::Session, Caller::SubAgent, Caller::ExternalAgent] {
        let mut ends = 0;
        for round in 0..rounds {
            let dir = tempfile::tempdir().unwrap();
            let work = dir.path().canonicalize().unwrap().join("work");
            std::fs::create_dir(&work).unwrap();
            std::fs::write(work.join("a.txt"), "x\n").unwrap();
            let arguments = caller.arguments(dir.path());
            let arguments: Vec<&str> =
                ["--mode", "code"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
            let mut agent = Agent::with(dir.path(), &arguments);
            let folders = |session: &str| json!({ "sessionId": session, "cwd": work, "mcpServers": [] });
            let answer = agent.call("session/new", &folders("")).unwrap().pop().unwrap();
            let session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
            let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "calls" }] });
            // The process is killed at one of the first ends, perhaps of a later turn.
            let mut remaining = 1 + random_below(&mut random, 6);
            let mut seen: HashMap<String, Value> = HashMap::new();
            let mut running = agent.send("session/prompt", &prompt);
            while let Some(message) = agent.next() {
                let update = &message["params"]["update"];
                if is_end(update) {
                    seen.insert(update["toolCallId"].to_string(), update["status"].clone());
                    remaining = remaining.saturating_sub(1);
                    if remaining == 0 {
                        // The client also reads the rest of the pipe, which was sent before the kill.
                        agent.child.kill().unwrap();
                    }
                } else if message["id"] == running && message.get("method").is_none() {
                    assert!(message.get("result").is_some(), "{caller:?}: {message}");
                    running = agent.send("session/prompt", &prompt);
                }
            }
            agent.child.wait().unwrap();
            let mut agent = Agent::with(dir.path(), &arguments);
            let messages = agent.call("session/load", &folders(&session)).unwrap();
            let mut now: HashMap<String, Value> = HashMap::new();
            for update in messages.iter().map(|message| &message["params"]["update"]) {
                if update["status"].is_string() {
                    now.insert(update["toolCallId"].to_string(), update["status"].clone());
                }
            }
            for (call, status) in &seen {
                assert_eq!(now.get(call), Some(status), "{caller:?}, round {round}, {call}: {messages:?}");
            }
            ends += seen.len();
            agent.child.kill().unwrap();
            agent.child.wait().unwrap();
        }
        println!("{caller:?}: {rounds} kills, {ends} ends seen, none lost");
        assert!(ends >= usize::try_from(rounds).unwrap(), "{caller:?}: {ends} ends seen in {rounds} rounds");
    }
}

/// Checks that the log is complete, and that its audit finds nothing.
async fn check_record(dir: &Path, session: &str, round: u64) {
    let store: PathBuf = dir.join("store.db");
    let connection = rusqlite::Connection::open(&store).unwrap();
    let sound: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok", "round {round}");
    let report = report(&store, session, None).await;
    assert_eq!(report.findings, Vec::<String>::new(), "round {round}");
    assert!(report.head.is_some());
}
