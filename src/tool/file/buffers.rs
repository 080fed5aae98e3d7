//! Reads text files as the editor shows them if it has unsaved text, else from the disk.

use std::collections::HashMap;
use std::path::PathBuf;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::disk_texts::{DiskTexts, EditorText};
use super::last_seen::{LastSeen, NewLines};
use super::text_file::{BOM, MAX_FILE, TextFile, read_utf8};
use crate::permission::Target;
use crate::tool::client_io::{ClientIo, Shown};
use crate::tool::{ToolError, blocking};
use crate::workspace::ContentHash;

#[derive(Debug, Clone, Default)]
pub(in crate::tool) struct Buffers {
    shown: HashMap<PathBuf, Shown>,
    disk_texts: DiskTexts,
    last_seen: HashMap<PathBuf, LastSeen>,
}

impl Buffers {
    /// Asks the editor for every target that is a UTF-8 file, but not for missing files, which editors keep
    /// showing after a deletion. Returns no texts if cancelled.
    pub(super) async fn of(
        client_io: &ClientIo,
        targets: &[Target],
        cancel: &CancellationToken,
    ) -> Result<Self, ToolError> {
        Self::ask(client_io, targets, cancel, |_| false).await
    }

    /// As [`Self::of`], for files to change. Includes missing files, which the editor may never have saved.
    pub(in crate::tool) async fn to_change(
        client_io: &ClientIo,
        targets: &[Target],
        cancel: &CancellationToken,
    ) -> Result<Self, ToolError> {
        Self::ask(client_io, targets, cancel, is_new).await
    }

    async fn ask(
        client_io: &ClientIo,
        targets: &[Target],
        cancel: &CancellationToken,
        is_asked_without_text: impl Fn(&Target) -> bool + Send + 'static,
    ) -> Result<Self, ToolError> {
        if !client_io.capabilities().reads {
            return Ok(Self::default());
        }
        let (mut requested, disk_texts) = (targets.to_vec(), client_io.disk_texts().clone());
        let held_texts = disk_texts.clone();
        let requested = blocking(move || {
            // The editor may answer with this text after another writer has changed the disk.
            requested.retain(|target| match read_utf8(target) {
                Some(file) => {
                    held_texts.held(&target.path, &file.text);
                    true
                }
                None => is_asked_without_text(target),
            });
            Ok(requested)
        })
        .await?;
        let requests = requested
            .into_iter()
            .map(async |Target { path, .. }| (path.clone(), client_io.shown(&path).await));
        tokio::select! {
            shown = join_all(requests) => {
                Ok(Self { shown: shown.into_iter().collect(), disk_texts, last_seen: HashMap::new() })
            }
            () = cancel.cancelled() => Ok(Self::default()),
        }
    }

    /// Lets [`Self::new_lines`] tell how files have changed since the model saw them.
    pub(in crate::tool) fn with_last_seen(
        mut self,
        targets: &[Target],
        last_seen: &[Option<LastSeen>],
    ) -> Self {
        let seen = targets.iter().zip(last_seen);
        self.last_seen =
            seen.filter_map(|(target, seen)| Some((target.path.clone(), seen.clone()?))).collect();
        self
    }

    /// Reads the text of a file as the user has it. The other result judges a text of the editor that differs from the
    /// disk.
    pub(in crate::tool) fn read(&self, target: &Target) -> Result<(TextFile, Option<EditorText>), ToolError> {
        let saved = TextFile::read(target)?;
        let Some(Shown::Text(shown)) = self.shown.get(&target.path) else { return Ok((saved, None)) };
        if shown.len() as u64 > MAX_FILE {
            let path = target.path.display();
            let length = shown.len();
            return Err(ToolError::Failed(format!(
                "{path} has {length} bytes in the editor; at most {MAX_FILE} are read."
            )));
        }
        let Some(file) = saved.shown_as(shown) else {
            self.disk_texts.agreed(&target.path, &saved.text);
            return Ok((saved, None));
        };
        let editor_text = self.disk_texts.judge(&target.path, shown, &saved.text);
        let file = if editor_text == EditorText::Unsaved { file } else { saved };
        Ok((file, Some(editor_text)))
    }

    /// Returns an error if the editor may have unsaved text, which a write would lose.
    pub(in crate::tool) fn read_to_change(&self, target: &Target) -> Result<TextFile, ToolError> {
        if let Some(why) = self.unknown(target) {
            return Err(unsaved_text_unknown(target, &why));
        }
        match self.read(target)? {
            (_, Some(EditorText::Unclear)) => Err(editor_text_unclear(target)),
            (file, _) => Ok(file),
        }
    }

    /// As [`Self::read_to_change`], for text that is written back.
    pub(in crate::tool) fn read_to_edit(&self, target: &Target, name: &str) -> Result<TextFile, ToolError> {
        let file = self.read_to_change(target)?;
        let why = "is neither UTF-8 nor UTF-16 nor Latin-1 and is not changed as text.";
        if file.lossy {
            return Err(ToolError::Failed(format!("{name} {why}")));
        }
        Ok(file)
    }

    /// As [`Self::read_to_edit`], for text that is replaced as a whole. Returns an error if it has changed since the
    /// model saw it.
    pub(in crate::tool) fn read_to_replace(
        &self,
        target: &Target,
        name: &str,
    ) -> Result<TextFile, ToolError> {
        let file = self.read_to_edit(target, name)?;
        match self.new_lines(target, name, &file) {
            Some(new_lines) => Err(new_lines.into_error(&target.path, &file)),
            None => Ok(file),
        }
    }

    /// `None` if the file is as the model last saw it, or the model never saw it.
    pub(in crate::tool) fn new_lines(
        &self,
        target: &Target,
        name: &str,
        file: &TextFile,
    ) -> Option<NewLines> {
        NewLines::of(name, file, self.last_seen.get(&target.path))
    }

    /// Checks that the editor has no unsaved text under the name of a new file: a write would lose it. The
    /// last saved text of a deleted file does not count.
    pub(in crate::tool) fn check_new(&self, target: &Target) -> Result<(), ToolError> {
        match self.shown.get(&target.path) {
            Some(Shown::Unknown(why)) => Err(unsaved_text_unknown(target, &why.to_string())),
            Some(Shown::Text(shown))
                if !shown.is_empty() && !self.disk_texts.was_held(&target.path, shown) =>
            {
                let path = target.path.display();
                Err(ToolError::Failed(format!(
                    "{path} does not exist on disk, but the editor has unsaved text for it. The user can save it or close \
                     it. Nothing was changed."
                )))
            }
            _ => Ok(()),
        }
    }

    /// Notes the written content, and the editor's text before.
    pub(in crate::tool) fn wrote(
        &self,
        target: &Target,
        based_on: Option<&[u8]>,
        content: &[u8],
        in_editor: bool,
    ) {
        if self.shown.is_empty() {
            return;
        }
        if let Some(text) = based_on.and_then(decoded_text) {
            self.disk_texts.held(&target.path, &text);
        }
        match decoded_text(content) {
            Some(text) if in_editor => self.disk_texts.agreed(&target.path, &text),
            Some(text) => self.disk_texts.held(&target.path, &text),
            None => {}
        }
    }

    pub(in crate::tool) fn content_hash(&self, target: &Target) -> Result<ContentHash, ToolError> {
        if is_new(target) {
            return self.check_new(target).map(|()| ContentHash::Absent);
        }
        self.read_to_change(target).map(|file| file.content_hash)
    }

    /// The reason that the state of the editor is unknown; `None` if it is known.
    fn unknown(&self, target: &Target) -> Option<String> {
        match self.shown.get(&target.path) {
            Some(Shown::Refused(why)) => Some(format!("it answered with an error: {why}")),
            Some(Shown::Unknown(why)) => Some(why.to_string()),
            Some(Shown::Text(_) | Shown::Nothing) | None => None,
        }
    }

    /// A note for the model about text of a file that it does not see.
    pub(super) fn note(&self, target: &Target, editor_text: Option<EditorText>) -> Option<String> {
        if editor_text == Some(EditorText::Unclear) {
            let note = "[This is the text on disk. The editor shows another text, which may be unsaved work from before the last \
                        change on disk. Until the user saves or reloads the file there, it cannot be edited.]";
            return Some(note.to_owned());
        }
        let why = self.unknown(target)?;
        let why = why.trim_end_matches('.');
        Some(format!(
            "[This is the saved text: the editor could not be asked whether it has unsaved text ({why}).]"
        ))
    }

    /// Removes the byte order mark if the editor hides it.
    pub(in crate::tool) fn for_editor(&self, target: &Target, content: &str) -> String {
        match self.shown.get(&target.path) {
            Some(Shown::Text(shown)) if !shown.is_empty() && !shown.starts_with(BOM) => {
                content.trim_start_matches(BOM).to_owned()
            }
            _ => content.to_owned(),
        }
    }
}

fn decoded_text(bytes: &[u8]) -> Option<String> {
    TextFile::decode(bytes).ok().map(|file| file.text)
}

fn editor_text_unclear(target: &Target) -> ToolError {
    let path = target.path.display();
    ToolError::Failed(format!(
        "{path}: the editor shows a text that differs from the disk, and the file has changed on disk meanwhile, so a write \
         would lose one of the two. Nothing is changed. The user can save or reload the file in the editor, then try again."
    ))
}

fn unsaved_text_unknown(target: &Target, why: &str) -> ToolError {
    let (path, why) = (target.path.display(), why.trim_end_matches('.'));
    ToolError::Failed(format!(
        "{path}: the editor could not be asked whether it has unsaved text ({why}). Nothing is changed. The user can save the \
         file or open it in the editor, then try again."
    ))
}

fn is_new(target: &Target) -> bool {
    target.path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}
