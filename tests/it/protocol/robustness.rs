//! The binary with malformed lines, unread output, and an unread log.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A running binary. A thread reads its output, as a client would.
struct PipedAgent {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<Value>,
}

impl PipedAgent {
    fn start(dir: &Path, script: &[Value]) -> Self {
        let file = dir.join("script.jsonl");
        std::fs::write(&file, script.iter().map(|line| format!("{line}\n")).collect::<Vec<_>>().concat())
            .unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args([
                "--store",
                "memory",
                "--eof-grace",
                "0",
                "--model",
                &format!("scripted:{}", file.display()),
            ])
            .env_clear()
            .env("HOME", dir)
            .env("MODEGATE_LOG", "debug")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Never read, because an unread log must not block the agent.
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let Ok(line) = line else { return };
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut agent = Self { child, stdin, lines };
        agent.send(&json!({ "id": "init", "method": "initialize", "params": { "protocolVersion": 1 } }));
        assert_eq!(agent.next()["id"], "init");
        agent
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn send(&mut self, message: &Value) {
        self.bytes(format!("{message}\n").as_bytes());
    }

    fn next(&mut self) -> Value {
        self.lines.recv_timeout(TIMEOUT).expect("an answer")
    }

    /// Returns the next answer, and skips updates before it.
    fn answer(&mut self) -> Value {
        loop {
            let message = self.next();
            if message.get("id").is_some() && message.get("method").is_none() {
                return message;
            }
        }
    }

    fn session(&mut self, dir: &Path) -> String {
        self.send(
            &json!({ "id": "new", "method": "session/new", "params": { "cwd": dir, "mcpServers": [] } }),
        );
        self.answer()["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    fn prompt(&mut self, id: &str, session: &str, text: &str) {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.send(&json!({ "id": id, "method": "session/prompt", "params": { "sessionId": session, "prompt": prompt } }));
    }

    fn end(mut self) {
        drop(self.stdin.take());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn malformed_lines_get_errors_and_end_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = PipedAgent::start(
        dir.path(),
        &[json!({ "text": "Yes." }), json!({ "stop": "done" }), json!({ "loop": true })],
    );
    let session = agent.session(dir.path());
    let deep = format!("{}{}\n", "[".repeat(20_000), "]".repeat(20_000));
    let cases: [(&[u8], i64); 9] = [
        (b"nonsense\n", -32700),
        (b"{\"id\":1,\"method\":\"\xff\xfe\"}\n", -32700),
        (b"{\"id\":1,\0\"method\":\"x\"}\n", -32700),
        (b"\xef\xbb\xbf{\"id\":1,\"method\":\"x\"}\n", -32700),
        (b"\"scalar\"\r\n", -32600),
        (b"null\n", -32600),
        (b"[{\"id\":1,\"method\":\"initialize\"}]\n", -32600),
        (deep.as_bytes(), -32600),
        (b"\n{\"id\":{},\"method\":\"x\"}\n", -32600),
    ];
    for (line, code) in cases {
        agent.bytes(line);
        let answer = agent.answer();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &Value::Null), "{line:?}");
    }
    // The agent still works.
    agent.prompt("after", &session, "hello");
    assert_eq!(agent.answer()["result"]["stopReason"], "end_turn");
    agent.end();
}

#[test]
fn huge_and_fragmented_lines_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = PipedAgent::start(
        dir.path(),
        &[json!({ "text": "Yes." }), json!({ "stop": "done" }), json!({ "loop": true })],
    );
    let session = agent.session(dir.path());
    agent.prompt("large", &session, &"word ".repeat(2_000_000));
    assert_eq!(agent.answer()["result"]["stopReason"], "end_turn");
    let line = json!({ "id": "pieces", "method": "session/set_mode", "params": { "sessionId": session, "modeId": "plan" } });
    for piece in format!("  {line}\r\n").as_bytes().chunks(7) {
        agent.bytes(piece);
    }
    assert_eq!(agent.answer()["id"], "pieces");
    agent.end();
}

#[test]
fn duplicate_ids_in_flight_get_two_answers() {
    let dir = tempfile::tempdir().unwrap();
    let script = [
        json!({ "delay_ms": 20 }),
        json!({ "text": "Yes." }),
        json!({ "stop": "done" }),
        json!({ "loop": true }),
    ];
    let mut agent = PipedAgent::start(dir.path(), &script);
    let session = agent.session(dir.path());
    agent.prompt("same", &session, "one");
    agent.prompt("same", &session, "two");
    for _ in 0..2 {
        let answer = agent.answer();
        assert_eq!((&answer["id"], &answer["result"]["stopReason"]), (&json!("same"), &json!("end_turn")));
    }
    agent.end();
}

/// Returns the resident memory in KiB.
#[cfg(target_os = "linux")]
fn resident(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn unread_output_uses_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        [json!({ "repeat": 100_000, "text": "chunk after chunk after chunk " }), json!({ "stop": "done" })];
    let file = dir.path().join("script.jsonl");
    std::fs::write(&file, script.iter().map(|line| format!("{line}\n")).collect::<Vec<_>>().concat())
        .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .args(["--store", "memory", "--model", &format!("scripted:{}", file.display())])
        .env_clear()
        .env("HOME", dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    writeln!(stdin, "{}", json!({ "id": 0, "method": "initialize", "params": { "protocolVersion": 1 } }))
        .unwrap();
    writeln!(
        stdin,
        "{}",
        json!({ "id": 1, "method": "session/new", "params": { "cwd": dir.path(), "mcpServers": [] } })
    )
    .unwrap();
    stdout.read_line(&mut line).unwrap();
    line.clear();
    stdout.read_line(&mut line).unwrap();
    let session = serde_json::from_str::<Value>(&line).unwrap()["result"]["sessionId"].clone();
    let prompt = json!([{ "type": "text", "text": "go" }]);
    writeln!(
        stdin,
        "{}",
        json!({ "id": 2, "method": "session/prompt", "params": { "sessionId": session, "prompt": prompt } })
    )
    .unwrap();
    // The agent has sent all that it can without being read when its memory stays the same for a while.
    let (mut before, mut still) = (0, 0);
    while still < 20 {
        std::thread::sleep(Duration::from_millis(10));
        let now = resident(&child);
        still = if now == before { still + 1 } else { 0 };
        before = now;
    }
    assert!(before < 64 * 1024, "{before} KiB");
    drop(stdin);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stdout, &mut rest).unwrap();
    // The client left without reading. The turn had its grace period and was cancelled. The output until then
    // is complete and in order.
    let last: Value = serde_json::from_str(rest.lines().last().unwrap()).unwrap();
    assert_eq!(last["id"], 2);
    assert!(matches!(last["result"]["stopReason"].as_str(), Some("end_turn" | "cancelled")), "{last}");
    assert!(rest.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    child.wait().unwrap();
}

#[test]
fn unread_log_does_not_block_requests() {
    let dir = tempfile::tempdir().unwrap();
    let mut agent = PipedAgent::start(dir.path(), &[json!({ "stop": "done" })]);
    // At this level, each of these lines causes a line in the log. Together they exceed the capacity of a
    // pipe.
    for _ in 0..20_000 {
        agent.bytes(b"{\"method\":\"_nobody/knows_this_notification_with_a_long_name\"}\n");
    }
    agent.send(&json!({ "id": "last", "method": "initialize", "params": { "protocolVersion": 1 } }));
    assert_eq!(agent.answer()["id"], "last");
    agent.end();
}

/// With `--mode`, the start of the input decides whether it is a prompt, and what was read for this still counts.
#[test]
fn input_that_is_there_at_the_start_is_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let request = |id: u64, method: &str, params: Value| {
        format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
    };
    let client = json!({ "name": "x".repeat(100_000), "version": "1" });
    let new = json!({ "cwd": dir.path(), "mcpServers": [] });
    let input = request(1, "initialize", json!({ "protocolVersion": 1, "clientInfo": client }))
        + &(2..20).map(|id| request(id, "session/new", new.clone())).collect::<String>();
    for arguments in [&["--mode", "plan"][..], &[]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(["--store", "memory", "--model", "offline"])
            .args(arguments)
            .env_clear()
            .env("HOME", dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let answers = String::from_utf8(output.stdout).unwrap();
        let mut ids: Vec<u64> = answers
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|answer| answer["result"].is_object())
            .filter_map(|answer| answer["id"].as_u64())
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, (1..20).collect::<Vec<_>>(), "{arguments:?}: {answers}");
    }
}
