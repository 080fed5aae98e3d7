//! Table of ACP methods. A handler posts to a session's mailbox before its first await: the connection polls
//! it once in place and only then reads the next line.

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use jsonrpsee::RpcModule;
use jsonrpsee::core::server::{Methods, ResponsePayload};
use jsonrpsee_types::{ErrorObjectOwned, Params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::acp::{
    AuthenticateRequest, CancelNotification, CloseSessionRequest, DeleteSessionRequest, ForkSessionRequest,
    InitializeRequest, ListSessionsRequest, LoadSessionRequest, LogoutRequest, LogoutResponse, Meta,
    NewSessionRequest, NewSessionResponse, PromptRequest, PromptResponse, ResumeSessionRequest, SessionId,
    SetSessionConfigOptionRequest, SetSessionModeRequest,
};
use crate::agent::{Agent, unless_cancelled};
use crate::error::AgentError;
use crate::session::{PromptOptions, TraceContext, head_meta};

/// Whether a prompt joins a running turn.
const STEER_META: &str = "modegate/steer";

/// The connection handles it, because it knows the calls in flight.
pub const CANCEL_REQUEST: &str = "$/cancel_request";

pub fn requests(agent: Arc<Agent>) -> Methods {
    let mut table = RpcModule::from_arc(agent);
    row(&mut table, "initialize", |agent: Arc<Agent>, request: InitializeRequest, cancel| async move {
        let mut response = agent.initialize(&request);
        let methods = async { Ok(agent.wrapped_auth_methods(&request).await) };
        response.auth_methods.extend(unless_cancelled(&cancel, methods).await?);
        Ok(response)
    });
    row(&mut table, "authenticate", |agent: Arc<Agent>, request: AuthenticateRequest, cancel| async move {
        unless_cancelled(&cancel, agent.authenticate(&request)).await
    });
    row(&mut table, "logout", |agent: Arc<Agent>, _: LogoutRequest, _| async move {
        if !agent.offers_logout() {
            return Err(AgentError::MethodNotFound { method: "logout".to_owned() });
        }
        agent.log_out();
        Ok(LogoutResponse::new())
    });
    row_with_payload(&mut table, "session/new", |agent: Arc<Agent>, request, cancel| async move {
        let response = created(&agent, &request, &cancel).await?;
        let id = response.session_id.clone();
        announcing_commands(&agent, &id, response)
    });
    row_with_payload(&mut table, "session/load", |agent, request: LoadSessionRequest, cancel| async move {
        let response = agent.load_session(&request, &cancel).await?;
        announcing_commands(&agent, &request.session_id, response)
    });
    row_with_payload(
        &mut table,
        "session/resume",
        |agent, request: ResumeSessionRequest, cancel| async move {
            let response = agent.resume_session(&request, &cancel).await?;
            announcing_commands(&agent, &request.session_id, response)
        },
    );
    row_with_payload(&mut table, "session/fork", |agent, request: ForkSessionRequest, cancel| async move {
        let response = agent.fork_session(&request, &cancel).await?;
        let id = response.session_id.clone();
        delete_if_cancelled(&agent, &id, &cancel).await?;
        announcing_commands(&agent, &id, response)
    });
    row(&mut table, "session/list", |agent: Arc<Agent>, request: ListSessionsRequest, cancel| async move {
        unless_cancelled(&cancel, agent.list_sessions(&request)).await
    });
    row(&mut table, "session/close", |agent, request: CloseSessionRequest, _| async move {
        agent.close_session(&request).await
    });
    row(&mut table, "session/delete", |agent, request: DeleteSessionRequest, _| async move {
        agent.delete_session(&request).await
    });
    row_with_payload(&mut table, "session/prompt", prompt);
    row(&mut table, "session/set_mode", |agent, request: SetSessionModeRequest, cancel| async move {
        agent.session(&request.session_id)?.set_mode(request.mode_id, &cancel).await
    });
    row(
        &mut table,
        "session/set_config_option",
        |agent, request: SetSessionConfigOptionRequest, cancel| async move {
            let session = agent.session(&request.session_id)?;
            session.set_config_option(request.config_id, request.value, &cancel).await
        },
    );
    table.into()
}

pub fn notifications(agent: Arc<Agent>) -> Methods {
    let mut table = RpcModule::from_arc(agent);
    row(&mut table, "session/cancel", |agent, request: CancelNotification, _| async move {
        agent.session(&request.session_id)?.cancel();
        Ok(())
    });
    table.into()
}

/// Creates a session and stores it, because any process may load a session whose id it knows.
pub(super) async fn created(
    agent: &Agent,
    request: &NewSessionRequest,
    cancel: &CancellationToken,
) -> Result<NewSessionResponse, AgentError> {
    let response = agent.new_session(request, cancel).await?;
    agent.session(&response.session_id)?.recorded().await;
    delete_if_cancelled(agent, &response.session_id, cancel).await?;
    Ok(response)
}

/// Deletes a new session of a cancelled request, because its client does not learn the id.
async fn delete_if_cancelled(
    agent: &Agent,
    id: &SessionId,
    cancel: &CancellationToken,
) -> Result<(), AgentError> {
    if !cancel.is_cancelled() {
        return Ok(());
    }
    agent.delete_session(&DeleteSessionRequest::new(id.clone())).await?;
    Err(AgentError::Cancelled)
}

/// The session announces its commands after the response.
fn announcing_commands<R: Serialize + Clone>(
    agent: &Agent,
    id: &SessionId,
    response: R,
) -> Result<ResponsePayload<'static, R>, AgentError> {
    announcing(agent, id, response, false)
}

/// The session may send its first updates after the response.
pub(super) fn announcing<R: Serialize + Clone>(
    agent: &Agent,
    id: &SessionId,
    response: R,
    has_commands: bool,
) -> Result<ResponsePayload<'static, R>, AgentError> {
    let session = agent.session(id)?;
    let (payload, answered) = ResponsePayload::success(response).notify_on_completion();
    session.announce(answered.map(drop).boxed(), has_commands);
    Ok(payload)
}

async fn prompt(
    agent: Arc<Agent>,
    request: PromptRequest,
    cancel: CancellationToken,
) -> Result<ResponsePayload<'static, PromptResponse>, AgentError> {
    agent.check_login()?;
    let session = agent.session(&request.session_id)?;
    let steers = steers(request.meta.as_ref())?;
    let trace = TraceContext::from_meta(request.meta.as_ref());
    let end =
        session.prompt(request.prompt, PromptOptions { steers, trace, typed_blocks: None }, cancel).await?;
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
pub(super) fn steers(meta: Option<&Meta>) -> Result<Option<bool>, AgentError> {
    match meta.and_then(|meta| meta.get(STEER_META)) {
        None => Ok(None),
        Some(Value::Bool(steers)) => Ok(Some(*steers)),
        Some(_) => {
            let message = format!("_meta[{STEER_META:?}] is true or false");
            Err(AgentError::invalid_params(message, json!({ "expected": "a boolean" })))
        }
    }
}

pub(super) fn row<C, P, R, F>(
    table: &mut RpcModule<C>,
    method: &'static str,
    handler: impl Fn(Arc<C>, P, CancellationToken) -> F + Copy + Send + Sync + 'static,
) where
    C: Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    R: Serialize + Clone + Send + 'static,
    F: Future<Output = Result<R, AgentError>> + Send + 'static,
{
    row_with_payload(table, method, move |context, params, cancel| async move {
        Ok(ResponsePayload::success(handler(context, params, cancel).await?))
    });
}

/// Adds a method whose handler acts after its answer is sent.
pub(super) fn row_with_payload<C, P, R, F>(
    table: &mut RpcModule<C>,
    method: &'static str,
    handler: impl Fn(Arc<C>, P, CancellationToken) -> F + Copy + Send + Sync + 'static,
) where
    C: Send + Sync + 'static,
    P: DeserializeOwned + Send + 'static,
    R: Serialize + Clone + Send + 'static,
    F: Future<Output = Result<ResponsePayload<'static, R>, AgentError>> + Send + 'static,
{
    let row = table.register_async_method(method, move |params, context, extensions| {
        let cancel = extensions.get::<CancellationToken>().cloned();
        async move {
            let answer = async {
                let parsed = parse(&params)?;
                // A prompt may have many megabytes, and its handler waits for a turn.
                drop(params);
                handler(context, parsed, cancel.ok_or(AgentError::Internal)?).await
            };
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
