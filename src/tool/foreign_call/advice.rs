//! The remedy for a call of a tool that does not exist. Pure.

use super::no_tools::{NO_TOOLS, NoTool};
use super::table::{KINDS, TOOLS};
use super::{MAX_NAMED, ServerToolName, bare, is_same, server_tools};
use crate::mode::definition::is_misspelt;

/// Names tools of the same kind only, and only those in `tools`.
pub fn advice(name: &str, tools: &[&str], of_servers: &[ServerToolName]) -> String {
    let bare = bare(name);
    let named = TOOLS.iter().find(|row| row.names.iter().any(|known| is_same(known, bare)));
    let own = named.map_or(bare, |row| row.tool);
    let no_tool = NO_TOOLS.iter().find(|row| row.names.iter().any(|known| is_same(known, own)));
    if let Some(advice) = no_tool.and_then(|row| instead(row, tools)) {
        return advice;
    }
    let meant = TOOLS.iter().filter(|row| row.names_with.iter().any(|(known, ..)| is_same(known, bare)));
    let of_servers = server_tools(bare, of_servers);
    let meant = meant.map(|row| row.tool).chain(of_servers.iter().map(|known| known.name.as_str()));
    let meant: Vec<&str> = meant.filter(|tool| tools.contains(tool)).take(MAX_NAMED).collect();
    match (meant.as_slice(), suggestion(bare, tools)) {
        ([], Some(tool)) => format!("Did you mean {tool}?"),
        ([], None) => "Use only the tools that this session offers.".into(),
        (meant, _) => format!("Use {}.", meant.join(" or ")),
    }
}

fn instead(row: &NoTool, tools: &[&str]) -> Option<String> {
    let tool = row.tools.iter().find(|tool| tools.contains(*tool));
    (row.tools.is_empty() || tool.is_some())
        .then(|| row.advice.replace("{}", tool.copied().unwrap_or_default()))
}

/// Returns the tool that an unknown name may be a misspelling of, but none of another kind.
pub(super) fn suggestion<'a>(name: &str, tools: &[&'a str]) -> Option<&'a str> {
    let kinds = kinds_of(name);
    let fits = |tool: &&&str| kinds.is_empty() || kinds_of(tool).iter().any(|kind| kinds.contains(kind));
    tools.iter().filter(fits).find(|tool| is_misspelt(&name.to_lowercase(), tool)).copied()
}

/// Positions in [`KINDS`] of the words of a name.
pub(super) fn kinds_of(name: &str) -> Vec<usize> {
    let mut words: Vec<String> = Vec::new();
    let mut was_lower = false;
    for c in name.chars() {
        if words.is_empty() || !c.is_alphanumeric() || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_lowercase();
        if let (true, Some(word)) = (c.is_alphanumeric(), words.last_mut()) {
            word.extend(c.to_lowercase());
        }
    }
    let kind_of = |word: &String| KINDS.iter().position(|kind| kind.contains(&word.as_str()));
    words.iter().filter_map(kind_of).collect()
}
