//! Implements `modegate agents`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;

use super::UsageError;
use super::modes::{describe, report, tools};
use crate::agents::{AgentOrigin, AgentSpec};
use crate::config::environment::Environment;
use crate::config::policies::{Loaded, Policies};
use crate::config::{self, Flags, agent_checks, session_policy};
use crate::mode::Modes;
use crate::permission::{self, Ceilings, Grants, Verdict};
use crate::text::{counted, visible};
use crate::tool::{ToolSpec, offered};
use crate::workspace::Workspace;

#[derive(Debug, Subcommand)]
pub(super) enum AgentsCommand {
    /// List the agents available in this directory
    List,
    /// Print an agent's complete definition
    Show {
        /// Id of the agent to print
        id: String,
        /// List the agent's tools in this mode, too
        #[arg(long, value_name = "MODE")]
        mode: Option<String>,
    },
    /// Report faults in agent definitions and missing requirements
    Check,
}

pub(super) fn run(
    action: AgentsCommand,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
    errors: impl Write,
) -> anyhow::Result<ExitCode> {
    let cwd = config::real_working_folder(flags)?;
    let mut loaded = Policies::new(environment, None, false).load(&cwd);
    loaded.layers.agents = session_policy::limited_agents(&loaded, environment, &cwd);
    match action {
        AgentsCommand::Check => check(&loaded, environment, &cwd, output),
        AgentsCommand::List => {
            let code = report(&loaded, errors)?;
            for agent in loaded.layers.agents.iter() {
                let reads = if agent.is_read_only { "reads only" } else { "" };
                let about = visible(&agent.description);
                writeln!(output, "{:20} {:8} {reads:10} {about}", agent.id, origin_label(agent))?;
            }
            Ok(code)
        }
        AgentsCommand::Show { id, mode } => {
            let code = report(&loaded, errors)?;
            let agent = loaded.layers.agents.resolve(&id).map_err(UsageError::new)?;
            writeln!(output, "# {}", origin_label(agent))?;
            write!(output, "{}", visible(&agent.to_yaml()))?;
            if let Some(mode) = mode.as_ref().or(flags.mode.as_ref()) {
                write!(output, "{}", in_mode(agent, mode, &loaded, environment, &cwd)?)?;
            }
            Ok(code)
        }
    }
}

fn check(
    loaded: &Loaded,
    environment: &Environment,
    cwd: &Path,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    for diagnostic in &loaded.problems {
        write!(output, "{}", describe(diagnostic))?;
    }
    let missing = agent_checks::problems(&loaded.layers.agents, environment, cwd);
    for problem in &missing {
        writeln!(output, "{}", visible(problem))?;
    }
    if !loaded.problems.is_empty() || !missing.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    writeln!(output, "{}: fine", counted(loaded.layers.agents.iter().count(), "agent", "agents"))?;
    Ok(ExitCode::SUCCESS)
}

fn in_mode(
    agent: &AgentSpec,
    mode: &str,
    loaded: &Loaded,
    environment: &Environment,
    cwd: &Path,
) -> anyhow::Result<String> {
    let layers = &loaded.layers;
    let mode = layers.modes.resolve(mode).map_err(UsageError::new)?.id.clone();
    if let Some(external_agent) = &agent.external_agent {
        let but = if external_agent.sandbox.is_some() {
            ""
        } else {
            "; without `sandbox` it cannot run in read-only modes"
        };
        return Ok(format!("# in {mode}: its tools are its own{but}\n"));
    }
    let mut modes = layers.modes.ceilings(&mode)?;
    if !loaded.problems.is_empty() {
        // Sessions have the same limit while a file is unusable.
        modes.extend(Modes::built_in().ceilings("plan")?);
    }
    modes.extend(loaded.managed.ceilings.iter().cloned());
    modes.extend(agent.limits.iter().cloned());
    let ceilings = Ceilings { modes, rules: vec![Arc::new(layers.rules.clone())] };
    let tools = tools(environment, &Workspace::new(cwd, &[])?, &layers.agents)?;
    let (mut there, mut requested) = (Vec::new(), Vec::new());
    let is_available =
        |spec: &ToolSpec| permission::is_available(&ceilings, &Grants::default(), &spec.facts());
    for tool in offered(&tools.all(), false, is_available) {
        match permission::decide(&ceilings, &Grants::default(), &tool.spec().facts()) {
            Verdict::Allow => there.push(tool.spec().name.to_string()),
            Verdict::Ask(_) => requested.push(tool.spec().name.to_string()),
            Verdict::Deny(_) => {}
        }
    }
    let line = |how: &str, names: &[String]| format!("# in {mode}, {how}: {}\n", names.join(", "));
    let mut text = line("without asking", &there);
    if !requested.is_empty() {
        text.push_str(&line("after asking", &requested));
    }
    Ok(text)
}

fn origin_label(agent: &AgentSpec) -> &'static str {
    match agent.origin {
        AgentOrigin::BuiltIn => "built in",
        AgentOrigin::User => "yours",
        AgentOrigin::Project => "project",
    }
}
