//! Rows that the store writes: plain data, converted to SQL in `insert`.

use std::path::PathBuf;
use std::sync::Arc;

use super::sessions::StoredGrant;
use crate::acp::{SessionId, SessionModeId, ToolCallId};
use crate::budget::Spent;
use crate::chain::Link;
use crate::event::SessionEvent;
use crate::mode::ModeText;
use crate::signing::SignedHead;
use crate::span_record::SpanRecord;
use crate::workspace::{Changes, Intent};

/// A row. `at` is in milliseconds since 1970, `turn` is 0 before the first turn, and `link` is the chain
/// entry for the same fact.
#[derive(Debug, Clone)]
pub enum Row {
    Session {
        id: SessionId,
        cwd: PathBuf,
        directories: Vec<PathBuf>,
        parent: Option<SessionId>,
        agent: String,
        mode: SessionModeId,
        at: i64,
    },
    Folders {
        session: SessionId,
        cwd: PathBuf,
        directories: Vec<PathBuf>,
        /// True if remembered allow answers are for other folders and must be deleted.
        is_elsewhere: bool,
    },
    Agent {
        session: SessionId,
        agent: String,
    },
    ExternalAgent {
        session: SessionId,
        external_session: Option<String>,
        /// The external agent's mode before the sandbox required its read-only mode.
        external_mode: Option<String>,
    },
    Chosen {
        session: SessionId,
        model: String,
        effort: &'static str,
    },
    /// Deletes allow answers for commands in an earlier version's format.
    OutdatedGrants {
        session: SessionId,
    },
    Grant {
        session: SessionId,
        turn: u64,
        grant: StoredGrant,
        link: Link,
        at: i64,
    },
    /// Deletes answers about a server's claims, because the claims changed.
    ClaimsChanged {
        session: SessionId,
        /// Prefix of the server's tool names.
        server: String,
    },
    Link {
        session: SessionId,
        link: Link,
    },
    SignedHead {
        session: SessionId,
        head: SignedHead,
    },
    Changes {
        session: SessionId,
        turn: u64,
        changes: Changes,
    },
    Intent {
        session: SessionId,
        turn: u64,
        intent: Box<Intent>,
    },
    /// Releases a session, so that other processes may open it. No row for it follows.
    Release {
        session: SessionId,
    },
    Text {
        hash: String,
        text: String,
    },
    SystemPrompt {
        session: SessionId,
        text: Arc<str>,
    },
    Event {
        session: SessionId,
        seq: u64,
        turn: u64,
        event: SessionEvent,
        at: i64,
    },
    ModeChange(Box<ModeChange>),
    Denial(DenialRow),
    /// Adds to the amounts of a session and of a local day. `day` is in ISO 8601.
    Spent {
        session: SessionId,
        day: String,
        spent: Spent,
    },
    /// Work that waits for export.
    Span {
        session: SessionId,
        record: Box<SpanRecord>,
    },
    /// Entries of the audit log after this number are exported.
    Exported {
        session: SessionId,
        number: u64,
    },
}

/// Maximum bytes of a small row's text.
const SMALL: usize = 16 * 1024;

impl Row {
    /// True if the row is known to have little text.
    pub(super) fn is_small(&self) -> bool {
        match self {
            Self::Event { event, .. } => match event {
                SessionEvent::AgentText { text, shown, .. } => {
                    text.len() + shown.as_ref().map_or(0, String::len) <= SMALL
                }
                SessionEvent::AgentThought { text, .. } | SessionEvent::Notice { text, .. } => {
                    text.len() <= SMALL
                }
                SessionEvent::ToolCallStarted { .. }
                | SessionEvent::Title { .. }
                | SessionEvent::ModeChange { .. }
                | SessionEvent::ModelChange { .. }
                | SessionEvent::AgentChange { .. }
                | SessionEvent::Usage(_)
                | SessionEvent::Stop { .. } => true,
                _ => false,
            },
            Self::Session { directories, .. } => directories.len() <= 16,
            Self::ModeChange(change) => {
                change.text.text.len() + change.why.analysis.as_ref().map_or(0, String::len) <= SMALL
            }
            Self::Link { link, .. } => link.body.len() <= SMALL,
            Self::SignedHead { .. } | Self::Agent { .. } | Self::Chosen { .. } | Self::Spent { .. } => true,
            _ => false,
        }
    }
}

/// A denied call, without its arguments, because they may contain secrets.
#[derive(Debug, Clone)]
pub struct DenialRow {
    pub session: SessionId,
    pub turn: u64,
    pub call: ToolCallId,
    pub tool: String,
    pub mode: SessionModeId,
    pub rule: String,
    pub link: Link,
    pub at: i64,
}

#[derive(Debug, Clone)]
pub struct ModeChange {
    pub session: SessionId,
    pub turn: u64,
    pub from: Option<SessionModeId>,
    pub to: SessionModeId,
    pub why: ChangeReason,
    pub text: Arc<ModeText>,
    pub link: Link,
    pub at: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeReason {
    pub source: ModeSource,
    pub analysis: Option<String>,
    pub call: Option<ToolCallId>,
    pub plan: Option<String>,
    /// True for a change without the user's consent: tighter modes that could not be recorded stay in force.
    pub keeps_unrecorded: bool,
}

impl From<ModeSource> for ChangeReason {
    fn from(source: ModeSource) -> Self {
        Self { source, analysis: None, call: None, plan: None, keeps_unrecorded: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeSource {
    Start,
    SetMode,
    ConfigOption,
    Command,
    SwitchTool,
    InBand,
    /// The stored mode of a loaded session was no mode id: null, an alias, or no longer in any file.
    Load,
    Fork,
    CommandLine,
}

impl ModeSource {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::SetMode => "set_mode",
            Self::ConfigOption => "config_option",
            Self::Command => "command",
            Self::SwitchTool => "switch_mode",
            Self::InBand => "in_band",
            Self::Load => "load",
            Self::Fork => "fork",
            Self::CommandLine => "command_line",
        }
    }

    pub(super) fn actor(self) -> &'static str {
        match self {
            Self::SetMode | Self::ConfigOption | Self::Command | Self::CommandLine => "user",
            Self::SwitchTool | Self::InBand => "agent",
            Self::Start | Self::Load | Self::Fork => "system",
        }
    }
}
