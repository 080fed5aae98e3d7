//! What a file looked like when it was read, to tell later whether it has changed. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A file's content in brief. Times are not trusted: two writes can share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentHash {
    /// There was no file.
    Absent,
    /// The length of the content and a hash of it.
    Content(u64, u64),
}

impl ContentHash {
    /// The stamp of a content.
    pub fn of(content: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        Self::Content(content.len() as u64, hasher.finish())
    }
}
