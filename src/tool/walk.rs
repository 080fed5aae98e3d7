//! Walking a directory tree the way ripgrep does: sorted, without what git ignores, hidden files or followed links.

use std::path::Path;

use ignore::overrides::{Override, OverrideBuilder};
use ignore::{Walk, WalkBuilder};

/// Globs as in `.gitignore`, relative to a directory; none means everything. The error says what is no glob.
pub fn globs(root: &Path, glob: Option<&str>) -> Result<Override, String> {
    let mut globs = OverrideBuilder::new(root);
    if let Some(glob) = glob {
        globs.add(glob).map_err(|error| format!("glob: {error}"))?;
    }
    globs.build().map_err(|error| format!("glob: {error}"))
}

/// The entries below a directory, the directory itself first.
pub fn walk(root: &Path, globs: Override, depth: Option<usize>) -> Walk {
    // Above the directory only its own repository has a say, and never the user's home.
    let in_repository = root.ancestors().any(|folder| folder.join(".git").exists());
    WalkBuilder::new(root)
        .overrides(globs)
        .max_depth(depth)
        .git_global(false)
        .same_file_system(true)
        .parents(in_repository)
        .require_git(in_repository)
        .sort_by_file_name(Ord::cmp)
        .build()
}
