//! The folders that are made for a file which somebody else is to write.

use super::{FileError, Workspace, change, make_parent, remove_folders};
use crate::permission::Target;

/// Made by [`Workspace::make_way`].
#[derive(Debug, Default)]
pub struct Way {
    /// Folders that were not there, the outermost first.
    made: Vec<Target>,
}

impl Workspace {
    /// Makes way for somebody else who is to write a file: looks whether it could be written here, and makes the folders that
    /// are missing.
    ///
    /// # Errors
    /// As for [`Self::apply`]: it could not be written here either. Then no folder stays.
    pub fn make_way(&self, target: &Target) -> Result<Way, FileError> {
        let mut way = Way::default();
        let looked = change::check_inside(target)
            .and_then(|()| {
                make_parent(target, &mut way.made).map_err(|error| FileError::io(&target.path, &error))
            })
            .and_then(|(dir, name)| change::look_to_write(&dir, &name, target));
        match looked {
            Ok(_) => Ok(way),
            Err(error) => {
                way.take_back();
                Err(error)
            }
        }
    }
}

impl Way {
    /// The file was not written: takes away the folders that were made for it, as far as nothing is in them.
    pub fn take_back(&self) {
        remove_folders(&self.made);
    }
}
