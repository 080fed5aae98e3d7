//! MCP servers and their tools, which obey the mode like any other tool. Only this module uses the MCP
//! library.
//!
//! A session starts its servers with its first prompt, each in its own task ([`server`](self::server)). A
//! slow or broken server delays only that prompt, for a limited time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;

use super::Tool;
use super::foreign_call::{ServerToolName, is_same_server};
use crate::permission::CallFacts;
use crate::permission::hints::{self, Belief, HintContext, Hints, Trust};
use crate::server::{ServerDefinition, ServerEntry, ServerSandbox};
use call::RemoteTool;
pub use connect::ConnectOptions;
pub use fault::{MAX_WHY, cannot_be_used};
pub use login::{LoginOptions, Logins, StoredLogin};
pub(super) use names::is_pattern_of_servers;
pub use names::name_of_questions;
pub use question::{Form, ServerQuestion};
use server::Server;
pub use server_event::ServerEvent;
pub use task::ServerPhase;

pub mod call;
mod connect;
mod fault;
mod handler;
mod listing;
mod login;
mod message_limit;
mod names;
mod question;
mod rate_limit;
mod result;
mod schema_repair;
mod server;
mod server_event;
mod task;

#[derive(Clone, Default)]
pub struct McpServers(Arc<[Server]>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerStatus {
    pub name: String,
    pub phase: ServerPhase,
    pub tools: Vec<(String, Belief)>,
    pub notes: Vec<String>,
    pub sandbox: ServerSandbox,
}

impl McpServers {
    /// Creates the servers without starting them.
    pub fn new(
        entries: Vec<ServerEntry>,
        options: &ConnectOptions,
        events: &mpsc::UnboundedSender<ServerEvent>,
    ) -> Self {
        let parts = names::of_servers(entries.iter().map(|entry| entry.name.as_str()));
        let servers = entries
            .into_iter()
            .zip(parts)
            .map(|(entry, part)| Server::new(entry, part, options.clone(), events.clone()));
        Self(servers.collect())
    }

    pub fn start(&self) {
        for server in self.0.iter() {
            let state = server.state();
            // A server that ended with known tools starts again with a call.
            if state.phase != ServerPhase::Ready && state.listing.is_empty() {
                server.start(false);
            }
        }
    }

    /// Waits until each server is ready or has failed, at most `timeout` after its first start. Returns the
    /// names of late servers, each only once.
    pub async fn settle(&self, timeout: Duration) -> Vec<String> {
        let all = join_all(self.0.iter().map(|server| server.settled(timeout))).await;
        let late = self.0.iter().zip(all).filter(|(_, is_late)| *is_late);
        late.map(|(server, _)| server.identity.entry.name.clone()).collect()
    }

    pub fn tools(&self) -> Vec<Arc<dyn Tool>> {
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        for server in self.0.iter() {
            for tool in server.state().listing.tools() {
                tools.push(Arc::new(RemoteTool { tool: Arc::clone(tool), server: server.downgrade() }));
            }
        }
        tools
    }

    /// The current tools under the names of their servers.
    pub fn tool_names(&self) -> Vec<ServerToolName> {
        let mut names = Vec::new();
        for server in self.0.iter() {
            let state = server.state();
            names.extend(state.listing.tools().iter().map(|tool| ServerToolName {
                name: tool.spec.name.to_string(),
                server: server.identity.entry.name.clone(),
                tool: tool.own_name.clone(),
            }));
        }
        names
    }

    /// The servers' names and instructions. Servers that are not ready, or have no tool that `is_wanted`, are left
    /// out.
    pub fn instructions(&self, is_wanted: impl Fn(&str, &CallFacts) -> bool) -> Vec<(String, String)> {
        let instructions = self.0.iter().filter_map(|server| {
            let (state, name) = (server.state(), &server.identity.entry.name);
            let info = state.peer?.peer.peer_info()?;
            let text = info.instructions.as_ref()?;
            let has_tool = state.listing.tools().iter().any(|tool| is_wanted(name, &tool.spec.facts()));
            has_tool.then(|| (name.clone(), text.clone()))
        });
        instructions.collect()
    }

    pub fn status(&self) -> Vec<ServerStatus> {
        self.0.iter().map(status_of).collect()
    }

    pub fn starting(&self) -> Vec<&str> {
        let starting = self.0.iter().filter(|server| server.state().phase == ServerPhase::Starting);
        starting.map(|server| server.identity.entry.name.as_str()).collect()
    }

    /// Explains why no tool of this name exists now. `None` if its server is ready, or if there is no such server.
    pub fn why_missing(&self, tool: &str) -> Option<String> {
        let part = names::server_of(tool)?;
        let server = self.0.iter().find(|server| {
            &*server.identity.part == part || is_same_server(&server.identity.entry.name, part)
        })?;
        let name = &server.identity.entry.name;
        match server.state().phase {
            ServerPhase::Idle | ServerPhase::Starting => Some(format!(
                "The MCP server {name:?} is still starting: its tools become available with a later request."
            )),
            ServerPhase::Over(why) => Some(cannot_be_used(name, &why)),
            ServerPhase::Ready => None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub async fn close(&self) {
        join_all(self.0.iter().map(Server::close)).await;
    }
}

fn status_of(server: &Server) -> ServerStatus {
    let state = server.state();
    ServerStatus {
        name: server.identity.entry.name.clone(),
        phase: state.phase,
        tools: state.listing.names(),
        notes: state.listing.notes.clone(),
        sandbox: server.identity.entry.sandbox,
    }
}

/// What the user's entries make of a tool whose server is not running.
#[derive(Debug, PartialEq, Eq)]
pub struct ExpectedBeliefs {
    /// The server's part of the tool's name.
    pub server: String,
    pub without_hint: Belief,
    /// If the server sends `readOnlyHint: true`.
    pub with_hint: Belief,
}

/// Returns `None` if `tool` is not the name of an MCP tool.
pub fn expected_beliefs(servers: &BTreeMap<String, ServerDefinition>, tool: &str) -> Option<ExpectedBeliefs> {
    let part = names::server_of(tool)?;
    let parts = names::of_servers(servers.keys().map(String::as_str));
    let server_entry = servers.values().zip(&parts).find(|(_, known)| *known == part);
    let nothing = ServerDefinition::default();
    let entry = server_entry.map_or(&nothing, |(entry, _)| entry);
    let trusted = match &entry.trust_hints {
        Some(Trust::Of(names)) => names.as_slice(),
        Some(Trust::All(_)) | None => &[],
    };
    let own_name = entry.tools.keys().chain(trusted).find(|name| names::of_tool(part, name) == tool);
    let own_name = own_name.map_or("", String::as_str);
    let context = HintContext {
        trust: entry.trust_hints.as_ref(),
        tool_override: entry.tools.get(own_name).copied(),
        only_reads: entry.sandbox == Some(ServerSandbox::ReadOnly),
    };
    let [without_hint, with_hint] = [None, Some(true)]
        .map(|read_only| hints::belief(own_name, Hints { read_only, destructive: None }, &context));
    Some(ExpectedBeliefs { server: part.to_owned(), without_hint, with_hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beliefs_about_a_stopped_servers_tool_follow_the_users_entry() {
        use Belief::{ClaimsToRead, MayChange, Reads};
        for (entry, expected) in [
            ("{command: c}", (MayChange, ClaimsToRead)),
            ("{command: c, trust_hints: true}", (MayChange, Reads)),
            ("{command: c, trust_hints: [get.issue]}", (MayChange, Reads)),
            ("{command: c, trust_hints: [other]}", (MayChange, MayChange)),
            ("{command: c, sandbox: read_only}", (MayChange, Reads)),
            ("{command: c, tools: {get.issue: read_only}}", (Reads, Reads)),
            ("{command: c, tools: {get.issue: changes}, trust_hints: true}", (MayChange, MayChange)),
        ] {
            let text = format!("git hub: {entry}");
            let servers: BTreeMap<String, ServerDefinition> = serde_saphyr::from_str(&text).unwrap();
            let part = names::of_servers(["git hub"].into_iter()).remove(0);
            let found = expected_beliefs(&servers, &names::of_tool(&part, "get.issue")).unwrap();
            assert_eq!((found.without_hint, found.with_hint), expected, "{entry}");
        }
        let unknown = expected_beliefs(&BTreeMap::new(), "mcp__t__look").unwrap();
        assert_eq!((unknown.without_hint, unknown.with_hint), (MayChange, ClaimsToRead));
        assert_eq!(expected_beliefs(&BTreeMap::new(), "read_file"), None);
    }
}
