//! The user's shell, with the hold that is on its commands.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::sandbox_paths::{SandboxPaths, User};
use super::state_folders;
use super::{Command, Errors, Process, Processes};
use crate::sandbox::{Confinement, Support};

/// Whether the kernel holds what the commands of a workspace write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sandbox {
    /// They write the session's folders, temporary folders and caches, where the kernel can hold them to it.
    #[default]
    Workspace,
    /// They write what the user may write.
    Off,
}

/// What is set for every command: it has no terminal and nobody answers it.
const SETTINGS: &[(&str, &str)] = &[
    ("TERM", "dumb"),
    ("NO_COLOR", "1"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_EDITOR", "true"),
];

/// The same for read-only commands besides: git does not try to refresh its index.
const READ_ONLY_SETTING: (&str, &str) = ("GIT_OPTIONAL_LOCKS", "0");

/// Where a shell and its surroundings are. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shell(Arc<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    processes: Processes,
    program: String,
    user: User,
    environment: Vec<(OsString, OsString)>,
    sandbox: Sandbox,
    support: Support,
}

/// The hold on the commands of one session.
#[derive(Debug, Clone)]
pub struct CommandSandbox(Arc<Confinement>);

impl Shell {
    /// A shell. `environment` is all that read-only commands see of the user's.
    pub fn new(
        processes: Processes,
        program: String,
        user: User,
        environment: Vec<(OsString, OsString)>,
        sandbox: Sandbox,
        support: Support,
    ) -> Self {
        Self(Arc::new(Inner { processes, program, user, environment, sandbox, support }))
    }

    /// The hold on read-only commands of sessions in these folders; none where the kernel cannot hold them, or the folders
    /// are too wide to be read as a whole.
    pub fn read_only(&self, roots: &[PathBuf]) -> Option<CommandSandbox> {
        self.read_only_with(roots, &[])
    }

    /// The same hold, under which these folders can be read besides; not those that have the home folder in them.
    pub fn read_only_with(&self, roots: &[PathBuf], besides: &[PathBuf]) -> Option<CommandSandbox> {
        self.read_only_in(&mut SandboxPaths::of(&self.0.user, roots), besides)
    }

    /// The holds on the commands of sessions in these folders: on read-only ones as [`Self::read_only`] has it, and on others as
    /// [`Self::workspace`] has it.
    pub fn sandboxes(&self, roots: &[PathBuf]) -> (Option<CommandSandbox>, CommandSandbox) {
        let mut paths = SandboxPaths::of(&self.0.user, roots);
        (self.read_only_in(&mut paths, &[]), self.workspace_in(&mut paths))
    }

    fn read_only_in(&self, paths: &mut SandboxPaths<'_>, besides: &[PathBuf]) -> Option<CommandSandbox> {
        let read = paths.readable(besides).filter(|_| self.0.support.read_only())?;
        Some(CommandSandbox(Arc::new(Confinement::ReadOnly { read })))
    }

    fn workspace_in(&self, paths: &mut SandboxPaths<'_>) -> CommandSandbox {
        let confinement = match self.0.sandbox {
            Sandbox::Workspace if self.0.support.workspace() => {
                Confinement::Workspace { write: paths.writable() }
            }
            Sandbox::Workspace | Sandbox::Off => Confinement::Off,
        };
        CommandSandbox(Arc::new(confinement))
    }

    /// The hold on what is to write these folders and no others, whatever the user wants of commands; none where the kernel
    /// cannot hold it.
    pub fn workspace_sandbox(&self, roots: &[PathBuf]) -> Option<CommandSandbox> {
        let write = self.0.support.workspace().then(|| SandboxPaths::of(&self.0.user, roots).writable())?;
        Some(CommandSandbox(Arc::new(Confinement::Workspace { write })))
    }

    /// The hold on somebody else's agent in sessions in these folders, which keeps its state in `named`: those are made if
    /// they are not there.
    ///
    /// # Errors
    /// One sentence: the kernel cannot hold it, or a folder cannot be one for state.
    pub fn external_agent(&self, roots: &[PathBuf], named: &[PathBuf]) -> Result<CommandSandbox, String> {
        if !self.0.support.agent() {
            return Err("it is to be held, which the system cannot do here (see modegate doctor)".into());
        }
        let write = state_folders::folders(&self.0.user, roots, named)?;
        Ok(CommandSandbox(Arc::new(Confinement::Agent { write })))
    }

    /// What starts its commands.
    pub fn processes(&self) -> &Processes {
        &self.0.processes
    }

    /// The variables that a command may see which is not to see the user's own: no keys, no sockets of agents.
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.0.environment
    }

    /// What the kernel can hold here.
    pub fn support(&self) -> &Support {
        &self.0.support
    }

    /// The shell's path.
    pub fn program(&self) -> &str {
        &self.0.program
    }

    /// The hold on other commands of sessions in these folders: as the user wants it, and as far as the kernel can.
    pub fn workspace(&self, roots: &[PathBuf]) -> CommandSandbox {
        self.workspace_in(&mut SandboxPaths::of(&self.0.user, roots))
    }

    /// Starts a command line.
    ///
    /// # Errors
    /// This binary cannot be started, or `cwd` is not there.
    pub async fn start(&self, line: &str, cwd: &Path, sandbox: &CommandSandbox) -> io::Result<Process> {
        self.0.processes.start(self.command(line, cwd, sandbox)).await
    }

    fn command(&self, line: &str, cwd: &Path, sandbox: &CommandSandbox) -> Command {
        let environment = sandbox.is_read_only().then(|| {
            let (name, value) = READ_ONLY_SETTING;
            let own = (OsString::from(name), OsString::from(value));
            self.0.environment.iter().cloned().chain([own]).collect()
        });
        Command {
            program: self.0.program.clone(),
            arguments: vec!["-c".into(), line.into()],
            cwd: cwd.to_owned(),
            environment,
            settings: SETTINGS,
            confinement: Confinement::clone(&sandbox.0),
            errors: Errors::Merged,
            has_stdio: false,
            own: Vec::new(),
            keeps_terminal: false,
        }
    }
}

impl CommandSandbox {
    /// No hold.
    pub fn none() -> Self {
        Self(Arc::new(Confinement::Off))
    }

    /// Whether nothing can be changed under it.
    pub fn is_read_only(&self) -> bool {
        matches!(*self.0, Confinement::ReadOnly { .. })
    }

    /// As the supervisor takes it.
    pub fn confinement(&self) -> &Confinement {
        &self.0
    }

    /// Whether nothing is held.
    pub fn is_off(&self) -> bool {
        *self.0 == Confinement::Off
    }
}
