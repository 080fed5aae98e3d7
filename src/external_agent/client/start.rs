//! Starts an external agent: its process, `initialize`, then `session/new` or `session/load`.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::command::OnSuccess;
use super::connection::{AgentConnection, ConnectionClient};
use super::{
    AgentShared, ExternalAgent, ExternalAgentError, Peer, StartError, StartRequest, terminal_program,
};
use crate::acp::{
    AgentCapabilities, ClientCapabilities as AcpClientCapabilities, ElicitationCapabilities,
    ElicitationFormCapabilities, ElicitationUrlCapabilities, FileSystemCapabilities, Implementation,
    InitializeRequest, InitializeResponse, LoadSessionRequest, LoadSessionResponse, McpServer,
    NewSessionRequest, NewSessionResponse, ProtocolVersion, SessionId,
};
use crate::client::{Client, ClientCapabilities};
use crate::external_agent::known;
use crate::external_agent::settings;
use crate::external_agent::sockets;
use crate::process::program::Program;
use crate::process::secrets::Secrets;
use crate::process::shell::{AgentNetwork, CommandSandbox, Shell};
use crate::process::{BrokerPolicy, Command, Egress, Process, Streams, TerminalAccess, hard_links};

const DEADLINE: Duration = Duration::from_secs(30);

/// A running agent without a session.
pub struct StartingAgent {
    request: StartRequest,
    peer: Peer,
    copied: Vec<PathBuf>,
}

impl StartingAgent {
    /// See [`ExternalAgent::start`].
    pub async fn spawn(
        request: StartRequest,
        shell: &Shell,
        session: SessionId,
        client: Client,
    ) -> Result<Self, StartError> {
        let not_started = |text| StartError { error: ExternalAgentError::NotStarted(text), is_gone: true };
        let (mut process, copied) = process(&request, shell).await.map_err(not_started)?;
        let stdio = process.take_stdio();
        let secrets = Secrets::new(request.definition.env.values());
        let program = Program::start(&request.name, process, secrets.clone());
        let stdio = if request.definition.terminal_program.is_some() {
            terminal_program::connect(program.clone())
        } else {
            stdio.ok_or_else(|| not_started("it has no standard input and output".into()))?
        };
        let receiver = ConnectionClient { client, session_id: session, capabilities: request.capabilities };
        let (commands, state) =
            AgentConnection::start(request.name.clone(), stdio, program.clone(), receiver);
        Ok(Self { request, peer: Peer { commands, state, program, secrets }, copied })
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub fn program(&self) -> &Program {
        &self.peer.program
    }

    /// Creates or loads the session. Ends the program if that fails.
    pub async fn begin(self, unwanted: impl Future<Output = ()>) -> Result<ExternalAgent, StartError> {
        let Self { request, peer, copied } = self;
        let started = tokio::select! {
            biased;
            () = unwanted => Err(ExternalAgentError::NotStarted("it is no longer needed".into())),
            started = tokio::time::timeout(DEADLINE, begin(&peer, &request)) => {
                started.unwrap_or(Err(ExternalAgentError::TimedOut("the requests that start a session", DEADLINE)))
            }
        };
        match started {
            Ok((session_id, response)) => {
                let about = response.agent_info.map(|about| format!("{} {}", about.name, about.version));
                let capabilities = response.agent_capabilities;
                let (can_load, prompt_capabilities) =
                    (capabilities.load_session, capabilities.prompt_capabilities);
                let inner = AgentShared { peer, session_id, about, copied, can_load, prompt_capabilities };
                Ok(ExternalAgent(std::sync::Arc::new(inner)))
            }
            Err(error) => Err(StartError { error, is_gone: peer.program.end().await }),
        }
    }
}

/// Also returns the files in state folders that were replaced by copies.
async fn process(request: &StartRequest, shell: &Shell) -> Result<(Process, Vec<PathBuf>), String> {
    let definition = &request.definition;
    if let Some(fault) = definition.fault() {
        return Err(fault.into());
    }
    if let Some(variable) = &definition.missing {
        return Err(format!("the environment variable {variable} is not set"));
    }
    let mut arguments = definition.args.clone();
    let is_brokered = definition.is_brokered();
    let command_sandbox = if request.sandboxed || is_brokered {
        let sandbox = definition.sandbox.as_ref();
        let sandbox = sandbox.ok_or("this mode needs a sandbox, and its definition has no `sandbox` key")?;
        arguments.extend(sandbox.args.iter().cloned());
        shell.create_folders(&sandbox.settings_dirs)?;
        let roots = request.roots();
        if is_brokered {
            let hosts = known::allowed_hosts(
                definition,
                &request.servers,
                shell.agent_variables(definition.inherits, &definition.env),
                &settings::addresses(definition, shell),
            );
            let variables: BTreeMap<String, String> =
                shell.agent_variables(definition.inherits, &definition.env).collect();
            let variable = |name: &str| variables.get(name).cloned();
            let sockets = sandbox.sockets.iter().flat_map(|text| sockets::paths(text, &variable)).collect();
            let policy = request.policy;
            let network = AgentNetwork { hosts: Some(hosts), first: Egress::under(policy), sockets };
            if policy != BrokerPolicy::Nothing {
                shell.make_caches(&roots);
            }
            shell.brokered_agent(sandbox.folders(&roots), policy, request.record.clone(), network)?
        } else {
            shell.external_agent(&roots, &sandbox.state_dirs)?
        }
    } else {
        CommandSandbox::none()
    };
    let folders = command_sandbox.state_folders().to_vec();
    let separated = tokio::task::spawn_blocking(move || hard_links::separate(&folders)).await;
    let copied = separated.map_err(|error| error.to_string())??;
    let user_variables = definition.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    let sandbox = definition.sandbox.iter().filter(|_| request.sandboxed || is_brokered);
    let sandbox_variables = sandbox.flat_map(|sandbox| &sandbox.variables);
    let sandbox_variables =
        sandbox_variables.map(|(name, value)| (name.clone(), SecretString::from(value.as_str())));
    let command = Command {
        program: definition.command.clone(),
        arguments,
        cwd: request.cwd.clone(),
        // Security: Modegate's own environment may contain keys.
        environment: (!definition.inherits).then(|| shell.environment().to_vec()),
        settings: &[],
        confinement: command_sandbox.confinement().clone(),
        streams: if definition.terminal_program.is_some() { Streams::Own } else { Streams::Piped },
        waits: definition.terminal_program.is_some(),
        own: user_variables.chain(sandbox_variables).collect(),
        terminal: definition.terminal_program.unwrap_or(TerminalAccess::None),
    };
    let process = shell.processes().start(command).await.map_err(|error| error.to_string())?;
    Ok((process, copied))
}

async fn begin(
    peer: &Peer,
    start_request: &StartRequest,
) -> Result<(SessionId, InitializeResponse), ExternalAgentError> {
    let request = InitializeRequest::new(ProtocolVersion::V1)
        .client_capabilities(capabilities(start_request.capabilities))
        .client_info(implementation());
    let response: InitializeResponse = peer.call("initialize", &request, OnSuccess::Ignore).await?;
    if response.protocol_version != ProtocolVersion::V1 {
        return Err(ExternalAgentError::Malformed("it does not support version 1 of the protocol".into()));
    }
    let agent_capabilities = &response.agent_capabilities;
    let servers = supported_servers(&start_request.servers, agent_capabilities, &start_request.name);
    let takes_directories = agent_capabilities.session_capabilities.additional_directories.is_some();
    let directories = if takes_directories { start_request.directories.clone() } else { Vec::new() };
    let Some(id) = &start_request.load else {
        let request = NewSessionRequest::new(start_request.cwd.clone())
            .mcp_servers(servers)
            .additional_directories(directories);
        let started: NewSessionResponse =
            peer.call("session/new", &request, OnSuccess::SessionStarted(None)).await?;
        return Ok((started.session_id, response));
    };
    if !agent_capabilities.load_session {
        return Err(ExternalAgentError::CannotLoad);
    }
    let id = SessionId::new(id.as_str());
    let request = LoadSessionRequest::new(id.clone(), start_request.cwd.clone())
        .mcp_servers(servers)
        .additional_directories(directories);
    // Older agents answer with null.
    let _: Option<LoadSessionResponse> =
        peer.call("session/load", &request, OnSuccess::SessionStarted(Some(id.clone()))).await?;
    Ok((id, response))
}

pub(super) fn implementation() -> Implementation {
    Implementation::new("modegate", env!("CARGO_PKG_VERSION")).title("Modegate".to_owned())
}

/// Announces only the given capabilities (F1, E1).
fn capabilities(capabilities: ClientCapabilities) -> AcpClientCapabilities {
    let files =
        FileSystemCapabilities::new().read_text_file(capabilities.reads).write_text_file(capabilities.writes);
    let questions = ElicitationCapabilities::new()
        .form(capabilities.forms.then(ElicitationFormCapabilities::new))
        .url(capabilities.urls.then(ElicitationUrlCapabilities::new));
    let all = AcpClientCapabilities::new().fs(files);
    if capabilities.forms || capabilities.urls { all.elicitation(questions) } else { all }
}

/// Drops servers whose transport the agent does not support (S3).
fn supported_servers(servers: &[McpServer], capabilities: &AgentCapabilities, name: &str) -> Vec<McpServer> {
    let reachable = servers.iter().filter(|server| match server {
        McpServer::Http(_) => capabilities.mcp_capabilities.http,
        McpServer::Sse(_) => capabilities.mcp_capabilities.sse,
        // Every agent supports stdio; the schema may grow.
        _ => true,
    });
    let taken: Vec<_> = reachable.cloned().collect();
    if taken.len() < servers.len() {
        let left_out = servers.len() - taken.len();
        tracing::warn!(harness = name, left_out, "MCP servers that it cannot reach are left out");
    }
    taken
}
