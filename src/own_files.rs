//! Modegate's own files, which no tool changes, and those that no tool reads. Looks at the disk once, for their real
//! paths.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::platform::files::real_place;

/// Each path as it was named, and its real path.
#[derive(Debug, Clone, Default)]
pub struct OwnFiles {
    /// Settings, store and recording.
    own: Arc<[PathBuf]>,
    /// The store, and what lies beside it: what sessions read, and earlier contents of files.
    private: Arc<[PathBuf]>,
}

impl OwnFiles {
    pub fn new(own: &[PathBuf], private: &[PathBuf]) -> Self {
        let both =
            |paths: &[PathBuf]| paths.iter().flat_map(|path| [path.clone(), real_place(path)]).collect();
        Self { own: both(own), private: both(private) }
    }

    /// Returns true if a change of `path` would change, move or delete one of the files.
    pub fn are_changed_by(&self, path: &Path) -> bool {
        self.own.iter().any(|own| path.starts_with(own) || own.starts_with(path))
    }

    /// Returns true for a file that no tool reads.
    pub fn is_private(&self, path: &Path) -> bool {
        self.private.iter().any(|private| path.starts_with(private))
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_files_are_found_by_each_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
        let own = [dir.join("link/config"), dir.join("link/s.db")];
        let files = OwnFiles::new(&own, &own[1..]);
        for (path, changes, is_private) in [
            ("link/config/modes.yaml", true, false),
            ("real/config/modes.yaml", true, false),
            ("real/config", true, false),
            ("real", true, false),
            ("", true, false),
            ("real/s.db", true, true),
            ("link/s.db", true, true),
            ("real/s.db2", false, false),
            ("real/configuration", false, false),
            ("other", false, false),
        ] {
            let path = dir.join(path);
            let found = (files.are_changed_by(&path), files.is_private(&path));
            assert_eq!(found, (changes, is_private), "{}", path.display());
        }
    }
}
