//! The contract of session modes, where plays cover it only in passing: the tools that each mode offers, how
//! a mode is read and changed, the effect of a failed reply and of an unknown target (none), and the stored
//! rows.

use std::collections::BTreeSet;

use modegate::model::{Block, ModelError, ModelEvent, ModelRequest, ModelStop, ToolOffer};
use modegate::policy::{LayerOwner, Layers};
use modegate::process::shell::Sandbox;
use modegate::store::StoreLocation;
use modegate::tool::Toolset;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::binary_client::BinaryClient;
use crate::support::requirements::require_sandbox;
use crate::support::{Setup, TestClient, shell};
use crate::tools::skills;

/// Every built-in tool, and the built-in modes whose requests offer it: ask, plan, code.
///
/// A test fails if a tool is added or removed, or if a mode offers other tools. Decide about the change
/// first, then update this list.
const OFFERED: &[(&str, [bool; 3])] = &[
    ("apply_patch", [true, false, true]),
    ("ask_user", [true, true, true]),
    ("delegate", [true, true, true]),
    ("delete_file", [true, false, true]),
    ("directory_tree", [true, true, true]),
    ("edit_file", [true, false, true]),
    ("fetch", [true, true, true]),
    ("find_files", [true, true, true]),
    ("handoff", [true, true, true]),
    ("list_directory", [true, true, true]),
    ("list_skills", [true, true, true]),
    ("move_file", [true, false, true]),
    ("read_file", [true, true, true]),
    ("read_memories", [true, true, true]),
    ("read_skill", [true, true, true]),
    ("run_skill", [true, true, true]),
    ("save_memory", [true, false, true]),
    ("search_files", [true, true, true]),
    ("shell", [true, false, true]),
    ("shell_read_only", [true, true, true]),
    ("stop_background", [true, true, true]),
    ("switch_mode", [false, true, false]),
    ("todo", [true, true, true]),
    ("view_background", [true, true, true]),
    ("write_file", [true, false, true]),
];

fn names(request: &ModelRequest) -> BTreeSet<String> {
    request.tools.iter().map(|tool| tool.name.clone()).collect()
}

fn expected(mode: usize) -> BTreeSet<String> {
    let offered = OFFERED.iter().filter(|(_, modes)| modes[mode]);
    offered.map(|(name, _)| (*name).to_owned()).collect()
}

/// Each mode offers exactly these tools in the first request and after a switch, with the built-in agent and
/// with a user's agent (D20 to D24).
#[tokio::test]
pub(super) async fn each_mode_offers_exactly_these_tools_to_every_agent() {
    require_sandbox();
    for agent in ["", "own"] {
        let home = tempfile::tempdir().unwrap();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let skills = std::sync::Arc::new(std::sync::Mutex::new(skills::some(
            home.path(),
            &[("one", "One.", "Do it.")],
        )));
        let setup =
            Setup { mode: "code", tools, skills, agents: "[{id: own}, {id: other}]", ..Setup::default() };
        let mut client = TestClient::with(setup);
        let session = client.session().await;
        if !agent.is_empty() {
            let params = json!({ "sessionId": session, "configId": "agent", "value": agent });
            let id = client.request("session/set_config_option", params).await;
            let answer = client.until_answer(id).await.pop().unwrap();
            assert!(answer.get("error").is_none(), "{answer}");
        }
        // From code to plan and ask, and back.
        for (number, mode) in [(2, "code"), (1, "plan"), (0, "ask"), (1, "plan"), (2, "code")] {
            let params = json!({ "sessionId": session, "modeId": mode });
            let id = client.request("session/set_mode", params).await;
            client.until_answer(id).await;
            let prompt = client.prompt(&session, "go").await;
            let request = client.model.next_request(&session).await;
            client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
            client.until_answer(prompt).await;
            assert_eq!(names(&request), expected(number), "{agent:?} in {mode}");
        }
        client.end().await;
    }
}

/// Every request contains all tools, so their number and size stay small: at most 20 tools and 11 KiB in
/// `code`.
#[tokio::test]
pub(super) async fn tools_of_the_first_request_are_few_and_lean() {
    require_sandbox();
    for (mode, most_tools, most_bytes) in
        [("plan", 15, 8_500), ("ask", 20, 11 * 1024), ("code", 20, 11 * 1024)]
    {
        let home = tempfile::tempdir().unwrap();
        let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
        let mut client = TestClient::with(Setup { mode, tools, ..Setup::default() });
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        let request = client.model.next_request(&session).await;
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        client.until_answer(prompt).await;
        client.end().await;
        let size = |tool: &ToolOffer| {
            let schema = tool.schema.to_value();
            let noise = ["\"null\"", ":null", "format", "$schema"];
            let text = schema.to_string();
            assert!(!noise.iter().any(|noise| text.contains(noise)), "{}: {text}", tool.name);
            let ToolOffer { name, description, .. } = tool;
            json!({ "name": name, "description": description, "input_schema": schema }).to_string().len()
        };
        let bytes: usize = request.tools.iter().map(size).sum();
        println!("{mode}: {} tools, {bytes} bytes", request.tools.len());
        assert!(request.tools.len() <= most_tools, "{mode}: {} tools", request.tools.len());
        assert!(bytes <= most_bytes, "{mode}: {bytes} bytes");
    }
}

/// The reminder names no tool that the request lacks (D38), and in plan no tool that changes files.
#[tokio::test]
pub(super) async fn reminder_names_only_offered_tools() {
    for mode in ["ask", "plan", "code"] {
        let mut client = TestClient::with(Setup { mode, ..Setup::default() });
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        let request = client.model.next_request(&session).await;
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        client.until_answer(prompt).await;
        client.end().await;
        let reminder = reminders(&request).concat();
        assert_eq!(reminder.is_empty(), mode == "code", "{mode}: {reminder}");
        let offered = names(&request);
        let words: BTreeSet<&str> =
            reminder.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
        // Words without an underscore are ordinary words. The reminder mentions `shell_read_only` with the
        // condition "where it is among the tools".
        let is_name = |name: &&str| name.contains('_') && *name != "shell_read_only" && words.contains(name);
        for name in OFFERED.iter().map(|(name, _)| *name).filter(is_name) {
            assert!(offered.contains(name), "{name} is named in {mode}, and not offered: {reminder}");
        }
    }
}

/// Without this text, models ask the user before `git log`.
#[tokio::test]
pub(super) async fn every_request_in_ask_names_asked_and_free_calls() {
    require_sandbox();
    let home = tempfile::tempdir().unwrap();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let mut client = TestClient::with(Setup { mode: "ask", tools, ..Setup::default() });
    let session = client.session().await;
    let mut seen = Vec::new();
    for prompt in ["one", "two"] {
        let prompt = client.prompt(&session, prompt).await;
        let request = client.model.next_request(&session).await;
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        client.until_answer(prompt).await;
        seen.push(reminders(&request).concat());
    }
    client.end().await;
    let text = "<system-reminder>\nAsk mode is on.\nUnless already allowed, the user is asked before: changing files, fetch, changing memories, \
        shell. Allowed in the session's folders without asking: reading and searching, shell_read_only.\n\
        </system-reminder>";
    assert_eq!(seen, [text, text]);
}

fn reminders(request: &ModelRequest) -> Vec<String> {
    let blocks = request.messages.iter().flat_map(|message| &message.blocks);
    blocks
        .filter_map(|block| if let Block::Reminder(text) = block { Some(text.clone()) } else { None })
        .collect()
}

/// D8.
#[tokio::test]
pub(super) async fn load_resume_and_list_return_the_current_mode() {
    let mut client = TestClient::new();
    let session = client.session().await;
    let cwd = client.cwd();
    let prompt = client.prompt(&session, "go").await;
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.until_answer(prompt).await;
    for mode in ["plan", "code", "ask", "plan"] {
        let id = client.request("session/set_mode", json!({ "sessionId": session, "modeId": mode })).await;
        client.until_answer(id).await;
        let params = json!({ "sessionId": session, "cwd": cwd, "mcpServers": [] });
        for method in ["session/resume", "session/load"] {
            let id = client.request(method, params.clone()).await;
            let answer = client.until_answer(id).await.pop().unwrap();
            assert_eq!(answer["result"]["modes"]["currentModeId"], mode, "{method}: {answer}");
            let option = answer["result"]["configOptions"].as_array().unwrap();
            let option = option.iter().find(|option| option["id"] == "mode").unwrap();
            assert_eq!(option["currentValue"], mode, "{method}: {answer}");
        }
        let id = client.request("session/list", json!({})).await;
        let answer = client.until_answer(id).await.pop().unwrap();
        assert_eq!(answer["result"]["sessions"][0]["_meta"]["modegate/mode"], mode, "{answer}");
    }
    client.end().await;
}

/// An unknown, closed or deleted session is an error of `session/set_mode` and of the mode option (D13).
#[tokio::test]
pub(super) async fn mode_of_unknown_sessions_cannot_be_changed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store.db");
    let mut client = TestClient::with(Setup { store: StoreLocation::File(file.clone()), ..Setup::default() });
    let mut sessions = vec!["sess_unknown".to_owned()];
    for end in ["session/close", "session/delete"] {
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        client.until_answer(prompt).await;
        let id = client.request(end, json!({ "sessionId": session })).await;
        let answer = client.until_answer(id).await.pop().unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
        sessions.push(session);
    }
    let open = client.session().await;
    for (session, code) in
        sessions.iter().map(|session| (session, json!(-32002))).chain([(&open, Value::Null)])
    {
        for (method, params) in [
            ("session/set_mode", json!({ "sessionId": session, "modeId": "plan" })),
            (
                "session/set_config_option",
                json!({ "sessionId": session, "configId": "mode", "value": "plan" }),
            ),
        ] {
            let id = client.request(method, params).await;
            let answer = client.until_answer(id).await.pop().unwrap();
            assert_eq!(answer["error"]["code"], code, "{method}: {answer}");
            if !code.is_null() {
                assert_eq!(answer["error"]["data"]["sessionId"], json!(session), "{answer}");
            }
        }
    }
    client.end().await;
    let changed = modegate::store::log::mode_changes(&file, None).unwrap();
    let to_plan: Vec<&str> =
        changed.iter().filter(|row| row.to == "plan").map(|row| row.session.as_str()).collect();
    assert_eq!(to_plan, [open.as_str()]);
}

/// The default is `ask`. The user's file overrides the default, and the command line overrides the file (G6).
#[test]
pub(super) fn default_mode_is_configurable() {
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join(".config/modegate");
    std::fs::create_dir_all(&settings).unwrap();
    let first = |arguments: &[&str]| {
        let (mut binary, _) = BinaryClient::start(dir.path(), arguments);
        let params = json!({ "cwd": dir.path(), "mcpServers": [] });
        let answer = binary.call(2, "session/new", &params).pop().unwrap();
        binary.end();
        answer["result"]["modes"]["currentModeId"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(first(&[]), "ask");
    std::fs::write(settings.join("modes.yaml"), "default_mode: plan\n").unwrap();
    assert_eq!(first(&[]), "plan");
    assert_eq!(first(&["--mode", "code"]), "code");
    std::fs::write(settings.join("modes.yaml"), "default_mode: Mine\nmodes: [{id: mine, extends: plan}]\n")
        .unwrap();
    assert_eq!(first(&[]), "mine", "a name in any case, of a mode of the user's own");
}

/// G16.
#[tokio::test]
pub(super) async fn mode_prompt_is_trimmed_inside_the_reminder() {
    let mut layers = Layers::default();
    let text = "modes:\n- {id: kind, extends: plan, prompt: \"\\n\\n  Be kind.\\n  Be brief. \\n\\n\"}\n";
    layers.add("modes.yaml", text, LayerOwner::User).unwrap();
    let mut client = TestClient::with(Setup { mode: "kind", modes: layers.modes, ..Setup::default() });
    let session = client.session().await;
    let prompt = client.prompt(&session, "go").await;
    let request = client.model.next_request(&session).await;
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.until_answer(prompt).await;
    client.end().await;
    let reminders = reminders(&request);
    let [reminder] = reminders.as_slice() else { panic!("{reminders:?}") };
    assert!(
        reminder.starts_with("<system-reminder>\n") && reminder.ends_with("\n</system-reminder>"),
        "{reminder}"
    );
    assert_eq!(reminder.matches("\nBe kind.\n  Be brief.\n").count(), 1, "{reminder}");
    assert!(reminder.contains("kind mode is on"), "{reminder}");
    assert!(reminder.lines().all(|line| !line.trim().is_empty()), "no line is empty: {reminder}");
}

/// Runs a turn whose model writes a switch block in `code` and then ends its reply in this way. Returns the
/// prompt's answer and the recorded targets.
async fn outcome_of_block(
    block: &str,
    end: Result<ModelEvent, ModelError>,
) -> (Value, Vec<String>, Vec<Value>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store.db");
    let mut client = TestClient::with(Setup {
        mode: "code",
        store: StoreLocation::File(file.clone()),
        ..Setup::default()
    });
    let session = client.session().await;
    let prompt = client.prompt(&session, "go").await;
    client.model.say(&session, Ok(ModelEvent::Text(block.into())));
    client.model.say(&session, end);
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let mut messages = client.until_answer(prompt).await;
    let answer = messages.pop().unwrap();
    client.end().await;
    let rows = modegate::store::log::mode_changes(&file, Some(&session)).unwrap();
    (answer, rows.into_iter().map(|row| row.to).collect(), messages)
}

const SWITCH: &str = "```yaml\nmode_switch: {analysis: Careful., new_mode: plan}\n```\n";

/// The prompt is answered with the model's error, and a switch block before the error has no effect (G36,
/// G39).
#[tokio::test]
pub(super) async fn failed_reply_switches_no_mode() {
    let (answer, changes, messages) = outcome_of_block(SWITCH, Err(ModelError::new("the model broke"))).await;
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("the model broke"), "{answer}");
    assert_eq!(changes, ["code"]);
    let update = |message: &Value| {
        message["params"]["update"]["sessionUpdate"].as_str().unwrap_or_default().to_owned()
    };
    assert!(!messages.iter().any(|message| update(message) == "current_mode_update"), "{messages:?}");
    let (answer, changes, messages) = outcome_of_block(SWITCH, Ok(ModelEvent::Stop(ModelStop::Done))).await;
    assert_eq!(answer["result"]["stopReason"], "end_turn", "the control: {answer}");
    assert_eq!(changes, ["code", "plan"], "the control");
    assert!(messages.iter().any(|message| update(message) == "current_mode_update"), "the control");
}

/// An unknown target is neither applied nor recorded, and the model gets the list of modes (G36).
#[tokio::test]
pub(super) async fn unknown_switch_target_is_reported_to_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store.db");
    let mut client = TestClient::with(Setup {
        mode: "code",
        store: StoreLocation::File(file.clone()),
        ..Setup::default()
    });
    let session = client.session().await;
    for (target, is_known) in [("yolo", false), ("plan", true)] {
        let prompt = client.prompt(&session, "go").await;
        client.model.next_request(&session).await;
        let block = format!("```yaml\nmode_switch: {{analysis: Further., new_mode: {target}}}\n```\n");
        client.model.say(&session, Ok(ModelEvent::Text(block)));
        let arguments = json!({});
        client.model.say(
            &session,
            Ok(ModelEvent::ToolCall { id: "t".into(), name: "view_background".into(), arguments }),
        );
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        let request = client.model.next_request(&session).await;
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        client.until_answer(prompt).await;
        let text = reminders(&request).concat();
        assert_eq!(names(&request).contains("write_file"), !is_known, "{target}");
        assert_eq!(text.contains("yolo"), !is_known, "the model is told: {text}");
        assert!(is_known || text.contains("ask, plan, code"), "what is valid: {text}");
    }
    client.end().await;
    let rows = modegate::store::log::mode_changes(&file, Some(&session)).unwrap();
    let changes: Vec<_> = rows.iter().map(|row| row.to.as_str()).collect();
    assert_eq!(changes, ["code", "plan"]);
}

/// The columns, their null values, growing ids, the index, and the documented queries (G42, G56).
#[tokio::test]
pub(super) async fn mode_changes_table_has_the_documented_columns() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store.db");
    let mut client = TestClient::with(Setup { store: StoreLocation::File(file.clone()), ..Setup::default() });
    let session = client.session().await;
    let prompt = client.prompt(&session, "go").await;
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.until_answer(prompt).await;
    let id = client.request("session/set_mode", json!({ "sessionId": session, "modeId": "plan" })).await;
    client.until_answer(id).await;
    client.end().await;
    let record = Connection::open(file).unwrap();
    let answers: Vec<String> = include_str!("../../../docs/reference/audit-log.md")
        .split("```sql\n")
        .skip(1)
        .map(|block| {
            let mut query = record.prepare(block.split("```").next().unwrap()).unwrap();
            let count = query.column_count();
            let mut rows = query.query([]).unwrap();
            let mut text = String::new();
            while let Some(row) = rows.next().unwrap() {
                for column in 0..count {
                    text += &match row.get_ref(column).unwrap() {
                        rusqlite::types::ValueRef::Integer(number) => format!("{number} "),
                        rusqlite::types::ValueRef::Text(text) => {
                            format!("{} ", String::from_utf8_lossy(text))
                        }
                        _ => "null ".into(),
                    };
                }
            }
            text
        })
        .collect();
    let [transitions, time] = answers.as_slice() else { panic!("{answers:?}") };
    assert!(transitions.contains("start null ask 1") && transitions.contains("ask plan 1"), "{transitions}");
    let milliseconds = time.trim().strip_prefix("ask ").and_then(|number| number.parse::<u64>().ok());
    assert!(milliseconds.is_some_and(|milliseconds| milliseconds > 0), "{time}");
    let mut statement =
        record.prepare("SELECT name, type, \"notnull\" FROM pragma_table_info('mode_changes')").unwrap();
    let columns: Vec<String> = statement
        .query_map([], |row| {
            let (name, kind, filled): (String, String, bool) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(format!("{name} {kind}{}", if filled { "" } else { ", may be null" }))
        })
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for column in [
        "session_id TEXT",
        "turn INTEGER",
        "from_mode TEXT, may be null",
        "to_mode TEXT",
        "source TEXT",
        "at INTEGER",
        "analysis TEXT, may be null",
        "actor TEXT, may be null",
    ] {
        assert!(columns.iter().any(|name| name == column), "{column}: {columns:?}");
    }
    let definition = |name: &str| -> String {
        let query = "SELECT sql FROM sqlite_master WHERE name = ?1";
        record.query_row(query, [name], |row| row.get(0)).unwrap()
    };
    assert!(definition("mode_changes").contains("id INTEGER PRIMARY KEY AUTOINCREMENT"));
    assert!(definition("mode_changes_by_session").contains("(session_id, id)"));
}
