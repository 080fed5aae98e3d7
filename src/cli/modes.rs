//! Implements `modegate modes` and `modegate trust`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{UsageError, mode_import, sessions};
use crate::agents::AgentRegistry;
use crate::bounded_file;
use crate::config::environment::Environment;
use crate::config::policies::{self, Loaded, Policies};
use crate::config::{self, Flags};
use crate::headless::printable;
use crate::mode::Modes;
use crate::permission::hints::Belief;
use crate::permission::rules;
use crate::permission::{self, CallFacts, Ceilings, Claim};
use crate::policy::{Layers, ModeFile, Owner};
use crate::store::log;
use crate::text::counted;
use crate::tool::mcp::{self, ExpectedBeliefs};
use crate::tool::{Toolset, unknown_tool};
use crate::workspace::Workspace;

#[derive(Debug, Subcommand)]
pub(super) enum Action {
    /// List modes, including the current project's
    List,
    /// Print a mode's complete definition
    Show {
        /// Id of the mode to print
        mode: String,
    },
    /// Check a modes file, or all that apply here
    Check {
        /// File to check [default: yours and the current project's]
        file: Option<PathBuf>,
        /// Check the file as a project's, which may only narrow your modes
        #[arg(long)]
        project: bool,
    },
    /// Print the JSON Schema of modes files
    Schema,
    /// Explain how a call would be decided and by which rule
    Explain {
        /// Id of the mode that decides
        mode: String,
        /// Name of the called tool
        tool: String,
        /// The tool's arguments: a JSON object, or the text of the first argument
        arguments: Option<String>,
    },
    /// Print the modes of another tool's SQLite database as a modes file
    Import {
        /// A database with a table `agent_modes`
        database: PathBuf,
        /// Ids of the modes to import [default: all]
        modes: Vec<String>,
    },
    /// List recorded mode changes in all directories, oldest first
    Log {
        /// List the changes of this session only
        #[arg(long, value_name = "ID")]
        session: Option<String>,
        /// Print one JSON object per line
        #[arg(long)]
        json: bool,
    },
}

pub(super) async fn run(
    action: Action,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
    mut errors: impl Write,
) -> anyhow::Result<ExitCode> {
    let cwd = std::fs::canonicalize(config::working_folder(flags)?)?;
    let policies = Policies::new(environment, None, false);
    let loaded = policies.load(&cwd);
    match action {
        Action::Check { file: Some(file), project } => {
            let own = policies.own();
            let project = project || file.ends_with(policies::PROJECT);
            return check_file(&file, project, own, output);
        }
        Action::Check { file: None, .. } => return check(&loaded, &policies.files(&cwd), output),
        Action::Schema => {
            writeln!(output, "{}", serde_json::to_string_pretty(&schemars::schema_for!(ModeFile))?)?;
            return Ok(ExitCode::SUCCESS);
        }
        Action::Log { session, json } => {
            return show_log(flags, environment, session.as_deref(), json, output).await;
        }
        Action::Import { database, modes } => return mode_import::import(&database, &modes, output),
        Action::List | Action::Show { .. } | Action::Explain { .. } => {}
    }
    for diagnostic in &loaded.problems {
        writeln!(errors, "modegate: {diagnostic}\n{}", diagnostic.shown)?;
    }
    let Layers { modes, rules, .. } = &loaded.layers;
    match action {
        Action::List => {
            for mode in modes.iter() {
                writeln!(output, "{:12} {}", mode.id, one_line(&mode.description))?;
            }
        }
        Action::Show { mode } => {
            write!(output, "{}", modes.resolve(&mode).map_err(UsageError::new)?.to_yaml())?
        }
        Action::Explain { mode, tool, arguments } => {
            let mut all = modes.ceilings(&mode).map_err(UsageError::new)?;
            if let Some(max) = &flags.max_mode {
                all.extend(modes.ceilings(max).map_err(UsageError::new)?);
            }
            let built_in = Modes::built_in();
            if !loaded.problems.is_empty() {
                // Sessions have the same limit while a file is unusable.
                all.extend(built_in.ceilings("plan")?);
            }
            let ceilings = Ceilings { modes: all, rules: vec![Arc::new(rules.clone())] };
            if let Some(beliefs) = mcp::expected_beliefs(&loaded.layers.servers, &tool) {
                explain_server_tool(&ceilings, &tool, &beliefs, &mut output)?;
            } else {
                let agents = &loaded.layers.agents;
                let facts = facts(environment, &cwd, agents, &tool, arguments.as_deref()).await?;
                writeln!(output, "{tool}: {}", permission::explain(&ceilings, &facts))?;
            }
        }
        Action::Check { .. } | Action::Schema | Action::Log { .. } | Action::Import { .. } => {
            unreachable!("answered above")
        }
    }
    Ok(if loaded.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Explains decisions without the server: its hints count only where the user's entries leave them open.
fn explain_server_tool(
    ceilings: &Ceilings,
    tool: &str,
    beliefs: &ExpectedBeliefs,
    mut output: impl Write,
) -> std::io::Result<()> {
    let explain = |belief: Belief| {
        let claim = Claim { server: beliefs.server.clone(), flips: 0 };
        let claim = (belief == Belief::ClaimsToRead).then_some(claim);
        let facts = CallFacts { claim, ..CallFacts::of_tool(tool, belief.effect()) };
        permission::explain(ceilings, &facts)
    };
    let not_started = format!("The MCP server {} was not started", beliefs.server);
    if beliefs.with_hint == beliefs.without_hint {
        writeln!(output, "{not_started}. Your settings for it decide, whatever its hints say.")?;
        return writeln!(output, "{tool}: {}", explain(beliefs.without_hint));
    }
    writeln!(output, "{not_started}, so the decision depends on its hints.")?;
    writeln!(output, "{tool}: {}", explain(beliefs.without_hint))?;
    writeln!(output, "{tool} with readOnlyHint: {}", explain(beliefs.with_hint))
}

fn check_file(
    file: &std::path::Path,
    project: bool,
    mut own: Layers,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let text = match bounded_file::read_own_text(file, policies::MAX_FILE) {
        Ok(text) => text,
        Err(error) => bail!("{} {error}", file.display()),
    };
    let owner = if project { Owner::Project } else { Owner::User };
    if !project {
        own = Layers::default();
    }
    match own.add(&file.display().to_string(), &text, owner) {
        Ok(()) => {
            writeln!(output, "{}: fine", file.display())?;
            Ok(ExitCode::SUCCESS)
        }
        Err(diagnostic) => {
            writeln!(output, "{diagnostic}\n{}", diagnostic.shown)?;
            Ok(ExitCode::FAILURE)
        }
    }
}

fn check(loaded: &Loaded, files: &[PathBuf], mut output: impl Write) -> anyhow::Result<ExitCode> {
    for diagnostic in &loaded.problems {
        writeln!(output, "{diagnostic}\n{}", diagnostic.shown)?;
    }
    for mode in loaded.layers.modes.iter() {
        let named =
            mode.tools.allow.iter().flat_map(|globs| &globs.patterns).chain(&mode.tools.deny.patterns);
        for pattern in named {
            if let Some(nearest) = unknown_tool(pattern) {
                writeln!(output, "{}: there is no tool {pattern:?}; did you mean {nearest}?", mode.id)?;
            }
        }
    }
    for (kind, rule) in loaded.layers.rules.iter() {
        let tool = rule.split('(').next().unwrap_or(rule);
        if let Some(nearest) = unknown_tool(tool) {
            writeln!(output, "{kind} {rule}: there is no tool {tool:?}; did you mean {nearest}?")?;
        }
    }
    for rule in loaded.layers.rules.unmatchable() {
        writeln!(output, "allow {rule}: {}", rules::NO_PATTERN_FOR_SERVERS)?;
    }
    for (name, server) in &loaded.layers.servers {
        if server.is_for_client() {
            writeln!(
                output,
                "servers: {name:?} has no command and no url, so it configures the client's server"
            )?;
        }
        if let Some(text) = server.unexpanded() {
            writeln!(
                output,
                "servers: {name:?}: {text:?} is passed as it is: only env and headers expand ${{NAME}}, and ~ is not expanded"
            )?;
        }
    }
    if !loaded.problems.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let modes = counted(loaded.layers.modes.iter().count(), "mode", "modes");
    if !files.iter().any(|file| file.symlink_metadata().is_ok()) {
        let file = files.first().map_or_else(|| policies::MODES.into(), |file| file.display().to_string());
        writeln!(output, "no modes file: {file} does not exist; built in: {modes}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let rules = counted(loaded.layers.rules.iter().count(), "rule", "rules");
    let servers = counted(loaded.layers.servers.len(), "server", "servers");
    writeln!(output, "{modes}, {rules}, {servers}: fine")?;
    Ok(ExitCode::SUCCESS)
}

/// Drops control characters from untrusted text.
fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).collect()
}

pub(super) fn tools(
    environment: &Environment,
    workspace: &Workspace,
    agents: &AgentRegistry,
) -> anyhow::Result<Toolset> {
    let shell = config::commands::shell(environment, &config::user_file::ShellSettings::default())?;
    let skills = Policies::new(environment, None, false).skills(workspace.cwd()).0;
    let (tools, _) = Toolset::built_in().with_shell(shell).for_session(workspace);
    Ok(tools.with_skills(&Arc::new(skills)).with_agents(agents))
}

/// Prepares the call as in a session, but does not run it.
async fn facts(
    environment: &Environment,
    cwd: &std::path::Path,
    agents: &AgentRegistry,
    tool: &str,
    arguments: Option<&str>,
) -> anyhow::Result<CallFacts> {
    let workspace = Workspace::new(cwd, &[])?;
    let tools = tools(environment, &workspace, agents)?;
    let Some(found) = tools.find(tool) else {
        let names: Vec<String> = tools.all().iter().map(|tool| tool.spec().name.to_string()).collect();
        let text = format!("there is no tool {tool:?}; those of Modegate itself are {}", names.join(", "));
        return Err(UsageError(text).into());
    };
    let facts = found.spec().facts();
    let Some(arguments) = arguments else { return Ok(facts) };
    let required = found.spec().schema.to_value()["required"].as_array().cloned().unwrap_or_default();
    let arguments = match json_arguments(arguments)? {
        Some(object) => object,
        None => required
            .iter()
            .filter_map(Value::as_str)
            .enumerate()
            .map(|(at, name)| (name.to_owned(), json!(if at == 0 { arguments } else { "" })))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    };
    let call = found.prepare(arguments, &workspace).await?;
    let (commands, address, mentions) = (call.commands(), call.address(), call.mentions());
    Ok(CallFacts { targets: call.targets().to_vec(), commands, address, mentions, ..facts })
}

/// Returns `None` if the text is the first argument itself.
fn json_arguments(text: &str) -> Result<Option<Value>, UsageError> {
    // A typing error must not turn the object into the text of an argument, which other rules match.
    if !text.trim_start().starts_with(['{', '[']) {
        return Ok(None);
    }
    match serde_json::from_str::<Value>(text) {
        Ok(object @ Value::Object(_)) => Ok(Some(object)),
        Ok(_) => Err(UsageError("the arguments are not a JSON object".into())),
        Err(error) => Err(UsageError(format!("the arguments are not valid JSON: {error}"))),
    }
}

async fn show_log(
    flags: &Flags,
    environment: &Environment,
    session: Option<&str>,
    as_json: bool,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let path = config::store_file(flags, environment)?;
    if !config::has_record(&path)? {
        writeln!(output, "Nothing is recorded yet in {}.", path.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    let session = match session {
        Some(part) => Some(sessions::find(&sessions::open_to_read(flags, environment)?, part).await?.id),
        None => None,
    };
    let session = session.as_ref().map(|id| &*id.0);
    for change in log::mode_changes(&path, session).with_context(|| path.display().to_string())? {
        let from = change.from.as_deref();
        if as_json {
            let line = json!({
                "session": change.session, "turn": change.turn, "from": from, "to": change.to, "source": change.source,
                "actor": change.actor, "analysis": change.analysis, "toolCall": change.call, "modeHash": change.mode_hash,
                "planHash": change.plan_hash, "at": change.at,
            });
            writeln!(output, "{line}")?;
        } else {
            let time = config::time_text(change.at);
            let (from, analysis) = (from.unwrap_or("-"), change.analysis.unwrap_or_default());
            let analysis = printable(&analysis);
            let mut reason = analysis.lines().map(str::trim_end).filter(|line| !line.is_empty());
            let (session, to, source) = (&change.session, &change.to, &change.source);
            writeln!(
                output,
                "{time}  {session}  turn {}  {from} -> {to}  {source}  {}",
                change.turn,
                reason.next().unwrap_or_default()
            )?;
            for line in reason {
                writeln!(output, "    {line}")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn trust(
    file: Option<PathBuf>,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let cwd = std::fs::canonicalize(config::working_folder(flags)?)?;
    let file = file.or_else(|| policies::project_files(&cwd).pop());
    let file = file.with_context(|| format!("there is no {} here", policies::PROJECT))?;
    let hash = Policies::new(environment, None, false).trust(&file)?;
    writeln!(
        output,
        "Trusted as it is now: {} ({}). Any change to it ends that.",
        file.display(),
        &hash[..12]
    )?;
    Ok(ExitCode::SUCCESS)
}
