//! Session state, and the context that the sessions of a process share.
//!
//! The actor owns [`Session`] without a lock; all other code uses a [`SessionHandle`].

use std::sync::Arc;
use std::time::Duration;

use crate::acp::{McpServer, SessionId, SessionModeId};
use crate::agents::{AgentRegistry, AgentSpec};
use crate::budget::Budgets;
use crate::checks::Check;
use crate::client::ClientCapabilities;
pub use crate::conversation::acp_updates::OptionalUpdates;
pub use crate::conversation::system_prompt::ClientPrompt;
use crate::conversation::system_prompt::Sources;
use crate::file_lock::FileLocks;
pub use crate::gate::RuleReport;
use crate::hooks::runner::Hooks;
use crate::ids::{Day, Source};
use crate::mode::{Mode, Modes};
pub use crate::model::TraceContext;
use crate::model::catalog::ModelCatalog;
use crate::model::{Model, ModelId};
use crate::own_files::OwnFiles;
use crate::permission::rules::Rules;
use crate::signing::SigningKey;
use crate::skill::Skills;
use crate::store::Store;
use crate::store::sessions::StoredSession;
use crate::tool::{DiskTexts, Toolset};
use crate::workspace::Workspace;
pub use actor::start;
pub use command::parse::{Misspelt, is_reserved_name};
pub use command::user_command::UserCommand;
pub use handle::{ChangeSoFar, Closed, DiffKind, PromptOptions, SessionHandle, Undone};
pub use mode::ancestry::Ancestry;
pub use mode::effect::{HEAD_META, ModeEffect, head_meta, valid_modes};
pub use prompt_end::{CommandEnd, EndReason, LastTurn, PromptEnd};
pub use session_snapshot::{ModePermits, SessionOffer, SessionSnapshot};
pub use spending::TurnSpent;
pub use subagent::subagents::IDLE_TIMEOUT;
pub use trace::{Traced, TracedParts};

use options::ModelSelection;

mod actor;
mod command;
mod due_checks;
mod event_log;
mod handle;
mod history;
mod insertion;
mod mode;
mod notes;
pub mod options;
mod prompt_end;
mod servers;
mod session_snapshot;
mod spending;
mod subagent;
mod tally;
mod trace;
mod turn;

/// Maximum wait for ended calls. The answer lists calls that take longer.
const DEADLINE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, Default)]
pub struct ExitSettings {
    /// Set by `--no-exit`: the model cannot propose a mode that allows more.
    pub is_off: bool,
    /// A faster acceptance of a switch does not count, because no person can read the question in that time.
    pub reading_time: Duration,
    /// Set by `--accept-all`: an acceptance by the client alone counts.
    pub accepts_all: bool,
}

/// Settings of a session, the same from its start to its end. What changes meanwhile belongs to a component of the
/// actor.
#[allow(clippy::struct_excessive_bools, reason = "independent settings of the run")]
#[derive(Clone)]
pub struct SessionContext {
    pub modes: Arc<Modes>,
    pub unsupported_modes: Arc<[String]>,
    pub rules: Arc<Rules>,
    pub agents: Arc<AgentRegistry>,
    /// Maximum time without activity of a sub-agent.
    pub idle_timeout: Duration,
    pub commands: Arc<[UserCommand]>,
    pub skills: Arc<Skills>,
    pub checks: Arc<[Check]>,
    pub max_modes: Vec<Arc<Mode>>,
    /// Highest modes of the organisation's policy.
    pub managed_modes: Vec<Arc<Mode>>,
    /// True if the process ends with the turn, so that the turn waits for its background agents.
    pub ends_with_turn: bool,
    /// True if a turn succeeds only with its checks.
    pub requires_checks: bool,
    /// Limits each turn further than its mode does.
    pub max_steps: Option<u32>,
    pub budgets: Arc<Budgets>,
    /// In the session's folder.
    pub hooks: Hooks,
    /// Ceiling that applies because a policy file cannot be used.
    pub fallback_ceiling: Option<Arc<Mode>>,
    pub tools: Toolset,
    pub model: Arc<dyn Model>,
    pub models: Arc<ModelCatalog>,
    pub updates: OptionalUpdates,
    pub capabilities: ClientCapabilities,
    pub sources: Arc<Sources>,
    /// `None` if the client sent none when it opened the session.
    pub client_prompt: Option<Arc<ClientPrompt>>,
    pub store: Store,
    /// Signs the heads of the sessions' chains. `None` without a key.
    pub signer: Option<Arc<SigningKey>>,
    /// `None` while telemetry is off.
    pub traced: Option<Traced>,
    /// Shared with all other sessions of this user.
    pub file_locks: FileLocks,
    /// Files that no tool changes.
    pub own_files: OwnFiles,
    /// Shared by the sessions of the client.
    pub disk_texts: DiskTexts,
    pub source: Source,
    pub parallel: usize,
    /// False in deterministic runs, where running calls do not stream their output.
    pub live: bool,
    pub exits: ExitSettings,
    /// True if calls that may change something are refused while the store cannot be written.
    pub refuses_unrecorded: bool,
    /// True if prompts join a running turn, unless they say otherwise.
    pub steering: bool,
    /// Maximum wait of the first request for starting servers. `None` in deterministic runs, which start
    /// none.
    pub server_timeout: Option<Duration>,
    /// Sentences about MCP servers of the user or the client that the session lacks, and settings without effect.
    pub server_notices: Arc<[String]>,
}

impl SessionContext {
    /// The day that budgets count.
    fn today(&self) -> Day {
        self.source.today(self.budgets.day_zone)
    }

    /// Limits of the session beside its own mode.
    fn further_limits(&self) -> impl Iterator<Item = &Arc<Mode>> {
        self.max_modes.iter().chain(&self.managed_modes).chain(&self.fallback_ceiling)
    }

    /// Size of the model's context in tokens: as its server reports it, or else as the catalog has it.
    fn context_tokens(&self, model: &ModelId) -> u64 {
        self.model.reported_context(model).unwrap_or_else(|| self.models.facts(model).context)
    }
}

pub struct SessionInit {
    pub id: SessionId,
    pub workspace: Workspace,
    pub mode: SessionModeId,
    pub pending_user_notices: Vec<String>,
    pub unrecorded_modes: Vec<SessionModeId>,
    pub origin: Origin,
    pub agent: Arc<AgentSpec>,
    pub ancestry: Ancestry,
    pub servers: Vec<McpServer>,
    pub chosen: Option<ModelSelection>,
}

pub enum Origin {
    New,
    Stored(Box<StoredSession>),
    Copy(Box<StoredSession>),
}
