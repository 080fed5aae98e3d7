//! Caches that build tools make in the home folder. A sandboxed command writes only into folders that exist when it
//! starts, so missing ones are made before the first command that may change files. Those that are empty at the end
//! are removed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Default)]
pub(super) struct MadeCaches(Mutex<Vec<PathBuf>>);

impl MadeCaches {
    /// Makes missing folders with the folders above them, and missing empty files. What cannot be made stays missing,
    /// and a command that needs it fails with an error.
    pub(super) fn make(&self, folders: &[PathBuf], files: &[PathBuf]) {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for folder in folders {
            make_folder(folder, &mut made);
        }
        for file in files {
            if let Some(parent) = file.parent() {
                make_folder(parent, &mut made);
            }
            if File::create_new(file).is_ok() {
                made.push(file.clone());
            }
        }
    }
}

impl Drop for MadeCaches {
    fn drop(&mut self) {
        let made = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Contents come after their folder.
        for path in made.iter().rev() {
            let is_empty_file =
                fs::symlink_metadata(path).is_ok_and(|stat| stat.is_file() && stat.len() == 0);
            // A folder with contents stays.
            let _ = if is_empty_file { fs::remove_file(path) } else { fs::remove_dir(path) };
        }
    }
}

/// Adds the folders that it makes to `made`.
fn make_folder(folder: &Path, made: &mut Vec<PathBuf>) {
    let missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.exists()).collect();
    for path in missing.into_iter().rev() {
        if fs::create_dir(path).is_err() {
            return;
        }
        made.push(path.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_caches_are_removed_and_used_ones_stay() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::create_dir(at(".npm")).unwrap();
        fs::write(at(".old-lock"), "").unwrap();
        let caches = MadeCaches::default();
        let folders = [".npm", ".m2/repository", ".gradle/caches", ".gradle/daemon", "go/pkg"].map(at);
        let files = [".cargo/.package-cache", ".cargo/.global-cache", ".old-lock"].map(at);
        caches.make(&folders, &files);
        caches.make(&folders, &files);
        assert!(folders.iter().all(|folder| folder.is_dir()) && files.iter().all(|file| file.is_file()));
        fs::write(at(".gradle/caches/used"), "").unwrap();
        fs::write(at(".cargo/.global-cache"), "used").unwrap();
        drop(caches);
        let exists = |name: &str| at(name).exists();
        assert!([".npm", ".gradle/caches/used", ".cargo/.global-cache", ".old-lock"].into_iter().all(exists));
        assert!(![".m2", ".gradle/daemon", "go", ".cargo/.package-cache"].into_iter().any(exists));
    }

    #[test]
    fn caches_that_cannot_be_made_stay_missing() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(".m2"), "a file").unwrap();
        let caches = MadeCaches::default();
        caches.make(&[home.path().join(".m2/repository")], &[home.path().join(".m2/lock")]);
        drop(caches);
        assert_eq!(fs::read_to_string(home.path().join(".m2")).unwrap(), "a file");
    }
}
