//! Brokered external agents: one process follows all modes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::external::sessions::{self, ExternalAgentClient, agent_text, agents, home};
use crate::support::waiting::{until, until_exists};

const BROKERED: &str = ", sandbox: {state_dirs: ['~/.peer'], broker: true}";

/// Asks the agent for its process id.
async fn process(client: &mut ExternalAgentClient) -> String {
    let text = agent_text(&client.prompt("pid", None).await);
    text[text.find("process").unwrap()..].to_owned()
}

async fn client(mode: &'static str) -> ExternalAgentClient {
    ExternalAgentClient::of(mode, agents("plain", BROKERED)).await.unwrap()
}

#[tokio::test]
async fn agent_keeps_running_through_all_modes() {
    let mut client = client("code").await;
    let before = process(&mut client).await;
    let modes = [("a", "code", true), ("b", "plan", false), ("c", "code", true), ("d", "plan", false)];
    for (name, mode, is_written) in modes {
        client.mode(mode).await;
        let path = client.path(name);
        let messages = client.prompt(&format!("write {}", path.display()), None).await;
        let text = agent_text(&messages);
        assert_eq!(path.exists(), is_written, "{mode}: {text}");
        assert!(text.ends_with(if is_written { "written" } else { "Permission denied" }), "{mode}: {text}");
        assert!(messages.iter().all(|message| message["method"] != "session/request_permission"));
        assert!(!text.contains("restarted"), "{text}");
    }
    assert_eq!(process(&mut client).await, before);
    client.end().await;
}

async fn set_plan(client: &mut ExternalAgentClient) -> (Value, Vec<Value>) {
    let set = json!({ "sessionId": client.session, "modeId": "plan" });
    let set = client.client.request("session/set_mode", set).await;
    let messages = client.until(set, None).await;
    let effect = messages.last().unwrap()["result"]["_meta"]["modegate/effect"].clone();
    (effect, messages)
}

/// Asserts that a file with content does not grow any more.
async fn assert_unchanged(path: &Path) {
    let length = || path.metadata().unwrap().len();
    let before = length();
    assert!(before > 0, "the control");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(length(), before, "{}", path.display());
}

#[tokio::test]
async fn tightening_during_a_turn_leaves_the_agent_running() {
    let mut client = client("code").await;
    let before = process(&mut client).await;
    let path = client.path("ticks");
    let running = client.client.prompt(&client.session.clone(), &format!("tick {}", path.display())).await;
    while agent_text(&[client.client.next().await]) != "begun" {}
    until_exists(&path).await;
    let (effect, mut messages) = set_plan(&mut client).await;
    assert_eq!(effect["unconfirmed"], json!([]), "{effect}");
    assert_unchanged(&path).await;
    messages.extend(client.until(running, None).await);
    assert!(agent_text(&messages).contains("Permission denied"), "{messages:?}");
    assert_eq!(process(&mut client).await, before);
    client.end().await;
}

/// A command of the agent that keeps writing is killed. The agent is not.
#[tokio::test]
async fn tightening_kills_a_command_with_an_open_file() {
    let mut client = client("code").await;
    let before = process(&mut client).await;
    let path = client.path("held");
    let text = agent_text(&client.prompt(&format!("starts {}", path.display()), None).await);
    assert!(text.ends_with("started"), "{text}");
    let (effect, _) = set_plan(&mut client).await;
    assert_eq!(effect["unconfirmed"], json!([]), "{effect}");
    assert_unchanged(&path).await;
    let text = agent_text(&client.prompt("pid", None).await);
    assert!(text.contains("files open for writing: sh. The files: ") && text.contains("/held. "), "{text}");
    assert!(text.ends_with(&before), "{text}");
    client.end().await;
}

/// A process that reads a file is not taken for the one that writes it.
#[tokio::test]
async fn tightening_spares_an_agent_that_reads_a_written_file() {
    let mut client = client("code").await;
    let before = process(&mut client).await;
    for number in 0..4 {
        let path = client.path(&format!("held{number}"));
        let text = agent_text(&client.prompt(&format!("starts-and-reads {}", path.display()), None).await);
        assert!(text.ends_with("started"), "{text}");
        client.mode("plan").await;
        assert_unchanged(&path).await;
        client.mode("code").await;
    }
    assert_eq!(process(&mut client).await, before);
    client.end().await;
}

/// The answer comes when the agent's own mode refuses no more.
#[tokio::test]
async fn looser_mode_is_answered_after_the_agents_own_mode_is_set() {
    let mut client = ExternalAgentClient::of("plan", agents("keeps", BROKERED)).await.unwrap();
    process(&mut client).await;
    let own_mode = client.home.path().join(".peer/mode");
    let read = || std::fs::read_to_string(&own_mode).unwrap_or_default();
    assert_eq!(read(), "plan", "the control");
    client.mode("code").await;
    assert_eq!(read(), "auto");
    client.end().await;
}

/// An agent that itself keeps writing is killed. The next prompt starts it again.
#[tokio::test]
async fn tightening_kills_an_agent_with_an_open_file() {
    let mut client = client("code").await;
    let before = process(&mut client).await;
    let path = client.path("held");
    let running = client.client.prompt(&client.session.clone(), &format!("holds {}", path.display())).await;
    while agent_text(&[client.client.next().await]) != "begun" {}
    until("content", || path.metadata().is_ok_and(|file| file.len() > 0)).await;
    let (effect, messages) = set_plan(&mut client).await;
    assert_eq!(effect["unconfirmed"], json!([]), "{effect}");
    assert_unchanged(&path).await;
    if messages.iter().all(|message| message["id"] != running) {
        client.until(running, None).await;
    }
    assert_ne!(process(&mut client).await, before);
    client.end().await;
}

/// Caches that exist are writable in modes that allow all changes. Undo does not restore them.
#[tokio::test]
async fn caches_are_written_where_all_changes_are_allowed() {
    let home = home();
    let cache = home.path().join(".npm");
    std::fs::create_dir(&cache).unwrap();
    let agents = agents("plain", BROKERED);
    let mut client =
        ExternalAgentClient::open(sessions::client("plan", agents, home.path()), home, json!({}))
            .await
            .unwrap();
    for (name, mode, is_written) in [("a", "plan", false), ("b", "code", true), ("c", "plan", false)] {
        client.mode(mode).await;
        let path = cache.join(name);
        let text = agent_text(&client.prompt(&format!("write {}", path.display()), None).await);
        assert_eq!(path.exists(), is_written, "{mode}: {text}");
    }
    client.mode("code").await;
    let text = agent_text(&client.prompt("/undo", None).await);
    assert!(text.contains("there is nothing to undo") && cache.join("b").exists(), "{text}");
    client.mode("ask").await;
    let path = cache.join("d");
    let asked = client.prompt(&format!("write {}", path.display()), Some("allow_once")).await;
    let titles = asked.iter().filter(|message| message["method"] == "session/request_permission");
    assert_eq!(titles.count(), 1, "{asked:?}");
    assert!(path.exists(), "{asked:?}");
    client.end().await;
}

async fn client_with_cache(mode: &'static str) -> (ExternalAgentClient, PathBuf) {
    let home = home();
    let cache = home.path().canonicalize().unwrap().join(".npm");
    std::fs::create_dir(&cache).unwrap();
    let client = sessions::client(mode, agents("plain", BROKERED), home.path());
    (ExternalAgentClient::open(client, home, json!({})).await.unwrap(), cache)
}

/// A new file of a cache that is still open loses its name instead, so its writer goes on. A file that was there before
/// stays, and its writer is killed.
#[tokio::test]
async fn tightening_spares_the_writer_of_a_new_cache_file() {
    for is_new in [true, false] {
        let (mut client, cache) = client_with_cache("code").await;
        let path = cache.join("held");
        if !is_new {
            std::fs::write(&path, "old").unwrap();
        }
        let text = agent_text(&client.prompt(&format!("starts {}", path.display()), None).await);
        assert!(text.ends_with("started"), "{text}");
        until("content", || std::fs::read(&path).is_ok_and(|content| content.starts_with(b"x"))).await;
        let (effect, _) = set_plan(&mut client).await;
        assert_eq!(effect["unconfirmed"], json!([]), "{effect}");
        let text = agent_text(&client.prompt("pid", None).await);
        // A child of the shell may have inherited the open file.
        assert_eq!(text.contains("files open for writing: sh"), !is_new, "{text}");
        if is_new {
            assert!(std::fs::read_dir(&cache).unwrap().next().is_none(), "no other name");
        } else {
            assert_unchanged(&path).await;
        }
        client.end().await;
    }
}

/// All changes of a cache are one question, however many files a package manager makes there. Other files keep theirs.
#[tokio::test]
async fn changes_of_a_cache_are_one_question() {
    for (option, is_written) in [("allow_once", true), ("reject_once", false)] {
        let (mut client, cache) = client_with_cache("ask").await;
        let shown = cache.display().to_string();
        let line = "mkdir C/_logs; echo > C/_logs/a; mkdir -p C/tmp/b; echo x > C/tmp/b/x.tmp; mv C/tmp/b/x.tmp C/y; \
                    (echo > C/1 & echo > C/2 & wait); rm C/y; echo > out";
        let asked = client.prompt(&format!("run {}", line.replace('C', &shown)), Some(option)).await;
        let requests = asked.iter().filter(|message| message["method"] == "session/request_permission");
        let titles: Vec<_> =
            requests.map(|request| request["params"]["toolCall"]["title"].as_str().unwrap()).collect();
        assert_eq!(titles, [&*format!("Change files in the cache {shown} (peer)"), "Create out (peer)"]);
        assert_eq!((cache.join("1").exists(), client.path("out").exists()), (is_written, is_written));
        // The answer was for one turn.
        let asked = client.prompt(&format!("write {}", cache.join("3").display()), Some(option)).await;
        let requests = asked.iter().filter(|message| message["method"] == "session/request_permission");
        assert_eq!(requests.count(), 1);
        client.end().await;
    }
}

/// Missing caches are made for an agent that may write them, also in a home below `/tmp`.
#[tokio::test]
async fn missing_caches_are_made_for_an_agent_that_may_write_them() {
    for (mode, is_written) in [("plan", false), ("code", true)] {
        let home = home();
        let (used, unused) = (home.path().join(".npm/used"), home.path().join(".cache"));
        let client = sessions::client(mode, agents("plain", BROKERED), home.path());
        let mut client = ExternalAgentClient::open(client, home, json!({})).await.unwrap();
        let text = agent_text(&client.prompt(&format!("write {}", used.display()), None).await);
        assert_eq!((used.exists(), unused.exists()), (is_written, is_written), "{mode}: {text}");
        client.end().await;
    }
}

/// A cache is made when the mode first allows it, and is one for the questions of `ask`, too.
#[tokio::test]
async fn missing_caches_are_made_when_the_mode_changes() {
    let home = home();
    let cache = home.path().join(".npm");
    let client = sessions::client("plan", agents("plain", BROKERED), home.path());
    let mut client = ExternalAgentClient::open(client, home, json!({})).await.unwrap();
    let write = |name: &str| format!("write {}", cache.join(name).display());
    client.prompt(&write("a"), None).await;
    assert!(!cache.exists());
    client.mode("ask").await;
    let asked = client.prompt(&write("b"), Some("allow_once")).await;
    assert!(cache.join("b").exists(), "{asked:?}");
    assert_eq!(
        asked.iter().filter(|message| message["method"] == "session/request_permission").count(),
        1,
        "{asked:?}"
    );
    client.mode("code").await;
    client.prompt(&write("c"), None).await;
    assert!(cache.join("c").exists());
    client.mode("plan").await;
    client.prompt(&write("d"), None).await;
    assert!(!cache.join("d").exists());
    client.end().await;
}

/// A folder of `write_dirs` changes like the session's, but undo does not cover it.
#[tokio::test]
async fn further_folders_are_changed_where_the_mode_allows_it() {
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().canonicalize().unwrap().join("site");
    std::fs::create_dir(&folder).unwrap();
    let sandbox =
        format!(", sandbox: {{state_dirs: ['~/.peer'], write_dirs: ['{}'], broker: true}}", folder.display());
    let mut client = ExternalAgentClient::of("plan", agents("plain", &sandbox)).await.unwrap();
    for (mode, is_written, questions) in
        [("plan", false, 0), ("ask", true, 1), ("code", true, 0), ("plan", false, 0)]
    {
        client.mode(mode).await;
        let path = folder.join(mode);
        let messages = client.prompt(&format!("write {}", path.display()), Some("allow_once")).await;
        let asked =
            messages.iter().filter(|message| message["method"] == "session/request_permission").count();
        assert_eq!((path.exists(), asked), (is_written, questions), "{mode}: {messages:?}");
    }
    client.mode("code").await;
    let beside = outside.path().join("beside");
    let text = agent_text(&client.prompt(&format!("write {}", beside.display()), None).await);
    assert!(!beside.exists() && text.contains("or to the agent's sandbox.write_dirs"), "{text}");
    let text = agent_text(&client.prompt("/undo", None).await);
    assert!(text.contains("there is nothing to undo") && folder.join("code").exists(), "{text}");
    client.end().await;
}

/// Under a mode that denies changes, a hard link in the state folder does not reach a file elsewhere.
#[tokio::test]
async fn state_folder_has_no_names_of_other_files() {
    for (mode, sandbox, is_changed) in
        [("plan", sessions::SANDBOXED, false), ("plan", BROKERED, false), ("code", sessions::SANDBOXED, true)]
    {
        let home = home();
        let (other, linked) = (home.path().join("other"), home.path().join(".peer/linked"));
        std::fs::create_dir(home.path().join(".peer")).unwrap();
        std::fs::write(&other, "old").unwrap();
        std::fs::hard_link(&other, &linked).unwrap();
        let client = sessions::client(mode, agents("plain", sandbox), home.path());
        let mut client = ExternalAgentClient::open(client, home, json!({})).await.unwrap();
        let text = agent_text(&client.prompt(&format!("write {}", linked.display()), None).await);
        assert_eq!(std::fs::read_to_string(&linked).unwrap(), "x", "{mode}: {text}");
        assert_eq!(text.contains("replaced hard links"), !is_changed, "{mode} {sandbox}: {text}");
        let expected = if is_changed { "x" } else { "old" };
        assert_eq!(std::fs::read_to_string(&other).unwrap(), expected, "{mode} {sandbox}: {text}");
        client.end().await;
    }
}
