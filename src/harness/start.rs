//! Starting a harness: its process, held or not; what both sides can do; its session, new or of old.

use std::future::Future;
use std::time::Duration;

use super::command::Means;
use super::talk::Talk;
use super::{Harness, HarnessError, Inner, Line, NotBegun, Order};
use crate::acp::{
    AgentCapabilities, ClientCapabilities, ElicitationCapabilities, ElicitationFormCapabilities,
    ElicitationUrlCapabilities, FileSystemCapabilities, Implementation, InitializeRequest,
    InitializeResponse, LoadSessionRequest, LoadSessionResponse, McpServer, NewSessionRequest,
    NewSessionResponse, ProtocolVersion, SessionId,
};
use crate::client::{Abilities, Client};
use crate::process::program::Program;
use crate::process::secrets::Secrets;
use crate::process::shell::{Hold, Shell};
use crate::process::{Command, Errors, Process};

/// How long all of it may take.
const BOUND: Duration = Duration::from_secs(30);

/// See [`Harness::start`].
pub async fn start(
    order: Order,
    shell: &Shell,
    (session, client): (SessionId, Client),
    unwanted: impl Future<Output = ()>,
) -> Result<Harness, NotBegun> {
    let not_started = |text| NotBegun { error: HarnessError::NotStarted(text), is_gone: true };
    let mut process = process(&order, shell).await.map_err(not_started)?;
    // It was started to be spoken to.
    let speech = process.take_speech().ok_or_else(|| not_started("it cannot be spoken to".into()))?;
    let secrets = Secrets::new(order.definition.env.values());
    let program = Program::keep(&order.name, process, secrets.clone());
    let (commands, said) =
        Talk::begin(order.name.clone(), speech, program.clone(), (client, session, order.abilities));
    let line = Line { commands, said, program, secrets };
    let begun = tokio::select! {
        biased;
        () = unwanted => Err(HarnessError::NotStarted("it is not wanted any more".into())),
        begun = tokio::time::timeout(BOUND, begin(&line, &order)) => {
            begun.unwrap_or(Err(HarnessError::Late("what it needs to begin", BOUND)))
        }
    };
    match begun {
        Ok((its_session, can)) => {
            let (can_load, takes) = (can.load_session, can.prompt_capabilities);
            Ok(Harness(std::sync::Arc::new(Inner { line, its_session, can_load, takes })))
        }
        Err(error) => Err(NotBegun { error, is_gone: line.program.end().await }),
    }
}

async fn process(order: &Order, shell: &Shell) -> Result<Process, String> {
    let definition = &order.definition;
    if let Some(fault) = definition.fault() {
        return Err(fault.into());
    }
    if let Some(variable) = &definition.missing {
        return Err(format!("there is no variable {variable}"));
    }
    let mut arguments = definition.args.clone();
    let hold = if order.held {
        let sandbox = definition.sandbox.as_ref();
        let sandbox =
            sandbox.ok_or("it is to be held, and its entry does not say what it may write (`sandbox`)")?;
        arguments.extend(sandbox.args.iter().cloned());
        let roots: Vec<_> = std::iter::once(&order.cwd).chain(&order.directories).cloned().collect();
        shell.agent(&roots, &sandbox.state_dirs)?
    } else {
        Hold::none()
    };
    let own = definition.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    let command = Command {
        program: definition.command.clone(),
        arguments,
        cwd: order.cwd.clone(),
        // The usual, and nothing else of Modegate's own, where keys are.
        environment: (!definition.inherits).then(|| shell.environment().to_vec()),
        settings: &[],
        confinement: hold.confinement().clone(),
        errors: Errors::Apart,
        is_spoken_to: true,
        own: own.collect(),
        keeps_terminal: false,
    };
    shell.processes().start(command).await.map_err(|error| error.to_string())
}

/// Its session's id, and what it can do.
async fn begin(line: &Line, order: &Order) -> Result<(SessionId, AgentCapabilities), HarnessError> {
    let about = Implementation::new("modegate", env!("CARGO_PKG_VERSION")).title("Modegate".to_owned());
    let request = InitializeRequest::new(ProtocolVersion::V1)
        .client_capabilities(capabilities(order.abilities))
        .client_info(about);
    let its: InitializeResponse = line.call("initialize", &request, Means::Nothing).await?;
    if its.protocol_version != ProtocolVersion::V1 {
        return Err(HarnessError::Strange("it speaks another version of the protocol than 1".into()));
    }
    let can = its.agent_capabilities;
    let servers = taken(&order.servers, &can, &order.name);
    let takes_directories = can.session_capabilities.additional_directories.is_some();
    let directories = if takes_directories { order.directories.clone() } else { Vec::new() };
    let Some(id) = &order.load else {
        let request = NewSessionRequest::new(order.cwd.clone())
            .mcp_servers(servers)
            .additional_directories(directories);
        let begun: NewSessionResponse = line.call("session/new", &request, Means::Begun(None)).await?;
        return Ok((begun.session_id, can));
    };
    if !can.load_session {
        return Err(HarnessError::CannotLoad);
    }
    let id = SessionId::new(id.as_str());
    let request = LoadSessionRequest::new(id.clone(), order.cwd.clone())
        .mcp_servers(servers)
        .additional_directories(directories);
    // Older ones answer with null.
    let _: Option<LoadSessionResponse> =
        line.call("session/load", &request, Means::Begun(Some(id.clone()))).await?;
    Ok((id, can))
}

/// What it is told that the client can do (F1, E1).
fn capabilities(can: Abilities) -> ClientCapabilities {
    let files = FileSystemCapabilities::new().read_text_file(can.reads).write_text_file(can.writes);
    let mut questions = ElicitationCapabilities::new();
    if can.forms {
        questions = questions.form(ElicitationFormCapabilities::new());
    }
    if can.urls {
        questions = questions.url(ElicitationUrlCapabilities::new());
    }
    let all = ClientCapabilities::new().fs(files).terminal(can.terminals);
    if can.forms || can.urls { all.elicitation(questions) } else { all }
}

/// The servers that it can reach (S3).
fn taken(servers: &[McpServer], can: &AgentCapabilities, name: &str) -> Vec<McpServer> {
    let reaches = |server: &&McpServer| match server {
        McpServer::Http(_) => can.mcp_capabilities.http,
        McpServer::Sse(_) => can.mcp_capabilities.sse,
        // Every agent starts programs; the schema may grow.
        _ => true,
    };
    let taken: Vec<_> = servers.iter().filter(reaches).cloned().collect();
    if taken.len() < servers.len() {
        let left_out = servers.len() - taken.len();
        tracing::warn!(harness = name, left_out, "MCP servers that it cannot reach are left out");
    }
    taken
}
