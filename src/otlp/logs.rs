//! Makes OTLP log records of the entries of audit logs. Pure.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use serde_json::Value;

use super::conventions as names;
use super::encode::{attribute, flag, nanoseconds, number, scope, text};
use super::spans::SpanView;
use crate::store::entry::refuses_acts;
use crate::store::outbox::WaitingLink;

/// `observed` is the time of the export, in microseconds since 1970.
pub(super) fn request(
    waiting: &[WaitingLink],
    resource: &Resource,
    view: SpanView<'_>,
    observed: i64,
) -> ExportLogsServiceRequest {
    let log_records = waiting.iter().map(|waiting| record(waiting, view, observed)).collect();
    let scope_logs = ScopeLogs { scope: Some(scope()), log_records, schema_url: names::SCHEMA_URL.into() };
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(resource.clone()),
            scope_logs: vec![scope_logs],
            schema_url: names::SCHEMA_URL.into(),
        }],
    }
}

/// The body is the entry's text with contents, from which its hash can be computed again, and else a phrase. The
/// hash is always sent: it identifies an entry that arrives twice.
pub(super) fn record(waiting: &WaitingLink, view: SpanView<'_>, observed: i64) -> LogRecord {
    let WaitingLink { session, link } = waiting;
    // An entry that cannot be read is sent with its number and its hash.
    let entry: Value = serde_json::from_str(&link.body).unwrap_or_default();
    let kind = entry["entry"].as_str().unwrap_or("unreadable");
    let is_warning = matches!(kind, "denial" | "unrecorded" | "unreadable");
    let (severity, severity_text) =
        if is_warning { (SeverityNumber::Warn, "WARN") } else { (SeverityNumber::Info, "INFO") };
    let mut attributes = vec![
        attribute(names::CHAIN_HASH, text(&*link.hash)),
        attribute(names::CHAIN_NUMBER, number(link.number)),
        attribute(names::CONVERSATION, text(&*session.0)),
        attribute(names::SESSION, text(&*session.0)),
    ];
    attributes.extend(members(&entry));
    let body = if view.has_contents { view.secrets.redact(&link.body) } else { phrase(kind, &entry) };
    LogRecord {
        time_unix_nano: nanoseconds(entry["at"].as_i64().unwrap_or_default().saturating_mul(1000)),
        observed_time_unix_nano: nanoseconds(observed),
        severity_number: severity.into(),
        severity_text: severity_text.into(),
        body: Some(text(body)),
        attributes,
        event_name: format!("{}{kind}", names::AUDIT),
        ..LogRecord::default()
    }
}

fn members(entry: &Value) -> Vec<KeyValue> {
    let tool = [&entry["tool"], &entry["facts"]["tool"]].into_iter().find_map(Value::as_str);
    let known = [
        (names::TOOL, tool),
        (names::CALL, entry["call"].as_str()),
        (names::AGENT, entry["agent"].as_str()),
        (names::DENIAL_RULE, entry["rule"].as_str()),
    ];
    let known = known.into_iter().filter_map(|(name, value)| Some(attribute(name, text(value?))));
    let turn = entry["turn"].as_u64().map(|turn| attribute(names::TURN, number(turn)));
    let members = names::AUDIT_MEMBERS.iter().map(|name| (*name, &entry[*name]));
    let facts = names::AUDIT_FACTS.iter().map(|name| (*name, &entry["facts"][*name]));
    let members = members.chain(facts).filter_map(|(name, value)| Some((name, scalar(value)?)));
    let members = members.map(|(name, value)| attribute(format!("{}{name}", names::AUDIT), value));
    known.chain(turn).chain(members).collect()
}

/// A word, a number or a flag.
fn scalar(value: &Value) -> Option<AnyValue> {
    match value {
        Value::String(word) => Some(text(&**word)),
        Value::Bool(value) => Some(flag(*value)),
        Value::Number(value) => value.as_u64().map(number),
        _ => None,
    }
}

fn phrase(kind: &str, entry: &Value) -> String {
    let word = |name: &str| entry[name].as_str().unwrap_or_default();
    let tool = entry["facts"]["tool"].as_str().unwrap_or_else(|| word("tool"));
    match kind {
        "mode" => format!("mode {} ({})", word("to"), word("source")),
        "denial" if refuses_acts(word("rule")) => {
            format!("changes of {tool} refused by the rule {} in {} mode", word("rule"), word("mode"))
        }
        "denial" => format!("{tool} denied by {} in {} mode", word("rule"), word("mode")),
        "call" => format!("{tool} allowed ({}) in {} mode", word("consent"), word("mode")),
        "answer" => format!("answer remembered in {} mode", word("mode")),
        "delegate" => format!("task delegated to {}", word("agent")),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests;
