//! The names of other agents' tools that are no tool here, with what to do instead, as data. Pure.

/// Names of others that are no tool here.
#[derive(Debug)]
pub(super) struct NoTool {
    pub names: &'static [&'static str],
    /// The own tools with the same effect, the best first. Empty if the advice names none.
    pub tools: &'static [&'static str],
    /// What to do; `{}` stands for the first of the tools that is offered.
    pub advice: &'static str,
}

const ANSWER: &str = "Answer in words: a reply without calls ends the turn.";

pub(super) const NO_TOOLS: [NoTool; 18] = [
    NoTool {
        names: &["ask_user"],
        tools: &[],
        advice: "Nobody can be asked here: decide yourself, and say what you assumed.",
    },
    NoTool {
        names: &["attempt_completion", "task_complete", "finish", "final_answer", "plan_mode_respond"],
        tools: &[],
        advice: ANSWER,
    },
    NoTool { names: &["think"], tools: &[], advice: "Think without a tool." },
    NoTool {
        names: &["multi_tool_use.parallel", "parallel"],
        tools: &[],
        advice: "Make the calls side by side in one reply.",
    },
    NoTool {
        names: &["use_mcp_tool"],
        tools: &[],
        advice: "Call the tool of a server by its own name, which begins with mcp__.",
    },
    NoTool {
        names: &["read_many_files", "read_multiple_files"],
        tools: &["read_file"],
        advice: "Call {} for each file, side by side in one reply.",
    },
    NoTool { names: &["NotebookRead"], tools: &["read_file"], advice: "Use {}: a notebook is JSON." },
    NoTool {
        names: &["MultiEdit", "multi_replace_string_in_file", "replace_file_content"],
        tools: &["edit_file"],
        advice: "Call {} for each edit, side by side in one reply.",
    },
    NoTool {
        names: &["insert_content", "insert_edit_into_file", "insert_text", "append_to_file"],
        tools: &["edit_file"],
        advice: "Use {}: replace a line next to the new text by both.",
    },
    NoTool {
        names: &["NotebookEdit", "edit_notebook", "edit_notebook_file"],
        tools: &["edit_file"],
        advice: "Use {} on the JSON of the notebook.",
    },
    NoTool {
        names: &["create_directory", "make_directory", "create_folder", "mkdir"],
        tools: &["write_file"],
        advice: "{} creates missing folders.",
    },
    NoTool {
        names: &[
            "codebase_search",
            "semantic_search",
            "search_codebase",
            "list_code_usages",
            "list_code_definition_names",
            "view_code_item",
        ],
        tools: &["search_files"],
        advice: "Use {}, with a regular expression.",
    },
    NoTool {
        names: &[
            "python",
            "python3",
            "ipython",
            "execute_python",
            "run_python",
            "code_interpreter",
            "run_code",
        ],
        tools: &["shell", "shell_read_only"],
        advice: "Use {}, for example with `python3 -c`.",
    },
    NoTool {
        names: &["run_tests", "get_errors", "read_lints", "get_diagnostics", "lsp_diagnostics"],
        tools: &["shell_read_only", "shell"],
        advice: "Use {} with the commands of the project.",
    },
    NoTool {
        names: &["write_stdin"],
        tools: &["shell", "shell_read_only"],
        advice: "A command has no input: call {} with all that it needs.",
    },
    NoTool {
        names: &["WebSearch", "google_web_search", "search_web"],
        tools: &["fetch"],
        advice: "Nothing searches the web; {} gets a page whose address you know.",
    },
    NoTool { names: &["TodoRead"], tools: &["todo"], advice: "The list is as your last call of {} set it." },
    NoTool { names: &["new_task"], tools: &["delegate"], advice: "Use {}." },
];
