//! Known agents, by their command: where they keep their state, the hosts of their models, and their own modes.
//! Pure.
//!
//! State folders and modes of claude, codex, copilot, gemini, opencode and qwen were found by running them, those of
//! goose, kimi and vibe were read in their documentation. The hosts of claude, codex, gemini and qwen were read from
//! their packages, those of the others from their documentation.

use std::path::{Path, PathBuf};

use crate::acp::McpServer;
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::process::{AllowedHosts, HostPattern};

const RUNNERS: [&str; 9] = ["node", "npx", "npm", "bun", "bunx", "deno", "pnpm", "yarn", "uvx"];

const RUN_SUBCOMMANDS: [&str; 4] = ["dlx", "exec", "run", "x"];

/// Hosts of the models that Modegate knows itself. Any agent may use them.
const MODELS: [&str; 3] =
    ["api.anthropic.com:443", "api.openai.com:443", "generativelanguage.googleapis.com:443"];

/// Hosts for agents with models of many providers.
const PROVIDERS: &[&str] = &[
    "opencode.ai:443",
    "*.opencode.ai:443",
    "models.dev:443",
    "openrouter.ai:443",
    "api.cerebras.ai:443",
    "api.deepseek.com:443",
    "api.github.com:443",
    "*.githubcopilot.com:443",
    "api.groq.com:443",
    "api.mistral.ai:443",
    "api.moonshot.ai:443",
    "api.together.xyz:443",
    "api.x.ai:443",
    "api.z.ai:443",
];

/// A known agent. Its name is a part of its command.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownAgent {
    pub name: &'static str,
    folders: &'static [StateFolder],
    /// Folders without which the agent does not start. It must not write there in the sandbox.
    settings: &'static [StateFolder],
    /// For models and logins.
    hosts: &'static [&'static str],
    pub sandboxed: SandboxedSettings,
}

#[derive(Debug, PartialEq, Eq)]
struct StateFolder {
    /// Moves the folder, if it is set to an absolute path.
    variable: &'static str,
    usual: &'static str,
    /// Part of the folder below the variable's path. Empty if the variable names the folder itself.
    below: &'static str,
}

/// Own mode and settings in the sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxedSettings {
    /// Ids of the mode, by version of the agent. Empty if one of the common ids fits.
    pub modes: &'static [&'static str],
    pub arguments: &'static [&'static str],
    pub variables: &'static [(&'static str, &'static str)],
}

const COMMON: SandboxedSettings = SandboxedSettings { modes: &[], arguments: &[], variables: &[] };

const fn folder(variable: &'static str, usual: &'static str, below: &'static str) -> StateFolder {
    StateFolder { variable, usual, below }
}

const AGENTS: &[KnownAgent] = &[
    KnownAgent {
        name: "claude",
        folders: &[folder("CLAUDE_CONFIG_DIR", "~/.claude", "")],
        settings: &[],
        hosts: &[
            "*.anthropic.com:443",
            "claude.ai:443",
            "*.claude.ai:443",
            "claude.com:443",
            "*.claude.com:443",
        ],
        sandboxed: COMMON,
    },
    KnownAgent {
        name: "codex",
        folders: &[folder("CODEX_HOME", "~/.codex", "")],
        settings: &[],
        hosts: &["chatgpt.com:443", "*.chatgpt.com:443", "auth.openai.com:443"],
        // Codex cannot create its own sandbox within Modegate's; in this mode it creates none. Arguments (0.16) and a variable (2.x) select the mode, because setting it over ACP would make codex trust the
        // folder from then on.
        sandboxed: SandboxedSettings {
            modes: &["full-access", "agent-full-access"],
            arguments: &["-c", "sandbox_mode=\"danger-full-access\"", "-c", "approval_policy=\"never\""],
            variables: &[("INITIAL_AGENT_MODE", "agent-full-access")],
        },
    },
    KnownAgent {
        name: "copilot",
        folders: &[
            folder("XDG_CONFIG_HOME", "~", ".copilot"),
            folder("XDG_CACHE_HOME", "~/.cache", "copilot"),
        ],
        settings: &[],
        hosts: &["api.github.com:443", "*.githubcopilot.com:443"],
        sandboxed: COMMON,
    },
    KnownAgent {
        name: "gemini",
        folders: &[folder("GEMINI_CLI_HOME", "~", ".gemini")],
        settings: &[],
        hosts: &["cloudcode-pa.googleapis.com:443", "oauth2.googleapis.com:443", "accounts.google.com:443"],
        sandboxed: COMMON,
    },
    KnownAgent {
        name: "goose",
        folders: &[
            folder("XDG_CONFIG_HOME", "~/.config", "goose"),
            folder("XDG_DATA_HOME", "~/.local/share", "goose"),
            folder("XDG_STATE_HOME", "~/.local/state", "goose"),
        ],
        settings: &[],
        hosts: PROVIDERS,
        sandboxed: COMMON,
    },
    KnownAgent {
        name: "kimi",
        folders: &[folder("KIMI_SHARE_DIR", "~/.kimi", "")],
        settings: &[],
        hosts: &["api.kimi.com:443", "auth.kimi.com:443", "api.moonshot.ai:443", "api.moonshot.cn:443"],
        sandboxed: COMMON,
    },
    KnownAgent {
        name: "opencode",
        folders: &[
            folder("XDG_DATA_HOME", "~/.local/share", "opencode"),
            folder("XDG_STATE_HOME", "~/.local/state", "opencode"),
            folder("XDG_CACHE_HOME", "~/.cache", "opencode"),
        ],
        settings: &[folder("XDG_CONFIG_HOME", "~/.config", "opencode")],
        hosts: PROVIDERS,
        sandboxed: COMMON,
    },
    KnownAgent {
        name: "qwen",
        folders: &[folder("QWEN_HOME", "~/.qwen", "")],
        settings: &[],
        hosts: &[
            "chat.qwen.ai:443",
            "portal.qwen.ai:443",
            "dashscope.aliyuncs.com:443",
            "dashscope-intl.aliyuncs.com:443",
            "*.dashscope.aliyuncs.com:443",
            "openrouter.ai:443",
        ],
        sandboxed: COMMON,
    },
    KnownAgent {
        name: "vibe",
        folders: &[folder("VIBE_HOME", "~/.vibe", "")],
        settings: &[],
        hosts: &["api.mistral.ai:443"],
        sandboxed: COMMON,
    },
];

impl StateFolder {
    fn place(&self, variable: impl Fn(&str) -> Option<String>) -> PathBuf {
        let set = variable(self.variable).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = set.unwrap_or_else(|| PathBuf::from(self.usual));
        if self.below.is_empty() { base } else { base.join(self.below) }
    }
}

impl KnownAgent {
    pub fn of_command(program: &str, arguments: &[String]) -> Option<&'static Self> {
        let word = agent_of(program, arguments)?;
        AGENTS.iter().find(|agent| names(word, agent.name))
    }

    /// The agent's state folders. `variable` reads a variable of the environment, here and below.
    pub fn state_folders(&self, variable: &impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.place(variable)).collect()
    }

    /// Folders that have to exist, besides the state folders.
    pub fn settings_folders(&self, variable: &impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
        self.settings.iter().map(|folder| folder.place(variable)).collect()
    }
}

/// Variables with the address of a model's provider.
const URL_VARIABLES: [&str; 24] = [
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_BEDROCK_BASE_URL",
    "ANTHROPIC_HOST",
    "ANTHROPIC_VERTEX_BASE_URL",
    "AZURE_OPENAI_ENDPOINT",
    "CODE_ASSIST_ENDPOINT",
    "DASHSCOPE_BASE_URL",
    "DATABRICKS_HOST",
    "DEEPSEEK_BASE_URL",
    "GEMINI_BASE_URL",
    "GOOGLE_GEMINI_BASE_URL",
    "GOOGLE_VERTEX_BASE_URL",
    "KIMI_BASE_URL",
    "LITELLM_HOST",
    "LMSTUDIO_BASE_URL",
    "MISTRAL_BASE_URL",
    "MOONSHOT_BASE_URL",
    "OLLAMA_API_BASE",
    "OLLAMA_HOST",
    "OPENAI_API_BASE",
    "OPENAI_BASE_URL",
    "OPENAI_HOST",
    "OPENAI_RESPONSES_BASE_URL",
    "OPENROUTER_BASE_URL",
];

/// The word that identifies an agent: the program, or the argument of a runner. Other arguments may name a model.
fn agent_of<'a>(program: &'a str, arguments: &'a [String]) -> Option<&'a str> {
    let program = Path::new(program).file_name()?.to_str()?;
    if !RUNNERS.contains(&program) {
        return Some(program);
    }
    let mut words = arguments.iter().map(String::as_str);
    words.find(|word| !word.starts_with('-') && !RUN_SUBCOMMANDS.contains(word))
}

/// Returns true if the word names the agent, such as `@scope/NAME-cli` or `/opt/NAME/main.js`.
fn names(word: &str, name: &str) -> bool {
    Path::new(word).components().any(|part| part.as_os_str().to_string_lossy().starts_with(name))
}

/// The hosts that the agent may reach where its network is limited. `variables` are those of its environment.
pub fn allowed_hosts(
    definition: &ExternalAgentDefinition,
    servers: &[McpServer],
    variables: impl Iterator<Item = (String, String)>,
) -> AllowedHosts {
    let agent = KnownAgent::of_command(&definition.command, &definition.args);
    let agent_hosts = agent.iter().flat_map(|agent| agent.hosts);
    let known_hosts = MODELS.iter().chain(agent_hosts).map(|host| (*host).to_owned());
    let defined_hosts = definition.sandbox.iter().flat_map(|sandbox| sandbox.hosts.iter().cloned());
    let models = variables.filter(|(name, _)| URL_VARIABLES.contains(&name.as_str()));
    let models = models.filter_map(|(_, value)| host_of(&value));
    let servers = servers.iter().filter_map(|server| match server {
        McpServer::Http(server) => host_of(&server.url),
        McpServer::Sse(server) => host_of(&server.url),
        _ => None,
    });
    let all = known_hosts.chain(defined_hosts).chain(models).chain(servers);
    // Those of the user were checked, and a wrong variable names no host.
    let patterns: Vec<HostPattern> = all.filter_map(|text| text.parse().ok()).collect();
    AllowedHosts { patterns, addresses: Vec::new() }
}

/// The host of a URL with its port. Without a scheme, the port is any, unless there is one.
fn host_of(url: &str) -> Option<String> {
    let (scheme, rest) = url.trim().split_once("://").unwrap_or(("", url.trim()));
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    // A server that listens at all addresses has this one, too.
    let host = host.strip_prefix("0.0.0.0").map_or(host.to_owned(), |port| format!("127.0.0.1{port}"));
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let port = match scheme.to_ascii_lowercase().as_str() {
        _ if has_port => "",
        "https" | "wss" => ":443",
        "http" | "ws" => ":80",
        _ => "",
    };
    (!host.is_empty() && !host.contains('*')).then(|| format!("{host}{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(definition: &str, variables: &[(&str, &str)], servers: &[McpServer]) -> AllowedHosts {
        let definition: ExternalAgentDefinition = serde_saphyr::from_str(definition).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        allowed_hosts(&definition, servers, variables)
    }

    #[test]
    fn agents_reach_the_hosts_of_their_models() {
        for (definition, name, expected) in [
            ("{command: other}", "api.openai.com", true),
            ("{command: other}", "chatgpt.com", false),
            ("{command: /opt/bin/codex-acp}", "chatgpt.com", true),
            ("{command: npx, args: ['-y', '@google/gemini-cli', --acp]}", "oauth2.googleapis.com", true),
            ("{command: npx, args: [other, gemini]}", "oauth2.googleapis.com", false),
            ("{command: claude-agent-acp}", "console.anthropic.com", true),
            ("{command: opencode, args: [acp]}", "models.dev", true),
            ("{command: opencode, args: [acp]}", "example.com", false),
            ("{command: a, sandbox: {state_dirs: [], hosts: ['*.example.com']}}", "www.example.com", true),
        ] {
            let allowed = hosts(definition, &[], &[]);
            assert_eq!(allowed.allow_name(name, Some(443)), expected, "{definition} {name}");
            assert!(!allowed.allow_name("api.openai.com", Some(80)));
        }
        let texts = MODELS.iter().chain(AGENTS.iter().flat_map(|agent| agent.hosts));
        for text in texts {
            assert_eq!(text.parse::<HostPattern>().unwrap().to_string(), *text);
        }
    }

    #[test]
    fn variables_and_servers_name_hosts() {
        let server: McpServer = serde_json::from_value(serde_json::json!({
            "type": "http", "name": "a", "url": "https://mcp.example.com/path", "headers": []
        }))
        .unwrap();
        let variables = [
            ("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"),
            ("OLLAMA_HOST", "0.0.0.0:11434"),
            ("ANTHROPIC_BASE_URL", "https://key:word@proxy.example.com?x"),
            ("OTHER_URL", "https://other.example.com"),
            ("GEMINI_BASE_URL", "no host"),
            ("KIMI_BASE_URL", "*"),
        ];
        let allowed = hosts("{command: other}", &variables, &[server]);
        let shown: Vec<String> =
            allowed.patterns[MODELS.len()..].iter().map(HostPattern::to_string).collect();
        assert_eq!(
            shown,
            ["127.0.0.1:8080", "127.0.0.1:11434", "proxy.example.com:443", "mcp.example.com:443"]
        );
    }

    #[test]
    fn hosts_of_urls() {
        for (url, expected) in [
            ("https://a.b/c", Some("a.b:443")),
            ("http://a.b", Some("a.b:80")),
            ("HTTP://a.b:8/", Some("a.b:8")),
            ("a.b", Some("a.b")),
            ("a.b:8", Some("a.b:8")),
            ("http://[::1]/", Some("[::1]:80")),
            ("http://[::1]:8/", Some("[::1]:8")),
            ("http://0.0.0.0:8", Some("127.0.0.1:8")),
            ("", None),
            ("https://*/", None),
        ] {
            assert_eq!(host_of(url).as_deref(), expected, "{url}");
        }
    }
}
