//! Creates the shell for commands.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::environment::Environment;
use super::user_file::{self, ShellSettings};
use crate::platform::Platform;
use crate::process::Processes;
use crate::process::shell::Shell;
use crate::sandbox;

pub fn processes(environment: &Environment) -> Processes {
    Processes::new(Processes::own_binary(), environment.user.temporary.clone())
}

/// Folders of Windows with a `bash.exe` that starts another system, WSL.
const OTHER_SYSTEM: [&str; 2] = ["system32", "windowsapps"];

/// Returns `bash`, because models write for it, or else `/bin/sh`. On Windows this is the one of Git, or `None`.
fn find_shell(platform: Platform, folders: &[PathBuf], is_file: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    if platform != Platform::Windows {
        let bash = folders.iter().map(|folder| folder.join("bash")).find(|bash| is_file(bash));
        return Some(bash.unwrap_or_else(|| "/bin/sh".into()));
    }
    let in_path =
        folders.iter().filter(|folder| is_for_this_system(folder)).map(|folder| folder.join("bash.exe"));
    // By default its installer puts only `cmd` on PATH, which lies beside `bin`.
    let with_git = folders.iter().filter(|folder| is_file(&folder.join("git.exe")));
    let of_git = with_git.filter_map(|folder| Some(folder.parent()?.join("bin/bash.exe")));
    in_path.chain(of_git).find(|bash| is_file(bash))
}

fn is_for_this_system(folder: &Path) -> bool {
    let name = folder.file_name().map(OsStr::to_ascii_lowercase);
    !name.is_some_and(|name| OTHER_SYSTEM.iter().any(|other| name == **other))
}

pub fn shell(environment: &Environment, settings: &ShellSettings) -> anyhow::Result<Shell> {
    let mut user = environment.user.clone();
    let home = user.home.clone();
    let place = |path: &PathBuf| absolute(path, home.as_deref()).context("shell");
    user.read = settings.read.iter().map(place).collect::<Result<_, _>>()?;
    user.write = settings.write.iter().map(place).collect::<Result<_, _>>()?;
    let program = find_shell(Platform::HERE, &user.path, Path::is_file);
    let program = program.and_then(|shell| shell.into_os_string().into_string().ok());
    let seen = environment.for_reading.clone();
    let shell = Shell::new(processes(environment), program, user, seen, settings.sandbox, sandbox::support());
    Ok(shell.with_network_variables(environment.network.clone()))
}

/// The shell of the user's present settings.
pub fn user_shell(environment: &Environment) -> anyhow::Result<Shell> {
    let settings = user_file::read(environment.config_folder.as_deref())?.shell.unwrap_or_default();
    shell(environment, &settings)
}

pub fn absolute(path: &Path, home: Option<&Path>) -> anyhow::Result<PathBuf> {
    match (path.strip_prefix("~"), home) {
        (Ok(below), Some(home)) => Ok(home.join(below)),
        _ if path.is_absolute() => Ok(path.to_owned()),
        _ => bail!("{:?} is not an absolute path, and does not begin with ~/", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bash_is_found_where_each_system_has_it() {
        let find = |platform, folders: &[&str], files: &[&str]| {
            let folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
            let found =
                find_shell(platform, &folders, |path| files.iter().any(|file| path == Path::new(file)));
            found.map(|found| found.to_str().unwrap().replace('\\', "/"))
        };
        let folders = ["/usr/bin", "/opt/bin"];
        assert_eq!(find(Platform::Linux, &folders, &["/opt/bin/bash"]).as_deref(), Some("/opt/bin/bash"));
        assert_eq!(find(Platform::MacOs, &folders, &[]).as_deref(), Some("/bin/sh"));
        let windows = |files: &[&str]| {
            find(Platform::Windows, &["C:/Windows/System32", "C:/Git/cmd", "C:/a/WindowsApps", "C:/b"], files)
        };
        let other_system = ["C:/Windows/System32/bash.exe", "C:/a/WindowsApps/bash.exe"];
        assert_eq!(windows(&other_system), None);
        let git = ["C:/Git/cmd/git.exe", "C:/Git/bin/bash.exe"];
        assert_eq!(windows(&git).as_deref(), Some("C:/Git/bin/bash.exe"));
        assert_eq!(windows(&[git[0], git[1], "C:/b/bash.exe"]).as_deref(), Some("C:/b/bash.exe"));
        assert_eq!(windows(&["C:/Git/bin/bash.exe"]), None, "without git.exe on PATH");
    }
}
