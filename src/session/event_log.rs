//! Passes the events of a session to the client, the conversation and the store.
//!
//! Events before a message or a call are durable before the client sees it, and so is the end of a call
//! (invariant 14).

use std::path::PathBuf;

use tokio::sync::OwnedSemaphorePermit;

use super::actor::Actor;
use crate::acp::{ContentBlock, MessageId, SessionModeId, SessionUpdate, ToolCallStatus};
use crate::chain::{Head, Link};
use crate::conversation::acp_updates;
use crate::conversation::open_calls::is_end;
use crate::event::SessionEvent;
use crate::store::entry::Entry;
use crate::store::{ChangeReason, ModeChange, ModeSource, Row};
use crate::text::{first_line, shorten};

const MAX_TITLE: usize = 80;

impl Actor {
    pub(super) fn record_start(&mut self) {
        let mode = self.session.mode.clone();
        let (cwd, directories) = self.folders();
        let parent = self.session.ancestry.parent.as_ref().map(|parent| parent.session.clone());
        let session = Row::Session {
            id: self.session.id.clone(),
            parent,
            agent: self.session.agent.id.clone(),
            cwd,
            directories,
            mode: mode.clone(),
            at: self.context.source.now_ms(),
        };
        let mode = self.followed_change(None, mode, ModeSource::Start);
        self.context.store.post_all(vec![session, mode]);
        self.session.acked = self.session.head.length;
    }

    pub(super) fn folders(&self) -> (PathBuf, Vec<PathBuf>) {
        let workspace = &self.session.workspace;
        (workspace.cwd().to_owned(), workspace.roots()[1..].to_vec())
    }

    /// Builds a mode change. The caller adds it to the chain with [`Head::follow`].
    pub(super) fn mode_change(
        &self,
        from: Option<SessionModeId>,
        to: SessionModeId,
        why: impl Into<ChangeReason>,
    ) -> ModeChange {
        let (turn, at, why) = (self.session.turns, self.context.source.now_ms(), why.into());
        let text = self.text_of(&to);
        let entry = Entry::Mode {
            turn,
            from: from.as_ref().map(ToString::to_string),
            to: to.to_string(),
            source: why.source.as_str().to_owned(),
            text: text.0.clone(),
            plan: why.plan.clone(),
            at,
        };
        let link = self.session.head.next(entry.to_body());
        ModeChange { session: self.session.id.clone(), turn, from, to, why, text, link, at }
    }

    /// Does not wait for the commit.
    pub(super) fn post_mode_change(
        &mut self,
        from: Option<SessionModeId>,
        to: SessionModeId,
        why: impl Into<ChangeReason>,
    ) {
        let change = self.followed_change(from, to, why);
        self.context.store.post(change);
    }

    fn followed_change(
        &mut self,
        from: Option<SessionModeId>,
        to: SessionModeId,
        why: impl Into<ChangeReason>,
    ) -> Row {
        let change = self.mode_change(from, to, why);
        self.session.head.follow(&change.link);
        self.is_posted = true;
        Row::ModeChange(Box::new(change))
    }

    /// Returns the link for a row that is written together with the entry.
    pub(super) fn link(&mut self, entry: &Entry) -> Link {
        let link = self.session.head.next(entry.to_body());
        self.session.head.follow(&link);
        self.is_posted = true;
        link
    }

    pub(super) fn chain(&mut self, entry: &Entry) {
        let link = self.link(entry);
        self.context.store.post(Row::Link { session: self.session.id.clone(), link });
    }

    /// Returns the head of the chain if it is new to the client.
    pub(super) fn unacked_head(&mut self) -> Option<Head> {
        let head = &self.session.head;
        let acked = std::mem::replace(&mut self.session.acked, head.length);
        (acked != head.length).then(|| head.clone())
    }

    /// Returns the hash and the text of a mode. The store keeps both.
    pub(super) fn text_of(&self, mode: &SessionModeId) -> (String, String) {
        let modes = self.context.modes.ceilings(&mode.0).unwrap_or_default();
        let text = modes.iter().map(|mode| mode.to_yaml()).collect::<Vec<_>>().join("---\n");
        (crate::ids::hash(&text), text)
    }

    /// Records an event (invariant 14). At the end of a call, a barrier in the client's channel waits for the
    /// commit, not this function.
    pub(super) async fn record(&mut self, event: SessionEvent, send_permit: Option<OwnedSemaphorePermit>) {
        let begins = match &event {
            SessionEvent::ForwardedUpdate { update } => match &**update {
                SessionUpdate::ToolCall(_) => true,
                SessionUpdate::ToolCallUpdate(update) => {
                    update.fields.status == Some(ToolCallStatus::InProgress)
                }
                _ => false,
            },
            SessionEvent::ToolCallUpdate(_)
            | SessionEvent::Plan { .. }
            | SessionEvent::Title { .. }
            | SessionEvent::Usage(_)
            | SessionEvent::ProviderState { .. }
            | SessionEvent::ModelChange { .. }
            | SessionEvent::AgentChange { .. }
            | SessionEvent::Switch { .. }
            | SessionEvent::Undone { .. }
            | SessionEvent::SystemNote { .. }
            | SessionEvent::ModeChange { .. }
            // Not shown: the response to the prompt waits for the store anyway.
            | SessionEvent::Stop { .. } => false,
            event => !self.session.unsaved.last().is_some_and(|last| last.can_merge(event)),
        };
        if begins {
            self.save().await;
        }
        let stored = ends_call(&event).then(|| self.client.barrier());
        // External agents and sub-agents announce their own terminals.
        let may_have_terminal =
            self.context.capabilities.shows_output && !matches!(event, SessionEvent::ForwardedUpdate { .. });
        let mut send_permit = send_permit;
        let session = self.session.id.clone();
        acp_updates::encode(
            &event,
            self.context.compactions,
            || self.options(),
            |mut update| {
                if may_have_terminal {
                    acp_updates::announce_terminal(&mut update, &session, self.session.workspace.cwd());
                }
                self.client.update(session.clone(), update, send_permit.take());
            },
        );
        self.session.apply_new(event);
        if let Some(stored) = stored {
            self.post_unsaved();
            self.context.store.flush_then(stored);
        }
    }

    pub(super) fn post_unsaved(&mut self) {
        if self.session.unsaved.is_empty() {
            return;
        }
        let at = self.context.source.now_ms();
        let unsaved = std::mem::take(&mut self.session.unsaved);
        let mut rows = Vec::with_capacity(unsaved.len());
        for event in unsaved {
            let seq = self.session.saved;
            self.session.saved += 1;
            let (session, turn) = (self.session.id.clone(), self.session.turns);
            rows.push(Row::Event { session, seq, turn, event, at });
        }
        self.context.store.post_all(rows);
        self.is_posted = true;
    }

    /// Reports a failure to the user once; the session continues.
    pub(super) async fn save(&mut self) {
        self.post_unsaved();
        if !std::mem::take(&mut self.is_posted) {
            return;
        }
        let problem = match self.context.store.flush().await {
            Ok(()) => match self.context.store.substituted() {
                None => {
                    self.event_log_failed = false;
                    return;
                }
                Some(reason) => format!(
                    "This session is stored in memory only and is lost when Modegate ends, because {reason}. `--store \
                     FILE` sets another file.\n"
                ),
            },
            Err(error) => {
                tracing::error!(%error, "a session is not being recorded");
                format!("This session is not being recorded: {error}.\n")
            }
        };
        if !std::mem::replace(&mut self.event_log_failed, true) {
            let message_id = MessageId::new(format!("msg_{}_r", self.session.turns));
            let notice = SessionEvent::Notice { message_id, text: problem };
            let (client, id) = (&self.client, &self.session.id);
            acp_updates::encode(&notice, false, Vec::new, |update| client.update(id.clone(), update, None));
            self.session.apply_new(notice);
        }
    }
}

/// True also for calls of sub-agents and external agents.
fn ends_call(event: &SessionEvent) -> bool {
    let status = match event {
        SessionEvent::ToolCallUpdate(update) => Some(update.status),
        SessionEvent::ForwardedUpdate { update } => match &**update {
            SessionUpdate::ToolCall(call) => Some(call.status),
            SessionUpdate::ToolCallUpdate(update) => update.fields.status,
            _ => None,
        },
        _ => None,
    };
    status.is_some_and(is_end)
}

pub(super) fn title(content: &[ContentBlock]) -> Option<String> {
    let text = content.iter().find_map(|block| match block {
        ContentBlock::Text(text) => Some(first_line(&text.text)).filter(|line| !line.is_empty()),
        _ => None,
    })?;
    Some(shorten(text, MAX_TITLE).into_owned())
}
