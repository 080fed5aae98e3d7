//! Instruction files in the folders of a file that a call has read or changed, below the working directory: the
//! system prompt has those of the working directory and above.
//!
//! Reads what rules let the model read itself without asking. Never follows a link out of the working directory.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::bounded_file::{self, ReadError};
use crate::busy::BusyGuard;
use crate::conversation::instructions::{self, InstructionContent, Instructions, MAX_READ, TIMEOUT};
use crate::event::InstructionSource;
use crate::permission::FilesBelow;
use crate::workspace::{FileError, Workspace, open_dir};

/// `admitted` are the instruction files that the model may read.
pub(crate) async fn read(
    workspace: &Workspace,
    admitted: Option<FilesBelow>,
    seen: impl Iterator<Item = &Path>,
) -> Vec<Instructions> {
    let folders = folders(workspace.cwd(), seen);
    let Some(admitted) = admitted.filter(|_| !folders.is_empty()) else { return Vec::new() };
    let workspace = workspace.clone();
    // Deterministic runs wait until this guard is dropped.
    let _busy = BusyGuard::begin();
    let instructions = bounded_file::off_thread(TIMEOUT, move || {
        folders.iter().filter_map(|folder| of_folder(&workspace, &admitted, folder)).collect()
    });
    instructions.await.unwrap_or_else(|| {
        tracing::warn!("the instruction files near a file could not be read in time");
        Vec::new()
    })
}

/// The folders around files, outermost first.
fn folders<'a>(cwd: &Path, files: impl Iterator<Item = &'a Path>) -> BTreeSet<PathBuf> {
    files
        .flat_map(|file| file.ancestors().skip(1))
        .filter(|folder| *folder != cwd && folder.starts_with(cwd))
        .map(Path::to_owned)
        .collect()
}

fn of_folder(workspace: &Workspace, admitted: &FilesBelow, folder: &Path) -> Option<Instructions> {
    let (path, content) = instructions::of_folder(folder, |path| read_file(workspace, admitted, path))?;
    match content {
        Ok(bytes) => {
            let source = InstructionSource::File(path.display().to_string());
            Instructions::new(source, &String::from_utf8_lossy(&bytes))
        }
        Err(error) => {
            // Each call near the file comes here.
            tracing::debug!(path = %path.display(), %error, "an instruction file is ignored");
            None
        }
    }
}

fn read_file(workspace: &Workspace, admitted: &FilesBelow, path: &Path) -> InstructionContent {
    let target = workspace.place(path.to_owned());
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(ReadError::Missing);
    };
    if !folder.starts_with(workspace.cwd()) || !admitted.admits(&target) {
        return Err(ReadError::Io(io::ErrorKind::PermissionDenied.into()));
    }
    let dir = open_dir(&workspace.place(folder.to_owned())).map_err(|error| match error {
        FileError::Missing(_) => ReadError::Missing,
        error => ReadError::Io(io::Error::other(error)),
    })?;
    bounded_file::read_in(&dir, name, MAX_READ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_around_files_start_below_the_working_directory() {
        let check = |files: &[&str], expected: &[&str]| {
            let found = folders(Path::new("/w"), files.iter().map(Path::new));
            assert_eq!(found, expected.iter().map(PathBuf::from).collect(), "{files:?}");
        };
        check(&["/w/a/b/x", "/w/a/y", "/w/c/z"], &["/w/a", "/w/a/b", "/w/c"]);
        check(&["/w/x", "/x", "/wide/x", "/other/a/x"], &[]);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn only_admitted_regular_files_of_the_workspace_are_read() {
        use std::os::unix::fs::symlink;
        use std::sync::Arc;

        use crate::mode::Modes;
        use crate::permission::rules::RuleTexts;
        use crate::permission::{CallFacts, Ceilings, Effect, Grants};

        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let cwd = root.join("w");
        for folder in ["w/sub", "w/secret", "outside"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["w/secret/CLAUDE.md", "w/secret.md", "w/CLAUDE.md", "outside/CLAUDE.md"] {
            std::fs::write(root.join(file), file).unwrap();
        }
        let workspace = Workspace::new(&cwd, &[root.join("outside")]).unwrap();
        let read = async |rules: &str, file: &str| {
            let rules: RuleTexts = serde_saphyr::from_str(rules).unwrap();
            let modes = Modes::built_in().ceilings("plan").unwrap();
            let ceilings = Ceilings { modes, rules: vec![Arc::new(rules.compile(true).unwrap())] };
            let call = CallFacts::of_tool(crate::tool::READ_FILE, Effect::Read);
            let admitted = FilesBelow::new(ceilings, Grants::default(), call);
            let found = super::read(&workspace, Some(admitted), std::iter::once(&*cwd.join(file))).await;
            let notes: Vec<String> = found.into_iter().map(|it| it.note(usize::MAX).1).collect();
            notes.concat().split_once("\n\n").map(|(_, quoted)| quoted.trim().to_owned()).unwrap_or_default()
        };
        let agents = cwd.join("sub/AGENTS.md");
        let set = |make: &dyn Fn()| {
            let _ = std::fs::remove_file(&agents);
            make();
        };
        set(&|| std::fs::write(&agents, "Be kind.").unwrap());
        assert_eq!(read("{}", "sub/a").await, "> Be kind.", "the control");
        assert_eq!(read("{}", "a").await, "", "the system prompt has those of the working directory");
        for rule in ["deny: ['read_file(sub/**)']", "deny: [read_file]", "ask: ['read_file(sub/**)']"] {
            assert_eq!(read(rule, "sub/a").await, "", "{rule}");
        }
        assert_eq!(read("deny: ['read_file(secret/**)']", "sub/a").await, "> Be kind.");
        set(&|| crate::platform::files::make_fifo(&agents));
        assert_eq!(read("{}", "sub/a").await, "", "a FIFO");
        set(&|| std::fs::File::create(&agents).unwrap().set_len(1 << 40).unwrap());
        assert_eq!(read("{}", "sub/a").await, "", "a huge file");
        for (link, expected) in [
            ("../CLAUDE.md", "> w/CLAUDE.md"),
            ("../secret/CLAUDE.md", "> w/secret/CLAUDE.md"),
            ("../secret.md", ""),
            ("../../outside/CLAUDE.md", ""),
            ("/proc/self/environ", ""),
        ] {
            set(&|| symlink(link, &agents).unwrap());
            assert_eq!(read("{}", "sub/a").await, expected, "{link}");
        }
        set(&|| symlink("../secret/CLAUDE.md", &agents).unwrap());
        assert_eq!(read("deny: ['read_file(secret/**)']", "sub/a").await, "", "the link's target is denied");
    }
}
