//! What is recorded. Plain data.

use std::path::PathBuf;
use std::sync::Arc;

use super::sessions::StoredGrant;
use crate::acp::{SessionId, SessionModeId, ToolCallId};
use crate::chain::Link;
use crate::event::SessionEvent;
use crate::workspace::{Changes, Intent};

/// One row to be written.
#[derive(Debug, Clone)]
pub enum Row {
    /// A session began.
    Session {
        /// Its id.
        id: SessionId,
        /// Its working directory.
        cwd: PathBuf,
        /// Its other folders.
        directories: Vec<PathBuf>,
        /// The session that it works for; none: a client began it.
        parent: Option<SessionId>,
        /// Which agent it is.
        agent: String,
        /// The mode it began in.
        mode: SessionModeId,
        /// Milliseconds since 1970.
        at: i64,
    },
    /// A session goes on in these folders.
    Folders {
        /// Its id.
        session: SessionId,
        /// Its working directory.
        cwd: PathBuf,
        /// Its other folders.
        directories: Vec<PathBuf>,
        /// What was allowed once and for all was allowed elsewhere.
        is_elsewhere: bool,
    },
    /// Another agent goes on.
    Agent {
        /// The session.
        session: SessionId,
        /// The agent.
        agent: String,
    },
    /// Somebody else's agent has begun a session of its own for this one.
    ExternalAgent {
        /// The session.
        session: SessionId,
        /// Its own session, if it says that it can take it up again.
        external_session: Option<String>,
        /// The mode of its own that it left for the hold.
        external_mode: Option<String>,
    },
    /// The user chose who answers.
    Chosen {
        /// The session.
        session: SessionId,
        /// Who.
        model: String,
        /// How long it is to think.
        effort: &'static str,
    },
    /// Answers of an earlier version that allowed commands are dropped.
    OutdatedGrants {
        /// The session.
        session: SessionId,
    },
    /// The user answered a question once and for all.
    Grant {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: u64,
        /// What is remembered.
        grant: StoredGrant,
        /// The same in the session's chain.
        link: Link,
        /// Milliseconds since 1970.
        at: i64,
    },
    /// What the user answered of a server's claims holds no more: it claims something else.
    ClaimsChanged {
        /// The session.
        session: SessionId,
        /// The server, by its part of its tools' names.
        server: String,
    },
    /// An entry of a session's chain.
    Link {
        /// The session.
        session: SessionId,
        /// The entry.
        link: Link,
    },
    /// What a turn changed in the session's folders.
    Changes {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: u64,
        /// What, and what was there before.
        changes: Changes,
    },
    /// A turn is about to change files.
    Intent {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: u64,
        /// What it is about to do.
        intent: Box<Intent>,
    },
    /// Others may open a session: nothing more of it comes from here.
    Release {
        /// The session.
        session: SessionId,
    },
    /// A text that the record names by its hash.
    Text {
        /// The hash.
        hash: String,
        /// The text.
        text: String,
    },
    /// What every request of a session begins with.
    SystemPrompt {
        /// The session.
        session: SessionId,
        /// The whole of it.
        text: Arc<str>,
    },
    /// An event of a session.
    Event {
        /// The session.
        session: SessionId,
        /// Its place in the session, from 0.
        seq: u64,
        /// The turn it belongs to; 0 before the first.
        turn: u64,
        /// What happened.
        event: SessionEvent,
        /// Milliseconds since 1970.
        at: i64,
    },
    /// A mode change that nobody waits for: the first mode of a session.
    ModeChange(Box<ModeChange>),
    /// A call was denied.
    Denial(Denial),
}

/// A denied call, for the record. Arguments are left out: they may hold secrets.
#[derive(Debug, Clone)]
pub struct Denial {
    /// The session.
    pub session: SessionId,
    /// The turn.
    pub turn: u64,
    /// The call.
    pub call: ToolCallId,
    /// The tool's name, as the model wrote it.
    pub tool: String,
    /// The mode that was on.
    pub mode: SessionModeId,
    /// The rule that decided.
    pub rule: String,
    /// The same in the session's chain.
    pub link: Link,
    /// Milliseconds since 1970.
    pub at: i64,
}

/// A mode change, for the record (G41, G42).
#[derive(Debug, Clone)]
pub struct ModeChange {
    /// The session.
    pub session: SessionId,
    /// The turn; 0 before the first.
    pub turn: u64,
    /// The mode before; `None` for the first mode of a session.
    pub from: Option<SessionModeId>,
    /// The mode after.
    pub to: SessionModeId,
    /// Who asked, by which way, and for what reason.
    pub why: Why,
    /// What the mode came to when it was set: its hash and its text.
    pub text: (String, String),
    /// The same in the session's chain.
    pub link: Link,
    /// Milliseconds since 1970.
    pub at: i64,
}

/// Why a mode changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// Who asked, by which way.
    pub source: ModeSource,
    /// The model's reason, as it gave it.
    pub analysis: Option<String>,
    /// The model's call, if it was one.
    pub call: Option<ToolCallId>,
    /// The hash of the plan that was accepted with it.
    pub plan: Option<String>,
    /// Nobody was asked: a tighter mode that could not be recorded goes on to hold.
    pub keeps_unrecorded: bool,
}

impl From<ModeSource> for Why {
    fn from(source: ModeSource) -> Self {
        Self { source, analysis: None, call: None, plan: None, keeps_unrecorded: false }
    }
}

/// Who asked for a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeSource {
    /// The configuration or the command line, when the session began.
    Start,
    /// The client, by `session/set_mode`.
    SetMode,
    /// The client, by `session/set_config_option`.
    ConfigOption,
    /// The user, by a slash command.
    Command,
    /// The model, by the exit tool, with the user's consent.
    SwitchTool,
    /// The model, in its own text; a looser mode with the user's consent.
    InBand,
    /// The session was loaded, and the stored mode was not the id of a mode: null, an alias, or in no file any more.
    Load,
    /// The session was begun as the copy of another.
    Fork,
    /// The user, on the command line, while nobody had the session open.
    CommandLine,
}

impl ModeSource {
    /// As the record has it.
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

    /// Who wanted it.
    pub(super) fn actor(self) -> &'static str {
        match self {
            Self::SetMode | Self::ConfigOption | Self::Command | Self::CommandLine => "user",
            Self::SwitchTool | Self::InBand => "agent",
            Self::Start | Self::Load | Self::Fork => "system",
        }
    }
}
