//! The numbering, finding and removal of a session's background jobs and agents. Pure.

use super::background::BackgroundAgent;
use crate::tool::{Job, ToolError};

/// Maximum finished entries to keep, each with its output.
pub const MAX_FINISHED: usize = 32;

/// Removes the oldest finished entries until at most [`MAX_FINISHED`] are left. Returns their ids.
pub fn forget<T>(all: &mut Vec<T>, is_over: impl Fn(&T) -> bool, id: impl Fn(&T) -> String) -> Vec<String> {
    let mut surplus = all.iter().filter(|it| is_over(it)).count().saturating_sub(MAX_FINISHED);
    let mut discarded = Vec::new();
    all.retain(|it| {
        let is_discarded = surplus > 0 && is_over(it);
        if is_discarded {
            surplus -= 1;
            discarded.push(id(it));
        }
        !is_discarded
    });
    discarded
}

/// Returns a note for the model about entries of `what` that [`forget`] removed.
pub fn discarded_note(what: &str, ids: &[String]) -> Option<String> {
    (!ids.is_empty()).then(|| {
        let ids = ids.join(", ");
        format!("The results of these finished background {what} are no longer available: {ids}.")
    })
}

/// Numbers are never reused, because the newest entry is never removed.
fn number(id: &str) -> Option<u64> {
    id.rsplit_once('_')?.1.parse().ok()
}

pub(in crate::tool) fn next_number<'a>(mut ids: impl DoubleEndedIterator<Item = &'a str>) -> u64 {
    ids.next_back().and_then(number).unwrap_or_default() + 1
}

#[derive(Debug)]
pub(super) enum BackgroundEntry<'a> {
    Job(&'a Job),
    Agent(&'a BackgroundAgent),
}

pub(super) fn find<'a>(
    jobs: &'a [Job],
    agents: &'a [BackgroundAgent],
    id: &str,
) -> Result<BackgroundEntry<'a>, ToolError> {
    let job = jobs.iter().find(|job| job.id == id).map(BackgroundEntry::Job);
    let entry = job.or_else(|| agents.iter().find(|agent| agent.id == id).map(BackgroundEntry::Agent));
    entry.ok_or_else(|| {
        let job_ids: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
        let agent_ids: Vec<&str> = agents.iter().map(|agent| agent.id.as_str()).collect();
        missing(id, &[&job_ids, &agent_ids])
    })
}

/// Each list has the ids of one kind, in order.
fn missing(id: &str, lists: &[&[&str]]) -> ToolError {
    let was_assigned = lists.iter().any(|ids| {
        let is_of_kind = ids.last().is_some_and(|last| kind_of(last) == kind_of(id));
        is_of_kind && number(id).is_some_and(|number| number > 0 && number < next_number(ids.iter().copied()))
    });
    if was_assigned {
        let text =
            format!("{id} has finished and its output was discarded: only the last {MAX_FINISHED} are kept.");
        return ToolError::Failed(text);
    }
    let ids = lists.concat();
    let ids = if ids.is_empty() { "none".into() } else { ids.join(", ") };
    ToolError::Failed(format!("There is no {id:?} in the background. There are: {ids}."))
}

fn kind_of(id: &str) -> Option<String> {
    id.rsplit_once('_').map(|(kind, _)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_finished_entries_are_discarded() {
        let all = |over: &[bool]| -> Vec<(String, bool)> {
            over.iter().enumerate().map(|(at, over)| (format!("job_{}", at + 1), *over)).collect()
        };
        let forgets = |over: &[bool]| {
            let mut all = all(over);
            let newest = all.last().cloned();
            let gone = forget(&mut all, |it| it.1, |it| it.0.clone());
            assert_eq!(all.last(), newest.as_ref());
            assert!(all.iter().filter(|it| it.1).count() <= MAX_FINISHED);
            (gone, all)
        };
        assert_eq!(forgets(&[true; MAX_FINISHED]).0, Vec::<String>::new());
        assert_eq!(forgets(&[true; MAX_FINISHED + 2]).0, ["job_1", "job_2"]);
        let mixed: Vec<bool> = (0..MAX_FINISHED * 2 + 2).map(|at| at % 2 == 1).collect();
        assert_eq!(forgets(&mixed).0, ["job_2"], "running jobs stay");
        assert_eq!(forgets(&[false; 100]).0, Vec::<String>::new());
        let (_, remaining) = forgets(&[true; MAX_FINISHED + 2]);
        let ids: Vec<&str> = remaining.iter().map(|it| it.0.as_str()).collect();
        assert_eq!(next_number(ids.iter().copied()), MAX_FINISHED as u64 + 3);
        assert_eq!(next_number(std::iter::empty()), 1);
        for (id, words) in [
            ("job_1", "job_1 has finished and its output was discarded"),
            ("job_2", "job_2 has finished and its output was discarded"),
            ("job_0", "There is no \"job_0\""),
            ("job_99", "There is no \"job_99\""),
            ("agent_1", "There is no \"agent_1\""),
            ("", "There is no \"\""),
        ] {
            let text = missing(id, &[&ids, &[]]).to_string();
            assert!(text.starts_with(words), "{id}: {text}");
        }
        assert!(missing("job_1", &[&[], &[]]).to_string().ends_with("There are: none."));
    }
}
