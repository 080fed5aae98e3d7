//! Expands `${NAME}` in definitions of MCP servers and external agents.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};

use super::environment;
use crate::external_agent::definition::ExternalAgentDefinition;
use crate::server::ServerDefinition;

/// Sets `missing` for an unset variable. Provider keys count as unset, because they were removed from the
/// environment.
pub fn filled(
    mut servers: BTreeMap<String, ServerDefinition>,
    variable: impl Fn(&str) -> Option<String>,
) -> BTreeMap<String, ServerDefinition> {
    for server in servers.values_mut() {
        server.missing = fill(server.env.values_mut().chain(server.headers.values_mut()), &variable);
    }
    servers
}

pub fn filled_external_agent(
    mut external_agent: ExternalAgentDefinition,
    variable: impl Fn(&str) -> Option<String>,
) -> ExternalAgentDefinition {
    external_agent.missing = fill(external_agent.env.values_mut(), &variable);
    external_agent
}

pub fn filled_external_agent_now(external_agent: ExternalAgentDefinition) -> ExternalAgentDefinition {
    filled_external_agent(external_agent, environment::variable)
}

fn fill<'a>(
    values: impl Iterator<Item = &'a mut SecretString>,
    variable: &impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let mut missing = None;
    for value in values {
        match fill_in(value.expose_secret(), variable) {
            Ok(Some(filled)) => *value = filled,
            Ok(None) => {}
            Err(requested) => missing = Some(requested),
        }
    }
    missing
}

/// `None` without variables; the error is the name of an unset variable.
fn fill_in(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Option<SecretString>, String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, behind)) = after.split_once('}') else { break };
        filled.push_str(before);
        filled.push_str(&variable(name).ok_or_else(|| name.to_owned())?);
        rest = behind;
    }
    if filled.is_empty() && rest.len() == text.len() {
        return Ok(None);
    }
    filled.push_str(rest);
    Ok(Some(filled.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_and_missing_ones_named() {
        let text = "a: {command: a, env: {A: '${X}', B: 'Bearer ${X}-${Y}', C: 'as ${it', D: plain}}\nb: {url: 'http://b', headers: {K: '${Z}'}}";
        let servers = serde_saphyr::from_str(text).unwrap();
        let variable = |name: &str| matches!(name, "X" | "Y").then(|| format!("<{name}>"));
        let servers = filled(servers, variable);
        let values: Vec<_> = servers["a"].env.values().map(ExposeSecret::expose_secret).collect();
        assert_eq!(values, ["<X>", "Bearer <X>-<Y>", "as ${it", "plain"]);
        assert_eq!((&servers["a"].missing, servers["b"].missing.as_deref()), (&None, Some("Z")));
        let external_agent = |env: &str| {
            let text = format!("{{command: a, env: {{A: '{env}'}}}}");
            let filled = filled_external_agent(serde_saphyr::from_str(&text).unwrap(), variable);
            (filled.env["A"].expose_secret().to_owned(), filled.missing)
        };
        assert_eq!(external_agent("${X}"), ("<X>".into(), None));
        assert_eq!(external_agent("${Z}").1.as_deref(), Some("Z"));
    }

    #[test]
    fn client_server_never_replaces_a_server_missing_its_variable() {
        use crate::acp::{McpServer, McpServerStdio};
        use crate::server::gather;
        let text = "files: {command: mine, env: {A: '${NONE}'}, sandbox: read_only, trust_hints: false}";
        let own = filled(serde_saphyr::from_str(text).unwrap(), |_| None);
        let (entries, notices) =
            gather(&own, &[McpServer::Stdio(McpServerStdio::new("files", "/bin/theirs"))]);
        assert_eq!((entries.len(), notices.len()), (0, 2), "{notices:?}");
    }
}
