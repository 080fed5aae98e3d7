//! Implements `modegate skills`.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;

use crate::config::environment::Environment;
use crate::config::policies::Policies;
use crate::config::project::Project;
use crate::config::{self, Flags};
use crate::skill::{Skill, SkillOrigin};
use crate::text::{counted, visible};

#[derive(Debug, Subcommand)]
pub(super) enum SkillsCommand {
    /// List your skills and those of the current project
    List,
    /// Print a skill as models read it, and its path
    Show {
        /// Name of the skill to print
        name: String,
    },
    /// Report skills that cannot be used, and why
    Check,
}

pub(super) fn run(
    action: SkillsCommand,
    flags: &Flags,
    environment: &Environment,
    mut output: impl Write,
    mut errors: impl Write,
) -> anyhow::Result<ExitCode> {
    let cwd = config::real_working_folder(flags)?;
    let (skills, problems) = Policies::new(environment, None, false).skills(Project::of(&cwd));
    match action {
        SkillsCommand::List => {
            for problem in &problems {
                writeln!(errors, "modegate: {}", visible(problem))?;
            }
            if skills.is_empty() {
                writeln!(output, "There are no skills here.")?;
            }
            for skill in skills.iter() {
                writeln!(
                    output,
                    "{:20} {:8} {}",
                    skill.name,
                    origin_label(skill),
                    visible(&skill.description)
                )?;
            }
        }
        SkillsCommand::Show { name } => {
            let matching_skill = skills.find(&name);
            let skill = matching_skill
                .with_context(|| format!("there is no skill {name:?}: `modegate skills list` lists them"))?;
            writeln!(output, "{} ({}), {}", skill.name, origin_label(skill), skill.folder.display())?;
            writeln!(output, "{}", visible(&skill.description))?;
            writeln!(output, "\n{}", visible(&skill.body))?;
        }
        SkillsCommand::Check => {
            for problem in &problems {
                writeln!(output, "{}", visible(problem))?;
            }
            if !problems.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
            writeln!(output, "{}: fine", counted(skills.iter().count(), "skill", "skills"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn origin_label(skill: &Skill) -> &'static str {
    match skill.origin {
        SkillOrigin::User => "yours",
        SkillOrigin::Project => "project",
    }
}
