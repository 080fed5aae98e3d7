//! The outbox: rows arrive at least once and in the order of their session, whatever the collector does.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use modegate::acp::{SessionId, SessionModeId};
use modegate::chain::Head;
use modegate::http::Http;
use modegate::otlp::Telemetry;
use modegate::otlp::conventions as names;
use modegate::otlp::telemetry_settings::{Signal, SignalEndpoint, TelemetryDestination};
use modegate::process::secrets::Secrets;
use modegate::span_record::{SpanLink, SpanRecord, TracedWork};
use modegate::store::{Row, Store, StoreLocation, Sync};

use super::receiver::{Behaviour, Receiver, hash, text};

const SESSIONS: usize = 20;

/// Entries of the audit log, and as many spans, of each session.
const ENTRIES: usize = 250;

fn destination(receiver: &Receiver) -> TelemetryDestination {
    let endpoint = |signal: Signal| SignalEndpoint {
        url: format!("{}/v1/{}", receiver.url(), signal.as_str()),
        headers: BTreeMap::new(),
        timeout: Duration::from_millis(300),
    };
    TelemetryDestination {
        endpoints: Signal::ALL.map(|signal| (signal, endpoint(signal))).into(),
        service_name: "modegate".into(),
        resource: BTreeMap::new(),
        has_contents: false,
        is_required: false,
    }
}

fn open(path: &Path) -> Store {
    Store::open(StoreLocation::File(path.to_owned()), Sync::Normal).unwrap()
}

fn start(store: &Store, receiver: &Receiver) -> Telemetry {
    Telemetry::start(destination(receiver), store.clone(), &Arc::new(Http::default()), Secrets::default())
}

/// A session whose audit log is exported.
fn begin(store: &Store, id: &SessionId) {
    store.post(Row::Session {
        id: id.clone(),
        cwd: "/w".into(),
        directories: Vec::new(),
        parent: None,
        agent: "default".into(),
        mode: SessionModeId::new("code"),
        at: 1,
    });
    store.post(Row::Exported { session: id.clone(), number: 0 });
}

fn post_entry(store: &Store, id: &SessionId, head: &mut Head) {
    let body = format!(r#"{{"entry":"undo","turn":1,"files":{},"at":5}}"#, head.length);
    let link = head.next(body);
    head.follow(&link);
    store.post(Row::Link { session: id.clone(), link });
}

fn post_span(store: &Store, id: &SessionId, number: u64) {
    let work = TracedWork::ModeChange { from: None, to: "code".into(), source: "load".into() };
    let link = SpanLink::of_turn(&id.0, 1, None).part(&id.0, 1, &number.to_string());
    let began = i64::try_from(number).unwrap();
    let record = SpanRecord {
        link,
        parent: None,
        turn: 1,
        began,
        ended: Some(began),
        error: None,
        work,
        contents: None,
    };
    store.post(Row::Span { session: id.clone(), record: Box::new(record) });
}

/// Session and number of each record in the order of its first arrival.
fn check_order(arrived: impl Iterator<Item = (String, u64)>, expected: usize) {
    let (mut seen, mut last) = (HashSet::new(), HashMap::new());
    for (session, number) in arrived {
        if seen.insert((session.clone(), number)) {
            let before = last.insert(session.clone(), number);
            assert!(before.is_none_or(|before| before < number), "{session}: {number} after {before:?}");
        }
    }
    assert_eq!(seen.len(), expected);
}

#[tokio::test]
async fn ten_thousand_events_arrive_although_collector_and_exporter_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let mut receiver = Receiver::start();
    let sessions: Vec<SessionId> =
        (0..SESSIONS).map(|number| SessionId::new(format!("sess_{number:02}"))).collect();
    let mut heads: Vec<Head> = sessions.iter().map(|id| Head::start(&id.0)).collect();
    let mut store = open(&path);
    for id in &sessions {
        begin(&store, id);
    }
    let mut telemetry = start(&store, &receiver);
    // Each round posts a part of the events, and ends with another misfortune.
    let rounds = 10;
    for round in 0..rounds {
        for number in 0..ENTRIES / rounds {
            for (id, head) in sessions.iter().zip(&mut heads) {
                post_entry(&store, id, head);
                post_span(&store, id, (round * ENTRIES / rounds + number) as u64);
            }
        }
        store.flush().await.unwrap();
        telemetry.bell().ring();
        match round {
            1 => receiver.kill(),
            2 => receiver.listen(),
            3 => receiver.behave(Behaviour::TakeAndCut),
            4 => receiver.behave(Behaviour::Cut),
            5 => receiver.behave(Behaviour::Status(503)),
            6 => receiver.behave(Behaviour::Hang),
            7 => receiver.behave(Behaviour::AtMost(30_000)),
            8 => receiver.behave(Behaviour::AcceptPartly),
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        if round % 2 == 0 {
            // The process of the exporter is killed, maybe in the middle of a request.
            drop(telemetry);
            store = open(&path);
            telemetry = start(&store, &receiver);
        }
    }
    receiver.behave(Behaviour::Accept);
    let started = Instant::now();
    while store.outbox_counts().await.unwrap() != modegate::store::outbox::OutboxCounts::default() {
        assert!(started.elapsed() < Duration::from_mins(1), "{:?}", store.outbox_counts().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let logs = receiver.logs();
    let arrived: HashSet<String> = logs.iter().map(hash).collect();
    for (id, head) in sessions.iter().zip(&heads) {
        assert_eq!(head.length, ENTRIES as u64);
        let mut again = Head::start(&id.0);
        for _ in 0..ENTRIES {
            let link = again.next(format!(r#"{{"entry":"undo","turn":1,"files":{},"at":5}}"#, again.length));
            again.follow(&link);
            assert!(arrived.contains(&link.hash), "{id}: entry {}", link.number);
        }
    }
    let number_of = |text: Option<String>| text.unwrap().parse().unwrap();
    let session_of = |attributes| text(attributes, names::CONVERSATION).unwrap();
    let entries = logs
        .iter()
        .map(|log| (session_of(&log.attributes), number_of(text(&log.attributes, names::CHAIN_NUMBER))));
    check_order(entries, SESSIONS * ENTRIES);
    let spans = receiver.spans();
    let numbers = spans.iter().map(|span| (session_of(&span.attributes), span.start_time_unix_nano));
    check_order(numbers, SESSIONS * ENTRIES);
    assert!(logs.len() > SESSIONS * ENTRIES, "the control: an answer that was cut made a batch arrive twice");
    telemetry.finish().await;
}

#[tokio::test]
async fn end_of_a_process_waits_for_what_is_left_but_not_for_a_dead_collector() {
    let dir = tempfile::tempdir().unwrap();
    let mut receiver = Receiver::start();
    let store = open(&dir.path().join("store.db"));
    let id = SessionId::new("sess_1");
    begin(&store, &id);
    let mut head = Head::start(&id.0);
    post_entry(&store, &id, &mut head);
    let telemetry = start(&store, &receiver);
    telemetry.finish().await;
    assert_eq!(receiver.logs().len(), 1);
    receiver.kill();
    post_entry(&store, &id, &mut head);
    let telemetry = start(&store, &receiver);
    let started = Instant::now();
    telemetry.finish().await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(store.outbox_counts().await.unwrap().links, 1, "the entry waits for the next process");
}

#[tokio::test]
async fn only_one_process_exports_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let receiver = Receiver::start();
    let (store, other) = (open(&path), open(&path));
    let id = SessionId::new("sess_1");
    begin(&store, &id);
    post_entry(&store, &id, &mut Head::start(&id.0));
    store.flush().await.unwrap();
    let lock = other.lock_outbox(modegate::store::outbox::Outbox::Links).await.unwrap();
    start(&store, &receiver).finish().await;
    assert!(lock.is_some() && receiver.logs().is_empty());
    drop(lock);
    start(&store, &receiver).finish().await;
    assert_eq!(receiver.logs().len(), 1, "the control");
}

#[tokio::test]
async fn turn_of_a_killed_process_ends_as_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let receiver = Receiver::start();
    let id = SessionId::new("sess_1");
    let open_turn = |store: &Store| {
        begin(store, &id);
        let work = TracedWork::Turn {
            agent: "default".into(),
            mode: "code".into(),
            model: "scripted".into(),
            stop: None,
            usage: modegate::span_record::TracedUsage::default(),
        };
        let link = SpanLink::of_turn(&id.0, 1, None);
        let record = SpanRecord {
            link,
            parent: None,
            turn: 1,
            began: 1,
            ended: None,
            error: None,
            work,
            contents: None,
        };
        store.post(Row::Span { session: id.clone(), record: Box::new(record) });
    };
    let store = open(&path);
    open_turn(&store);
    store.flush().await.unwrap();
    start(&store, &receiver).finish().await;
    assert!(receiver.spans().is_empty(), "the control: a turn that runs has no span yet");
    drop(store);
    // The lock file of the process goes with its store.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let next = open(&path);
    start(&next, &receiver).finish().await;
    let spans = receiver.spans();
    assert_eq!(spans.len(), 1);
    assert_eq!(text(&spans[0].attributes, names::ERROR).as_deref(), Some("interrupted"));
}
