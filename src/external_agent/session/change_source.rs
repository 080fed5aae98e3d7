//! The source of an external agent's changes: its host, the process that makes them, and the channel for answers of
//! hooks and users. Describes a change as a call for the permission rules. Decides nothing, and sends nothing.

use std::path::{Path, PathBuf};

use super::message::{AgentMessage, AgentOutput};
use super::{ExternalAgentHost, question};
use crate::lazy_channel::LazyChannel;
use crate::permission::{self, CallFacts, CallSource, Target};
use crate::process::program::Program;
use crate::process::{ChangeKind, ChangeQuestion};

pub(super) struct ChangeSource<'a> {
    pub host: &'a ExternalAgentHost,
    pub start: u64,
    /// `None` if no process runs.
    pub program: Option<&'a Program>,
    pub messages: &'a LazyChannel<AgentMessage>,
}

impl ChangeSource<'_> {
    pub(super) fn answer(&self, number: u64, allows: bool) -> Option<AgentOutput> {
        Some(AgentOutput::AnswerChange { program: self.program?.clone(), number, allows })
    }

    pub(super) fn facts(&self, question: &ChangeQuestion, unrecorded: &[PathBuf]) -> CallFacts {
        let tool = match question.change {
            ChangeKind::Delete | ChangeKind::DeleteFolder => "delete_file",
            ChangeKind::Move => "move_file",
            ChangeKind::Create
            | ChangeKind::CreateFolder
            | ChangeKind::Write
            | ChangeKind::Link
            | ChangeKind::Attributes => "edit_file",
        };
        let ends = question.ends().map(Path::to_owned);
        let files = question.files.iter().flat_map(|file| question.ends().map(move |end| end.join(file)));
        let targets = ends.chain(files).map(|path| {
            let known = unrecorded.iter().any(|folder| path.starts_with(folder)).then_some(path.as_path());
            let inside = question::inside(self.host, &path).or(known).map(Path::to_owned);
            Target { path, inside }
        });
        CallFacts {
            source: CallSource::Broker,
            targets: targets.collect(),
            ..CallFacts::of_tool(tool, permission::Effect::Edit)
        }
    }
}
