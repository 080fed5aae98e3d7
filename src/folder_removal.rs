//! Removes a folder in which commands wrote, whatever rights they have set in it, and however deep it is.

use std::fs;
use std::io;
use std::path::Path;

/// All processes of the commands must be gone.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    empty(folder).and_then(|()| fs::remove_dir(folder))
}

/// Moves folders up instead of going down, so that their depth costs neither memory, descriptors nor long paths.
fn empty(folder: &Path) -> io::Result<()> {
    let mut moved: u64 = 0;
    restore_access(folder)?;
    loop {
        let mut is_empty = true;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                fs::remove_file(entry.path())?;
                continue;
            }
            restore_access(&entry.path())?;
            for inner in fs::read_dir(entry.path())? {
                let inner = inner?;
                if inner.file_type()?.is_dir() {
                    is_empty = false;
                    // A folder that changes its parent must be writable.
                    restore_access(&inner.path())?;
                    move_up(&inner.path(), folder, &mut moved)?;
                } else {
                    fs::remove_file(inner.path())?;
                }
            }
            fs::remove_dir(entry.path())?;
        }
        if is_empty {
            return Ok(());
        }
    }
}

#[cfg(unix)]
fn restore_access(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o700))
}

#[cfg(not(unix))]
fn restore_access(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Gives a folder a new name in `to`.
fn move_up(from: &Path, to: &Path, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        match fs::rename(from, to.join(format!(".removed-{moved}"))) {
            // The command has made something with this name.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory
                ) => {}
            done => return done,
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn folder_is_removed_whatever_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, outside) = (dir.path().join("own"), dir.path().join("outside"));
        fs::create_dir_all(outside.join("kept")).unwrap();
        fs::create_dir_all(folder.join(".removed-1/.removed-2/x")).unwrap();
        fs::write(folder.join(".removed-2"), "").unwrap();
        for link in ["l", ".removed-1/l"] {
            symlink(&outside, folder.join(link)).unwrap();
        }
        let mut deep = folder.join("deep");
        for _ in 0..100 {
            fs::create_dir(&deep).unwrap();
            fs::write(deep.join("file"), "").unwrap();
            deep.push("d");
        }
        fs::set_permissions(folder.join("deep/d"), Permissions::from_mode(0o0)).unwrap();
        remove(&folder).unwrap();
        assert!(!folder.exists() && outside.join("kept").exists());
    }
}
