//! Types of protocol version 2, which is in Preview. Only `rpc` names them. No logic.

pub use agent_client_protocol_schema::v2::{
    AgentCapabilities, AuthMethod, AuthMethodAgent, AuthMethodTerminal, AvailableCommand,
    AvailableCommandInput, AvailableCommandsUpdate, CancelSessionNotification, ClientCapabilities,
    CloseSessionRequest, CloseSessionResponse, Command, CompactionStatus, CompactionUpdate,
    ConfigOptionUpdate, Content, ContentBlock, ContentChunk, DeleteSessionRequest, DeleteSessionResponse,
    Diff, DiffChange, DiffFileType, DiffPatch, EnvVariable, Error, ErrorStopReason, IdleStateUpdate,
    Implementation, InitializeRequest, InitializeResponse, ListSessionsRequest, ListSessionsResponse,
    LoginAuthRequest, LoginAuthResponse, LogoutAuthRequest, LogoutAuthResponse, McpCapabilities,
    McpHttpCapabilities, McpServer, McpStdioCapabilities, MessageId, NewSessionRequest, NewSessionResponse,
    Notice, PermissionOption, PermissionOptionKind, PlanEntry, PlanItems, PlanUpdate, PlanUpdateContent,
    PromptCapabilities, PromptEmbeddedContextCapabilities, PromptImageCapabilities, PromptRequest,
    PromptResponse, ReplayComplete, ReplayFrom, RequestPermissionRequest, RequestPermissionSubject,
    RequiresActionStateUpdate, ResumeSessionRequest, ResumeSessionResponse, RunningStateUpdate,
    SessionAdditionalDirectoriesCapabilities, SessionCapabilities, SessionConfigOption,
    SessionConfigOptionValue, SessionDeleteCapabilities, SessionInfo, SessionInfoUpdate, SessionListCursor,
    SessionSystemPromptCapabilities, SessionSystemPromptModeCapabilities,
    SessionSystemPromptOverrideCapabilities, SessionUpdate, SetSessionConfigOptionRequest,
    SetSessionConfigOptionResponse, StateUpdate, StopReason, SystemPrompt, Terminal, TerminalExitStatus,
    TerminalOutputChunk, TerminalUpdate, TextCommandInput, TextContent, ToolCallContent, ToolCallLocation,
    ToolCallPermissionSubject, ToolCallStatus, ToolCallUpdate, UpdateSessionNotification, UsageUpdate,
    UserMessage,
};
