//! The rules that deny changes to a command, whatever the policy allows. A change is compared by the path that it
//! really has, after symbolic links.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::moved;
use super::questions::AskedChange;
use super::resolve::ResolvedPath;
use crate::sandbox::denied_changes::{ChangeAct, ChangeRules, DeniedChanges};
use crate::supervisor::protocol::{ChangeKind, RuleRefusal};

/// Most refusals that are reported, apart from the first of each rule.
const MAX_REPORTED: usize = 64;

#[derive(Debug)]
pub(in crate::supervisor) struct RuledChanges {
    rules: ChangeRules,
    /// Rules and paths.
    reported: Mutex<HashMap<String, HashSet<PathBuf>>>,
}

impl RuledChanges {
    /// # Errors
    /// Returns a sentence if a pattern is no glob.
    pub(in crate::supervisor) fn new(denied: &DeniedChanges) -> Result<Self, String> {
        Ok(Self { rules: denied.compile()?, reported: Mutex::default() })
    }

    /// The refusal of a change, apart from what moves with a folder: see [`Self::refused_move`].
    pub(super) fn refused(&self, change: &AskedChange) -> Option<RuleRefusal> {
        let act = match change.change {
            ChangeKind::Delete | ChangeKind::DeleteFolder => ChangeAct::Delete,
            ChangeKind::Move => ChangeAct::Move,
            ChangeKind::Create
            | ChangeKind::CreateFolder
            | ChangeKind::Write
            | ChangeKind::Link
            | ChangeKind::Attributes => ChangeAct::Edit,
        };
        let mut ends = [Some(&change.path), change.to.as_ref()].into_iter().flatten();
        ends.find_map(|path| self.refused_path(act, path))
    }

    /// The refusal of a move, because of the entry itself or one below it, where it is or where it would be.
    ///
    /// # Errors
    /// Returns an error if a folder cannot be looked through.
    pub(super) fn refused_move(&self, entry: &ResolvedPath, to: &Path) -> Result<Option<RuleRefusal>, Errno> {
        let mut refusal = None;
        moved::any(entry, to, |moved| {
            let ends = [moved.old, moved.new];
            refusal = ends.into_iter().find_map(|path| self.refused_path(ChangeAct::Move, path));
            refusal.is_some()
        })?;
        Ok(refusal)
    }

    fn refused_path(&self, act: ChangeAct, path: &Path) -> Option<RuleRefusal> {
        let rule = self.rules.denying(act, path)?;
        Some(RuleRefusal { rule: rule.name.clone(), path: path.to_owned() })
    }

    /// Returns true for a refusal that has to be reported.
    pub(super) fn is_news(&self, refusal: &RuleRefusal) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = reported.values().map(HashSet::len).sum::<usize>() >= MAX_REPORTED;
        match reported.get_mut(&refusal.rule) {
            Some(_) if is_full => false,
            Some(paths) => paths.insert(refusal.path.clone()),
            None => {
                reported.insert(refusal.rule.clone(), HashSet::from([refusal.path.clone()]));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record has a denial for each rule, however many files another one refuses.
    #[test]
    fn first_refusal_of_each_rule_is_reported() {
        let denied = DeniedChanges { rules: Vec::new(), folders: Vec::new() };
        let changes = RuledChanges::new(&denied).unwrap();
        let is_news = |rule: &str, path: &str| {
            changes.is_news(&RuleRefusal { rule: rule.to_owned(), path: path.into() })
        };
        assert!(is_news("deny *(a)", "/a"));
        assert!(is_news("deny *(b)", "/a"));
        assert!(!is_news("deny *(b)", "/a"));
        let reported = (0..100).filter(|number| is_news("deny *(a)", &format!("/{number}"))).count();
        assert_eq!(reported, MAX_REPORTED - 2);
        assert!(is_news("deny *(c)", "/a"));
        assert!(!is_news("deny *(c)", "/b"));
    }
}
