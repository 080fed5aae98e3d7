//! Sessions that begin: new ones, those that are taken up again, and copies.
//!
//! A session is opened by one request at a time, and by one process at a time: two would write over each other.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::opening::Opening;
use super::registry::Transit;
use super::{Agent, Policy, reading};
use crate::acp::{
    ForkSessionRequest, ForkSessionResponse, LoadSessionRequest, LoadSessionResponse, McpServer, Meta,
    NewSessionRequest, NewSessionResponse, ResumeSessionRequest, ResumeSessionResponse, SessionId,
    SessionModeId,
};
use crate::client::Abilities;
use crate::error::AgentError;
use crate::mode::{Mode, Modes};
use crate::model::catalogue::Catalogue;
use crate::permission::compare;
use crate::roster::{self, AgentSpec};
use crate::server::{self, Entry};
use crate::session::harness;
use crate::session::lineage::Lineage;
use crate::session::options::Choice;
use crate::session::possible;
use crate::session::{Origin, SessionHandle, Shared, Start, View, head_meta, options, valid_modes};
use crate::store::Row;
use crate::store::sessions::{OpenError, StoredSession};
use crate::workspace::Workspace;

/// The key in `session/new`'s `_meta` that chooses the first mode.
const MODE_META: &str = "modegate/mode";

/// The key in `session/new`'s `_meta` that chooses the agent.
const AGENT_META: &str = "modegate/agent";

/// What a request says of the folders and servers of a session.
struct Wanted<'a> {
    cwd: &'a Path,
    directories: &'a [PathBuf],
    servers: &'a [McpServer],
}

impl Agent {
    /// Begins a session (`session/new`).
    ///
    /// # Errors
    /// A folder is not absolute or does not exist, or the mode in `_meta` is unknown: no session is made.
    pub async fn new_session(&self, request: &NewSessionRequest) -> Result<NewSessionResponse, AgentError> {
        let NewSessionRequest { cwd, additional_directories: directories, mcp_servers: servers, .. } =
            request;
        // What does not fit is said before what is missing.
        let workspace = workspace(cwd, directories).await?;
        let mut opening = self.prepare(workspace, servers, self.catalogue().await?).await?;
        let agent = self.first_agent(&mut opening, request.meta.as_ref())?;
        let mode = self.first_mode(&mut opening, &agent, request.meta.as_ref())?;
        let id = self.shared.source.session_id();
        let Shared { modes, catalogue, agents, .. } = &opening.shared;
        let choice = options::entering(modes, catalogue, &mode, &agent, &Choice::of(catalogue));
        let mut options = options::config_options(modes, &mode, catalogue, &choice, (agents, &agent));
        if agent.harness.is_some() {
            options = harness::options::merged(options, &[], None);
        }
        let modes = options::mode_state(modes, &mode);
        self.start(id.clone(), mode, agent, Origin::New, opening);
        Ok(NewSessionResponse::new(id).modes(modes).config_options(options))
    }

    /// Takes a session up again and shows the client all that happened in it (`session/load`, S5). One that is active here is
    /// shown as it is.
    ///
    /// # Errors
    /// There is none of this id, another process has it open, or a folder is not absolute or does not exist.
    pub async fn load_session(
        &self,
        request: &LoadSessionRequest,
    ) -> Result<LoadSessionResponse, AgentError> {
        let LoadSessionRequest { session_id, cwd, additional_directories, mcp_servers, .. } = request;
        let wanted = Wanted { cwd, directories: additional_directories, servers: mcp_servers };
        let (handle, transit) = self.take_up(session_id, &wanted).await?;
        let View { modes, options, head, .. } = transit.unless_lost(handle.show().await)?;
        Ok(LoadSessionResponse::new().modes(modes).config_options(options).meta(head_meta(&head)))
    }

    /// Takes a session up again without showing what happened (`session/resume`, S7).
    ///
    /// # Errors
    /// As for [`Self::load_session`].
    pub async fn resume_session(
        &self,
        request: &ResumeSessionRequest,
    ) -> Result<ResumeSessionResponse, AgentError> {
        let ResumeSessionRequest { session_id, cwd, additional_directories, mcp_servers, .. } = request;
        let wanted = Wanted { cwd, directories: additional_directories, servers: mcp_servers };
        let (handle, transit) = self.take_up(session_id, &wanted).await?;
        let View { modes, options, head, .. } = transit.unless_lost(handle.look().await)?;
        Ok(ResumeSessionResponse::new().modes(modes).config_options(options).meta(head_meta(&head)))
    }

    /// Begins a session as the copy of another, which goes on as it was (`session/fork`, S15).
    ///
    /// # Errors
    /// There is none of this id, or a folder is not absolute or does not exist.
    pub async fn fork_session(
        &self,
        request: &ForkSessionRequest,
    ) -> Result<ForkSessionResponse, AgentError> {
        let ForkSessionRequest { session_id, cwd, additional_directories, mcp_servers, .. } = request;
        let workspace = workspace(cwd, additional_directories).await?;
        let mut opening = self.prepare(workspace, mcp_servers, self.catalogue().await?).await?;
        // What happened so far is on the record before it is copied.
        let is_held = match self.session(session_id) {
            Ok(active) => active.look().await?.is_held,
            Err(_) => !self.registry().held(session_id).is_empty(),
        };
        if is_held {
            // The copy would be what the record says, which is more than what holds.
            return Err(AgentError::Record);
        }
        let (id, at) = (self.shared.source.session_id(), self.shared.source.now_ms());
        let kept = self.shared.store.fork_session(session_id, &id, at).await;
        let kept = kept.map_err(|error| self.not_open(session_id, &error))?;
        let transit = Transit::begin(&self.registry, &id)?;
        let (agent, mode) = match self.kept(&mut opening, &kept) {
            Ok(both) => both,
            Err(error) => {
                if let Err(left) = self.shared.store.delete_session(&id).await {
                    tracing::error!(%left, session = %id, "a copy that was not begun is still on the record");
                }
                return Err(error);
            }
        };
        let handle = self.start(id.clone(), mode, agent, Origin::Copy(Box::new(kept)), opening);
        let View { modes, options, head, .. } = transit.unless_lost(handle.look().await)?;
        Ok(ForkSessionResponse::new(id).modes(modes).config_options(options).meta(head_meta(&head)))
    }

    /// Takes up a session that is kept, for the command line: in its own folders, and whether or not a model could answer.
    ///
    /// # Errors
    /// There is none of this id, another process has it open, or its folders are gone.
    pub async fn open_kept(&self, id: &SessionId) -> Result<SessionHandle, AgentError> {
        let kept = self.shared.store.open_session(id).await.map_err(|error| self.not_open(id, &error))?;
        let transit = Transit::begin(&self.registry, id)?;
        let opening = async {
            let workspace = workspace(&kept.cwd, &kept.directories).await?;
            self.prepare(workspace, &[], Arc::clone(&self.shared.catalogue)).await
        };
        let opening = opening.await.inspect_err(|_| self.release(id))?;
        let handle = self.start_kept(kept, opening)?;
        transit.unless_lost(handle.look().await)?;
        Ok(handle)
    }

    /// Finds or opens a session. Nobody else opens or closes it until the guard is dropped.
    async fn take_up(
        &self,
        id: &SessionId,
        wanted: &Wanted<'_>,
    ) -> Result<(SessionHandle, Transit), AgentError> {
        let transit = Transit::begin(&self.registry, id)?;
        let workspace = workspace(wanted.cwd, wanted.directories).await?;
        if let Ok(active) = self.session(id) {
            if active.workspace().roots() != workspace.roots() {
                let message = "the session is active here in other folders: close it first";
                return Err(AgentError::invalid_params(message, json!({ "cwd": active.cwd() })));
            }
            return Ok((active, transit));
        }
        let catalogue = self.catalogue().await?;
        let kept = self.shared.store.open_session(id).await.map_err(|error| self.not_open(id, &error))?;
        let opening = self.prepare(workspace, wanted.servers, catalogue).await;
        let opening = opening.inspect_err(|_| self.release(id))?;
        Ok((self.start_kept(kept, opening)?, transit))
    }

    /// Starts a session that this process has opened.
    fn start_kept(&self, kept: StoredSession, mut opening: Opening) -> Result<SessionHandle, AgentError> {
        let (agent, mode) = self.kept(&mut opening, &kept).inspect_err(|_| self.release(&kept.id))?;
        Ok(self.start(kept.id.clone(), mode, agent, Origin::Kept(Box::new(kept)), opening))
    }

    /// Gives back a session that was opened and is not started: others may try.
    fn release(&self, id: &SessionId) {
        self.shared.store.post(Row::Release { session: id.clone() });
    }

    /// The agent and the mode of a session that is kept.
    ///
    /// # Errors
    /// It is another agent's than the only one here, or its mode is not possible for its agent.
    fn kept(
        &self,
        opening: &mut Opening,
        kept: &StoredSession,
    ) -> Result<(Arc<AgentSpec>, SessionModeId), AgentError> {
        let its = kept.agent.as_deref().unwrap_or(roster::DEFAULT);
        if let Some(only) = self.surroundings.wraps.as_deref().filter(|only| *only != its) {
            let message = format!("this is a session of the agent {its}, and only {only} answers here");
            return Err(AgentError::invalid_params(message, json!({ "agent": its })));
        }
        opening.kept(kept, self.first.mode.as_ref())
    }

    fn start(
        &self,
        id: SessionId,
        mode: SessionModeId,
        agent: Arc<AgentSpec>,
        origin: Origin,
        opening: Opening,
    ) -> SessionHandle {
        let Opening { workspace, servers, shared, mut notices, of_its_own, theirs, policy: _ } = opening;
        let theirs = if agent.harness.is_some() {
            theirs
        } else {
            notices.splice(..0, of_its_own);
            Vec::new()
        };
        let held = self.registry().held(&id);
        let (lineage, chosen) = (Lineage::default(), None);
        let start = Start {
            id: id.clone(),
            workspace,
            mode,
            notices,
            held,
            origin,
            agent,
            lineage,
            servers: theirs,
            chosen,
        };
        let handle = SessionHandle::start(start, servers, shared, self.client.clone());
        self.registry().add(id, handle.clone());
        handle
    }

    /// What holds for a session in these folders now.
    ///
    /// # Errors
    /// The folders could not be read in time.
    async fn prepare(
        &self,
        workspace: Workspace,
        servers: &[McpServer],
        catalogue: Arc<Catalogue>,
    ) -> Result<Opening, AgentError> {
        let found = {
            let (policy, tools) = (Arc::clone(&self.surroundings.policy), self.shared.tools.clone());
            let workspace = workspace.clone();
            move || (policy(workspace.cwd()), tools.for_session(&workspace))
        };
        let (policy, (tools, missing)) = reading("the session's folder", found).await?;
        let tools = tools.with_agents(&policy.agents);
        let (entries, not_to_be_had) = server::gather(&policy.servers, servers);
        let abilities = self.registry().abilities;
        let (events, reports) = mpsc::unbounded_channel();
        let of_its_own = catalogue.ambiguity().into_iter().chain(missing.map(str::to_owned)).collect();
        let mut notices: Vec<String> = not_to_be_had.into_iter().map(|text| format!("{text}\n\n")).collect();
        let tools = if entries.is_empty() {
            tools
        } else if self.shared.patience.is_none() {
            notices.push(not_started(&entries));
            tools
        } else {
            tools.with_servers(entries, &workspace, abilities, &events)
        };
        notices.extend(told_of(&policy));
        notices.extend(policy.notices.iter().map(|text| format!("{text}\n\n")));
        let held_to = if policy.problems.is_empty() { None } else { most_restrictive() };
        let limits: Vec<Arc<Mode>> = self.shared.max_modes.iter().chain(&held_to).cloned().collect();
        // No plan is presented where no other mode would allow more.
        let has_exit = limits.is_empty() || compare::has_exit(&policy.modes, &limits);
        let tools = if has_exit { tools } else { tools.without_exit() };
        let shared = Shared {
            tools: tools.with_skills(&policy.skills),
            modes: Arc::clone(&policy.modes),
            rules: Arc::clone(&policy.rules),
            agents: Arc::clone(&policy.agents),
            commands: Arc::clone(&policy.commands),
            skills: Arc::clone(&policy.skills),
            held_to,
            catalogue,
            compactions: self.compactions.load(Ordering::Relaxed),
            // A terminal is filled at the client's pace, which no replay can repeat.
            abilities: Abilities { terminals: abilities.terminals && self.shared.live, ..abilities },
            ..self.shared.clone()
        };
        let theirs = servers.to_vec();
        Ok(Opening { workspace, servers: reports, shared, policy, notices, of_its_own, theirs })
    }

    /// Which agent a new session is.
    ///
    /// # Errors
    /// The one in `_meta` is unknown.
    fn first_agent(&self, opening: &mut Opening, meta: Option<&Meta>) -> Result<Arc<AgentSpec>, AgentError> {
        let agents = Arc::clone(&opening.shared.agents);
        let Some(asked) = meta.and_then(|meta| meta.get(AGENT_META)) else {
            // It was there when it was asked for.
            return Ok(opening.agent(self.first.agent.as_deref()));
        };
        let valid =
            || json!({ "validAgents": agents.iter().map(|agent| agent.id.as_str()).collect::<Vec<_>>() });
        let Value::String(asked) = asked else {
            let message = format!("_meta[{AGENT_META:?}] is the id of an agent");
            return Err(AgentError::invalid_params(message, valid()));
        };
        match agents.resolve(asked) {
            Ok(agent) => Ok(Arc::clone(agent)),
            Err(unknown) => Err(AgentError::invalid_params(unknown.to_string(), valid())),
        }
    }

    /// Which mode a new session begins in, of those that are possible for its agent.
    ///
    /// # Errors
    /// The one in `_meta` is unknown, or the one that it would be is not possible.
    fn first_mode(
        &self,
        opening: &mut Opening,
        agent: &AgentSpec,
        meta: Option<&Meta>,
    ) -> Result<SessionModeId, AgentError> {
        let asked = meta.and_then(|meta| meta.get(MODE_META));
        let all = Arc::clone(&opening.shared.modes);
        let mode = match asked {
            Some(Value::String(asked)) => all.resolve(asked).map(Mode::mode_id).map_err(|it| it.to_string()),
            Some(_) => Err(format!("_meta[{MODE_META:?}] is the id of a mode")),
            None => Ok(opening.default_mode(self.first.mode.as_ref())),
        };
        opening.shared.hold_to(agent);
        let Shared { modes, impossible, .. } = &opening.shared;
        let mode = mode.map_err(|message| {
            tracing::warn!("a session was not begun: {message}");
            AgentError::invalid_params(message, valid_modes(modes))
        })?;
        possible::unsupported(&mode.0, impossible, modes).map_or(Ok(mode), Err)
    }

    pub(super) fn not_open(&self, id: &SessionId, error: &OpenError) -> AgentError {
        match (error, self.shared.store.substituted()) {
            (OpenError::Unknown, Some(reason)) => AgentError::NoStore(reason.to_owned()),
            (OpenError::Unknown, None) => AgentError::UnknownSession(id.clone()),
            (OpenError::Busy, _) => AgentError::InvalidRequest(
                "the session is open in another process: close it there, or end that process".into(),
            ),
            (OpenError::Below(parent), _) => {
                AgentError::invalid_params(error.to_string(), json!({ "sessionId": parent }))
            }
            (OpenError::Store(_), _) => AgentError::Unreadable,
        }
    }
}

/// What sessions are held to where something about modes cannot be known: the built-in plan, whatever the user's own is.
pub(super) fn most_restrictive() -> Option<Arc<Mode>> {
    Modes::built_in().resolve("plan").ok().cloned().map(Arc::new)
}

/// What the user is told while a file of modes cannot be used.
fn told_of(policy: &Policy) -> Option<String> {
    if policy.problems.is_empty() {
        return None;
    }
    Some(format!(
        "{}\nNothing of such a file holds, its rules included. Until it is mended, this session can do no more than plan mode \
         allows.\n\n",
        policy.problems.join("\n")
    ))
}

async fn workspace(cwd: &Path, directories: &[PathBuf]) -> Result<Workspace, AgentError> {
    let invalid = |key: &str, message: String| {
        let valid = if key == "cwd" {
            json!({ "cwd": "an absolute path of a directory that exists" })
        } else {
            json!({ key: "absolute paths of directories that exist" })
        };
        Err(AgentError::invalid_params(message, valid))
    };
    let named = directories.iter().map(|folder| ("additionalDirectories", folder.as_path()));
    for (key, folder) in std::iter::once(("cwd", cwd)).chain(named) {
        if !folder.is_absolute() {
            return invalid(key, format!("{key} is not absolute: {}", folder.display()));
        }
    }
    let (folder, others) = (cwd.to_owned(), directories.to_vec());
    match reading("the session's folder", move || Workspace::new(&folder, &others)).await? {
        Ok(workspace) => Ok(workspace),
        Err(unusable) => {
            let key = if unusable.folder == cwd { "cwd" } else { "additionalDirectories" };
            invalid(key, format!("{key} cannot be used: {unusable}"))
        }
    }
}

/// What the user is told of servers where every run has to give the same bytes.
fn not_started(entries: &[Entry]) -> String {
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    format!("MCP servers are not started in a deterministic run: {}.\n\n", names.join(", "))
}
