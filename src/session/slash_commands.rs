//! Runs slash commands, also during a turn: a mode change does not wait for the model.

use std::path::PathBuf;

use futures_util::future::BoxFuture;

use super::SessionContext;
use super::actor::Actor;
use super::checkpoint::Undoer;
use super::command::{self, Command, Comparison, Found, Placed, Vocabulary};
use super::handle::{CommandEnd, Prompt, Undone};
use crate::acp::{AvailableCommandsUpdate, MessageId, SessionModeId, SessionUpdate, StopReason};
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::mode::Mode;
use crate::permission::compare;
use crate::store::ModeSource;

impl Actor {
    pub(super) async fn announce_commands(&mut self, answered: BoxFuture<'static, ()>) {
        answered.await;
        self.send_commands();
        self.report_interruptions();
        // Starts an external agent, so that its commands and options appear before the first prompt.
        self.ready_external_agent(None).await;
    }

    /// Lists an external agent's commands last. They never replace Modegate's.
    pub(super) fn send_commands(&self) {
        let mut commands = command::available(&self.context.modes, &self.context.commands);
        if self.policy.agent.external_agent.is_some() {
            commands.retain(|command| !["compact", "mcp"].contains(&command.name.as_str()));
        }
        let agent_commands =
            self.external_agent.commands().iter().filter(|it| commands.iter().all(|own| own.name != it.name));
        let agent_commands: Vec<_> = agent_commands.cloned().collect();
        commands.extend(agent_commands);
        let update = SessionUpdate::AvailableCommandsUpdate(AvailableCommandsUpdate::new(commands));
        self.log.send(update, None);
    }

    pub(super) fn is_local_command(&self, prompt: &Prompt) -> bool {
        self.commands_in(prompt).command.is_some_and(|placed| {
            if self.is_external_agent_command(&placed.command) {
                return false;
            }
            match &placed.command {
                Command::Help
                | Command::ShowMode
                | Command::Permissions
                | Command::Servers
                | Command::InvalidArgument(_)
                | Command::Undo(_) => true,
                Command::Prompt(_) | Command::Compact => false,
                Command::SetMode { .. } => command::without_command(&prompt.content, &placed).is_empty(),
            }
        })
    }

    pub(super) async fn run_command(&mut self, mut prompt: Prompt) -> Option<Prompt> {
        let Found { command: found_command, ignored } = self.commands_in(&prompt);
        let has_command = found_command.is_some();
        let Some(placed) = found_command.filter(|placed| !self.is_external_agent_command(&placed.command))
        else {
            let notices = self.ignored_commands(&ignored, None);
            self.notes.for_user.extend(notices);
            if !has_command {
                self.notes.for_user.extend(self.misspelt_command(&prompt));
            }
            return Some(prompt);
        };
        let command = &placed.command;
        let mut has_failed = matches!(command, Command::InvalidArgument(_));
        let mut text = match command {
            Command::Help => command::help(&self.context.modes, &self.context.commands),
            Command::Prompt(_) | Command::Compact => {
                prompt.compacts = *command == Command::Compact;
                let notices = self.ignored_commands(&ignored, None);
                self.notes.for_user.extend(notices);
                return Some(model_prompt(prompt, &placed));
            }
            Command::ShowMode => self.describe_mode(),
            Command::Permissions => self.describe_permissions(),
            Command::Servers => self.describe_servers(),
            Command::InvalidArgument(name) => command::usage(name),
            Command::Undo(turn) => match self.undo(*turn, Undoer::Session).await {
                Ok(undone) => self.describe_undone(&undone),
                Err(error) => {
                    has_failed = true;
                    format!("/undo: {}.\n", error.to_string().trim_end_matches('.'))
                }
            },
            Command::SetMode { mode, .. } => {
                let mode = SessionModeId::new(mode.as_str());
                match self.change_mode(&mode, ModeSource::Command).await {
                    Ok(_) => self.describe_mode(),
                    Err(error @ AgentError::InvalidParams { .. }) => {
                        has_failed = true;
                        format!("{error}.\n")
                    }
                    Err(error) => {
                        let _ = prompt.reply.send(Err(error));
                        return None;
                    }
                }
            }
        };
        let prompt = model_prompt(prompt, &placed);
        let found_command = match &placed.command {
            Command::SetMode { mode, .. } if !has_failed => Some(mode.as_str()),
            _ => None,
        };
        let notices = self.ignored_commands(&ignored, found_command);
        if found_command.is_some() && !prompt.content.is_empty() {
            self.notes.for_user.extend(notices);
            return Some(prompt);
        }
        text.extend(notices);
        let Prompt { typed, reply, .. } = prompt;
        let message_id = MessageId::new(format!("msg_c{}_0", self.log.conversation.answered + 1));
        let content = Vec::new();
        self.log.record(SessionEvent::UserMessage { message_id, content, typed }, None).await;
        let message_id = MessageId::new(format!("msg_c{}", self.log.conversation.answered));
        let command = CommandEnd { answer: message_id.clone(), has_failed };
        self.log.record_notice(message_id, text).await;
        self.log.save().await;
        self.reply(reply, Ok(StopReason::EndTurn), Some(command));
        None
    }

    /// Ignores commands in a sub-agent's prompt: a model wrote it, and only users give commands.
    fn commands_in(&self, prompt: &Prompt) -> Found {
        if self.policy.ancestry.parent.is_some() {
            return Found::default();
        }
        let SessionContext { modes, unsupported_modes: unsupported, commands, .. } = &*self.context;
        let id = |mode: &str| modes.resolve(mode).ok().map(Mode::mode_id);
        let ceilings = |mode: &str| modes.ceilings(mode).unwrap_or_default();
        let compare = Comparison {
            allows_more: &|mode, other| match (id(mode), id(other)) {
                (Some(mode), Some(other)) => compare::allows_more(&ceilings(&mode.0), &ceilings(&other.0)),
                (known, _) => known.is_none(),
            },
            widens: &|mode| id(mode).is_none_or(|mode| self.policy.would_widen(&mode)),
            is_on: &|mode| id(mode).is_some_and(|mode| mode == self.policy.mode),
        };
        command::find(
            &prompt.content,
            Vocabulary { modes, unsupported_modes: unsupported, own: commands },
            &compare,
        )
    }

    /// An external agent has commands of its own, and no user writes the prompts of sub-agents.
    fn misspelt_command(&self, prompt: &Prompt) -> Option<String> {
        if self.policy.ancestry.parent.is_some() || self.policy.agent.external_agent.is_some() {
            return None;
        }
        let SessionContext { modes, unsupported_modes: unsupported, commands, .. } = &*self.context;
        let words = Vocabulary { modes, unsupported_modes: unsupported, own: commands };
        let command::Misspelt { word, nearest } = command::misspelt(&prompt.content, words)?;
        Some(format!("There is no command /{word} (did you mean /{nearest}?). The model got the text.\n\n"))
    }

    /// True if the command is left to this session's external agent.
    fn is_external_agent_command(&self, command: &Command) -> bool {
        let is_its_own = matches!(
            command,
            Command::Compact | Command::Servers | Command::InvalidArgument("compact" | "mcp")
        );
        self.policy.agent.external_agent.is_some() && is_its_own
    }

    fn ignored_commands(&self, ignored: &[String], command: Option<&str>) -> Vec<String> {
        let notice = |mode: &String| match command {
            Some(command) => {
                format!(
                    "/{mode} was ignored because the same message also has /{command}. Send /{mode} alone.\n\n"
                )
            }
            None => format!(
                "Still in {} mode: /{mode} works only at the start of a message. Send it alone.\n\n",
                self.policy.mode
            ),
        };
        ignored.iter().map(notice).collect()
    }

    fn describe_permissions(&self) -> String {
        let rules = self.context.rules.iter().map(|(kind, rule)| format!("- {kind} `{rule}`\n"));
        let answers =
            self.policy.grants.iter().map(|(mode, kind, scope)| format!("- {kind} {scope} ({mode} mode)\n"));
        let list = |what: &str, lines: Vec<String>| {
            let lines = if lines.is_empty() { "- none\n".to_owned() } else { lines.concat() };
            format!("{what}:\n{lines}")
        };
        let mut answers: Vec<String> = answers.collect();
        answers.sort();
        let limits = self.describe_limits();
        list("Rules", rules.collect()) + &list("Answers remembered in this session", answers) + &limits
    }

    fn describe_undone(&self, undone: &Undone) -> String {
        let cwd = self.workspace.cwd();
        let name = |path: &PathBuf| format!("- {}\n", path.strip_prefix(cwd).unwrap_or(path).display());
        let files: String = undone.files.iter().map(name).collect();
        let mut message = format!("Undid the changes of turn {}:\n{files}", undone.turn);
        if !undone.remaining_folders.is_empty() {
            let remaining: String = undone.remaining_folders.iter().map(name).collect();
            message = format!("{message}Folders kept because they are not empty:\n{remaining}");
        }
        for text in &undone.uncovered {
            message = format!("{message}Note: {text}\n");
        }
        message
    }

    fn describe_mode(&self) -> String {
        let mode = self.context.modes.resolve(&self.policy.mode.0);
        let text = mode.map_or_else(
            |_| "The current mode is unknown.\n".into(),
            |mode| format!("Mode: {}. {}.\n", mode.id, mode.description),
        );
        text + &self.describe_limits()
    }

    fn describe_limits(&self) -> String {
        let unrecorded = self
            .policy
            .unrecorded_modes
            .iter()
            .map(|mode| (mode.0.to_string(), "a mode change could not be recorded"));
        let max = self.context.max_modes.first().map(|mode| (mode.id.clone(), "--max-mode is set"));
        let file = self.context.fallback_ceiling.as_ref();
        let file = file.map(|mode| (mode.id.clone(), "a modes file, or the default mode, is invalid"));
        let line =
            |(mode, why)| format!("This session can do no more than {mode} mode allows, because {why}.\n");
        unrecorded.chain(max).chain(file).map(line).collect()
    }
}

fn model_prompt(mut prompt: Prompt, placed: &Placed) -> Prompt {
    let typed = std::mem::take(&mut prompt.content);
    prompt.content = command::without_command(&typed, placed);
    prompt.typed = Some(typed);
    prompt
}
