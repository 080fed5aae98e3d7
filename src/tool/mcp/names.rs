//! The names under which models call servers' tools: `mcp__SERVER__TOOL`. Pure.
//!
//! Providers take letters, digits, `_` and `-`, at most 64 of them. A name that has to be changed for that gets a mark made
//! of the true name, so that no two are the same, whatever the order in which servers answer. The part for the server has no
//! `__`, so that a name says where the one ends and the other begins.

use crate::ids::hash;

/// Characters of a name.
const MAX: usize = 64;

/// Characters of the server's part.
const MAX_SERVER: usize = 24;

/// Characters of a mark.
const MARK: usize = 6;

/// The servers' parts of names, in their order; no two are the same.
pub fn of_servers<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for name in names {
        let mut plain = plain(name);
        while plain.contains("__") {
            plain = plain.replace("__", "_");
        }
        let plain = plain.trim_matches('_');
        let is_changed = plain != name || plain.is_empty() || plain.len() > MAX_SERVER || looks_marked(plain);
        let part = if is_changed { marked(plain, name, MAX_SERVER) } else { plain.to_owned() };
        parts.push(part);
    }
    parts
}

/// The name of a server's tool.
pub fn of_tool(server: &str, tool: &str) -> String {
    let budget = MAX - "mcp____".len() - server.len();
    let plain = plain(tool);
    let is_changed = plain != tool || plain.is_empty() || plain.len() > budget || looks_marked(&plain);
    let part = if is_changed { marked(&plain, tool, budget) } else { plain };
    format!("mcp__{server}__{part}")
}

/// With `_` in the place of what providers do not take.
fn plain(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    name.chars().map(keep).collect()
}

/// Whether a name ends as one with a mark does: it gets one of its own, so that it cannot be taken for another's.
fn looks_marked(plain: &str) -> bool {
    let mark = plain.rsplit('_').next().unwrap_or_default().trim_start_matches('x');
    mark.len() == MARK && mark.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn marked(plain: &str, name: &str, budget: usize) -> String {
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
    fn names_are_what_providers_take_and_no_two_are_the_same() {
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
                assert!(seen.insert(name.clone()), "{name} is there twice");
            }
        }
        assert_eq!(of_tool("github", "create_issue"), "mcp__github__create_issue");
    }
}
