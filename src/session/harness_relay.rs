//! What somebody else's agent shows and asks where it answers for this session: put into this session's own events, in order.
//!
//! Its calls keep their ids, behind a number from its second start on, so that no two are the same. Its modes and options are
//! not passed on as they are: the session shows them together with its own.

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::relay::{Report, below};
use crate::acp::{
    AvailableCommand, ContentBlock, ContentChunk, MessageId, SessionUpdate, ToolCallId, ToolCallStatus,
    ToolCallUpdate, ToolCallUpdateFields, Update,
};
use crate::client::{Client, ClientEnd, ClientRequest, Outgoing};
use crate::event::SessionEvent;

/// What it reports.
pub(super) enum OuterReport {
    /// Something happened.
    Event(SessionEvent),
    /// The client is shown this for the moment.
    Moment(Box<SessionUpdate>),
    /// It has these commands now.
    Commands(Vec<AvailableCommand>),
    /// It has other modes or options now, or another is on.
    Options,
    /// It asks this.
    Asks { number: u64, request: ClientRequest, reply: super::relay::Answer },
    /// It need not be answered any more.
    Withdraw { number: u64 },
}

/// Its client.
pub(super) struct HarnessRelay {
    /// Which start of it this is, from 1.
    pub start: u64,
    /// Where everything goes.
    pub to: mpsc::UnboundedSender<Report>,
    /// Whose room it takes.
    pub client: Client,
    /// Cancelled, nothing waits for room.
    pub hurry: CancellationToken,
    /// Each is dropped once all that came before is passed on.
    pub fences: mpsc::Receiver<oneshot::Sender<()>>,
}

/// What is being said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Voice {
    Text,
    Thought,
    Other,
}

/// Runs of text, each with an id of this session's.
struct Voices {
    start: u64,
    now: Voice,
    its: Option<MessageId>,
    count: u64,
}

impl Voices {
    fn id(&mut self, voice: Voice, its: Option<&MessageId>) -> MessageId {
        if self.now != voice || self.its.as_ref() != its {
            self.count += 1;
            self.now = voice;
            self.its = its.cloned();
        }
        MessageId::new(format!("msg_h{}_{}", self.start, self.count))
    }
}

impl HarnessRelay {
    /// Passes everything on until there is nothing any more.
    pub async fn run(mut self, mut end: ClientEnd) {
        let mut voices = Voices { start: self.start, now: Voice::Other, its: None, count: 0 };
        let mut open = Vec::new();
        loop {
            let message = tokio::select! {
                // What was said first goes first: a fence is for when there is nothing more.
                biased;
                message = end.recv() => message,
                Some(fence) = self.fences.recv() => {
                    voices.now = Voice::Other;
                    drop(fence);
                    continue;
                }
            };
            let passed = match message {
                Some(Outgoing::Update(notification, room)) => {
                    let passed = self.update(notification.update, &mut voices, &mut open).await;
                    drop(room);
                    passed
                }
                Some(Outgoing::Request { id, request, reply }) => {
                    self.pass(OuterReport::Asks { number: id, request: self.renamed(request), reply }, None)
                }
                Some(Outgoing::Withdraw(number)) => self.pass(OuterReport::Withdraw { number }, None),
                // Nobody calls it by a connection.
                Some(Outgoing::Answer { .. }) => true,
                None => break,
            };
            if !passed {
                break;
            }
        }
        for id in open {
            let fields = ToolCallUpdateFields::new().status(ToolCallStatus::Failed);
            let update = SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields));
            // The session may be over.
            self.pass(OuterReport::Event(SessionEvent::Relayed { update: Box::new(update) }), None);
        }
    }

    /// Whether somebody is there to take it.
    fn pass(&self, report: OuterReport, room: Option<OwnedSemaphorePermit>) -> bool {
        self.to.send(Report::Outer { report, room }).is_ok()
    }

    async fn room(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = self.hurry.cancelled() => None,
            room = self.client.room() => Some(room),
        }
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

    async fn update(&self, update: Update, voices: &mut Voices, open: &mut Vec<ToolCallId>) -> bool {
        let Update::Schema(update) = update else {
            return self.pass(OuterReport::Options, None);
        };
        let relayed = |update| OuterReport::Event(SessionEvent::Relayed { update: Box::new(update) });
        let report = match *update {
            SessionUpdate::AgentMessageChunk(chunk) => match text_of(&chunk) {
                Some(text) => {
                    let message_id = voices.id(Voice::Text, chunk.message_id.as_ref());
                    OuterReport::Event(SessionEvent::AgentText { message_id, text, shown: None })
                }
                // A picture, say.
                None => relayed(SessionUpdate::AgentMessageChunk(chunk)),
            },
            SessionUpdate::AgentThoughtChunk(chunk) => {
                let Some(text) = text_of(&chunk) else { return true };
                let message_id = voices.id(Voice::Thought, chunk.message_id.as_ref());
                OuterReport::Event(SessionEvent::AgentThought { message_id, text })
            }
            SessionUpdate::ToolCall(mut call) => {
                voices.now = Voice::Other;
                call.tool_call_id = self.id(&call.tool_call_id);
                if !matches!(call.status, ToolCallStatus::Completed | ToolCallStatus::Failed) {
                    open.push(call.tool_call_id.clone());
                }
                relayed(SessionUpdate::ToolCall(call))
            }
            SessionUpdate::ToolCallUpdate(mut update) => {
                update.tool_call_id = self.id(&update.tool_call_id);
                if matches!(update.fields.status, Some(ToolCallStatus::Completed | ToolCallStatus::Failed)) {
                    open.retain(|id| *id != update.tool_call_id);
                }
                let lasts = update.fields.status.is_some() || update.fields.title.is_some();
                let update = SessionUpdate::ToolCallUpdate(update);
                if lasts { relayed(update) } else { OuterReport::Moment(Box::new(update)) }
            }
            SessionUpdate::Plan(plan) => OuterReport::Event(SessionEvent::Plan { entries: plan.entries }),
            SessionUpdate::UsageUpdate(usage) => {
                OuterReport::Moment(Box::new(SessionUpdate::UsageUpdate(usage)))
            }
            SessionUpdate::AvailableCommandsUpdate(update) => {
                OuterReport::Commands(update.available_commands)
            }
            SessionUpdate::CurrentModeUpdate(_) | SessionUpdate::ConfigOptionUpdate(_) => {
                OuterReport::Options
            }
            // What the user said is shown already; a title is this session's own.
            _ => return true,
        };
        let room = self.room().await;
        self.pass(report, room)
    }
}

fn text_of(chunk: &ContentChunk) -> Option<String> {
    match &chunk.content {
        ContentBlock::Text(text) => Some(text.text.clone()),
        _ => None,
    }
}
