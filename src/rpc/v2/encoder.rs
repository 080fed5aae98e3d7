//! Encodes messages to a client of version 2, and knows which sessions run, wait for the user or replay their
//! history, and their background work. Pure.
//!
//! A session is idle unless a turn has begun. While a question of a turn is open, it requires action.

use std::collections::HashMap;

use super::background_work;
use super::updates;
use super::user_message::user_message;
use crate::acp::{Meta, RequestPermissionRequest, SessionId, SessionNotification, StopReason, v2};
use crate::client::{ClientRequest, SessionSignal, TurnOutcome};
use crate::json_rpc;

#[derive(Default)]
pub(in crate::rpc) struct V2Encoder {
    sessions: HashMap<SessionId, SessionView>,
    /// Sessions of unanswered questions, by the request's id.
    questions: HashMap<u64, SessionId>,
}

/// A session, as its client sees it.
#[derive(Default)]
struct SessionView {
    is_running: bool,
    open_questions: usize,
    background: Vec<v2::BackgroundWork>,
    /// Requests for the history that have not ended.
    replays: usize,
    /// Live messages that wait for the end of the replays.
    held: Vec<HeldMessage>,
}

enum HeldMessage {
    /// Part of the history of a replay that begins later.
    Update(String),
    Line(String),
    Question(u64, String),
}

impl HeldMessage {
    fn into_line(self) -> String {
        match self {
            Self::Update(line) | Self::Line(line) | Self::Question(_, line) => line,
        }
    }
}

/// The lines of an update outside of replays.
pub(in crate::rpc) fn update_lines(notification: SessionNotification) -> Vec<String> {
    let SessionNotification { session_id, update } = notification;
    updates::converted(update).into_iter().map(|update| line(&session_id, update)).collect()
}

impl V2Encoder {
    pub(in crate::rpc) fn update(&mut self, notification: SessionNotification) -> Vec<String> {
        match self.sessions.get_mut(&notification.session_id).filter(|view| view.replays > 0) {
            Some(view) => {
                view.held.extend(update_lines(notification).into_iter().map(HeldMessage::Update));
                Vec::new()
            }
            None => update_lines(notification),
        }
    }

    pub(in crate::rpc) fn signal(&mut self, session: &SessionId, signal: SessionSignal) -> Vec<String> {
        match signal {
            SessionSignal::ReplayRequested => {
                self.view(session).replays += 1;
                return Vec::new();
            }
            SessionSignal::ReplayBegan => {
                self.view(session).held.retain(|message| !matches!(message, HeldMessage::Update(_)));
                return Vec::new();
            }
            SessionSignal::ReplayEnded => {
                let mark = line(session, v2::SessionUpdate::ReplayComplete(v2::ReplayComplete::new()));
                return [mark].into_iter().chain(self.end_replay(session)).collect();
            }
            // Without a mark.
            SessionSignal::ReplayFailed => {
                let held = self.end_replay(session);
                self.forget_idle(session);
                return held;
            }
            // Part of the answer, after a replay.
            SessionSignal::StateRequested => return vec![self.state(session)],
            SessionSignal::Closed => {
                self.questions.retain(|_, asking| asking != session);
                self.sessions.remove(session);
                return Vec::new();
            }
            _ => {}
        }
        let lines = self.live_signal(session, signal);
        self.unless_held(session, lines)
    }

    fn live_signal(&mut self, session: &SessionId, signal: SessionSignal) -> Vec<String> {
        match signal {
            SessionSignal::PromptInserted { message_id, content } => {
                let updates = user_message(&message_id.0, &content);
                updates.into_iter().map(|update| line(session, update)).collect()
            }
            SessionSignal::TurnBegan => {
                self.view(session).is_running = true;
                vec![self.state(session)]
            }
            SessionSignal::TurnEnded { outcome, meta } => {
                self.questions.retain(|_, asking| asking != session);
                let view = self.view(session);
                (view.is_running, view.open_questions) = (false, 0);
                vec![line(session, ended(outcome, meta, view.background.clone()))]
            }
            SessionSignal::WorkBegan(work) => {
                let (announcement, item) = background_work::began(work);
                self.view(session).background.push(item);
                let announced = announcement.map(|update| line(session, update));
                announced.into_iter().chain([self.state(session)]).collect()
            }
            SessionSignal::WorkOutput { terminal, text, send_permit: _ } => {
                let is_listed = background_work::lists_terminal(&self.view(session).background, &terminal);
                let chunk = is_listed.then(|| background_work::output(terminal, &text));
                chunk.into_iter().map(|update| line(session, update)).collect()
            }
            SessionSignal::WorkEnded(work) => {
                let (end, item) = background_work::ended(work);
                let view = self.view(session);
                let before = view.background.len();
                view.background.retain(|listed| *listed != item);
                if view.background.len() == before {
                    return Vec::new();
                }
                let end = end.map(|update| line(session, update));
                end.into_iter().chain([self.state(session)]).collect()
            }
            SessionSignal::ReplayRequested
            | SessionSignal::ReplayBegan
            | SessionSignal::ReplayEnded
            | SessionSignal::ReplayFailed
            | SessionSignal::StateRequested
            | SessionSignal::Closed => Vec::new(),
        }
    }

    /// Encodes a request to the client. Its session requires action until [`Self::question_closed`].
    pub(in crate::rpc) fn request(&mut self, id: u64, request: &ClientRequest) -> Vec<String> {
        let (session, line) = match request {
            ClientRequest::RequestPermission(permission) => {
                let params = permission_request(permission);
                let session = Some(permission.session_id.clone());
                (session, json_rpc::call_line(Some(id), request.method(), &params))
            }
            request => {
                let params = serde_json::to_value(request).unwrap_or_default();
                let session = params["sessionId"].as_str().map(SessionId::new);
                (session, json_rpc::call_line(Some(id), request.method(), &params))
            }
        };
        let Some(session) = session else { return vec![line] };
        let view = self.view(&session);
        let mut lines = Vec::new();
        if view.is_running {
            view.open_questions += 1;
            let is_first = view.open_questions == 1;
            lines.extend(is_first.then(|| self.state(&session)));
            self.questions.insert(id, session.clone());
        }
        let mut lines = self.unless_held(&session, lines);
        let view = self.view(&session);
        if view.replays > 0 {
            view.held.push(HeldMessage::Question(id, line));
        } else {
            lines.push(line);
        }
        lines
    }

    /// The question is answered or withdrawn.
    pub(in crate::rpc) fn question_closed(&mut self, id: u64) -> Vec<String> {
        let Some(session) = self.questions.remove(&id) else { return Vec::new() };
        let view = self.view(&session);
        view.open_questions -= 1;
        if view.open_questions > 0 {
            return Vec::new();
        }
        let state = vec![self.state(&session)];
        self.unless_held(&session, state)
    }

    /// Takes back a question that waits for a replay. Returns false if the client has it.
    pub(in crate::rpc) fn take_back_question(&mut self, id: u64) -> bool {
        self.sessions.values_mut().any(|view| {
            let before = view.held.len();
            view.held
                .retain(|message| !matches!(message, HeldMessage::Question(question, _) if *question == id));
            view.held.len() < before
        })
    }

    /// Returns the messages that have waited for the last replay.
    fn end_replay(&mut self, session: &SessionId) -> Vec<String> {
        let view = self.view(session);
        view.replays = view.replays.saturating_sub(1);
        let ended = if view.replays == 0 { std::mem::take(&mut view.held) } else { Vec::new() };
        ended.into_iter().map(HeldMessage::into_line).collect()
    }

    fn unless_held(&mut self, session: &SessionId, lines: Vec<String>) -> Vec<String> {
        match self.sessions.get_mut(session).filter(|view| view.replays > 0) {
            Some(view) => {
                view.held.extend(lines.into_iter().map(HeldMessage::Line));
                Vec::new()
            }
            None => lines,
        }
    }

    /// The session may not exist.
    fn forget_idle(&mut self, session: &SessionId) {
        let is_idle =
            |view: &SessionView| !view.is_running && view.replays == 0 && view.background.is_empty();
        if self.sessions.get(session).is_some_and(is_idle) {
            self.sessions.remove(session);
        }
    }

    fn view(&mut self, session: &SessionId) -> &mut SessionView {
        self.sessions.entry(session.clone()).or_default()
    }

    fn state(&self, session: &SessionId) -> String {
        let view = self.sessions.get(session);
        let background = view.map(|view| view.background.clone()).unwrap_or_default();
        let state = match view {
            Some(SessionView { is_running: true, open_questions: 0, .. }) => {
                v2::StateUpdate::Running(v2::RunningStateUpdate::new().background(background))
            }
            Some(SessionView { is_running: true, .. }) => {
                v2::StateUpdate::RequiresAction(v2::RequiresActionStateUpdate::new().background(background))
            }
            _ => v2::StateUpdate::Idle(v2::IdleStateUpdate::new().background(background)),
        };
        line(session, v2::SessionUpdate::StateUpdate(state))
    }
}

fn ended(outcome: TurnOutcome, meta: Option<Meta>, background: Vec<v2::BackgroundWork>) -> v2::SessionUpdate {
    let idle = v2::IdleStateUpdate::new().stop_reason(stop_reason(outcome)).background(background);
    v2::SessionUpdate::StateUpdate(v2::StateUpdate::Idle(idle.meta(meta)))
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

fn line(session: &SessionId, update: v2::SessionUpdate) -> String {
    json_rpc::call_line(
        None,
        "session/update",
        &v2::UpdateSessionNotification::new(session.0.clone(), update),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_replay_of_an_unknown_session_leaves_nothing() {
        let mut encoder = V2Encoder::default();
        for number in 0..3 {
            let session = SessionId::new(format!("sess_{number}"));
            assert!(encoder.signal(&session, SessionSignal::ReplayRequested).is_empty());
            assert!(encoder.signal(&session, SessionSignal::ReplayFailed).is_empty());
        }
        assert!(encoder.sessions.is_empty());
        // The control: a session that runs stays known.
        let session = SessionId::new("sess_9");
        encoder.signal(&session, SessionSignal::TurnBegan);
        encoder.signal(&session, SessionSignal::ReplayRequested);
        encoder.signal(&session, SessionSignal::ReplayFailed);
        assert_eq!(encoder.sessions.len(), 1);
    }
}
