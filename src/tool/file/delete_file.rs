//! `delete_file`: removes one file or symbolic link.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::acp::ToolKind;
use crate::permission::Effect;
use crate::text::code_span;
use crate::tool::{LastSeen, PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec, effect};
use crate::workspace::{Change, Workspace};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DeleteFileArguments {
    /// Path of the file.
    path: String,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Delete one file or symbolic link. Directories are not deleted.";
    ToolSpec::new("delete_file", ToolKind::Delete, Effect::Edit, description).tool(prepare)
}

fn prepare(
    DeleteFileArguments { path }: DeleteFileArguments,
    workspace: &Workspace,
) -> Result<PreparedCall, ToolError> {
    let target = workspace.resolve_entry(&path)?;
    let (name, targets, workspace) = (workspace.display(&target), vec![target.clone()], workspace.clone());
    let call = PreparedCall::new(format!("Delete {}", code_span(&name)), |context| {
        let RunContext { permit, journal, .. } = context;
        effect(permit, move |cancel| {
            let seen = vec![(target.path.clone(), LastSeen::absent())];
            workspace.apply(&[Change::Remove { target }], cancel, &journal)?;
            Ok(ToolOutput { seen, ..ToolOutput::text(format!("Deleted {name}.")) })
        })
    });
    Ok(PreparedCall { targets, ..call })
}
