//! Plays: one conversation a file, read top to bottom. See `docs/internals/testing.md` for how to write one.
//!
//! `UPDATE_EXPECT=1 cargo test plays` writes the agent's lines anew; a person reads the difference.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use modegate::model::scripted;
use modegate::skill::Skills;
use serde_json::Value;

use crate::scripted_model::summary;
use crate::support::{Setup, TestClient, read};

/// How long the agent is listened to after each line, when the expectations are written anew.
const IDLE: Duration = Duration::from_millis(150);

#[tokio::test]
async fn every_play_is_performed_as_written() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut failures = Vec::new();
    let files = plays();
    assert!(files.len() >= 10, "the plays are gone");
    for file in files {
        let script = std::fs::read_to_string(&file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let performed = perform(&name, &script, update).await;
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

/// Performs a play and writes down what happened, in the play's own form.
async fn perform(name: &str, script: &str, update: bool) -> String {
    let (dir, skills) = (Arc::new(tempfile::tempdir().unwrap()), Arc::default());
    let mut model = Performance { client: None, dir, skills, mode: "ask", written: Vec::new(), update };
    for line in script.lines() {
        let (mark, rest) = line.split_at(line.len().min(2));
        let rest = rest.trim();
        match mark {
            "" | "# " | "#" => model.written.push(line.to_owned()),
            "@ " => {
                model.written.push(line.to_owned());
                model.setting(rest).await;
            }
            "->" => {
                model.written.push(line.to_owned());
                let cwd = model.client().cwd();
                model.client().send_line(&rest.replace("$cwd", cwd.to_str().unwrap())).await;
                model.listen().await;
            }
            "<~" => {
                model.written.push(line.to_owned());
                let (session, event) = match rest.split_once(' ') {
                    Some((session, event)) if session.starts_with("sess_") => (session, event),
                    _ => ("sess_1", rest),
                };
                let event = scripted::event(event).unwrap_or_else(|error| panic!("{name}: {line}: {error}"));
                model.client().model.say(session, event.expect("an event"));
                model.listen().await;
            }
            "<-" if update => {}
            "<-" => {
                let message = model.client().next().await;
                model.wrote(&message);
            }
            "= " => {
                let value = model.snapshot(rest).await;
                model.write(&format!("= {value}"));
            }
            _ => panic!("{name}: no line of a play: {line}"),
        }
    }
    let client = model.client.take().expect("a play has lines");
    for message in client.end().await {
        model.written.push(format!("<- at the end: {message}"));
    }
    model.written.join("\n") + "\n"
}

struct Performance {
    client: Option<TestClient>,
    dir: Arc<tempfile::TempDir>,
    skills: Arc<Mutex<Arc<Skills>>>,
    mode: &'static str,
    written: Vec<String>,
    update: bool,
}

impl Performance {
    /// The harness, which begins when it is first needed.
    fn client(&mut self) -> &mut TestClient {
        let (mode, dir, skills) = (self.mode, Some(Arc::clone(&self.dir)), Arc::clone(&self.skills));
        self.client.get_or_insert_with(|| TestClient::with(Setup { mode, skills, dir, ..Setup::default() }))
    }

    async fn setting(&mut self, setting: &str) {
        let (verb, rest) = setting.split_once(' ').unwrap_or((setting, ""));
        match verb {
            "mode" => {
                self.mode = ["ask", "plan", "code"].into_iter().find(|mode| *mode == rest).expect("a mode");
            }
            "skill" => {
                let (name, body) = rest.split_once(' ').expect("@ skill NAME \"INSTRUCTIONS\"");
                let body: String = serde_json::from_str(body).unwrap();
                let cwd = self.client().cwd();
                *self.skills.lock().unwrap() = crate::skills::some(&cwd, &[(name, "What it is for.", &body)]);
            }
            "session" => {
                self.client().session().await;
            }
            "file" => {
                let (path, content) = rest.split_once(' ').expect("@ file PATH \"CONTENT\"");
                let path = self.client().cwd().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, serde_json::from_str::<String>(content).unwrap()).unwrap();
            }
            _ => panic!("no setting: {setting}"),
        }
    }

    /// What stands behind `=`: the model's next request, or a file.
    async fn snapshot(&mut self, what: &str) -> String {
        let mut words = what.split(' ');
        match (words.next(), words.next()) {
            (Some("request"), Some(session)) if session.starts_with("sess_") => {
                let session = session.trim_end_matches(':');
                let request = self.client().model.next_request(session).await;
                format!("request {session}: {}", summary(&request))
            }
            (Some("file"), Some(path)) => {
                let cwd = self.client().cwd();
                match read(&cwd, path) {
                    Some(content) => format!("file {path} {content:?}"),
                    None => format!("file {path} absent"),
                }
            }
            _ => panic!("nothing to look at: {what}"),
        }
    }

    /// While expectations are written anew: takes what comes until it is quiet.
    async fn listen(&mut self) {
        if !self.update {
            return;
        }
        while let Some(message) = self.client().next_within(IDLE).await {
            self.wrote(&message);
        }
    }

    fn wrote(&mut self, message: &Value) {
        let mut message = message.clone();
        message.as_object_mut().unwrap().shift_remove("jsonrpc");
        self.write(&format!("<- {message}"));
    }

    /// Writes a line down, with the folders of this performance under their names.
    fn write(&mut self, line: &str) {
        let cwd = self.client().cwd();
        let above = cwd.parent().unwrap().to_str().unwrap();
        let line = line.replace(cwd.to_str().unwrap(), "$cwd").replace(above, "$above");
        self.written.push(without_hash(&line));
    }
}

/// The hash of a session's record follows from everything, also from what a play is not about: how long it is says enough.
fn without_hash(line: &str) -> String {
    let Some((before, rest)) = line.split_once("\"hash\":\"") else { return line.to_owned() };
    let Some((hash, after)) = rest.split_once('"') else { return line.to_owned() };
    assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
    format!("{before}\"hash\":\"$hash\"{after}")
}

fn difference(expected: &str, actual: &str) -> String {
    similar::TextDiff::from_lines(expected, actual).unified_diff().context_radius(2).to_string()
}
