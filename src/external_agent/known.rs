//! Known agents, by their command, and the hosts that agents may reach. Pure.

use std::path::Path;
use std::sync::LazyLock;

use crate::acp::McpServer;
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::external_agent::profile::{AgentProfile, host_of};
use crate::process::{AllowedHosts, HostPattern};

const RUNNERS: [&str; 9] = ["node", "npx", "npm", "bun", "bunx", "deno", "pnpm", "yarn", "uvx"];

const RUN_SUBCOMMANDS: [&str; 4] = ["dlx", "exec", "run", "x"];

/// Hosts of the models that Modegate knows itself. Any agent may use them.
pub const MODELS: [&str; 3] =
    ["api.anthropic.com:443", "api.openai.com:443", "generativelanguage.googleapis.com:443"];

/// Hosts for agents with models of many providers.
pub const PROVIDERS: &[&str] = &[
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

/// The agents of `known_agents.yaml`.
static AGENTS: LazyLock<Vec<AgentProfile>> = LazyLock::new(|| {
    let text = include_str!("known_agents.yaml");
    serde_saphyr::from_str(text).expect("the profiles are valid, as a test shows")
});

pub fn known_agents() -> &'static [AgentProfile] {
    &AGENTS
}

/// Finds the agent that a command runs among `profiles`, or else among those that Modegate knows.
pub fn profile_of(program: &str, arguments: &[String], profiles: &[AgentProfile]) -> Option<AgentProfile> {
    let word = agent_of(program, arguments)?;
    profiles.iter().chain(&*AGENTS).find(|agent| names(word, &agent.name)).cloned()
}

/// Variables with the address of a model's provider.
const URL_VARIABLES: [&str; 25] = [
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_BEDROCK_BASE_URL",
    "ANTHROPIC_HOST",
    "ANTHROPIC_VERTEX_BASE_URL",
    "AZURE_OPENAI_ENDPOINT",
    "CODE_ASSIST_ENDPOINT",
    "COPILOT_PROVIDER_BASE_URL",
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

/// The profile of a defined agent.
pub fn profile(definition: &ExternalAgentDefinition) -> Option<AgentProfile> {
    definition.profile.clone().or_else(|| profile_of(&definition.command, &definition.args, &[]))
}

/// Names the first of folders, hosts and sockets that the definition gives the agent beyond its built-in profile. `None`
/// if there are none.
pub fn beyond_profile(definition: &ExternalAgentDefinition) -> Option<&'static str> {
    let sandbox = definition.sandbox.as_ref()?;
    let profile = profile_of(&definition.command, &definition.args, &[]).unwrap_or_default();
    // A variable could lead a known folder to another place.
    let unset = |_: &str| None;
    let (state, write) = (profile.state_folders(&unset), profile.write_folders(&unset));
    let is_beyond = [
        (sandbox.state_dirs.iter().any(|folder| !state.contains(folder)), "further state directories"),
        (sandbox.write_dirs.iter().any(|folder| !write.contains(folder)), "further directories to change"),
        (!sandbox.hosts.is_empty(), "further hosts"),
        (!sandbox.sockets.is_empty(), "sockets"),
    ];
    is_beyond.into_iter().find_map(|(is_beyond, what)| is_beyond.then_some(what))
}

/// The hosts that the agent may reach where its network is limited. `variables` are those of its environment,
/// `addresses` those in its settings.
pub fn allowed_hosts(
    definition: &ExternalAgentDefinition,
    servers: &[McpServer],
    variables: impl Iterator<Item = (String, String)>,
    addresses: &[String],
) -> AllowedHosts {
    let agent = profile(definition).unwrap_or_default();
    let providers = if agent.has_many_providers { PROVIDERS } else { &[] };
    let known_hosts = MODELS.iter().chain(providers).map(|host| (*host).to_owned());
    let in_settings = addresses.iter().filter_map(|address| host_of(address));
    let known_hosts = known_hosts.chain(agent.hosts.iter().cloned()).chain(in_settings);
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
    let hosts = AllowedHosts { patterns, ..AllowedHosts::default() };
    match &definition.host_limit {
        Some(limit) => hosts.below(limit),
        None => hosts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(definition: &str, variables: &[(&str, &str)], servers: &[McpServer]) -> AllowedHosts {
        let definition: ExternalAgentDefinition = serde_saphyr::from_str(definition).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        allowed_hosts(&definition, servers, variables, &[])
    }

    #[test]
    fn profiles_have_no_faults() {
        for agent in &*AGENTS {
            assert_eq!(agent.fault(), None, "{}", agent.name);
            assert_eq!(agent.settings.is_empty(), agent.address_keys.is_empty(), "{}", agent.name);
        }
    }

    #[test]
    fn settings_name_hosts_of_models() {
        for (addresses, expected) in
            [(&["https://models.example.com/v1".to_owned()][..], true), (&["no host".to_owned()], false)]
        {
            let definition = serde_saphyr::from_str("{command: codex-acp}").unwrap();
            let allowed = allowed_hosts(&definition, &[], std::iter::empty(), addresses);
            assert_eq!(allowed.allow_name("models.example.com", Some(443)), expected, "{addresses:?}");
        }
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
        for text in MODELS.iter().chain(PROVIDERS) {
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
}
