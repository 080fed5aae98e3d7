//! What somebody else's agent shows and asks where it answers for this session: put into this session's own events, in order.
//!
//! Its calls keep their ids, behind a number from its second start on, so that no two are the same. Each is announced once,
//! also one of which it says first how it went, or for which it asks leave first: what is decided here the client is not asked,
//! and would not know of it. Its modes and options are not passed on as they are: the session shows them together with its own.

use std::collections::HashSet;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::permission::RequestId;
use crate::acp::{
    AvailableCommand, ContentBlock, ContentChunk, MessageId, SessionUpdate, ToolCall, ToolCallId,
    ToolCallUpdate, Update,
};
use crate::client::{Client, ClientEnd, ClientRequest, Outgoing};
use crate::event::SessionEvent;
use crate::session::open_calls::OpenCalls;
use crate::session::subagent_relay::{Answer, Report, below};

/// What it reports.
pub(in crate::session) enum ExternalAgentReport {
    /// Something happened.
    Event(SessionEvent),
    /// The client is shown this for the moment.
    Transient(Box<SessionUpdate>),
    /// It has these commands now.
    Commands(Vec<AvailableCommand>),
    /// It has other modes or options now, or another is on.
    Options,
    /// It asks this.
    Request { number: RequestId, request: ClientRequest, reply: Answer },
    /// That is answered, or need not be any more.
    Closed { number: RequestId },
}

/// Its client.
pub(in crate::session) struct ExternalAgentRelay {
    /// Which start of it this is, from 1.
    pub start: u64,
    /// Where everything goes.
    pub to: mpsc::UnboundedSender<Report>,
    /// Whose room it takes.
    pub client: Client,
    /// Cancelled, nothing waits for room.
    pub cancel: CancellationToken,
    /// Each is dropped once all that came before is passed on.
    pub fences: mpsc::Receiver<oneshot::Sender<()>>,
}

/// What is being said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkKind {
    Text,
    Thought,
    Other,
}

/// Runs of text, each with an id of this session's.
struct MessageIds {
    start: u64,
    kind: ChunkKind,
    agent_id: Option<MessageId>,
    count: u64,
}

impl MessageIds {
    fn id(&mut self, kind: ChunkKind, agent_id: Option<&MessageId>) -> MessageId {
        if self.kind != kind || self.agent_id.as_ref() != agent_id {
            self.count += 1;
            self.kind = kind;
            self.agent_id = agent_id.cloned();
        }
        MessageId::new(format!("msg_h{}_{}", self.start, self.count))
    }
}

/// What was shown of it so far.
struct RelayState {
    message_ids: MessageIds,
    /// Calls that were announced.
    known: HashSet<ToolCallId>,
    /// Those of them that are not over.
    open: OpenCalls,
}

impl RelayState {
    /// A call, announced if it is new.
    fn call(&mut self, call: ToolCall) -> SessionUpdate {
        self.message_ids.kind = ChunkKind::Other;
        if !self.known.insert(call.tool_call_id.clone()) {
            return self.update(call.into());
        }
        let update = SessionUpdate::ToolCall(call);
        self.open.apply(&update);
        update
    }

    /// What became of a call, which is announced with it if it is new.
    fn update(&mut self, update: ToolCallUpdate) -> SessionUpdate {
        if !self.known.contains(&update.tool_call_id) {
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
    /// Passes everything on until there is nothing any more.
    pub async fn run(mut self, mut end: ClientEnd) {
        let message_ids = MessageIds { start: self.start, kind: ChunkKind::Other, agent_id: None, count: 0 };
        let mut shown = RelayState { message_ids, known: HashSet::new(), open: OpenCalls::default() };
        loop {
            let message = tokio::select! {
                // What was said first goes first: a fence is for when there is nothing more.
                biased;
                message = end.recv() => message,
                Some(fence) = self.fences.recv() => {
                    shown.message_ids.kind = ChunkKind::Other;
                    // The turn is over.
                    self.end_open(&mut shown);
                    drop(fence);
                    continue;
                }
            };
            let passed = match message {
                Some(Outgoing::Update(notification, send_permit)) => {
                    let passed = self.update(notification.update, &mut shown).await;
                    drop(send_permit);
                    passed
                }
                Some(Outgoing::Request { id, request, reply }) => {
                    let request = self.renamed(request);
                    self.announce(&request, &mut shown).await;
                    self.pass(ExternalAgentReport::Request { number: (self.start, id), request, reply }, None)
                }
                Some(Outgoing::Withdraw(number)) => {
                    self.pass(ExternalAgentReport::Closed { number: (self.start, number) }, None)
                }
                // Nobody calls it by a connection, and its connection stores nothing.
                Some(Outgoing::Answer { .. } | Outgoing::Barrier(_)) => true,
                None => break,
            };
            if !passed {
                break;
            }
        }
        self.end_open(&mut shown);
    }

    /// Ends the calls that it has left open: what they have shown stays, and one that goes on all the same is open again.
    fn end_open(&self, shown: &mut RelayState) {
        for ended in shown.open.end(None) {
            // The session may be over.
            self.pass(
                ExternalAgentReport::Event(SessionEvent::Relayed { update: Box::new(ended.update) }),
                None,
            );
        }
    }

    /// Whether somebody is there to take it.
    fn pass(&self, report: ExternalAgentReport, send_permit: Option<OwnedSemaphorePermit>) -> bool {
        self.to.send(Report::ExternalAgent { report, send_permit }).is_ok()
    }

    async fn send_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.client.send_permit_unless(&self.cancel).await
    }

    fn id(&self, id: &ToolCallId) -> ToolCallId {
        if self.start == 1 { id.clone() } else { below(&ToolCallId::new(self.start.to_string()), id) }
    }

    fn renamed(&self, mut request: ClientRequest) -> ClientRequest {
        if let ClientRequest::RequestPermission(request) = &mut request {
            request.tool_call.tool_call_id = self.id(&request.tool_call.tool_call_id);
        }
        request
    }

    /// Announces the call for which leave is asked, if it is new.
    async fn announce(&self, request: &ClientRequest, shown: &mut RelayState) {
        if let ClientRequest::RequestPermission(request) = request
            && !shown.known.contains(&request.tool_call.tool_call_id)
        {
            let update = Box::new(shown.update(request.tool_call.clone()));
            // Whether anybody is there to take it is learnt with the request.
            self.pass(ExternalAgentReport::Event(SessionEvent::Relayed { update }), self.send_permit().await);
        }
    }

    async fn update(&self, update: Update, shown: &mut RelayState) -> bool {
        let Update::Schema(update) = update else {
            return self.pass(ExternalAgentReport::Options, None);
        };
        let relayed = |update| ExternalAgentReport::Event(SessionEvent::Relayed { update: Box::new(update) });
        let report = match *update {
            SessionUpdate::AgentMessageChunk(chunk) => match text_of(&chunk) {
                Some(text) => {
                    let message_id = shown.message_ids.id(ChunkKind::Text, chunk.message_id.as_ref());
                    ExternalAgentReport::Event(SessionEvent::AgentText { message_id, text, shown: None })
                }
                // A picture, say.
                None => relayed(SessionUpdate::AgentMessageChunk(chunk)),
            },
            SessionUpdate::AgentThoughtChunk(chunk) => {
                let Some(text) = text_of(&chunk) else { return true };
                let message_id = shown.message_ids.id(ChunkKind::Thought, chunk.message_id.as_ref());
                ExternalAgentReport::Event(SessionEvent::AgentThought { message_id, text })
            }
            SessionUpdate::ToolCall(mut call) => {
                call.tool_call_id = self.id(&call.tool_call_id);
                relayed(shown.call(call))
            }
            SessionUpdate::ToolCallUpdate(mut update) => {
                update.tool_call_id = self.id(&update.tool_call_id);
                match shown.update(update) {
                    SessionUpdate::ToolCallUpdate(update)
                        if update.fields.status.is_none() && update.fields.title.is_none() =>
                    {
                        ExternalAgentReport::Transient(Box::new(SessionUpdate::ToolCallUpdate(update)))
                    }
                    lasting => relayed(lasting),
                }
            }
            SessionUpdate::Plan(plan) => {
                ExternalAgentReport::Event(SessionEvent::Plan { entries: plan.entries })
            }
            SessionUpdate::UsageUpdate(usage) => {
                ExternalAgentReport::Transient(Box::new(SessionUpdate::UsageUpdate(usage)))
            }
            SessionUpdate::AvailableCommandsUpdate(update) => {
                ExternalAgentReport::Commands(update.available_commands)
            }
            SessionUpdate::CurrentModeUpdate(_) | SessionUpdate::ConfigOptionUpdate(_) => {
                ExternalAgentReport::Options
            }
            // What the user said is shown already; a title is this session's own.
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
