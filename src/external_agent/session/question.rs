//! The user's question about a change of a brokered agent: its title, its content and its answers.

use std::path::{Path, PathBuf};

use super::ExternalAgentHost;
use super::consents::{ConsentScope, folder};
use super::git_data;
use super::moved_content::MovedContent;
use crate::acp::{PermissionOption, PermissionOptionKind, ToolCallContent, ToolKind};
use crate::conversation::acp_updates::{text_content, tool_call_content};
use crate::conversation::content::ToolContent;
use crate::process::{ChangeKind, ChangeQuestion};
use crate::text;

/// The options of a question, in their order.
const OPTIONS: [(&str, PermissionOptionKind, Option<ConsentScope>); 7] = [
    ("allow_change", PermissionOptionKind::AllowOnce, Some(ConsentScope::Change)),
    ("allow_once", PermissionOptionKind::AllowOnce, Some(ConsentScope::Path)),
    ("allow_folder", PermissionOptionKind::AllowAlways, Some(ConsentScope::Folder)),
    ("allow_turn", PermissionOptionKind::AllowAlways, Some(ConsentScope::Turn)),
    ("allow_session", PermissionOptionKind::AllowAlways, Some(ConsentScope::Session)),
    ("reject_once", PermissionOptionKind::RejectOnce, None),
    (REJECT_TURN, PermissionOptionKind::RejectAlways, None),
];

pub(super) const REJECT_TURN: &str = "reject_turn";

/// A change, and what is known of it.
#[derive(Debug, Clone)]
pub(super) struct AskedQuestion {
    pub change: ChangeQuestion,
    pub content: Option<MovedContent>,
    /// The cache that the change is in. An answer covers all of it.
    pub cache: Option<PathBuf>,
    /// True if the change moves a temporary file that the user was not asked about.
    pub is_postponed: bool,
    /// Number of earlier questions about the change.
    pub earlier: usize,
}

/// The scope of the selected option. `None` if the option is no consent.
pub(super) fn consent(selected: &str) -> Option<ConsentScope> {
    OPTIONS.iter().find(|(id, ..)| *id == selected).and_then(|(.., scope)| *scope)
}

/// The path below the session's folder that contains it.
pub(super) fn inside<'a>(host: &ExternalAgentHost, path: &'a Path) -> Option<&'a Path> {
    let mut folders = [&host.cwd].into_iter().chain(&host.directories);
    folders.find_map(|folder| path.strip_prefix(folder).ok())
}

impl AskedQuestion {
    pub(super) fn title(&self, host: &ExternalAgentHost) -> String {
        format!("{} ({})", self.action(host), text::visible_line(&host.agent.id))
    }

    fn action(&self, host: &ExternalAgentHost) -> String {
        let name =
            |path: &Path| text::quoted_name(&path.strip_prefix(&host.cwd).unwrap_or(path).to_string_lossy());
        let question = &self.change;
        let path = name(&question.path);
        match (question.change, &question.to) {
            _ if let Some(cache) = &self.cache => format!("Change files in the cache {}", name(cache)),
            _ if let Some(command) = git_data::command(question) => {
                let line = question.executable.as_ref().map(|it| it.command_line.as_str());
                let line = text::shorten(line.unwrap_or_default(), MAX_COMMAND_LINE).into_owned();
                format!("Run {} in {}", text::quoted_name(&line), name(&command.folder))
            }
            (ChangeKind::Move, Some(to)) if self.is_postponed => match &self.content {
                Some(content) if !content.replaces => format!("Create {}", name(to)),
                _ => format!("Write {}", name(to)),
            },
            (ChangeKind::Create, _) => format!("Create {path}"),
            (ChangeKind::CreateFolder, _) => format!("Create the folder {path}"),
            (ChangeKind::Write, _) => format!("Write {path}"),
            (ChangeKind::Delete, _) => format!("Delete {path}"),
            (ChangeKind::DeleteFolder, _) => format!("Delete the folder {path}"),
            (ChangeKind::Move, Some(to)) => format!("Move {path} to {}", name(to)),
            (ChangeKind::Move, None) => format!("Move {path}"),
            (ChangeKind::Link, to) => {
                format!("Create the hard link {} to {path}", to.as_deref().map(name).unwrap_or_default())
            }
            (ChangeKind::Attributes, _) => format!("Change permissions, times or attributes of {path}"),
        }
    }

    pub(super) fn kind(&self) -> ToolKind {
        match self.change.change {
            ChangeKind::Delete | ChangeKind::DeleteFolder => ToolKind::Delete,
            ChangeKind::Move if !self.is_postponed => ToolKind::Move,
            _ => ToolKind::Edit,
        }
    }

    pub(super) fn content(&self, host: &ExternalAgentHost) -> Vec<ToolCallContent> {
        let ChangeQuestion { path, to, .. } = &self.change;
        let details =
            [self.intention(host)].into_iter().chain(self.effect(host)).collect::<Vec<_>>().join(" ");
        let mut content = vec![text_content(&details)];
        if let Some((old, new)) = self.texts()
            && self.cache.is_none()
            && old.as_deref().unwrap_or_default() != new
        {
            let diffs = ToolContent::diffs(to.as_ref().unwrap_or(path), old.as_deref(), new, 1);
            content.extend(diffs.iter().map(tool_call_content));
        }
        content
    }

    fn texts(&self) -> Option<&(Option<String>, String)> {
        self.content.as_ref().and_then(|content| content.texts.as_ref())
    }

    /// Names the program that makes the change.
    fn intention(&self, host: &ExternalAgentHost) -> String {
        let ChangeQuestion { path, program, executable, .. } = &self.change;
        let mut origin = Vec::new();
        if let Some(executable) = executable.as_ref().filter(|_| self.is_of_git()) {
            origin.push(text::quoted_name(&executable.path.to_string_lossy()));
        }
        if *program != host.agent.id {
            origin.push(format!("started by {}", text::visible_line(&host.agent.id)));
        }
        let origin = if origin.is_empty() { String::new() } else { format!(" ({})", origin.join(", ")) };
        let written = if self.is_postponed && self.cache.is_none() {
            let written = path.file_name().unwrap_or_default().to_string_lossy();
            format!(", which has written {},", text::quoted_name(&written))
        } else {
            String::new()
        };
        let action = text::uncapitalised(&self.action(host));
        format!("{}{origin}{written} wants to {action}.", text::quoted_name(program))
    }

    fn is_of_git(&self) -> bool {
        self.cache.is_none() && git_data::command(&self.change).is_some()
    }

    /// Sentences about the effect of the change, and its unknown part.
    fn effect(&self, host: &ExternalAgentHost) -> Option<String> {
        if self.cache.is_some() {
            return Some(
                "Programs keep copies there that they can load again. An answer covers the whole cache. Undo does not."
                    .into(),
            );
        }
        if self.is_of_git() {
            return Some(
                "An answer for this command covers what git keeps for itself: objects, references, their logs and the \
                 index, and what a new repository has. It covers no settings, hooks and other files."
                    .into(),
            );
        }
        let open = if host.is_terminal_program() { "" } else { ", also after this turn" };
        match self.change.change {
            ChangeKind::Create | ChangeKind::Write => Some(format!(
                "The new content is not known before the change. Until the program closes the file, it can write \
                 it{open}."
            )),
            ChangeKind::Move if self.texts().is_none() => {
                Some("The content is not shown: it is no text, or too large.".into())
            }
            ChangeKind::Delete if self.texts().is_none() => {
                Some("The lost content is not shown: it is no text, or too large.".into())
            }
            ChangeKind::Delete => {
                let is_empty =
                    self.texts().is_some_and(|(old, _)| old.as_deref().unwrap_or_default().is_empty());
                Some(
                    if is_empty { "The file is empty." } else { "The file has content, which is deleted." }
                        .into(),
                )
            }
            ChangeKind::DeleteFolder => Some("Only an empty folder can be deleted.".into()),
            ChangeKind::Link => Some("The file can then be written by both names.".into()),
            ChangeKind::Move | ChangeKind::CreateFolder | ChangeKind::Attributes => None,
        }
    }

    pub(super) fn options(&self, host: &ExternalAgentHost, mode: &str) -> Vec<PermissionOption> {
        let question = &self.change;
        let is_git = self.is_of_git();
        let covered = folder(question).filter(|_| !is_git && self.cache.is_none());
        let below = covered.map(|folder| match inside(host, folder) {
            Some(inside) if inside.as_os_str().is_empty() => "in this folder".to_owned(),
            Some(inside) => format!("below {}", text::quoted_name(&inside.to_string_lossy())),
            None => format!("below {}", text::quoted_name(&folder.to_string_lossy())),
        });
        let is_program = host.is_terminal_program();
        let during = if is_program { "until the program ends" } else { "this turn" };
        let options = OPTIONS.iter().filter_map(|(id, kind, scope)| {
            let name = match scope {
                // In an editor, a turn is short, and clients choose among the options by their kinds.
                Some(ConsentScope::Change) if !is_program || is_git || self.cache.is_some() => return None,
                Some(ConsentScope::Change) => "Allow (this change only)".to_owned(),
                Some(ConsentScope::Path) if self.cache.is_some() => format!("Allow (this cache, {during})"),
                Some(ConsentScope::Path) if is_git => "Allow (git's own data, this command)".to_owned(),
                Some(ConsentScope::Path) => format!("Allow (this file, {during})"),
                Some(ConsentScope::Folder) => format!("Allow all changes {} ({during})", below.as_ref()?),
                Some(ConsentScope::Turn) => format!("Allow all changes ({during})"),
                // The program is its only turn.
                Some(ConsentScope::Session) if is_program => return None,
                Some(ConsentScope::Session) => format!("Allow all changes (this session, {mode} mode)"),
                None if *id == REJECT_TURN => format!("Reject all changes ({during})"),
                None => "Reject".to_owned(),
            };
            Some(PermissionOption::new(*id, name, *kind))
        });
        options.collect()
    }
}

/// Longest command line in a title, in bytes.
const MAX_COMMAND_LINE: usize = 120;
