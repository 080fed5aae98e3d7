//! Hard links in the state folders of external agents. A sandbox decides by path, so through a name in a state
//! folder the agent could write a file that also has a name elsewhere.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use cap_fs_ext::{DirExt, FollowSymlinks, MetadataExt, OpenOptionsFollowExt};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, Metadata, OpenOptions};

/// Folders below each other. More are refused, because each is open during the walk.
const MAX_DEPTH: usize = 200;

/// Device and number of a file.
type LinkedFile = (u64, u64);

/// Replaces each file that has names outside of `folders` by a copy. Follows no link. The names outside keep the
/// file. Returns the replaced names.
///
/// # Errors
/// Returns a sentence if a folder cannot be looked through or a file cannot be replaced.
pub fn separate(folders: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    // Files with names elsewhere have names left when all of these are subtracted.
    let mut names_elsewhere: HashMap<LinkedFile, u64> = HashMap::new();
    visit(folders, &mut |_, _, _, found| {
        let count = names_elsewhere.entry(identity(found)).or_insert_with(|| found.nlink());
        *count = count.saturating_sub(1);
        Ok(())
    })?;
    let mut replaced = Vec::new();
    if names_elsewhere.values().any(|count| *count > 0) {
        visit(folders, &mut |dir, name, path, found| {
            if names_elsewhere.get(&identity(found)).is_none_or(|count| *count > 0) {
                replace(dir, name, found)?;
                replaced.push(path.to_owned());
            }
            Ok(())
        })?;
    }
    Ok(replaced)
}

fn identity(found: &Metadata) -> LinkedFile {
    (found.dev(), found.ino())
}

type Visit<'a> = dyn FnMut(&Dir, &Path, &Path, &Metadata) -> io::Result<()> + 'a;

/// Visits all files that have several names.
fn visit(folders: &[PathBuf], each: &mut Visit<'_>) -> Result<(), String> {
    for folder in folders {
        let opened = Dir::open_ambient_dir(folder, ambient_authority());
        opened.map_err(|error| failed(folder, &error)).and_then(|dir| visit_folder(&dir, folder, 0, each))?;
    }
    Ok(())
}

fn visit_folder(dir: &Dir, path: &Path, depth: usize, each: &mut Visit<'_>) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err(format!("its state folder has more than {MAX_DEPTH} levels at {}", path.display()));
    }
    for entry in dir.entries().map_err(|error| failed(path, &error))? {
        let entry = entry.map_err(|error| failed(path, &error))?;
        let name = PathBuf::from(entry.file_name());
        let path = path.join(&name);
        let visited = match dir.symlink_metadata(&name) {
            Ok(found) if found.is_dir() => match dir.open_dir_nofollow(&name) {
                Ok(below) => {
                    visit_folder(&below, &path, depth + 1, each)?;
                    Ok(())
                }
                Err(error) => Err(error),
            },
            Ok(found) if found.is_file() && found.nlink() > 1 => each(dir, &name, &path, &found),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        match visited {
            // Another process has removed it.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&path, &error)),
            _ => {}
        }
    }
    Ok(())
}

fn replace(dir: &Dir, name: &Path, found: &Metadata) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut source = dir.open_with(name, options.read(true).follow(FollowSymlinks::No))?;
    if identity(&source.metadata()?) != identity(found) {
        return Err(io::Error::other("another program changes it"));
    }
    let copy = PathBuf::from(format!(".modegate-copy-{}", uuid::Uuid::now_v7()));
    let mut options = OpenOptions::new();
    let mut target = dir.open_with(&copy, options.write(true).create_new(true))?;
    let replaced = target
        .set_permissions(found.permissions())
        .and_then(|()| io::copy(&mut source, &mut target))
        .and_then(|_| dir.rename(&copy, dir, name));
    if replaced.is_err() {
        // The error of the copy tells more.
        let _ = dir.remove_file(&copy);
    }
    replaced
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!("hard links in its state folder cannot be separated: {}: {error}", path.display())
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn files_with_names_elsewhere_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let (state, work) = (dir.path().join("state"), dir.path().join("work"));
        fs::create_dir_all(state.join("deep/er")).unwrap();
        fs::create_dir(&work).unwrap();
        fs::write(work.join("file"), "text").unwrap();
        fs::set_permissions(work.join("file"), fs::Permissions::from_mode(0o640)).unwrap();
        for name in ["one", "deep/er/two"] {
            fs::hard_link(work.join("file"), state.join(name)).unwrap();
        }
        fs::write(state.join("cache"), "").unwrap();
        fs::hard_link(state.join("cache"), state.join("deep/cache")).unwrap();
        // A link to a folder elsewhere is not followed.
        std::os::unix::fs::symlink(&work, state.join("link")).unwrap();

        let mut replaced = separate(std::slice::from_ref(&state)).unwrap();
        replaced.sort();
        assert_eq!(replaced, [state.join("deep/er/two"), state.join("one")]);
        for name in ["one", "deep/er/two"] {
            let path = state.join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), "text");
            let found = path.metadata().unwrap();
            assert_eq!((found.nlink(), found.mode() & 0o777), (1, 0o640));
        }
        assert_eq!(work.join("file").metadata().unwrap().nlink(), 1);
        assert_eq!(state.join("cache").metadata().unwrap().nlink(), 2, "all names are in the folder");
        assert_eq!(separate(&[state]).unwrap(), Vec::<PathBuf>::new());
    }
}
