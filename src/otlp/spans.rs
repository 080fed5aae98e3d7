//! Makes OTLP spans of span records. Pure.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

use serde_json::Value;

use super::conventions as names;
use super::encode::{attribute, decimal, flag, nanoseconds, number, scope, seconds, signed, text, texts};
use crate::process::secrets::Secrets;
use crate::span_record::{SpanRecord, TracedUsage, TracedWork};
use crate::store::outbox::WaitingSpan;

/// Flag of W3C Trace Context: the span is recorded.
const SAMPLED: u32 = 1;

/// The parts of a record to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanView<'a> {
    pub(super) has_contents: bool,
    /// Values that are replaced in contents.
    pub(super) secrets: &'a Secrets,
}

pub(super) fn request(
    waiting: &[WaitingSpan],
    resource: &Resource,
    view: SpanView<'_>,
) -> ExportTraceServiceRequest {
    let spans = waiting.iter().filter_map(|waiting| span(waiting, view)).collect();
    let scope_spans = ScopeSpans { scope: Some(scope()), spans, schema_url: names::SCHEMA_URL.into() };
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(resource.clone()),
            scope_spans: vec![scope_spans],
            schema_url: names::SCHEMA_URL.into(),
        }],
    }
}

/// Returns `None` for a record that cannot be read.
pub(super) fn span(waiting: &WaitingSpan, view: SpanView<'_>) -> Option<Span> {
    let record = waiting.record.as_ref()?;
    let (name, kind) = name_and_kind(&record.work);
    let session = &*waiting.session.0;
    let mut attributes = vec![
        attribute(names::CONVERSATION, text(session)),
        attribute(names::SESSION, text(session)),
        attribute(names::TURN, number(record.turn)),
    ];
    attributes.extend(of_work(record, waiting.agent.as_deref()));
    if let Some(error) = &record.error {
        attributes.push(attribute(names::ERROR, text(&**error)));
    }
    attributes.extend(contents(record, view));
    Some(Span {
        trace_id: bytes(&record.link.trace),
        span_id: bytes(&record.link.span),
        parent_span_id: record.parent.as_deref().map(bytes).unwrap_or_default(),
        flags: SAMPLED,
        name,
        kind: kind.into(),
        start_time_unix_nano: nanoseconds(record.began),
        end_time_unix_nano: nanoseconds(record.ended.unwrap_or(record.began).max(record.began)),
        attributes,
        status: record
            .error
            .as_ref()
            .map(|error| Status { message: error.clone(), code: StatusCode::Error.into() }),
        ..Span::default()
    })
}

fn name_and_kind(work: &TracedWork) -> (String, SpanKind) {
    match work {
        TracedWork::Turn { agent, .. } => (format!("invoke_agent {agent}"), SpanKind::Internal),
        TracedWork::ModelRequest { model, .. } => {
            let (provider, model) = model_parts(model);
            // The scripted and the offline model run in this process.
            let kind = if provider == OWN_MODELS { SpanKind::Internal } else { SpanKind::Client };
            (format!("chat {model}"), kind)
        }
        TracedWork::ToolCall { tool, server, .. } => {
            let kind = if server.is_some() { SpanKind::Client } else { SpanKind::Internal };
            (format!("execute_tool {tool}"), kind)
        }
        TracedWork::Permission { tool, .. } => (format!("permission {tool}"), SpanKind::Internal),
        TracedWork::ModeChange { to, .. } => (format!("change_mode {to}"), SpanKind::Internal),
    }
}

fn of_work(record: &SpanRecord, agent: Option<&str>) -> Vec<KeyValue> {
    match &record.work {
        TracedWork::Turn { agent, mode, model, stop, usage, .. } => {
            let mut attributes = of_model("invoke_agent", model);
            attributes.push(attribute(names::AGENT, text(&**agent)));
            attributes.push(attribute(names::MODE, text(&**mode)));
            attributes.extend(stop.as_ref().map(|stop| attribute(names::STOP_REASON, text(&**stop))));
            attributes.extend(of_usage(usage));
            attributes
        }
        TracedWork::ModelRequest { model, first_output, finish, usage } => {
            let mut attributes = of_model("chat", model);
            attributes.push(attribute(names::STREAM, flag(true)));
            attributes.extend(agent.map(|agent| attribute(names::AGENT, text(agent))));
            attributes.extend(
                first_output.map(|first| {
                    attribute(names::TIME_TO_FIRST_CHUNK, decimal(seconds(record.began, first)))
                }),
            );
            let finish = finish.as_ref().map(|finish| texts(vec![finish.clone()]));
            attributes.extend(finish.map(|finish| attribute(names::FINISH_REASONS, finish)));
            attributes.extend(of_usage(usage));
            attributes
        }
        TracedWork::ToolCall { call, tool, mode, server, denied, exit_code, is_external } => {
            let kind = if server.is_some() { "extension" } else { "function" };
            let mut attributes = vec![
                attribute(names::OPERATION, text("execute_tool")),
                attribute(names::TOOL, text(&**tool)),
                attribute(names::TOOL_TYPE, text(kind)),
                attribute(names::CALL, text(&**call)),
                attribute(names::MODE, text(&**mode)),
            ];
            if let Some(server) = server {
                attributes.push(attribute(names::MCP_METHOD, text("tools/call")));
                attributes.push(attribute(names::MCP_SERVER, text(&**server)));
            }
            attributes.extend(denied.as_ref().map(|rule| attribute(names::DENIAL_RULE, text(&**rule))));
            attributes.extend(exit_code.map(|code| attribute(names::EXIT_CODE, signed(code.into()))));
            attributes.extend(is_external.then(|| attribute(names::EXTERNAL, flag(true))));
            attributes
        }
        TracedWork::Permission { call, tool, mode, outcome } => vec![
            attribute(names::TOOL, text(&**tool)),
            attribute(names::CALL, text(&**call)),
            attribute(names::MODE, text(&**mode)),
            attribute(names::PERMISSION, text(&**outcome)),
        ],
        TracedWork::ModeChange { from, to, source } => {
            let mut attributes =
                vec![attribute(names::MODE, text(&**to)), attribute(names::MODE_SOURCE, text(&**source))];
            attributes.extend(from.as_ref().map(|from| attribute(names::MODE_FROM, text(&**from))));
            attributes
        }
    }
}

/// Provider of the models in the binary.
const OWN_MODELS: &str = "modegate";

/// The provider's name in the conventions, and the model's name.
pub(super) fn model_parts(model: &str) -> (&str, &str) {
    model.split_once('/').map_or((OWN_MODELS, model), |(id, model)| (names::provider(id), model))
}

fn of_model(operation: &str, model: &str) -> Vec<KeyValue> {
    let (provider, model) = model_parts(model);
    vec![
        attribute(names::OPERATION, text(operation)),
        attribute(names::PROVIDER, text(provider)),
        attribute(names::MODEL, text(model)),
    ]
}

fn of_usage(usage: &TracedUsage) -> Vec<KeyValue> {
    if *usage == TracedUsage::default() {
        return Vec::new();
    }
    vec![
        attribute(names::INPUT_TOKENS, number(usage.input)),
        attribute(names::OUTPUT_TOKENS, number(usage.output)),
        attribute(names::CACHE_READ_TOKENS, number(usage.cache_read)),
        attribute(names::CACHE_WRITE_TOKENS, number(usage.cache_write)),
    ]
}

fn contents(record: &SpanRecord, view: SpanView<'_>) -> Vec<KeyValue> {
    let Some(contents) = record.contents.as_ref().filter(|_| view.has_contents) else { return Vec::new() };
    let (input, output) = match &record.work {
        TracedWork::ToolCall { .. } => (names::ARGUMENTS, names::RESULT),
        _ => (names::INPUT_MESSAGES, names::OUTPUT_MESSAGES),
    };
    let mut pairs = vec![(input, &contents.input), (output, &contents.output)];
    // Backends that show the messages of a model request show only these for other spans.
    if !matches!(record.work, TracedWork::ModelRequest { .. }) {
        pairs.push((names::INPUT_VALUE, spoken(&contents.input)));
        pairs.push((names::OUTPUT_VALUE, spoken(&contents.output)));
    }
    pairs.retain(|(_, value)| !value.is_null());
    let attributes = pairs.into_iter().map(|(name, value)| {
        let json = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        attribute(name, text(view.secrets.redact(&json)))
    });
    attributes.collect()
}

/// The text of a single message, or the value itself.
fn spoken(value: &Value) -> &Value {
    value.pointer("/0/parts/0/content").unwrap_or(value)
}

/// Bytes of hexadecimal digits.
fn bytes(digits: &str) -> Vec<u8> {
    let pair = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    (0..digits.len()).step_by(2).filter_map(pair).collect()
}

#[cfg(test)]
mod tests;
