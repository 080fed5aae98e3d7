//! Encodes the list of tasks, and the plan of a proposed mode change. Pure.

use crate::acp::{
    Plan, PlanEntry, PlanItems, PlanMarkdown, PlanRemoved, PlanUpdate, PlanUpdateContent, SessionUpdate,
    Update,
};
use crate::conversation::content::clip;

/// Bytes of JSON in a plan.
const PLAN: usize = 32 * 1024;

/// The list of tasks.
const TASKS: &str = "plan";

/// The plan of a proposed mode change.
const PROPOSAL: &str = "proposal";

/// Clients that accept plans with ids get the tasks as one of them.
pub(super) fn tasks(entries: &[PlanEntry], has_id: bool) -> Update {
    let budget = PLAN / entries.len().max(1);
    let mut entries = entries.to_vec();
    for entry in &mut entries {
        entry.content = clip(&entry.content, budget).into_owned();
    }
    if has_id {
        let items = PlanUpdateContent::Items(PlanItems::new(TASKS, entries));
        SessionUpdate::PlanUpdate(PlanUpdate::new(items)).into()
    } else {
        SessionUpdate::Plan(Plan::new(entries)).into()
    }
}

/// The plan that is to be approved.
pub fn proposal(text: &str) -> Update {
    let markdown = PlanMarkdown::new(PROPOSAL, clip(text, PLAN).into_owned());
    SessionUpdate::PlanUpdate(PlanUpdate::new(PlanUpdateContent::Markdown(markdown))).into()
}

/// After the decision on the plan.
pub fn proposal_removed() -> Update {
    SessionUpdate::PlanRemoved(PlanRemoved::new(PROPOSAL)).into()
}
