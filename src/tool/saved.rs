//! What was saved when a file was last seen in the editor. An editor goes on showing what was deleted: by this that is known
//! from a text that was never saved.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::text_file::BOM;
use crate::workspace::ContentHash;

/// The texts of one session's files, by their stamps. Cheap to clone; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Saved(Arc<Mutex<HashMap<PathBuf, ContentHash>>>);

impl Saved {
    /// Takes note of a text that is saved.
    pub fn note(&self, path: &Path, text: &str) {
        // A panic elsewhere does not make the list wrong.
        let mut saved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        saved.insert(path.to_owned(), content_hash(text));
    }

    /// Whether this text is the one that was saved last.
    pub fn is(&self, path: &Path, text: &str) -> bool {
        let saved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        saved.get(path).is_some_and(|saved| *saved == content_hash(text))
    }
}

/// Without what editors hide.
fn content_hash(text: &str) -> ContentHash {
    ContentHash::of(text.trim_start_matches(BOM).replace("\r\n", "\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_saved_last_is_known() {
        let (saved, path) = (Saved::default(), Path::new("/a"));
        saved.note(path, "one\n");
        saved.clone().note(path, "two\r\n");
        assert!(saved.is(path, "two\n"));
        assert!(!saved.is(path, "one\n") && !saved.is(Path::new("/b"), "two\n"));
    }
}
