//! The denied calls of a run, and those that a later call made good. Pure.

use std::path::Path;

use super::report::DeniedCall;
use crate::acp::{ToolCallLocation, ToolKind};

/// The effect that a call attempts.
#[derive(Debug, Clone, Default)]
pub(super) struct AttemptedCall {
    pub title: String,
    /// Names of its files, without their folders: a model that guessed a path finds the file elsewhere.
    files: Vec<String>,
    effect: AttemptedEffect,
    /// True for the call of a check, which the model did not attempt.
    pub is_check: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum AttemptedEffect {
    /// Only a call with the same title is another attempt.
    #[default]
    Other,
    Read,
    Change,
}

impl AttemptedCall {
    pub(super) fn new(title: &str, kind: ToolKind, locations: &[ToolCallLocation]) -> Self {
        let effect = match kind {
            ToolKind::Read | ToolKind::Search => AttemptedEffect::Read,
            ToolKind::Edit | ToolKind::Delete | ToolKind::Move => AttemptedEffect::Change,
            _ => AttemptedEffect::Other,
        };
        let mut attempt = Self { title: title.to_owned(), files: Vec::new(), effect, is_check: false };
        attempt.locate(locations);
        attempt
    }

    pub(super) fn locate(&mut self, locations: &[ToolCallLocation]) {
        self.files = locations.iter().filter_map(|location| file_name(&location.path)).collect();
    }

    /// True if a call that was carried out did what `denied` attempted: the same files, read or changed.
    fn makes_good(&self, denied: &Self) -> bool {
        let same_files =
            !denied.files.is_empty() && denied.files.iter().all(|file| self.files.contains(file));
        self.title == denied.title
            || (same_files && denied.effect != AttemptedEffect::Other && self.effect >= denied.effect)
    }
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

#[derive(Debug, Default)]
pub(super) struct Denials {
    /// All denied calls, for the report.
    all: Vec<DeniedCall>,
    /// Denials that no later call made good, with their places in `all`.
    left: Vec<(usize, AttemptedCall)>,
}

impl Denials {
    /// `attempt` is `None` if the call ran, and rules refused changes of its command: such a denial is only reported.
    pub(super) fn deny(&mut self, attempt: Option<AttemptedCall>, call: DeniedCall) {
        if let Some(attempt) = attempt.filter(|attempt| !attempt.is_check) {
            self.left.push((self.all.len(), attempt));
        }
        self.all.push(call);
    }

    pub(super) fn completed(&mut self, attempt: &AttemptedCall) {
        self.left.retain(|(_, denied)| !attempt.makes_good(denied));
    }

    pub(super) fn all(&self) -> &[DeniedCall] {
        &self.all
    }

    /// The denials that no later call made good.
    pub(super) fn unresolved(&self) -> impl Iterator<Item = &DeniedCall> {
        self.left.iter().map(|(index, _)| &self.all[*index])
    }

    pub(super) fn left(&self) -> usize {
        self.left.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call_of(attempt: &AttemptedCall) -> DeniedCall {
        let (rule, reason, call_id) = (String::new(), String::new(), String::new());
        DeniedCall { title: attempt.title.clone(), tool: None, rule, reason, call_id }
    }

    #[test]
    fn last_attempt_at_a_file_counts() {
        let attempt = |title: &str, kind: ToolKind, path: &str| {
            let locations: Vec<_> =
                Some(path).filter(|path| !path.is_empty()).map(ToolCallLocation::new).into_iter().collect();
            AttemptedCall::new(title, kind, &locations)
        };
        let check = |denied: AttemptedCall, then: AttemptedCall, left: usize| {
            let text = format!("{denied:?} {then:?}");
            let mut denials = Denials::default();
            denials.deny(Some(denied.clone()), call_of(&denied));
            denials.completed(&then);
            assert_eq!((denials.all().len(), denials.left()), (1, left), "{text}");
        };
        let read = |path: &str| attempt("Read", ToolKind::Read, path);
        let edit = |path: &str| attempt("Edit", ToolKind::Edit, path);
        let run = |line: &str| attempt(line, ToolKind::Execute, "");
        check(read("/workspace/a.py"), attempt("Read a.py", ToolKind::Read, "/w/a.py"), 0);
        check(read("/workspace/a.py"), edit("/w/a.py"), 0);
        check(edit("/other/a.py"), attempt("Write", ToolKind::Edit, "/w/a.py"), 0);
        check(edit("/other/a.py"), read("/w/a.py"), 1);
        check(read("/workspace/a.py"), attempt("Read b.py", ToolKind::Read, "/w/b.py"), 1);
        check(run("git push"), run("git status"), 1);
        check(run("git push"), run("git push"), 0);
        check(run("git push"), edit("/w/a.py"), 1);
        check(AttemptedCall { is_check: true, ..run("make lint") }, edit("/w/a.py"), 0);
    }
}
