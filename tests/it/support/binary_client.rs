//! A client of the binary over stdin and stdout.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::over_version_2::{self, Translator};

/// A running binary that has answered `initialize`.
pub(crate) struct BinaryClient {
    pub child: Child,
    output: BufReader<ChildStdout>,
    received: Vec<Value>,
    /// Present if a test for version 1 runs over version 2.
    translator: Option<Translator>,
    /// Translated messages that the test has not taken.
    translated: VecDeque<Value>,
}

impl BinaryClient {
    /// Starts the binary with this home. Returns the answer to `initialize`, too.
    pub(crate) fn start(home: &Path, arguments: &[&str]) -> (Self, Value) {
        Self::with(home, arguments, &json!({}))
    }

    /// Like [`Self::start`], with these client capabilities.
    pub(crate) fn with(home: &Path, arguments: &[&str], capabilities: &Value) -> (Self, Value) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_modegate"))
            .args(arguments)
            .env("HOME", home)
            .env_remove("XDG_CONFIG_HOME")
            .env("MODEGATE_LOG", "error")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let translator = over_version_2::is_on().then(Translator::default);
        let mut binary = Self { child, output, received: vec![], translator, translated: VecDeque::new() };
        let params = json!({ "protocolVersion": 1, "clientCapabilities": capabilities });
        let answer = binary.call(1, "initialize", &params).pop().unwrap();
        (binary, answer)
    }

    pub(crate) fn send(&mut self, id: i64, method: &str, params: &Value) {
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let line = match &mut self.translator {
            Some(translator) => translator.outgoing(line),
            None => line,
        };
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    pub(crate) fn next(&mut self) -> Value {
        loop {
            if let Some(message) = self.translated.pop_front() {
                self.received.push(message.clone());
                return message;
            }
            let mut line = String::new();
            self.output.read_line(&mut line).unwrap();
            let message: Value = serde_json::from_str(&line).unwrap();
            match &mut self.translator {
                Some(translator) => self.translated.extend(translator.incoming(message)),
                None => self.translated.push_back(message),
            }
        }
    }

    /// Sends a request. Returns all messages up to and including the answer.
    pub(crate) fn call(&mut self, id: i64, method: &str, params: &Value) -> Vec<Value> {
        self.send(id, method, params);
        let mut messages = vec![self.next()];
        while messages.last().unwrap()["id"] != id {
            messages.push(self.next());
        }
        messages
    }

    /// Ends the input, and waits for the end of the process. Returns all messages of the connection.
    pub(crate) fn end(mut self) -> Vec<Value> {
        drop(self.child.stdin.take());
        let rest = self.output.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        self.received.extend(rest);
        assert!(self.child.wait().unwrap().success());
        self.received
    }
}
