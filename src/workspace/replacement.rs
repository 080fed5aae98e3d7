//! Replaces and removes entries of a folder, and notices a program that changes them meanwhile.
//!
//! The last comparison follows the change: the entry that was there is under a temporary name then. If a program has
//! saved it in between, it gets its place back. A program that keeps the file open and writes later is not noticed.

use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cap_std::fs::{Dir, Metadata};

use super::FileState;
use super::faults::{self, Point};
use super::inspect::{InspectedPath, inspect_in};
use crate::platform::files::{Times, exchange, number, rename_to_new, times};

/// Two changes can share a time within this period, also on file systems with coarse times.
const COARSEST: Duration = Duration::from_secs(3);

/// Metadata of a file that change with its content.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileStamp {
    number: (u64, u64),
    length: u64,
    times: Times,
    /// Seconds since 1970.
    taken: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SwapOutcome {
    /// The entry that was there has the temporary name.
    Done,
    /// Another program has changed the entry. It is in its place.
    Changed,
    /// Another program has changed the entry. It has the temporary name, and cannot be put back.
    Stranded,
    /// The file system cannot swap entries. Nothing was done.
    Unsupported,
}

impl FileStamp {
    /// Take it before the content is read, so that it tells of every later change.
    pub(super) fn of(metadata: &Metadata) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            number: number(metadata),
            length: metadata.len(),
            times: times(metadata),
            taken: now.as_secs(),
        }
    }

    /// Returns true if the file certainly has the same content. A renamed file has another `changed` time.
    pub(super) fn is_same(&self, now: &Metadata, is_renamed: bool) -> bool {
        let (before, now) = (self.times, (number(now), now.len(), times(now)));
        let is_alike = (self.number, self.length, before.modified) == (now.0, now.1, now.2.modified)
            && (is_renamed || before.changed == now.2.changed);
        // A time of the system alone, which no program can set.
        let Some((changed, _)) = before.changed else { return false };
        let since = i128::from(self.taken) - i128::from(changed);
        is_alike && since > i128::from(COARSEST.as_secs())
    }
}

/// An entry of a folder, and a temporary name beside it: of the new file, or for the entry that was there.
pub(super) struct Swap<'a> {
    pub dir: &'a Dir,
    pub name: &'a OsStr,
    pub temporary: &'a str,
    /// The planned state of the entry. `None` if it is unknown.
    pub expected: Option<&'a FileState>,
}

impl Swap<'_> {
    /// Puts the temporary file in the place of the entry. `is_unchanged` compares the entry with its planned state.
    pub(super) fn replace(&self, is_unchanged: impl FnOnce(&Metadata) -> bool) -> io::Result<SwapOutcome> {
        let Self { dir, name, temporary, expected } = *self;
        let before = dir.symlink_metadata(name)?;
        let (fingerprint, own) = (FileStamp::of(&before), dir.symlink_metadata(temporary)?);
        if !is_unchanged(&before) {
            return Ok(SwapOutcome::Changed);
        }
        faults::check(Point::Rename)?;
        if !exchange(dir, temporary.as_ref(), name)? {
            return Ok(SwapOutcome::Unsupported);
        }
        if is_intact(dir, temporary, &fingerprint, expected) {
            return Ok(SwapOutcome::Done);
        }
        // Another program may put its file over ours: then that file goes back, too.
        while exchange(dir, temporary.as_ref(), name).is_ok() {
            match dir.symlink_metadata(temporary) {
                Ok(found) if number(&found) != number(&own) => {}
                _ => return Ok(SwapOutcome::Changed),
            }
        }
        // Another program has removed our file.
        match rename_to_new((dir, temporary.as_ref()), (dir, name)) {
            Ok(()) => Ok(SwapOutcome::Changed),
            Err(_) => Ok(SwapOutcome::Stranded),
        }
    }

    /// Moves the entry to the temporary name, from which the caller removes it.
    pub(super) fn set_aside(&self, is_unchanged: impl FnOnce(&Metadata) -> bool) -> io::Result<SwapOutcome> {
        let Self { dir, name, temporary, expected } = *self;
        let before = dir.symlink_metadata(name)?;
        let fingerprint = FileStamp::of(&before);
        if !is_unchanged(&before) {
            return Ok(SwapOutcome::Changed);
        }
        faults::check(Point::Rename)?;
        rename_to_new((dir, name), (dir, temporary.as_ref()))?;
        if is_intact(dir, temporary, &fingerprint, expected) {
            return Ok(SwapOutcome::Done);
        }
        match rename_to_new((dir, temporary.as_ref()), (dir, name)) {
            Ok(()) => Ok(SwapOutcome::Changed),
            Err(_) => Ok(SwapOutcome::Stranded),
        }
    }
}

fn is_intact(dir: &Dir, temporary: &str, before: &FileStamp, expected: Option<&FileState>) -> bool {
    let Ok(metadata) = dir.symlink_metadata(temporary) else { return false };
    if before.is_same(&metadata, true) {
        return true;
    }
    match (expected, inspect_in(dir, temporary.as_ref())) {
        (Some(expected), Ok(InspectedPath::State(state, _))) => state == *expected,
        (Some(_), _) => false,
        // Too large to compare, or not recorded: the same file, as far as its metadata tells.
        (None, _) => before.number == number(&metadata) && before.length == metadata.len(),
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::workspace::tests::{root, set_mode};

    #[test]
    fn fingerprints_tell_of_every_change_of_an_older_file() {
        let (_dir, root, _) = root();
        let dir = Dir::open_ambient_dir(&root, cap_std::ambient_authority()).unwrap();
        let look = || dir.symlink_metadata("a").unwrap();
        let acts: [fn(&std::path::Path); 3] = [
            |path| fs::write(path, "one").unwrap(),
            |path| set_mode(path, 0o600),
            |path| {
                fs::write(path.with_file_name("b"), "old").unwrap();
                fs::rename(path.with_file_name("b"), path).unwrap();
            },
        ];
        for act in acts {
            fs::write(root.join("a"), "old").unwrap();
            set_mode(&root.join("a"), 0o644);
            let young = FileStamp::of(&look());
            assert!(!young.is_same(&look(), false), "two changes can share a time");
            let old = FileStamp { taken: young.taken + 10, ..young };
            assert!(old.is_same(&look(), false));
            // Times have a coarse clock.
            std::thread::sleep(Duration::from_millis(20));
            act(&root.join("a"));
            assert!(!old.is_same(&look(), false));
        }
    }
}
