//! Finds the calls that the sandbox refuses although the user could make them, for a report to Modegate. Decides
//! nothing.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};

use super::area::Area;
use super::network_call::{NetworkCall, network_call};
use super::notification::SuspendedCall;
use super::operation::{self, CallPath, FileOperation, FileReference};
use super::resolve::{self, Roots};
use super::tracee::{self, Tracee};
use super::unix_address::{self, UnixAddress};
use crate::sandbox;
use crate::supervisor::protocol::RefusalKind;

/// Most reports until [`RefusedCalls::clear`].
const MAX_REPORTED: usize = 64;

/// Folders whose files stand for processes, devices and settings of the kernel.
const VIRTUAL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Calls that were reported.
#[derive(Debug, Default)]
pub(super) struct RefusedCalls(Mutex<HashSet<(RefusalKind, Option<PathBuf>)>>);

impl RefusedCalls {
    /// Returns true for a call that has to be reported.
    pub(super) fn add(&self, kind: RefusalKind, path: Option<&Path>) -> bool {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reported.len() < MAX_REPORTED && reported.insert((kind, path.map(Path::to_owned)))
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() >= MAX_REPORTED
    }

    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The kind of a call that every policy refuses. The filter suspends it only to have it reported.
pub(super) fn always_refused(call: &SuspendedCall) -> Option<RefusalKind> {
    if sandbox::REPORTED_TRACING.contains(&call.number) {
        Some(RefusalKind::Trace)
    } else if sandbox::REPORTED_NAMESPACES.contains(&call.number) || call.number == libc::SYS_clone {
        Some(RefusalKind::Namespace)
    } else {
        None
    }
}

/// The kind and path of a change that the call, if it runs, makes without the sandbox. `None` for other calls, and for
/// those that fail without the sandbox, too.
pub(super) fn refused_change(tracee: &Tracee<'_>, roots: &Roots) -> Option<(RefusalKind, PathBuf)> {
    if let Some(NetworkCall::Bind) = network_call(tracee.call) {
        return refused_socket(tracee, roots);
    }
    let memory = |address, length| tracee.memory(address, length);
    let operation = operation::operation(tracee.call, &memory)?;
    let changed = match &operation {
        FileOperation::Open { at, how } if how.writes() && !tracee::is_null_device(&at.path) => {
            vec![Operand { at, need: Need::Written }]
        }
        FileOperation::MakeFolder { at, .. }
        | FileOperation::MakeNode { at, .. }
        | FileOperation::MakeSymlink { at, .. }
        | FileOperation::Link { to: at, .. } => vec![Operand { at, need: Need::New }],
        FileOperation::Remove { at, .. } => vec![Operand { at, need: Need::Existing }],
        FileOperation::Rename { from, to, .. } => {
            vec![Operand { at: from, need: Need::Existing }, Operand { at: to, need: Need::Any }]
        }
        FileOperation::Truncate { object: FileReference::Path { place: at, .. }, .. } => {
            vec![Operand { at, need: Need::Written }]
        }
        FileOperation::Change { object: FileReference::Path { place: at, .. }, .. } => {
            vec![Operand { at, need: Need::Owned }]
        }
        FileOperation::Open { .. } | FileOperation::Truncate { .. } | FileOperation::Change { .. } => {
            Vec::new()
        }
    };
    let entries: Option<Vec<Entry>> = changed.iter().map(|operand| operand.entry(tracee)).collect();
    let entries = entries.filter(|entries| entries.iter().all(|entry| entry.is_permitted))?;
    entries.into_iter().find_map(|entry| Some((kind(&entry.path, roots)?, entry.path)))
}

fn refused_socket(tracee: &Tracee<'_>, roots: &Roots) -> Option<(RefusalKind, PathBuf)> {
    let UnixAddress::Path(path) = unix_address::read(tracee).ok()? else { return None };
    let at = CallPath { folder: None, path };
    let entry = Operand { at: &at, need: Need::New }.entry(tracee).filter(|entry| entry.is_permitted)?;
    Some((kind(&entry.path, roots)?, entry.path))
}

/// `None` if Landlock allows changing the file, or the policy does.
fn kind(path: &Path, roots: &Roots) -> Option<RefusalKind> {
    let is_virtual = VIRTUAL.iter().any(|folder| path.starts_with(folder));
    match roots.area_of(path) {
        Some(Area::Own) => None,
        Some(Area::Workspace | Area::Unrecorded) => Some(RefusalKind::Change),
        None => (!is_virtual || path.starts_with("/dev/shm")).then_some(RefusalKind::Outside),
    }
}

/// What the kernel demands of an entry and its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    New,
    Existing,
    Any,
    /// A writable file, or a new one.
    Written,
    /// An existing file of this user.
    Owned,
}

struct Operand<'a> {
    at: &'a CallPath,
    need: Need,
}

struct Entry {
    /// Without symbolic links, except for the last component of a path that does not follow it.
    path: PathBuf,
    /// True if the rights of the file and its folder permit the change.
    is_permitted: bool,
}

impl Operand<'_> {
    fn entry(&self, tracee: &Tracee<'_>) -> Option<Entry> {
        let (folder, name) = self.parts(tracee)?;
        let mut path = tracee::name_of(&folder).ok()?.join(&name);
        let stat = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let may_write =
            |name: &str| rustix::fs::accessat(&folder, name, Access::WRITE_OK, AtFlags::EACCESS).is_ok();
        let is_permitted = match (self.need, &stat) {
            (Need::New, Some(_)) | (Need::Existing | Need::Owned, None) => false,
            (Need::New | Need::Written, None) | (Need::Existing | Need::Any, _) => may_write("."),
            (Need::Owned, Some(stat)) => stat.st_uid == rustix::process::geteuid().as_raw(),
            (Need::Written, Some(_)) => {
                let flags = OFlags::PATH | OFlags::CLOEXEC;
                let file = rustix::fs::openat2(&folder, &name, flags, Mode::empty(), NO_MAGIC).ok()?;
                path = tracee::name_of(&file).ok()?;
                let stat = rustix::fs::fstat(&file).ok()?;
                let own_path = tracee::own_path(&file);
                FileType::from_raw_mode(stat.st_mode).is_file()
                    && rustix::fs::accessat(CWD, own_path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
            }
        };
        Some(Entry { path, is_permitted })
    }

    fn parts(&self, tracee: &Tracee<'_>) -> Option<(OwnedFd, OsString)> {
        let (parent, name) = resolve::split(&self.at.path)?;
        let base = if self.at.path.is_absolute() { None } else { Some(tracee.folder(self.at.folder).ok()?) };
        let base = base.as_ref().map_or(CWD, AsFd::as_fd);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat2(base, parent, flags, Mode::empty(), NO_MAGIC).ok()?;
        Some((folder, resolve::trim(name).to_owned()))
    }
}

const NO_MAGIC: ResolveFlags = ResolveFlags::NO_MAGICLINKS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_counted() {
        let calls = RefusedCalls::default();
        assert!(calls.add(RefusalKind::Trace, None) && !calls.add(RefusalKind::Trace, None));
        assert!(calls.add(RefusalKind::Namespace, None));
        for index in 0..100 {
            let added = calls.add(RefusalKind::Outside, Some(Path::new(&format!("/{index}"))));
            assert_eq!(added, index < MAX_REPORTED - 2, "{index}");
        }
        assert!(calls.is_full());
        calls.clear();
        assert!(calls.add(RefusalKind::Trace, None) && !calls.is_full());
    }

    #[test]
    fn kind_depends_on_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().canonicalize().unwrap().join(name);
        for name in ["work", "own"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        let roots = Roots::open(&[path("work")], &[], &[path("own")], &[]).unwrap();
        for (changed, expected) in [
            (path("work/a"), Some(RefusalKind::Change)),
            (path("own/a"), None),
            (path("other/a"), Some(RefusalKind::Outside)),
            ("/proc/1/comm".into(), None),
            ("/dev/null".into(), None),
            ("/dev/shm/a".into(), Some(RefusalKind::Outside)),
        ] {
            assert_eq!(kind(&changed, &roots), expected, "{changed:?}");
        }
    }
}
