//! Converts a tool result for the model and for the client. Pure.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

use super::super::content;
use super::super::{ToolContent, ToolError, ToolOutput};

/// Maximum bytes of a result for the model.
const FOR_MODEL: usize = 100 * 1024;

/// Maximum Base64 bytes of media for the client. Each medium is displayed whole or not at all.
const MAX_MEDIA: usize = 4 * 1024 * 1024;

/// Returns an error if the server reports a failure, so that the model can correct its call.
pub(super) fn read(result: &CallToolResult) -> Result<ToolOutput, ToolError> {
    let is_error = result.is_error == Some(true);
    let mut texts = Vec::new();
    let mut shown_all = Vec::new();
    let (mut budget, mut media) = (content::TEXT, MAX_MEDIA);
    for block in &result.content {
        let (text, shown) = one(block, &mut media);
        texts.push(text);
        match shown {
            // Text beyond the limit of a client's line goes only to the model.
            ToolContent::Text(shown) if budget > 0 => {
                let fits = &shown[..content::fitting(&shown, budget)];
                budget = budget.saturating_sub(fits.len().max(1) * 2);
                shown_all.push(ToolContent::Text(fits.to_owned()));
            }
            ToolContent::Text(_) => {}
            shown => shown_all.push(shown),
        }
    }
    if let (true, Some(structured)) = (texts.is_empty(), &result.structured_content) {
        let text = serde_json::to_string_pretty(structured).unwrap_or_else(|_| structured.to_string());
        shown_all.push(ToolContent::middle(&text));
        texts.push(text);
    }
    let text = if texts.is_empty() { "(The tool returned nothing.)".to_owned() } else { texts.join("\n") };
    let text = cut(text);
    if is_error {
        return Err(ToolError::Failed(text));
    }
    Ok(ToolOutput { text, content: shown_all, ..ToolOutput::default() })
}

fn one(block: &ContentBlock, budget: &mut usize) -> (String, ToolContent) {
    match block {
        ContentBlock::Text(text) => (text.text.clone(), ToolContent::middle(&text.text)),
        ContentBlock::Image(image) => {
            media("image", &image.mime_type, &image.data, block, "attached if you accept images", budget)
        }
        ContentBlock::Audio(audio) => {
            media("audio", &audio.mime_type, &audio.data, block, "audible to the user only", budget)
        }
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                let text = format!("[{uri}]\n{text}");
                let shown = ToolContent::middle(&text);
                (text, shown)
            }
            ResourceContents::BlobResourceContents { uri, blob, mime_type, .. } => {
                let kind = mime_type.as_deref().unwrap_or("of unknown type");
                let text = format!("[{uri}: {} bytes, {kind}, binary]", decoded(blob));
                let shown = ToolContent::text(&text);
                (text, shown)
            }
            _ => unknown(),
        },
        ContentBlock::ResourceLink(link) => {
            let about = link.description.as_deref().map(|about| format!(": {about}")).unwrap_or_default();
            let text = format!("[{} {}{about}]", link.name, link.uri);
            let shown = ToolContent::text(&text);
            (text, shown)
        }
        _ => unknown(),
    }
}

fn decoded(base64: &str) -> usize {
    base64.trim_end_matches('=').len() * 3 / 4
}

fn unknown() -> (String, ToolContent) {
    let text = "[The tool returned content of an unknown kind.]";
    (text.to_owned(), ToolContent::text(text))
}

fn media(
    what: &str,
    kind: &str,
    data: &str,
    block: &ContentBlock,
    how: &str,
    budget: &mut usize,
) -> (String, ToolContent) {
    let size = decoded(data);
    if data.len() > *budget {
        let text = format!("[{what}, {kind}, {size} bytes, too large to display]");
        let shown = ToolContent::text(&text);
        return (text, shown);
    }
    let text = format!("[{what}, {kind}, {size} bytes, {how}]");
    *budget -= data.len();
    // MCP and ACP use the same content blocks.
    let shown = serde_json::to_value(block).ok().and_then(|block| serde_json::from_value(block).ok());
    let shown = shown.map_or_else(|| ToolContent::text(&text), |block| ToolContent::Block(Box::new(block)));
    (text, shown)
}

fn cut(text: String) -> String {
    if text.len() <= FOR_MODEL {
        return text;
    }
    let head = text.floor_char_boundary(FOR_MODEL * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - FOR_MODEL / 3);
    format!("{}\n[{} bytes in between are omitted]\n{}", &text[..head], tail - head, &text[tail..])
}
