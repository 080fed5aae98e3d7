//! Loads the user-defined commands of the user and of a project.

use std::path::{Path, PathBuf};

use super::project::Project;
use crate::bounded_file;
use crate::session::UserCommand;

const FOLDER: &str = "commands";

const PROJECT: &str = ".modegate/commands";

const MAX_FILES: usize = 200;

const MAX_FILE: u64 = 64 * 1024;

/// Sorted by name. For equal names, the nearest project folder counts first, and the user's own last.
pub(super) fn load(own: Option<&Path>, project: Project<'_>) -> (Vec<UserCommand>, Vec<String>) {
    let in_project = project.folders().map(|it| (it.join(PROJECT), Some(project.root())));
    let folders: Vec<(PathBuf, Option<&Path>)> =
        in_project.chain(own.map(|own| (own.join(FOLDER), None))).collect();
    let (mut commands, mut problems) = (Vec::<UserCommand>::new(), Vec::new());
    for (folder, project) in folders {
        for path in files(&folder, project.is_some()) {
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let text = match project {
                Some(root) => bounded_file::read_text_below(root, &path, MAX_FILE),
                None => bounded_file::read_own_text(&path, MAX_FILE),
            };
            match text
                .map_err(|error| format!("it {error}"))
                .and_then(|text| UserCommand::parse(&name, &text))
            {
                Ok(command) if commands.iter().any(|known| known.name == command.name) => {}
                Ok(command) => commands.push(command),
                Err(reason) => problems.push(format!("{}: {reason}", path.display())),
            }
        }
    }
    commands.sort_by(|a, b| a.name.cmp(&b.name));
    (commands, problems)
}

/// Security: a project's folder that is a symbolic link is not followed.
fn files(folder: &Path, is_project: bool) -> Vec<PathBuf> {
    let metadata = if is_project { folder.symlink_metadata() } else { folder.metadata() };
    let is_folder = metadata.is_ok_and(|metadata| metadata.is_dir());
    // An unreadable folder counts as empty, because commands restrict nothing.
    let Some(entries) = is_folder.then(|| std::fs::read_dir(folder).ok()).flatten() else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect();
    files.sort();
    files.truncate(MAX_FILES);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_project_command_takes_precedence() {
        let dir = tempfile::tempdir().unwrap();
        let (own, project) = (dir.path().join("own"), dir.path().join("project"));
        let inner = project.join("inner");
        std::fs::create_dir_all(project.join(".git")).unwrap();
        for (folder, names) in [
            (own.join(FOLDER), &["a", "b", "c"][..]),
            (project.join(PROJECT), &["a", "b"]),
            (inner.join(PROJECT), &["a"]),
            (dir.path().join(PROJECT), &["a", "b", "c", "outside"]),
        ] {
            std::fs::create_dir_all(&folder).unwrap();
            for name in names {
                let text = folder.strip_prefix(dir.path()).unwrap().display().to_string().replace('\\', "/");
                std::fs::write(folder.join(name).with_extension("md"), text).unwrap();
            }
        }
        let (commands, problems) = load(Some(&own), Project::of(&inner));
        let found: Vec<_> =
            commands.iter().map(|command| (command.name.as_str(), command.prompt(""))).collect();
        let expected = [
            ("a", "project/inner/.modegate/commands"),
            ("b", "project/.modegate/commands"),
            ("c", "own/commands"),
        ];
        assert_eq!(found, expected.map(|(name, text)| (name, text.to_owned())));
        assert_eq!(problems, Vec::<String>::new());
    }
}
