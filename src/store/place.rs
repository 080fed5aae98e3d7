//! Whether a store's file is still the one that was opened.

use std::io;
use std::path::{Path, PathBuf};

/// A file that was opened.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    #[cfg(unix)]
    number: (u64, u64),
}

impl Place {
    /// The file at a path, as it is now.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            #[cfg(unix)]
            number: number(path)?,
        })
    }

    /// Whether the path still leads to it.
    pub fn is_there(&self) -> bool {
        #[cfg(unix)]
        {
            number(&self.path).is_ok_and(|number| number == self.number)
        }
        #[cfg(not(unix))]
        {
            self.path.exists()
        }
    }
}

#[cfg(unix)]
fn number(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
