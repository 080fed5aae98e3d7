use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use serde_json::{Value, json};

use super::*;
use crate::acp::SessionId;
use crate::span_record::{SpanContents, SpanLink};

fn record(work: TracedWork) -> SpanRecord {
    SpanRecord {
        link: SpanLink { trace: "4bf92f3577b34da6a3ce929d0e0e4736".into(), span: "00f067aa0ba902b7".into() },
        parent: Some("0102030405060708".into()),
        turn: 3,
        began: 1_000_000,
        ended: Some(1_250_000),
        error: None,
        work,
        contents: None,
    }
}

fn call(denied: Option<&str>, server: Option<&str>) -> TracedWork {
    TracedWork::ToolCall {
        call: "call_1_1".into(),
        tool: "write_file".into(),
        mode: "plan".into(),
        server: server.map(str::to_owned),
        denied: denied.map(str::to_owned),
        exit_code: None,
        is_external: false,
    }
}

fn made(record: SpanRecord, has_contents: bool, secret: &str) -> Span {
    let secret = secrecy::SecretString::from(secret);
    let secrets = Secrets::new(std::iter::once(&secret));
    let waiting =
        WaitingSpan { id: 1, session: SessionId::new("s"), record: Some(record), agent: Some("a".into()) };
    span(&waiting, SpanView { has_contents, secrets: &secrets }).unwrap()
}

fn plain(record: SpanRecord) -> Span {
    made(record, false, "")
}

fn value(any: &Any) -> Value {
    match any {
        Any::StringValue(text) => json!(text),
        Any::BoolValue(flag) => json!(flag),
        Any::IntValue(number) => json!(number),
        Any::DoubleValue(number) => json!(number),
        Any::ArrayValue(array) => {
            array.values.iter().filter_map(|item| item.value.as_ref()).map(value).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn attributes(span: &Span) -> serde_json::Map<String, Value> {
    let pairs = span.attributes.iter();
    pairs
        .map(|pair| (pair.key.clone(), value(pair.value.as_ref().unwrap().value.as_ref().unwrap())))
        .collect()
}

/// Checks the name and the attributes beside those of the session.
fn check(record: SpanRecord, name: &str, expected: &Value) {
    let span = plain(record);
    assert_eq!(span.name, name);
    let mut found = attributes(&span);
    assert_eq!(found.remove("session.id"), Some(json!("s")));
    assert_eq!(found.remove("gen_ai.conversation.id"), Some(json!("s")));
    assert_eq!(found.remove("modegate.turn"), Some(json!(3)));
    assert_eq!(Value::from(found), *expected);
    let names: Vec<_> = names::ATTRIBUTES.iter().map(|attribute| attribute.name).collect();
    for attribute in &span.attributes {
        assert!(names.contains(&attribute.key.as_str()), "{} is in no table", attribute.key);
    }
}

#[test]
fn each_kind_of_work_has_its_conventions() {
    let usage = TracedUsage { input: 90, output: 10, cache_read: 50, cache_write: 0 };
    check(
        record(TracedWork::Turn {
            agent: "default".into(),
            mode: "code".into(),
            model: "openai-responses/gpt-9".into(),
            stop: Some("end_turn".into()),
            usage: TracedUsage::default(),
        }),
        "invoke_agent default",
        &json!({
            "gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-9",
            "gen_ai.agent.name": "default", "modegate.mode": "code", "modegate.stop_reason": "end_turn",
        }),
    );
    check(
        record(TracedWork::ModelRequest {
            model: "scripted".into(),
            first_output: Some(1_100_000),
            finish: Some("stop".into()),
            usage,
        }),
        "chat scripted",
        &json!({
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "modegate", "gen_ai.request.model": "scripted",
            "gen_ai.request.stream": true, "gen_ai.agent.name": "a", "gen_ai.response.time_to_first_chunk": 0.1,
            "gen_ai.response.finish_reasons": ["stop"], "gen_ai.usage.input_tokens": 90,
            "gen_ai.usage.output_tokens": 10, "gen_ai.usage.cache_read.input_tokens": 50,
            "gen_ai.usage.cache_creation.input_tokens": 0,
        }),
    );
    check(
        record(call(None, Some("db"))),
        "execute_tool write_file",
        &json!({
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "write_file", "gen_ai.tool.type": "extension",
            "gen_ai.tool.call.id": "call_1_1", "modegate.mode": "plan", "mcp.method.name": "tools/call",
            "modegate.mcp.server": "db",
        }),
    );
    check(
        record(TracedWork::Permission {
            call: "call_1_1".into(),
            tool: "shell".into(),
            mode: "ask".into(),
            outcome: "allowed".into(),
        }),
        "permission shell",
        &json!({
            "gen_ai.tool.name": "shell", "gen_ai.tool.call.id": "call_1_1", "modegate.mode": "ask",
            "modegate.permission.outcome": "allowed",
        }),
    );
    check(
        record(TracedWork::ModeChange {
            from: Some("plan".into()),
            to: "code".into(),
            source: "set_mode".into(),
        }),
        "change_mode code",
        &json!({ "modegate.mode": "code", "modegate.mode.from": "plan", "modegate.mode.source": "set_mode" }),
    );
}

#[test]
fn ids_times_and_failures_are_kept() {
    let span = plain(SpanRecord { error: Some("denied".into()), ..record(call(Some("access"), None)) });
    assert_eq!(span.trace_id[..2], [0x4b, 0xf9]);
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    assert_eq!(span.parent_span_id, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (1_000_000_000, 1_250_000_000));
    assert_eq!(span.status.as_ref().unwrap().code(), StatusCode::Error);
    assert_eq!(attributes(&span)["error.type"], "denied");
    assert_eq!(attributes(&span)["modegate.denial.rule"], "access");
    assert_eq!(plain(record(call(None, None))).status, None, "the control");
    let open = plain(SpanRecord { ended: None, ..record(call(None, None)) });
    assert_eq!(open.end_time_unix_nano, open.start_time_unix_nano);
}

#[test]
fn contents_are_left_out_unless_asked_for_and_never_have_keys() {
    let contents =
        SpanContents { input: json!({ "path": "a.txt", "text": "sk-canary-1" }), output: json!("done") };
    let record = SpanRecord { contents: Some(contents), ..record(call(None, None)) };
    let found = attributes(&plain(record.clone()));
    assert!(
        names::ATTRIBUTES
            .iter()
            .filter(|known| known.is_content)
            .all(|known| !found.contains_key(known.name))
    );
    let found = attributes(&made(record, true, "sk-canary-1"));
    assert_eq!(found["gen_ai.tool.call.arguments"], r#"{"path":"a.txt","text":"***"}"#);
    assert_eq!(found["gen_ai.tool.call.result"], "done");
}
