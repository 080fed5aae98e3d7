//! Converts prompt content to the types that an external agent supports (P2). Pure.

use super::ExternalAgentError;
use crate::acp::{ContentBlock, EmbeddedResourceResource, PromptCapabilities, TextContent};

/// Embedded text files become text if necessary. Fails for unsupported images, audio and binary files.
pub(super) fn supported_content(
    content: Vec<ContentBlock>,
    takes: &PromptCapabilities,
) -> Result<Vec<ContentBlock>, ExternalAgentError> {
    let all: Result<_, _> = content.into_iter().map(|block| supported_block(block, takes)).collect();
    all.map_err(ExternalAgentError::UnsupportedContent)
}

fn supported_block(block: ContentBlock, takes: &PromptCapabilities) -> Result<ContentBlock, &'static str> {
    match block {
        ContentBlock::Image(_) if !takes.image => Err("pictures"),
        ContentBlock::Audio(_) if !takes.audio => Err("sound"),
        ContentBlock::Resource(file) if !takes.embedded_context => match file.resource {
            EmbeddedResourceResource::TextResourceContents(file) => {
                let text = format!("{}:\n```\n{}\n```\n", file.uri, file.text);
                Ok(ContentBlock::Text(TextContent::new(text)))
            }
            _ => Err("files in prompts"),
        },
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn prompt_content_follows_the_agents_capabilities() {
        let picture = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
        let sound = json!({ "type": "audio", "data": "aGk=", "mimeType": "audio/wav" });
        let file = json!({ "type": "resource", "resource": { "uri": "file:///a", "text": "b" } });
        let blob = json!({ "type": "resource", "resource": { "uri": "file:///a", "blob": "aGk=" } });
        let link = json!({ "type": "resource_link", "name": "a", "uri": "file:///a" });
        let as_text = json!({ "type": "text", "text": "file:///a:\n```\nb\n```\n" });
        let nothing = PromptCapabilities::new();
        let all = PromptCapabilities::new().image(true).audio(true).embedded_context(true);
        let check = |takes: &PromptCapabilities, block: &Value, expected: Result<&Value, &str>| {
            let block: ContentBlock = serde_json::from_value(block.clone()).unwrap();
            let found = supported_content(vec![block], takes);
            let found = found.map(|all| serde_json::to_value(&all[0]).unwrap()).map_err(|it| it.to_string());
            assert_eq!(found.as_ref().map_err(String::as_str), expected);
        };
        for (block, expected) in [
            (&picture, Err("it does not support pictures")),
            (&sound, Err("it does not support sound")),
            (&file, Ok(&as_text)),
            (&blob, Err("it does not support files in prompts")),
            (&link, Ok(&link)),
            (&as_text, Ok(&as_text)),
        ] {
            check(&nothing, block, expected);
            check(&all, block, Ok(block));
        }
    }
}
