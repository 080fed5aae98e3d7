//! Reads the contents of calls. Pure.

use super::view::printable;
use crate::acp::{ContentBlock, ToolCallContent, ToolCallUpdate};
use crate::text;

pub(super) fn first_line(content: Option<&[ToolCallContent]>) -> String {
    let text = content.into_iter().flatten().find_map(|content| match content {
        ToolCallContent::Content(content) => match &content.content {
            ContentBlock::Text(text) => Some(text::first_line(&text.text)).filter(|line| !line.is_empty()),
            _ => None,
        },
        _ => None,
    });
    printable(text.unwrap_or_default())
}

/// How a command ended: the last line of its result, such as `[Exit status 1.]`, without the brackets.
pub(super) fn last_line(content: Option<&[ToolCallContent]>) -> Option<String> {
    let ToolCallContent::Content(content) = content?.last()? else { return None };
    let ContentBlock::Text(text) = &content.content else { return None };
    let end = text.text.lines().last()?.strip_prefix('[')?.strip_suffix(']')?;
    Some(printable(end))
}

pub(super) fn text_of(content: Option<&[ToolCallContent]>) -> String {
    let texts = content.into_iter().flatten().filter_map(|content| match content {
        ToolCallContent::Content(content) => match &content.content {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        },
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

pub(super) fn has_exit_code(update: &ToolCallUpdate) -> bool {
    update.fields.raw_output.as_ref().is_some_and(|output| output.get("exitCode").is_some())
}
