//! Detects loosened ignore rules. They reveal files that existed before, which undo must not remove as new.
//! Pure.

use std::path::{Path, PathBuf};

use ignore::gitignore::Gitignore;

use crate::workspace::walk::{GITIGNORE, MAX_RULES, compile};

pub(super) const NAME: &str = GITIGNORE;

#[derive(Debug)]
pub(super) struct Loosened {
    folder: PathBuf,
    /// Unknown if `None`: any file may have been hidden.
    hidden: Option<Gitignore>,
}

impl Loosened {
    /// Returns the loosened rules. A text of `None` is a missing file.
    pub(super) fn of(rules: &Path, before: Option<&[u8]>, after: Option<&[u8]>) -> Option<Self> {
        let folder = rules.parent()?.to_owned();
        let after = String::from_utf8_lossy(after.unwrap_or_default());
        // A negated rule can reveal files that a rule of a parent folder hides.
        if after.lines().any(|line| line.starts_with('!')) {
            return Some(Self { folder, hidden: None });
        }
        let before = String::from_utf8_lossy(before?);
        let is_bounded = before.len() as u64 <= MAX_RULES;
        let hidden = if is_bounded { compile(&folder, &before) } else { None };
        Some(Self { folder, hidden })
    }

    pub(super) fn unreported(rules: &Path) -> Option<Self> {
        Some(Self { folder: rules.parent()?.to_owned(), hidden: None })
    }

    /// True if a path that appears may have existed before.
    pub(super) fn may_have_hidden(&self, path: &Path, is_folder: bool) -> bool {
        path.starts_with(&self.folder)
            && path != self.folder.join(NAME)
            && self
                .hidden
                .as_ref()
                .is_none_or(|hidden| hidden.matched_path_or_any_parents(path, is_folder).is_ignore())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: Option<&str>, after: Option<&str>, path: &str, expected: bool) {
        let bytes = |text: Option<&str>| text.map(|text| text.as_bytes().to_vec());
        let loosened =
            Loosened::of(Path::new("/r/.gitignore"), bytes(before).as_deref(), bytes(after).as_deref());
        let hidden = loosened.is_some_and(|rules| rules.may_have_hidden(Path::new(path), false));
        assert_eq!(hidden, expected, "{before:?} {after:?} {path}");
    }

    #[test]
    fn removed_ignore_rules_may_have_hidden_files() {
        check(Some("*.env\nout/"), Some(""), "/r/a/secret.env", true);
        check(Some("*.env\nout/"), None, "/r/out/x", true);
        check(Some("*.env\nout/"), Some(""), "/r/new.rs", false);
        check(Some("*.env"), Some(""), "/elsewhere/secret.env", false);
        check(None, Some("*.env"), "/r/new.rs", false);
        check(None, Some("!new.rs"), "/r/new.rs", true);
        check(Some("x"), Some("x\n!new.rs"), "/r/new.rs", true);
    }
}
