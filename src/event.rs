//! Events of a session, in order. Plain data: the ACP encoder, the model's history and the store only read
//! them, so another protocol version needs only another encoder.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::acp::{
    ContentBlock, ImageContent, MessageId, PlanEntry, SessionModeId, SessionUpdate, StopReason, ToolCallId,
    ToolCallStatus, ToolKind,
};
use crate::conversation::content::{Location, ToolContent};
use crate::model::{Effort, ModelId, ProviderState, Usage};

#[derive(Debug, Clone, PartialEq)]
pub enum SessionEvent {
    UserMessage {
        message_id: MessageId,
        /// Content for the model, without a slash command. Empty if only Modegate handles the prompt.
        content: Vec<ContentBlock>,
        typed: Option<Vec<ContentBlock>>,
        /// Chosen by the client, so that it can repeat a prompt that is inserted once.
        key: Option<String>,
    },
    /// A piece of the model's answer. Pieces with the same id form one message.
    AgentText {
        message_id: MessageId,
        text: String,
        /// Text for the client, if it differs: mode switches are left out.
        shown: Option<String>,
    },
    AgentThought {
        message_id: MessageId,
        text: String,
    },
    ProviderState {
        state: ProviderState,
    },
    /// A message from Modegate to the user. The model never sees it.
    Notice {
        message_id: MessageId,
        kind: NoticeKind,
        text: String,
    },
    /// A fact for the model that stays in its history, such as an undo. The client does not see it.
    SystemNote {
        text: String,
        quotes: Option<InstructionSource>,
    },
    /// The reply broke off. Its text so far stays in the history, marked by the note.
    ReplyInterrupted {
        note: String,
    },
    /// The newest prompt did not fit in the model's context. The note takes its place in the history.
    PromptDropped {
        note: String,
    },
    ToolCallStarted {
        id: ToolCallId,
        name: String,
        kind: ToolKind,
    },
    /// Boxed, so that the events of streamed text stay small.
    ToolCall(Box<ToolCallEvent>),
    ToolCallUpdate(Box<ToolCallUpdateEvent>),
    Plan {
        entries: Vec<PlanEntry>,
    },
    Title {
        title: String,
    },
    ModeChange {
        from: SessionModeId,
        to: SessionModeId,
        /// Calls that were not confirmed to have ended.
        unconfirmed: Vec<ToolCallId>,
    },
    /// Outcome of a mode switch in the model's text, or of the exit tool's question.
    Switch {
        switch: SwitchOutcome,
    },
    ModelChange {
        model: ModelId,
        effort: Effort,
    },
    AgentChange {
        agent: String,
    },
    /// Of a sub-agent or an external agent, for the client only.
    ForwardedUpdate {
        update: Box<SessionUpdate>,
    },
    Compaction {
        id: String,
        stage: Compaction,
    },
    Usage(Usage),
    Undone {
        turn: u64,
        files: Vec<String>,
    },
    Stop {
        reason: StopReason,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstructionSource {
    /// Path of an instruction file. Text, because a path need not be Unicode.
    File(String),
    /// Name of an MCP server.
    Server(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchOutcome {
    pub from: SessionModeId,
    /// The requested mode, or the model's text if there is no such mode. Equal to `from` if the model stays.
    pub to: String,
    pub analysis: String,
    /// `switched`, `stayed`, `rejected`, `unknown_mode`, `malformed` or `several`.
    pub outcome: Cow<'static, str>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Compaction {
    Started,
    Done {
        summary: String,
        /// New start of the conversation: the summary, the user's last request and the plan.
        preamble: String,
        /// Number of last messages kept after the preamble.
        retained: usize,
    },
    Failed {
        reason: String,
    },
    Cancelled,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ToolCallEvent {
    pub id: ToolCallId,
    /// The model's own id, which its history must keep.
    pub model_id: String,
    pub name: String,
    pub title: String,
    pub kind: ToolKind,
    pub arguments: Value,
    pub locations: Vec<Location>,
    /// The client already knows the call by its name.
    pub is_announced: bool,
    /// For the model, after the result: how the call differs from its own.
    pub note: Option<String>,
    /// The check that the call runs. `None` for a call of the model, which never sees the others.
    pub check: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ToolCallUpdateEvent {
    pub id: ToolCallId,
    pub status: ToolCallStatus,
    /// A new title, for the client.
    pub title: Option<CallTitle>,
    /// For the client; `None` for no change.
    pub content: Option<Vec<ToolContent>>,
    /// For the model, once the call is over.
    pub result: Option<String>,
    pub denied: Option<Cow<'static, str>>,
    /// Of a command that ran to its end: its exit status, or 128 and its signal, as in shells.
    pub exit_code: Option<i32>,
    /// Cancelled before its end: by the user, or by a mode that denies it.
    pub was_cancelled: bool,
}

/// `_meta` of the call that stands for a program of `modegate run`, when it starts: true.
pub const PROGRAM_META: &str = "modegate/program";

/// Start of the prompt that stands for such a program, and so of the session's title.
pub const PROGRAM_PROMPT: &str = "Run: ";

/// A title that replaces that of the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTitle {
    pub text: String,
    /// Parts of the text are marked as code.
    pub has_code_spans: bool,
}

impl ToolCallUpdateEvent {
    /// True if the call ran to its end, whatever its command reported.
    pub fn has_run(&self) -> bool {
        self.status == ToolCallStatus::Completed || self.exit_code.is_some()
    }

    #[must_use]
    pub fn titled(self, title: Option<CallTitle>) -> Self {
        Self { title, ..self }
    }

    pub fn pictures(&self) -> impl Iterator<Item = &ImageContent> {
        self.content.iter().flatten().filter_map(|content| match content {
            ToolContent::Block(block) => match &**block {
                ContentBlock::Image(image) => Some(image),
                _ => None,
            },
            _ => None,
        })
    }

    pub fn in_progress(id: ToolCallId) -> Self {
        let status = ToolCallStatus::InProgress;
        Self {
            id,
            status,
            title: None,
            content: None,
            result: None,
            denied: None,
            exit_code: None,
            was_cancelled: false,
        }
    }

    pub fn failed(id: ToolCallId, text: impl Into<String>) -> Self {
        let text = text.into();
        let content = Some(vec![ToolContent::middle(&text)]);
        let status = ToolCallStatus::Failed;
        Self { status, content, result: Some(text), ..Self::in_progress(id) }
    }

    #[must_use]
    pub fn cancelled(self, was_cancelled: bool) -> Self {
        Self { was_cancelled, ..self }
    }
}

impl CallTitle {
    #[must_use]
    pub fn marked(self, mark: &str) -> Self {
        Self { text: self.text + mark, ..self }
    }

    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), has_code_spans: false }
    }
}

/// Clients that show notices get all kinds but [`Self::Message`] as passing notices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// Part of the conversation: answers to commands, questions, reasons for the end of a turn, and facts about the
    /// mode that the user must not miss.
    #[default]
    Message,
    Info,
    Warning,
    Error,
}

impl From<ToolCallUpdateEvent> for SessionEvent {
    fn from(update: ToolCallUpdateEvent) -> Self {
        Self::ToolCallUpdate(Box::new(update))
    }
}

impl SessionEvent {
    /// True if the client must get the session's config options with the event.
    pub fn changes_options(&self) -> bool {
        matches!(self, Self::ModeChange { .. } | Self::ModelChange { .. } | Self::AgentChange { .. })
    }

    fn piece_of(&self) -> Option<&MessageId> {
        match self {
            Self::AgentText { message_id, .. } | Self::AgentThought { message_id, .. } => Some(message_id),
            _ => None,
        }
    }

    pub fn can_merge(&self, next: &Self) -> bool {
        self.piece_of().is_some() && self.piece_of() == next.piece_of()
    }

    pub fn append(&mut self, next: Self) {
        match (self, next) {
            (Self::AgentText { text, shown, .. }, Self::AgentText { text: more, shown: more_shown, .. }) => {
                if shown.is_some() || more_shown.is_some() {
                    let so_far = shown.get_or_insert_with(|| text.clone());
                    so_far.push_str(more_shown.as_ref().unwrap_or(&more));
                }
                text.push_str(&more);
            }
            (Self::AgentThought { text, .. }, Self::AgentThought { text: more, .. }) => text.push_str(&more),
            _ => {}
        }
    }
}
