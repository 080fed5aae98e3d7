//! MCP servers of a session, from the user's files (`servers:`) and from the client. Pure.
//!
//! A user entry with neither `command` nor `url` configures the client's server of the same name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::acp::McpServer;
use crate::permission::hints::{Override, Trust};

const TIMEOUT: Duration = Duration::from_mins(5);

/// MCP server in a user's file. Unknown keys are errors.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerDefinition {
    /// Program of a server that speaks over stdin and stdout.
    pub command: Option<String>,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Environment variables in addition to `PATH`, `HOME`, the locale and toolchains. `${NAME}` expands a
    /// variable of Modegate's environment.
    #[schemars(with = "BTreeMap<String, String>")]
    pub env: BTreeMap<String, SecretString>,
    /// Working directory. Default: the session's folder.
    pub cwd: Option<PathBuf>,
    /// Address of a server that speaks streamable HTTP.
    pub url: Option<String>,
    /// HTTP headers. `${NAME}` expands a variable of Modegate's environment.
    #[schemars(with = "BTreeMap<String, String>")]
    pub headers: BTreeMap<String, SecretString>,
    /// Trusted tool hints: true, false, or names of tools. Default: ask the user before the first call that
    /// needs the hint.
    pub trust_hints: Option<Trust>,
    /// Effects of tools, which override hints: `read_only` or `changes`.
    pub tools: BTreeMap<String, Override>,
    /// Sandbox of the program. Default: off.
    pub sandbox: Option<ServerSandbox>,
    /// Paths that the `read_only` sandbox may read, beyond the session's folders, the system, and the folders
    /// around paths in the command line.
    #[schemars(with = "Vec<PathBuf>")]
    pub read: Vec<Spanned<PathBuf>>,
    /// Seconds that a tool call may take. Default: 300.
    pub timeout: Option<u64>,
    /// Answer requests for the session's folders. Default: true.
    pub roots: Option<bool>,
    /// Unset variable that a value refers to. Prevents the start.
    #[serde(skip)]
    #[schemars(skip)]
    pub missing: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerSandbox {
    /// Reads the session's folders and the system, writes only to its own temporary folder, and has no
    /// network.
    ReadOnly,
    /// Writes the session's folders, temporary folders and caches.
    Workspace,
    /// No restrictions beyond the user's.
    #[default]
    Off,
}

#[derive(Debug, Clone)]
pub struct ServerEntry {
    pub name: String,
    /// False for a server of the client.
    pub is_own: bool,
    pub transport: ServerTransport,
    /// `None` if the user has not decided.
    pub trust: Option<Trust>,
    pub tools: BTreeMap<String, Override>,
    pub sandbox: ServerSandbox,
    pub read: Vec<PathBuf>,
    pub timeout: Duration,
    pub roots: bool,
}

#[derive(Debug, Clone)]
pub enum ServerTransport {
    Program { command: String, args: Vec<String>, env: Vec<(String, SecretString)>, cwd: Option<PathBuf> },
    Address { url: String, headers: Vec<(String, SecretString)> },
}

impl ServerDefinition {
    /// The error's place, `None` for the entry itself, and what is wrong with it.
    pub fn fault(&self) -> Option<(Option<&Spanned<PathBuf>>, String)> {
        if let Some(conflict) = self.conflict() {
            return Some((None, conflict));
        }
        let path = self.read.iter().find(|path| !path.value.is_absolute())?;
        Some((
            Some(path),
            format!("`read` lists absolute paths, and \"{}\" is not one", path.value.display()),
        ))
    }

    fn conflict(&self) -> Option<String> {
        let program_keys = [
            ("`args`", !self.args.is_empty()),
            ("`env`", !self.env.is_empty()),
            ("`cwd`", self.cwd.is_some()),
        ];
        let is_about_program = program_keys.iter().any(|(_, is_set)| *is_set);
        if self.is_for_client()
            && let Some((key, _)) = program_keys.iter().find(|(_, is_set)| *is_set)
        {
            return Some(format!("{key} needs a `command`, the program to start"));
        }
        match (&self.command, &self.url) {
            (Some(_), Some(_)) => Some("it has both a `command` and a `url`; use one of them"),
            (Some(command), None) if command.trim().is_empty() => Some("its `command` is empty"),
            (Some(_), None) if !self.headers.is_empty() => Some("`headers` go with a `url`"),
            (None, Some(_)) if is_about_program => Some("`args`, `env` and `cwd` go with a `command`"),
            (None, Some(_)) if self.sandbox.is_some_and(|it| it != ServerSandbox::Off) => {
                Some("`sandbox` needs a `command`: a remote server cannot be sandboxed")
            }
            (None, Some(url)) if !url.starts_with("http://") && !url.starts_with("https://") => {
                Some("its `url` begins with neither http:// nor https://")
            }
            (None, None) if !self.headers.is_empty() => Some("`headers` needs a `url`"),
            _ if self.timeout == Some(0) => Some("its `timeout` is 0; it is a number of seconds"),
            _ => None,
        }
        .map(str::to_owned)
    }

    /// Warns of text in the command line that a shell would expand. Modegate uses no shell.
    pub fn unexpanded(&self) -> Option<&str> {
        self.command
            .iter()
            .chain(&self.args)
            .find(|text| text.starts_with("~/") || text.contains("${"))
            .map(String::as_str)
    }

    /// True if the entry configures a server of the client.
    pub fn is_for_client(&self) -> bool {
        self.command.is_none() && self.url.is_none()
    }

    /// `None` if the entry configures a server of the client.
    fn transport(&self) -> Option<ServerTransport> {
        if let Some(command) = self.command.clone() {
            let (args, env) = (self.args.clone(), values_with_names(&self.env));
            return Some(ServerTransport::Program { command, args, env, cwd: self.cwd.clone() });
        }
        Some(ServerTransport::Address { url: self.url.clone()?, headers: values_with_names(&self.headers) })
    }

    fn entry(&self, name: &str, transport: ServerTransport) -> ServerEntry {
        ServerEntry {
            name: name.to_owned(),
            is_own: !self.is_for_client(),
            sandbox: match transport {
                ServerTransport::Program { .. } => self.sandbox.unwrap_or_default(),
                ServerTransport::Address { .. } => ServerSandbox::Off,
            },
            transport,
            read: self.read.iter().map(|path| path.value.clone()).collect(),
            trust: self.trust_hints.clone(),
            tools: self.tools.clone(),
            timeout: self.timeout.map_or(TIMEOUT, Duration::from_secs),
            roots: self.roots.unwrap_or(true),
        }
    }
}

fn values_with_names(values: &BTreeMap<String, SecretString>) -> Vec<(String, SecretString)> {
    values.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Name and transport of a client's server. `None` for a transport that is not supported.
pub fn client_transport(server: &McpServer) -> Option<(&str, ServerTransport)> {
    match server {
        McpServer::Stdio(server) => {
            let env = server.env.iter().map(|it| (it.name.clone(), it.value.as_str().into()));
            let transport = ServerTransport::Program {
                command: server.command.to_string_lossy().into_owned(),
                args: server.args.clone(),
                env: env.collect(),
                cwd: None,
            };
            Some((&server.name, transport))
        }
        McpServer::Http(server) => {
            let headers = server.headers.iter().map(|it| (it.name.clone(), it.value.as_str().into()));
            let transport = ServerTransport::Address { url: server.url.clone(), headers: headers.collect() };
            Some((&server.name, transport))
        }
        _ => None,
    }
}

/// Combines both sources. Also returns one sentence for each server that cannot be started.
pub fn gather(
    own: &BTreeMap<String, ServerDefinition>,
    brought: &[McpServer],
) -> (Vec<ServerEntry>, Vec<String>) {
    let mut notices = Vec::new();
    for (name, definition) in own {
        if let Some(variable) = &definition.missing {
            notices.push(format!(
                "The MCP server {name:?} was not started: the environment variable {variable} is not set."
            ));
        }
    }
    let usable = own.iter().filter(|(_, definition)| definition.missing.is_none());
    let mut entries: Vec<ServerEntry> = usable
        .filter_map(|(name, definition)| Some(definition.entry(name, definition.transport()?)))
        .collect();
    let nothing = ServerDefinition::default();
    for server in brought {
        let Some((name, transport)) = client_transport(server) else {
            notices.push(match server {
                McpServer::Sse(server) => format!(
                    "The MCP server {:?} was not started: Modegate does not support the deprecated SSE transport.",
                    server.name
                ),
                _ => "An MCP server was not started: its transport is not supported.".into(),
            });
            continue;
        };
        // Also if the user's server cannot start: a client's server must not take its name and settings.
        let is_taken = own.get(name).is_some_and(|definition| definition.missing.is_some());
        if is_taken || entries.iter().any(|entry| entry.name == name) {
            notices.push(format!(
                "The client's MCP server {name:?} was not started: the name is already in use."
            ));
            continue;
        }
        let settings = own.get(name).unwrap_or(&nothing);
        let is_remote = matches!(transport, ServerTransport::Address { .. });
        if is_remote && settings.sandbox.is_some_and(|sandbox| sandbox != ServerSandbox::Off) {
            notices.push(format!(
                "The client's MCP server {name:?} runs without a sandbox, although `servers` in your modes.yaml sets one: \
                 a remote server cannot be sandboxed."
            ));
        }
        entries.push(settings.entry(name, transport));
    }
    for (name, definition) in own {
        if !definition.is_for_client() || entries.iter().any(|entry| entry.name == *name) {
            continue;
        }
        notices.push(format!(
            "{name:?} in `servers` of your modes.yaml has no effect: without `command` and `url` it configures the \
             client's MCP server of that name, and the client has none."
        ));
    }
    (entries, notices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::{McpServerHttp, McpServerSse, McpServerStdio};

    fn own(text: &str) -> BTreeMap<String, ServerDefinition> {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn user_settings_apply_to_the_clients_server_by_name() {
        let own =
            own("files: {trust_hints: [read], sandbox: read_only}\nmine: {command: m, tools: {x: changes}}");
        let client_servers = [
            McpServer::Stdio(McpServerStdio::new("files", "/bin/f")),
            McpServer::Stdio(McpServerStdio::new("mine", "/bin/other")),
            McpServer::Http(McpServerHttp::new("far", "https://far.example")),
            McpServer::Sse(McpServerSse::new("old", "https://old.example")),
        ];
        let (entries, notices) = gather(&own, &client_servers);
        let seen: Vec<_> =
            entries.iter().map(|it| (it.name.as_str(), it.sandbox, it.trust.clone())).collect();
        assert_eq!(
            seen,
            [
                ("mine", ServerSandbox::Off, None),
                ("files", ServerSandbox::ReadOnly, Some(Trust::Of(vec!["read".into()]))),
                ("far", ServerSandbox::Off, None),
            ]
        );
        assert!(matches!(&entries[0].transport, ServerTransport::Program { command, .. } if command == "m"));
        assert_eq!(entries[0].tools["x"], Override::Changes);
        assert!(notices[0].contains("\"mine\"") && notices[1].contains("SSE"), "{notices:?}");
    }

    #[test]
    fn conflicting_server_settings_are_reported() {
        for (text, expected) in [
            ("{command: a, url: 'http://b'}", "both a `command` and a `url`"),
            ("{command: ''}", "is empty"),
            ("{url: 'http://b', args: [x]}", "go with a `command`"),
            ("{url: 'http://b', sandbox: read_only}", "cannot be sandboxed"),
            ("{command: a, headers: {x: y}}", "go with a `url`"),
            ("{url: 'ftp://b'}", "http://"),
            ("{env: {A: b}}", "`env` needs a `command`"),
            ("{args: [a]}", "`args` needs a `command`"),
            ("{headers: {A: b}}", "`headers` needs a `url`"),
            ("{command: a, read: [b]}", "absolute paths, and \"b\" is not one"),
            ("{command: a, timeout: 0}", "`timeout` is 0"),
        ] {
            let definition: ServerDefinition = serde_saphyr::from_str(text).unwrap();
            assert!(definition.fault().unwrap().1.contains(expected), "{text}");
        }
        for text in [
            "{command: a, args: [b], env: {A: b}}",
            "{url: 'https://b', headers: {x: y}}",
            "{sandbox: workspace}",
        ] {
            let definition: ServerDefinition = serde_saphyr::from_str(text).unwrap();
            assert!(definition.fault().is_none(), "{text}");
        }
    }

    #[test]
    fn settings_without_effect_are_reported() {
        let remote = McpServer::Http(McpServerHttp::new("far", "https://far.example"));
        for (text, expected) in [
            ("far: {sandbox: read_only}", "runs without a sandbox"),
            ("near: {trust_hints: true}", "\"near\" in `servers` of your modes.yaml has no effect"),
        ] {
            let (entries, notices) = gather(&own(text), std::slice::from_ref(&remote));
            assert_eq!((entries.len(), notices.len()), (1, 1), "{notices:?}");
            assert!(notices[0].contains(expected), "{notices:?}");
        }
        for text in ["far: {trust_hints: true}", "far: {sandbox: off}", "near: {command: n}"] {
            assert_eq!(gather(&own(text), std::slice::from_ref(&remote)).1, [""; 0], "{text}");
        }
    }

    #[test]
    fn text_that_only_a_shell_expands_is_found() {
        let found = |text: &str| own(&format!("a: {text}"))["a"].unexpanded().map(str::to_owned);
        for (text, expected) in [
            ("{command: a, args: [b, '${HOME}/c']}", Some("${HOME}/c")),
            ("{command: ~/a}", Some("~/a")),
            ("{command: a, args: ['a~/b', '$5'], env: {A: '${HOME}'}}", None),
        ] {
            assert_eq!(found(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn debug_output_omits_secrets() {
        let own = own("a: {command: a, env: {TOKEN: hidden-value}}");
        let (entries, _) = gather(&own, &[]);
        assert!(!format!("{own:?}{entries:?}").contains("hidden-value"));
    }
}
