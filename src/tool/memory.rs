//! The tools that list, save and delete memories.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use self::list_page::list_page;
use super::{Tool, ToolError};
use crate::memory::{Memories, Memory, MemoryChange, MemoryError};

pub(super) mod list_page;
mod read;
mod write;

/// Every character that some reader treats as a line end.
const LINE_ENDS: [char; 7] = ['\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}'];

impl From<MemoryError> for ToolError {
    fn from(error: MemoryError) -> Self {
        Self::Failed(error.to_string())
    }
}

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
        _: MemoryChange,
        _: CancellationToken,
    ) -> Result<Memory, MemoryError> {
        Self::nothing()
    }

    async fn delete(&self, _: &Path, _: &str, _: CancellationToken) -> Result<Memory, MemoryError> {
        Self::nothing()
    }
}

pub fn tools(memories: &Arc<dyn Memories>) -> Vec<Arc<dyn Tool>> {
    vec![read::tool(Arc::clone(memories)), write::tool(Arc::clone(memories))]
}

/// Only the first line begins at the margin, so a text cannot imitate other entries.
fn line(memory: &Memory) -> String {
    let Memory { id, text, category, created, updated } = memory;
    let category = category.as_ref().map(|category| format!(" [{category}]")).unwrap_or_default();
    let changed = if updated == created { String::new() } else { format!(", changed {updated}") };
    let text = text.split(LINE_ENDS).collect::<Vec<_>>().join("\n    ");
    let category = category.replace(LINE_ENDS, " ");
    format!("{id}{category} ({created}{changed}): {text}\n")
}

fn show(memories: &[Memory], after: Option<&str>, none: &str) -> Result<String, ToolError> {
    let first = match after {
        None => 0,
        Some(id) => match memories.iter().position(|memory| memory.id == id) {
            Some(at) => at + 1,
            None => return Err(MemoryError::Unknown(id.to_owned()).into()),
        },
    };
    let entries = memories[first..].iter().map(|memory| (memory.id.as_str(), line(memory)));
    Ok(list_page(entries, none))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MAX_TEXT;

    #[test]
    fn memory_list_is_paginated_without_gaps() {
        let memory = |number: usize| Memory {
            id: format!("mem_{number}"),
            text: "x".repeat(MAX_TEXT),
            category: None,
            created: "t".into(),
            updated: "t".into(),
        };
        let all: Vec<Memory> = (1..=20).map(memory).collect();
        let first = show(&all, None, "none").unwrap();
        assert!(first.ends_with("[6 more. Continue with after mem_14.]") && first.contains("mem_14 (t): "));
        let rest = show(&all, Some("mem_14"), "none").unwrap();
        assert!(rest.starts_with("mem_15 ") && rest.lines().count() == 6);
        assert_eq!(show(&all, Some("mem_20"), "none").unwrap(), "none");
        assert!(show(&all, Some("mem_21"), "none").is_err());
    }
}
