//! `read_multiple_files`: reads several text files. An unreadable file yields its error in place of the text.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::buffers::Buffers;
use super::content::code_span;
use super::{PreparedCall, Tool, ToolError, ToolOutput, ToolSpec, effect};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::Workspace;

const MAX_FILES: usize = 50;

const MAX_BYTES: usize = 400 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// Paths of the files, absolute or relative to the working directory; at most 50.
    paths: Vec<String>,
}

pub(super) fn tool() -> Arc<dyn Tool> {
    let what = "Read several text files at once, each whole and under its path.";
    ToolSpec::new("read_multiple_files", ToolKind::Read, Effect::Read, what).tool(prepare)
}

fn prepare(Arguments { paths }: Arguments, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
    if paths.is_empty() || paths.len() > MAX_FILES {
        let reason = format!("paths has {} entries; 1 to {MAX_FILES} are read", paths.len());
        return Err(ToolError::arguments(reason));
    }
    let targets = paths.iter().map(|path| workspace.resolve(path)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<_> = targets.iter().map(|target| code_span(&workspace.display(target))).collect();
    let title = format!("Read {}", names.join(", "));
    let (files, workspace) = (targets.clone(), workspace.clone());
    let call = PreparedCall::new(title, async move |context| {
        let buffers = Buffers::of(&context.client_io, &files, &context.permit.cancel).await?;
        effect(context.permit, move |_| Ok(read(&files, &buffers, &workspace))).await
    });
    Ok(PreparedCall { targets, ..call })
}

fn read(files: &[Target], buffers: &Buffers, workspace: &Workspace) -> ToolOutput {
    let mut output = ToolOutput::default();
    for target in files {
        let name = workspace.display(target);
        let text = match buffers.read(target) {
            Ok(file) if output.text.len() + file.text.len() > MAX_BYTES => {
                "[Omitted: the answer would be too long. Read this file separately.]".to_owned()
            }
            Ok(file) => {
                output.seen.push((target.path.clone(), file.content_hash));
                file.text
            }
            Err(error) => format!("[{error}]"),
        };
        let newline = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
        let note = buffers.note(target).map(|note| note + "\n").unwrap_or_default();
        for part in ["=== ", &name, " ===\n", &text, newline, &note] {
            output.text.push_str(part);
        }
    }
    output
}
