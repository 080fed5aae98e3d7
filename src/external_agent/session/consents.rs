//! The user's consents to changes of a brokered agent. Pure.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::acp::ToolCallId;
use crate::process::{ChangeKind, ChangeQuestion};

/// Consents that end with the turn, and modes in which all changes of the session are allowed.
#[derive(Debug, Default)]
pub(super) struct Consents {
    paths: HashSet<PathBuf>,
    folders: HashSet<PathBuf>,
    /// Calls that the agent asked about without naming files, until their end.
    calls: HashSet<ToolCallId>,
    all: bool,
    none: bool,
    modes: HashSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConsentScope {
    Path,
    Folder,
    Turn,
    /// As long as the session is in this mode.
    Session,
}

impl Consents {
    pub(super) fn allow(&mut self, question: &ChangeQuestion, scope: ConsentScope, mode: &str) {
        match scope {
            ConsentScope::Path => {
                self.paths.insert(question.path.clone());
                self.paths.extend(question.to.clone());
            }
            ConsentScope::Folder => {
                self.folders.extend(folder(question).map(Path::to_owned));
            }
            ConsentScope::Turn => self.all = true,
            ConsentScope::Session => drop(self.modes.insert(mode.to_owned())),
        }
    }

    /// Refuses all further changes of the turn.
    pub(super) fn refuse_turn(&mut self) {
        self.none = true;
    }

    pub(super) fn refuses(&self) -> bool {
        self.none
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
        let ChangeQuestion { change, path, files, .. } = question;
        if *change == ChangeKind::Create && self.is_temporary(path) {
            self.paths.insert(path.clone());
        }
        let covers =
            |end: &Path| self.covers_path(end) && files.iter().all(|file| self.covers_path(&end.join(file)));
        question.ends().all(covers)
    }

    fn covers_path(&self, path: &Path) -> bool {
        self.paths.contains(path) || path.ancestors().any(|folder| self.folders.contains(folder))
    }

    /// True if the name contains that of a covered file in the same folder.
    fn is_temporary(&self, path: &Path) -> bool {
        let Some(name) = path.file_name() else { return false };
        let name = name.to_string_lossy();
        self.paths.iter().any(|covered| {
            let covered_name = covered.file_name().map(|name| name.to_string_lossy());
            covered.parent() == path.parent()
                && covered_name.is_some_and(|covered| covered.len() > 2 && name.contains(&*covered))
        })
    }
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

    fn question(change: ChangeKind, path: &str, to: Option<&str>) -> ChangeQuestion {
        let to = to.map(PathBuf::from);
        ChangeQuestion { number: 1, change, path: path.into(), to, files: Vec::new(), program: "node".into() }
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
        assert!(consents.cover(&write, "ask") && !consents.cover(&write, "other") && !consents.refuses());
    }
}
