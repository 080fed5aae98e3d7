//! What a server wants the model to answer, and the answer, in MCP's words and in ours. Pure.
#![allow(deprecated, reason = "the servers of today ask for it, whatever a later version says")]

use std::fmt;

use rmcp::model::{
    CreateMessageRequestParams, CreateMessageResult, Role as McpRole, SamplingMessage,
    SamplingMessageContentBlock,
};
use tokio::sync::oneshot;

use crate::model::Role;

/// Bytes of a question, with all that goes before it.
const MAX_QUESTION: usize = 256 * 1024;

/// A server wants the model to answer.
pub struct Sampling {
    /// The server's part of its tools' names.
    pub part: String,
    /// The server's name.
    pub server: String,
    /// The system prompt that it wants.
    pub system: String,
    /// What was said, the question last.
    pub messages: Vec<(Role, String)>,
    /// Where the answer goes; an error is a sentence.
    pub reply: oneshot::Sender<Result<Sampled, String>>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampled {
    /// Who answered.
    pub model: String,
    /// What.
    pub text: String,
    /// It came to its end.
    pub is_whole: bool,
}

impl fmt::Debug for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampling").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Sampling {
    /// Reads what a server wants.
    ///
    /// # Errors
    /// It is not text, or too much, or wants tools; one sentence.
    pub fn read(
        server: &str,
        part: &str,
        wanted: CreateMessageRequestParams,
        reply: oneshot::Sender<Result<Sampled, String>>,
    ) -> Result<Self, String> {
        if wanted.tools.is_some_and(|tools| !tools.is_empty()) {
            return Err("the model is asked without tools".into());
        }
        let mut messages = Vec::new();
        for message in wanted.messages {
            let role = if message.role == McpRole::User { Role::User } else { Role::Assistant };
            let mut text = String::new();
            for block in message.content.into_vec() {
                let SamplingMessageContentBlock::Text(block) = block else {
                    return Err("the model is asked in text only".into());
                };
                text.push_str(&block.text);
            }
            messages.push((role, text));
        }
        let system = wanted.system_prompt.unwrap_or_default();
        let size = system.len() + messages.iter().map(|(_, text)| text.len()).sum::<usize>();
        if size > MAX_QUESTION {
            return Err("that is more than 256 KiB".into());
        }
        if !matches!(messages.last(), Some((Role::User, text)) if !text.trim().is_empty()) {
            return Err("the last message is the user's, with a text".into());
        }
        Ok(Self { part: part.to_owned(), server: server.to_owned(), system, messages, reply })
    }
}

impl Sampled {
    /// As MCP has it.
    pub fn into_result(self) -> CreateMessageResult {
        let reason = if self.is_whole { "endTurn" } else { "maxTokens" };
        CreateMessageResult::new(SamplingMessage::assistant_text(self.text), self.model)
            .with_stop_reason(reason)
    }
}
