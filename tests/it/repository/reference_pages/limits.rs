//! `docs/reference/limits.md`, from constants of the code.

use std::time::Duration;

use modegate::tool::web::fetch::FetchLimits;

use super::Page;
use super::constants::{Constant, read};

#[derive(Debug, Clone, Copy)]
enum Unit {
    Bytes,
    Seconds,
    Time,
    /// A count of these things.
    Of(&'static str),
}

use Unit::{Bytes, Of, Seconds, Time};

/// A limit, its definition, its unit, and the behaviour beyond the limit.
type LimitRow = (&'static str, &'static str, &'static str, Unit, &'static str);

const CONNECTION: [LimitRow; 17] = [
    ("line of the client", "transport.rs", "MAX_LINE", Bytes, "error -32600; the connection stays open"),
    (
        "unanswered requests of the client",
        "rpc.rs",
        "MAX_IN_FLIGHT",
        Of(""),
        "Modegate stops reading until it has answered some",
    ),
    (
        "prompts that wait behind a running one",
        "session/turn/turns.rs",
        "MAX_WAITING",
        Of(""),
        "error -32600",
    ),
    ("requests that wait for one session", "session/handle.rs", "MAILBOX", Of(""), "error -32600"),
    ("image in a prompt, in base64", "session/turn/scaled_images.rs", "MAX_TO_SCALE", Bytes, "error -32602"),
    (
        "image for a model, in base64",
        "conversation/prompt_block.rs",
        "MAX_PICTURE",
        Bytes,
        "it is scaled down",
    ),
    (
        "longest edge of an image for a model",
        "image_scaling.rs",
        "MAX_EDGE",
        Of("pixels"),
        "it is scaled down",
    ),
    ("decoded pixels of an image that is scaled", "image_scaling.rs", "MAX_DECODED", Bytes, "it is refused"),
    ("all texts of a prompt", "conversation/prompt_block.rs", "MAX_PROMPT_TEXT", Bytes, "error -32602"),
    ("text and thoughts of a reply", "session/turn/reply.rs", "MAX_REPLY", Bytes, "the turn fails"),
    (
        "sessions in one answer to `session/list`",
        "agent/list.rs",
        "PAGE",
        Of(""),
        "the answer has a `nextCursor`",
    ),
    ("message of an error", "error.rs", "MAX_MESSAGE", Of("characters"), "the message is cut"),
    ("reading the session's folder and settings", "agent.rs", "READING", Time, "error -32600"),
    (
        "answer to `fs/read_text_file`",
        "tool/client_io.rs",
        "READ",
        Time,
        "saved text is read, with a note; a call that changes the file fails",
    ),
    ("a writer waits for another one of the same file", "file_lock.rs", "MAX_WAIT", Time, "the call fails"),
    (
        "end of calls that a new mode denies",
        "session.rs",
        "DEADLINE",
        Time,
        "the mode change is answered and names the calls that may still run",
    ),
    ("end of all sessions at exit", "agent.rs", "CLOSE", Time, "Modegate exits with a warning in the log"),
];

const TURNS: [LimitRow; 14] = [
    (
        "model requests in a turn, unless the mode sets `max_steps`",
        "mode/definition.rs",
        "MAX_STEPS",
        Of(""),
        "the turn ends with `max_turn_requests`",
    ),
    (
        "model requests left in a turn",
        "session/notes.rs",
        "LAST_REQUESTS",
        Of(""),
        "the model is told the limit",
    ),
    ("reading calls or agents that run at the same time", "config.rs", "PARALLEL", Of(""), "the others wait"),
    (
        "same call denied or rejected in a row",
        "session/mode/decider.rs",
        "MAX_DENIALS",
        Of(""),
        "the turn ends",
    ),
    (
        "same call with the same result",
        "session/turn/repetition.rs",
        "NOTED",
        Of(""),
        "the model gets a note",
    ),
    (
        "the same, or steps whose calls are all denied",
        "session/turn/repetition.rs",
        "ASKED",
        Of(""),
        "the turn ends with a question",
    ),
    (
        "replies in a row without an answer",
        "session/turn/non_answer.rs",
        "MAX_NON_ANSWERS",
        Of(""),
        "the turn ends",
    ),
    ("plans rejected", "session/mode/switch.rs", "MAX_REJECTIONS", Of(""), "the turn ends"),
    ("tool call, where the tool has no timeout of its own", "tool.rs", "TIMEOUT", Time, "the call fails"),
    ("answer to `ask_user`", "tool/user/ask_user.rs", "TIMEOUT", Time, "the call fails"),
    ("questions in one `ask_user` call", "tool/user/ask_user.rs", "MAX_QUESTIONS", Of(""), "the call fails"),
    ("tasks in the `todo` list", "tool/user/todo.rs", "MAX_ITEMS", Of(""), "the call fails"),
    ("steps of a plan", "tool/user/switch_mode.rs", "MAX_STEPS", Of(""), "the call fails"),
    (
        "`mode_switch` block in a model's text",
        "conversation/mode_switch.rs",
        "MAX_BLOCK",
        Bytes,
        "the block has no effect",
    ),
];

const MODELS: [LimitRow; 14] = [
    (
        "failed attempts of a model request, unless the provider is busy",
        "model/remote.rs",
        "ATTEMPTS",
        Of(""),
        "the turn fails",
    ),
    ("attempts while the server is unreachable", "model/remote.rs", "UNREACHABLE", Of(""), "the turn fails"),
    ("time in which these attempts start", "model/remote.rs", "BUDGET", Time, "the turn fails"),
    (
        "replies in a row that break off",
        "session/turn/reply.rs",
        "MAX_INTERRUPTIONS",
        Of(""),
        "the turn fails",
    ),
    ("first wait between attempts; it doubles", "model/busy_wait.rs", "FIRST_WAIT", Time, ""),
    (
        "longest wait for a busy provider, unless it requests a longer one",
        "model/busy_wait.rs",
        "LONGEST_WAIT",
        Time,
        "",
    ),
    (
        "requested waits for a busy provider that may be shorter",
        "model/busy_wait.rs",
        "SHORT_WAITS",
        Of(""),
        "the longest wait applies",
    ),
    (
        "all waits of a headless run for one reply of a busy provider",
        "config/connections.rs",
        "BUSY_WAIT",
        Time,
        "the turn fails; `network: {busy_wait_s}` changes it",
    ),
    ("a server's list of models", "model/endpoint.rs", "LOOK_UP_TIMEOUT", Time, "it is not used"),
    ("connecting to a model's server", "http.rs", "CONNECT_TIMEOUT", Time, "the attempt fails"),
    ("silence of a model's server", "http.rs", "READ_TIMEOUT", Time, "the attempt fails"),
    ("`key_command`", "model/key.rs", "TIMEOUT", Time, "there is no key"),
    (
        "reply of an Anthropic model",
        "model/wire/anthropic.rs",
        "MAX_TOKENS",
        Of("tokens"),
        "the reply is cut",
    ),
    (
        "context of an Ollama model, unless `context` is set",
        "model/catalog.rs",
        "LOCAL_CONTEXT",
        Of("tokens"),
        "the conversation is summarised",
    ),
];

const FILES: [LimitRow; 22] = [
    ("`config.yaml`, `setup.yaml`", "config/user_file.rs", "MAX_FILE", Bytes, "the file cannot be used"),
    ("modes file", "config/policies.rs", "MAX_FILE", Bytes, "the file cannot be used"),
    ("id of a mode", "mode/definition.rs", "MAX_ID", Of("characters"), "the file cannot be used"),
    ("id of an agent", "agents.rs", "MAX_ID", Of("characters"), "the file cannot be used"),
    ("`prompt` of an agent", "agents.rs", "MAX_PROMPT", Bytes, "the file cannot be used"),
    ("user command", "config/user_commands.rs", "MAX_FILE", Bytes, "the command is left out"),
    ("user commands in a folder", "config/user_commands.rs", "MAX_FILES", Of(""), "the others are left out"),
    ("`SKILL.md`", "config/skill_files.rs", "MAX_FILE", Bytes, "the skill is left out"),
    ("skills", "config/skill_files.rs", "MAX_SKILLS", Of(""), "the others are left out"),
    ("name of a skill", "skill.rs", "MAX_NAME", Of("characters"), "the skill is left out"),
    ("description of a skill", "skill.rs", "MAX_DESCRIPTION", Of("characters"), "the skill is left out"),
    (
        "description of a skill in the system prompt",
        "conversation/system_prompt.rs",
        "MAX_DESCRIPTION",
        Of("characters"),
        "it is cut",
    ),
    (
        "list of skills in the system prompt",
        "conversation/system_prompt.rs",
        "MAX_SKILLS",
        Bytes,
        "the other skills are counted, not named",
    ),
    ("`AGENTS.md`, `CLAUDE.md`", "conversation/instructions.rs", "MAX_READ", Bytes, "the file is not used"),
    (
        "part of one `AGENTS.md` or `CLAUDE.md` for the model",
        "conversation/instructions.rs",
        "MAX_FILE",
        Bytes,
        "it is cut",
    ),
    (
        "all of them in the system prompt; all notes with instructions",
        "conversation/instructions.rs",
        "MAX_ALL",
        Bytes,
        "they are cut",
    ),
    ("reading instruction files", "conversation/instructions.rs", "TIMEOUT", Time, "none of them is used"),
    ("script of the scripted model", "config/embedded.rs", "MAX_SCRIPT", Bytes, "the model cannot be used"),
    ("text piped to `-p`: wait for the first byte", "cli/piped.rs", "WAIT", Time, "the prompt is used alone"),
    ("shortest part of a session id", "cli/sessions.rs", "MIN_PART", Of("characters"), "an error"),
    (
        "wait for another process that uses the store",
        "store/migrations.rs",
        "BUSY_TIMEOUT",
        Time,
        "a later commit tries again",
    ),
    (
        "rows kept while the store cannot be written",
        "store/retained.rs",
        "MAX_RETRY_ROWS",
        Of(""),
        "the oldest are dropped",
    ),
];

const FILE_TOOLS: [LimitRow; 25] = [
    ("text file that is changed", "tool/file/text_file.rs", "MAX_FILE", Bytes, "the call fails"),
    (
        "lines of a file whose changes a refusal shows",
        "tool/file/last_seen.rs",
        "MAX_KEPT",
        Of(""),
        "the refusal shows no lines",
    ),
    (
        "entries searched for a file of the same name",
        "tool/file/near_path.rs",
        "MAX_ENTRIES",
        Of(""),
        "the search ends",
    ),
    (
        "lines of one `read_file` call",
        "tool/file/excerpt.rs",
        "MAX_LINES",
        Of(""),
        "the answer says how to continue",
    ),
    (
        "text of one `read_file` call",
        "tool/file/excerpt.rs",
        "MAX_BYTES",
        Bytes,
        "the answer says how to continue",
    ),
    (
        "line in the answer of `read_file`",
        "tool/file/excerpt.rs",
        "MAX_LINE",
        Of("characters"),
        "the line is cut, with the number of characters left out",
    ),
    (
        "bytes behind the answer of `read_file` that are read to count the lines",
        "tool/file/excerpt.rs",
        "COUNTED",
        Bytes,
        "the answer says that there are more lines",
    ),
    ("image that `read_file` shows", "tool/file/picture.rs", "MAX_IMAGE", Bytes, "the call fails"),
    (
        "PNG or JPEG image that `read_file` scales and shows",
        "tool/file/picture.rs",
        "MAX_SCALED_IMAGE",
        Bytes,
        "the call fails",
    ),
    (
        "entries of `list_directory`",
        "tool/file/list_directory.rs",
        "MAX_ENTRIES",
        Of(""),
        "the answer says that more exist",
    ),
    (
        "entries of `directory_tree`",
        "tool/file/directory_tree.rs",
        "MAX_ENTRIES",
        Of(""),
        "upper levels first; folders count the rest",
    ),
    (
        "paths of `find_files`",
        "tool/file/find_files.rs",
        "MAX_PATHS",
        Of(""),
        "the answer says how many match",
    ),
    (
        "lines of `search_files`, by default",
        "tool/file/search_files.rs",
        "MATCHES",
        Of(""),
        "the answer says how many match",
    ),
    (
        "lines of `search_files`",
        "tool/file/search_files.rs",
        "MAX_MATCHES",
        Of(""),
        "the answer says how many match",
    ),
    (
        "lines around a match of `search_files`",
        "tool/file/search_files.rs",
        "MAX_CONTEXT",
        Of(""),
        "fewer lines are shown",
    ),
    (
        "text of one `search_files` call",
        "tool/file/search_files.rs",
        "MAX_BYTES",
        Bytes,
        "the answer says how many match",
    ),
    (
        "counting matches that are not shown",
        "tool/file/walk.rs",
        "COUNTING",
        Time,
        "the answer says more than how many match",
    ),
    (
        "characters shown of a matching line",
        "tool/file/search_files.rs",
        "MAX_COLUMNS",
        Of(""),
        "the line is shortened",
    ),
    (
        "line of a searched file",
        "tool/file/search_files.rs",
        "MAX_LINE",
        Bytes,
        "the rest of the file is skipped",
    ),
    ("patch", "tool/edit/apply_patch/unified.rs", "MAX_PATCH", Bytes, "the call fails"),
    ("files of a patch", "tool/edit/apply_patch/unified.rs", "MAX_FILES", Of(""), "the call fails"),
    ("lines of a patched file", "tool/edit/apply_patch/place.rs", "MAX_LINES", Of(""), "the call fails"),
    (
        "contents of all patched files, before and after",
        "tool/edit/apply_patch.rs",
        "MAX_TOTAL",
        Bytes,
        "the call fails",
    ),
    (
        "diffs of one call in the client",
        "conversation/content.rs",
        "DIFF",
        Bytes,
        "the client gets the changed regions",
    ),
    (
        "text of one call in the client",
        "conversation/content.rs",
        "TEXT",
        Bytes,
        "the text is shortened; the model gets it whole",
    ),
];

const UNDO: [LimitRow; 6] = [
    (
        "entries of a snapshot",
        "workspace/snapshot/scan.rs",
        "MAX_ENTRIES",
        Of(""),
        "changes by commands cannot be undone",
    ),
    (
        "bytes of a snapshot",
        "workspace/snapshot/scan.rs",
        "MAX_BYTES",
        Bytes,
        "changes by commands cannot be undone",
    ),
    (
        "file in a snapshot",
        "workspace/snapshot/scan.rs",
        "MAX_FILE",
        Bytes,
        "changes of the file cannot be undone",
    ),
    (
        "comparing with a snapshot",
        "tool/shell/snapshot.rs",
        "DEADLINE",
        Time,
        "changes by commands are unknown from then on",
    ),
    (
        "entries of a moved folder",
        "workspace/change_recorder.rs",
        "MAX_ENTRIES",
        Of(""),
        "the move cannot be undone",
    ),
    (
        "contents of a moved folder",
        "workspace/change_recorder.rs",
        "MAX_BYTES",
        Bytes,
        "the move cannot be undone",
    ),
];

const COMMANDS: [LimitRow; 16] = [
    ("command line", "tool/shell.rs", "MAX_LINE", Bytes, "the call fails"),
    (
        "command line for an \"always\" answer",
        "tool/shell/command_line.rs",
        "MAX_SHOWN",
        Bytes,
        "there is no such option",
    ),
    ("time of a command, by default", "tool/shell.rs", "SECONDS", Seconds, "SIGTERM, then SIGKILL"),
    ("largest `timeout` of a command", "tool/shell.rs", "MAX_SECONDS", Seconds, "the call fails"),
    ("grace period between SIGTERM and SIGKILL", "tool/shell/job.rs", "TIMEOUT", Time, "SIGKILL"),
    (
        "start of the output that the model gets",
        "tool/shell/job/output.rs",
        "HEAD",
        Bytes,
        "the middle is in a file",
    ),
    (
        "end of the output that the model gets",
        "tool/shell/job/output.rs",
        "TAIL",
        Bytes,
        "the middle is in a file",
    ),
    ("file with the whole output", "workspace/outputs.rs", "MAX_FILE", Bytes, "the rest is dropped"),
    (
        "files with whole outputs in a session",
        "workspace/outputs.rs",
        "MAX_FILES",
        Of(""),
        "the oldest is deleted",
    ),
    ("time of a check, by default", "checks.rs", "SECONDS", Seconds, "SIGTERM, then SIGKILL"),
    ("largest `timeout` of a check", "checks.rs", "MAX_SECONDS", Seconds, "the file is refused"),
    (
        "output of a check that is compared",
        "tool/shell/job/command_output.rs",
        "MAX_OUTPUT",
        Bytes,
        "later findings are not found",
    ),
    (
        "start of new findings that the model gets",
        "checks/findings.rs",
        "HEAD",
        Bytes,
        "the middle is left out",
    ),
    (
        "end of new findings that the model gets",
        "checks/findings.rs",
        "TAIL",
        Bytes,
        "the middle is left out",
    ),
    ("running background jobs of a session", "tool/shell/jobs.rs", "MAX_RUNNING", Of(""), "the call fails"),
    (
        "finished jobs, and finished agents, that are kept",
        "tool/agent/background_list.rs",
        "MAX_FINISHED",
        Of(""),
        "the oldest are dropped",
    ),
];

const FETCH: [LimitRow; 4] = [
    ("address", "tool/web/fetch.rs", "MAX_URL", Bytes, "the call fails"),
    ("text in one answer", "tool/web/fetch/page.rs", "PAGE", Of("characters"), "`start` continues"),
    (
        "text of an error page",
        "tool/web/fetch/page.rs",
        "MAX_ERROR_TEXT",
        Of("characters"),
        "the text is cut",
    ),
    (
        "indentation of lists and quotations",
        "tool/web/fetch/markdown.rs",
        "MAX_DEPTH",
        Of("levels"),
        "deeper ones are not indented further",
    ),
];

const MEMORIES: [LimitRow; 4] = [
    ("text of a memory", "memory.rs", "MAX_TEXT", Of("characters"), "the call fails"),
    ("category of a memory", "memory.rs", "MAX_CATEGORY", Of("characters"), "the call fails"),
    ("memories of a folder", "memory.rs", "MAX_COUNT", Of(""), "the call fails"),
    ("text in one answer", "tool/memory/list_page.rs", "PAGE", Of("bytes"), "`after` continues"),
];

const DELEGATION: [LimitRow; 6] = [
    ("task", "tool/agent/session_action.rs", "MAX_TASK", Bytes, "the call fails"),
    (
        "levels of sub-agents",
        "session/mode/ancestry.rs",
        "MAX_DEPTH",
        Of(""),
        "the tools for agents are absent",
    ),
    (
        "sub-agents at work for one session, at all levels",
        "session/mode/ancestry.rs",
        "MAX_RUNNING",
        Of(""),
        "the call fails",
    ),
    (
        "sub-agent without activity",
        "session/subagent/subagents.rs",
        "IDLE_TIMEOUT",
        Time,
        "the sub-agent is stopped",
    ),
    ("answer of a sub-agent", "session/subagent/relay.rs", "MAX_ANSWER", Bytes, "the answer is cut"),
    ("`wait` of `view_background`", "tool/agent/view_background.rs", "MAX_WAIT", Seconds, "the call fails"),
];

const SERVERS: [LimitRow; 26] = [
    (
        "start of a server, with its list of tools",
        "tool/mcp/task.rs",
        "START_TIMEOUT",
        Time,
        "the start fails",
    ),
    (
        "failed starts in a row",
        "tool/mcp/task.rs",
        "MAX_FAILURES",
        Of(""),
        "only a call starts the server again",
    ),
    (
        "first model request: wait for servers",
        "config.rs",
        "SERVER_TIMEOUT",
        Time,
        "their tools are missing at first",
    ),
    (
        "the same in a headless run",
        "config.rs",
        "HEADLESS_SERVER_TIMEOUT",
        Time,
        "their tools are missing at first",
    ),
    ("call, unless the server's entry sets `timeout`", "server.rs", "TIMEOUT", Time, "the call fails"),
    ("new list of tools", "tool/mcp/task.rs", "LIST_TIMEOUT", Time, "the server is ended"),
    (
        "pause before a new list",
        "tool/mcp/task.rs",
        "RELIST_DELAY",
        Time,
        "it doubles for each further announcement, up to 12.8 s",
    ),
    ("pages of a list", "tool/mcp/task.rs", "MAX_PAGES", Of(""), "the others are left out"),
    ("tools of a server", "tool/mcp/listing.rs", "MAX_TOOLS", Of(""), "the others are left out"),
    (
        "description of a tool",
        "tool/mcp/listing.rs",
        "MAX_DESCRIPTION",
        Of("characters"),
        "the description is cut",
    ),
    ("instructions of a server", "conversation/instructions.rs", "MAX_SERVER", Bytes, "they are cut"),
    ("schema of a tool", "tool/mcp/listing.rs", "MAX_SCHEMA", Bytes, "the tool is left out"),
    ("schemas of a server", "tool/mcp/listing.rs", "MAX_LIST", Bytes, "the other tools are left out"),
    (
        "name of a tool for the model",
        "tool/mcp/names.rs",
        "MAX",
        Of("characters"),
        "the name is shortened and marked",
    ),
    (
        "start of a long result for the model",
        "tool/shell/job/output.rs",
        "HEAD",
        Bytes,
        "the middle is in a file",
    ),
    (
        "end of a long result for the model",
        "tool/shell/job/output.rs",
        "TAIL",
        Bytes,
        "the middle is in a file",
    ),
    ("levels of a tool's schema", "tool/mcp/schema_repair.rs", "MAX_DEPTH", Of(""), "deeper parts are cut"),
    (
        "media of a result for the client, in base64",
        "tool/mcp/result.rs",
        "MAX_MEDIA",
        Bytes,
        "media are left out",
    ),
    ("message of a server", "tool/mcp/connect.rs", "MAX_MESSAGE", Bytes, "the call fails"),
    (
        "output of a program that does not read its input",
        "tool/mcp/rate_limit.rs",
        "MAX_UNREAD",
        Bytes,
        "the program is killed",
    ),
    (
        "attempts to resume an event stream over HTTP",
        "tool/mcp/connect.rs",
        "MAX_RESUMES",
        Of(""),
        "the call fails",
    ),
    (
        "error output of a program or an external agent in the log",
        "process/program.rs",
        "LOGGED",
        Bytes,
        "the rest is dropped",
    ),
    ("time for the browser in a login", "tool/mcp/login.rs", "LOGIN_TIMEOUT", Time, "the login fails"),
    (
        "questions of all servers in a turn",
        "session/servers.rs",
        "MAX_QUESTIONS",
        Of(""),
        "the question is refused",
    ),
    ("text of a question", "tool/mcp/question.rs", "MAX_MESSAGE", Of("characters"), "the text is cut"),
    ("form of a question", "tool/mcp/question.rs", "MAX_FORM", Bytes, "the question is refused"),
];

const EXTERNAL_AGENTS: [LimitRow; 9] = [
    ("start, up to the open session", "external_agent/client/start.rs", "DEADLINE", Time, "the start fails"),
    (
        "answer to a change of mode or option",
        "external_agent/client.rs",
        "TIMEOUT",
        Time,
        "the request fails",
    ),
    ("end of a cancelled turn", "external_agent/client.rs", "GRACE", Time, "the process is ended"),
    (
        "after the input is closed, and again after SIGTERM",
        "process/program.rs",
        "TIMEOUT",
        Time,
        "SIGTERM, then SIGKILL",
    ),
    ("line", "external_agent/client/connection.rs", "MAX_LINE", Bytes, "the process is ended"),
    (
        "messages that the agent has not read",
        "external_agent/client/connection.rs",
        "MAX_UNREAD",
        Of(""),
        "the process is ended",
    ),
    (
        "updates before the session is open",
        "external_agent/client/connection.rs",
        "MAX_EARLY_UPDATES",
        Of(""),
        "the others are dropped",
    ),
    (
        "error text that is passed on",
        "external_agent/client/error.rs",
        "SHOWN",
        Of("characters"),
        "the text is cut",
    ),
    (
        "open requests",
        "external_agent/client/connection.rs",
        "MAX_OPEN_REQUESTS",
        Of(""),
        "the agent gets an error",
    ),
];

const SECTIONS: [(&str, &[LimitRow]); 12] = [
    ("Connection and editor", &CONNECTION),
    ("Turns", &TURNS),
    ("Models", &MODELS),
    ("Settings, command line and store", &FILES),
    ("File tools", &FILE_TOOLS),
    ("Undo", &UNDO),
    ("Commands", &COMMANDS),
    ("`fetch`", &FETCH),
    ("Memories", &MEMORIES),
    ("Delegation", &DELEGATION),
    ("MCP servers", &SERVERS),
    ("External agents", &EXTERNAL_AGENTS),
];

#[test]
fn limits_page_matches_the_code() {
    let mut page = Page::new("Limits");
    page.paragraph(
        "Sizes, counts and times that you can meet. The values are read from the code; a mode, a setting or an argument \
         changes a limit only where its row names it. 1 KiB is 1,024 bytes.",
    );
    for (heading, rows) in SECTIONS {
        page.heading(2, heading);
        let rows = rows.iter().map(|(what, file, name, unit, beyond)| {
            [(*what).to_owned(), shown(read(file, name), *unit), (*beyond).to_owned()]
        });
        let fetch = FetchLimits::default();
        let more = [
            (
                "answer of a server",
                Constant::Number(fetch.bytes as u64),
                Bytes,
                "the rest is left out, with a note",
            ),
            ("one call", Constant::Time(fetch.time), Time, "the call fails"),
        ];
        let more =
            more.map(|(what, value, unit, beyond)| [what.to_owned(), shown(value, unit), beyond.to_owned()]);
        let more = more.into_iter().filter(|_| heading == "`fetch`");
        page.table(["limit", "value", "beyond it"], rows.chain(more));
    }
    page.check("limits.md");
}

fn shown(value: Constant, unit: Unit) -> String {
    match (value, unit) {
        (Constant::Time(time), Time) => time_shown(time),
        (Constant::Number(seconds), Seconds) => time_shown(Duration::from_secs(seconds)),
        (Constant::Number(bytes), Bytes) => bytes_shown(bytes),
        (Constant::Number(number), Of(what)) => format!("{} {what}", thousands(number)).trim_end().to_owned(),
        (value, unit) => panic!("{value:?} is not in {unit:?}"),
    }
}

fn bytes_shown(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(size, _)| bytes.is_multiple_of(*size) && bytes > 0);
    unit.map_or_else(
        || format!("{} bytes", thousands(bytes)),
        |(size, name)| format!("{} {name}", bytes / size),
    )
}

pub(super) fn time_shown(time: Duration) -> String {
    if time.subsec_millis() == 0 {
        format!("{} s", thousands(time.as_secs()))
    } else {
        format!("{} ms", time.as_millis())
    }
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn values_are_shown_with_units() {
    assert_eq!(shown(Constant::Number(65_536), Bytes), "64 KiB");
    assert_eq!(shown(Constant::Number(8_000), Bytes), "8,000 bytes");
    assert_eq!(shown(Constant::Number(16_384), Of("")), "16,384");
    assert_eq!(shown(Constant::Number(1_800), Seconds), "1,800 s");
    assert_eq!(shown(Constant::Time(Duration::from_millis(500)), Time), "500 ms");
}
