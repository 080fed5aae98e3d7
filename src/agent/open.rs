//! Creates, loads, resumes and forks sessions.
//!
//! Only one request and one process may open a session at a time, because two would overwrite each other's
//! events.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::registry::Transit;
use super::session_folders::{FolderReader, LoadedFolders};
use super::session_setup::SessionSetup;
use super::{Agent, LoadedPolicy, client_prompt, managed_session, unless_cancelled, usable_catalog};
use crate::acp::{
    ForkSessionRequest, ForkSessionResponse, LoadSessionRequest, LoadSessionResponse, McpServer, Meta,
    NewSessionRequest, NewSessionResponse, ResumeSessionRequest, ResumeSessionResponse, SessionId,
    SessionModeId,
};
use crate::agents::{self, AgentSpec};
use crate::error::AgentError;
use crate::external_agent::{self, capability};
use crate::mode::{Mode, Modes};
use crate::model::catalog::ModelCatalog;
use crate::permission::compare;
use crate::server::{self, ServerEntry};
use crate::session::Ancestry;
use crate::session::options::ModelSelection;
use crate::session::{
    self, ClientPrompt, Closed, Origin, SessionContext, SessionHandle, SessionInit, SessionSnapshot,
    head_meta, options, valid_modes,
};
use crate::store::Row;
use crate::store::sessions::{OpenSessionError, StoredSession};

pub(super) const MODE_META: &str = "modegate/mode";

const AGENT_META: &str = "modegate/agent";

struct OpenOptions<'a> {
    cwd: &'a Path,
    directories: &'a [PathBuf],
    servers: &'a [McpServer],
    client_prompt: Option<Arc<ClientPrompt>>,
    cancel: &'a CancellationToken,
}

impl Agent {
    /// Creates a session (`session/new`). Creates nothing on an error. Here and below, an error after a cancel means
    /// that no session is open because of the request.
    pub async fn new_session(
        &self,
        request: &NewSessionRequest,
        cancel: &CancellationToken,
    ) -> Result<NewSessionResponse, AgentError> {
        self.check_login()?;
        let NewSessionRequest { cwd, additional_directories: directories, mcp_servers: servers, .. } =
            request;
        // Report invalid parameters before a missing key.
        let client_prompt = client_prompt::read(request.system_prompt.as_ref())?;
        let mut setup = unless_cancelled(cancel, self.set_up(cwd, directories, servers)).await?;
        let agent = self.first_agent(&mut setup, request.meta.as_ref())?;
        let agent = setup.with_broker(agent).await?;
        client_prompt::check_agent(client_prompt.as_ref(), &agent)?;
        setup.context.client_prompt = client_prompt;
        let mode = self.first_mode(&mut setup, &agent, request.meta.as_ref())?;
        let id = self.context.source.session_id();
        let SessionContext { modes, models, agents, .. } = &setup.context;
        let selection = options::entering(modes, models, &mode, &agent, &ModelSelection::of(models));
        let mut options = options::config_options(modes, &mode, models, &selection, (agents, &agent));
        if agent.external_agent.is_some() {
            options = external_agent::options::merged(options, &options::SHARED, &[], None);
        }
        let modes = options::mode_state(modes, &mode);
        self.start(id.clone(), mode, agent, Origin::New, setup);
        Ok(NewSessionResponse::new(id).modes(modes).config_options(options))
    }

    /// Loads a session and replays its history to the client (`session/load`, S5).
    pub async fn load_session(
        &self,
        request: &LoadSessionRequest,
        cancel: &CancellationToken,
    ) -> Result<LoadSessionResponse, AgentError> {
        self.check_login()?;
        let LoadSessionRequest { session_id, cwd, additional_directories, mcp_servers, .. } = request;
        let client_prompt = client_prompt::read(request.system_prompt.as_ref())?;
        let (directories, servers) = (additional_directories, mcp_servers);
        let wanted = OpenOptions { cwd, directories, servers, client_prompt, cancel };
        let (handle, transit) = self.find_or_open(session_id, &wanted).await?;
        let replayed = handle.replay(cancel).await;
        let SessionSnapshot { modes, options, head, .. } = self.opened(transit, &handle, replayed).await?;
        Ok(LoadSessionResponse::new().modes(modes).config_options(options).meta(head_meta(&head)))
    }

    /// Loads a session without replaying its history (`session/resume`, S7).
    pub async fn resume_session(
        &self,
        request: &ResumeSessionRequest,
        cancel: &CancellationToken,
    ) -> Result<ResumeSessionResponse, AgentError> {
        self.check_login()?;
        let ResumeSessionRequest { session_id, cwd, additional_directories, mcp_servers, .. } = request;
        let client_prompt = client_prompt::read(request.system_prompt.as_ref())?;
        let (directories, servers) = (additional_directories, mcp_servers);
        let wanted = OpenOptions { cwd, directories, servers, client_prompt, cancel };
        let (handle, transit) = self.find_or_open(session_id, &wanted).await?;
        let snapshot = unless_cancelled(cancel, handle.snapshot()).await;
        let SessionSnapshot { modes, options, head, .. } = self.opened(transit, &handle, snapshot).await?;
        Ok(ResumeSessionResponse::new().modes(modes).config_options(options).meta(head_meta(&head)))
    }

    /// Copies a session, which itself continues unchanged (`session/fork`, S15).
    pub async fn fork_session(
        &self,
        request: &ForkSessionRequest,
        cancel: &CancellationToken,
    ) -> Result<ForkSessionResponse, AgentError> {
        self.check_login()?;
        let ForkSessionRequest { session_id, cwd, additional_directories, mcp_servers, .. } = request;
        let client_prompt = client_prompt::read(request.system_prompt.as_ref())?;
        let set_up = self.set_up(cwd, additional_directories, mcp_servers);
        let mut setup = unless_cancelled(cancel, set_up).await?;
        setup.context.client_prompt = client_prompt;
        // A snapshot also stores all events so far.
        let has_unrecorded_modes = match self.session(session_id) {
            Ok(active) => active.snapshot().await?.has_unrecorded_modes,
            Err(_) => !self.registry().unrecorded_modes(session_id).is_empty(),
        };
        if has_unrecorded_modes {
            // Security: the stored mode allows more than the unrecorded one.
            return Err(AgentError::Unrecorded);
        }
        let (id, at) = (self.context.source.session_id(), self.context.source.now_ms());
        let stored = self.context.store.fork_session(session_id, &id, at).await;
        let stored = stored.map_err(|error| self.not_open(session_id, &error))?;
        let transit = Transit::begin(&self.registry, &id)?;
        let (agent, mode) = match self.stored_agent_and_mode(&mut setup, &stored).await {
            Ok(both) => both,
            Err(error) => {
                if let Err(cleanup_error) = self.context.store.delete_session(&id).await {
                    tracing::error!(%cleanup_error, session = %id, "the session of a failed fork is still stored");
                }
                return Err(error);
            }
        };
        let handle = self.start(id.clone(), mode, agent, Origin::Copy(Box::new(stored)), setup);
        let SessionSnapshot { modes, options, head, .. } = transit.unless_lost(handle.snapshot().await)?;
        Ok(ForkSessionResponse::new(id).modes(modes).config_options(options).meta(head_meta(&head)))
    }

    /// Opens a stored session for the command line, in its own folders and without checking for a key.
    pub async fn open_stored(&self, id: &SessionId) -> Result<SessionHandle, AgentError> {
        let stored = self.context.store.open_session(id).await.map_err(|error| self.not_open(id, &error))?;
        let transit = Transit::begin(&self.registry, id)?;
        let setup = async {
            let models = Arc::clone(&self.context.models);
            let load = self.folders().open_and_load(&stored.cwd, &stored.directories, move || models);
            let (folders, models) = load.await?;
            self.prepare(folders, &[], models).await
        };
        let setup = setup.await.inspect_err(|_| self.release(id))?;
        let handle = self.start_stored(stored, setup).await?;
        transit.unless_lost(handle.snapshot().await)?;
        Ok(handle)
    }

    /// Until the guard is dropped, no other request can open or close the session.
    async fn find_or_open(
        &self,
        id: &SessionId,
        wanted: &OpenOptions<'_>,
    ) -> Result<(SessionHandle, Transit), AgentError> {
        let transit = Transit::begin(&self.registry, id)?;
        let workspace = self.folders().open(wanted.cwd, wanted.directories);
        let workspace = unless_cancelled(wanted.cancel, workspace).await?;
        if let Ok(active) = self.session(id) {
            if active.workspace().roots() != workspace.roots() {
                let message = "the session is active here in other folders: close it first";
                return Err(AgentError::invalid_params(message, json!({ "cwd": active.cwd() })));
            }
            if wanted.client_prompt.is_some() && wanted.client_prompt.as_deref() != active.client_prompt() {
                let message = "the session is active here with another systemPrompt: close it first";
                return Err(AgentError::invalid_params(message, json!({ "sessionId": id })));
            }
            return Ok((active, transit));
        }
        let models = unless_cancelled(wanted.cancel, self.model_catalog()).await?;
        let stored = self.context.store.open_session(id).await.map_err(|error| self.not_open(id, &error))?;
        let setup = async {
            let folders = self.folders().load(workspace).await?;
            self.prepare(folders, wanted.servers, models).await
        };
        let setup = unless_cancelled(wanted.cancel, setup).await;
        let mut setup = setup.inspect_err(|_| self.release(id))?;
        setup.context.client_prompt.clone_from(&wanted.client_prompt);
        Ok((self.start_stored(stored, setup).await?, transit))
    }

    /// Takes the first answer of a session that a request has opened. The session is closed again if the request was
    /// cancelled, unless it was open before.
    async fn opened<T>(
        &self,
        transit: Transit,
        handle: &SessionHandle,
        outcome: Result<T, AgentError>,
    ) -> Result<T, AgentError> {
        if matches!(outcome, Err(AgentError::Cancelled)) && transit.is_new() {
            self.registry().remove(transit.id());
            if let Some(Closed { unrecorded_modes, .. }) = handle.close().await {
                self.registry().keep_unrecorded_modes(transit.id().clone(), unrecorded_modes);
            }
        }
        transit.unless_lost(outcome)
    }

    async fn start_stored(
        &self,
        stored: StoredSession,
        mut setup: SessionSetup,
    ) -> Result<SessionHandle, AgentError> {
        let (agent, mode) = self
            .stored_agent_and_mode(&mut setup, &stored)
            .await
            .inspect_err(|_| self.release(&stored.id))?;
        Ok(self.start(stored.id.clone(), mode, agent, Origin::Stored(Box::new(stored)), setup))
    }

    fn release(&self, id: &SessionId) {
        self.context.store.post(Row::Release { session: id.clone() });
    }

    /// Fails if only another agent runs here, or the agent does not support the mode or the client's system
    /// prompt.
    async fn stored_agent_and_mode(
        &self,
        setup: &mut SessionSetup,
        stored: &StoredSession,
    ) -> Result<(Arc<AgentSpec>, SessionModeId), AgentError> {
        let stored_agent = stored.agent.as_deref().unwrap_or(agents::DEFAULT);
        if let Some(only) =
            self.host.wrapped.as_ref().map(|agent| &*agent.id).filter(|only| *only != stored_agent)
        {
            let message =
                format!("this is a session of the agent {stored_agent}, and only the agent {only} runs here");
            return Err(AgentError::invalid_params(message, json!({ "agent": stored_agent })));
        }
        let (agent, mode) = setup.stored_agent_and_mode(stored, self.first.mode.as_ref()).await?;
        client_prompt::check_agent(setup.context.client_prompt.as_ref(), &agent)?;
        Ok((agent, mode))
    }

    fn start(
        &self,
        id: SessionId,
        mode: SessionModeId,
        agent: Arc<AgentSpec>,
        origin: Origin,
        setup: SessionSetup,
    ) -> SessionHandle {
        let SessionSetup {
            workspace,
            servers,
            context,
            mut pending_user_notices,
            own_notices,
            client_servers,
            policy: _,
        } = setup;
        let client_servers = if agent.external_agent.is_some() {
            client_servers
        } else {
            pending_user_notices.splice(..0, own_notices);
            Vec::new()
        };
        let unrecorded_modes = self.registry().unrecorded_modes(&id);
        let (ancestry, chosen) = (Ancestry::default(), None);
        let init = SessionInit {
            id: id.clone(),
            workspace,
            mode,
            pending_user_notices,
            unrecorded_modes,
            origin,
            agent,
            ancestry,
            servers: client_servers,
            chosen,
        };
        let handle = session::start(init, servers, context, self.client.clone());
        self.registry().add(id, handle.clone());
        handle
    }

    /// A dropped call leaves nothing behind.
    async fn set_up(
        &self,
        cwd: &Path,
        directories: &[PathBuf],
        servers: &[McpServer],
    ) -> Result<SessionSetup, AgentError> {
        let load_models = Arc::clone(&self.host.load_models);
        let load = self.folders().open_and_load(cwd, directories, move || load_models());
        let (folders, models) = load.await?;
        self.prepare(folders, servers, usable_catalog(models)?).await
    }

    fn folders(&self) -> FolderReader {
        FolderReader {
            policy: Arc::clone(&self.host.policy),
            tools: self.context.tools.clone(),
            locks: self.context.file_locks.clone(),
            own_files: self.context.own_files.clone(),
        }
    }

    async fn prepare(
        &self,
        folders: LoadedFolders,
        servers: &[McpServer],
        models: Arc<ModelCatalog>,
    ) -> Result<SessionSetup, AgentError> {
        let LoadedFolders { workspace, policy, tools, missing } = folders;
        managed_session::check(&policy, &self.context.store, self.context.live).await?;
        let tools = tools.with_agents(&policy.agents).with_modes(&policy.modes);
        let (entries, mut server_notices) = server::gather(&policy.servers, servers);
        let (entries, refused_servers) = policy.managed.limit_servers(entries);
        server_notices.extend(refused_servers);
        let (capabilities, updates) = {
            let registry = self.registry();
            (registry.capabilities, registry.updates)
        };
        let mut reports = None;
        let own_notices = models.ambiguity().into_iter().chain(missing.map(str::to_owned)).collect();
        let mut pending_user_notices: Vec<String> =
            server_notices.iter().map(|text| format!("{text}\n\n")).collect();
        let tools = if entries.is_empty() {
            tools
        } else if self.context.server_timeout.is_none() {
            pending_user_notices.push(not_started(&entries));
            tools
        } else {
            let (events, receiver) = mpsc::unbounded_channel();
            reports = Some(receiver);
            tools.with_servers(entries, &workspace, capabilities, &events)
        };
        pending_user_notices.extend(policy_notice(&policy));
        pending_user_notices.extend(policy.notices.iter().map(|text| format!("{text}\n\n")));
        let fallback_ceiling = if policy.problems.is_empty() { None } else { most_restrictive() };
        let managed_modes = policy.managed.ceilings.clone();
        let limits = self.context.max_modes.iter().chain(&managed_modes).chain(&fallback_ceiling);
        let limits: Vec<Arc<Mode>> = limits.cloned().collect();
        // The exit tool needs a mode that allows more.
        let has_exit = limits.is_empty() || compare::has_exit(&policy.modes, &limits);
        let tools = if has_exit { tools } else { tools.without_exit() };
        let context = SessionContext {
            tools: tools.with_skills(&policy.skills),
            modes: Arc::clone(&policy.modes),
            rules: Arc::clone(&policy.rules),
            agents: Arc::clone(&policy.agents),
            commands: Arc::clone(&policy.commands),
            skills: Arc::clone(&policy.skills),
            checks: Arc::clone(&policy.checks),
            fallback_ceiling,
            managed_modes,
            budgets: Arc::new(policy.managed.limit_budgets(&self.context.budgets)),
            exits: managed_session::limited_exits(&policy.managed, self.context.exits),
            refuses_unrecorded: self.context.refuses_unrecorded || policy.managed.require.record,
            models,
            updates,
            capabilities,
            server_notices: server_notices.into(),
            ..self.context.clone()
        };
        let client_servers = managed_session::limited_servers(&policy.managed, servers);
        Ok(SessionSetup {
            workspace,
            servers: reports,
            context,
            policy,
            pending_user_notices,
            own_notices,
            client_servers,
        })
    }

    fn first_agent(
        &self,
        setup: &mut SessionSetup,
        meta: Option<&Meta>,
    ) -> Result<Arc<AgentSpec>, AgentError> {
        let agents = Arc::clone(&setup.context.agents);
        let Some(requested) = meta.and_then(|meta| meta.get(AGENT_META)) else {
            return Ok(setup.agent(self.first.agent.as_deref()));
        };
        let valid =
            || json!({ "validAgents": agents.iter().map(|agent| agent.id.as_str()).collect::<Vec<_>>() });
        let Value::String(requested) = requested else {
            let message = format!("_meta[{AGENT_META:?}] is the id of an agent");
            return Err(AgentError::invalid_params(message, valid()));
        };
        match agents.resolve(requested) {
            Ok(agent) => Ok(Arc::clone(agent)),
            Err(unknown) => Err(AgentError::invalid_params(unknown.to_string(), valid())),
        }
    }

    fn first_mode(
        &self,
        setup: &mut SessionSetup,
        agent: &AgentSpec,
        meta: Option<&Meta>,
    ) -> Result<SessionModeId, AgentError> {
        let requested = meta.and_then(|meta| meta.get(MODE_META));
        let all = Arc::clone(&setup.context.modes);
        let mode = match requested {
            Some(Value::String(requested)) => {
                all.resolve(requested).map(Mode::mode_id).map_err(|it| it.to_string())
            }
            Some(_) => Err(format!("_meta[{MODE_META:?}] is the id of a mode")),
            None => Ok(setup.default_mode(self.first.mode.as_ref())),
        };
        setup.context.limit_to_agent(agent);
        let SessionContext { modes, unsupported_modes: unsupported, .. } = &setup.context;
        let mode = mode.map_err(|message| {
            tracing::warn!("a session was not started: {message}");
            AgentError::invalid_params(message, valid_modes(modes))
        })?;
        capability::unsupported(&mode.0, unsupported, modes).map_or(Ok(mode), Err)
    }

    pub(super) fn not_open(&self, id: &SessionId, error: &OpenSessionError) -> AgentError {
        match (error, self.context.store.substituted()) {
            (OpenSessionError::Unknown, Some(reason)) => AgentError::NoStore(reason.to_owned()),
            (OpenSessionError::Unknown, None) => AgentError::UnknownSession(id.clone()),
            (OpenSessionError::Busy, _) => AgentError::InvalidRequest(
                "the session is open in another process: close it there, or end that process".into(),
            ),
            (OpenSessionError::Below(parent), _) => {
                AgentError::invalid_params(error.to_string(), json!({ "sessionId": parent }))
            }
            (OpenSessionError::Store(_), _) => AgentError::Unreadable,
        }
    }
}

/// The built-in `plan`, even if the user redefined it: ceiling of sessions with unusable configuration.
pub(super) fn most_restrictive() -> Option<Arc<Mode>> {
    Modes::built_in().resolve("plan").ok().cloned().map(Arc::new)
}

fn policy_notice(policy: &LoadedPolicy) -> Option<String> {
    if policy.problems.is_empty() {
        return None;
    }
    Some(format!(
        "{}\nThe whole file is ignored, including its rules. Until it is fixed, this session can do no more than plan mode \
         allows.\n\n",
        policy.problems.join("\n")
    ))
}

fn not_started(entries: &[ServerEntry]) -> String {
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    format!("MCP servers are not started in a deterministic run: {}.\n\n", names.join(", "))
}
