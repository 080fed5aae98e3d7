//! Replays the events of a session to a client that loads it.

use std::collections::VecDeque;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use crate::acp::SessionModeId;
use crate::client::{Client, SessionSignal};
use crate::conversation::message_breaks::MessageBreaks;
use crate::conversation::{acp_updates, cost_after};
use crate::error::AgentError;
use crate::event::SessionEvent;
use crate::session::mode::decider::Decider;
use crate::session::options::ModelSelection;
use crate::session::session_snapshot::SessionSnapshot;
use crate::session::turn::model_selection::Models;

type SnapshotReply = oneshot::Sender<Result<SessionSnapshot, AgentError>>;

#[derive(Default)]
pub(crate) struct Replays {
    queue: VecDeque<RunningReplay>,
    /// Position in the client's queue for send permits, kept while the loop serves other events.
    place: Option<BoxFuture<'static, OwnedSemaphorePermit>>,
}

struct RunningReplay {
    page: VecDeque<SessionEvent>,
    from: u64,
    /// Exclusive; the client gets later events live.
    end: u64,
    mode: SessionModeId,
    selection: ModelSelection,
    /// Cost of the requests so far.
    cost: Option<u64>,
    title: Option<String>,
    breaks: MessageBreaks,
    /// Cancelled by the client.
    cancel: CancellationToken,
    reply: SnapshotReply,
}

impl Replays {
    pub(crate) fn begin(
        &mut self,
        decider: &Decider,
        models: &Models,
        cancel: CancellationToken,
        reply: SnapshotReply,
    ) {
        let Decider { policy, log, .. } = decider;
        let mode = log.conversation().first_mode.as_ref().unwrap_or(&policy.mode).clone();
        let selection = models.entering(policy, &mode);
        log.signal(SessionSignal::ReplayBegan);
        let (page, from, end) = (VecDeque::new(), 0, log.saved());
        self.queue.push_back(RunningReplay {
            page,
            from,
            end,
            mode,
            selection,
            cost: None,
            title: None,
            breaks: MessageBreaks::default(),
            cancel,
            reply,
        });
    }

    /// Pending while there is no replay.
    pub(crate) async fn send_permit(&mut self, client: &Client) -> OwnedSemaphorePermit {
        if self.queue.is_empty() {
            std::future::pending::<()>().await;
        }
        let waiting = self.place.get_or_insert_with(|| {
            let client = client.clone();
            async move { client.send_permit().await }.boxed()
        });
        let send_permit = waiting.await;
        self.place = None;
        send_permit
    }

    /// Sends the next event of the first replay. Returns where to send the outcome of a replay that is over.
    pub(crate) async fn send_next(
        &mut self,
        decider: &mut Decider,
        models: &Models,
        send_permit: OwnedSemaphorePermit,
    ) -> Option<(SnapshotReply, Result<(), AgentError>)> {
        let mut replay = self.queue.pop_front()?;
        if replay.cancel.is_cancelled() {
            return Some((replay.reply, Err(AgentError::Cancelled)));
        }
        if replay.page.is_empty() && replay.from < replay.end {
            let Ok(page) = decider.log.page(replay.from).await else {
                return Some((replay.reply, Err(AgentError::Unreadable)));
            };
            replay.from = page.last().map_or(replay.end, |last| last.seq + 1);
            replay.page.extend(page.into_iter().map(|stored_event| stored_event.event));
        }
        let Some(event) = replay.page.pop_front() else {
            decider.log.signal(SessionSignal::ReplayEnded);
            return Some((replay.reply, Ok(())));
        };
        replay.send(&event, decider, models, send_permit);
        self.queue.push_front(replay);
        None
    }
}

impl RunningReplay {
    fn send(
        &mut self,
        event: &SessionEvent,
        decider: &Decider,
        models: &Models,
        send_permit: OwnedSemaphorePermit,
    ) {
        let Decider { policy, log, .. } = decider;
        match event {
            SessionEvent::ModeChange { to, .. } => {
                self.mode = to.clone();
                self.selection = models.entering(policy, to);
            }
            SessionEvent::ModelChange { model, effort } => {
                self.selection = ModelSelection { model: model.clone(), effort: *effort };
            }
            SessionEvent::Title { title } => self.title = Some(title.clone()),
            _ => {}
        }
        let cost = cost_after(self.cost, event);
        self.cost = cost.or(self.cost);
        let mut send_permit = Some(send_permit);
        let is_separated = !policy.context.updates.display.separate_messages
            && !matches!(event, SessionEvent::ForwardedUpdate { .. });
        let (title, breaks) = (self.title.as_deref(), &mut self.breaks);
        acp_updates::encode_for_replay(
            event,
            policy.context.updates,
            || Models::options_in(policy, &self.mode, &self.selection),
            |mut update| {
                acp_updates::set_cost(&mut update, cost);
                acp_updates::repeat_title(&mut update, title);
                if is_separated {
                    breaks.separate(&mut update);
                }
                log.replay(update, send_permit.take());
            },
        );
    }
}
