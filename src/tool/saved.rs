//! Remembers the last saved text of files that the editor showed. Some editors still show deleted files: this
//! distinguishes such text from text that was never saved.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::text_file::BOM;
use crate::workspace::ContentHash;

#[derive(Debug, Clone, Default)]
pub struct Saved(Arc<Mutex<HashMap<PathBuf, ContentHash>>>);

impl Saved {
    pub fn note(&self, path: &Path, text: &str) {
        // A panic elsewhere cannot make the map inconsistent.
        let mut saved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        saved.insert(path.to_owned(), content_hash(text));
    }

    pub fn is(&self, path: &Path, text: &str) -> bool {
        let saved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        saved.get(path).is_some_and(|saved| *saved == content_hash(text))
    }
}

/// Ignores byte order marks, carriage returns and the final newline, which editors hide.
fn content_hash(text: &str) -> ContentHash {
    let text = text.trim_start_matches(BOM).replace("\r\n", "\n");
    ContentHash::of(text.strip_suffix('\n').unwrap_or(&text).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_saved_text_matches() {
        let (saved, path) = (Saved::default(), Path::new("/a"));
        saved.note(path, "one\n");
        saved.clone().note(path, "two\r\n");
        assert!(saved.is(path, "two\n") && saved.is(path, "two"));
        assert!(!saved.is(path, "one\n") && !saved.is(Path::new("/b"), "two\n"));
    }
}
