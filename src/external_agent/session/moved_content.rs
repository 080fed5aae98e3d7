//! The content of a file that a brokered agent moves or deletes, for the question about that.

use std::path::Path;

use crate::bounded_file;
use crate::process::{ChangeKind, ChangeQuestion};

/// Longest content of a question, in bytes.
const MAX_LENGTH: u64 = 256 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedContent {
    /// True if a file is replaced or deleted.
    pub replaces: bool,
    /// The text that is lost and the moved one. `None` if one of them is no short text.
    pub texts: Option<(Option<String>, String)>,
}

/// `None` for other changes than the move or the end of a file.
pub(super) async fn read(question: &ChangeQuestion) -> Option<MovedContent> {
    let path = question.path.clone();
    // A task fails if the program panics.
    match (question.change, question.to.clone()) {
        (ChangeKind::Move, Some(to)) if question.files.is_empty() => {
            tokio::task::spawn_blocking(move || read_now(&path, &to)).await.ok()
        }
        (ChangeKind::Delete, _) => tokio::task::spawn_blocking(move || read_deleted(&path)).await.ok(),
        _ => None,
    }
}

fn read_deleted(path: &Path) -> MovedContent {
    // Of a symbolic link, only the link is deleted.
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    let old = is_file.then(|| bounded_file::read_text(path, MAX_LENGTH).ok()).flatten();
    MovedContent { replaces: true, texts: old.map(|old| (Some(old), String::new())) }
}

fn read_now(from: &Path, to: &Path) -> MovedContent {
    let replaces = to.symlink_metadata().is_ok();
    let old = match bounded_file::read_text(to, MAX_LENGTH) {
        Ok(text) => Some(Some(text)),
        Err(error) => error.is_missing().then_some(None),
    };
    let new = bounded_file::read_text(from, MAX_LENGTH).ok();
    MovedContent { replaces, texts: old.zip(new) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_regular_text_files_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("new"), "b\n").unwrap();
        std::fs::write(path("old"), "a\n").unwrap();
        std::fs::write(path("binary"), [0xff, 0]).unwrap();
        let texts = |old: Option<&str>| Some((old.map(str::to_owned), "b\n".to_owned()));
        for (from, to, replaces, expected) in [
            ("new", "old", true, texts(Some("a\n"))),
            ("new", "missing", false, texts(None)),
            ("new", "binary", true, None),
            ("binary", "old", true, None),
            ("new", ".", true, None),
            ("missing", "old", true, None),
        ] {
            let found = read_now(&path(from), &path(to));
            assert_eq!(found, MovedContent { replaces, texts: expected }, "{from} {to}");
        }
        let lost = Some((Some("a\n".to_owned()), String::new()));
        for (deleted, texts) in [("old", lost), ("binary", None), (".", None)] {
            assert_eq!(read_deleted(&path(deleted)), MovedContent { replaces: true, texts }, "{deleted}");
        }
    }
}
