use super::*;
use crate::acp::SessionModeId;
use crate::chain::Head;
use crate::span_record::{SpanLink, TracedWork};
use crate::store::retention::{self, Retention};
use crate::store::{Row, Store, StoreLocation, Sync};

fn session(id: &str, parent: Option<&str>) -> Row {
    Row::Session {
        id: SessionId::new(id),
        cwd: "/w".into(),
        directories: Vec::new(),
        parent: parent.map(SessionId::new),
        agent: "a".into(),
        mode: SessionModeId::new("ask"),
        at: 1,
    }
}

/// Posts the next entry of a session's audit log.
fn post_entry(store: &Store, id: &str, head: &mut Head) {
    let link = head.next("{}".into());
    head.follow(&link);
    store.post(Row::Link { session: SessionId::new(id), link });
}

fn exported(id: &str, number: u64) -> Row {
    Row::Exported { session: SessionId::new(id), number }
}

fn span(id: &str, ended: Option<i64>) -> Row {
    let work = TracedWork::ModeChange { from: None, to: "plan".into(), source: "load".into() };
    let link = SpanLink::of_turn(id, 1, None);
    let record =
        SpanRecord { link, parent: None, turn: 1, began: 1, ended, error: None, work, contents: None };
    Row::Span { session: SessionId::new(id), record: Box::new(record) }
}

fn memory() -> Store {
    Store::open(StoreLocation::Memory, Sync::Normal).unwrap()
}

async fn numbers(store: &Store) -> Vec<u64> {
    store.waiting_links(10).await.unwrap().into_iter().map(|waiting| waiting.link.number).collect()
}

#[tokio::test]
async fn entries_wait_from_the_cursor_on() {
    let store = memory();
    let mut head = Head::start("s");
    store.post(session("s", None));
    post_entry(&store, "s", &mut head);
    assert!(numbers(&store).await.is_empty(), "the session was not exported before");
    store.post(exported("s", 1));
    post_entry(&store, "s", &mut head);
    post_entry(&store, "s", &mut head);
    assert_eq!(numbers(&store).await, [2, 3]);
    store.advance_outbox([("s".to_owned(), 2)].into()).await.unwrap();
    assert_eq!(numbers(&store).await, [3]);
    // Neither a second start of the export nor an older number moves the cursor back.
    store.post(exported("s", 0));
    store.advance_outbox([("s".to_owned(), 1)].into()).await.unwrap();
    assert_eq!(numbers(&store).await, [3]);
    assert_eq!(store.outbox_counts().await.unwrap(), OutboxCounts { spans: 0, links: 1 });
}

#[tokio::test]
async fn finished_turn_replaces_the_running_one() {
    let store = memory();
    store.post(session("s", None));
    store.post(span("s", None));
    assert_eq!(store.waiting_spans(10).await.unwrap(), [], "this process runs the turn");
    store.post(span("s", Some(5)));
    let waiting = store.waiting_spans(10).await.unwrap();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].record.as_ref().unwrap().ended, Some(5));
    assert_eq!(waiting[0].agent.as_deref(), Some("a"));
    store.remove_spans(vec![waiting[0].id]).await.unwrap();
    store.post(Row::Release { session: SessionId::new("s") });
    assert_eq!(store.waiting_spans(10).await.unwrap(), []);
}

#[tokio::test]
async fn old_sessions_stay_until_they_are_exported_where_that_is_required() {
    let store = memory();
    for (id, parent) in [("root", None), ("child", Some("root")), ("other", None)] {
        store.post(session(id, parent));
        store.post(Row::Release { session: SessionId::new(id) });
    }
    store.post(span("child", Some(5)));
    let retention = Retention { max_age_ms: Some(0), keeps_unexported: true, ..Retention::default() };
    assert_eq!(retention::apply(&store, retention, 10).await.unwrap(), 1);
    assert!(store.session(&SessionId::new("child")).await.unwrap().is_some());
    let waiting = store.waiting_spans(10).await.unwrap();
    store.remove_spans(vec![waiting[0].id]).await.unwrap();
    assert_eq!(retention::apply(&store, retention, 10).await.unwrap(), 1, "the control");
    assert!(store.session(&SessionId::new("child")).await.unwrap().is_none());
}
