//! Converts answers of version 1 to those of version 2. Pure.

use serde_json::Value;

use super::updates::same_form;
use crate::acp::{
    AuthMethod, InitializeResponse, ListSessionsResponse, LoadSessionResponse, Meta, NewSessionResponse,
    ProtocolVersion, ResumeSessionResponse, SessionCapabilities, SessionConfigOption,
    SetSessionConfigOptionResponse, v2,
};

/// `session/fork` is left out, because it is not part of version 2.
pub(super) fn initialize(response: &InitializeResponse) -> v2::InitializeResponse {
    let capabilities = &response.agent_capabilities;
    let prompts = &capabilities.prompt_capabilities;
    let mut prompt = v2::PromptCapabilities::new();
    prompt.image = prompts.image.then(v2::PromptImageCapabilities::new);
    prompt.embedded_context = prompts.embedded_context.then(v2::PromptEmbeddedContextCapabilities::new);
    let mut mcp = v2::McpCapabilities::new().stdio(v2::McpStdioCapabilities::new());
    mcp.http = capabilities.mcp_capabilities.http.then(v2::McpHttpCapabilities::new);
    let SessionCapabilities { delete, additional_directories, system_prompt, .. } =
        &capabilities.session_capabilities;
    let mut session = v2::SessionCapabilities::new().prompt(prompt).mcp(mcp);
    session.delete = delete.as_ref().map(|_| v2::SessionDeleteCapabilities::new());
    session.additional_directories =
        additional_directories.as_ref().map(|_| v2::SessionAdditionalDirectoriesCapabilities::new());
    session.system_prompt = system_prompt.as_ref().map(|_| {
        let replaces = v2::SessionSystemPromptModeCapabilities::new()
            .override_(v2::SessionSystemPromptOverrideCapabilities::new());
        v2::SessionSystemPromptCapabilities::new().mode(replaces)
    });
    let info = response.agent_info.as_ref();
    let mut implementation = v2::Implementation::new(
        info.map_or("modegate", |info| &info.name),
        info.map_or(env!("CARGO_PKG_VERSION"), |info| &info.version),
    );
    implementation.title = info.and_then(|info| info.title.clone());
    v2::InitializeResponse::new(ProtocolVersion::V2, implementation)
        .capabilities(v2::AgentCapabilities::new().session(session))
        .auth_methods(response.auth_methods.iter().filter_map(auth_method).collect())
}

/// `None` for kinds that this version of Modegate does not have.
fn auth_method(method: &AuthMethod) -> Option<v2::AuthMethod> {
    match method {
        AuthMethod::Agent(agent) => {
            let mut converted = v2::AuthMethodAgent::new(agent.id.0.clone(), agent.name.clone());
            converted.description.clone_from(&agent.description);
            converted.meta.clone_from(&agent.meta);
            Some(v2::AuthMethod::Agent(converted))
        }
        AuthMethod::Terminal(terminal) => {
            let mut converted = v2::AuthMethodTerminal::new(terminal.id.0.clone(), terminal.name.clone());
            converted.description.clone_from(&terminal.description);
            converted.args.clone_from(&terminal.args);
            converted.env =
                terminal.env.iter().map(|(name, value)| v2::EnvVariable::new(name, value)).collect();
            Some(v2::AuthMethod::Terminal(converted))
        }
        _ => None,
    }
}

pub(super) fn new_session(response: NewSessionResponse) -> v2::NewSessionResponse {
    v2::NewSessionResponse::new(response.session_id.0)
        .config_options(config_options(&response.config_options.unwrap_or_default()))
        .meta(response.meta)
}

/// The answer to a request that opens a stored session.
pub(super) fn opened(
    options: Option<Vec<SessionConfigOption>>,
    meta: Option<Meta>,
) -> v2::ResumeSessionResponse {
    v2::ResumeSessionResponse::new().config_options(config_options(&options.unwrap_or_default())).meta(meta)
}

pub(super) fn loaded(response: LoadSessionResponse) -> v2::ResumeSessionResponse {
    opened(response.config_options, response.meta)
}

pub(super) fn resumed(response: ResumeSessionResponse) -> v2::ResumeSessionResponse {
    opened(response.config_options, response.meta)
}

pub(super) fn sessions(response: ListSessionsResponse) -> v2::ListSessionsResponse {
    let sessions = response.sessions.into_iter().map(|session| {
        let mut info = v2::SessionInfo::new(session.session_id.0, session.cwd);
        info.additional_directories = session.additional_directories.into_iter().map(Into::into).collect();
        info.title = session.title;
        info.updated_at = session.updated_at;
        info.meta(session.meta)
    });
    let next_cursor = response.next_cursor.map(v2::SessionListCursor::new);
    v2::ListSessionsResponse::new(sessions.collect()).next_cursor(next_cursor).meta(response.meta)
}

pub(super) fn set_option(response: SetSessionConfigOptionResponse) -> v2::SetSessionConfigOptionResponse {
    v2::SetSessionConfigOptionResponse::new(config_options(&response.config_options)).meta(response.meta)
}

/// The ids of options and of groups have other keys in version 2.
pub(super) fn config_options(options: &[SessionConfigOption]) -> Vec<v2::SessionConfigOption> {
    options.iter().filter_map(config_option).collect()
}

fn config_option(option: &SessionConfigOption) -> Option<v2::SessionConfigOption> {
    let mut value: Value = same_form(option)?;
    let members = value.as_object_mut()?;
    let id = members.remove("id")?;
    members.insert("configId".to_owned(), id);
    for choice in members.get_mut("options").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(group) = choice.as_object_mut()
            && let Some(id) = group.remove("group")
        {
            group.insert("groupId".to_owned(), id);
        }
    }
    same_form(&value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_and_groups_have_other_keys_for_their_ids() {
        let option: SessionConfigOption = serde_json::from_value(json!({
            "id": "model", "name": "Model", "category": "model", "type": "select", "currentValue": "a/b",
            "options": [{ "group": "a", "name": "A", "options": [{ "value": "a/b", "name": "B" }] }],
        }))
        .unwrap();
        assert_eq!(
            serde_json::to_value(config_options(&[option])).unwrap(),
            json!([{
                "configId": "model", "name": "Model", "category": "model", "type": "select",
                "currentValue": "a/b",
                "options": [{ "groupId": "a", "name": "A", "options": [{ "value": "a/b", "name": "B" }] }],
            }])
        );
    }
}
