//! Definitions of external agents. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;

use crate::acp::{SessionModeId, SessionModeState};
use crate::external_agent::profile::AgentProfile;
use crate::external_agent::sockets;
use crate::process::shell::AgentFolders;
use crate::process::{AllowedHosts, HostPattern, TerminalAccess};

/// Common ids of read-only modes, in order of preference.
const READ_ONLY: &[&str] = &["plan", "read-only", "readonly", "read_only", "architect", "ask"];

/// External agent that speaks ACP over stdin and stdout.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "HarnessDefinition")]
pub struct ExternalAgentDefinition {
    /// Program to run.
    pub command: String,
    /// Arguments of the program.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables in addition to `PATH`, `HOME`, the locale and toolchains. `${NAME}` expands a
    /// variable of Modegate's environment.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub env: BTreeMap<String, SecretString>,
    /// Sandbox for modes that deny changes. Without this key, the agent does not start in such modes.
    #[serde(default)]
    pub sandbox: Option<ExternalAgentSandbox>,
    /// Ids of the agent's own modes.
    #[serde(default)]
    pub modes: ExternalAgentModes,
    /// True under `modegate wrap`: the user started the agent, so it inherits Modegate's whole environment.
    #[serde(skip)]
    #[schemars(skip)]
    pub inherits: bool,
    /// Under `modegate run`: a program that has a terminal and does not speak ACP.
    #[serde(skip)]
    #[schemars(skip)]
    pub terminal_program: Option<TerminalAccess>,
    /// Under `modegate run --quiet`.
    #[serde(skip)]
    #[schemars(skip)]
    pub hides_sandbox: bool,
    #[serde(skip)]
    #[schemars(skip)]
    pub missing: Option<String>,
    /// Under `modegate wrap`. Otherwise the command tells which one.
    #[serde(skip)]
    #[schemars(skip)]
    pub profile: Option<AgentProfile>,
    /// An organisation's policy requires the broker.
    #[serde(skip)]
    #[schemars(skip)]
    pub requires_broker: bool,
    /// The only hosts, in every mode, that an organisation's policy allows. `None` without such a limit.
    #[serde(skip)]
    #[schemars(skip)]
    pub host_limit: Option<AllowedHosts>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "HarnessSandbox")]
pub struct ExternalAgentSandbox {
    /// Directories of the agent's state, absolute or starting with `~/`. Missing ones are created for the
    /// user only. They must not overlap the session's folders.
    pub state_dirs: Vec<PathBuf>,
    /// Further folders that a brokered agent changes in modes that allow changes, absolute or starting with `~/`. Undo
    /// does not cover them.
    #[serde(default)]
    pub write_dirs: Vec<PathBuf>,
    /// Additional arguments in the sandbox, after `args`.
    #[serde(default)]
    pub args: Vec<String>,
    /// Run the agent in the sandbox in every mode, and carry out its file changes in the session's folders where
    /// the mode allows them. The mode then changes without a restart. Default: where this works, which
    /// `modegate doctor` tells. With `true`, the agent does not start elsewhere.
    #[serde(default)]
    pub broker: Option<bool>,
    /// Hosts that a brokered agent may connect to in modes that deny changes, besides those of its models:
    /// `example.com`, `*.example.com`, an IP address or `*`, each with `:PORT` or without.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// UNIX sockets that a brokered agent may connect to in modes that allow changes, besides those in its folders:
    /// `ssh-agent`, `gpg`, `docker`, `wayland`, or a path, absolute or starting with `~/`. Docker's gives the rights
    /// of root.
    #[serde(default)]
    pub sockets: Vec<String>,
    /// Folders that have to exist, of a known agent. They are not writable in the sandbox.
    #[serde(skip)]
    #[schemars(skip)]
    pub settings_dirs: Vec<PathBuf>,
    /// Further variables in the sandbox, of a known agent.
    #[serde(skip)]
    #[schemars(skip)]
    pub variables: BTreeMap<String, String>,
}

/// Ids of an external agent's own modes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "HarnessModes")]
pub struct ExternalAgentModes {
    /// Read-only mode. Default: a mode with a common id (`plan`, `read-only`, `architect`, …).
    pub read_only: Option<String>,
    /// Mode that permits everything the user allows. Default: the agent's initial mode.
    pub full: Option<String>,
    /// Ids of the mode in the sandbox, of a known agent. They count if `read_only` is not set.
    #[serde(skip)]
    #[schemars(skip)]
    pub known: Vec<String>,
}

impl ExternalAgentDefinition {
    /// False until [`Self::with_broker`] if the definition leaves it open.
    pub fn is_brokered(&self) -> bool {
        self.sandbox.as_ref().is_some_and(|sandbox| sandbox.broker == Some(true))
    }

    /// True if the agent is to be brokered where that works.
    pub fn leaves_broker_open(&self) -> bool {
        self.sandbox.as_ref().is_some_and(|sandbox| sandbox.broker.is_none())
    }

    /// Sets `broker` if the definition leaves it open.
    #[must_use]
    pub fn with_broker(mut self, works: bool) -> Self {
        if let Some(sandbox) = &mut self.sandbox {
            sandbox.broker.get_or_insert(works);
        }
        self
    }

    pub fn fault(&self) -> Option<&'static str> {
        let state = self.sandbox.iter().flat_map(|sandbox| &sandbox.state_dirs);
        let write = self.sandbox.iter().flat_map(|sandbox| &sandbox.write_dirs);
        let hosts = self.sandbox.iter().flat_map(|sandbox| &sandbox.hosts);
        let sockets = self.sandbox.iter().flat_map(|sandbox| &sandbox.sockets);
        let mut modes = [&self.modes.read_only, &self.modes.full].into_iter().flatten();
        if self.command.trim().is_empty() {
            Some("its `command` is empty")
        } else if self.env.keys().any(|name| name.is_empty() || name.contains(['=', '\0'])) {
            Some("a key of `env` is not a valid variable name")
        } else if state.into_iter().any(|path| is_relative(path)) {
            Some("a path of `state_dirs` is not absolute and does not begin with ~/")
        } else if write.into_iter().any(|path| is_relative(path)) {
            Some("a path of `write_dirs` is not absolute and does not begin with ~/")
        } else if hosts.into_iter().any(|host| host.parse::<HostPattern>().is_err()) {
            Some("a host of `hosts` is not a name, an IP address or *, with :PORT or without")
        } else if sockets.into_iter().any(|socket| sockets::check(socket).is_err()) {
            Some(
                "a socket of `sockets` is not ssh-agent, gpg, docker, wayland or a path that is absolute or begins with ~/",
            )
        } else if modes.any(|id| id.trim().is_empty()) {
            Some("an id of `modes` is empty")
        } else {
            None
        }
    }
}

fn is_relative(path: &Path) -> bool {
    !path.is_absolute() && !path.starts_with("~")
}

impl ExternalAgentSandbox {
    pub fn folders<'a>(&'a self, roots: &'a [PathBuf]) -> AgentFolders<'a> {
        AgentFolders { write: &self.write_dirs, ..AgentFolders::of(roots, &self.state_dirs) }
    }
}

impl ExternalAgentModes {
    pub fn read_only_of(&self, offered: &SessionModeState) -> Option<SessionModeId> {
        match &self.read_only {
            Some(id) => offered_mode(offered, id),
            None if self.known.is_empty() => READ_ONLY.iter().find_map(|id| offered_mode(offered, id)),
            None => self.known.iter().find_map(|id| offered_mode(offered, id)),
        }
    }

    /// The mode without the sandbox, also if the agent does not offer it. `None` without an id.
    pub fn full_of(&self, offered: &SessionModeState) -> Option<SessionModeId> {
        let id = self.full.as_deref()?;
        Some(offered_mode(offered, id).unwrap_or_else(|| SessionModeId::new(id)))
    }
}

/// The offered mode with this id, or else the first one whose id is an address that ends with it.
pub fn offered_mode(offered: &SessionModeState, id: &str) -> Option<SessionModeId> {
    let ids = || offered.available_modes.iter().map(|mode| &mode.id);
    let ends = |offered: &&SessionModeId| {
        let before = offered.0.strip_suffix(id);
        before.is_some_and(|before| before.ends_with(['#', '/', ':']))
    };
    ids().find(|offered| &*offered.0 == id).or_else(|| ids().find(ends)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::SessionMode;

    fn read(text: &str) -> ExternalAgentDefinition {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn invalid_external_agent_definitions_are_reported() {
        for (text, expected) in [
            ("{command: ' '}", "is empty"),
            ("{command: a, env: {'A=B': c}}", "`env`"),
            ("{command: a, sandbox: {state_dirs: [b]}}", "`state_dirs`"),
            ("{command: a, sandbox: {state_dirs: [], write_dirs: [b]}}", "`write_dirs`"),
            ("{command: a, sandbox: {state_dirs: [], hosts: ['https://b']}}", "`hosts`"),
            ("{command: a, sandbox: {state_dirs: [], sockets: [b.sock]}}", "`sockets`"),
            ("{command: a, modes: {full: ''}}", "`modes`"),
        ] {
            assert!(read(text).fault().unwrap().contains(expected), "{text}");
        }
        let absolute = if cfg!(windows) { "C:/b" } else { "/b" };
        let whole = &format!(
            "{{command: a, args: [b], env: {{A: secret-value}}, sandbox: {{state_dirs: ['~/.a', '{absolute}'], args: [d]}}, \
             modes: {{read_only: plan}}}}"
        );
        assert_eq!(read(whole).fault(), None);
        assert!(!format!("{:?}", read(whole)).contains("secret-value"));
        assert!(serde_saphyr::from_str::<ExternalAgentDefinition>("{command: a, cwd: /b}").is_err());
    }

    #[test]
    fn read_only_mode_is_found_by_id() {
        let offered = |ids: &[&str]| {
            SessionModeState::new(
                "a",
                ids.iter().map(|id| SessionMode::new((*id).to_owned(), (*id).to_owned())).collect::<Vec<_>>(),
            )
        };
        let check = |own: Option<&str>, ids: &[&str], expected: Option<&str>| {
            let modes =
                ExternalAgentModes { read_only: own.map(str::to_owned), ..ExternalAgentModes::default() };
            let found = modes.read_only_of(&offered(ids));
            assert_eq!(found.as_ref().map(|id| &*id.0), expected, "{own:?} {ids:?}");
        };
        check(None, &["auto", "read-only", "plan"], Some("plan"));
        check(None, &["auto", "full"], None);
        check(Some("auto"), &["auto", "plan"], Some("auto"));
        check(Some("gone"), &["auto", "plan"], None);
        let address = "https://agentclientprotocol.com/protocol/session-modes#plan";
        check(
            None,
            &["https://agentclientprotocol.com/protocol/session-modes#agent", address],
            Some(address),
        );
        check(Some("plan"), &[address], Some(address));
        check(None, &[address, "plan"], Some("plan"));
        check(None, &["own:read-only", "own/ask"], Some("own:read-only"));
        check(None, &["no-plan", "explan", "plan-b", "#planner"], None);
        let known = ExternalAgentModes { known: vec!["full-access".into()], ..ExternalAgentModes::default() };
        assert_eq!(known.read_only_of(&offered(&["plan", "full-access"])).unwrap().0.as_ref(), "full-access");
    }
}
