//! Implements `modegate policy`: the organisation's policy, as it counts here.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::UsageError;
use super::modes::{self, describe};
use crate::bounded_file;
use crate::config::environment::Environment;
use crate::config::managed_file::{self, PLACE, server_of};
use crate::config::policies::{Loaded, Policies};
use crate::config::session_policy;
use crate::config::{self, Flags};
use crate::managed_policy::allowed_program::AgentCommand;
use crate::managed_policy::explain::{PolicyDecision, PolicyFileState, PolicyOutput};
use crate::managed_policy::{self, CheckedPolicy, ManagedLimits, ManagedPolicy, PolicyState, SessionPlace};
use crate::mode::Modes;
use crate::model::ModelId;
use crate::permission::{self, Ceilings, Grants, Verdict};
use crate::platform::files::hidden_from_users;
use crate::server::ServerTransport;
use crate::text::visible;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Print the limits in this directory
    Show {
        #[command(flatten)]
        format: JsonFlag,
    },
    /// Check the policy of this machine, or a file before it becomes one
    Check {
        /// File to check; its owner and its place do not matter [default: the policy of this machine]
        file: Option<PathBuf>,
    },
    /// Explain which key decides about an act
    Explain {
        #[command(subcommand)]
        act: PolicyAct,
        #[command(flatten)]
        format: JsonFlag,
    },
}

#[derive(Debug, Clone, Copy, Args)]
pub(super) struct JsonFlag {
    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum PolicyAct {
    /// Choose a mode
    Mode {
        /// Id of the mode
        mode: String,
    },
    /// Use a model
    Model {
        /// Model, as PROVIDER/NAME
        model: String,
    },
    /// Use an agent
    Agent {
        /// Id of the agent
        agent: String,
    },
    /// Start a program with `wrap` or `run`, or as an external agent
    Program {
        /// Command, after `--`
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Connect to an address
    Host {
        /// Address of the server, with its scheme
        url: String,
    },
    /// Start an MCP server
    Server {
        /// Name of the server
        name: String,
        /// Address of the server [default: the command after `--`]
        #[arg(long)]
        url: Option<String>,
        /// Command of the server, after `--`
        #[arg(last = true, value_name = "COMMAND", conflicts_with = "url", required_unless_present = "url")]
        command: Vec<String>,
    },
    /// Call a tool
    Call {
        /// Name of the tool
        tool: String,
        /// The tool's arguments: a JSON object, or the text of the first argument
        arguments: Option<String>,
    },
}

pub(super) async fn run(
    action: PolicyCommand,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    match action {
        PolicyCommand::Show { format } => show(flags, format, output),
        PolicyCommand::Check { file: Some(file) } => check_file(&file, output),
        PolicyCommand::Check { file: None } => check(output),
        PolicyCommand::Explain { act, format } => {
            let decision = Explanation::new(flags, environment)?.decide(act, environment).await?;
            if format.json {
                print_json(&decision, output)?;
            } else {
                writeln!(output, "{}", visible(&decision.text))?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print_json(value: &impl Serialize, mut output: impl Write) -> anyhow::Result<()> {
    Ok(writeln!(output, "{}", serde_json::to_string(value)?)?)
}

fn show(flags: &Flags, format: JsonFlag, mut output: impl Write) -> anyhow::Result<ExitCode> {
    let cwd = config::real_working_folder(flags)?;
    let (state, place) = managed_file::placed(managed_file::read(), &[cwd]);
    let shown = PolicyOutput::of(PLACE, &state, &place);
    let code = match shown.state {
        PolicyFileState::Unusable => ExitCode::FAILURE,
        PolicyFileState::Absent | PolicyFileState::Valid => ExitCode::SUCCESS,
    };
    if format.json {
        print_json(&shown, output)?;
        return Ok(code);
    }
    match &state {
        PolicyState::Absent => writeln!(output, "There is no policy: {PLACE} does not exist.")?,
        PolicyState::Unusable(_) => {
            let fault = state.limits(&place).fault.unwrap_or_default();
            writeln!(output, "{}", visible(&fault))?;
        }
        PolicyState::Valid(_) if shown.keys.is_empty() => writeln!(output, "{PLACE} limits nothing here.")?,
        PolicyState::Valid(_) => {
            for key in &shown.keys {
                let line = format!("{:24}{}  ({})", key.key, key.value, key.reason);
                writeln!(output, "{}", visible(&line))?;
            }
        }
    }
    Ok(code)
}

fn check(mut output: impl Write) -> anyhow::Result<ExitCode> {
    match managed_file::read() {
        PolicyState::Absent => writeln!(output, "no policy: {PLACE} does not exist")?,
        PolicyState::Valid(policy) => {
            if let Some(path) = hidden_from_users(Path::new(PLACE)) {
                let path = path.display();
                writeln!(output, "{path}: others may not read it, and are limited to the strictest reading")?;
                return Ok(ExitCode::FAILURE);
            }
            return report(PLACE, &policy, output);
        }
        PolicyState::Unusable(diagnostic) => {
            write!(output, "{}", describe(&diagnostic))?;
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check_file(file: &Path, mut output: impl Write) -> anyhow::Result<ExitCode> {
    let name = file.display().to_string();
    let text = match bounded_file::read_own_text(file, managed_policy::MAX_FILE) {
        Ok(text) => text,
        Err(error) => bail!("{name} {error}"),
    };
    match ManagedPolicy::parse(&name, &text) {
        Ok(policy) => report(&name, &policy, output),
        Err(diagnostic) => {
            write!(output, "{}", describe(&diagnostic))?;
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Warns about rules for tools that do not exist.
fn report(name: &str, policy: &CheckedPolicy, mut output: impl Write) -> anyhow::Result<ExitCode> {
    let limits = policy.limits(&SessionPlace::default());
    let mut layers = limits.base_layers();
    layers.rules = limits.rules;
    let warnings = modes::warn(&layers, &mut output)?;
    writeln!(output, "{name}: {}", modes::verdict(warnings))?;
    // A rule for a tool that does not exist denies nothing.
    Ok(if warnings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The policy's limits in the working directory.
struct Explanation {
    cwd: PathBuf,
    loaded: Loaded,
}

impl Explanation {
    fn new(flags: &Flags, environment: &Environment) -> anyhow::Result<Self> {
        let cwd = config::real_working_folder(flags)?;
        let loaded = Policies::new(environment, None, false).load(&cwd);
        Ok(Self { cwd, loaded })
    }

    fn limits(&self) -> &ManagedLimits {
        &self.loaded.managed
    }

    async fn decide(&self, act: PolicyAct, environment: &Environment) -> anyhow::Result<PolicyDecision> {
        let limits = self.limits();
        Ok(match act {
            PolicyAct::Mode { mode } => self.mode(&mode)?,
            PolicyAct::Model { model } => limits.explain_model(&ModelId::new(model.as_str())),
            PolicyAct::Agent { agent } => {
                let agents = session_policy::limited_agents(&self.loaded, environment, &self.cwd);
                limits.explain_agent(&agent, agents.resolve(&agent).is_ok())
            }
            PolicyAct::Program { command } => {
                let Some((program, arguments)) = command.split_first() else {
                    bail!("name a command after --");
                };
                let place = session_policy::find_program_of(program, environment, &self.cwd);
                limits.explain_program(&AgentCommand { program, arguments, place })
            }
            PolicyAct::Host { url } => {
                let Some((host, port)) = server_of(&url) else {
                    let text = format!("{url:?} is no address: write it with http:// or https://");
                    return Err(UsageError(text).into());
                };
                limits.explain_host(&host, port)
            }
            PolicyAct::Server { name, url: Some(url), .. } => {
                limits.explain_server(&name, &ServerTransport::Address { url, headers: Vec::new() })
            }
            PolicyAct::Server { name, url: None, command } => {
                let mut words = command.into_iter();
                let command = words.next().unwrap_or_default();
                let (args, env) = (words.collect(), Vec::new());
                limits.explain_server(&name, &ServerTransport::Program { command, args, env, cwd: None })
            }
            PolicyAct::Call { tool, arguments } => {
                self.call(environment, &tool, arguments.as_deref()).await?
            }
        })
    }

    fn mode(&self, id: &str) -> anyhow::Result<PolicyDecision> {
        let modes = self.loaded.layers.modes.ceilings(id);
        if self.limits().allows_mode(id) {
            Ok(self.limits().explain_mode(id, &modes.map_err(UsageError::new)?))
        } else {
            Ok(self.limits().explain_mode(id, &[]))
        }
    }

    /// Decides the call as in the mode that allows most, so that only the policy limits it.
    async fn call(
        &self,
        environment: &Environment,
        tool: &str,
        arguments: Option<&str>,
    ) -> anyhow::Result<PolicyDecision> {
        let facts = modes::facts(environment, &self.cwd, &self.loaded.layers.agents, tool, arguments).await?;
        let limits = self.limits();
        let mut modes = Modes::built_in().ceilings("code")?;
        modes.extend(limits.ceilings.iter().cloned());
        let ceilings = Ceilings { modes, rules: vec![Arc::new(limits.rules.clone())] };
        let text = format!("{tool}: {}", permission::explain(&ceilings, &facts));
        Ok(match permission::decide(&ceilings, &Grants::default(), &facts) {
            Verdict::Allow => PolicyDecision::allowed(format!("{tool}: allowed")),
            Verdict::Ask(_) if ceilings.rules.iter().any(|rules| rules.asking(&facts).is_some()) => {
                PolicyDecision::limited("permissions.ask", text)
            }
            Verdict::Ask(_) => PolicyDecision::limited("max_mode", text),
            Verdict::Deny(denial) if denial.rule == permission::DENY_RULE => {
                PolicyDecision::refused("permissions.deny", text)
            }
            Verdict::Deny(_) => PolicyDecision::refused("max_mode", text),
        })
    }
}
