//! Encodes messages to a client of version 2, and knows which sessions run and which wait for the user. Pure.
//!
//! A session is idle unless a turn has begun. While a question of a turn is open, it requires action.

use std::collections::HashMap;

use super::updates;
use crate::acp::{ContentBlock, RequestPermissionRequest, SessionId, SessionNotification, StopReason, v2};
use crate::client::{ClientRequest, SessionSignal, TurnOutcome};
use crate::json_rpc;

/// Bytes of the text in one chunk of a user's message: six times as many as JSON, in the worst case.
const CHUNK: usize = 8 * 1024;

/// Bytes of JSON up to which a message is sent whole.
const WHOLE_MESSAGE: usize = 32 * 1024;

#[derive(Default)]
pub(in crate::rpc) struct V2Encoder {
    running: HashMap<SessionId, RunningSession>,
    /// Sessions of unanswered questions, by the request's id.
    questions: HashMap<u64, SessionId>,
}

/// A session in a turn.
#[derive(Default)]
struct RunningSession {
    open_questions: usize,
}

pub(in crate::rpc) fn update_lines(notification: SessionNotification) -> Vec<String> {
    let SessionNotification { session_id, update } = notification;
    updates::converted(update).into_iter().map(|update| line(&session_id, update)).collect()
}

impl V2Encoder {
    pub(in crate::rpc) fn signal(&mut self, session: &SessionId, signal: SessionSignal) -> Vec<String> {
        match signal {
            SessionSignal::PromptInserted { message_id, content } => {
                user_message(session, &message_id.0, &content)
            }
            SessionSignal::TurnBegan => {
                self.running.insert(session.clone(), RunningSession::default());
                vec![self.state(session)]
            }
            SessionSignal::TurnEnded(outcome) => {
                self.running.remove(session);
                self.questions.retain(|_, asking| asking != session);
                let idle = v2::IdleStateUpdate::new().stop_reason(stop_reason(outcome));
                vec![line(session, v2::SessionUpdate::StateUpdate(v2::StateUpdate::Idle(idle)))]
            }
            SessionSignal::ReplayEnded => {
                vec![line(session, v2::SessionUpdate::ReplayComplete(v2::ReplayComplete::new()))]
            }
            SessionSignal::StateRequested => vec![self.state(session)],
            SessionSignal::Closed => {
                self.running.remove(session);
                Vec::new()
            }
        }
    }

    /// Encodes a request to the client. Its session requires action until [`Self::question_closed`].
    pub(in crate::rpc) fn request(&mut self, id: u64, request: &ClientRequest) -> Vec<String> {
        let (session, line) = match request {
            ClientRequest::RequestPermission(request) => {
                let params = permission_request(request);
                (Some(request.session_id.clone()), json_rpc::call_line(Some(id), request_method(), &params))
            }
            request => {
                let params = serde_json::to_value(request).unwrap_or_default();
                let session = params["sessionId"].as_str().map(SessionId::new);
                (session, json_rpc::call_line(Some(id), request.method(), &params))
            }
        };
        let mut lines = Vec::new();
        if let Some(session) = session
            && let Some(running) = self.running.get_mut(&session)
        {
            running.open_questions += 1;
            let is_first = running.open_questions == 1;
            lines.extend(is_first.then(|| self.state(&session)));
            self.questions.insert(id, session);
        }
        lines.push(line);
        lines
    }

    /// The question is answered or withdrawn.
    pub(in crate::rpc) fn question_closed(&mut self, id: u64) -> Option<String> {
        let session = self.questions.remove(&id)?;
        let running = self.running.get_mut(&session)?;
        running.open_questions -= 1;
        (running.open_questions == 0).then(|| self.state(&session))
    }

    fn state(&self, session: &SessionId) -> String {
        let state = match self.running.get(session) {
            None => v2::StateUpdate::Idle(v2::IdleStateUpdate::new()),
            Some(RunningSession { open_questions: 0 }) => {
                v2::StateUpdate::Running(v2::RunningStateUpdate::new())
            }
            Some(_) => v2::StateUpdate::RequiresAction(v2::RequiresActionStateUpdate::new()),
        };
        line(session, v2::SessionUpdate::StateUpdate(state))
    }
}

fn request_method() -> &'static str {
    "session/request_permission"
}

fn stop_reason(outcome: TurnOutcome) -> v2::StopReason {
    match outcome {
        TurnOutcome::Stopped(StopReason::MaxTokens) => v2::StopReason::MaxTokens,
        TurnOutcome::Stopped(StopReason::MaxTurnRequests) => v2::StopReason::MaxTurnRequests,
        TurnOutcome::Stopped(StopReason::Refusal) => v2::StopReason::Refusal,
        TurnOutcome::Stopped(StopReason::Cancelled) => v2::StopReason::Cancelled,
        TurnOutcome::Stopped(_) => v2::StopReason::EndTurn,
        TurnOutcome::Failed { code, message } => {
            v2::StopReason::Error(v2::ErrorStopReason::new().error(v2::Error::new(code, message)))
        }
    }
}

/// The question about a tool call. The preview of its changes is the content of the call.
fn permission_request(request: &RequestPermissionRequest) -> v2::RequestPermissionRequest {
    let call = updates::tool_call_update(request.tool_call.clone());
    let title = request.tool_call.fields.title.clone().unwrap_or_else(|| "Allow the call?".to_owned());
    let options = request.options.iter().filter_map(updates::same_form).collect();
    let subject = v2::RequestPermissionSubject::ToolCall(Box::new(v2::ToolCallPermissionSubject::new(call)));
    v2::RequestPermissionRequest::new(request.session_id.0.clone(), title, options)
        .subject(subject)
        .meta(request.meta.clone())
}

/// A message that is too long for one line begins empty, and its content follows in chunks.
fn user_message(session: &SessionId, id: &str, content: &[ContentBlock]) -> Vec<String> {
    let blocks: Vec<v2::ContentBlock> = content.iter().filter_map(updates::block).collect();
    let len = serde_json::to_vec(&blocks).map_or(usize::MAX, |json| json.len());
    let message = |content| v2::SessionUpdate::UserMessage(v2::UserMessage::new(id).content(content));
    if len <= WHOLE_MESSAGE {
        return vec![line(session, message(blocks))];
    }
    let mut lines = vec![line(session, message(Vec::new()))];
    let mut push = |block| {
        let chunk = v2::ContentChunk::new(block, v2::MessageId::new(id));
        lines.push(line(session, v2::SessionUpdate::UserMessageChunk(chunk)));
    };
    for block in blocks {
        match block {
            v2::ContentBlock::Text(text) => {
                let mut rest = text.text.as_str();
                while !rest.is_empty() {
                    let (piece, after) = rest.split_at(rest.floor_char_boundary(CHUNK));
                    push(v2::ContentBlock::Text(v2::TextContent::new(piece)));
                    rest = after;
                }
            }
            block => push(block),
        }
    }
    lines
}

fn line(session: &SessionId, update: v2::SessionUpdate) -> String {
    json_rpc::call_line(
        None,
        "session/update",
        &v2::UpdateSessionNotification::new(session.0.clone(), update),
    )
}
