//! Relays a sub-agent session to its parent: forwards updates and requests under the parent's call.
//!
//! Forwarded call ids start with the parent's call id, so they are unique and the same in every replay. This
//! module decides nothing.

use std::fmt::Write;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::acp::{
    ContentBlock, ContentChunk, MessageId, Meta, Plan, PlanEntryStatus, SessionId, SessionUpdate, ToolCallId,
    Update,
};
use crate::client::{Client, ClientEnd, ClientError, ClientRequest, Outgoing, ReplySender};
use crate::conversation::acp_updates::{NOTICE_META, QUESTION_META};
use crate::conversation::content::ToolContent;
use crate::conversation::open_calls::OpenCalls;
use crate::gate::Gate;
use crate::session::notes::endings::BackgroundEnd;
use crate::tool::agent::background::BackgroundStatus;

/// `_meta` key of a sub-agent's tool call: the parent's call id.
pub(crate) const PARENT_META: &str = "modegate/parent";

pub(crate) const ENDED: &str = "The session has ended, and so has this call. The call may have had effects.";

/// Maximum bytes of an answer.
const MAX_ANSWER: usize = 48 * 1024;

/// Minimum bytes of new text between progress updates.
const PROGRESS_STEP: usize = 400;

/// Maximum bytes of text in a progress update.
const SHOWN: usize = 4 * 1024;

/// Messages to a session's actor from its sub-agents.
pub(crate) enum SubagentReport {
    /// An update for the client; transient updates are not recorded.
    Update {
        update: Box<SessionUpdate>,
        is_recorded: bool,
        send_permit: Option<OwnedSemaphorePermit>,
    },
    /// Current content of the parent's call.
    Progress {
        call: ToolCallId,
        content: Vec<ToolContent>,
        send_permit: Option<OwnedSemaphorePermit>,
    },
    Request {
        call: ToolCallId,
        number: u64,
        request: ClientRequest,
        reply: ReplySender,
    },
    Withdraw {
        call: ToolCallId,
        number: u64,
    },
    /// The last message for a call. `unfinished` is `None` if the session itself has not ended.
    Ended {
        call: ToolCallId,
        background: Option<BackgroundEnd>,
        answer: String,
        unfinished: Option<Gate>,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Heartbeat {
    pub at: Instant,
    /// True while the sub-agent waits for the client, or for a call with a timeout.
    pub waits: bool,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct SubagentOutput {
    id: Option<MessageId>,
    pub text: String,
    pub plan: String,
}

impl SubagentOutput {
    pub(crate) fn so_far(&self) -> String {
        let start = self.text.ceil_char_boundary(self.text.len().saturating_sub(SHOWN));
        let space = if self.plan.is_empty() || self.text.is_empty() { "" } else { "\n" };
        format!("{}{space}{}", self.plan, &self.text[start..])
    }

    fn append(&mut self, chunk: &ContentChunk) {
        let ContentBlock::Text(text) = &chunk.content else { return };
        if chunk.meta.as_ref().is_some_and(|meta| meta.contains_key(NOTICE_META)) {
            return;
        }
        if self.id != chunk.message_id {
            self.id.clone_from(&chunk.message_id);
            self.text.clear();
        }
        if self.text.len() < MAX_ANSWER {
            self.text.push_str(&text.text);
            if self.text.len() > MAX_ANSWER {
                self.text.truncate(self.text.floor_char_boundary(MAX_ANSWER));
                self.text.push_str("\n[The answer was too long; the rest is omitted.]");
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

type AnsweredRequest = (ReplySender, Result<Value, ClientError>);

pub(crate) struct SubagentRelay {
    pub call: ToolCallId,
    pub agent: String,
    pub session: SessionId,
    pub to: mpsc::UnboundedSender<SubagentReport>,
    pub client: Client,
    /// Once cancelled, sending needs no permits.
    pub cancel: CancellationToken,
    pub sends_progress: bool,
    pub heartbeat: watch::Sender<Heartbeat>,
    /// False for external agents, whose calls may have no timeouts.
    pub is_bounded: bool,
    pub status: watch::Sender<BackgroundStatus>,
}

impl SubagentRelay {
    pub(crate) async fn run(self, mut end: ClientEnd) -> SubagentOutput {
        let mut output = SubagentOutput::default();
        let (mut shown, mut open) = (0, OpenCalls::default());
        let mut answers: FuturesUnordered<BoxFuture<'static, AnsweredRequest>> = FuturesUnordered::new();
        loop {
            let message = tokio::select! {
                biased;
                Some((reply, answer)) = answers.next() => {
                    // The requester may no longer wait.
                    let _ = reply.send(answer);
                    self.update_heartbeat(!answers.is_empty(), &open);
                    continue;
                }
                message = end.recv() => message,
            };
            let Some(message) = message else { break };
            let passed = match message {
                Outgoing::Update(notification, send_permit)
                | Outgoing::Replayed(notification, send_permit) => {
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
                    self.pass(SubagentReport::Request { call, number: id, request, reply: answered })
                }
                Outgoing::Withdraw(number) => {
                    self.pass(SubagentReport::Withdraw { call: self.call.clone(), number })
                }
                // A sub-agent has no connection, the parent stores updates first, and its turn goes on.
                Outgoing::Answer { .. }
                | Outgoing::Barrier(_)
                | Outgoing::ElicitationCompleted(_)
                | Outgoing::Signal(..) => continue,
            };
            self.update_heartbeat(!answers.is_empty(), &open);
            if !passed {
                break;
            }
        }
        for ended in open.end(Some(ENDED)) {
            // The parent session may have ended.
            self.pass(SubagentReport::Update {
                update: Box::new(ended.update),
                is_recorded: true,
                send_permit: None,
            });
        }
        output
    }

    fn update_heartbeat(&self, is_asked: bool, open: &OpenCalls) {
        let waits = is_asked || (self.is_bounded && !open.is_empty());
        self.heartbeat.send_replace(Heartbeat { at: Instant::now(), waits });
    }

    /// Returns false if the parent is gone.
    fn pass(&self, report: SubagentReport) -> bool {
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
        // Modes and options are those of the parent.
        let Update::Schema(update) = update else { return true };
        let (update, is_recorded) = match *update {
            SessionUpdate::AgentMessageChunk(mut chunk) if is_question(&chunk) => {
                let id = chunk.message_id.take().unwrap_or_else(|| MessageId::new(""));
                chunk.message_id = Some(MessageId::new(format!("{}/{id}", self.call)));
                (SessionUpdate::AgentMessageChunk(chunk), false)
            }
            SessionUpdate::AgentMessageChunk(chunk) => {
                let before = output.text.len();
                output.append(&chunk);
                *shown = if output.text.len() < before { 0 } else { *shown };
                return self.report_progress(output, shown, PROGRESS_STEP).await;
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
            // Thoughts and context usage are not forwarded.
            _ => return true,
        };
        open.apply(&update);
        let send_permit = self.send_permit().await;
        self.pass(SubagentReport::Update { update: Box::new(update), is_recorded, send_permit })
    }

    async fn report_progress(&self, output: &SubagentOutput, shown: &mut usize, step: usize) -> bool {
        if !self.sends_progress || output.text.len() < *shown + step {
            return true;
        }
        *shown = output.text.len();
        let so_far = output.so_far();
        let content = vec![ToolContent::Session(self.session.clone()), ToolContent::text(&so_far)];
        self.status.send_modify(|status| status.output = so_far);
        let send_permit = self.send_permit().await;
        self.pass(SubagentReport::Progress { call: self.call.clone(), content, send_permit })
    }

    fn under(&self, meta: Option<Meta>) -> Meta {
        let mut meta = meta.unwrap_or_default();
        // A nested sub-agent's parent id gets the same prefix as its own id.
        let parent = match meta.get(PARENT_META).and_then(Value::as_str) {
            Some(parent) => below(&self.call, &ToolCallId::new(parent)),
            None => self.call.clone(),
        };
        meta.insert(PARENT_META.to_owned(), Value::from(&*parent.0));
        meta
    }
}

fn is_question(chunk: &ContentChunk) -> bool {
    chunk.meta.as_ref().is_some_and(|meta| meta.contains_key(QUESTION_META))
}

pub(crate) fn below(call: &ToolCallId, id: &ToolCallId) -> ToolCallId {
    ToolCallId::new(format!("{call}/{id}"))
}

fn titled(agent: &str, title: &str) -> String {
    format!("{agent}: {title}")
}

impl ClientRequest {
    fn below(mut self, call: &ToolCallId, agent: &str) -> Self {
        if let Self::RequestPermission(request) = &mut self {
            let update = &mut request.tool_call;
            update.tool_call_id = below(call, &update.tool_call_id);
            update.fields.title = update.fields.title.take().map(|title| titled(agent, &title));
        }
        self
    }
}
