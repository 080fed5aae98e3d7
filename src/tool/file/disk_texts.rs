//! Remembers which texts files had on disk, as far as Modegate knows, and which of them the editor showed.
//!
//! Editors see a change on disk late, or keep showing a deleted file. This tells such a text from unsaved work.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::text_file::{BOM, TextFile};
use crate::workspace::{Changes, ContentHash, FileState};

/// Texts remembered for a file, and files. Beyond, the oldest are forgotten, and their text counts as unsaved.
const MAX_TEXTS: usize = 32;
const MAX_FILES: usize = 4096;

/// Bytes of the earlier contents of one report that are looked at.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Shared by the sessions of a client. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct DiskTexts(Arc<Mutex<Files>>);

#[derive(Debug, Default)]
struct Files {
    texts: HashMap<PathBuf, Texts>,
    /// Counts the uses, for the order of forgetting.
    clock: u64,
}

#[derive(Debug, Default)]
struct Texts {
    /// Each once, the newest last.
    held: VecDeque<ContentHash>,
    /// The last one that the editor showed, too.
    agreed: Option<ContentHash>,
    used: u64,
}

/// Kinds of text in the editor that differ from the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tool) enum EditorText {
    /// The disk had it before. The editor has not seen the change yet.
    Stale,
    Unsaved,
    /// The disk has changed since the editor last agreed with it, and never had this text, which may lack the change.
    Unclear,
}

impl DiskTexts {
    /// Notes a text that the disk has, or had before the newest one.
    pub(super) fn held(&self, path: &Path, text: &str) {
        self.of(path, |texts| texts.hold(content_hash(text)));
    }

    /// Notes a text that both the disk and the editor have.
    pub(super) fn agreed(&self, path: &Path, text: &str) {
        self.of(path, |texts| {
            let hash = content_hash(text);
            texts.hold(hash);
            texts.agreed = Some(hash);
        });
    }

    /// Notes the contents from before some changes, as commands report them.
    pub fn note_earlier(&self, changes: &Changes) {
        let contents: HashMap<&str, &Vec<u8>> =
            changes.contents.iter().map(|(hash, content)| (hash.as_str(), content)).collect();
        let mut bytes = 0;
        for changed in &changes.changed {
            let FileState::File { hash, .. } = &changed.before else { continue };
            let Some(content) = contents.get(hash.as_str()) else { continue };
            bytes += content.len();
            if bytes > MAX_BYTES {
                return;
            }
            if let Ok(file) = TextFile::decode(content) {
                self.of(&changed.path, |texts| texts.hold_earlier(content_hash(&file.text)));
            }
        }
    }

    /// True if the disk had this text.
    pub(super) fn was_held(&self, path: &Path, text: &str) -> bool {
        self.of(path, |texts| texts.held.contains(&content_hash(text)))
    }

    /// Judges a text of the editor that differs from the disk.
    pub(super) fn judge(&self, path: &Path, shown: &str, disk: &str) -> EditorText {
        self.of(path, |texts| {
            let (shown_hash, disk) = (content_hash(shown), content_hash(disk));
            texts.hold(disk);
            if texts.held.contains(&shown_hash) {
                EditorText::Stale
            } else if texts.agreed == Some(disk) || texts.held.len() == 1 {
                EditorText::Unsaved
            } else {
                EditorText::Unclear
            }
        })
    }

    fn of<T>(&self, path: &Path, work: impl FnOnce(&mut Texts) -> T) -> T {
        // A panic elsewhere cannot make the map inconsistent.
        let mut files: MutexGuard<'_, Files> = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.clock += 1;
        let clock = files.clock;
        if files.texts.len() >= MAX_FILES
            && !files.texts.contains_key(path)
            && let Some(oldest) =
                files.texts.iter().min_by_key(|(_, texts)| texts.used).map(|(path, _)| path.clone())
        {
            files.texts.remove(&oldest);
        }
        let texts = files.texts.entry(path.to_owned()).or_default();
        texts.used = clock;
        work(texts)
    }
}

impl Texts {
    fn hold(&mut self, hash: ContentHash) {
        if self.held.back() == Some(&hash) {
            return;
        }
        self.held.retain(|held| *held != hash);
        self.held.push_back(hash);
        if self.held.len() > MAX_TEXTS {
            self.held.pop_front();
        }
    }

    /// Of a report, which may come after the newest text.
    fn hold_earlier(&mut self, hash: ContentHash) {
        if !self.held.contains(&hash) {
            if self.held.len() >= MAX_TEXTS {
                self.held.pop_front();
            }
            self.held.insert(self.held.len().saturating_sub(1), hash);
        }
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
    use crate::workspace::Changed;

    #[test]
    fn texts_that_the_disk_had_are_stale() {
        let (texts, path) = (DiskTexts::default(), Path::new("/a"));
        texts.agreed(path, "one\n");
        texts.clone().held(path, "two\r\n");
        for shown in ["one\n", "one", "\u{feff}one\r\n"] {
            assert_eq!(texts.judge(path, shown, "two\n"), EditorText::Stale, "{shown:?}");
        }
        assert!(texts.was_held(path, "two") && !texts.was_held(Path::new("/b"), "two"));
    }

    #[test]
    fn other_texts_are_unsaved_unless_the_disk_has_changed_since_the_editor_agreed() {
        let (texts, path) = (DiskTexts::default(), Path::new("/a"));
        assert_eq!(texts.judge(path, "typed", "one"), EditorText::Unsaved, "nothing has changed");
        texts.agreed(path, "one");
        assert_eq!(texts.judge(path, "typed", "one"), EditorText::Unsaved);
        assert_eq!(texts.judge(path, "typed", "two"), EditorText::Unclear);
        texts.agreed(path, "two");
        assert_eq!(texts.judge(path, "typed", "two"), EditorText::Unsaved);
    }

    #[test]
    fn text_from_before_a_command_is_known_at_the_limit() {
        let (texts, path) = (DiskTexts::default(), Path::new("/a"));
        for number in 0..MAX_TEXTS {
            texts.held(path, &number.to_string());
        }
        let file = |hash: &str| FileState::File { hash: hash.into(), mode: 0o644 };
        let changed = Changed { path: path.into(), before: file("h"), after: file("other"), compared: false };
        let contents = vec![("h".into(), b"between".to_vec())];
        texts.note_earlier(&Changes { changed: vec![changed], contents, ..Changes::default() });
        for (shown, kind) in
            [("between", EditorText::Stale), ("31", EditorText::Stale), ("typed", EditorText::Unclear)]
        {
            assert_eq!(texts.judge(path, shown, "now"), kind, "{shown}");
        }
        assert_eq!(texts.of(path, |texts| texts.held.len()), MAX_TEXTS);
    }

    #[test]
    fn memory_is_bounded() {
        let texts = DiskTexts::default();
        for number in 0..MAX_FILES + 10 {
            texts.held(Path::new(&format!("/{number}")), "x");
        }
        assert!(!texts.was_held(Path::new("/0"), "x"));
        for number in 0..=MAX_TEXTS {
            texts.held(Path::new("/a"), &number.to_string());
        }
        assert!(!texts.was_held(Path::new("/a"), "0") && texts.was_held(Path::new("/a"), "1"));
    }
}
