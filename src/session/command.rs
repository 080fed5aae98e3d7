//! Slash commands: prompts that are for Modegate and not for the model. Pure.
//!
//! `/plan`, `/code` and `/ask` set the mode; text behind them is then the prompt. `/mode` says or sets the mode, `/help`
//! lists the commands. A command that a user wrote ([`super::user_command`]) is a prompt. Anything else that begins with a slash is an ordinary prompt.

use super::user_command::UserCommand;
use crate::acp::{AvailableCommand, AvailableCommandInput, ContentBlock, UnstructuredCommandInput};
use crate::mode::{Mode, Modes, canonical};

/// The names of Modegate's own commands, besides those of the modes.
const OWN: [&str; 6] = ["mode", "permissions", "mcp", "compact", "undo", "help"];

/// What a prompt asks of Modegate itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Set this mode; what stands behind it, if anything, is the prompt.
    SetMode {
        /// The mode's id, as it was written.
        mode: String,
        /// The prompt behind it, possibly empty.
        rest: String,
    },
    /// Say which mode is on.
    SayMode,
    /// List the rules and the remembered answers.
    Permissions,
    /// Say how the MCP servers stand.
    Servers,
    /// Put back what a turn changed: this one, or the last that changed something.
    Undo(Option<u64>),
    /// Summarise the conversation, to make room.
    Compact,
    /// Send this prompt: a command that a user wrote.
    Prompt(String),
    /// List the commands.
    Help,
}

/// The commands as a client lists them.
pub fn available(modes: &Modes, own: &[UserCommand]) -> Vec<AvailableCommand> {
    let input = |hint: &str| AvailableCommandInput::Unstructured(UnstructuredCommandInput::new(hint));
    let set = |mode: &Mode| {
        let text = format!("Switch to {} mode: {}", mode.id, mode.description);
        AvailableCommand::new(mode.id.clone(), text).input(input("a prompt to go on with (optional)"))
    };
    let ids: Vec<_> = modes.iter().map(|mode| mode.id.as_str()).collect();
    let mut commands: Vec<_> = modes.iter().map(set).collect();
    commands.push(
        AvailableCommand::new("mode", "Say which mode is on, or switch").input(input(&ids.join(" | "))),
    );
    commands
        .push(AvailableCommand::new("permissions", "List the rules and the remembered answers that hold"));
    commands.push(AvailableCommand::new("mcp", "List the MCP servers of this session and how they stand"));
    commands
        .push(AvailableCommand::new("compact", "Summarise the older part of the conversation, to make room"));
    let undo = AvailableCommand::new("undo", "Put back the files that the last turn, or turn N, changed");
    commands.push(undo.input(input("the number of a turn (optional)")));
    commands.push(AvailableCommand::new("help", "List these commands"));
    commands.extend(own.iter().map(|own| {
        let command = AvailableCommand::new(own.name.clone(), own.description.clone());
        command.input(own.hint.as_deref().map(input))
    }));
    commands
}

/// Reads a prompt; `None` if it is for the model as it stands.
///
/// `impossible` are modes that there are, and that are not possible here: a command for one is no prompt.
pub fn parse(
    content: &[ContentBlock],
    modes: &Modes,
    impossible: &[String],
    own: &[UserCommand],
) -> Option<Command> {
    let Some(ContentBlock::Text(text)) = content.first() else { return None };
    let text = text.text.trim();
    let (name, rest) = text.strip_prefix('/')?.split_once(char::is_whitespace).unwrap_or((&text[1..], ""));
    let rest = rest.trim().to_owned();
    match name {
        "help" => Some(Command::Help),
        "permissions" => Some(Command::Permissions),
        "mcp" => Some(Command::Servers),
        "compact" => Some(Command::Compact),
        "undo" if rest.is_empty() => Some(Command::Undo(None)),
        "undo" => rest.parse().ok().map(|turn| Command::Undo(Some(turn))),
        "mode" if rest.is_empty() => Some(Command::SayMode),
        "mode" => Some(Command::SetMode { mode: rest, rest: String::new() }),
        // What stands behind a mode may be a command that the user wrote.
        name if modes.resolve(name).is_ok() || impossible.contains(&canonical(name)) => {
            let rest = written(&rest, own).unwrap_or(rest);
            Some(Command::SetMode { mode: name.to_owned(), rest })
        }
        _ => written(text, own).map(Command::Prompt),
    }
}

/// The prompt of a command that a user wrote, if the text is one.
fn written(text: &str, own: &[UserCommand]) -> Option<String> {
    let text = text.strip_prefix('/')?;
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    own.iter().find(|own| own.name == name).map(|own| own.prompt(rest.trim()))
}

/// Whether a name is taken: a command of Modegate's own, or a mode.
pub fn is_taken(name: &str, modes: &Modes) -> bool {
    OWN.contains(&name) || modes.resolve(name).is_ok()
}

/// The prompt without the command before it: what the model sees. Empty if nothing is left.
pub fn without_command(content: &[ContentBlock], command: &Command) -> Vec<ContentBlock> {
    let rest = match command {
        Command::SetMode { rest, .. } => rest.as_str(),
        Command::Prompt(text) => text.as_str(),
        Command::SayMode
        | Command::Help
        | Command::Permissions
        | Command::Servers
        | Command::Compact
        | Command::Undo(_) => "",
    };
    let first = (!rest.is_empty()).then(|| ContentBlock::from(rest));
    first.into_iter().chain(content.iter().skip(1).cloned()).collect()
}

/// What `/help` answers.
pub fn help(modes: &Modes, own: &[UserCommand]) -> String {
    let line = |command: &AvailableCommand| format!("- `/{}`: {}\n", command.name, command.description);
    available(modes, own).iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: impl Into<Option<Command>>) {
        let own = UserCommand::parse("review", "Review $ARGUMENTS.").unwrap();
        assert_eq!(
            parse(&[text.into()], &Modes::built_in(), &["gone".into()], &[own]),
            expected.into(),
            "{text}"
        );
    }

    #[test]
    fn commands_are_told_from_prompts() {
        let set = |mode: &str, rest: &str| Some(Command::SetMode { mode: mode.into(), rest: rest.into() });
        check("/plan", set("plan", ""));
        check("/Plan", set("Plan", ""));
        check("/architect x", set("architect", "x"));
        check(" /code  do it\nnow ", set("code", "do it\nnow"));
        check("/Gone x", set("Gone", "x"));
        check("/mode", Some(Command::SayMode));
        check("/mode plan", set("plan", ""));
        check("/help", Some(Command::Help));
        check("/mcp", Some(Command::Servers));
        check("/undo", Some(Command::Undo(None)));
        check("/undo 3", Some(Command::Undo(Some(3))));
        check("/undo that", None);
        check("/compact", Some(Command::Compact));
        check("/review it all ", Some(Command::Prompt("Review it all.".into())));
        check("/reviews", None);
        check("/plan /review it", set("plan", "Review it."));
        check("/plan /help", set("plan", "/help"));
        for prompt in ["/etc/hosts is odd", "/planning", "plan", "/", "", "//plan"] {
            check(prompt, None);
        }
    }
}
