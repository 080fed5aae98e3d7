//! The tools that list, read and run skills.
//!
//! Permission decisions use the tool names, wherever a skill is located. Only the skill's own folder is read.

use std::sync::Arc;

use super::Tool;
use super::session_action::{RUN, RunSkill};
use crate::permission::Effect;
use crate::skill::Skills;

mod list;
mod read;

pub(super) const TOOLS: [(&str, Effect); 3] =
    [(list::NAME, Effect::Read), (read::NAME, Effect::Read), (RUN, Effect::Delegate)];

pub(super) fn tools(skills: &Arc<Skills>) -> Vec<Arc<dyn Tool>> {
    if skills.is_empty() {
        return Vec::new();
    }
    vec![
        Arc::new(list::List::new(Arc::clone(skills))),
        Arc::new(read::Read::new(Arc::clone(skills))),
        Arc::new(RunSkill::new()),
    ]
}

#[cfg(test)]
pub(super) fn one() -> Arc<Skills> {
    let text = "---\nname: one\ndescription: One.\n---\nDo it.";
    let skill = crate::skill::Skill::parse("one", "/one".into(), crate::skill::Origin::User, text);
    Arc::new(Skills::new(skill))
}
