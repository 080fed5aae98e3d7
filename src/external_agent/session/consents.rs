//! The user's consents to changes of a brokered agent. Pure.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::git_data::{self, GitCommand};
use super::temporary::is_temporary;
use crate::acp::ToolCallId;
use crate::process::{ChangeKind, ChangeQuestion};

/// Most temporary files that wait for their move.
const MAX_TEMPORARY: usize = 256;

/// Consents that end with the turn, and modes in which all changes of the session are allowed.
#[derive(Debug, Default)]
pub(super) struct Consents {
    paths: HashSet<PathBuf>,
    folders: HashSet<PathBuf>,
    refused_folders: HashSet<PathBuf>,
    /// Calls that the agent asked about without naming files, until their end.
    calls: HashSet<ToolCallId>,
    /// The user's answers about what git itself keeps.
    commands: HashMap<GitCommand, bool>,
    /// New temporary files of the turn, which the user was not asked about.
    temporary: HashSet<PathBuf>,
    all: bool,
    none: bool,
    modes: HashSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConsentScope {
    /// The change alone.
    Change,
    Path,
    Folder,
    Turn,
    /// As long as the session is in this mode.
    Session,
}

impl Consents {
    pub(super) fn allow(&mut self, question: &ChangeQuestion, scope: ConsentScope, mode: &str) {
        match (scope, git_data::command(question)) {
            (ConsentScope::Change, _) => {}
            (ConsentScope::Path, Some(command)) => drop(self.commands.insert(command, true)),
            (ConsentScope::Path, None) => {
                self.paths.insert(question.path.clone());
                self.paths.extend(question.to.clone());
            }
            (ConsentScope::Folder, _) => {
                self.folders.extend(folder(question).map(Path::to_owned));
            }
            (ConsentScope::Turn, _) => self.all = true,
            (ConsentScope::Session, _) => drop(self.modes.insert(mode.to_owned())),
        }
    }

    pub(super) fn refuse_turn(&mut self) {
        self.none = true;
    }

    /// The user has answered about all changes of a folder.
    pub(super) fn answer_folder(&mut self, folder: &Path, allows: bool) {
        let answered = if allows { &mut self.folders } else { &mut self.refused_folders };
        answered.insert(folder.to_owned());
    }

    /// The user has rejected this change.
    pub(super) fn reject(&mut self, question: &ChangeQuestion) {
        if let Some(command) = git_data::command(question) {
            self.commands.insert(command, false);
        }
    }

    pub(super) fn refuses(&self, question: &ChangeQuestion) -> bool {
        let is_below = |end: &Path| end.ancestors().any(|folder| self.refused_folders.contains(folder));
        self.none || self.of_command(question) == Some(false) || question.ends().any(is_below)
    }

    fn of_command(&self, question: &ChangeQuestion) -> Option<bool> {
        let command = git_data::command(question)?;
        let answers = || self.commands.iter().filter(|(other, _)| other.folder == command.folder);
        let is_own = || command.is_maintenance && answers().any(|(_, allows)| *allows);
        self.commands.get(&command).copied().or_else(|| is_own().then_some(true))
    }

    /// Returns true for a new temporary file, and for later changes of it: the user is asked when it moves to the file
    /// that it stands for.
    pub(super) fn postpones(&mut self, question: &ChangeQuestion) -> bool {
        let ChangeQuestion { change, path, executable, .. } = question;
        let program = executable.as_ref().map(|executable| executable.path.as_path());
        match change {
            ChangeKind::Create if self.temporary.len() < MAX_TEMPORARY && is_temporary(path, program) => {
                self.temporary.insert(path.clone());
                true
            }
            ChangeKind::Write | ChangeKind::Attributes => self.temporary.contains(path),
            ChangeKind::Delete => self.temporary.remove(path),
            _ => false,
        }
    }

    /// Returns true for a temporary file that the user was not asked about.
    pub(super) fn is_postponed(&self, path: &Path) -> bool {
        self.temporary.contains(path)
    }

    /// The user has allowed a call of the agent, which names these absolute paths.
    pub(super) fn allow_call(&mut self, call: &ToolCallId, paths: &[PathBuf]) {
        if paths.is_empty() {
            self.calls.insert(call.clone());
        }
        self.paths.extend(paths.iter().cloned());
    }

    pub(super) fn end_call(&mut self, call: &ToolCallId) {
        self.calls.remove(call);
    }

    pub(super) fn end_turn(&mut self) {
        let modes = std::mem::take(&mut self.modes);
        *self = Self { modes, ..Self::default() };
    }

    /// Programs write a temporary file beside the file, and rename it: the temporary file is covered, too.
    pub(super) fn cover(&mut self, question: &ChangeQuestion, mode: &str) -> bool {
        if self.all || !self.calls.is_empty() || self.modes.contains(mode) {
            return true;
        }
        if self.of_command(question) == Some(true) {
            return true;
        }
        let ChangeQuestion { change, path, files, .. } = question;
        if *change == ChangeKind::Create && self.is_temporary(path) {
            self.paths.insert(path.clone());
        }
        let covers =
            |end: &Path| self.covers_path(end) && files.iter().all(|file| self.covers_path(&end.join(file)));
        let is_own = |end: &Path| *change == ChangeKind::Move && end == path && self.temporary.contains(end);
        question.ends().all(|end| covers(end) || is_own(end))
    }

    fn covers_path(&self, path: &Path) -> bool {
        self.paths.contains(path) || path.ancestors().any(|folder| self.folders.contains(folder))
    }

    /// True if the name is that of a covered file in the same folder with more behind or before it.
    fn is_temporary(&self, path: &Path) -> bool {
        let Some(name) = path.file_name().and_then(OsStr::to_str) else { return false };
        !is_special(name)
            && self.paths.iter().filter(|covered| covered.parent() == path.parent()).any(|covered| {
                let covered = covered.file_name().and_then(OsStr::to_str).unwrap_or_default();
                covered.len() > 2 && !is_special(covered) && extends(name, covered)
            })
    }
}

/// True if a separator stands between the two names.
fn extends(name: &str, covered: &str) -> bool {
    let after = name.strip_prefix(covered).is_some_and(|rest| rest.starts_with(SEPARATORS) && rest.len() > 1);
    let before = name.strip_suffix(covered).is_some_and(|rest| rest.ends_with(SEPARATORS) && rest.len() > 1);
    after || before || name.strip_prefix(covered) == Some("~")
}

const SEPARATORS: [char; 5] = ['.', '-', '_', '~', '#'];

/// Files that a program reads and runs without being told to, by their names in lower case.
#[rustfmt::skip]
const RUN_BY_THEMSELVES: &[&str] = &[
    "makefile", "gnumakefile", "bsdmakefile", "justfile", "rakefile", "dockerfile", "vagrantfile", "gemfile",
    "procfile", "jenkinsfile", "brewfile", "podfile", "cmakelists.txt", "meson.build", "build.rs", "build.zig",
    "build.gradle", "settings.gradle", "build.gradle.kts", "settings.gradle.kts", "build.sbt", "pom.xml",
    "package.json", "composer.json", "deno.json", "cargo.toml", "pyproject.toml", "setup.py", "setup.cfg",
    "conftest.py", "sitecustomize.py", "usercustomize.py", "noxfile.py", "tox.ini", "manage.py", "go.mod",
    "flake.nix", "shell.nix", "default.nix", "taskfile.yml", "docker-compose.yml", "compose.yaml",
];

/// True for hidden files, files that run by themselves, and their kin (`Makefile.am`, `vite.config.js`).
fn is_special(name: &str) -> bool {
    let name = name.to_lowercase();
    let stem = name.split(SEPARATORS).next().unwrap_or_default();
    name.starts_with('.')
        || RUN_BY_THEMSELVES.contains(&&*name)
        || RUN_BY_THEMSELVES.contains(&stem)
        || name.contains(".config.")
        || name.rsplit('.').next() == Some("pth")
}

/// The folder that an answer for a folder covers: the one that contains both paths.
pub(super) fn folder(question: &ChangeQuestion) -> Option<&Path> {
    let folder = question.path.parent()?;
    match &question.to {
        Some(to) => folder.ancestors().find(|folder| to.starts_with(folder)),
        None => Some(folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Executable;

    fn question(change: ChangeKind, path: &str, to: Option<&str>) -> ChangeQuestion {
        let to = to.map(PathBuf::from);
        let (files, program) = (Vec::new(), "node".into());
        ChangeQuestion { number: 1, change, path: path.into(), to, files, program, executable: None }
    }

    fn by_git(process: u32, path: &str) -> ChangeQuestion {
        let executable =
            Executable { path: "/usr/bin/git".into(), process, started: 1, command_line: "git add .".into() };
        ChangeQuestion { executable: Some(executable), ..question(ChangeKind::Create, path, None) }
    }

    #[test]
    fn answer_about_a_git_command_covers_its_data_alone() {
        let lock = by_git(7, "/w/.git/index.lock");
        for allows in [true, false] {
            let mut consents = Consents::default();
            if allows {
                consents.allow(&lock, ConsentScope::Path, "ask");
            } else {
                consents.reject(&lock);
            }
            for (other, is_same) in [
                (by_git(7, "/w/.git/objects/d0/tmp_obj_a"), true),
                (by_git(7, "/w/.git/config"), false),
                (by_git(7, "/w/a.rs"), false),
                (by_git(8, "/w/.git/index.lock"), false),
                (by_git(7, "/v/.git/index.lock"), false),
                (question(ChangeKind::Create, "/w/.git/index.lock", None), false),
            ] {
                assert_eq!(consents.cover(&other, "ask"), is_same && allows, "{other:?}");
                assert_eq!(consents.refuses(&other), is_same && !allows, "{other:?}");
            }
            for (folder, is_same) in [("/w", true), ("/v", false)] {
                let mut maintenance = by_git(9, &format!("{folder}/.git/objects/maintenance.lock"));
                maintenance.executable.as_mut().unwrap().command_line =
                    "git maintenance run --auto --detach".into();
                assert_eq!(consents.cover(&maintenance, "ask"), is_same && allows, "{folder}");
            }
            consents.end_turn();
            assert!(!consents.cover(&lock, "ask") && !consents.refuses(&lock));
        }
    }

    #[test]
    fn temporary_files_wait_for_their_move() {
        let mut consents = Consents::default();
        let temporary = "/w/.a.rs.x1.tmp";
        assert!(!consents.postpones(&question(ChangeKind::Write, temporary, None)), "an older file");
        assert!(consents.postpones(&question(ChangeKind::Create, temporary, None)));
        assert!(consents.postpones(&question(ChangeKind::Attributes, temporary, None)));
        let moved = question(ChangeKind::Move, temporary, Some("/w/a.rs"));
        assert!(
            !consents.postpones(&moved)
                && !consents.cover(&moved, "ask")
                && consents.is_postponed(temporary.as_ref())
        );
        consents.allow(&question(ChangeKind::Write, "/w/a.rs", None), ConsentScope::Path, "ask");
        assert!(consents.cover(&moved, "ask"));
        assert!(!consents.cover(&question(ChangeKind::Move, "/w/a.rs", Some(temporary)), "ask"));
        assert!(consents.postpones(&question(ChangeKind::Delete, temporary, None)));
        assert!(!consents.postpones(&question(ChangeKind::Delete, temporary, None)), "once");
        assert!(!consents.postpones(&question(ChangeKind::Create, "/w/a.rs", None)), "the control");
        for number in 0..MAX_TEMPORARY {
            assert!(consents.postpones(&question(ChangeKind::Create, &format!("/w/{number}.tmp"), None)));
        }
        assert!(!consents.postpones(&question(ChangeKind::Create, "/w/further.tmp", None)));
    }

    #[test]
    fn consent_covers_its_scope() {
        let asked = question(ChangeKind::Write, "/w/src/a.rs", None);
        let covered = |scope, path| {
            let mut consents = Consents::default();
            consents.allow(&asked, scope, "ask");
            consents.cover(&question(ChangeKind::Write, path, None), "ask")
        };
        for (scope, expected) in [
            (ConsentScope::Change, [false; 4]),
            (ConsentScope::Path, [true, false, false, false]),
            (ConsentScope::Folder, [true, true, true, false]),
            (ConsentScope::Turn, [true; 4]),
            (ConsentScope::Session, [true; 4]),
        ] {
            let paths = ["/w/src/a.rs", "/w/src/b.rs", "/w/src/d/c.rs", "/w/README"];
            assert_eq!(paths.map(|path| covered(scope, path)), expected, "{scope:?}");
        }
    }

    #[test]
    fn answer_about_a_folder_covers_all_below_it() {
        for allows in [true, false] {
            let mut consents = Consents::default();
            consents.answer_folder("/h/.npm".as_ref(), allows);
            for (path, is_below) in [("/h/.npm/_logs", true), ("/h/.npm/a/b", true), ("/h/.npmrc", false)] {
                let question = question(ChangeKind::CreateFolder, path, None);
                assert_eq!(consents.cover(&question, "ask"), is_below && allows, "{path}");
                assert_eq!(consents.refuses(&question), is_below && !allows, "{path}");
            }
            let moved = question(ChangeKind::Move, "/h/.npm/a", Some("/w/a"));
            assert!(!consents.cover(&moved, "ask"));
            consents.end_turn();
            let again = question(ChangeKind::Create, "/h/.npm/a", None);
            assert!(!consents.cover(&again, "ask") && !consents.refuses(&again));
        }
    }

    #[test]
    fn moves_need_consent_for_both_paths() {
        let mut consents = Consents::default();
        consents.allow(&question(ChangeKind::Write, "/w/a.rs", None), ConsentScope::Path, "ask");
        let to = |path| question(ChangeKind::Move, path, Some("/w/a.rs"));
        assert!(!consents.cover(&to("/w/other"), "ask"));
        assert!(!consents.cover(&question(ChangeKind::Move, "/w/a.rs", Some("/w/b.rs")), "ask"));
        // Written beside the file, then renamed.
        assert!(consents.cover(&question(ChangeKind::Create, "/w/a.rs.tmp.1", None), "ask"));
        assert!(consents.cover(&to("/w/a.rs.tmp.1"), "ask"));
        assert!(!consents.cover(&question(ChangeKind::Write, "/w/xa.rs", None), "ask"), "an older file");
        assert!(!consents.cover(&question(ChangeKind::Create, "/w/d/a.rs", None), "ask"), "elsewhere");
    }

    #[test]
    fn file_beside_a_covered_one_is_covered_only_if_it_is_certainly_temporary() {
        for (covered, new, expected) in [
            ("a.rs", "a.rs.tmp.1", true),
            ("a.rs", "a.rs~", true),
            ("a.rs", "a.rs-new", true),
            ("a.rs", "tmp.a.rs", true),
            ("a.rs", "#1#a.rs", true),
            ("out.log", "out.log to x", false),
            ("out.log", "out.logged", false),
            ("out.log", "about.log", false),
            ("file", "Makefile", false),
            ("file", "Make.file", true),
            ("a.rs", ".a.rs.swp", false),
            ("gitignore", ".gitignore", false),
            ("Makefile", "Makefile.tmp", false),
            ("makefile", "GNUmakefile", false),
            ("json", "package.json", false),
            ("config.js", "vite.config.js", false),
            ("rs.rs", "build.rs.rs", true),
            ("test.py", "conftest.py", false),
            (".env", ".env.tmp", false),
            ("ab", "ab.tmp", false),
            ("a.rs", "d/a.rs.tmp", false),
        ] {
            let mut consents = Consents::default();
            let in_folder = |name: &str| format!("/w/{name}");
            let write = question(ChangeKind::Write, &in_folder(covered), None);
            consents.allow(&write, ConsentScope::Path, "ask");
            let create = question(ChangeKind::Create, &in_folder(new), None);
            assert_eq!(consents.cover(&create, "ask"), expected, "{covered} {new}");
        }
    }

    #[test]
    fn consents_end_with_the_turn_the_call_or_the_mode() {
        let write = question(ChangeKind::Write, "/w/a", None);
        let mut consents = Consents::default();
        let call = ToolCallId::new("c");
        consents.allow_call(&call, &[]);
        assert!(consents.cover(&write, "ask"));
        consents.end_call(&call);
        assert!(!consents.cover(&write, "ask"));
        consents.allow_call(&call, &["/w/a".into()]);
        assert!(consents.cover(&write, "ask"));
        consents.allow(&write, ConsentScope::Session, "ask");
        consents.refuse_turn();
        consents.end_turn();
        assert!(
            consents.cover(&write, "ask") && !consents.cover(&write, "other") && !consents.refuses(&write)
        );
    }
}
