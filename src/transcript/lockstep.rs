//! Paces a recorded client: sends each line when the conversation has reached its place.
//!
//! - An answer waits for the agent's request with its id.
//! - A request or notification waits until everything before it is over or, with
//!   `"_meta": {"modegate/after": N}` in its parameters, for the agent's Nth message.
//! - A request of the agent that no later line can answer is answered as cancelled.
//! - After the last line, the last turn runs to its end.
//!
//! A deterministic run sends lines and ends scripted pauses only when all tasks are idle. `${CWD}` is the
//! working directory in both directions; in the client's lines, `${SESSION:N}` is the session that the answer
//! to the client's Nth request returned. If an answer's `_meta` has `modegate/write` (path and content), the
//! file is written first.

use std::collections::HashMap;
use std::path::{Component, Path};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

use super::open_requests::OpenRequests;
use super::{Shape, WRITE_META, shape, text_of};
use crate::transport::{Line, Transport};

/// Idle scheduler turns after which the process is at rest. Far more than a message has hops.
const SETTLE: usize = 64;

pub struct Determinism {
    /// Working directory in JSON, without quotes.
    pub cwd: String,
    pub pauses: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
    /// True while work runs on another thread.
    pub is_busy: Box<dyn Fn() -> bool + Send>,
    /// Time without a message, while all tasks are idle, after which an awaited answer will not come.
    pub max_silence: Duration,
}

pub fn start(transport: Transport, determinism: Option<Determinism>) -> Transport {
    let Transport { incoming: wire_in, outgoing: wire_out, flushed } = transport;
    let (to_agent, incoming) = mpsc::channel(1);
    let (outgoing, from_agent) = mpsc::channel(1);
    let mut stage = LockstepRun {
        wire_in,
        wire_out,
        to_agent,
        from_agent,
        head: None,
        open: OpenRequests::default(),
        open_requests: Vec::new(),
        ever_asked: Vec::new(),
        last_fed: None,
        requests: Vec::new(),
        sessions: HashMap::new(),
        sent: 0,
        determinism,
    };
    tokio::spawn(async move {
        // Ends when a side is gone.
        let _ = stage.play().await;
    });
    Transport { incoming, outgoing, flushed }
}

struct LockstepHead {
    line: Line,
    shape: Shape,
    message: Value,
    after: Option<u64>,
}

struct LockstepRun {
    wire_in: mpsc::Receiver<Line>,
    wire_out: mpsc::Sender<String>,
    to_agent: mpsc::Sender<Line>,
    from_agent: mpsc::Receiver<String>,
    head: Option<LockstepHead>,
    open: OpenRequests,
    /// Unanswered requests of the agent.
    open_requests: Vec<String>,
    /// All requests of the agent: a late answer is still sent.
    ever_asked: Vec<String>,
    /// Last line, if it was a request: an error without an id answers it.
    last_fed: Option<String>,
    requests: Vec<String>,
    /// Session ids by the number of the client's request, from 1.
    sessions: HashMap<usize, String>,
    sent: u64,
    determinism: Option<Determinism>,
}

struct Gone;

impl LockstepRun {
    async fn play(&mut self) -> Result<(), Gone> {
        loop {
            let ended = self.read_head().await?;
            self.settle().await?;
            if self.head.as_ref().is_some_and(|head| self.is_ready(head)) {
                self.feed_head().await?;
            } else if ended && self.open.is_empty() {
                break;
            } else if let Some(id) = self.unanswerable() {
                self.cancel(&id).await?;
            } else if !self.end_pause() {
                let Some(line) = self.next_message().await? else {
                    tracing::warn!(open = ?self.open, "requests were not answered, so the input ends here");
                    break;
                };
                self.pass(line).await?;
            }
        }
        // Close the connection's input while nothing is in flight.
        let (closed_channel, _) = mpsc::channel(1);
        self.to_agent = closed_channel;
        while let Some(line) = self.from_agent.recv().await {
            self.pass(line).await?;
        }
        Ok(())
    }

    /// Returns `None` if a deterministic run waits for an answer that does not come, such as after a transcript
    /// spoiled an answer of the client.
    async fn next_message(&mut self) -> Result<Option<String>, Gone> {
        let Some(max_silence) = self.determinism.as_ref().map(|determinism| determinism.max_silence) else {
            return self.from_agent.recv().await.ok_or(Gone).map(Some);
        };
        match tokio::time::timeout(max_silence, self.from_agent.recv()).await {
            Ok(line) => line.ok_or(Gone).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Returns true if there is no next line. Messages pass while this waits, except in a deterministic run:
    /// the place of a line must not depend on how soon it is read.
    async fn read_head(&mut self) -> Result<bool, Gone> {
        if self.head.is_none() {
            let line = loop {
                tokio::select! {
                    biased;
                    line = self.wire_in.recv() => break line,
                    line = self.from_agent.recv(), if self.determinism.is_none() => {
                        self.pass(line.ok_or(Gone)?).await?;
                    }
                }
            };
            let Some(line) = line else { return Ok(true) };
            let text = text_of(&line);
            let (shape, message) = shape(&text);
            let after = message["params"]["_meta"]["modegate/after"].as_u64();
            self.head = Some(LockstepHead { line, shape, message, after });
        }
        Ok(false)
    }

    fn is_ready(&self, head: &LockstepHead) -> bool {
        self.open.is_empty()
            || match (&head.shape, head.after) {
                (Shape::Answer(id), _) => self.ever_asked.contains(id),
                (_, Some(after)) => self.sent >= after,
                (_, None) => false,
            }
    }

    async fn feed_head(&mut self) -> Result<(), Gone> {
        let Some(LockstepHead { mut line, shape, message, .. }) = self.head.take() else { return Ok(()) };
        self.last_fed = None;
        let is_answer = matches!(shape, Shape::Answer(_));
        match shape {
            Shape::Request(id) => {
                self.last_fed = Some(id.clone());
                self.requests.push(id.clone());
                self.open.add(id, &message);
            }
            Shape::Answer(id) => self.open_requests.retain(|requested| *requested != id),
            Shape::Other => {}
        }
        if let (Some(Determinism { cwd, .. }), Line::Bytes(bytes)) = (&self.determinism, &mut line)
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            let mut text = text.replace("${CWD}", cwd);
            for (number, session) in &self.sessions {
                text = text.replace(&format!("${{SESSION:{number}}}"), session);
            }
            if is_answer {
                write_for_client(&text, cwd);
            }
            *bytes = text.into_bytes();
        }
        self.feed(line).await
    }

    /// Sends a line and waits until it is taken, so that its effects come first.
    async fn feed(&mut self, line: Line) -> Result<(), Gone> {
        self.to_agent.send(line).await.map_err(|_| Gone)?;
        while self.to_agent.capacity() == 0 {
            yield_now().await;
        }
        Ok(())
    }

    fn unanswerable(&self) -> Option<String> {
        let waits = match &self.head {
            Some(LockstepHead { shape: Shape::Answer(id), .. }) => !self.open_requests.contains(id),
            // In a deterministic run all tasks are idle here, so the awaited message will not come.
            Some(LockstepHead { after: Some(_), .. }) => self.determinism.is_some(),
            Some(_) | None => true,
        };
        self.open_requests.first().filter(|_| waits).cloned()
    }

    async fn cancel(&mut self, id: &str) -> Result<(), Gone> {
        self.open_requests.retain(|requested| requested != id);
        let error = r#"{"code":-32800,"message":"cancelled: no line of the transcript answers this"}"#;
        self.feed(Line::Bytes(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#).into_bytes())).await
    }

    /// Ends one pause. Returns false if none waits.
    fn end_pause(&mut self) -> bool {
        let Some(determinism) = &mut self.determinism else { return false };
        while let Ok(pause) = determinism.pauses.try_recv() {
            // The paused task may be cancelled. Then the next pause ends.
            if pause.send(()).is_ok() {
                return true;
            }
        }
        false
    }

    /// In a deterministic run, passes messages on until all tasks are idle.
    async fn settle(&mut self) -> Result<(), Gone> {
        if self.determinism.is_none() {
            return Ok(());
        }
        let mut quiet = 0;
        while quiet < SETTLE {
            match self.from_agent.try_recv() {
                Ok(line) => {
                    self.pass(line).await?;
                    quiet = 0;
                }
                Err(mpsc::error::TryRecvError::Disconnected) => return Err(Gone),
                Err(mpsc::error::TryRecvError::Empty) => {
                    yield_now().await;
                    let busy = self.determinism.as_ref().is_some_and(|determinism| (determinism.is_busy)());
                    quiet = if busy { 0 } else { quiet + 1 };
                }
            }
        }
        Ok(())
    }

    async fn pass(&mut self, line: String) -> Result<(), Gone> {
        let (shape, message) = shape(&line);
        match shape {
            Shape::Request(id) => {
                self.open_requests.push(id.clone());
                self.ever_asked.push(id);
            }
            Shape::Answer(id) => {
                let is_open = self.open.awaits_answer(&id);
                let id = if id == "null" && !is_open { self.last_fed.take().unwrap_or(id) } else { id };
                self.open.answered(&id, &message);
                if let Some(session) = message["result"]["sessionId"].as_str()
                    && let Some(at) = self.requests.iter().rposition(|request| *request == id)
                {
                    self.sessions.insert(at + 1, session.to_owned());
                }
            }
            Shape::Other => {
                self.open.notified(&message);
                let withdrawn = message["params"]["requestId"].to_string();
                self.open_requests.retain(|requested| *requested != withdrawn);
            }
        }
        self.sent += 1;
        let line = match &self.determinism {
            Some(Determinism { cwd, .. }) => line.replace(cwd.as_str(), "${CWD}"),
            None => line,
        };
        self.wire_out.send(line).await.map_err(|_| Gone)
    }
}

/// Writes the file that an answer carries, if its path is inside `cwd`.
fn write_for_client(answer: &str, cwd: &str) {
    let answer: Value = serde_json::from_str(answer).unwrap_or_default();
    let write = &answer["result"]["_meta"][WRITE_META];
    let (Some(path), Some(content)) = (write["path"].as_str().map(Path::new), write["content"].as_str())
    else {
        return;
    };
    let cwd: String = serde_json::from_str(&format!("\"{cwd}\"")).unwrap_or_default();
    let is_inside = !cwd.is_empty()
        && path.starts_with(&cwd)
        && !path.components().any(|part| part == Component::ParentDir);
    if !is_inside {
        tracing::warn!(path = %path.display(), "a recorded file outside the working directory is not written");
        return;
    }
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = folder.and_then(|()| std::fs::write(path, content)) {
        tracing::warn!(%error, path = %path.display(), "a recorded file is not written");
    }
}
