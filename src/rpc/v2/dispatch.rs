//! Table of the methods of version 2. As in version 1, a handler posts to a session's mailbox before its first
//! await.

use std::sync::Arc;

use jsonrpsee::RpcModule;
use jsonrpsee::core::server::{Methods, ResponsePayload};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::requests::{self, OpenRequest};
use super::{responses, updates};
use crate::acp::{CloseSessionRequest, DeleteSessionRequest, SessionConfigId, SessionId, ToolCallId, v2};
use crate::agent::{Agent, unless_cancelled};
use crate::client::SessionSignal;
use crate::error::AgentError;
use crate::rpc::dispatch::{announcing, created, row, row_with_payload, steers};
use crate::session::{PromptOptions, TraceContext};

pub fn requests(agent: Arc<Agent>) -> Methods {
    let mut table = RpcModule::from_arc(agent);
    row(&mut table, "initialize", |agent: Arc<Agent>, params: Value, cancel| async move {
        let request = requests::initialize(params)?;
        let mut response = agent.initialize(&request);
        // In version 2, all clients count lines from 1.
        agent.client().set_zero_based_lines(false);
        agent.accept_all_updates();
        let methods = async { Ok(agent.wrapped_auth_methods(&request).await) };
        response.auth_methods.extend(unless_cancelled(&cancel, methods).await?);
        Ok(responses::initialize(&response))
    });
    row(&mut table, "auth/login", login);
    row(&mut table, "auth/logout", |agent: Arc<Agent>, _: v2::LogoutAuthRequest, _| async move {
        agent.log_out();
        Ok(v2::LogoutAuthResponse::new())
    });
    row_with_payload(&mut table, "session/new", new_session);
    row_with_payload(&mut table, "session/resume", resume_session);
    row(
        &mut table,
        "session/list",
        |agent: Arc<Agent>, request: v2::ListSessionsRequest, cancel| async move {
            let request = requests::list_sessions(request);
            let sessions = unless_cancelled(&cancel, agent.list_sessions(&request)).await?;
            Ok(responses::sessions(sessions))
        },
    );
    row(&mut table, "session/close", |context, request, _| close_session(context, request));
    row(&mut table, "session/delete", |agent: Arc<Agent>, request: v2::DeleteSessionRequest, _| async move {
        let session = SessionId::new(request.session_id.0);
        agent.delete_session(&DeleteSessionRequest::new(session.clone())).await?;
        signal(&agent, &session, SessionSignal::Closed);
        Ok(v2::DeleteSessionResponse::new())
    });
    row(&mut table, "session/prompt", prompt);
    row(
        &mut table,
        "session/set_config_option",
        |agent: Arc<Agent>, request: v2::SetSessionConfigOptionRequest, cancel| async move {
            let session = agent.session(&SessionId::new(request.session_id.0))?;
            let value = requests::option_value(request.value)?;
            let option = SessionConfigId::new(request.config_id.0);
            Ok(responses::set_option(session.set_config_option(option, value, &cancel).await?))
        },
    );
    row(
        &mut table,
        "tool_call/cancel",
        |agent: Arc<Agent>, request: v2::CancelToolCallRequest, cancel| async move {
            let session = agent.session(&SessionId::new(request.session_id.0))?;
            session.cancel_call(ToolCallId::new(request.tool_call_id.0), &cancel).await?;
            Ok(v2::CancelToolCallResponse::new())
        },
    );
    row(
        &mut table,
        "terminal/cancel",
        |agent: Arc<Agent>, request: v2::CancelTerminalRequest, cancel| async move {
            let session = agent.session(&SessionId::new(request.session_id.0))?;
            session.cancel_terminal(request.terminal_id.0.to_string(), &cancel).await?;
            Ok(v2::CancelTerminalResponse::new())
        },
    );
    table.into()
}

fn signal(agent: &Agent, session: &SessionId, signal: SessionSignal) {
    agent.client().signal(session.clone(), signal);
}

pub fn notifications(agent: Arc<Agent>) -> Methods {
    let mut table = RpcModule::from_arc(agent);
    row(
        &mut table,
        "session/cancel",
        |agent: Arc<Agent>, request: v2::CancelSessionNotification, _| async move {
            agent.session(&SessionId::new(request.session_id.0))?.cancel();
            Ok(())
        },
    );
    table.into()
}

async fn login(
    agent: Arc<Agent>,
    request: v2::LoginAuthRequest,
    cancel: CancellationToken,
) -> Result<v2::LoginAuthResponse, AgentError> {
    let request = requests::login(request);
    unless_cancelled(&cancel, agent.authenticate(&request)).await?;
    Ok(v2::LoginAuthResponse::new())
}

async fn new_session(
    agent: Arc<Agent>,
    request: v2::NewSessionRequest,
    cancel: CancellationToken,
) -> Result<ResponsePayload<'static, v2::NewSessionResponse>, AgentError> {
    let response = created(&agent, &requests::new_session(request)?, &cancel).await?;
    let id = response.session_id.clone();
    let commands = agent.session(&id)?.commands().await?;
    announcing(&agent, &id, responses::new_session(response, commands), true)
}

/// The state of the session precedes the answer.
async fn resume_session(
    agent: Arc<Agent>,
    request: v2::ResumeSessionRequest,
    cancel: CancellationToken,
) -> Result<ResponsePayload<'static, v2::ResumeSessionResponse>, AgentError> {
    let (id, response) = match requests::resume_session(request)? {
        OpenRequest::Load(request) => {
            let id = &request.session_id;
            signal(&agent, id, SessionSignal::ReplayRequested);
            let response = agent.load_session(&request, &cancel).await;
            let response = response.inspect_err(|_| signal(&agent, id, SessionSignal::ReplayFailed))?;
            (request.session_id, responses::loaded(response))
        }
        OpenRequest::Resume(request) => {
            let response = agent.resume_session(&request, &cancel).await?;
            (request.session_id, responses::resumed(response))
        }
    };
    // A close that comes meanwhile does not undo a replay, whose end the client has seen.
    let commands = match agent.session(&id) {
        Ok(session) => session.commands().await.ok(),
        Err(_) => None,
    };
    signal(&agent, &id, SessionSignal::StateRequested);
    match commands.filter(|_| agent.session(&id).is_ok()) {
        Some(commands) => {
            announcing(&agent, &id, response.available_commands(updates::commands(commands)), true)
        }
        None => Ok(ResponsePayload::success(response)),
    }
}

/// Closing a session that is not open succeeds.
async fn close_session(
    agent: Arc<Agent>,
    request: v2::CloseSessionRequest,
) -> Result<v2::CloseSessionResponse, AgentError> {
    let session = SessionId::new(request.session_id.0);
    let closed = agent.close_session(&CloseSessionRequest::new(session.clone())).await;
    match closed {
        Ok(response) => {
            signal(&agent, &session, SessionSignal::Closed);
            Ok(v2::CloseSessionResponse::new().meta(response.meta))
        }
        Err(AgentError::UnknownSession(_)) => Ok(v2::CloseSessionResponse::new()),
        Err(error) => Err(error),
    }
}

/// Answered when the message has its place in the history. Errors after that are stop reasons.
async fn prompt(
    agent: Arc<Agent>,
    request: v2::PromptRequest,
    cancel: CancellationToken,
) -> Result<v2::PromptResponse, AgentError> {
    agent.check_login()?;
    let session = agent.session(&SessionId::new(request.session_id.0))?;
    let steers = steers(request.meta.as_ref())?;
    let trace = TraceContext::from_meta(request.meta.as_ref());
    let blocks = requests::prompt(&request.prompt)?;
    let key = request.idempotency_key.map(|key| key.as_str().to_owned());
    let options = PromptOptions { steers, trace, typed_blocks: None };
    let message_id = session.submit(blocks, options, key, cancel).await?;
    Ok(v2::PromptResponse::new(message_id.0))
}
