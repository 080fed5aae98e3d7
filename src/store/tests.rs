//! Flushed rows survive the process, and write failures are reported.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use tokio_util::sync::CancellationToken;

use super::insert::ListTimes;
use super::memories::StoredMemories;
use super::sessions::OpenSessionError;
use super::*;
use crate::acp::{MessageId, SessionId, SessionModeId};
use crate::chain::Link;
use crate::event::SessionEvent;
use crate::ids::Source;
use crate::memory::{Memories, Memory, MemoryChange, MemoryError};
use crate::mode::ModeText;
use crate::workspace::{Changed, Changes, FileState, Intent};

fn session(id: &str) -> Row {
    Row::Session {
        parent: None,
        agent: "general".into(),
        id: SessionId::new(id),
        cwd: "/w".into(),
        directories: vec![],
        mode: SessionModeId::new("ask"),
        at: 1,
    }
}

fn text(session: &str, seq: u64, text: &str) -> Row {
    let event = SessionEvent::AgentText { message_id: MessageId::new("m"), text: text.into(), shown: None };
    Row::Event { session: SessionId::new(session), seq, turn: 1, event, at: 2 }
}

/// The chain has one entry for each mode change of a session here.
fn change(session: &str, number: u64, to: &str) -> ModeChange {
    ModeChange {
        link: Link { number, body: "{}".into(), hash: "h".into() },
        session: SessionId::new(session),
        turn: 0,
        from: Some(SessionModeId::new("ask")),
        to: SessionModeId::new(to),
        why: ModeSource::SetMode.into(),
        text: Arc::new(ModeText { hash: "hash".into(), text: "id: x\n".into() }),
        at: 3,
    }
}

fn count(path: &Path, table: &str) -> i64 {
    let connection = Connection::open(path).unwrap();
    connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn flushed_rows_are_readable_and_schema_is_created_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("folder/store.db");
    for number in 1..3 {
        let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
        store.post(session("s"));
        store.post(text("s", 0, "hello"));
        store.record_mode_change(Vec::new(), change("s", number, "plan")).await.unwrap();
        store.flush().await.unwrap();
    }
    let connection = Connection::open(&path).unwrap();
    let row: (String, String) = connection
        .query_row(
            "SELECT sessions.mode, events.body FROM sessions JOIN events ON id = session_id",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!(row, ("plan".into(), r#"{"message_id":"m","text":"hello"}"#.into()));
    assert_eq!(count(&path, "mode_changes"), 2);
}

#[cfg(unix)]
#[tokio::test]
async fn store_file_and_folder_are_private_to_the_user() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("folder/store.db");
    let bits = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let open = fs::Permissions::from_mode(0o666);
    let other = dir.path().join("made by somebody else.db");
    fs::write(&other, "").unwrap();
    fs::set_permissions(&other, open).unwrap();
    Store::open(StoreLocation::File(other.clone()), Sync::Normal)
        .unwrap()
        .counts(&SessionId::new("s"))
        .await
        .unwrap();
    assert_eq!(bits(&other), 0o600);
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    store.flush().await.unwrap();
    assert_eq!((bits(&path), bits(path.parent().unwrap())), (0o600, 0o700));
}

#[tokio::test]
async fn failed_writes_are_reported_and_retried() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    store.post(session("s"));
    store.flush().await.unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch("ALTER TABLE mode_changes RENAME TO away; ALTER TABLE events RENAME TO gone;")
        .unwrap();
    store.post(text("s", 0, "kept"));
    assert!(store.flush().await.is_err());
    assert!(store.record_mode_change(Vec::new(), change("s", 1, "plan")).await.is_err());
    other
        .execute_batch("ALTER TABLE away RENAME TO mode_changes; ALTER TABLE gone RENAME TO events;")
        .unwrap();
    store.flush().await.unwrap();
    assert_eq!((count(&path, "events"), count(&path, "mode_changes")), (1, 0));
}

#[tokio::test]
async fn store_of_a_newer_version_is_not_modified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 999).unwrap();
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    store.post(session("s"));
    store.flush().await.unwrap();
    assert!(store.substituted().is_some_and(|reason| reason.contains("newer")), "{:?}", store.substituted());
    let tables: i64 = Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 0);
}

#[tokio::test]
async fn unwritable_row_does_not_block_other_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    for id in ["gone", "stays"] {
        store.post(session(id));
    }
    store.flush().await.unwrap();
    Connection::open(&path).unwrap().execute("DELETE FROM sessions WHERE id = 'gone'", []).unwrap();
    store.post(text("gone", 0, "lost"));
    store.post(text("stays", 0, "kept"));
    assert!(store.record_mode_change(Vec::new(), change("gone", 1, "plan")).await.is_err());
    store.record_mode_change(Vec::new(), change("stays", 1, "plan")).await.unwrap();
    store.flush().await.unwrap();
    assert_eq!((count(&path, "events"), count(&path, "mode_changes")), (1, 1));
}

#[tokio::test]
async fn refused_mode_change_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    store.post(session("stays"));
    store.flush().await.unwrap();
    let counts = || ["mode_texts", "chain", "mode_changes"].map(|table| count(&path, table));
    assert!(store.record_mode_change(Vec::new(), change("gone", 2, "plan")).await.is_err());
    assert_eq!(counts(), [0, 0, 0]);
    store.record_mode_change(Vec::new(), change("stays", 2, "plan")).await.unwrap();
    assert_eq!(counts(), [1, 1, 1]);
}

#[tokio::test]
async fn events_of_one_transaction_update_their_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    let title = |text: &str| SessionEvent::Title { title: text.into() };
    let event =
        |id: &str, seq, event, at| Row::Event { session: SessionId::new(id), seq, turn: 1, event, at };
    store.post_all(vec![
        session("a"),
        session("b"),
        session("without events"),
        event("a", 0, title("first"), 5),
        event("b", 0, title("other"), 6),
        event("a", 1, title("last"), 7),
        text("a", 2, "after the titles"),
        // This one is dropped, because the session has an event of this number.
        event("b", 0, title("dropped"), 9),
    ]);
    store.flush().await.unwrap();
    let connection = Connection::open(&path).unwrap();
    let mut rows =
        connection.prepare("SELECT id, title, updated_at, state FROM sessions ORDER BY id").unwrap();
    let rows: Vec<(String, Option<String>, i64, Option<String>)> = rows
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let expected = [
        ("a", Some("last"), 2, None),
        ("b", Some("other"), 6, None),
        ("without events", None, 1, Some("empty")),
    ];
    let expected = expected.map(|(id, title, at, state): (_, Option<&str>, _, Option<&str>)| {
        (id.to_owned(), title.map(str::to_owned), at, state.map(str::to_owned))
    });
    assert_eq!(rows, expected);
}

#[tokio::test]
async fn mode_change_moves_its_session_in_the_lists() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    store.post_all(vec![session("a"), text("a", 0, "one"), session("b"), text("b", 0, "two")]);
    store.flush().await.unwrap();
    let listed = async || {
        let all = store.sessions(listings()[0].clone()).await.unwrap();
        all.iter().map(|session| (session.id.to_string(), session.updated_at)).collect::<Vec<_>>()
    };
    assert_eq!(listed().await, [("b".into(), 2), ("a".into(), 2)]);
    store.record_mode_change(Vec::new(), change("a", 1, "plan")).await.unwrap();
    assert_eq!(listed().await, [("a".into(), 3), ("b".into(), 2)]);
    store.record_mode_change(Vec::new(), change("b", 1, "plan")).await.unwrap();
    drop(store);
    let stored = || -> i64 {
        let sql = "SELECT updated_at FROM sessions WHERE id = 'b'";
        Connection::open(&path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
    };
    let started = std::time::Instant::now();
    while stored() != 3 {
        assert!(started.elapsed() < std::time::Duration::from_secs(20), "the end of the store writes it");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn delayed_times_are_written_by_the_next_transaction() {
    let connection = migrations::open_memory().unwrap();
    let owner = StoreOwner::alone();
    let commit = |mut rows: Vec<Row>, changes: &[&ModeChange], times: &mut ListTimes| {
        let outcomes = transaction::commit(&connection, &owner, &mut rows, 9, changes, times).unwrap();
        assert!(outcomes.iter().all(Result::is_ok));
    };
    let stored = |id: &str| -> i64 {
        let sql = "SELECT updated_at FROM sessions WHERE id = ?1";
        connection.query_row(sql, [id], |row| row.get(0)).unwrap()
    };
    let mut times = ListTimes::default();
    commit(vec![session("a"), session("b"), session("c")], &[], &mut times);
    times.are_delayed = true;
    commit(vec![text("a", 0, "one")], &[&change("b", 1, "plan")], &mut times);
    assert_eq!((stored("a"), stored("b")), (1, 1));
    times.are_delayed = false;
    commit(vec![text("c", 0, "two")], &[], &mut times);
    assert_eq!((stored("a"), stored("b"), stored("c"), times.is_empty()), (2, 3, 2, true));
    times.are_delayed = true;
    commit(Vec::new(), &[&ModeChange { at: 4, ..change("b", 2, "code") }], &mut times);
    times.are_delayed = false;
    commit(Vec::new(), &[], &mut times);
    assert_eq!((stored("b"), times.is_empty()), (4, true), "also without rows");
}

#[tokio::test]
async fn system_prompts_are_stored_once_and_those_of_earlier_versions_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    let [old, new, copy, plain] = ["old", "new", "copy", "plain"].map(SessionId::new);
    store.post_all(vec![session("old"), session("new"), session("plain")]);
    store.post(Row::SystemPrompt { session: new.clone(), text: "of this version".into() });
    store.flush().await.unwrap();
    let earlier = "UPDATE sessions SET system_prompt = 'of an earlier version' WHERE id = 'old'";
    Connection::open(&path).unwrap().execute(earlier, []).unwrap();
    let prompt = async |id: &SessionId| store.session(id).await.unwrap().unwrap().system;
    assert_eq!(prompt(&old).await.as_deref(), Some("of an earlier version"));
    assert_eq!(prompt(&new).await.as_deref(), Some("of this version"));
    assert_eq!(prompt(&plain).await, None);
    for id in [&old, &new] {
        let forked = store.fork_session(id, &copy, 9).await.unwrap();
        assert_eq!(forked.system, prompt(id).await, "{id}");
        store.delete_session(&copy).await.unwrap();
    }
    assert_eq!(store.fork_session(&plain, &copy, 9).await.unwrap().system, None);
    store.post(Row::SystemPrompt { session: old.clone(), text: "later".into() });
    assert_eq!(prompt(&old).await.as_deref(), Some("later"));
    assert_eq!(count(&path, "system_prompts"), 2, "those of deleted copies are gone");
}

#[tokio::test]
async fn rejected_mode_change_leaves_the_rows_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    store.flush_with(vec![session("s")]).await.unwrap();
    for (seq, id, is_recorded) in [(0, "missing", false), (1, "s", true)] {
        let rows = vec![text("s", seq, "hello")];
        let recorded = store.record_mode_change(rows, change(id, seq + 1, "plan")).await;
        assert_eq!(recorded.is_ok(), is_recorded, "{recorded:?}");
        store.flush().await.unwrap();
        assert_eq!(count(&path, "events"), i64::try_from(seq).unwrap() + 1);
    }
    assert_eq!(count(&path, "mode_changes"), 1);
}

#[tokio::test]
async fn callers_get_an_error_after_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreLocation::File(dir.path().join("store.db")), Sync::Normal).unwrap();
    store.flush_with(vec![session("s")]).await.unwrap();
    let work = |_: &mut Connection, _: &StoreOwner| -> rusqlite::Result<()> { panic!("on purpose") };
    assert_eq!(store.work(work).await, Err(StoreError::closed()));
    assert_eq!(store.record_mode_change(Vec::new(), change("s", 1, "plan")).await, Err(StoreError::closed()));
    assert_eq!(store.flush().await, Err(StoreError::closed()));
}

#[tokio::test]
async fn every_earlier_schema_migrates_without_loss() {
    for version in 1..migrations::MIGRATIONS.len() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let old = Connection::open(&path).unwrap();
        for migration in &migrations::MIGRATIONS[..version] {
            old.execute_batch(migration).unwrap();
        }
        old.pragma_update(None, "user_version", i64::try_from(version).unwrap()).unwrap();
        let rows = "INSERT INTO sessions (id, cwd, mode, created_at, updated_at) VALUES ('s', '/w', 'plan', 1, 2);
            INSERT INTO sessions (id, cwd, mode, created_at, updated_at) VALUES ('null', '/w', NULL, 1, 1);
            INSERT INTO events VALUES ('s', 0, 1, 'agent_text', '{\"message_id\":\"m\",\"text\":\"kept\"}', 2);
            INSERT INTO events VALUES ('null', 0, 1, 'dance', '{}', 2);
            INSERT INTO mode_changes (session_id, turn, to_mode, source, at) VALUES ('s', 0, 'plan', 'start', 1);
            INSERT INTO denials (session_id, turn, tool_call_id, tool, mode, rule, at)
                VALUES ('s', 1, 'c', 'write_file', 'plan', 'access', 2);";
        old.execute_batch(rows).unwrap();
        drop(old);
        for _ in 0..2 {
            let store = Store::open(StoreLocation::File(path.clone()), Sync::Full).unwrap();
            let all =
                store.sessions(sessions::SessionQuery { limit: 9, ..Default::default() }).await.unwrap();
            let brief: Vec<_> = all.iter().map(|it| (&*it.id.0, it.mode.as_deref())).collect();
            assert_eq!(brief, [("s", Some("plan")), ("null", None)], "from {version}");
            for listed in &all {
                let stored = store.session(&listed.id).await.unwrap().unwrap();
                assert_eq!((stored.events, stored.head.length), (1, 0), "from {version}");
            }
            let events = store.events(&SessionId::new("s"), 0, 9).await.unwrap();
            let expected =
                SessionEvent::AgentText { message_id: MessageId::new("m"), text: "kept".into(), shown: None };
            assert_eq!(events.into_iter().map(|events| events.event).collect::<Vec<_>>(), [expected]);
            let unknown = store.events(&SessionId::new("null"), 0, 9).await.unwrap();
            assert!(
                matches!(&unknown[0].event, SessionEvent::Notice { text, .. } if text.contains("cannot be read"))
            );
            let evidence = store.evidence(&SessionId::new("s")).await.unwrap().unwrap();
            assert_eq!((evidence.mode_changes.len(), evidence.denials.len()), (1, 1));
            remember(&store, "kept").await.unwrap();
        }
        let version: i64 =
            Connection::open(&path).unwrap().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
        assert_eq!(usize::try_from(version).unwrap(), migrations::MIGRATIONS.len());
        assert_eq!(count(&path, "memories"), 2);
    }
}

/// The statements that made a database, without their spaces.
fn schema(connection: &Connection) -> BTreeMap<String, String> {
    let sql = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL";
    let mut query = connection.prepare(sql).unwrap();
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?))).unwrap();
    rows.map(|row| row.map(|(name, sql)| (name, sql.split_whitespace().collect())).unwrap()).collect()
}

#[test]
fn new_store_has_the_schema_that_migrations_leave() {
    let new = migrations::open_memory().unwrap();
    let migrated = Connection::open_in_memory().unwrap();
    for migration in migrations::MIGRATIONS {
        migrated.execute_batch(migration).unwrap();
    }
    assert_eq!(schema(&new), schema(&migrated));
    let version: i64 = new.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(usize::try_from(version).unwrap(), migrations::MIGRATIONS.len());
}

#[tokio::test]
async fn read_only_store_is_unchanged_and_rejects_old_schemas() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (
        dir.path().join("store.db"),
        dir.path().join(if cfg!(windows) { "a copy#%.db" } else { "a copy?#%.db" }),
    );
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    store.post(session("s"));
    store.post(text("s", 0, "hello"));
    store.flush().await.unwrap();
    Connection::open(&path).unwrap().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let before = fs::read(&copy).unwrap();
    let listing = || sessions::SessionQuery { limit: 9, ..Default::default() };
    let reading = Store::open(StoreLocation::Reading(copy.clone()), Sync::Normal).unwrap();
    let found = reading.sessions(listing()).await.unwrap();
    assert_eq!((found.len(), reading.substituted()), (1, None));
    assert_eq!(reading.session(&found[0].id).await.unwrap().unwrap().events, 1);
    reading.post(text("s", 1, "more"));
    assert!(reading.flush().await.is_err(), "nothing is written");
    drop(reading);
    let beside = |ending: &str| dir.path().join(format!("a copy?#%.db{ending}"));
    assert!(!beside("-owners").exists() && !beside("-wal").exists());
    assert_eq!(fs::read(&copy).unwrap(), before);
    Connection::open(&copy).unwrap().pragma_update(None, "user_version", 1).unwrap();
    let old = Store::open(StoreLocation::Reading(copy), Sync::Normal).unwrap();
    old.sessions(listing()).await.unwrap();
    assert!(old.substituted().unwrap().contains("it has schema 1"));
}

#[test]
fn inspection_accepts_old_schemas_and_leaves_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let version = i64::try_from(migrations::MIGRATIONS.len()).unwrap();
    for (version, is_usable) in [(1, true), (version, true), (version + 1, false)] {
        Connection::open(&path).unwrap().pragma_update(None, "user_version", version).unwrap();
        let before = fs::read(&path).unwrap();
        assert_eq!(Store::inspect(&path).is_ok(), is_usable, "{version}");
        assert_eq!(fs::read(&path).unwrap(), before);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[tokio::test]
async fn sync_setting_sets_the_synchronous_pragma() {
    let dir = tempfile::tempdir().unwrap();
    for (sync, expected) in [(Sync::Normal, 1), (Sync::Full, 2)] {
        let store = Store::open(StoreLocation::File(dir.path().join("store.db")), sync).unwrap();
        let pragma = |connection: &mut Connection, _: &StoreOwner| -> rusqlite::Result<i64> {
            connection.query_row("PRAGMA synchronous", [], |row| row.get(0))
        };
        assert_eq!(store.work(pragma).await, Ok(expected));
    }
}

#[tokio::test]
async fn deleted_sessions_leave_no_text_in_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    store.post(session("s"));
    for seq in 0..50 {
        store.post(text("s", seq, &"a word nobody else says ".repeat(40)));
    }
    store.flush().await.unwrap();
    let is_there = || {
        ["store.db", "store.db-wal"].iter().any(|name| {
            let bytes = fs::read(dir.path().join(name)).unwrap_or_default();
            bytes.windows(15).any(|window| window == b"word nobody els")
        })
    };
    assert!(is_there(), "the control");
    store.delete_session(&SessionId::new("s")).await.unwrap();
    assert!(!is_there());
}

async fn remember(store: &Store, text: &str) -> Result<Memory, MemoryError> {
    let memories = StoredMemories::new(store.clone(), Source::counted());
    memories.add(Path::new("/w"), text.into(), None, CancellationToken::new()).await.map(|(memory, _)| memory)
}

#[tokio::test]
async fn deleted_memories_leave_no_text_in_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(StoreLocation::File(dir.path().join("store.db")), Sync::Normal).unwrap();
    let is_there = || {
        ["store.db", "store.db-wal"].iter().any(|name| {
            let bytes = fs::read(dir.path().join(name)).unwrap_or_default();
            bytes.windows(15).any(|window| window == b"word nobody els")
        })
    };
    let text = "a word nobody else says ".repeat(40);
    let memories = StoredMemories::new(store.clone(), Source::counted());
    let change = MemoryChange { text: Some("x".repeat(text.len())), category: None };
    for way in ["update", "delete", "command line"] {
        let id = remember(&store, &text).await.unwrap().id;
        assert!(is_there(), "the control");
        match way {
            "update" => drop(
                memories
                    .update(Path::new("/w"), &id, change.clone(), CancellationToken::new())
                    .await
                    .unwrap(),
            ),
            "delete" => drop(memories.delete(Path::new("/w"), &id, CancellationToken::new()).await.unwrap()),
            _ => assert!(store.delete_memory(&id).await.unwrap()),
        }
        assert!(!is_there(), "{way}");
    }
}

#[tokio::test]
async fn cancelled_memory_changes_are_not_applied() {
    let store = Store::open(StoreLocation::Memory, Sync::Normal).unwrap();
    let memories = StoredMemories::new(store.clone(), Source::counted());
    let id = remember(&store, "the control").await.unwrap().id;
    let cancel = CancellationToken::new();
    cancel.cancel();
    let (folder, change) = (Path::new("/w"), MemoryChange { text: Some("x".into()), category: None });
    let added = memories.add(folder, "one".into(), None, cancel.clone()).await.map(|(memory, _)| memory);
    let updated = memories.update(folder, &id, change, cancel.clone()).await;
    let deleted = memories.delete(folder, &id, cancel).await;
    for outcome in [added, updated, deleted] {
        assert_eq!(outcome.unwrap_err(), MemoryError::Cancelled);
    }
    let texts: Vec<_> = memories.list(folder).await.unwrap().into_iter().map(|memory| memory.text).collect();
    assert_eq!(texts, ["the control"]);
}

#[cfg(unix)]
#[tokio::test]
async fn memory_write_to_a_moved_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    remember(&store, "the control").await.unwrap();
    fs::rename(&path, dir.path().join("away.db")).unwrap();
    let error = remember(&store, "lost").await.unwrap_err();
    assert!(error.to_string().contains("the file was deleted or replaced"), "{error}");
    fs::rename(dir.path().join("away.db"), &path).unwrap();
    remember(&store, "kept").await.unwrap();
    assert_eq!(count(&path, "memories"), 2);
}

fn listings() -> [sessions::SessionQuery; 5] {
    let (cwd, agent) = (Some(PathBuf::from("/w")), Some("general".to_owned()));
    let [all, of_cwd, of_agent, of_both] =
        [(None, None), (cwd.clone(), None), (None, agent.clone()), (cwd, agent)]
            .map(|(cwd, agent)| sessions::SessionQuery { cwd, agent, limit: 2, ..Default::default() });
    let without_runs = sessions::SessionQuery { runs: sessions::ListedRuns::LeftOut, ..all.clone() };
    [all, of_cwd, of_agent, of_both, without_runs]
}

/// A page of a list must cost the same however many sessions there are.
#[tokio::test]
async fn pages_of_sessions_come_from_an_index_in_their_order() {
    let store = Store::open(StoreLocation::Memory, Sync::Normal).unwrap();
    for listing in listings() {
        let sql = sessions::list_sql(sessions::LISTED_COLUMNS, &listing);
        let plan = move |connection: &mut Connection, _: &StoreOwner| {
            let values = rusqlite::params![1, "", 2, "/w", "general", None::<String>];
            sql::rows(connection, &format!("EXPLAIN QUERY PLAN {sql}"), values, |row| row.get::<_, String>(3))
        };
        let plan = store.query(plan).await.unwrap().join("\n");
        assert!(plan.contains("SEARCH sessions USING INDEX sessions_listed"), "{plan}");
        assert!(!plan.contains("TEMP B-TREE") && !plan.contains("SCAN"), "{plan}");
        // Of a session's other rows, only the newest mode change is read, and its first events to leave out programs.
        assert_eq!(plan.contains("events"), listing.runs == sessions::ListedRuns::LeftOut, "{plan}");
        assert!(!plan.contains("chain"), "{plan}");
    }
}

/// Programs of `modegate run` are found by their first events, which need not be read of a session with another title.
#[tokio::test]
async fn page_of_long_sessions_costs_as_much_as_one_of_short_sessions() {
    let mut steps = Vec::new();
    for events in [40, 300] {
        let store = Store::open(StoreLocation::Memory, Sync::Normal).unwrap();
        for id in ["a", "b"] {
            store.post(session(id));
            let title = SessionEvent::Title { title: "Not Run: but a prompt".into() };
            let (session, turn, at) = (SessionId::new(id), 1, 2);
            store.post(Row::Event { session, seq: 0, turn, event: title, at });
            store.post_all((1..events).map(|seq| text(id, seq, "some words")).collect());
        }
        let listing = sessions::SessionQuery { runs: sessions::ListedRuns::LeftOut, ..listings()[0].clone() };
        let count = move |connection: &mut Connection, _: &StoreOwner| {
            let sql = sessions::list_sql(sessions::LISTED_COLUMNS, &listing);
            let mut statement = connection.prepare(&sql)?;
            let values = rusqlite::params![i64::MAX, "", 9, None::<String>, None::<String>, None::<String>];
            let listed = statement.query_map(values, |_| Ok(()))?.count();
            Ok((listed, statement.get_status(rusqlite::StatementStatus::VmStep)))
        };
        let (listed, counted) = store.query(count).await.unwrap();
        assert_eq!(listed, 2);
        steps.push(counted);
    }
    assert_eq!(steps[0], steps[1]);
}

#[tokio::test]
async fn pages_list_each_session_once_and_empty_ones_never() {
    let store = Store::open(StoreLocation::Memory, Sync::Normal).unwrap();
    for number in 0..7 {
        let id = format!("s{number}");
        store.post(session(&id));
        if number > 0 {
            store.post(text(&id, 0, "hello"));
        }
    }
    for mut listing in listings() {
        assert_eq!(store.count_sessions(listing.clone()).await, Ok(6));
        let mut listed = Vec::new();
        loop {
            let page = store.sessions(listing.clone()).await.unwrap();
            let Some(last) = page.last() else { break };
            listing.after = Some((last.updated_at, last.id.clone()));
            listed.extend(page.iter().map(|session| session.id.to_string()));
        }
        assert_eq!(listed, ["s6", "s5", "s4", "s3", "s2", "s1"]);
    }
}

fn store_with_long_session(path: &Path, events: u64) -> Store {
    let store = Store::open(StoreLocation::File(path.to_owned()), Sync::Normal).unwrap();
    store.post(session("long"));
    for seq in 0..events {
        store.post(text("long", seq, &"some words ".repeat(200)));
    }
    store
}

#[tokio::test]
async fn deletion_runs_in_steps_and_gives_the_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = store_with_long_session(&path, 2_000);
    store.post(session("other"));
    store.post(text("other", 0, "kept"));
    store.flush().await.unwrap();
    removal::overwrite_log(&store).await.unwrap();
    let before = fs::metadata(&path).unwrap().len();
    let commands = store.activity.load(Ordering::Relaxed);
    store.delete_session(&SessionId::new("long")).await.unwrap();
    let steps = store.activity.load(Ordering::Relaxed) - commands;
    assert!(steps > 6, "{steps} commands");
    let after = fs::metadata(&path).unwrap().len();
    assert!(after < before / 4, "{before} bytes before, {after} after");
    assert_eq!((count(&path, "sessions"), count(&path, "events")), (1, 1), "the control");
}

#[tokio::test]
async fn marked_sessions_are_gone_at_once_and_the_next_deletion_removes_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = store_with_long_session(&path, 10);
    let child = |id: &str, parent: &str| match session(id) {
        Row::Session { cwd, directories, agent, mode, at, id, .. } => {
            Row::Session { id, cwd, directories, agent, mode, at, parent: Some(SessionId::new(parent)) }
        }
        row => row,
    };
    store.post(child("below", "long"));
    store.post(child("deeper", "below"));
    store.post(text("deeper", 0, "words of a sub-agent"));
    store.post(session("other"));
    store.post(Row::Release { session: SessionId::new("long") });
    store.flush().await.unwrap();
    // As if the process had ended after the mark.
    let ids = vec![SessionId::new("long"), SessionId::new("below"), SessionId::new("unknown")];
    let marked = store.work(|connection, owner| removal::mark_all(connection, owner, ids)).await.unwrap();
    assert_eq!(marked, [SessionId::new("long")], "those of sub-agents went with it");
    assert_eq!(count(&path, "sessions"), 4);
    for id in ["long", "below", "deeper"] {
        assert_eq!(store.session(&SessionId::new(id)).await, Ok(None), "{id}");
        assert_eq!(store.open_session(&SessionId::new(id)).await, Err(OpenSessionError::Unknown));
    }
    assert_eq!(store.sessions_like("deeper").await, Ok(vec![]));
    assert!(store.session(&SessionId::new("other")).await.unwrap().is_some(), "the control");
    store.delete_session(&SessionId::new("unknown")).await.unwrap();
    assert_eq!((count(&path, "sessions"), count(&path, "events")), (1, 0));
}

#[tokio::test]
async fn fork_copies_all_events_and_abandoned_copies_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = store_with_long_session(&path, 500);
    let (long, copy) = (SessionId::new("long"), SessionId::new("copy"));
    let forked = store.fork_session(&long, &copy, 9).await.unwrap();
    assert_eq!((forked.events, forked.forked_from.as_deref()), (500, Some("long")));
    let (events, copied) =
        (store.events(&long, 0, 500).await.unwrap(), store.events(&copy, 0, 500).await.unwrap());
    assert_eq!(events, copied);
    assert_eq!(store.sessions(listings()[0].clone()).await.unwrap()[0].id, copy);
    let sql = "UPDATE sessions SET state = 'copying', owner = 'gone' WHERE id = 'copy'";
    Connection::open(&path).unwrap().execute(sql, []).unwrap();
    assert_eq!(store.session(&copy).await, Ok(None), "an incomplete copy is hidden");
    store.delete_session(&SessionId::new("unknown")).await.unwrap();
    assert_eq!((count(&path, "sessions"), count(&path, "events")), (1, 500), "any deletion removes it");
    assert_eq!(store.fork_session(&SessionId::new("no"), &copy, 9).await, Err(OpenSessionError::Unknown));
}

#[tokio::test]
async fn contents_stay_as_long_as_a_session_needs_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    for (id, hashes) in [("one", ["shared", "own"].as_slice()), ("two", &["shared"])] {
        store.post(session(id));
        store.post(changes(id, hashes, Changes { contents: contents(hashes), ..Changes::default() }));
    }
    store.flush().await.unwrap();
    assert_eq!(stored_contents(&path), ["own", "shared"]);
    store.delete_session(&SessionId::new("one")).await.unwrap();
    assert_eq!(stored_contents(&path), ["shared"]);
    store.delete_session(&SessionId::new("two")).await.unwrap();
    assert_eq!(stored_contents(&path), [] as [&str; 0]);
}

fn contents(hashes: &[&str]) -> Vec<(String, Vec<u8>)> {
    hashes.iter().map(|hash| ((*hash).to_owned(), b"x".to_vec())).collect()
}

/// Removals of files with these contents.
fn changes(session: &str, hashes: &[&str], rest: Changes) -> Row {
    let removed = |hash: &&str| Changed {
        path: "/w/a".into(),
        before: FileState::File { hash: (*hash).to_owned(), mode: 0o644 },
        after: FileState::Absent,
        compared: false,
    };
    let changes = Changes { changed: hashes.iter().map(removed).collect(), ..rest };
    Row::Changes { session: SessionId::new(session), turn: 1, changes }
}

fn stored_contents(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    sql::rows(&connection, "SELECT hash FROM contents ORDER BY hash", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn contents_of_intents_go_when_nothing_needs_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    let intent = |token: &str, hashes: &[&str]| {
        let intent = Intent { token: token.into(), contents: contents(hashes), ..Intent::default() };
        Row::Intent { session: SessionId::new("s"), turn: 1, intent: intent.into() }
    };
    let conclude = |token: &str, before: &[&str]| {
        changes("s", before, Changes { concludes: Some(token.into()), ..Changes::default() })
    };
    store.post(session("s"));
    store.post(intent("open", &["open", "shared"]));
    let cases: [(&str, [&[&str]; 3]); 4] = [
        ("failed", [&["a", "b"], &[], &["open", "shared"]]),
        ("in place", [&["old", "new"], &["old"], &["old", "open", "shared"]]),
        ("failed, but a change needs it", [&["old"], &[], &["old", "open", "shared"]]),
        ("failed, but an intent needs it", [&["shared"], &[], &["old", "open", "shared"]]),
    ];
    for (token, [announced, before, expected]) in cases {
        store.post(intent(token, announced));
        store.flush().await.unwrap();
        assert!(announced.iter().all(|hash| stored_contents(&path).contains(&(*hash).into())), "the control");
        store.post(conclude(token, before));
        store.flush().await.unwrap();
        assert_eq!(stored_contents(&path), expected, "{token}");
    }
    store.delete_session(&SessionId::new("s")).await.unwrap();
    assert_eq!((stored_contents(&path), count(&path, "intents")), (vec![], 0));
}

#[tokio::test]
async fn contents_that_earlier_versions_left_behind_go_with_any_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    store.post(session("s"));
    store.post(changes("s", &["h50"], Changes { contents: contents(&["h50"]), ..Changes::default() }));
    store.flush().await.unwrap();
    let other = Connection::open(&path).unwrap();
    for number in 10..99 {
        let sql = "INSERT OR IGNORE INTO contents (hash, content) VALUES ('h' || ?1, x'00')";
        other.execute(sql, [number]).unwrap();
    }
    assert_eq!(stored_contents(&path).len(), 89, "the control");
    store.delete_session(&SessionId::new("unknown")).await.unwrap();
    assert_eq!(stored_contents(&path), ["h50"]);
}

#[tokio::test]
async fn full_disk_is_reported_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let store = store_with_long_session(&dir.path().join("store.db"), 10);
    let limit = |connection: &mut Connection, _: &StoreOwner| {
        connection.query_row("PRAGMA max_page_count = 1", [], |_| Ok(()))
    };
    store.work(limit).await.unwrap();
    store.post(text("long", 10, &"more words ".repeat(9_000)));
    let expected = Err(StoreError("the disk is full".into()));
    assert_eq!((store.flush().await, store.flush().await), (expected.clone(), expected));
    // The query would not see the row.
    assert!(store.events(&SessionId::new("long"), 0, 99).await.is_err());
}

#[tokio::test]
async fn kept_rows_are_written_in_parts_and_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = store_with_long_session(&path, 1);
    store.flush().await.unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("ALTER TABLE events RENAME TO gone").unwrap();
    for seq in 1..1_000 {
        store.post(text("long", seq, "kept"));
        if seq % 100 == 0 {
            assert!(store.flush().await.is_err());
        }
    }
    other.execute_batch("ALTER TABLE gone RENAME TO events").unwrap();
    store.flush().await.unwrap();
    let events = store.events(&SessionId::new("long"), 0, 9_999).await.unwrap();
    assert!(events.iter().map(|event| event.seq).eq(0..1_000));
}

#[cfg(unix)]
#[test]
fn special_files_beside_the_store_are_errors() {
    use crate::platform::files::make_fifo;
    for ending in files::COMPANIONS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        Store::create_or_open(&path).unwrap();
        let companion = files::companion(&path, ending);
        let _ = fs::remove_file(&companion);
        make_fifo(&companion);
        let errors = [Store::create_or_open(&path), Store::inspect(&path)]
            .map(|result| result.unwrap_err().to_string());
        for error in errors {
            assert!(error.contains(&format!("store.db{ending} is not a file: remove it")), "{error}");
        }
        fs::remove_file(&companion).unwrap();
        fs::create_dir(&companion).unwrap();
        assert!(Store::create_or_open(&path).is_err(), "a folder");
        fs::remove_dir(&companion).unwrap();
        Store::create_or_open(&path).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let owners = files::companion(&path, "-owners");
    fs::write(&owners, "").unwrap();
    assert!(
        Store::open_now(&StoreLocation::File(path.clone())).is_err(),
        "a file instead of the folder of locks"
    );
    fs::remove_file(&owners).unwrap();
    fs::create_dir(&owners).unwrap();
    make_fifo(&owners.join("fifo"));
    fs::create_dir(owners.join("folder")).unwrap();
    Store::open_now(&StoreLocation::File(path)).unwrap();
}

#[tokio::test]
async fn retention_deletes_the_oldest_closed_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    let ids = |count: usize| (0..count).map(|number| format!("s{number}")).collect::<Vec<_>>();
    for (number, id) in ids(6).iter().enumerate() {
        store.post(session(id));
        for seq in 0..20 {
            store.post(text(id, seq, &"words ".repeat(2_000)));
        }
        let (session, id) = (SessionId::new(id.as_str()), id.clone());
        if number > 0 {
            store.post(Row::Release { session });
        }
        store.flush().await.unwrap();
        let sql = format!("UPDATE sessions SET updated_at = {number} WHERE id = '{id}'");
        Connection::open(&path).unwrap().execute(&sql, []).unwrap();
    }
    let left = || {
        let connection = Connection::open(&path).unwrap();
        sql::rows(&connection, "SELECT id FROM sessions ORDER BY id", [], |row| row.get::<_, String>(0))
            .unwrap()
    };
    let off = retention::Retention::default();
    assert_eq!(retention::apply(&store, off, 100).await, Ok(0));
    assert_eq!(left(), ids(6), "the control");
    let by_age = retention::Retention { max_age_ms: Some(10), ..off };
    assert_eq!(retention::apply(&store, by_age, 12).await, Ok(1));
    assert_eq!(left(), ["s0", "s2", "s3", "s4", "s5"], "s0 is open");
    let bytes = store.query(|connection, _| retention::used_bytes(connection)).await.unwrap();
    let by_size = retention::Retention { max_bytes: Some(bytes / 2), ..off };
    retention::apply(&store, by_size, 12).await.unwrap();
    assert_eq!(left(), ["s0", "s5"], "of {bytes} bytes");
    let nothing = retention::Retention { max_bytes: Some(0), ..off };
    assert_eq!(retention::apply(&store, nothing, 12).await, Ok(1));
    assert_eq!(left(), ["s0"]);
}

#[tokio::test]
async fn session_that_was_opened_after_the_listing_is_not_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
    for id in ["opened", "closed"] {
        store.post(session(id));
        store.post(text(id, 0, "words"));
        store.post(Row::Release { session: SessionId::new(id) });
    }
    let listed = store.sessions_before(i64::MAX, None, 9).await.unwrap();
    assert!(listed.len() == 2 && listed.iter().all(|session| !session.is_open), "{listed:?}");
    let mut ids: Vec<SessionId> = listed.into_iter().map(|session| session.id).collect();
    ids.push(SessionId::new("deleted by another process"));
    let opened = SessionId::new("opened");
    store.open_session(&opened).await.unwrap();
    let deleted = store.delete_sessions(ids.clone()).await;
    assert_eq!(deleted, Ok(HashSet::from([SessionId::new("closed")])));
    store.post(text("opened", 1, "more words"));
    store.flush().await.unwrap();
    assert_eq!((count(&path, "sessions"), count(&path, "events")), (1, 2));
    store.post(Row::Release { session: opened.clone() });
    assert_eq!(store.delete_sessions(ids).await, Ok(HashSet::from([opened])), "the control");
}

#[tokio::test]
async fn space_of_an_earlier_file_is_given_back_by_rewriting_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let old = Connection::open(&path).unwrap();
    for migration in migrations::MIGRATIONS {
        old.execute_batch(migration).unwrap();
    }
    let version = i64::try_from(migrations::MIGRATIONS.len()).unwrap();
    old.pragma_update(None, "user_version", version).unwrap();
    drop(old);
    let store = store_with_long_session(&path, 1_000);
    store.flush().await.unwrap();
    store.delete_session(&SessionId::new("long")).await.unwrap();
    let before = fs::metadata(&path).unwrap().len();
    let other = StoreOwner::beside(&path).unwrap();
    retention::compact(&store).await.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), before, "another process has it open");
    drop(other);
    retention::compact(&store).await.unwrap();
    let after = fs::metadata(&path).unwrap().len();
    assert!(after < before / 4, "{before} bytes before, {after} after");
}

#[test]
fn salvage_refuses_sound_stores_unless_forced_and_newer_ones_always() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    let new_store = || {
        let connection = migrations::open_file(&path, Sync::Full).unwrap();
        let sql = "INSERT OR IGNORE INTO sessions (id, cwd, created_at, updated_at) VALUES ('s', '/w', 1, 2)";
        connection.execute(sql, []).unwrap();
        connection
    };
    let names =
        || fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect::<HashSet<_>>();
    drop(new_store());
    let before = fs::read(&path).unwrap();
    assert!(salvage::salvage(&path, false).unwrap().is_none());
    assert_eq!((fs::read(&path).unwrap(), names().len()), (before.clone(), 2), "{:?}", names());
    let salvaged = salvage::salvage(&path, true).unwrap().unwrap();
    assert_eq!((salvaged.sessions, fs::read(&salvaged.kept).unwrap()), (1, before));
    fs::remove_file(salvaged.kept).unwrap();

    let connection = new_store();
    let version = i64::try_from(migrations::MIGRATIONS.len()).unwrap();
    connection.pragma_update(None, "user_version", version + 1).unwrap();
    drop(connection);
    let before = fs::read(&path).unwrap();
    for is_forced in [false, true] {
        let error = salvage::salvage(&path, is_forced).unwrap_err().to_string();
        assert!(error.contains("a newer Modegate wrote it"), "{error}");
        assert_eq!((fs::read(&path).unwrap(), names().len()), (before.clone(), 2), "{:?}", names());
    }
}
