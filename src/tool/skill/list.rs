//! `list_skills`: lists the names and purposes of skills.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::acp::ToolKind;
use crate::permission::Effect;
use crate::skill::{Skill, SkillOrigin, Skills};
use crate::text::visible;
use crate::tool::memory::list_page::list_page;
use crate::tool::{PreparedCall, Tool, ToolOutput, ToolSpec};

pub(super) const NAME: &str = "list_skills";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListSkillsArguments {
    /// Name of a skill: list only the skills after it. Default: all, sorted by name.
    #[serde(default)]
    after: Option<String>,
}

pub(super) fn tool(skills: Arc<Skills>) -> Arc<dyn Tool> {
    let description = "List the available skills (instructions for particular kinds of tasks) with name and purpose. read_skill reads one.";
    ToolSpec::new(NAME, ToolKind::Read, Effect::Read, description).tool(
        move |ListSkillsArguments { after }, _| {
            let skills = Arc::clone(&skills);
            Ok(PreparedCall::new("List skills", async move |_| {
                Ok(ToolOutput::text(show(&skills, after.as_deref())))
            }))
        },
    )
}

fn show(skills: &Skills, after: Option<&str>) -> String {
    let rest: Vec<&Skill> =
        skills.iter().filter(|skill| after.is_none_or(|after| skill.name.as_str() > after)).collect();
    let entries = rest.iter().map(|skill| {
        let whose = match skill.origin {
            SkillOrigin::User => "the user's",
            SkillOrigin::Project => "the project's",
        };
        let line = format!("{} ({whose}): {}\n", skill.name, visible(&skill.description));
        (skill.name.as_str(), line)
    });
    list_page(entries, "[There are no such skills.]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skill_list_is_paginated_without_gaps() {
        let skill = |number: usize| {
            let name = format!("s-{number:02}");
            let text = format!("---\nname: {name}\ndescription: {}\n---\nDo it.", "x".repeat(1000));
            Skill::parse(&name, "/s".into(), SkillOrigin::Project, &text).unwrap()
        };
        let skills = Skills::new((1..=40).map(skill));
        let first = show(&skills, None);
        assert!(first.ends_with("[11 more. Continue with after s-29.]"), "{}", &first[first.len() - 60..]);
        let rest = show(&skills, Some("s-29"));
        assert!(rest.starts_with("s-30 (the project's): x") && rest.lines().count() == 11);
        assert_eq!(show(&skills, Some("s-40")), "[There are no such skills.]");
    }
}
