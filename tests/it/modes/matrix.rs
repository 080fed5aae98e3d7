//! Every mode with every tool and a set of rules. Offered tools can be called, and the other tools have no
//! effect.
//!
//! The modes are the built-in ones and those of the examples in `docs/reference/modes-file.md`, which the
//! test reads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use modegate::acp::SessionModeId;
use modegate::agents::{AgentOrigin, AgentRegistry};
use modegate::mode::Modes;
use modegate::model::{Block, ModelEvent, ModelStop};
use modegate::permission::rules::Rules;
use modegate::policy::{LayerOwner, Layers};
use modegate::process::shell::Sandbox;
use modegate::store::StoreLocation;
use modegate::tool::Toolset;
use modegate::tool::web::fetch::FetchLimits;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::support::{Setup, TestClient, folder_for_stores, shell};
use crate::tools::fetch::{HttpServer, fetch_client};
use crate::tools::skills;

/// Returns a call of the tool that changes the working directory, a memory or a server, if the tool can.
fn call_of(tool: &str, url: &str) -> Value {
    match tool {
        "read_file" | "delete_file" => json!({ "path": "docs/a.md" }),
        "list_directory" | "directory_tree" => json!({ "path": "." }),
        "find_files" => json!({ "glob": "*.md" }),
        "search_files" => json!({ "pattern": "old" }),
        "todo" => json!({ "items": [{ "content": "x" }] }),
        "ask_user" => json!({ "questions": [{ "question": "x?", "choices": ["y"] }] }),
        "switch_mode" => json!({ "plan": "1. x" }),
        "write_file" => json!({ "path": "docs/new.md", "content": "x" }),
        "edit_file" => json!({ "path": "docs/a.md", "old_text": "old", "new_text": "new" }),
        "apply_patch" => json!({ "patch": "--- a/docs/a.md\n+++ b/docs/a.md\n@@ -1 +1 @@\n-old\n+new\n" }),
        "move_file" => json!({ "from": "docs/a.md", "to": "docs/b.md" }),
        "shell" => json!({ "command": "echo x > docs/by_shell.md" }),
        "shell_read_only" => json!({ "command": "cat docs/a.md; echo x > docs/by_shell.md" }),
        "view_background" | "list_skills" => json!({}),
        "stop_background" => json!({ "id": "job_1" }),
        "fetch" => json!({ "url": url }),
        "read_memories" => json!({ "query": "old" }),
        "save_memory" => json!({ "id": "mem_1", "text": "new" }),
        "read_skill" => json!({ "name": "one" }),
        "run_skill" => json!({ "skill": "one", "task": "x" }),
        "delegate" => json!({ "task": "x" }),
        "handoff" => json!({ "agent": "own" }),
        tool => panic!("{tool} has no call here yet: add one"),
    }
}

/// Tools whose calls change the working directory or a memory.
const CHANGES: [&str; 7] =
    ["write_file", "edit_file", "apply_patch", "move_file", "delete_file", "shell", "save_memory"];

const RULES: [&str; 4] = [
    "",
    "permissions: {deny: [write_file, 'shell(echo *)', 'read_file(docs/**)', shell_read_only, save_memory, \
     'fetch(http://127.0.0.1/*)']}",
    "permissions: {ask: ['*'], deny: ['edit_*']}",
    "permissions: {allow: ['*']}",
];

/// The built-in modes, and those of the page's first YAML block that begins with `modes:`.
fn layers(rules: &str) -> Layers {
    let page = include_str!("../../../docs/reference/modes-file.md");
    let worked = page.split("```yaml\n").find(|block| block.starts_with("modes:")).expect("worked modes");
    let mut layers = Layers::default();
    layers
        .add("docs/reference/modes-file.md", worked.split("```").next().unwrap(), LayerOwner::User)
        .unwrap();
    layers.add("rules", rules, LayerOwner::User).unwrap();
    layers
}

fn contents(folder: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                all.insert(path.display().to_string(), std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    all
}

fn memories(file: &Path) -> Vec<(String, String)> {
    let record = Connection::open(file).unwrap();
    let mut statement = record.prepare("SELECT number || folder, text FROM memories").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[allow(clippy::struct_excessive_bools, reason = "each is one observation")]
struct Observation {
    offered: bool,
    ran: bool,
    changed: bool,
    denied: Option<String>,
    has_result: bool,
    recorded: bool,
    fetched: bool,
    /// The text of the call's last update.
    text: String,
}

/// Makes one call in a mode. The client approves every permission request.
async fn force(modes: &Modes, rules: &Rules, mode: &SessionModeId, tool: &str) -> Observation {
    let home = tempfile::tempdir().unwrap();
    let mode: &'static str = Box::leak(mode.0.to_string().into_boxed_str());
    let site = HttpServer::start().await;
    let tools = Toolset::built_in()
        .with_fetch(Arc::new(fetch_client(&site)), FetchLimits::default())
        .with_shell(shell(home.path(), Sandbox::Workspace));
    let url = site.url("/json");
    let skills = Arc::new(Mutex::new(skills::some(home.path(), &[("one", "One.", "Do it.")])));
    let (modes, rules) = (modes.clone(), rules.clone());
    let store_folder = folder_for_stores();
    let file = store_folder.path().join("store.db");
    let store = StoreLocation::File(file.clone());
    let (agents, defaults) = ("[{id: own}]", Setup::default());
    let mut client = TestClient::with(Setup { mode, store, tools, agents, modes, rules, skills, ..defaults });
    let cwd = client.cwd();
    std::fs::create_dir(cwd.join("docs")).unwrap();
    std::fs::write(cwd.join("docs/a.md"), "old\n").unwrap();
    let session = client.session().await;
    let remembered = "INSERT INTO memories (folder, text, created_at, updated_at) VALUES (?1, 'old', 1, 1)";
    Connection::open(&file).unwrap().execute(remembered, [cwd.to_str().unwrap()]).unwrap();
    let before = (contents(&cwd), memories(&file));
    let prompt = client.prompt(&session, "go").await;
    // A read before the call, because edits need one.
    client.model.say(
        &session,
        Ok(ModelEvent::ToolCall {
            id: "r".into(),
            name: "read_file".into(),
            arguments: call_of("read_file", &url),
        }),
    );
    client.model.say(
        &session,
        Ok(ModelEvent::ToolCall { id: "forced".into(), name: tool.into(), arguments: call_of(tool, &url) }),
    );
    for _ in 0..2 {
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }
    // The reply of a sub-agent.
    client.model.say("sess_2", Ok(ModelEvent::Text("done".into())));
    client.model.say("sess_2", Ok(ModelEvent::Stop(ModelStop::Done)));
    let mut update = Value::Null;
    loop {
        let message = client.next().await;
        if message["method"] == "session/request_permission" {
            let option = &message["params"]["options"][0]["optionId"];
            let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
            client
                .send_line(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome }).to_string())
                .await;
        } else if message["id"] == prompt {
            break;
        } else if message["params"]["update"]["toolCallId"] == "call_1_2"
            && matches!(message["params"]["update"]["status"].as_str(), Some("completed" | "failed"))
        {
            update = message["params"]["update"].clone();
        }
    }
    if client.model.requests(&session).len() == 1 {
        // A question in the chat ends the turn. The next prompt answers the question.
        let answer = client.prompt(&session, "1").await;
        client.until_answer(answer).await;
    }
    let requests = client.model.requests(&session);
    let offered = requests[0].tools.iter().any(|offer| offer.name == tool);
    let has_result = requests[1]
        .messages
        .iter()
        .flat_map(|message| &message.blocks)
        .any(|block| matches!(block, Block::ToolResult { id, .. } if id == "forced"));
    let denied = update["_meta"]["modegate/denied"].as_str().map(str::to_owned);
    let ran = denied.is_none() && !update.is_null();
    let changed = (contents(&cwd), memories(&file)) != before;
    let fetched = site.asked() > 0;
    client.end().await;
    let record = Connection::open(file).unwrap();
    let query = "SELECT count(*) FROM denials WHERE tool = ?1 AND tool_call_id = 'call_1_2' AND mode = ?2";
    let rows: i64 = record.query_row(query, [tool, mode], |row| row.get(0)).unwrap();
    Observation {
        offered,
        ran,
        changed,
        denied,
        has_result,
        recorded: rows == 1,
        fetched,
        text: update["content"].to_string(),
    }
}

#[tokio::test]
pub(super) async fn offered_tools_run_and_other_tools_have_no_effect() {
    let mut cells = 0;
    for rules in RULES {
        let layers = layers(rules);
        let home = tempfile::tempdir().unwrap();
        let workspace = modegate::workspace::Workspace::new(home.path(), &[]).unwrap();
        let (all, _) = Toolset::built_in()
            .with_shell(shell(Path::new("/nowhere"), Sandbox::Workspace))
            .for_session(&workspace, &Rules::default());
        let mut agents = AgentRegistry::default();
        agents.add(&serde_saphyr::from_str::<Vec<_>>("[{id: own}]").unwrap(), AgentOrigin::User).unwrap();
        let all =
            all.with_agents(&agents).with_skills(&skills::some(home.path(), &[("one", "One.", "Do it.")]));
        let unknown = all.iter().find_map(|tool| modegate::tool::unknown_tool(&tool.spec().name));
        assert_eq!(unknown, None, "a file of modes can name every tool");
        for tool in all.iter().map(modegate::tool::Tool::spec) {
            assert_eq!(modegate::tool::effect_of(&tool.name), Some(tool.effect), "{}", tool.name);
        }
        for mode in layers.modes.iter() {
            for tool in all.iter().map(|tool| &*tool.spec().name) {
                let cell = force(&layers.modes, &layers.rules, &mode.mode_id(), tool).await;
                let case = format!("{rules} {} {tool}", mode.id);
                cells += 1;
                assert!(cell.has_result, "a result with the call's id: {case}");
                assert!(!cell.text.contains("Invalid arguments"), "{case}: {}", cell.text);
                if cell.offered {
                    // A rule or a mode can deny this call because of its arguments, and still allow the tool.
                    let by_argument = matches!(cell.denied.as_deref(), Some("deny_rule" | "write_paths"));
                    assert!(cell.ran || by_argument, "{case}: {:?}", cell.denied);
                } else {
                    assert!(!cell.ran && cell.denied.is_some(), "{case}");
                }
                assert_eq!(cell.recorded, cell.denied.is_some(), "a row for each denial: {case}");
                let may_change = cell.ran && CHANGES.contains(&tool);
                assert_eq!(cell.fetched, cell.ran && tool == "fetch", "{case}");
                assert_eq!(cell.changed, may_change, "{case}: {:?}", cell.denied);
            }
        }
    }
    println!("{cells} calls were forced");
    assert!(cells >= 400, "{cells}");
}
