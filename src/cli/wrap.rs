//! Implements `modegate wrap -- COMMAND…`, which runs an external agent under Modegate's modes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::usage_error;
use crate::bounded_file;
use crate::config::environment::{Environment, variable};
use crate::config::{Flags, doctor_checks, real_working_folder, session_policy};
use crate::external_agent::client::LOGIN_ARGUMENT;
use crate::external_agent::definition::{ExternalAgentDefinition, ExternalAgentModes, ExternalAgentSandbox};
use crate::external_agent::known;
use crate::external_agent::profile::{AgentProfile, SandboxedSettings};
use crate::external_agent::sockets;
use crate::managed_policy::BY_POLICY;
use crate::model::catalog::OFFLINE;
use crate::process::HostPattern;
use crate::yaml_error;

mod check;

#[derive(Debug, Default, Args)]
pub(super) struct WrapArguments {
    /// Mode of the session; the same option as before `wrap`
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Limit all sessions to what this mode permits; the same option as before `wrap`
    #[arg(long, value_name = "MODE")]
    max_mode: Option<String>,
    /// Further directory of the agent's state, writable even in read-only modes; repeatable [default: known for some agents]
    #[arg(long, value_name = "DIR", value_parser = folder)]
    state_dir: Vec<PathBuf>,
    /// Further directory that the agent may change in modes that allow changes, as it changes the session's; undo does not cover it; repeatable
    #[arg(long, value_name = "DIR", value_parser = folder, conflicts_with = "no_broker")]
    write_dir: Vec<PathBuf>,
    /// The agent's own mode to set while it is sandboxed [default: a mode with a common id: plan, read-only, …]
    #[arg(long, value_name = "ID")]
    read_only_mode: Option<String>,
    /// The agent's own mode to set while everything is allowed [default: its initial mode]
    #[arg(long, value_name = "ID")]
    full_mode: Option<String>,
    /// Do without the broker: a mode may restart the agent, and undo does not know its changes
    #[arg(long, conflicts_with = "broker")]
    no_broker: bool,
    /// Accepted for earlier commands: the broker is used where it works
    #[arg(long, hide = true)]
    broker: bool,
    /// A further host that the agent may connect to in read-only modes: example.com, *.example.com, an IP address or *, with :PORT or without; repeatable [default: the hosts of its models]
    #[arg(long, value_name = "HOST", value_parser = host, conflicts_with = "no_broker")]
    allow_host: Vec<String>,
    /// A UNIX socket that the agent may connect to in modes that allow changes: ssh-agent, gpg, docker (root on this machine), wayland, or a path; repeatable
    #[arg(long, value_name = "SOCKET", value_parser = socket, conflicts_with = "no_broker")]
    allow_socket: Vec<String>,
    /// Start the agent as in plan mode, without a prompt, print how it fits into the sandbox, and exit
    #[arg(long)]
    check: bool,
    /// Command of the agent, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Folders, hosts and sockets of a program of `modegate run`.
#[derive(Debug, Args)]
pub(super) struct ProgramLimits {
    /// Directory that the program may write to in every mode; repeatable [default: known for some agents]
    #[arg(long, value_name = "DIR", value_parser = folder)]
    state_dir: Vec<PathBuf>,
    /// Further directory that the program may change in modes that allow changes, as it changes the current one; undo does not cover it; repeatable
    #[arg(long, value_name = "DIR", value_parser = folder)]
    write_dir: Vec<PathBuf>,
    /// Further host that the program may connect to in read-only modes: example.com, *.example.com, an IP address or *, with :PORT or without; repeatable
    #[arg(long, value_name = "HOST", value_parser = host)]
    allow_host: Vec<String>,
    /// UNIX socket that the program may connect to in modes that allow changes: ssh-agent, gpg, docker (root on this machine), wayland, or a path; repeatable
    #[arg(long, value_name = "SOCKET", value_parser = socket)]
    allow_socket: Vec<String>,
}

/// Modes of a program of `modegate run`.
#[cfg(target_os = "linux")]
pub(super) struct ProgramModes {
    pub mode: Option<String>,
    pub max_mode: Option<String>,
}

impl WrapArguments {
    /// Of `modegate run`.
    #[cfg(target_os = "linux")]
    pub(super) fn of_program(modes: ProgramModes, limits: ProgramLimits, command: Vec<String>) -> Self {
        let ProgramModes { mode, max_mode } = modes;
        let ProgramLimits { state_dir, write_dir, allow_host, allow_socket } = limits;
        Self { mode, max_mode, state_dir, write_dir, allow_host, allow_socket, command, ..Self::default() }
    }

    /// Takes a login in a terminal: the client has appended the arguments of the agent's own method.
    pub(super) fn take_login(&mut self) -> Option<(ProgramLimits, Vec<String>)> {
        let position = self.command.iter().position(|word| word == LOGIN_ARGUMENT)?;
        let mut command = std::mem::take(&mut self.command);
        command.remove(position);
        let limits = ProgramLimits {
            state_dir: std::mem::take(&mut self.state_dir),
            write_dir: std::mem::take(&mut self.write_dir),
            allow_host: std::mem::take(&mut self.allow_host),
            allow_socket: std::mem::take(&mut self.allow_socket),
        };
        Some((limits, command))
    }

    pub(super) fn put(
        mut self,
        flags: &mut Flags,
        environment: &Environment,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        let modes = [
            ("--mode", &mut flags.mode, self.mode.take()),
            ("--max-mode", &mut flags.max_mode, self.max_mode.take()),
        ];
        for (name, flag, here) in modes {
            if flag.is_some() && here.is_some() {
                return Err(format!("{name} is given before and after wrap: give it once"));
            }
            *flag = flag.take().or(here);
        }
        for (name, flag) in [("--agent", &flags.agent), ("--model", &flags.model)] {
            if flag.is_some() {
                return Err(format!("{name} cannot be combined with wrap: the agent after -- answers"));
            }
        }
        let profiles = read_profiles(environment)?;
        flags.wrapped = Some(self.agent(environment, variable, &profiles));
        flags.model = Some(OFFLINE.to_owned());
        Ok(())
    }

    fn agent(
        self,
        environment: &Environment,
        variable: impl Fn(&str) -> Option<String>,
        profiles: &[AgentProfile],
    ) -> (String, ExternalAgentDefinition) {
        let Self {
            state_dir,
            write_dir,
            read_only_mode,
            full_mode,
            no_broker,
            allow_host,
            allow_socket,
            command,
            ..
        } = self;
        let mut words = command.iter().cloned();
        let program = words.next().unwrap_or_default();
        let found = known::profile_of(&program, command.get(1..).unwrap_or_default(), profiles);
        let id = found.as_ref().map_or_else(|| id_of(&program), |profile| profile.name.clone());
        let profile = found.unwrap_or_default();
        let folders = profile.state_folders(&variable);
        let settings_dirs = profile.settings_folders(&variable);
        let state_dirs = folders.into_iter().chain(state_dir).collect();
        let write_dirs = profile.write_folders(&variable).into_iter().chain(write_dir).collect();
        let sandboxed =
            if read_only_mode.is_none() { profile.sandboxed.clone() } else { SandboxedSettings::default() };
        let definition = ExternalAgentDefinition {
            command: program,
            args: words.collect(),
            // The user started this agent, so it gets the removed keys.
            env: environment.keys().collect(),
            sandbox: Some(ExternalAgentSandbox {
                state_dirs,
                write_dirs,
                args: sandboxed.args,
                broker: Some(!no_broker),
                hosts: allow_host,
                sockets: allow_socket,
                settings_dirs,
                variables: sandboxed.variables,
            }),
            modes: ExternalAgentModes { read_only: read_only_mode, full: full_mode, known: sandboxed.modes },
            inherits: true,
            terminal_program: None,
            hides_sandbox: false,
            missing: None,
            profile: Some(profile),
            requires_broker: false,
            host_limit: None,
        };
        (id, definition)
    }
}

/// File of the user's own profiles.
const PROFILES: &str = "external-agents.yaml";

const MAX_PROFILES: u64 = 1024 * 1024;

/// Reads the user's own profiles. The error is a sentence.
fn read_profiles(environment: &Environment) -> Result<Vec<AgentProfile>, String> {
    let Some(folder) = &environment.config_folder else { return Ok(Vec::new()) };
    let file = folder.join(PROFILES);
    let name = file.display();
    let text = match bounded_file::read_own_text(&file, MAX_PROFILES) {
        Ok(text) => text,
        Err(error) if error.is_missing() => return Ok(Vec::new()),
        Err(error) => return Err(format!("{name} {error}")),
    };
    let options = serde_saphyr::options! { with_snippet: false };
    let profiles: Vec<AgentProfile> = serde_saphyr::from_str_with_options(&text, options)
        .map_err(|error| format!("{name}: {}", yaml_error::describe(&error, &text)))?;
    match profiles.iter().find_map(AgentProfile::fault) {
        Some(fault) => Err(format!("{name}: {fault}")),
        None => Ok(profiles),
    }
}

/// Adds the agent to the flags, or checks it. Returns the exit code if nothing else is to be done.
pub(super) async fn prepare(
    arguments: WrapArguments,
    flags: &mut Flags,
    environment: &Environment,
    output: &mut impl Write,
    errors: &mut impl Write,
) -> anyhow::Result<Option<ExitCode>> {
    if arguments.check {
        let cwd = real_working_folder(flags)?;
        let profiles = match read_profiles(environment) {
            Ok(profiles) => profiles,
            Err(error) => return usage_error(errors, &error).map(Some),
        };
        let (id, definition) = arguments.agent(environment, variable, &profiles);
        let definition = match session_policy::limit_program(&definition, environment) {
            Ok(definition) => definition,
            Err(error) => return usage_error(errors, &error).map(Some),
        };
        return check::run(id, definition, cwd, environment, output).await.map(Some);
    }
    let checked = arguments.put(flags, environment, variable).and_then(|()| check_policy(flags, environment));
    if let Err(error) = checked {
        return usage_error(errors, &error).map(Some);
    }
    check_broker(flags, environment, errors).await.map(|refused| refused.map(ExitCode::from))
}

/// Refuses a program, or its options, that the organisation's policy does not allow. The error is a sentence. Each
/// session checks again.
pub(super) fn check_policy(flags: &mut Flags, environment: &Environment) -> Result<(), String> {
    let Some((_, definition)) = &mut flags.wrapped else { return Ok(()) };
    let limited = session_policy::limit_program(definition, environment)?;
    if limited.requires_broker && !limited.is_brokered() {
        return Err(format!("--no-broker cannot be used, {BY_POLICY}, which requires the broker"));
    }
    *definition = limited;
    Ok(())
}

/// Drops the broker with a message where it does not work. Returns the exit code if the organisation's policy requires
/// it.
async fn check_broker(
    flags: &mut Flags,
    environment: &Environment,
    mut errors: impl Write,
) -> anyhow::Result<Option<u8>> {
    let Some((_, agent)) = &mut flags.wrapped else { return Ok(None) };
    let (is_required, has_host_limit) = (agent.requires_broker, agent.host_limit.is_some());
    let sandbox = agent.sandbox.as_mut().filter(|sandbox| sandbox.broker == Some(true));
    let Some(sandbox) = sandbox else { return Ok(None) };
    match doctor_checks::check_broker(environment).await {
        Ok(Ok(())) => {}
        Ok(Err(reason)) if has_host_limit => {
            writeln!(
                errors,
                "modegate: the agent was not started: its network is limited {BY_POLICY}, and {reason}"
            )?;
            return Ok(Some(1));
        }
        Ok(Err(reason)) => {
            writeln!(errors, "modegate: the agent's network stays open in every mode: {reason}")?;
        }
        Err(reason) if is_required || has_host_limit => {
            writeln!(
                errors,
                "modegate: the agent was not started: the broker is required {BY_POLICY}, and {reason}"
            )?;
            return Ok(Some(1));
        }
        Err(reason) => {
            sandbox.broker = Some(false);
            writeln!(errors, "modegate: without the broker, so a mode may restart the agent: {reason}")?;
        }
    }
    Ok(None)
}

fn folder(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() || path.starts_with("~") {
        Ok(path)
    } else {
        Err("it has to be absolute, or to begin with ~/".into())
    }
}

fn host(text: &str) -> Result<String, String> {
    text.parse().map(|host: HostPattern| host.to_string())
}

fn socket(text: &str) -> Result<String, String> {
    sockets::check(text).map(|()| text.to_owned())
}

fn id_of(program: &str) -> String {
    let stem = Path::new(program).file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
    let id: String = stem
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .skip_while(|c| !c.is_ascii_lowercase())
        .take(30)
        .collect();
    if id.is_empty() { "wrapped".into() } else { id }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = if cfg!(windows) { "C:/state" } else { "/state" };

    fn agent(command: &[&str], state: &[&str]) -> (String, ExternalAgentDefinition) {
        let arguments = WrapArguments {
            state_dir: state.iter().map(PathBuf::from).collect(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            ..WrapArguments::default()
        };
        let variable = |name: &str| match name {
            "XDG_STATE_HOME" => Some(STATE.into()),
            "XDG_CACHE_HOME" => Some("not/absolute".into()),
            _ => None,
        };
        let own = "[{name: my-own, state_dirs: [{path: '~/.my-own'}], hosts: ['models.example.com']}]";
        arguments.agent(&Environment::default(), variable, &serde_saphyr::from_str::<Vec<_>>(own).unwrap())
    }

    #[test]
    fn known_agents_are_recognised_by_their_command() {
        let dirs = |command: &[&str], state: &[&str]| {
            let (id, definition) = agent(command, state);
            let dirs = definition.sandbox.unwrap().state_dirs;
            let dirs = dirs.iter().map(|dir| dir.display().to_string().replace('\\', "/"));
            (id, dirs.collect::<Vec<_>>().join(" "))
        };
        for (command, state, id, expected) in [
            (&["gemini", "--acp"][..], &[][..], "gemini", "~/.gemini"),
            (&["node", "/opt/gemini/bundle/gemini.js"], &[], "gemini", "~/.gemini"),
            (&["npx", "-y", "@google/gemini-cli", "--acp"], &[], "gemini", "~/.gemini"),
            (&["/home/codex/other", "--model", "gemini-3"], &[], "other", ""),
            (&["npx", "other", "gemini"], &[], "npx", ""),
            (&["/x/codex-acp"], &["/state"], "codex", "~/.codex /state"),
            (&["codex-acp"], &[], "codex", "~/.codex"),
            (&["opencode"], &[], "opencode", "~/.local/share/opencode /state/opencode ~/.cache/opencode"),
            (&["other"], &["/own"], "other", "/own"),
            (&["npx", "@scope/my-own-agent"], &[], "my-own", "~/.my-own"),
            (&["/usr/bin/My Agent"], &[], "my-agent", ""),
            (&["./7"], &[], "wrapped", ""),
        ] {
            let expected = expected.replace("/state/", &format!("{STATE}/"));
            assert_eq!(dirs(command, state), (id.to_owned(), expected), "{command:?}");
        }
        let (_, codex) = agent(&["codex-acp"], &[]);
        let sandbox = codex.sandbox.unwrap();
        assert_eq!(codex.modes.known, ["full-access", "agent-full-access"]);
        let is_set = !sandbox.args.is_empty() && !sandbox.variables.is_empty();
        assert!(is_set, "not over ACP: codex would trust the folder from then on");
        let gemini = agent(&["gemini"], &[]).1;
        assert!(gemini.modes.known.is_empty() && gemini.sandbox.unwrap().args.is_empty());
    }
}
