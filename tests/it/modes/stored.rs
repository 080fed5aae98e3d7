//! The mode of a stored session: the mode in which it opens and that lists show, and the rows and log entries
//! of a mode change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::over_version_2::{self, Translator};

/// A home, a working directory and a store.
pub(crate) struct BinaryFixture(tempfile::TempDir);

/// The output of a run of the binary.
pub(crate) struct SessionOutput {
    messages: Vec<Value>,
    pub errors: String,
}

impl SessionOutput {
    fn answer(&self, id: i64) -> &Value {
        let is_answer = |message: &&Value| message["id"] == id && message.get("method").is_none();
        self.messages.iter().find(is_answer).unwrap_or_else(|| panic!("no answer to {id}: {}", self.errors))
    }
}

impl BinaryFixture {
    pub(crate) fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        fs::create_dir(fixture.work()).unwrap();
        fixture
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn work(&self) -> PathBuf {
        self.path("work")
    }

    fn modes(&self, yaml: &str) {
        let file = self.path(".config/modegate/modes.yaml");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, yaml).unwrap();
    }

    pub(crate) fn script(&self, lines: &[Value]) -> String {
        let path = self.path("script.jsonl");
        fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        format!("scripted:{}", path.display())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_modegate"));
        command.args(arguments).current_dir(self.work()).env_clear().env("HOME", self.path(""));
        command
    }

    /// Runs a subcommand and returns its output.
    fn print(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    /// Runs a conversation. Each line waits until all requests before it are answered.
    pub(crate) fn converse(
        &self,
        arguments: &[&str],
        log: &str,
        requests: &[(&str, Value)],
    ) -> SessionOutput {
        let mut translator = over_version_2::is_on().then(Translator::default);
        let mut lines = String::new();
        let initialize = ("initialize", json!({ "protocolVersion": 1 }));
        for (id, (method, params)) in (0..).zip([&initialize].into_iter().chain(requests)) {
            let line = line(id, method, params);
            let line = match &mut translator {
                Some(translator) => translator.outgoing(line),
                None => line,
            };
            lines += &format!("{line}\n");
        }
        let input = self.path("input.jsonl");
        fs::write(&input, lines).unwrap();
        let mut command = self.command(arguments);
        command.env("MODEGATE_LOG", log).stdin(fs::File::open(&input).unwrap()).stderr(Stdio::piped());
        let Output { stdout, stderr, .. } = command.output().unwrap();
        let messages = String::from_utf8(stdout).unwrap();
        let messages = messages.lines().map(|line| serde_json::from_str(line).unwrap());
        let messages = match translator {
            Some(mut translator) => messages.flat_map(|message| translator.incoming(message)).collect(),
            None => messages.collect(),
        };
        SessionOutput { messages, errors: String::from_utf8(stderr).unwrap() }
    }

    /// Runs a session with one turn in this mode. Returns the session's id.
    pub(crate) fn session(&self, store: &str, mode: &str) -> String {
        let model = self.script(&[json!({ "text": "Hello." }), json!({ "stop": "done" })]);
        let arguments = ["--model", &model, "--store", store, "--mode", mode, "-p", "hello"];
        let run_output = self.command(&arguments).output().unwrap();
        let text = String::from_utf8(run_output.stderr).unwrap();
        let id = text.split("session ").nth(1).and_then(|rest| rest.split_whitespace().next());
        id.unwrap_or_else(|| panic!("{text}")).to_owned()
    }

    pub(crate) fn opening(&self, session: &str) -> Value {
        json!({ "sessionId": session, "cwd": self.work(), "mcpServers": [] })
    }
}

fn line(id: i64, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// Returns the mode in an answer to `session/new`, `session/load` or `session/resume`.
fn opened(answer: &Value) -> &str {
    answer["result"]["modes"]["currentModeId"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn copy(from: &Path, to: &Path) {
    for ending in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{ending}", to.display()));
    }
    Connection::open(from).unwrap().execute("VACUUM INTO ?1", [to.to_str().unwrap()]).unwrap();
}

/// The stored mode, the mode in which the session opens if the user has the mode `docs`, and otherwise.
/// `None` stands for the default.
const STORED: [(Option<&str>, Option<&str>, Option<&str>); 10] = [
    (None, None, None),
    (Some(""), None, None),
    (Some(" \n"), None, None),
    (Some("ask"), Some("ask"), Some("ask")),
    (Some("PLAN"), Some("plan"), Some("plan")),
    (Some("architect"), Some("plan"), Some("plan")),
    (Some("code"), Some("code"), Some("code")),
    (Some("build"), Some("code"), Some("code")),
    (Some("docs"), Some("docs"), Some("gone")),
    (Some("yolo"), Some("gone"), Some("gone")),
];

/// Stored values × configuration × command line. Lists show the mode in which the session opens. The column
/// and the newest row count alike. An alias is not reported as missing. The session keeps the mode in which
/// it opened.
#[test]
pub(super) fn stored_session_opens_in_the_listed_mode() {
    let fixture = BinaryFixture::new();
    let (base, store) = (fixture.path("base.db"), fixture.path("store.db"));
    let sessions: Vec<String> =
        STORED.iter().map(|_| fixture.session(base.to_str().unwrap(), "ask")).collect();
    let store_flag = ["--store", store.to_str().unwrap()];
    let mut cases = 0;
    for (default, command_line) in [
        (None, None),
        (None, Some("plan")),
        (Some("plan"), None),
        (Some("code"), None),
        (Some("plan"), Some("code")),
        (Some("docs"), None),
        (Some("docs"), Some("architect")),
    ] {
        let has_docs = default == Some("docs");
        let yaml = if has_docs { "modes: [{id: docs, extends: plan}]\n" } else { "" };
        fixture.modes(&format!(
            "{yaml}{}",
            default.map(|id| format!("default_mode: {id}\n")).unwrap_or_default()
        ));
        let fallback = match command_line.or(default) {
            Some("architect") => "plan",
            Some(id) => id,
            None => "ask",
        };
        for by_row in [false, true] {
            copy(&base, &store);
            let record = Connection::open(&store).unwrap();
            let mut expected = Vec::new();
            for (session, (stored, with, without)) in sessions.iter().zip(STORED) {
                let names = if has_docs { with } else { without };
                // The row has the mode, and the column has another value.
                let sql = if let (true, Some(_)) = (by_row, stored) {
                    record.execute("UPDATE sessions SET mode = 'code' WHERE id = ?1", [session]).unwrap();
                    "UPDATE mode_changes SET to_mode = ?2 WHERE session_id = ?1"
                } else {
                    record.execute("DELETE FROM mode_changes WHERE session_id = ?1", [session]).unwrap();
                    "UPDATE sessions SET mode = ?2 WHERE id = ?1"
                };
                record.execute(sql, (session, stored)).unwrap();
                expected.push((
                    names == Some("gone"),
                    match names {
                        None => fallback,
                        Some("gone") => "plan",
                        Some(id) => id,
                    },
                ));
            }
            drop(record);
            let arguments = [&store_flag[..], &command_line.map_or(vec![], |id| vec!["--mode", id])].concat();
            let mut requests = vec![("session/list", json!({}))];
            requests.extend(sessions.iter().map(|session| ("session/load", fixture.opening(session))));
            // In version 2, notices follow the answer. The last session has sent its own before the next answer.
            requests.push(("session/resume", fixture.opening(&sessions[sessions.len() - 1])));
            let listed = fixture.print(&[&arguments[..], &["sessions", "list", "--json"]].concat());
            let run_output = fixture.converse(&arguments, "error", &requests);
            let infos = run_output.answer(1)["result"]["sessions"].as_array().unwrap();
            for (at, (is_gone, mode)) in expected.iter().enumerate() {
                let case = format!("{:?} {default:?} {command_line:?} {by_row}", STORED[at].0);
                let id = &sessions[at];
                assert_eq!(opened(run_output.answer(i64::try_from(at).unwrap() + 2)), *mode, "{case}");
                let info = infos.iter().find(|info| info["sessionId"] == **id).unwrap();
                assert_eq!(info["_meta"]["modegate/mode"], *mode, "{case}");
                let line = listed.lines().find(|line| line.contains(id.as_str())).unwrap();
                assert_eq!(serde_json::from_str::<Value>(line).unwrap()["mode"], *mode, "{case}");
                let notices: Vec<&Value> = run_output
                    .messages
                    .iter()
                    .filter(|message| message["params"]["sessionId"] == **id)
                    .map(|message| &message["params"]["update"]["content"]["text"])
                    .filter(|text| text.as_str().is_some_and(|text| text.contains("no longer")))
                    .collect();
                assert_eq!(!notices.is_empty(), *is_gone, "{case}: {notices:?}");
                cases += 1;
            }
            // Another default no longer matters.
            fixture.modes("modes: [{id: docs, extends: plan}]\ndefault_mode: code\n");
            let again = fixture.converse(&store_flag, "error", &requests);
            for (at, (_, mode)) in expected.iter().enumerate() {
                assert_eq!(opened(again.answer(i64::try_from(at).unwrap() + 2)), *mode, "{:?}", STORED[at].0);
            }
            fixture.modes(&format!(
                "{yaml}{}",
                default.map(|id| format!("default_mode: {id}\n")).unwrap_or_default()
            ));
        }
    }
    assert_eq!(cases, 140);
}

/// The newest row by id decides, not the newest by time, and not the column (G43). A fork copies the mode.
#[test]
pub(super) fn newest_mode_change_row_decides_the_mode() {
    let fixture = BinaryFixture::new();
    let store = fixture.path("store.db");
    let flag = ["--store", store.to_str().unwrap()];
    for (column, rows, expected) in [
        ("code", &[("code", 1), ("plan", 2)][..], "plan"),
        ("plan", &[("plan", 1), ("code", 2)], "code"),
        // Earlier time, because the clock was set back.
        ("code", &[("code", 9), ("plan", 3)], "plan"),
        ("ask", &[("plan", 1), ("code", 1), ("ask", 1)], "ask"),
        ("plan", &[], "plan"),
    ] {
        let session = fixture.session(flag[1], "ask");
        let record = Connection::open(&store).unwrap();
        record.execute("DELETE FROM mode_changes WHERE session_id = ?1", [&session]).unwrap();
        record.execute("UPDATE sessions SET mode = ?2 WHERE id = ?1", (&session, column)).unwrap();
        for (mode, at) in rows {
            let sql = "INSERT INTO mode_changes (session_id, turn, to_mode, source, at) VALUES (?1, 0, ?2, 'set_mode', ?3)";
            record.execute(sql, (&session, mode, at)).unwrap();
        }
        drop(record);
        // Version 2 has no fork.
        let first = if over_version_2::is_on() { "session/resume" } else { "session/fork" };
        let requests = [(first, fixture.opening(&session)), ("session/resume", fixture.opening(&session))];
        let run_output = fixture.converse(&flag, "error", &requests);
        assert_eq!(
            (opened(run_output.answer(1)), opened(run_output.answer(2))),
            (expected, expected),
            "{column}, {rows:?}"
        );
    }
}

fn block(mode: &str) -> [Value; 2] {
    let text = format!(
        "So.\n```yaml\nmode_switch:\n  analysis: |\n    First line of why.\n    Second line of why.\n  new_mode: {mode}\n```\n"
    );
    [json!({ "text": text }), json!({ "stop": "done" })]
}

/// Updates and rows have the id of the mode, however the model spells its name. The user gets a short notice.
/// The complete reason is in the mode changes, in the replayed session and in the export.
#[test]
pub(super) fn in_band_switch_reports_mode_id_and_reason() {
    for (mode, spelled, to, outcome) in [
        ("code", "plan", "plan", "switched"),
        ("code", "PLAN", "plan", "switched"),
        ("code", "Architect", "plan", "switched"),
        ("plan", "Architect", "plan", "stayed"),
        // The question gets no answer, so the mode stays.
        ("plan", "Build", "code", "rejected"),
        ("code", "yolo", "yolo", "unknown_mode"),
    ] {
        let fixture = BinaryFixture::new();
        let model = fixture.script(&block(spelled));
        let store = fixture.path("store.db");
        let arguments = ["--store", store.to_str().unwrap(), "--model", &model, "--mode", mode];
        let run =
            fixture.command(&[&arguments[..], &["-p", "go", "--output", "stream-json"]].concat()).output();
        let stdout = String::from_utf8(run.unwrap().stdout).unwrap();
        crate::support::headless_output::check_lines(&stdout);
        let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let switches: Vec<&Value> = lines
            .iter()
            .map(|line| &line["update"]["_meta"]["modegate/mode_switch"])
            .filter(|switch| switch.is_object())
            .collect();
        let reason = "First line of why.\nSecond line of why.";
        let expected = json!({ "from": mode, "to": to, "analysis": reason, "outcome": outcome });
        assert_eq!(switches, [&expected], "{spelled}");
        let result = lines.last().unwrap();
        let notices = result["notices"].to_string();
        let is_switched = outcome == "switched";
        let notice = format!("The agent switched from {mode} mode to {to} mode: First line of why.");
        assert_eq!(notices.contains(&notice), is_switched, "{spelled}: {notices}");
        assert!(!notices.contains("Second line"), "a notice is short: {notices}");
        let session = result["sessionId"].as_str().unwrap();
        let flag = &arguments[..2];
        for command in [vec!["sessions", "show", session], vec!["sessions", "export", session]] {
            let shown = fixture.print(&[flag, &command].concat());
            for text in ["First line of why.", "Second line of why.", &format!("{mode} -> {to}")] {
                assert!(shown.contains(text), "{spelled}, {command:?}: {text}: {shown}");
            }
        }
        let log = fixture.print(&[flag, &["modes", "log"]].concat());
        assert_eq!(
            log.contains(&format!("{mode} -> {to}  in_band  First line of why.")),
            is_switched,
            "{log}"
        );
        assert_eq!(log.contains("\n    Second line of why.\n"), is_switched, "{log}");
    }
}

/// The warning names the mode, wherever the mode came from (G13). Known modes cause no warning.
#[test]
pub(super) fn unknown_modes_are_logged_by_name() {
    let fixture = BinaryFixture::new();
    let store = fixture.path("store.db");
    let flag = ["--store", store.to_str().unwrap()];
    let session = fixture.session(flag[1], "ask");
    for (mode, is_unknown) in [("nowhere", true), ("architect", false), ("CODE", false)] {
        let meta = json!({ "modegate/mode": mode });
        let text = |requests: &[(&str, Value)]| fixture.converse(&flag, "warn", requests).errors;
        let resume = ("session/resume", fixture.opening(&session));
        let new = ("session/new", json!({ "cwd": fixture.work(), "mcpServers": [], "_meta": meta }));
        let set = ("session/set_mode", json!({ "sessionId": session, "modeId": mode }));
        let option = json!({ "sessionId": session, "configId": "mode", "value": mode });
        let option = ("session/set_config_option", option);
        let mut logs = vec![
            ("_meta", text(&[new])),
            ("set_mode", text(&[resume.clone(), set])),
            ("option", text(&[resume.clone(), option])),
        ];
        let model = fixture.script(&block(mode));
        let arguments = [&flag[..], &["--mode", "plan", "--model", &model, "-p", "go"]].concat();
        let run = fixture.command(&arguments).env("MODEGATE_LOG", "warn").output().unwrap();
        logs.push(("in-band", String::from_utf8(run.stderr).unwrap()));
        let record = Connection::open(&store).unwrap();
        record
            .execute("UPDATE mode_changes SET to_mode = ?2 WHERE session_id = ?1", (&session, mode))
            .unwrap();
        drop(record);
        logs.push(("stored", text(&[resume])));
        for (fixture, log) in logs {
            let warned = log.lines().any(|line| line.contains(" WARN ") && line.contains(mode));
            assert_eq!(warned, is_unknown, "{fixture}, {mode}: {log}");
        }
    }
}

/// The debug log has the requests that begin and stop having a reminder, and the old and the new mode of a
/// change (G20, G48).
#[test]
pub(super) fn reminders_and_switches_are_logged_at_debug() {
    let fixture = BinaryFixture::new();
    let store = fixture.path("store.db");
    let flag = ["--store", store.to_str().unwrap()];
    let session = fixture.session(flag[1], "plan");
    let reply = [json!({ "text": "Yes." }), json!({ "stop": "done" }), json!({ "loop": true })];
    let model = fixture.script(&reply);
    let arguments = [&flag[..], &["--model", &model]].concat();
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "Hm?" }] });
    let prompt = ("session/prompt", prompt);
    let set = |mode: &str| ("session/set_mode", json!({ "sessionId": session, "modeId": mode }));
    let requests = [
        ("session/resume", fixture.opening(&session)),
        prompt.clone(),
        set("code"),
        prompt.clone(),
        prompt.clone(),
        set("plan"),
        prompt,
    ];
    let log = fixture.converse(&arguments, "debug", &requests).errors;
    let events: Vec<String> = log
        .lines()
        .filter_map(|line| {
            let mode = |text: &str| line.split(text).nth(1).and_then(|rest| rest.split(' ').next());
            if line.contains("reminder was inserted") {
                Some(format!("+{}", mode("mode=")?))
            } else if line.contains("reminder was removed") {
                Some(format!("-{}", mode("mode=")?))
            } else {
                line.contains("the mode changed")
                    .then(|| format!("{}>{}", mode("from=").unwrap_or("?"), mode("to=").unwrap_or("?")))
            }
        })
        .collect();
    // The first request after the switch to code has a reminder. The second turn has none.
    assert_eq!(events, ["+plan", "plan>code", "+code", "-code", "code>plan", "+plan"], "{log}");
    assert!(!fixture.converse(&arguments, "info", &requests).errors.contains("reminder"), "the control");
}
