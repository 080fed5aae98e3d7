//! The login of the agent of `modegate wrap`: its authentication methods, and their use. The agent is started in the
//! sandbox for that, without a session, and ends afterwards.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::IgnoredAny;

use super::command::{ConnectionCommand, OnSuccess};
use super::start::{StartingAgent, implementation};
use super::{ExternalAgentError, Peer, StartRequest};
use crate::acp::{
    AuthMethod, AuthenticateRequest, ClientCapabilities as AcpClientCapabilities, InitializeRequest,
    InitializeResponse, ProtocolVersion, SessionId,
};
use crate::client::{self, ClientCapabilities, ClientEnd};
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::process::BrokerPolicy;
use crate::process::shell::Shell;

/// Stands in the command of `modegate wrap` before the arguments of a login in a terminal.
pub const LOGIN_ARGUMENT: &str = "__login";

/// Time in which an agent tells its methods.
const METHODS_LIMIT: Duration = Duration::from_secs(10);

/// Time that a person has for a login.
const LOGIN_LIMIT: Duration = Duration::from_mins(10);

/// The agent of `modegate wrap`.
pub struct WrappedAgent {
    pub id: String,
    pub definition: ExternalAgentDefinition,
    pub cwd: PathBuf,
}

impl WrappedAgent {
    /// Returns the agent's methods for a client with these capabilities.
    pub async fn auth_methods(
        &self,
        client: AcpClientCapabilities,
        shell: &Shell,
    ) -> Result<Vec<AuthMethod>, ExternalAgentError> {
        let (agent, _messages) = self.start(shell).await?;
        let answered = tokio::time::timeout(METHODS_LIMIT, initialize(agent.peer(), client)).await;
        agent.program().end().await;
        let late = ExternalAgentError::TimedOut("initialize", METHODS_LIMIT);
        let methods = answered.unwrap_or(Err(late))?.auth_methods;
        Ok(methods.into_iter().map(in_terminal_of_modegate).collect())
    }

    /// Returns when the agent has logged in, and is shut down. A dropped call ends the agent.
    pub async fn log_in(
        &self,
        request: &AuthenticateRequest,
        shell: &Shell,
    ) -> Result<(), ExternalAgentError> {
        let (agent, _messages) = self.start(shell).await?;
        let log_in = async {
            initialize(agent.peer(), AcpClientCapabilities::new()).await?;
            // Some agents answer with null.
            agent.peer().call::<IgnoredAny>("authenticate", request, OnSuccess::Ignore).await
        };
        let late = ExternalAgentError::TimedOut("authenticate", LOGIN_LIMIT);
        let done = tokio::time::timeout(LOGIN_LIMIT, log_in).await.unwrap_or(Err(late));
        agent.peer().send(ConnectionCommand::CloseInput);
        agent.program().shut_down().await;
        done.map(|_| ())
    }

    /// The messages of the agent are dropped with the client's end.
    async fn start(&self, shell: &Shell) -> Result<(StartingAgent, ClientEnd), ExternalAgentError> {
        let request = StartRequest {
            name: self.id.clone(),
            definition: self.definition.clone(),
            sandboxed: true,
            policy: BrokerPolicy::Nothing,
            cwd: self.cwd.clone(),
            directories: Vec::new(),
            servers: Vec::new(),
            capabilities: ClientCapabilities::default(),
            load: None,
            record: None,
        };
        let (client, messages) = client::channel();
        let session = SessionId::new(self.id.as_str());
        let agent = StartingAgent::spawn(request, shell, session, client).await?;
        Ok((agent, messages))
    }
}

async fn initialize(
    peer: &Peer,
    client: AcpClientCapabilities,
) -> Result<InitializeResponse, ExternalAgentError> {
    let request =
        InitializeRequest::new(ProtocolVersion::V1).client_capabilities(client).client_info(implementation());
    peer.call("initialize", &request, OnSuccess::Ignore).await
}

/// The client appends the arguments of a login to the command of `modegate wrap`.
fn in_terminal_of_modegate(mut method: AuthMethod) -> AuthMethod {
    if let AuthMethod::Terminal(terminal) = &mut method {
        terminal.args.insert(0, LOGIN_ARGUMENT.to_owned());
    }
    method
}
