//! Requests to the client, one variant per method.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::acp::{
    CreateElicitationRequest, CreateElicitationResponse, CreateTerminalRequest, CreateTerminalResponse,
    KillTerminalRequest, KillTerminalResponse, ReadTextFileRequest, ReadTextFileResponse,
    ReleaseTerminalRequest, ReleaseTerminalResponse, RequestPermissionRequest, RequestPermissionResponse,
    SessionId, TerminalOutputRequest, TerminalOutputResponse, WaitForTerminalExitRequest,
    WaitForTerminalExitResponse, WriteTextFileRequest, WriteTextFileResponse,
};

/// Serialises as the parameters only; see [`Self::method`].
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ClientRequest {
    RequestPermission(Box<RequestPermissionRequest>),
    ReadTextFile(ReadTextFileRequest),
    WriteTextFile(WriteTextFileRequest),
    CreateTerminal(Box<CreateTerminalRequest>),
    TerminalOutput(TerminalOutputRequest),
    WaitForTerminalExit(WaitForTerminalExitRequest),
    KillTerminal(KillTerminalRequest),
    ReleaseTerminal(ReleaseTerminalRequest),
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
            Self::CreateTerminal(request) => request.session_id = session,
            Self::TerminalOutput(request) => request.session_id = session,
            Self::WaitForTerminalExit(request) => request.session_id = session,
            Self::KillTerminal(request) => request.session_id = session,
            Self::ReleaseTerminal(request) => request.session_id = session,
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
            Self::CreateTerminal(_) => "terminal/create",
            Self::TerminalOutput(_) => "terminal/output",
            Self::WaitForTerminalExit(_) => "terminal/wait_for_exit",
            Self::KillTerminal(_) => "terminal/kill",
            Self::ReleaseTerminal(_) => "terminal/release",
            Self::CreateElicitation(_) => "elicitation/create",
        }
    }
}

pub trait Question: Into<ClientRequest> {
    type Answer: DeserializeOwned;
}

impl Question for RequestPermissionRequest {
    type Answer = RequestPermissionResponse;
}

impl From<RequestPermissionRequest> for ClientRequest {
    fn from(request: RequestPermissionRequest) -> Self {
        Self::RequestPermission(Box::new(request))
    }
}

impl Question for ReadTextFileRequest {
    type Answer = ReadTextFileResponse;
}

impl From<ReadTextFileRequest> for ClientRequest {
    fn from(request: ReadTextFileRequest) -> Self {
        Self::ReadTextFile(request)
    }
}

impl Question for WriteTextFileRequest {
    // Older clients answer with null, as an earlier ACP page specified.
    type Answer = Option<WriteTextFileResponse>;
}

impl From<WriteTextFileRequest> for ClientRequest {
    fn from(request: WriteTextFileRequest) -> Self {
        Self::WriteTextFile(request)
    }
}

impl Question for CreateTerminalRequest {
    type Answer = CreateTerminalResponse;
}

impl From<CreateTerminalRequest> for ClientRequest {
    fn from(request: CreateTerminalRequest) -> Self {
        Self::CreateTerminal(Box::new(request))
    }
}

impl Question for TerminalOutputRequest {
    type Answer = TerminalOutputResponse;
}

impl From<TerminalOutputRequest> for ClientRequest {
    fn from(request: TerminalOutputRequest) -> Self {
        Self::TerminalOutput(request)
    }
}

impl Question for WaitForTerminalExitRequest {
    type Answer = WaitForTerminalExitResponse;
}

impl From<WaitForTerminalExitRequest> for ClientRequest {
    fn from(request: WaitForTerminalExitRequest) -> Self {
        Self::WaitForTerminalExit(request)
    }
}

impl Question for KillTerminalRequest {
    type Answer = Option<KillTerminalResponse>;
}

impl From<KillTerminalRequest> for ClientRequest {
    fn from(request: KillTerminalRequest) -> Self {
        Self::KillTerminal(request)
    }
}

impl Question for ReleaseTerminalRequest {
    type Answer = Option<ReleaseTerminalResponse>;
}

impl From<ReleaseTerminalRequest> for ClientRequest {
    fn from(request: ReleaseTerminalRequest) -> Self {
        Self::ReleaseTerminal(request)
    }
}

impl Question for CreateElicitationRequest {
    type Answer = CreateElicitationResponse;
}

impl From<CreateElicitationRequest> for ClientRequest {
    fn from(request: CreateElicitationRequest) -> Self {
        Self::CreateElicitation(Box::new(request))
    }
}
