//! Calls by the names of other agents are decided, asked about and recorded as calls of the own tool.

use std::fs;
use std::sync::Arc;

use modegate::permission::rules::{RuleTexts, Rules};
use modegate::process::shell::Sandbox;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::support::tool_calls::Turns;
use crate::support::{Setup, shell};

/// Calls that change something, by another name, and as the own tool has it.
fn writes() -> Vec<(&'static str, Value, &'static str, Value)> {
    let created = |path: &str| json!({ "path": path, "content": "x" });
    let edited = json!({ "path": "a.txt", "old_text": "old", "new_text": "x" });
    let patch = "*** Begin Patch\n*** Add File: new.txt\n+x\n*** End Patch";
    vec![
        ("Write", json!({ "file_path": "new.txt", "content": "x" }), "write_file", created("new.txt")),
        ("write_to_file", created("new.txt"), "write_file", created("new.txt")),
        ("functions.write_file", created("new.txt"), "write_file", created("new.txt")),
        (
            "str_replace_based_edit_tool",
            json!({ "command": "create", "path": "new.txt", "file_text": "x" }),
            "write_file",
            created("new.txt"),
        ),
        (
            "Edit",
            json!({ "file_path": "a.txt", "old_string": "old", "new_string": "x" }),
            "edit_file",
            edited.clone(),
        ),
        (
            "str_replace_editor",
            json!({ "command": "str_replace", "path": "a.txt", "old_str": "old", "new_str": "x" }),
            "edit_file",
            edited,
        ),
        ("ApplyPatch", json!({ "input": patch }), "apply_patch", json!({ "patch": patch })),
        (
            "mv",
            json!({ "source": "a.txt", "destination": "b.txt" }),
            "move_file",
            json!({ "from": "a.txt", "to": "b.txt" }),
        ),
        ("remove_file", json!({ "target_file": "a.txt" }), "delete_file", json!({ "path": "a.txt" })),
    ]
}

fn rules(yaml: &str) -> Rules {
    let yaml = if yaml.is_empty() { "{}" } else { yaml };
    serde_saphyr::from_str::<RuleTexts>(yaml).unwrap().compile(true).unwrap()
}

/// Makes one call. Returns the text for the model, the last update without its id, and whether a file changed.
async fn outcome(mode: &'static str, yaml: &str, name: &str, arguments: Value) -> (String, Value, bool) {
    let home = tempfile::tempdir().unwrap();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Off));
    let mut turns = Turns::new(Setup { mode, rules: rules(yaml), tools, ..Setup::default() }).await;
    // The folder outlives the client.
    let dir = Arc::clone(&turns.client.dir);
    let work = dir.path().join("work");
    fs::write(work.join("a.txt"), "old\n").unwrap();
    let (questions, update) = turns.call(name, arguments, 0).await;
    assert!(questions.is_empty(), "{name} in {mode}");
    let result = turns.result();
    turns.client.end().await;
    let names: Vec<_> = fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let is_changed = names != ["a.txt"] || fs::read_to_string(work.join("a.txt")).unwrap() != "old\n";
    let shown = json!([update["content"], update["_meta"], update["title"], update["rawOutput"]]);
    (result, shown, is_changed)
}

#[tokio::test]
pub(super) async fn other_names_are_refused_in_plan_as_the_tool_itself() {
    for (name, given, own, arguments) in writes() {
        let (text, shown, is_changed) = outcome("plan", "", name, given.clone()).await;
        let (own_text, own_shown, _) = outcome("plan", "", own, arguments).await;
        assert!(!is_changed, "{name}");
        assert_eq!(shown, own_shown, "{name}: {text}");
        assert!(shown[1]["modegate/denied"].is_string(), "{name}: {shown}");
        assert!(text.starts_with(&own_text), "{name}: {text:?} {own_text:?}");
        let (text, _, is_changed) = outcome("code", "", name, given).await;
        assert!(is_changed && text.contains(&format!("{name} is {own} here")), "the control: {name}: {text}");
    }
}

#[tokio::test]
pub(super) async fn rules_by_name_hold_for_other_names() {
    for (name, given, own, arguments) in writes() {
        let yaml = format!("deny: [{own}]\n");
        let (_, shown, is_changed) = outcome("code", &yaml, name, given).await;
        let (_, own_shown, _) = outcome("code", &yaml, own, arguments).await;
        assert!(!is_changed && shown[1]["modegate/denied"].is_string(), "{name}: {shown}");
        assert_eq!(shown, own_shown, "{name}");
    }
    for (yaml, is_changed) in [("deny: ['shell(touch *)']\n", false), ("deny: ['shell(rm *)']\n", true)] {
        let given = json!({ "cmd": ["bash", "-lc", "touch new.txt"], "justification": "please" });
        let (text, _, has_changed) = outcome("code", yaml, "exec_command", given).await;
        assert_eq!(has_changed, is_changed, "{yaml}: {text}");
    }
}

#[tokio::test]
pub(super) async fn questions_and_records_show_the_own_tool() {
    let mut turns = Turns::new(Setup { mode: "ask", ..Setup::default() }).await;
    let given = json!({ "file_path": "new.txt", "content": "x", "explanation": "why" });
    let (questions, _) = turns.call("Write", given, 0).await;
    let call = &questions[0]["toolCall"];
    assert_eq!(call["name"], "write_file", "{call}");
    assert_eq!(call["rawInput"], json!({ "path": "new.txt", "content": "x" }));
    assert!(!questions[0].to_string().contains("why"), "{questions:?}");
    let request = turns.client.model.requests(&turns.session).pop().unwrap();
    let blocks: Vec<String> = request
        .messages
        .iter()
        .flat_map(|message| &message.blocks)
        .map(|block| format!("{block:?}"))
        .collect();
    let call = blocks.iter().find(|block| block.starts_with("ToolCall")).unwrap();
    assert!(call.contains("\"write_file\"") && !call.contains("Write"), "{call}");
    let result = turns.result();
    assert!(
        result.ends_with("\n[Write is write_file here; `file_path` is `path`; ignored: `explanation`.]"),
        "{result}"
    );
    turns.client.end().await;
}

/// An unknown name gets no tool of another kind.
#[tokio::test]
pub(super) async fn unknown_names_have_no_effect() {
    for (name, expected) in [
        ("create_branch", "Use only the tools"),
        ("Write_All_Files", "Use only the tools"),
        ("edit_fil", "Did you mean edit_file?"),
        ("NotebookEdit", "Use edit_file on the JSON of the notebook."),
    ] {
        let given = json!({ "path": "new.txt", "content": "x", "old_text": "old", "new_text": "x" });
        let (text, _, is_changed) = outcome("code", "", name, given).await;
        assert!(!is_changed && text.contains(expected), "{name}: {text}");
    }
}
