//! The agent: what it can do, and the sessions it holds. No turn logic.
//!
//! One agent serves one client. The registry is the only lock here, it is never held across an await, and what it
//! guards is which sessions there are, never what is in them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::acp::{
    AgentCapabilities, AuthMethod, AuthMethodAgent, AuthMethodTerminal, AuthenticateRequest,
    AuthenticateResponse, Implementation, InitializeRequest, InitializeResponse, McpServer, Meta,
    NewSessionRequest, NewSessionResponse, PromptCapabilities, ProtocolVersion, SessionId, SessionModeId,
};
use crate::client::Client;
use crate::error::AgentError;
use crate::mode::{DEFAULT, Mode, Modes};
use crate::model::catalogue::Catalogue;
use crate::permission::rules::Rules;
use crate::session::options::Choice;
use crate::session::{SessionHandle, Shared, options, valid_modes};
use crate::workspace::Workspace;

/// The way to authenticate that every client can show: keys come from the environment or from the user's files.
const ENVIRONMENT: &str = "environment";

/// The way in which a client runs `modegate setup` in a terminal.
const SETUP: &str = "setup";

/// Under this key some clients say, in their capabilities, that they run a terminal for an agent's own method, and look
/// for the command.
const TERMINAL_META: &str = "terminal-auth";

/// Whom one can choose now. What cannot be read is a sentence for the user.
pub type Whom = Box<dyn Fn() -> Result<Arc<Catalogue>, String> + Send + Sync>;

/// Which modes and rules hold for sessions in a folder now.
pub type PolicyOf = Box<dyn Fn(&Path) -> Policy + Send + Sync>;

/// Modes and rules, as files say.
pub struct Policy {
    /// The modes.
    pub modes: Arc<Modes>,
    /// The rules.
    pub rules: Arc<Rules>,
    /// The mode of sessions for which none is asked, if a file says so.
    pub default_mode: Option<String>,
    /// Files that cannot be used, one sentence each.
    pub problems: Vec<String>,
}

/// What an agent has to ask for outside.
pub struct Surroundings {
    /// Which modes and rules hold now.
    pub policy: PolicyOf,
    /// Whom one can choose now.
    pub whom: Whom,
    /// This binary, for clients that run it in a terminal.
    pub binary: Option<PathBuf>,
}

/// The key in `session/new`'s `_meta` that chooses the first mode.
const MODE_META: &str = "modegate/mode";

/// How long sessions may take to stop when the agent is closed.
const CLOSE: Duration = Duration::from_secs(3);

/// The agent of one client.
pub struct Agent {
    shared: Shared,
    surroundings: Surroundings,
    client: Client,
    /// The mode of a session for which none is asked, if the command line says so.
    default_mode: Option<SessionModeId>,
    sessions: Mutex<HashMap<SessionId, SessionHandle>>,
    /// The client takes updates about compactions.
    compactions: AtomicBool,
}

impl Agent {
    /// An agent without sessions.
    pub fn new(
        shared: Shared,
        surroundings: Surroundings,
        client: Client,
        default_mode: Option<SessionModeId>,
    ) -> Self {
        Self {
            shared,
            surroundings,
            client,
            default_mode,
            sessions: Mutex::default(),
            compactions: AtomicBool::new(false),
        }
    }

    /// Answers `initialize`: version 1, whatever version was asked for (I1).
    pub fn initialize(&self, request: &InitializeRequest) -> InitializeResponse {
        if request.protocol_version != ProtocolVersion::V1 {
            tracing::info!(asked = ?request.protocol_version, "the client asked for another protocol version");
        }
        let takes_compactions =
            request.client_capabilities.session.as_ref().is_some_and(|it| it.compaction.is_some());
        self.compactions.store(takes_compactions, Ordering::Relaxed);
        // A prompt may have pictures if the model that new sessions have sees them.
        let catalogue = &self.shared.catalogue;
        let images = catalogue.facts(catalogue.default_model()).images;
        let prompts = PromptCapabilities::new().image(images).embedded_context(true);
        InitializeResponse::new(ProtocolVersion::V1)
            .agent_info(
                Implementation::new("modegate", env!("CARGO_PKG_VERSION")).title("Modegate".to_owned()),
            )
            .agent_capabilities(AgentCapabilities::new().prompt_capabilities(prompts))
            .auth_methods(auth_methods(request, self.surroundings.binary.as_deref()))
    }

    /// Answers `authenticate`: succeeds once the model of new sessions has the key that it needs.
    pub fn authenticate(&self, request: &AuthenticateRequest) -> Result<AuthenticateResponse, AgentError> {
        let method = &*request.method_id.0;
        if ![ENVIRONMENT, SETUP].contains(&method) {
            let message = format!("unknown authentication method {method:?}");
            return Err(AgentError::invalid_params(message, json!({ "validMethods": [ENVIRONMENT, SETUP] })));
        }
        self.catalogue().map(|_| AuthenticateResponse::new())
    }

    /// Whom new sessions can choose, with the key that their model needs.
    fn catalogue(&self) -> Result<Arc<Catalogue>, AgentError> {
        let catalogue = (self.surroundings.whom)().map_err(AgentError::AuthRequired)?;
        match catalogue.check_key(catalogue.default_model().clone()) {
            Ok(_) => Ok(catalogue),
            Err(error) => Err(AgentError::AuthRequired(error.to_string())),
        }
    }

    /// Begins a session (`session/new`).
    ///
    /// # Errors
    /// The working directory is not absolute or does not exist, or the mode in `_meta` is unknown: no session is made.
    pub fn new_session(&self, request: &NewSessionRequest) -> Result<NewSessionResponse, AgentError> {
        let workspace = workspace(&request.cwd)?;
        if !request.additional_directories.is_empty() {
            let message = "additionalDirectories was not advertised and is not supported";
            return Err(AgentError::invalid_params(message, json!({ "additionalDirectories": [] })));
        }
        let catalogue = self.catalogue()?;
        let policy = (self.surroundings.policy)(workspace.cwd());
        let (tools, missing) = self.shared.tools.for_session(&workspace);
        let mut shared = Shared {
            tools,
            modes: Arc::clone(&policy.modes),
            rules: Arc::clone(&policy.rules),
            catalogue: Arc::clone(&catalogue),
            compactions: self.compactions.load(Ordering::Relaxed),
            ..self.shared.clone()
        };
        let (mode, doubt) = self.first_mode(&shared, &policy, request.meta.as_ref())?;
        let id = self.shared.source.session_id();
        let mut notices: Vec<String> =
            not_started(&request.mcp_servers).into_iter().chain(catalogue.ambiguity()).collect();
        notices.extend(missing.map(str::to_owned));
        if doubt.is_some() || !policy.problems.is_empty() {
            shared.held_to = most_restrictive();
        }
        notices.extend(doubt);
        notices.extend(told_of(&policy));
        let client = self.client.clone();
        let choice =
            options::entering(&shared.modes, &shared.catalogue, &mode, &Choice::of(&shared.catalogue));
        let options = options::config_options(&shared.modes, &mode, &shared.catalogue, &choice);
        let modes = options::mode_state(&shared.modes, &mode);
        let handle = SessionHandle::start(id.clone(), workspace, mode.clone(), notices, shared, client);
        self.registry().insert(id.clone(), handle);
        Ok(NewSessionResponse::new(id).modes(modes).config_options(options))
    }

    /// Finds a session that is active here.
    pub fn session(&self, id: &SessionId) -> Result<SessionHandle, AgentError> {
        self.registry().get(id).cloned().ok_or_else(|| AgentError::UnknownSession(id.clone()))
    }

    /// Ends every session, within a bound, and waits until what happened is recorded.
    pub async fn close(&self) {
        let handles: Vec<_> = self.registry().drain().map(|(_, handle)| handle).collect();
        let all = join_all(handles.iter().map(SessionHandle::close));
        if tokio::time::timeout(CLOSE, all).await.is_err() {
            tracing::warn!("a session did not stop in time");
        }
    }

    /// How many sessions are active.
    pub fn len(&self) -> usize {
        self.registry().len()
    }

    /// Whether no session is active.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the files of modes and rules again for a session (`_modegate/reload`).
    ///
    /// # Errors
    /// A file cannot be used: nothing has changed.
    pub async fn reload(&self, id: &SessionId) -> Result<Value, AgentError> {
        let session = self.session(id)?;
        let policy = (self.surroundings.policy)(session.cwd());
        if !policy.problems.is_empty() {
            let message = policy.problems.join("; ");
            return Err(AgentError::invalid_params(message, json!({ "problems": policy.problems })));
        }
        session.reload(policy.modes, policy.rules).await
    }

    fn first_mode(
        &self,
        shared: &Shared,
        policy: &Policy,
        meta: Option<&Meta>,
    ) -> Result<(SessionModeId, Option<String>), AgentError> {
        let modes = &shared.modes;
        let Some(asked) = meta.and_then(|meta| meta.get(MODE_META)) else {
            let asked = self.default_mode.as_ref().map(|mode| mode.0.to_string());
            let asked = asked.or_else(|| policy.default_mode.clone()).unwrap_or_else(|| DEFAULT.to_owned());
            return Ok(match modes.resolve(&asked) {
                Ok(mode) => (mode.mode_id(), None),
                // It was there when it was asked for.
                Err(unknown) => {
                    let mode = modes.most_restrictive();
                    let text = format!("{unknown}. This session begins in {} mode.\n\n", mode.id);
                    (mode.mode_id(), Some(text))
                }
            });
        };
        let Value::String(asked) = asked else {
            let message = format!("_meta[{MODE_META:?}] is the id of a mode");
            return Err(AgentError::invalid_params(message, valid_modes(modes)));
        };
        match modes.resolve(asked) {
            Ok(mode) => Ok((mode.mode_id(), None)),
            Err(unknown) => Err(AgentError::invalid_params(unknown.to_string(), valid_modes(modes))),
        }
    }

    fn registry(&self) -> MutexGuard<'_, HashMap<SessionId, SessionHandle>> {
        // A panic elsewhere does not make the list of sessions wrong.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What sessions are held to where something about modes cannot be known: the built-in plan, whatever the user's own is.
fn most_restrictive() -> Option<Arc<Mode>> {
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

/// How a client can help its user to a key.
fn auth_methods(request: &InitializeRequest, binary: Option<&Path>) -> Vec<AuthMethod> {
    let what = "Set a provider's key in the agent's environment, or run `modegate setup` in a terminal; the embedded model needs none";
    let mut environment = AuthMethodAgent::new(ENVIRONMENT, "Environment").description(what.to_owned());
    let capabilities = &request.client_capabilities;
    let knows_meta =
        capabilities.meta.as_ref().and_then(|meta| meta.get(TERMINAL_META)) == Some(&Value::Bool(true));
    if let (true, Some(command)) = (knows_meta, binary) {
        let how = json!({ "label": "modegate setup", "command": command, "args": ["setup"], "env": {} });
        environment = environment.meta(Meta::from_iter([(TERMINAL_META.to_owned(), how)]));
    }
    let mut methods = vec![AuthMethod::Agent(environment)];
    if capabilities.auth.terminal {
        let setup = AuthMethodTerminal::new(SETUP, "Set up a provider")
            .description("Asks for a provider and its key, and stores them for you alone".to_owned())
            .args(vec!["setup".to_owned()]);
        methods.push(AuthMethod::Terminal(setup));
    }
    methods
}

fn workspace(cwd: &Path) -> Result<Workspace, AgentError> {
    let invalid = |message: String| {
        Err(AgentError::invalid_params(
            message,
            json!({ "cwd": "an absolute path of a directory that exists" }),
        ))
    };
    if !cwd.is_absolute() {
        return invalid(format!("cwd is not absolute: {}", cwd.display()));
    }
    match Workspace::new(cwd) {
        Ok(workspace) => Ok(workspace),
        Err(error) => invalid(format!("cwd cannot be used: {}: {error}", cwd.display())),
    }
}

/// What the user is told of servers that the client wants started.
fn not_started(servers: &[McpServer]) -> Option<String> {
    let names: Vec<&str> = servers
        .iter()
        .map(|server| match server {
            McpServer::Stdio(server) => server.name.as_str(),
            McpServer::Http(server) => server.name.as_str(),
            McpServer::Sse(server) => server.name.as_str(),
            // The schema may grow; what cannot be named is still not started.
            _ => "another",
        })
        .collect();
    if names.is_empty() {
        return None;
    }
    Some(format!("MCP servers are not supported yet; not started: {}.\n\n", names.join(", ")))
}
