//! Copies of files that a call is about to change. A file can grow, and its disk can be slow, so they are made without
//! any lock, and the record takes a copy only if its file is unchanged. The small copies of a record share a file: to
//! create a file takes longer than to write its content.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FileType, Mode, OFlags, Stat};

use crate::supervisor::broker::resolve::BENEATH;
use crate::supervisor::record::{COPIES, CopyPlace, MAX_FILE};

/// Maximum number of copies of a changing file for one call.
const MAX_TRIES: usize = 3;

/// Largest copy that shares a file with others, in bytes.
const MAX_SHARED: u64 = 64 * 1024;

/// Folder of records and their copies. Copies with a file of their own have numbers as their names.
#[derive(Debug)]
pub(in crate::supervisor) struct CopyFolder {
    path: PathBuf,
    next: AtomicU64,
    shared: Mutex<SharedCopies>,
}

/// The file of a record's small copies.
#[derive(Debug, Default)]
struct SharedCopies {
    /// Number of the record.
    record: u64,
    /// Created with the first copy.
    file: Option<File>,
    length: u64,
}

/// A copy that no record has taken so far.
#[derive(Debug, Clone, Copy)]
enum MadeCopy {
    File(u64),
    /// Only this record can take it.
    Part {
        record: u64,
        start: u64,
        length: u64,
    },
}

impl CopyFolder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, next: AtomicU64::default(), shared: Mutex::default() }
    }

    fn shared(&self) -> MutexGuard<'_, SharedCopies> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Small copies belong to this record from now on.
    pub(super) fn begin_record(&self, record: u64) {
        let mut shared = self.shared();
        if shared.record != record {
            *shared = SharedCopies { record, ..SharedCopies::default() };
        }
    }

    /// Adds a copy to those that share a file.
    fn add(&self, content: &[u8]) -> io::Result<MadeCopy> {
        let mut shared = self.shared();
        let (record, start) = (shared.record, shared.length);
        if shared.file.is_none() {
            shared.file = Some(File::create_new(self.path(record).with_extension(COPIES))?);
        }
        let file = shared.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.write_all_at(content, start)?;
        let length = content.len() as u64;
        shared.length += length;
        Ok(MadeCopy::Part { record, start, length })
    }

    /// `None` for a copy of an earlier record, whose copies may be gone.
    fn place(&self, copy: MadeCopy) -> Option<CopyPlace> {
        match copy {
            MadeCopy::File(number) => Some(CopyPlace::File(number)),
            MadeCopy::Part { record, start, length } => {
                (record == self.shared().record).then_some(CopyPlace::Part { start, length })
            }
        }
    }

    /// No record needs the copy.
    fn forget(&self, copy: MadeCopy) {
        match copy {
            MadeCopy::File(number) => self.remove(number),
            MadeCopy::Part { record, start, length } => {
                let mut shared = self.shared();
                // Otherwise its bytes stay as long as the copies around it.
                if record == shared.record && start + length == shared.length {
                    shared.length = start;
                }
            }
        }
    }

    /// A name that no other copy has.
    pub(super) fn reserve(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn path(&self, copy: u64) -> PathBuf {
        self.path.join(copy.to_string())
    }

    pub(super) fn remove(&self, copy: u64) {
        // The folder is deleted with the session.
        let _ = fs::remove_file(self.path(copy));
    }
}

/// A file of which the record needs a copy.
#[derive(Debug)]
pub(in crate::supervisor) struct CopyRequest {
    pub(super) folder: OwnedFd,
    pub(super) name: OsString,
    pub(super) path: PathBuf,
}

/// Tells whether a file is the same and has not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion([i128; 7]);

impl FileVersion {
    fn new(found: &Stat) -> Self {
        let Stat { st_dev, st_ino, st_size, st_mtime, st_mtime_nsec, st_ctime, st_ctime_nsec, .. } = *found;
        Self([
            st_dev.into(),
            st_ino.into(),
            st_size.into(),
            st_mtime.into(),
            st_mtime_nsec.into(),
            st_ctime.into(),
            st_ctime_nsec.into(),
        ])
    }
}

/// Copies for one call. Those that the record does not take are removed.
#[derive(Debug)]
pub(in crate::supervisor) struct CallCopies {
    /// `None` if changes are not recorded.
    folder: Option<Arc<CopyFolder>>,
    made: HashMap<PathBuf, (MadeCopy, FileVersion)>,
    /// Why files could not be copied: the rest of a sentence.
    failed: HashMap<PathBuf, String>,
    /// Number of copies of each file so far.
    tries: HashMap<PathBuf, usize>,
    /// True if a copy is good enough that is not of one moment.
    accepts_changes: bool,
}

/// A look for the copy of a file.
pub(super) enum CopyLookup {
    Copy(CopyPlace),
    /// No copy can be made; the reason is the rest of a sentence.
    Failed(String),
    Missing,
}

impl CallCopies {
    pub(in crate::supervisor) fn new(folder: Option<Arc<CopyFolder>>) -> Self {
        Self {
            folder,
            made: HashMap::new(),
            failed: HashMap::new(),
            tries: HashMap::new(),
            accepts_changes: false,
        }
    }

    /// Of files that programs are writing.
    pub(in crate::supervisor) fn of_written(folder: Option<Arc<CopyFolder>>) -> Self {
        let mut copies = Self::new(folder);
        copies.accepts_changes = true;
        copies
    }

    /// Makes copies until all are made, or `is_wanted` returns false.
    pub(in crate::supervisor) fn make(&mut self, requests: Vec<CopyRequest>, is_wanted: impl Fn() -> bool) {
        let Some(folder) = self.folder.clone() else { return };
        for request in requests {
            if !is_wanted() {
                return;
            }
            if let Some((outdated, _)) = self.made.remove(&request.path) {
                folder.forget(outdated);
            }
            *self.tries.entry(request.path.clone()).or_default() += 1;
            match copy_file(&request, &folder) {
                Ok(made) => drop(self.made.insert(request.path, made)),
                Err(error) => {
                    drop(self.failed.insert(request.path, format!("cannot be copied ({error})")));
                }
            }
        }
    }

    /// The copy of a file in the state `found`. It stays until it is taken.
    pub(super) fn find(&self, path: &Path, found: &Stat) -> CopyLookup {
        if let Some(why) = self.failed.get(path) {
            return CopyLookup::Failed(why.clone());
        }
        let made = self
            .made
            .get(path)
            .filter(|(_, version)| self.accepts_changes || *version == FileVersion::new(found));
        match made.and_then(|(copy, _)| self.folder.as_ref()?.place(*copy)) {
            Some(place) => CopyLookup::Copy(place),
            None if self.tries.get(path).is_some_and(|tries| *tries >= MAX_TRIES) => {
                CopyLookup::Failed("changes while it is copied".into())
            }
            None => CopyLookup::Missing,
        }
    }

    /// The record has the copy now.
    pub(super) fn take(&mut self, path: &Path) {
        self.made.remove(path);
    }
}

impl Drop for CallCopies {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            self.made.values().for_each(|(copy, _)| folder.forget(*copy));
        }
    }
}

/// Copies as many bytes as the file has at first, at most [`MAX_FILE`]: it may grow.
fn copy_file(request: &CopyRequest, folder: &CopyFolder) -> io::Result<(MadeCopy, FileVersion)> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source: File =
        rustix::fs::openat2(&request.folder, &request.name, flags, Mode::empty(), BENEATH)?.into();
    let stat = rustix::fs::fstat(&source)?;
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || size > MAX_FILE {
        return Err(io::Error::other("another file has its name"));
    }
    let copy = if size <= MAX_SHARED {
        let mut content = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
        (&source).take(size).read_to_end(&mut content)?;
        folder.add(&content)?
    } else {
        let number = folder.reserve();
        if let Err(error) = copy_large(&source, size, &folder.path(number)) {
            folder.remove(number);
            return Err(error);
        }
        MadeCopy::File(number)
    };
    Ok((copy, FileVersion::new(&stat)))
}

fn copy_large(source: &File, size: u64, target: &Path) -> io::Result<()> {
    let target = File::create_new(target)?;
    // A clone is of one moment, but the file may have grown before.
    if rustix::fs::ioctl_ficlone(&target, source).is_ok() {
        target.set_len(size)
    } else {
        io::copy(&mut source.take(size), &mut &target).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
        folder: Arc<CopyFolder>,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("records")).unwrap();
            let folder = Arc::new(CopyFolder::new(dir.path().join("records")));
            Self { dir, folder }
        }

        fn write(&self, name: &str, content: &[u8]) {
            fs::write(self.dir.path().join(name), content).unwrap();
        }

        fn copies(&self, names: &[&str]) -> CallCopies {
            let mut copies = CallCopies::new(Some(Arc::clone(&self.folder)));
            let request = |name: &&str| CopyRequest {
                folder: File::open(self.dir.path()).unwrap().into(),
                name: name.into(),
                path: name.into(),
            };
            copies.make(names.iter().map(request).collect(), || true);
            copies
        }

        fn find(&self, copies: &CallCopies, name: &str) -> Option<CopyPlace> {
            let stat = rustix::fs::stat(self.dir.path().join(name)).unwrap();
            match copies.find(Path::new(name), &stat) {
                CopyLookup::Copy(place) => Some(place),
                CopyLookup::Failed(why) => panic!("{why}"),
                CopyLookup::Missing => None,
            }
        }

        fn files(&self) -> Vec<String> {
            let entries = fs::read_dir(self.dir.path().join("records")).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<_> = names.collect();
            names.sort();
            names
        }
    }

    #[test]
    fn small_copies_share_a_file() {
        let fixture = Fixture::new();
        fixture.write("a", b"first");
        fixture.write("empty", b"");
        fixture.write("large", "x".repeat(64 * 1024 + 1).as_bytes());
        fixture.write("b", b"second");
        let copies = fixture.copies(&["a", "empty", "large", "b"]);
        for (name, expected) in [
            ("a", CopyPlace::Part { start: 0, length: 5 }),
            ("empty", CopyPlace::Part { start: 5, length: 0 }),
            ("large", CopyPlace::File(0)),
            ("b", CopyPlace::Part { start: 5, length: 6 }),
        ] {
            assert_eq!(fixture.find(&copies, name), Some(expected), "{name}");
        }
        let shared = fixture.folder.path.join("0.copies");
        assert_eq!(
            (fixture.files(), fs::read(shared).unwrap()),
            (vec!["0".into(), "0.copies".into()], b"firstsecond".into())
        );
        drop(copies);
        assert_eq!(fixture.files(), ["0.copies"]);
    }

    #[test]
    fn record_takes_no_small_copy_of_an_earlier_one() {
        let fixture = Fixture::new();
        fixture.write("a", b"content");
        let copies = fixture.copies(&["a"]);
        fixture.folder.begin_record(0);
        assert!(fixture.find(&copies, "a").is_some(), "the same record");
        fixture.folder.begin_record(1);
        assert_eq!(fixture.find(&copies, "a"), None);
        assert_eq!(fixture.find(&fixture.copies(&["a"]), "a"), Some(CopyPlace::Part { start: 0, length: 7 }));
        assert_eq!(fixture.files(), ["0.copies", "1.copies"]);
    }

    #[test]
    fn bytes_of_outdated_copies_are_used_again() {
        let fixture = Fixture::new();
        fixture.write("a", b"old content");
        let copies = fixture.copies(&["a"]);
        let path = fixture.dir.path().join("a");
        OpenOptions::new().write(true).truncate(true).open(path).unwrap();
        assert_eq!(fixture.find(&copies, "a"), None, "the file has changed");
        drop(copies);
        fixture.write("b", b"b");
        let copies = fixture.copies(&["b"]);
        assert_eq!(fixture.find(&copies, "b"), Some(CopyPlace::Part { start: 0, length: 1 }));
    }
}
