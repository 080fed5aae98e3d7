//! What a session shows that works for a call of another: passed on to the one above, under that call.
//!
//! Its calls keep their ids behind that of the call above, so they are unique and the same in every replay; its plan and its
//! words stand in the call above; what it asks of the client is asked there. Nothing is decided here.

use std::fmt::Write;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::encoder::NOTICE_META;
use super::external_agent::relay::ExternalAgentReport;
use super::external_agent::run::RunEvent;
use super::external_agent::turn::STOPPED;
use super::open_calls::OpenCalls;
use super::turn::REFUSED_AGAIN;
use crate::acp::{
    ContentBlock, ContentChunk, MessageId, Meta, Plan, PlanEntryStatus, SessionUpdate, ToolCallId, Update,
};
use crate::client::{Client, ClientEnd, ClientError, ClientRequest, Outgoing};
use crate::gate::Gate;
use crate::tool::ToolContent;
use crate::tool::background::BackgroundStatus;

/// Names, in the `_meta` of a tool call, the call for which another agent makes it.
pub const PARENT_META: &str = "modegate/parent";

/// What is said of a call that its session did not end itself.
pub(super) const ENDED: &str = "The session has ended, and this call with it. It may have had effects.";

/// Bytes of an answer.
const ANSWER: usize = 48 * 1024;

/// Bytes of new text before it is shown.
const STEP: usize = 400;

/// Bytes of text that are shown while it works.
const SHOWN: usize = 4 * 1024;

/// Where an answer of the client's goes.
pub(super) type Answer = oneshot::Sender<Result<Value, ClientError>>;

/// What is passed on.
pub(super) enum Report {
    /// The client is shown this; what does not last is not kept.
    Update { update: Box<SessionUpdate>, is_recorded: bool, send_permit: Option<OwnedSemaphorePermit> },
    /// The call above shows this now.
    Progress { call: ToolCallId, content: ToolContent, send_permit: Option<OwnedSemaphorePermit> },
    /// The client is asked this.
    Request { call: ToolCallId, number: u64, request: ClientRequest, reply: Answer },
    /// It need not answer any more.
    Withdraw { call: ToolCallId, number: u64 },
    /// Somebody else's agent shows or asks this.
    ExternalAgent { report: ExternalAgentReport, send_permit: Option<OwnedSemaphorePermit> },
    /// What became of such a start.
    ExternalAgentRun { start: u64, event: RunEvent },
    /// A background job is over.
    JobEnded { id: String },
    /// Nothing more comes for this call; if it was in the background, this is said of it. What could not be ended is `left`;
    /// nothing: the session itself has not ended.
    Ended { call: ToolCallId, note: Option<String>, unfinished: Option<Gate> },
}

/// The last sign of life.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heartbeat {
    pub at: Instant,
    /// It waits for the client, or for a call that has a bound of its own.
    pub waits: bool,
}

/// What was said.
#[derive(Debug, Default, Clone)]
pub(super) struct SubagentOutput {
    id: Option<MessageId>,
    /// The last message.
    pub text: String,
    /// It was stopped, and why.
    pub stopped: Option<&'static str>,
    pub plan: String,
}

impl SubagentOutput {
    /// What a person is shown of it so far.
    pub fn so_far(&self) -> String {
        let mut start = self.text.len().saturating_sub(SHOWN);
        while !self.text.is_char_boundary(start) {
            start += 1;
        }
        let space = if self.plan.is_empty() || self.text.is_empty() { "" } else { "\n" };
        format!("{}{space}{}", self.plan, &self.text[start..])
    }

    fn append(&mut self, chunk: &ContentChunk) {
        let ContentBlock::Text(text) = &chunk.content else { return };
        if chunk.meta.as_ref().is_some_and(|meta| meta.contains_key(NOTICE_META)) {
            // Whatever is told after it.
            self.stopped = match text.text.as_str() {
                REFUSED_AGAIN => Some("was stopped, because the same call was refused again and again"),
                STOPPED => Some("was stopped, because a mode was set that denies what it did"),
                _ => self.stopped,
            };
            return;
        }
        if self.id != chunk.message_id {
            self.id.clone_from(&chunk.message_id);
            self.text.clear();
        }
        if self.text.len() < ANSWER {
            self.text.push_str(&text.text);
            if self.text.len() > ANSWER {
                let end = (0..=ANSWER).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or_default();
                self.text.truncate(end);
                self.text.push_str("\n[The rest of the answer was too long, and is left out.]");
            }
        }
    }

    fn plan(&mut self, plan: &Plan) {
        self.plan.clear();
        for entry in &plan.entries {
            let mark = if entry.status == PlanEntryStatus::Completed { 'x' } else { ' ' };
            writeln!(self.plan, "- [{mark}] {}", entry.content).expect("writing to a string cannot fail");
        }
    }
}

type Answered = (Answer, Result<Value, ClientError>);

/// The client of the session that works.
pub(super) struct SubagentRelay {
    /// The call above.
    pub call: ToolCallId,
    /// Which agent works.
    pub agent: String,
    /// Where everything goes.
    pub to: mpsc::UnboundedSender<Report>,
    /// Whose room it takes.
    pub client: Client,
    /// Cancelled, nothing waits for room.
    pub cancel: CancellationToken,
    /// What it does is shown while it does.
    pub note_heartbeat: bool,
    /// Where signs of life are noted.
    pub heartbeat: watch::Sender<Heartbeat>,
    /// Its calls end by themselves: they are not somebody else's.
    pub is_bounded: bool,
    /// Where what it has said so far can be seen.
    pub status: watch::Sender<BackgroundStatus>,
}

impl SubagentRelay {
    /// Passes everything on until there is nothing any more. Says what was said.
    pub async fn run(self, mut end: ClientEnd) -> SubagentOutput {
        let mut output = SubagentOutput::default();
        let (mut shown, mut open) = (0, OpenCalls::default());
        let mut answers: FuturesUnordered<BoxFuture<'static, Answered>> = FuturesUnordered::new();
        loop {
            let message = tokio::select! {
                biased;
                Some((reply, answer)) = answers.next() => {
                    // Whoever asked may have stopped waiting.
                    let _ = reply.send(answer);
                    self.note_heartbeat(!answers.is_empty(), &open);
                    continue;
                }
                message = end.recv() => message,
            };
            let Some(message) = message else { break };
            let passed = match message {
                Outgoing::Update(notification, send_permit) => {
                    let passed = self.update(notification.update, &mut output, &mut shown, &mut open).await;
                    drop(send_permit);
                    passed
                }
                Outgoing::Request { id, request, reply } => {
                    let (answered, answer) = oneshot::channel();
                    let wait = async move { (reply, answer.await.unwrap_or(Err(ClientError::Gone))) };
                    answers.push(Box::pin(wait));
                    let request = request.below(&self.call, &self.agent);
                    let call = self.call.clone();
                    self.pass(Report::Request { call, number: id, request, reply: answered })
                }
                Outgoing::Withdraw(number) => self.pass(Report::Withdraw { call: self.call.clone(), number }),
                // Nobody calls it by a connection; and the session above stores what it passes on before it shows it.
                Outgoing::Answer { .. } | Outgoing::Barrier(_) => continue,
            };
            self.note_heartbeat(!answers.is_empty(), &open);
            if !passed {
                break;
            }
        }
        for ended in open.end(Some(ENDED)) {
            // The session above may be over.
            self.pass(Report::Update {
                update: Box::new(ended.update),
                is_recorded: true,
                send_permit: None,
            });
        }
        output
    }

    /// Notes a sign of life.
    fn note_heartbeat(&self, is_asked: bool, open: &OpenCalls) {
        let waits = is_asked || (self.is_bounded && !open.is_empty());
        self.heartbeat.send_replace(Heartbeat { at: Instant::now(), waits });
    }

    /// Whether somebody is there to take it.
    fn pass(&self, report: Report) -> bool {
        self.to.send(report).is_ok()
    }

    async fn send_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.client.send_permit_unless(&self.cancel).await
    }

    async fn update(
        &self,
        update: Update,
        output: &mut SubagentOutput,
        shown: &mut usize,
        open: &mut OpenCalls,
    ) -> bool {
        // Modes and options are those of the session above.
        let Update::Schema(update) = update else { return true };
        let (update, is_recorded) = match *update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                let before = output.text.len();
                output.append(&chunk);
                *shown = if output.text.len() < before { 0 } else { *shown };
                return self.report_progress(output, shown, STEP).await;
            }
            SessionUpdate::Plan(plan) => {
                output.plan(&plan);
                return self.report_progress(output, shown, 0).await;
            }
            SessionUpdate::ToolCall(mut call) => {
                call.tool_call_id = below(&self.call, &call.tool_call_id);
                call.title = titled(&self.agent, &call.title);
                call.meta = Some(self.under(call.meta));
                (SessionUpdate::ToolCall(call), true)
            }
            SessionUpdate::ToolCallUpdate(mut update) => {
                update.tool_call_id = below(&self.call, &update.tool_call_id);
                update.fields.title = update.fields.title.map(|title| titled(&self.agent, &title));
                update.meta = Some(self.under(update.meta));
                let lasts = update.fields.status.is_some() || update.fields.title.is_some();
                (SessionUpdate::ToolCallUpdate(update), lasts)
            }
            // What it thinks, and how full its context is, is its own.
            _ => return true,
        };
        open.apply(&update);
        let send_permit = self.send_permit().await;
        self.pass(Report::Update { update: Box::new(update), is_recorded, send_permit })
    }

    /// Shows what it has said so far, once there is enough that is new.
    async fn report_progress(&self, output: &SubagentOutput, shown: &mut usize, step: usize) -> bool {
        if !self.note_heartbeat || output.text.len() < *shown + step {
            return true;
        }
        *shown = output.text.len();
        let so_far = output.so_far();
        let content = ToolContent::text(&so_far);
        self.status.send_modify(|status| status.output = so_far);
        let send_permit = self.send_permit().await;
        self.pass(Report::Progress { call: self.call.clone(), content, send_permit })
    }

    fn under(&self, meta: Option<Meta>) -> Meta {
        let mut meta = meta.unwrap_or_default();
        // One further down is named as those below name it.
        let parent = match meta.get(PARENT_META).and_then(Value::as_str) {
            Some(parent) => below(&self.call, &ToolCallId::new(parent)),
            None => self.call.clone(),
        };
        meta.insert(PARENT_META.to_owned(), Value::from(&*parent.0));
        meta
    }
}

/// The id of a call that is made for another.
pub(super) fn below(call: &ToolCallId, id: &ToolCallId) -> ToolCallId {
    ToolCallId::new(format!("{call}/{id}"))
}

/// A title that says who does it.
fn titled(agent: &str, title: &str) -> String {
    format!("{agent}: {title}")
}

impl ClientRequest {
    /// The request as the session above makes it, under one of its calls.
    fn below(mut self, call: &ToolCallId, agent: &str) -> Self {
        if let Self::RequestPermission(request) = &mut self {
            let shown = &mut request.tool_call;
            shown.tool_call_id = below(call, &shown.tool_call_id);
            shown.fields.title = shown.fields.title.take().map(|title| titled(agent, &title));
        }
        self
    }
}
