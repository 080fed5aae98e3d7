//! What happens in a session on its way to the client, to the conversation and to the store.
//!
//! What came before a message or a call is durable before the client sees it (invariant 14).

use tokio::sync::OwnedSemaphorePermit;

use super::actor::Actor;
use super::encoder;
use crate::acp::{ContentBlock, MessageId, SessionModeId};
use crate::event::SessionEvent;
use crate::store::{ModeChange, ModeSource, Row};

/// Characters of a title.
const MAX_TITLE: usize = 80;

impl Actor {
    pub(super) fn record_start(&self) {
        let (id, at) = (self.session.id.clone(), self.shared.source.now_ms());
        let mode = self.session.mode.clone();
        let cwd = self.session.workspace.cwd().to_owned();
        self.shared.store.post(Row::Session { id: id.clone(), cwd, mode: mode.clone(), at });
        let source = ModeSource::Start;
        let text = self.text_of(&mode);
        let change = ModeChange { session: id, turn: 0, from: None, to: mode, why: source.into(), text, at };
        self.shared.store.post(Row::ModeChange(change));
    }

    /// What a mode comes to, with its hash: the record keeps both.
    pub(super) fn text_of(&self, mode: &SessionModeId) -> (String, String) {
        let modes = self.shared.modes.ceilings(&mode.0).unwrap_or_default();
        let text = modes.iter().map(|mode| mode.to_yaml()).collect::<Vec<_>>().join("---\n");
        (crate::ids::hash(&text), text)
    }

    /// Takes up an event: what came before it is durable before the client sees it (invariant 14).
    pub(super) async fn record(&mut self, event: SessionEvent, room: Option<OwnedSemaphorePermit>) {
        let begins = match &event {
            SessionEvent::ToolCallUpdate(_)
            | SessionEvent::Plan { .. }
            | SessionEvent::Title { .. }
            | SessionEvent::Usage(_)
            | SessionEvent::Sealed { .. }
            | SessionEvent::ModelChange { .. }
            | SessionEvent::Switch { .. }
            | SessionEvent::ModeChange { .. } => false,
            event => !self.session.unsaved.last().is_some_and(|last| last.goes_on_with(event)),
        };
        if begins {
            self.save().await;
        }
        let mut room = room;
        let session = self.session.id.clone();
        encoder::encode(
            &event,
            self.shared.compactions,
            || self.options(),
            |update| {
                self.client.update(session.clone(), update, room.take());
            },
        );
        self.session.push(event);
    }

    /// Waits until everything that happened is recorded. A failure is said once; the session goes on.
    pub(super) async fn save(&mut self) {
        if self.session.unsaved.is_empty() {
            return;
        }
        let at = self.shared.source.now_ms();
        for event in std::mem::take(&mut self.session.unsaved) {
            let seq = self.session.saved;
            self.session.saved += 1;
            let (session, turn) = (self.session.id.clone(), self.session.turns);
            self.shared.store.post(Row::Event { session, seq, turn, event, at });
        }
        let problem = match self.shared.store.flush().await {
            Ok(()) if self.shared.store.is_substituted() => {
                "This session is recorded in memory only, because the store cannot be used: it ends with the agent.\n"
            }
            Ok(()) => return,
            Err(error) => {
                tracing::error!(%error, "a session is not being recorded");
                "This session is not being recorded: the store cannot be written.\n"
            }
        };
        if !std::mem::replace(&mut self.record_failed, true) {
            let message_id = MessageId::new(format!("msg_{}_r", self.session.turns));
            let notice = SessionEvent::Notice { message_id, text: problem.into() };
            let (client, id) = (&self.client, &self.session.id);
            encoder::encode(&notice, false, Vec::new, |update| client.update(id.clone(), update, None));
            self.session.push(notice);
        }
    }
}

/// The first line of a prompt's text, cut.
pub(super) fn title(content: &[ContentBlock]) -> Option<String> {
    let text = content.iter().find_map(|block| match block {
        ContentBlock::Text(text) => text.text.lines().map(str::trim).find(|line| !line.is_empty()),
        _ => None,
    })?;
    Some(match text.char_indices().nth(MAX_TITLE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    })
}
