//! The policy of one session: files of the user and the project, under the policy of the organisation.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;

use super::environment::{self, Environment};
use super::policies::{Loaded, Policies};
use super::project::Project;
use super::user_file::ShellSettings;
use super::{Flags, commands, managed_file, servers};
use crate::agent::{LoadedPolicy, PolicyOf};
use crate::agents::AgentRegistry;
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::managed_policy::{BY_POLICY, ManagedLimits};
use crate::platform::files::{account_home, find_program, real_path};
use crate::session::is_reserved_name;
use crate::store::StoreLocation;

/// Loads the policy of each session anew. `wrapped` is the only agent of `wrap` and `run`.
pub(super) fn policy_of(
    policies: Policies,
    environment: &Environment,
    wrapped: Option<(String, ExternalAgentDefinition)>,
) -> PolicyOf {
    let programs = Programs::of(environment);
    Arc::new(move |folders| {
        let mut policy = load_policy(&policies, folders, &programs);
        let Some((id, definition)) = &wrapped else { return policy };
        let resolve = |program: &str| programs.find(program, folders);
        match policy.managed.limit_external_agent(definition, &resolve) {
            Ok(definition) => policy.agents = Arc::new(AgentRegistry::wrapping(id, definition)),
            Err(reason) => policy.refusal = Some(reason),
        }
        policy
    })
}

fn load_policy(policies: &Policies, folders: &[PathBuf], programs: &Programs) -> LoadedPolicy {
    let cwd = folders.first().map_or_else(|| Path::new("/"), PathBuf::as_path);
    let project = Project::of(cwd);
    let Loaded { layers, problems, managed } = policies.load_in(folders, project);
    let (commands, mut broken_commands) = policies.commands(project);
    let (skills, broken_skills) = policies.skills(project);
    let (taken, commands): (Vec<_>, Vec<_>) =
        commands.into_iter().partition(|command| is_reserved_name(&command.name, &layers.modes));
    broken_commands
        .extend(taken.iter().map(|command| format!("/{} is the name of another command", command.name)));
    let servers = servers::filled(layers.servers, environment::variable);
    let mut notices: Vec<String> = managed.fault.iter().cloned().collect();
    notices.extend(layers.unused_checks);
    if !broken_commands.is_empty() {
        notices.push(format!("Commands that cannot be used:\n{}", broken_commands.join("\n")));
    }
    if !broken_skills.is_empty() {
        notices.push(format!("Skills that cannot be used:\n{}", broken_skills.join("\n")));
    }
    notices.extend(policies.project_notice(project));
    let agents = layers.agents.filled(servers::filled_external_agent_now);
    let agents = managed.limit_agents(&agents, &|program| programs.find(program, folders));
    LoadedPolicy {
        servers,
        managed,
        refusal: None,
        checks: layers.checks.into(),
        commands: commands.into(),
        skills: Arc::new(skills),
        notices,
        modes: Arc::new(layers.modes),
        rules: Arc::new(layers.rules),
        agents: Arc::new(agents),
        default_mode: layers.default_mode,
        problems: problems.iter().map(ToString::to_string).collect(),
    }
}

/// Finds the programs of external agents, as the system does.
pub(super) struct Programs {
    folders: Vec<PathBuf>,
    endings: Option<String>,
}

impl Programs {
    pub(super) fn of(environment: &Environment) -> Self {
        let user = &environment.user;
        Self { folders: user.path.clone(), endings: user.program_endings.clone() }
    }

    /// The program's file without links. `folders` are those of the session.
    pub(super) fn find(&self, program: &str, folders: &[PathBuf]) -> Option<PathBuf> {
        let (cwd, endings) = (folders.first()?, self.endings.as_deref());
        real_path(find_program(program, cwd, self.folders.iter().cloned(), endings)?).ok()
    }
}

/// The agents that the organisation's policy allows in a folder.
pub fn limited_agents(loaded: &Loaded, environment: &Environment, cwd: &Path) -> AgentRegistry {
    let resolve = |program: &str| find_program_of(program, environment, cwd);
    loaded.managed.limit_agents(&loaded.layers.agents, &resolve)
}

/// The file of a program without links. `None` if there is none.
pub fn find_program_of(program: &str, environment: &Environment, cwd: &Path) -> Option<PathBuf> {
    Programs::of(environment).find(program, &[cwd.to_owned()])
}

/// The program of `wrap` or `run` under the organisation's policy. The error is a sentence.
pub fn limit_program(
    definition: &ExternalAgentDefinition,
    environment: &Environment,
) -> Result<ExternalAgentDefinition, String> {
    let programs = Programs::of(environment);
    let cwd = std::env::current_dir().map_err(|error| format!("the current directory: {error}"))?;
    let resolve = |program: &str| programs.find(program, std::slice::from_ref(&cwd));
    managed_file::limits_everywhere().limit_external_agent(definition, &resolve)
}

/// Folders beside those of a session in which commands, or the wrapped agent, may write.
pub(super) fn write_folders(
    flags: &Flags,
    commands: &ShellSettings,
    home: Option<&Path>,
) -> anyhow::Result<Vec<PathBuf>> {
    let sandbox = flags.wrapped.as_ref().and_then(|(_, definition)| definition.sandbox.as_ref());
    let of_agent =
        sandbox.into_iter().flat_map(|sandbox| sandbox.state_dirs.iter().chain(&sandbox.write_dirs));
    commands.write.iter().chain(of_agent).map(|folder| commands::absolute(folder, home)).collect()
}

/// Refuses modes, an agent and a store that the organisation's policy does not allow.
pub(super) fn check_flags(
    flags: &Flags,
    managed: &ManagedLimits,
    store: &StoreLocation,
) -> anyhow::Result<()> {
    check_store(flags, managed, store)?;
    let modes = [("--mode", &flags.mode), ("--max-mode", &flags.max_mode)];
    for (flag, mode) in modes.into_iter().filter_map(|(flag, mode)| Some((flag, mode.as_ref()?))) {
        if !managed.allows_mode(mode) {
            bail!("{flag}: {mode} mode is not available, {BY_POLICY}");
        }
    }
    match flags.agent.as_ref().filter(|agent| !managed.allows_agent(agent)) {
        Some(agent) => bail!("--agent: the agent {agent} is not available, {BY_POLICY}"),
        None => Ok(()),
    }
}

fn check_store(flags: &Flags, managed: &ManagedLimits, store: &StoreLocation) -> anyhow::Result<()> {
    if managed.user_may.choose_store {
        return Ok(());
    }
    if flags.store.is_some() {
        bail!("--store cannot be used, {BY_POLICY}");
    }
    if flags.deterministic {
        bail!("--deterministic cannot be used, {BY_POLICY}: its sessions are in memory");
    }
    let usual = account_home().map(|home| home.join(".local/share/modegate/modegate.db"));
    match (store, usual) {
        (StoreLocation::File(path) | StoreLocation::Reading(path), Some(usual)) if *path != usual => {
            let fault = managed.fault.as_ref().map(|fault| format!("{fault}\n")).unwrap_or_default();
            let usual = usual.display();
            bail!(
                "{fault}the store is {usual}, {BY_POLICY}: unset HOME and XDG_DATA_HOME, or set them as usual"
            )
        }
        _ => Ok(()),
    }
}
