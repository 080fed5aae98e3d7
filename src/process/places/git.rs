//! The repository that a folder is in: where it keeps what lies outside of that folder.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Where a repository keeps what lies outside of a session's folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Git {
    /// The repository around the folder, or the one that a worktree or a submodule belongs to.
    pub folders: Vec<PathBuf>,
    /// Objects that it borrows.
    pub borrowed: Vec<PathBuf>,
}

impl Git {
    /// Finds the repository that a folder is in.
    ///
    /// A `.git` file is a claim of whoever wrote the folder. It is believed only if the repository that it names knows of the
    /// folder, which takes somebody who may write there.
    pub fn of(root: &Path) -> Self {
        let found = root.ancestors().map(|folder| folder.join(".git")).find(|git| git.exists());
        let Some(dot_git) = found else { return Self::default() };
        let folder = if dot_git.is_dir() {
            // A link to another repository is such a claim, too.
            std::fs::canonicalize(&dot_git).ok().filter(|real| Some(real.as_path()) == Some(&dot_git))
        } else {
            claimed(&dot_git)
        };
        let Some(folder) = folder.filter(|folder| is_repository(folder)) else { return Self::default() };
        let common = read(&folder.join("commondir")).map(|at| folder.join(at));
        let common =
            common.filter(|common| common.join("objects").is_dir() && folder.starts_with(real(common)));
        let objects = common.as_ref().unwrap_or(&folder).join("objects");
        let alternates = read(&objects.join("info/alternates")).unwrap_or_default();
        let borrowed = alternates.lines().map(|at| objects.join(at));
        let is_objects =
            |at: &PathBuf| at.file_name() == Some(OsStr::new("objects")) && at.join("pack").is_dir();
        let outside =
            |place: PathBuf| std::fs::canonicalize(place).ok().filter(|place| !place.starts_with(root));
        Self {
            borrowed: borrowed.filter(is_objects).filter_map(outside).collect(),
            folders: std::iter::once(folder.clone()).chain(common).filter_map(outside).collect(),
        }
    }
}

/// The repository's folder that a `.git` file names, if that one names the file or its folder in turn.
fn claimed(dot_git: &Path) -> Option<PathBuf> {
    let at = read(dot_git)?;
    let folder = real(&dot_git.parent()?.join(at.strip_prefix("gitdir: ")?));
    // A worktree: the repository notes where its `.git` file is.
    if read(&folder.join("gitdir")).is_some_and(|back| real(&folder.join(back)) == real(dot_git)) {
        return Some(folder);
    }
    // A submodule: its settings say where its files are.
    let settings = read(&folder.join("config"))?;
    let back = settings.lines().find_map(|line| line.trim().strip_prefix("worktree = "))?;
    (real(&folder.join(back)) == real(dot_git.parent()?)).then_some(folder)
}

fn is_repository(folder: &Path) -> bool {
    folder.join("HEAD").is_file() && (folder.join("commondir").is_file() || folder.join("objects").is_dir())
}

fn read(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git_folder(at: &Path) {
        std::fs::create_dir_all(at.join("objects/pack")).unwrap();
        std::fs::create_dir_all(at.join("refs")).unwrap();
        std::fs::write(at.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    #[test]
    fn a_repository_is_read_where_it_knows_of_the_folder_and_a_file_that_lies_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (main, tree, sub) = (dir.join("main/.git"), dir.join("tree"), dir.join("main/sub"));
        let (of_tree, of_sub) = (main.join("worktrees/tree"), main.join("modules/sub"));
        for repository in [&main, &of_sub, &dir.join("private/.git")] {
            git_folder(repository);
        }
        for folder in [&of_tree, &tree, &sub, &dir.join(".ssh")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let write = |file: PathBuf, text: &str| std::fs::write(file, text).unwrap();
        let claim =
            |folder: &Path, of: &Path| write(folder.join(".git"), &format!("gitdir: {}\n", of.display()));
        write(of_tree.join("HEAD"), "ref: refs/heads/b\n");
        write(of_tree.join("commondir"), "../..\n");
        write(of_tree.join("gitdir"), &format!("{}\n", tree.join(".git").display()));
        claim(&tree, &of_tree);
        let found = |folders: &[&PathBuf]| Git {
            folders: folders.iter().map(|it| (*it).clone()).collect(),
            borrowed: vec![],
        };
        assert_eq!(Git::of(&tree), found(&[&of_tree, &main]));
        write(of_sub.join("config"), "[core]\n\tworktree = ../../../sub\n");
        claim(&sub, &of_sub);
        assert_eq!(Git::of(&sub), found(&[&of_sub]));
        std::fs::create_dir_all(dir.join("main/inner")).unwrap();
        assert_eq!(Git::of(&dir.join("main/inner")), found(&[&main]));
        // None of these knows of the folder that names it.
        for lie in [dir.join("private/.git"), dir.join(".ssh"), main.clone(), of_sub.clone()] {
            claim(&tree, &lie);
            assert_eq!(Git::of(&tree), Git::default(), "{}", lie.display());
        }
        std::fs::remove_file(tree.join(".git")).unwrap();
        std::os::unix::fs::symlink(dir.join("private/.git"), tree.join(".git")).unwrap();
        assert_eq!(Git::of(&tree), Git::default(), "a link");
    }
}
