//! Why a server, a request to it, or a login failed, in words.

use std::error::Error;

use rmcp::service::ClientInitializeError;
use rmcp::transport::auth::AuthError;
use rmcp::transport::streamable_http_client::StreamableHttpError;
use rmcp::transport::worker::WorkerQuitReason;
use rmcp::{ErrorData, ServiceError};

use crate::http::{Http, LibraryError};
use crate::server::{ServerEntry, ServerTransport};
use crate::text::{plain, shorten};

/// Maximum characters of the reason why a server failed.
pub const MAX_WHY: usize = 500;

type HttpFailure = StreamableHttpError<LibraryError>;

/// `why` is a sentence without a full stop.
pub fn cannot_be_used(server: &str, why: &str) -> String {
    format!("The MCP server {server:?} cannot be used: {}.", plain(why, MAX_WHY))
}

pub(super) fn error_message(error: &ServiceError, entry: &ServerEntry) -> String {
    match error {
        ServiceError::TransportSend(error) => {
            request_fault(&*error.error, entry).unwrap_or_else(|| "the connection is closed".into())
        }
        ServiceError::TransportClosed => "the connection is closed".into(),
        ServiceError::McpError(error) => answered_with(error),
        _ => "its answer was invalid".into(),
    }
}

fn answered_with(error: &ErrorData) -> String {
    format!("it answered with the error {}: {}", error.code.0, shorten(&error.message, 200))
}

/// Why a request over HTTP failed, if the connection itself is not to blame.
fn request_fault(error: &(dyn Error + 'static), entry: &ServerEntry) -> Option<String> {
    match http_failure(error)? {
        StreamableHttpError::ResponseBodyTooLarge { .. } => Some("its answer is larger than 16 MiB".into()),
        StreamableHttpError::AuthRequired(_) => Some(login_needed(entry)),
        StreamableHttpError::InsufficientScope(error) => {
            let scope = error.required_scope.as_deref().unwrap_or("SCOPE");
            Some(format!(
                "the login lacks a right: run `modegate mcp login {} --scope \"{}\"`",
                login_target(entry),
                plain(scope, 200)
            ))
        }
        StreamableHttpError::Auth(error) => {
            Some(format!("its login cannot be renewed: {}", explain_login(error)))
        }
        _ => None,
    }
}

fn login_needed(entry: &ServerEntry) -> String {
    if has_own_key(entry) {
        return "it refuses the key in the header Authorization".into();
    }
    format!("it requires a login: run `modegate mcp login {}`", login_target(entry))
}

/// The name of a server of the user, or the address of one of the client.
fn login_target(entry: &ServerEntry) -> String {
    let ServerTransport::Address { url, .. } = &entry.transport else { return entry.name.clone() };
    // The rest of an address may be a key.
    let target = if entry.is_own { &entry.name } else { url.split(['?', '#']).next().unwrap_or_default() };
    if target.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:/".contains(c)) {
        target.to_owned()
    } else {
        format!("{target:?}")
    }
}

pub(super) fn has_own_key(entry: &ServerEntry) -> bool {
    let ServerTransport::Address { headers, .. } = &entry.transport else { return false };
    headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"))
}

fn http_failure<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a HttpFailure> {
    match error.downcast_ref() {
        Some(WorkerQuitReason::Fatal { error, .. }) => Some(error),
        _ => error.downcast_ref::<HttpFailure>(),
    }
}

pub(super) fn start_error(error: &ClientInitializeError, entry: &ServerEntry, http: &Http) -> String {
    match error {
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection before it answered".into(),
        ClientInitializeError::JsonRpcError(error) => answered_with(error),
        _ if error.is_authorization_required() => login_needed(entry),
        ClientInitializeError::TransportError { error, .. } => {
            if let Some(fault) = request_fault(&*error.error, entry) {
                return fault;
            }
            let text = match (http_failure(&*error.error), &entry.transport) {
                // The full error contains the URL, which may contain a key.
                (Some(StreamableHttpError::Client(error)), ServerTransport::Address { url, .. }) => {
                    http.describe(error, url)
                }
                (Some(error), _) => error.to_string(),
                (None, _) => error.error.to_string(),
            };
            format!("it cannot be reached: {}", shorten(&text, 200))
        }
        _ => "its answer is not valid MCP".into(),
    }
}

/// A sentence without a full stop.
pub(super) fn explain_login(error: &AuthError) -> String {
    let mut causes = vec![error.to_string()];
    let mut cause = Error::source(error);
    while let Some(inner) = cause {
        causes.push(inner.to_string());
        cause = inner.source();
    }
    plain(&causes.join(": "), MAX_WHY)
}
