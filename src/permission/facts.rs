//! The facts of a call that decisions depend on. Plain data.

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::address::Address;
use super::grants::CommandScope;
use super::invocation::Invocations;
use crate::mode::ShellUse;

/// Begins the names of the tools of MCP servers, and patterns for them.
pub const SERVER_TOOLS: &str = "mcp__";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    Read,
    Session,
    Delegate,
    Network,
    Edit,
    Execute,
    State,
    /// No trusted source declares the effect: treated as a change.
    Unknown,
}

impl Effect {
    pub fn is_read_side(self) -> bool {
        matches!(self, Self::Read | Self::Session)
    }

    pub fn is_change(self) -> bool {
        matches!(self, Self::Edit | Self::Execute | Self::State | Self::Unknown)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub path: PathBuf,
    pub inside: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Commands {
    #[default]
    None,
    Line {
        line: String,
        texts: Vec<String>,
        /// Normalised: without quotes, assignments and the program's folder.
        plain: Vec<String>,
        is_understood: bool,
        /// Scopes offered for "always"; any of them suffices. If empty, only this call can be allowed.
        always: Vec<CommandScope>,
        /// One scope per command if the line has several. A "reject always" for any rejects the line.
        parts: Vec<CommandScope>,
        /// For rules that deny or ask. `None` in records of an earlier version, which compared `plain`.
        invocations: Option<Box<Invocations>>,
        /// Prefixes in records of an earlier version, all of which needed a grant.
        before: Option<Vec<String>>,
    },
}

/// An MCP server's claim that a tool only reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub server: String,
    /// Counts how often the server newly claimed this of a tool. Earlier consent does not cover later claims.
    pub flips: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallSource {
    Tool,
    /// The process of an external agent, or its request to change a file.
    ExternalAgent,
    /// A change of a file that Modegate carries out for a brokered agent.
    Broker,
}

/// All that a decision may depend on, besides the ceilings. An audit decides from the stored copy alone, so a fact is
/// known before the call, and nothing here is looked up later.
#[derive(Debug, Clone)]
pub struct CallFacts {
    pub source: CallSource,
    /// For a request of an external agent, the tool of that kind; empty if there is none.
    pub tool: String,
    pub effect: Effect,
    pub shell: ShellUse,
    pub is_background: bool,
    pub is_exit: bool,
    /// Empty if unknown before the call, or for a decision about the tool as such.
    pub targets: Vec<Target>,
    pub commands: Commands,
    pub address: Option<Address>,
    /// `None` if the effect is trusted.
    pub claim: Option<Claim>,
    /// The MCP server that has the tool, as in the tool's name. Records of calls lack it; no verdict needs it.
    pub server: Option<Arc<str>>,
    /// Paths in the arguments of an MCP tool or in an external agent's call, and a skill's source. Only `deny`
    /// and `ask` rules use them.
    pub mentions: Vec<PathBuf>,
    /// Folder with the whole output of the session's commands. Reading there needs no consent.
    pub outputs: Option<PathBuf>,
}

impl CallFacts {
    pub fn outside(&self) -> impl Iterator<Item = &Target> {
        let outputs = self.outputs.as_deref().filter(|_| self.effect == Effect::Read);
        self.targets.iter().filter(move |target| {
            let is_output = outputs.is_some_and(|folder| target.path.starts_with(folder));
            target.inside.is_none() && !is_output
        })
    }

    /// The facts of an external agent's process, which runs until the session ends it.
    pub fn of_external_process(is_sandboxed: bool) -> Self {
        let effect = if is_sandboxed { Effect::Read } else { Effect::Execute };
        Self { source: CallSource::ExternalAgent, is_background: true, ..Self::of_tool("", effect) }
    }

    pub fn of_tool(tool: impl Into<String>, effect: Effect) -> Self {
        Self {
            source: CallSource::Tool,
            tool: tool.into(),
            effect,
            shell: ShellUse::Off,
            is_background: false,
            is_exit: false,
            targets: Vec::new(),
            commands: Commands::None,
            address: None,
            claim: None,
            server: None,
            mentions: Vec::new(),
            outputs: None,
        }
    }
}
