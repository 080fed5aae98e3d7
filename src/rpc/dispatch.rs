//! Table of ACP methods, each with a thin handler.
//!
//! A handler posts to a session's mailbox before its first await: the connection polls it once in place and
//! only then reads the next line.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use jsonrpsee::RpcModule;
use jsonrpsee::core::server::{Methods, ResponsePayload};
use jsonrpsee_types::{ErrorObjectOwned, Params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Call;
use crate::acp::{
    AuthenticateRequest, AuthenticateResponse, CancelNotification, CloseSessionRequest, CloseSessionResponse,
    DeleteSessionRequest, DeleteSessionResponse, ForkSessionRequest, ForkSessionResponse, InitializeRequest,
    InitializeResponse, ListSessionsRequest, ListSessionsResponse, LoadSessionRequest, LoadSessionResponse,
    Meta, NewSessionRequest, NewSessionResponse, PromptRequest, PromptResponse, ResumeSessionRequest,
    ResumeSessionResponse, SessionId, SetSessionConfigOptionRequest, SetSessionConfigOptionResponse,
    SetSessionModeRequest, SetSessionModeResponse,
};
use crate::agent::Agent;
use crate::error::AgentError;
use crate::session::{PromptOptions, TraceContext, head_meta};

/// Whether a prompt joins a running turn.
const STEER_META: &str = "modegate/steer";

/// The connection handles it, because it knows the calls in flight.
pub const CANCEL_REQUEST: &str = "$/cancel_request";

pub fn requests(agent: Arc<Agent>) -> Methods {
    let mut table = RpcModule::from_arc(agent);
    row(&mut table, "initialize", initialize);
    row(&mut table, "authenticate", authenticate);
    row_with_payload(&mut table, "session/new", new_session);
    row_with_payload(&mut table, "session/load", load_session);
    row_with_payload(&mut table, "session/resume", resume_session);
    row_with_payload(&mut table, "session/fork", fork_session);
    row(&mut table, "session/list", list_sessions);
    row(&mut table, "session/close", close_session);
    row(&mut table, "session/delete", delete_session);
    row_with_payload(&mut table, "session/prompt", prompt);
    row(&mut table, "session/set_mode", set_mode);
    row(&mut table, "session/set_config_option", set_config_option);
    table.into()
}

pub fn notifications(agent: Arc<Agent>) -> Methods {
    let mut table = RpcModule::from_arc(agent);
    row(&mut table, "session/cancel", cancel);
    table.into()
}

async fn initialize(
    agent: Arc<Agent>,
    request: InitializeRequest,
    _: Call,
) -> Result<InitializeResponse, AgentError> {
    Ok(agent.initialize(&request))
}

async fn authenticate(
    agent: Arc<Agent>,
    request: AuthenticateRequest,
    _: Call,
) -> Result<AuthenticateResponse, AgentError> {
    agent.authenticate(&request).await
}

async fn new_session(
    agent: Arc<Agent>,
    request: NewSessionRequest,
    _: Call,
) -> Result<ResponsePayload<'static, NewSessionResponse>, AgentError> {
    let response = agent.new_session(&request).await?;
    let id = response.session_id.clone();
    // Store first: any process may load a session whose id it knows.
    agent.session(&id)?.recorded().await;
    announcing_commands(&agent, &id, response)
}

async fn load_session(
    agent: Arc<Agent>,
    request: LoadSessionRequest,
    _: Call,
) -> Result<ResponsePayload<'static, LoadSessionResponse>, AgentError> {
    let response = agent.load_session(&request).await?;
    announcing_commands(&agent, &request.session_id, response)
}

async fn resume_session(
    agent: Arc<Agent>,
    request: ResumeSessionRequest,
    _: Call,
) -> Result<ResponsePayload<'static, ResumeSessionResponse>, AgentError> {
    let response = agent.resume_session(&request).await?;
    announcing_commands(&agent, &request.session_id, response)
}

async fn fork_session(
    agent: Arc<Agent>,
    request: ForkSessionRequest,
    _: Call,
) -> Result<ResponsePayload<'static, ForkSessionResponse>, AgentError> {
    let response = agent.fork_session(&request).await?;
    let id = response.session_id.clone();
    announcing_commands(&agent, &id, response)
}

/// The session announces its commands after the response.
fn announcing_commands<R: Serialize + Clone>(
    agent: &Agent,
    id: &SessionId,
    response: R,
) -> Result<ResponsePayload<'static, R>, AgentError> {
    let session = agent.session(id)?;
    let (payload, answered) = ResponsePayload::success(response).notify_on_completion();
    session.announce_commands(answered.map(drop).boxed());
    Ok(payload)
}

async fn list_sessions(
    agent: Arc<Agent>,
    request: ListSessionsRequest,
    _: Call,
) -> Result<ListSessionsResponse, AgentError> {
    agent.list_sessions(&request).await
}

async fn close_session(
    agent: Arc<Agent>,
    request: CloseSessionRequest,
    _: Call,
) -> Result<CloseSessionResponse, AgentError> {
    agent.close_session(&request).await
}

async fn delete_session(
    agent: Arc<Agent>,
    request: DeleteSessionRequest,
    _: Call,
) -> Result<DeleteSessionResponse, AgentError> {
    agent.delete_session(&request).await
}

async fn prompt(
    agent: Arc<Agent>,
    request: PromptRequest,
    call: Call,
) -> Result<ResponsePayload<'static, PromptResponse>, AgentError> {
    let session = agent.session(&request.session_id)?;
    let steers = steers(request.meta.as_ref())?;
    let trace = TraceContext::from_meta(request.meta.as_ref());
    let end = session.prompt(request.prompt, PromptOptions { steers, trace }, call.cancel).await?;
    let (payload, answered) = ResponsePayload::success(
        PromptResponse::new(end.reason.stop_reason()).meta(end.head.as_ref().map(head_meta)),
    )
    .notify_on_completion();
    tokio::spawn(async move {
        // Dropping `end` lets the next prompt begin, so wait until the answer is written or lost.
        let _ = answered.await;
        drop(end);
    });
    Ok(payload)
}

/// Returns `None` if the prompt leaves it to the user's setting whether it joins a running turn.
fn steers(meta: Option<&Meta>) -> Result<Option<bool>, AgentError> {
    match meta.and_then(|meta| meta.get(STEER_META)) {
        None => Ok(None),
        Some(Value::Bool(steers)) => Ok(Some(*steers)),
        Some(_) => {
            let message = format!("_meta[{STEER_META:?}] is true or false");
            Err(AgentError::invalid_params(message, json!({ "expected": "a boolean" })))
        }
    }
}

async fn set_mode(
    agent: Arc<Agent>,
    request: SetSessionModeRequest,
    _: Call,
) -> Result<SetSessionModeResponse, AgentError> {
    let session = agent.session(&request.session_id)?;
    session.set_mode(request.mode_id).await
}

async fn set_config_option(
    agent: Arc<Agent>,
    request: SetSessionConfigOptionRequest,
    _: Call,
) -> Result<SetSessionConfigOptionResponse, AgentError> {
    let session = agent.session(&request.session_id)?;
    session.set_config_option(request.config_id, request.value).await
}

async fn cancel(agent: Arc<Agent>, request: CancelNotification, _: Call) -> Result<(), AgentError> {
    agent.session(&request.session_id)?.cancel();
    Ok(())
}

fn row<P, R, F>(table: &mut RpcModule<Agent>, method: &'static str, handler: fn(Arc<Agent>, P, Call) -> F)
where
    P: DeserializeOwned + Send + 'static,
    R: Serialize + Clone + Send + 'static,
    F: Future<Output = Result<R, AgentError>> + Send + 'static,
{
    register(table, method, move |agent, params, call| async move {
        Ok(ResponsePayload::success(handler(agent, params, call).await?))
    });
}

/// Adds a method whose handler acts after its answer is sent.
fn row_with_payload<P, R, F>(
    table: &mut RpcModule<Agent>,
    method: &'static str,
    handler: fn(Arc<Agent>, P, Call) -> F,
) where
    P: DeserializeOwned + Send + 'static,
    R: Serialize + Clone + Send + 'static,
    F: Future<Output = Result<ResponsePayload<'static, R>, AgentError>> + Send + 'static,
{
    register(table, method, handler);
}

fn register<P, R, F>(
    table: &mut RpcModule<Agent>,
    method: &'static str,
    handler: impl Fn(Arc<Agent>, P, Call) -> F + Copy + Send + Sync + 'static,
) where
    P: DeserializeOwned + Send + 'static,
    R: Serialize + Clone + Send + 'static,
    F: Future<Output = Result<ResponsePayload<'static, R>, AgentError>> + Send + 'static,
{
    let row = table.register_async_method(method, move |params, agent, extensions| {
        let call = extensions.get::<Call>().cloned();
        async move {
            let answer = async { handler(agent, parse(&params)?, call.ok_or(AgentError::Internal)?).await };
            answer.await.unwrap_or_else(|error| ResponsePayload::error(ErrorObjectOwned::from(error)))
        }
    });
    row.expect("each method has one row");
}

fn parse<P: DeserializeOwned>(params: &Params<'_>) -> Result<P, AgentError> {
    let text = params.as_str().unwrap_or("{}").trim_ascii();
    if !text.starts_with('{') {
        return Err(AgentError::invalid_params("params is an object", json!({ "expected": "object" })));
    }
    serde_json::from_str(text).map_err(|error| {
        AgentError::invalid_params(
            "the parameters do not fit the method",
            json!({ "reason": error.to_string() }),
        )
    })
}
