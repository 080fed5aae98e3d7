//! Shared mappings of files, as `/proc` lists them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use crate::kernel;
use crate::supervisor::broker::tracee::own_path;
use crate::supervisor::children::{start_time, whole_family};

/// A file as these lists name it. On overlayfs both can differ from those of `stat`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct MappedFile {
    device: String,
    number: u64,
}

/// The shared mappings of all processes below this one.
#[derive(Debug)]
pub(super) struct SharedMappings {
    files: HashSet<MappedFile>,
    /// False if a process or its list may be missing: a new process can have a mapping of its parent.
    is_complete: bool,
}

impl SharedMappings {
    pub(super) fn of_descendants() -> Self {
        let before = StartTimes::of_descendants();
        let mut mappings = Self { files: HashSet::new(), is_complete: before.is_whole };
        for pid in before.times.keys() {
            match of_process(*pid) {
                Ok(files) => mappings.files.extend(files),
                Err(_) => mappings.is_complete = false,
            }
        }
        // Twice, because a process that starts while the list is read can be missing in it.
        for _ in 0..2 {
            mappings.is_complete &= StartTimes::of_descendants().has_none_but(&before);
        }
        mappings
    }

    /// Returns true if a process maps the file, or may do so. Mappings that can only be read count, too.
    pub(super) fn may_have(&self, file: &OwnedFd) -> bool {
        if !self.is_complete {
            return true;
        }
        !self.files.is_empty() && listed(file).is_none_or(|file| self.files.contains(&file))
    }
}

/// The processes below this one with the times of their starts, which tell apart processes of the same number.
struct StartTimes {
    times: HashMap<Pid, Option<u64>>,
    /// False if a process may be missing.
    is_whole: bool,
}

impl StartTimes {
    fn of_descendants() -> Self {
        let (pids, is_whole) = whole_family();
        Self { times: pids.into_iter().map(|pid| (pid, start_time(pid))).collect(), is_whole }
    }

    fn has_none_but(&self, others: &Self) -> bool {
        self.is_whole && self.times.iter().all(|(pid, start)| others.times.get(pid) == Some(start))
    }
}

/// Files of which the process has shared mappings.
pub(super) fn of_process(pid: Pid) -> io::Result<Vec<MappedFile>> {
    let threads = match fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(threads) => threads,
        Err(error) if is_over(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    // All threads have the same mappings, but the list of one that has ended is empty.
    for thread in threads {
        match fs::read_to_string(thread?.path().join("maps")) {
            Ok(list) if !list.is_empty() => return Ok(list.lines().filter_map(shared_file).collect()),
            Ok(_) => {}
            Err(error) if is_over(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Vec::new())
}

pub(super) fn is_over(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Reads a line such as `7f3a-7f3b rw-s 00000000 fe:00 1234 /path`, of a shared mapping of a file.
fn shared_file(line: &str) -> Option<MappedFile> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let is_shared = fields.next()?.ends_with('s');
    let (device, number) = (fields.nth(1)?, fields.next()?.parse().ok()?);
    (is_shared && number != 0).then(|| MappedFile { device: device.to_owned(), number })
}

/// Maps the file, and finds it in the list of this process.
pub(super) fn listed(file: &OwnedFd) -> Option<MappedFile> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(own_path(file), flags, Mode::empty()).ok()?;
    let list = kernel::while_mapped(file.as_fd(), |address| {
        let list = fs::read_to_string("/proc/self/maps").ok()?;
        let start = format!("{address:x}-");
        list.lines().find(|line| line.trim_start_matches('0').starts_with(&start)).map(str::to_owned)
    });
    shared_file(&list.ok()??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_mappings_are_read() {
        let file = |device: &str, number| Some(MappedFile { device: device.into(), number });
        for (line, expected) in [
            ("7f3a-7f3b rw-s 00000000 fe:00 1234   /a b", file("fe:00", 1234)),
            ("7f3a-7f3b r--s 00001000 00:2a 9      /x (deleted)", file("00:2a", 9)),
            ("7f3a-7f3b rw-p 00000000 fe:00 1234   /x", None),
            ("7f3a-7f3b rw-p 00000000 00:00 0      [heap]", None),
            ("7f3a-7f3b rw-s 00000000", None),
            ("", None),
        ] {
            assert_eq!(shared_file(line), expected, "{line}");
        }
    }

    #[test]
    fn file_is_listed_as_stat_names_it_on_a_plain_file_system() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::tempfile().unwrap();
        let number = file.metadata().unwrap().ino();
        assert_eq!(listed(&OwnedFd::from(file)).map(|file| file.number), Some(number));
    }
}
