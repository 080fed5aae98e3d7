//! Recovery of file operations that a killed process left unfinished.
//!
//! A completed operation is recorded for undo. A partial one is reverted if the mode allows it and nothing
//! else changed the files. Otherwise it is recorded, and conflicts are reported. Files with other changes are
//! never written.

use std::collections::HashMap;
use std::sync::Arc;

use super::actor::Actor;
use crate::acp::{MessageId, SessionId};
use crate::event::SessionEvent;
use crate::store::{Row, Store, StoreError};
use crate::tool::BusyGuard;
use crate::workspace::{Changes, Intent, IntentLog, Interrupted, Workspace};

#[derive(Debug)]
struct TurnIntents {
    store: Store,
    session: SessionId,
    turn: u64,
}

impl IntentLog for TurnIntents {
    fn record(&self, intent: Intent) -> bool {
        let Self { store, session, turn } = self;
        if store.is_in_memory() {
            // An in-memory store ends with the process.
            return false;
        }
        let row = Row::Intent { session: session.clone(), turn: *turn, intent: Box::new(intent) };
        store
            .post_and_wait(row)
            .inspect_err(|error| tracing::error!(%error, "cannot record a change before it starts"))
            .is_ok()
    }
}

struct Settled {
    changes: Changes,
    /// `None` if the operation had changed nothing.
    notice: Option<String>,
}

impl Actor {
    pub(super) fn intents(&self) -> Arc<dyn IntentLog> {
        match &self.policy.ancestry.parent {
            Some(parent) => Arc::clone(&parent.intents),
            None => Arc::new(TurnIntents {
                store: self.log.store.clone(),
                session: self.log.id.clone(),
                turn: self.log.turns,
            }),
        }
    }

    pub(super) async fn under_intent<T: Send + 'static>(
        &mut self,
        turn: u64,
        intent: Intent,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, tokio::task::JoinError> {
        let (session, token) = (self.log.id.clone(), intent.token.clone());
        let log = TurnIntents { store: self.log.store.clone(), session: session.clone(), turn };
        let done = tokio::task::spawn_blocking(move || {
            // An intent that is not committed now may be later, so it is concluded in any case.
            log.record(intent);
            work()
        })
        .await?;
        let changes = Changes { concludes: Some(token), ..Changes::default() };
        self.log.post(Row::Changes { session, turn, changes });
        Ok(done)
    }

    pub(super) async fn recover_interrupted(&mut self) -> Result<(), StoreError> {
        let intents = self.log.store.intents(&self.log.id).await?;
        for (turn, intent) in intents {
            let may_change = self.why_not(&intent.changed).is_none();
            let workspace = self.workspace.clone();
            let _busy = BusyGuard::begin();
            let settled = tokio::task::spawn_blocking(move || settle(&workspace, intent, may_change)).await;
            let Some(Settled { changes, notice: message }) = settled.unwrap_or_else(|error| {
                tracing::error!(%error, "recovery of an interrupted change panicked");
                None
            }) else {
                continue;
            };
            self.record_changes(turn, changes);
            self.log.mark_posted();
            if let Some(text) = message {
                let message_id = MessageId::new(format!("msg_{}_i{}", self.log.turns, self.log.saved));
                let notice = SessionEvent::Notice { message_id, text: format!("{text}\n\n") };
                self.log.apply_new(notice.clone());
                self.notes.interruptions.push(notice);
                self.note_for_model(text);
            }
        }
        Ok(())
    }

    pub(super) fn report_interruptions(&mut self) {
        for notice in std::mem::take(&mut self.notes.interruptions) {
            self.log.show(&notice);
        }
    }
}

/// Returns `None` if the files are outside the workspace: the intent stays for a later load.
fn settle(workspace: &Workspace, intent: Intent, may_change: bool) -> Option<Settled> {
    let Interrupted { done, is_partial, conflicts } = Interrupted::examine(workspace, &intent)?;
    let names = |paths: &mut dyn Iterator<Item = &std::path::PathBuf>| {
        let name = |path: &std::path::PathBuf| {
            path.strip_prefix(workspace.cwd()).unwrap_or(path).display().to_string()
        };
        paths.map(name).collect::<Vec<_>>().join(", ")
    };
    let files = names(&mut done.iter().map(|changed| &changed.path));
    let Intent { token, contents, mut uncovered, .. } = intent;
    let mut changes = Changes { concludes: Some(token.clone()), ..Changes::default() };
    let contents_of: HashMap<String, Vec<u8>> = contents.iter().cloned().collect();
    let mut text = Vec::new();
    if !done.is_empty() {
        let may_take_back = is_partial && conflicts.is_empty() && may_change;
        let taken_back = may_take_back
            && workspace
                .restore(&done, |hash| contents_of.get(hash).cloned(), &token)
                .inspect_err(|error| tracing::warn!(%error, "cannot revert an interrupted change"))
                .is_ok();
        if taken_back {
            text.push(format!(
                "A change was interrupted when Modegate ended, and has been reverted: {files}."
            ));
        } else {
            text.push(format!(
                "A change was interrupted when Modegate ended. These files were changed, and undo restores them: {files}."
            ));
            (changes.changed, changes.contents) = (done, contents);
        }
    }
    if !conflicts.is_empty() {
        let left = names(&mut conflicts.iter());
        uncovered.push(format!(
            "A change was interrupted when Modegate ended. Another program has changed these files since, so they \
             stay as they are: {left}."
        ));
    }
    text.extend(uncovered.iter().cloned());
    changes.uncovered = uncovered;
    let text = (!text.is_empty()).then(|| text.join(" "));
    Some(Settled { changes, notice: text })
}
