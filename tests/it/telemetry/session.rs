//! The span records of real sessions: their kinds, their nesting and their contents.

use std::time::Duration;

use modegate::ids::Source;
use modegate::model::{ModelEvent, ModelStop, Usage};
use modegate::session::{Traced, TracedParts};
use modegate::span_record::{SpanRecord, TracedWork};
use modegate::store::outbox::OutboxBell;
use modegate::store::{Store, StoreLocation, Sync};
use serde_json::json;

use crate::agents::delegation::{AGENTS, call, write};
use crate::support::{Setup, TestClient};

fn traced(contents: bool) -> Traced {
    let records = TracedParts { spans: true, audit_log: true, contents };
    Traced { bell: OutboxBell::default(), records, above: None }
}

struct Recording {
    client: TestClient,
    session: String,
    path: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl Recording {
    async fn start(mode: &'static str, traced: Option<Traced>) -> Self {
        Self::with_source(mode, traced, Source::counted()).await
    }

    async fn with_source(mode: &'static str, traced: Option<Traced>, source: Source) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let store = StoreLocation::File(path.clone());
        let setup = Setup { mode, store, traced, source, agents: AGENTS, live: true, ..Setup::default() };
        let mut client = TestClient::with(setup);
        let session = client.session().await;
        Self { client, session, path, _folder: folder }
    }

    fn reply(&self, session: &str, events: Vec<ModelEvent>) {
        for event in events {
            self.client.model.say(session, Ok(event));
        }
        self.client.model.say(session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }

    /// The records of all sessions, in the order of their ends.
    async fn records(self) -> Vec<(String, SpanRecord)> {
        self.client.end().await;
        let store = Store::open(StoreLocation::File(self.path.clone()), Sync::Normal).unwrap();
        let waiting = store.waiting_spans(100).await.unwrap();
        waiting.into_iter().map(|span| (span.session.to_string(), span.record.unwrap())).collect()
    }
}

/// A short form of a record's work.
fn kind(record: &SpanRecord) -> String {
    let error = record.error.as_ref().map(|error| format!(" {error}")).unwrap_or_default();
    match &record.work {
        TracedWork::Turn { agent, stop, .. } => {
            format!("turn {agent} {}{error}", stop.as_deref().unwrap_or("-"))
        }
        TracedWork::ModelRequest { finish, .. } => {
            format!("request {}{error}", finish.as_deref().unwrap_or("-"))
        }
        TracedWork::ToolCall { tool, denied, .. } => {
            format!(
                "call {tool}{error}{}",
                denied.as_ref().map(|rule| format!(" {rule}")).unwrap_or_default()
            )
        }
        TracedWork::Permission { tool, outcome, .. } => format!("permission {tool} {outcome}"),
        TracedWork::ModeChange { from, to, source } => {
            format!("mode {} {to} {source}", from.as_deref().unwrap_or("-"))
        }
    }
}

fn kinds(records: &[(String, SpanRecord)]) -> Vec<String> {
    records.iter().map(|(_, record)| kind(record)).collect()
}

#[tokio::test]
async fn a_turn_has_spans_for_requests_questions_calls_and_mode_changes() {
    let mut recording = Recording::with_source("ask", Some(traced(false)), Source::real()).await;
    let session = recording.session.clone();
    let prompt = recording.client.prompt(&session, "write").await;
    let usage = Usage { used: 110, output: 10, cache_read: 40, ..Usage::default() };
    recording.reply(&session, vec![ModelEvent::Usage(usage), write("a.txt")]);
    recording.reply(&session, vec![ModelEvent::Text("done".into())]);
    let mut asked = recording.client.next().await;
    while asked["method"] != "session/request_permission" {
        asked = recording.client.next().await;
    }
    let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": {
        "outcome": { "outcome": "selected", "optionId": "allow_once" } } });
    tokio::time::sleep(Duration::from_millis(20)).await;
    recording.client.send_line(&answer.to_string()).await;
    recording.client.until_answer(prompt).await;
    let change = json!({ "sessionId": session, "modeId": "plan" });
    let change = recording.client.request("session/set_mode", change).await;
    recording.client.until_answer(change).await;
    let prompt = recording.client.prompt(&session, "write again").await;
    recording.reply(&session, vec![write("b.txt")]);
    recording.reply(&session, vec![ModelEvent::Text("no".into())]);
    recording.client.until_answer(prompt).await;
    let records = recording.records().await;
    assert_eq!(
        kinds(&records),
        [
            "request tool_call",
            "permission write_file allowed",
            "call write_file",
            "request stop",
            "turn general end_turn",
            "mode ask plan set_mode",
            "request tool_call",
            "call write_file denied access",
            "request stop",
            "turn general end_turn",
        ]
    );
    let (turn, parts) = (&records[4].1, &records[..4]);
    for (_, part) in parts {
        assert_eq!(part.link.trace, turn.link.trace);
        assert_eq!(part.parent.as_ref(), Some(&turn.link.span));
        assert!(part.began >= turn.began && part.ended <= turn.ended && part.ended.unwrap() >= part.began);
    }
    assert_ne!(records[9].1.link.trace, turn.link.trace, "each turn is a trace");
    assert_ne!(records[5].1.link.trace, turn.link.trace);
    let permission = &records[1].1;
    assert!(permission.ended.unwrap() - permission.began >= 20_000, "the user took 20 ms");
    let TracedWork::Turn { usage, model, mode, .. } = &turn.work else { panic!("{turn:?}") };
    assert_eq!((usage.input, usage.output, usage.cache_read), (100, 10, 40));
    assert_eq!((model.as_str(), mode.as_str()), ("offline", "ask"));
    assert!(records.iter().all(|(_, record)| record.contents.is_none()));
}

#[tokio::test]
async fn a_sub_agent_works_below_the_call_that_started_it() {
    let mut recording = Recording::start("code", Some(traced(false))).await;
    let session = recording.session.clone();
    let prompt = recording.client.prompt(&session, "go").await;
    recording.reply(&session, vec![call("delegate", json!({ "task": "one", "agent": "writer" }))]);
    recording.reply("sess_2", vec![write("a")]);
    recording.reply("sess_2", vec![ModelEvent::Text("written".into())]);
    recording.reply(&session, vec![ModelEvent::Text("done".into())]);
    recording.client.until_answer(prompt).await;
    let records = recording.records().await;
    let find = |session: &str, start: &str| {
        let found = records.iter().find(|(of, record)| of == session && kind(record).starts_with(start));
        found.unwrap_or_else(|| panic!("{start} in {:?}", kinds(&records))).1.clone()
    };
    let (delegate, child) = (find(&session, "call delegate"), find("sess_2", "turn writer"));
    assert_eq!(child.parent.as_ref(), Some(&delegate.link.span));
    assert_eq!(child.link.trace, find(&session, "turn").link.trace);
    assert_eq!(find("sess_2", "call write_file").parent, Some(child.link.span));
}

#[tokio::test]
async fn a_client_that_traces_its_prompt_gets_the_turn_in_its_trace() {
    let mut recording = Recording::start("code", Some(traced(false))).await;
    let session = recording.session.clone();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "hi" }],
        "_meta": { "traceparent": parent } });
    let prompt = recording.client.request("session/prompt", params).await;
    recording.reply(&session, vec![ModelEvent::Text("hello".into())]);
    recording.client.until_answer(prompt).await;
    let records = recording.records().await;
    let turn = &records.last().unwrap().1;
    assert_eq!(turn.link.trace, "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(turn.parent.as_deref(), Some("00f067aa0ba902b7"));
}

#[tokio::test]
async fn contents_are_recorded_only_on_request() {
    for contents in [false, true] {
        let mut recording = Recording::start("code", Some(traced(contents))).await;
        let session = recording.session.clone();
        let prompt = recording.client.prompt(&session, "a question").await;
        recording.reply(&session, vec![write("canary.txt")]);
        recording.reply(&session, vec![ModelEvent::Text("an answer".into())]);
        recording.client.until_answer(prompt).await;
        let records = recording.records().await;
        let all =
            serde_json::to_string(&records.iter().map(|(_, record)| record).collect::<Vec<_>>()).unwrap();
        for text in ["a question", "an answer", "canary.txt"] {
            assert_eq!(all.contains(text), contents, "{text} in {all}");
        }
    }
}

#[tokio::test]
async fn nothing_is_recorded_while_telemetry_is_off() {
    let mut recording = Recording::start("code", None).await;
    let session = recording.session.clone();
    let prompt = recording.client.prompt(&session, "hi").await;
    recording.reply(&session, vec![ModelEvent::Text("hello".into())]);
    recording.client.until_answer(prompt).await;
    assert_eq!(recording.records().await, []);
}

#[tokio::test]
async fn failed_requests_and_cancelled_turns_say_so() {
    let mut recording = Recording::start("code", Some(traced(false))).await;
    let session = recording.session.clone();
    let prompt = recording.client.prompt(&session, "hi").await;
    recording.client.model.say(&session, Err(modegate::model::ModelError::new("broken")));
    recording.client.until_answer(prompt).await;
    let prompt = recording.client.prompt(&session, "hi").await;
    recording.client.model.next_request(&session).await;
    recording.client.model.next_request(&session).await;
    recording.client.notify("session/cancel", json!({ "sessionId": session })).await;
    recording.client.until_answer(prompt).await;
    let records = recording.records().await;
    assert_eq!(
        kinds(&records),
        ["request - _OTHER", "turn general - model", "request - cancelled", "turn general cancelled"]
    );
}
