//! Kills the binary during calls that change files. After the next load no call is half done, no temporary
//! file is left, and an undo restores the files.
//!
//! `KILLS=200 SEED=n cargo test kills_files -- --nocapture` runs this many rounds.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::sessions::kills::{Agent, random_below, write_script};
use crate::sessions::undo::tree;

/// Files of a patch.
const FILES: usize = 24;

type FolderState = BTreeMap<String, (u32, String)>;

fn name(number: usize) -> String {
    format!("f{number}.txt")
}

fn tool(id: &str, name: &str, arguments: &Value) -> Vec<Value> {
    vec![
        json!({ "tool_call": { "id": id, "name": name, "arguments": arguments } }),
        json!({ "stop": "done" }),
    ]
}

/// Turns with calls of each kind. The second value is a file whose change shows that the calls have begun.
fn calls() -> Vec<(Vec<Value>, &'static str)> {
    let names: Vec<String> = (0..FILES).map(name).collect();
    let mut patch: String = names
        .iter()
        .map(|name| format!("--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-before\n+after\n"))
        .collect();
    patch += "--- /dev/null\n+++ b/made/by/patch.txt\n@@ -0,0 +1 @@\n+new\n";
    patch += "--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-before\n";
    patch += "--- a/old.txt\n+++ b/moved/new.txt\n@@ -1 +1 @@\n-before\n+after\n";
    let read = [&names[..], &["gone.txt".to_owned(), "old.txt".to_owned(), "w.txt".to_owned()]].concat();
    let read: Vec<Value> =
        read.iter().flat_map(|path| tool("r", "read_file", &json!({ "path": path }))).collect();
    let with_read = |call: Vec<Value>| [read.clone(), call].concat();
    vec![
        (with_read(tool("p", "apply_patch", &json!({ "patch": patch }))), "f0.txt"),
        (with_read(tool("w", "write_file", &json!({ "path": "w.txt", "content": "after\n" }))), "w.txt"),
        (
            with_read(tool("n", "write_file", &json!({ "path": "a/b/c.txt", "content": "new\n" }))),
            "a/b/c.txt",
        ),
        (with_read(tool("d", "delete_file", &json!({ "path": "gone.txt" }))), "gone.txt"),
        (
            with_read(tool("m", "move_file", &json!({ "from": "folder", "to": "x/y/folder" }))),
            "folder/in.txt",
        ),
    ]
}

fn create_files(work: &Path) {
    std::fs::create_dir_all(work.join("folder")).unwrap();
    let all =
        (0..FILES).map(name).chain(["gone.txt", "old.txt", "w.txt", "folder/in.txt"].map(str::to_owned));
    for (at, name) in all.enumerate() {
        let path = work.join(name);
        std::fs::write(&path, "before\n").unwrap();
        let mode = [0o644, 0o600, 0o755][at % 3];
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Kills a process after a file has changed and this time has passed. The kill comes after five seconds if
/// the file does not change.
fn kill_after_change(agent: &Agent, file: PathBuf, wait: Duration) -> std::thread::JoinHandle<()> {
    let pid = rustix::process::Pid::from_raw(agent.child.id().cast_signed()).unwrap();
    let before = std::fs::read(&file).ok();
    std::thread::spawn(move || {
        let started = std::time::Instant::now();
        while std::fs::read(&file).ok() == before && started.elapsed() < Duration::from_secs(5) {
            std::hint::spin_loop();
        }
        std::thread::sleep(wait);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    })
}

fn kill_in(agent: &Agent, wait: Duration) -> std::thread::JoinHandle<()> {
    let pid = rustix::process::Pid::from_raw(agent.child.id().cast_signed()).unwrap();
    std::thread::spawn(move || {
        std::thread::sleep(wait);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    })
}

fn temporaries(tree: &FolderState) -> Vec<&String> {
    tree.keys().filter(|name| name.contains(".modegate-")).collect()
}

#[test]
fn killed_file_changes_are_completed_or_rolled_back() {
    let variable = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (rounds, seed) = (variable("KILLS", 15), variable("SEED", 1));
    let mut random = seed;
    let calls = calls();
    let (mut in_the_middle, mut changed_files, mut twice, mut by_others) = (0, 0, 0, 0);
    for round in 0..rounds {
        let (lines, watched) = &calls[usize::try_from(round).unwrap() % calls.len()];
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().canonicalize().unwrap().join("work");
        std::fs::create_dir(&work).unwrap();
        create_files(&work);
        let before = tree(&work);
        let done = json!([{ "text": "Done." }, { "stop": "done" }]);
        let lines: Vec<Value> = lines.iter().chain(done.as_array().unwrap()).cloned().collect();
        let model = write_script(dir.path(), &lines);
        let mut agent = Agent::with(dir.path(), &["--model", &model]);
        let meta = json!({ "modegate/mode": "code" });
        let new = json!({ "cwd": work, "mcpServers": [], "_meta": meta });
        let answer = agent.call("session/new", &new).unwrap().pop().unwrap();
        let session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
        let wait = Duration::from_micros(
            [0, 0, 200, 1000, 3000][usize::try_from(random_below(&mut random, 5)).unwrap()],
        );
        let killer = if round % 4 == 3 {
            kill_in(&agent, Duration::from_millis(random_below(&mut random, 60)))
        } else {
            kill_after_change(&agent, work.join(watched), wait)
        };
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "go" }] });
        agent.call("session/prompt", &prompt);
        killer.join().unwrap();
        agent.child.wait().unwrap();
        let after_kill = tree(&work);
        in_the_middle += usize::from(!temporaries(&after_kill).is_empty());
        changed_files += usize::from(after_kill != before);
        let folders = json!({ "sessionId": session, "cwd": work, "mcpServers": [] });
        // In a third of the rounds the recovery is killed, too.
        if round % 3 == 1 {
            twice += 1;
            let mut agent = Agent::with(dir.path(), &["--model", &model]);
            let killer = kill_in(&agent, Duration::from_micros(random_below(&mut random, 12_000)));
            agent.call("session/load", &folders);
            killer.join().unwrap();
            agent.child.wait().unwrap();
        }
        // In some rounds the user has changed a file in the meantime.
        let users = (round % 5 == 0 && round % 2 == 0).then(|| work.join("f3.txt"));
        if let Some(file) = &users {
            by_others += 1;
            std::fs::write(file, "the user's\n").unwrap();
        }
        let mut agent = Agent::with(dir.path(), &["--model", &model]);
        let messages = agent.call("session/load", &folders).unwrap();
        assert!(messages.last().unwrap()["result"].is_object(), "round {round}, seed {seed}: {messages:?}");
        let loaded = tree(&work);
        assert_eq!(temporaries(&loaded), Vec::<&String>::new(), "round {round}, seed {seed}");
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "/undo" }] });
        let undo = agent.call("session/prompt", &prompt).unwrap();
        let undone = tree(&work);
        if let Some(file) = &users {
            assert_eq!(std::fs::read_to_string(file).unwrap(), "the user's\n", "round {round}, seed {seed}");
            assert_eq!(temporaries(&undone), Vec::<&String>::new(), "round {round}, seed {seed}");
            let changed =
                undone.iter().any(|(name, it)| !name.ends_with("f3.txt") && before.get(name) != Some(it));
            let is_named = format!("{messages:?}{undo:?}").contains("f3.txt");
            assert!(!changed || is_named, "round {round}, seed {seed}: {undo:?}");
        } else {
            let contents: Vec<&str> = (0..FILES).map(|number| loaded[&name(number)].1.as_str()).collect();
            let is_whole = contents.iter().all(|content| *content == contents[0]);
            assert!(is_whole, "round {round}, seed {seed}: half a patch: {contents:?}");
            assert_eq!(undone, before, "round {round}, seed {seed}: {messages:?} {undo:?}");
        }
        drop(agent.input);
        agent.child.wait().unwrap();
    }
    println!(
        "{rounds} kills, {changed_files} of them after a first change, {in_the_middle} of them left temporary files, {twice} followed by a second one while loading, {by_others} \
         by a user's change, seed {seed}"
    );
    assert!(changed_files > 0, "no kill came after a change");
}
