//! The agent: what it can do, and the sessions it holds. No turn logic.
//!
//! One agent serves one client. The registry is the only lock here, it is never held across an await, and what it
//! guards is which sessions there are, never what is in them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::acp::{
    AgentCapabilities, AuthMethod, AuthMethodAgent, AuthenticateRequest, AuthenticateResponse,
    Implementation, InitializeRequest, InitializeResponse, McpServer, Meta, NewSessionRequest,
    NewSessionResponse, ProtocolVersion, SessionId, SessionModeId,
};
use crate::client::Client;
use crate::error::AgentError;
use crate::session::{SessionHandle, Shared, options, valid_modes};
use crate::workspace::Workspace;

/// The one way to authenticate: keys come from the environment, and none is needed for the embedded default.
const AUTH_METHOD: &str = "environment";

/// The key in `session/new`'s `_meta` that chooses the first mode.
const MODE_META: &str = "modegate/mode";

/// How long sessions may take to stop when the agent is closed.
const CLOSE: Duration = Duration::from_secs(3);

/// The agent of one client.
pub struct Agent {
    shared: Shared,
    client: Client,
    /// The mode of a session for which none is asked.
    default_mode: SessionModeId,
    sessions: Mutex<HashMap<SessionId, SessionHandle>>,
}

impl Agent {
    /// An agent without sessions.
    pub fn new(shared: Shared, client: Client, default_mode: SessionModeId) -> Self {
        Self { shared, client, default_mode, sessions: Mutex::default() }
    }

    /// Answers `initialize`: version 1, whatever version was asked for (I1).
    pub fn initialize(&self, request: &InitializeRequest) -> InitializeResponse {
        if request.protocol_version != ProtocolVersion::V1 {
            tracing::info!(asked = ?request.protocol_version, "the client asked for another protocol version");
        }
        let environment = AuthMethodAgent::new(AUTH_METHOD, "Environment")
            .description("Nothing to do: the embedded model needs no key".to_owned());
        InitializeResponse::new(ProtocolVersion::V1)
            .agent_info(
                Implementation::new("modegate", env!("CARGO_PKG_VERSION")).title("Modegate".to_owned()),
            )
            .agent_capabilities(AgentCapabilities::new())
            .auth_methods(vec![AuthMethod::Agent(environment)])
    }

    /// Answers `authenticate`: the one method succeeds, because nothing needs a key yet.
    pub fn authenticate(&self, request: &AuthenticateRequest) -> Result<AuthenticateResponse, AgentError> {
        if &*request.method_id.0 == AUTH_METHOD {
            return Ok(AuthenticateResponse::new());
        }
        let message = format!("unknown authentication method {:?}", &*request.method_id.0);
        Err(AgentError::invalid_params(message, json!({ "validMethods": [AUTH_METHOD] })))
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
        let mode = self.first_mode(request.meta.as_ref())?;
        let id = self.shared.source.session_id();
        let notices = not_started(&request.mcp_servers).into_iter().collect();
        let (shared, client) = (self.shared.clone(), self.client.clone());
        let handle = SessionHandle::start(id.clone(), workspace, mode.clone(), notices, shared, client);
        self.registry().insert(id.clone(), handle);
        Ok(NewSessionResponse::new(id)
            .modes(options::mode_state(&self.shared.modes, &mode))
            .config_options(options::config_options(&self.shared.modes, &mode)))
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

    fn first_mode(&self, meta: Option<&Meta>) -> Result<SessionModeId, AgentError> {
        let modes = &self.shared.modes;
        let Some(asked) = meta.and_then(|meta| meta.get(MODE_META)) else {
            return Ok(self.default_mode.clone());
        };
        let Value::String(asked) = asked else {
            let message = format!("_meta[{MODE_META:?}] is the id of a mode");
            return Err(AgentError::invalid_params(message, valid_modes(modes)));
        };
        match modes.resolve(asked) {
            Ok(mode) => Ok(mode.mode_id()),
            Err(unknown) => Err(AgentError::invalid_params(unknown.to_string(), valid_modes(modes))),
        }
    }

    fn registry(&self) -> MutexGuard<'_, HashMap<SessionId, SessionHandle>> {
        // A panic elsewhere does not make the list of sessions wrong.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
