//! Reads the records of a broker, and compares them with the disk.

use std::path::Path;
use std::{fs, io};

use super::inspect::{Found, inspect};
use super::{Changed, Changes, FileState, Workspace};
use crate::ids::hash_bytes;
use crate::platform::files::create_private_folders;
use crate::sandbox::record::{Before, ENDING, Record, RecordEntry};

/// Creates an empty folder for records, which only this user can read.
pub fn create_record_folder(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    create_private_folders(folder)
}

/// Returns the changes of all saved records in `folder`, oldest first, and deletes the records.
pub fn recorded_changes(workspace: &Workspace, folder: &Path) -> Changes {
    let mut changes = Changes::default();
    let mut numbers: Vec<u64> = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
        if path.extension().is_some_and(|ending| ending == ENDING) {
            numbers.extend(number);
        }
    }
    numbers.sort_unstable();
    for number in numbers {
        let path = folder.join(number.to_string()).with_extension(ENDING);
        let read = fs::read(&path).map_err(|error| error.to_string());
        match read.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string())) {
            Ok(record) => add_record(workspace, folder, record, &mut changes),
            Err(error) => changes.uncovered.push(format!("A record of changes is unreadable: {error}.")),
        }
        // The folder is deleted with the session.
        let _ = fs::remove_file(path);
    }
    changes
}

fn add_record(workspace: &Workspace, folder: &Path, record: Record, changes: &mut Changes) {
    let Record { entries, uncovered } = record;
    changes.uncovered.extend(uncovered);
    for RecordEntry { path, before } in entries {
        let target = workspace.place(path.clone());
        let before = match before {
            Before::Absent => FileState::Absent,
            Before::Folder { mode } => FileState::Folder { mode },
            Before::Link { to } => FileState::Link { to },
            Before::File { copy, mode } => {
                let copy = folder.join(copy);
                let Ok(content) = fs::read(&copy) else {
                    let name = workspace.display(&target);
                    changes.uncovered.push(format!("The earlier content of {name} was not kept."));
                    continue;
                };
                let _ = fs::remove_file(copy);
                let hash = hash_bytes(&content);
                changes.contents.push((hash.clone(), content));
                FileState::File { hash, mode }
            }
        };
        match inspect(&target) {
            Found::State(after, _) if after == before => {}
            Found::State(after, _) => {
                changes.changed.push(Changed { path, before, after, compared: false });
            }
            Found::Unknown(why) => {
                let name = workspace.display(&target);
                changes.uncovered.push(format!("{name} {why}: its changes cannot be undone."));
            }
        }
    }
}
