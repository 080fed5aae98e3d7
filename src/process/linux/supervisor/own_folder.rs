//! Removes a command's own temporary folder, whatever rights the command has set in it.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::raise_descriptor_limit;

pub(super) fn remove(folder: &Path) {
    raise_descriptor_limit();
    if std::fs::remove_dir_all(folder).is_ok() {
        return;
    }
    restore_owner_access(folder);
    if let Err(error) = std::fs::remove_dir_all(folder) {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "modegate: {} could not be removed: {error}", folder.display());
    }
}

/// Restores the owner's access to every folder, without following links.
fn restore_owner_access(folder: &Path) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let _ = std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700));
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        folders.extend(
            entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
    }
}
