//! The names of all that is sent: attributes, metrics, and the version of the conventions that has them. Names
//! without a convention begin with `modegate.`. Pure.

/// Version of OpenTelemetry's semantic conventions: the last one that has those for `GenAI` and MCP. Later versions of them
/// are kept elsewhere and have no number yet.
pub const VERSION: &str = "1.41.1";

pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.41.1";

/// An attribute, for the table of `docs/reference/telemetry.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttributeName {
    pub name: &'static str,
    /// A phrase.
    pub meaning: &'static str,
    /// True if the attribute is sent only on request.
    pub is_content: bool,
}

const fn attribute(name: &'static str, meaning: &'static str) -> AttributeName {
    AttributeName { name, meaning, is_content: false }
}

const fn content(name: &'static str, meaning: &'static str) -> AttributeName {
    AttributeName { name, meaning, is_content: true }
}

pub const OPERATION: &str = "gen_ai.operation.name";
pub const PROVIDER: &str = "gen_ai.provider.name";
pub const MODEL: &str = "gen_ai.request.model";
pub const STREAM: &str = "gen_ai.request.stream";
pub const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
pub const TIME_TO_FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
pub const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
pub const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
pub const CACHE_READ_TOKENS: &str = "gen_ai.usage.cache_read.input_tokens";
pub const CACHE_WRITE_TOKENS: &str = "gen_ai.usage.cache_creation.input_tokens";
pub const CONVERSATION: &str = "gen_ai.conversation.id";
pub const AGENT: &str = "gen_ai.agent.name";
pub const TOOL: &str = "gen_ai.tool.name";
pub const TOOL_TYPE: &str = "gen_ai.tool.type";
pub const CALL: &str = "gen_ai.tool.call.id";
pub const ARGUMENTS: &str = "gen_ai.tool.call.arguments";
pub const RESULT: &str = "gen_ai.tool.call.result";
pub const INPUT_MESSAGES: &str = "gen_ai.input.messages";
pub const OUTPUT_MESSAGES: &str = "gen_ai.output.messages";
pub const INPUT_VALUE: &str = "input.value";
pub const OUTPUT_VALUE: &str = "output.value";
pub const TOKEN_TYPE: &str = "gen_ai.token.type";
pub const MCP_METHOD: &str = "mcp.method.name";
pub const ERROR: &str = "error.type";
pub const SESSION: &str = "session.id";
pub const SERVICE_NAME: &str = "service.name";
pub const SERVICE_VERSION: &str = "service.version";
pub const SERVICE_INSTANCE: &str = "service.instance.id";
pub const OS: &str = "os.type";
pub const TURN: &str = "modegate.turn";
pub const MODE: &str = "modegate.mode";
pub const MODE_FROM: &str = "modegate.mode.from";
pub const MODE_SOURCE: &str = "modegate.mode.source";
pub const STOP_REASON: &str = "modegate.stop_reason";
pub const DENIAL_RULE: &str = "modegate.denial.rule";
pub const PERMISSION: &str = "modegate.permission.outcome";
pub const EXIT_CODE: &str = "modegate.exit_code";
pub const EXTERNAL: &str = "modegate.external";
pub const MCP_SERVER: &str = "modegate.mcp.server";
pub const CHAIN_NUMBER: &str = "modegate.chain.number";
pub const CHAIN_HASH: &str = "modegate.chain.hash";
/// Start of the names of an audit entry's own members.
pub const AUDIT: &str = "modegate.audit.";

/// Of spans, log records and metrics.
#[rustfmt::skip]
pub const ATTRIBUTES: [AttributeName; 37] = [
    attribute(OPERATION, "invoke_agent (a turn), chat (a model request) or execute_tool"),
    attribute(PROVIDER, "provider of the model; `modegate` for models in the binary"),
    attribute(MODEL, "model, without its provider"),
    attribute(STREAM, "true: replies are streamed"),
    attribute(FINISH_REASONS, "why the model stopped"),
    attribute(TIME_TO_FIRST_CHUNK, "seconds until the first output"),
    attribute(INPUT_TOKENS, "tokens of the request, cached ones included"),
    attribute(OUTPUT_TOKENS, "tokens of the reply"),
    attribute(CACHE_READ_TOKENS, "tokens that the provider had cached"),
    attribute(CACHE_WRITE_TOKENS, "tokens that the provider cached"),
    attribute(TOKEN_TYPE, "input or output"),
    attribute(CONVERSATION, "id of the session"),
    attribute(SESSION, "id of the session"),
    attribute(AGENT, "id of the agent"),
    attribute(TOOL, "name of the tool; for an external agent's call, its kind"),
    attribute(TOOL_TYPE, "function, or extension for a tool of an MCP server"),
    attribute(CALL, "id of the call"),
    attribute(MCP_METHOD, "tools/call, for a tool of an MCP server"),
    attribute(ERROR, "kind of failure, from the list below"),
    content(INPUT_MESSAGES, "prompt of a turn; new messages of a model request"),
    content(OUTPUT_MESSAGES, "answer of a turn; reply to a model request"),
    content(ARGUMENTS, "arguments of the call"),
    content(RESULT, "result of the call"),
    content(INPUT_VALUE, "prompt of a turn, arguments of a call; a name of OpenInference, for Phoenix"),
    content(OUTPUT_VALUE, "answer of a turn, result of a call; a name of OpenInference, for Phoenix"),
    attribute(TURN, "number of the turn in its session"),
    attribute(MODE, "mode at the start of a turn or a call, or after a mode change"),
    attribute(MODE_FROM, "mode before a mode change"),
    attribute(MODE_SOURCE, "what changed the mode"),
    attribute(STOP_REASON, "ACP's stop reason of a turn"),
    attribute(DENIAL_RULE, "rule that denied the call"),
    attribute(PERMISSION, "allowed, rejected, unreachable or withdrawn"),
    attribute(EXIT_CODE, "exit status of the command"),
    attribute(EXTERNAL, "true for a call of an external agent"),
    attribute(MCP_SERVER, "MCP server that has the tool"),
    attribute(CHAIN_NUMBER, "number of the entry in the audit log of its session"),
    attribute(CHAIN_HASH, "hash of the entry: the key for entries that arrive twice"),
];

/// Of the resource.
pub const RESOURCE: [AttributeName; 4] = [
    attribute(SERVICE_NAME, "modegate, unless you set another name"),
    attribute(SERVICE_VERSION, "version of Modegate"),
    attribute(SERVICE_INSTANCE, "id of the process"),
    attribute(OS, "operating system"),
];

/// The members of an audit entry that are sent without contents: words, ids and hashes, no paths, commands or texts.
#[rustfmt::skip]
pub const AUDIT_MEMBERS: [&str; 16] = [
    "from", "to", "source", "mode", "rule", "allows", "consent", "check", "under", "arguments", "session", "held",
    "decided", "text", "plan", "files",
];

/// The members of an entry's facts that are sent without contents.
pub const AUDIT_FACTS: [&str; 5] = ["effect", "shell", "background", "external", "brokered"];

/// A metric, for the table of `docs/reference/telemetry.md`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricName {
    pub name: &'static str,
    pub unit: &'static str,
    pub meaning: &'static str,
    /// Upper bounds of the buckets. Empty for a counter.
    pub bounds: &'static [f64],
}

const SECONDS: &[f64] =
    &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];

#[rustfmt::skip]
const TOKENS: &[f64] = &[
    1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0,
    67_108_864.0,
];

/// Times that people take.
const WAITS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0];

pub const DURATION: MetricName = MetricName {
    name: "gen_ai.client.operation.duration",
    unit: "s",
    meaning: "duration of turns and model requests",
    bounds: SECONDS,
};
pub const FIRST_CHUNK: MetricName = MetricName {
    name: "gen_ai.client.operation.time_to_first_chunk",
    unit: "s",
    meaning: "time until the first output of a model",
    bounds: SECONDS,
};
pub const TOKEN_USAGE: MetricName = MetricName {
    name: "gen_ai.client.token.usage",
    unit: "{token}",
    meaning: "tokens of model requests",
    bounds: TOKENS,
};
pub const TOOL_DURATION: MetricName = MetricName {
    name: "modegate.tool.duration",
    unit: "s",
    meaning: "duration of calls that ran, without waits for the user",
    bounds: SECONDS,
};
pub const PERMISSION_WAIT: MetricName = MetricName {
    name: "modegate.permission.wait",
    unit: "s",
    meaning: "time until a permission request was answered",
    bounds: WAITS,
};
pub const DENIALS: MetricName =
    MetricName { name: "modegate.denials", unit: "{call}", meaning: "denied calls", bounds: &[] };
pub const MODE_CHANGES: MetricName =
    MetricName { name: "modegate.mode.changes", unit: "{change}", meaning: "mode changes", bounds: &[] };

pub const METRICS: [MetricName; 7] =
    [DURATION, FIRST_CHUNK, TOKEN_USAGE, TOOL_DURATION, PERMISSION_WAIT, DENIALS, MODE_CHANGES];

/// The values of `error.type`, each with its meaning.
pub const ERRORS: [(&str, &str); 11] = [
    ("_OTHER", "another failure"),
    ("cancelled", "cancelled by the user, or ended by a tighter mode"),
    ("context_too_long", "the request did not fit in the model's context"),
    ("denied", "the mode, a rule or a limit denied the call"),
    ("exit_code", "the command ended with another exit status than 0"),
    ("interrupted", "the reply broke off, or the process of the turn ended"),
    ("key", "the provider has no key, or rejects it"),
    ("model", "a model request failed, and with it the turn"),
    ("no_answer", "the model gave no answer"),
    ("rejected", "the user rejected the call"),
    ("tool_error", "the tool failed"),
];

/// The name that the conventions have for a provider.
pub fn provider(id: &str) -> &str {
    match id {
        "openai-responses" => "openai",
        "gemini" => "gcp.gemini",
        other => other,
    }
}
