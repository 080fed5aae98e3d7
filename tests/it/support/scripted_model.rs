//! A model whose replies the test sends event by event, and whose requests the test reads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use modegate::model::{Block, Model, ModelError, ModelEvent, ModelRequest, Reply, Role};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex as AsyncMutex, Notify};

type ModelReply = Result<ModelEvent, ModelError>;

/// The model and its control. Clones share both.
#[derive(Clone, Default)]
pub(crate) struct ScriptedModel {
    sessions: Arc<Mutex<HashMap<String, ModelSession>>>,
    request_arrived: Arc<Notify>,
}

/// The replies and requests of a session.
struct ModelSession {
    say: UnboundedSender<ModelReply>,
    replies: Arc<AsyncMutex<UnboundedReceiver<ModelReply>>>,
    requests: Vec<ModelRequest>,
    /// The number of requests that [`ScriptedModel::next_request`] has returned.
    shown: usize,
}

impl Default for ModelSession {
    fn default() -> Self {
        let (say, receiver) = unbounded_channel();
        Self { say, replies: Arc::new(AsyncMutex::new(receiver)), requests: Vec::new(), shown: 0 }
    }
}

impl ScriptedModel {
    fn with<T>(&self, session: &str, f: impl FnOnce(&mut ModelSession) -> T) -> T {
        f(self.sessions.lock().unwrap().entry(session.to_owned()).or_default())
    }

    /// Adds an event to the reply in a session.
    pub(crate) fn say(&self, session: &str, reply_event: ModelReply) {
        self.with(session, |model_session| model_session.say.send(reply_event)).unwrap();
    }

    /// Returns all requests of a session.
    pub(crate) fn requests(&self, session: &str) -> Vec<ModelRequest> {
        self.with(session, |model_session| model_session.requests.clone())
    }

    /// Waits for the next request of a session, and returns it.
    pub(crate) async fn next_request(&self, session: &str) -> ModelRequest {
        let wait = async {
            loop {
                let asked = self.request_arrived.notified();
                let next = self.with(session, |model_session| {
                    let next = model_session.requests.get(model_session.shown).cloned();
                    model_session.shown += usize::from(next.is_some());
                    next
                });
                match next {
                    Some(request) => return request,
                    None => asked.await,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("the model was not asked")
    }
}

impl Model for ScriptedModel {
    fn reply(&self, request: ModelRequest) -> Reply {
        let session = request.session.0.to_string();
        let receiver = self.with(&session, |model_session| {
            model_session.requests.push(request);
            Arc::clone(&model_session.replies)
        });
        self.request_arrived.notify_waiters();
        stream::unfold(receiver, |receiver| async move {
            let reply_event = receiver.lock().await.recv().await?;
            Some((reply_event, receiver))
        })
        .boxed()
    }
}

/// Returns a request in one line: the offered tools and the last message.
pub(crate) fn summary(request: &ModelRequest) -> String {
    format!("tools: {} | {}", tools(request), last_message(request).join(" | "))
}

/// Returns the names of the offered tools.
pub(crate) fn tools(request: &ModelRequest) -> String {
    let names: Vec<_> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
    names.join(" ")
}

/// Returns the blocks of a request's last message.
pub(crate) fn last_message(request: &ModelRequest) -> Vec<String> {
    let last = request.messages.last().expect("a request has a message");
    assert_eq!(last.role, Role::User, "a request ends with the user's side");
    last.blocks.iter().map(block).collect()
}

fn block(block: &Block) -> String {
    match block {
        Block::Text(text) => format!("text {text:?}"),
        Block::Thought(text) => format!("thought {text:?}"),
        Block::ProviderState(seal) => format!("seal {}", seal.data),
        Block::Image(image) => format!("image {}", image.mime_type),
        Block::ToolCall { id, .. } => format!("call {id}"),
        Block::ToolResult { id, text, is_error, .. } => {
            format!("{} {id} {text:?}", if *is_error { "error" } else { "result" })
        }
        Block::Note(text) => format!("note {text:?}"),
        Block::Reminder(text) => {
            let first = text.lines().nth(1).unwrap_or_default();
            format!("reminder {first:?}")
        }
    }
}
