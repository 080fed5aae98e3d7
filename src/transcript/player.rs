//! Plays the agent's side of a recording to a client. Pure: the caller moves the lines.
//!
//! The lines are played in their order. Where the client sent a message, the player waits for one of the same
//! method and session, or for the answer to the agent's request. The client's ids and directories replace the
//! recorded ones.
//!
//! A client does not have to send exactly what was recorded:
//!
//! - If it sends a later message first, the messages before it are skipped, with their answers. Prompts and
//!   answers are not skipped: a request that comes before one of them gets its recorded answer immediately.
//! - A request that is not in the recording, or not as often, is answered with an error.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::recording;

#[derive(Debug, PartialEq)]
pub enum PlayerOutput {
    /// A message to the client.
    Line {
        text: String,
        /// Recorded time since the previous line.
        pause: Duration,
    },
    /// How the client differs from the recorded one.
    Note(String),
}

pub struct AgentPlayer {
    steps: Vec<PlayerStep>,
    next: usize,
    /// Messages of the client that the recording has not reached.
    inbox: Vec<Value>,
    /// Ids and directories: the recorded one, and the client's.
    renamed: Vec<(String, String)>,
    /// Recorded sessions that the client knows.
    sessions: HashSet<String>,
    output: Vec<PlayerOutput>,
}

struct PlayerStep {
    number: usize,
    pause: Duration,
    is_from_agent: bool,
    message: Value,
    /// Only of the client's messages.
    state: PlayerState,
}

#[derive(Debug, Clone, PartialEq)]
enum PlayerState {
    Awaited,
    /// A request with this id of the client, not answered yet.
    Open(Value),
    Done,
    Skipped,
}

impl AgentPlayer {
    /// # Errors
    /// Returns a sentence if `text` is no recording.
    pub fn new(text: &str) -> Result<Self, String> {
        recording::options(text).ok_or("no recording: its first line is no header")??;
        let mut before = Duration::ZERO;
        let steps = recording::entries(text).map(|entry| {
            let pause = entry.time.saturating_sub(before);
            before = entry.time;
            PlayerStep {
                number: entry.number,
                pause,
                is_from_agent: entry.is_from_agent,
                message: serde_json::from_str(&entry.line).unwrap_or_default(),
                state: PlayerState::Awaited,
            }
        });
        // A line that is no JSON object tests the agent's parser, not a client.
        let steps: Vec<_> = steps.filter(|step| step.message.is_object()).collect();
        if steps.is_empty() {
            return Err("the recording has no messages".into());
        }
        let (inbox, renamed) = (Vec::new(), Vec::new());
        Ok(Self { steps, next: 0, inbox, renamed, sessions: HashSet::new(), output: Vec::new() })
    }

    /// Plays up to the client's first message.
    pub fn start(&mut self) -> Vec<PlayerOutput> {
        self.advance();
        std::mem::take(&mut self.output)
    }

    /// Takes a line of the client, and plays up to its next message.
    pub fn receive(&mut self, line: &str) -> Vec<PlayerOutput> {
        match serde_json::from_str::<Value>(line) {
            Ok(message) if message.is_object() => {
                self.inbox.push(message);
                self.advance();
                while let Some(at) = (0..self.inbox.len()).find(|at| !self.waits(*at)) {
                    let message = self.inbox.remove(at);
                    self.take_early(message);
                    self.advance();
                }
            }
            _ => self.fail(&Value::Null, -32700, "this line is no JSON object"),
        }
        std::mem::take(&mut self.output)
    }

    /// The client's next message in the recording. `None` after the last.
    pub fn awaited(&self) -> Option<String> {
        let step = self.steps.get(self.next)?;
        let message_name = match method(&step.message) {
            Some(method) => method.to_owned(),
            None => format!("the answer to request {}", step.message["id"]),
        };
        Some(format!("line {}: {message_name}", step.number))
    }

    /// Plays up to the next message of the client that has not come.
    fn advance(&mut self) {
        while let Some(step) = self.steps.get(self.next) {
            if step.is_from_agent {
                self.send(self.next);
            } else if step.state == PlayerState::Awaited {
                let Some(at) = self.inbox.iter().position(|message| self.is_same(self.next, message)) else {
                    return;
                };
                let message = self.inbox.remove(at);
                self.accept(self.next, &message);
            }
            self.next += 1;
        }
    }

    fn send(&mut self, at: usize) {
        let PlayerStep { message, pause, .. } = &self.steps[at];
        let (mut message, pause) = (message.clone(), *pause);
        if method(&message).is_none() {
            let Some(request) = self.request_of(at) else { return };
            let PlayerState::Open(id) = self.steps[request].state.clone() else { return };
            self.steps[request].state = PlayerState::Done;
            if let Some(session) = message["result"]["sessionId"].as_str() {
                self.sessions.insert(session.to_owned());
            }
            message["id"] = id;
        }
        self.rename(&mut message);
        self.output.push(PlayerOutput::Line { text: format!("{message}\n"), pause });
    }

    /// The client's request that the agent's step `at` answers.
    fn request_of(&self, at: usize) -> Option<usize> {
        let id = &self.steps[at].message["id"];
        self.steps[..at].iter().rposition(|step| {
            !step.is_from_agent && method(&step.message).is_some() && step.message.get("id") == Some(id)
        })
    }

    fn answer_of(&self, request: usize) -> Option<usize> {
        (request + 1..self.steps.len()).find(|at| {
            let step = &self.steps[*at];
            step.is_from_agent && method(&step.message).is_none() && self.request_of(*at) == Some(request)
        })
    }

    /// True if `message` can stand for the client's step `at`.
    fn is_same(&self, at: usize, message: &Value) -> bool {
        let recorded = &self.steps[at].message;
        match (method(recorded), method(message)) {
            (None, None) => recorded["id"] == message["id"],
            (Some(recorded_method), Some(method)) if recorded_method == method => {
                let session = &recorded["params"]["sessionId"];
                let is_known = session.as_str().is_some_and(|session| self.sessions.contains(session));
                !is_known || self.name(session) == message["params"]["sessionId"]
            }
            _ => false,
        }
    }

    fn accept(&mut self, at: usize, message: &Value) {
        let recorded = self.steps[at].message.clone();
        self.steps[at].state = match (method(message), message.get("id")) {
            (Some(_), Some(id)) => PlayerState::Open(id.clone()),
            _ => PlayerState::Done,
        };
        for (part, key) in [("params", "sessionId"), ("params", "cwd"), ("result", "terminalId")] {
            if let (Some(old), Some(new)) = (recorded[part][key].as_str(), message[part][key].as_str())
                && old != new
                && !self.renamed.iter().any(|(renamed, _)| renamed == old)
            {
                self.renamed.push((old.to_owned(), new.to_owned()));
                // Longest first: one directory may contain another.
                self.renamed.sort_by_key(|(old, _)| std::cmp::Reverse(old.len()));
            }
        }
        if let Some(session) = recorded["params"]["sessionId"].as_str() {
            self.sessions.insert(session.to_owned());
        }
        let (old, new) = (outcome(&recorded), outcome(message));
        if method(message).is_none() && old != new {
            let number = self.steps[at].number;
            self.note(format!("line {number}: the client answered {new}, and {old} in the recording"));
        }
    }

    /// True if the recording can reach the message of the inbox before anything is skipped.
    fn waits(&self, at: usize) -> bool {
        let message = &self.inbox[at];
        match (method(message), self.later(message)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(method), Some(step)) => {
                self.is_blocked(step) && (method == "session/prompt" || message.get("id").is_none())
            }
        }
    }

    fn later(&self, message: &Value) -> Option<usize> {
        (self.next..self.steps.len()).find(|at| {
            let step = &self.steps[*at];
            !step.is_from_agent && step.state == PlayerState::Awaited && self.is_same(*at, message)
        })
    }

    /// True if a prompt or an answer of the client has to come before step `end`.
    fn is_blocked(&self, end: usize) -> bool {
        self.steps[self.next..end].iter().any(|step| {
            !step.is_from_agent
                && step.state == PlayerState::Awaited
                && method(&step.message).is_none_or(|method| method == "session/prompt")
        })
    }

    /// Handles a message that is not the awaited one.
    fn take_early(&mut self, message: Value) {
        let name = method(&message).unwrap_or("an answer").to_owned();
        let later = self.later(&message);
        if let Some(end) = later
            && !self.is_blocked(end)
        {
            for at in self.next..end {
                let step = &mut self.steps[at];
                if !step.is_from_agent && step.state == PlayerState::Awaited {
                    step.state = PlayerState::Skipped;
                    let text = format!(
                        "line {}: {} did not come before {name}",
                        step.number,
                        method(&step.message).unwrap_or_default()
                    );
                    self.note(text);
                }
            }
            self.inbox.insert(0, message);
            return;
        }
        let Some(id) = message.get("id").filter(|_| method(&message).is_some()) else {
            self.note(format!("{name} is not in the recording here, and has no effect"));
            return;
        };
        let step = later.or_else(|| {
            (0..self.next)
                .find(|at| self.steps[*at].state == PlayerState::Skipped && self.is_same(*at, &message))
        });
        if let Some((step, answer)) = step.and_then(|step| Some((step, self.answer_of(step)?))) {
            self.note(format!("line {}: {name} came at another place", self.steps[step].number));
            self.accept(step, &message);
            self.send(answer);
        } else if self.next == self.steps.len() {
            self.fail(id, -32603, "the recording has ended");
        } else {
            self.fail(id, -32601, &format!("the recording has no {name} here"));
        }
    }

    fn fail(&mut self, id: &Value, code: i64, text: &str) {
        self.note(format!("a request was answered with an error: {text}"));
        let error = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } });
        self.output.push(PlayerOutput::Line { text: format!("{error}\n"), pause: Duration::ZERO });
    }

    fn note(&mut self, text: String) {
        self.output.push(PlayerOutput::Note(text));
    }

    fn name(&self, recorded: &Value) -> Value {
        let mut value = recorded.clone();
        self.rename(&mut value);
        value
    }

    fn rename(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                for (old, new) in &self.renamed {
                    if text.contains(old.as_str()) {
                        *text = replace_whole(text, old, new);
                    }
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.rename(value)),
            Value::Object(members) => members.values_mut().for_each(|value| self.rename(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

fn method(message: &Value) -> Option<&str> {
    message["method"].as_str()
}

/// The part of an answer that decides what the agent does.
fn outcome(answer: &Value) -> String {
    let result = &answer["result"];
    match (answer.get("error"), result.get("outcome").or(result.get("action"))) {
        (Some(_), _) => "an error".into(),
        (None, None) => "a result".into(),
        (None, Some(outcome)) => outcome.to_string(),
    }
}

/// Replaces `old` where it is no part of a longer name.
fn replace_whole(text: &str, old: &str, new: &str) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(old) {
        let is_whole = !after.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-'));
        replaced.extend([before, if is_whole { new } else { old }]);
        rest = after;
    }
    replaced + rest
}
