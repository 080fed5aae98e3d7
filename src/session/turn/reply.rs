//! Reads one reply of the model: passes its events on and announces its calls.
//!
//! No call runs before its reply has ended, so a reply that breaks off can be requested again.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;

use super::{Announced, Turn, TurnError, waiting};
use crate::acp::{MessageId, ToolCallId, ToolKind};
use crate::conversation::mode_switch::{Found, Reader};
use crate::conversation::neutralise::{map_strings, restore};
use crate::event::{NoticeKind, SessionEvent, ToolCallEvent, ToolCallUpdateEvent};
use crate::model::{Failure, ModelError, ModelEvent, ModelId, ModelStop, ProviderState, Reply};
use crate::tool::Location;

/// Replies in a row that may break off in a turn before it fails.
const MAX_INTERRUPTIONS: u32 = 6;

/// For the model, after the text of such a reply.
fn interrupted_note(called: &[String]) -> String {
    let calls =
        if called.is_empty() { "its calls".into() } else { format!("its calls ({})", called.join(", ")) };
    format!(
        "Your reply above broke off. It is incomplete, and none of {calls} or mode switches took effect. Your next reply \
         replaces it: begin it anew."
    )
}

/// A reply that has ended.
pub(super) struct Step {
    pub(super) calls: Vec<Announced>,
    pub(super) stop: ModelStop,
    pub(super) found: Found,
}

/// Ids of messages and calls, unique in the session: each run of text or thought has its own.
pub(super) struct Ids {
    turn: u64,
    messages: u64,
    calls: u64,
}

#[derive(Default)]
pub(super) struct Interruptions(u32);

pub(super) struct Listener<'a> {
    turn: &'a Turn,
    ids: &'a mut Ids,
    model: &'a ModelId,
    switches: Option<Reader>,
    calls: Vec<Announced>,
    /// Calls whose arguments are still streaming, by the model's ids.
    started: Vec<(String, ToolCallId)>,
    /// Tools of all calls, for the note if the reply breaks off.
    called: Vec<String>,
    message_id: MessageId,
    chunk_kind: ChunkKind,
    /// True once the history contains a part of the reply.
    has_output: bool,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum ChunkKind {
    Text,
    Thought,
    Other,
}

impl Ids {
    pub(super) fn new(turn: u64) -> Self {
        Self { turn, messages: 0, calls: 0 }
    }

    pub(super) fn message(&mut self) -> MessageId {
        self.messages += 1;
        MessageId::new(format!("msg_{}_{}", self.turn, self.messages))
    }

    fn call(&mut self) -> ToolCallId {
        self.calls += 1;
        ToolCallId::new(format!("call_{}_{}", self.turn, self.calls))
    }
}

impl Interruptions {
    /// Returns the wait before the reply is requested again. `None` if it did not break off, or too often.
    pub(super) fn wait(&mut self, error: &ModelError) -> Option<Duration> {
        let Failure::Interrupted { wait } = error.failure else { return None };
        self.0 += 1;
        (self.0 < MAX_INTERRUPTIONS).then(|| wait * 2_u32.pow(self.0 - 1))
    }
}

pub(super) fn interruption_notice(reason: &str, wait: Duration) -> String {
    waiting(&format!("\nThe reply above broke off and is requested again: {reason}"), wait)
}

impl<'a> Listener<'a> {
    pub(super) fn new(
        turn: &'a Turn,
        ids: &'a mut Ids,
        model: &'a ModelId,
        switches: Option<Reader>,
    ) -> Self {
        Self {
            turn,
            message_id: ids.message(),
            ids,
            model,
            switches,
            calls: Vec::new(),
            started: Vec::new(),
            called: Vec::new(),
            chunk_kind: ChunkKind::Other,
            has_output: false,
        }
    }

    /// If the reply breaks off, its calls have ended and the history marks its text as incomplete.
    pub(super) async fn listen(mut self, mut reply: Reply) -> Result<Step, TurnError> {
        loop {
            let event = reply.next().await;
            let event = event.unwrap_or_else(|| Err(ModelError::new("the model's reply ended early")));
            self.begin_chunk(match &event {
                Ok(ModelEvent::Text(_)) => ChunkKind::Text,
                Ok(ModelEvent::Thought(_)) => ChunkKind::Thought,
                _ => ChunkKind::Other,
            })
            .await?;
            match event {
                Ok(ModelEvent::Stop(stop)) => {
                    self.end_started("The model's call was incomplete.").await?;
                    let found = self.switches.map(|mut switches| switches.take()).unwrap_or_default();
                    return Ok(Step { calls: self.calls, stop, found });
                }
                Ok(event) => self.event(event).await?,
                Err(error) => {
                    self.interrupted().await?;
                    return Err(TurnError::Model(error));
                }
            }
        }
    }

    async fn begin_chunk(&mut self, kind: ChunkKind) -> Result<(), TurnError> {
        let before = std::mem::replace(&mut self.chunk_kind, kind);
        if before == kind || before == ChunkKind::Other {
            return Ok(());
        }
        if before == ChunkKind::Text {
            self.forward_rest().await?;
        }
        self.message_id = self.ids.message();
        Ok(())
    }

    async fn event(&mut self, event: ModelEvent) -> Result<(), TurnError> {
        let message_id = self.message_id.clone();
        let event = match event {
            ModelEvent::Text(text) | ModelEvent::Thought(text) if text.is_empty() => return Ok(()),
            ModelEvent::Text(text) => {
                let shown = self.switches.as_mut().and_then(|switches| match switches.push(&text) {
                    Cow::Borrowed(_) => None,
                    Cow::Owned(shown) => (shown != text).then_some(shown),
                });
                SessionEvent::AgentText { message_id, text, shown }
            }
            ModelEvent::Thought(text) => SessionEvent::AgentThought { message_id, text },
            ModelEvent::ProviderState(data) => SessionEvent::ProviderState {
                state: ProviderState { origin: self.model.clone(), data: Arc::new(data) },
            },
            ModelEvent::ToolCallStarted { id, name } => {
                let call = self.ids.call();
                self.started.push((id, call.clone()));
                self.called.push(name.clone());
                let kind =
                    self.turn.context.tools.find(&name).map_or(ToolKind::Other, |tool| tool.spec().kind);
                return self.turn.post_event(SessionEvent::ToolCallStarted { id: call, name, kind }).await;
            }
            ModelEvent::ToolCall { id, name, arguments } => {
                self.has_output = true;
                return self.announce(id, name, arguments).await;
            }
            ModelEvent::Usage(usage) => return self.turn.post_event(SessionEvent::Usage(usage)).await,
            ModelEvent::Waiting { reason, wait } => {
                let text = waiting(&reason, wait);
                return self.turn.post_notice(self.ids.message(), NoticeKind::Warning, text).await;
            }
            // Ends the reply.
            ModelEvent::Stop(_) => return Ok(()),
        };
        self.has_output = true;
        self.turn.post_event(event).await
    }

    async fn forward_rest(&mut self) -> Result<(), TurnError> {
        let rest = self.switches.as_mut().map(Reader::flush).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        let (message_id, text) = (self.message_id.clone(), String::new());
        self.turn.post_event(SessionEvent::AgentText { message_id, text, shown: Some(rest) }).await
    }

    async fn announce(&mut self, model_id: String, name: String, arguments: Value) -> Result<(), TurnError> {
        let started = self.started.iter().position(|(id, _)| *id == model_id);
        let is_announced = started.is_some();
        if !is_announced {
            self.called.push(name.clone());
        }
        let id = started.map_or_else(|| self.ids.call(), |at| self.started.remove(at).1);
        let tool = match self.turn.context.tools.find(&name) {
            Some(tool) => {
                // The model copies what it was shown; the call means what was there.
                let meant = map_strings(arguments.clone(), restore);
                Some((tool.spec().clone(), tool.prepare(meant, &self.turn.workspace).await))
            }
            None => None,
        };
        let prepared = tool.as_ref().and_then(|(_, prepared)| prepared.as_ref().ok());
        let locations = prepared.map_or_else(Vec::new, |call| {
            let place = |path: &PathBuf| Location { path: path.clone(), line: call.line };
            call.shown_targets.iter().map(place).collect()
        });
        let event = ToolCallEvent {
            id: id.clone(),
            model_id,
            title: prepared.map_or_else(|| name.clone(), |call| call.title.clone()),
            name,
            kind: tool.as_ref().map_or(ToolKind::Other, |(spec, _)| spec.kind),
            arguments,
            locations,
            is_announced,
        };
        self.turn.post_event(SessionEvent::ToolCall(event)).await?;
        self.calls.push(Announced { id, tool });
        Ok(())
    }

    async fn interrupted(mut self) -> Result<(), TurnError> {
        let announced = std::mem::take(&mut self.calls).into_iter().map(|call| (String::new(), call.id));
        self.started.extend(announced);
        self.end_started("The model's reply broke off, so this call was not carried out.").await?;
        if self.has_output {
            self.turn
                .post_event(SessionEvent::ReplyInterrupted { note: interrupted_note(&self.called) })
                .await?;
        }
        Ok(())
    }

    async fn end_started(&mut self, why: &str) -> Result<(), TurnError> {
        for (_, call) in std::mem::take(&mut self.started) {
            let update = ToolCallUpdateEvent::failed(call, why);
            self.turn.post_event(SessionEvent::ToolCallUpdate(update)).await?;
        }
        Ok(())
    }
}
