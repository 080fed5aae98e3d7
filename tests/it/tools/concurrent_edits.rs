//! Four sessions in two processes, and an editor, change one file at the same time. The file has all edits
//! that were reported as done.
//!
//! `ROUNDS=2000 SEED=n cargo test sessions_in_two_processes -- --nocapture` runs more rounds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::sessions::kills::{random_below, write_script};
use crate::support::binary_client::BinaryClient;

/// Lines of the file that belong to each session.
const PLACES: u64 = 12;

/// After this many rounds, the file is written anew.
const ROUNDS_PER_FILE: u64 = 50;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Edit,
    Patch,
    Undo,
}

/// The action of a session in each round.
struct Plan {
    acts: Vec<Act>,
    lines: Vec<Value>,
}

fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn marker(session: u64, round: u64) -> String {
    format!("made by {session} in {round}")
}

fn plan(session: u64, rounds: u64, random: &mut u64) -> Plan {
    let mut plan = Plan { acts: Vec::new(), lines: vec![json!({ "for": format!("session {session}") })] };
    for round in 0..rounds {
        let anchor = format!("anchor {session} {}\n", random_below(random, PLACES));
        let added = marker(session, round);
        // The first message of a session has no act, because it only starts the scripted model.
        let act = match random_below(random, 5) {
            _ if round == 0 => Act::Edit,
            0 | 1 => Act::Edit,
            2 | 3 => Act::Patch,
            _ => Act::Undo,
        };
        plan.acts.push(act);
        let (name, arguments) = match act {
            Act::Undo => continue,
            Act::Edit => {
                let new = format!("{anchor}{added}\n");
                ("edit_file", json!({ "path": "x.txt", "old_text": anchor, "new_text": new }))
            }
            Act::Patch => {
                let patch = format!("--- a/x.txt\n+++ b/x.txt\n@@\n {anchor}+{added}\n");
                ("apply_patch", json!({ "patch": patch }))
            }
        };
        plan.lines.push(
            json!({ "tool_call": { "id": format!("c{round}"), "name": name, "arguments": arguments } }),
        );
        plan.lines.extend([json!({ "stop": "done" }), json!({ "text": "Done." }), json!({ "stop": "done" })]);
    }
    plan
}

fn furnish(file: &Path) {
    let anchors = (0..4).flat_map(|session| (0..PLACES).map(move |place| (session, place)));
    let text: String =
        anchors.map(|(session, place)| format!("anchor {session} {place}\nfiller\n")).collect();
    std::fs::write(file, text).unwrap();
}

/// A Modegate process with two sessions.
struct Process {
    client: BinaryClient,
    sessions: Vec<String>,
    next_id: i64,
}

impl Process {
    fn start(home: &Path, work: &Path, number: u64, plans: &[Plan]) -> Self {
        let process_home = home.join(number.to_string());
        std::fs::create_dir(&process_home).unwrap();
        let lines: Vec<Value> = plans.iter().flat_map(|plan| plan.lines.clone()).collect();
        let (model, store) = (write_script(&process_home, &lines), process_home.join("store.db"));
        let arguments = ["--mode", "code", "--model", &model, "--store", store.to_str().unwrap()];
        let mut process =
            Self { client: BinaryClient::start(home, &arguments).0, sessions: Vec::new(), next_id: 10 };
        for _ in 0..2 {
            let answer = process.request("session/new", &json!({ "cwd": work, "mcpServers": [] }));
            process.sessions.push(answer["result"]["sessionId"].as_str().unwrap().to_owned());
        }
        process
    }

    fn request(&mut self, method: &str, params: &Value) -> Value {
        self.next_id += 1;
        self.client.call(self.next_id, method, params).pop().unwrap()
    }

    /// Sends a prompt to each session, both before the first answer. Returns the outcome of each call, and
    /// the texts that each session shows.
    fn prompt(&mut self, texts: [String; 2]) -> Vec<(bool, String)> {
        let mut results = vec![(false, String::new()); 2];
        let first = self.next_id + 1;
        for (session, text) in self.sessions.clone().iter().zip(texts) {
            self.next_id += 1;
            let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
            self.client.send(self.next_id, "session/prompt", &prompt);
        }
        let mut open = 2;
        while open > 0 {
            let message = self.client.next();
            if message["id"].as_i64().is_some_and(|id| id >= first) && message.get("method").is_none() {
                assert!(message.get("error").is_none(), "{message}");
                open -= 1;
                continue;
            }
            let session =
                self.sessions.iter().position(|session| message["params"]["sessionId"] == **session);
            let (Some(session), update) = (session, &message["params"]["update"]) else { continue };
            if update["status"] == "completed" {
                results[session].0 = true;
            }
            let texts = [&update["content"]["text"], &update["content"][0]["content"]["text"]];
            results[session].1.extend(texts.into_iter().filter_map(Value::as_str));
        }
        results
    }
}

/// Acts as an editor that reads the file, and replaces it a little later. Returns the saved text.
fn edit_outside(file: &Path, line: &str, random: &mut u64) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let saved = format!("{line}\n{text}");
    let temporary = file.with_file_name("editor.tmp");
    for _ in 0..random_below(random, 20_000) {
        std::hint::spin_loop();
    }
    if random_below(random, 2) == 0 {
        std::fs::write(&temporary, &saved).unwrap();
        std::fs::rename(&temporary, file).unwrap();
    } else {
        std::fs::write(file, &saved).unwrap();
    }
    saved
}

/// Returns true if a text is `base` with the changes of one round.
fn has_base(text: &str, base: &str, round: u64, undone: &[String]) -> bool {
    let end = format!(" in {round}");
    let is_new = |line: &str| line.starts_with("made by") && line.ends_with(&end);
    let is_older = |line: &&str| !is_new(line) && !undone.iter().any(|undone| undone == line);
    text.lines().filter(is_older).eq(base.lines().filter(is_older))
}

#[test]
fn sessions_in_two_processes_lose_no_edit() {
    let (rounds, mut random) = (number_from("ROUNDS", 40), number_from("SEED", 1));
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().canonicalize().unwrap();
    let work = home.join("work");
    std::fs::create_dir(&work).unwrap();
    let file: PathBuf = work.join("x.txt");
    furnish(&file);
    let plans: Vec<Plan> = (0..4).map(|session| plan(session, rounds, &mut random)).collect();
    let mut processes: Vec<Process> = (0..2)
        .zip(plans.chunks(2))
        .map(|(number, plans)| Process::start(&home, &work, number, plans))
        .collect();
    let (mut present, mut brought_back) = (BTreeSet::<String>::new(), BTreeSet::<String>::new());
    // For each session, the markers of edits that it can still undo.
    let mut undoable: Vec<Vec<String>> = vec![Vec::new(); 4];
    let (mut done, mut refused, mut undone, mut excused) = (0, 0, 0, 0);
    for round in 0..rounds {
        if round % ROUNDS_PER_FILE == 0 {
            furnish(&file);
            present.clear();
            brought_back.clear();
        }
        let has_editor = round % 4 == 3;
        let line = format!("typed in {round}");
        let (results, saved) = std::thread::scope(|scope| {
            let editor = has_editor.then(|| {
                let (file, line, mut random) = (&file, &line, random.wrapping_add(round));
                scope.spawn(move || edit_outside(file, line, &mut random))
            });
            let running: Vec<_> = processes
                .iter_mut()
                .enumerate()
                .map(|(number, process)| {
                    let texts = [0, 1].map(|session| {
                        let session = number * 2 + session;
                        match plans[session].acts[usize::try_from(round).unwrap()] {
                            Act::Undo => "/undo".to_owned(),
                            Act::Edit | Act::Patch => format!("session {session}"),
                        }
                    });
                    scope.spawn(move || process.prompt(texts))
                })
                .collect();
            let results: Vec<_> = running.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            (results, editor.map(|thread| thread.join().unwrap()))
        });
        let text = std::fs::read_to_string(&file).unwrap();
        let mut undone_now = Vec::new();
        for (session, (is_completed, told)) in results.iter().enumerate() {
            let act = plans[session].acts[usize::try_from(round).unwrap()];
            match act {
                Act::Undo if told.contains("nothing was undone") || told.contains("nothing to undo") => {
                    refused += 1;
                }
                Act::Undo => {
                    let marker =
                        undoable[session].pop().unwrap_or_else(|| panic!("{session} in {round}: {told}"));
                    present.remove(&marker);
                    undone_now.push(marker);
                    undone += 1;
                }
                Act::Edit | Act::Patch if *is_completed => {
                    let marker = marker(session as u64, round);
                    present.insert(marker.clone());
                    undoable[session].push(marker);
                    done += 1;
                }
                Act::Edit | Act::Patch => {
                    let is_known =
                        ["changed during the call", "does not occur"].iter().any(|why| told.contains(why));
                    assert!(is_known, "{session} in {round}: {told}");
                    refused += 1;
                }
            }
        }
        let lines: BTreeSet<&str> = text.lines().collect();
        assert!(saved.is_none() || lines.contains(line.as_str()), "{round}: the editor's text is there");
        let overwrote = saved.as_ref().filter(|saved| has_base(&text, saved, round, &undone_now));
        present.retain(|marker| {
            let is_there = lines.contains(marker.as_str());
            let is_excused = overwrote.is_some_and(|saved| !saved.lines().any(|line| line == marker));
            assert!(is_there || is_excused, "round {round}: {marker} is missing");
            excused += u64::from(!is_there);
            is_there
        });
        // The editor writes the text that it read, which can have edits that were undone in between.
        brought_back.extend(saved.iter().flat_map(|saved| saved.lines().map(str::to_owned)));
        let is_extra = |line: &&&str| {
            line.starts_with("made by") && !present.contains(**line) && !brought_back.contains(**line)
        };
        let extra: Vec<_> = lines.iter().filter(is_extra).collect();
        assert!(extra.is_empty(), "round {round}: {extra:?} were not reported as done, or were undone");
    }
    println!(
        "{rounds} rounds: {done} done, {undone} undone, {refused} refused, {excused} overwritten by the editor"
    );
    assert!(done > 0 && undone > 0);
    for process in processes {
        process.client.end();
    }
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 1, "no temporary file stays");
}
