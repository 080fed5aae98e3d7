//! The agent of one client: its capabilities and sessions. Contains no turn logic.
//!
//! The registry is the only lock here. It guards the set of sessions, never their contents.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::acp::{
    AuthMethod, AuthenticateRequest, AuthenticateResponse, InitializeRequest, InitializeResponse, SessionId,
    SessionModeId,
};
use crate::agents::AgentRegistry;
use crate::bounded_file;
use crate::busy::BusyGuard;
use crate::checks::Check;
use crate::client::Client;
use crate::error::AgentError;
use crate::external_agent::{ExternalAgentError, WrappedAgent};
use crate::managed_policy::ManagedLimits;
use crate::mode::Modes;
use crate::mode::stored::Defaults;
use crate::model::catalog::{ModelCatalog, NoModel};
use crate::permission::rules::Rules;
use crate::server::ServerDefinition;
use crate::session::UserCommand;
use crate::session::{SessionContext, SessionHandle};
use crate::skill::Skills;
use crate::store::Store;
use registry::{Registry, SharedRegistry};

mod client_prompt;
mod initialize;
mod list;
mod managed_session;
mod open;
mod registry;
mod session_folders;
mod session_setup;

/// The error is a sentence for the user.
pub type ModelCatalogLoader = Arc<dyn Fn() -> Result<Arc<ModelCatalog>, String> + Send + Sync>;

/// Takes the folders of a session, the working directory first.
pub type PolicyOf = Arc<dyn Fn(&[PathBuf]) -> LoadedPolicy + Send + Sync>;

pub struct LoadedPolicy {
    pub modes: Arc<Modes>,
    pub rules: Arc<Rules>,
    pub agents: Arc<AgentRegistry>,
    pub servers: BTreeMap<String, ServerDefinition>,
    pub checks: Arc<[Check]>,
    pub commands: Arc<[UserCommand]>,
    pub skills: Arc<Skills>,
    /// For the user: faults in files that restrict nothing.
    pub notices: Vec<String>,
    pub default_mode: Option<String>,
    pub problems: Vec<String>,
    /// Limits of the organisation's policy, which apply to the session beside the other members.
    pub managed: Arc<ManagedLimits>,
    /// The reason why no session is opened, as a sentence without a full stop.
    pub refusal: Option<String>,
}

impl LoadedPolicy {
    fn defaults<'a>(&'a self, command_line: Option<&'a SessionModeId>) -> Defaults<'a> {
        Defaults { command_line: command_line.map(|mode| &*mode.0), configured: self.default_mode.as_deref() }
    }
}

pub struct HostSettings {
    pub policy: PolicyOf,
    pub load_models: ModelCatalogLoader,
    pub binary: Option<PathBuf>,
    /// The only agent under `modegate wrap`, which manages its own login.
    pub wrapped: Option<WrappedAgent>,
}

#[derive(Debug, Clone, Default)]
pub struct First {
    pub mode: Option<SessionModeId>,
    pub agent: Option<String>,
}

const READING: Duration = Duration::from_secs(10);

const CLOSE: Duration = Duration::from_secs(3);

/// Reads on another thread: a file system that does not answer must not block other sessions.
async fn reading<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AgentError> {
    // A deterministic run waits for this work.
    let _busy = BusyGuard::begin();
    bounded_file::off_thread(READING, work).await.ok_or_else(|| {
        let seconds = READING.as_secs();
        AgentError::InvalidRequest(format!(
            "{what} could not be read within {seconds} s: check that its file system answers, then try again"
        ))
    })
}

/// Fails if the default model cannot be used.
fn usable_catalog(loaded: Result<Arc<ModelCatalog>, String>) -> Result<Arc<ModelCatalog>, AgentError> {
    let models = loaded.map_err(AgentError::AuthRequired)?;
    match models.check_key(models.default_model().clone()) {
        Ok(_) => Ok(models),
        // No login helps.
        Err(error @ (NoModel::NotAllowed { .. } | NoModel::Refused(_))) => {
            Err(AgentError::InvalidRequest(error.to_string()))
        }
        Err(error) => Err(AgentError::AuthRequired(error.to_string())),
    }
}

/// Ends with [`AgentError::Cancelled`] once the client cancels the request. The work is dropped then, so it must leave
/// nothing behind.
pub async fn unless_cancelled<T>(
    cancel: &CancellationToken,
    work: impl Future<Output = Result<T, AgentError>>,
) -> Result<T, AgentError> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(AgentError::Cancelled),
        outcome = work => outcome,
    }
}

pub struct Agent {
    context: SessionContext,
    host: HostSettings,
    client: Client,
    first: First,
    registry: SharedRegistry,
}

impl Agent {
    pub fn new(context: SessionContext, host: HostSettings, client: Client, first: First) -> Self {
        Self { context, host, client, first, registry: SharedRegistry::default() }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn initialize(&self, request: &InitializeRequest) -> InitializeResponse {
        {
            let mut registry = self.registry();
            registry.capabilities = initialize::client_capabilities(request);
            registry.updates = initialize::optional_updates(request);
            registry.offers_logout = initialize::offers_logout(request, &self.host);
        }
        self.client.set_zero_based_lines(initialize::has_zero_based_lines(request));
        let models = &self.context.models;
        initialize::response(request, &self.host, models.facts(models.default_model()).images)
    }

    /// For a client that takes all updates and details, whatever it announced.
    pub fn accept_all_updates(&self) {
        let mut registry = self.registry();
        registry.capabilities.lists_background = true;
        let updates = &mut registry.updates;
        (updates.plans, updates.subagents, updates.details) = (true, true, true);
    }

    /// The methods of the wrapped agent. None for a client that offers no login in a terminal, because asking costs a
    /// start of the agent.
    pub async fn wrapped_auth_methods(&self, request: &InitializeRequest) -> Vec<AuthMethod> {
        let client = &request.client_capabilities;
        let shell = self.context.tools.shell().filter(|_| self.context.live);
        let Some((agent, shell)) = self.host.wrapped.as_ref().zip(shell) else { return Vec::new() };
        if !initialize::logs_in_in_a_terminal(client) {
            return Vec::new();
        }
        let methods = agent.auth_methods(initialize::auth_capabilities(client), shell).await;
        let methods = methods.unwrap_or_else(|error| {
            // The first prompt reports it.
            tracing::info!(%error, "the authentication methods of the wrapped agent are unknown");
            Vec::new()
        });
        self.registry().wrapped_methods.clone_from(&methods);
        methods
    }

    pub async fn authenticate(
        &self,
        request: &AuthenticateRequest,
    ) -> Result<AuthenticateResponse, AgentError> {
        self.log_in(request).await?;
        self.registry().is_logged_out = false;
        Ok(AuthenticateResponse::new())
    }

    async fn log_in(&self, request: &AuthenticateRequest) -> Result<(), AgentError> {
        if self.host.wrapped.is_some() {
            let offered = self.registry().wrapped_methods.clone();
            let offered: Vec<_> = offered.iter().map(|method| &*method.id().0).collect();
            initialize::check_method(request, &offered)?;
            let shell = self.context.tools.shell();
            let (agent, shell) = self.host.wrapped.as_ref().zip(shell).ok_or(AgentError::Internal)?;
            let done = agent.log_in(request, shell).await;
            return done.map_err(|error| match error {
                ExternalAgentError::AuthRequired(text) => AgentError::AuthRequired(text),
                error => AgentError::InvalidRequest(format!("the agent could not log in: {error}")),
            });
        }
        initialize::check_method(request, &initialize::OWN_METHODS)?;
        self.model_catalog().await.map(drop)
    }

    /// True if the answer to `initialize` has announced `logout`.
    pub fn offers_logout(&self) -> bool {
        self.registry().offers_logout
    }

    /// Until the next login, sessions cannot be opened or prompted. The key itself stays.
    pub fn log_out(&self) {
        self.registry().is_logged_out = true;
    }

    pub fn check_login(&self) -> Result<(), AgentError> {
        if self.registry().is_logged_out {
            return Err(AgentError::AuthRequired("you are logged out: log in first".into()));
        }
        Ok(())
    }

    async fn model_catalog(&self) -> Result<Arc<ModelCatalog>, AgentError> {
        let load_models = Arc::clone(&self.host.load_models);
        usable_catalog(reading("your settings", move || load_models()).await?)
    }

    pub fn session(&self, id: &SessionId) -> Result<SessionHandle, AgentError> {
        let registry = self.registry();
        registry.get(id).cloned().ok_or_else(|| registry.missing(id))
    }

    pub fn store(&self) -> &Store {
        &self.context.store
    }

    /// Closes all sessions and waits until their events are stored, for at most 3 s.
    pub async fn close(&self) {
        let handles = self.registry().clear();
        let all = join_all(handles.iter().map(SessionHandle::close));
        if tokio::time::timeout(CLOSE, all).await.is_err() {
            tracing::warn!("a session did not stop in time");
        }
    }

    pub fn len(&self) -> usize {
        self.registry().ids().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        registry::lock(&self.registry)
    }
}
