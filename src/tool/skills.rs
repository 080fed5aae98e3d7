//! The tools for skills: which there are, reading them, and having an agent work by one. A session has them only if it has skills.
//!
//! They are decided on by their names, wherever a skill lies: its own folder is all that is read.

use std::sync::Arc;

use super::Tool;
use super::session_action::{RUN, RunSkill};
use crate::permission::Effect;
use crate::skill::Skills;

mod list;
mod read;

/// The tools, and what they do.
pub const TOOLS: [(&str, Effect); 3] =
    [(list::NAME, Effect::Read), (read::NAME, Effect::Read), (RUN, Effect::Delegate)];

/// The tools for these skills; none where there are none.
pub fn tools(skills: &Arc<Skills>) -> Vec<Arc<dyn Tool>> {
    if skills.is_empty() {
        return Vec::new();
    }
    vec![
        Arc::new(list::List::new(Arc::clone(skills))),
        Arc::new(read::Read::new(Arc::clone(skills))),
        Arc::new(RunSkill::new()),
    ]
}

/// A skill, so that there are tools.
#[cfg(test)]
pub(super) fn one() -> Arc<Skills> {
    let text = "---\nname: one\ndescription: One.\n---\nDo it.";
    let skill = crate::skill::Skill::parse("one", "/one".into(), crate::skill::Origin::User, text);
    Arc::new(Skills::new(skill))
}
