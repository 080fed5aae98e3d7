//! `initialize` and `authenticate`: what the agent can do, and how its user can help it to a key.

use std::path::Path;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::Agent;
use crate::acp::{
    AgentCapabilities, AuthMethod, AuthMethodAgent, AuthMethodTerminal, AuthenticateRequest,
    AuthenticateResponse, ClientCapabilities as AcpClientCapabilities, Implementation, InitializeRequest,
    InitializeResponse, McpCapabilities, Meta, PromptCapabilities, ProtocolVersion,
    SessionAdditionalDirectoriesCapabilities, SessionCapabilities, SessionCloseCapabilities,
    SessionDeleteCapabilities, SessionForkCapabilities, SessionListCapabilities, SessionResumeCapabilities,
};
use crate::client::ClientCapabilities;
use crate::error::AgentError;

/// The way to authenticate that every client can show: keys come from the environment or from the user's files.
const ENVIRONMENT: &str = "environment";

/// The way in which a client runs `modegate setup` in a terminal.
const SETUP: &str = "setup";

/// Under this key some clients say, in their capabilities, that they run a terminal for an agent's own method, and look
/// for the command.
const TERMINAL_META: &str = "terminal-auth";

/// Under this key clients say, in their capabilities, that they show the output of calls as terminals that they do not run.
const OUTPUT_META: &str = "terminal_output";

impl Agent {
    /// Answers `initialize`: version 1, whatever version was asked for (I1).
    pub fn initialize(&self, request: &InitializeRequest) -> InitializeResponse {
        if request.protocol_version != ProtocolVersion::V1 {
            tracing::info!(asked = ?request.protocol_version, "the client asked for another protocol version");
        }
        let takes_compactions =
            request.client_capabilities.session.as_ref().is_some_and(|it| it.compaction.is_some());
        self.compactions.store(takes_compactions, Ordering::Relaxed);
        self.registry().capabilities = client_capabilities(&request.client_capabilities);
        let wraps = self.host.wraps.is_some();
        // A prompt may have pictures if the model that new sessions have sees them. What a wrapped agent takes is known once it
        // is started: the rest it is not sent, and the user is told.
        let models = &self.context.models;
        let images = wraps || models.facts(models.default_model()).images;
        let prompts = PromptCapabilities::new().image(images).audio(wraps).embedded_context(true);
        let methods = if wraps { Vec::new() } else { auth_methods(request, self.host.binary.as_deref()) };
        InitializeResponse::new(ProtocolVersion::V1)
            .agent_info(
                Implementation::new("modegate", env!("CARGO_PKG_VERSION")).title("Modegate".to_owned()),
            )
            .agent_capabilities(
                AgentCapabilities::new()
                    .load_session(true)
                    .mcp_capabilities(McpCapabilities::new().http(true))
                    .prompt_capabilities(prompts)
                    .session_capabilities(sessions()),
            )
            .auth_methods(methods)
    }

    /// Answers `authenticate`: succeeds once the model of new sessions has the key that it needs.
    pub async fn authenticate(
        &self,
        request: &AuthenticateRequest,
    ) -> Result<AuthenticateResponse, AgentError> {
        let method = &*request.method_id.0;
        let valid: &[&str] = if self.host.wraps.is_some() { &[] } else { &[ENVIRONMENT, SETUP] };
        if !valid.contains(&method) {
            let message = format!("unknown authentication method {method:?}");
            return Err(AgentError::invalid_params(message, json!({ "validMethods": valid })));
        }
        self.model_catalog().await.map(|_| AuthenticateResponse::new())
    }
}

/// What the client can do, each by itself (F1, E1).
fn client_capabilities(client: &AcpClientCapabilities) -> ClientCapabilities {
    let elicitation = client.elicitation.as_ref();
    ClientCapabilities {
        answers: true,
        reads: client.fs.read_text_file,
        writes: client.fs.write_text_file,
        terminals: client.terminal,
        shows_output: has_meta(client, OUTPUT_META),
        forms: elicitation.is_some_and(|it| it.form.is_some()),
        urls: elicitation.is_some_and(|it| it.url.is_some()),
    }
}

/// Whether a client says this in the metadata of its capabilities.
fn has_meta(client: &AcpClientCapabilities, key: &str) -> bool {
    client.meta.as_ref().and_then(|meta| meta.get(key)) == Some(&Value::Bool(true))
}

/// What can be done with sessions besides prompting them. Each of these rows of the table works (I9).
fn sessions() -> SessionCapabilities {
    SessionCapabilities::new()
        .list(SessionListCapabilities::new())
        .delete(SessionDeleteCapabilities::new())
        .resume(SessionResumeCapabilities::new())
        .close(SessionCloseCapabilities::new())
        .fork(SessionForkCapabilities::new())
        .additional_directories(SessionAdditionalDirectoriesCapabilities::new())
}

/// How a client can help its user to a key.
fn auth_methods(request: &InitializeRequest, binary: Option<&Path>) -> Vec<AuthMethod> {
    let what = "Set a provider's key in the agent's environment, or run `modegate setup` in a terminal; the embedded model needs none";
    let mut environment = AuthMethodAgent::new(ENVIRONMENT, "Environment").description(what.to_owned());
    let capabilities = &request.client_capabilities;
    if let (true, Some(command)) = (has_meta(capabilities, TERMINAL_META), binary) {
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
