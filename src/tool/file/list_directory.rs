//! `list_directory`: lists the entries of one directory.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::walk::left_out;
use crate::acp::ToolKind;
use crate::gate::Permit;
use crate::permission::{Effect, Target};
use crate::text::code_span;
use crate::tool::{PreparedCall, Tool, ToolError, ToolSpec};
use crate::workspace::{self, FileError, Workspace};

const MAX_ENTRIES: usize = 1000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListDirectoryArguments {
    /// Default: the working directory.
    #[serde(default)]
    path: Option<String>,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description =
        "List the entries of one directory. Directories end with a slash, links with an at sign.";
    ToolSpec::new("list_directory", ToolKind::Read, Effect::Read, description).tool(prepare)
}

fn prepare(
    ListDirectoryArguments { path }: ListDirectoryArguments,
    workspace: &Workspace,
) -> Result<PreparedCall, ToolError> {
    let target = workspace.resolve(path.as_deref().unwrap_or("."))?;
    let title = format!("List {}", code_span(&workspace.display(&target)));
    let place = target.clone();
    Ok(PreparedCall::reading(title, target, move |permit| list(&place, permit)))
}

fn list(target: &Target, permit: &Permit) -> Result<String, ToolError> {
    let failed = |error| FileError::io(&target.path, &error);
    let (mut lines, mut omitted) = (Vec::new(), 0);
    for entry in workspace::open_dir(target)?.entries().map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let mark = match entry.file_type() {
            Ok(kind) if kind.is_dir() => "/",
            Ok(kind) if kind.is_symlink() => "@",
            _ => "",
        };
        let inside = target.inside.as_ref().map(|inside| inside.join(&name));
        if permit.admits(&Target { path: target.path.join(&name), inside }) {
            lines.push(format!("{}{mark}", name.to_string_lossy()));
        } else {
            omitted += 1;
        }
    }
    lines.sort_unstable();
    let more = lines.len().saturating_sub(MAX_ENTRIES);
    lines.truncate(MAX_ENTRIES);
    if more > 0 {
        lines.push(format!("[{more} more entries]"));
    }
    lines.extend(left_out(omitted));
    if lines.is_empty() {
        return Ok("[The directory is empty.]".into());
    }
    Ok(lines.join("\n"))
}
