//! The data that git itself keeps in the folder of a repository. Consent to a git command covers these files, and
//! nothing that git or another program runs. Pure.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use crate::process::{ChangeKind, ChangeQuestion};

const FOLDERS: [&str; 3] = ["objects", "refs", "logs"];

/// Files beside the folders, without `.lock`.
#[rustfmt::skip]
const FILES: &[&str] = &[
    "index", "HEAD", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_RR",
    "CHERRY_PICK_HEAD", "REVERT_HEAD", "AUTO_MERGE", "COMMIT_EDITMSG", "SQUASH_MSG", "packed-refs", "packed-refs.new",
    "shallow", "gc.pid", "gc.log",
];

/// A command that runs git, in one repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GitCommand {
    /// The folder of the repository's data.
    pub folder: PathBuf,
    process: u32,
    started: u64,
    /// True for the maintenance that git starts after other commands, and detaches from them.
    pub is_maintenance: bool,
}

/// Beginnings of the command line of maintenance.
const MAINTENANCE: [&str; 2] = ["git maintenance run --auto", "git gc --auto"];

/// The command whose own data a change concerns. `None` if the change has another maker, or concerns other files.
pub(super) fn command(question: &ChangeQuestion) -> Option<GitCommand> {
    let executable = question.executable.as_ref()?;
    if executable.path.file_name() != Some(OsStr::new("git")) || !question.files.is_empty() {
        return None;
    }
    let mut folders = question.ends().map(|path| folder_of_data(path, question.change));
    let folder = folders.next()??;
    let is_one = folders.all(|other| other.as_deref() == Some(&*folder));
    let (process, started) = (executable.process, executable.started);
    let is_maintenance = MAINTENANCE.iter().any(|line| executable.command_line.starts_with(line));
    is_one.then_some(GitCommand { folder, process, started, is_maintenance })
}

/// The folder of the repository whose data a path belongs to.
fn folder_of_data(path: &Path, change: ChangeKind) -> Option<PathBuf> {
    let git = path.ancestors().filter(|folder| folder.file_name() == Some(OsStr::new(".git"))).last()?;
    let inside: Option<Vec<&str>> = path.strip_prefix(git).ok()?.components().map(name).collect();
    let inside = inside?;
    let data = match &inside[..] {
        ["worktrees", _, data @ ..] | data => data,
    };
    let is_data = is_new(&inside, change)
        || match data {
            ["objects", "info", "alternates" | "alternates.lock" | "http-alternates"] | [] => false,
            [file] => FOLDERS.contains(file) || FILES.contains(&file.strip_suffix(".lock").unwrap_or(file)),
            [folder, ..] => FOLDERS.contains(folder),
        };
    is_data.then(|| git.to_owned())
}

/// Returns true for other files and folders of `git init`, but its settings. No program runs them.
fn is_new(inside: &[&str], change: ChangeKind) -> bool {
    match (change, inside) {
        (ChangeKind::CreateFolder, [] | ["hooks" | "info" | "branches"])
        | (ChangeKind::Create, ["description"] | ["info", "exclude"]) => true,
        (ChangeKind::Create, ["hooks", name]) => name.ends_with(".sample"),
        (ChangeKind::Create | ChangeKind::Delete, [name]) => is_trial(name),
        _ => false,
    }
}

/// A link that tells git whether the disk has links.
fn is_trial(name: &str) -> bool {
    name.strip_prefix('t')
        .is_some_and(|rest| rest.len() == 6 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

fn name(component: Component<'_>) -> Option<&str> {
    component.as_os_str().to_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{ChangeKind, Executable};

    fn question(executable: Option<&str>, paths: [&str; 2]) -> ChangeQuestion {
        let executable = executable.map(|path| Executable {
            path: path.into(),
            process: 7,
            started: 1,
            command_line: "git add .".into(),
        });
        ChangeQuestion {
            number: 1,
            change: ChangeKind::Move,
            path: paths[0].into(),
            to: Some(paths[1].into()),
            files: Vec::new(),
            program: "git".into(),
            executable,
        }
    }

    #[test]
    fn data_of_git_runs_nothing() {
        for (path, expected) in [
            ("/w/.git/index.lock", true),
            ("/w/.git/index", true),
            ("/w/.git/objects", true),
            ("/w/.git/objects/d0/tmp_obj_x1y2z3", true),
            ("/w/.git/refs/heads/a/b.lock", true),
            ("/w/.git/logs/HEAD", true),
            ("/w/.git/worktrees/other/HEAD.lock", true),
            ("/w/.git/worktrees/other/logs/HEAD", true),
            ("/w/.git/config", false),
            ("/w/.git/config.lock", false),
            ("/w/.git/config.worktree", false),
            ("/w/.git/worktrees/other/config.worktree", false),
            ("/w/.git/hooks/pre-commit", false),
            ("/w/.git/hooks", false),
            ("/w/.git/info/attributes", false),
            ("/w/.git/objects/info/alternates", false),
            ("/w/.git/rebase-merge/git-rebase-todo", false),
            ("/w/.git/modules/a/index", false),
            ("/w/.git", false),
            ("/w/.git/worktrees/other", false),
            ("/w/index.lock", false),
            ("/w/objects/a", false),
            ("/w/.git/other/.git/index", false),
        ] {
            let found = command(&question(Some("/usr/bin/git"), [path, path]));
            assert_eq!(found.is_some(), expected, "{path}");
            assert!(found.is_none_or(|command| command.folder == Path::new("/w/.git")), "{path}");
        }
    }

    #[test]
    fn new_repository_is_data_except_for_its_settings() {
        use ChangeKind::{Create, CreateFolder, Delete, DeleteFolder, Write};
        for (change, name, expected) in [
            (CreateFolder, ".git", true),
            (CreateFolder, ".git/hooks", true),
            (CreateFolder, ".git/info", true),
            (Create, ".git/hooks/pre-push.sample", true),
            (Create, ".git/info/exclude", true),
            (Create, ".git/description", true),
            (Create, ".git/tAb3xYz", true),
            (Delete, ".git/tAb3xYz", true),
            (DeleteFolder, ".git", false),
            (Create, ".git", false),
            (Create, ".git/hooks", false),
            (Create, ".git/hooks/pre-push", false),
            (CreateFolder, ".git/hooks/pre-push.sample", false),
            (Write, ".git/hooks/pre-push.sample", false),
            (Create, ".git/info/attributes", false),
            (Create, ".git/config.lock", false),
            (Create, ".git/modules", false),
            (Write, ".git/tAb3xYz", false),
        ] {
            let mut question = question(Some("/usr/bin/git"), ["/w", "/w"]);
            (question.change, question.path, question.to) = (change, Path::new("/w").join(name), None);
            assert_eq!(command(&question).is_some(), expected, "{change:?} {name}");
        }
    }

    #[test]
    fn command_is_that_of_a_program_that_cannot_be_changed() {
        let paths = ["/w/.git/index.lock", "/w/.git/index"];
        assert!(command(&question(Some("/usr/lib/git-core/git"), paths)).is_some(), "the control");
        assert_eq!(command(&question(None, paths)), None);
        assert_eq!(command(&question(Some("/usr/bin/python3"), paths)), None);
        for other in ["/w/.git/config", "/v/.git/index", "/w/index"] {
            assert_eq!(command(&question(Some("/usr/bin/git"), [paths[0], other])), None, "{other}");
        }
    }
}
