//! Obeying slash commands, also while a turn runs: a mode change does not wait for the model.

use std::path::PathBuf;

use futures_util::future::BoxFuture;

use super::Shared;
use super::actor::Actor;
use super::checkpoint::Undoer;
use super::command::{self, Command};
use super::handle::{Prompt, Undone};
use crate::acp::{AvailableCommandsUpdate, MessageId, SessionModeId, SessionUpdate, StopReason};
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::store::ModeSource;

impl Actor {
    /// Tells the client of the commands, once it knows the session.
    pub(super) async fn greet(&mut self, answered: BoxFuture<'static, ()>) {
        answered.await;
        self.show_commands();
        self.show_interruptions();
        // What it can do is shown as soon as it says so.
        self.ready_outer(None).await;
    }

    /// Tells the client of the commands there are now, those of somebody else's agent last.
    pub(super) fn show_commands(&self) {
        let mut commands = command::available(&self.shared.modes, &self.shared.commands);
        if self.session.agent.harness.is_some() {
            commands.retain(|command| !["compact", "mcp"].contains(&command.name.as_str()));
        }
        let its = self.outer.commands.iter().filter(|it| commands.iter().all(|own| own.name != it.name));
        let its: Vec<_> = its.cloned().collect();
        commands.extend(its);
        let update = SessionUpdate::AvailableCommandsUpdate(AvailableCommandsUpdate::new(commands));
        self.client.update(self.session.id.clone(), update.into(), None);
    }

    /// Whether a prompt is a slash command with nothing for the model behind it.
    pub(super) fn is_for_us_alone(&self, prompt: &Prompt) -> bool {
        self.command_of(prompt).is_some_and(|command| {
            if self.is_its_own(&command) {
                return false;
            }
            match &command {
                Command::Help
                | Command::SayMode
                | Command::Permissions
                | Command::Servers
                | Command::Undo(_) => true,
                Command::Prompt(_) | Command::Compact => false,
                Command::SetMode { .. } => command::without_command(&prompt.content, &command).is_empty(),
            }
        })
    }

    /// Obeys a slash command, also while a turn runs. Returns the prompt that is left for the model, if one is.
    pub(super) async fn obey(&mut self, mut prompt: Prompt) -> Option<Prompt> {
        let Some(command) = self.command_of(&prompt) else { return Some(prompt) };
        if self.is_its_own(&command) {
            return Some(prompt);
        }
        let mut refused = false;
        let said = match &command {
            Command::Help => command::help(&self.shared.modes, &self.shared.commands),
            Command::Prompt(_) | Command::Compact => {
                prompt.compacts = command == Command::Compact;
                return Some(for_the_model(prompt, &command));
            }
            Command::SayMode => self.say_mode(),
            Command::Permissions => self.say_permissions(),
            Command::Servers => self.say_servers(),
            Command::Undo(turn) => match self.undo(*turn, Undoer::Session).await {
                Ok(undone) => self.say_undone(&undone),
                Err(error) => format!("/undo: {error}.\n"),
            },
            Command::SetMode { mode, .. } => {
                let mode = SessionModeId::new(mode.as_str());
                match self.change_mode(&mode, ModeSource::Command).await {
                    Ok(_) => self.say_mode(),
                    Err(error @ AgentError::InvalidParams { .. }) => {
                        refused = true;
                        format!("{error}.\n")
                    }
                    Err(error) => {
                        let _ = prompt.reply.send(Err(error));
                        return None;
                    }
                }
            }
        };
        let prompt = for_the_model(prompt, &command);
        if matches!(command, Command::SetMode { .. }) && !refused && !prompt.content.is_empty() {
            return Some(prompt);
        }
        let Prompt { typed, reply, .. } = prompt;
        let message_id = MessageId::new(format!("msg_c{}_0", self.session.answered + 1));
        let content = Vec::new();
        self.record(SessionEvent::UserMessage { message_id, content, typed }, None).await;
        let message_id = MessageId::new(format!("msg_c{}", self.session.answered));
        self.record(SessionEvent::Notice { message_id, text: said }, None).await;
        self.save().await;
        self.tell(reply, Ok(StopReason::EndTurn));
        None
    }

    /// The command that a prompt is. What an agent is told to do for another is none: a model wrote it, and users command.
    fn command_of(&self, prompt: &Prompt) -> Option<Command> {
        let Shared { modes, impossible, commands, .. } = &self.shared;
        let is_users = self.session.lineage.parent.is_none();
        is_users.then(|| command::parse(&prompt.content, modes, impossible, commands)).flatten()
    }

    /// Whether a command is for somebody else's agent that answers here: what it is about is the agent's.
    fn is_its_own(&self, command: &Command) -> bool {
        self.session.agent.harness.is_some() && matches!(command, Command::Compact | Command::Servers)
    }

    fn say_permissions(&self) -> String {
        let rules = self.shared.rules.iter().map(|(kind, rule)| format!("- {kind} `{rule}`\n"));
        let answers =
            self.session.grants.iter().map(|(mode, kind, scope)| format!("- {kind} {scope} ({mode} mode)\n"));
        let list = |what: &str, lines: Vec<String>| {
            let lines = if lines.is_empty() { "- none\n".to_owned() } else { lines.concat() };
            format!("{what}:\n{lines}")
        };
        let mut answers: Vec<String> = answers.collect();
        answers.sort();
        list("Rules", rules.collect()) + &list("Answers remembered in this session", answers)
    }

    fn say_undone(&self, undone: &Undone) -> String {
        let cwd = self.session.workspace.cwd();
        let name = |path: &PathBuf| format!("- {}\n", path.strip_prefix(cwd).unwrap_or(path).display());
        let files: String = undone.files.iter().map(name).collect();
        let mut said = format!("Put back, as before turn {}:\n{files}", undone.turn);
        if !undone.left.is_empty() {
            let left: String = undone.left.iter().map(name).collect();
            said = format!("{said}Folders that stay, because something lies in them:\n{left}");
        }
        for text in &undone.uncovered {
            said = format!("{said}Not covered: {text}\n");
        }
        said
    }

    fn say_mode(&self) -> String {
        let mode = self.shared.modes.resolve(&self.session.mode.0);
        let mut said = mode.map_or_else(
            |_| "No mode is known.\n".into(),
            |mode| format!("Mode: {}. {}.\n", mode.id, mode.description),
        );
        let held =
            self.session.held.iter().map(|mode| (mode.0.to_string(), "a change that could not be recorded"));
        let max = self.shared.max_modes.first().map(|mode| (mode.id.clone(), "--max-mode"));
        let file =
            self.shared.held_to.as_ref().map(|mode| (mode.id.clone(), "a file of modes that cannot be used"));
        for (mode, why) in held.chain(max).chain(file) {
            said = format!("{said}It can do no more than {mode} mode allows: {why}.\n");
        }
        said
    }
}

/// What is left of a prompt for the model, and what the user typed.
fn for_the_model(mut prompt: Prompt, command: &Command) -> Prompt {
    let typed = std::mem::take(&mut prompt.content);
    prompt.content = command::without_command(&typed, command);
    prompt.typed = Some(typed);
    prompt
}
