//! Lists entries without reading files or following links.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use cap_std::fs::Metadata;
use ignore::overrides::Override;
use tokio_util::sync::CancellationToken;

use crate::permission::Target;
use crate::platform::files::{Times, mode, number, times};
use crate::workspace::{Ignoring, Walk, WalkEntry, WalkOptions, Workspace};

/// Limits of a snapshot: entries, and bytes in copied files.
pub(super) const MAX_ENTRIES: usize = 30_000;
pub(super) const MAX_BYTES: u64 = 256 * 1024 * 1024;

pub(super) const MAX_FILE: u64 = 4 * 1024 * 1024;
pub(super) const TOO_LARGE: &str = "is larger than 4 MiB";

/// Equal fingerprints mean an equal entry, if the fingerprint is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// Device number and inode number.
    place: (u64, u64),
    pub(super) size: u64,
    times: Times,
    pub(super) mode: u32,
}

impl Fingerprint {
    pub(super) fn of(metadata: &Metadata) -> Self {
        let (place, times) = (number(metadata), times(metadata));
        Self { place, size: metadata.len(), times, mode: mode(metadata) }
    }

    /// True if the last change is more than two seconds before `now`, in seconds since 1970. A later change
    /// then has another time, even if the file system counts in steps of two seconds. Never true where programs
    /// can set all times of a file.
    pub(super) fn is_settled(&self, now: u64) -> bool {
        self.times.changed.is_some_and(|(seconds, _)| u64::try_from(seconds).unwrap_or_default() + 2 < now)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    File,
    Folder,
    Link(PathBuf),
    /// Changes are detected but cannot be undone. The reason follows the path's name: `is …`.
    Unknown(&'static str),
}

#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) target: Target,
    pub(super) print: Fingerprint,
    pub(super) what: What,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Cancelled,
    TooMuch,
    TooDeep,
}

/// Skips ignored files, version control files and the folder `without`.
pub(super) fn scan(
    workspace: &Workspace,
    without: &Path,
    cancel: &CancellationToken,
) -> Result<BTreeMap<PathBuf, Seen>, Stop> {
    let mut seen = BTreeMap::new();
    let mut bytes = 0;
    for root in workspace.roots() {
        let options = WalkOptions {
            globs: Override::empty(),
            depth: None,
            // Changes of other rule files would go unnoticed; see `ignore_rules`.
            ignoring: Ignoring::Gitignore,
            without: Some(without.to_owned()),
        };
        let Ok(mut walk) = Walk::new(&workspace.place(root.clone()), options) else { continue };
        for entry in walk.by_ref() {
            if cancel.is_cancelled() {
                return Err(Stop::Cancelled);
            }
            // The entry may be gone.
            let Ok(found) = inspect(workspace, &entry) else { continue };
            if found.what == What::File {
                bytes += found.print.size;
            }
            seen.insert(found.target.path.clone(), found);
            if seen.len() > MAX_ENTRIES || bytes > MAX_BYTES {
                return Err(Stop::TooMuch);
            }
        }
        if walk.is_cut() {
            return Err(Stop::TooDeep);
        }
    }
    Ok(seen)
}

fn inspect(workspace: &Workspace, entry: &WalkEntry) -> io::Result<Seen> {
    let metadata = entry.metadata()?;
    let target = workspace.place(entry.path.clone());
    let content = match what(&metadata) {
        _ if target.path.to_str().is_none() => What::Unknown("has a name that is not UTF-8"),
        What::Link(_) => {
            let to = entry.link()?;
            if to.to_str().is_some() {
                What::Link(to)
            } else {
                What::Unknown("leads to a name that is not UTF-8")
            }
        }
        what => what,
    };
    Ok(Seen { target, print: Fingerprint::of(&metadata), what: content })
}

fn what(metadata: &Metadata) -> What {
    if metadata.is_symlink() {
        What::Link(PathBuf::new())
    } else if metadata.is_dir() {
        What::Folder
    } else if !metadata.is_file() {
        What::Unknown("is neither a file nor a folder nor a link")
    } else if metadata.len() > MAX_FILE {
        What::Unknown(TOO_LARGE)
    } else {
        What::File
    }
}
