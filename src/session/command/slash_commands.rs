//! Slash commands of a session: which command a prompt has, and the answers that change nothing.

use std::path::Path;

use super::parse::{self, FoundCommands, ModeComparison, Placed, SlashCommand, Vocabulary};
use crate::acp::AvailableCommand;
use crate::mode::Mode;
use crate::permission::compare;
use crate::session::SessionContext;
use crate::session::handle::{Prompt, Undone};
use crate::session::mode::policy::Policy;

/// Lists an external agent's commands last. They never replace Modegate's.
pub(crate) fn all(policy: &Policy, external_agent: &[AvailableCommand]) -> Vec<AvailableCommand> {
    let mut commands = parse::available(&policy.context.modes, &policy.context.commands);
    if policy.agent.external_agent.is_some() {
        commands.retain(|command| !["compact", "mcp"].contains(&command.name.as_str()));
    }
    let agent_commands =
        external_agent.iter().filter(|new| commands.iter().all(|known| known.name != new.name));
    let agent_commands: Vec<_> = agent_commands.cloned().collect();
    commands.extend(agent_commands);
    commands
}

pub(crate) fn is_local(prompt: &Prompt, policy: &Policy) -> bool {
    find(prompt, policy).command.is_some_and(|placed| match &placed.command {
        command if is_for_external_agent(policy, command) => false,
        SlashCommand::Prompt(_) | SlashCommand::Compact => false,
        SlashCommand::SetMode { .. } => parse::without_command(&prompt.content, &placed).is_empty(),
        _ => true,
    })
}

/// True if a waiting prompt may join the running turn. A message with a command, or nearly one, waits for the
/// turn's end.
pub(crate) fn may_steer(prompt: &Prompt, policy: &Policy) -> bool {
    prompt.steers.unwrap_or(policy.context.steering)
        && policy.ancestry.parent.is_none()
        && policy.agent.external_agent.is_none()
        && find(prompt, policy) == FoundCommands::default()
        && misspelt(prompt, policy).is_none()
}

/// Ignores commands in a sub-agent's prompt and in piped text: only users give commands.
pub(crate) fn find(prompt: &Prompt, policy: &Policy) -> FoundCommands {
    if policy.ancestry.parent.is_some() {
        return FoundCommands::default();
    }
    let modes = &policy.context.modes;
    let id = |mode: &str| modes.resolve(mode).ok().map(Mode::mode_id);
    let compare = ModeComparison {
        allows_more: &|mode, other| match (id(mode), id(other)) {
            (Some(mode), Some(other)) => {
                compare::allows_more(&policy.mode_ceilings(&mode), &policy.mode_ceilings(&other))
            }
            (known, _) => known.is_none(),
        },
        widens: &|mode| id(mode).is_none_or(|mode| policy.would_widen(&mode)),
        is_on: &|mode| id(mode).is_some_and(|mode| mode == policy.mode),
    };
    parse::find(prompt.typed_content(), vocabulary(policy), &compare)
}

fn vocabulary(policy: &Policy) -> Vocabulary<'_> {
    let SessionContext { modes, unsupported_modes, commands, .. } = &*policy.context;
    Vocabulary { modes, unsupported_modes, own: commands }
}

/// An external agent has commands of its own, and no user writes the prompts of sub-agents.
pub(crate) fn misspelt(prompt: &Prompt, policy: &Policy) -> Option<String> {
    if policy.ancestry.parent.is_some() || policy.agent.external_agent.is_some() {
        return None;
    }
    let parse::Misspelt { word, nearest } = parse::misspelt(prompt.typed_content(), vocabulary(policy))?;
    Some(format!("There is no command /{word} (did you mean /{nearest}?). The model got the text.\n\n"))
}

/// True if the command is left to this session's external agent.
pub(crate) fn is_for_external_agent(policy: &Policy, command: &SlashCommand) -> bool {
    let has_own = matches!(
        command,
        SlashCommand::Compact | SlashCommand::Servers | SlashCommand::InvalidArgument("compact" | "mcp")
    );
    policy.agent.external_agent.is_some() && has_own
}

pub(crate) fn ignored(policy: &Policy, ignored: &[String], command: Option<&str>) -> Vec<String> {
    let notices = ignored.iter().map(|mode| match command {
        Some(command) => {
            format!(
                "/{mode} was ignored because the same message also has /{command}. Send /{mode} alone.\n\n"
            )
        }
        None => format!(
            "Still in {} mode: /{mode} works only at the start of a message. Send it alone.\n\n",
            policy.mode
        ),
    });
    notices.collect()
}

pub(crate) fn describe_permissions(policy: &Policy) -> String {
    let rules = policy.context.rules.iter().map(|(kind, rule)| format!("- {kind} `{rule}`\n"));
    let answers = policy.grants.iter().map(|(mode, kind, scope)| format!("- {kind} {scope} ({mode} mode)\n"));
    let mut answers: Vec<String> = answers.collect();
    answers.sort();
    let limits = describe_limits(policy);
    list("Rules", &rules.collect::<Vec<_>>())
        + &list("Answers remembered in this session", &answers)
        + &limits
}

fn list(heading: &str, lines: &[String]) -> String {
    let lines = if lines.is_empty() { "- none\n".to_owned() } else { lines.concat() };
    format!("{heading}:\n{lines}")
}

/// Maximum number of files that the answer to `/undo` names.
const MAX_UNDONE: usize = 30;

pub(crate) fn describe_undone(undone: &Undone, cwd: &Path) -> String {
    let files: String = undone.files.iter().take(MAX_UNDONE).map(|file| list_item(file, cwd)).collect();
    let mut message = format!("Undid the changes of turn {}:\n{files}", undone.turn);
    if undone.files.len() > MAX_UNDONE {
        message = format!("{message}- and {} more files\n", undone.files.len() - MAX_UNDONE);
    }
    if !undone.remaining_folders.is_empty() {
        let remaining: String =
            undone.remaining_folders.iter().map(|folder| list_item(folder, cwd)).collect();
        message = format!("{message}Folders kept because they are not empty:\n{remaining}");
    }
    for text in &undone.uncovered {
        message = format!("{message}Note: {text}\n");
    }
    message
}

fn list_item(path: &Path, cwd: &Path) -> String {
    format!("- {}\n", path.strip_prefix(cwd).unwrap_or(path).display())
}

pub(crate) fn describe_mode(policy: &Policy) -> String {
    let mode = policy.context.modes.resolve(&policy.mode.0);
    let text = mode.map_or_else(
        |_| "The current mode is unknown.\n".into(),
        |mode| format!("Mode: {}. {}.\n", mode.id, mode.description.trim_end_matches('.')),
    );
    text + &describe_limits(policy)
}

fn describe_limits(policy: &Policy) -> String {
    let unrecorded = policy
        .unrecorded_modes
        .iter()
        .map(|mode| (mode.0.to_string(), "a mode change could not be recorded"));
    let max = policy.context.max_modes.first().map(|mode| (mode.id.clone(), "--max-mode is set"));
    let file = policy.context.fallback_ceiling.as_ref();
    let file = file.map(|mode| (mode.id.clone(), "a modes file, or the default mode, is invalid"));
    let managed = policy.context.managed_modes.iter();
    let managed = managed.map(|mode| (mode.id.clone(), "your organisation's policy says so"));
    let limits = unrecorded.chain(max).chain(managed).chain(file);
    limits
        .map(|(mode, why)| format!("This session can do no more than {mode} mode allows, because {why}.\n"))
        .collect()
}

pub(crate) fn model_prompt(mut prompt: Prompt, placed: &Placed) -> Prompt {
    let typed = std::mem::take(&mut prompt.content);
    prompt.content = parse::without_command(&typed, placed);
    prompt.typed = Some(typed);
    prompt
}
