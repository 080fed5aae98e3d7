//! The task that owns one MCP server: starts it on demand, lists its tools, and ends it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rmcp::handler::client::progress::ProgressDispatcher;
use rmcp::model::{ClientRequest, CustomResult, ListToolsRequest, PaginatedRequestParams, ServerResult};
use rmcp::service::RoleClient;
use rmcp::{Peer, ServiceError};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use super::connect::{ConnectOptions, ServerConnection, connect};
use super::fault::error_message;
use super::handler::Handler;
use super::listing::{self, ListedTool, ToolListing};
use super::names::ServerIdentity;
use super::server_event::ServerEvent;
use crate::process::program::Program;
use crate::server::ServerTransport;

/// Timeout for a start, including the first list of tools.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(30);

const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay before a new list after a change notification. Doubles with each notification within [`QUIET_PERIOD`] of
/// the previous one, at most [`MAX_DOUBLINGS`] times. Tools are not called during the delay.
const RELIST_DELAY: Duration = Duration::from_millis(100);
const MAX_DOUBLINGS: u32 = 7;
const QUIET_PERIOD: Duration = Duration::from_mins(1);

/// After this many failed starts in a row, only a tool call starts the server again.
const MAX_FAILURES: u32 = 3;

const MAX_PAGES: usize = 50;

#[derive(Clone, Default)]
pub(super) struct ServerState {
    pub phase: ServerPhase,
    /// Kept after the server ends: a call starts the server again.
    pub listing: Arc<ToolListing>,
    /// True while the tools are being listed again.
    pub is_stale: bool,
    pub peer: Option<ServerPeer>,
    pub began: Option<Instant>,
    /// True if the last program may still be running.
    pub is_end_unconfirmed: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServerPhase {
    #[default]
    Idle,
    Starting,
    Ready,
    /// The server failed to start, or has ended. A sentence without a full stop.
    Over(String),
}

#[derive(Clone)]
pub(super) struct ServerPeer {
    pub peer: Peer<RoleClient>,
    pub progress: ProgressDispatcher,
}

pub(super) enum ServerMessage {
    /// Start the server; `again` ignores earlier failures.
    Start {
        again: bool,
    },
    /// The reply is true if all processes are confirmed gone.
    End(oneshot::Sender<bool>),
    Close(oneshot::Sender<()>),
}

pub(super) struct ServerTask {
    server: ServerIdentity,
    options: ConnectOptions,
    handler: Handler,
    state: watch::Sender<ServerState>,
    failures: u32,
    reported: Option<String>,
    /// True if the last program may still be running.
    is_end_unconfirmed: bool,
}

enum ServerEnding {
    /// The server ended or misbehaved.
    Over(String),
    Ended,
    Closed(Option<oneshot::Sender<()>>),
}

impl ServerTask {
    pub(super) fn new(
        server: ServerIdentity,
        options: ConnectOptions,
        handler: Handler,
        state: watch::Sender<ServerState>,
    ) -> Self {
        Self { server, options, handler, state, failures: 0, reported: None, is_end_unconfirmed: false }
    }

    /// Starts the server only when a message says so.
    pub(super) async fn run(mut self, mut messages: mpsc::Receiver<ServerMessage>) {
        while let Some(message) = messages.recv().await {
            match message {
                ServerMessage::Start { again } => {
                    if self.failures >= MAX_FAILURES && !again {
                        continue;
                    }
                    self.set(ServerPhase::Starting);
                    match Box::pin(self.run_connection(&mut messages)).await {
                        ServerEnding::Over(why) => {
                            self.report(&why);
                            self.set(ServerPhase::Over(why));
                        }
                        ServerEnding::Ended => self.set(ServerPhase::Over("it was stopped".into())),
                        ServerEnding::Closed(reply) => {
                            self.set(ServerPhase::Over("the session has ended".into()));
                            if let Some(reply) = reply {
                                // The caller may have stopped waiting; also below.
                                let _ = reply.send(());
                            }
                            return;
                        }
                    }
                }
                ServerMessage::End(reply) => drop(reply.send(!self.is_end_unconfirmed)),
                ServerMessage::Close(reply) => {
                    let _ = reply.send(());
                    return;
                }
            }
        }
    }

    /// Reports an end, except for a repeated failure with the same reason.
    fn report(&mut self, why: &str) {
        tracing::info!(server = self.server.entry.name, why, "a server has ended");
        if self.reported.as_deref() != Some(why) {
            let event = ServerEvent::Over { server: self.server.entry.name.clone(), why: why.to_owned() };
            // The session may be over.
            let _ = self.handler.events.send(event);
            self.reported = Some(why.to_owned());
        }
    }

    fn set(&mut self, phase: ServerPhase) {
        self.state.send_modify(|state| {
            if phase != ServerPhase::Ready {
                state.peer = None;
            }
            if phase == ServerPhase::Starting {
                state.began.get_or_insert_with(Instant::now);
            }
            state.is_stale = false;
            state.is_end_unconfirmed = self.is_end_unconfirmed;
            state.phase = phase;
        });
    }

    async fn run_connection(&mut self, messages: &mut mpsc::Receiver<ServerMessage>) -> ServerEnding {
        let (started_program, mut program) = watch::channel(None::<Program>);
        let (entry, options, handler) =
            (Arc::clone(&self.server.entry), self.options.clone(), self.handler.clone());
        let server = self.server.clone();
        let starting = async move {
            let note_start = |started| drop(started_program.send_replace(Some(started)));
            let connection = Box::pin(connect(&entry, &options, handler, note_start)).await?;
            let listing = list(connection.running.peer(), &server).await?;
            Ok::<_, String>((connection, listing))
        };
        let mut starting = Box::pin(timeout(START_TIMEOUT, starting));
        let started = tokio::select! {
            biased;
            ending = shutdown(messages) => Err(ending),
            started = &mut starting => Ok(started.unwrap_or_else(|_| Err(late_start()))),
        };
        if started.is_err() && matches!(self.server.entry.transport, ServerTransport::Program { .. }) {
            // A program that is being started is ended, too.
            tokio::select! {
                _ = program.wait_for(Option::is_some) => {}
                _ = &mut starting => {}
            }
        }
        // Closes the input of a program that is ended now.
        drop(starting);
        let program = program.borrow().clone();
        match started {
            Ok(Ok((connection, listing))) => {
                self.failures = 0;
                self.reported = None;
                self.publish(&connection, listing);
                self.serve(connection, messages).await
            }
            Ok(Err(why)) => {
                self.failures += 1;
                if let Some(program) = program {
                    self.is_end_unconfirmed |= !program.end().await;
                }
                ServerEnding::Over(why)
            }
            Err(how) => self.end(how, program.as_ref()).await,
        }
    }

    async fn serve(
        &mut self,
        connection: ServerConnection,
        messages: &mut mpsc::Receiver<ServerMessage>,
    ) -> ServerEnding {
        let ServerConnection { running, program, monitor } = connection;
        let peer = running.peer().clone();
        let changed = Arc::clone(&self.handler.changed);
        let mut waiting = Box::pin(running.waiting());
        // Time of the last notification, and length of its series.
        let mut lists = (Instant::now(), 0);
        let mut relisting: Option<BoxFuture<'_, Result<ToolListing, String>>> = None;
        loop {
            tokio::select! {
                biased;
                how = shutdown(messages) => {
                    // Dropping the last writer closes the server's input.
                    drop(waiting);
                    return self.end(how, program.as_ref()).await;
                }
                () = monitor.stalled() => {
                    self.end_program(program.as_ref()).await;
                    return ServerEnding::Over("it does not read its input".into());
                }
                _ = &mut waiting => {
                    let Some(program) = &program else {
                        self.is_end_unconfirmed = true;
                        return ServerEnding::Over("it closed the connection".into());
                    };
                    let over = program.shut_down().await;
                    self.is_end_unconfirmed |= !over.confirmed;
                    return ServerEnding::Over(program.with_last_error(&over.how));
                }
                () = changed.notified(), if relisting.is_none() => {
                    self.state.send_modify(|state| state.is_stale = true);
                    let is_quiet = lists.0.elapsed() > QUIET_PERIOD;
                    lists = (Instant::now(), if is_quiet { 0 } else { (lists.1 + 1).min(MAX_DOUBLINGS) });
                    relisting = Some(self.relist(peer.clone(), RELIST_DELAY * 2u32.pow(lists.1)).boxed());
                }
                listing = answer(&mut relisting) => {
                    relisting = None;
                    match listing {
                        Ok(listing) => self.update_listing(listing),
                        Err(why) => {
                            // The effects of its tools are unknown now.
                            self.end_program(program.as_ref()).await;
                            return ServerEnding::Over(format!("its tools cannot be listed: {why}"));
                        }
                    }
                }
            }
        }
    }

    /// Without a program (for a URL), the end remains unconfirmed.
    async fn end_program(&mut self, program: Option<&Program>) {
        self.is_end_unconfirmed |= match program {
            Some(program) => !program.end().await,
            None => true,
        };
    }

    async fn end(&mut self, shutdown: Shutdown, program: Option<&Program>) -> ServerEnding {
        match shutdown {
            Shutdown::End(reply) => {
                self.end_program(program).await;
                // The caller may have stopped waiting.
                let _ = reply.send(!self.is_end_unconfirmed);
                ServerEnding::Ended
            }
            Shutdown::Close(reply) => {
                if let Some(program) = program {
                    program.shut_down().await;
                }
                ServerEnding::Closed(reply)
            }
        }
    }

    fn relist(
        &self,
        peer: Peer<RoleClient>,
        pause: Duration,
    ) -> impl Future<Output = Result<ToolListing, String>> + Send + use<> {
        let server = self.server.clone();
        async move {
            tokio::time::sleep(pause).await;
            let listing = timeout(LIST_TIMEOUT, list(&peer, &server)).await;
            listing.unwrap_or_else(|_| Err("it did not answer".into()))
        }
    }

    fn publish(&mut self, connection: &ServerConnection, listing: ToolListing) {
        let line =
            ServerPeer { peer: connection.running.peer().clone(), progress: self.handler.progress.clone() };
        self.state.send_modify(|state| state.peer = Some(line));
        self.update_listing(listing);
        self.set(ServerPhase::Ready);
    }

    fn update_listing(&mut self, mut listing: ToolListing) {
        let before = Arc::clone(&self.state.borrow().listing);
        let changed = listing.differences(&before);
        if listing.count_flips(&before) {
            // The session may be over; also below.
            let _ = self.handler.events.send(ServerEvent::ClaimsMore(self.server.part.to_string()));
        }
        if !changed.is_empty() {
            let _ = self.handler.events.send(ServerEvent::Changed(changed));
        }
        for warning in
            listing.config_warnings.iter().filter(|warning| !before.config_warnings.contains(warning))
        {
            let _ = self
                .handler
                .events
                .send(ServerEvent::Note(format!("MCP server {:?}: {warning}.", self.server.entry.name)));
        }
        self.state.send_modify(|state| {
            state.listing = Arc::new(listing);
            state.is_stale = false;
        });
    }
}

fn late_start() -> String {
    format!("it did not answer within {} s", START_TIMEOUT.as_secs())
}

enum Shutdown {
    End(oneshot::Sender<bool>),
    Close(Option<oneshot::Sender<()>>),
}

async fn shutdown(messages: &mut mpsc::Receiver<ServerMessage>) -> Shutdown {
    loop {
        match messages.recv().await {
            Some(ServerMessage::Start { .. }) => {}
            Some(ServerMessage::End(reply)) => return Shutdown::End(reply),
            Some(ServerMessage::Close(reply)) => return Shutdown::Close(Some(reply)),
            None => return Shutdown::Close(None),
        }
    }
}

/// Pends if no listing is in progress.
async fn answer(
    relisting: &mut Option<BoxFuture<'_, Result<ToolListing, String>>>,
) -> Result<ToolListing, String> {
    match relisting {
        Some(relisting) => relisting.await,
        None => std::future::pending().await,
    }
}

async fn list(peer: &Peer<RoleClient>, server: &ServerIdentity) -> Result<ToolListing, String> {
    let mut tools = Vec::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let params = cursor.take().map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
        let request = ListToolsRequest { params, ..ListToolsRequest::default() };
        let page = peer.send_request(ClientRequest::ListToolsRequest(request)).await;
        match page {
            Ok(ServerResult::ListToolsResult(page)) => {
                tools.extend(page.tools.into_iter().map(|tool| Ok(ListedTool::new(tool))));
                cursor = page.next_cursor;
            }
            // The library could not read the list, for example because one tool is malformed.
            Ok(ServerResult::CustomResult(CustomResult(mut page))) if page["tools"].is_array() => {
                let Value::Array(values) = page["tools"].take() else { continue };
                tools.extend(values.into_iter().map(ListedTool::read));
                cursor = page["nextCursor"].as_str().map(str::to_owned);
            }
            Ok(_) => return Err(error_message(&ServiceError::UnexpectedResponse, &server.entry)),
            Err(error) => return Err(error_message(&error, &server.entry)),
        }
        if cursor.is_none() || tools.len() > listing::MAX_TOOLS {
            break;
        }
    }
    Ok(ToolListing::new(tools, server))
}
