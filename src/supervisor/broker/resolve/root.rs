//! A folder below which a command may change something.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::{BENEATH, FileIdentity, Look, identity, identity_of, inside, plain};
use crate::supervisor::broker::area::Area;

/// Types of file systems whose files stand for processes, devices and settings of the kernel: proc, sysfs, both
/// versions of cgroup, debugfs, tracefs, securityfs, bpf, configfs, devpts, efivarfs, selinuxfs and `binfmt_misc`.
const VIRTUAL_TYPES: [rustix::fs::FsWord; 13] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0x6265_6570,
    0x1cd1,
    0xde5e_81e4,
    0xf97c_ff8c,
    0x4249_4e4d,
];

/// The beginning of the names of Modegate's own folders in temporary folders.
const OWN_FOLDERS: &str = "modegate-";

#[derive(Debug)]
pub(super) struct Root {
    pub path: PathBuf,
    folder: OwnedFd,
    identity: FileIdentity,
    pub area: Area,
}

/// Puts the longest path first.
pub(super) fn sort(roots: &mut [Arc<Root>]) {
    roots.sort_by_key(|root| std::cmp::Reverse(root.path.components().count()));
}

impl Root {
    pub(super) fn open(path: &Path, area: Area) -> io::Result<Self> {
        Self::open_as_named(&path.canonicalize()?, area)
    }

    /// Fails if a part of the path is a symbolic link.
    pub(super) fn open_as_named(path: &Path, area: Area) -> io::Result<Self> {
        let path = plain(path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS;
        let folder = rustix::fs::openat2(rustix::fs::CWD, &path, flags, Mode::empty(), resolve)?;
        let identity = identity(&folder)?;
        Ok(Self { path, folder, identity, area })
    }

    /// Returns true for a folder that Modegate made in a temporary folder, such as that of another session's agent, and
    /// for what is in it.
    pub(super) fn is_of_modegate(&self, path: &Path) -> bool {
        if self.area != Area::Unrecorded {
            return false;
        }
        let name = inside(path, &self.path).and_then(|inside| inside.iter().next()?.to_str());
        let id = name.and_then(|name| name.strip_prefix(OWN_FOLDERS));
        id.is_some_and(|id| id.parse::<uuid::Uuid>().is_ok())
    }

    /// Returns true if a file on a device belongs to a virtual file system that is mounted below the root.
    pub(super) fn excludes(&self, device: u64, file: &OwnedFd) -> bool {
        device != self.identity.0
            && rustix::fs::fstatfs(file).map_or(true, |system| VIRTUAL_TYPES.contains(&system.f_type))
    }

    /// Opens a folder below the root, or the root itself.
    pub(super) fn folder(&self, inside: &Path) -> Look<(OwnedFd, FileIdentity)> {
        if inside.as_os_str().is_empty() {
            // Opening it again takes longer.
            return self
                .folder
                .try_clone()
                .map_or(Look::Elsewhere, |folder| Look::Found((folder, self.identity)));
        }
        match self.look(inside, OFlags::DIRECTORY) {
            Look::Found((folder, stat)) => Look::Found((folder, identity_of(&stat))),
            Look::Elsewhere => Look::Elsewhere,
            Look::Changed => Look::Changed,
        }
    }

    /// Opens what is below the root, or the root itself.
    pub(super) fn look(&self, inside: &Path, flags: OFlags) -> Look<(OwnedFd, Stat)> {
        let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        let file = match rustix::fs::openat2(&self.folder, inside, flags, Mode::empty(), BENEATH) {
            Ok(file) => file,
            // `XDEV`: another program has moved it out of the root.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Look::Changed,
            Err(_) => return Look::Elsewhere,
        };
        match rustix::fs::fstat(&file) {
            Ok(stat) if !self.excludes(stat.st_dev, &file) => Look::Found((file, stat)),
            _ => Look::Elsewhere,
        }
    }
}
