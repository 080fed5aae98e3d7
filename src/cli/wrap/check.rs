//! Implements `modegate wrap --check`: starts an agent as in plan mode, and prints how it fits into the sandbox.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::acp::SessionId;
use crate::client::{self, ClientCapabilities};
use crate::config::environment::Environment;
use crate::config::{commands, doctor_checks};
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::external_agent::profile::{AgentProfile, ProfilePath};
use crate::external_agent::{ExternalAgent, ExternalAgentError, StartRequest, known, settings};
use crate::process::shell::Shell;
use crate::process::{BrokerEvent, BrokerPolicy, RefusalKind, RefusedCall};
use crate::text;

/// Time in which an agent that has started may still try to connect.
const SETTLING: Duration = Duration::from_millis(500);

/// Starts the agent in `cwd`. No prompt is sent, so no model answers.
pub(super) async fn run(
    id: String,
    definition: ExternalAgentDefinition,
    cwd: PathBuf,
    environment: &Environment,
    output: impl Write,
) -> anyhow::Result<ExitCode> {
    let shell = commands::user_shell(environment)?;
    let mut check = WrapCheck { definition, output, has_failed: false };
    check.describe(&id, &shell)?;
    if check.try_sandbox(&shell, environment).await? {
        check.start(id, cwd, &shell).await?;
    }
    Ok(if check.has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct WrapCheck<W> {
    definition: ExternalAgentDefinition,
    output: W,
    /// True if the agent cannot run in plan mode.
    has_failed: bool,
}

impl<W: Write> WrapCheck<W> {
    fn line(&mut self, what: &str, text: impl AsRef<str>) -> std::io::Result<()> {
        writeln!(self.output, "{what:20}{}", text.as_ref())
    }

    fn wrong(&mut self, what: &str, text: impl AsRef<str>) -> std::io::Result<()> {
        self.has_failed = true;
        self.line(what, format!("WRONG {}", text.as_ref()))
    }

    fn describe(&mut self, id: &str, shell: &Shell) -> std::io::Result<()> {
        let is_known = self.definition.profile.as_ref().is_some_and(|profile| !profile.name.is_empty());
        let kind = if is_known { "known to Modegate" } else { "not known to Modegate" };
        self.line("agent", format!("{id}, {kind}"))?;
        let folders: Vec<_> =
            self.definition.sandbox.iter().flat_map(|sandbox| &sandbox.state_dirs).collect();
        let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        self.line("state directories", or_none(&folders))?;
        let variables = shell.agent_variables(self.definition.inherits, &self.definition.env);
        let addresses = settings::addresses(&self.definition, shell);
        let hosts = known::allowed_hosts(&self.definition, &[], variables, &addresses);
        let hosts: Vec<String> = hosts.patterns.iter().map(ToString::to_string).collect();
        self.line("hosts in plan mode", or_none(&hosts))
    }

    /// Returns true if the agent can be started in a sandbox. Without a broker that works, selects the sandbox.
    async fn try_sandbox(&mut self, shell: &Shell, environment: &Environment) -> std::io::Result<bool> {
        if let Some(missing) = shell.support().missing() {
            self.wrong("sandbox", missing)?;
            return Ok(false);
        }
        self.line("sandbox", "supported")?;
        let text = match doctor_checks::check_broker(environment).await {
            Ok(Ok(())) => "works, and limits the network in plan mode".to_owned(),
            Ok(Err(reason)) => format!("works; the network stays open in every mode: {reason}"),
            Err(reason) => {
                if let Some(sandbox) = &mut self.definition.sandbox {
                    sandbox.broker = Some(false);
                }
                format!("not available: {reason}")
            }
        };
        self.line("broker", text)?;
        Ok(true)
    }

    async fn start(&mut self, id: String, cwd: PathBuf, shell: &Shell) -> std::io::Result<()> {
        let name = id.clone();
        let request = StartRequest {
            name: id.clone(),
            definition: self.definition.clone(),
            sandboxed: true,
            policy: BrokerPolicy::Nothing,
            cwd,
            directories: Vec::new(),
            servers: Vec::new(),
            capabilities: ClientCapabilities::default(),
            load: None,
            record: None,
        };
        // The messages of the agent are dropped.
        let (client, _end) = client::channel();
        let began = Instant::now();
        let started =
            ExternalAgent::start(request, shell, SessionId::new(id), client, std::future::pending());
        let agent = match started.await {
            Ok(agent) => agent,
            Err(error) => {
                let error = ExternalAgentError::from(error);
                if matches!(error, ExternalAgentError::AuthRequired(_)) {
                    return self.line("start in plan mode", format!("runs, but {error}"));
                }
                return self.wrong("start in plan mode", error.to_string());
            }
        };
        self.line("start in plan mode", format!("{:.1} s", began.elapsed().as_secs_f64()))?;
        self.line("version", agent.about().unwrap_or("not reported"))?;
        self.line("loads sessions", if agent.can_load() { "yes" } else { "no" })?;
        if let Some(offered) = agent.modes() {
            let modes: Vec<String> = offered.available_modes.iter().map(|mode| mode.id.to_string()).collect();
            self.line("its modes", or_none(&modes))?;
            let modes = &self.definition.modes;
            let sandboxed = modes.read_only_of(&offered).map(|id| id.to_string());
            let full = modes.full_of(&offered).unwrap_or_else(|| offered.current_mode_id.clone());
            let sandboxed = sandboxed.unwrap_or_else(|| "not changed".into());
            self.line("own mode", format!("{sandboxed} in the sandbox, {full} without it"))?;
        }
        tokio::time::sleep(SETTLING).await;
        let (mut hosts, mut changed, mut calls) = (Vec::new(), Vec::new(), BTreeSet::new());
        if let Some(mut events) = agent.program().take_broker_events() {
            while let Ok(event) = events.try_recv() {
                match event {
                    BrokerEvent::HostRefused(host) => hosts.push(host),
                    BrokerEvent::Refused(RefusedCall { path: Some(path), .. }) => changed.push(path),
                    BrokerEvent::Refused(call) => drop(calls.insert(describe(&call))),
                    // The mode stays the same, and refuses changes without a question or a rule. A profile has no sockets.
                    BrokerEvent::PolicySet { .. }
                    | BrokerEvent::Ended(_)
                    | BrokerEvent::RecordSaved(_)
                    | BrokerEvent::Asked(_)
                    | BrokerEvent::Withdrawn(_)
                    | BrokerEvent::SocketRefused(_)
                    | BrokerEvent::RuleRefused(_) => {}
                }
            }
        }
        if !hosts.is_empty() {
            self.line("refused hosts", format!("{}; --allow-host allows one", hosts.join(", ")))?;
        }
        if !changed.is_empty() {
            let names: Vec<String> =
                changed.iter().map(|path| text::quoted_name(&path.to_string_lossy())).collect();
            self.line(
                "refused changes",
                format!("{}; --state-dir allows those of a folder", names.join(", ")),
            )?;
        }
        if !calls.is_empty() {
            self.line("refused calls", calls.into_iter().collect::<Vec<_>>().join(", "))?;
        }
        agent.shut_down().await;
        if self.definition.profile.as_ref().is_none_or(|profile| profile.name.is_empty()) {
            self.print_profile(name, &hosts, &changed)?;
        }
        Ok(())
    }

    /// Prints a profile for an agent that is not known, with what it was refused.
    fn print_profile(&mut self, name: String, hosts: &[String], changed: &[PathBuf]) -> std::io::Result<()> {
        let given = self.definition.sandbox.iter().flat_map(|sandbox| &sandbox.state_dirs);
        let folders = given.map(PathBuf::as_path).chain(changed.iter().filter_map(|path| path.parent()));
        let folders: BTreeSet<String> = folders.map(|path| path.display().to_string()).collect();
        let state_dirs = folders.into_iter().map(|path| ProfilePath { path, ..ProfilePath::default() });
        let profile = AgentProfile {
            name,
            state_dirs: state_dirs.collect(),
            hosts: hosts.to_vec(),
            ..AgentProfile::default()
        };
        let yaml = serde_saphyr::to_string(&[profile]).map_err(std::io::Error::other)?;
        writeln!(
            self.output,
            "\nA profile for external-agents.yaml in Modegate's folder of settings. Keep only what the agent needs.\n"
        )?;
        write!(self.output, "{yaml}")
    }
}

fn describe(call: &RefusedCall) -> String {
    let what = match call.kind {
        RefusalKind::Change | RefusalKind::Outside => "a change",
        RefusalKind::Namespace => "a mount or a namespace",
        RefusalKind::Trace => "reading or controlling another process",
    };
    format!("{what} by {}", text::quoted_name(&call.program))
}

fn or_none(list: &[String]) -> String {
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}
