use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;

use super::*;
use crate::acp::SessionId;
use crate::chain::Head;
use crate::process::secrets::Secrets;

/// A call with a path and a command.
const CALL: &str = r#"{"entry":"call","turn":2,"call":"call_2_1","facts":{"tool":"shell","effect":"execute",
    "shell":"full","background":false,"targets":[{"path":"/home/me/secret-plan"}],
    "command":{"line":"curl canary.example","texts":[],"plain":[]}},"arguments":"a1","mode":"code","under":"b2",
    "consent":"user","at":1500}"#;

fn made(body: &str, has_contents: bool) -> LogRecord {
    let link = Head::start("s").next(body.to_owned());
    let secrets = Secrets::default();
    record(
        &WaitingLink { session: SessionId::new("s"), link },
        SpanView { has_contents, secrets: &secrets },
        9,
    )
}

fn text_of(record: &LogRecord, name: &str) -> Option<String> {
    let found = record.attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => Some(text.clone()),
        other => Some(format!("{other:?}")),
    }
}

fn body(record: &LogRecord) -> String {
    match record.body.as_ref().and_then(|body| body.value.as_ref()) {
        Some(Any::StringValue(text)) => text.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn entry_keeps_its_facts_and_its_hash_without_paths_and_commands() {
    let record = made(CALL, false);
    assert_eq!(record.event_name, "modegate.audit.call");
    assert_eq!((record.time_unix_nano, record.observed_time_unix_nano), (1_500_000_000, 9_000));
    let hash = Head::start("s").next(CALL.to_owned()).hash;
    for (name, expected) in [
        ("modegate.chain.hash", hash.as_str()),
        ("gen_ai.tool.name", "shell"),
        ("gen_ai.tool.call.id", "call_2_1"),
        ("modegate.audit.consent", "user"),
        ("modegate.audit.effect", "execute"),
        ("modegate.audit.arguments", "a1"),
    ] {
        assert_eq!(text_of(&record, name).as_deref(), Some(expected), "{name}");
    }
    let all = format!("{record:?}");
    assert!(!all.contains("canary") && !all.contains("secret-plan"), "{all}");
    assert_eq!(body(&record), "shell allowed (user) in code mode");
}

#[test]
fn body_with_contents_gives_the_hash_again() {
    let record = made(CALL, true);
    let again = Head::start("s").next(body(&record)).hash;
    assert_eq!(text_of(&record, "modegate.chain.hash"), Some(again));
    assert!(body(&record).contains("canary"), "the control");
}

#[test]
fn denials_are_warnings_and_unreadable_entries_are_sent() {
    let denial =
        r#"{"entry":"denial","turn":1,"call":"c","tool":"shell","mode":"plan","rule":"access","at":1}"#;
    let record = made(denial, false);
    assert_eq!(
        (record.severity_number(), body(&record).as_str()),
        (SeverityNumber::Warn, "shell denied by access in plan mode")
    );
    assert_eq!(text_of(&record, "modegate.denial.rule").as_deref(), Some("access"));
    let refused =
        r#"{"entry":"denial","turn":1,"call":"c","tool":"shell","mode":"code","rule":"deny *(a)","at":1}"#;
    let expected = "changes of shell refused by the rule deny *(a) in code mode";
    assert_eq!(body(&made(refused, false)), expected);
    assert_eq!(made(CALL, false).severity_number(), SeverityNumber::Info);
    let record = made("no JSON", false);
    assert_eq!(record.event_name, "modegate.audit.unreadable");
    assert!(text_of(&record, "modegate.chain.hash").is_some());
}
