//! `move_file`: moves or renames a file or directory. Never overwrites.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::acp::ToolKind;
use crate::permission::{Effect, FilesBelow, Target};
use crate::text::code_span;
use crate::tool::{PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec, effect};
use crate::workspace::{self, Change, Workspace};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MoveFileArguments {
    /// Path of the file or directory.
    from: String,
    /// Must not exist. Missing folders are created.
    to: String,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Move or rename a file or a directory. Nothing is overwritten.";
    ToolSpec::new("move_file", ToolKind::Move, Effect::Edit, description).tool(prepare)
}

fn prepare(
    MoveFileArguments { from, to }: MoveFileArguments,
    workspace: &Workspace,
) -> Result<PreparedCall, ToolError> {
    let (from, to) = (workspace.resolve_entry(&from)?, workspace.resolve_entry(&to)?);
    let [old, new] = [&from, &to].map(|target| workspace.display(target));
    let (targets, workspace) = (vec![from.clone(), to.clone()], workspace.clone());
    let call = PreparedCall::new(format!("Move {} to {}", code_span(&old), code_span(&new)), |context| {
        let RunContext { permit, journal, .. } = context;
        let files = permit.files.clone();
        let is_folder = from.path.symlink_metadata().is_ok_and(|found| found.is_dir());
        effect(permit, move |cancel| {
            if let Some(files) = files.filter(|_| is_folder) {
                check_contents(&from, &to, &files, &workspace)?;
            }
            workspace.apply(&[Change::Rename { from, to }], cancel, &journal)?;
            Ok(ToolOutput::text(format!("Moved {old} to {new}.")))
        })
    });
    Ok(PreparedCall { targets, ..call })
}

/// A rule or `write_paths` may exclude a file that moves with its folder, at its old path or at its new one.
fn check_contents(
    from: &Target,
    to: &Target,
    files: &FilesBelow,
    workspace: &Workspace,
) -> Result<(), ToolError> {
    workspace::visit_below(from, &mut |below| {
        for folder in [from, to] {
            let file = workspace.place(folder.path.join(below));
            if !files.admits(&file) {
                return Err(ToolError::Failed(format!(
                    "{} was not moved: {} would move with it, which a rule or the mode does not permit.",
                    workspace.display(from),
                    workspace.display(&file)
                )));
            }
        }
        Ok(())
    })
}
