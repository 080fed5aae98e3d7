//! Converts a tool result for the model and for the client. Pure.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use crate::conversation::content::{self, ToolContent};
use crate::text::{shorten, visible};
use crate::tool::{ToolError, ToolOutput};

/// Maximum Base64 bytes of all images and audio of one result. Each block is passed on whole or not at all.
const MAX_MEDIA: usize = 4 * 1024 * 1024;

/// Bytes of JSON around the content of one block, rounded up.
const BLOCK: usize = 64;

/// The answer of a server to a call, as far as Modegate can read it.
#[derive(Debug)]
pub(super) struct ToolAnswer {
    /// A block that the library does not know stays as it is.
    blocks: Vec<Result<ContentBlock, Value>>,
    structured: Option<Value>,
    is_error: bool,
}

impl From<CallToolResult> for ToolAnswer {
    fn from(result: CallToolResult) -> Self {
        Self {
            blocks: result.content.into_iter().map(Ok).collect(),
            structured: result.structured_content,
            is_error: result.is_error == Some(true),
        }
    }
}

impl ToolAnswer {
    /// Reads a result that the library cannot read. `None` if it has no content.
    pub(super) fn from_value(mut result: Value) -> Option<Self> {
        let blocks = match result.get_mut("content").map(Value::take) {
            Some(Value::Array(blocks)) => blocks,
            Some(Value::Null) | None => Vec::new(),
            Some(text @ Value::String(_)) => vec![serde_json::json!({ "type": "text", "text": text })],
            Some(block) => vec![block],
        };
        let structured = result.get_mut("structuredContent").map(Value::take);
        if blocks.is_empty() && structured.is_none() {
            return None;
        }
        let is_error = result["isError"] == true;
        Some(Self {
            blocks: blocks
                .into_iter()
                .map(|block| serde_json::from_value(block.clone()).map_err(|_| block))
                .collect(),
            structured,
            is_error,
        })
    }

    /// Returns an error if the server reports a failure, so that the model can correct its call. An error is text
    /// only. `shorten` gets the whole text for the model.
    pub(super) fn into_output(self, shorten: impl FnOnce(String) -> String) -> Result<ToolOutput, ToolError> {
        let is_error = self.is_error;
        let (text, content) = read(&self);
        let text = shorten(text);
        if is_error {
            return Err(ToolError::Failed(text));
        }
        Ok(ToolOutput { text, content, ..ToolOutput::default() })
    }
}

/// Returns the text for the model, and the content for the client.
fn read(result: &ToolAnswer) -> (String, Vec<ToolContent>) {
    let is_error = result.is_error;
    let mut texts = Vec::new();
    // Shown last: an unknown block may be large, and the model gets the start and the end of a long text.
    let mut unknown = Vec::new();
    let mut content = Vec::new();
    let (mut text_budget, mut media_budget) = (content::TEXT, if is_error { 0 } else { MAX_MEDIA });
    let mut omitted = 0;
    for block in &result.blocks {
        let (text, block) = match block {
            Ok(block) => one(block, is_error, &mut media_budget),
            Err(block) => {
                let json = block.to_string();
                let about = unknown_block(block, json.len());
                unknown.push(json);
                shown_too(about)
            }
        };
        texts.push(text);
        match block {
            // Text beyond content::TEXT is only for the model: the client cannot read a longer line.
            ToolContent::Text(text) if text_budget > BLOCK => {
                let fitting = content::clip(&text, text_budget - BLOCK);
                text_budget = text_budget.saturating_sub(content::encoded_len(&fitting) + BLOCK);
                content.push(ToolContent::Text(fitting.into_owned()));
            }
            ToolContent::Text(_) => omitted += 1,
            block => content.push(block),
        }
    }
    if omitted > 0 {
        content.push(ToolContent::Text(format!("[{omitted} more texts of this result are not shown]")));
    }
    if texts.iter().all(String::is_empty)
        && let Some(structured) = result.structured.as_ref().filter(|value| !value.is_null())
    {
        let text = serde_json::to_string_pretty(structured).unwrap_or_else(|_| structured.to_string());
        content.push(ToolContent::middle(&text));
        texts = vec![text];
    }
    let is_empty = texts.iter().all(String::is_empty);
    texts.extend(unknown);
    let text = if is_empty { "(The tool returned nothing.)".to_owned() } else { texts.join("\n") };
    (text, content)
}

fn unknown_block(block: &Value, len: usize) -> String {
    let kind = visible(block["type"].as_str().unwrap_or("none"));
    let kind = shorten(&kind, 40);
    format!("[content of the unknown type {kind:?}: {len} bytes of JSON, at the end of this result]")
}

fn one(block: &ContentBlock, is_error: bool, media_budget: &mut usize) -> (String, ToolContent) {
    match block {
        ContentBlock::Text(text) => (text.text.clone(), ToolContent::middle(&text.text)),
        ContentBlock::Image(image) => {
            let about = format!("image, {}, {} bytes", image.mime_type, decoded_len(&image.data));
            if is_error {
                return omitted(&about, "not passed on, because the call failed");
            }
            match medium(block, &image.data, media_budget) {
                Some(shown) => (format!("[{about}, attached if you accept images]"), shown),
                None => omitted(&about, "too large, so neither you nor the user can see it"),
            }
        }
        ContentBlock::Audio(audio) => {
            let about = format!("audio, {}, {} bytes", audio.mime_type, decoded_len(&audio.data));
            if is_error {
                return omitted(&about, "not passed on, because the call failed");
            }
            match medium(block, &audio.data, media_budget) {
                Some(shown) => (format!("[{about}, audible to the user only]"), shown),
                None => omitted(&about, "too large to play"),
            }
        }
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                let text = format!("[{uri}]\n{text}");
                let content = ToolContent::middle(&text);
                (text, content)
            }
            ResourceContents::BlobResourceContents { uri, blob, mime_type, .. } => {
                let mime_type = mime_type.as_deref().unwrap_or("of unknown type");
                shown_too(format!("[{uri}: {} bytes, {mime_type}, binary]", decoded_len(blob)))
            }
            _ => unknown(),
        },
        ContentBlock::ResourceLink(link) => {
            let about = link.description.as_deref().map(|about| format!(": {about}")).unwrap_or_default();
            shown_too(format!("[{} {}{about}]", link.name, link.uri))
        }
        _ => unknown(),
    }
}

fn decoded_len(base64: &str) -> usize {
    base64.trim_end_matches('=').len() * 3 / 4
}

fn unknown() -> (String, ToolContent) {
    shown_too("[The tool returned content of an unknown kind.]".to_owned())
}

fn omitted(about: &str, why: &str) -> (String, ToolContent) {
    shown_too(format!("[{about}, {why}]"))
}

/// A text that the client shows, too.
fn shown_too(text: String) -> (String, ToolContent) {
    let content = ToolContent::text(&text);
    (text, content)
}

/// Returns `None` if the block exceeds the budget.
fn medium(block: &ContentBlock, data: &str, media_budget: &mut usize) -> Option<ToolContent> {
    let remaining_budget = media_budget.checked_sub(data.len() + BLOCK)?;
    // MCP and ACP use the same content blocks.
    let content_block = serde_json::from_value(serde_json::to_value(block).ok()?).ok()?;
    *media_budget = remaining_budget;
    Some(ToolContent::Block(Box::new(content_block)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(text: &str) -> Value {
        json!({ "type": "text", "text": text })
    }

    fn result(content: &[Value], is_error: bool, structured: &Value) -> Result<ToolOutput, ToolError> {
        let result = json!({ "content": content, "isError": is_error, "structuredContent": structured });
        let result: CallToolResult = serde_json::from_value(result).unwrap();
        ToolAnswer::from(result).into_output(|text| text)
    }

    #[test]
    fn only_a_successful_result_claims_to_attach_an_image() {
        let image = json!({ "type": "image", "mimeType": "image/png", "data": "AAAA" });
        let output = result(std::slice::from_ref(&image), false, &Value::Null).unwrap();
        assert_eq!(output.text, "[image, image/png, 3 bytes, attached if you accept images]");
        assert!(matches!(output.content[..], [ToolContent::Block(_)]));
        let Err(ToolError::Failed(text)) = result(&[image], true, &Value::Null) else { panic!("no error") };
        assert_eq!(text, "[image, image/png, 3 bytes, not passed on, because the call failed]");
    }

    #[test]
    fn texts_that_do_not_fit_are_replaced_by_notes() {
        let shown = |texts: &[Value]| -> Vec<String> {
            let content = result(texts, false, &Value::Null).unwrap().content;
            let text = |content| match content {
                ToolContent::Text(text) => text,
                other => panic!("{other:?}"),
            };
            content.into_iter().map(text).collect()
        };
        let half = "x".repeat(12 * 1024);
        assert_eq!(shown(&[text(&half), text("second")]), [half.as_str(), "second"]);
        let cut = shown(&[text(&half), text(&half), text("third"), text("fourth")]);
        assert_eq!(cut[0], half);
        assert!(cut[1].ends_with(" more bytes are not shown]"), "{}", cut[1].len());
        assert_eq!(cut[2..], ["[2 more texts of this result are not shown]"]);
        let controls = shown(&vec![text(&"\u{1}".repeat(3000)); 9]);
        assert!(controls.iter().map(|text| json!(text).to_string().len()).sum::<usize>() < 25 * 1024);
    }

    #[test]
    fn structured_content_stands_in_for_empty_text() {
        let structured = json!({ "a": 1 });
        let cases = [
            ("", &structured, "{\n  \"a\": 1\n}"),
            ("x", &structured, "x"),
            ("", &Value::Null, "(The tool returned nothing.)"),
        ];
        for (given, structured, expected) in cases {
            assert_eq!(result(&[text(given)], false, structured).unwrap().text, expected);
        }
    }

    #[test]
    fn results_that_the_library_cannot_read_are_shown() {
        let check = |result: Value, expected: Result<&str, &str>| {
            let result = ToolAnswer::from_value(result).unwrap().into_output(|text| text);
            let text = match &result {
                Ok(output) => Ok(output.text.as_str()),
                Err(ToolError::Failed(text)) => Err(text.as_str()),
                Err(other) => panic!("{other}"),
            };
            assert_eq!(text, expected);
        };
        let video = json!({ "type": "video", "data": "AAAA" });
        let note = "[content of the unknown type \"video\": 30 bytes of JSON, at the end of this result]";
        let json = r#"{"type":"video","data":"AAAA"}"#;
        check(json!({ "content": [video, text("a")] }), Ok(&format!("{note}\na\n{json}")));
        check(json!({ "content": [video], "isError": true }), Err(&format!("{note}\n{json}")));
        check(json!({ "content": "plain" }), Ok("plain"));
        check(json!({ "content": text("a") }), Ok("a"));
        check(json!({ "content": null, "structuredContent": 7 }), Ok("7"));
        let odd = r#"{"type":"text","text":7}"#;
        let note = "[content of the unknown type \"text\": 24 bytes of JSON, at the end of this result]";
        check(json!({ "content": [{ "type": "text", "text": 7 }] }), Ok(&format!("{note}\n{odd}")));
        assert!(ToolAnswer::from_value(json!({ "tools": [] })).is_none());
    }
}
