//! Finds missing tools, models, programs, variables and folders of agents. Starts and creates nothing.

use std::path::Path;

use super::environment::Environment;
use super::providers;
use super::servers::filled_external_agent_now;
use crate::agents::{AgentRegistry, AgentSpec};
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::platform::files::find_program;
use crate::process::state_folders;
use crate::tool::unknown_tool;

/// Each problem is a sentence that starts with the agent's id.
pub fn problems(agents: &AgentRegistry, environment: &Environment, cwd: &Path) -> Vec<String> {
    agents.iter().flat_map(|agent| check_agent(agent, environment, cwd)).collect()
}

fn check_agent(agent: &AgentSpec, environment: &Environment, cwd: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for tools in agent.limits.iter().map(|limit| &limit.tools) {
        let tool_patterns = tools.allow.iter().flat_map(|globs| &globs.patterns).chain(&tools.deny.patterns);
        let unknown = tool_patterns.filter_map(|pattern| unknown_tool(pattern));
        problems.extend(unknown.map(|unknown| unknown.to_string()));
    }
    problems.extend(agent.model.as_deref().and_then(|model| check_model(model, environment)));
    if let Some(external_agent) = &agent.external_agent {
        problems.extend(check_external_agent(external_agent, environment, cwd));
    }
    problems.iter().map(|problem| format!("{}: {problem}", agent.id)).collect()
}

fn check_model(model: &str, environment: &Environment) -> Option<String> {
    match providers::load(environment, None) {
        Ok((_, remote)) => remote.catalog.resolve(model).err().map(|error| format!("its model: {error}")),
        Err(error) => Some(format!("its model: {error:#}")),
    }
}

fn check_external_agent(
    external_agent: &ExternalAgentDefinition,
    environment: &Environment,
    cwd: &Path,
) -> Vec<String> {
    let mut problems = Vec::new();
    let (folders, endings) = (environment.user.path.clone(), environment.user.program_endings.as_deref());
    if find_program(&external_agent.command, cwd, folders, endings).is_none() {
        problems.push(format!("its program does not exist: {:?}", external_agent.command));
    }
    if let Some(variable) = filled_external_agent_now(external_agent.clone()).missing {
        problems.push(format!("the environment variable {variable} is not set"));
    }
    if let Some(sandbox) = &external_agent.sandbox {
        let fault = state_folders::fault(&environment.user, &[cwd.to_owned()], &sandbox.state_dirs);
        problems.extend(fault.map(|fault| format!("its harness: {fault}")));
    }
    problems
}
