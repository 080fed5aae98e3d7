//! A model's reply that measures itself: a span record is written once the reply ends, fails or is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use serde_json::{Value, json};

use crate::model::{Block, Failure, Message, ModelError, ModelEvent, ModelRequest, ModelStop, Reply, Role};
use crate::session::trace::{TurnTrace, cut};
use crate::span_record::{SpanContents, SpanRecord, TracedUsage, TracedWork};

struct TracedReply {
    inner: Reply,
    trace: TurnTrace,
    /// `None` once it is written.
    record: Option<SpanRecord>,
    /// Parts of the answer, for contents.
    text: String,
    thought: String,
    calls: Vec<Value>,
}

/// Measures a reply to `request`, which is made by `reply`.
pub(super) fn traced(
    trace: &TurnTrace,
    request: ModelRequest,
    reply: impl FnOnce(ModelRequest) -> Reply,
) -> Reply {
    let began = trace.now();
    let work = TracedWork::ModelRequest {
        model: request.model.to_string(),
        first_output: None,
        finish: None,
        usage: TracedUsage::default(),
    };
    // A request that is repeated has the same ordinal, but another time.
    let mut record = trace.begin(&format!("request {} {began}", request.ordinal), began, work);
    record.contents = trace
        .has_contents()
        .then(|| SpanContents { input: input_of(&request.messages), output: Value::Null });
    Box::pin(TracedReply {
        inner: reply(request),
        trace: trace.clone(),
        record: Some(record),
        text: String::new(),
        thought: String::new(),
        calls: Vec::new(),
    })
}

impl Stream for TracedReply {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = std::task::ready!(self.inner.as_mut().poll_next(context));
        match &event {
            Some(Ok(event)) => self.observe(event),
            Some(Err(error)) => self.end(Some(failure(error.failure))),
            None => self.end(Some("interrupted")),
        }
        Poll::Ready(event)
    }
}

impl Drop for TracedReply {
    fn drop(&mut self) {
        self.end(Some("cancelled"));
    }
}

impl TracedReply {
    fn observe(&mut self, event: &ModelEvent) {
        if !matches!(event, ModelEvent::Waiting { .. } | ModelEvent::Usage(_)) {
            let now = self.trace.now();
            if let Some(TracedWork::ModelRequest { first_output, .. }) = self.work() {
                first_output.get_or_insert(now);
            }
        }
        match event {
            ModelEvent::Usage(reported) => {
                let reported = TracedUsage::from(reported);
                if let Some(TracedWork::ModelRequest { usage, .. }) = self.work() {
                    *usage = reported;
                }
            }
            ModelEvent::Stop(stop) => {
                let is_call = !self.calls.is_empty();
                if let Some(TracedWork::ModelRequest { finish, .. }) = self.work() {
                    *finish = Some(finish_reason(*stop, is_call).to_owned());
                }
                self.end(None);
            }
            ModelEvent::ToolCall { id, name, arguments } if self.trace.has_contents() => {
                let arguments = cut(&arguments.to_string());
                let part = json!({ "type": "tool_call", "id": id, "name": name, "arguments": arguments });
                self.calls.push(part);
            }
            ModelEvent::ToolCall { .. } => self.calls.push(Value::Null),
            ModelEvent::Text(text) if self.trace.has_contents() => self.text.push_str(text),
            ModelEvent::Thought(text) if self.trace.has_contents() => self.thought.push_str(text),
            _ => {}
        }
    }

    fn work(&mut self) -> Option<&mut TracedWork> {
        self.record.as_mut().map(|record| &mut record.work)
    }

    fn end(&mut self, error: Option<&str>) {
        let Some(mut record) = self.record.take() else { return };
        record.ended = Some(self.trace.now());
        record.error = error.map(str::to_owned);
        if let Some(contents) = &mut record.contents {
            let mut parts = Vec::new();
            if !self.thought.is_empty() {
                parts.push(json!({ "type": "reasoning", "content": cut(&self.thought) }));
            }
            if !self.text.is_empty() {
                parts.push(json!({ "type": "text", "content": cut(&self.text) }));
            }
            parts.append(&mut self.calls);
            if let TracedWork::ModelRequest { finish, .. } = &record.work {
                let finish = finish.as_deref().unwrap_or("error");
                contents.output = json!([{ "role": "assistant", "parts": parts, "finish_reason": finish }]);
            }
        }
        self.trace.write(record);
    }
}

fn finish_reason(stop: ModelStop, is_call: bool) -> &'static str {
    match stop {
        ModelStop::Done if is_call => "tool_call",
        ModelStop::Done | ModelStop::Empty => "stop",
        ModelStop::MaxTokens | ModelStop::ContextFull => "length",
        ModelStop::Refusal => "content_filter",
    }
}

fn failure(failure: Failure) -> &'static str {
    match failure {
        Failure::Key => "key",
        Failure::ContextTooLong(_) => "context_too_long",
        Failure::NoAnswer => "no_answer",
        Failure::Interrupted { .. } => "interrupted",
        Failure::Other => "_OTHER",
    }
}

/// The messages since the model's last answer: earlier ones are in the spans of earlier requests.
fn input_of(messages: &[std::sync::Arc<Message>]) -> Value {
    let after = messages.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |at| at + 1);
    messages[after..].iter().map(|message| json!({ "role": "user", "parts": parts_of(message) })).collect()
}

fn parts_of(message: &Message) -> Vec<Value> {
    let part = |block: &Block| match block {
        Block::Text(text) | Block::Note(text) | Block::Reminder(text) => {
            Some(json!({ "type": "text", "content": cut(text) }))
        }
        Block::ToolResult { id, text, .. } => {
            Some(json!({ "type": "tool_call_response", "id": id, "response": cut(text) }))
        }
        Block::Image(image) => Some(json!({ "type": "image", "mime_type": &*image.mime_type })),
        Block::Thought(_) | Block::ProviderState(_) | Block::ToolCall { .. } => None,
    };
    message.blocks.iter().filter_map(part).collect()
}
