//! A model at a provider: sends requests, retries them, and decodes the response. Dropping the stream cancels
//! the request. Retries only while no output was passed on; the turn decides about a reply that breaks off
//! later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::Instant;

use super::busy_wait::{BusyLimit, FIRST_WAIT, busy_wait};
use super::endpoint::Endpoint;
use super::image_probe::{ImageProbe, ImageRefusal};
use super::known::ModelFacts;
use super::provider_error::{IMAGE, ProviderError, Rejection, Retry, redact};
use super::wire::framing::{FrameReader, Framing, Unreadable};
use super::wire::{Ask, Decode};
use super::{Failure, ModelError, ModelEvent, ModelRequest, ModelStop, Reply};
use crate::http::{Http, HttpError, Post, Response};
use crate::text::shorten;

/// Maximum attempts in a row that fail for another reason than a busy provider.
const ATTEMPTS: u32 = 6;

const UNREACHABLE: u32 = 3;

/// Such attempts start only within this time after the first.
const BUDGET: Duration = Duration::from_mins(1);

/// Interval of notices during a long wait.
const NOTICE_INTERVAL: Duration = Duration::from_mins(5);

/// Bytes of a request beyond which Modegate asks the server for the size of the context.
const LOOKED_UP_BEYOND: usize = 24 * 1024;

/// How a request is sent, apart from its contents.
pub struct Route {
    pub http: Arc<Http>,
    pub endpoint: Arc<Endpoint>,
    pub facts: ModelFacts,
    /// True if the user has set the size of the context.
    pub is_described: bool,
    /// Longest time in all to wait for a busy provider. `None` if a person can cancel the wait.
    pub busy_limit: Option<Duration>,
}

pub fn reply(route: Route, request: &ModelRequest) -> Reply {
    let Route { http, endpoint, facts, is_described, busy_limit } = route;
    let name = request.model.parts().map_or("", |(_, name)| name).to_owned();
    let images = request.image_keys();
    let left_out_images = endpoint.learnt.refused_images(&name, &images);
    let mut asking = PendingReply {
        http,
        framing: endpoint.wire.framing(),
        endpoint,
        request: request.clone(),
        name,
        facts,
        without: Vec::new(),
        images,
        left_out_images,
        probe: None,
        suspects_images: false,
        body: bytes::Bytes::new(),
        phase: RemotePhase::Ask,
        attempts: 0,
        started: None,
        busy: 0,
        busy_limit,
        busy_time: Duration::ZERO,
        secret: None,
        buffered: Vec::new(),
        ready: VecDeque::new(),
        has_output: false,
        follows_results: request.follows_results(),
    };
    asking.write();
    if !is_described && !asking.endpoint.is_official && asking.body.len() > LOOKED_UP_BEYOND {
        let (http, endpoint, name) =
            (Arc::clone(&asking.http), Arc::clone(&asking.endpoint), asking.name.clone());
        tokio::spawn(async move { endpoint.look_up_context(&http, &name).await });
    }
    // Boxed, because the stream moves its state with each event.
    let asking = Box::new(asking);
    stream::unfold(asking, |mut asking| async move { asking.next().await.map(|event| (event, asking)) })
        .boxed()
}

struct PendingReply {
    http: Arc<Http>,
    endpoint: Arc<Endpoint>,
    framing: Framing,
    request: ModelRequest,
    name: String,
    facts: ModelFacts,
    without: Vec<&'static str>,
    /// Keys of the images of the request.
    images: Vec<u64>,
    /// Images that the body does not contain.
    left_out_images: Vec<u64>,
    /// Present while the request is repeated without some images.
    probe: Option<ImageProbe>,
    /// The request was repeated without its new images, after an error that names no cause.
    suspects_images: bool,
    body: bytes::Bytes,
    phase: RemotePhase,
    attempts: u32,
    /// Start of the first of these attempts.
    started: Option<Instant>,
    /// Answers that the provider is busy.
    busy: u32,
    busy_limit: Option<Duration>,
    /// Sum of the waits for a busy provider.
    busy_time: Duration,
    /// The key, to redact it in messages.
    secret: Option<SecretString>,
    /// Provider state that waits for output, because the request may still be retried.
    buffered: Vec<ModelEvent>,
    ready: VecDeque<Result<ModelEvent, ModelError>>,
    /// Output was passed on, which rules out a retry.
    has_output: bool,
    /// The request ends with results of tools.
    follows_results: bool,
}

enum RemotePhase {
    Ask,
    Wait { reason: String, wait: Duration, limit: Option<BusyLimit> },
    Read(ResponseStream),
    Finished,
}

struct ResponseStream {
    response: Response,
    frames: FrameReader,
    decoder: Box<dyn Decode>,
}

impl From<Unreadable> for ProviderError {
    fn from(_: Unreadable) -> Self {
        let text = "the server sent an event that is too large";
        Self::permanent(Failure::Other, text)
    }
}

impl PendingReply {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let outcome = match &mut self.phase {
                RemotePhase::Finished => return None,
                RemotePhase::Wait { reason, wait, limit } => {
                    let part = NOTICE_INTERVAL.min(*wait);
                    tokio::time::sleep(part).await;
                    *wait -= part;
                    if wait.is_zero() {
                        self.phase = RemotePhase::Ask;
                        continue;
                    }
                    let (reason, wait, limit) = (reason.clone(), *wait, *limit);
                    return Some(Ok(ModelEvent::Waiting { reason, wait, limit }));
                }
                RemotePhase::Ask => self.ask().await,
                RemotePhase::Read(reading) => {
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

    fn write(&mut self) {
        self.without = self.endpoint.learnt.without(&self.name);
        let ask = Ask {
            request: &self.request,
            name: &self.name,
            facts: &self.facts,
            is_official: self.endpoint.is_official,
            without: &self.without,
            left_out_images: &self.left_out_images,
        };
        self.body = self.endpoint.wire.body(&ask).into();
    }

    async fn ask(&mut self) -> Result<(), ProviderError> {
        if let Some(fault) = &self.endpoint.fault {
            return Err(ProviderError::permanent(Failure::Other, fault.clone()));
        }
        self.attempts += 1;
        self.started.get_or_insert_with(Instant::now);
        let key = self.key().await?.cloned();
        self.secret.clone_from(&key);
        let mut headers = self.endpoint.headers(key.as_ref(), &self.without);
        if let Some(trace) = &self.request.trace {
            headers.push(("traceparent".into(), trace.parent.as_str().into()));
            headers.extend(trace.state.as_deref().map(|state| ("tracestate".into(), state.into())));
        }
        let post = Post {
            url: self.endpoint.wire.url(&self.endpoint.base_url, &self.name),
            headers,
            body: self.body.clone(),
        };
        let response = self.http.post(post).await.map_err(|error| self.unreachable(&error))?;
        let kind = response.header("content-type").unwrap_or_default();
        let is_whole = kind.starts_with("application/json") && self.framing == Framing::Events;
        if response.status() != 200 || is_whole || kind.starts_with("text/html") {
            return self.rejected(response).await;
        }
        if !self.images.is_empty() && !self.without.contains(&IMAGE) {
            let (left_out, accepted): (Vec<u64>, Vec<u64>) =
                self.images.iter().partition(|image| self.left_out_images.contains(*image));
            // Images beyond the number that a model takes are left out without a fault of their own.
            let has_cause = self.probe.is_some() || self.suspects_images;
            let refused = if has_cause { left_out } else { Vec::new() };
            self.endpoint.learnt.note_images(&self.name, accepted, refused);
        }
        let (frames, decoder) = (FrameReader::new(self.framing), self.endpoint.wire.decoder());
        self.phase = RemotePhase::Read(ResponseStream { response, frames, decoder });
        Ok(())
    }

    async fn key(&self) -> Result<Option<&SecretString>, ProviderError> {
        let Some(key) = &self.endpoint.key else { return Ok(None) };
        let host = &self.endpoint.host;
        key.get()
            .await
            .map(Some)
            .map_err(|text| ProviderError::permanent(Failure::Key, format!("the key for {host}: {text}")))
    }

    fn unreachable(&self, error: &HttpError) -> ProviderError {
        let text = self.endpoint.describe(error);
        let is_permanent = match error {
            HttpError::Unusable(_) | HttpError::Refused(_) => true,
            // A server that is down seldom comes back within a minute.
            HttpError::Unreachable(_) => self.attempts >= UNREACHABLE,
            HttpError::Broken(_) => false,
        };
        if is_permanent {
            ProviderError::permanent(Failure::Other, text)
        } else {
            ProviderError::transient(text)
        }
    }

    /// If the server rejects an optional part, the request is sent again without this part.
    async fn rejected(&mut self, response: Response) -> Result<(), ProviderError> {
        let status = response.status();
        let wait = wait(&response);
        let body = self.redact(&response.text().await);
        // llama.cpp answers 500 if the model takes no images.
        if matches!(status, 400 | 404 | 413 | 422 | 500 | 501) && self.leave_out_images(&body) {
            self.attempts -= 1;
            self.write();
            return Ok(());
        }
        if matches!(status, 400 | 422) && self.endpoint.leave_out(&self.name, &body, &self.without) {
            self.attempts -= 1;
            self.write();
            return Ok(());
        }
        let Endpoint { host, key_variable, .. } = &*self.endpoint;
        let has_key = self.secret.is_some();
        let mut problem =
            Rejection { status, body: &body, wait, host, model: &self.name, key_variable, has_key }.explain();
        let url = &self.endpoint.base_url;
        if url.starts_with("http:") {
            // The answer may be the proxy's.
            problem.error.text.push_str(&self.http.via(url));
        }
        if let Failure::ContextTooLong(excess) = &mut problem.error.failure {
            if excess.limit.is_none() && status != 413 {
                excess.limit = self.endpoint.look_up_context(&self.http, &self.name).await;
            }
            self.endpoint.learnt.note_excess(&self.name, *excess);
        }
        if matches!(status, 400 | 422)
            && problem.error.failure == Failure::Other
            && self.leave_out_new_images(&body)
        {
            self.attempts -= 1;
            self.write();
            return Ok(());
        }
        Err(problem)
    }

    /// Leaves out the images that the server has not taken before, once. An error that names no cause may be about
    /// them, and would come again with each later request of the session. False if there are none.
    fn leave_out_new_images(&mut self, error: &str) -> bool {
        if self.suspects_images || self.probe.is_some() || self.without.contains(&IMAGE) {
            return false;
        }
        let accepted = self.endpoint.learnt.accepted_images(&self.name);
        let new = self
            .images
            .iter()
            .filter(|image| !accepted.contains(*image) && !self.left_out_images.contains(image));
        let new: Vec<u64> = new.copied().collect();
        if new.is_empty() {
            return false;
        }
        self.suspects_images = true;
        self.left_out_images.extend(new);
        self.tell_left_out(error);
        true
    }

    fn tell_left_out(&mut self, error: &str) {
        let host = &self.endpoint.host;
        let reason = format!("{host} refuses an image, which is left out: {}", shorten(error.trim(), 200));
        self.ready.push_back(Ok(ModelEvent::Waiting { reason, wait: Duration::ZERO, limit: None }));
    }

    /// Leaves out the images that the server may have refused. False if the error is not about images, or if
    /// none is left.
    fn leave_out_images(&mut self, error: &str) -> bool {
        if self.images.is_empty() || self.without.contains(&IMAGE) {
            return false;
        }
        let Some(refusal) = ImageRefusal::of(error) else { return false };
        let is_first = self.probe.is_none();
        match refusal {
            ImageRefusal::Model => self.endpoint.learnt.leave_out(&self.name, IMAGE),
            ImageRefusal::Count(most) => {
                let excess = self.images.len().saturating_sub(most);
                if self.left_out_images.len() >= excess {
                    return false;
                }
                self.left_out_images = self.images[..excess].to_vec();
            }
            ImageRefusal::Image => {
                let accepted = self.endpoint.learnt.accepted_images(&self.name);
                let refused = self.endpoint.learnt.refused_images(&self.name, &self.images);
                let others: Vec<u64> =
                    self.images.iter().filter(|image| !refused.contains(image)).copied().collect();
                let probe = self.probe.get_or_insert_with(|| ImageProbe::new(&others, &accepted));
                let Some(left_out) = probe.next() else { return false };
                self.left_out_images = refused.into_iter().chain(left_out).collect();
            }
        }
        if is_first {
            self.tell_left_out(error);
        }
        true
    }

    fn redact(&self, text: &str) -> String {
        redact(text, self.secret.as_ref().map(ExposeSecret::expose_secret))
    }

    /// Queues events. An empty reply is an error.
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
                ModelEvent::Stop(stop @ ModelStop::Done) if !self.has_output => {
                    if !self.follows_results {
                        let text = "the model returned an empty reply".into();
                        let error = ModelError { failure: Failure::NoAnswer, text };
                        return Err(ProviderError { error, retry: Retry::Later });
                    }
                    // The same request would get the same reply: the model sees nothing left to say.
                    *stop = ModelStop::Empty;
                    self.phase = RemotePhase::Finished;
                }
                ModelEvent::Stop(_) => self.phase = RemotePhase::Finished,
                ModelEvent::ProviderState(_) | ModelEvent::Usage(_) | ModelEvent::Waiting { .. } => {}
            }
            self.ready.push_back(Ok(event));
        }
        Ok(())
    }

    fn problem(&mut self, provider_error: ProviderError) {
        let ProviderError { error, retry } = provider_error;
        let error = ModelError { text: self.redact(&error.text), ..error };
        self.buffered.clear();
        let wait = match retry {
            Retry::Never => None,
            _ if self.has_output => None,
            Retry::Later => {
                let wait = FIRST_WAIT * 2_u32.pow(self.attempts.saturating_sub(1));
                let passed = self.started.map_or(Duration::ZERO, |started| started.elapsed());
                Some(wait).filter(|wait| self.attempts < ATTEMPTS && passed + *wait <= BUDGET)
            }
            Retry::Busy(named) => {
                self.busy += 1;
                (self.attempts, self.started) = (0, None);
                let wait = busy_wait(named, self.busy);
                self.busy_time = self.busy_time.saturating_add(wait);
                Some(wait).filter(|_| self.busy_limit.is_none_or(|limit| self.busy_time <= limit))
            }
        };
        if let Some(wait) = wait {
            let most = self.busy_limit.filter(|_| matches!(retry, Retry::Busy(_)));
            let limit = most.map(|most| BusyLimit { attempt: self.busy, most });
            self.ready.push_back(Ok(ModelEvent::Waiting { reason: error.text.clone(), wait, limit }));
            self.phase = RemotePhase::Wait { reason: error.text, wait, limit };
            return;
        }
        let error = match retry {
            Retry::Later | Retry::Busy(_) if self.has_output => {
                let requested_wait = if let Retry::Busy(named) = retry { named } else { None };
                ModelError {
                    failure: Failure::Interrupted { wait: requested_wait.unwrap_or(FIRST_WAIT) },
                    ..error
                }
            }
            Retry::Busy(_) => {
                let limit = self.busy_limit.unwrap_or_default().as_secs();
                let text = format!(
                    "{}. A run without an editor waits {limit} s at most for a busy provider (network: busy_wait_s in \
                     config.yaml)",
                    error.text.trim_end_matches('.')
                );
                ModelError { text, ..error }
            }
            Retry::Later if self.attempts > 1 => {
                ModelError { text: format!("{} ({} attempts)", error.text, self.attempts), ..error }
            }
            _ => error,
        };
        self.ready.push_back(Err(error));
        self.phase = RemotePhase::Finished;
    }
}

impl ResponseStream {
    async fn read(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        let chunk = self
            .response
            .chunk()
            .await
            .map_err(|error| ProviderError::transient(format!("the reply was interrupted: {error}")))?;
        let decoder = &mut self.decoder;
        if let Some(chunk) = chunk {
            self.frames.push(chunk.as_ref(), |frame| decoder.frame(frame, events))
        } else {
            // An invalid last frame is an incomplete one.
            self.frames.end(|frame| decoder.frame(frame, events)).map_err(|_| ProviderError::cut())?;
            if events.iter().any(|event| matches!(event, ModelEvent::Stop(_))) {
                return Ok(());
            }
            decoder.end(events)
        }
    }
}

/// Parses the server's wait: milliseconds, seconds or a date.
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
