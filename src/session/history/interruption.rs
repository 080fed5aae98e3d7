//! Recovery of file operations that a killed process left unfinished.
//!
//! A completed operation is recorded for undo. A partial one is reverted if the mode allows it and nothing
//! else changed the files. Otherwise it is recorded, and conflicts are reported. Files with other changes are
//! never written.

use std::collections::HashMap;
use std::path::PathBuf;

use super::checkpoint::{record_changes, relative, why_not};
use crate::acp::MessageId;
use crate::busy::BusyGuard;
use crate::event::{NoticeKind, SessionEvent};
use crate::session::mode::decider::Decider;
use crate::session::notes::Notes;
use crate::store::StoreError;
use crate::workspace::{Changes, Intent, Interrupted, Workspace};

struct Settled {
    changes: Changes,
    /// `None` if the operation had changed nothing.
    notice: Option<String>,
}

pub(crate) async fn recover(
    decider: &mut Decider,
    workspace: &Workspace,
    notes: &mut Notes,
) -> Result<(), StoreError> {
    for (turn, intent) in decider.log.store().intents(decider.log.id()).await? {
        let may_change = why_not(&intent.changed, decider, workspace).is_none();
        let files = workspace.clone();
        let _busy = BusyGuard::begin();
        let settled = tokio::task::spawn_blocking(move || settle(&files, intent, may_change)).await;
        let Some(Settled { changes, notice: message }) = settled.unwrap_or_else(|error| {
            tracing::error!(%error, "recovery of an interrupted change panicked");
            None
        }) else {
            continue;
        };
        record_changes(turn, changes, &decider.policy.ancestry, &decider.log);
        decider.log.mark_posted();
        if let Some(text) = message {
            let message_id = MessageId::new(format!("msg_{}_i{}", decider.log.turn(), decider.log.saved()));
            let kind = NoticeKind::Warning;
            let notice = SessionEvent::Notice { message_id, kind, text: format!("{text}\n\n") };
            decider.log.apply_new(notice.clone());
            notes.interruptions.push(notice);
            notes.add(text, false, decider);
        }
    }
    Ok(())
}

/// Returns `None` if the files are outside the workspace: the intent stays for a later load.
fn settle(workspace: &Workspace, intent: Intent, may_change: bool) -> Option<Settled> {
    let Interrupted { done, is_partial, conflicts } = Interrupted::examine(workspace, &intent)?;
    let files = names(done.iter().map(|changed| &changed.path), workspace);
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
        let conflicts = names(conflicts.iter(), workspace);
        uncovered.push(format!(
            "A change was interrupted when Modegate ended. Another program has changed these files since, so they \
             stay as they are: {conflicts}."
        ));
    }
    text.extend(uncovered.iter().cloned());
    changes.uncovered = uncovered;
    let text = (!text.is_empty()).then(|| text.join(" "));
    Some(Settled { changes, notice: text })
}

fn names<'a>(paths: impl Iterator<Item = &'a PathBuf>, workspace: &Workspace) -> String {
    paths.map(|path| relative(path, workspace)).collect::<Vec<_>>().join(", ")
}
