//! The JSON Schema of version 2 of the protocol, generated from the types of the schema crate.

use std::collections::HashMap;
use std::sync::LazyLock;

use agent_client_protocol_schema::v2 as schema;
use serde_json::Value;

use crate::support::CompiledSchema;

/// Fails if a message of the agent does not fit its type. `what` is a method, or "answer to" a method.
pub(crate) fn validate(what: &str, value: &Value) {
    static SCHEMAS: LazyLock<HashMap<&str, CompiledSchema>> = LazyLock::new(|| {
        let make = |schema: schemars::Schema| CompiledSchema::new(schema.to_value());
        HashMap::from([
            ("session/update", make(schemars::schema_for!(schema::UpdateSessionNotification))),
            ("session/request_permission", make(schemars::schema_for!(schema::RequestPermissionRequest))),
            ("elicitation/create", make(schemars::schema_for!(schema::CreateElicitationRequest))),
            ("elicitation/complete", make(schemars::schema_for!(schema::CompleteElicitationNotification))),
            ("$/cancel_request", make(schemars::schema_for!(schema::CancelRequestNotification))),
            ("answer to initialize", make(schemars::schema_for!(schema::InitializeResponse))),
            ("answer to auth/login", make(schemars::schema_for!(schema::LoginAuthResponse))),
            ("answer to auth/logout", make(schemars::schema_for!(schema::LogoutAuthResponse))),
            ("answer to session/new", make(schemars::schema_for!(schema::NewSessionResponse))),
            ("answer to session/prompt", make(schemars::schema_for!(schema::PromptResponse))),
            (
                "answer to session/set_config_option",
                make(schemars::schema_for!(schema::SetSessionConfigOptionResponse)),
            ),
            ("answer to session/resume", make(schemars::schema_for!(schema::ResumeSessionResponse))),
            ("answer to session/list", make(schemars::schema_for!(schema::ListSessionsResponse))),
            ("answer to session/close", make(schemars::schema_for!(schema::CloseSessionResponse))),
            ("answer to session/delete", make(schemars::schema_for!(schema::DeleteSessionResponse))),
            ("answer to tool_call/cancel", make(schemars::schema_for!(schema::CancelToolCallResponse))),
            ("answer to terminal/cancel", make(schemars::schema_for!(schema::CancelTerminalResponse))),
            ("error", make(schemars::schema_for!(schema::Error))),
        ])
    });
    let schema = SCHEMAS.get(what).unwrap_or_else(|| panic!("version 2 has no {what}: {value}"));
    if let Err(errors) = schema.validate(value) {
        panic!("{what} does not fit its schema: {errors}\n{value}");
    }
    // Unions are open, so a schema also accepts unknown kinds.
    let known = match what {
        "session/update" => is_known_update(&value["update"]),
        _ => true,
    };
    assert!(known, "an update of an unknown kind: {value}");
}

fn is_known_update(update: &Value) -> bool {
    let update: schema::SessionUpdate = serde_json::from_value(update.clone()).unwrap();
    let has_known_content = |content: &[schema::ToolCallContent]| {
        content.iter().all(|content| !matches!(content, schema::ToolCallContent::Other(_)))
    };
    match update {
        schema::SessionUpdate::Other(_) => false,
        schema::SessionUpdate::StateUpdate(state) => !matches!(state, schema::StateUpdate::Other(_)),
        schema::SessionUpdate::ToolCallUpdate(update) => {
            update.content.value().is_none_or(|content| has_known_content(content))
        }
        _ => true,
    }
}
