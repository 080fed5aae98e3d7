//! Which folders belong to the project that a session works in.

use std::path::{Path, PathBuf};

/// The folders of a project, the innermost first: from the working directory up to the repository's root.
pub fn folders(cwd: &Path) -> Vec<PathBuf> {
    let root = cwd.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(cwd);
    cwd.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect()
}
