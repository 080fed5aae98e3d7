//! Reads one reply of the model: passes its events on and announces its calls.
//!
//! No call runs before its reply has ended, so a reply that breaks off can be requested again.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;

use super::{Announced, Turn, TurnError, waiting};
use crate::acp::{MessageId, ToolCallId, ToolKind};
use crate::conversation::acp_updates;
use crate::conversation::content::Location;
use crate::conversation::mode_switch::{FoundSwitch, SwitchReader};
use crate::conversation::neutralise::{map_strings, restore};
use crate::event::{CallTitle, NoticeKind, SessionEvent, ToolCallEvent, ToolCallUpdateEvent};
use crate::model::written_call::{self, CallFilter, CallScope, WrittenCall, WrittenCalls};
use crate::model::{
    Block, Failure, Message, ModelError, ModelEvent, ModelId, ModelRequest, ModelStop, ProviderState, Reply,
    Role, ToolOffer,
};
use crate::tool::Toolset;
use crate::tool::foreign_call::{self, NamedTool, OwnArguments, ServerToolName, ToolNames};

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
    pub(super) found: FoundSwitch,
    /// Tools whose calls are incomplete.
    pub(super) cut_calls: Vec<String>,
    /// True if the history contains a part of the reply.
    pub(super) has_output: bool,
    /// True if the reply has text other than blanks.
    pub(super) has_words: bool,
    /// Why a call in the text must not run.
    pub(super) unclear_call: Option<Cow<'static, str>>,
}

/// The parts of a request that a call in the text is compared with.
pub(super) struct RequestScope {
    tools: Arc<[ToolOffer]>,
    allowed: Option<Arc<[String]>>,
    system: Arc<str>,
    messages: Vec<Arc<Message>>,
}

/// The tools of a session, and those of the request that a reply answers.
struct CallableTools<'a> {
    all: &'a Toolset,
    scope: &'a RequestScope,
}

impl ToolNames for CallableTools<'_> {
    fn exists(&self, name: &str) -> bool {
        self.all.find(name).is_some()
    }

    fn is_offered(&self, name: &str) -> bool {
        self.scope.offers(name)
    }

    fn of_servers(&self) -> Vec<ServerToolName> {
        self.all.servers().tool_names()
    }
}

/// A call whose arguments are still streaming.
struct StartedCall {
    model_id: String,
    id: ToolCallId,
    name: String,
    /// True if the client knows the call.
    is_announced: bool,
}

/// Ids of messages and calls, unique in the session: each run of text or thought has its own.
pub(super) struct Ids {
    turn: u64,
    messages: u64,
    calls: u64,
    checks: u64,
}

#[derive(Default)]
pub(super) struct Interruptions(u32);

pub(super) struct Listener<'a> {
    turn: &'a Turn,
    ids: &'a mut Ids,
    model: &'a ModelId,
    switches: Option<SwitchReader>,
    scope: RequestScope,
    call_filter: CallFilter,
    /// Text of the reply so far.
    said: String,
    calls: Vec<Announced>,
    started: Vec<StartedCall>,
    /// Tools of all calls, for the note if the reply breaks off.
    called: Vec<String>,
    message_id: MessageId,
    chunk_kind: ReplyChunk,
    /// True once the history contains a part of the reply.
    has_output: bool,
    /// Bytes of text and thoughts so far.
    bytes: usize,
}

/// Maximum bytes of the text and the thoughts of one reply.
const MAX_REPLY: usize = 16 * 1024 * 1024;

#[derive(PartialEq, Eq, Clone, Copy)]
enum ReplyChunk {
    Text,
    Thought,
    Other,
}

impl RequestScope {
    pub(super) fn of(request: &ModelRequest) -> Self {
        Self {
            tools: Arc::clone(&request.tools),
            allowed: request.allowed.clone(),
            system: Arc::clone(&request.system),
            messages: request.messages.clone(),
        }
    }

    fn read(&self, answer: &str, held: &str) -> WrittenCalls {
        let scope = CallScope { tools: &self.tools, allowed: self.allowed.as_deref() };
        let calls = written_call::read(answer, held, scope);
        let text = if held.is_empty() { answer } else { held };
        if calls != WrittenCalls::Nothing && written_call::is_quoted(text, self.texts_of_others()) {
            return WrittenCalls::Nothing;
        }
        calls
    }

    fn offers(&self, name: &str) -> bool {
        let is_allowed =
            self.allowed.as_ref().is_none_or(|names| names.iter().any(|allowed| allowed == name));
        is_allowed && self.tools.iter().any(|tool| tool.name == name)
    }

    /// Texts that the model did not write.
    fn texts_of_others(&self) -> impl Iterator<Item = &str> + Clone {
        let messages = self.messages.iter().filter(|message| message.role == Role::User);
        let texts = messages.flat_map(|message| &message.blocks).filter_map(|block| match block {
            Block::Text(text) | Block::Note(text) | Block::ToolResult { text, .. } => Some(text.as_str()),
            _ => None,
        });
        std::iter::once(&*self.system).chain(texts)
    }
}

impl Ids {
    pub(super) fn new(turn: u64) -> Self {
        Self { turn, messages: 0, calls: 0, checks: 0 }
    }

    pub(super) fn message(&mut self) -> MessageId {
        self.messages += 1;
        MessageId::new(format!("msg_{}_{}", self.turn, self.messages))
    }

    fn call(&mut self) -> ToolCallId {
        self.calls += 1;
        ToolCallId::new(format!("call_{}_{}", self.turn, self.calls))
    }

    /// The call of a check.
    pub(super) fn check(&mut self) -> ToolCallId {
        self.checks += 1;
        ToolCallId::new(format!("check_{}_{}", self.turn, self.checks))
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
    waiting(&format!("\nThe reply above broke off and is requested again: {reason}"), wait, None)
}

impl<'a> Listener<'a> {
    pub(super) fn new(
        turn: &'a Turn,
        ids: &'a mut Ids,
        model: &'a ModelId,
        switches: Option<SwitchReader>,
        scope: RequestScope,
    ) -> Self {
        Self {
            turn,
            message_id: ids.message(),
            ids,
            model,
            switches,
            scope,
            call_filter: CallFilter::default(),
            said: String::new(),
            calls: Vec::new(),
            started: Vec::new(),
            called: Vec::new(),
            chunk_kind: ReplyChunk::Other,
            has_output: false,
            bytes: 0,
        }
    }

    /// If the reply breaks off, its calls have ended and the history marks its text as incomplete.
    pub(super) async fn listen(mut self, mut reply: Reply) -> Result<Step, TurnError> {
        loop {
            let event = reply.next().await;
            let mut event = event.unwrap_or_else(|| Err(ModelError::new("the model's reply ended early")));
            if let Err(error) = self.count_bytes(&event) {
                event = Err(error);
            }
            self.begin_chunk(match &event {
                Ok(ModelEvent::Text(_)) => ReplyChunk::Text,
                Ok(ModelEvent::Thought(_)) => ReplyChunk::Thought,
                _ => ReplyChunk::Other,
            })
            .await?;
            match event {
                Ok(ModelEvent::Text(text)) => self.text_chunk(text).await?,
                Ok(ModelEvent::Stop(stop)) => return self.stop(stop).await,
                Ok(event) => self.event(event).await?,
                Err(error) => {
                    self.interrupted().await?;
                    return Err(TurnError::Model(error));
                }
            }
        }
    }

    async fn stop(mut self, stop: ModelStop) -> Result<Step, TurnError> {
        let mut unclear_call = None;
        let held = self.call_filter.release();
        let is_whole = stop == ModelStop::Done && self.calls.is_empty() && self.started.is_empty();
        let written = if is_whole { self.scope.read(&self.said, &held) } else { WrittenCalls::Nothing };
        match written {
            WrittenCalls::Calls(calls) => {
                for WrittenCall { name, arguments } in calls {
                    let model_id = format!("written_{}_{}", self.ids.turn, self.ids.calls + 1);
                    self.announce(model_id, name, arguments).await?;
                }
            }
            WrittenCalls::Nothing => self.text(held).await?,
            WrittenCalls::Unclear(reason) => {
                unclear_call = Some(reason);
                self.text(held).await?;
            }
        }
        self.forward_rest().await?;
        let cut_calls: Vec<String> = self.started.iter().map(|call| call.name.clone()).collect();
        let why = if stop.is_cut() {
            "The reply was cut off in this call, so it was not carried out."
        } else {
            "The model's call was incomplete."
        };
        self.end_started(why).await?;
        Ok(Step {
            calls: self.calls,
            stop,
            found: self.switches.map(|mut switches| switches.take()).unwrap_or_default(),
            cut_calls,
            has_output: self.has_output,
            has_words: !self.said.trim().is_empty(),
            unclear_call,
        })
    }

    /// A reply without end would fill the memory and the store.
    fn count_bytes(&mut self, event: &Result<ModelEvent, ModelError>) -> Result<(), ModelError> {
        if let Ok(ModelEvent::Text(text) | ModelEvent::Thought(text)) = event {
            self.bytes += text.len();
        }
        if self.bytes > MAX_REPLY {
            return Err(ModelError::new("the model's reply is longer than 16 MB, so it was ended"));
        }
        Ok(())
    }

    async fn begin_chunk(&mut self, kind: ReplyChunk) -> Result<(), TurnError> {
        let before = std::mem::replace(&mut self.chunk_kind, kind);
        if before == kind || before == ReplyChunk::Other {
            return Ok(());
        }
        if before == ReplyChunk::Text && !self.call_filter.is_holding() {
            let rest = self.call_filter.release();
            self.text(rest).await?;
            self.forward_rest().await?;
        }
        self.message_id = self.ids.message();
        Ok(())
    }

    async fn event(&mut self, event: ModelEvent) -> Result<(), TurnError> {
        let event = match event {
            ModelEvent::Text(text) => return self.text_chunk(text).await,
            ModelEvent::Thought(text) if text.is_empty() => return Ok(()),
            ModelEvent::Thought(text) => {
                self.release_text().await?;
                SessionEvent::AgentThought { message_id: self.message_id.clone(), text }
            }
            ModelEvent::ProviderState(data) => SessionEvent::ProviderState {
                state: ProviderState { origin: self.model.clone(), data: Arc::new(data) },
            },
            ModelEvent::ToolCallStarted { id, name } => {
                self.release_text().await?;
                let call = self.ids.call();
                let is_announced = !foreign_call::depends_on_arguments(&name);
                let name = match self.named(&name, None) {
                    NamedTool::Own { tool, .. } => tool,
                    NamedTool::Same => name,
                };
                let (id, model_id) = (call, id);
                self.started.push(StartedCall { model_id, id: id.clone(), name: name.clone(), is_announced });
                self.called.push(name.clone());
                if !is_announced {
                    return Ok(());
                }
                let kind =
                    self.turn.context.tools.find(&name).map_or(ToolKind::Other, |tool| tool.spec().kind);
                return self.turn.post_event(SessionEvent::ToolCallStarted { id, name, kind }).await;
            }
            ModelEvent::ToolCall { id, name, arguments } => {
                self.release_text().await?;
                return self.announce(id, name, arguments).await;
            }
            ModelEvent::Usage(usage) => return self.turn.post_event(SessionEvent::Usage(usage)).await,
            ModelEvent::Waiting { reason, wait, limit } => {
                let text = waiting(&reason, wait, limit);
                return self.turn.post_notice(self.ids.message(), NoticeKind::Warning, text).await;
            }
            // Ends the reply.
            ModelEvent::Stop(_) => return Ok(()),
        };
        self.has_output = true;
        self.turn.post_event(event).await
    }

    async fn text_chunk(&mut self, text: String) -> Result<(), TurnError> {
        let answer = match self.call_filter.push(&text) {
            Cow::Borrowed(answer) if answer.len() == text.len() => text,
            answer => answer.into_owned(),
        };
        self.text(answer).await
    }

    async fn text(&mut self, text: String) -> Result<(), TurnError> {
        if text.is_empty() {
            return Ok(());
        }
        self.has_output = true;
        self.said.push_str(&text);
        let without_switch = self.switches.as_mut().and_then(|switches| match switches.push(&text) {
            Cow::Borrowed(_) => None,
            Cow::Owned(remaining) => (remaining != text).then_some(remaining),
        });
        let (message_id, shown) = (self.message_id.clone(), without_switch);
        self.turn.post_event(SessionEvent::AgentText { message_id, text, shown }).await
    }

    /// Passes on text that looked like a call: the reply goes on, so the text is none.
    async fn release_text(&mut self) -> Result<(), TurnError> {
        if self.call_filter.is_holding() {
            let held = self.call_filter.release();
            self.text(held).await?;
            self.forward_rest().await?;
            self.message_id = self.ids.message();
        }
        Ok(())
    }

    async fn forward_rest(&mut self) -> Result<(), TurnError> {
        let rest = self.switches.as_mut().map(SwitchReader::flush).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        let (message_id, text) = (self.message_id.clone(), String::new());
        self.turn.post_event(SessionEvent::AgentText { message_id, text, shown: Some(rest) }).await
    }

    fn named(&self, name: &str, arguments: Option<&Value>) -> NamedTool {
        let tools = CallableTools { all: &self.turn.context.tools, scope: &self.scope };
        foreign_call::named_tool(name, arguments, &tools)
    }

    async fn announce(&mut self, model_id: String, called: String, given: Value) -> Result<(), TurnError> {
        self.has_output = true;
        let started = self.started.iter().position(|call| call.model_id == model_id);
        let started = started.map(|at| self.started.remove(at));
        let is_announced = started.as_ref().is_some_and(|call| call.is_announced);
        if started.is_none() {
            self.called.push(called.clone());
        }
        let id = started.map_or_else(|| self.ids.call(), |call| call.id);
        let (name, may_run) = match self.named(&called, Some(&given)) {
            NamedTool::Same => (called.clone(), true),
            NamedTool::Own { tool, is_offered } => (tool, is_offered),
        };
        let found = self.turn.context.tools.find(&name);
        let schema = found.as_ref().map(|tool| tool.spec()).filter(|spec| spec.server.is_none());
        let schema = schema.map(|spec| spec.schema.to_value());
        let OwnArguments { arguments, note } =
            foreign_call::own_arguments(&called, &name, given, schema.as_ref());
        let tool = match found {
            Some(tool) => {
                // The model copies what it was shown; the call means what was there.
                let meant = map_strings(arguments.clone(), restore);
                Some((tool.spec().clone(), tool.prepare(meant, &self.turn.workspace).await))
            }
            None => None,
        };
        let prepared = tool.as_ref().and_then(|(_, prepared)| prepared.as_ref().ok());
        let locations = prepared.map_or_else(Vec::new, |call| {
            let paths = call.shown_targets.iter().cloned();
            paths.map(|path| Location { path, line: call.line }).collect()
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
            note,
            check: None,
        };
        let title = tool.as_ref().map(|(spec, _)| CallTitle {
            text: event.title.clone(),
            has_code_spans: acp_updates::has_code_spans(spec.kind),
        });
        self.turn.post_event(SessionEvent::ToolCall(Box::new(event))).await?;
        self.calls.push(Announced { id, tool, may_run, title, is_check: false });
        Ok(())
    }

    async fn interrupted(mut self) -> Result<(), TurnError> {
        self.release_text().await?;
        let announced = std::mem::take(&mut self.calls).into_iter().map(|call| StartedCall {
            model_id: String::new(),
            id: call.id,
            name: String::new(),
            is_announced: true,
        });
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
        for call in std::mem::take(&mut self.started).into_iter().filter(|call| call.is_announced) {
            let update = ToolCallUpdateEvent::failed(call.id, why);
            self.turn.post_event(update.into()).await?;
        }
        Ok(())
    }
}
