//! The agent: what it can do, and the sessions it holds. No turn logic.
//!
//! One agent serves one client. The registry is the only lock here, and what it guards is which sessions there are, never
//! what is in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;

use crate::acp::{SessionId, SessionModeId};
use crate::agents::AgentRegistry;
use crate::bounded_file;
use crate::client::Client;
use crate::error::AgentError;
use crate::mode::Modes;
use crate::mode::stored::Defaults;
use crate::model::catalog::ModelCatalog;
use crate::permission::rules::Rules;
use crate::server::ServerDefinition;
use crate::session::user_command::UserCommand;
use crate::session::{SessionContext, SessionHandle};
use crate::skill::Skills;
use crate::tool::AtWork;
use registry::{Registry, SharedRegistry};

mod initialize;
mod list;
mod open;
mod registry;
mod session_setup;

/// Whom one can choose now. What cannot be read is a sentence for the user.
pub type ModelCatalogLoader = Arc<dyn Fn() -> Result<Arc<ModelCatalog>, String> + Send + Sync>;

/// Which modes and rules hold for sessions in a folder now.
pub type PolicyOf = Arc<dyn Fn(&Path) -> Policy + Send + Sync>;

/// Modes, rules, commands and skills, as files say.
pub struct Policy {
    /// The modes.
    pub modes: Arc<Modes>,
    /// The rules.
    pub rules: Arc<Rules>,
    /// The agents.
    pub agents: Arc<AgentRegistry>,
    /// The servers that the user wrote, by name.
    pub servers: BTreeMap<String, ServerDefinition>,
    /// The commands that users wrote.
    pub commands: Arc<[UserCommand]>,
    /// The skills.
    pub skills: Arc<Skills>,
    /// What the user is to be told of files that restrict nothing.
    pub notices: Vec<String>,
    /// The mode of sessions for which none is asked, if a file says so.
    pub default_mode: Option<String>,
    /// Files that cannot be used, one sentence each.
    pub problems: Vec<String>,
}

impl Policy {
    /// What decides where no mode is stored or asked for. `command_line` is the value of `--mode`.
    fn defaults<'a>(&'a self, command_line: Option<&'a SessionModeId>) -> Defaults<'a> {
        Defaults { command_line: command_line.map(|mode| &*mode.0), configured: self.default_mode.as_deref() }
    }
}

/// What an agent has to ask for outside.
pub struct Host {
    /// Which modes and rules hold now.
    pub policy: PolicyOf,
    /// Whom one can choose now.
    pub load_models: ModelCatalogLoader,
    /// This binary, for clients that run it in a terminal.
    pub binary: Option<PathBuf>,
    /// Somebody else's agent, by its id, answers every session: its login, what it takes, and its sessions are its own.
    pub wraps: Option<String>,
}

/// What the command line says of sessions for which nothing else is asked.
#[derive(Debug, Clone, Default)]
pub struct First {
    /// Their mode.
    pub mode: Option<SessionModeId>,
    /// Their agent.
    pub agent: Option<String>,
}

/// How long reading what a request needs of the file system may take.
const READING: Duration = Duration::from_secs(10);

/// How long sessions may take to stop when the agent is closed.
const CLOSE: Duration = Duration::from_secs(3);

/// Does what reads files off the runtime's thread: a file system that does not answer must not stop other sessions.
///
/// # Errors
/// It took too long.
async fn reading<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AgentError> {
    // A deterministic run waits for it.
    let _at_work = AtWork::begin();
    bounded_file::off_thread(READING, work).await.ok_or_else(|| {
        let seconds = READING.as_secs();
        AgentError::InvalidRequest(format!(
            "{what} could not be read within {seconds} s: check that its file system answers, then try again"
        ))
    })
}

/// The agent of one client.
pub struct Agent {
    context: SessionContext,
    host: Host,
    client: Client,
    first: First,
    registry: SharedRegistry,
    /// The client takes updates about compactions.
    compactions: AtomicBool,
}

impl Agent {
    /// An agent without sessions.
    pub fn new(context: SessionContext, host: Host, client: Client, first: First) -> Self {
        Self {
            context,
            host,
            client,
            first,
            registry: SharedRegistry::default(),
            compactions: AtomicBool::new(false),
        }
    }

    /// Whom new sessions can choose, with the key that their model needs.
    async fn model_catalog(&self) -> Result<Arc<ModelCatalog>, AgentError> {
        let load_models = Arc::clone(&self.host.load_models);
        let models =
            reading("your settings", move || load_models()).await?.map_err(AgentError::AuthRequired)?;
        match models.check_key(models.default_model().clone()) {
            Ok(_) => Ok(models),
            Err(error) => Err(AgentError::AuthRequired(error.to_string())),
        }
    }

    /// Finds a session that is active here.
    pub fn session(&self, id: &SessionId) -> Result<SessionHandle, AgentError> {
        self.registry().get(id).cloned().ok_or_else(|| AgentError::UnknownSession(id.clone()))
    }

    /// Ends every session, within a bound, and waits until what happened is recorded.
    pub async fn close(&self) {
        let handles = self.registry().clear();
        let all = join_all(handles.iter().map(SessionHandle::close));
        if tokio::time::timeout(CLOSE, all).await.is_err() {
            tracing::warn!("a session did not stop in time");
        }
    }

    /// How many sessions are active.
    pub fn len(&self) -> usize {
        self.registry().ids().len()
    }

    /// Whether no session is active.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        registry::lock(&self.registry)
    }
}
