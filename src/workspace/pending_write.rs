//! The folders that are made for a file which somebody else is to write.

use super::{FileError, Workspace, change, make_parent, remove_folders};
use crate::permission::Target;

/// Made by [`Workspace::prepare_write`].
#[derive(Debug, Default)]
pub struct PendingWrite {
    /// Folders that were not there, the outermost first.
    made: Vec<Target>,
}

impl Workspace {
    /// Makes way for somebody else who is to write a file: looks whether it could be written here, and makes the folders that
    /// are missing.
    ///
    /// # Errors
    /// As for [`Self::apply`]: it could not be written here either. Then no folder stays.
    pub fn prepare_write(&self, target: &Target) -> Result<PendingWrite, FileError> {
        let mut pending_write = PendingWrite::default();
        let looked = change::check_inside(target)
            .and_then(|()| {
                make_parent(target, &mut pending_write.made)
                    .map_err(|error| FileError::io(&target.path, &error))
            })
            .and_then(|(dir, name)| change::check_writable(&dir, &name, target));
        match looked {
            Ok(_) => Ok(pending_write),
            Err(error) => {
                pending_write.take_back();
                Err(error)
            }
        }
    }
}

impl PendingWrite {
    /// The file was not written: takes away the folders that were made for it, as far as nothing is in them.
    pub fn take_back(&self) {
        remove_folders(&self.made);
    }
}
