//! The whole output of a command that is over, for callers that compare it. The model and clients get less.

use std::path::PathBuf;

use super::{Job, JobMessage, JobSnapshot};
use crate::workspace::OutputFile;

/// Maximum bytes of [`CommandOutput::text`].
const MAX_OUTPUT: u64 = 512 * 1024;

/// Output without the notes about the command's end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandOutput {
    /// The first [`MAX_OUTPUT`] bytes.
    pub text: String,
    /// The file with all of it, if it is long.
    pub file: Option<PathBuf>,
}

impl Job {
    /// `snapshot` is the last one.
    pub async fn whole_output(&self, snapshot: &JobSnapshot) -> CommandOutput {
        let file = self.ask(JobMessage::OutputFile).await.flatten();
        let mut whole = None;
        if let Some(file) = file.clone() {
            let reading = tokio::task::spawn_blocking(move || OutputFile::read_start(&file, MAX_OUTPUT));
            whole = reading.await.unwrap_or_default();
        }
        CommandOutput { text: whole.unwrap_or_else(|| snapshot.output.clone()), file }
    }
}
