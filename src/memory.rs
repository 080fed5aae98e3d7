//! Memories: notes about a folder that models keep across sessions. The trait is the tools' view of the store.

use std::path::Path;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

pub const MAX_TEXT: usize = 2_000;

pub const MAX_CATEGORY: usize = 60;

pub const MAX_COUNT: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// For example `mem_1`; never reused.
    pub id: String,
    pub text: String,
    pub category: Option<String>,
    pub created: String,
    pub updated: String,
}

/// `None` keeps a field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryChange {
    pub text: Option<String>,
    /// An empty text removes the category.
    pub category: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Another session may have deleted the memory.
    #[error("There is no memory {0}. read_memories lists the existing ones.")]
    Unknown(String),
    #[error("This folder has the maximum of {MAX_COUNT} memories. Delete or merge some first.")]
    Full,
    #[error("The call was cancelled; nothing was changed.")]
    Cancelled,
    #[error("Memories cannot be used, and nothing was changed: {0}")]
    Store(String),
}

/// `folder` is the session's first folder, without links. A change checks for cancellation right before its
/// write, and not later.
#[async_trait]
pub trait Memories: Send + Sync {
    /// All memories of a folder, oldest first.
    async fn list(&self, folder: &Path) -> Result<Vec<Memory>, MemoryError>;

    /// Also returns the lifetime of the memory, if it is limited.
    async fn add(
        &self,
        folder: &Path,
        text: String,
        category: Option<String>,
        cancel: CancellationToken,
    ) -> Result<(Memory, Option<&'static str>), MemoryError>;

    async fn update(
        &self,
        folder: &Path,
        id: &str,
        change: MemoryChange,
        cancel: CancellationToken,
    ) -> Result<Memory, MemoryError>;

    async fn delete(&self, folder: &Path, id: &str, cancel: CancellationToken)
    -> Result<Memory, MemoryError>;
}
