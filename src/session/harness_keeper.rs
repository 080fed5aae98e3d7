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
    /// It is ready, or cannot be.
    Started(Result<Harness, HarnessError>, Option<String>),
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
    pub permit: Permit,
    pub stop: CancellationToken,
    pub over: CancellationToken,
    pub to: mpsc::UnboundedSender<Report>,
    pub start: u64,
}

impl Keeper {
    /// Starts it, reports it, and ends it when it has to.
    pub async fn keep(self, relay: tokio::task::JoinHandle<()>) {
        let Self { mut order, shell, session, client, modes, permit, stop, over: _, to, start } = self;
        // The session may be over.
        let tell = |kept| drop(to.send(Report::Kept { start, kept }));
        let is_held = order.held;
        let mut lost = None;
        let mut started = Harness::start(order.clone(), &shell, session.clone(), client.clone()).await;
        let is_wanted = || !permit.cancel.is_cancelled() && !stop.is_cancelled();
        if let (true, Err(error), true) = (order.load.take().is_some(), &started, is_wanted()) {
            lost = Some(error.to_string());
            started = Harness::start(order, &shell, session, client.clone()).await;
        }
        // The relay ends when nobody can say anything any more.
        drop(client);
        let harness = match started {
            Ok(harness) => harness,
            Err(error) => {
                drop(permit);
                tell(Kept::Started(Err(error), lost));
                return;
            }
        };
        if is_wanted() {
            set_its_mode(&harness, &modes, is_held).await;
            tell(Kept::Started(Ok(harness.clone()), lost));
        }
        let (confirmed, why) = tokio::select! {
            biased;
            () = permit.cancel.cancelled() => (harness.end().await, "it was stopped".to_owned()),
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

/// Sets its own mode to the one that fits.
async fn set_its_mode(harness: &Harness, modes: &HarnessModes, is_held: bool) {
    let Some(offered) = harness.modes() else { return };
    let wanted = if is_held {
        modes.read_only_of(&offered)
    } else {
        modes.full.as_ref().map(|id| SessionModeId::new(id.as_str()))
    };
    if let Some(id) = wanted.filter(|id| *id != offered.current_mode_id)
        && let Err(error) = harness.set_mode(&id.0).await
    {
        // It is held all the same, or may do everything.
        tracing::warn!(%error, mode = %id, "its own mode was not set");
    }
}
