//! The folders of the project around a session.

use std::path::Path;

use crate::bounded_file;
use crate::conversation::instructions::{self, MAX_READ};
use crate::git_folder::{self, Git};

#[derive(Debug, Clone, Copy)]
pub struct Project<'a> {
    cwd: &'a Path,
    root: &'a Path,
}

impl<'a> Project<'a> {
    /// Looks for the repository.
    pub fn of(cwd: &'a Path) -> Self {
        Self { cwd, root: git_folder::root(cwd).unwrap_or(cwd) }
    }

    /// The repository's root, or the working directory outside a repository.
    pub(super) fn root(self) -> &'a Path {
        self.root
    }

    /// From the working directory up to the repository's root.
    pub(super) fn folders(self) -> impl Iterator<Item = &'a Path> {
        self.cwd.ancestors().take_while(move |folder| folder.starts_with(self.root))
    }

    /// Unusable git folders and agent files, one sentence each.
    pub(super) fn problems(self) -> Vec<String> {
        let mut problems = Git::of(self.cwd).problems;
        for folder in self.folders() {
            let instructions_file =
                instructions::of_folder(folder, |path| bounded_file::read_below(self.root, path, MAX_READ));
            if let Some((path, Err(error))) = instructions_file {
                problems.push(format!("{} {error}.", path.display()));
            }
        }
        problems
    }
}
