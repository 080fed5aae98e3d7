//! Requests to the client, one variant per method.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::acp::{
    CreateElicitationRequest, CreateElicitationResponse, ReadTextFileRequest, ReadTextFileResponse,
    RequestPermissionRequest, RequestPermissionResponse, SessionId, WriteTextFileRequest,
    WriteTextFileResponse,
};

/// Serialises as the parameters only; see [`Self::method`].
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ClientRequest {
    RequestPermission(Box<RequestPermissionRequest>),
    ReadTextFile(ReadTextFileRequest),
    WriteTextFile(WriteTextFileRequest),
    CreateElicitation(Box<CreateElicitationRequest>),
}

impl ClientRequest {
    #[must_use]
    pub fn of_session(mut self, session: &SessionId) -> Self {
        let session = session.clone();
        match &mut self {
            Self::RequestPermission(request) => request.session_id = session,
            Self::ReadTextFile(request) => request.session_id = session,
            Self::WriteTextFile(request) => request.session_id = session,
            // Sub-agents send no elicitations.
            Self::CreateElicitation(_) => {}
        }
        self
    }

    pub fn method(&self) -> &'static str {
        match self {
            Self::RequestPermission(_) => "session/request_permission",
            Self::ReadTextFile(_) => "fs/read_text_file",
            Self::WriteTextFile(_) => "fs/write_text_file",
            Self::CreateElicitation(_) => "elicitation/create",
        }
    }
}

pub trait ClientQuestion: Into<ClientRequest> {
    type Answer: DeserializeOwned;
}

impl ClientQuestion for RequestPermissionRequest {
    type Answer = RequestPermissionResponse;
}

impl From<RequestPermissionRequest> for ClientRequest {
    fn from(request: RequestPermissionRequest) -> Self {
        Self::RequestPermission(Box::new(request))
    }
}

impl ClientQuestion for ReadTextFileRequest {
    type Answer = ReadTextFileResponse;
}

impl From<ReadTextFileRequest> for ClientRequest {
    fn from(request: ReadTextFileRequest) -> Self {
        Self::ReadTextFile(request)
    }
}

impl ClientQuestion for WriteTextFileRequest {
    // Older clients answer with null, as an earlier ACP page specified.
    type Answer = Option<WriteTextFileResponse>;
}

impl From<WriteTextFileRequest> for ClientRequest {
    fn from(request: WriteTextFileRequest) -> Self {
        Self::WriteTextFile(request)
    }
}

impl ClientQuestion for CreateElicitationRequest {
    type Answer = CreateElicitationResponse;
}

impl From<CreateElicitationRequest> for ClientRequest {
    fn from(request: CreateElicitationRequest) -> Self {
        Self::CreateElicitation(Box::new(request))
    }
}
