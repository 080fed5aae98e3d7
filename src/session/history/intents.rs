//! Records each change on disk before it begins, so that a killed process leaves no unknown change.

use std::sync::Arc;

use crate::acp::SessionId;
use crate::session::event_log::EventLog;
use crate::session::mode::ancestry::Ancestry;
use crate::store::{Row, Store};
use crate::workspace::{Changes, Intent, IntentLog, Recorded};

#[derive(Debug)]
struct TurnIntents {
    store: Store,
    session: SessionId,
    turn: u64,
}

impl IntentLog for TurnIntents {
    fn record(&self, intent: Intent) -> Recorded {
        let Self { store, session, turn } = self;
        if store.is_in_memory() {
            // An in-memory store ends with the process.
            return Recorded::NotKept;
        }
        let row = Row::Intent { session: session.clone(), turn: *turn, intent: Box::new(intent) };
        match store.post_and_wait(row) {
            Ok(()) => Recorded::Committed,
            Err(error) => {
                tracing::info!(%error, "cannot record a change before it starts");
                Recorded::Unconfirmed
            }
        }
    }
}

pub(crate) fn intent_log(ancestry: &Ancestry, log: &EventLog) -> Arc<dyn IntentLog> {
    match &ancestry.parent {
        Some(parent) => Arc::clone(&parent.intents),
        None => {
            Arc::new(TurnIntents { store: log.store().clone(), session: log.id().clone(), turn: log.turn() })
        }
    }
}

/// Runs `work`, which changes files, between the record of its intent and that of its end.
pub(crate) async fn under_intent<T: Send + 'static>(
    turn: u64,
    intent: Intent,
    work: impl FnOnce() -> T + Send + 'static,
    log: &mut EventLog,
) -> Result<T, tokio::task::JoinError> {
    let (session, token) = (log.id().clone(), intent.token.clone());
    let intents = TurnIntents { store: log.store().clone(), session: session.clone(), turn };
    let done = tokio::task::spawn_blocking(move || {
        // An intent that is not committed now may be later, so it is concluded in any case.
        intents.record(intent);
        work()
    })
    .await?;
    let changes = Changes { concludes: Some(token), ..Changes::default() };
    log.post(Row::Changes { session, turn, changes });
    Ok(done)
}
