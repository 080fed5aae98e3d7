//! Files that the user's rules keep a sandboxed command from reading. Pure.

use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedReads {
    /// Globs in which `*` does not match `/`, for absolute paths and for paths relative to a folder.
    pub patterns: Vec<String>,
    /// Folders from which relative paths begin.
    pub folders: Vec<PathBuf>,
}

/// Tells which files may not be read.
#[derive(Debug)]
pub struct DeniedFiles {
    globs: GlobSet,
    folders: Vec<PathBuf>,
}

/// Patterns of a file or folder, and of all below.
pub fn patterns_of(path: &Path) -> [String; 2] {
    let name = globset::escape(&path.to_string_lossy());
    [format!("{name}/**"), name]
}

impl DeniedReads {
    /// # Errors
    /// Returns a sentence if a pattern is no glob.
    pub fn compile(&self) -> Result<DeniedFiles, String> {
        let mut globs = GlobSet::builder();
        for pattern in &self.patterns {
            let glob = GlobBuilder::new(pattern).literal_separator(true).build();
            globs.add(glob.map_err(|error| format!("{pattern:?} is no pattern of paths: {error}"))?);
        }
        let globs = globs.build().map_err(|error| format!("the patterns of paths are too large: {error}"))?;
        Ok(DeniedFiles { globs, folders: self.folders.clone() })
    }
}

impl DeniedFiles {
    /// `path` is absolute and without symbolic links.
    pub fn contain(&self, path: &Path) -> bool {
        let inside = self.folders.iter().filter_map(|folder| path.strip_prefix(folder).ok());
        std::iter::once(path).chain(inside).any(|path| self.globs.is_match(path))
    }

    /// Numbers of the patterns that match, in no order. `path` is absolute and without symbolic links.
    pub fn matching(&self, path: &Path) -> Vec<usize> {
        let inside = self.folders.iter().filter_map(|folder| path.strip_prefix(folder).ok());
        std::iter::once(path).chain(inside).flat_map(|path| self.globs.matches(path)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_as_a_whole_and_in_each_folder() {
        for (pattern, path, expected) in [
            ("**/.env", "/work/.env", true),
            ("**/.env", "/work/a/.env", true),
            ("**/.env", "/.env", true),
            ("**/.env", "/work/.env.example", false),
            ("**/.env", "/work/.env/a", false),
            (".env", "/work/.env", true),
            (".env", "/other/.env", true),
            (".env", "/work/a/.env", false),
            ("secrets/**", "/work/secrets/a/b", true),
            ("secrets/*", "/work/secrets/a/b", false),
            ("/home/me/.ssh/**", "/home/me/.ssh/id", true),
            ("/home/me/.ssh/**", "/work/home/me/.ssh/id", false),
        ] {
            let reads = DeniedReads {
                patterns: vec![pattern.into()],
                folders: vec!["/work".into(), "/other".into()],
            };
            assert_eq!(reads.compile().unwrap().contain(Path::new(path)), expected, "{pattern} {path}");
        }
        let wrong = DeniedReads { patterns: vec!["[".into()], folders: Vec::new() };
        assert!(wrong.compile().unwrap_err().contains("\"[\" is no pattern"));
    }
}
