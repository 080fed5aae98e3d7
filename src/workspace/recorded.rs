//! Reads the records of a broker, and compares them with the disk.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::inspect::{InspectedPath, inspect};
use super::{Changed, Changes, FileState, Workspace};
use crate::ids::hash_bytes;
use crate::platform::files::create_private_folders;
use crate::supervisor::record::{self, COPIES, CopyPlace, ENDING, GROWING, Record, RecordState, StateBefore};

/// Creates an empty folder for records, which only this user can read.
pub fn create_record_folder(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    create_private_folders(folder)
}

/// What happens to the files of a record after they were read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordUse {
    Keep,
    Delete,
}

/// Returns the changes of a command that still runs, and leaves its record as it is.
pub fn changes_so_far(workspace: &Workspace, folder: &Path) -> Changes {
    let mut changes = Changes::default();
    for path in record_files(folder, &[ENDING, GROWING], &mut changes) {
        // A file that is gone was read by the end of the turn.
        if let Ok(text) = fs::read(&path) {
            add_record(workspace, &path, RecordUse::Keep, record::read(&text), &mut changes);
        }
    }
    changes
}

/// Returns the changes of all finished records in `folder`, oldest first, and deletes the records. Of a record that is
/// cut, also returns those of the file that still grew.
pub fn recorded_changes(workspace: &Workspace, folder: &Path, state: &RecordState) -> Changes {
    let mut changes = Changes::default();
    let endings: &[&str] = if *state == RecordState::Cut { &[ENDING, GROWING] } else { &[ENDING] };
    let files = record_files(folder, endings, &mut changes);
    let mut problems = match state {
        RecordState::Complete => Vec::new(),
        RecordState::Incomplete(why) => {
            vec![format!("Changes may be unknown, because their record could not be saved: {why}.")]
        }
        RecordState::Cut => {
            vec!["The process that recorded changes was killed. Its last change may be unknown, which cannot be undone.".to_owned()]
        }
    };
    for path in files {
        match fs::read(&path) {
            Ok(text) => {
                let record = record::read(&text);
                problems.extend(damage(&record, state));
                add_record(workspace, &path, RecordUse::Delete, record, &mut changes);
            }
            Err(error) => problems.push(format!("A record of changes is unreadable: {error}.")),
        }
        // The folder is deleted with the session. A record without small copies has no file of them.
        let _ = fs::remove_file(path.with_extension(COPIES));
        let _ = fs::remove_file(path);
    }
    changes.unrecorded.extend(problems);
    changes
}

/// The files of records with one of the endings, oldest first.
fn record_files(folder: &Path, endings: &[&str], changes: &mut Changes) -> Vec<PathBuf> {
    let mut files: Vec<(u64, PathBuf)> = Vec::new();
    match fs::read_dir(folder) {
        Ok(entries) => {
            files.extend(entries.flatten().filter_map(|entry| record_file(&entry.path(), endings)));
        }
        Err(error) => {
            changes.unrecorded.push(format!("The folder of the record of changes is unreadable: {error}."));
        }
    }
    files.sort_unstable();
    files.into_iter().map(|(_, path)| path).collect()
}

fn record_file(path: &Path, endings: &[&str]) -> Option<(u64, PathBuf)> {
    let ending = path.extension()?.to_str()?;
    let number = path.file_stem()?.to_str()?.parse().ok()?;
    endings.contains(&ending).then(|| (number, path.to_owned()))
}

fn damage(record: &Record, state: &RecordState) -> Option<String> {
    // Users are told of a killed supervisor anyway.
    let is_damaged = record.is_cut && *state != RecordState::Cut;
    match record.unreadable + usize::from(is_damaged) {
        0 => None,
        1 => Some("One entry of the record of changes is unreadable: a change is unknown.".into()),
        count => {
            Some(format!("{count} entries of the record of changes are unreadable: changes are unknown."))
        }
    }
}

/// Adds the changes of a record. `file` is the file of its lines.
fn add_record(
    workspace: &Workspace,
    file: &Path,
    record_use: RecordUse,
    record: Record,
    changes: &mut Changes,
) {
    changes.uncovered.extend(record.uncovered);
    for (path, before) in record.entries {
        let target = workspace.place(path.clone());
        let name = workspace.display(&target);
        let before = match earlier_state(file, record_use, before) {
            Ok((state, content)) => {
                changes.contents.extend(content);
                state
            }
            Err(why) => {
                changes.uncovered.push(format!("{name} {why}: its changes cannot be undone."));
                continue;
            }
        };
        match inspect(&target) {
            InspectedPath::State(after, _) if after == before => {}
            InspectedPath::State(after, _) => {
                changes.changed.push(Changed { path, before, after, compared: false });
            }
            InspectedPath::Unknown(why) => {
                changes.uncovered.push(format!("{name} {why}: its changes cannot be undone."));
            }
        }
    }
}

/// The content of a file with its hash.
type KeptContent = (String, Vec<u8>);

/// Returns the state with the content of a file. The error is the rest of a sentence.
fn earlier_state(
    file: &Path,
    record_use: RecordUse,
    before: StateBefore,
) -> Result<(FileState, Option<KeptContent>), String> {
    let state = match before {
        StateBefore::Absent => FileState::Absent,
        StateBefore::Folder { mode } => FileState::Folder { mode },
        StateBefore::Link { to } => FileState::Link { to },
        StateBefore::File { copy, mode } => {
            let content = read_copy(file, record_use, copy)
                .map_err(|error| format!("was copied, and the copy is unreadable ({error})"))?;
            let hash = hash_bytes(&content);
            return Ok((FileState::File { hash: hash.clone(), mode }, Some((hash, content))));
        }
        StateBefore::Unknown { why } => return Err(why),
    };
    Ok((state, None))
}

/// Reads the copy of a file. Those that share a file are deleted together.
fn read_copy(record: &Path, record_use: RecordUse, copy: CopyPlace) -> io::Result<Vec<u8>> {
    match copy {
        CopyPlace::File(number) => {
            let copy = record.with_file_name(number.to_string());
            let content = fs::read(&copy)?;
            if record_use == RecordUse::Delete {
                let _ = fs::remove_file(copy);
            }
            Ok(content)
        }
        CopyPlace::Part { start, length } => {
            let mut shared = fs::File::open(record.with_extension(COPIES))?;
            shared.seek(SeekFrom::Start(start))?;
            let mut content = Vec::new();
            shared.take(length).read_to_end(&mut content)?;
            let is_whole = content.len() as u64 == length;
            if is_whole { Ok(content) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        }
    }
}
