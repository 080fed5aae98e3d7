//! Plays: one conversation a file, read top to bottom. `docs/internals/testing.md` has the forms of their
//! lines.
//!
//! `UPDATE_EXPECT=1 cargo test plays` writes the agent's lines anew. Read the difference.

mod input;
mod layout;
mod output;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use modegate::budget::{BudgetSettings, Budgets};
use modegate::model::scripted;
use modegate::skill::Skills;
use serde_json::{Value, json};

use crate::support::scripted_model;
use crate::support::{Setup, TestClient, read};

use self::layout::Row;
use self::output::Standard;

pub(crate) use self::output::CHUNKS;

/// While expectations are written anew, the agent's lines end after this pause.
const IDLE: Duration = Duration::from_millis(150);

#[tokio::test]
async fn every_play_runs_as_written() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut failures = Vec::new();
    let files = plays();
    let standards = [standard().await, standard_2().await];
    assert!(files.len() >= 10, "the plays are gone");
    for file in files {
        let script = std::fs::read_to_string(&file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let performed = run_play(&name, &script, &standards, update).await;
        if update {
            std::fs::write(&file, performed).unwrap();
        } else if performed != script {
            failures.push(format!("--- {name}\n{}", difference(&script, &performed)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

pub(crate) fn plays() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/plays");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Runs a play, and returns its lines with the messages of this run.
async fn run_play(name: &str, script: &str, standards: &[Standard; 2], update: bool) -> String {
    let mut play = PlayRunner {
        client: None,
        dir: Arc::new(tempfile::tempdir().unwrap()),
        skills: Arc::default(),
        mode: "ask",
        budgets: Arc::default(),
        standard: standards[0].clone(),
        standard_2: standards[1].clone(),
        tools: Vec::new(),
        written: Vec::new(),
        update,
    };
    for (number, lines) in statements(script) {
        let fail = |error: &str| -> ! { panic!("fixtures/plays/{name}:{number}: {error}: {}", lines[0]) };
        let text = layout::joined(&lines);
        let (mark, rest) = text.split_at(text.len().min(2));
        let rest = rest.trim_start();
        let is_expected = mark == "<-" || mark == "= ";
        if !is_expected {
            play.written.extend(lines.iter().map(|line| (*line).to_owned()));
        }
        match mark {
            "" | "# " | "#" => {}
            "@ " => play.setting(rest).await.unwrap_or_else(|| fail("no setting")),
            "->" => {
                let message = input::message(rest, play.standard.is_v2).unwrap_or_else(|error| fail(&error));
                let cwd = play.client().cwd();
                play.client().send_line(&message.replace("$cwd", cwd.to_str().unwrap())).await;
                play.listen().await;
            }
            "<~" => {
                let (session, event) = input::event(rest).unwrap_or_else(|error| fail(&error));
                let event = scripted::event(&event).unwrap_or_else(|error| fail(&error));
                play.client().model.say(&session, event.unwrap_or_else(|| fail("no event")));
                play.listen().await;
            }
            "<-" if update => {}
            "<-" => {
                let message = play.client().next().await;
                play.wrote("<-", &message);
            }
            "= " => {
                let rows = play.snapshot(rest).await.unwrap_or_else(|| fail("nothing to look at"));
                play.write("=", &rows);
            }
            _ => fail("no line of a play"),
        }
    }
    let client = play.client.take().unwrap_or_else(|| panic!("fixtures/plays/{name} has no lines"));
    for message in client.end().await {
        play.written.extend(layout::lines("<- at the end", &[vec![message.to_string()]]));
    }
    play.written.join("\n") + "\n"
}

/// Returns the statements of a play, each with the number of its first line.
fn statements(script: &str) -> Vec<(usize, Vec<&str>)> {
    let mut statements: Vec<(usize, Vec<&str>)> = Vec::new();
    for (n, line) in script.lines().enumerate() {
        match statements.last_mut() {
            Some((_, lines)) if line.starts_with("   ") => lines.push(line),
            _ => statements.push((n + 1, vec![line])),
        }
    }
    statements
}

/// Returns the parts of messages that are equal in each session with the built-in modes.
async fn standard() -> Standard {
    let mut client = TestClient::new();
    let initialized = client.call("initialize", json!({ "protocolVersion": 1 })).await;
    let cwd = client.cwd();
    let session = client.call("session/new", json!({ "cwd": cwd, "mcpServers": [] })).await;
    let commands = client.next().await;
    client.end().await;
    Standard::new(&initialized, &session, &commands)
}

/// Like [`standard`], for version 2.
async fn standard_2() -> Standard {
    let mut client = TestClient::new();
    let initialized = client.call("initialize", input::initialize_2()).await;
    let cwd = client.cwd();
    let session = client.call("session/new", json!({ "cwd": cwd })).await;
    client.end().await;
    Standard::version_2(&initialized, &session)
}

struct PlayRunner {
    client: Option<TestClient>,
    dir: Arc<tempfile::TempDir>,
    skills: Arc<Mutex<Arc<Skills>>>,
    mode: &'static str,
    budgets: Arc<Budgets>,
    /// Parts of messages that the play does not show in full.
    standard: Standard,
    standard_2: Standard,
    /// The lists of tools so far. A request that repeats a list prints its number.
    tools: Vec<String>,
    written: Vec<String>,
    update: bool,
}

impl PlayRunner {
    /// Returns the harness, and starts it at the first call.
    fn client(&mut self) -> &mut TestClient {
        let (mode, dir, skills) = (self.mode, Some(Arc::clone(&self.dir)), Arc::clone(&self.skills));
        let budgets = Arc::clone(&self.budgets);
        let setup = || Setup { mode, budgets, skills, dir, ..Setup::default() };
        self.client.get_or_insert_with(|| TestClient::with(setup()))
    }

    /// Applies a setting. Returns `None` if there is no such setting.
    async fn setting(&mut self, setting: &str) -> Option<()> {
        let words = layout::words(setting);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["mode", mode] => self.mode = ["ask", "plan", "code"].into_iter().find(|known| known == mode)?,
            ["budgets", settings] => {
                let settings: String = serde_json::from_str(settings).ok()?;
                let settings: BudgetSettings = serde_saphyr::from_str(&settings).ok()?;
                self.budgets = Arc::new(Budgets { limits: settings.limits().ok()?, ..Budgets::default() });
            }
            ["version", "2"] => self.standard = self.standard_2.clone(),
            ["full"] => self.standard = self.standard.full(),
            ["skill", name, body] => {
                let body: String = serde_json::from_str(body).ok()?;
                let cwd = self.client().cwd();
                *self.skills.lock().unwrap() =
                    crate::tools::skills::some(&cwd, &[(name, "What it is for.", &body)]);
            }
            ["session"] if self.standard.is_v2 => {
                let client = self.client();
                if !client.is_initialized() {
                    client.call("initialize", input::initialize_2()).await;
                }
                let cwd = client.cwd();
                client.call("session/new", json!({ "cwd": cwd })).await;
            }
            ["session"] => {
                self.client().session().await;
            }
            ["file", path, content] => {
                let content: String = serde_json::from_str(content).ok()?;
                let path = self.client().cwd().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            }
            _ => return None,
        }
        Some(())
    }

    /// Returns the rows behind `=`: the model's next request, or a file.
    async fn snapshot(&mut self, what: &str) -> Option<Vec<Row>> {
        let mut words = what.split(' ');
        let (kind, name) = (words.next()?, words.next()?);
        let mut rows = vec![vec![kind.to_owned(), name.to_owned()]];
        match kind {
            "request" if name.starts_with("sess_") => {
                let request = self.client().model.next_request(name).await;
                rows.push(self.tools_row(scripted_model::tools(&request)));
                rows.extend(scripted_model::last_message(&request).iter().map(|block| layout::words(block)));
            }
            "file" => {
                let cwd = self.client().cwd();
                rows[0].push(read(&cwd, name).map_or("absent".to_owned(), |content| format!("{content:?}")));
            }
            _ => return None,
        }
        Some(rows)
    }

    /// Returns a list of tools that is new in this play, or otherwise the number of the list.
    fn tools_row(&mut self, tools: String) -> Row {
        if let Some(known) = self.tools.iter().position(|known| *known == tools) {
            return layout::words(&format!("tools {}", known + 1));
        }
        let row = layout::words(&format!("tools {}: {tools}", self.tools.len() + 1));
        self.tools.push(tools);
        row
    }

    /// While expectations are written anew, takes messages until none arrives within `IDLE`.
    async fn listen(&mut self) {
        if !self.update {
            return;
        }
        while let Some(message) = self.client().next_within(IDLE).await {
            self.wrote("<-", &message);
        }
    }

    fn wrote(&mut self, mark: &str, message: &Value) {
        let mut message = message.clone();
        message.as_object_mut().unwrap().shift_remove("jsonrpc");
        let message = without_hash(&self.with_names(&message.to_string()));
        let rows = output::rows(&serde_json::from_str(&message).unwrap(), &self.standard);
        self.written.extend(layout::lines(mark, &rows));
    }

    fn write(&mut self, mark: &str, rows: &[Row]) {
        let replaced = |row: &Row| row.iter().map(|word| self.with_names(word)).collect();
        let rows: Vec<Row> = rows.iter().map(replaced).collect();
        self.written.extend(layout::lines(mark, &rows));
    }

    /// Replaces the directories of this run by names.
    fn with_names(&self, text: &str) -> String {
        let cwd = self.client.as_ref().expect("a message comes from an agent").cwd();
        let above = cwd.parent().unwrap().to_str().unwrap();
        text.replace(cwd.to_str().unwrap(), "$cwd").replace(above, "$above")
    }
}

/// Replaces the hash of a session's audit log. The hash depends on every entry, and a play shows only the
/// length.
fn without_hash(line: &str) -> String {
    let Some((before, rest)) = line.split_once("\"hash\":\"") else { return line.to_owned() };
    let Some((hash, after)) = rest.split_once('"') else { return line.to_owned() };
    assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
    format!("{before}\"hash\":\"$hash\"{after}")
}

fn difference(expected: &str, actual: &str) -> String {
    similar::TextDiff::from_lines(expected, actual).unified_diff().context_radius(2).to_string()
}
