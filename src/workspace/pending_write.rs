//! Parent folders created for a file that the client writes.

use super::{FileError, change, make_parent, remove_folders};
use crate::permission::Target;

#[derive(Debug, Default)]
pub struct PendingWrite {
    made: Vec<Target>,
}

impl PendingWrite {
    /// Checks that a file can be written, and creates missing parent folders. On failure no created folder
    /// stays.
    pub fn prepare(target: &Target) -> Result<Self, FileError> {
        let mut pending_write = Self::default();
        let looked = change::check_inside(target)
            .and_then(|()| {
                make_parent(target, &mut pending_write.made)
                    .map_err(|error| FileError::io(&target.path, &error))
            })
            .and_then(|(dir, name)| change::check_writable(&dir, &name, target));
        match looked {
            Ok(_) => Ok(pending_write),
            Err(error) => {
                pending_write.revert();
                Err(error)
            }
        }
    }

    /// Removes the created folders that are still empty.
    pub fn revert(&self) {
        remove_folders(&self.made);
    }
}
