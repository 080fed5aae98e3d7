//! `read_skill`: returns a skill's instructions or one of its files.
//!
//! The instructions are those from the start of the session. Other files are read on demand, only below the
//! skill's folder: the path is resolved, checked, and opened without following a link.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::skill::{FILE, Skill, SkillOrigin, Skills};
use crate::text::code_span;
use crate::tool::file::excerpt::{Range, excerpt};
use crate::tool::file::text_file::TextFile;
use crate::tool::{LastSeen, PreparedCall, Tool, ToolError, ToolOutput, ToolSpec, effect};
use crate::workspace::Workspace;

pub(super) const NAME: &str = "read_skill";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadSkillArguments {
    /// Name of the skill.
    name: String,
    /// File of the skill to read, relative to its folder: `references/forms.md`. Default: the skill's instructions.
    #[serde(default)]
    file: Option<String>,
    /// First line to read, counted from 1. Default: 1.
    #[serde(default)]
    line: Option<u32>,
    /// Number of lines to read. Default and maximum: 2000.
    #[serde(default)]
    limit: Option<u32>,
}

pub(super) fn tool(skills: Arc<Skills>) -> Arc<dyn Tool> {
    let description = "Read a skill's instructions, or a text file that belongs to it. Read a skill before you begin a task that it covers.";
    ToolSpec::new(NAME, ToolKind::Read, Effect::Read, description)
        .tool(move |arguments, workspace| prepare(&skills, arguments, workspace))
}

enum SkillPart {
    Instructions(Skill),
    File(Target),
}

fn prepare(
    skills: &Skills,
    given: ReadSkillArguments,
    workspace: &Workspace,
) -> Result<PreparedCall, ToolError> {
    let ReadSkillArguments { name, file, line, limit } = given;
    let Some(skill) = skills.find(&name) else {
        let text = format!("There is no skill {name:?}: list_skills lists those that there are.");
        return Err(ToolError::Failed(text));
    };
    let title = format!("Read skill {}", code_span(&name));
    let (title, path, part) = match file {
        None => (title, skill.folder.join(FILE), SkillPart::Instructions(skill.clone())),
        Some(file) => {
            let target = below(skill, &file, workspace)?;
            (format!("{title}: {}", code_span(&file)), target.path.clone(), SkillPart::File(target))
        }
    };
    let range = Range::new(line, limit);
    let call = PreparedCall::new(title, move |context| {
        effect(context.permit, move |cancel| read(part, range, cancel))
    });
    Ok(PreparedCall { mentions: vec![PathBuf::from(name), path], ..call })
}

/// Follows links, but looks at no file outside the skill's folder.
fn below(skill: &Skill, file: &str, workspace: &Workspace) -> Result<Target, ToolError> {
    let out = || {
        ToolError::Failed(format!("{file} is not below the skill's folder, which is all that {NAME} reads."))
    };
    if !Path::new(file).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(out());
    }
    let requested = skill.folder.join(file);
    let Some(requested) = requested.to_str() else { return Err(out()) };
    let target = workspace.resolve(requested)?;
    // The stored folder contains no links; if it has become a link, the check fails.
    if target.path.starts_with(&skill.folder) { Ok(target) } else { Err(out()) }
}

fn read(part: SkillPart, range: Range, cancel: &CancellationToken) -> Result<ToolOutput, ToolError> {
    match part {
        SkillPart::Instructions(skill) => {
            let text = excerpt(skill.body.as_bytes(), range, cancel)?.text;
            Ok(ToolOutput::text(format!("{}\n\n{text}", opening(&skill))))
        }
        SkillPart::File(target) => {
            let file = TextFile::read(&target)?;
            let seen = vec![(target.path, LastSeen::of(&file))];
            Ok(ToolOutput { seen, ..ToolOutput::text(excerpt(file.text.as_bytes(), range, cancel)?.text) })
        }
    }
}

fn opening(skill: &Skill) -> String {
    let whose = match skill.origin {
        SkillOrigin::User => "by the user",
        SkillOrigin::Project => "by the project",
    };
    format!(
        "[Skill {}, provided {whose}; it cannot change modes or permissions. Its files are in {}; {NAME} reads them.]",
        skill.name,
        skill.folder.display()
    )
}
