//! The user's shell, and the sandboxes of its commands.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

pub use super::agent_limits::{AgentFolders, AgentNetwork};
use super::build_folder::{self, BuildFolder};
use super::command_sandbox::CommandKind;
pub use super::command_sandbox::CommandSandbox;
use super::made_caches::MadeCaches;
use super::network_variables::NetworkVariables;
use super::sandbox_paths::{SandboxPaths, User, outermost};
use super::state_folders;
use super::trial::BrokerTrial;
use super::{Command, Process, Processes, Streams, TerminalAccess};
use crate::sandbox::denied_changes::{DeniedChanges, DenyingRule};
use crate::sandbox::denied_reads::{DeniedReads, patterns_of};
use crate::sandbox::host::AllowedHosts;
use crate::sandbox::{BrokerPolicy, Brokered, Confinement, Egress, Support};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// Writes are limited to the session's folders, temporary folders and caches, if the kernel supports
    /// that.
    #[default]
    Workspace,
    /// Like `workspace`. Modegate carries out changes in the session's folders, so that undo knows them exactly.
    /// Commands reach no UNIX sockets and cannot debug. Where the kernel does not support it: `workspace`.
    Broker,
    Off,
}

/// There is no terminal, and prompts would remain unanswered.
const SETTINGS: &[(&str, &str)] = &[
    ("TERM", "dumb"),
    ("NO_COLOR", "1"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_EDITOR", "true"),
];

/// Git must not refresh its index, and root's `tar` cannot change owners.
const READ_ONLY_SETTINGS: [(&str, &str); 2] =
    [("GIT_OPTIONAL_LOCKS", "0"), ("TAR_OPTIONS", "--no-same-owner")];

/// Settings for all commands of this user: program, environment and sandboxes. The same for all sessions of the process: no
/// session, mode or call belongs here, and nothing that changes after the start.
#[derive(Debug, Clone)]
pub struct Shell(Arc<ShellParts>);

#[derive(Debug, Clone)]
struct ShellParts {
    processes: Processes,
    program: Option<String>,
    user: User,
    environment: Vec<(OsString, OsString)>,
    sandbox: Sandbox,
    support: Support,
    /// Patterns of files that no command may read.
    denied_reads: Vec<String>,
    /// Rules about changes that no command may make.
    denied_changes: Vec<DenyingRule>,
    network: NetworkVariables,
    /// The only hosts of brokered commands. `None` without such a limit.
    host_limit: Option<AllowedHosts>,
    /// Folder of the locks that brokered commands take.
    locks: Option<PathBuf>,
    caches: Arc<MadeCaches>,
    broker_trial: BrokerTrial,
}

impl Shell {
    /// Without a `program`, no command starts. `environment` is the whole one of read-only commands.
    pub fn new(
        processes: Processes,
        program: Option<String>,
        user: User,
        environment: Vec<(OsString, OsString)>,
        sandbox: Sandbox,
        support: Support,
    ) -> Self {
        Self(Arc::new(ShellParts {
            processes,
            program,
            user,
            environment,
            sandbox,
            support,
            denied_reads: Vec::new(),
            denied_changes: Vec::new(),
            network: NetworkVariables::default(),
            host_limit: None,
            locks: None,
            caches: Arc::default(),
            broker_trial: BrokerTrial::default(),
        }))
    }

    /// Sets the variables for programs that use the network, such as MCP servers.
    #[must_use]
    pub fn with_network_variables(&self, network: NetworkVariables) -> Self {
        Self(Arc::new(ShellParts { network, ..ShellParts::clone(&self.0) }))
    }

    /// Changes of brokered commands wait for other writers that use the locks in this folder.
    #[must_use]
    pub fn with_file_locks(&self, folder: Option<&Path>) -> Self {
        Self(Arc::new(ShellParts { locks: folder.map(Path::to_owned), ..ShellParts::clone(&self.0) }))
    }

    /// Commands then cannot read files that match; see [`DeniedReads`]. Those that may change files run with
    /// [`Sandbox::Broker`] instead of [`Sandbox::Workspace`].
    #[must_use]
    pub fn denying_reads(&self, patterns: Vec<String>) -> Self {
        if patterns == self.0.denied_reads {
            return self.clone();
        }
        Self(Arc::new(ShellParts { denied_reads: patterns, ..ShellParts::clone(&self.0) }))
    }

    /// Commands of the session then cannot change files that match; see [`DeniedChanges`]. They run with
    /// [`Sandbox::Broker`] instead of [`Sandbox::Workspace`].
    #[must_use]
    pub fn denying_changes(&self, rules: Vec<DenyingRule>) -> Self {
        if rules == self.0.denied_changes {
            return self.clone();
        }
        Self(Arc::new(ShellParts { denied_changes: rules, ..ShellParts::clone(&self.0) }))
    }

    /// Commands that may change files run in the sandbox whatever the user's setting, with `needs_broker` in that of the
    /// broker. Where the kernel does not support it, no command starts.
    #[must_use]
    pub fn requiring_sandbox(&self, needs_broker: bool) -> Self {
        let (support, is_brokered) = (&self.0.support, needs_broker || self.0.sandbox == Sandbox::Broker);
        let sandbox = if is_brokered { Sandbox::Broker } else { Sandbox::Workspace };
        let is_supported = support.workspace() && (!needs_broker || support.broker());
        let program = self.0.program.clone().filter(|_| is_supported);
        Self(Arc::new(ShellParts { program, sandbox, ..ShellParts::clone(&self.0) }))
    }

    /// Brokered commands connect to these hosts only. `None` changes nothing.
    #[must_use]
    pub fn with_host_limit(&self, hosts: Option<AllowedHosts>) -> Self {
        Self(Arc::new(ShellParts { host_limit: hosts, ..ShellParts::clone(&self.0) }))
    }

    /// The store contains what rules deny, and a command should not read it in the session's folders either.
    fn denied_reads(&self, paths: &mut SandboxPaths<'_>) -> Option<DeniedReads> {
        let (private, roots) = (paths.private_files(), paths.roots());
        let is_inside = roots.iter().any(|root| contains_any(root, &private));
        let mut patterns = self.0.denied_reads.clone();
        if is_inside || !patterns.is_empty() {
            patterns.extend(private.iter().flat_map(|path| patterns_of(path)));
        }
        (!patterns.is_empty()).then(|| DeniedReads { patterns, folders: roots.to_vec() })
    }

    /// Returns `None` if the kernel does not support the sandbox or a root is too wide.
    pub fn read_only(&self, roots: &[PathBuf]) -> Option<CommandSandbox> {
        self.read_only_with(roots, &[])
    }

    /// Adds readable folders, except those that contain the home folder.
    pub fn read_only_with(&self, roots: &[PathBuf], besides: &[PathBuf]) -> Option<CommandSandbox> {
        let sandbox = self.read_only_in(&mut SandboxPaths::of(&self.0.user, roots), besides, None)?;
        sandbox.confinement();
        Some(sandbox)
    }

    /// The sandboxes of a session, whose read-only commands share a folder for builds. Paths that its commands could
    /// replace by links are resolved now, those of the system when a command needs them: many sessions start none.
    pub fn sandboxes(&self, roots: &[PathBuf]) -> (Option<CommandSandbox>, CommandSandbox) {
        let mut paths = SandboxPaths::of(&self.0.user, roots);
        let build = BuildFolder::new(self.processes().scratch());
        (self.read_only_in(&mut paths, &[], Some(build)), self.workspace_in(&mut paths))
    }

    fn read_only_in(
        &self,
        paths: &mut SandboxPaths<'_>,
        besides: &[PathBuf],
        build: Option<BuildFolder>,
    ) -> Option<CommandSandbox> {
        let denies_reads = self.denied_reads(paths).is_some();
        let is_supported = self.0.support.read_only() && (!denies_reads || self.0.support.broker());
        let readable = paths.readable_own().filter(|_| is_supported)?;
        let (shell, roots, besides) = (self.clone(), paths.roots().to_vec(), besides.to_vec());
        Some(CommandSandbox::new(CommandKind::ReadOnly, move || {
            let mut paths = SandboxPaths::of_system(&shell.0.user, &roots);
            let read = outermost(readable.iter().cloned().chain(paths.readable_system(&besides)));
            let build = build.as_ref().and_then(BuildFolder::path);
            Confinement::ReadOnly { read, build, denied: shell.denied_reads(&mut paths) }
        }))
    }

    fn workspace_in(&self, paths: &mut SandboxPaths<'_>) -> CommandSandbox {
        match self.0.sandbox {
            _ if self.brokers_commands() => self.brokered_in(paths),
            Sandbox::Workspace if self.0.support.broker() => self.brokered_if_needed_in(paths),
            Sandbox::Workspace | Sandbox::Broker if self.0.support.workspace() => self.writable_in(paths),
            Sandbox::Workspace | Sandbox::Broker | Sandbox::Off => CommandSandbox::none(),
        }
    }

    /// Returns true if the supervisor carries out the changes of commands, and can record them.
    pub fn brokers_commands(&self) -> bool {
        let has_rules = !self.0.denied_reads.is_empty() || !self.0.denied_changes.is_empty();
        self.can_broker() && (has_rules || self.0.sandbox == Sandbox::Broker)
    }

    /// Returns true if commands run with the broker where rules need it.
    pub fn can_broker(&self) -> bool {
        self.0.sandbox != Sandbox::Off && self.0.support.broker()
    }

    /// With the broker if commands could change Modegate's own files without it: Landlock cannot exclude them.
    fn brokered_if_needed_in(&self, paths: &mut SandboxPaths<'_>) -> CommandSandbox {
        let (shell, own, roots) = (self.clone(), paths.writable_own(), paths.roots().to_vec());
        CommandSandbox::new(CommandKind::Other, move || {
            let mut paths = SandboxPaths::of_system(&shell.0.user, &roots);
            if writes_own(&own, &mut paths) {
                shell.brokered(&own, &mut paths)
            } else {
                writable(&own, &mut paths)
            }
        })
    }

    fn brokered_in(&self, paths: &mut SandboxPaths<'_>) -> CommandSandbox {
        let (shell, own, roots) = (self.clone(), paths.writable_own(), paths.roots().to_vec());
        CommandSandbox::new(CommandKind::Other, move || {
            shell.brokered(&own, &mut SandboxPaths::of_system(&shell.0.user, &roots))
        })
    }

    fn brokered(&self, own: &[PathBuf], paths: &mut SandboxPaths<'_>) -> Confinement {
        let (system, roots) = (paths.writable_system(), paths.roots().to_vec());
        let others = own.iter().cloned().chain(system).filter(|path| path.is_dir() && !roots.contains(path));
        let (others, denied) = (outermost(others), self.denied_reads(paths));
        let rules = self.0.denied_changes.clone();
        let denied_changes = (!rules.is_empty()).then(|| DeniedChanges { rules, folders: roots.clone() });
        // A folder that the command writes itself can contain a root, and then it could read and write there, too.
        let is_ruled = denied.is_some() || denied_changes.is_some();
        let own_files = paths.own_files();
        let (write, caches): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|folder| !is_ruled && !contains_any(folder, &own_files));
        let broker = Brokered {
            roots,
            unrecorded: caches,
            caches: Vec::new(),
            protected: self.0.user.own.clone(),
            policy: BrokerPolicy::Roots,
            record: None,
            locks: self.0.locks.clone(),
            hosts: self.0.host_limit.as_ref().map(AllowedHosts::as_ceiling),
            egress: Egress::Open,
            sockets: Vec::new(),
            denied,
            denied_changes,
        };
        Confinement::Brokered { write, broker }
    }

    fn writable_in(&self, paths: &mut SandboxPaths<'_>) -> CommandSandbox {
        let (shell, own) = (self.clone(), paths.writable_own());
        CommandSandbox::new(CommandKind::Other, move || {
            writable(&own, &mut SandboxPaths::of_system(&shell.0.user, &[]))
        })
    }

    /// Ignores the user's setting. Returns `None` if the kernel does not support the sandbox.
    pub fn workspace_sandbox(&self, roots: &[PathBuf]) -> Option<CommandSandbox> {
        let sandbox = self.writable_in(&mut SandboxPaths::of(&self.0.user, roots));
        sandbox.confinement();
        Some(sandbox).filter(|_| self.0.support.workspace())
    }

    /// Sandbox of an external agent. Creates missing state folders (`named`). The error is a sentence.
    pub fn external_agent(&self, roots: &[PathBuf], named: &[PathBuf]) -> Result<CommandSandbox, String> {
        if !self.0.support.read_only() {
            return Err("this system cannot sandbox it (run modegate doctor)".into());
        }
        let write = state_folders::folders(&self.0.user, roots, named)?;
        Ok(CommandSandbox::of(Confinement::Agent { write }))
    }

    /// Makes missing caches for an agent that may change files. It cannot make those in a home folder below a temporary
    /// folder.
    pub fn make_caches(&self, roots: &[PathBuf]) {
        self.make_caches_outside(roots, &[]);
    }

    fn make_caches_outside(&self, roots: &[PathBuf], scratch: &[PathBuf]) {
        let (folders, files) = SandboxPaths::of_system(&self.0.user, roots).missing_caches(scratch);
        self.0.caches.make(&folders, &files);
    }

    /// Adds missing caches to a sandbox in which commands may change files, before its first command.
    pub fn with_caches(&self, sandbox: CommandSandbox, roots: &[PathBuf]) -> CommandSandbox {
        if sandbox.kind() != CommandKind::Other {
            return sandbox;
        }
        let (shell, roots) = (self.clone(), roots.to_vec());
        CommandSandbox::new(CommandKind::Other, move || {
            shell.make_caches_outside(&roots, &shell.0.user.scratch);
            sandbox.confinement().clone()
        })
    }

    /// Folders outside of the roots that a brokered agent may change. Missing caches count. The error is a sentence.
    pub fn unrecorded(&self, folders: AgentFolders<'_>) -> Result<Vec<PathBuf>, String> {
        let AgentFolders { roots, state, write, leaves_temporary } = folders;
        let mut unrecorded = self.agent_caches(roots);
        if !leaves_temporary {
            unrecorded.extend(SandboxPaths::of_system(&self.0.user, &[]).temporary_folders());
        }
        unrecorded.extend(SandboxPaths::of(&self.0.user, roots).git_folders());
        unrecorded.extend(state_folders::write_folders(&self.0.user, &[roots, state].concat(), write)?);
        Ok(unrecorded)
    }

    pub fn agent_caches(&self, roots: &[PathBuf]) -> Vec<PathBuf> {
        SandboxPaths::of_system(&self.0.user, roots).agent_caches()
    }

    /// Creates missing folders, which are absolute or begin with `~/`. The error is a sentence.
    pub fn create_folders(&self, named: &[PathBuf]) -> Result<(), String> {
        named.iter().try_for_each(|path| state_folders::create(&self.0.user, path))
    }

    /// Sandbox of an external agent whose changes the supervisor carries out. The error is a sentence.
    pub fn brokered_agent(
        &self,
        folders: AgentFolders<'_>,
        policy: BrokerPolicy,
        record: Option<PathBuf>,
        network: AgentNetwork,
    ) -> Result<CommandSandbox, String> {
        if !self.0.support.broker() {
            return Err("this system cannot broker it (run modegate doctor)".into());
        }
        let write = state_folders::folders(&self.0.user, folders.roots, folders.state)?;
        let broker = Brokered {
            roots: folders.roots.to_vec(),
            unrecorded: self.unrecorded(folders)?,
            caches: self.agent_caches(folders.roots),
            protected: self.0.user.own.clone(),
            policy,
            record,
            locks: self.0.locks.clone(),
            hosts: network.hosts,
            egress: network.first,
            sockets: network.sockets,
            denied: self.denied_reads(&mut SandboxPaths::of_system(&self.0.user, folders.roots)),
            // Each change is a question, and the rules decide it.
            denied_changes: None,
        };
        Ok(CommandSandbox::of(Confinement::Brokered { write, broker }))
    }

    /// Tries the broker, once in the process. Returns true if external agents can use it.
    pub async fn try_broker(&self) -> bool {
        // Few processes try it, and its future is large.
        self.0.support.broker() && Box::pin(self.0.broker_trial.run(self)).await
    }

    /// Returns true if [`Self::try_broker`] has succeeded.
    pub fn has_broker(&self) -> bool {
        self.0.broker_trial.result() == Some(true)
    }

    pub fn processes(&self) -> &Processes {
        &self.0.processes
    }

    /// Variables for commands that must not see keys and agent sockets.
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.0.environment
    }

    pub fn network_variables(&self) -> &NetworkVariables {
        &self.0.network
    }

    /// The environment of an external agent, as text: all of Modegate's, or that for commands, and `own`.
    pub fn agent_variables(
        &self,
        inherits: bool,
        own: &BTreeMap<String, SecretString>,
    ) -> impl Iterator<Item = (String, String)> {
        let given = if inherits { std::env::vars_os().collect() } else { self.0.environment.clone() };
        let given = given
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        given.chain(own.iter().map(|(name, value)| (name.clone(), value.expose_secret().to_owned())))
    }

    pub fn support(&self) -> &Support {
        &self.0.support
    }

    pub fn program(&self) -> Option<&str> {
        self.0.program.as_deref()
    }

    pub fn workspace(&self, roots: &[PathBuf]) -> CommandSandbox {
        let sandbox = self.workspace_in(&mut SandboxPaths::of(&self.0.user, roots));
        sandbox.confinement();
        sandbox
    }

    pub async fn start(&self, line: &str, cwd: &Path, sandbox: &CommandSandbox) -> io::Result<Process> {
        let program = self.0.program.clone();
        let program = program.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no shell"))?;
        self.0.processes.start(self.command(program, line, cwd, sandbox)).await
    }

    fn command(&self, program: String, line: &str, cwd: &Path, sandbox: &CommandSandbox) -> Command {
        let environment = sandbox.is_read_only().then(|| {
            let settings = READ_ONLY_SETTINGS.map(|(name, value)| (name.into(), value.into()));
            self.0.environment.iter().cloned().chain(settings).collect()
        });
        // A read-only command has a folder of its own.
        let scratch = (!sandbox.is_read_only()).then(|| self.processes().scratch().to_str()).flatten();
        let temporary = scratch.map(|folder| ("TMPDIR".to_owned(), folder.to_owned()));
        let build = sandbox.build_folder().into_iter().flat_map(build_folder::variables);
        let own = temporary.into_iter().chain(build);
        Command {
            program,
            arguments: vec!["-c".into(), line.into()],
            cwd: cwd.to_owned(),
            environment,
            settings: SETTINGS,
            confinement: sandbox.confinement().clone(),
            streams: Streams::Merged,
            waits: false,
            own: own.map(|(name, value)| (name, SecretString::from(value))).collect(),
            terminal: TerminalAccess::None,
        }
    }
}

fn writable(own: &[PathBuf], paths: &mut SandboxPaths<'_>) -> Confinement {
    Confinement::Workspace { write: outermost(own.iter().cloned().chain(paths.writable_system())) }
}

/// Returns true if commands could change Modegate's own files.
fn writes_own(writable_own: &[PathBuf], paths: &mut SandboxPaths<'_>) -> bool {
    let (own_files, system) = (paths.own_files(), paths.writable_system());
    writable_own.iter().chain(&system).any(|place| contains_any(place, &own_files))
}

fn contains_any(folder: &Path, files: &[PathBuf]) -> bool {
    files.iter().any(|file| file.starts_with(folder))
}
