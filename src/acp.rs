//! ACP types from the official schema crate, which only this module imports. No logic.

pub use agent_client_protocol_schema::v1::{
    AgentAuthCapabilities, AgentCapabilities, AuthMethod, AuthMethodAgent, AuthMethodTerminal,
    AuthenticateRequest, AuthenticateResponse, AvailableCommand, AvailableCommandInput,
    AvailableCommandsUpdate, CancelNotification, CancelRequestNotification, ClientCapabilities,
    ClientSessionCapabilities, CloseSessionRequest, CloseSessionResponse, CompactionStatus, CompactionUpdate,
    CompleteElicitationNotification, ConfigOptionUpdate, Content, ContentBlock, ContentChunk, Cost,
    CreateElicitationRequest, CreateElicitationResponse, DeleteSessionRequest, DeleteSessionResponse, Diff,
    ElicitationAction, ElicitationCapabilities, ElicitationContentValue, ElicitationFormCapabilities,
    ElicitationFormMode, ElicitationId, ElicitationMode, ElicitationSchema, ElicitationScope,
    ElicitationSessionScope, ElicitationUrlCapabilities, ElicitationUrlMode, EmbeddedResourceResource,
    EnumOption, EnvVariable, FileSystemCapabilities, ForkSessionRequest, ForkSessionResponse,
    IdleStateUpdate, ImageContent, Implementation, InitializeRequest, InitializeResponse,
    ListSessionsRequest, ListSessionsResponse, LoadSessionRequest, LoadSessionResponse, LogoutCapabilities,
    LogoutRequest, LogoutResponse, McpCapabilities, McpServer, McpServerHttp, McpServerSse, McpServerStdio,
    MessageId, Meta, NewSessionRequest, NewSessionResponse, Notice, NoticeSeverity, PermissionOption,
    PermissionOptionId, PermissionOptionKind, Plan, PlanEntry, PlanEntryPriority, PlanEntryStatus, PlanItems,
    PlanMarkdown, PlanRemoved, PlanUpdate, PlanUpdateContent, PromptCapabilities, PromptRequest,
    PromptResponse, ReadTextFileRequest, ReadTextFileResponse, RequestId, RequestPermissionOutcome,
    RequestPermissionRequest, RequestPermissionResponse, ResourceLink, ResumeSessionRequest,
    ResumeSessionResponse, RunningStateUpdate, SelectedPermissionOutcome,
    SessionAdditionalDirectoriesCapabilities, SessionCapabilities, SessionCloseCapabilities, SessionConfigId,
    SessionConfigKind, SessionConfigOption, SessionConfigOptionCategory, SessionConfigOptionValue,
    SessionConfigSelectOption, SessionConfigSelectOptions, SessionDeleteCapabilities,
    SessionForkCapabilities, SessionId, SessionInfo, SessionInfoUpdate, SessionListCapabilities,
    SessionMessage, SessionMode, SessionModeId, SessionModeState, SessionReference,
    SessionResumeCapabilities, SessionSystemPromptCapabilities, SessionSystemPromptModeCapabilities,
    SessionSystemPromptOverrideCapabilities, SessionUpdate, SetSessionConfigOptionRequest,
    SetSessionConfigOptionResponse, SetSessionModeRequest, SetSessionModeResponse, StateUpdate, StopReason,
    StringPropertySchema, SubagentUpdate, SystemPrompt, SystemPromptMode, Terminal, TerminalId, TextContent,
    ToolCall, ToolCallContent, ToolCallId, ToolCallLocation, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields, ToolKind, UnstructuredCommandInput, UsageUpdate, WriteTextFileRequest,
    WriteTextFileResponse,
};
pub use agent_client_protocol_schema::{MaybeUndefined, ProtocolVersion};

use serde::Serialize;

pub mod v2;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionNotification {
    pub session_id: SessionId,
    pub update: Update,
}

#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Update {
    Schema(Box<SessionUpdate>),
    CurrentMode(CurrentModeUpdate),
}

impl From<SessionUpdate> for Update {
    fn from(update: SessionUpdate) -> Self {
        Self::Schema(Box::new(update))
    }
}

/// `current_mode_update` with `currentModeId`, as in the schema, and `modeId`, as on ACP's page on session
/// modes.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "sessionUpdate", rename = "current_mode_update", rename_all = "camelCase")]
pub struct CurrentModeUpdate {
    pub current_mode_id: SessionModeId,
    pub mode_id: SessionModeId,
}

impl CurrentModeUpdate {
    pub fn new(mode: SessionModeId) -> Self {
        Self { current_mode_id: mode.clone(), mode_id: mode }
    }
}
