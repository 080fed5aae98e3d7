//! The names that other agents have for tools and arguments, as data: Claude Code, Codex, Gemini CLI, opencode, Cline,
//! and editors. Pure.
//!
//! Names are compared without case, blanks, `_` and `-`: `file_path` is also `filePath`. A name stands here only if its
//! tool has the effect of the own tool.

use super::convert::ValueForm::{
    self, AgentName, Case, CommandWords, FileType, LastLine, LineRange, Milliseconds, Most, Negated,
    NonDefault, PatchOrBlocks, Plain, SearchForm, Seconds, SingleEdit, TextOrLabel,
};

/// An own tool under the names of other agents.
#[derive(Debug)]
pub struct ForeignTool {
    /// The own tool.
    pub tool: &'static str,
    pub names: &'static [&'static str],
    /// Names that mean this tool only if an argument has a value: name, argument, value. A list with one item is `one`.
    pub names_with: &'static [(&'static str, &'static str, &'static str)],
    /// Name, own argument, and how its value is read.
    pub arguments: &'static [ForeignArgument],
    /// A list of objects, with the names of their members.
    pub items: Option<(&'static str, &'static [ForeignArgument])>,
    /// Arguments without which the call has the same effect, or shows more.
    pub ignored: &'static [&'static str],
}

pub type ForeignArgument = (&'static str, &'static str, ValueForm);

/// Needed by no tool: texts about the call, and settings of another agent's sandbox.
pub const IGNORED: [&str; 15] = [
    "description",
    "explanation",
    "justification",
    "reason",
    "reasoning",
    "instruction",
    "thought",
    "requires_approval",
    "require_user_approval",
    "task_progress",
    "wait_for_previous_tools",
    "sandbox_permissions",
    "with_escalated_permissions",
    "additional_permissions",
    "dangerously_disable_sandbox",
];

/// Names of the path of a file or directory, for every tool that has one.
pub const PATHS: [&str; 12] = [
    "file_path",
    "absolute_path",
    "target_file",
    "relative_path",
    "relative_workspace_path",
    "file_name",
    "file",
    "dir_path",
    "directory_path",
    "directory",
    "target_directory",
    "dir",
];

/// Prefixes that models put before the name of a tool.
pub const PREFIXES: [&str; 7] =
    ["to=functions.", "functions.", "functions:", "default_api.", "default_api:", "tools.", "tool."];

/// A tool without names of other agents.
pub const OTHER: ForeignTool = NONE;

const NONE: ForeignTool =
    ForeignTool { tool: "", names: &[], names_with: &[], arguments: &[], items: None, ignored: &[] };

const COMMAND: [ForeignArgument; 11] = [
    ("command", "command", CommandWords),
    ("cmd", "command", CommandWords),
    ("script", "command", Plain),
    ("command_line", "command", Plain),
    ("code", "command", Plain),
    ("workdir", "cwd", Plain),
    ("working_directory", "cwd", Plain),
    ("directory", "cwd", Plain),
    ("dir_path", "cwd", Plain),
    ("timeout", "timeout", Seconds),
    ("timeout_ms", "timeout", Milliseconds),
];

const COMMAND_NAMES: [&str; 15] = [
    "Bash",
    "execute_command",
    "run_terminal_cmd",
    "run_terminal_command",
    "run_in_terminal",
    "exec_command",
    "run_shell_command",
    "shell_command",
    "local_shell",
    "container.exec",
    "run_command",
    "terminal",
    "run_bash",
    "exec",
    "sh",
];

const COMMAND_IGNORED: [&str; 7] =
    ["login", "tty", "shell", "yield_time_ms", "max_output_tokens", "prefix_rule", "interactive"];

/// The own tools, with those first that are meant if several are offered.
pub const TOOLS: [ForeignTool; 21] = [
    ForeignTool {
        tool: "shell",
        names: &COMMAND_NAMES,
        arguments: &[
            COMMAND[0],
            COMMAND[1],
            COMMAND[2],
            COMMAND[3],
            COMMAND[4],
            COMMAND[5],
            COMMAND[6],
            COMMAND[7],
            COMMAND[8],
            COMMAND[9],
            COMMAND[10],
            ("run_in_background", "background", Plain),
            ("is_background", "background", Plain),
        ],
        ignored: &COMMAND_IGNORED,
        ..NONE
    },
    ForeignTool {
        tool: "shell_read_only",
        names: &COMMAND_NAMES,
        arguments: &COMMAND,
        ignored: &COMMAND_IGNORED,
        ..NONE
    },
    ForeignTool {
        tool: "read_file",
        names: &["Read", "view", "cat", "open_file", "view_file", "read_text_file", "view_image"],
        names_with: &[
            ("str_replace_based_edit_tool", "command", "view"),
            ("str_replace_editor", "command", "view"),
        ],
        arguments: &[
            ("offset", "line", Plain),
            ("start_line", "line", Plain),
            ("line_start", "line", Plain),
            ("start_line_one_indexed", "line", Plain),
            ("line_count", "limit", Plain),
            ("max_lines", "limit", Plain),
            ("end_line", "limit", LastLine),
            ("line_end", "limit", LastLine),
            ("end_line_one_indexed_inclusive", "limit", LastLine),
            ("view_range", "limit", LineRange),
        ],
        ignored: &["should_read_entire_file", "mode", "detail", "encoding"],
        ..NONE
    },
    ForeignTool {
        tool: "edit_file",
        names: &[
            "Edit",
            "str_replace",
            "replace",
            "search_replace",
            "search_and_replace",
            "replace_string_in_file",
            "edit_existing_file",
        ],
        names_with: &[
            ("MultiEdit", "edits", "one"),
            ("str_replace_based_edit_tool", "command", "str_replace"),
            ("str_replace_editor", "command", "str_replace"),
        ],
        arguments: &[
            ("old_string", "old_text", Plain),
            ("old_str", "old_text", Plain),
            ("old_content", "old_text", Plain),
            ("old", "old_text", Plain),
            ("search", "old_text", Plain),
            ("new_string", "new_text", Plain),
            ("new_str", "new_text", Plain),
            ("new_content", "new_text", Plain),
            ("new", "new_text", Plain),
            ("replacement", "new_text", Plain),
            ("replace", "new_text", Plain),
            ("edits", "new_text", SingleEdit),
            ("allow_multiple", "replace_all", Plain),
            ("expected_replacements", "replace_all", NonDefault("1")),
        ],
        ..NONE
    },
    ForeignTool {
        tool: "write_file",
        names: &["Write", "create_file", "write_to_file", "save_file", "create"],
        names_with: &[
            ("str_replace_based_edit_tool", "command", "create"),
            ("str_replace_editor", "command", "create"),
        ],
        arguments: &[
            ("file_text", "content", Plain),
            ("contents", "content", Plain),
            ("text", "content", Plain),
            ("data", "content", Plain),
        ],
        ignored: &["overwrite", "line_count"],
        ..NONE
    },
    ForeignTool {
        tool: "apply_patch",
        names: &["patch", "git_apply", "replace_in_file", "apply_diff"],
        arguments: &[
            ("patch", "patch", PatchOrBlocks),
            ("input", "patch", PatchOrBlocks),
            ("patch_text", "patch", PatchOrBlocks),
            ("diff", "patch", PatchOrBlocks),
        ],
        ..NONE
    },
    ForeignTool {
        tool: "move_file",
        names: &["Move", "rename_file", "rename", "mv"],
        arguments: &[
            ("source", "from", Plain),
            ("source_path", "from", Plain),
            ("src", "from", Plain),
            ("old_path", "from", Plain),
            ("destination", "to", Plain),
            ("destination_path", "to", Plain),
            ("dest", "to", Plain),
            ("dst", "to", Plain),
            ("target", "to", Plain),
            ("new_path", "to", Plain),
        ],
        ..NONE
    },
    ForeignTool { tool: "delete_file", names: &["Delete", "remove_file", "rm"], ..NONE },
    ForeignTool {
        tool: "search_files",
        names: &["Grep", "search_file_content", "grep_search", "grep_files", "rg", "ripgrep", "search_code"],
        arguments: &[
            ("regex", "pattern", Plain),
            ("query", "pattern", Plain),
            ("search", "pattern", Plain),
            ("include", "glob", Plain),
            ("include_pattern", "glob", Plain),
            ("file_pattern", "glob", Plain),
            ("glob_pattern", "glob", Plain),
            ("type", "glob", FileType),
            ("output_mode", "output", SearchForm),
            ("-i", "ignore_case", Plain),
            ("case_insensitive", "ignore_case", Plain),
            ("case_sensitive", "ignore_case", Negated),
            ("-C", "context", Most),
            ("-A", "context", Most),
            ("-B", "context", Most),
            ("context_lines", "context", Plain),
            ("no_ignore", "include_ignored", Plain),
            ("head_limit", "limit", NonDefault("0")),
            ("max_results", "limit", Plain),
            ("max_matches", "limit", Plain),
            ("max_matches_per_file", "per_file", Plain),
        ],
        ignored: &["-n", "respect_git_ignore", "names_only", "is_regex"],
        ..NONE
    },
    ForeignTool {
        tool: "find_files",
        names: &["Glob", "glob_search", "find", "find_path", "find_by_name", "file_search"],
        arguments: &[
            ("pattern", "glob", Plain),
            ("query", "glob", Plain),
            ("glob_pattern", "glob", Plain),
            ("file_pattern", "glob", Plain),
            ("no_ignore", "include_ignored", Plain),
        ],
        ignored: &["case_sensitive", "respect_git_ignore", "respect_gemini_ignore", "limit", "max_results"],
        ..NONE
    },
    ForeignTool {
        tool: "list_directory",
        names: &["LS", "list", "list_dir", "dir", "list_files", "read_folder"],
        ignored: &[
            "ignore",
            "respect_git_ignore",
            "file_filtering_options",
            "recursive",
            "depth",
            "offset",
            "limit",
        ],
        ..NONE
    },
    ForeignTool {
        tool: "directory_tree",
        names: &["tree"],
        names_with: &[("list_files", "recursive", "true")],
        arguments: &[("max_depth", "depth", Plain), ("levels", "depth", Plain)],
        ignored: &["recursive", "ignore"],
        ..NONE
    },
    ForeignTool {
        tool: "fetch",
        names: &["WebFetch", "fetch_url", "fetch_webpage", "read_url", "read_url_content", "url_fetch"],
        ignored: &["prompt", "format", "timeout", "max_length"],
        ..NONE
    },
    ForeignTool {
        tool: "todo",
        names: &["TodoWrite", "update_plan", "write_todos", "update_todo_list", "todo_list"],
        arguments: &[("todos", "items", Plain), ("plan", "items", Plain), ("tasks", "items", Plain)],
        items: Some((
            "items",
            &[
                ("step", "content", Plain),
                ("task", "content", Plain),
                ("title", "content", Plain),
                ("text", "content", Plain),
                ("description", "content", Plain),
                ("status", "status", Case),
            ],
        )),
        ignored: &["active_form", "id", "merge"],
        ..NONE
    },
    ForeignTool {
        tool: "ask_user",
        names: &[
            "AskUserQuestion",
            "ask_followup_question",
            "question",
            "request_user_input",
            "ask_question",
        ],
        items: Some((
            "questions",
            &[
                ("text", "question", Plain),
                ("prompt", "question", Plain),
                ("options", "choices", TextOrLabel),
                ("choices", "choices", TextOrLabel),
                ("follow_up", "choices", TextOrLabel),
                ("suggestions", "choices", TextOrLabel),
            ],
        )),
        ignored: &["header", "multi_select", "multiple", "id", "type"],
        ..NONE
    },
    ForeignTool {
        tool: "switch_mode",
        names: &["ExitPlanMode", "plan_exit"],
        ignored: &["allowed_prompts"],
        ..NONE
    },
    ForeignTool {
        tool: "delegate",
        names: &["Task", "Agent", "spawn_agent", "dispatch_agent", "run_subagent"],
        arguments: &[
            ("prompt", "task", Plain),
            ("message", "task", Plain),
            ("instructions", "task", Plain),
            ("subagent_type", "agent", AgentName),
            ("agent_type", "agent", AgentName),
            ("agent_name", "agent", AgentName),
            ("run_in_background", "background", Plain),
        ],
        ..NONE
    },
    ForeignTool {
        tool: "view_background",
        names: &[
            "BashOutput",
            "TaskOutput",
            "read_background_output",
            "get_terminal_output",
            "command_status",
        ],
        arguments: &[
            ("bash_id", "id", Plain),
            ("shell_id", "id", Plain),
            ("task_id", "id", Plain),
            ("command_id", "id", Plain),
        ],
        ignored: &["block", "timeout", "filter"],
        ..NONE
    },
    ForeignTool {
        tool: "stop_background",
        names: &["KillShell", "KillBash", "TaskStop"],
        arguments: &[("bash_id", "id", Plain), ("shell_id", "id", Plain), ("task_id", "id", Plain)],
        ..NONE
    },
    ForeignTool { tool: "save_memory", arguments: &[("fact", "text", Plain)], ..NONE },
    ForeignTool {
        tool: "read_skill",
        names: &["Skill", "activate_skill", "use_skill"],
        arguments: &[("skill", "name", Plain), ("skill_name", "name", Plain), ("command", "name", Plain)],
        ..NONE
    },
];

/// Words for the effect of a tool, in groups. A tool is never suggested for a name with words of other groups.
pub const KINDS: [&[&str]; 9] = [
    &["read", "view", "cat", "open", "show", "load", "get"],
    &["list", "ls", "dir", "tree", "directory"],
    &["find", "glob", "search", "grep", "rg", "locate", "query"],
    &["edit", "replace", "write", "create", "save", "update", "insert", "append", "patch", "apply", "modify"],
    &["delete", "remove", "rm", "move", "rename", "mv", "copy"],
    &["shell", "bash", "run", "exec", "execute", "command", "terminal", "cmd", "powershell"],
    &["fetch", "web", "url", "http", "download", "browser", "browse"],
    &["task", "agent", "delegate", "spawn", "handoff", "skill"],
    &["todo", "plan", "ask", "question", "user", "mode", "background", "stop", "kill"],
];
