//! Table of the methods of version 2. As in version 1, a handler posts to a session's mailbox before its first
//! await.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jsonrpsee::RpcModule;
use jsonrpsee::core::server::{Methods, ResponsePayload};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::requests::{self, OpenRequest};
use super::{responses, updates};
use crate::acp::{CloseSessionRequest, DeleteSessionRequest, SessionConfigId, SessionId, ToolCallId, v2};
use crate::agent::Agent;
use crate::client::SessionSignal;
use crate::error::AgentError;
use crate::rpc::dispatch::{announcing, row, row_with_payload, steers};
use crate::session::{PromptOptions, TraceContext};

/// The agent, as clients of version 2 see it.
struct V2Agent {
    agent: Arc<Agent>,
    /// After `auth/logout`, until the next `auth/login`.
    is_logged_out: AtomicBool,
}

impl V2Agent {
    fn check_login(&self) -> Result<(), AgentError> {
        if self.is_logged_out.load(Ordering::Relaxed) {
            return Err(AgentError::AuthRequired("you are logged out: call auth/login first".into()));
        }
        Ok(())
    }

    fn signal(&self, session: &SessionId, signal: SessionSignal) {
        self.agent.client().signal(session.clone(), signal);
    }
}

pub(in crate::rpc) fn requests(agent: Arc<Agent>) -> Methods {
    let mut table = RpcModule::new(V2Agent { agent, is_logged_out: AtomicBool::new(false) });
    row(&mut table, "initialize", |context: Arc<V2Agent>, params: Value, _| async move {
        let request = requests::initialize(params)?;
        let mut response = context.agent.initialize(&request);
        response.auth_methods.extend(context.agent.wrapped_auth_methods(&request).await);
        // In version 2, all clients count lines from 1.
        context.agent.client().set_zero_based_lines(false);
        context.agent.accept_all_updates();
        Ok(responses::initialize(&response))
    });
    row(&mut table, "auth/login", |context, request, _| login(context, request));
    row(&mut table, "auth/logout", |context: Arc<V2Agent>, _: v2::LogoutAuthRequest, _| async move {
        context.is_logged_out.store(true, Ordering::Relaxed);
        Ok(v2::LogoutAuthResponse::new())
    });
    row_with_payload(&mut table, "session/new", |context, request, _| new_session(context, request));
    row_with_payload(&mut table, "session/resume", |context, request, _| resume_session(context, request));
    row(
        &mut table,
        "session/list",
        |context: Arc<V2Agent>, request: v2::ListSessionsRequest, _| async move {
            let sessions = context.agent.list_sessions(&requests::list_sessions(request)).await?;
            Ok(responses::sessions(sessions))
        },
    );
    row(&mut table, "session/close", |context, request, _| close_session(context, request));
    row(
        &mut table,
        "session/delete",
        |context: Arc<V2Agent>, request: v2::DeleteSessionRequest, _| async move {
            let session = SessionId::new(request.session_id.0);
            context.agent.delete_session(&DeleteSessionRequest::new(session.clone())).await?;
            context.signal(&session, SessionSignal::Closed);
            Ok(v2::DeleteSessionResponse::new())
        },
    );
    row(&mut table, "session/prompt", prompt);
    row(
        &mut table,
        "session/set_config_option",
        |context: Arc<V2Agent>, request: v2::SetSessionConfigOptionRequest, _| async move {
            let session = context.agent.session(&SessionId::new(request.session_id.0))?;
            let value = requests::option_value(request.value)?;
            let option = SessionConfigId::new(request.config_id.0);
            Ok(responses::set_option(session.set_config_option(option, value).await?))
        },
    );
    row(
        &mut table,
        "tool_call/cancel",
        |context: Arc<V2Agent>, request: v2::CancelToolCallRequest, _| async move {
            let session = context.agent.session(&SessionId::new(request.session_id.0))?;
            session.cancel_call(ToolCallId::new(request.tool_call_id.0)).await?;
            Ok(v2::CancelToolCallResponse::new())
        },
    );
    row(
        &mut table,
        "terminal/cancel",
        |context: Arc<V2Agent>, request: v2::CancelTerminalRequest, _| async move {
            let session = context.agent.session(&SessionId::new(request.session_id.0))?;
            session.cancel_terminal(request.terminal_id.0.to_string()).await?;
            Ok(v2::CancelTerminalResponse::new())
        },
    );
    table.into()
}

pub(in crate::rpc) fn notifications(agent: Arc<Agent>) -> Methods {
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
    context: Arc<V2Agent>,
    request: v2::LoginAuthRequest,
) -> Result<v2::LoginAuthResponse, AgentError> {
    context.agent.authenticate(&requests::login(request)).await?;
    context.is_logged_out.store(false, Ordering::Relaxed);
    Ok(v2::LoginAuthResponse::new())
}

async fn new_session(
    context: Arc<V2Agent>,
    request: v2::NewSessionRequest,
) -> Result<ResponsePayload<'static, v2::NewSessionResponse>, AgentError> {
    context.check_login()?;
    let response = context.agent.new_session(&requests::new_session(request)?).await?;
    let id = response.session_id.clone();
    // Store first: any process may load a session whose id it knows.
    context.agent.session(&id)?.recorded().await;
    let commands = context.agent.session(&id)?.commands().await?;
    announcing(&context.agent, &id, responses::new_session(response, commands), true)
}

/// The state of the session precedes the answer.
async fn resume_session(
    context: Arc<V2Agent>,
    request: v2::ResumeSessionRequest,
) -> Result<ResponsePayload<'static, v2::ResumeSessionResponse>, AgentError> {
    context.check_login()?;
    let (id, response) = match requests::resume_session(request)? {
        OpenRequest::Load(request) => {
            let id = &request.session_id;
            context.signal(id, SessionSignal::ReplayRequested);
            let response = context.agent.load_session(&request).await;
            let response = response.inspect_err(|_| context.signal(id, SessionSignal::ReplayFailed))?;
            (request.session_id, responses::loaded(response))
        }
        OpenRequest::Resume(request) => {
            let response = context.agent.resume_session(&request).await?;
            (request.session_id, responses::resumed(response))
        }
    };
    // A close that comes meanwhile does not undo a replay, whose end the client has seen.
    let commands = match context.agent.session(&id) {
        Ok(session) => session.commands().await.ok(),
        Err(_) => None,
    };
    context.signal(&id, SessionSignal::StateRequested);
    match commands.filter(|_| context.agent.session(&id).is_ok()) {
        Some(commands) => {
            announcing(&context.agent, &id, response.available_commands(updates::commands(commands)), true)
        }
        None => Ok(ResponsePayload::success(response)),
    }
}

/// Closing a session that is not open succeeds.
async fn close_session(
    context: Arc<V2Agent>,
    request: v2::CloseSessionRequest,
) -> Result<v2::CloseSessionResponse, AgentError> {
    let session = SessionId::new(request.session_id.0);
    let closed = context.agent.close_session(&CloseSessionRequest::new(session.clone())).await;
    match closed {
        Ok(response) => {
            context.signal(&session, SessionSignal::Closed);
            Ok(v2::CloseSessionResponse::new().meta(response.meta))
        }
        Err(AgentError::UnknownSession(_)) => Ok(v2::CloseSessionResponse::new()),
        Err(error) => Err(error),
    }
}

/// Answered when the message has its place in the history. Errors after that are stop reasons.
async fn prompt(
    context: Arc<V2Agent>,
    request: v2::PromptRequest,
    cancel: CancellationToken,
) -> Result<v2::PromptResponse, AgentError> {
    context.check_login()?;
    let session = context.agent.session(&SessionId::new(request.session_id.0))?;
    let steers = steers(request.meta.as_ref())?;
    let trace = TraceContext::from_meta(request.meta.as_ref());
    let blocks = requests::prompt(&request.prompt)?;
    let key = request.idempotency_key.map(|key| key.as_str().to_owned());
    let options = PromptOptions { steers, trace, typed_blocks: None };
    let message_id = session.submit(blocks, options, key, cancel).await?;
    Ok(v2::PromptResponse::new(message_id.0))
}
