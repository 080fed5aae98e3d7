//! A kill between the insertion of a prompt and its answer: the repeated key inserts nothing.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// The binary as a client of version 2 sees it.
pub(super) struct Binary {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    next: i64,
}

impl Binary {
    fn start(dir: &Path) -> Self {
        Self::with(dir, &["--model", "offline"])
    }

    pub(super) fn with(dir: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(["--store", dir.join("store.db").to_str().unwrap()])
            .args(arguments)
            .env("HOME", dir)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut binary = Self { child, output, next: 0 };
        let info = json!({ "name": "test", "version": "1" });
        let answer = binary.call("initialize", &json!({ "protocolVersion": 2, "info": info }));
        assert_eq!(answer["result"]["protocolVersion"], 2);
        binary
    }

    fn send(&mut self, method: &str, params: &Value) -> i64 {
        self.next += 1;
        let line = json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params });
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        self.next
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Returns the messages up to and including the first that matches.
    pub(super) fn until(&mut self, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut messages = vec![self.read()];
        while !is_last(messages.last().unwrap()) {
            messages.push(self.read());
        }
        messages
    }

    pub(super) fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.send(method, params);
        self.until(|message| message["id"] == id && message.get("method").is_none()).pop().unwrap()
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn repeated_key_inserts_nothing_after_a_kill() {
    for round in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let cwd = dir.path().canonicalize().unwrap();
        let mut binary = Binary::start(&cwd);
        let session = binary.call("session/new", &json!({ "cwd": cwd }))["result"]["sessionId"].clone();
        let content = json!([{ "type": "text", "text": format!("hello {round}") }]);
        let prompt = json!({ "sessionId": session, "prompt": content, "idempotencyKey": "k" });
        binary.send("session/prompt", &prompt);
        let messages = binary.until(|message| message["params"]["update"]["sessionUpdate"] == "user_message");
        let message_id = messages.last().unwrap()["params"]["update"]["messageId"].clone();
        drop(binary);

        let mut binary = Binary::start(&cwd);
        let opened = binary.call("session/resume", &json!({ "sessionId": session, "cwd": cwd }));
        assert!(opened["result"].is_object(), "{opened}");
        let repeated = binary.call("session/prompt", &prompt);
        assert_eq!(repeated["result"]["messageId"], message_id);
        let replay = json!({ "sessionId": session, "cwd": cwd, "replayFrom": { "type": "start" } });
        let id = binary.send("session/resume", &replay);
        let messages = binary.until(|message| message["id"] == id && message.get("method").is_none());
        let of_user = messages.iter().filter(|message| {
            let update = &message["params"]["update"];
            update["sessionUpdate"].as_str().is_some_and(|kind| kind.starts_with("user_message"))
        });
        assert_eq!(of_user.count(), 1);
    }
}
