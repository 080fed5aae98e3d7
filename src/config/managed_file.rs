//! Reads the organisation's policy from its only place, and looks at the folders that it names.
//!
//! Security: no flag, variable or setting changes the place, and the file counts only if the administrator alone can
//! change it.

use std::path::{Path, PathBuf};

use crate::git_folder;
pub use crate::http::network::server_of;
use crate::managed_policy::{self, ManagedLimits, ManagedPolicy, PolicyState, SessionPlace};
use crate::platform::files::{read_administrators_file, real_place};
use crate::policy::Diagnostic;

/// Windows: the folder's usual place, because a variable could name another one.
pub const PLACE: &str = if cfg!(windows) {
    r"C:\ProgramData\Modegate\policy.yaml"
} else if cfg!(target_os = "macos") {
    "/Library/Application Support/Modegate/policy.yaml"
} else {
    "/etc/modegate/policy.yaml"
};

/// Reads the file anew, because a changed policy counts for new sessions.
pub fn read() -> PolicyState {
    let bytes = match read_administrators_file(Path::new(PLACE), managed_policy::MAX_FILE) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return PolicyState::Absent,
        Err(reason) => return PolicyState::Unusable(Diagnostic::of_file(PLACE, format!("it {reason}"))),
    };
    let Ok(text) = String::from_utf8(bytes) else {
        return PolicyState::Unusable(Diagnostic::of_file(PLACE, "it is not UTF-8 text"));
    };
    match ManagedPolicy::parse(PLACE, &text) {
        Ok(policy) => PolicyState::Valid(Box::new(policy)),
        Err(diagnostic) => PolicyState::Unusable(diagnostic),
    }
}

/// The limits that are the same in all folders: models, hosts, requirements and choices.
pub fn limits_everywhere() -> ManagedLimits {
    read().limits(&SessionPlace::default())
}

/// The limits of a session that may change files in these folders.
pub fn limits_in(folders: &[PathBuf]) -> ManagedLimits {
    limits_of(read(), folders)
}

/// As [`limits_in`], of a policy that was read already.
pub fn limits_of(state: PolicyState, folders: &[PathBuf]) -> ManagedLimits {
    let (state, place) = placed(state, folders);
    state.limits(&place)
}

/// The policy with the real paths of its folders, and the place of a session.
pub fn placed(state: PolicyState, folders: &[PathBuf]) -> (PolicyState, SessionPlace) {
    let state = match state {
        PolicyState::Valid(policy) => PolicyState::Valid(Box::new(policy.with_real_paths(real_place))),
        other => other,
    };
    let names_repositories = matches!(&state, PolicyState::Valid(policy) if policy.names_repositories());
    let folders: Vec<PathBuf> = folders.iter().map(|folder| real_place(folder)).collect();
    let remotes = if names_repositories { remotes(&folders) } else { Some(Vec::new()) };
    (state, SessionPlace { folders, remotes })
}

/// The remotes of all repositories around the folders. `None` if the configuration of one cannot be read.
fn remotes(folders: &[PathBuf]) -> Option<Vec<String>> {
    let mut remotes = Vec::new();
    for folder in folders {
        let mut place = Some(folder.as_path());
        // A repository within another one must not hide the outer one.
        while let Some(root) = place.and_then(git_folder::root) {
            remotes.extend(managed_policy::remotes(&git_folder::config(root).ok()?));
            place = root.parent();
        }
    }
    Some(remotes)
}
