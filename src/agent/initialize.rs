//! `initialize` and `authenticate`.

use std::path::Path;

use serde_json::{Value, json};

use super::HostSettings;
use crate::acp::{
    AgentAuthCapabilities, AgentCapabilities, AuthMethod, AuthMethodAgent, AuthMethodTerminal,
    AuthenticateRequest, ClientCapabilities as AcpClientCapabilities, Implementation, InitializeRequest,
    InitializeResponse, LogoutCapabilities, McpCapabilities, Meta, PromptCapabilities, ProtocolVersion,
    SessionAdditionalDirectoriesCapabilities, SessionCapabilities, SessionCloseCapabilities,
    SessionDeleteCapabilities, SessionForkCapabilities, SessionListCapabilities, SessionResumeCapabilities,
    SessionSystemPromptCapabilities, SessionSystemPromptModeCapabilities,
    SessionSystemPromptOverrideCapabilities,
};
use crate::client::{AutomaticConsent, ClientCapabilities, ClientDisplay, KnownClient, known_client};
use crate::error::AgentError;
use crate::session::OptionalUpdates;

/// Keys come from the environment or from the user's files.
const ENVIRONMENT: &str = "environment";

const SETUP: &str = "setup";

/// Methods of an agent that is not wrapped.
pub(super) const OWN_METHODS: [&str; 2] = [ENVIRONMENT, SETUP];

/// Capability of clients that run the command given in `_meta` in a terminal.
const TERMINAL_META: &str = "terminal-auth";

/// Capability of clients that display output as terminals.
const OUTPUT_META: &str = "terminal_output";

/// Answers `initialize` with version 1, whatever version the client requests (I1).
pub(super) fn response(
    request: &InitializeRequest,
    host: &HostSettings,
    sees_images: bool,
) -> InitializeResponse {
    if request.protocol_version != ProtocolVersion::V1 {
        tracing::info!(asked = ?request.protocol_version, "the client asked for another protocol version");
    }
    let wraps = host.wrapped.is_some();
    // A wrapped agent's capabilities are unknown here; unsupported content is rejected later with a message.
    let images = wraps || sees_images;
    let prompts = PromptCapabilities::new().image(images).audio(wraps).embedded_context(true);
    let auth =
        AgentAuthCapabilities::new().logout(offers_logout(request, host).then(LogoutCapabilities::new));
    let methods = if wraps { Vec::new() } else { auth_methods(request, host.binary.as_deref()) };
    InitializeResponse::new(ProtocolVersion::V1)
        .agent_info(Implementation::new("modegate", env!("CARGO_PKG_VERSION")).title("Modegate".to_owned()))
        .agent_capabilities(
            AgentCapabilities::new()
                .load_session(true)
                .mcp_capabilities(McpCapabilities::new().http(true))
                .prompt_capabilities(prompts)
                .session_capabilities(sessions(wraps))
                .auth(auth),
        )
        .auth_methods(methods)
}

pub(super) fn check_method(request: &AuthenticateRequest, valid: &[&str]) -> Result<(), AgentError> {
    let method = &*request.method_id.0;
    if valid.contains(&method) {
        return Ok(());
    }
    let message = format!("unknown authentication method {method:?}");
    Err(AgentError::invalid_params(message, json!({ "validMethods": valid })))
}

/// Returns true if the client announces that its user can log in in a terminal.
pub(super) fn logs_in_in_a_terminal(client: &AcpClientCapabilities) -> bool {
    client.auth.terminal || has_meta(client, TERMINAL_META)
}

/// Only clients that announce a login get `logout`: the answer to others stays as it was. A wrapped agent has its own
/// login.
pub(super) fn offers_logout(request: &InitializeRequest, host: &HostSettings) -> bool {
    host.wrapped.is_none() && logs_in_in_a_terminal(&request.client_capabilities)
}

/// The capabilities that concern a login.
pub(super) fn auth_capabilities(client: &AcpClientCapabilities) -> AcpClientCapabilities {
    let mut capabilities = AcpClientCapabilities::new();
    capabilities.auth = client.auth.clone();
    capabilities.meta.clone_from(&client.meta);
    capabilities
}

/// Reads each client capability separately (F1, E1).
pub(super) fn client_capabilities(request: &InitializeRequest) -> ClientCapabilities {
    let client = &request.client_capabilities;
    let known = known(request);
    let elicitation = client.elicitation.as_ref();
    ClientCapabilities {
        answers: true,
        reads: client.fs.read_text_file,
        writes: client.fs.write_text_file,
        shows_output: has_meta(client, OUTPUT_META),
        lists_background: false,
        forms: elicitation.is_some_and(|it| it.form.is_some()),
        urls: elicitation.is_some_and(|it| it.url.is_some()),
        accepts_everything: known.is_some_and(|client| client.consent == AutomaticConsent::Always),
    }
}

pub(super) fn optional_updates(request: &InitializeRequest) -> OptionalUpdates {
    let session = request.client_capabilities.session.as_ref();
    OptionalUpdates {
        compactions: session.is_some_and(|it| it.compaction.is_some()),
        notices: session.is_some_and(|it| it.notices.is_some()),
        plans: request.client_capabilities.plan.is_some(),
        subagents: request.client_capabilities.subagents.is_some(),
        details: false,
        display: known(request).map_or(ClientDisplay::UNKNOWN, |client| client.display),
    }
}

pub(super) fn has_zero_based_lines(request: &InitializeRequest) -> bool {
    known(request).is_some_and(|client| client.zero_based_lines)
}

fn known(request: &InitializeRequest) -> Option<&'static KnownClient> {
    let client = request.client_info.as_ref()?;
    known_client(&client.name, &client.version)
}

fn has_meta(client: &AcpClientCapabilities, key: &str) -> bool {
    client.meta.as_ref().and_then(|meta| meta.get(key)) == Some(&Value::Bool(true))
}

/// Session methods beyond prompting. All of them are implemented (I9). A wrapped agent has its own system prompt.
fn sessions(wraps: bool) -> SessionCapabilities {
    let replaces =
        SessionSystemPromptModeCapabilities::new().override_(SessionSystemPromptOverrideCapabilities::new());
    let system_prompt = SessionSystemPromptCapabilities::new().mode(replaces);
    SessionCapabilities::new()
        .list(SessionListCapabilities::new())
        .delete(SessionDeleteCapabilities::new())
        .resume(SessionResumeCapabilities::new())
        .close(SessionCloseCapabilities::new())
        .fork(SessionForkCapabilities::new())
        .additional_directories(SessionAdditionalDirectoriesCapabilities::new())
        .system_prompt((!wraps).then_some(system_prompt))
}

fn auth_methods(request: &InitializeRequest, binary: Option<&Path>) -> Vec<AuthMethod> {
    let description = "Set a provider's key in the agent's environment, or run `modegate setup` in a terminal; the embedded model needs none";
    let mut environment =
        AuthMethodAgent::new(ENVIRONMENT, "Environment").description(description.to_owned());
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
