//! Reads the client's system prompt for a session. Pure.

use std::sync::Arc;

use serde_json::json;

use crate::acp::{ContentBlock, SystemPrompt, SystemPromptMode};
use crate::agents::AgentSpec;
use crate::error::AgentError;
use crate::session::ClientPrompt;

pub(super) fn read(prompt: Option<&SystemPrompt>) -> Result<Option<Arc<ClientPrompt>>, AgentError> {
    let Some(SystemPrompt { mode, content, .. }) = prompt else { return Ok(None) };
    let overrides = match mode {
        SystemPromptMode::Append => false,
        SystemPromptMode::Override => true,
        _ => {
            let message = "the mode of a systemPrompt is append or override".to_owned();
            return Err(AgentError::invalid_params(message, json!({ "validModes": ["append", "override"] })));
        }
    };
    let texts: Option<Vec<&str>> = content
        .iter()
        .map(|block| match block {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    let text = texts.map(|texts| texts.join("\n\n")).filter(|text| !text.trim().is_empty());
    let text = text.ok_or_else(|| {
        let message = "the content of a systemPrompt is text, and not blank".to_owned();
        AgentError::invalid_params(message, json!({ "validTypes": ["text"] }))
    })?;
    Ok(Some(Arc::new(ClientPrompt { text, overrides })))
}

/// An external agent makes its own system prompt.
pub(super) fn check_agent(prompt: Option<&Arc<ClientPrompt>>, agent: &AgentSpec) -> Result<(), AgentError> {
    if prompt.is_none() || agent.external_agent.is_none() {
        return Ok(());
    }
    let message =
        format!("the external agent {} has its own system prompt; open it without systemPrompt", agent.id);
    Err(AgentError::invalid_params(message, json!({ "agent": agent.id })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::ImageContent;

    #[test]
    fn text_is_read_and_everything_else_is_rejected() {
        let text = |texts: &[&str]| SystemPrompt::new(texts.iter().map(|text| (*text).into()).collect());
        let prompt =
            |text: &str, overrides| Some(Arc::new(ClientPrompt { text: text.to_owned(), overrides }));
        assert_eq!(read(None).unwrap(), None);
        assert_eq!(read(Some(&text(&["a", "b"]))).unwrap(), prompt("a\n\nb", false));
        assert_eq!(read(Some(&text(&["a"]).mode(SystemPromptMode::Override))).unwrap(), prompt("a", true));
        let image = ContentBlock::Image(ImageContent::new("", "image/png"));
        for rejected in [
            text(&[]),
            text(&[" \n"]),
            SystemPrompt::new(vec!["a".into(), image]),
            serde_json::from_value(json!({ "mode": "prepend", "content": [] })).unwrap(),
        ] {
            assert!(matches!(read(Some(&rejected)), Err(AgentError::InvalidParams { .. })), "{rejected:?}");
        }
    }
}
