//! The protocol's vocabulary under its own names, from the official schema crate. No logic.
//!
//! Everything that goes over the wire is one of these types (or, for the one message where the protocol's page and
//! its schema differ, the wrapper at the end). Other rooms import from here, never from the schema crate itself.

pub use agent_client_protocol_schema::ProtocolVersion;
pub use agent_client_protocol_schema::v1::{
    AgentCapabilities, AuthMethod, AuthMethodAgent, AuthMethodTerminal, AuthenticateRequest,
    AuthenticateResponse, AvailableCommand, AvailableCommandInput, AvailableCommandsUpdate,
    CancelNotification, CancelRequestNotification, ClientCapabilities, ClientSessionCapabilities,
    CloseSessionRequest, CloseSessionResponse, CompactionStatus, CompactionUpdate, ConfigOptionUpdate,
    Content, ContentBlock, ContentChunk, CreateElicitationRequest, CreateElicitationResponse,
    CreateTerminalRequest, CreateTerminalResponse, DeleteSessionRequest, DeleteSessionResponse, Diff,
    ElicitationAction, ElicitationCapabilities, ElicitationContentValue, ElicitationFormCapabilities,
    ElicitationFormMode, ElicitationMode, ElicitationSchema, ElicitationScope, ElicitationSessionScope,
    ElicitationUrlCapabilities, ElicitationUrlMode, EmbeddedResourceResource, EnumOption, EnvVariable,
    FileSystemCapabilities, ForkSessionRequest, ForkSessionResponse, ImageContent, Implementation,
    InitializeRequest, InitializeResponse, KillTerminalRequest, KillTerminalResponse, ListSessionsRequest,
    ListSessionsResponse, LoadSessionRequest, LoadSessionResponse, McpCapabilities, McpServer, McpServerHttp,
    McpServerSse, McpServerStdio, MessageId, Meta, NewSessionRequest, NewSessionResponse, PermissionOption,
    PermissionOptionId, PermissionOptionKind, Plan, PlanEntry, PlanEntryPriority, PlanEntryStatus,
    PromptCapabilities, PromptRequest, PromptResponse, ReadTextFileRequest, ReadTextFileResponse,
    ReleaseTerminalRequest, ReleaseTerminalResponse, RequestId, RequestPermissionOutcome,
    RequestPermissionRequest, RequestPermissionResponse, ResourceLink, ResumeSessionRequest,
    ResumeSessionResponse, SelectedPermissionOutcome, SessionAdditionalDirectoriesCapabilities,
    SessionCapabilities, SessionCloseCapabilities, SessionConfigId, SessionConfigKind, SessionConfigOption,
    SessionConfigOptionCategory, SessionConfigOptionValue, SessionConfigSelectOption,
    SessionConfigSelectOptions, SessionDeleteCapabilities, SessionForkCapabilities, SessionId, SessionInfo,
    SessionInfoUpdate, SessionListCapabilities, SessionMode, SessionModeId, SessionModeState,
    SessionResumeCapabilities, SessionUpdate, SetSessionConfigOptionRequest, SetSessionConfigOptionResponse,
    SetSessionModeRequest, SetSessionModeResponse, StopReason, StringPropertySchema, Terminal, TerminalId,
    TerminalOutputRequest, TerminalOutputResponse, TextContent, ToolCall, ToolCallContent, ToolCallId,
    ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
    UnstructuredCommandInput, UsageUpdate, WaitForTerminalExitRequest, WaitForTerminalExitResponse,
    WriteTextFileRequest, WriteTextFileResponse,
};

use serde::Serialize;

/// `session/update`, as it is sent: a session's id and what happened in it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionNotification {
    /// The session that the update belongs to.
    pub session_id: SessionId,
    /// What happened.
    pub update: Update,
}

/// An update: one of the schema's own, or the mode change with both spellings of its key.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Update {
    /// Any update of the schema.
    Schema(Box<SessionUpdate>),
    /// `current_mode_update`; see [`CurrentModeUpdate`].
    CurrentMode(CurrentModeUpdate),
}

impl From<SessionUpdate> for Update {
    fn from(update: SessionUpdate) -> Self {
        Self::Schema(Box::new(update))
    }
}

/// `current_mode_update` with `currentModeId`, which the schema requires and every client reads, and `modeId`, which
/// the protocol's page on session modes shows.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "sessionUpdate", rename = "current_mode_update", rename_all = "camelCase")]
pub struct CurrentModeUpdate {
    /// The mode that is on now.
    pub current_mode_id: SessionModeId,
    /// The same mode, under the key of the protocol's page.
    pub mode_id: SessionModeId,
}

impl CurrentModeUpdate {
    /// Says that `mode` is on now, under both keys.
    pub fn new(mode: SessionModeId) -> Self {
        Self { current_mode_id: mode.clone(), mode_id: mode }
    }
}
