//! The names of MCP tools for models: `mcp__SERVER__TOOL`. Pure.
//!
//! Providers accept letters, digits, `_` and `-`, at most 64 characters. A changed name ends with a hash of
//! the true name, so names are unique in any order of listing. The server's part contains no `__`, so names
//! split unambiguously.

use std::sync::Arc;

use crate::ids::hash;
use crate::permission::SERVER_TOOLS;
use crate::server::ServerEntry;

const MAX: usize = 64;

const MAX_SERVER: usize = 24;

const MARK: usize = 6;

/// A configured server, and its part of the names of its tools.
#[derive(Clone)]
pub(super) struct ServerIdentity {
    pub entry: Arc<ServerEntry>,
    pub part: Arc<str>,
}

impl ServerIdentity {
    pub(super) fn tool_name(&self, tool: &str) -> String {
        of_tool(&self.part, tool)
    }
}

pub(super) fn of_servers<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.map(server_part).collect()
}

fn server_part(name: &str) -> String {
    let mut plain = plain(name);
    while plain.contains("__") {
        plain = plain.replace("__", "_");
    }
    unique(plain.trim_matches('_'), name, MAX_SERVER)
}

pub(super) fn of_tool(server: &str, tool: &str) -> String {
    let budget = MAX - SERVER_TOOLS.len() - "__".len() - server.len();
    format!("{SERVER_TOOLS}{server}__{}", unique(&plain(tool), tool, budget))
}

/// Returns the server's part of a tool's name, or `None` for other names.
pub(super) fn server_of(tool: &str) -> Option<&str> {
    tool.strip_prefix(SERVER_TOOLS)?.split_once("__").map(|(server, _)| server)
}

/// The name of a server's questions to the user, for rules.
pub fn name_of_questions(server: &str) -> String {
    format!("mcp_elicitation__{server}")
}

/// True if a rule's pattern is about the tools or questions of servers.
pub(in crate::tool) fn is_pattern_of_servers(pattern: &str) -> bool {
    pattern.starts_with("mcp_")
}

fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' }).collect()
}

/// A name that ends like a hash gets its own hash, so no name can imitate another.
fn looks_marked(plain: &str) -> bool {
    let mark = plain.rsplit('_').next().unwrap_or_default().trim_start_matches('x');
    mark.len() == MARK && mark.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Marks the name with its hash if the plain form differs, or looks marked itself.
fn unique(plain: &str, name: &str, budget: usize) -> String {
    if plain == name && !plain.is_empty() && plain.len() <= budget && !looks_marked(plain) {
        return plain.to_owned();
    }
    let recorded = &plain[..plain.len().min(budget - MARK - 1)];
    let recorded = recorded.trim_end_matches('_');
    let mark = hash(name);
    let mark = &mark[..MARK];
    if recorded.is_empty() { format!("x{mark}") } else { format!("{recorded}_{mark}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mcp_tool_names_are_valid_and_unique() {
        let servers = [
            "github",
            "git hub",
            "git_hub",
            "a__b",
            "a",
            "",
            "日本",
            &"long".repeat(20),
            "-",
            "a_",
            "_a",
            "git_hub_b5ff3e",
        ];
        let tools = ["get", "get.issue", "get_issue", "b__c", "c", "", "читать", &"tool".repeat(40), "__"];
        let mut seen = std::collections::HashSet::new();
        for server in of_servers(servers.into_iter()) {
            assert!(!server.contains("__"), "{server}");
            for tool in tools {
                let name = of_tool(&server, tool);
                assert!(name.len() <= MAX && plain(&name) == name, "{name}");
                assert_eq!(server_of(&name), Some(&*server));
                assert!(seen.insert(name.clone()), "{name} is there twice");
            }
        }
        assert_eq!(of_tool("github", "create_issue"), "mcp__github__create_issue");
    }
}
