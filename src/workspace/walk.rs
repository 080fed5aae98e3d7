//! Walking a folder: sorted, following no link, without what git ignores and without version control's own files.
//!
//! The one walker of the tools and of the snapshots. It opens every folder below the one before it without following
//! links, so an entry that is exchanged for a link while the walk goes on leads nowhere. It reads the files of ignore rules
//! itself, within bounds: one that is no regular file has no rules, and is named in [`Walk::problems`].

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_fs_ext::DirExt;
use cap_std::fs::{Dir, Metadata};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::overrides::Override;

use super::file_state::is_version_control;
use super::inspect::open_file;
use super::{FileError, open_dir};
use crate::bounded_file::{self, ReadError};
use crate::git_folder;
use crate::permission::Target;

/// Folders below one another. Each is kept open while its entries are walked.
const MAX_DEPTH: usize = 200;

/// Bytes of one file of ignore rules.
pub(super) const MAX_RULES: u64 = 256 * 1024;

/// Files of ignore rules that are named as not used.
const MAX_PROBLEMS: usize = 5;

/// The file of ignore rules that git reads in every folder.
pub(super) const GITIGNORE: &str = ".gitignore";

/// The same for search tools.
const IGNORE: &str = ".ignore";

/// What a walk shows.
#[derive(Debug, Clone)]
pub struct WalkOptions {
    /// The globs that paths have to match.
    pub globs: Override,
    /// Levels below the folder. `None`: all.
    pub depth: Option<usize>,
    /// Hidden files and folders are shown even if no glob matches them.
    pub hidden: bool,
    /// Only the rules of `.gitignore` count, not those of `.ignore` and of `info/exclude`.
    pub gitignore_only: bool,
    /// A folder that is left out.
    pub without: Option<PathBuf>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A FIFO, a socket or a device.
    Special,
}

/// What the walk meets.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The folder that it is in.
    dir: Arc<Dir>,
    name: OsString,
    /// Absolute.
    pub path: PathBuf,
    /// What it was when its folder was listed.
    pub kind: EntryKind,
    /// How many levels below the folder that is walked, at least 1; 0 for a file that is walked itself.
    pub depth: usize,
}

impl Entry {
    /// Opens a regular file; anything else is an error, whatever it was when its folder was listed.
    pub fn open(&self) -> io::Result<std::fs::File> {
        Ok(open_file(&self.dir, &self.name)?.0.into_std())
    }

    /// Its name.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        self.dir.symlink_metadata(&self.name)
    }

    /// Where a link leads, as the link says it.
    pub(super) fn link(&self) -> io::Result<PathBuf> {
        self.dir.read_link_contents(&self.name)
    }
}

/// The entries below a folder, each folder before what it holds.
#[derive(Debug)]
pub struct Walk {
    options: WalkOptions,
    root: PathBuf,
    device: Option<u64>,
    /// The rules of the folders from the repository's root down to the one above the folder that is walked.
    above: Vec<Rules>,
    frames: Vec<Frame>,
    /// A file that is walked itself.
    single: Option<Entry>,
    /// A folder that comes next.
    pending: Option<Entry>,
    problems: Vec<String>,
    is_cut: bool,
}

#[derive(Debug)]
struct Frame {
    dir: Arc<Dir>,
    path: PathBuf,
    rules: Rules,
    entries: std::vec::IntoIter<(OsString, EntryKind)>,
}

/// The ignore rules of one folder.
#[derive(Debug, Default)]
struct Rules {
    ignore: Option<Gitignore>,
    gitignore: Option<Gitignore>,
    exclude: Option<Gitignore>,
    /// Rules of folders above this one are those of another repository.
    is_repository: bool,
}

impl Walk {
    /// Walks a folder; of a file it shows that file, whatever the rules say.
    ///
    /// # Errors
    /// There is neither a file nor a folder there.
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
            is_cut: false,
        };
        let metadata = target.path.symlink_metadata().map_err(|error| failed(&error))?;
        if !metadata.is_dir() {
            let (dir, name) = super::open_parent(target, false).map_err(|error| failed(&error))?;
            let kind = kind_of(&dir.symlink_metadata(&name).map_err(|error| failed(&error))?);
            walk.single = Some(Entry { dir: Arc::new(dir), name, path: target.path.clone(), kind, depth: 0 });
            return Ok(walk);
        }
        let dir = open_dir(target)?;
        walk.device = dir.dir_metadata().ok().and_then(|metadata| device(&metadata));
        walk.read_above();
        let path = target.path.clone();
        walk.enter(Arc::new(dir), path).map_err(|error| failed(&error))?;
        Ok(walk)
    }

    /// The files of ignore rules that are not used, one sentence each.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Whether folders were left out because they lie too deep.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Reads the rules above the folder. Only its own repository has a say there, and never the user's home.
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
            let there = names.into_iter().filter(|name| dir.symlink_metadata(name).is_ok()).collect();
            let rules = self.read_rules(&dir, &folder, &there);
            self.above.push(rules);
        }
    }

    /// Begins to walk a folder.
    fn enter(&mut self, dir: Arc<Dir>, path: PathBuf) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in dir.entries()? {
            // What vanishes meanwhile is not there.
            let Ok(entry) = entry else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            let kind = if kind.is_dir() {
                EntryKind::Folder
            } else if kind.is_file() {
                EntryKind::File
            } else if kind.is_symlink() {
                EntryKind::Link
            } else {
                EntryKind::Special
            };
            entries.push((entry.file_name(), kind));
        }
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let special = [GITIGNORE, IGNORE, ".git"].map(OsStr::new);
        let there = entries.iter().map(|(name, _)| name).filter(|name| special.contains(&name.as_os_str()));
        let there: HashSet<OsString> = there.cloned().collect();
        let rules = if there.is_empty() { Rules::default() } else { self.read_rules(&dir, &path, &there) };
        self.frames.push(Frame { dir, path, rules, entries: entries.into_iter() });
        Ok(())
    }

    fn read_rules(&mut self, dir: &Dir, folder: &Path, there: &HashSet<OsString>) -> Rules {
        let mut rules = Rules { is_repository: there.contains(OsStr::new(".git")), ..Rules::default() };
        for name in [GITIGNORE, IGNORE] {
            if !there.contains(OsStr::new(name)) || (name == IGNORE && self.options.gitignore_only) {
                continue;
            }
            let read = bounded_file::read_in(dir, OsStr::new(name), MAX_RULES);
            let read = read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            let matcher = self.matcher(&folder.join(name), folder, read);
            *(if name == IGNORE { &mut rules.ignore } else { &mut rules.gitignore }) = matcher;
        }
        if rules.is_repository && !self.options.gitignore_only {
            let read = git_folder::exclude_rules(folder, MAX_RULES);
            rules.exclude = self.matcher(&folder.join(".git/info/exclude"), folder, read);
        }
        rules
    }

    fn matcher(&mut self, file: &Path, folder: &Path, read: Result<String, ReadError>) -> Option<Gitignore> {
        let problem = match read.map(|text| compile(folder, &text)) {
            Ok(Some(rules)) => return (!rules.is_empty()).then_some(rules),
            Ok(None) => "has more rules than can be used".to_owned(),
            Err(ReadError::Missing) => return None,
            Err(error) => error.to_string(),
        };
        tracing::warn!(file = %file.display(), problem, "ignore rules are not used");
        if self.problems.len() < MAX_PROBLEMS {
            let name = file.strip_prefix(&self.root).unwrap_or(file).display();
            self.problems.push(format!("{name} {problem}, so its rules do not count."));
        }
        None
    }

    /// Whether an entry is shown, and whether it is walked.
    fn admits(&self, path: &Path, name: &OsStr, kind: EntryKind) -> (bool, bool) {
        if is_version_control(Path::new(name)) || self.options.without.as_deref() == Some(path) {
            return (false, false);
        }
        let is_folder = kind == EntryKind::Folder;
        let rule = self.rule(path, is_folder);
        if rule == Some(true) {
            return (false, false);
        }
        let globs = &self.options.globs;
        let by_glob = globs.matched(path, is_folder);
        if by_glob.is_ignore() {
            return (false, false);
        }
        // What a rule or a glob names is not hidden.
        let is_named = rule == Some(false) || by_glob.is_whitelist();
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        let is_shown = !is_hidden || is_named || self.options.hidden;
        // A glob may match what lies in a hidden folder.
        let is_walked = is_shown || globs.num_whitelists() > 0;
        (is_shown, is_folder && is_walked)
    }

    /// What the ignore rules say of a path: whether it is ignored. `None` if no rule is about it.
    fn rule(&self, path: &Path, is_folder: bool) -> Option<bool> {
        let says = |rules: Option<&Gitignore>| match rules?.matched(path, is_folder) {
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
            Match::None => None,
        };
        let inner_first =
            || self.frames.iter().rev().map(|frame| &frame.rules).chain(self.above.iter().rev());
        let mut found = inner_first().find_map(|rules| says(rules.ignore.as_ref()));
        let (mut gitignore, mut exclude) = (None, None);
        for rules in inner_first() {
            gitignore = gitignore.or_else(|| says(rules.gitignore.as_ref()));
            exclude = exclude.or_else(|| says(rules.exclude.as_ref()));
            if rules.is_repository {
                break;
            }
        }
        found = found.or(gitignore).or(exclude);
        found
    }

    /// Opens a folder that was met, unless it is on another file system or lies too deep.
    fn descend(&mut self, entry: &Entry) {
        if self.options.depth.is_some_and(|depth| entry.depth >= depth) {
            return;
        }
        if entry.depth >= MAX_DEPTH {
            self.is_cut = true;
            return;
        }
        // What cannot be opened, or has been exchanged since, shows nothing.
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
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
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
            let (is_shown, is_walked) = self.admits(&path, &name, kind);
            let entry = Entry { dir, name, path, kind, depth };
            if is_walked {
                self.pending = Some(entry.clone());
            }
            if is_shown {
                return Some(entry);
            }
        }
    }
}

/// Ignore rules, relative to a folder. `None` if they are too many to be used.
pub(super) fn compile(folder: &Path, text: &str) -> Option<Gitignore> {
    let mut rules = GitignoreBuilder::new(folder);
    for line in text.trim_start_matches('\u{feff}').lines() {
        // To git it matches nothing, to the library everything.
        if line.trim_end() == "!" {
            continue;
        }
        // A line that is no rule says nothing; git passes over it, too.
        let _ = rules.add_line(None, line);
    }
    rules.build().ok()
}

fn kind_of(metadata: &Metadata) -> EntryKind {
    if metadata.is_file() {
        EntryKind::File
    } else if metadata.is_dir() {
        EntryKind::Folder
    } else if metadata.is_symlink() {
        EntryKind::Link
    } else {
        EntryKind::Special
    }
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere there is none")]
fn device(metadata: &Metadata) -> Option<u64> {
    use cap_std::fs::MetadataExt;
    Some(metadata.dev())
}

#[cfg(not(unix))]
fn device(_: &Metadata) -> Option<u64> {
    None
}
