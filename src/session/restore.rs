//! Restores a stored session, and replays it to a client.
//!
//! The state is rebuilt from the stored events. Calls that the end of the process cut off are closed here.
//! The closing events are recorded, so every later load gives the same result.

use std::path::PathBuf;

use super::actor::Actor;
use super::checkpoint;
use super::handle::SessionSnapshot;
use super::options::{self, ModelSelection};
use super::{Origin, SessionContext};
use crate::acp::{MessageId, SessionModeId};
use crate::conversation::reminder::Transition;
use crate::event::{Compaction, SessionEvent, ToolCallEvent, ToolCallUpdateEvent};
use crate::external_agent::session::RetainedContext;
use crate::mode::{Access, canonical};
use crate::model::Effort;
use crate::permission::{Scope, compare};
use crate::store::entry::Entry;
use crate::store::sessions::StoredSession;
use crate::store::{ModeSource, Row, StoreError};

const CUT_OFF: &str =
    "Interrupted: Modegate ended while this call was running. The call may have had effects.";

const OUTDATED_GRANTS: &str = "Your \"Always allow\" answers for commands in this session come from an earlier \
                               version of Modegate, in which they covered more than they showed. They no longer \
                               apply, so Modegate asks again.\n\n";

const RESUMED_NOTE: &str = "This session was closed and now continues. Files may have changed since, and background \
                         commands and agents have ended.";

impl Actor {
    pub(super) async fn begin(&mut self, origin: Origin) -> Result<(), StoreError> {
        match origin {
            Origin::New => self.record_start(),
            Origin::Stored(stored) => {
                self.log.resume(stored.head.clone());
                self.restore(*stored, ModeSource::Load).await?;
            }
            Origin::Copy(stored) => {
                // The hash chain of the copy starts here.
                self.log.turns = stored.turns;
                self.post_mode_change(None, self.policy.mode.clone(), ModeSource::Fork);
                self.restore(*stored, ModeSource::Fork).await?;
            }
        }
        Ok(())
    }

    fn record_start(&mut self) {
        let mode = self.policy.mode.clone();
        let (cwd, directories) = self.folders();
        let parent = self.policy.ancestry.parent.as_ref().map(|parent| parent.session.clone());
        let session = Row::Session {
            id: self.log.id.clone(),
            parent,
            agent: self.policy.agent.id.clone(),
            cwd,
            directories,
            mode: mode.clone(),
            at: self.log.now_ms(),
        };
        let text = self.policy.text_of(&mode);
        let change = self.log.mode_change(None, mode, ModeSource::Start, text);
        let change = self.log.link_mode_change(change);
        self.log.store.post_all(vec![session, change]);
        self.log.unacked_head();
    }

    /// Does not wait for the commit.
    fn post_mode_change(&mut self, from: Option<SessionModeId>, to: SessionModeId, source: ModeSource) {
        let text = self.policy.text_of(&to);
        let change = self.log.mode_change(from, to, source, text);
        let change = self.log.link_mode_change(change);
        self.log.store.post(change);
    }

    pub(super) fn folders(&self) -> (PathBuf, Vec<PathBuf>) {
        let workspace = &self.workspace;
        (workspace.cwd().to_owned(), workspace.roots()[1..].to_vec())
    }

    async fn restore(&mut self, stored: StoredSession, source: ModeSource) -> Result<(), StoreError> {
        self.log.turns = stored.turns;
        self.restore_model_selection(stored.chosen.as_ref());
        self.restore_grants(&stored).await?;
        // Mode of the model's last request, if it has changed since.
        let (mut old_mode, mut has_reply) = (None, false);
        // Mode after the last recorded change, and files undone since the last reply.
        let (mut shown, mut undone) = (None, Vec::new());
        while self.log.saved < stored.events {
            let page = self.log.page(self.log.saved).await?;
            let Some(last) = page.last() else { break };
            self.log.saved = last.seq + 1;
            for stored_event in page {
                match &stored_event.event {
                    SessionEvent::ModeChange { from, to, .. } => {
                        old_mode.get_or_insert_with(|| from.clone());
                        self.policy.previous = Some(from.clone());
                        shown = Some(to.clone());
                    }
                    SessionEvent::Undone { files, .. } => undone.extend(files.clone()),
                    // The note informed the model. Older event logs have no notes.
                    SessionEvent::SystemNote { .. } => undone.clear(),
                    SessionEvent::AgentText { .. } | SessionEvent::ToolCall(_) => {
                        (old_mode, has_reply) = (None, true);
                        undone.clear();
                    }
                    _ => {}
                }
                self.log.conversation.apply(&stored_event.event);
            }
        }
        let retained_context = RetainedContext::stored(stored.external_session.clone(), self.log.turns > 0);
        let left = stored.external_mode.clone().map(SessionModeId::new);
        self.external_agent.resume(self.log.saved, retained_context, left);
        // Gives new notices other ids than stored ones.
        self.notes.recorded = self.log.saved;
        self.close_interrupted_calls();
        self.record_folders(&stored);
        self.begin_chain(&stored).await?;
        let to = self.policy.mode.clone();
        let stored_mode = stored.mode.clone().map(SessionModeId::new);
        let before = self.log.store.mode_before(&stored.id).await?.map(SessionModeId::new);
        let is_other = |(from, on): &(SessionModeId, SessionModeId)| canonical(&from.0) != canonical(&on.0);
        if let Some((from, on)) = shown.or(before).zip(stored_mode).filter(is_other) {
            // The change was acknowledged, but its event was not stored.
            old_mode.get_or_insert_with(|| from.clone());
            self.policy.previous = Some(from.clone());
            self.log.apply_new(SessionEvent::ModeChange { from, to: on, unconfirmed: Vec::new() });
        }
        let from = stored.mode.map(SessionModeId::new);
        if from.as_ref() != Some(&to) && source != ModeSource::Fork {
            // The stored mode is missing, an alias or removed.
            self.post_mode_change(from.clone(), to.clone(), source);
        }
        if let Some(from) = from.filter(|from| canonical(&from.0) != *to.0) {
            self.policy.previous = None;
            old_mode.get_or_insert(from.clone());
            let text =
                format!("Modegate no longer has the {from} mode. The session continues in {to} mode.\n");
            self.log.apply_new(SessionEvent::ModeChange { from, to: to.clone(), unconfirmed: Vec::new() });
            let message_id = MessageId::new(format!("msg_{}_m{}", self.log.turns, self.log.saved));
            let notice = SessionEvent::Notice { message_id, text };
            self.log.apply_new(notice.clone());
            self.notes.interruptions.push(notice);
        }
        if !undone.is_empty() {
            // Must come first: on the next load, any later note marks the undo as known.
            self.note_for_model(checkpoint::undone_note(&undone));
        }
        if source == ModeSource::Load {
            self.recover_interrupted().await?;
        }
        if let Some(from) = old_mode.filter(|_| has_reply) {
            let before = self.policy.ceilings_in(std::iter::once(&from));
            self.requests.note_transition(Transition { from, to, before, unconfirmed: 0 }, None);
        }
        if has_reply {
            // Delivered with the next turn: opening and closing a session must not change it.
            self.note_later(RESUMED_NOTE.to_owned());
        }
        self.log.save().await;
        Ok(())
    }

    /// Restores remembered answers. Consent is valid only for the folders that the session had.
    async fn restore_grants(&mut self, stored: &StoredSession) -> Result<(), StoreError> {
        let is_elsewhere = self.is_elsewhere(stored);
        let mut is_outdated = false;
        for grant in self.log.store.grants(&stored.id).await? {
            if !grant.allows {
                self.policy.grants.reject(&grant.mode, grant.scope);
            } else if matches!(grant.scope, Scope::Command(..)) {
                is_outdated = true;
            } else if matches!(grant.scope, Scope::Claims(..)) {
                // Servers restart, and may claim more than the user accepted.
            } else if !is_elsewhere {
                self.policy.grants.allow(&grant.mode, grant.scope);
            }
        }
        if is_outdated {
            self.log.store.post(Row::OutdatedGrants { session: stored.id.clone() });
            self.notes.for_user.push(OUTDATED_GRANTS.into());
        }
        Ok(())
    }

    /// Starts the hash chain of a session from before hash chains existed.
    async fn begin_chain(&mut self, stored: &StoredSession) -> Result<(), StoreError> {
        if self.log.head.length > 0 {
            return Ok(());
        }
        let (mode_changes, denials) = self.log.store.counts(&stored.id).await?;
        let (turns, at) = (stored.turns, self.log.now_ms());
        self.log.chain(&Entry::Older { turns, mode: stored.mode.clone(), mode_changes, denials, at });
        Ok(())
    }

    fn restore_model_selection(&mut self, chosen: Option<&(String, String)>) {
        let Some((model, effort)) = chosen else { return };
        match self.context.models.resolve(model) {
            Ok(model) => {
                let effort = Effort::parse(effort).unwrap_or_default();
                self.models.chosen = ModelSelection { model, effort };
            }
            Err(error) => {
                self.notes.for_user.push(format!("{error}. The session continues with another model.\n\n"));
            }
        }
        self.models.active = self.models.of_mode(&self.policy);
        self.context.model.prepare(&self.models.active.model);
    }

    fn close_interrupted_calls(&mut self) {
        if let Some(id) = self.log.conversation.compacting.take() {
            self.log.apply_new(SessionEvent::Compaction { id, stage: Compaction::Cancelled });
        }
        let mut titles = Vec::new();
        for below in self.log.conversation.relayed_open_calls.end(Some(CUT_OFF)) {
            self.note_interrupted_call(below.tool.as_deref(), &below.title);
            titles.push(below.title.clone());
            self.log.apply_new(SessionEvent::ForwardedUpdate { update: Box::new(below.update) });
        }
        for id in self.log.conversation.take_open_calls() {
            if let Some(ToolCallEvent { name, title, .. }) =
                self.log.conversation.open_calls.get(&id).cloned()
            {
                self.note_interrupted_call(Some(&name), &title);
                titles.push(title);
            }
            self.log.apply_new(SessionEvent::ToolCallUpdate(ToolCallUpdateEvent::failed(id, CUT_OFF)));
        }
        if !titles.is_empty() {
            // Not stored: a replay shows the calls themselves.
            let message_id = MessageId::new(format!("msg_{}_c{}", self.log.turns, self.log.saved));
            let text = format!(
                "Modegate ended while these calls were running: {}. They may have had effects; the changes of a command are \
                 unknown.\n\n",
                titles.join(", ")
            );
            self.notes.interruptions.push(SessionEvent::Notice { message_id, text });
        }
    }

    /// A stored system prompt names the working directory, and is dropped if that differs.
    fn record_folders(&mut self, stored: &StoredSession) {
        let (cwd, directories) = self.folders();
        if cwd == stored.cwd {
            self.requests.system = stored.system.as_deref().map(Into::into);
        }
        if cwd != stored.cwd || directories != stored.directories {
            let session = self.log.id.clone();
            let is_elsewhere = self.is_elsewhere(stored);
            self.log.post(Row::Folders { session, cwd, directories, is_elsewhere });
        }
    }

    /// True if the session has a folder that it did not have before.
    fn is_elsewhere(&self, stored: &StoredSession) -> bool {
        let (cwd, directories) = self.folders();
        cwd != stored.cwd || !directories.iter().all(|folder| stored.directories.contains(folder))
    }

    fn limited_to(&self) -> Option<String> {
        let SessionContext { modes, max_modes, .. } = &*self.context;
        let max = max_modes.first()?;
        let own = modes.ceilings(&self.policy.mode.0).ok()?;
        compare::allows_more(&own, max_modes).then(|| max.id.clone())
    }

    pub(super) fn snapshot(&self) -> SessionSnapshot {
        let model = Some(&self.models.active.model).filter(|_| self.policy.agent.external_agent.is_none());
        SessionSnapshot {
            model: model.cloned(),
            is_fallback: model.is_some_and(|model| self.context.models.is_fallback(model)),
            is_read_only: self.policy.ceilings().modes.iter().any(|mode| mode.access == Access::ReadOnly),
            modes: options::mode_state(&self.context.modes, &self.policy.mode),
            options: self.options(),
            head: self.log.head.clone(),
            has_unrecorded_modes: !self.policy.unrecorded_modes.is_empty(),
            limited_to: self.limited_to(),
        }
    }
}
