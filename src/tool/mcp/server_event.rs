//! Reports of a server to its session.

use super::question::ServerQuestion;
use crate::permission::Effect;

#[derive(Debug)]
pub enum ServerEvent {
    /// Name for models, old effect and new effect of each tool.
    Changed(Vec<(String, Effect, Effect)>),
    /// A server newly claims that a tool reads. Contains the server's part of tool names.
    ClaimsMore(String),
    Note(String),
    Elicitation(ServerQuestion),
    /// The user has finished at the address of a question.
    ElicitationCompleted {
        /// The server's part of tool names.
        part: String,
        id: String,
    },
    Over {
        server: String,
        why: String,
    },
}
