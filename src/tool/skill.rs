//! The tools that list, read and run skills.
//!
//! Permission decisions use the tool names, wherever a skill is located. Only the skill's own folder is read.

use std::sync::Arc;

use super::Tool;
use crate::permission::Effect;
use crate::skill::Skills;

mod list;
mod read;
mod run;

pub use run::NAME as RUN;

pub(super) const TOOLS: [(&str, Effect); 3] =
    [(list::NAME, Effect::Read), (read::NAME, Effect::Read), (RUN, Effect::Delegate)];

pub(super) fn tools(skills: &Arc<Skills>) -> Vec<Arc<dyn Tool>> {
    if skills.is_empty() {
        return Vec::new();
    }
    vec![list::tool(Arc::clone(skills)), read::tool(Arc::clone(skills)), run::tool()]
}

#[cfg(test)]
pub(super) fn one() -> Arc<Skills> {
    use crate::skill::{Skill, SkillOrigin};

    let text = "---\nname: one\ndescription: One.\n---\nDo it.";
    let skill = Skill::parse("one", "/one".into(), SkillOrigin::User, text);
    Arc::new(Skills::new(skill))
}
