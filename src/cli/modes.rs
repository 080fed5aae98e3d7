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
use crate::config::project::Project;
use crate::config::{self, Flags};
use crate::external_agent::requested_call;
use crate::headless::printable;
use crate::ids::time_text;
use crate::mode::{Modes, ShellUse};
use crate::permission::external::{Requirement, requirement};
use crate::permission::hints::Belief;
use crate::permission::{self, CallFacts, Ceilings, Claim, Effect, rules};
use crate::policy::{Diagnostic, LayerOwner, Layers};
use crate::store::log;
use crate::text::{counted, first_line, visible};
use crate::tool::mcp::{self, ExpectedBeliefs};
use crate::tool::shell::denied_changes;
use crate::tool::{Toolset, unknown_tool};
use crate::workspace::Workspace;

#[derive(Debug, Subcommand)]
pub(super) enum ModesCommand {
    /// List modes, including the current project's
    List,
    /// Print a mode's complete definition
    Show {
        /// Id of the mode to print
        mode: String,
    },
    /// Check a modes file, or all that apply here
    Check {
        /// File to check [default: your files and the current project's]
        file: Option<PathBuf>,
        /// Check the file as a project's file, which can only restrict your modes
        #[arg(long, requires = "file")]
        project: bool,
    },
    /// Explain how a call would be decided and by which rule
    Explain {
        /// Id of the mode that decides
        mode: String,
        /// Name of the called tool
        tool: String,
        /// The tool's arguments: a JSON object, or the text of the first argument
        arguments: Option<String>,
        /// Explain the same request by an external agent
        #[arg(long)]
        external_agent: bool,
    },
    /// Convert the modes in another program's SQLite database to a modes file
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
    action: ModesCommand,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
    errors: impl Write,
) -> anyhow::Result<ExitCode> {
    let policies = Policies::new(environment, None, false);
    match action {
        ModesCommand::Check { file: Some(file), project } => {
            // The working folder may be `.modegate`.
            let path = std::path::absolute(&file)?;
            check_file(&file, project || path.ends_with(policies::PROJECT), &policies, output)
        }
        ModesCommand::Check { file: None, .. } => {
            let cwd = config::real_working_folder(flags)?;
            check(&policies.load(&cwd), &policies.files(&cwd), output)
        }
        ModesCommand::Log { session, json } => {
            show_log(flags, environment, session.as_deref(), json, (output, errors)).await
        }
        ModesCommand::Import { database, modes } => mode_import::import(&database, &modes, output, errors),
        ModesCommand::List => {
            let loaded = policies.load(&config::real_working_folder(flags)?);
            let code = report(&loaded, errors)?;
            for mode in loaded.layers.modes.iter() {
                writeln!(output, "{:12} {}", mode.id, visible(first_line(&mode.description)))?;
            }
            Ok(code)
        }
        ModesCommand::Show { mode } => {
            let loaded = policies.load(&config::real_working_folder(flags)?);
            let code = report(&loaded, errors)?;
            let mode = loaded.layers.modes.resolve(&mode).map_err(UsageError::new)?;
            write!(output, "{}", mode.to_yaml())?;
            Ok(code)
        }
        ModesCommand::Explain { mode, tool, arguments, external_agent } => {
            let cwd = config::real_working_folder(flags)?;
            let loaded = policies.load(&cwd);
            let code = report(&loaded, errors)?;
            let ceilings = ceilings(&mode, flags.max_mode.as_deref(), &loaded)?;
            if let Some(beliefs) = mcp::expected_beliefs(&loaded.layers.servers, &tool) {
                let facts = server_tool_facts(&cwd, &tool, arguments.as_deref())?;
                explain_server_tool(&ceilings, &facts, &beliefs, &mut output)?;
            } else {
                let agents = &loaded.layers.agents;
                let mut facts = facts(environment, &cwd, agents, &tool, arguments.as_deref()).await?;
                if external_agent {
                    facts = requested_call::same_request(facts).ok_or_else(|| {
                        let kinds = requested_call::TOOLS.map(|(_, tool, _)| tool).join(", ");
                        UsageError(format!("external agents request no {tool}; they request {kinds}"))
                    })?;
                    let how = match requirement(&ceilings) {
                        Requirement::Unrestricted => "runs without the sandbox",
                        Requirement::Sandboxed => "runs in the sandbox, and changes nothing",
                        Requirement::Unsupported => "cannot run, because it needs the network",
                    };
                    writeln!(output, "An external agent {how}.")?;
                }
                writeln!(output, "{tool}: {}", permission::explain(&ceilings, &facts))?;
                if external_agent || facts.shell != ShellUse::Off {
                    explain_reading(&loaded.layers.rules, external_agent, environment, &mut output)?;
                }
                if !external_agent && facts.shell == ShellUse::Full {
                    explain_changing(&loaded.layers.rules, environment, &mut output)?;
                }
            }
            Ok(code)
        }
    }
}

pub(super) fn report(loaded: &Loaded, mut errors: impl Write) -> std::io::Result<ExitCode> {
    for diagnostic in &loaded.problems {
        write!(errors, "modegate: {}", describe(diagnostic))?;
    }
    Ok(if loaded.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The message, and an excerpt of the file if it could be read. Both may contain text of a project.
pub(super) fn describe(diagnostic: &Diagnostic) -> String {
    let message = visible(&diagnostic.to_string());
    match diagnostic.shown.as_str() {
        "" => format!("{message}\n"),
        excerpt => format!("{message}\n{}\n", visible(excerpt)),
    }
}

fn ceilings(mode: &str, max_mode: Option<&str>, loaded: &Loaded) -> anyhow::Result<Ceilings> {
    let Layers { modes, rules, .. } = &loaded.layers;
    let mut all = modes.ceilings(mode).map_err(UsageError::new)?;
    if let Some(max) = max_mode {
        all.extend(modes.ceilings(max).map_err(UsageError::new)?);
    }
    all.extend(loaded.managed.ceilings.iter().cloned());
    if !loaded.problems.is_empty() {
        // As in sessions: while a file is unusable, nothing exceeds plan.
        all.extend(Modes::built_in().ceilings("plan")?);
    }
    Ok(Ceilings { modes: all, rules: vec![Arc::new(rules.clone())] })
}

/// Explains decisions without the server: its hints count only where the user's entries leave them open.
fn explain_server_tool(
    ceilings: &Ceilings,
    facts: &CallFacts,
    beliefs: &ExpectedBeliefs,
    mut output: impl Write,
) -> std::io::Result<()> {
    let explain = |belief: Belief| {
        let claim = Claim { server: beliefs.server.clone(), flips: 0 };
        let claim = (belief == Belief::ClaimsToRead).then_some(claim);
        let facts = CallFacts { claim, effect: belief.effect(), ..facts.clone() };
        permission::explain(ceilings, &facts)
    };
    let tool = &facts.tool;
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
    policies: &Policies,
    mut output: impl Write,
) -> anyhow::Result<ExitCode> {
    let text = match bounded_file::read_own_text(file, policies::MAX_FILE) {
        Ok(text) => text,
        Err(error) => bail!("{} {error}", file.display()),
    };
    // A project's file is added to the user's, whose problems would give wrong results.
    let mut loaded = if project { policies.own() } else { Loaded::default() };
    if loaded.problems.is_empty() {
        let owner = if project { LayerOwner::Project } else { LayerOwner::User };
        loaded.problems.extend(loaded.layers.add(&file.display().to_string(), &text, owner).err());
    }
    let Some(warnings) = print_faults(&loaded, &mut output)? else { return Ok(ExitCode::FAILURE) };
    writeln!(output, "{}: {}", file.display(), verdict(warnings))?;
    Ok(ExitCode::SUCCESS)
}

fn check(loaded: &Loaded, files: &[PathBuf], mut output: impl Write) -> anyhow::Result<ExitCode> {
    let Some(warnings) = print_faults(loaded, &mut output)? else { return Ok(ExitCode::FAILURE) };
    let modes = counted(loaded.layers.modes.iter().count(), "mode", "modes");
    if !files.iter().any(|file| file.symlink_metadata().is_ok()) {
        let file = files.first().map_or_else(|| policies::MODES.into(), |file| file.display().to_string());
        writeln!(output, "no modes file: {file} does not exist; built in: {modes}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let rules = counted(loaded.layers.rules.iter().count(), "rule", "rules");
    let servers = counted(loaded.layers.servers.len(), "server", "servers");
    let checks = match loaded.layers.checks.len() {
        0 => String::new(),
        count => format!(", {}", counted(count, "check", "checks")),
    };
    writeln!(output, "{modes}, {rules}, {servers}{checks}: {}", verdict(warnings))?;
    for text in &loaded.layers.unused_checks {
        writeln!(output, "{}", visible(text))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the number of warnings, or `None` if a file cannot be used.
fn print_faults(loaded: &Loaded, output: &mut impl Write) -> std::io::Result<Option<usize>> {
    for diagnostic in &loaded.problems {
        write!(output, "{}", describe(diagnostic))?;
    }
    let warnings = warn(&loaded.layers, output)?;
    Ok(loaded.problems.is_empty().then_some(warnings))
}

/// Warns about names of tools that do not exist. Returns the number of warnings.
pub(super) fn warn(layers: &Layers, mut output: impl Write) -> std::io::Result<usize> {
    let mut warnings = 0;
    for mode in layers.modes.iter() {
        let tool_patterns =
            mode.tools.allow.iter().flat_map(|globs| &globs.patterns).chain(&mode.tools.deny.patterns);
        for pattern in tool_patterns {
            if let Some(unknown) = unknown_tool(pattern) {
                warnings += 1;
                writeln!(output, "{}: {unknown}", mode.id)?;
            }
        }
    }
    for (kind, rule) in layers.rules.iter() {
        let tool = rule.split('(').next().unwrap_or(rule);
        if let Some(unknown) = unknown_tool(tool) {
            warnings += 1;
            writeln!(output, "{kind} {rule}: {unknown}")?;
        }
    }
    for rule in layers.rules.unmatchable() {
        warnings += 1;
        writeln!(output, "allow {rule}: {}", rules::NO_PATTERN_FOR_SERVERS)?;
    }
    for (name, server) in &layers.servers {
        if server.is_for_client() {
            warnings += 1;
            writeln!(
                output,
                "servers: {name:?} has no command and no url, so it configures the client's server"
            )?;
        }
        if let Some(text) = server.unexpanded() {
            warnings += 1;
            writeln!(
                output,
                "servers: {name:?}: {text:?} is passed as it is: only env and headers expand ${{NAME}}, and ~ is not expanded"
            )?;
        }
    }
    Ok(warnings)
}

pub(super) fn verdict(warnings: usize) -> String {
    match warnings {
        0 => "fine".to_owned(),
        warnings => format!("usable, with {}", counted(warnings, "warning", "warnings")),
    }
}

/// Says whether rules that deny reading hold for a command or an external agent.
fn explain_reading(
    rules: &rules::Rules,
    external_agent: bool,
    environment: &Environment,
    output: &mut impl Write,
) -> anyhow::Result<()> {
    let (rules, patterns): (Vec<_>, Vec<_>) =
        rules.denying_reads().map(|(rule, pattern)| (rule, pattern.to_owned())).unzip();
    if rules.is_empty() {
        return Ok(());
    }
    let rules = visible(&rules.join(", "));
    let shell = config::commands::user_shell(environment)?.denying_reads(patterns);
    let text = if external_agent {
        format!("The agent can still read the files of {rules}, unless it runs with the broker.")
    } else if shell.brokers_commands() {
        format!("A command cannot read the files of {rules}.")
    } else {
        format!("A command can still read the files of {rules}, because commands run without the broker.")
    };
    Ok(writeln!(output, "{text}")?)
}

/// Says whether a command of `shell` can change files that rules are about.
fn explain_changing(
    rules: &rules::Rules,
    environment: &Environment,
    output: &mut impl Write,
) -> anyhow::Result<()> {
    let names = |limits: Vec<rules::ChangeLimit<'_>>| {
        visible(&limits.iter().map(|limit| limit.rule.text.as_str()).collect::<Vec<_>>().join(", "))
    };
    let (denying, asking) = (rules.denying_changes().collect::<Vec<_>>(), rules.asking_about_changes());
    if !denying.is_empty() {
        let shell = config::commands::user_shell(environment)?.denying_changes(denied_changes(rules));
        let files = names(denying);
        if shell.brokers_commands() {
            writeln!(output, "A command cannot change the files of {files}.")?;
        } else {
            let reason = "because commands run without the broker";
            writeln!(output, "A command can change the files of {files}, {reason}.")?;
        }
    }
    let asking: Vec<_> = asking.collect();
    if !asking.is_empty() {
        writeln!(
            output,
            "A command can change the files of {} without a question about them.",
            names(asking)
        )?;
    }
    Ok(())
}

/// The built-in tools of a session here, with default shell settings. They prepare calls, but run none.
pub(super) fn tools(
    environment: &Environment,
    workspace: &Workspace,
    agents: &AgentRegistry,
) -> anyhow::Result<Toolset> {
    let shell = config::commands::shell(environment, &config::user_file::ShellSettings::default())?;
    let skills = Policies::new(environment, None, false).skills(Project::of(workspace.cwd())).0;
    let (tools, _) = Toolset::built_in().with_shell(shell).for_session(workspace, &rules::Rules::default());
    Ok(tools.with_skills(&Arc::new(skills)).with_agents(agents))
}

/// Returns the facts that decide a call. The call is prepared as in a session, but not run.
pub(super) async fn facts(
    environment: &Environment,
    cwd: &std::path::Path,
    agents: &AgentRegistry,
    tool: &str,
    arguments: Option<&str>,
) -> anyhow::Result<CallFacts> {
    let workspace = Workspace::new(cwd, &[])?;
    let tools = tools(environment, &workspace, agents)?;
    let Some(found) = tools.find(tool) else {
        if let Some(unknown) = unknown_tool(tool).filter(|unknown| unknown.meant.is_some()) {
            return Err(UsageError::new(unknown).into());
        }
        let names: Vec<String> = tools.all().iter().map(|tool| tool.spec().name.to_string()).collect();
        let text = format!("there is no tool {tool:?}; Modegate's own tools are {}", names.join(", "));
        return Err(UsageError(text).into());
    };
    let Some(arguments) = arguments else { return Ok(found.spec().facts()) };
    let arguments = match json_arguments(arguments)? {
        Some(object) => object,
        None => text_argument(&found.spec().schema.to_value(), arguments).ok_or_else(|| {
            UsageError(format!("{tool} has no arguments, so that it cannot use {arguments:?}"))
        })?,
    };
    Ok(found.prepare(arguments, &workspace).await?.facts(found.spec()))
}

/// Returns the facts that decide a call of a server's tool, apart from its hints.
fn server_tool_facts(
    cwd: &std::path::Path,
    tool: &str,
    arguments: Option<&str>,
) -> anyhow::Result<CallFacts> {
    let mentions = match arguments.map(json_arguments).transpose()? {
        None => Vec::new(),
        Some(Some(arguments)) => mcp::call::mentions(&arguments, &Workspace::new(cwd, &[])?),
        Some(None) => {
            let text = format!("the arguments of {tool} are not a JSON object, as an MCP tool requires");
            return Err(UsageError(text).into());
        }
    };
    Ok(CallFacts { mentions, ..CallFacts::of_tool(tool, Effect::Unknown) })
}

/// Returns the first required argument, or else the first optional one, with this text. Other required
/// arguments are empty. Returns `None` if the tool has no arguments.
fn text_argument(schema: &Value, text: &str) -> Option<Value> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let mut arguments: serde_json::Map<_, _> = required.map(|name| (name.to_owned(), json!(""))).collect();
    if arguments.is_empty() {
        let first = schema["properties"].as_object()?.keys().next()?;
        arguments.insert(first.clone(), json!(""));
    }
    *arguments.values_mut().next()? = json!(text);
    Some(arguments.into())
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
    (mut output, mut errors): (impl Write, impl Write),
) -> anyhow::Result<ExitCode> {
    let (path, exists) = config::find_store(flags, environment)?;
    if !exists {
        let text = format!("Nothing is recorded yet in {}.", path.display());
        if as_json {
            writeln!(errors, "{text}")?;
        } else {
            writeln!(output, "{text}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let session = match session {
        Some(part) => {
            let store = sessions::open_to_read(flags, environment)?;
            Some(sessions::find(&store, &config::working_folder(flags)?, part).await?.id)
        }
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
            let time = time_text(change.at);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_the_first_argument_of_a_tool() {
        let built_in = Toolset::built_in();
        for (tool, expected) in [
            ("read_file", json!({ "path": "x" })),
            ("write_file", json!({ "path": "x", "content": "" })),
            ("list_directory", json!({ "path": "x" })),
        ] {
            let schema = built_in.find(tool).unwrap().spec().schema.to_value();
            assert_eq!(text_argument(&schema, "x"), Some(expected), "{tool}");
        }
        assert_eq!(text_argument(&json!({ "type": "object", "properties": {} }), "x"), None);
    }

    #[test]
    fn arguments_of_mcp_tools_are_paths_for_rules() {
        let facts = |arguments| server_tool_facts(&std::env::temp_dir(), "mcp__files__read", arguments);
        assert_eq!(facts(Some("{\"path\": \"/etc/x\"}")).unwrap().mentions, [PathBuf::from("/etc/x")]);
        assert!(facts(None).unwrap().mentions.is_empty());
        facts(Some("/etc/x")).unwrap_err();
    }

    #[test]
    fn check_of_a_file_warns_about_unknown_tools() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("modes.yaml");
        let policies = Policies::new(&Environment::default(), None, false);
        for (tool, expected) in [("shel", "usable, with 1 warning\n"), ("shell", ": fine\n")] {
            std::fs::write(&path, format!("permissions: {{deny: [{tool}]}}")).unwrap();
            let mut output = Vec::new();
            check_file(&path, false, &policies, &mut output).unwrap();
            let output = String::from_utf8(output).unwrap();
            assert!(output.ends_with(expected), "{output}");
            assert_eq!(output.contains("did you mean shell?"), tool == "shel");
        }
    }

    #[tokio::test]
    async fn log_as_json_contains_no_prose() {
        let folder = tempfile::tempdir().unwrap();
        let store = Some(folder.path().join("none.db").display().to_string());
        let flags = Flags { store, ..Flags::default() };
        for as_json in [true, false] {
            let (mut output, mut errors) = (Vec::new(), Vec::new());
            let streams = (&mut output, &mut errors);
            show_log(&flags, &Environment::default(), None, as_json, streams).await.unwrap();
            assert_eq!((output.is_empty(), errors.is_empty()), (as_json, !as_json));
        }
    }
}
