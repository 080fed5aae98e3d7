//! The folders of the project around a session.

use std::path::{Path, PathBuf};

use crate::bounded_file;
use crate::conversation::instructions::{self, MAX_READ};
use crate::git_folder::{self, Git};

/// The repository's root, or the working directory outside a repository.
pub(super) fn root(cwd: &Path) -> &Path {
    git_folder::root(cwd).unwrap_or(cwd)
}

/// From the working directory up to the repository's root.
pub(super) fn folders(cwd: &Path) -> Vec<PathBuf> {
    let root = root(cwd);
    cwd.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect()
}

/// Unusable git folders and agent files, one sentence each.
pub(super) fn problems(cwd: &Path) -> Vec<String> {
    let root = root(cwd);
    let mut problems = Git::of(cwd).problems;
    for folder in folders(cwd) {
        let instructions_file =
            instructions::of_folder(&folder, |path| bounded_file::read_below(root, path, MAX_READ));
        if let Some((path, Err(error))) = instructions_file {
            problems.push(format!("{} {error}.", path.display()));
        }
    }
    problems
}
