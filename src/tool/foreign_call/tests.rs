use serde_json::json;

use super::advice::suggestion;
use super::no_tools::NO_TOOLS;
use super::*;
use crate::tool::{Toolset, skill};

struct Tools {
    all: &'static [&'static str],
    offered: &'static [&'static str],
}

impl ToolNames for Tools {
    fn exists(&self, name: &str) -> bool {
        self.all.contains(&name)
    }

    fn is_offered(&self, name: &str) -> bool {
        self.offered.contains(&name)
    }

    fn of_servers(&self) -> Vec<ServerToolName> {
        of_servers()
    }
}

const ALL: [&str; 8] = [
    "read_file",
    "list_directory",
    "directory_tree",
    "write_file",
    "shell",
    "shell_read_only",
    "mcp__s__view",
    "bash_tool",
];

fn of_servers() -> Vec<ServerToolName> {
    let known = |name: &str, server: &str, tool: &str| ServerToolName {
        name: name.into(),
        server: server.into(),
        tool: tool.into(),
    };
    vec![
        known("mcp__my_tools_18dad7__add", "my tools", "add"),
        known("mcp__my_tools_18dad7__get_issue_0c11ab", "my tools", "get.issue"),
        known("mcp__other__get_issue", "other", "get_issue"),
        known("mcp__s__view", "s", "view"),
    ]
}

fn own(tool: &str, is_offered: bool) -> NamedTool {
    NamedTool::Own { tool: tool.into(), is_offered }
}

#[test]
fn names_of_others_mean_an_own_tool() {
    let tools = Tools { all: &ALL, offered: &ALL };
    let check = |name: &str, given: Value, expected: NamedTool| {
        assert_eq!(named_tool(name, Some(&given), &tools), expected, "{name} {given}");
    };
    for name in
        ["Bash", "bash", "execute_command", "ExecCommand", "functions.bash", "default_api.run_terminal_cmd"]
    {
        check(name, json!({}), own("shell", true));
    }
    for name in ["Read", "view", "cat", "Read_File", "readFile", "read-file", "functions.read_file"] {
        check(name, json!({}), own("read_file", true));
    }
    check("functions.mcp__s__view", json!({}), own("mcp__s__view", true));
    check("str_replace_based_edit_tool", json!({ "command": "view" }), own("read_file", true));
    check("str_replace_based_edit_tool", json!({ "command": "create" }), own("write_file", true));
    check("list_files", json!({ "recursive": true }), own("directory_tree", true));
    check("list_files", json!({ "recursive": "false" }), own("list_directory", true));
    // A tool of the session keeps its name, and a name without a tool has no meaning.
    for name in ["read_file", "bash_tool", "mcp__s__view", "Grep", "unknown", "", "functions."] {
        check(name, json!({}), NamedTool::Same);
    }
    check("str_replace_based_edit_tool", json!({ "command": "undo_edit" }), NamedTool::Same);
    assert_eq!(named_tool("str_replace_editor", None, &tools), NamedTool::Same);
    assert!(depends_on_arguments("functions.list_files") && !depends_on_arguments("bash"));
}

#[test]
fn tools_of_servers_are_found_without_their_marks() {
    let tools = Tools { all: &ALL, offered: &["mcp__my_tools_18dad7__add"] };
    let add = own("mcp__my_tools_18dad7__add", true);
    for name in
        ["mcp__my_tools__add", "mcp_my-tools_add", "my_tools__add", "my-tools_add", "my tools.add", "add"]
    {
        assert_eq!(named_tool(name, None, &tools), add, "{name}");
    }
    // In another mode the tool is not offered, so the call does not run.
    let hidden = Tools { all: &ALL, offered: &[] };
    assert_eq!(named_tool("my_tools__add", None, &hidden), own("mcp__my_tools_18dad7__add", false));
    let issue = "mcp__my_tools_18dad7__get_issue_0c11ab";
    assert_eq!(named_tool("mcp__my_tools__get_issue", None, &tools), own(issue, false));
    // Two servers have the tool; a name of another agent comes first.
    for name in ["get_issue", "mcp__none__add", "sub", ""] {
        assert_eq!(named_tool(name, None, &tools), NamedTool::Same, "{name}");
    }
    assert_eq!(named_tool("view", None, &tools), own("read_file", false));
    let offered = ["mcp__other__get_issue", issue];
    assert_eq!(
        advice("get_issue", &offered, &of_servers()),
        format!("Use {issue} or mcp__other__get_issue.")
    );
    assert_eq!(
        advice("get_issue", &offered[1..], &of_servers()),
        format!("Use {issue}."),
        "only tools that are available"
    );
}

#[test]
fn tokens_around_a_name_are_no_part_of_it() {
    let tools = Tools { all: &ALL, offered: &ALL };
    for name in [
        "read_file<|channel|>commentary",
        "Read<|constrain|>json",
        "to=functions.read_file",
        "read_file()",
        " read_file ",
    ] {
        assert_eq!(named_tool(name, None, &tools), own("read_file", true), "{name:?}");
    }
    assert_eq!(named_tool("<|channel|>", None, &tools), NamedTool::Same);
}

#[test]
fn edits_of_others_become_one_edit_or_one_patch() {
    let all: &'static [&'static str] = &["edit_file", "apply_patch"];
    let tools = Tools { all, offered: all };
    let one = json!({ "file_path": "f", "edits": [{ "old_string": "a", "new_string": "b" }] });
    let two = json!({ "file_path": "f", "edits": [{ "old_string": "a", "new_string": "b" }, {}] });
    assert_eq!(named_tool("MultiEdit", Some(&one), &tools), own("edit_file", true));
    assert_eq!(named_tool("MultiEdit", Some(&two), &tools), NamedTool::Same);
    assert_eq!(advice("MultiEdit", all, &[]), "Call edit_file for each edit, side by side in one reply.");
    let text = || json!({ "type": "string" });
    let edit_schema = json!({ "properties": { "path": text(), "old_text": text(), "new_text": text() } });
    let edit = own_arguments("MultiEdit", "edit_file", one, Some(&edit_schema));
    assert_eq!(edit.arguments, json!({ "path": "f", "old_text": "a", "new_text": "b" }));
    let diff = "------- SEARCH\na\n=======\nb\n+++++++ REPLACE";
    assert_eq!(named_tool("replace_in_file", None, &tools), own("apply_patch", true));
    let patch_schema = json!({ "properties": { "patch": text() } });
    let given = json!({ "diff": diff, "path": "f" });
    let patch = own_arguments("replace_in_file", "apply_patch", given, Some(&patch_schema));
    let expected = "*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n*** End Patch\n";
    assert_eq!(patch.arguments, json!({ "patch": expected }));
}

#[test]
fn arguments_below_another_member_are_found() {
    let check = |given: Value, expected: Value, note: Option<&str>| {
        let own = own_arguments("read_file", "read_file", given.clone(), Some(&schema()));
        assert_eq!((own.arguments, own.note.as_deref()), (expected, note), "{given}");
    };
    let note = Some("[the arguments stand alone, without `arguments`.]");
    let path = json!({ "path": "a" });
    check(json!({ "arguments": { "path": "a" } }), path.clone(), note);
    check(json!({ "name": "read_file", "arguments": "{\"path\": \"a\"}" }), path, note);
    for given in [
        json!({ "arguments": { "path": "a" }, "path": "b" }),
        json!({ "name": "write_file", "arguments": { "path": "a" } }),
        json!({ "arguments": "a" }),
        json!({ "arguments": {}, "args": {} }),
    ] {
        check(given.clone(), given, None);
    }
    // The control: a tool has an argument of this name, and nothing is unwrapped for a server's tool.
    let own_schema = json!({ "properties": { "input": { "type": "object" } } });
    let given = json!({ "input": { "path": "a" } });
    assert_eq!(own_arguments("t", "t", given.clone(), Some(&own_schema)).arguments, given);
    assert_eq!(own_arguments("t", "t", given.clone(), None).arguments, given);
}

#[test]
fn other_names_prefer_tools_that_are_offered() {
    let in_plan = Tools { all: &ALL, offered: &["read_file", "shell_read_only"] };
    assert_eq!(named_tool("Bash", None, &in_plan), own("shell_read_only", true));
    assert_eq!(named_tool("Write", None, &in_plan), own("write_file", false));
    assert_eq!(named_tool("Read", None, &in_plan), own("read_file", true));
}

fn schema() -> Value {
    json!({ "type": "object", "properties": {
        "path": { "type": "string" },
        "line": { "type": "integer" },
        "limit": { "type": "integer" },
    } })
}

#[test]
fn arguments_of_others_are_translated_and_named() {
    let check = |called: &str, given: Value, expected: Value, note: Option<&str>| {
        let own = own_arguments(called, "read_file", given.clone(), Some(&schema()));
        assert_eq!((own.arguments, own.note.as_deref()), (expected, note), "{called} {given}");
    };
    check("read_file", json!({ "path": "a", "line": 1 }), json!({ "path": "a", "line": 1 }), None);
    check(
        "Read",
        json!({ "file_path": "a", "offset": 3 }),
        json!({ "path": "a", "line": 3 }),
        Some("[Read is read_file here; `file_path` is `path`; `offset` is `line`.]"),
    );
    check(
        "read_file",
        json!({ "end_line": 9, "start_line": 5, "path": "a", "explanation": "why" }),
        json!({ "line": 5, "path": "a", "limit": 5 }),
        Some("[`start_line` is `line`; `end_line` is `limit`; ignored: `explanation`.]"),
    );
    check(
        "view",
        json!({ "Path": "a", "view_range": [2, -1] }),
        json!({ "path": "a", "line": 2 }),
        Some("[view is read_file here; `Path` is `path`; ignored: `view_range`.]"),
    );
    // The same value twice is one value; two values are refused by the reader of the arguments.
    check(
        "read_file",
        json!({ "path": "a", "file_path": "a" }),
        json!({ "path": "a" }),
        Some("[`file_path` is `path`.]"),
    );
    for given in [json!({ "path": "a", "file_path": "b" }), json!({ "path": "a", "start": 1, "mood": "x" })] {
        check("read_file", given.clone(), given, None);
    }
    check(
        "read_file",
        json!("{\"path\": \"a\",}"),
        json!({ "path": "a" }),
        Some("[JSON has no comma before a closing bracket.]"),
    );
    check("read_file", json!("{\"path\": \"a"), json!("{\"path\": \"a"), None);
}

#[test]
fn items_of_lists_are_translated() {
    let item = |members: &Value| {
        json!({ "type": "object", "properties": { "x": {
            "type": "array", "items": { "type": "object", "properties": members } } } })
    };
    let check = |tool: &str, list: &str, members: Value, given: Value, expected: Value| {
        let schema = item(&members).to_string().replace("\"x\"", &format!("{list:?}"));
        let schema: Value = serde_json::from_str(&schema).unwrap();
        assert_eq!(own_arguments(tool, tool, given, Some(&schema)).arguments, expected);
    };
    let task = json!({ "content": { "type": "string" }, "status": { "type": "string" } });
    let expected = json!({ "items": [{ "content": "a", "status": "in_progress" }] });
    for given in [
        json!({ "todos": [{ "content": "a", "status": "in_progress", "activeForm": "b", "id": "1" }] }),
        json!({ "plan": [{ "step": "a", "status": "In-Progress" }], "explanation": "c" }),
        json!({ "items": "[{\"description\": \"a\", \"status\": \"in_progress\"}]" }),
    ] {
        check("todo", "items", task.clone(), given, expected.clone());
    }
    let question = json!({ "question": { "type": "string" }, "choices": { "type": "array" } });
    let expected = json!({ "questions": [{ "question": "a?", "choices": ["b", "c"] }] });
    for given in [
        json!({ "questions": [{ "question": "a?", "header": "h", "multiSelect": false,
            "options": [{ "label": "b", "description": "d" }, { "label": "c" }] }] }),
        json!({ "question": "a?", "options": ["b", "c"] }),
        json!({ "question": "a?", "follow_up": "[\"b\", \"c\"]" }),
    ] {
        check("ask_user", "questions", question.clone(), given, expected.clone());
    }
}

#[test]
fn suggestions_are_of_the_same_kind() {
    let tools = ["read_file", "write_file", "delete_file", "shell", "directory_tree", "mcp__s__view_page"];
    for (name, expected) in [
        ("read_fil", Some("read_file")),
        ("Reed_file", Some("read_file")),
        ("directory_trees", Some("directory_tree")),
        ("writeFiles", Some("write_file")),
        // Near in letters only.
        ("send_file", None),
        ("load_file", None),
        ("move_file", None),
        ("web_file", None),
        ("create_branch", None),
        ("", None),
    ] {
        assert_eq!(suggestion(name, &tools), expected, "{name}");
    }
}

#[test]
fn advice_names_what_to_do_instead() {
    let tools = ["read_file", "write_file", "shell", "search_files"];
    for (name, expected) in [
        ("create_directory", "write_file creates missing folders."),
        ("codebaseSearch", "Use search_files, with a regular expression."),
        ("python", "Use shell, for example with `python3 -c`."),
        ("NotebookEdit", "Use only the tools that this session offers."),
        ("read_fil", "Did you mean read_file?"),
        ("str_replace_editor", "Use read_file or write_file."),
        ("functions.attempt_completion", "Answer in words: a reply without calls ends the turn."),
        ("AskUserQuestion", "Nobody can be asked here: decide yourself, and say what you assumed."),
        ("browser_action", "Use only the tools that this session offers."),
    ] {
        assert_eq!(advice(name, &tools, &[]), expected, "{name}");
    }
}

/// A name has one meaning, and each argument exists.
#[test]
fn table_names_tools_and_arguments_that_exist() {
    let tools = Toolset::built_in().with_agents(&crate::tool::tests::agents()).with_skills(&skill::one());
    let mut names: Vec<(String, &str)> = Vec::new();
    for row in &TOOLS {
        let is_shell = row.tool.starts_with("shell");
        let tool = tools.find(row.tool);
        assert!(tool.is_some() || is_shell, "{}", row.tool);
        let schema = tool.map(|tool| tool.spec().schema.to_value());
        for (name, own, _) in row.arguments {
            let exists = schema.as_ref().is_none_or(|schema| schema["properties"][own].is_object());
            assert!(exists, "{}.{own}", row.tool);
            assert!(row.ignored.iter().all(|ignored| !is_same(ignored, name)), "{}.{name}", row.tool);
        }
        for (name, own, _) in row.items.iter().flat_map(|(_, names)| *names) {
            let list = row.items.map_or("", |(list, _)| list);
            let schema = schema.as_ref().unwrap();
            assert!(
                schema["properties"][list]["items"]["properties"][own].is_object(),
                "{}.{name}",
                row.tool
            );
        }
        for name in row.names {
            assert!(
                NO_TOOLS.iter().all(|none| none.names.iter().all(|other| !is_same(other, name))),
                "{name}"
            );
            assert!(!tools.iter().any(|tool| is_same(&tool.spec().name, name)), "{name} is an own tool");
            let key = name.to_lowercase().replace('_', "");
            let other = names.iter().find(|(known, _)| *known == key).map(|(_, tool)| *tool);
            assert!(other.is_none() || (is_shell && other == Some("shell")), "{name}: {other:?}");
            names.push((key, row.tool));
        }
    }
    for name in NO_TOOLS.iter().flat_map(|none| none.tools) {
        assert!(tools.find(name).is_some() || name.starts_with("shell"), "{name}");
    }
    assert!(names.len() > 80, "the names of five agents: {}", names.len());
}
