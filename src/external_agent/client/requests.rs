//! Passes requests of an external agent on to Modegate's client, and the answers back. Pure.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::acp::{
    CreateElicitationRequest, ElicitationMode, ElicitationScope, ReadTextFileRequest,
    RequestPermissionRequest, SessionId, WriteTextFileRequest,
};
use crate::client::{ClientCapabilities, ClientError, ClientRequest};

/// A JSON-RPC error for the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct RequestRefusal {
    pub code: i64,
    pub message: String,
}

impl RequestRefusal {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

// Error codes of ACP: https://agentclientprotocol.com/protocol/schema#errorcode
pub(super) const INVALID_REQUEST: i64 = -32600;
const NO_METHOD: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL: i64 = -32603;
const NOT_FOUND: i64 = -32002;
pub(super) const CANCELLED: i64 = -32800;

/// A session in the two connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionIds<'a> {
    pub agent: &'a SessionId,
    pub client: &'a SessionId,
}

/// Replaces the agent's session id with Modegate's. Refuses requests beyond the announced capabilities,
/// except for permissions: a client that cannot answer these refuses later.
pub(super) fn request(
    method: &str,
    params: &str,
    sessions: SessionIds<'_>,
    capabilities: ClientCapabilities,
) -> Result<ClientRequest, RequestRefusal> {
    match method {
        "session/request_permission" => {
            parse_for_session(params, sessions, |it: &mut RequestPermissionRequest| &mut it.session_id)
        }
        "fs/read_text_file" if capabilities.reads => {
            parse_for_session(params, sessions, |it: &mut ReadTextFileRequest| &mut it.session_id)
        }
        "fs/write_text_file" if capabilities.writes => {
            parse_for_session(params, sessions, |it: &mut WriteTextFileRequest| &mut it.session_id)
        }
        "elicitation/create" if capabilities.forms || capabilities.urls => {
            let mut request: CreateElicitationRequest = parse(params)?;
            let invalid = |why| Err(RequestRefusal::new(INVALID_PARAMS, why));
            let (scope, is_supported) = match &mut request.mode {
                ElicitationMode::Form(form) => (&mut form.scope, capabilities.forms),
                ElicitationMode::Url(url) => (&mut url.scope, capabilities.urls),
                // The schema may grow.
                _ => return invalid("unknown kind of elicitation"),
            };
            if !is_supported {
                return invalid("the client does not support this kind of elicitation");
            }
            match scope {
                ElicitationScope::Session(scope) => replace_session(&mut scope.session_id, sessions)?,
                _ => return invalid("only elicitations of a session are passed on"),
            }
            Ok(request.into())
        }
        _ => Err(RequestRefusal::new(NO_METHOD, format!("the client has no method {method:?}"))),
    }
}

fn parse_for_session<R: DeserializeOwned + Into<ClientRequest>>(
    params: &str,
    sessions: SessionIds<'_>,
    session: fn(&mut R) -> &mut SessionId,
) -> Result<ClientRequest, RequestRefusal> {
    let mut request: R = parse(params)?;
    replace_session(session(&mut request), sessions)?;
    Ok(request.into())
}

fn parse<R: DeserializeOwned>(params: &str) -> Result<R, RequestRefusal> {
    serde_json::from_str(params).map_err(|error| RequestRefusal::new(INVALID_PARAMS, error.to_string()))
}

fn replace_session(session: &mut SessionId, sessions: SessionIds<'_>) -> Result<(), RequestRefusal> {
    if session != sessions.agent {
        return Err(RequestRefusal::new(NOT_FOUND, "there is no such session"));
    }
    *session = sessions.client.clone();
    Ok(())
}

/// An error stays an error, so a lost client never counts as consent.
pub(super) fn to_result(answer: Result<Value, ClientError>) -> Result<Value, RequestRefusal> {
    answer.map_err(|error| {
        let code = if matches!(error, ClientError::NotFound(_)) { NOT_FOUND } else { INTERNAL };
        RequestRefusal::new(code, error.reason())
    })
}

/// The answer to permission requests of a cancelled turn.
pub(super) fn cancelled() -> Value {
    json!({ "outcome": { "outcome": "cancelled" } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ClientCapabilities = ClientCapabilities {
        shows_output: false,
        lists_background: false,
        answers: true,
        reads: true,
        writes: true,
        forms: true,
        urls: true,
        accepts_everything: false,
    };

    fn check(method: &str, params: &Value, capabilities: ClientCapabilities) -> Result<Value, i64> {
        let (agent, client) = (&SessionId::new("its"), &SessionId::new("ours"));
        let outcome = request(method, &params.to_string(), SessionIds { agent, client }, capabilities);
        outcome.map(|outcome| serde_json::to_value(&outcome).unwrap()).map_err(|refusal| refusal.code)
    }

    #[test]
    fn requests_are_forwarded_for_our_session_if_supported() {
        let form = json!({ "mode": "form", "message": "?", "sessionId": "its", "requestedSchema": { "type": "object", "properties": {} } });
        let path = json!({ "path": "/a" });
        let call = json!({ "toolCall": { "toolCallId": "c" }, "options": [] });
        for (method, params, is_always_there) in [
            ("session/request_permission", &call, true),
            ("fs/read_text_file", &path, false),
            ("fs/write_text_file", &json!({ "path": "/a", "content": "x" }), false),
            ("elicitation/create", &form, false),
        ] {
            let with = |session: &str| {
                let mut params = params.clone();
                params["sessionId"] = json!(session);
                params
            };
            let request = check(method, &with("its"), ALL).unwrap();
            assert_eq!(request["sessionId"], "ours", "{method}: {request}");
            assert_eq!(check(method, &with("other"), ALL), Err(NOT_FOUND), "{method}");
            assert_eq!(check(method, &json!(7), ALL), Err(INVALID_PARAMS), "{method}");
            let cannot = check(method, &with("its"), ClientCapabilities::default());
            assert_eq!(cannot.is_ok(), is_always_there, "{method}");
        }
        // A process in the client's terminal would outlive the agent.
        for method in ["_own/method", "terminal/create"] {
            assert_eq!(check(method, &json!({}), ALL), Err(NO_METHOD));
        }
        assert_eq!(
            check("elicitation/create", &form, ClientCapabilities { forms: false, ..ALL }),
            Err(INVALID_PARAMS)
        );
    }

    #[test]
    fn refused_elicitation_has_its_own_reason() {
        let mut form = json!({ "mode": "form", "message": "?", "requestId": 1, "requestedSchema": { "type": "object", "properties": {} } });
        let reason = |form: &Value, capabilities| {
            let (agent, client) = (&SessionId::new("its"), &SessionId::new("ours"));
            let sessions = SessionIds { agent, client };
            request("elicitation/create", &form.to_string(), sessions, capabilities)
                .map(drop)
                .map_err(|refusal| refusal.message)
        };
        assert_eq!(reason(&form, ALL), Err("only elicitations of a session are passed on".into()));
        form["sessionId"] = json!("its");
        form.as_object_mut().unwrap().remove("requestId");
        assert_eq!(reason(&form, ALL), Ok(()));
        let no_forms = ClientCapabilities { forms: false, ..ALL };
        assert_eq!(
            reason(&form, no_forms),
            Err("the client does not support this kind of elicitation".into())
        );
    }
}
