//! The built-in tools, and the tools of one session. Runs no tool.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use tokio::sync::mpsc;

use super::agent::background::BackgroundRole;
use super::agent::{delegate, handoff, stop_background, view_background};
use super::edit::{apply_patch, edit_file, write_file};
use super::file::{
    delete_file, directory_tree, find_files, list_directory, move_file, read_file, search_files,
};
use super::mcp::{ConnectOptions, Logins, McpServers, ServerEvent};
use super::memory::{self, Nowhere};
use super::user::{ask_user, switch_mode, todo};
use super::web::fetch::{self, FetchLimits};
use super::{Tool, ToolSpec, shell, skill};
use crate::agents::AgentRegistry;
use crate::client::ClientCapabilities;
use crate::http::Http;
use crate::http::fetch_client::FetchClient;
use crate::memory::Memories;
use crate::mode::Modes;
use crate::permission::Effect;
use crate::permission::rules::Rules;
use crate::process::AllowedHosts;
use crate::process::shell::Shell;
use crate::server::ServerEntry;
use crate::skill::Skills;
use crate::workspace::Workspace;

/// Tools in the order in which models see them.
#[derive(Clone)]
pub struct Toolset {
    tools: Arc<[Arc<dyn Tool>]>,
    /// `None` if there are no tools that run commands.
    shell: Option<Shell>,
    http: Arc<Http>,
    fetch_client: Arc<FetchClient>,
    logins: Logins,
    /// The tools of servers may change at any time.
    servers: McpServers,
}

const TOO_WIDE: &str = "This session has no read-only commands: its folder is your home folder, the root of the file \
    system, or a folder around them, and the sandbox does not expose those.\n\n";

const COMMAND_TOOLS: [(&str, Effect); 2] = [("shell_read_only", Effect::Read), ("shell", Effect::Execute)];

const DELEGATION_TOOLS: [(&str, Effect); 2] =
    [("delegate", Effect::Delegate), (handoff::NAME, Effect::Delegate)];

/// Includes tools that a session may lack.
pub(super) fn effects() -> Vec<(&'static str, Effect)> {
    let tools = Toolset::built_in();
    let built_in = tools.iter().filter_map(|tool| match &tool.spec().name {
        Cow::Borrowed(name) => Some((*name, tool.spec().effect)),
        Cow::Owned(_) => None,
    });
    built_in.chain(COMMAND_TOOLS).chain(skill::TOOLS).chain(DELEGATION_TOOLS).collect()
}

pub fn effect_of(name: &str) -> Option<Effect> {
    static EFFECTS: LazyLock<Vec<(&str, Effect)>> = LazyLock::new(effects);
    EFFECTS.iter().find(|(tool, _)| *tool == name).map(|(_, effect)| *effect)
}

/// Returns the tools that a model is offered. Tools that control background work are offered only if the
/// session has such work, or can start it.
pub fn offered(
    all: &[Arc<dyn Tool>],
    has_background_work: bool,
    is_available: impl Fn(&ToolSpec) -> bool,
) -> Vec<Arc<dyn Tool>> {
    let mut offered: Vec<_> = all.iter().filter(|tool| is_available(tool.spec())).cloned().collect();
    if !has_background_work && !offered.iter().any(|tool| tool.spec().background == BackgroundRole::Starts) {
        offered.retain(|tool| tool.spec().background != BackgroundRole::Controls);
    }
    offered
}

impl Toolset {
    pub fn new(tools: Vec<Arc<dyn Tool>>) -> Self {
        let (http, logins, servers) = (Arc::default(), Logins::default(), McpServers::default());
        Self { tools: tools.into(), shell: None, http, fetch_client: Arc::default(), logins, servers }
    }

    /// Sets the logins at MCP servers.
    #[must_use]
    pub fn with_logins(self, logins: Logins) -> Self {
        Self { logins, ..self }
    }

    /// The client for MCP servers.
    #[must_use]
    pub fn with_http(self, http: Arc<Http>) -> Self {
        Self { http, ..self }
    }

    /// `fetch` reaches public addresses only, and memories are not stored.
    pub fn built_in() -> Self {
        let nowhere: Arc<dyn Memories> = Arc::new(Nowhere);
        let mut tools: Vec<Arc<dyn Tool>> = vec![
            read_file::tool(),
            list_directory::tool(),
            directory_tree::tool(),
            find_files::tool(),
            search_files::tool(),
            todo::tool(),
            ask_user::tool(),
            switch_mode::tool(&Modes::built_in()),
            write_file::tool(),
            edit_file::tool(),
            apply_patch::tool(),
            move_file::tool(),
            delete_file::tool(),
            fetch::tool(Arc::default(), FetchLimits::default(), None),
            view_background::tool(),
            stop_background::tool(),
        ];
        tools.extend(memory::tools(&nowhere));
        Self::new(tools)
    }

    #[must_use]
    pub fn without_exit(self) -> Self {
        let tools = self.tools.iter().filter(|tool| !tool.spec().is_exit).cloned().collect();
        Self { tools, ..self }
    }

    /// Without the tool that asks the user, for runs without one.
    #[must_use]
    pub fn without_questions(self) -> Self {
        let tools = self.tools.iter().filter(|tool| tool.spec().name != ask_user::NAME).cloned().collect();
        Self { tools, ..self }
    }

    #[must_use]
    pub fn with_fetch(self, fetch_client: Arc<FetchClient>, limits: FetchLimits) -> Self {
        let tool = fetch::tool(Arc::clone(&fetch_client), limits, None);
        Self { fetch_client, ..self.with(&[tool]) }
    }

    /// `fetch` and brokered commands connect to these hosts only. `None` changes nothing.
    #[must_use]
    pub fn with_host_limit(self, hosts: Option<&AllowedHosts>) -> Self {
        let Some(hosts) = hosts else { return self };
        let client = Arc::clone(&self.fetch_client);
        let tool = fetch::tool(client, FetchLimits::default(), Some(hosts.clone()));
        let shell = self.shell.as_ref().map(|shell| shell.with_host_limit(Some(hosts.clone())));
        Self { shell, ..self.with(&[tool]) }
    }

    /// Commands run in a sandbox whatever the user's setting, or not at all.
    #[must_use]
    pub fn requiring_sandbox(self, needs_broker: bool) -> Self {
        let shell = self.shell.as_ref().map(|shell| shell.requiring_sandbox(needs_broker));
        Self { shell, ..self }
    }

    #[must_use]
    pub fn with_memories(self, memories: &Arc<dyn Memories>) -> Self {
        self.with(&memory::tools(memories))
    }

    #[must_use]
    pub fn with_modes(self, modes: &Modes) -> Self {
        self.with(&[switch_mode::tool(modes)])
    }

    /// Replaces tools by those of the same name.
    fn with(self, others: &[Arc<dyn Tool>]) -> Self {
        let tools = self.tools.iter().map(|tool| {
            let other = others.iter().find(|other| other.spec().name == tool.spec().name);
            Arc::clone(other.unwrap_or(tool))
        });
        Self { tools: tools.collect(), ..self }
    }

    #[must_use]
    pub fn with_shell(self, shell: Shell) -> Self {
        Self { shell: Some(shell), ..self }
    }

    /// Adds the tools that run commands, which may neither read nor change the files that rules deny. Also returns a note
    /// if only these folders prevent read-only commands.
    #[must_use]
    pub fn for_session(&self, workspace: &Workspace, rules: &Rules) -> (Self, Option<&'static str>) {
        let Some(shell) = self.shell.as_ref().filter(|shell| shell.program().is_some()) else {
            return (self.clone(), None);
        };
        let shell = shell.denying_reads(rules.denying_reads().map(|(_, pattern)| pattern.into()).collect());
        let shell = shell.denying_changes(shell::denied_changes(rules));
        let (reading, any) = shell.sandboxes(workspace.roots());
        let is_missing = reading.is_none() && shell.support().read_only();
        let mut tools: Vec<Arc<dyn Tool>> = self.tools.to_vec();
        if let Some(sandbox) = reading {
            tools.push(shell::read_only(shell.clone(), sandbox));
        }
        tools.push(shell::full(shell.clone(), shell.with_caches(any, workspace.roots())));
        let shell = Some(shell);
        (Self { tools: tools.into(), shell, ..self.clone() }, is_missing.then_some(TOO_WIDE))
    }

    #[must_use]
    pub fn with_skills(self, skills: &Arc<Skills>) -> Self {
        let others = self
            .tools
            .iter()
            .filter(|tool| skill::TOOLS.iter().all(|(name, _)| tool.spec().name != *name))
            .cloned();
        Self { tools: others.chain(skill::tools(skills)).collect(), ..self }
    }

    /// Sets the MCP servers, without starting them.
    #[must_use]
    pub fn with_servers(
        self,
        entries: Vec<ServerEntry>,
        workspace: &Workspace,
        capabilities: ClientCapabilities,
        events: &mpsc::UnboundedSender<ServerEvent>,
    ) -> Self {
        let options = ConnectOptions {
            shell: self.shell.clone(),
            http: Arc::clone(&self.http),
            logins: self.logins.clone(),
            capabilities,
            roots: workspace.roots().into(),
        };
        Self { servers: McpServers::new(entries, &options, events), ..self }
    }

    pub fn shell(&self) -> Option<&Shell> {
        self.shell.as_ref()
    }

    /// Returns true if the changes of commands are recorded exactly.
    pub fn records_commands(&self) -> bool {
        self.shell.as_ref().is_some_and(Shell::brokers_commands)
    }

    pub fn can_sandbox(&self) -> bool {
        self.shell.as_ref().is_some_and(|shell| shell.support().read_only())
    }

    pub fn servers(&self) -> &McpServers {
        &self.servers
    }

    #[must_use]
    pub fn with_agents(self, agents: &AgentRegistry) -> Self {
        let is_other =
            |tool: &&Arc<dyn Tool>| DELEGATION_TOOLS.iter().all(|(name, _)| *name != tool.spec().name);
        let mut tools: Vec<Arc<dyn Tool>> = self.tools.iter().filter(is_other).cloned().collect();
        tools.push(delegate::tool(agents));
        if agents.has_own() {
            tools.push(handoff::tool(agents));
        }
        Self { tools: tools.into(), ..self }
    }

    /// Removes questions to the user, the exit from the mode and, unless `may_delegate`, delegation
    /// (`handoff` stays).
    #[must_use]
    pub fn for_subagent(&self, may_delegate: bool) -> Self {
        let tools = self.tools.iter().filter(|tool| {
            let spec = tool.spec();
            let delegates = spec.name != handoff::NAME && spec.effect == Effect::Delegate;
            !spec.is_exit && spec.name != ask_user::NAME && (may_delegate || !delegates)
        });
        Self { tools: tools.cloned().collect(), ..self.clone() }
    }

    /// Modegate's own tools, in order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Tool> {
        self.tools.iter().map(AsRef::as_ref)
    }

    /// Includes the current tools of MCP servers, which come last.
    pub fn all(&self) -> Vec<Arc<dyn Tool>> {
        let mut all = self.tools.to_vec();
        all.extend(self.of_servers());
        all
    }

    /// The tools that are not of a server.
    pub fn own(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }

    /// The tools that servers offer now.
    pub fn of_servers(&self) -> Vec<Arc<dyn Tool>> {
        self.servers.tools()
    }

    pub fn find(&self, name: &str) -> Option<Arc<dyn Tool>> {
        let built_in = self.tools.iter().find(|tool| tool.spec().name == name);
        built_in.cloned().or_else(|| self.servers.tools().into_iter().find(|tool| tool.spec().name == name))
    }
}
