//! MCP servers: their tools obey the mode as all others do. The only room that names the MCP library.
//!
//! A session's servers are started with its first prompt, all at once, each by a task of its own
//! ([`server`](self::server)); a broken or slow one holds up nobody for longer than a moment, once. What their tools do is
//! decided from their hints and their entries ([`crate::permission::hints`]) whenever they are listed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc;

use super::Tool;
use crate::permission::hints::Belief;
use crate::server::{Entry, ServerSandbox};
pub use connect::ConnectOptions;
pub use listing::plain;
pub use question::Question;
use server::Server;
pub use server::{Phase, ServerEvent};

mod call;
mod connect;
mod handler;
mod listing;
mod names;
mod question;
mod rate_limit;
mod result;
mod server;
mod task;

/// The servers of one session. Cheap to clone.
#[derive(Clone, Default)]
pub struct Servers(Arc<[Server]>);

/// How one server stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// How it stands.
    pub phase: Phase,
    /// Its tools by the names under which models call them, and what is believed of them.
    pub tools: Vec<(String, Belief)>,
    /// What is to be known besides.
    pub notes: Vec<String>,
    /// What the kernel holds it to.
    pub sandbox: ServerSandbox,
}

impl Servers {
    /// Servers that nobody has wanted yet. What a session is to know of them goes to `events`; it is little.
    pub fn new(
        entries: Vec<Entry>,
        options: &ConnectOptions,
        events: &mpsc::UnboundedSender<ServerEvent>,
    ) -> Self {
        let parts = names::of_servers(entries.iter().map(|entry| entry.name.as_str()));
        let server = |(entry, part)| {
            Server::new(entry, part, ConnectOptions::clone(options), mpsc::UnboundedSender::clone(events))
        };
        Self(entries.into_iter().zip(parts).map(server).collect())
    }

    /// Starts those that do not run, but for those that have failed too often, and returns at once.
    pub fn start(&self) {
        for server in self.0.iter() {
            let state = server.state();
            // One that has ended and whose tools are known is started when one of them is called.
            if state.phase != Phase::Ready && state.listing.is_empty() {
                server.start(false);
            }
        }
    }

    /// Waits until each has started or failed, but for none longer than `timeout` since it was first started. Those that this
    /// was too short for, the first time.
    pub async fn settle(&self, timeout: Duration) -> Vec<String> {
        let all = join_all(self.0.iter().map(|server| server.settled(timeout))).await;
        let late = self.0.iter().zip(all).filter(|(_, is_late)| *is_late);
        late.map(|(server, _)| server.entry.name.clone()).collect()
    }

    /// All tools that are known now, by server in the order of the entries.
    pub fn tools(&self) -> Vec<Arc<dyn Tool>> {
        self.0.iter().flat_map(|server| server.state().listing.iter().collect::<Vec<_>>()).collect()
    }

    /// How they stand.
    pub fn status(&self) -> Vec<ServerStatus> {
        let status = |server: &Server| {
            let state = server.state();
            ServerStatus {
                name: server.entry.name.clone(),
                phase: state.phase,
                tools: state.listing.names(),
                notes: state.listing.notes.clone(),
                sandbox: server.entry.sandbox,
            }
        };
        self.0.iter().map(status).collect()
    }

    /// Those that are being started.
    pub fn starting(&self) -> Vec<&str> {
        let starting = self.0.iter().filter(|server| server.state().phase == Phase::Starting);
        starting.map(|server| server.entry.name.as_str()).collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends all, each in its own way.
    pub async fn close(&self) {
        join_all(self.0.iter().map(Server::close)).await;
    }
}
