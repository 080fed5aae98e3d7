//! What models remember of a folder from one session to the next: what a memory is, who keeps it, and what the tools that
//! read and write it share.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::{Tool, ToolError};

mod read;
mod write;

/// Characters of a memory.
pub const MAX_TEXT: usize = 2_000;

/// Characters of a category.
pub const MAX_CATEGORY: usize = 60;

/// Memories of one folder.
pub const MAX_COUNT: usize = 200;

/// Characters of all memories in one answer.
const PAGE: usize = 30_000;

/// What ends a line, to one reader or another.
const LINE_ENDS: [char; 7] = ['\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}'];

/// Something that is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// `mem_1`; never given twice.
    pub id: String,
    /// What is remembered.
    pub text: String,
    /// What it is about, in a word or two.
    pub category: Option<String>,
    /// When it was made, in UTC, for people and models.
    pub created: String,
    /// When it was last changed.
    pub updated: String,
}

/// What is to be changed in a memory; what is not given stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Another text.
    pub text: Option<String>,
    /// Another category; empty: none.
    pub category: Option<String>,
}

/// Why there is no such memory, or none more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Another session may have deleted it.
    #[error("There is no memory {0}: get_memories lists those that there are.")]
    Unknown(String),
    /// There are as many as there may be.
    #[error("There are {MAX_COUNT} memories of this folder, which is the most: delete or merge some first.")]
    Full,
    /// It was begun and may not go on.
    #[error("The call was cancelled; nothing was changed.")]
    Cancelled,
    /// They cannot be read or written.
    #[error("Memories cannot be used, and nothing was changed: {0}")]
    Store(String),
}

impl From<MemoryError> for ToolError {
    fn from(error: MemoryError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Who keeps memories. A folder is that of a session: the first of its folders, without links. What changes one looks whether
/// it is cancelled right before it does, and not later.
#[async_trait]
pub trait Memories: Send + Sync {
    /// All of a folder, the oldest first.
    async fn list(&self, folder: &Path) -> Result<Vec<Memory>, MemoryError>;

    /// Makes one, and says how long it is kept if that is not for good.
    async fn add(
        &self,
        folder: &Path,
        text: String,
        category: Option<String>,
        cancel: CancellationToken,
    ) -> Result<(Memory, Option<&'static str>), MemoryError>;

    /// Changes one; returns it as it is now.
    async fn update(
        &self,
        folder: &Path,
        id: &str,
        change: Change,
        cancel: CancellationToken,
    ) -> Result<Memory, MemoryError>;

    /// Deletes one for good; returns what it was.
    async fn delete(&self, folder: &Path, id: &str, cancel: CancellationToken)
    -> Result<Memory, MemoryError>;
}

/// Where there is no store.
pub struct Nowhere;

impl Nowhere {
    fn nothing<T>() -> Result<T, MemoryError> {
        Err(MemoryError::Store("there is no store".into()))
    }
}

#[async_trait]
impl Memories for Nowhere {
    async fn list(&self, _: &Path) -> Result<Vec<Memory>, MemoryError> {
        Self::nothing()
    }

    async fn add(
        &self,
        _: &Path,
        _: String,
        _: Option<String>,
        _: CancellationToken,
    ) -> Result<(Memory, Option<&'static str>), MemoryError> {
        Self::nothing()
    }

    async fn update(
        &self,
        _: &Path,
        _: &str,
        _: Change,
        _: CancellationToken,
    ) -> Result<Memory, MemoryError> {
        Self::nothing()
    }

    async fn delete(&self, _: &Path, _: &str, _: CancellationToken) -> Result<Memory, MemoryError> {
        Self::nothing()
    }
}

/// The tools, by who keeps what they are about.
pub fn tools(memories: &Arc<dyn Memories>) -> Vec<Arc<dyn Tool>> {
    let memories = || Arc::clone(memories);
    vec![
        Arc::new(read::Get::new(memories())),
        Arc::new(read::Search::new(memories())),
        Arc::new(write::Add::new(memories())),
        Arc::new(write::Update::new(memories())),
        Arc::new(write::Delete::new(memories())),
    ]
}

/// A memory as a model reads it: whatever it says, only its first line begins at the margin.
fn line(retained_context: &Memory) -> String {
    let Memory { id, text, category, created, updated } = retained_context;
    let category = category.as_ref().map(|category| format!(" [{category}]")).unwrap_or_default();
    let changed = if updated == created { String::new() } else { format!(", changed {updated}") };
    let text = text.split(LINE_ENDS).collect::<Vec<_>>().join("\n    ");
    let category = category.replace(LINE_ENDS, " ");
    format!("{id}{category} ({created}{changed}): {text}\n")
}

/// Memories as a model reads them, as many as fit; the first stands behind `after`.
fn show(memories: &[Memory], after: Option<&str>, none: &str) -> Result<String, ToolError> {
    let first = match after {
        None => 0,
        Some(id) => match memories.iter().position(|retained_context| retained_context.id == id) {
            Some(at) => at + 1,
            None => return Err(MemoryError::Unknown(id.to_owned()).into()),
        },
    };
    let rest = &memories[first..];
    let mut text = String::new();
    for (number, retained_context) in rest.iter().enumerate() {
        let line = line(retained_context);
        if number > 0 && text.len() + line.len() > PAGE {
            let (remaining, last) = (rest.len() - number, &rest[number - 1].id);
            return Ok(format!("{text}[{remaining} more. Go on with after {last}.]"));
        }
        text.push_str(&line);
    }
    Ok(if text.is_empty() { none.to_owned() } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_memories_are_shown_in_parts_that_meet() {
        let retained_context = |number: usize| Memory {
            id: format!("mem_{number}"),
            text: "x".repeat(MAX_TEXT),
            category: None,
            created: "t".into(),
            updated: "t".into(),
        };
        let all: Vec<Memory> = (1..=20).map(retained_context).collect();
        let first = show(&all, None, "none").unwrap();
        assert!(first.ends_with("[6 more. Go on with after mem_14.]") && first.contains("mem_14 (t): "));
        let rest = show(&all, Some("mem_14"), "none").unwrap();
        assert!(rest.starts_with("mem_15 ") && rest.lines().count() == 6);
        assert_eq!(show(&all, Some("mem_20"), "none").unwrap(), "none");
        assert!(show(&all, Some("mem_21"), "none").is_err());
    }
}
