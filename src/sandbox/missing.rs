//! Systems without a sandbox, such as Windows.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::{Confinement, Support};

pub fn support() -> Support {
    Support::None("sandboxing requires Linux or macOS".into())
}

/// The error is a sentence: the command must be confined.
pub fn command(
    confinement: &Confinement,
    _: Option<&Path>,
    program: PathBuf,
    arguments: Vec<String>,
) -> Result<(PathBuf, Vec<OsString>), String> {
    match (confinement, support()) {
        (Confinement::Off, _) => Ok((program, arguments.into_iter().map(Into::into).collect())),
        (_, support) => Err(support.to_string()),
    }
}

/// Only Linux shows the first environment of a process to others.
pub fn wipe_variable(_: &str) {}
