//! Slash commands of a session: which command a prompt has, and the answers that change nothing.

use std::path::{Path, PathBuf};

use super::parse::{self, Command, Comparison, Found, Placed, Vocabulary};
use crate::acp::{AvailableCommand, AvailableCommandsUpdate, SessionUpdate};
use crate::mode::Mode;
use crate::permission::compare;
use crate::session::SessionContext;
use crate::session::event_log::EventLog;
use crate::session::handle::{Prompt, Undone};
use crate::session::mode::policy::Policy;

/// Lists an external agent's commands last. They never replace Modegate's.
pub(crate) fn announce(policy: &Policy, external_agent: &[AvailableCommand], log: &EventLog) {
    let mut commands = parse::available(&policy.context.modes, &policy.context.commands);
    if policy.agent.external_agent.is_some() {
        commands.retain(|command| !["compact", "mcp"].contains(&command.name.as_str()));
    }
    let agent_commands = external_agent.iter().filter(|it| commands.iter().all(|own| own.name != it.name));
    let agent_commands: Vec<_> = agent_commands.cloned().collect();
    commands.extend(agent_commands);
    let update = SessionUpdate::AvailableCommandsUpdate(AvailableCommandsUpdate::new(commands));
    log.send(update, None);
}

pub(crate) fn is_local(prompt: &Prompt, policy: &Policy) -> bool {
    find(prompt, policy).command.is_some_and(|placed| match &placed.command {
        command if is_for_external_agent(policy, command) => false,
        Command::Prompt(_) | Command::Compact => false,
        Command::SetMode { .. } => parse::without_command(&prompt.content, &placed).is_empty(),
        _ => true,
    })
}

/// True if a waiting prompt may join the running turn. A message with a command, or nearly one, waits for the
/// turn's end.
pub(crate) fn may_steer(prompt: &Prompt, policy: &Policy) -> bool {
    prompt.steers.unwrap_or(policy.context.steering)
        && policy.ancestry.parent.is_none()
        && policy.agent.external_agent.is_none()
        && find(prompt, policy) == Found::default()
        && misspelt(prompt, policy).is_none()
}

/// Ignores commands in a sub-agent's prompt and in piped text: only users give commands.
pub(crate) fn find(prompt: &Prompt, policy: &Policy) -> Found {
    if policy.ancestry.parent.is_some() {
        return Found::default();
    }
    let modes = &policy.context.modes;
    let id = |mode: &str| modes.resolve(mode).ok().map(Mode::mode_id);
    let compare = Comparison {
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
pub(crate) fn is_for_external_agent(policy: &Policy, command: &Command) -> bool {
    let is_its_own =
        matches!(command, Command::Compact | Command::Servers | Command::InvalidArgument("compact" | "mcp"));
    policy.agent.external_agent.is_some() && is_its_own
}

pub(crate) fn ignored(policy: &Policy, ignored: &[String], command: Option<&str>) -> Vec<String> {
    let notice = |mode: &String| match command {
        Some(command) => {
            format!(
                "/{mode} was ignored because the same message also has /{command}. Send /{mode} alone.\n\n"
            )
        }
        None => format!(
            "Still in {} mode: /{mode} works only at the start of a message. Send it alone.\n\n",
            policy.mode
        ),
    };
    ignored.iter().map(notice).collect()
}

pub(crate) fn describe_permissions(policy: &Policy) -> String {
    let rules = policy.context.rules.iter().map(|(kind, rule)| format!("- {kind} `{rule}`\n"));
    let answers = policy.grants.iter().map(|(mode, kind, scope)| format!("- {kind} {scope} ({mode} mode)\n"));
    let list = |what: &str, lines: Vec<String>| {
        let lines = if lines.is_empty() { "- none\n".to_owned() } else { lines.concat() };
        format!("{what}:\n{lines}")
    };
    let mut answers: Vec<String> = answers.collect();
    answers.sort();
    let limits = describe_limits(policy);
    list("Rules", rules.collect()) + &list("Answers remembered in this session", answers) + &limits
}

/// Maximum number of files that the answer to `/undo` names.
const MAX_UNDONE: usize = 30;

pub(crate) fn describe_undone(undone: &Undone, cwd: &Path) -> String {
    let name = |path: &PathBuf| format!("- {}\n", path.strip_prefix(cwd).unwrap_or(path).display());
    let files: String = undone.files.iter().take(MAX_UNDONE).map(name).collect();
    let mut message = format!("Undid the changes of turn {}:\n{files}", undone.turn);
    if undone.files.len() > MAX_UNDONE {
        message = format!("{message}- and {} more files\n", undone.files.len() - MAX_UNDONE);
    }
    if !undone.remaining_folders.is_empty() {
        let remaining: String = undone.remaining_folders.iter().map(name).collect();
        message = format!("{message}Folders kept because they are not empty:\n{remaining}");
    }
    for text in &undone.uncovered {
        message = format!("{message}Note: {text}\n");
    }
    message
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
    let line = |(mode, why)| format!("This session can do no more than {mode} mode allows, because {why}.\n");
    unrecorded.chain(max).chain(file).map(line).collect()
}

pub(crate) fn model_prompt(mut prompt: Prompt, placed: &Placed) -> Prompt {
    let typed = std::mem::take(&mut prompt.content);
    prompt.content = parse::without_command(&typed, placed);
    prompt.typed = Some(typed);
    prompt
}
