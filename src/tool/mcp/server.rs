//! The handle of one MCP server. A task ([`super::task`]) starts and ends the server and publishes a
//! [`State`].
//!
//! The tools are listed again after each change notification; no tool is called until then.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rmcp::handler::client::progress::ProgressDispatcher;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::connect::ConnectOptions;
use super::handler::Handler;
use super::listing::ToolListing;
use super::names::ServerIdentity;
use super::server_event::ServerEvent;
use super::task::{START_TIMEOUT, ServerMessage, ServerPeer, ServerPhase, ServerState, ServerTask};
use crate::platform::Platform;
use crate::process::secrets::Secrets;
use crate::process::shell::Shell;
use crate::server::{ServerEntry, ServerTransport};

/// The server shuts down gracefully with its last handle.
#[derive(Clone)]
pub(super) struct Server {
    pub identity: ServerIdentity,
    /// Folder for files with long results, if there is one.
    pub scratch: Option<Arc<Path>>,
    mailbox: mpsc::Sender<ServerMessage>,
    state: watch::Receiver<ServerState>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("name", &self.identity.entry.name).finish_non_exhaustive()
    }
}

impl Server {
    pub(super) fn new(
        entry: ServerEntry,
        part: String,
        options: ConnectOptions,
        events: mpsc::UnboundedSender<ServerEvent>,
    ) -> Self {
        let (mailbox, messages) = mpsc::channel(16);
        let (state, seen) = watch::channel(ServerState::default());
        let roots =
            options.roots.iter().map(|root| Platform::HERE.file_url(&root.to_string_lossy())).collect();
        let handler = Handler {
            server: entry.name.as_str().into(),
            roots: entry.roots.then_some(roots),
            part: part.into(),
            secrets: secrets(&entry.transport, options.shell.as_ref()),
            changed: Arc::new(Notify::new()),
            events,
            capabilities: options.capabilities,
            progress: ProgressDispatcher::new(),
        };
        let scratch = options.shell.as_ref().map(|shell| Arc::from(shell.processes().scratch()));
        let identity = ServerIdentity { entry: Arc::new(entry), part: Arc::clone(&handler.part) };
        tokio::spawn(ServerTask::new(identity.clone(), options, handler, state).run(messages));
        Self { identity, scratch, mailbox, state: seen }
    }

    pub(super) fn downgrade(&self) -> WeakServer {
        let (identity, scratch) = (self.identity.clone(), self.scratch.clone());
        WeakServer { identity, scratch, mailbox: self.mailbox.downgrade(), state: self.state.clone() }
    }

    pub(super) fn start(&self, again: bool) {
        // A full mailbox already contains a start or an end.
        let _ = self.mailbox.try_send(ServerMessage::Start { again });
    }

    pub(super) fn state(&self) -> ServerState {
        self.state.borrow().clone()
    }

    /// Waits until the server is ready or has failed, at most `timeout` after its first start. Returns true
    /// on a timeout.
    pub(super) async fn settled(&self, timeout: Duration) -> bool {
        let mut state = self.state.clone();
        let began = state.borrow().began.unwrap_or_else(Instant::now);
        let is_settled =
            |state: &ServerState| !matches!(state.phase, ServerPhase::Idle | ServerPhase::Starting);
        // An error means that the task is gone. Tools of a late server come with a later model request.
        let deadline = began + timeout;
        Instant::now() < deadline && timeout_at(deadline, state.wait_for(is_settled)).await.is_err()
    }

    /// Starts the server if necessary, and waits until it and its current tools are ready.
    pub(super) async fn ready(&self) -> Result<(ServerPeer, Arc<ToolListing>), String> {
        let mut state = self.state.clone();
        let mut wanted = false;
        loop {
            let now = state.borrow_and_update().clone();
            match (now.phase, now.peer) {
                (ServerPhase::Ready, Some(line)) if !now.is_stale => return Ok((line, now.listing)),
                (ServerPhase::Over(why), _) if wanted => return Err(why),
                (ServerPhase::Idle | ServerPhase::Over(_), _) if !wanted => {
                    wanted = true;
                    if self.mailbox.send(ServerMessage::Start { again: true }).await.is_err() {
                        return Err("the connection is closed".into());
                    }
                    // An older state says nothing about this start.
                    if timeout(START_TIMEOUT, state.wait_for(is_started)).await.is_err() {
                        return Err("it does not start".into());
                    }
                    continue;
                }
                _ => {}
            }
            if timeout(START_TIMEOUT, state.changed()).await.is_err() {
                return Err("it does not answer".into());
            }
        }
    }

    /// Waits until the server has ended. Returns true if all processes are confirmed gone, which is never so
    /// for a URL.
    pub(super) async fn wait_until_gone(&self) -> bool {
        if matches!(self.identity.entry.transport, ServerTransport::Address { .. }) {
            return false;
        }
        let mut state = self.state.clone();
        // An error means that the task and its program are gone.
        let _ = state.wait_for(|state| state.peer.is_none()).await;
        self.mailbox.is_closed() || !self.state.borrow().is_end_unconfirmed
    }

    /// Kills the server. Returns true if all processes are confirmed gone.
    pub(super) async fn end(&self) -> bool {
        let (reply, ended) = oneshot::channel();
        if self.mailbox.send(ServerMessage::End(reply)).await.is_err() {
            return false;
        }
        ended.await.unwrap_or(false)
    }

    /// Shuts down gracefully, for good.
    pub(super) async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.mailbox.send(ServerMessage::Close(reply)).await.is_ok() {
            let _ = closed.await;
        }
    }
}

fn is_started(state: &ServerState) -> bool {
    state.phase == ServerPhase::Starting || state.phase == ServerPhase::Ready
}

fn secrets(transport: &ServerTransport, shell: Option<&Shell>) -> Secrets {
    let (ServerTransport::Program { env: values, .. } | ServerTransport::Address { headers: values, .. }) =
        transport;
    let passwords = shell.map(|shell| shell.network_variables().passwords()).unwrap_or_default();
    Secrets::new(values.iter().map(|(_, value)| value).chain(&passwords))
}

/// A handle that does not keep the server alive.
#[derive(Clone)]
pub(super) struct WeakServer {
    identity: ServerIdentity,
    scratch: Option<Arc<Path>>,
    mailbox: mpsc::WeakSender<ServerMessage>,
    state: watch::Receiver<ServerState>,
}

impl WeakServer {
    pub(super) fn get(&self) -> Option<Server> {
        let mailbox = self.mailbox.upgrade()?;
        let (identity, scratch) = (self.identity.clone(), self.scratch.clone());
        Some(Server { identity, scratch, mailbox, state: self.state.clone() })
    }
}
