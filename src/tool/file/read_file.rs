//! `read_file`: lines of a text file of any size, or an image.

use std::io::{BufReader, Read};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::buffers::Buffers;
use super::excerpt::{Excerpt, Range, excerpt};
use super::last_seen::LastSeen;
use super::picture;
use super::text_file::MAX_FILE;
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::text::code_span;
use crate::tool::{PreparedCall, Tool, ToolError, ToolOutput, ToolSpec, effect};
use crate::workspace::{self, FileError, Workspace};

/// Bytes at the start of a file that tell an image, or a binary file.
const HEAD: u64 = 8192;

pub const NAME: &str = "read_file";

const CHUNK: usize = 256 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadFileArguments {
    /// Path of the file.
    path: String,
    /// First line. Default: 1.
    #[serde(default)]
    line: Option<u32>,
    /// Default and maximum: 2000.
    #[serde(default)]
    limit: Option<u32>,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description = "Read a text file, whole or from a given line, with line numbers; or look at an image (PNG, JPEG, GIF, WebP). \
                Read a file before you edit it.";
    ToolSpec::new(NAME, ToolKind::Read, Effect::Read, description).tool(prepare)
}

fn prepare(given: ReadFileArguments, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
    let ReadFileArguments { path, line, limit } = given;
    let target = workspace.resolve(&path)?;
    let range = Range::new(line, limit);
    let first = range.first;
    let lines = match limit {
        None if first == 1 => String::new(),
        None => format!(" from line {first}"),
        Some(_) => format!(" ({first}-{})", first + range.limit as u64 - 1),
    };
    let title = format!("Read {}{lines}", code_span(&workspace.display(&target)));
    let targets = vec![target.clone()];
    let call = PreparedCall::new(title, async move |context| {
        let targets = std::slice::from_ref(&target);
        let buffers = Buffers::of(&context.client_io, targets, &context.permit.cancel).await?;
        effect(context.permit, move |cancel| read(&target, range, &buffers, cancel)).await
    });
    Ok(PreparedCall { targets, line: line.filter(|line| *line > 0), ..call })
}

fn read(
    target: &Target,
    range: Range,
    buffers: &Buffers,
    cancel: &CancellationToken,
) -> Result<ToolOutput, ToolError> {
    let mut open = workspace::open(target)?;
    let mut head = Vec::new();
    open.file
        .by_ref()
        .take(HEAD)
        .read_to_end(&mut head)
        .map_err(|error| FileError::io(&target.path, &error))?;
    if let Some(mime_type) = picture::mime_type(&head) {
        return picture::read(&head, open, mime_type);
    }
    let (mut seen, mut editor_text) = (Vec::new(), None);
    let Excerpt { mut text, lossy } = if open.metadata.len() > MAX_FILE {
        if head.contains(&0) {
            let (path, length) = (target.path.display(), open.metadata.len());
            return Err(ToolError::Failed(format!("{path} is a binary file ({length} bytes).")));
        }
        excerpt(BufReader::with_capacity(CHUNK, head.chain(open.file)), range, cancel)?
    } else {
        let (file, differing) = buffers.read(target)?;
        editor_text = differing;
        seen.push((target.path.clone(), LastSeen::of(&file)));
        Excerpt { lossy: file.lossy, ..excerpt(file.text.as_bytes(), range, cancel)? }
    };
    let lossy = lossy.then(|| "[The file is not UTF-8: invalid bytes are shown as \u{fffd}.]".to_owned());
    for note in lossy.into_iter().chain(buffers.note(target, editor_text)) {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&note);
    }
    Ok(ToolOutput { seen, ..ToolOutput::text(text) })
}
