//! Removes a folder in which commands wrote, whatever rights they have set in it, and however deep it is.

use std::io;
use std::path::Path;

use cap_fs_ext::DirExt;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, DirEntry};

/// The commands that used the folder must have ended. Others may change it meanwhile: no link in place of a folder is
/// followed.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = Dir::open_ambient_dir(parent, ambient_authority())?;
    empty(&parent.open_dir_nofollow(name)?)?;
    parent.remove_dir(name)
}

/// Moves folders up instead of going down, so that their depth costs neither memory, descriptors nor long paths.
fn empty(folder: &Dir) -> io::Result<()> {
    let mut moved: u64 = 0;
    loop {
        let mut is_empty = true;
        for entry in folder.entries()? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                entry.remove_file()?;
                continue;
            }
            let inside = open_writable(folder, &entry)?;
            for inner in inside.entries()? {
                let inner = inner?;
                if inner.file_type()?.is_dir() {
                    is_empty = false;
                    // A folder that changes its parent must be writable.
                    open_writable(&inside, &inner)?;
                    move_up(&inside, &inner, folder, &mut moved)?;
                } else {
                    inner.remove_file()?;
                }
            }
            entry.remove_dir()?;
        }
        if is_empty {
            return Ok(());
        }
    }
}

/// Opens a folder after giving its user all rights.
fn open_writable(parent: &Dir, entry: &DirEntry) -> io::Result<Dir> {
    let name = entry.file_name();
    #[cfg(unix)]
    parent.set_permissions(&name, cap_std::fs::PermissionsExt::from_mode(0o700))?;
    parent.open_dir_nofollow(&name)
}

/// Gives a folder a new name in `to`.
fn move_up(from: &Dir, entry: &DirEntry, to: &Dir, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        match from.rename(entry.file_name(), to, format!(".removed-{moved}")) {
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
    use std::fs::{self, Permissions};
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

    #[test]
    fn link_in_place_of_the_folder_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::create_dir_all(target.join("kept")).unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o755)).unwrap();
        symlink(&target, &link).unwrap();
        assert!(remove(&link).is_err());
        assert!(target.join("kept").exists());
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o755);
        // The control.
        remove(&target).unwrap();
        assert!(!target.exists());
    }
}
