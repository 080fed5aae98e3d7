//! What the agent asks of a client: one row a method, with the shape of its answer.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::acp::{
    CreateElicitationRequest, CreateElicitationResponse, CreateTerminalRequest, CreateTerminalResponse,
    KillTerminalRequest, KillTerminalResponse, ReadTextFileRequest, ReadTextFileResponse,
    ReleaseTerminalRequest, ReleaseTerminalResponse, RequestPermissionRequest, RequestPermissionResponse,
    SessionId, TerminalOutputRequest, TerminalOutputResponse, WaitForTerminalExitRequest,
    WaitForTerminalExitResponse, WriteTextFileRequest, WriteTextFileResponse,
};

/// A request to the client. On the wire it is its parameters; see [`Self::method`].
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ClientRequest {
    /// `session/request_permission`.
    RequestPermission(Box<RequestPermissionRequest>),
    /// `fs/read_text_file`.
    ReadTextFile(ReadTextFileRequest),
    /// `fs/write_text_file`.
    WriteTextFile(WriteTextFileRequest),
    /// `terminal/create`.
    CreateTerminal(Box<CreateTerminalRequest>),
    /// `terminal/output`.
    TerminalOutput(TerminalOutputRequest),
    /// `terminal/wait_for_exit`.
    WaitForTerminalExit(WaitForTerminalExitRequest),
    /// `terminal/kill`.
    KillTerminal(KillTerminalRequest),
    /// `terminal/release`.
    ReleaseTerminal(ReleaseTerminalRequest),
    /// `elicitation/create`.
    CreateElicitation(Box<CreateElicitationRequest>),
}

impl ClientRequest {
    /// The same request about another session.
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
            // Nobody who works for another asks the person but for permission.
            Self::CreateElicitation(_) => {}
        }
        self
    }

    /// The method by which it goes.
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

/// The parameters of a request, which know the shape of its answer.
pub trait Question: Into<ClientRequest> {
    /// What a client answers.
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
    // Older clients answer with null, as the protocol's page once had it.
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
