//! Changes of files that the user's rules deny to a sandboxed command. Pure.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::denied_reads::{DeniedFiles, DeniedReads};

/// Rules in their order, and the folders of the command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedChanges {
    pub rules: Vec<DenyingRule>,
    /// Folders from which relative paths begin.
    pub folders: Vec<PathBuf>,
}

/// A rule that denies some changes of some files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DenyingRule {
    /// For messages, such as `deny write_file(src/**)`.
    pub name: String,
    /// Glob in which `*` does not match `/`, for absolute paths and for paths relative to a folder.
    pub pattern: String,
    pub denies: DeniedActs,
}

/// The acts that a rule denies. A rule that denies edits denies every change: programs edit a file by moving another one
/// to its name, or by deleting it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeniedActs {
    All,
    Deletions,
    Moves,
    DeletionsAndMoves,
}

/// The act of a call on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeAct {
    /// Neither of the others.
    Edit,
    Delete,
    /// To the path, or away from it.
    Move,
}

/// Tells which rule denies a change.
#[derive(Debug)]
pub struct ChangeRules {
    rules: Vec<DenyingRule>,
    files: DeniedFiles,
}

impl DeniedActs {
    /// `None` if nothing is denied.
    pub fn new(edits: bool, deletions: bool, moves: bool) -> Option<Self> {
        match (edits, deletions, moves) {
            (true, _, _) => Some(Self::All),
            (false, true, true) => Some(Self::DeletionsAndMoves),
            (false, true, false) => Some(Self::Deletions),
            (false, false, true) => Some(Self::Moves),
            (false, false, false) => None,
        }
    }

    fn contain(self, act: ChangeAct) -> bool {
        match self {
            Self::All => true,
            Self::Deletions => act == ChangeAct::Delete,
            Self::Moves => act == ChangeAct::Move,
            Self::DeletionsAndMoves => matches!(act, ChangeAct::Delete | ChangeAct::Move),
        }
    }
}

impl DeniedChanges {
    /// # Errors
    /// Returns a sentence if a pattern is no glob.
    pub fn compile(&self) -> Result<ChangeRules, String> {
        let patterns = self.rules.iter().map(|rule| rule.pattern.clone()).collect();
        let files = DeniedReads { patterns, folders: self.folders.clone() }.compile()?;
        Ok(ChangeRules { rules: self.rules.clone(), files })
    }
}

impl ChangeRules {
    /// The first rule that denies the change. `path` is absolute and without symbolic links.
    pub fn denying(&self, act: ChangeAct, path: &Path) -> Option<&DenyingRule> {
        let matching = self.files.matching(path);
        let number = matching.into_iter().filter(|number| self.rules[*number].denies.contain(act)).min();
        number.map(|number| &self.rules[number])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, pattern: &str, denies: DeniedActs) -> DenyingRule {
        DenyingRule { name: name.into(), pattern: pattern.into(), denies }
    }

    #[test]
    fn first_matching_rule_decides() {
        let changes = DeniedChanges {
            rules: vec![
                rule("deletions", "src/*", DeniedActs::Deletions),
                rule("all", "src/**", DeniedActs::All),
                rule("moves", "docs/**", DeniedActs::Moves),
                rule("both", "/etc/**", DeniedActs::DeletionsAndMoves),
            ],
            folders: vec!["/work".into(), "/other".into()],
        };
        let rules = changes.compile().unwrap();
        for (act, path, expected) in [
            (ChangeAct::Delete, "/work/src/a", Some("deletions")),
            (ChangeAct::Edit, "/work/src/a", Some("all")),
            (ChangeAct::Delete, "/work/src/a/b", Some("all")),
            (ChangeAct::Move, "/other/src/a", Some("all")),
            (ChangeAct::Edit, "/work/src", None),
            (ChangeAct::Edit, "/else/src/a", None),
            (ChangeAct::Move, "/work/docs/a", Some("moves")),
            (ChangeAct::Edit, "/work/docs/a", None),
            (ChangeAct::Delete, "/work/docs/a", None),
            (ChangeAct::Move, "/etc/a", Some("both")),
            (ChangeAct::Delete, "/etc/a", Some("both")),
            (ChangeAct::Edit, "/etc/a", None),
        ] {
            let denying = rules.denying(act, Path::new(path)).map(|rule| rule.name.as_str());
            assert_eq!(denying, expected, "{act:?} {path}");
        }
    }

    #[test]
    fn rule_about_edits_denies_every_change() {
        for (edits, deletions, moves, expected) in [
            (true, false, false, Some(DeniedActs::All)),
            (true, true, true, Some(DeniedActs::All)),
            (false, true, true, Some(DeniedActs::DeletionsAndMoves)),
            (false, true, false, Some(DeniedActs::Deletions)),
            (false, false, true, Some(DeniedActs::Moves)),
            (false, false, false, None),
        ] {
            assert_eq!(DeniedActs::new(edits, deletions, moves), expected);
        }
    }
}
