//! Relays updates and requests of an external agent into the session's own events, in order. From the second
//! start on, a prefix keeps call ids unique. Each call is announced once, even before its permission request,
//! which may never reach the client.

use std::collections::HashSet;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::message::{AgentMessage, Relayed, RelayedRequest};
use crate::acp::{
    ContentBlock, ContentChunk, MessageId, SessionUpdate, ToolCall, ToolCallId, ToolCallUpdate, Update,
};
use crate::client::{Client, ClientEnd, ClientRequest, Outgoing};
use crate::conversation::open_calls::OpenCalls;
use crate::event::SessionEvent;
use crate::text::visible_line;

pub(super) struct ExternalAgentRelay {
    pub start: u64,
    pub to: mpsc::UnboundedSender<AgentMessage>,
    pub client: Client,
    /// Ends all waits for send permits when cancelled.
    pub cancel: CancellationToken,
    pub fences: mpsc::Receiver<oneshot::Sender<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayedKind {
    Text,
    Thought,
    Other,
}

struct MessageIds {
    start: u64,
    kind: RelayedKind,
    agent_id: Option<MessageId>,
    count: u64,
}

impl MessageIds {
    fn id(&mut self, kind: RelayedKind, agent_id: Option<&MessageId>) -> MessageId {
        if self.kind != kind || self.agent_id.as_ref() != agent_id {
            self.count += 1;
            self.kind = kind;
            self.agent_id = agent_id.cloned();
        }
        MessageId::new(format!("msg_h{}_{}", self.start, self.count))
    }
}

struct RelayState {
    message_ids: MessageIds,
    announced_calls: HashSet<ToolCallId>,
    open: OpenCalls,
}

impl RelayState {
    fn call(&mut self, call: ToolCall) -> SessionUpdate {
        self.message_ids.kind = RelayedKind::Other;
        if !self.announced_calls.insert(call.tool_call_id.clone()) {
            return self.update(call.into());
        }
        let update = SessionUpdate::ToolCall(call);
        self.open.apply(&update);
        update
    }

    /// Returns an update, or the announcement if the call is new.
    fn update(&mut self, update: ToolCallUpdate) -> SessionUpdate {
        if !self.announced_calls.contains(&update.tool_call_id) {
            return self.call(announced(update));
        }
        let update = SessionUpdate::ToolCallUpdate(update);
        self.open.apply(&update);
        update
    }
}

fn announced(update: ToolCallUpdate) -> ToolCall {
    let mut call = ToolCall::new(update.tool_call_id.clone(), update.tool_call_id.0.to_string());
    call.update(update.fields);
    call.meta(update.meta)
}

impl ExternalAgentRelay {
    pub(super) async fn run(mut self, mut end: ClientEnd) {
        let message_ids =
            MessageIds { start: self.start, kind: RelayedKind::Other, agent_id: None, count: 0 };
        let mut state =
            RelayState { message_ids, announced_calls: HashSet::new(), open: OpenCalls::default() };
        loop {
            let message = tokio::select! {
                // A fence waits until no message is left.
                biased;
                message = end.recv() => message,
                Some(fence) = self.fences.recv() => {
                    state.message_ids.kind = RelayedKind::Other;
                    // A fence marks the end of the turn.
                    self.end_open(&mut state);
                    drop(fence);
                    continue;
                }
            };
            let passed = match message {
                Some(
                    Outgoing::Update(notification, send_permit)
                    | Outgoing::Replayed(notification, send_permit),
                ) => {
                    let passed = self.update(notification.update, &mut state).await;
                    drop(send_permit);
                    passed
                }
                Some(Outgoing::Request { id, request, reply }) => {
                    let request = self.renamed(request);
                    self.announce(&request, &mut state).await;
                    self.pass(
                        Relayed::Request(RelayedRequest {
                            number: (self.start, id),
                            content: request,
                            reply,
                        }),
                        None,
                    )
                }
                Some(Outgoing::Withdraw(number)) => self.pass(Relayed::Closed((self.start, number)), None),
                Some(Outgoing::ElicitationCompleted(id)) => {
                    self.client.complete_elicitation(id);
                    true
                }
                // The agent's connection sends none of these.
                Some(Outgoing::Answer { .. } | Outgoing::Barrier(_) | Outgoing::Signal(..)) => true,
                None => break,
            };
            if !passed {
                break;
            }
        }
        self.end_open(&mut state);
    }

    /// A later update opens a call again.
    fn end_open(&self, state: &mut RelayState) {
        for ended in state.open.end(None) {
            self.pass(Relayed::Event(SessionEvent::ForwardedUpdate { update: Box::new(ended.update) }), None);
        }
    }

    /// Returns false if the session is gone.
    fn pass(&self, relayed: Relayed, send_permit: Option<OwnedSemaphorePermit>) -> bool {
        self.to.send(AgentMessage::Relayed(relayed, send_permit)).is_ok()
    }

    async fn send_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.client.send_permit_unless(&self.cancel).await
    }

    fn id(&self, id: &ToolCallId) -> ToolCallId {
        if self.start == 1 { id.clone() } else { ToolCallId::new(format!("{}/{id}", self.start)) }
    }

    fn renamed(&self, mut request: ClientRequest) -> ClientRequest {
        if let ClientRequest::RequestPermission(request) = &mut request {
            request.tool_call.tool_call_id = self.id(&request.tool_call.tool_call_id);
        }
        request
    }

    async fn announce(&self, request: &ClientRequest, state: &mut RelayState) {
        if let ClientRequest::RequestPermission(request) = request
            && !state.announced_calls.contains(&request.tool_call.tool_call_id)
        {
            let update = Box::new(state.update(request.tool_call.clone()));
            self.pass(Relayed::Event(SessionEvent::ForwardedUpdate { update }), self.send_permit().await);
        }
    }

    async fn update(&self, update: Update, state: &mut RelayState) -> bool {
        let Update::Schema(update) = update else {
            return self.pass(Relayed::Options, None);
        };
        let forwarded = |update| Relayed::Event(SessionEvent::ForwardedUpdate { update: Box::new(update) });
        let report = match *update {
            SessionUpdate::AgentMessageChunk(chunk) => match text_of(&chunk) {
                Some(text) => {
                    let message_id = state.message_ids.id(RelayedKind::Text, chunk.message_id.as_ref());
                    Relayed::Event(SessionEvent::AgentText { message_id, text, shown: None })
                }
                None => forwarded(SessionUpdate::AgentMessageChunk(chunk)),
            },
            SessionUpdate::AgentThoughtChunk(chunk) => {
                let Some(text) = text_of(&chunk) else { return true };
                let message_id = state.message_ids.id(RelayedKind::Thought, chunk.message_id.as_ref());
                Relayed::Event(SessionEvent::AgentThought { message_id, text })
            }
            SessionUpdate::ToolCall(mut call) => {
                call.tool_call_id = self.id(&call.tool_call_id);
                call.title = visible_line(&call.title);
                forwarded(state.call(call))
            }
            SessionUpdate::ToolCallUpdate(mut update) => {
                update.tool_call_id = self.id(&update.tool_call_id);
                update.fields.title = update.fields.title.as_deref().map(visible_line);
                match state.update(update) {
                    SessionUpdate::ToolCallUpdate(update)
                        if update.fields.status.is_none() && update.fields.title.is_none() =>
                    {
                        Relayed::Transient(Box::new(SessionUpdate::ToolCallUpdate(update)))
                    }
                    lasting => forwarded(lasting),
                }
            }
            SessionUpdate::Plan(plan) => Relayed::Event(SessionEvent::Plan { entries: plan.entries }),
            SessionUpdate::UsageUpdate(usage) => {
                Relayed::Transient(Box::new(SessionUpdate::UsageUpdate(usage)))
            }
            SessionUpdate::AvailableCommandsUpdate(update) => Relayed::Commands(update.available_commands),
            SessionUpdate::CurrentModeUpdate(_) | SessionUpdate::ConfigOptionUpdate(_) => Relayed::Options,
            // The client has the user's messages already, and the session has its own title.
            _ => return true,
        };
        let send_permit = self.send_permit().await;
        self.pass(report, send_permit)
    }
}

fn text_of(chunk: &ContentChunk) -> Option<String> {
    match &chunk.content {
        ContentBlock::Text(text) => Some(text.text.clone()),
        _ => None,
    }
}
