//! Updates that show a sub-agent to clients which accept them: its session, its task and its answer. Pure.

use crate::acp::{
    IdleStateUpdate, MessageId, RunningStateUpdate, SessionId, SessionMessage, SessionUpdate, StateUpdate,
    SubagentUpdate, ToolCallId,
};
use crate::conversation::content::{TEXT, clip};

/// A sub-agent and its place.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    pub(crate) session: SessionId,
    /// True if it outlives its call, and the client lists such work.
    pub(crate) is_listed: bool,
}

pub(crate) fn began(child: &SessionId, title: &str, agent: &str) -> SessionUpdate {
    let running = StateUpdate::Running(RunningStateUpdate::new());
    let update = SubagentUpdate::new(child.clone()).title(title.to_owned()).description(agent.to_owned());
    SessionUpdate::SubagentUpdate(update.state(running))
}

pub(crate) fn ended(child: &SessionId) -> SessionUpdate {
    let idle = StateUpdate::Idle(IdleStateUpdate::new());
    SessionUpdate::SubagentUpdate(SubagentUpdate::new(child.clone()).state(idle))
}

pub(crate) fn task(call: &ToolCallId, parent: &SessionId, child: &SessionId, text: &str) -> SessionUpdate {
    message(format!("msg_{call}_task"), (parent, child), text)
}

pub(crate) fn answer(call: &ToolCallId, parent: &SessionId, child: &SessionId, text: &str) -> SessionUpdate {
    message(format!("msg_{call}_answer"), (child, parent), text)
}

fn message(id: String, (sender, recipient): (&SessionId, &SessionId), text: &str) -> SessionUpdate {
    let message = SessionMessage::new(MessageId::new(id))
        .sender_session_id(sender.clone())
        .recipient_session_id(recipient.clone())
        .content(vec![clip(text, TEXT).into_owned().into()]);
    SessionUpdate::SessionMessage(message)
}
