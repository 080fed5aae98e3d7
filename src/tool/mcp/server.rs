//! One server of a session: what everybody else has of it. A task of its own ([`super::task`]) starts it and ends it.
//!
//! What it has come to is said in a [`State`], which everybody may look at. What it says of its tools is read again whenever it
//! says that they have changed; until that is done, none of them is called.

use std::sync::Arc;
use std::time::Duration;

use rmcp::Peer;
use rmcp::handler::client::progress::ProgressDispatcher;
use rmcp::service::RoleClient;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::connect::ConnectOptions;
use super::handler::Handler;
use super::listing::{self, Listing};
use super::question::Question;
use super::task::{Message, START, Task};
use crate::permission::Effect;
use crate::process::secrets::Secrets;
use crate::server::{Entry, Transport};

/// What a server has come to.
#[derive(Clone, Default)]
pub struct State {
    /// How it stands.
    pub phase: Phase,
    /// Its tools, as it listed them last; also of one that has ended, which is started again when one is called.
    pub listing: Arc<Listing>,
    /// Its tools have to be read again, which is being done.
    pub is_stale: bool,
    /// How to call it, while it runs.
    pub peer: Option<ServerPeer>,
    /// When it was first started.
    pub began: Option<Instant>,
    /// What ran last may not be gone: nobody vouches for it.
    pub is_unsure: bool,
}

/// How a server stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nobody has wanted it yet.
    #[default]
    Idle,
    /// It is being started.
    Starting,
    /// It answers.
    Ready,
    /// It could not be started, or has ended. One sentence, without its end.
    Over(String),
}

/// How a server is called.
#[derive(Clone)]
pub struct ServerPeer {
    /// Where requests go.
    pub peer: Peer<RoleClient>,
    /// How far calls are.
    pub progress: ProgressDispatcher,
}

/// What a session is to know of its servers.
#[derive(Debug)]
pub enum ServerEvent {
    /// Tools do something else than before, as far as their server can be believed: each as models call it, what it did, and
    /// what it does.
    Changed(Vec<(String, Effect, Effect)>),
    /// This server, by its part of its tools' names, says of a tool that it reads of which it had not said so.
    ClaimsMore(String),
    /// The user is to be told this.
    Note(String),
    /// A server wants to ask the user something.
    Elicitation(Question),
    /// A server could not be started, or has ended by itself.
    Over {
        /// The server.
        server: String,
        /// One sentence, without its end.
        why: String,
    },
}

/// A server. Cheap to clone; with the last handle it ends in its own way.
#[derive(Clone)]
pub struct Server {
    /// How it is reached and what is believed of it.
    pub entry: Arc<Entry>,
    mailbox: mpsc::Sender<Message>,
    state: watch::Receiver<State>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("name", &self.entry.name).finish_non_exhaustive()
    }
}

impl Server {
    /// A server that nobody has wanted yet. `part` is its part of its tools' names.
    pub fn new(
        entry: Entry,
        part: String,
        options: ConnectOptions,
        events: mpsc::UnboundedSender<ServerEvent>,
    ) -> Self {
        let (mailbox, messages) = mpsc::channel(16);
        let (state, seen) = watch::channel(State::default());
        let entry = Arc::new(entry);
        let server = Self { entry: Arc::clone(&entry), mailbox: mailbox.clone(), state: seen };
        let roots = options.roots.iter().map(|root| listing::address(root)).collect();
        let roots = entry.roots.then_some(roots);
        let handler = Handler {
            server: entry.name.as_str().into(),
            roots,
            part: part.as_str().into(),
            secrets: secrets(&entry.transport),
            changed: Arc::new(Notify::new()),
            events: events.clone(),
            capabilities: options.capabilities,
            progress: ProgressDispatcher::new(),
        };
        let weak = mailbox.downgrade();
        Task::begin((entry, part), options, handler, events, state, (weak, messages));
        server
    }

    /// Starts it, if it does not run.
    pub fn start(&self, again: bool) {
        // A full mailbox has such a message already, or its end.
        let _ = self.mailbox.try_send(Message::Start { again });
    }

    /// How it stands now.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Waits until it has started or failed, but not for longer than `timeout` since it was first started. Whether that was
    /// waited for in vain.
    pub async fn settled(&self, timeout: Duration) -> bool {
        let mut state = self.state.clone();
        let began = state.borrow().began.unwrap_or_else(Instant::now);
        let is_settled = |state: &State| !matches!(state.phase, Phase::Idle | Phase::Starting);
        // An error means that it is gone, which is settled, too. One that is late comes with a later request.
        let deadline = began + timeout;
        Instant::now() < deadline && timeout_at(deadline, state.wait_for(is_settled)).await.is_err()
    }

    /// Waits until it can be called and its tools are known as they are now, starting it if need be.
    ///
    /// # Errors
    /// It cannot be started, or does not say what its tools are; one sentence, without its end.
    pub async fn ready(&self) -> Result<(ServerPeer, Arc<Listing>), String> {
        let mut state = self.state.clone();
        let mut wanted = false;
        loop {
            let now = state.borrow_and_update().clone();
            match (now.phase, now.peer) {
                (Phase::Ready, Some(line)) if !now.is_stale => return Ok((line, now.listing)),
                (Phase::Over(why), _) if wanted => return Err(why),
                (Phase::Idle | Phase::Over(_), _) if !wanted => {
                    wanted = true;
                    if self.mailbox.send(Message::Start { again: true }).await.is_err() {
                        return Err("it is gone".into());
                    }
                    // What it has come to by now is from before.
                    let is_new =
                        |state: &State| state.phase == Phase::Starting || state.phase == Phase::Ready;
                    if timeout(START, state.wait_for(is_new)).await.is_err() {
                        return Err("it does not start".into());
                    }
                    continue;
                }
                _ => {}
            }
            if timeout(START, state.changed()).await.is_err() {
                return Err("it does not answer".into());
            }
        }
    }

    /// Waits until it does not run any more. Whether nothing of it is left, for certain; of an address that is never so.
    pub async fn gone(&self) -> bool {
        if matches!(self.entry.transport, Transport::Address { .. }) {
            return false;
        }
        let mut state = self.state.clone();
        // An error means that its task is gone, and its program with it.
        let _ = state.wait_for(|state| state.peer.is_none()).await;
        self.mailbox.is_closed() || !self.state.borrow().is_unsure
    }

    /// Ends it at once. Whether nothing of it is left, for certain. It is started again when it is wanted.
    pub async fn end(&self) -> bool {
        let (reply, ended) = oneshot::channel();
        if self.mailbox.send(Message::End(reply)).await.is_err() {
            return false;
        }
        ended.await.unwrap_or(false)
    }

    /// Ends it in its own way, for good.
    pub async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.mailbox.send(Message::Close(reply)).await.is_ok() {
            // An error means that it is gone.
            let _ = closed.await;
        }
    }
}

/// What of an entry nobody is to see.
fn secrets(transport: &Transport) -> Secrets {
    let (Transport::Program { env: values, .. } | Transport::Address { headers: values, .. }) = transport;
    Secrets::new(values.iter().map(|(_, value)| value))
}

/// A server that is not kept by whoever knows it.
#[derive(Clone)]
pub struct WeakServer {
    /// How it is reached and what is believed of it.
    pub entry: Arc<Entry>,
    /// Where its task is told.
    pub mailbox: mpsc::WeakSender<Message>,
    /// How it stands.
    pub state: watch::Receiver<State>,
}

impl WeakServer {
    /// The server, while its session goes on.
    pub fn get(&self) -> Option<Server> {
        let mailbox = self.mailbox.upgrade()?;
        Some(Server { entry: Arc::clone(&self.entry), mailbox, state: self.state.clone() })
    }
}
