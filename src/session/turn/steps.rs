//! The loop of a turn: asks the model, runs the tool calls of its reply, and repeats.

use std::borrow::Cow;
use std::sync::Arc;

use futures_util::StreamExt;
use serde_json::Value;

use super::compact;
use super::{After, Announced, Turn, TurnError, waiting};
use crate::acp::{MessageId, StopReason, ToolCallId, ToolKind};
use crate::conversation::mode_switch::{Found, Reader};
use crate::conversation::neutralise::{map_strings, restore};
use crate::event::{SessionEvent, ToolCallEvent, ToolCallUpdateEvent};
use crate::model::{Failure, ModelError, ModelEvent, ModelId, ModelStop, ProviderState, Reply};
use crate::permission::Target;
use crate::session::external_turn;
use crate::session::handle::EndReason;
use crate::session::turn_message::{Next, TurnMessage};
use crate::tool::Location;

struct Step {
    calls: Vec<Announced>,
    stop: ModelStop,
    found: Found,
}

const REFUSED_AGAIN: &str =
    "\nStopped: the same call was refused again and again. Change the mode, or ask for something else.\n";

pub(in crate::session) async fn run(mut turn: Turn) -> Result<EndReason, TurnError> {
    if turn.external_agent.is_some() {
        let prompt = std::mem::take(&mut turn.prompt);
        return external_turn::run(&turn, prompt).await;
    }
    if let Some(snapshot) = &turn.snapshot {
        // Skips changes that background jobs made between turns.
        turn.keep_changes(snapshot.begin_turn(&turn.cancel).await);
    }
    let late = tokio::select! {
        () = turn.cancel.cancelled() => Vec::new(),
        late = turn.tools.servers().settle(turn.server_timeout) => late,
    };
    if !late.is_empty() {
        let text = format!(
            "MCP servers still starting: {}. The turn begins without them; their tools become available when they \
             answer.\n\n",
            late.join(", ")
        );
        let message_id = MessageId::new(format!("msg_{}_late", turn.number));
        turn.post_event(SessionEvent::Notice { message_id, text }).await?;
    }
    let outcome =
        if turn.compacts { compact::run(&turn).await.map(Into::into) } else { run_steps(&turn).await };
    if let Some(snapshot) = turn.ask_actor(|reply| TurnMessage::Snapshot { reply }).await? {
        turn.keep_changes(snapshot.end_turn(&turn.cancel).await);
    }
    outcome
}

async fn run_steps(turn: &Turn) -> Result<EndReason, TurnError> {
    let mut messages = MessageIds { turn: turn.number, next: 0 };
    let mut calls = 0;
    let mut steps = 0;
    let mut is_compacted = false;
    loop {
        let next = turn.ask_actor(|reply| TurnMessage::NextRequest { made: steps, reply }).await?;
        let (request, reader) = match next {
            None => return Ok(StopReason::MaxTurnRequests.into()),
            Some(Next::Ask { request, reads_switches }) => (request, reads_switches.then(Reader::default)),
            Some(Next::Summarise(summary)) => match compact::summarise(turn, summary).await? {
                Some(reason) => return Ok(reason.into()),
                None => continue,
            },
        };
        steps += 1;
        let model = request.model.clone();
        let reply = turn.model.reply(request);
        let step = tokio::select! {
            biased;
            () = turn.cancel.cancelled() => return Ok(StopReason::Cancelled.into()),
            step = turn.listen(reply, &model, reader, &mut messages, &mut calls) => step,
        };
        let step = match step {
            Err(TurnError::Model(error)) if error.failure == Failure::ContextTooLong && !is_compacted => {
                is_compacted = true;
                let summary = turn.ask_actor(|reply| TurnMessage::Compact { reply }).await?;
                let Some(summary) = summary else { return Err(TurnError::Model(error)) };
                match compact::summarise(turn, summary).await? {
                    Some(reason) => return Ok(reason.into()),
                    None => continue,
                }
            }
            step => step?,
        };
        is_compacted = false;
        if step.found != Found::Nothing {
            let found = step.found;
            let ends = turn.ask_actor(|reply| TurnMessage::InBand { found, reply }).await?;
            if let Some(text) = ends {
                let message_id = messages.next();
                turn.post_event(SessionEvent::Notice { message_id, text: text.into() }).await?;
                return Ok(StopReason::EndTurn.into());
            }
        }
        match step.stop {
            ModelStop::MaxTokens => return Ok(StopReason::MaxTokens.into()),
            ModelStop::Refusal => return Ok(StopReason::Refusal.into()),
            ModelStop::Done if step.calls.is_empty() => return Ok(StopReason::EndTurn.into()),
            ModelStop::Done => {}
        }
        let end = match turn.run_calls(step.calls).await? {
            After::Continue => None,
            After::Stop(text) => Some((text.into_owned(), StopReason::EndTurn.into())),
            After::RefusedAgain => Some((REFUSED_AGAIN.to_owned(), EndReason::RefusedAgain)),
        };
        if let Some((text, reason)) = end {
            let message_id = messages.next();
            turn.post_event(SessionEvent::Notice { message_id, text }).await?;
            return Ok(reason);
        }
        if turn.cancel.is_cancelled() {
            return Ok(StopReason::Cancelled.into());
        }
    }
}

/// Message ids, unique in the session: each run of text or thought has its own.
struct MessageIds {
    turn: u64,
    next: u64,
}

impl MessageIds {
    fn next(&mut self) -> MessageId {
        self.next += 1;
        MessageId::new(format!("msg_{}_{}", self.turn, self.next))
    }
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum ChunkKind {
    Text,
    Thought,
    Other,
}

impl Turn {
    async fn listen(
        &self,
        mut reply: Reply,
        model: &ModelId,
        mut reader: Option<Reader>,
        messages: &mut MessageIds,
        calls: &mut u64,
    ) -> Result<Step, TurnError> {
        let mut announced = Vec::new();
        // Calls whose arguments are still streaming, by the model's ids.
        let mut started: Vec<(String, ToolCallId)> = Vec::new();
        let mut chunk_kind = ChunkKind::Other;
        let mut message_id = messages.next();
        while let Some(event) = reply.next().await {
            let now = match &event {
                Ok(ModelEvent::Text(_)) => ChunkKind::Text,
                Ok(ModelEvent::Thought(_)) => ChunkKind::Thought,
                _ => ChunkKind::Other,
            };
            if now != chunk_kind && chunk_kind == ChunkKind::Text {
                self.forward_rest(reader.as_mut(), &message_id).await?;
            }
            if now != chunk_kind && chunk_kind != ChunkKind::Other {
                message_id = messages.next();
            }
            chunk_kind = now;
            let event = match event.map_err(TurnError::Model)? {
                ModelEvent::Text(text) | ModelEvent::Thought(text) if text.is_empty() => continue,
                ModelEvent::Text(text) => {
                    let shown = reader.as_mut().and_then(|reader| match reader.push(&text) {
                        Cow::Borrowed(_) => None,
                        Cow::Owned(shown) => (shown != text).then_some(shown),
                    });
                    SessionEvent::AgentText { message_id: message_id.clone(), text, shown }
                }
                ModelEvent::Thought(text) => {
                    SessionEvent::AgentThought { message_id: message_id.clone(), text }
                }
                ModelEvent::ProviderState(data) => SessionEvent::ProviderState {
                    state: ProviderState { origin: model.clone(), data: Arc::new(data) },
                },
                ModelEvent::Usage(usage) => SessionEvent::Usage(usage),
                ModelEvent::Waiting { reason, wait } => {
                    SessionEvent::Notice { message_id: messages.next(), text: waiting(&reason, wait) }
                }
                ModelEvent::ToolCallStarted { id, name } => {
                    *calls += 1;
                    let call = ToolCallId::new(format!("call_{}_{calls}", self.number));
                    started.push((id, call.clone()));
                    let kind = self.tools.find(&name).map_or(ToolKind::Other, |tool| tool.spec().kind);
                    SessionEvent::ToolCallStarted { id: call, name, kind }
                }
                ModelEvent::ToolCall { id, name, arguments } => {
                    let position = started.iter().position(|(model_id, _)| *model_id == id);
                    let call = position.map(|at| started.remove(at).1);
                    announced.push(self.announce(call, calls, id, name, arguments).await?);
                    continue;
                }
                ModelEvent::Stop(stop) => {
                    for (_, call) in started {
                        let update = ToolCallUpdateEvent::failed(call, "The model's call was incomplete.");
                        self.post_event(SessionEvent::ToolCallUpdate(update)).await?;
                    }
                    let found = reader.map(|mut reader| reader.take()).unwrap_or_default();
                    return Ok(Step { calls: announced, stop, found });
                }
            };
            self.post_event(event).await?;
        }
        Err(TurnError::Model(ModelError::new("the model's reply ended early")))
    }

    async fn forward_rest(
        &self,
        reader: Option<&mut Reader>,
        message_id: &MessageId,
    ) -> Result<(), TurnError> {
        let rest = reader.map(Reader::flush).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        let (message_id, text) = (message_id.clone(), String::new());
        self.post_event(SessionEvent::AgentText { message_id, text, shown: Some(rest) }).await
    }

    async fn announce(
        &self,
        started_id: Option<ToolCallId>,
        calls: &mut u64,
        model_id: String,
        name: String,
        arguments: Value,
    ) -> Result<Announced, TurnError> {
        let is_announced = started_id.is_some();
        let id = started_id.unwrap_or_else(|| {
            *calls += 1;
            ToolCallId::new(format!("call_{}_{calls}", self.number))
        });
        let tool = match self.tools.find(&name) {
            Some(tool) => {
                // The model copies what it was shown; the call means what was there.
                let meant = map_strings(arguments.clone(), restore);
                Some((tool.spec().clone(), tool.prepare(meant, &self.workspace).await))
            }
            None => None,
        };
        let prepared = tool.as_ref().and_then(|(_, prepared)| prepared.as_ref().ok());
        let locations = prepared.map_or_else(Vec::new, |call| {
            let place = |target: &Target| Location { path: target.path.clone(), line: call.line };
            call.targets.iter().map(place).collect()
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
        self.post_event(SessionEvent::ToolCall(event)).await?;
        Ok(Announced { id, tool })
    }

    /// Runs consecutive read-side calls concurrently, all others one by one.
    async fn run_calls(&self, calls: Vec<Announced>) -> Result<After, TurnError> {
        let mut calls = calls.into_iter().peekable();
        while let Some(call) = calls.next() {
            let mut group = vec![call];
            if group[0].is_read_side() {
                while let Some(next) = calls.next_if(Announced::is_read_side) {
                    group.push(next);
                }
            }
            let outcomes: Vec<_> = futures_util::stream::iter(group)
                .map(|call| self.run_call(call))
                .buffer_unordered(self.parallel)
                .collect()
                .await;
            for outcome in outcomes {
                match outcome? {
                    After::Continue => {}
                    end => return Ok(end),
                }
            }
            if self.cancel.is_cancelled() {
                break;
            }
        }
        Ok(After::Continue)
    }
}
