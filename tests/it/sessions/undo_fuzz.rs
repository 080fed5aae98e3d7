//! Undo while a user, another session and commands change the same files.
//!
//! `UNDO_ROUNDS=500 SEED=n cargo test undo_fuzz -- --nocapture` runs this many turns.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use modegate::model::{ModelEvent, ModelStop};
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::sessions::load::{StoreFixture, call, turn};
use crate::sessions::undo::{SANDBOXES, slash, tree};
use crate::support::{Setup, TestClient, shell};

const FILES: [&str; 5] = ["a.txt", "b.txt", "sub/c.txt", "new.txt", "fresh/d.txt"];

/// Mode bits and content.
type FileVersion = Option<(u32, String)>;

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }

    fn file(&mut self) -> &'static str {
        FILES[self.below(FILES.len())]
    }
}

/// A change by the agent, as seen from outside.
struct AgentChange {
    before: FileVersion,
    after: FileVersion,
    by_command: bool,
}

fn state(cwd: &Path, file: &str) -> FileVersion {
    let path = cwd.join(file);
    let content = std::fs::read_to_string(&path).ok()?;
    Some((path.metadata().unwrap().permissions().mode() & 0o777, content))
}

fn states(cwd: &Path) -> BTreeMap<&'static str, FileVersion> {
    FILES.iter().map(|file| (*file, state(cwd, file))).collect()
}

/// Writes or reverts a file as the user, changes its mode bits, or deletes it.
fn random_user_change(cwd: &Path, random: &mut Random, number: usize) {
    let file = random.file();
    let path = cwd.join(file);
    if !path.parent().unwrap().is_dir() {
        return;
    }
    match random.below(5) {
        0 | 1 => std::fs::write(&path, format!("user {number}\n")).unwrap(),
        2 => std::fs::write(&path, "at first\n").unwrap(),
        3 if path.exists() => {
            let mode = [0o600, 0o644, 0o755][random.below(3)];
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        _ => drop(std::fs::remove_file(&path)),
    }
}

/// Returns a call that changes files, the file that it has to read before, and true if it is a command.
fn random_agent_call(
    cwd: &Path,
    random: &mut Random,
    number: usize,
) -> (Vec<&'static str>, ModelEvent, bool) {
    let (file, other) = (random.file(), random.file());
    let id = format!("c{number}");
    let make = |name: &str, arguments: Value| call(&id, name, arguments);
    let content = format!("agent {number}\n");
    match random.below(7) {
        0 | 1 => (vec![file], make("write_file", json!({ "path": file, "content": content })), false),
        2 => (vec![file], make("delete_file", json!({ "path": file })), false),
        3 => (vec![], make("move_file", json!({ "from": file, "to": other })), false),
        4 => {
            let mut patch = String::new();
            for name in [file, other].iter().take(if file == other { 1 } else { 2 }) {
                let old = std::fs::read_to_string(cwd.join(name)).unwrap_or_default();
                patch += &match old.as_str() {
                    "" => format!("--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+{content}"),
                    old => format!("--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-{old}+{content}"),
                };
            }
            (vec![file, other], make("apply_patch", json!({ "patch": patch })), false)
        }
        5 => (vec![], make("shell", json!({ "command": format!("chmod 640 {file}") })), true),
        _ => {
            let line = format!("echo command {number} > {file}; rm -f {other}");
            (vec![], make("shell", json!({ "command": line })), true)
        }
    }
}

fn say(client: &TestClient, session: &str, events: impl IntoIterator<Item = ModelEvent>) {
    for event in events.into_iter().chain([ModelEvent::Stop(ModelStop::Done)]) {
        client.model.say(session, Ok(event));
    }
}

/// Returns true if another change came between the agent's changes. A command's change can start from any
/// content that existed before it.
fn is_interrupted(agent_changes: &[AgentChange]) -> bool {
    let mut seen = vec![&agent_changes[0].before];
    agent_changes.iter().any(|edge| {
        let follows = seen.last() == Some(&&edge.before) || (edge.by_command && seen.contains(&&edge.before));
        seen.push(&edge.after);
        !follows
    })
}

/// Returns the outcome that an undo must have for each file that the agent changed: restored, or a conflict.
fn expect(
    agent_changes: &BTreeMap<&'static str, Vec<AgentChange>>,
    now: &BTreeMap<&'static str, FileVersion>,
) -> (BTreeMap<&'static str, FileVersion>, Vec<&'static str>) {
    let (mut after, mut conflicts) = (now.clone(), Vec::new());
    for (file, agent_changes) in agent_changes {
        let (first, last) = (&agent_changes[0].before, &agent_changes[agent_changes.len() - 1].after);
        if first == last || now[file] == *first {
            continue;
        }
        if is_interrupted(agent_changes) || now[file] != *last {
            conflicts.push(*file);
        }
        after.insert(file, first.clone());
    }
    (after, conflicts)
}

#[tokio::test]
async fn random_undo_restores_or_names_conflicts() {
    for sandbox in SANDBOXES {
        let variable = |name: &str, default: usize| {
            std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
        };
        let (rounds, seed) = (variable("UNDO_ROUNDS", 12), variable("SEED", 1));
        let (mut undone, mut refused) = (0, 0);
        for round in 0..rounds {
            let mut random = Random((seed * 1_000_003 + round) as u64);
            let (fixture, home) = (StoreFixture::new(), tempfile::tempdir().unwrap());
            let tools = Toolset::built_in().with_shell(shell(home.path(), sandbox));
            let mut client = fixture.agent(Setup { mode: "code", tools, ..Setup::default() });
            let cwd = client.cwd();
            std::fs::create_dir(cwd.join("sub")).unwrap();
            for file in &FILES[..3] {
                std::fs::write(cwd.join(file), "at first\n").unwrap();
            }
            let (session, other) = (client.session().await, client.session().await);
            let prompt = client.prompt(&session, "go").await;
            client.model.next_request(&session).await;
            let mut agent_changes: BTreeMap<&'static str, Vec<AgentChange>> = BTreeMap::new();
            // In a third of the rounds, only the agent changes files.
            let is_alone = round % 3 == 0;
            for number in 0..6 {
                let (to_read, call_to_make, by_command) = random_agent_call(&cwd, &mut random, number);
                let reads = to_read
                    .iter()
                    .enumerate()
                    .map(|(at, file)| call(&format!("r{number}_{at}"), "read_file", json!({ "path": file })));
                if !to_read.is_empty() {
                    say(&client, &session, reads);
                    client.model.next_request(&session).await;
                }
                let before = states(&cwd);
                say(&client, &session, [call_to_make]);
                client.model.next_request(&session).await;
                for (file, after) in states(&cwd) {
                    if before[file] != after {
                        // A recorded change starts from exactly the content that was there.
                        let by_command = by_command && sandbox == Sandbox::Workspace;
                        let edge = AgentChange { before: before[file].clone(), after, by_command };
                        agent_changes.entry(file).or_default().push(edge);
                    }
                }
                match random.below(4) {
                    _ if is_alone => {}
                    0 | 1 => random_user_change(&cwd, &mut random, number),
                    2 => {
                        let path = random.file();
                        let write = json!({ "path": path, "content": format!("other session {number}\n") });
                        let read = call("r", "read_file", json!({ "path": path }));
                        turn(&mut client, &other, "go", &[&[read], &[call("w", "write_file", write)], &[]])
                            .await;
                    }
                    _ => {}
                }
            }
            say(&client, &session, []);
            client.until_answer(prompt).await;
            let (now, whole) = (states(&cwd), tree(&cwd));
            let (expected, conflicts) = expect(&agent_changes, &now);
            let answer = slash(&mut client, &session, "/undo").await;
            let output = format!("round {round}, seed {seed}: {conflicts:?}: {answer}");
            if conflicts.is_empty() {
                assert_eq!(states(&cwd), expected, "{output}");
                undone += usize::from(answer.contains("the changes of turn 1"));
            } else {
                assert!(answer.contains("nothing was restored"), "{output}");
                assert_eq!(tree(&cwd), whole, "{output}");
                for file in FILES {
                    let is_named = answer.contains(&*cwd.join(file).to_string_lossy());
                    assert_eq!(is_named, conflicts.contains(&file), "{file}, {output}");
                }
                refused += 1;
            }
            client.end().await;
        }
        println!("{rounds} turns: {undone} undone, {refused} refused with the files named, seed {seed}");
        assert!(
            undone * 5 >= rounds && (rounds < 6 || refused > 0),
            "{undone} undone, {refused} refused of {rounds}"
        );
    }
}
