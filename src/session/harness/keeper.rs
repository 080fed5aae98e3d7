//! One start of somebody else's agent, from its process to its end: a task of its own, which holds its permit until nothing of it
//! is left.

use std::convert::Infallible;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::acp::{SessionConfigOption, SessionId, SessionModeId};
use crate::client::Client;
use crate::gate::Permit;
use crate::harness::{Harness, HarnessError, NotBegun, Order};
use crate::process::shell::Shell;
use crate::roster::harness::HarnessModes;
use crate::session::relay::Report;

/// What is reported of it.
pub(in crate::session) enum Kept {
    /// It is ready, or cannot be; with the mode of its own that was left for the hold.
    Started(Result<(Harness, Knows, Option<SessionModeId>), HarnessError>),
    /// It is over, and why.
    Over(String),
    /// The user was asked whether it may be started anew; none: another mode is on, and the question is void.
    Restart(Option<bool>),
    /// Somebody wants to know the options.
    Look(oneshot::Sender<Vec<SessionConfigOption>>),
}

/// What it knows of what was said before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::session) enum Knows {
    /// It has taken its session up.
    All,
    /// It has begun a new one, and why if it was to take one up.
    Nothing(Option<String>),
}

/// Keeps one from its start to its end.
pub(in crate::session) struct Keeper {
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
    /// Starts it, reports it, and ends it when it has to: at any moment, however far it has come.
    pub async fn keep(self, relay: tokio::task::JoinHandle<()>) {
        let Self { mut order, shell, session, client, modes, left, permit, stop, over: _, to, start } = self;
        // The session may be over.
        let tell = |kept| drop(to.send(Report::Kept { start, kept }));
        let is_held = order.held;
        let unwanted = || async {
            tokio::select! {
                () = permit.cancel.cancelled() => {}
                () = stop.cancelled() => {}
            }
        };
        let mut knows = if order.load.is_some() { Knows::All } else { Knows::Nothing(None) };
        let begin = |order| Harness::start(order, &shell, session.clone(), client.clone(), unwanted());
        let mut started = begin(order.clone()).await;
        let is_wanted = !permit.cancel.is_cancelled() && !stop.is_cancelled();
        if let (true, Err(NotBegun { error, is_gone: true }), true) =
            (order.load.take().is_some(), &started, is_wanted)
        {
            knows = Knows::Nothing(Some(error.to_string()));
            started = begin(order).await;
        }
        // The relay ends when nobody can say anything any more.
        drop(client);
        let harness = match started {
            Ok(harness) => harness,
            Err(NotBegun { error, is_gone }) => {
                give_back(permit, is_gone);
                tell(Kept::Started(Err(error)));
                return;
            }
        };
        let ready = async {
            let left = set_its_mode(&harness, &modes, is_held, left).await;
            tell(Kept::Started(Ok((harness.clone(), knows, left))));
            std::future::pending::<Infallible>().await
        };
        let (is_gone, why) = tokio::select! {
            biased;
            () = permit.cancel.cancelled() => (harness.end().await, "it was stopped".to_owned()),
            () = stop.cancelled() => (harness.let_end().await, "it was closed".to_owned()),
            why = harness.over() => (harness.let_end().await, why),
            never = ready => match never {},
        };
        drop(harness);
        give_back(permit, is_gone);
        if let Err(error) = relay.await {
            tracing::error!(%error, "what an agent showed was not passed on to its end");
        }
        tell(Kept::Over(why));
    }
}

/// What is not gone for certain is named from now on, whenever a mode denies it.
fn give_back(permit: Permit, is_gone: bool) {
    if is_gone {
        drop(permit);
    } else {
        permit.give_back_unconfirmed();
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
