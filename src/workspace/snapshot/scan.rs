//! What stands in the session's folders, without the contents of files: one walk, which follows no link.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use cap_std::fs::Metadata;
use ignore::overrides::Override;
use tokio_util::sync::CancellationToken;

use crate::permission::Target;
use crate::workspace::inspect::mode;
use crate::workspace::{Entry, Walk, WalkOptions, Workspace};

/// Entries in all, and bytes of files that are copied in all, up to which the folders are covered.
pub(super) const MAX_ENTRIES: usize = 30_000;
pub(super) const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// The largest file that is copied, in bytes.
pub(super) const MAX_FILE: u64 = 4 * 1024 * 1024;
pub(super) const TOO_LARGE: &str = "is larger than 4 MiB";

/// What tells whether an entry has to be looked at again. Equal ones mean an equal entry, unless it changed a moment ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// Device and inode.
    place: (u64, u64),
    pub(super) size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
    /// The permission bits.
    pub(super) mode: u32,
}

impl Fingerprint {
    #[cfg(unix)]
    pub(super) fn of(metadata: &Metadata) -> Self {
        use cap_std::fs::MetadataExt;
        Self {
            place: (metadata.dev(), metadata.ino()),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            mode: mode(metadata),
        }
    }

    #[cfg(not(unix))]
    pub(super) fn of(metadata: &Metadata) -> Self {
        let since =
            |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let time = metadata.modified().map(|time| since(time.into_std())).unwrap_or_default();
        let modified = (time.as_secs().cast_signed(), i64::from(time.subsec_nanos()));
        Self { place: (0, 0), size: metadata.len(), modified, changed: modified, mode: mode(metadata) }
    }

    /// Whether it was a while ago, at a time in seconds since 1970, that the entry last changed: a change that came after
    /// the look can then not have the same time. Some file systems count in steps of two seconds.
    pub(super) fn is_settled(&self, now: u64) -> bool {
        u64::try_from(self.changed.0).unwrap_or_default() + 2 < now
    }
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// A regular file that can be copied.
    File,
    Folder,
    /// A symbolic link, and what it says.
    Link(PathBuf),
    /// It cannot be told what it is, only that it changes; why, after its name: `is …`.
    Unknown(&'static str),
}

/// What stands at a path.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) target: Target,
    pub(super) print: Fingerprint,
    pub(super) what: What,
}

/// Why there is no list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Cancelled,
    TooMuch,
    /// Folders lie too deep below one another to be walked.
    TooDeep,
}

/// Lists what stands below the roots, less what git ignores, version control's own files, and the folder `without`.
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
            hidden: true,
            // Rules that stand elsewhere than in `.gitignore` could change without being seen, see `rules`.
            gitignore_only: true,
            without: Some(without.to_owned()),
        };
        // What cannot be listed is found out when it is missed.
        let Ok(mut walk) = Walk::new(&workspace.place(root.clone()), options) else { continue };
        for entry in walk.by_ref() {
            if cancel.is_cancelled() {
                return Err(Stop::Cancelled);
            }
            // It may have vanished since it was listed.
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

fn inspect(workspace: &Workspace, entry: &Entry) -> io::Result<Seen> {
    let metadata = entry.metadata()?;
    let target = workspace.place(entry.path.clone());
    let what = match what(&metadata) {
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
    Ok(Seen { target, print: Fingerprint::of(&metadata), what })
}

/// What metadata say; where a link leads they do not.
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
