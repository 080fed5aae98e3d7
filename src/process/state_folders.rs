//! Folders of external agents outside of the session's: state folders, which an agent writes in every mode, and those that
//! it changes where the mode allows changes.

use std::path::{Component, Path, PathBuf};

use super::sandbox_paths::User;
use crate::platform::files::{create_private_folders, real_path, real_place};

/// Real paths of the state folders. Missing folders are created, because a sandboxed agent could not create
/// them. A folder inside another one is dropped.
///
/// # Errors
/// Returns a sentence if a folder is not absolute, contains the home folder, overlaps with `roots` or with
/// Modegate's own files, or cannot be created.
pub fn folders(user: &User, roots: &[PathBuf], written: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let paths: Vec<PathBuf> =
        written.iter().map(|path| at_home(user, STATE, path)).collect::<Result<_, _>>()?;
    let mut folders = Vec::new();
    for path in &paths {
        // Compared as written, because the agent could change a link inside another folder.
        if paths.iter().any(|other| other != path && path.starts_with(other)) {
            continue;
        }
        let folder = made(path)?;
        check(user, roots, path, &folder)?;
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    Ok(folders)
}

/// Creates a folder that an agent needs and does not write.
pub fn create(user: &User, named: &Path) -> Result<(), String> {
    made(&at_home(user, STATE, named)?).map(drop)
}

/// Returns the error of [`folders`] without creating any.
pub fn fault(user: &User, roots: &[PathBuf], written: &[PathBuf]) -> Option<String> {
    let mut checked = written.iter().map(|path| {
        let path = at_home(user, STATE, path)?;
        check(user, roots, &path, &real_place(&path))
    });
    checked.find_map(Result::err)
}

/// Real paths of the folders that the agent changes where the mode allows changes. Missing ones count once they exist.
///
/// # Errors
/// Returns a sentence if a folder is not absolute, contains the home folder, or lies in a folder of `written`: the agent
/// could replace it there by a link.
pub fn write_folders(user: &User, written: &[PathBuf], named: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let written: Vec<PathBuf> = written
        .iter()
        .map(|path| at_home(user, STATE, path))
        .chain(written.iter().map(|path| Ok(real_place(&at_home(user, STATE, path)?))))
        .collect::<Result<_, _>>()?;
    let mut folders = Vec::new();
    for path in named {
        let path = at_home(user, WRITE, path)?;
        let (text, folder) = (path.display(), real_place(&path));
        if contains_home(user, &folder) {
            return Err(format!("its {WRITE} {text} contains the home folder"));
        }
        if written.iter().any(|other| path.starts_with(other) || folder.starts_with(other)) {
            return Err(format!("its {WRITE} {text} lies in another folder that the agent writes"));
        }
        folders.push(folder);
    }
    Ok(folders)
}

/// Names of the folders in errors.
const STATE: &str = "state folder";
const WRITE: &str = "folder";

fn contains_home(user: &User, folder: &Path) -> bool {
    let home = user.home.as_ref().and_then(|home| real_path(home).ok());
    folder.parent().is_none() || home.is_some_and(|home| home.starts_with(folder))
}

fn check(user: &User, roots: &[PathBuf], path: &Path, folder: &Path) -> Result<(), String> {
    let text = path.display();
    if contains_home(user, folder) {
        return Err(format!("its state folder {text} contains the home folder"));
    }
    let shares = |root: PathBuf| root.starts_with(folder) || folder.starts_with(&root);
    if roots.iter().map(|root| real_place(root)).any(shares) {
        return Err(format!("its state folder {text} shares files with the session's folder"));
    }
    // An agent must not write mode definitions or the event log.
    if user.own.iter().map(|own| real_place(own)).any(shares) {
        return Err(format!(
            "its state folder {text} shares files with Modegate's settings or session store"
        ));
    }
    Ok(())
}

fn at_home(user: &User, kind: &str, path: &Path) -> Result<PathBuf, String> {
    let text = path.display();
    let whole = match (path.strip_prefix("~"), &user.home) {
        (Ok(rest), Some(home)) => home.join(rest),
        (Ok(_), None) => {
            return Err(format!("its {kind} {text} begins with ~/, but there is no home folder"));
        }
        (Err(_), _) => path.to_owned(),
    };
    if !whole.is_absolute() || whole.components().any(|part| part == Component::ParentDir) {
        return Err(format!("its {kind} {text} is not an absolute path and does not begin with ~/"));
    }
    Ok(whole)
}

fn no_folder(path: &Path) -> String {
    format!("its state folder {} is a file: only folders can be named", path.display())
}

fn made(path: &Path) -> Result<PathBuf, String> {
    let exists = real_path(path);
    let real = exists.or_else(|_| create_private_folders(path).and_then(|()| real_path(path)));
    let real =
        real.map_err(|error| format!("its state folder {} cannot be created: {error}", path.display()))?;
    if real.is_dir() { Ok(real) } else { Err(no_folder(path)) }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_folders_exclude_home_workspace_and_own_config() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (home, work) = (dir.join("home"), dir.join("home/work"));
        std::fs::create_dir_all(&work).unwrap();
        std::os::unix::fs::symlink(&work, home.join("link")).unwrap();
        let own = vec![home.join(".config/modegate")];
        let user = User { home: Some(home.clone()), own, ..User::default() };
        let folders = |named: &[&str]| {
            let named: Vec<PathBuf> = named.iter().map(PathBuf::from).collect();
            folders(&user, std::slice::from_ref(&work), &named)
        };
        assert_eq!(folders(&["~/.agent", "~/.agent/inner", "~/.agent/"]), Ok(vec![home.join(".agent")]));
        assert!(home.join(".agent").is_dir() && !home.join(".agent/inner").exists());
        std::fs::write(home.join(".agent.json"), "{}").unwrap();
        let error = folders(&["~/.agent.json"]).unwrap_err();
        assert!(error.ends_with(".agent.json is a file: only folders can be named"), "{error}");
        let (roots, work) = (work.clone(), work.to_str().unwrap().to_owned());
        for wrong in [
            "~",
            "~/",
            "/",
            "x",
            "~/../x",
            "~/work",
            "~/work/x",
            "~/link",
            "~/.config",
            "~/.config/modegate/x",
            &work,
        ] {
            assert!(folders(&[wrong]).is_err(), "{wrong}");
            assert!(fault(&user, std::slice::from_ref(&roots), &[wrong.into()]).is_some(), "{wrong}");
        }
        assert_eq!(fault(&user, std::slice::from_ref(&roots), &["~/.other".into()]), None);
        let write_folders =
            |named: &str| write_folders(&user, &[roots.clone(), "~/.agent".into()], &[named.into()]);
        for wrong in ["~", "/", "x", "~/../x", "~/work", "~/work/x", "~/link", "~/.agent/x", &work] {
            assert!(write_folders(wrong).is_err(), "{wrong}");
        }
        assert_eq!(write_folders("~/site"), Ok(vec![home.join("site")]));
        assert_eq!(write_folders(dir.join("out").to_str().unwrap()), Ok(vec![dir.join("out")]));
        assert!(!home.join(".other").exists());
    }
}
