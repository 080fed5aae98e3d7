//! MCP servers and their tools, which obey the mode like any other tool. Only this module uses the MCP
//! library.
//!
//! A session starts its servers with its first prompt, each in its own task ([`server`](self::server)). A
//! slow or broken server delays only that prompt, for a limited time.

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

#[derive(Clone, Default)]
pub struct Servers(Arc<[Server]>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerStatus {
    pub name: String,
    pub phase: Phase,
    pub tools: Vec<(String, Belief)>,
    pub notes: Vec<String>,
    pub sandbox: ServerSandbox,
}

impl Servers {
    /// Creates the servers without starting them.
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

    pub fn start(&self) {
        for server in self.0.iter() {
            let state = server.state();
            // A server that ended with known tools starts again with a call.
            if state.phase != Phase::Ready && state.listing.is_empty() {
                server.start(false);
            }
        }
    }

    /// Waits until each server is ready or has failed, at most `timeout` after its first start. Returns the
    /// names of late servers, each only once.
    pub async fn settle(&self, timeout: Duration) -> Vec<String> {
        let all = join_all(self.0.iter().map(|server| server.settled(timeout))).await;
        let late = self.0.iter().zip(all).filter(|(_, is_late)| *is_late);
        late.map(|(server, _)| server.entry.name.clone()).collect()
    }

    pub fn tools(&self) -> Vec<Arc<dyn Tool>> {
        self.0.iter().flat_map(|server| server.state().listing.iter().collect::<Vec<_>>()).collect()
    }

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

    pub fn starting(&self) -> Vec<&str> {
        let starting = self.0.iter().filter(|server| server.state().phase == Phase::Starting);
        starting.map(|server| server.entry.name.as_str()).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub async fn close(&self) {
        join_all(self.0.iter().map(Server::close)).await;
    }
}
