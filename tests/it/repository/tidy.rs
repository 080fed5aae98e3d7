//! Rules of the source tree: file lengths, allowed imports and libraries, unused fixtures, links, and rows of
//! sources.md.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The most production lines in one file. Split files at 400 lines.
const MAX_LINES: usize = 500;

/// Each module, and the modules of this crate that it may name. The table has no cycle.
const LAYERS: [(&str, &[&str]); 92] = [
    ("acp", &[]),
    (
        "agent",
        &[
            "acp",
            "bounded_file",
            "checks",
            "client",
            "error",
            "external_agent",
            "file_lock",
            "ids",
            "managed_policy",
            "mode",
            "model",
            "own_files",
            "permission",
            "agents",
            "server",
            "session",
            "skill",
            "store",
            "tool",
            "workspace",
        ],
    ),
    ("audit", &["chain", "ids", "mode", "permission", "signing", "store"]),
    ("bounded_file", &[]),
    ("budget", &["ids", "model"]),
    ("busy", &[]),
    ("chain", &["ids"]),
    ("checks", &["mode"]),
    ("cli", CLI),
    ("client", &["acp"]),
    ("config", CONFIG),
    ("conversation", &["acp", "agents", "bounded_file", "checks", "client", "event", "git_folder", "skill"]),
    ("conversation/mode_switch", &["yaml_error"]),
    ("error", &["acp"]),
    ("evidence_bundle", &["ids", "signing", "store"]),
    ("event", &["acp", "conversation/content", "model"]),
    ("file_lock", &["kernel"]),
    ("front_matter", &[]),
    ("gate", &["acp", "permission"]),
    ("git_folder", &["bounded_file", "ids"]),
    (
        "external_agent",
        &[
            "acp",
            "hooks",
            "client",
            "process",
            "agents",
            "bounded_file",
            "conversation",
            "error",
            "event",
            "gate",
            "json_rpc",
            "mode",
            "permission",
        ],
    ),
    (
        "external_agent/client",
        &[
            "acp",
            "client",
            "event",
            "external_agent/definition",
            "external_agent/known",
            "external_agent/settings",
            "external_agent/sockets",
            "json_rpc",
            "process",
        ],
    ),
    ("external_agent/capability", &["error", "mode", "permission"]),
    ("external_agent/definition", &["acp", "external_agent/profile", "external_agent/sockets", "process"]),
    ("external_agent/known", &["acp", "external_agent/definition", "external_agent/profile", "process"]),
    ("external_agent/profile", &["process"]),
    (
        "external_agent/settings",
        &[
            "bounded_file",
            "external_agent/definition",
            "external_agent/known",
            "external_agent/settings_text",
            "process",
        ],
    ),
    ("external_agent/options", &["acp"]),
    ("external_agent/requested_call", &["acp", "permission"]),
    (
        "external_agent/session",
        &[
            "acp",
            "hooks",
            "agents",
            "bounded_file",
            "client",
            "conversation",
            "event",
            "external_agent",
            "gate",
            "permission",
            "process",
        ],
    ),
    ("external_agent/session/process_state", &["permission"]),
    ("external_agent/session/retained_context", &[]),
    ("external_agent/settings_text", &[]),
    ("external_agent/sockets", &[]),
    ("folder_removal", &[]),
    ("headless", &["acp", "agent", "budget", "client", "conversation", "model", "permission", "session"]),
    ("hooks", &["permission", "process", "sandbox"]),
    ("http", &[]),
    ("ids", &["acp"]),
    ("image_scaling", &[]),
    ("json_rpc", &[]),
    ("kernel", &[]),
    ("lazy_channel", &[]),
    ("lib", &[]),
    ("line_diff", &[]),
    ("main", &[]),
    (
        "managed_policy",
        &[
            "agents",
            "budget",
            "external_agent/definition",
            "external_agent/known",
            "hooks",
            "ids",
            "mode",
            "model",
            "otlp/telemetry_settings",
            "permission",
            "policy",
            "process",
            "server",
        ],
    ),
    ("memory", &[]),
    ("mode", &["acp", "ids", "model"]),
    ("model", &["acp", "http", "process", "sandbox"]),
    ("model/wire", &["model"]),
    ("permission", &["mode"]),
    ("otlp", &["acp", "http", "ids", "process/secrets", "span_record", "store"]),
    ("otlp/telemetry_settings", &[]),
    ("own_files", &[]),
    ("platform", &[]),
    ("policy", &["checks", "mode", "permission", "agents", "server", "yaml_error"]),
    ("path_bytes", &[]),
    ("process", &["folder_removal", "git_folder", "kernel", "sandbox", "supervisor"]),
    ("agents", &["external_agent/definition", "mode", "model"]),
    ("html_report", &["acp", "audit", "conversation/content", "event", "ids", "model", "store", "workspace"]),
    ("rpc", &["acp", "agent", "client", "conversation", "error", "json_rpc", "session", "transport"]),
    ("sandbox", &["kernel"]),
    ("server", &["acp", "permission"]),
    ("session", SESSION),
    ("session/command/parse", &["acp", "mode"]),
    ("session/command/user_command", &["front_matter", "yaml_error"]),
    ("conversation/compaction", &["acp", "model"]),
    ("conversation/fitting", &["model"]),
    ("conversation/superseded", &["model"]),
    ("conversation/acp_updates", &["acp", "client", "conversation/content", "event", "model"]),
    ("session/options", &["acp", "mode", "model", "agents"]),
    ("conversation/history", &["acp", "conversation", "event", "model"]),
    ("conversation/neutralise", &[]),
    ("conversation/prompt_block", &["acp", "conversation", "model"]),
    ("conversation/reminder", &["acp", "conversation", "mode", "model", "permission"]),
    ("signing", &["chain"]),
    ("skill", &["front_matter", "yaml_error"]),
    ("span_record", &["ids"]),
    (
        "store",
        &[
            "acp",
            "budget",
            "chain",
            "conversation/content",
            "event",
            "ids",
            "memory",
            "mode",
            "model",
            "path_bytes",
            "permission",
            "signing",
            "span_record",
            "workspace",
        ],
    ),
    ("supervisor", &["file_lock", "folder_removal", "kernel", "path_bytes", "sandbox"]),
    ("supervisor/record", &["path_bytes"]),
    ("telemetry", &[]),
    ("terminal_host", &["kernel", "process", "supervisor/protocol", "terminal_run"]),
    (
        "terminal_run",
        &[
            "acp",
            "agent",
            "client",
            "conversation",
            "error",
            "event",
            "external_agent",
            "headless",
            "path_bytes",
            "process",
            "session",
        ],
    ),
    ("text", &[]),
    ("tool", TOOL),
    ("conversation/content", &["acp"]),
    ("transcript", &["bounded_file", "transport"]),
    ("transport", &["json_rpc", "kernel", "platform"]),
    (
        "workspace",
        &[
            "bounded_file",
            "file_lock",
            "own_files",
            "git_folder",
            "ids",
            "permission",
            "path_bytes",
            "supervisor/record",
        ],
    ),
    ("yaml_error", &["mode"]),
];

/// Each part of `supervisor`, and the other parts that it may name. A folder of a part may name the part.
const SUPERVISOR_LAYERS: [(&str, &[&str]); 42] = [
    ("broker", &["children", "connection", "protocol", "record"]),
    ("broker/area", &[]),
    ("broker/attributes", &["broker/operation", "broker/resolve", "broker/tracee"]),
    ("broker/allowed_sockets", &["broker/resolve", "broker/tracee", "connection", "protocol"]),
    (
        "broker/egress",
        &[
            "broker/network_call",
            "broker/notification",
            "broker/threads",
            "broker/tracee",
            "children",
            "connection",
            "protocol",
        ],
    ),
    (
        "broker/handler",
        &[
            "broker",
            "broker/allowed_sockets",
            "broker/area",
            "broker/attributes",
            "broker/made_files",
            "broker/moved",
            "broker/network_call",
            "broker/notification",
            "broker/operation",
            "broker/outcome",
            "broker/pending",
            "broker/perform",
            "broker/questions",
            "broker/reads",
            "broker/recorder",
            "broker/resolve",
            "broker/revoke",
            "broker/shared_memory",
            "broker/terminals",
            "broker/tracee",
            "broker/unix_address",
            "protocol",
        ],
    ),
    ("broker/caller", &["broker/resolve", "protocol"]),
    ("broker/made_files", &["broker/resolve", "broker/tracee"]),
    ("broker/moved", &["broker/resolve"]),
    ("broker/network_call", &["broker/notification"]),
    ("broker/notification", &[]),
    ("broker/operation", &["broker/notification", "broker/tracee"]),
    ("broker/outcome", &["broker/notification", "broker/questions", "broker/recorder", "protocol"]),
    ("broker/pending", &["broker/notification", "broker/questions"]),
    ("broker/perform", &["broker/area", "broker/operation", "broker/resolve", "broker/tracee"]),
    ("broker/questions", &["broker/caller", "broker/notification", "protocol"]),
    (
        "broker/reads",
        &["broker/moved", "broker/operation", "broker/resolve", "broker/terminals", "broker/tracee"],
    ),
    ("broker/recorder", &["broker/resolve", "broker/revoke", "record"]),
    (
        "broker/refused",
        &[
            "broker/area",
            "broker/network_call",
            "broker/notification",
            "broker/operation",
            "broker/resolve",
            "broker/tracee",
            "broker/unix_address",
            "protocol",
        ],
    ),
    ("broker/resolve", &["broker/area", "broker/operation", "broker/tracee"]),
    ("broker/revoke", &["broker/caller", "broker/resolve", "broker/tracee", "children", "protocol"]),
    ("broker/segments", &["broker/notification"]),
    (
        "broker/shared_memory",
        &[
            "broker/area",
            "broker/made_files",
            "broker/notification",
            "broker/operation",
            "broker/outcome",
            "broker/perform",
            "broker/resolve",
            "broker/segments",
            "broker/tracee",
        ],
    ),
    ("broker/ruled_changes", &["broker/moved", "broker/questions", "broker/resolve", "protocol"]),
    ("broker/terminals", &["broker/attributes", "broker/operation", "broker/resolve", "broker/tracee"]),
    ("broker/threads", &["broker/notification"]),
    ("broker/tracee", &["broker/notification"]),
    ("broker/unix_address", &["broker/tracee"]),
    ("broker/broker_threads", &["broker", "broker/pending", "broker/threads"]),
    // More methods of the broker.
    (
        "broker/waiting",
        &[
            "broker",
            "broker/notification",
            "broker/outcome",
            "broker/pending",
            "broker/reads",
            "broker/recorder",
            "broker/threads",
            "broker/tracee",
        ],
    ),
    ("call_answerer", &["broker", "protocol"]),
    ("children", &[]),
    ("command_process", &["protocol", "startup"]),
    ("connection", &["descriptors", "protocol"]),
    ("descriptors", &[]),
    ("entry", &["fork_server", "guard", "protocol"]),
    ("fork_server", &["descriptors", "guard", "supervision"]),
    ("guard", &["children", "protocol"]),
    ("protocol", &["record"]),
    ("record", &[]),
    (
        "supervision",
        &["broker", "call_answerer", "children", "command_process", "connection", "protocol", "startup"],
    ),
    ("startup", &["descriptors", "protocol"]),
];

/// The only modules with unsafe code, which the architecture page names, too.
const UNSAFE: [&str; 4] =
    ["config/environment", "kernel", "process/plain/group/windows", "supervisor/broker/notification"];

/// Modules that `cli` may name.
const CLI: &[&str] = &[
    "budget",
    "acp",
    "agent",
    "audit",
    "bounded_file",
    "client",
    "config",
    "conversation/content",
    "event",
    "evidence_bundle",
    "headless",
    "ids",
    "managed_policy",
    "mode",
    "model",
    "otlp",
    "permission",
    "policy",
    "process",
    "agents",
    "html_report",
    "rpc",
    "server",
    "session",
    "signing",
    "skill",
    "store",
    "terminal_host",
    "terminal_run",
    "tool",
    "transcript",
    "transport",
    "workspace",
    "yaml_error",
    "external_agent",
];

/// Modules that `config` may name.
const CONFIG: &[&str] = &[
    "acp",
    "budget",
    "hooks",
    "agent",
    "bounded_file",
    "file_lock",
    "own_files",
    "git_folder",
    "http",
    "client",
    "conversation",
    "ids",
    "memory",
    "managed_policy",
    "mode",
    "model",
    "otlp",
    "permission",
    "policy",
    "process",
    "agents",
    "sandbox",
    "server",
    "session",
    "signing",
    "skill",
    "store",
    "tool",
    "transcript",
    "yaml_error",
    "external_agent",
];

/// Modules that `tool` may name.
const TOOL: &[&str] = &[
    "acp",
    "bounded_file",
    "client",
    "conversation/content",
    "file_lock",
    "gate",
    "http",
    "ids",
    "memory",
    "mode",
    "model",
    "permission",
    "process",
    "agents",
    "server",
    "skill",
    "workspace",
];

/// Modules that every other module may name.
const COMMON: [&str; 5] = ["busy", "lazy_channel", "line_diff", "platform", "text"];

/// Modules that `session` may name.
const SESSION: &[&str] = &[
    "acp",
    "budget",
    "hooks",
    "bounded_file",
    "chain",
    "checks",
    "client",
    "conversation",
    "error",
    "event",
    "file_lock",
    "own_files",
    "gate",
    "git_folder",
    "external_agent",
    "ids",
    "image_scaling",
    "managed_policy",
    "mode",
    "model",
    "permission",
    "permission/rules",
    "policy",
    "process",
    "agents",
    "server",
    "signing",
    "skill",
    "span_record",
    "store",
    "tool",
    "workspace",
    "yaml_error",
];

/// Parts of a module, lowest first, and the other parts of that module that each may name. A part is a file with
/// the folder beside it.
const PARTS: [(&str, &[&str]); 18] = [
    ("session/insertion", &[]),
    ("session/trace", &[]),
    ("session/event_log", &["session/insertion", "session/trace"]),
    ("session/options", &[]),
    ("session/prompt_end", &[]),
    ("session/session_snapshot", &[]),
    ("session/tally", &[]),
    ("session/mode", &["session/event_log", "session/tally", "session/trace"]),
    ("session/due_checks", &["session/event_log", "session/mode"]),
    (
        "session/handle",
        &["session/insertion", "session/options", "session/prompt_end", "session/session_snapshot"],
    ),
    ("session/notes", &["session/event_log", "session/mode"]),
    ("session/spending", &["session/event_log", "session/mode", "session/notes", "session/tally"]),
    ("session/servers", &["session/event_log", "session/mode", "session/notes"]),
    (
        "session/subagent",
        &[
            "session/event_log",
            "session/handle",
            "session/mode",
            "session/notes",
            "session/options",
            "session/prompt_end",
            "session/trace",
        ],
    ),
    (
        "session/turn",
        &[
            "session/due_checks",
            "session/event_log",
            "session/handle",
            "session/insertion",
            "session/mode",
            "session/notes",
            "session/options",
            "session/prompt_end",
            "session/servers",
            "session/session_snapshot",
            "session/subagent",
            "session/trace",
        ],
    ),
    ("session/command", &["session/handle", "session/mode", "session/options", "session/turn"]),
    (
        "session/history",
        &[
            "session/due_checks",
            "session/event_log",
            "session/handle",
            "session/mode",
            "session/notes",
            "session/options",
            "session/prompt_end",
            "session/session_snapshot",
            "session/turn",
        ],
    ),
    (
        "session/actor",
        &[
            "session/command",
            "session/due_checks",
            "session/event_log",
            "session/handle",
            "session/history",
            "session/insertion",
            "session/mode",
            "session/notes",
            "session/options",
            "session/prompt_end",
            "session/servers",
            "session/session_snapshot",
            "session/spending",
            "session/subagent",
            "session/turn",
            "session/trace",
        ],
    ),
];

/// Pure modules: no clock, no file, no task.
const PURE: [&str; 167] = [
    "acp",
    "audit",
    "audit/signatures",
    "budget",
    "budget/budget_use",
    "budget/prices",
    "chain",
    "checks",
    "checks/findings",
    "event",
    "evidence_bundle",
    "session/trace/contents",
    "html_report",
    "html_report/comparison",
    "html_report/html",
    "html_report/plots",
    "html_report/steps",
    "html_report/turns",
    "session/event_log/chain_end",
    "front_matter",
    "external_agent/client/requests",
    "external_agent/client/content",
    "external_agent/client/error",
    "external_agent/client/messages",
    "external_agent/client/state",
    "hooks",
    "http/network",
    "http/public",
    "image_scaling",
    "managed_policy",
    "managed_policy/allowed_program",
    "managed_policy/explain",
    "managed_policy/limits",
    "managed_policy/repository",
    "mode",
    "mode/stored",
    "model/allowed",
    "model/catalog",
    "model/excess",
    "model/image_probe",
    "model/key_form",
    "model/known",
    "model/schema/reduced",
    "model/wire",
    "model/wire/anthropic",
    "model/wire/chat",
    "model/wire/chat/calls",
    "model/wire/chat/chunk",
    "model/wire/chat/decode",
    "model/wire/framing",
    "model/wire/gemini",
    "model/wire/ollama",
    "model/wire/responses",
    "model/wire/lenient",
    "model/wire/text_messages",
    "model/wire/thought_tags",
    "model/written_call",
    "model/written_call/harmony",
    "session/turn/repetition",
    "session/turn/non_answer",
    "otlp/backoff",
    "otlp/conventions",
    "otlp/encode",
    "otlp/logs",
    "otlp/metrics",
    "otlp/telemetry_settings",
    "otlp/spans",
    "permission",
    "permission/address",
    "permission/address_pattern",
    "permission/command_pattern",
    "permission/compare",
    "permission/foreign_rule",
    "permission/grants",
    "permission/rule_check",
    "permission/name_pattern",
    "permission/rules",
    "platform",
    "policy",
    "agents",
    "process/network_variables",
    "process/secrets",
    "agents/yaml",
    "json_rpc",
    "json_rpc/line",
    "session/command/parse",
    "conversation/compaction",
    "conversation/acp_updates",
    "session/mode/exit_form",
    "external_agent/capability",
    "external_agent/definition",
    "external_agent/options",
    "external_agent/session/process_state",
    "external_agent/session/retained_context",
    "external_agent/settings_text",
    "external_agent/sockets",
    "conversation/history",
    "session/turn/context_window",
    "session/options",
    "conversation/open_calls",
    "conversation/neutralise",
    "conversation/fitting",
    "conversation/superseded",
    "conversation/prompt_block",
    "conversation/reminder",
    "conversation/reminder/claims",
    "conversation/reminder/placement",
    "rpc/negotiation",
    "rpc/v2/encoder",
    "rpc/v2/patch",
    "rpc/v2/requests",
    "rpc/v2/responses",
    "rpc/v2/updates",
    "session/command/user_command",
    "skill",
    "span_record",
    "store/entry",
    "text",
    "tool/foreign_call",
    "tool/foreign_call/advice",
    "tool/foreign_call/blocks",
    "tool/foreign_call/convert",
    "tool/foreign_call/no_tools",
    "tool/foreign_call/table",
    "tool/foreign_call/translation_notes",
    "tool/json_repair",
    "tool/json_repair/python_literal",
    "tool/edit/apply_patch/begin_patch",
    "tool/edit/apply_patch/hunk",
    "tool/edit/apply_patch/names",
    "tool/edit/apply_patch/place",
    "tool/edit/apply_patch/unified",
    "tool/user/chat_question",
    "tool/shell/command_line",
    "tool/shell/command_line/ansi",
    "tool/shell/command_line/code",
    "tool/shell/command_line/expansions",
    "tool/shell/command_line/git",
    "tool/shell/command_line/invoked",
    "tool/shell/command_line/pieces",
    "tool/shell/command_line/runners",
    "tool/shell/command_line/subcommands",
    "tool/shell/command_line/variables",
    "tool/shell/command_line/stack",
    "tool/shell/command_line/programs",
    "tool/shell/command_line/redirects",
    "tool/shell/command_line/scan",
    "tool/shell/command_line/literal",
    "tool/content",
    "tool/file/encoding",
    "headless/call_content",
    "headless/denials",
    "headless/details",
    "headless/live_line",
    "tool/edit/text_match",
    "tool/web/fetch/markdown",
    "tool/mcp/schema_repair",
    "tool/mcp/schema_repair/branches",
    "tool/mcp/schema_repair/keywords",
    "tool/mcp/schema_repair/places",
    "transcript/compare",
    "transcript/normalise",
    "transcript/recording",
    "workspace/file_state",
    "workspace/snapshot/ignore_rules",
    "workspace/content_hash",
    "yaml_error",
];

/// Libraries, and the only modules that may name them.
const LIBRARIES: [(&str, &[&str]); 45] = [
    ("agent_client_protocol_schema", &["acp"]),
    ("anyhow", &["main", "cli", "config", "headless", "terminal_run"]),
    ("jiff", &["ids", "model/remote", "conversation/system_prompt"]),
    ("base64", &["image_scaling", "rpc/v2/updates", "signing", "tool/file/picture"]),
    (
        "memchr",
        &[
            "json_rpc/line",
            "model/wire/framing",
            "terminal_host/keys",
            "terminal_host/screen_model",
            "terminal_host/screen_modes",
            "text",
            "tool/file/excerpt",
            "tool/mcp/rate_limit",
        ],
    ),
    ("mimalloc", &["main"]),
    ("rmcp", &["tool/mcp"]),
    ("ratatui_core", &["terminal_host/panel"]),
    ("reqwest", &["http"]),
    ("rpassword", &["cli/setup"]),
    ("rustls", &["http", "signing"]),
    (
        "secrecy",
        &[
            "http",
            "model",
            "signing",
            "signing",
            "config",
            "cli/setup",
            "otlp",
            "process",
            "external_agent/client/start",
            "external_agent/definition",
            "server",
            "tool/mcp",
        ],
    ),
    ("landlock", &["sandbox"]),
    ("libc", &["kernel", "sandbox", "supervisor/broker"]),
    (
        "rustix",
        &[
            "kernel",
            "platform/unix",
            "process",
            "sandbox/linux/own_network",
            "supervisor",
            "terminal_host",
            "transport/nonblocking",
        ],
    ),
    ("bytes", &["http", "model/remote"]),
    ("cap_std", &["bounded_file", "folder_removal", "platform", "process/hard_links", "workspace"]),
    ("cap_fs_ext", &["bounded_file", "folder_removal", "platform", "process/hard_links", "workspace"]),
    ("clap", &["main", "cli"]),
    ("dunce", &["platform/files"]),
    ("encoding_rs", &["tool/file/encoding", "tool/web/fetch/page"]),
    ("etcetera", &["config"]),
    (
        "globset",
        &[
            "mode",
            "model/allowed",
            "permission/rules",
            "permission/name_pattern",
            "permission/address_pattern",
            "permission/command_pattern",
            "sandbox/denied_reads",
        ],
    ),
    ("grep_matcher", &["tool/file/search_files", "model/offline/keywords"]),
    ("grep_searcher", &["tool/file/search_files"]),
    ("html5gum", &["tool/web/fetch/markdown"]),
    (
        "ignore",
        &[
            "tool/file/search_files",
            "tool/file/find_files",
            "tool/file/walk",
            "workspace/snapshot",
            "workspace/walk",
        ],
    ),
    ("jpeg_decoder", &["image_scaling"]),
    ("jpeg_encoder", &["image_scaling"]),
    ("jsonrpsee", &["rpc", "error"]),
    ("minipng", &["image_scaling"]),
    ("opentelemetry_proto", &["otlp"]),
    ("prost", &["otlp"]),
    (
        "percent_encoding",
        &["otlp/telemetry_settings", "permission/address", "permission/address_pattern", "platform"],
    ),
    ("rusqlite", &["store"]),
    ("icu_normalizer", &["platform"]),
    ("ring", &["ids", "http", "signing"]),
    (
        "serde_saphyr",
        &[
            "audit",
            "checks",
            "managed_policy",
            "mode",
            "permission/rules",
            "policy",
            "agents",
            "server",
            "config",
            "cli/permissions",
            "cli/wrap",
            "conversation/mode_switch",
            "external_agent/known",
            "external_agent/settings_text",
            "session/command/user_command",
            "skill",
            "tool/edit/syntax",
            "yaml_error",
        ],
    ),
    ("strsim", &["mode/definition", "tool/file/near_path"]),
    ("toml", &["external_agent/settings_text", "tool/edit/syntax"]),
    (
        "std::env",
        &[
            "config",
            "ids/local_zone",
            "process/plain",
            "process/shell",
            "sandbox/macos",
            "supervisor/command_process",
        ],
    ),
    (
        "url",
        &[
            "http/fetch_client",
            "http/network",
            "permission/address_pattern",
            "tool/web/fetch",
            "tool/mcp/login",
        ],
    ),
    ("vt100", &["terminal_host/screen_model"]),
    ("vte", &["terminal_host/screen_modes"]),
    ("windows_sys", &["process/plain/group/windows"]),
];

struct Source {
    /// Below `src`, without its ending: `session/turn`.
    module: String,
    /// Without its tests.
    text: String,
    /// Without its comments, too.
    code: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            paths.extend(files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            paths.push(path);
        }
    }
    paths.sort();
    paths
}

fn sources() -> Vec<Source> {
    let src = root().join("src");
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let module = path.strip_prefix(&src).unwrap().with_extension("").to_str().unwrap().replace('\\', "/");
        let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
        let text = text[..end].to_owned();
        let code =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        Source { module, text, code }
    };
    let is_test = |path: &PathBuf| path.file_stem().is_some_and(|name| name == "tests");
    files(&src, "rs").iter().filter(|path| !is_test(path)).map(read).collect()
}

/// True if a module is the other or lies below it.
fn within(module: &str, other: &str) -> bool {
    module == other || module.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'))
}

#[test]
fn files_are_short_and_have_module_comments() {
    for Source { module, text, .. } in sources() {
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{module} has {lines} lines");
        assert!(text.starts_with("//! "), "{module} does not say what lives there");
        assert!(!module.ends_with("/mod"), "{module}: foo.rs with foo/ beside it");
    }
}

#[test]
fn modules_import_only_allowed_layers() {
    let mut forbidden = Vec::new();
    for Source { module, code, .. } in sources() {
        let rule = LAYERS.iter().filter(|(name, _)| within(&module, name)).max_by_key(|(name, _)| name.len());
        let (layer, allowed) = rule.unwrap_or_else(|| panic!("{module} has no row in the layer table"));
        let top = module.split('/').next().unwrap();
        for (at, _) in code.match_indices("crate::") {
            let rest = &code[at + "crate::".len()..];
            let names: Vec<&str> = match rest.strip_prefix('{') {
                Some(list) => list.split('}').next().unwrap().split(',').map(str::trim).collect(),
                None => vec![rest],
            };
            for name in names {
                let path = name.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').next().unwrap();
                let (name, rest) = path.split_once("::").unwrap_or((path, ""));
                let submodule = format!("{name}/{}", rest.split("::").next().unwrap());
                let is_listed =
                    allowed.contains(&name) || allowed.contains(&&*submodule) || COMMON.contains(&name);
                let fine = name.is_empty() || is_listed || (name == top && layer == &top);
                if !fine {
                    forbidden.push(format!("{module} names crate::{name}, which {layer} may not"));
                }
            }
        }
    }
    assert!(forbidden.is_empty(), "{}", forbidden.join("\n"));
}

/// The part of [`PARTS`] that a module belongs to.
fn part_of(module: &str) -> Option<&'static str> {
    PARTS.iter().map(|(part, _)| *part).find(|part| within(module, part))
}

#[test]
fn parts_name_only_lower_parts() {
    let sources = sources();
    let modules: HashSet<&str> = sources.iter().map(|source| &*source.module).collect();
    for (at, (part, allowed)) in PARTS.iter().enumerate() {
        for other in *allowed {
            let is_lower = PARTS[..at].iter().any(|(lower, _)| lower == other);
            assert!(is_lower, "{part} names {other}, which is not above it in the table");
        }
    }
    for Source { module, code, .. } in &sources {
        let divided = PARTS.iter().any(|(part, _)| part.split('/').next() == module.split('/').next());
        if !divided || !module.contains('/') {
            continue;
        }
        let part = part_of(module).unwrap_or_else(|| panic!("{module} has no row in the table of parts"));
        let allowed = PARTS.iter().find(|(name, _)| *name == part).unwrap().1;
        for other in modules_named_by(module, code, &modules).iter().filter_map(|other| part_of(other)) {
            assert!(
                other == part || allowed.contains(&other),
                "{module} names {other}, which {part} may not"
            );
        }
    }
}

/// The paths in `use` lines that begin at `crate` or `super`, from `src` on: `supervisor/broker/Roots`.
fn used_paths(module: &str, code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for statement in code.split(';') {
        let Some((_, path)) = statement.rsplit_once("use ") else { continue };
        let mut rest = path.trim();
        if !rest.starts_with("crate::") && !rest.starts_with("super::") {
            continue;
        }
        let mut folder = module.to_owned();
        if let Some(from_root) = rest.strip_prefix("crate::") {
            (folder, rest) = (String::new(), from_root);
        }
        while let Some(above) = rest.strip_prefix("super::") {
            folder = folder.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
            rest = above;
        }
        let (base, items) = rest.split_once('{').unwrap_or(("", rest));
        for item in items.split(',').map(|item| item.trim().trim_end_matches('}')) {
            let path = format!("{folder}/{}{item}", base.trim()).replace("::", "/");
            paths.push(path.trim_start_matches('/').trim_end_matches("/self").to_owned());
        }
    }
    paths
}

#[test]
fn parts_of_the_supervisor_import_only_allowed_parts() {
    let row_of = |path: &str| {
        let rows = SUPERVISOR_LAYERS.iter().filter(|(name, _)| within(path, name));
        rows.max_by_key(|(name, _)| name.len())
    };
    let mut count = 0;
    for Source { module, code, .. } in sources() {
        let Some(part) = module.strip_prefix("supervisor/") else { continue };
        let (row, allowed) = row_of(part).unwrap_or_else(|| panic!("{part} has no row in the table"));
        for path in used_paths(&module, &code) {
            let Some(path) = path.strip_prefix("supervisor/") else { continue };
            let Some((other, _)) = row_of(path) else { continue };
            count += 1;
            let is_fine = other == row || within(other, row) || allowed.contains(other);
            assert!(is_fine, "{part} names {path}, which {row} may not");
        }
    }
    assert!(count > 60, "only {count} names were found");
    let mut remaining: Vec<_> = SUPERVISOR_LAYERS.iter().collect();
    while !remaining.is_empty() {
        let names: Vec<&str> = remaining.iter().map(|(name, _)| *name).collect();
        remaining.retain(|(_, below)| below.iter().any(|other| names.contains(other)));
        assert!(remaining.len() < names.len(), "a circle: {names:?}");
    }
}

/// The supervisor is a program of its own: without a runtime, and without a clock that can be set.
#[test]
fn supervisor_has_neither_a_runtime_nor_a_clock_of_the_day() {
    for Source { module, code, .. } in sources().iter().filter(|source| within(&source.module, "supervisor"))
    {
        for forbidden in ["tokio", "SystemTime", "jiff", "tracing::"] {
            assert!(!code.contains(forbidden), "{module} names {forbidden}");
        }
    }
}

#[test]
fn unsafe_code_is_in_listed_modules() {
    let page = fs::read_to_string(root().join("docs/internals/architecture.md")).unwrap();
    for Source { module, code, .. } in sources() {
        let is_listed = UNSAFE.contains(&&*module);
        assert_eq!(code.contains("allow(unsafe_code"), is_listed, "{module}");
        assert!(!is_listed || page.contains(&format!("`{module}.rs`")), "the page does not name {module}");
    }
}

/// Type names that stand in several files.
const REUSED_TYPE_NAMES: [&str; 4] = [
    // One for each system, behind the same module name.
    "Group", "Identity", "Process",
    // The fields of a file's front matter; messages about a file may name it.
    "Header",
];

/// A search for a type's name finds one definition.
#[test]
fn type_names_stand_in_one_file() {
    let mut files_of: HashMap<String, HashSet<String>> = HashMap::new();
    for Source { module, code, .. } in sources() {
        for line in code.lines() {
            let item = match line.strip_prefix("pub(") {
                Some(rest) => rest.split_once(") ").map_or(rest, |(_, item)| item),
                None => line.strip_prefix("pub ").unwrap_or(line),
            };
            let mut words = item.split(|c: char| !c.is_alphanumeric() && c != '_');
            if ["struct", "enum", "trait", "type", "union"].contains(&words.next().unwrap_or_default()) {
                let name = words.next().unwrap_or_default().to_owned();
                files_of.entry(name).or_default().insert(module.clone());
            }
        }
    }
    assert!(files_of.len() > 800, "the types are found");
    for (name, files) in files_of {
        assert!(files.len() == 1 || REUSED_TYPE_NAMES.contains(&&*name), "{name} stands in {files:?}");
    }
}

/// A component owns its fields and knows neither the actor nor a component that uses it.
#[test]
fn session_modules_form_no_circle() {
    let sources = sources();
    let modules: HashSet<&str> = sources
        .iter()
        .map(|source| &*source.module)
        .filter(|module| module.starts_with("session/"))
        .collect();
    let of_session = sources.iter().filter(|source| modules.contains(&*source.module));
    let mut remaining: Vec<(&str, Vec<String>)> = of_session
        .map(|Source { module, code, .. }| (&**module, modules_named_by(module, code, &modules)))
        .collect();
    assert!(remaining.len() > 30, "the modules of a session are in src/session");
    while !remaining.is_empty() {
        let names: Vec<&str> = remaining.iter().map(|(name, _)| *name).collect();
        remaining.retain(|(name, uses)| uses.iter().any(|used| used != name && names.contains(&&**used)));
        assert!(remaining.len() < names.len(), "a circle: {remaining:?}");
    }
    for Source { module, code, .. } in &sources {
        let is_named = code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "Actor");
        assert!(!is_named || within(module, "session/actor"), "{module} names the actor");
    }
}

/// Those of `modules` that the `use` lines of `module` name.
fn modules_named_by(module: &str, code: &str, modules: &HashSet<&str>) -> Vec<String> {
    let mut paths = Vec::new();
    for statement in code.split(';') {
        let Some((before, tree)) = statement.rsplit_once("use ") else { continue };
        let line = before.rsplit('\n').next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with("pub") {
            expand_use("", tree, &mut paths);
        }
    }
    let mut named = Vec::new();
    for path in paths {
        let mut folder: Vec<&str> = module.split('/').collect();
        for segment in path.split("::") {
            match segment {
                "crate" => folder.clear(),
                "super" => drop(folder.pop()),
                _ => folder.push(segment),
            }
        }
        if !path.starts_with("crate::") && !path.starts_with("super::") {
            continue;
        }
        while !folder.is_empty() && !modules.contains(&*folder.join("/")) {
            folder.pop();
        }
        named.push(folder.join("/"));
    }
    named
}

/// Adds the paths of a `use` tree to `paths`.
fn expand_use(before: &str, tree: &str, paths: &mut Vec<String>) {
    let Some((head, rest)) = tree.split_once('{') else {
        return paths.push(format!("{before}{}", tree.trim()));
    };
    let (inner, _) = rest.rsplit_once('}').unwrap();
    let (mut depth, before) = (0, format!("{before}{}", head.trim()));
    let mut is_separator = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    for part in inner.split(&mut is_separator).filter(|part| !part.trim().is_empty()) {
        expand_use(&before, part, paths);
    }
}

/// Tools that draw or measure the import graph read only `use` lines.
#[test]
fn paths_to_other_modules_stand_in_use_lines() {
    for Source { module, code, .. } in sources() {
        let mut is_use = false;
        for line in code.lines() {
            let begins = line.trim_start();
            let begins = begins.strip_prefix("pub ").unwrap_or(begins);
            is_use |= begins.starts_with("use ") || begins.starts_with("pub(") && begins.contains(" use ");
            let path = line.replace("pub(super)", "").replace("pub(crate)", "").replace("pub(in crate::", "");
            let names = |root: &str| {
                path.match_indices(root).any(|(at, _)| !path[..at].ends_with(char::is_alphanumeric))
            };
            assert!(
                is_use || !names("crate::") && !names("super::"),
                "{module}: import what this line names: {line}"
            );
            is_use &= !line.trim_end().ends_with(';');
        }
    }
}

#[test]
fn layer_table_has_no_cycle() {
    // A row for a submodule only narrows the row of its module, unless another row names the submodule.
    let is_layer = |name: &str| !name.contains('/') || LAYERS.iter().any(|(_, below)| below.contains(&name));
    let mut remaining: Vec<_> = LAYERS.iter().filter(|(name, _)| is_layer(name)).collect();
    while !remaining.is_empty() {
        let names: Vec<&str> = remaining.iter().map(|(name, _)| *name).collect();
        let before = remaining.len();
        remaining.retain(|(_, below)| below.iter().any(|other| names.contains(other)));
        assert!(remaining.len() < before, "a circle: {names:?}");
    }
}

#[test]
fn libraries_are_named_only_in_allowed_modules() {
    for Source { module, code: text, .. } in sources() {
        for (library, allowed) in LIBRARIES {
            // Matches whole words, so that `String::` is not `ring::`.
            let path = format!("{library}::");
            let is_word = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let is_named = text.match_indices(&path).any(|(at, _)| is_word(at))
                || text.contains(&format!("use {library}"));
            assert!(
                !is_named || allowed.iter().any(|place| within(&module, place)),
                "{module} names {library}"
            );
        }
        for forbidden in ["tokio::", "std::fs", "std::time::Instant", "std::time::SystemTime", "std::thread"]
        {
            let pure = PURE.iter().any(|pure| module == *pure);
            assert!(!(pure && text.contains(forbidden)), "{module} is pure and names {forbidden}");
        }
        let streams = ["stdin()", "stdout()"].iter().any(|stream| text.contains(stream));
        let is_allowed = ["main", "process/linux/supervised", "process/linux/terminal"].contains(&&*module);
        assert!(!streams || is_allowed, "{module} names a standard stream");
    }
}

#[test]
fn every_fixture_is_used() {
    let plays = crate::protocol::plays::plays();
    let everything: Vec<PathBuf> = ["play", "jsonl", "txt", "json", "yaml", "events"]
        .iter()
        .flat_map(|ending| files(&root().join("fixtures"), ending))
        .collect();
    let transcripts = crate::protocol::transcripts::folder();
    let provider = |path: &PathBuf| {
        let is_one = path.starts_with(root().join("fixtures/providers"));
        let has_stream = ["sse", "ndjson"].iter().any(|ending| path.with_extension(ending).exists());
        let name = path.file_name().and_then(|name| name.to_str());
        is_one
            && (has_stream
                || matches!(
                    name,
                    Some("request.json" | "request_elsewhere.json" | "prefix.txt" | "reminder.txt")
                ))
    };
    let is_used = |path: &PathBuf| {
        let name = path.strip_prefix(&transcripts).ok().and_then(|path| path.to_str());
        let of = name.and_then(|name| name.split('.').next());
        provider(path)
            || ["fixtures/reminders.txt", "fixtures/system_calls.txt"]
                .iter()
                .any(|name| *path == root().join(name))
            || plays.contains(path)
            || of.is_some_and(|name| transcripts.join(format!("{name}.in.jsonl")).exists())
    };
    let forgotten: Vec<_> = everything.iter().filter(|path| !is_used(path)).collect();
    assert!(forgotten.is_empty(), "{forgotten:?}");
    for play in plays {
        let text = fs::read_to_string(&play).unwrap();
        assert!(text.starts_with("# "), "{} does not say why", play.display());
        assert!(text.contains("\n<- "), "{} shows nothing", play.display());
        let too_long = text.lines().position(|line| line.chars().count() > 120);
        assert!(too_long.is_none(), "{}:{} is too long", play.display(), too_long.unwrap_or_default() + 1);
    }
}

#[test]
fn readme_commands_and_page_links_exist() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains("cargo run -- --mode plan -p"));
    assert!(readme.contains("cargo test"));
    let mut pages = files(&root().join("docs"), "md");
    pages.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|page| root().join(page)));
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split(')').next().unwrap().split('#').next().unwrap();
            let outside = target.is_empty() || target.contains("://");
            let exists = page.parent().unwrap().join(target).exists();
            assert!(outside || exists, "{}: {target}", page.display());
        }
    }
}

/// Words in code quotes in `sources.md` that are not tests: modes, keys, methods and tools.
const SOURCE_WORDS: [&str; 16] = [
    "--mode",
    "_meta[\"modegate/mode\"]",
    "architect",
    "ask",
    "build",
    "create_todo",
    "create_todos",
    "default_mode",
    "list_todos",
    "mask",
    "rag",
    "session/list",
    "session/load",
    "session/resume",
    "todo",
    "update_todos",
];

/// The names of all tests in `src` and `tests`.
fn test_names() -> HashSet<String> {
    let mut names = HashSet::new();
    for path in ["src", "tests"].iter().flat_map(|folder| files(&root().join(folder), "rs")) {
        let mut is_test = false;
        for line in fs::read_to_string(path).unwrap().lines().map(str::trim_start) {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let Some(rest) =
                line.trim_start_matches("pub(super) ").trim_start_matches("async ").strip_prefix("fn ")
            else {
                continue;
            };
            if std::mem::take(&mut is_test) {
                names.insert(rest.split('(').next().unwrap().to_owned());
            }
        }
    }
    names
}

/// Every row names existing tests, or says that Modegate differs and why.
#[test]
fn every_source_definition_has_a_row() {
    let page = fs::read_to_string(root().join("docs/internals/sources.md")).unwrap();
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| line") && !line.starts_with("| ---"))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let expected = (1..=52)
        .map(|n| format!("D{n}"))
        .chain((1..=56).map(|n| format!("G{n}")))
        .chain((1..=10).map(|n| format!("A{n}")));
    assert_eq!(rows.iter().map(|row| row[0].to_owned()).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    let tests = test_names();
    for row in rows {
        let [line, _, shown] = row[..] else { panic!("{row:?} has three columns") };
        let mut test_count = 0;
        for name in shown.split('`').skip(1).step_by(2) {
            let is_test = tests.contains(name);
            let is_play = name.contains(".play") && root().join("fixtures/plays").join(name).exists();
            let is_page = name.starts_with("docs/") && root().join(name).exists();
            let is_word = SOURCE_WORDS.contains(&name);
            assert!(
                is_test || is_play || is_page || is_word,
                "{line}: {name} is no test, play, page or known word"
            );
            test_count += usize::from(is_test || is_play || is_page);
        }
        let differs = shown.contains("differs, because ");
        assert!(test_count > 0 || differs, "{line}: {shown}");
    }
}
