//! A model at a provider: asks over HTTP, asks again when that may help, and turns what comes into events.
//!
//! Dropping the stream ends the request at once. What was said before a problem stays said: a request is made again only
//! while nothing of its reply has been passed on.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;

use super::key::Key;
use super::known::Facts;
use super::provider_error::{ProviderError, Rejection, Retry, redact, refused_part};
use super::wire::framing::{FrameReader, Framing, Unreadable};
use super::wire::{Ask, Decode, Wire};
use super::{Failure, ModelError, ModelEvent, ModelRequest, ModelStop, Reply};
use crate::http::{Http, HttpError, Post, Response};

/// How often a request is made at most.
const ATTEMPTS: u32 = 6;

/// How often a server is tried that cannot be reached.
const UNREACHABLE: u32 = 3;

/// How long a request may take, with all its waits, until it is made for the last time.
const BUDGET: Duration = Duration::from_secs(60);

/// The first wait where the server names none; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// Where a provider's models are, and how to talk to them.
pub struct Endpoint {
    /// Without a slash at its end.
    pub base_url: String,
    /// For people: the address without its path.
    pub host: String,
    /// None where none is needed.
    pub key: Option<Key>,
    /// The variable that holds the key.
    pub key_variable: &'static str,
    /// How requests and responses look.
    pub wire: Box<dyn Wire>,
    /// The address is the provider's own.
    pub is_official: bool,
    /// Optional parts of requests that the server has said it does not take, by model.
    pub without: Mutex<HashMap<String, Vec<&'static str>>>,
}

impl Endpoint {
    /// What is left out of requests to a model.
    fn without(&self, name: &str) -> Vec<&'static str> {
        self.without.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned().unwrap_or_default()
    }

    /// Notes an optional part that an error names, if the request that it is about had it.
    fn leave_out(&self, name: &str, error: &str, without: &[&'static str]) -> bool {
        let Some(part) = refused_part(error, self.wire.optional(), without) else { return false };
        let mut all = self.without.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(name.to_owned()).or_default();
        if !known.contains(&part) {
            known.push(part);
        }
        true
    }
}

/// Starts a reply of a model at an endpoint.
pub fn reply(http: Arc<Http>, endpoint: Arc<Endpoint>, facts: Facts, request: &ModelRequest) -> Reply {
    let name = request.model.parts().map_or("", |(_, name)| name).to_owned();
    let mut asking = PendingReply {
        http,
        framing: endpoint.wire.framing(),
        endpoint,
        request: request.clone(),
        name,
        facts,
        without: Vec::new(),
        body: bytes::Bytes::new(),
        phase: Phase::Ask,
        attempts: 0,
        started: None,
        secret: None,
        buffered: Vec::new(),
        ready: VecDeque::new(),
        has_output: false,
    };
    asking.write();
    stream::unfold(asking, |mut asking| async move { asking.next().await.map(|event| (event, asking)) })
        .boxed()
}

/// A request on its way to its reply.
struct PendingReply {
    http: Arc<Http>,
    endpoint: Arc<Endpoint>,
    framing: Framing,
    request: ModelRequest,
    name: String,
    facts: Facts,
    /// What the body was written without.
    without: Vec<&'static str>,
    body: bytes::Bytes,
    phase: Phase,
    attempts: u32,
    /// When it was first made.
    started: Option<Instant>,
    /// The key, to be kept out of what is said.
    secret: Option<SecretString>,
    /// What the provider wants back, of a reply that has not said anything yet: it may be asked again.
    buffered: Vec<ModelEvent>,
    ready: VecDeque<Result<ModelEvent, ModelError>>,
    /// Something of the reply has been passed on.
    has_output: bool,
}

enum Phase {
    Ask,
    Wait(Duration),
    Read(ResponseStream),
    Over,
}

/// A response that is being read.
struct ResponseStream {
    response: Response,
    frames: FrameReader,
    decoder: Box<dyn Decode>,
}

impl From<Unreadable> for ProviderError {
    fn from(_: Unreadable) -> Self {
        Self::garbled("the server sent something that is no text")
    }
}

impl PendingReply {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let outcome = match &mut self.phase {
                Phase::Over => return None,
                Phase::Wait(wait) => {
                    tokio::time::sleep(*wait).await;
                    self.phase = Phase::Ask;
                    continue;
                }
                Phase::Ask => self.ask().await,
                Phase::Read(reading) => {
                    let mut events = VecDeque::new();
                    let outcome = reading.read(&mut events).await;
                    self.take(events).and(outcome)
                }
            };
            if let Err(error) = outcome {
                self.problem(error);
            }
        }
    }

    /// Writes the request, without what this server does not take.
    fn write(&mut self) {
        self.without = self.endpoint.without(&self.name);
        let ask = Ask {
            request: &self.request,
            name: &self.name,
            facts: &self.facts,
            is_official: self.endpoint.is_official,
            without: &self.without,
        };
        self.body = self.endpoint.wire.body(&ask).into();
    }

    /// Makes the request.
    async fn ask(&mut self) -> Result<(), ProviderError> {
        self.attempts += 1;
        self.started.get_or_insert_with(Instant::now);
        let key = self.key().await?.cloned();
        self.secret.clone_from(&key);
        let post = Post {
            url: self.endpoint.wire.url(&self.endpoint.base_url, &self.name),
            headers: self.endpoint.wire.headers(key.as_ref(), &self.without),
            body: self.body.clone(),
        };
        let response = self.http.post(post).await.map_err(|error| self.unreachable(&error))?;
        let kind = response.header("content-type").unwrap_or_default();
        let is_whole = kind.starts_with("application/json") && self.framing == Framing::Events;
        if response.status() != 200 || is_whole || kind.starts_with("text/html") {
            return self.rejected(response).await;
        }
        let (frames, decoder) = (FrameReader::new(self.framing), self.endpoint.wire.decoder());
        self.phase = Phase::Read(ResponseStream { response, frames, decoder });
        Ok(())
    }

    async fn key(&self) -> Result<Option<&SecretString>, ProviderError> {
        let Some(key) = &self.endpoint.key else { return Ok(None) };
        let host = &self.endpoint.host;
        key.get()
            .await
            .map(Some)
            .map_err(|text| ProviderError::lasting(Failure::Key, format!("the key for {host}: {text}")))
    }

    fn unreachable(&self, error: &HttpError) -> ProviderError {
        let text = format!("{}: {error}", self.endpoint.host);
        match error {
            HttpError::Unusable(_) | HttpError::Refused(_) => ProviderError::lasting(Failure::Other, text),
            // A server that is not there seldom comes back within a minute.
            HttpError::Unreachable(_) if self.attempts >= UNREACHABLE => {
                ProviderError::lasting(Failure::Other, text)
            }
            HttpError::Unreachable(_) | HttpError::Broken(_) => ProviderError::passing(text),
        }
    }

    /// A response that is no reply: a problem, unless the request can be made without what the server does not know.
    async fn rejected(&mut self, response: Response) -> Result<(), ProviderError> {
        let status = response.status();
        let wait = wait(&response);
        let body = self.redact(&response.text().await);
        if matches!(status, 400 | 422) && self.endpoint.leave_out(&self.name, &body, &self.without) {
            self.attempts -= 1;
            self.write();
            return Ok(());
        }
        let Endpoint { host, key_variable, .. } = &*self.endpoint;
        let has_key = self.secret.is_some();
        Err(Rejection { status, body: &body, wait, host, model: &self.name, key_variable, has_key }.explain())
    }

    fn redact(&self, text: &str) -> String {
        redact(text, self.secret.as_ref().map(ExposeSecret::expose_secret))
    }

    /// Passes events on. A reply that says nothing at all is a problem.
    fn take(&mut self, events: VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        for mut event in events {
            match &mut event {
                ModelEvent::Text(text) | ModelEvent::Thought(text) if text.is_empty() => continue,
                ModelEvent::ProviderState(_) if !self.has_output => {
                    self.buffered.push(event);
                    continue;
                }
                ModelEvent::Text(_)
                | ModelEvent::Thought(_)
                | ModelEvent::ToolCallStarted { .. }
                | ModelEvent::ToolCall { .. } => {
                    self.has_output = true;
                    self.ready.extend(self.buffered.drain(..).map(Ok));
                }
                ModelEvent::Usage(usage) if usage.size == 0 => usage.size = self.facts.context,
                ModelEvent::Stop(ModelStop::Done) if !self.has_output => {
                    return Err(ProviderError::passing("the model answered with nothing"));
                }
                ModelEvent::Stop(_) => self.phase = Phase::Over,
                ModelEvent::ProviderState(_) | ModelEvent::Usage(_) | ModelEvent::Waiting { .. } => {}
            }
            self.ready.push_back(Ok(event));
        }
        Ok(())
    }

    /// Asks again later, or gives up.
    fn problem(&mut self, provider_error: ProviderError) {
        let ProviderError { error, retry } = provider_error;
        let error = ModelError { text: self.redact(&error.text), ..error };
        self.buffered.clear();
        let wait = match retry {
            Retry::Never => None,
            Retry::Later => Some(FIRST_WAIT * 2_u32.pow(self.attempts.saturating_sub(1))),
            Retry::After(wait) => Some(wait),
        };
        let passed = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        match wait {
            Some(wait) if !self.has_output && self.attempts < ATTEMPTS && passed + wait <= BUDGET => {
                self.ready.push_back(Ok(ModelEvent::Waiting { reason: error.text, wait }));
                self.phase = Phase::Wait(wait);
            }
            _ => {
                let more = match retry {
                    _ if self.has_output => String::new(),
                    Retry::After(wait) => format!("; it wants us to wait {} s", wait.as_secs_f64().ceil()),
                    Retry::Later if self.attempts > 1 => format!(" (asked {} times)", self.attempts),
                    Retry::Later | Retry::Never => String::new(),
                };
                let error = ModelError { text: error.text + &more, ..error };
                self.ready.push_back(Err(error));
                self.phase = Phase::Over;
            }
        }
    }
}

impl ResponseStream {
    /// Reads what has come, or waits for more.
    async fn read(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        let chunk = self
            .response
            .chunk()
            .await
            .map_err(|error| ProviderError::passing(format!("the reply broke off: {error}")))?;
        let decoder = &mut self.decoder;
        if let Some(chunk) = chunk {
            self.frames.push(chunk.as_ref(), |frame| decoder.frame(frame, events))
        } else {
            self.frames.end(|frame| decoder.frame(frame, events))?;
            if events.iter().any(|event| matches!(event, ModelEvent::Stop(_))) {
                return Ok(());
            }
            decoder.end(events)
        }
    }
}

/// How long a server wants us to wait: milliseconds, seconds or a date.
fn wait(response: &Response) -> Option<Duration> {
    let milliseconds = response.header("retry-after-ms").and_then(|text| text.trim().parse().ok());
    if let Some(milliseconds) = milliseconds {
        return Some(Duration::from_millis(milliseconds));
    }
    let text = response.header("retry-after")?.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let seconds = until.as_second() - jiff::Timestamp::now().as_second();
    u64::try_from(seconds).ok().map(Duration::from_secs)
}
