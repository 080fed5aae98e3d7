//! From a path of the caller to a directory entry below a root.
//!
//! The kernel resolves the caller's path only to learn a name. The folder of that name is then opened again from
//! the root's descriptor, without symbolic links, and only this second descriptor is used. Whatever the caller
//! renames or replaces meanwhile, the entry is below the root.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::area::Area;
use super::operation::{CallPath, FileReference};
use super::tracee::{self, Tracee};
use direct::FolderNames;
use parts::{inside, plain};
pub(super) use parts::{split, trim};
use root::Root;

mod direct;
mod parts;
mod root;

/// The kernel follows as many symbolic links.
const MAX_LINKS: usize = 40;

/// Most looks for a file whose names change. A change takes the command far longer than a look takes the broker.
pub(super) const MAX_LOOKS: usize = 128;

/// The system's own files below `/`, whose names can lead to this process.
const VIRTUAL: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Device and number of a file.
pub(super) type FileIdentity = (u64, u64);

#[derive(Debug)]
pub(in crate::supervisor) struct Roots {
    /// Longest first, so that a root inside another one decides.
    open: RwLock<Vec<Arc<Root>>>,
    /// Unrecorded folders that did not exist.
    missing: Mutex<Vec<PathBuf>>,
    protected: Vec<PathBuf>,
    names: FolderNames,
}

/// A directory entry below a root, which may not exist.
#[derive(Debug)]
pub(super) struct ResolvedPath {
    pub(super) area: Area,
    pub(super) folder: OwnedFd,
    /// True if users may not change each other's entries in the folder, or if that is unknown.
    pub(super) is_sticky: bool,
    /// One component, which may end with slashes.
    pub(super) name: OsString,
    /// Without symbolic links.
    pub(super) path: PathBuf,
}

/// An existing file below a root.
#[derive(Debug)]
pub(super) struct ResolvedFile {
    pub(super) area: Area,
    /// True for the root itself.
    pub(super) is_root: bool,
    /// True for a folder whose rights decide whether something protected can be read.
    pub(super) leads_to_protected: bool,
    /// Opened with `O_PATH`.
    pub(super) file: OwnedFd,
    pub(super) stat: Stat,
    /// Where it was found. `None` if it was found by its own name.
    pub(super) entry: Option<ResolvedPath>,
}

impl ResolvedPath {
    pub(super) fn is_brokered(&self) -> bool {
        self.area.is_brokered()
    }

    /// The present state of the entry.
    pub(super) fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.folder, trim(&self.name), AtFlags::SYMLINK_NOFOLLOW)
    }
}

impl Roots {
    pub(in crate::supervisor) fn open(
        workspace: &[PathBuf],
        unrecorded: &[PathBuf],
        own: &[PathBuf],
        protected: &[PathBuf],
    ) -> io::Result<Self> {
        let places = workspace.iter().map(|path| (path, Area::Workspace));
        // The user can have removed a cache.
        let (unrecorded, missing): (Vec<_>, Vec<_>) = unrecorded.iter().partition(|path| path.is_dir());
        let places = places.chain(unrecorded.into_iter().map(|path| (path, Area::Unrecorded)));
        let places = places.chain(own.iter().map(|path| (path, Area::Own)));
        let roots = places.map(|(path, area)| Root::open(path, area).map(Arc::new));
        let mut roots = roots.collect::<io::Result<Vec<_>>>()?;
        root::sort(&mut roots);
        let is_below = |path: &PathBuf| roots.iter().any(|root| path.starts_with(&root.path));
        let mut all: Vec<PathBuf> = VIRTUAL.iter().map(PathBuf::from).filter(is_below).collect();
        all.extend(protected.iter().flat_map(|path| names(path)).map(|path| plain(&path)));
        let missing = Mutex::new(missing.into_iter().cloned().collect());
        Ok(Self { open: RwLock::new(roots), missing, protected: all, names: FolderNames::default() })
    }

    /// Opens unrecorded folders that were made since. A path with a symbolic link is none of them: the command can have
    /// made the link.
    pub(super) fn open_made(&self) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut made = Vec::new();
        missing.retain(|path| match Root::open_as_named(path, Area::Unrecorded) {
            Ok(root) => {
                made.push(Arc::new(root));
                false
            }
            Err(_) => true,
        });
        if !made.is_empty() {
            let mut roots = self.open.write().unwrap_or_else(PoisonError::into_inner);
            roots.append(&mut made);
            root::sort(&mut roots);
        }
    }

    fn roots(&self) -> RwLockReadGuard<'_, Vec<Arc<Root>>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves all but the last component. Returns `None` for an entry that is not below a root or is
    /// protected, and for paths that end in `.` or `..`.
    ///
    /// # Errors
    /// Returns the kernel's error for the caller's path.
    pub(super) fn entry(
        &self,
        tracee: &Tracee<'_>,
        place: &CallPath,
        resolve: ResolveFlags,
    ) -> Result<Option<ResolvedPath>, Errno> {
        if resolve.is_empty()
            && let Some(entry) = self.direct_entry(tracee, place)
        {
            return Ok(Some(entry));
        }
        let base = base(tracee, place, resolve)?;
        look_until_settled(|| self.entry_from(base.as_ref().map(AsFd::as_fd), &place.path, resolve))
    }

    /// Resolves a path from a folder; `None` is a folder that an absolute path does not need.
    fn entry_from(
        &self,
        base: Option<BorrowedFd<'_>>,
        path: &Path,
        resolve: ResolveFlags,
    ) -> Result<Look<ResolvedPath>, Errno> {
        let Some((parent, name)) = split(path) else { return Ok(Look::Elsewhere) };
        let folder = open_path(base, parent, OFlags::DIRECTORY, resolve)?;
        // Fails if the caller may not look for names in the folder.
        let stat = rustix::fs::statat(&folder, ".", AtFlags::empty())?;
        match self.entry_below(&tracee::name_of(&folder)?, name) {
            Look::Found((entry, found)) if found == identity_of(&stat) => {
                Ok(Look::Found(ResolvedPath { is_sticky: is_sticky(&stat), ..entry }))
            }
            Look::Elsewhere => Ok(Look::Elsewhere),
            // A deleted folder has the name of another one, and nothing is made in it.
            _ if rustix::fs::fstat(&folder)?.st_nlink == 0 => Err(Errno::NOENT),
            _ => Ok(Look::Changed),
        }
    }

    /// The entry `name` of the folder `parent`, whose path has no symbolic links, and the identity of the folder.
    fn entry_below(&self, parent: &Path, name: &OsStr) -> Look<(ResolvedPath, FileIdentity)> {
        let path = parent.join(trim(name));
        let Some((root, inside)) = self.root_of(parent) else { return Look::Elsewhere };
        if self.is_protected(&path) || root.is_of_modegate(&path) {
            return Look::Elsewhere;
        }
        match root.folder(inside) {
            Look::Found((folder, identity)) => {
                let (area, name) = (root.area, name.to_owned());
                Look::Found((ResolvedPath { area, folder, is_sticky: true, name, path }, identity))
            }
            Look::Elsewhere => Look::Elsewhere,
            Look::Changed => Look::Changed,
        }
    }

    /// The root that decides about a path without symbolic links, and the rest of the path.
    fn root_of<'p>(&self, path: &'p Path) -> Option<(Arc<Root>, &'p Path)> {
        self.roots().iter().find_map(|root| Some((Arc::clone(root), inside(path, &root.path)?)))
    }

    fn is_protected(&self, path: &Path) -> bool {
        self.protected.iter().any(|protected| inside(path, protected).is_some())
    }

    /// Who decides about a path without symbolic links. `None` if it is not below a root.
    pub(super) fn area_of(&self, path: &Path) -> Option<Area> {
        self.roots().iter().find(|root| inside(path, &root.path).is_some()).map(|root| root.area)
    }

    /// Returns true if the path, which has no symbolic links, is below a root.
    pub(super) fn contains_path(&self, path: &Path) -> bool {
        self.area_of(path).is_some()
    }

    /// Returns true if a change of the path could move or replace something that is protected.
    pub(super) fn leads_to_protected(&self, path: &Path) -> bool {
        self.protected.iter().any(|protected| inside(protected, path).is_some())
    }

    /// Like [`Self::entry`], for an entry that is opened: symbolic links are followed, also one that leads to
    /// nothing.
    pub(super) fn entry_to_open(
        &self,
        tracee: &Tracee<'_>,
        place: &CallPath,
        resolve: ResolveFlags,
    ) -> Result<Option<ResolvedPath>, Errno> {
        if let Some(number) = tracee::named_descriptor(&place.path).filter(|_| resolve.is_empty()) {
            return Ok(self.of_descriptor(&tracee.named(number)?));
        }
        if resolve.is_empty()
            && let Some(entry) = self.direct_entry(tracee, place)
            && link_target(&entry.folder, &entry.name)?.is_none()
        {
            return Ok(Some(entry));
        }
        let base = base(tracee, place, resolve)?;
        look_until_settled(|| self.entry_to_open_from(base.as_ref().map(AsFd::as_fd), &place.path, resolve))
    }

    /// Follows the symbolic links at the end of the path, which may lead to a root from elsewhere.
    fn entry_to_open_from(
        &self,
        base: Option<BorrowedFd<'_>>,
        path: &Path,
        resolve: ResolveFlags,
    ) -> Result<Look<ResolvedPath>, Errno> {
        let mut path = path.to_owned();
        // The folder of the last link.
        let mut folder = None;
        for _ in 0..MAX_LINKS {
            let base = folder.as_ref().map(AsFd::as_fd).or(base);
            let (link_folder, target) = match self.entry_from(base, &path, resolve)? {
                Look::Changed => return Ok(Look::Changed),
                Look::Found(entry) => match link_target(&entry.folder, &entry.name)? {
                    Some(target) => (entry.folder, target),
                    None => return Ok(Look::Found(entry)),
                },
                Look::Elsewhere => match link_elsewhere(base, &path, resolve)? {
                    Some(link) => link,
                    None => return Ok(Look::Elsewhere),
                },
            };
            // The kernel does not follow every link: not every user's in a folder such as `/tmp`, and not those that
            // the flags exclude.
            if let Err(error @ (Errno::ACCESS | Errno::LOOP | Errno::XDEV)) =
                open_path(base, &path, OFlags::empty(), resolve)
            {
                return Err(error);
            }
            if resolve.is_empty() {
                folder = Some(link_folder);
                path = target;
            } else {
                // The flags are about the folder from which the whole path is resolved.
                path = split(&path).map_or(target.clone(), |(parent, _)| parent.join(target));
            }
        }
        Err(Errno::LOOP)
    }

    /// The entry of an open file, if one of its names leads to it.
    pub(super) fn of_descriptor(&self, file: &OwnedFd) -> Option<ResolvedPath> {
        look_until_settled(|| Ok(self.entry_of(file))).ok().flatten()
    }

    fn entry_of(&self, file: &OwnedFd) -> Look<ResolvedPath> {
        let Ok(stat) = rustix::fs::fstat(file) else { return Look::Elsewhere };
        let Some(path) = tracee::name_of(file).ok().filter(|_| stat.st_nlink > 0) else {
            return Look::Elsewhere;
        };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Look::Elsewhere };
        match self.entry_below(parent, name) {
            Look::Found((entry, _)) if entry.stat().is_ok_and(|named| is_same(&named, &stat)) => {
                Look::Found(entry)
            }
            Look::Found(_) | Look::Changed => Look::Changed,
            Look::Elsewhere => Look::Elsewhere,
        }
    }

    /// Resolves an existing file.
    pub(super) fn file(
        &self,
        tracee: &Tracee<'_>,
        object: &FileReference,
        resolve: ResolveFlags,
    ) -> Result<Option<ResolvedFile>, Errno> {
        if resolve.is_empty()
            && let Some(file) = self.direct_file(tracee, object)
        {
            return Ok(Some(file));
        }
        look_until_settled(|| self.look_at_file(tracee, object, resolve))
    }

    fn look_at_file(
        &self,
        tracee: &Tracee<'_>,
        object: &FileReference,
        resolve: ResolveFlags,
    ) -> Result<Look<ResolvedFile>, Errno> {
        let file = file_of_caller(tracee, object, resolve)?;
        let stat = rustix::fs::fstat(&file)?;
        let path = tracee::name_of(&file)?;
        let is_deleted = stat.st_nlink == 0 && path.as_os_str().as_bytes().ends_with(b" (deleted)");
        let is_unnamed = is_deleted && FileType::from_raw_mode(stat.st_mode).is_file();
        // There is nothing to ask about or to record.
        if is_unnamed && object.descriptor().is_some() {
            let (is_root, leads_to_protected) = (false, false);
            let area = Area::Own;
            let resolved = ResolvedFile { area, is_root, leads_to_protected, file, stat, entry: None };
            return Ok(Look::Found(resolved));
        }
        let Some((root, inside)) = self.root_of(&path) else { return Ok(Look::Elsewhere) };
        let is_shared_root = root.area == Area::Unrecorded && inside.as_os_str().is_empty();
        if is_shared_root || self.is_protected(&path) || root.is_of_modegate(&path) {
            return Ok(Look::Elsewhere);
        }
        Ok(match root.look(inside, OFlags::NOFOLLOW) {
            Look::Found((again, stat_again)) if is_same(&stat_again, &stat) => Look::Found(ResolvedFile {
                area: root.area,
                is_root: inside.as_os_str().is_empty(),
                leads_to_protected: self.leads_to_protected(&path),
                file: again,
                stat: stat_again,
                entry: None,
            }),
            Look::Found(_) | Look::Changed => Look::Changed,
            Look::Elsewhere => Look::Elsewhere,
        })
    }
}

/// The file that a call is about, by a path descriptor.
fn file_of_caller(
    tracee: &Tracee<'_>,
    object: &FileReference,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let (place, follows_link) = match object {
        FileReference::Descriptor(number) => return tracee.descriptor(*number),
        FileReference::Path { place, .. } if place.path.as_os_str().is_empty() => return Err(Errno::NOENT),
        FileReference::Path { place, follows_link } => (place, *follows_link),
    };
    if let Some(number) = tracee::named_descriptor(&place.path)
        && follows_link
        && resolve.is_empty()
    {
        return tracee.named(number);
    }
    let base = base(tracee, place, resolve)?;
    let no_follow = if follows_link { OFlags::empty() } else { OFlags::NOFOLLOW };
    open_path(base.as_ref().map(AsFd::as_fd), &place.path, no_follow, resolve)
}

/// Result of a look for a file, whose names another thread may change.
enum Look<T> {
    Found(T),
    /// Not below a root, or protected.
    Elsewhere,
    /// Another file has the name by now, or none.
    Changed,
}

/// Looks until the names stay the same for a look. `None` is elsewhere, or a file whose names keep changing: Landlock
/// decides about both.
fn look_until_settled<T>(look: impl Fn() -> Result<Look<T>, Errno>) -> Result<Option<T>, Errno> {
    for _ in 0..MAX_LOOKS {
        match look()? {
            Look::Found(found) => return Ok(Some(found)),
            Look::Elsewhere => break,
            Look::Changed => {}
        }
    }
    Ok(None)
}

/// The path, and its name after each symbolic link on the way. Its last components may not exist.
fn names(path: &Path) -> Vec<PathBuf> {
    let mut names = vec![path.to_owned()];
    let (mut real, mut rest) = (PathBuf::from("/"), reversed(path));
    while let Some(part) = rest.pop() {
        if part == ".." {
            real.pop();
            continue;
        }
        let at = real.join(part);
        match at.read_link() {
            Ok(target) if names.len() <= MAX_LINKS => {
                names.push(rest.iter().rev().fold(at, |path, part| path.join(part)));
                if target.is_absolute() {
                    real = PathBuf::from("/");
                }
                rest.extend(reversed(&target));
            }
            _ => real = at,
        }
    }
    names.push(real);
    names
}

/// The components of a path but the root, the last one first.
fn reversed(path: &Path) -> Vec<OsString> {
    path.iter().rev().filter(|part| *part != "/").map(OsStr::to_owned).collect()
}

/// Where an entry leads, with a slash if its name has one. `None` if it is no symbolic link, or does not exist.
fn link_target(folder: &OwnedFd, name: &OsStr) -> Result<Option<PathBuf>, Errno> {
    let trimmed = trim(name);
    match rustix::fs::readlinkat(folder, trimmed, Vec::new()) {
        Ok(target) => {
            let mut target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            if trimmed != name {
                target.push("");
            }
            Ok(Some(target))
        }
        Err(Errno::INVAL | Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The folder and the target of a symbolic link that is not below a root.
fn link_elsewhere(
    base: Option<BorrowedFd<'_>>,
    path: &Path,
    resolve: ResolveFlags,
) -> Result<Option<(OwnedFd, PathBuf)>, Errno> {
    let Some((parent, name)) = split(path) else { return Ok(None) };
    let folder = open_path(base, parent, OFlags::DIRECTORY, resolve)?;
    Ok(link_target(&folder, name)?.map(|target| (folder, target)))
}

/// Resolves a path from a folder; `None` is a folder that an absolute path does not need.
fn open_path(
    base: Option<BorrowedFd<'_>>,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let resolve = resolve | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(base.unwrap_or(rustix::fs::CWD), path, flags, Mode::empty(), resolve)
}

/// Never leaves the folder from which a path is resolved.
pub(super) const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The folder of a relative path. With flags such as `RESOLVE_IN_ROOT`, absolute paths have one too.
fn base(tracee: &Tracee<'_>, place: &CallPath, resolve: ResolveFlags) -> Result<Option<OwnedFd>, Errno> {
    if place.path.as_os_str().is_empty() {
        return Err(Errno::NOENT);
    }
    if place.path.is_absolute() && resolve.contains(ResolveFlags::BENEATH) {
        return Err(Errno::XDEV);
    }
    let is_confined = resolve.intersects(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT);
    if place.path.is_absolute() && !is_confined {
        return Ok(None);
    }
    tracee.folder(place.folder).map(Some)
}

pub(super) fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// The file's device and number, which no other existing file has.
pub(super) fn identity(file: &OwnedFd) -> Result<FileIdentity, Errno> {
    rustix::fs::fstat(file).as_ref().map(identity_of).map_err(|error| *error)
}

fn is_sticky(folder: &Stat) -> bool {
    Mode::from_raw_mode(folder.st_mode).contains(Mode::SVTX)
}

pub(super) fn identity_of(stat: &Stat) -> FileIdentity {
    (stat.st_dev, stat.st_ino)
}
