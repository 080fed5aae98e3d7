//! The direct way to an entry. Most paths have no symbolic links, so the name that the kernel would find is the path
//! itself. It is only a guess: the folder is opened from the root's descriptor without symbolic links, as on the long
//! way, and must be the folder to which the caller's path leads. Otherwise, and after any error, the long way decides.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{BENEATH, Look, ResolvedFile, ResolvedPath, Roots, identity_of, is_sticky, split, trim};
use crate::supervisor::broker::operation::{CallPath, FileReference};
use crate::supervisor::broker::tracee::Tracee;

/// Most folders whose names are remembered.
const MAX_NAMES: usize = 256;

/// Names that the folders of relative paths had: by the thread and its descriptor, or its working directory. Threads
/// change their folders and other threads get their numbers, so a name is no more than the first guess.
#[derive(Debug, Default)]
pub(super) struct FolderNames(Mutex<HashMap<(u32, Option<i32>), PathBuf>>);

impl FolderNames {
    fn get(&self, thread: u32, folder: Option<i32>) -> Option<PathBuf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(thread, folder)).cloned()
    }

    fn set(&self, thread: u32, folder: Option<i32>, name: &Path) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MAX_NAMES {
            names.clear();
        }
        names.insert((thread, folder), name.to_owned());
    }
}

impl Roots {
    /// An entry below a root, whose path has no symbolic links except perhaps for the last component.
    pub(in crate::supervisor::broker) fn direct_entry(
        &self,
        tracee: &Tracee<'_>,
        place: &CallPath,
    ) -> Option<ResolvedPath> {
        let (parent, name) = split(&place.path)?;
        if parent.is_absolute() {
            let expected = below(PathBuf::new(), parent).filter(|path| self.contains_path(path))?;
            return self.entry_in(&expected, name, &folder_stat(&parent.join(".")).ok()?);
        }
        let link = PathBuf::from(tracee.folder_link(place.folder));
        let thread = tracee.call.thread;
        let folder = OnceCell::new();
        let look = |base: PathBuf| {
            let expected = below(base, parent).filter(|path| self.contains_path(path))?;
            let folder = folder.get_or_init(|| folder_stat(&link.join(parent).join(".")));
            self.entry_in(&expected, name, folder.as_ref().ok()?)
        };
        self.names.get(thread, place.folder).and_then(look).or_else(|| {
            let base = std::fs::read_link(&link).ok()?;
            self.names.set(thread, place.folder, &base);
            look(base)
        })
    }

    /// The entry `name` of the folder at `expected`, if it is this folder.
    fn entry_in(&self, expected: &Path, name: &OsStr, folder: &Stat) -> Option<ResolvedPath> {
        match self.entry_below(expected, name) {
            Look::Found((entry, found)) if found == identity_of(folder) => {
                Some(ResolvedPath { is_sticky: is_sticky(folder), ..entry })
            }
            _ => None,
        }
    }

    /// The entry of another path, if both paths are in one folder. Otherwise `None`, and if rules of their own apply to it.
    pub(in crate::supervisor::broker) fn sibling(
        &self,
        entry: &ResolvedPath,
        [of, other]: [&CallPath; 2],
    ) -> Option<ResolvedPath> {
        let ((parent, _), (other_parent, name)) = (split(&of.path)?, split(&other.path)?);
        if of.folder != other.folder || parent != other_parent {
            return None;
        }
        let parent = entry.path.parent()?;
        let (path, (root, _)) = (parent.join(trim(name)), self.root_of(parent)?);
        if self.is_protected(&path) || root.is_of_modegate(&path) {
            return None;
        }
        let folder = entry.folder.try_clone().ok()?;
        Some(ResolvedPath {
            area: entry.area,
            folder,
            is_sticky: entry.is_sticky,
            name: name.to_owned(),
            path,
        })
    }

    /// Like [`Self::direct_entry`], for an existing file.
    pub(super) fn direct_file(&self, tracee: &Tracee<'_>, object: &FileReference) -> Option<ResolvedFile> {
        let FileReference::Path { place, follows_link } = object else { return None };
        let entry = self.direct_entry(tracee, place).filter(|entry| trim(&entry.name) == entry.name)?;
        let (root, inside) = self.root_of(&entry.path)?;
        // Roots in other roots have rules of their own.
        if inside.as_os_str().is_empty() {
            return None;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat2(&entry.folder, &entry.name, flags, Mode::empty(), BENEATH).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if root.excludes(stat.st_dev, &file) || is_link && *follows_link {
            return None;
        }
        let leads_to_protected = self.leads_to_protected(&entry.path);
        let area = entry.area;
        Some(ResolvedFile { area, is_root: false, leads_to_protected, file, stat, entry: Some(entry) })
    }
}

/// The folder to which a path of the caller leads. The path ends in `.`, so this fails if the caller may not look for
/// names in the folder.
fn folder_stat(path: &Path) -> Result<Stat, Errno> {
    rustix::fs::statat(CWD, path, AtFlags::empty())
}

/// A path below a folder, without `.`. `None` if it has `..`, which can leave the target of a symbolic link.
fn below(mut folder: PathBuf, path: &Path) -> Option<PathBuf> {
    for part in path.components() {
        match part {
            Component::RootDir | Component::Normal(_) => folder.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(folder)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::supervisor::broker::notification::{CallListener, SuspendedCall};

    /// Looks for entries of calls of this thread.
    struct Looker {
        roots: Roots,
        listener: CallListener,
        call: SuspendedCall,
    }

    impl Looker {
        fn new(root: &Path, protected: &Path) -> Self {
            let roots = Roots::open(&[root.to_owned()], &[], &[root.join("own")], &[protected.to_owned()]);
            let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            let call = SuspendedCall { id: 0, thread, number: 0, arguments: [0; 6] };
            // No call is suspended.
            let listener = CallListener::new(File::open("/dev/null").unwrap().into());
            Self { roots: roots.unwrap(), listener, call }
        }

        fn path(&self, folder: Option<&File>, path: impl AsRef<Path>) -> Option<PathBuf> {
            let tracee = Tracee { listener: &self.listener, call: &self.call };
            let place = CallPath { folder: folder.map(AsRawFd::as_raw_fd), path: path.as_ref().to_owned() };
            Some(self.roots.direct_entry(&tracee, &place)?.path)
        }

        fn file(&self, path: impl AsRef<Path>, follows_link: bool) -> Option<PathBuf> {
            let tracee = Tracee { listener: &self.listener, call: &self.call };
            let place = CallPath { folder: None, path: path.as_ref().to_owned() };
            let file = self.roots.direct_file(&tracee, &FileReference::Path { place, follows_link })?;
            Some(file.entry.unwrap().path)
        }
    }

    #[test]
    fn guessed_name_is_the_path_itself() {
        for (folder, path, expected) in [
            ("/a", "b//./c/", Some("/a/b/c")),
            ("/a", ".", Some("/a")),
            ("", "//a/./b/", Some("/a/b")),
            ("/a", "b/../c", None),
            ("", "/../a", None),
        ] {
            let guessed = below(folder.into(), Path::new(path));
            assert_eq!(guessed, expected.map(PathBuf::from), "{folder} {path}");
        }
    }

    #[test]
    fn paths_with_links_or_elsewhere_take_the_long_way() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let root = dir.join("root");
        for folder in ["root/sub/deep", "root/own", "root/kept", "outside"] {
            fs::create_dir_all(dir.join(folder)).unwrap();
        }
        symlink("../outside", root.join("out")).unwrap();
        symlink("sub", root.join("link")).unwrap();
        symlink("/proc/self/cwd", root.join("magic")).unwrap();
        let looker = Looker::new(&root, &root.join("kept"));
        let (base, outside) = (File::open(&root).unwrap(), File::open(dir.join("outside")).unwrap());
        for (path, expected) in [
            ("new", Some("new")),
            ("out", Some("out")),
            ("sub/deep/new", Some("sub/deep/new")),
            ("./sub//deep/./new/", Some("sub/deep/new")),
            ("own/new", Some("own/new")),
            ("link/new", None),
            ("out/new", None),
            ("magic/new", None),
            ("sub/../new", None),
            ("none/new", None),
            ("kept", None),
            ("kept/new", None),
        ] {
            let expected = expected.map(|path| root.join(path));
            assert_eq!(looker.path(Some(&base), path), expected, "{path}");
            assert_eq!(looker.path(None, root.join(path)), expected, "{path}");
        }
        assert_eq!(looker.path(Some(&outside), "new"), None);
        assert_eq!(looker.path(None, dir.join("outside/new")), None);
        assert_eq!(looker.path(None, "/proc/self/root/new"), None);
        fs::write(root.join("sub/file"), "").unwrap();
        symlink("file", root.join("sub/to-file")).unwrap();
        assert_eq!(looker.file(root.join("sub/file"), true), Some(root.join("sub/file")));
        assert_eq!(looker.file(root.join("sub/to-file"), false), Some(root.join("sub/to-file")));
        for path in ["sub/to-file", "sub/none", "sub/file/", "own", "kept"] {
            assert_eq!(looker.file(root.join(path), true), None, "{path}");
        }
    }

    #[test]
    fn paths_in_one_folder_are_siblings() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for folder in ["a", "b", "own"] {
            fs::create_dir(dir.join(folder)).unwrap();
        }
        let looker = Looker::new(&dir, &dir.join("a/kept"));
        let tracee = Tracee { listener: &looker.listener, call: &looker.call };
        let base = File::open(&dir).unwrap();
        let place = |path: &str, folder| CallPath { folder, path: path.into() };
        let known = place("a/one", Some(base.as_raw_fd()));
        let entry = looker.roots.direct_entry(&tracee, &known).unwrap();
        for (path, folder, expected) in [
            ("a/two", known.folder, Some("a/two")),
            ("a/two/", known.folder, Some("a/two")),
            ("a/..", known.folder, None),
            ("a/kept", known.folder, None),
            ("b/two", known.folder, None),
            ("two", known.folder, None),
            ("a/two", None, None),
        ] {
            let sibling = looker.roots.sibling(&entry, [&known, &place(path, folder)]);
            assert_eq!(
                sibling.as_ref().map(|entry| &entry.path),
                expected.map(|path| dir.join(path)).as_ref()
            );
            let long = sibling.and_then(|_| looker.path(Some(&base), path));
            assert_eq!(long, expected.map(|path| dir.join(path)));
        }
    }

    #[test]
    fn sticky_folders_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        for folder in ["plain", "sticky", "own"] {
            fs::create_dir(dir.join(folder)).unwrap();
        }
        fs::set_permissions(dir.join("sticky"), fs::Permissions::from_mode(0o1777)).unwrap();
        let looker = Looker::new(&dir, &dir.join("none"));
        let tracee = Tracee { listener: &looker.listener, call: &looker.call };
        for (folder, is_sticky) in [("plain", false), ("sticky", true)] {
            // The long way knows it, too.
            for path in [folder.to_owned(), format!("{folder}/../{folder}")] {
                let place = CallPath { folder: None, path: dir.join(path).join("new") };
                let entry = looker.roots.entry(&tracee, &place, rustix::fs::ResolveFlags::empty());
                assert_eq!(entry.unwrap().unwrap().is_sticky, is_sticky, "{place:?}");
            }
        }
    }

    #[test]
    fn remembered_name_is_only_a_guess() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let root = dir.join("root");
        for folder in ["a", "b", "own"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let looker = Looker::new(&root, &root.join("none"));
        let mut folder = File::open(root.join("a")).unwrap();
        assert_eq!(looker.path(Some(&folder), "new"), Some(root.join("a/new")));
        // The number leads to another folder.
        let other = File::open(root.join("b")).unwrap();
        let number = folder.as_raw_fd();
        folder = {
            let mut descriptor = OwnedFd::from(folder);
            rustix::io::dup2(&other, &mut descriptor).unwrap();
            descriptor.into()
        };
        assert_eq!(folder.as_raw_fd(), number);
        assert_eq!(looker.path(Some(&folder), "new"), Some(root.join("b/new")));
        // Another folder has the name.
        fs::rename(root.join("b"), root.join("c")).unwrap();
        fs::create_dir(root.join("b")).unwrap();
        assert_eq!(looker.path(Some(&folder), "new"), Some(root.join("c/new")));
        // A program outside of the sandbox moves the folder, and puts a link in its place.
        fs::rename(root.join("c"), dir.join("c")).unwrap();
        assert_eq!(looker.path(Some(&folder), "new"), None);
        symlink("../c", root.join("c")).unwrap();
        assert_eq!(looker.path(Some(&folder), "new"), None);
        fs::remove_dir(dir.join("c")).unwrap();
        assert_eq!(looker.path(Some(&folder), "new"), None, "a removed folder");
    }
}
