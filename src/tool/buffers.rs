//! Text files as the tools see them: as the editor shows them where it shows something unsaved, else as they stand on the
//! disk.

use std::collections::HashMap;
use std::path::PathBuf;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::editor::{Editor, Shown};
use super::text::{BOM, MAX_FILE, TextFile, is_text};
use super::{ToolError, blocking};
use crate::permission::Target;

/// What the editor showed of a call's files when the call began.
#[derive(Debug, Default)]
pub struct Buffers(HashMap<PathBuf, Shown>);

impl Buffers {
    /// Asks the editor for every target that is a text file. Not for one that is not there: editors go on showing what was
    /// deleted. Cancelled, it knows nothing.
    ///
    /// # Errors
    /// Looking at the disk failed unexpectedly.
    pub async fn of(
        editor: &Editor,
        targets: &[Target],
        cancel: &CancellationToken,
    ) -> Result<Self, ToolError> {
        if !editor.can().reads {
            return Ok(Self::default());
        }
        let targets = targets.to_vec();
        let asked = blocking(move || Ok(targets.into_iter().filter(is_text).collect::<Vec<_>>())).await?;
        let ask = async |target: Target| (editor.shown(&target.path).await, target.path);
        tokio::select! {
            shown = join_all(asked.into_iter().map(ask)) => {
                Ok(Self(shown.into_iter().map(|(shown, path)| (path, shown)).collect()))
            }
            () = cancel.cancelled() => Ok(Self::default()),
        }
    }

    /// Reads a file that was resolved.
    ///
    /// # Errors
    /// It is nowhere, or no text.
    pub fn read(&self, target: &Target) -> Result<TextFile, ToolError> {
        let saved = TextFile::read(target)?;
        let Some(Shown::Text(shown)) = self.0.get(&target.path) else { return Ok(saved) };
        if shown.len() as u64 > MAX_FILE {
            let path = target.path.display();
            let length = shown.len();
            return Err(ToolError::Failed(format!(
                "{path} has {length} bytes in the editor; at most {MAX_FILE} are read."
            )));
        }
        Ok(saved.shown_as(shown))
    }

    /// Reads a file that is to be changed.
    ///
    /// # Errors
    /// As for [`Self::read`]; and whether the editor has unsaved changes is not known, which would be lost.
    pub fn read_to_change(&self, target: &Target) -> Result<TextFile, ToolError> {
        if let Some(Shown::Untold(why)) = self.0.get(&target.path) {
            let path = target.path.display();
            return Err(ToolError::Failed(format!(
                "{path}: the editor did not say what it shows of it ({why}). Nothing is changed."
            )));
        }
        self.read(target)
    }

    /// What the model is told of a file that it reads, beside its text.
    pub fn note(&self, target: &Target) -> Option<String> {
        match self.0.get(&target.path) {
            Some(Shown::Untold(why)) => {
                Some(format!("[This is what is saved: the editor did not say what it shows ({why}).]"))
            }
            Some(Shown::Text(_) | Shown::Nothing) | None => None,
        }
    }

    /// A content as the editor takes it: without the byte order mark, where the editor hides it.
    pub fn for_editor(&self, target: &Target, content: &str) -> String {
        match self.0.get(&target.path) {
            Some(Shown::Text(shown)) if !shown.starts_with(BOM) => content.trim_start_matches(BOM).to_owned(),
            _ => content.to_owned(),
        }
    }
}
