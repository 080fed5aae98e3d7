//! Converts requests of version 2 to those of version 1, which the agent handles. Pure.

use std::collections::HashSet;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::acp::{
    AuthenticateRequest, ContentBlock, InitializeRequest, ListSessionsRequest, LoadSessionRequest, McpServer,
    NewSessionRequest, ResumeSessionRequest, SessionConfigOptionValue, SessionId, SystemPrompt, v2,
};
use crate::error::AgentError;

/// A client of version 2 shows all updates and terminals, and it has no files that the agent could read.
pub(super) fn initialize(params: Value) -> Result<InitializeRequest, AgentError> {
    let request: v2::InitializeRequest = read("initialize", params)?;
    let v2::ClientCapabilities { auth, elicitation, meta, .. } = request.capabilities;
    let mut meta = meta.unwrap_or_default();
    meta.insert("terminal_output".to_owned(), Value::Bool(true));
    let params = json!({
        "protocolVersion": 1,
        "clientInfo": request.info,
        "clientCapabilities": {
            "auth": { "terminal": auth.is_some_and(|auth| auth.terminal.is_some()) },
            "elicitation": elicitation,
            "session": { "notices": {}, "compaction": {} },
            "_meta": meta,
        },
    });
    read("initialize", params)
}

pub(super) fn login(request: v2::LoginAuthRequest) -> AuthenticateRequest {
    AuthenticateRequest::new(request.method_id.0)
}

pub(super) fn new_session(request: v2::NewSessionRequest) -> Result<NewSessionRequest, AgentError> {
    let v2::NewSessionRequest { cwd, additional_directories, mcp_servers, system_prompt, meta, .. } = request;
    Ok(NewSessionRequest::new(cwd.0)
        .additional_directories(additional_directories.into_iter().map(|path| path.0).collect())
        .mcp_servers(servers(&mcp_servers)?)
        .system_prompt(prompt_of_client(system_prompt)?)
        .meta(meta))
}

/// Opening a session with or without its history.
pub(super) enum OpenRequest {
    Load(LoadSessionRequest),
    Resume(ResumeSessionRequest),
}

pub(super) fn resume_session(request: v2::ResumeSessionRequest) -> Result<OpenRequest, AgentError> {
    let v2::ResumeSessionRequest {
        session_id,
        cwd,
        additional_directories,
        mcp_servers,
        replay_from,
        system_prompt,
        meta,
        ..
    } = request;
    let session = SessionId::new(session_id.0);
    let directories = additional_directories.into_iter().map(|path| path.0).collect();
    let (servers, system_prompt) = (servers(&mcp_servers)?, prompt_of_client(system_prompt)?);
    match replay_from {
        None => Ok(OpenRequest::Resume(
            ResumeSessionRequest::new(session, cwd.0)
                .additional_directories(directories)
                .mcp_servers(servers)
                .system_prompt(system_prompt)
                .meta(meta),
        )),
        Some(v2::ReplayFrom::Start(_)) => Ok(OpenRequest::Load(
            LoadSessionRequest::new(session, cwd.0)
                .additional_directories(directories)
                .mcp_servers(servers)
                .system_prompt(system_prompt)
                .meta(meta),
        )),
        Some(_) => Err(AgentError::invalid_params(
            "the history can be replayed only from the start",
            json!({ "replayFrom": { "type": "start" } }),
        )),
    }
}

pub(super) fn list_sessions(request: v2::ListSessionsRequest) -> ListSessionsRequest {
    ListSessionsRequest::new()
        .cwd(request.cwd.map(|cwd| cwd.0))
        .cursor(request.cursor.map(|cursor| cursor.0.to_string()))
}

pub(super) fn prompt(content: &[v2::ContentBlock]) -> Result<Vec<ContentBlock>, AgentError> {
    read("prompt", content)
}

pub(super) fn option_value(
    value: v2::SessionConfigOptionValue,
) -> Result<SessionConfigOptionValue, AgentError> {
    match value {
        v2::SessionConfigOptionValue::Id { value } => Ok(SessionConfigOptionValue::value_id(value.0)),
        v2::SessionConfigOptionValue::Boolean { value } => Ok(SessionConfigOptionValue::boolean(value)),
        _ => Err(AgentError::invalid_params(
            "the value has an unknown type",
            json!({ "type": ["id", "boolean"] }),
        )),
    }
}

fn prompt_of_client(prompt: Option<v2::SystemPrompt>) -> Result<Option<SystemPrompt>, AgentError> {
    prompt.map(|prompt| read("systemPrompt", prompt)).transpose()
}

fn servers(servers: &[v2::McpServer]) -> Result<Vec<McpServer>, AgentError> {
    let mut names = HashSet::new();
    servers
        .iter()
        .map(|server| {
            let (name, converted) = match server {
                v2::McpServer::Stdio(stdio) if !stdio.command.0.is_absolute() => {
                    let message = format!("the command of the MCP server {} is not absolute", stdio.name);
                    return Err(AgentError::invalid_params(
                        message,
                        json!({ "command": "an absolute path" }),
                    ));
                }
                v2::McpServer::Stdio(stdio) => {
                    let variables = json!({ "name": stdio.name, "command": stdio.command, "args": stdio.args,
                        "env": stdio.env, "_meta": stdio.meta });
                    (&stdio.name, read("mcpServers", variables)?)
                }
                v2::McpServer::Http(http) => {
                    let members = json!({ "type": "http", "name": http.name, "url": http.url,
                        "headers": http.headers, "_meta": http.meta });
                    (&http.name, read("mcpServers", members)?)
                }
                _ => {
                    let message = "an MCP server has an unknown transport";
                    return Err(AgentError::invalid_params(message, json!({ "type": ["stdio", "http"] })));
                }
            };
            if names.insert(name.clone()) {
                Ok(converted)
            } else {
                let message = format!("two MCP servers have the name {name}");
                Err(AgentError::invalid_params(message, json!({ "name": name })))
            }
        })
        .collect()
}

/// Reads a value as another type with the same form in JSON.
fn read<T: DeserializeOwned>(what: &str, value: impl Serialize) -> Result<T, AgentError> {
    serde_json::to_value(value).and_then(serde_json::from_value).map_err(|error| {
        let message = format!("{what} does not fit the method");
        AgentError::invalid_params(message, json!({ "reason": error.to_string() }))
    })
}
