//! Names of tools that do not exist, as users write them in rules and modes, and the tools that they mean. Pure.

use super::foreign_call::{NamedTool, ServerToolName, ToolNames, named_tool};
use super::mcp::is_pattern_of_servers;
use super::toolset::effects;
use crate::mode::definition::{is_misspelt, near};

/// A name that no tool of Modegate has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownTool {
    name: String,
    pub meant: Option<MeantTool>,
}

/// The tool that an unknown name probably means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeantTool {
    /// Another agent has the tool under the unknown name.
    Foreign(String),
    Similar(&'static str),
}

impl std::fmt::Display for UnknownTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, meant } = self;
        write!(f, "there is no tool {name:?}; ")?;
        match meant {
            Some(MeantTool::Foreign(tool)) => write!(f, "its name here is {tool}"),
            Some(MeantTool::Similar(tool)) => write!(f, "did you mean {tool}?"),
            None => write!(f, "Modegate's own tools are {}", names().join(", ")),
        }
    }
}

/// The built-in tools, for names of other agents.
struct BuiltInNames(Vec<&'static str>);

impl ToolNames for BuiltInNames {
    fn exists(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    fn is_offered(&self, name: &str) -> bool {
        self.exists(name)
    }

    fn of_servers(&self) -> Vec<ServerToolName> {
        Vec::new()
    }
}

fn names() -> Vec<&'static str> {
    effects().into_iter().map(|(name, _)| name).collect()
}

/// Returns `None` for tools that exist, globs and MCP tools.
pub fn unknown_tool(pattern: &str) -> Option<UnknownTool> {
    if pattern.contains(['*', '?', '[', '{']) || is_pattern_of_servers(pattern) {
        return None;
    }
    let names = names();
    if names.contains(&pattern) {
        return None;
    }
    let first = pattern.chars().next();
    let similar =
        near(pattern, &names).filter(|tool| tool.chars().next() == first || is_misspelt(pattern, tool));
    let meant = match named_tool(pattern, None, &BuiltInNames(names)) {
        NamedTool::Own { tool, .. } => Some(MeantTool::Foreign(tool)),
        NamedTool::Same => similar.map(MeantTool::Similar),
    };
    Some(UnknownTool { name: pattern.to_owned(), meant })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meant_tool_is_named() {
        for (name, expected) in [
            ("Write", "there is no tool \"Write\"; its name here is write_file"),
            ("Bash", "there is no tool \"Bash\"; its name here is shell"),
            ("shel", "there is no tool \"shel\"; did you mean shell?"),
            ("Foo", "there is no tool \"Foo\"; Modegate's own tools are read_file, "),
        ] {
            let text = unknown_tool(name).unwrap().to_string();
            assert!(text.starts_with(expected), "{text}");
        }
        for control in ["shell", "mcp__s__t", "*_file"] {
            assert_eq!(unknown_tool(control), None);
        }
    }
}
