//! Files with the whole output of commands, in a folder that is private to this user and removed with the
//! session. The session's tools may read them without a question.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::platform::files::{create_private_file, create_private_folder, real_path};

/// Maximum bytes of one file.
const MAX_FILE: usize = 8 * 1024 * 1024;

/// Number of files; a new one replaces the oldest.
const MAX_FILES: usize = 16;

/// Cheap to clone. The folder is created with the first file, and removed with the last clone.
#[derive(Debug, Clone, Default)]
pub struct Outputs(Arc<OutputFolder>);

#[derive(Debug, Default)]
struct OutputFolder {
    /// `None` if it cannot be made.
    path: OnceLock<Option<PathBuf>>,
    created: AtomicUsize,
}

#[derive(Debug)]
pub struct OutputFile {
    file: File,
    path: PathBuf,
    written: usize,
    is_full: bool,
}

impl Outputs {
    /// `None` before the first file.
    pub fn folder(&self) -> Option<&Path> {
        self.0.path.get()?.as_deref()
    }

    /// The first call makes the folder in `parent`. `None` if no file can be made.
    pub fn create(&self, parent: &Path) -> Option<OutputFile> {
        let folder = self.0.path.get_or_init(|| warn(make_folder(parent))).as_deref()?;
        let number = self.0.created.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(oldest) = number.checked_sub(MAX_FILES).filter(|oldest| *oldest > 0) {
            // The command may have been unable to write it.
            let _ = std::fs::remove_file(folder.join(name(oldest)));
        }
        let path = folder.join(name(number));
        let file = warn(create_private_file(&path))?;
        Some(OutputFile { file, path, written: 0, is_full: false })
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        if let Some(Some(path)) = self.path.get() {
            warn(std::fs::remove_dir_all(path));
        }
    }
}

impl OutputFile {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first bytes, as text. Blocks. `None` if the file cannot be read.
    pub fn read_start(path: &Path, most: u64) -> Option<String> {
        let mut bytes = Vec::new();
        warn(File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)))?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// True if the file holds only the start.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Blocks. After an error or the limit, the rest is dropped.
    pub fn append(&mut self, bytes: &[u8]) {
        let fitting = bytes.len().min(MAX_FILE - self.written);
        if !self.is_full && warn(self.file.write_all(&bytes[..fitting])).is_some() {
            self.written += fitting;
        }
        self.is_full |= fitting < bytes.len();
    }
}

fn name(number: usize) -> String {
    format!("output_{number}.txt")
}

/// The path has no symbolic links.
fn make_folder(parent: &Path) -> io::Result<PathBuf> {
    let folder = real_path(parent)?.join(format!("modegate-{}", uuid::Uuid::now_v7()));
    create_private_folder(&folder)?;
    Ok(folder)
}

fn warn<T>(outcome: io::Result<T>) -> Option<T> {
    outcome.inspect_err(|error| tracing::warn!(%error, "the output of a command cannot be kept")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_bounded_and_removed_with_the_last_clone() {
        let scratch = tempfile::tempdir().unwrap();
        let outputs = Outputs::default();
        assert!(outputs.folder().is_none());
        let mut first = outputs.create(scratch.path()).unwrap();
        first.append(&vec![b'x'; MAX_FILE - 1]);
        assert!(!first.is_full());
        first.append(b"yz");
        assert!(first.is_full() && first.path().metadata().unwrap().len() == MAX_FILE as u64);
        let oldest = first.path().to_owned();
        // Some systems keep an open file.
        drop(first);
        for _ in 0..MAX_FILES {
            outputs.create(scratch.path()).unwrap();
        }
        let folder = outputs.folder().unwrap().to_owned();
        assert!(!oldest.exists() && folder.read_dir().unwrap().count() == MAX_FILES);
        let clone = outputs.clone();
        drop(outputs);
        assert!(folder.exists());
        drop(clone);
        assert!(!folder.exists());
    }
}
