//! The way to a file that somebody else is to write: the folders that were made for it, and what stood there before.

use std::io;
use std::path::Path;

use super::{Changes, Witness, open_parent};
use crate::permission::Target;

/// Made by [`super::Workspace::make_way`].
#[derive(Debug)]
pub struct Way {
    witness: Witness,
    /// Folders that were not there, the deepest first.
    missing: Vec<Target>,
}

impl Way {
    /// The way to a file, before its folders are made.
    pub(super) fn to(target: &Target, witness: Witness) -> Self {
        let insides = target.inside.iter().flat_map(|inside| inside.ancestors());
        let above = target.path.ancestors().zip(insides).skip(1);
        let is_missing = |path: &Path| path.symlink_metadata().is_err();
        let missing = above.take_while(|(path, inside)| !inside.as_os_str().is_empty() && is_missing(path));
        let to_target = |(path, inside): (&Path, &Path)| Target {
            path: path.to_owned(),
            inside: Some(inside.to_owned()),
        };
        Self { missing: missing.map(to_target).collect(), witness }
    }

    /// The file was not written: takes away the folders that were made for it, as far as nothing is in them.
    pub fn take_back(&self) {
        for folder in &self.missing {
            let removed = open_parent(folder, false).and_then(|(dir, name)| dir.remove_dir(name));
            if let Err(error) = removed
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::debug!(%error, path = %folder.path.display(), "a folder stays");
                return;
            }
        }
    }

    /// What has changed since.
    pub fn after(self) -> Changes {
        self.witness.after()
    }
}
