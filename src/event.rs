//! What happens in a session, as an ordered list of events. Plain data.
//!
//! The list is the session: the ACP encoder ([`crate::session::encoder`]), the model's history ([`crate::session::history`]) and the store
//! are readers of it, and a later version of the protocol is one more encoder.

use std::borrow::Cow;

use serde_json::Value;

use crate::acp::{
    ContentBlock, ImageContent, MessageId, PlanEntry, SessionModeId, SessionUpdate, StopReason, ToolCallId,
    ToolCallStatus, ToolKind,
};
use crate::model::{Effort, ModelId, ProviderState, Usage};
use crate::tool::{Location, ToolContent};

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub enum SessionEvent {
    /// The user's prompt. The client has shown it already.
    UserMessage {
        /// Unique in the session.
        message_id: MessageId,
        /// What the model sees: as it came, without a slash command. Nothing, where it was for Modegate alone.
        content: Vec<ContentBlock>,
        /// What the user typed, where that differs.
        typed: Option<Vec<ContentBlock>>,
    },
    /// The model's answer, or a piece of it: pieces with one id are one message.
    AgentText {
        /// Unique in the session, one per message.
        message_id: MessageId,
        /// More text, as the model wrote it.
        text: String,
        /// What the client sees of it, where that differs: a switch of the mode is left out.
        shown: Option<String>,
    },
    /// The model's reasoning, or a piece of it.
    AgentThought {
        /// Unique in the session, one per message.
        message_id: MessageId,
        /// More text.
        text: String,
    },
    /// What the model's provider wants back with what was said before or is said next.
    ProviderState {
        /// It and its origin.
        state: ProviderState,
    },
    /// Modegate itself says something to the user. The model never sees it.
    Notice {
        /// Unique in the session.
        message_id: MessageId,
        /// What it says.
        text: String,
    },
    /// A fact that the model is told once and keeps: that files were put back, say. The client does not see it.
    SystemNote {
        /// What it says, without the tag.
        text: String,
    },
    /// The model has begun to ask for a tool; its arguments are on their way.
    ToolCallStarted {
        /// Unique in the session.
        id: ToolCallId,
        /// The tool's name.
        name: String,
        /// How clients show it.
        kind: ToolKind,
    },
    /// The model asked for a tool.
    ToolCall(ToolCallEvent),
    /// Something about a tool call changed.
    ToolCallUpdate(ToolCallUpdateEvent),
    /// The model's list of tasks, whole.
    Plan {
        /// The tasks in order.
        entries: Vec<PlanEntry>,
    },
    /// The session got its title.
    Title {
        /// One line.
        title: String,
    },
    /// The mode changed.
    ModeChange {
        /// The mode before.
        from: SessionModeId,
        /// The mode now.
        to: SessionModeId,
        /// Calls that could not be confirmed to have ended.
        unconfirmed: Vec<ToolCallId>,
    },
    /// The model wrote a switch of the mode into its text, or the exit tool's question was answered: what came of it.
    Switch {
        /// What came of it, and for which reason.
        switch: SwitchOutcome,
    },
    /// Another model answers from now on, or thinks longer or shorter.
    ModelChange {
        /// Who answers.
        model: ModelId,
        /// How long it is to think.
        effort: Effort,
    },
    /// Another agent goes on from now on.
    AgentChange {
        /// Its id.
        agent: String,
    },
    /// Another agent, which works for a call of this session, showed this. The model never sees it.
    Relayed {
        /// As the client sees it.
        update: Box<SessionUpdate>,
    },
    /// An older part of the conversation is being replaced by a summary, to make room.
    Compaction {
        /// Unique in the session.
        id: String,
        /// How far it is.
        stage: Compaction,
    },
    /// The model said how full its context is.
    Usage(Usage),
    /// The user had the files of a turn put back.
    Undone {
        /// The turn.
        turn: u64,
        /// The files that are as they were before it.
        files: Vec<String>,
    },
    /// The turn ended.
    Stop {
        /// Why.
        reason: StopReason,
    },
}

/// What came of a switch that the model wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchOutcome {
    /// The mode that was on.
    pub from: SessionModeId,
    /// The id of the mode that was wanted, or what was written if no mode has that id; the same as `from` where the model stays.
    pub to: String,
    /// Why, in the model's words.
    pub analysis: String,
    /// `switched`, `stayed`, `rejected`, `unknown_mode`, `malformed` or `several`.
    pub outcome: Cow<'static, str>,
}

/// How far a compaction is.
#[derive(Debug, Clone, PartialEq)]
pub enum Compaction {
    /// The model is asked.
    Started,
    /// The summary stands in the place of the older part.
    Done {
        /// What the model wrote.
        summary: String,
        /// What the model reads from now on: the summary, the user's last request and the plan.
        preamble: String,
        /// How many of the last messages stay behind it.
        retained: usize,
    },
    /// Nothing was replaced.
    Failed {
        /// One sentence.
        reason: String,
    },
    /// The turn was cancelled before it was done.
    Cancelled,
}

/// A tool call as it was announced.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCallEvent {
    /// Unique in the session.
    pub id: ToolCallId,
    /// The model's own id for it, which its history must keep.
    pub model_id: String,
    /// The tool's name, as the model wrote it.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// How clients show it.
    pub kind: ToolKind,
    /// As the model gave them.
    pub arguments: Value,
    /// What it is about.
    pub locations: Vec<Location>,
    /// The client knows of it already, by its name.
    pub is_announced: bool,
}

/// A change to a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCallUpdateEvent {
    /// Which call.
    pub id: ToolCallId,
    /// Where it stands now.
    pub status: ToolCallStatus,
    /// What the client shows from now on; `None` leaves it.
    pub content: Option<Vec<ToolContent>>,
    /// What the model reads, once the call is over.
    pub result: Option<String>,
    /// The rule that denied the call, if one did.
    pub denied: Option<Cow<'static, str>>,
}

impl ToolCallUpdateEvent {
    /// The pictures that the call came to.
    pub fn pictures(&self) -> impl Iterator<Item = &ImageContent> {
        self.content.iter().flatten().filter_map(|content| match content {
            ToolContent::Block(block) => match &**block {
                ContentBlock::Image(image) => Some(image),
                _ => None,
            },
            _ => None,
        })
    }

    /// A call that has begun.
    pub fn begun(id: ToolCallId) -> Self {
        Self { id, status: ToolCallStatus::InProgress, content: None, result: None, denied: None }
    }

    /// A call that is over without success; the text is for the model and the client.
    pub fn failed(id: ToolCallId, text: impl Into<String>) -> Self {
        let text = text.into();
        let content = Some(vec![ToolContent::middle(&text)]);
        Self { id, status: ToolCallStatus::Failed, content, result: Some(text), denied: None }
    }
}

impl SessionEvent {
    /// The message that the event is a piece of, if it may be one of several pieces.
    fn piece_of(&self) -> Option<&MessageId> {
        match self {
            Self::AgentText { message_id, .. } | Self::AgentThought { message_id, .. } => Some(message_id),
            Self::UserMessage { .. }
            | Self::ProviderState { .. }
            | Self::ModelChange { .. }
            | Self::Switch { .. }
            | Self::Notice { .. }
            | Self::SystemNote { .. }
            | Self::ToolCallStarted { .. }
            | Self::ToolCall(_)
            | Self::ToolCallUpdate(_)
            | Self::Plan { .. }
            | Self::Title { .. }
            | Self::ModeChange { .. }
            | Self::Usage(_)
            | Self::Compaction { .. }
            | Self::Undone { .. }
            | Self::AgentChange { .. }
            | Self::Relayed { .. }
            | Self::Stop { .. } => None,
        }
    }

    /// Whether `next` is a further piece of the same message.
    pub fn can_merge(&self, next: &Self) -> bool {
        self.piece_of().is_some() && self.piece_of() == next.piece_of()
    }

    /// Appends a further piece of the same message.
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
