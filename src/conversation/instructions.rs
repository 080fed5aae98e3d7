//! Instruction files: which file of a folder counts, through which links, and their limits.
//!
//! The text is advice of its author. It is neutralised and cannot change permissions. Callers open the files.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::bounded_file::ReadError;

/// Names in a folder; the first that exists counts. Other agents' own files may contradict these, so that they
/// count only as the target of a link.
pub const NAMES: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];

/// Names of files to which one of [`NAMES`] may be a link.
const LINK_TARGETS: [&str; 5] =
    ["AGENTS.md", "AGENT.md", "CLAUDE.md", "GEMINI.md", "copilot-instructions.md"];

/// Maximum bytes of a file; a larger one is not used.
pub const MAX_READ: u64 = 1024 * 1024;

/// Maximum bytes of each file for the model.
pub const MAX_FILE: usize = 32 * 1024;

/// Maximum bytes of all files together.
pub const MAX_ALL: usize = 64 * 1024;

/// Limit for reading files, so that an unresponsive disk does not block the user.
pub const TIMEOUT: Duration = Duration::from_secs(2);

pub type Content = Result<Vec<u8>, ReadError>;

/// Reads the folder's instruction file. `None` if there is none. A file that cannot be read counts: its error
/// must not hide behind the next name. `read` does not follow links.
pub fn of_folder(folder: &Path, read: impl Fn(&Path) -> Content) -> Option<(PathBuf, Content)> {
    let files = NAMES.iter().map(|name| folder.join(name));
    let mut files = files.map(|path| {
        let content = through_link(&path, &read);
        (path, content)
    });
    files.find(|(_, content)| !matches!(content, Err(ReadError::Missing)))
}

/// Follows a link to another agent's file. Any other link is an error.
fn through_link(path: &Path, read: impl Fn(&Path) -> Content) -> Content {
    match read(path) {
        Err(ReadError::Link) => {
            let target = linked_file(path).ok_or(ReadError::Link)?;
            read(&target).map_err(|error| match error {
                ReadError::Missing => ReadError::Link,
                error => error,
            })
        }
        read => read,
    }
}

fn linked_file(path: &Path) -> Option<PathBuf> {
    let link = path.read_link().ok()?;
    LINK_TARGETS.iter().find(|name| link.file_name() == Some(OsStr::new(name)))?;
    let mut target = path.parent()?.to_owned();
    for part in link.components() {
        match part {
            Component::Normal(name) => target.push(name),
            Component::CurDir => {}
            Component::ParentDir if target.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(target)
}
