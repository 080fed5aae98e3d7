//! Sorted walk of a folder tree. Skips ignored files and version control files. Every folder is opened
//! relative to its parent without following links, so a link that replaces an entry leads nowhere.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_fs_ext::DirExt;
use cap_std::fs::{Dir, FileType, Metadata};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::overrides::Override;

use super::file_state::is_version_control;
use super::inspect::open_file;
use super::{FileError, open_dir, open_parent};
use crate::bounded_file::{self, ReadError};
use crate::git_folder;
use crate::permission::Target;
use crate::platform::files::device;

/// Each folder on the current path keeps a descriptor open.
const MAX_DEPTH: usize = 200;

pub(super) const MAX_RULES: u64 = 256 * 1024;

const MAX_PROBLEMS: usize = 5;

/// Most ignored entries that are remembered.
const MAX_IGNORED: usize = 20;

pub(super) const GITIGNORE: &str = ".gitignore";

const IGNORE: &str = ".ignore";

#[derive(Debug, Clone)]
pub struct WalkOptions {
    pub globs: Override,
    /// Levels below the folder; unlimited if `None`.
    pub depth: Option<usize>,
    pub ignoring: Ignoring,
    pub without: Option<PathBuf>,
}

/// The rules by which a walk ignores entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ignoring {
    Nothing,
    /// The rules of `.gitignore`.
    Gitignore,
    /// Also those of `.ignore` and `info/exclude`.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Folder,
    Link,
    Special,
}

#[derive(Debug, Clone)]
pub struct WalkEntry {
    dir: Arc<Dir>,
    name: OsString,
    pub path: PathBuf,
    pub kind: EntryKind,
    /// Levels below the walked folder, from 1; 0 for a single file.
    pub depth: usize,
}

impl WalkEntry {
    /// Fails for anything but a regular file.
    pub fn open(&self) -> io::Result<std::fs::File> {
        Ok(open_file(&self.dir, &self.name)?.0.into_std())
    }

    pub fn name(&self) -> &OsStr {
        &self.name
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.dir.symlink_metadata(&self.name)
    }

    /// Text of the link, not resolved.
    pub(super) fn link(&self) -> io::Result<PathBuf> {
        self.dir.read_link_contents(&self.name)
    }
}

/// A folder comes before its entries.
#[derive(Debug)]
pub struct Walk {
    options: WalkOptions,
    root: PathBuf,
    device: Option<u64>,
    /// Rules of the parent folders, from the repository's root down.
    above: Vec<IgnoreRules>,
    frames: Vec<WalkFrame>,
    single: Option<WalkEntry>,
    pending: Option<WalkEntry>,
    problems: Vec<String>,
    /// The first ignored entries.
    ignored: Vec<(PathBuf, EntryKind)>,
    is_cut: bool,
}

#[derive(Debug)]
struct WalkFrame {
    dir: Arc<Dir>,
    path: PathBuf,
    rules: IgnoreRules,
    entries: std::vec::IntoIter<(OsString, EntryKind)>,
}

#[derive(Debug, Default)]
struct IgnoreRules {
    ignore: Option<Gitignore>,
    gitignore: Option<Gitignore>,
    exclude: Option<Gitignore>,
    /// If true, `.gitignore` rules of parent folders do not apply below.
    is_repository: bool,
}

impl Walk {
    /// Starts a walk. A file yields itself, regardless of ignore rules.
    pub fn new(target: &Target, options: WalkOptions) -> Result<Self, FileError> {
        let failed = |error: &io::Error| FileError::io(&target.path, error);
        let root = target.path.clone();
        let mut walk = Self {
            options,
            root,
            device: None,
            above: Vec::new(),
            frames: Vec::new(),
            single: None,
            pending: None,
            problems: Vec::new(),
            ignored: Vec::new(),
            is_cut: false,
        };
        let metadata = target.path.symlink_metadata().map_err(|error| failed(&error))?;
        if !metadata.is_dir() {
            let (dir, name) = open_parent(target, false).map_err(|error| failed(&error))?;
            let metadata = dir.symlink_metadata(&name).map_err(|error| failed(&error))?;
            let kind = kind_of(metadata.file_type());
            walk.single =
                Some(WalkEntry { dir: Arc::new(dir), name, path: target.path.clone(), kind, depth: 0 });
            return Ok(walk);
        }
        let dir = open_dir(target)?;
        walk.device = dir.dir_metadata().ok().and_then(|metadata| device(&metadata));
        walk.read_above();
        let path = target.path.clone();
        walk.enter(Arc::new(dir), path).map_err(|error| failed(&error))?;
        Ok(walk)
    }

    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The first entries that were left out because they are ignored.
    pub fn ignored(&self) -> &[(PathBuf, EntryKind)] {
        &self.ignored
    }

    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Reads the rules of the parent folders up to the repository's root.
    fn read_above(&mut self) {
        let Some(repository) = git_folder::root(&self.root) else { return };
        let repository = repository.to_owned();
        let mut folders: Vec<PathBuf> = self
            .root
            .ancestors()
            .skip(1)
            .take_while(|folder| folder.starts_with(&repository))
            .map(Path::to_owned)
            .collect();
        folders.reverse();
        for folder in folders {
            let Ok(dir) = Dir::open_ambient_dir(&folder, cap_std::ambient_authority()) else { continue };
            let names = [GITIGNORE, IGNORE, ".git"].map(OsString::from);
            let special_files = names.into_iter().filter(|name| dir.symlink_metadata(name).is_ok()).collect();
            let rules = self.read_rules(&dir, &folder, &special_files);
            self.above.push(rules);
        }
    }

    fn enter(&mut self, dir: Arc<Dir>, path: PathBuf) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in dir.entries()? {
            let Ok(entry) = entry else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            entries.push((entry.file_name(), kind_of(kind)));
        }
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let special = [GITIGNORE, IGNORE, ".git"].map(OsStr::new);
        let present_files =
            entries.iter().map(|(name, _)| name).filter(|name| special.contains(&name.as_os_str()));
        let special_files: HashSet<OsString> = present_files.cloned().collect();
        let rules = if special_files.is_empty() {
            IgnoreRules::default()
        } else {
            self.read_rules(&dir, &path, &special_files)
        };
        self.frames.push(WalkFrame { dir, path, rules, entries: entries.into_iter() });
        Ok(())
    }

    fn read_rules(&mut self, dir: &Dir, folder: &Path, there: &HashSet<OsString>) -> IgnoreRules {
        let mut rules =
            IgnoreRules { is_repository: there.contains(OsStr::new(".git")), ..IgnoreRules::default() };
        let names = match self.options.ignoring {
            Ignoring::Nothing => &[][..],
            Ignoring::Gitignore => &[GITIGNORE],
            Ignoring::All => &[GITIGNORE, IGNORE],
        };
        for name in names.iter().copied().filter(|name| there.contains(OsStr::new(name))) {
            let read = bounded_file::read_in(dir, OsStr::new(name), MAX_RULES);
            let read = read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            let matcher = self.matcher(&folder.join(name), folder, read);
            *(if name == IGNORE { &mut rules.ignore } else { &mut rules.gitignore }) = matcher;
        }
        if rules.is_repository && self.options.ignoring == Ignoring::All {
            let read = git_folder::exclude_rules(folder, MAX_RULES);
            rules.exclude = self.matcher(&folder.join(".git/info/exclude"), folder, read);
        }
        rules
    }

    fn matcher(&mut self, file: &Path, folder: &Path, read: Result<String, ReadError>) -> Option<Gitignore> {
        let problem = match read.map(|text| compile(folder, &text)) {
            Ok(Some(rules)) => return (!rules.is_empty()).then_some(rules),
            Ok(None) => "has too many rules".to_owned(),
            Err(ReadError::Missing) => return None,
            Err(error) => error.to_string(),
        };
        tracing::warn!(file = %file.display(), problem, "ignore rules are not used");
        if self.problems.len() < MAX_PROBLEMS {
            let name = file.strip_prefix(&self.root).unwrap_or(file).display();
            self.problems.push(format!("{name} {problem}, so its ignore rules are not used."));
        }
        None
    }

    fn admits(&mut self, path: &Path, name: &OsStr, kind: EntryKind) -> bool {
        let is_folder = kind == EntryKind::Folder;
        if is_version_control(Path::new(name)) || self.options.without.as_deref() == Some(path) {
            return false;
        }
        let is_ignored = self.is_ignored(path, is_folder);
        if self.options.globs.matched(path, is_folder).is_ignore() {
            return false;
        }
        if is_ignored && self.ignored.len() < MAX_IGNORED {
            self.ignored.push((path.to_owned(), kind));
        }
        !is_ignored
    }

    fn is_ignored(&self, path: &Path, is_folder: bool) -> bool {
        let says = |rules: Option<&Gitignore>| match rules?.matched(path, is_folder) {
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
            Match::None => None,
        };
        let inner_first =
            || self.frames.iter().rev().map(|frame| &frame.rules).chain(self.above.iter().rev());
        let ignore = inner_first().find_map(|rules| says(rules.ignore.as_ref()));
        let (mut gitignore, mut exclude) = (None, None);
        for rules in inner_first() {
            gitignore = gitignore.or_else(|| says(rules.gitignore.as_ref()));
            exclude = exclude.or_else(|| says(rules.exclude.as_ref()));
            if rules.is_repository {
                break;
            }
        }
        ignore.or(gitignore).or(exclude).unwrap_or(false)
    }

    fn descend(&mut self, entry: &WalkEntry) {
        if self.options.depth.is_some_and(|depth| entry.depth >= depth) {
            return;
        }
        if entry.depth >= MAX_DEPTH {
            self.is_cut = true;
            return;
        }
        // The folder may be unreadable or replaced.
        let Ok(dir) = entry.dir.open_dir_nofollow(&entry.name) else { return };
        let here = dir.dir_metadata().ok().and_then(|metadata| device(&metadata));
        if here == self.device {
            let entered = self.enter(Arc::new(dir), entry.path.clone());
            if let Err(error) = entered {
                tracing::debug!(%error, path = %entry.path.display(), "a folder cannot be listed");
            }
        }
    }
}

impl Iterator for Walk {
    type Item = WalkEntry;

    fn next(&mut self) -> Option<WalkEntry> {
        if let Some(single) = self.single.take() {
            return Some(single);
        }
        loop {
            if let Some(folder) = self.pending.take() {
                self.descend(&folder);
            }
            let depth = self.frames.len();
            let frame = self.frames.last_mut()?;
            let Some((name, kind)) = frame.entries.next() else {
                self.frames.pop();
                continue;
            };
            let path = frame.path.join(&name);
            let dir = Arc::clone(&frame.dir);
            if !self.admits(&path, &name, kind) {
                continue;
            }
            let entry = WalkEntry { dir, name, path, kind, depth };
            if kind == EntryKind::Folder {
                self.pending = Some(entry.clone());
            }
            return Some(entry);
        }
    }
}

/// Calls `visit` with every path below a folder that is no folder, relative to it: ignored files and those of
/// version control too. Follows no link.
pub fn visit_below<E: From<FileError>>(
    folder: &Target,
    visit: &mut impl FnMut(&Path) -> Result<(), E>,
) -> Result<(), E> {
    visit_entries(&open_dir(folder)?, folder, Path::new(""), visit)
}

fn visit_entries<E: From<FileError>>(
    dir: &Dir,
    folder: &Target,
    below: &Path,
    visit: &mut impl FnMut(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let failed = |error| FileError::io(&folder.path.join(below), &error);
    if below.components().count() > MAX_DEPTH {
        let text = format!("{} has more than {MAX_DEPTH} levels", folder.path.display());
        return Err(FileError::Unsuitable(text).into());
    }
    for entry in dir.entries().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = below.join(entry.file_name());
        if entry.file_type().map_err(failed)?.is_dir() {
            let dir = dir.open_dir_nofollow(entry.file_name()).map_err(failed)?;
            visit_entries(&dir, folder, &path, visit)?;
        } else {
            visit(&path)?;
        }
    }
    Ok(())
}

pub(super) fn compile(folder: &Path, text: &str) -> Option<Gitignore> {
    let mut rules = GitignoreBuilder::new(folder);
    for line in text.trim_start_matches('\u{feff}').lines() {
        // A lone `!` matches nothing in git, but everything in the `ignore` crate.
        if line.trim_end() == "!" {
            continue;
        }
        let _ = rules.add_line(None, line);
    }
    rules.build().ok()
}

fn kind_of(kind: FileType) -> EntryKind {
    if kind.is_file() {
        EntryKind::File
    } else if kind.is_dir() {
        EntryKind::Folder
    } else if kind.is_symlink() {
        EntryKind::Link
    } else {
        EntryKind::Special
    }
}
