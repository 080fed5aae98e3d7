//! One start of somebody else's agent, from its process to its end: a task of its own, which holds its permit until nothing of it
//! is left.

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::relay::Report;
use crate::acp::{SessionConfigOption, SessionId, SessionModeId};
use crate::client::Client;
use crate::gate::Permit;
use crate::harness::{Harness, HarnessError, Order};
use crate::process::shell::Shell;
use crate::roster::harness::HarnessModes;

/// What is reported of it.
pub(super) enum Kept {
    /// It is ready, or cannot be; why what it knew is lost, if it is; and the mode of its own that was left for the hold.
    Started(Result<Harness, HarnessError>, Option<String>, Option<SessionModeId>),
    /// It is over, and why.
    Over(String),
    /// The user was asked whether it may be started anew.
    Restart(bool),
    /// Somebody wants to know the options.
    Look(oneshot::Sender<Vec<SessionConfigOption>>),
}

/// Keeps one from its start to its end.
pub(super) struct Keeper {
    pub order: Order,
    pub shell: Shell,
    pub session: SessionId,
    pub client: Client,
    pub modes: HarnessModes,
    /// The mode of its own that an earlier start left for the hold.
    pub left: Option<SessionModeId>,
    pub permit: Permit,
    pub stop: CancellationToken,
    pub over: CancellationToken,
    pub to: mpsc::UnboundedSender<Report>,
    pub start: u64,
}

impl Keeper {
    /// Starts it, reports it, and ends it when it has to.
    pub async fn keep(self, relay: tokio::task::JoinHandle<()>) {
        let Self { order, shell, session, client, modes, left, permit, stop, over: _, to, start } = self;
        // The session may be over.
        let tell = |kept| drop(to.send(Report::Kept { start, kept }));
        let (is_held, ended) = (order.held, permit.cancel.clone());
        // The relay ends when nobody can say anything any more: neither this nor the one that is started.
        let mut starting = std::pin::pin!(begin(order, shell, session, client));
        let (started, lost) = tokio::select! {
            begun = &mut starting => begun,
            () = ended.cancelled() => {
                stop.cancel();
                starting.await
            }
        };
        let harness = match started {
            Ok(harness) => harness,
            Err(error) => {
                drop(permit);
                tell(Kept::Started(Err(error), lost, None));
                return;
            }
        };
        let fitted = tokio::select! {
            biased;
            () = ended.cancelled() => None,
            () = stop.cancelled() => None,
            left = set_its_mode(&harness, &modes, is_held, left) => Some(left),
        };
        if let Some(left) = fitted {
            tell(Kept::Started(Ok(harness.clone()), lost, left));
        }
        let (confirmed, why) = tokio::select! {
            biased;
            () = ended.cancelled() => (harness.end().await, "it was stopped".to_owned()),
            () = stop.cancelled() => (harness.let_end().await, "it was closed".to_owned()),
            why = harness.over() => (true, why),
        };
        drop(harness);
        if confirmed {
            drop(permit);
        } else {
            permit.give_back_unconfirmed();
        }
        if let Err(error) = relay.await {
            tracing::error!(%error, "what an agent showed was not passed on to its end");
        }
        tell(Kept::Over(why));
    }
}

/// Starts it; anew, if it does not take up its session, and then with the reason.
async fn begin(
    mut order: Order,
    shell: Shell,
    session: SessionId,
    client: Client,
) -> (Result<Harness, HarnessError>, Option<String>) {
    match Harness::start(order.clone(), &shell, session.clone(), client.clone()).await {
        Err(error) if order.load.take().is_some() && !order.given_up.is_cancelled() => {
            (Harness::start(order, &shell, session, client).await, Some(error.to_string()))
        }
        started => (started, None),
    }
}

/// Sets its own mode to the one that fits. Returns the one that is left for as long as it is held: one that takes up its session
/// is still in the mode that was set then.
async fn set_its_mode(
    harness: &Harness,
    modes: &HarnessModes,
    is_held: bool,
    left: Option<SessionModeId>,
) -> Option<SessionModeId> {
    let offered = harness.modes()?;
    let full = || modes.full.as_deref().map(SessionModeId::new).or_else(|| left.clone());
    let wanted = if is_held { modes.read_only_of(&offered) } else { full() };
    let is_changed = match wanted.filter(|id| *id != offered.current_mode_id) {
        Some(id) => match harness.set_mode(&id.0).await {
            Ok(()) => true,
            Err(error) => {
                // It is held all the same, or may do everything.
                tracing::warn!(%error, mode = %id, "its own mode was not set");
                false
            }
        },
        None => false,
    };
    left.or_else(|| is_changed.then_some(offered.current_mode_id)).filter(|_| is_held)
}
