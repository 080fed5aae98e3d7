//! Finds the git folder of a session's folder, and other paths of the repository. Bounded reads only.
//!
//! A repository is untrusted, including `.git`. A reference to another folder counts only if that folder
//! refers back, as the git folders of linked worktrees and submodules do.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::bounded_file::{self, ReadError};
use crate::platform::files::real_path;
use crate::text::start;

pub mod git_index;

const MAX_POINTER: u64 = 16 * 1024;

const MAX_FILE: u64 = 1024 * 1024;

const MAX_BRANCH: usize = 200;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Git {
    pub folders: Vec<PathBuf>,
    pub borrowed: Vec<PathBuf>,
    /// Sentences about rejected references.
    pub problems: Vec<String>,
}

struct GitFolder {
    folder: PathBuf,
    /// Repository of a linked worktree.
    worktree_of: Option<Common>,
}

struct Common {
    folder: PathBuf,
    /// True if the repository knows the worktree's absolute path, so its author knew this machine.
    is_absolute: bool,
}

/// Nearest folder with a `.git`. Like git, ignores a `.git` that is not a folder, a file or a link.
pub fn root(folder: &Path) -> Option<&Path> {
    folder.ancestors().find(|folder| {
        let metadata = folder.join(".git").symlink_metadata();
        metadata.is_ok_and(|it| it.is_dir() || it.is_file() || it.is_symlink())
    })
}

/// Branch name, or the first digits of the commit.
pub fn branch(root: &Path) -> Option<String> {
    let git = root.join(".git");
    // Only a branch name or a commit is read, so an unconfirmed reference is harmless.
    let folder = match pointer(&git).ok().as_deref().and_then(|text| text.strip_prefix("gitdir: ")) {
        Some(elsewhere) => root.join(elsewhere),
        None => git,
    };
    let head = pointer(&folder.join("HEAD")).ok()?;
    let line = head.lines().next()?.trim();
    let is_commit = line.len() >= 40 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
    match line.strip_prefix("ref: refs/heads/") {
        Some(branch) => Some(branch[..branch.floor_char_boundary(MAX_BRANCH)].to_owned()),
        None if is_commit => Some(start(line, 12).to_owned()),
        None => None,
    }
}

/// Missing if the git folder is not confirmed.
pub fn exclude_rules(root: &Path, limit: u64) -> Result<String, ReadError> {
    let git_folder = GitFolder::of(&root.join(".git")).map_err(|_| ReadError::Missing)?;
    let common = git_folder.common();
    bounded_file::read_text_below(common, &common.join("info/exclude"), limit)
}

/// The repository's configuration. Missing if the git folder is not confirmed.
pub fn config(root: &Path) -> Result<String, ReadError> {
    let git_folder = GitFolder::of(&root.join(".git")).map_err(|_| ReadError::Missing)?;
    let common = git_folder.common();
    bounded_file::read_text_below(common, &common.join("config"), MAX_FILE)
}

impl Git {
    pub fn of(session: &Path) -> Self {
        let Some(root) = root(session) else { return Self::default() };
        let git_folder = match GitFolder::of(&root.join(".git")) {
            Ok(found) => found,
            Err(problem) => return Self { problems: problem.into_iter().collect(), ..Self::default() },
        };
        let outside = |place: PathBuf| real_path(place).ok().filter(|place| !place.starts_with(session));
        let mut git = Self::default();
        let objects = git_folder.common().join("objects");
        match bounded_file::read_text_below(git_folder.common(), &objects.join("info/alternates"), MAX_FILE) {
            Ok(text) => {
                let borrowed_folders: Vec<PathBuf> = text
                    .lines()
                    .filter(|line| !line.trim().is_empty())
                    .map(|at| objects.join(at))
                    .filter(|at| is_objects(at))
                    .filter_map(outside)
                    .collect();
                if git_folder.may_borrow(root) {
                    git.borrowed = borrowed_folders;
                } else if let Some(first) = borrowed_folders.first() {
                    git.problems.push(format!(
                        "{}: this repository borrows objects from {}, which does not refer back to it, so commands \
                         cannot read that folder. If you trust it, add it to `shell.read` in your configuration.",
                        objects.join("info/alternates").display(),
                        first.display()
                    ));
                }
            }
            Err(ReadError::Missing) => {}
            Err(error) => {
                git.problems.push(format!("{} {error}.", objects.join("info/alternates").display()));
            }
        }
        let GitFolder { folder, worktree_of } = git_folder;
        let folders = std::iter::once(folder).chain(worktree_of.map(|common| common.folder));
        git.folders = folders.filter_map(outside).collect();
        git
    }
}

impl GitFolder {
    /// The error is a sentence for the user, if there is anything to report.
    fn of(dot_git: &Path) -> Result<Self, Option<String>> {
        let metadata = dot_git.symlink_metadata().map_err(|_| None)?;
        let git_folder = if metadata.is_dir() {
            // Git never writes a `commondir` into a plain git folder.
            if dot_git.join("commondir").symlink_metadata().is_ok() {
                let text = "only the git folder of a linked worktree may name another repository";
                return Err(Some(format!("{}: {text}.", dot_git.join("commondir").display())));
            }
            Self { folder: dot_git.to_owned(), worktree_of: None }
        } else if metadata.is_file() {
            claimed(dot_git).ok_or_else(|| {
                Some(format!(
                    "{}: the git folder that it names does not refer back to it, so commands cannot use that folder. \
                     If you trust it, add that folder to `shell.read` in your configuration, and to `shell.write` for \
                     commits.",
                    dot_git.display()
                ))
            })?
        } else {
            // A link to another repository is a reference without confirmation.
            return Err(Some(format!(
                "{} is a symbolic link, which is not followed here.",
                dot_git.display()
            )));
        };
        if is_repository(&git_folder.folder) { Ok(git_folder) } else { Err(None) }
    }

    fn common(&self) -> &Path {
        self.worktree_of.as_ref().map_or(&self.folder, |common| &common.folder)
    }

    /// The repository must lie outside its linked worktree and know the worktree's absolute path: an archive
    /// can forge everything else.
    fn may_borrow(&self, root: &Path) -> bool {
        self.worktree_of.as_ref().is_some_and(|common| common.is_absolute && !common.folder.starts_with(root))
    }
}

/// The git folder named by a `.git` file, if that folder refers back.
fn claimed(dot_git: &Path) -> Option<GitFolder> {
    let at = pointer(dot_git).ok()?;
    let root = dot_git.parent()?;
    let folder = real(&root.join(at.strip_prefix("gitdir: ")?));
    if let Ok(back) = pointer(&folder.join("gitdir")) {
        // A linked worktree: `worktrees/NAME` of a repository, which contains the path of the `.git` file.
        let common = real(&folder.join(pointer(&folder.join("commondir")).ok()?));
        let is_its_own = folder.parent() == Some(&common.join("worktrees"));
        let is_confirmed = real(&folder.join(&back)) == real(dot_git);
        let is_real = is_its_own && is_confirmed && is_plain_repository(&common);
        let common = Common { folder: common, is_absolute: Path::new(&back).is_absolute() };
        return is_real.then_some(GitFolder { folder, worktree_of: Some(common) });
    }
    // A submodule: its `config` contains the path of its files.
    let settings = bounded_file::read_text(&folder.join("config"), MAX_FILE).ok()?;
    let back = settings.lines().find_map(|line| line.trim().strip_prefix("worktree = "))?;
    let is_confirmed = real(&folder.join(back.trim())) == real(root) && is_plain_repository(&folder);
    is_confirmed.then_some(GitFolder { folder, worktree_of: None })
}

fn is_repository(folder: &Path) -> bool {
    is_file(&folder.join("HEAD"))
        && (is_file(&folder.join("commondir")) || is_folder(&folder.join("objects")))
}

fn is_plain_repository(folder: &Path) -> bool {
    is_file(&folder.join("HEAD"))
        && is_folder(&folder.join("objects"))
        && folder.join("commondir").symlink_metadata().is_err()
}

fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_file())
}

fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
}

fn is_objects(at: &Path) -> bool {
    at.file_name() == Some(OsStr::new("objects")) && at.join("pack").is_dir()
}

fn pointer(file: &Path) -> Result<String, ReadError> {
    bounded_file::read_text(file, MAX_POINTER).map(|text| text.trim().to_owned())
}

fn real(path: &Path) -> PathBuf {
    real_path(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    fn git_folder(at: &Path) {
        std::fs::create_dir_all(at.join("objects/pack")).unwrap();
        std::fs::create_dir_all(at.join("refs")).unwrap();
        std::fs::write(at.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    /// Result of `Git::of` without the problems.
    fn of(folder: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let Git { folders, borrowed, .. } = Git::of(folder);
        (folders, borrowed)
    }

    /// Repository `main` with the linked worktree `tree` and the submodule `sub`, and unrelated repositories.
    struct Fixture {
        _dir: tempfile::TempDir,
        root: PathBuf,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            let fixture = Self { _dir: dir, root };
            for repository in ["main/.git", "main/.git/modules/sub", "private/.git", "other/.git"] {
                git_folder(&fixture.at(repository));
            }
            for folder in ["main/.git/worktrees/tree", "main/inner", "main/sub", "tree", ".ssh"] {
                std::fs::create_dir_all(fixture.at(folder)).unwrap();
            }
            fixture.write("main/.git/worktrees/tree/HEAD", "ref: refs/heads/b\n");
            fixture.write("main/.git/worktrees/tree/commondir", "../..\n");
            fixture.write("main/.git/worktrees/tree/gitdir", &fixture.line("tree/.git"));
            fixture.write("main/.git/modules/sub/config", "[core]\n\tworktree = ../../../sub\n");
            fixture.write("tree/.git", &format!("gitdir: {}", fixture.line("main/.git/worktrees/tree")));
            fixture.write("main/sub/.git", "gitdir: ../.git/modules/sub\n");
            fixture
        }

        fn at(&self, path: &str) -> PathBuf {
            self.root.join(path)
        }

        fn line(&self, path: &str) -> String {
            format!("{}\n", self.at(path).display())
        }

        fn write(&self, path: &str, text: &str) {
            std::fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
            std::fs::write(self.at(path), text).unwrap();
        }

        /// Checks the outside git folders and the borrowed object stores of a folder.
        fn check(&self, folder: &str, folders: &[&str], borrowed: &[&str], why: &str) {
            let all = |names: &[&str]| names.iter().map(|name| self.at(name)).collect::<Vec<_>>();
            assert_eq!(of(&self.at(folder)), (all(folders), all(borrowed)), "{why}");
        }
    }

    #[test]
    fn worktree_and_submodule_git_folders_are_found() {
        let fixture = Fixture::new();
        fixture.check("main", &[], &[], "its git folder is inside");
        fixture.check("main/inner", &["main/.git"], &[], "a folder of a repository");
        fixture.check("tree", &["main/.git/worktrees/tree", "main/.git"], &[], "a linked worktree");
        fixture.check("main/sub", &["main/.git/modules/sub"], &[], "a submodule");
        assert_eq!(branch(&fixture.at("tree")).as_deref(), Some("b"));
        fixture.write("main/.git/info/exclude", "secret\n");
        assert_eq!(exclude_rules(&fixture.at("tree"), 100).unwrap(), "secret\n");
    }

    #[test]
    fn unconfirmed_git_file_grants_no_access() {
        let forged =
            ["private/.git", ".ssh", "main/.git", "main/.git/modules/sub", "nowhere", "main/.git/worktrees"];
        for folder in forged {
            let fixture = Fixture::new();
            fixture.write("tree/.git", &format!("gitdir: {}", fixture.line(folder)));
            fixture.check("tree", &[], &[], folder);
            assert_eq!(Git::of(&fixture.at("tree")).problems.len(), 1, "{folder}");
        }
        let fixture = Fixture::new();
        std::fs::remove_file(fixture.at("tree/.git")).unwrap();
        std::os::unix::fs::symlink(fixture.at("private/.git"), fixture.at("tree/.git")).unwrap();
        fixture.check("tree", &[], &[], "a link");
    }

    #[test]
    fn forged_commondir_grants_no_access() {
        // In the repository's own git folder, and in the folder of a worktree.
        for (place, from) in [("other/.git", "other/inner"), ("main/.git/worktrees/tree", "tree")] {
            for lie in ["../..", "../../private/.git", "../../../../private/.git", "/", ".", "nowhere"] {
                let fixture = Fixture::new();
                std::fs::create_dir_all(fixture.at(from)).unwrap();
                for folder in ["objects", "refs", "other/objects"] {
                    std::fs::create_dir_all(fixture.at(folder)).unwrap();
                }
                if (place, lie) == ("main/.git/worktrees/tree", "../..") {
                    continue;
                }
                fixture.write(&format!("{place}/commondir"), lie);
                fixture.check(from, &[], &[], &format!("{place} {lie}"));
            }
        }
    }

    #[test]
    fn alternates_apply_only_to_confirmed_linked_worktrees() {
        let line = |fixture: &Fixture| fixture.line("private/.git/objects");
        let fixture = Fixture::new();
        fixture.write("main/.git/objects/info/alternates", &line(&fixture));
        let main = ["main/.git/worktrees/tree", "main/.git"];
        fixture.check("tree", &main, &["private/.git/objects"], "the control");
        fixture.check("main", &[], &[], "alternates of the repository itself");
        assert!(Git::of(&fixture.at("main")).problems[0].contains("shell.read"));
        fixture.check("main/inner", &["main/.git"], &[], "the same from a folder inside the repository");
        // An archive can contain relative paths, because they do not depend on its location.
        fixture.write("main/.git/worktrees/tree/gitdir", "../../../../tree/.git\n");
        fixture.check("tree", &main, &[], "relative paths confirm the folder, and borrow nothing");
        // A worktree that contains its repository.
        let fixture = Fixture::new();
        git_folder(&fixture.at("tree/fake"));
        fixture.write("tree/fake/worktrees/x/HEAD", "ref: refs/heads/b\n");
        fixture.write("tree/fake/worktrees/x/commondir", "../..\n");
        fixture.write("tree/fake/worktrees/x/gitdir", &fixture.line("tree/.git"));
        fixture.write("tree/.git", "gitdir: fake/worktrees/x\n");
        fixture.write("tree/fake/objects/info/alternates", &line(&fixture));
        fixture.check("tree", &[], &[], "the repository is inside the project");
    }

    #[test]
    fn fifos_in_git_folders_do_not_block() {
        for file in ["HEAD", "commondir", "objects/info/alternates", "info/exclude"] {
            let fixture = Fixture::new();
            let path = fixture.at("other/.git").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::create_dir_all(fixture.at("other/inner")).unwrap();
            let _ = std::fs::remove_file(&path);
            crate::platform::files::make_fifo(&path);
            let _ = (Git::of(&fixture.at("other/inner")), branch(&fixture.at("other")));
            assert!(exclude_rules(&fixture.at("other"), 100).is_err());
        }
        let fixture = Fixture::new();
        std::fs::remove_file(fixture.at("tree/.git")).unwrap();
        crate::platform::files::make_fifo(&fixture.at("tree/.git"));
        assert_eq!(root(&fixture.at("tree")), root(&fixture.root), "a FIFO is no repository");
    }
}
