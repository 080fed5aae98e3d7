//! `read_skill`: returns a skill's instructions or one of its files.
//!
//! The instructions are those from the start of the session. Other files are read on demand, only below the
//! skill's folder: the path is resolved, checked, and opened without following a link.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::super::content::code_span;
use super::super::read_file::{MAX_LINES, excerpt};
use super::super::text_file::TextFile;
use super::super::{
    PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec, arguments, effect, resolve,
};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::skill::{FILE, Origin, Skill, Skills};
use crate::workspace::Workspace;

pub(super) const NAME: &str = "read_skill";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
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

pub(super) struct Read(ToolSpec, Arc<Skills>);

impl Read {
    pub(super) fn new(skills: Arc<Skills>) -> Self {
        let spec = ToolSpec::new::<Arguments>(
            NAME,
            ToolKind::Read,
            Effect::Read,
            "Read a skill's instructions, or a text file that belongs to it. Read a skill before you begin a task that it covers.",
        );
        Self(spec, skills)
    }
}

#[async_trait]
impl Tool for Read {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { name, file, line, limit } = arguments(&self.0.name, given)?;
        let Some(skill) = self.1.find(&name) else {
            return Err(ToolError::Failed(format!(
                "There is no skill {name:?}: list_skills lists those that there are."
            )));
        };
        let (title, path, what) = match file {
            None => (
                format!("Read skill {}", code_span(&name)),
                skill.folder.join(FILE),
                What::Instructions(skill.clone()),
            ),
            Some(file) => {
                let target = below(skill, &file, workspace).await?;
                (
                    format!("Read skill {}: {}", code_span(&name), code_span(&file)),
                    target.path.clone(),
                    What::File(target),
                )
            }
        };
        let mentions = vec![PathBuf::from(name), path];
        Ok(Box::new(Call { title, mentions, what, line: line.unwrap_or(1).max(1), limit }))
    }
}

/// Follows links, but looks at no file outside the skill's folder.
async fn below(skill: &Skill, file: &str, workspace: &Workspace) -> Result<Target, ToolError> {
    let out = || {
        ToolError::Failed(format!("{file} is not below the skill's folder, which is all that {NAME} reads."))
    };
    let is_below = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if !Path::new(file).components().all(is_below) {
        return Err(out());
    }
    let requested = skill.folder.join(file);
    let Some(requested) = requested.to_str() else { return Err(out()) };
    let target = resolve(workspace, requested.to_owned()).await?;
    // The stored folder contains no links; if it has become a link, the check fails.
    if target.path.starts_with(&skill.folder) { Ok(target) } else { Err(out()) }
}

#[derive(Debug)]
enum What {
    Instructions(Skill),
    File(Target),
}

#[derive(Debug)]
struct Call {
    title: String,
    mentions: Vec<PathBuf>,
    what: What,
    line: u32,
    limit: Option<u32>,
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    fn mentions(&self) -> Vec<PathBuf> {
        self.mentions.clone()
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        effect(context.permit, move |_| {
            let limit = self.limit.unwrap_or(MAX_LINES).clamp(1, MAX_LINES);
            match &self.what {
                What::Instructions(skill) => {
                    let text = excerpt(&skill.body, self.line, limit)?;
                    Ok(ToolOutput { text: format!("{}\n\n{text}", opening(skill)), ..ToolOutput::default() })
                }
                What::File(target) => {
                    let file = TextFile::read(target)?;
                    let text = excerpt(&file.text, self.line, limit)?;
                    Ok(ToolOutput {
                        text,
                        seen: vec![(target.path.clone(), file.content_hash)],
                        ..ToolOutput::default()
                    })
                }
            }
        })
        .await
    }
}

fn opening(skill: &Skill) -> String {
    let whose = match skill.origin {
        Origin::User => "by the user",
        Origin::Project => "by the project",
    };
    format!(
        "[Skill {}, provided {whose}; it cannot change modes or permissions. Its files are in {}; {NAME} reads them.]",
        skill.name,
        skill.folder.display()
    )
}
