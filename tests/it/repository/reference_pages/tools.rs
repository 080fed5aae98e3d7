//! `docs/reference/tools.md`, from the tools as models get them.

use std::fmt::Write;
use std::time::Duration;

use modegate::agents::{AgentOrigin, AgentRegistry};
use modegate::mode::ShellUse;
use modegate::permission::Effect;
use modegate::permission::rules::Rules;
use modegate::process::shell::Sandbox;
use modegate::store::entry::effect;
use modegate::tool::foreign_call::table::{PATHS, TOOLS};
use modegate::tool::{ToolSpec, Toolset};
use serde_json::Value;

use super::constants::{Constant, number, read};
use super::limits::time_shown;
use super::{Page, type_of};
use crate::support::requirements::require_sandbox;
use crate::support::shell;

/// A heading, a text below it, and the tools, each with notes for users beyond its description.
type Group = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const GROUPS: [Group; 8] = [
    (
        "Reading",
        "Where the editor serves `fs/read_text_file`, `read_file` reads its text, saved or not. The other tools \
         read saved files.",
        &[
            ("read_file", ""),
            ("list_directory", ""),
            ("directory_tree", ""),
            ("find_files", ""),
            ("search_files", ""),
        ],
    ),
    (
        "Editing",
        "A call changes all of its files or none. An edit or a hunk whose old text occurs exactly once applies, whatever \
         else has changed in the file; the result shows the lines that changed since the model read it. The call fails if \
         the old text is not there as it is, if a whole file is to be replaced that has changed, or if the change is not \
         the one that the permission request showed. Text may be UTF-8, Latin-1 (windows-1252), or UTF-16 with a byte order mark; a file \
         keeps its encoding and line endings. Files that are not UTF-8 are read and written on disk, also where the editor \
         serves files. If the editor's text of a file lacks only the final newline, the newline stays. The result names \
         differences in the file that the editor saved: newlines at the end, line endings, or reformatted lines.",
        &[
            (
                "write_file",
                "The model must have read or written an existing file with content, since the last summary of the \
                 conversation and since an undo of the file. A comment that stands for code of the file, such as \
                 `# ... rest unchanged ...`, is refused if the file does not have it.",
            ),
            (
                "edit_file",
                "If the exact text does not occur, `edit_file` ignores more, step by step: the prefixes of lines that `read_file` \
                 and `search_files` show; the form of quotes, dashes and spaces, and blanks at the ends of lines; indentation \
                 in other units or with a common shift; blanks within lines where they separate nothing; an escape too much, \
                 and HTML entities. At last, a line such as `# ...` in both texts stands for lines between two parts that \
                 occur once; only in the new text, it is refused. A step applies only if it finds one place; the result names it and shows the lines as they are \
                 now. Line endings, and what the model did not mean to change, stay as they are in the file. An error lists \
                 the nearest lines, or the first five places and their number.",
            ),
            (
                "apply_patch",
                "Modegate applies what `git diff` writes, by the rules of `git apply`, and what models write: wrong line counts \
                 and numbers, context without its blank, `@@` without numbers or with a line above the hunk, `*** Add File`, `*** Update File`, `*** Move \
                 to` and `*** Delete File`, code fences, hunks that share unchanged lines, prefixes of `read_file`. A hunk of \
                 context only is left out, and named. A hunk whose lines are not exactly there is matched in the steps \
                 of `edit_file`, and the result says so; a hunk that fits several places is refused. A change of a symbolic link \
                 changes the file that it names. Binary patches, \
                 symbolic links, submodules and combined diffs are refused, and so are mode bits on Windows. An error \
                 names each hunk that does not apply, with the nearest lines and those expected.",
            ),
            ("move_file", ""),
            ("delete_file", ""),
        ],
    ),
    (
        "Commands",
        "Sandbox, time and output of commands: [running commands](../guides/running-commands.md).",
        &[
            ("shell_read_only", ""),
            ("shell", ""),
            (
                "view_background",
                "With `wait`, the call ends when the job or agent does. A job ends with the session, or when the mode denies it.",
            ),
            ("stop_background", ""),
        ],
    ),
    (
        "Network",
        "",
        &[(
            "fetch",
            "The request is a `GET` without cookies, keys or referrer; an address with a user name or password is refused. \
             A redirect is not followed: the model gets the new address, and a call for it is decided anew. Content that is \
             not text is refused with its type and size. Only public servers are reachable, unless \
             [`fetch.allow_private`](config.md#keys) names another. \"Always allow\" covers the server: scheme, name and \
             port. Rules about addresses: [permissions](../guides/permissions.md#addresses).",
        )],
    ),
    (
        "Memories",
        "Memories are notes about a folder, kept in the session store, one set for each session's first folder. A tool that \
         changes them needs `access: full`; where the mode asks, you see the old and the new text. `/undo` does not restore \
         memories, and deleting a session does not delete them: use [`modegate memories`](cli.md#modegate-memories-list). A \
         deleted text is overwritten in the store, but stays in the sessions that contain it.",
        &[("read_memories", ""), ("save_memory", "")],
    ),
    (
        "Planning and questions",
        "",
        &[
            ("todo", ""),
            ("ask_user", ""),
            (
                "switch_mode",
                "Only modes with `exits_to` have this tool ([modes](../guides/modes.md#leave-plan-mode)).",
            ),
        ],
    ),
    (
        "Agents",
        "The descriptions end with the list of agents ([delegation](../guides/delegation.md)).",
        &[("delegate", ""), ("handoff", "")],
    ),
    (
        "Skills",
        "These tools exist where there are [skills](../guides/skills.md).",
        &[
            ("list_skills", ""),
            (
                "read_skill",
                "It reads only below the skill's folder, which may be outside the session's folders.",
            ),
            ("run_skill", ""),
        ],
    ),
];

#[test]
fn tools_page_has_every_tool() {
    // Two descriptions are different without a sandbox.
    require_sandbox();
    let (home, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let workspace = modegate::workspace::Workspace::new(folder.path(), &[]).unwrap();
    let tools = Toolset::built_in().with_shell(shell(home.path(), Sandbox::Workspace));
    let (tools, _) = tools.for_session(&workspace, &Rules::default());
    let mut agents = AgentRegistry::default();
    let reviewer = "[{id: reviewer, description: One of your own}]";
    agents.add(&serde_saphyr::from_str::<Vec<_>>(reviewer).unwrap(), AgentOrigin::User).unwrap();
    let tools = tools
        .with_agents(&agents)
        .with_skills(&crate::tools::skills::some(folder.path(), &[("one", "One.", "Do it.")]));
    let mut specs: Vec<&ToolSpec> = tools.iter().map(modegate::tool::Tool::spec).collect();

    let mut page = Page::new("Tools");
    let Constant::Time(timeout) = read("tool.rs", "TIMEOUT") else { panic!("a time") };
    page.paragraph(&format!(
        "Every tool of Modegate, in the words that a model gets. The effect of a tool, in italics, decides in which modes it \
         is available ([permissions](../guides/permissions.md#effects)). A call may take {} unless its section says \
         otherwise. Tools of MCP servers: [MCP](../guides/mcp.md). Sizes and counts: [limits](limits.md).",
        time_shown(timeout)
    ));
    page.paragraph(&format!(
        "Paths are absolute or relative to the session's working directory; Modegate resolves links before it decides. \
         Reading outside the session's folders needs your permission in every mode, and writing there is denied. \
         Consecutive calls with the effects read and session run at the same time, at most {}, and so do consecutive \
         agents that change nothing; others run one by one.",
        number("config.rs", "PARALLEL")
    ));
    for (heading, text, tools) in GROUPS {
        page.heading(2, heading);
        if !text.is_empty() {
            page.paragraph(text);
        }
        for (name, note) in tools {
            let at = specs.iter().position(|spec| spec.name == *name);
            let at = at.unwrap_or_else(|| panic!("there is no tool {name}"));
            section(&mut page, specs.remove(at), note, timeout);
        }
    }
    let left: Vec<_> = specs.iter().map(|spec| &*spec.name).collect();
    assert!(left.is_empty(), "tools without a group: {left:?}");
    foreign_names(&mut page, &tools);
    page.check("tools.md");
}

/// The table of names, with the check that each argument exists.
fn foreign_names(page: &mut Page, tools: &Toolset) {
    page.heading(2, "Names of other agents");
    page.paragraph(
        "Models know the tools of other agents: Claude Code, Codex, Gemini CLI, opencode, Cline, and those of editors. A call \
         by one of these names runs as the own tool, if the tool is offered in this request: it is decided, asked about \
         and recorded under the own name with the own arguments, and a line after the result gives them. Names are \
         compared without case, `_` and `-`, and without a prefix such as `functions.` or tokens of the model's format. A tool \
         of an MCP server is also found by the server's own names, if only one tool has them. Texts about a call, such as \
         `description`, are ignored. Two values for one argument, and arguments that nothing here names, are refused: one \
         message names all that is wrong, and the arguments that the tool has.",
    );
    page.0.push_str("\n| tool | names | arguments |\n| --- | --- | --- |\n");
    for row in &TOOLS {
        let spec =
            tools.find(row.tool).unwrap_or_else(|| panic!("there is no tool {}", row.tool)).spec().clone();
        let schema = spec.schema.to_value();
        for (name, own, _) in row.arguments {
            assert!(schema["properties"][own].is_object(), "{}: {name} is no argument", row.tool);
        }
        let with =
            row.names_with.iter().map(|(name, argument, value)| format!("{name} ({argument}: {value})"));
        let names: Vec<String> = row.names.iter().map(|name| (*name).to_owned()).chain(with).collect();
        let items =
            row.items.into_iter().flat_map(|(list, names)| names.iter().map(move |name| (list, name)));
        let arguments = row.arguments.iter().map(|(name, own, _)| (String::new(), *name, *own));
        let arguments =
            arguments.chain(items.map(|(list, (name, own, _))| (format!("{list}[]."), *name, *own)));
        let arguments: Vec<String> = arguments
            .filter(|(_, name, own)| name != own)
            .map(|(list, name, own)| format!("`{name}` is `{list}{own}`"))
            .collect();
        writeln!(page.0, "| `{}` | {} | {} |", row.tool, names.join(", "), arguments.join(", ")).unwrap();
    }
    let paths: Vec<String> = PATHS.iter().map(|name| format!("`{name}`")).collect();
    page.paragraph(&format!("Where a tool has `path`: {}.", paths.join(", ")));
}

fn section(page: &mut Page, spec: &ToolSpec, note: &str, timeout: Duration) {
    let limit = match spec.effect {
        Effect::Delegate => ", no timeout".to_owned(),
        // Commands have their argument `timeout` instead.
        _ if spec.timeout == timeout || spec.shell != ShellUse::Off => String::new(),
        _ => format!(", {}", time_shown(spec.timeout)),
    };
    page.heading(3, &format!("`{}`", spec.name));
    let description = spec.description.split("\n\nThe agents:").next().unwrap();
    page.paragraph(&format!("*{}*{limit}. {description}", effect(spec.effect)));
    let schema = spec.schema.to_value();
    let mut items = Vec::new();
    arguments(&mut items, "", &schema, &schema);
    if !items.is_empty() {
        page.list(items);
    }
    if !note.is_empty() {
        page.paragraph(note);
    }
}

fn arguments(items: &mut Vec<String>, prefix: &str, object: &Value, whole: &Value) {
    let required: Vec<&str> =
        object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, property) in object["properties"].as_object().into_iter().flatten() {
        let optional = if required.contains(&name.as_str()) { "" } else { ", optional" };
        let about = property["description"].as_str().unwrap_or_default();
        items.push(format!("`{prefix}{name}` ({}{optional}): {about}", type_of(property, whole)));
        let item = &property["items"];
        let referred = item["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        let item = referred.map_or(item, |definition| &whole["$defs"][definition]);
        arguments(items, &format!("{prefix}{name}[]."), item, whole);
    }
}
