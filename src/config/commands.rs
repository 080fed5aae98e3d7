//! Creates the shell for commands.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::environment::Environment;
use super::user_file::ShellSettings;
use crate::process::Processes;
use crate::process::shell::Shell;
use crate::sandbox;

pub fn processes(environment: &Environment) -> Processes {
    Processes::new(Processes::own_binary(), environment.user.temporary.clone())
}

/// Prefers `bash`, because models write for it.
pub fn shell(environment: &Environment, settings: &ShellSettings) -> anyhow::Result<Shell> {
    let mut user = environment.user.clone();
    let home = user.home.clone();
    let place = |path: &PathBuf| absolute(path, home.as_deref());
    user.read = settings.read.iter().map(place).collect::<Result<_, _>>()?;
    user.write = settings.write.iter().map(place).collect::<Result<_, _>>()?;
    let program = user.path.iter().map(|folder| folder.join("bash")).find(|bash| bash.is_file());
    let program =
        program.and_then(|bash| bash.to_str().map(str::to_owned)).unwrap_or_else(|| "/bin/sh".into());
    let seen = environment.for_reading.clone();
    Ok(Shell::new(processes(environment), program, user, seen, settings.sandbox, sandbox::support()))
}

pub fn absolute(path: &Path, home: Option<&Path>) -> anyhow::Result<PathBuf> {
    match (path.strip_prefix("~"), home) {
        (Ok(below), Some(home)) => Ok(home.join(below)),
        _ if path.is_absolute() => Ok(path.to_owned()),
        _ => bail!("shell: {:?} is not an absolute path, and does not begin with ~/", path.display()),
    }
}
