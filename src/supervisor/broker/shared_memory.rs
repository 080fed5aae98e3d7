//! Shared memory of the command. Names, for `shm_open` and `sem_open`, are files in `/dev/shm`. A command may change
//! those that it has made, under every policy, because they are memory of its own processes. They are removed with it,
//! as are its System V segments.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat};

use super::area::Area;
use super::made_files::MadeFiles;
use super::notification::{CallAnswer, SuspendedCall};
use super::operation::CallPath;
use super::resolve::ResolvedPath;
use super::segments::Segments;

mod calls;

const FOLDER: &str = "/dev/shm";

#[derive(Debug, Default)]
pub(super) struct SharedMemory {
    /// `None` if the system has no such folder.
    folder: Option<OwnedFd>,
    files: MadeFiles,
    segments: Segments,
}

impl SharedMemory {
    pub(super) fn of_system() -> Self {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self { folder: rustix::fs::open(FOLDER, flags, Mode::empty()).ok(), ..Self::default() }
    }

    /// `None` if the path is not written as that of a name in the folder. The C library writes it so.
    fn entry(&self, place: &CallPath) -> Option<ResolvedPath> {
        let name = place.path.strip_prefix(FOLDER).ok()?;
        let bytes = place.path.as_os_str().as_bytes();
        if name.components().count() != 1 || name == Path::new("..") || bytes.ends_with(b"/") {
            return None;
        }
        let folder = self.folder.as_ref()?.try_clone().ok()?;
        let name = name.as_os_str().to_owned();
        let path = Path::new(FOLDER).join(&name);
        Some(ResolvedPath { area: Area::Unrecorded, folder, is_sticky: true, name, path })
    }

    /// Like [`Self::entry`], for a file that the command has made.
    fn own_entry(&self, place: &CallPath) -> Option<ResolvedPath> {
        self.entry(place).filter(|entry| self.owns_entry(entry))
    }

    fn owns_entry(&self, entry: &ResolvedPath) -> bool {
        let stat = rustix::fs::statat(&entry.folder, &entry.name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| self.owns(&stat))
    }

    pub(super) fn owns(&self, stat: &Stat) -> bool {
        self.files.contain(stat)
    }

    /// Answers calls for System V segments.
    pub(super) fn answer(&self, call: &SuspendedCall) -> Option<CallAnswer> {
        self.segments.answer(call)
    }

    /// Removes the names and segments that are left. All processes of the command are gone.
    pub(super) fn clear(&self) {
        self.segments.clear();
        let Some(folder) = &self.folder else { return };
        for entry in Dir::read_from(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
            if stat.is_ok_and(|stat| self.owns(&stat)) {
                // Another program may have removed it.
                let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_in_the_folder_are_taken() {
        let memory = SharedMemory::of_system();
        for (path, is_name) in [
            ("/dev/shm/sem.x", true),
            ("/dev/shm/..x", true),
            ("/dev//shm/x", true),
            ("/dev/shm/x/", false),
            ("/dev/shm/", false),
            ("/dev/shm/..", false),
            ("/dev/shm/../null", false),
            ("/dev/shm/a/b", false),
            ("/dev/shmx", false),
            ("dev/shm/x", false),
            ("x", false),
        ] {
            let place = CallPath { folder: None, path: path.into() };
            assert_eq!(memory.entry(&place).is_some(), is_name, "{path}");
        }
    }
}
