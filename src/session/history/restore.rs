//! Restores a stored session.
//!
//! The state is rebuilt from the stored events. Calls that the end of the process cut off are closed here.
//! The closing events are recorded, so every later load gives the same result.

use std::path::PathBuf;
use std::sync::Arc;

use super::checkpoint::{record_interrupted_call, undone_note};
use super::interruption;
use crate::acp::{MessageId, SessionModeId};
use crate::conversation::reminder::Transition;
use crate::event::{Compaction, NoticeKind, SessionEvent, ToolCallEvent, ToolCallUpdateEvent};
use crate::external_agent::session::RetainedContext;
use crate::mode::canonical;
use crate::permission::Scope;
use crate::session::event_log::EventLog;
use crate::session::mode::ancestry::Ancestry;
use crate::session::mode::decider::Decider;
use crate::session::mode::policy::Policy;
use crate::session::notes::Notes;
use crate::store::entry::ChainEntry;
use crate::store::sessions::StoredSession;
use crate::store::{ModeSource, Row, StoreError};
use crate::workspace::Workspace;

const CUT_OFF: &str =
    "Interrupted: Modegate ended while this call was running. The call may have had effects.";

const OUTDATED_GRANTS: &str = "Your \"Always allow\" answers for commands in this session come from an earlier \
                               version of Modegate, in which they covered more than they showed. They no longer \
                               apply, so Modegate asks again.\n\n";

const RESUMED_NOTE: &str = "This session was closed and now continues. Files may have changed since, and background \
                         commands and agents have ended.";

pub(crate) fn record_start(decider: &mut Decider, workspace: &Workspace) {
    let Decider { policy, log, .. } = decider;
    let mode = policy.mode.clone();
    let (cwd, directories) = folders(workspace);
    let parent = policy.ancestry.parent.as_ref().map(|parent| parent.session.clone());
    let session = Row::Session {
        id: log.id().clone(),
        parent,
        agent: policy.agent.id.clone(),
        cwd,
        directories,
        mode: mode.clone(),
        at: log.now_ms(),
    };
    let text = policy.context.modes.text(&mode.0);
    let change = log.mode_change(None, mode, ModeSource::Start, text);
    let change = log.link_mode_change(change);
    log.store().hold(vec![session, change]);
    log.traced(|trace| trace.export_after(0));
    log.unacked_head();
}

/// Posts the change to the current mode, without waiting for the commit.
pub(crate) fn post_mode_change(from: Option<SessionModeId>, source: ModeSource, decider: &mut Decider) {
    let Decider { policy, log, .. } = decider;
    let to = policy.mode.clone();
    let text = policy.context.modes.text(&to.0);
    let change = log.mode_change(from, to, source, text);
    let change = log.link_mode_change(change);
    log.queue(change);
}

/// State of a stored session outside the components that [`restore`] fills.
pub(crate) struct Restored {
    /// Number of stored events.
    pub(crate) events: u64,
    /// For the external agent.
    pub(crate) retained_context: RetainedContext,
    pub(crate) mode_to_restore: Option<SessionModeId>,
    pub(crate) system_prompt: Option<Arc<str>>,
    /// Mode change that the model does not know.
    pub(crate) transition: Option<Transition>,
}

pub(crate) async fn restore(
    stored: &StoredSession,
    source: ModeSource,
    workspace: &Workspace,
    decider: &mut Decider,
    notes: &mut Notes,
) -> Result<Restored, StoreError> {
    restore_grants(stored, workspace, decider, notes).await?;
    let mut past = Past::read(stored, decider).await?;
    let events = decider.log.saved();
    // Gives new notices other ids than stored ones.
    notes.recorded = events;
    close_interrupted_calls(&decider.policy.ancestry, notes, &mut decider.log);
    let system_prompt = record_folders(stored, workspace, &mut decider.log);
    begin_chain(stored, &mut decider.log).await?;
    past.settle_mode(stored, source, decider, notes).await?;
    if !past.undone.is_empty() {
        // Must come first: on the next load, any later note marks the undo as known.
        notes.add(undone_note(&past.undone), false, decider);
    }
    if source == ModeSource::Load {
        interruption::recover(decider, workspace, notes).await?;
    }
    if past.has_reply {
        // Delivered with the next turn: opening and closing a session must not change it.
        notes.add_later(RESUMED_NOTE.to_owned());
    }
    let transition = past.transition(&decider.policy);
    decider.log.save().await;
    Ok(Restored {
        events,
        retained_context: RetainedContext::stored(stored.external_session.clone(), decider.log.turn() > 0),
        mode_to_restore: stored.external_mode.clone().map(SessionModeId::new),
        system_prompt,
        transition,
    })
}

pub(crate) fn folders(workspace: &Workspace) -> (PathBuf, Vec<PathBuf>) {
    (workspace.cwd().to_owned(), workspace.roots()[1..].to_vec())
}

/// Facts in the stored events beyond the conversation.
#[derive(Default)]
struct Past {
    /// Mode of the model's last request, if it has changed since.
    old_mode: Option<SessionModeId>,
    has_reply: bool,
    /// Mode after the last recorded change.
    shown: Option<SessionModeId>,
    /// Files undone since the last reply.
    undone: Vec<String>,
}

impl Past {
    /// Reads the stored events into the conversation.
    async fn read(stored: &StoredSession, decider: &mut Decider) -> Result<Self, StoreError> {
        let (mut past, Decider { policy, log, .. }) = (Self::default(), decider);
        log.read_stored(stored.events, |event| past.note(event, policy)).await?;
        Ok(past)
    }

    fn note(&mut self, event: &SessionEvent, policy: &mut Policy) {
        match event {
            SessionEvent::ModeChange { from, to, .. } => {
                self.old_mode.get_or_insert_with(|| from.clone());
                policy.previous = Some(from.clone());
                self.shown = Some(to.clone());
            }
            SessionEvent::Undone { files, .. } => self.undone.extend(files.clone()),
            // The note informed the model. Older event logs have no notes.
            SessionEvent::SystemNote { .. } => self.undone.clear(),
            SessionEvent::AgentText { .. } | SessionEvent::ToolCall(_) => {
                (self.old_mode, self.has_reply) = (None, true);
                self.undone.clear();
            }
            _ => {}
        }
    }

    /// Brings the stored mode and the events into line with the session's mode.
    async fn settle_mode(
        &mut self,
        stored: &StoredSession,
        source: ModeSource,
        decider: &mut Decider,
        notes: &mut Notes,
    ) -> Result<(), StoreError> {
        let to = decider.policy.mode.clone();
        let stored_mode = stored.mode.clone().map(SessionModeId::new);
        let before = decider.log.store().mode_before(&stored.id).await?.map(SessionModeId::new);
        let last_mode = self.shown.take().or(before);
        if let Some((from, on)) = last_mode.zip(stored_mode.clone())
            && canonical(&from.0) != canonical(&on.0)
        {
            // The change was acknowledged, but its event was not stored.
            self.old_mode.get_or_insert_with(|| from.clone());
            decider.policy.previous = Some(from.clone());
            decider.log.apply_new(SessionEvent::ModeChange { from, to: on, unconfirmed: Vec::new() });
        }
        if stored_mode.as_ref() != Some(&to) && source != ModeSource::Fork {
            // The stored mode is missing, an alias or removed.
            post_mode_change(stored_mode.clone(), source, decider);
        }
        if let Some(from) = stored_mode.filter(|from| canonical(&from.0) != *to.0) {
            decider.policy.previous = None;
            self.old_mode.get_or_insert(from.clone());
            let text =
                format!("Modegate no longer has the {from} mode. The session continues in {to} mode.\n");
            decider.log.apply_new(SessionEvent::ModeChange { from, to, unconfirmed: Vec::new() });
            let message_id = MessageId::new(format!("msg_{}_m{}", decider.log.turn(), decider.log.saved()));
            let notice = SessionEvent::Notice { message_id, kind: NoticeKind::Warning, text };
            decider.log.apply_new(notice.clone());
            notes.interruptions.push(notice);
        }
        Ok(())
    }

    fn transition(&self, policy: &Policy) -> Option<Transition> {
        let from = self.old_mode.clone().filter(|_| self.has_reply)?;
        let before = policy.ceilings_in(std::iter::once(&from));
        Some(Transition { from, to: policy.mode.clone(), before, unconfirmed: 0 })
    }
}

/// Restores remembered answers. Consent is valid only for the folders that the session had.
async fn restore_grants(
    stored: &StoredSession,
    workspace: &Workspace,
    decider: &mut Decider,
    notes: &mut Notes,
) -> Result<(), StoreError> {
    let Decider { policy, log, .. } = decider;
    let is_elsewhere = is_elsewhere(stored, workspace);
    let mut is_outdated = false;
    for grant in log.store().grants(&stored.id).await? {
        if !grant.allows {
            policy.grants.reject(&grant.mode, grant.scope);
        } else if matches!(grant.scope, Scope::Command(..)) {
            is_outdated = true;
        } else if matches!(grant.scope, Scope::Claims(..)) {
            // Servers restart, and may claim more than the user accepted.
        } else if !is_elsewhere {
            policy.grants.allow(&grant.mode, grant.scope);
        }
    }
    if is_outdated {
        log.queue(Row::OutdatedGrants { session: stored.id.clone() });
        notes.warn(OUTDATED_GRANTS.into());
    }
    Ok(())
}

/// Starts the hash chain of a session from before hash chains existed.
async fn begin_chain(stored: &StoredSession, log: &mut EventLog) -> Result<(), StoreError> {
    if log.head().length > 0 {
        return Ok(());
    }
    let (mode_changes, denials) = log.store().counts(&stored.id).await?;
    let (turns, at) = (stored.turns, log.now_ms());
    log.chain(&ChainEntry::Older { turns, mode: stored.mode.clone(), mode_changes, denials, at });
    Ok(())
}

fn close_interrupted_calls(ancestry: &Ancestry, notes: &mut Notes, log: &mut EventLog) {
    if let Some(id) = log.conversation_mut().compacting.take() {
        log.apply_new(SessionEvent::Compaction { id, stage: Compaction::Cancelled });
    }
    let mut titles = Vec::new();
    for below in log.conversation_mut().relayed_open_calls.end(Some(CUT_OFF)) {
        record_interrupted_call(below.tool.as_deref(), &below.title, ancestry, log);
        titles.push(below.title.clone());
        log.apply_new(SessionEvent::ForwardedUpdate { update: Box::new(below.update) });
    }
    for id in log.conversation_mut().take_open_calls() {
        if let Some(ToolCallEvent { name, title, .. }) = log.open_call(&id).cloned() {
            record_interrupted_call(Some(&name), &title, ancestry, log);
            titles.push(title);
        }
        log.apply_new(ToolCallUpdateEvent::failed(id, CUT_OFF).into());
    }
    if !titles.is_empty() {
        // Not stored: a replay shows the calls themselves.
        let message_id = MessageId::new(format!("msg_{}_c{}", log.turn(), log.saved()));
        let text = format!(
            "Modegate ended while these calls were running: {}. They may have had effects; the changes of a command are \
             unknown.\n\n",
            titles.join(", ")
        );
        let kind = NoticeKind::Warning;
        notes.interruptions.push(SessionEvent::Notice { message_id, kind, text });
    }
}

/// Records the folders if they have changed. Returns the stored system prompt: it names the working directory,
/// and is dropped if that differs.
fn record_folders(stored: &StoredSession, workspace: &Workspace, log: &mut EventLog) -> Option<Arc<str>> {
    let (cwd, directories) = folders(workspace);
    let system = stored.system.as_deref().filter(|_| cwd == stored.cwd).map(Into::into);
    if cwd != stored.cwd || directories != stored.directories {
        let is_elsewhere = is_elsewhere(stored, workspace);
        log.post(Row::Folders { session: log.id().clone(), cwd, directories, is_elsewhere });
    }
    system
}

/// True if the session has a folder that it did not have before.
fn is_elsewhere(stored: &StoredSession, workspace: &Workspace) -> bool {
    let (cwd, directories) = folders(workspace);
    cwd != stored.cwd || !directories.iter().all(|folder| stored.directories.contains(folder))
}
