//! The sub-agents of a session: handles their reports, and makes them follow its mode changes.
//!
//! A sub-agent is an ordinary session with two differences: its client is a [`super::relay`], and
//! the ceilings of all its ancestors limit it ([`crate::session::mode::ancestry`]).

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::relay::{ENDED, SubagentReport, below};
use crate::acp::{ToolCallId, Update};
use crate::conversation::acp_updates;
use crate::event::SessionEvent;
use crate::gate::{Ended, Gate};
use crate::lazy_channel::LazyChannel;
use crate::session::DEADLINE;
use crate::session::SessionHandle;
use crate::session::event_log::EventLog;
use crate::session::handle::SessionCommand;
use crate::session::notes::endings::BackgroundEnd;
use crate::tool::agent::background::{BackgroundAgent, BackgroundStatus, SeenEnd};
use crate::tool::agent::background_list::{discarded_note, forget};

/// Maximum time without activity, except while a person decides or a call runs.
pub const IDLE_TIMEOUT: Duration = Duration::from_mins(10);

#[derive(Default)]
pub(crate) struct Subagents {
    pub(crate) active: HashMap<ToolCallId, SessionHandle>,
    open_requests: HashMap<(ToolCallId, u64), u64>,
    /// Unbounded: updates take send permits, and no report may wait for a session that is ending.
    pub(crate) reports: LazyChannel<SubagentReport>,
    background: Vec<BackgroundAgent>,
    started: u64,
    is_closing: bool,
}

impl Subagents {
    /// Cancel-safe: a dropped call loses no report.
    pub(crate) async fn next(&mut self) -> Option<SubagentReport> {
        self.reports.recv().await
    }

    pub(crate) fn background(&self) -> &[BackgroundAgent] {
        &self.background
    }

    /// Also returns a note for the model if results of other sub-agents were discarded: each keeps its whole
    /// answer.
    pub(crate) fn add_background(
        &mut self,
        agent: &str,
        title: String,
        status: watch::Receiver<BackgroundStatus>,
    ) -> (BackgroundAgent, Option<String>) {
        let discarded = forget(&mut self.background, BackgroundAgent::is_over, |agent| agent.id.clone());
        self.started += 1;
        let (id, stop) = (format!("agent_{}", self.started), CancellationToken::new());
        let background =
            BackgroundAgent { id, agent: agent.into(), title, status, stop, seen_end: SeenEnd::default() };
        self.background.push(background.clone());
        (background, discarded_note("agents", &discarded))
    }

    /// Returns the background sub-agent that has ended.
    pub(crate) fn handle(
        &mut self,
        report: SubagentReport,
        gate: &mut Gate,
        log: &mut EventLog,
    ) -> Option<BackgroundEnd> {
        match report {
            SubagentReport::Update { update, is_recorded: true, send_permit } => {
                log.record(SessionEvent::ForwardedUpdate { update }, send_permit);
            }
            SubagentReport::Update { update, is_recorded: false, send_permit } => {
                log.send(Update::Schema(update), send_permit);
            }
            SubagentReport::Progress { call, content, send_permit } => {
                // A background sub-agent has no open call.
                if log.conversation().open_calls.contains_key(&call) {
                    log.send(acp_updates::progress(call, &content), send_permit);
                }
            }
            SubagentReport::Request { call, number, request, reply } => {
                let id = log.client().forward(request.of_session(log.id()), reply);
                self.open_requests.insert((call, number), id);
            }
            SubagentReport::Withdraw { call, number } => {
                if let Some(id) = self.open_requests.remove(&(call, number)) {
                    log.client().withdraw(id);
                }
            }
            SubagentReport::Ended { call, background, unfinished } => {
                if let Some(unfinished) = unfinished {
                    self.active.remove(&call);
                    gate.take_over(unfinished, |id| below(&call, id));
                }
                for (_, id) in self.open_requests.extract_if(|(of, _), _| *of == call) {
                    log.client().withdraw(id);
                }
                // A note on the session's next start reports this.
                return background.filter(|_| !self.is_closing);
            }
        }
        None
    }

    /// Makes every sub-agent end the calls that are now denied. Also returns the closed requests.
    pub(crate) fn tighten(&self) -> impl Future<Output = (Vec<ToolCallId>, Ended)> + use<> {
        let requests: Vec<_> = self
            .active
            .iter()
            .map(|(call, handle)| {
                let (reply, answer) = oneshot::channel();
                // A session that is over or closing drops the reply channel.
                drop(handle.post(SessionCommand::Tighten(reply)));
                (call.clone(), answer)
            })
            .collect();
        async move {
            let deadline = Instant::now() + DEADLINE + DEADLINE / 4;
            let (mut all_closed, mut all) = (Vec::new(), Ended::default());
            for (call, answer) in requests {
                let under = |ids: Vec<ToolCallId>| ids.into_iter().map(|id| below(&call, &id));
                match tokio::time::timeout_at(deadline, answer).await {
                    Ok(Ok((closed, ended))) => {
                        all_closed.extend(under(closed));
                        all.confirmed.extend(under(ended.confirmed));
                        all.unconfirmed.extend(under(ended.unconfirmed));
                    }
                    // Nothing confirms that all calls of this sub-agent have ended.
                    Ok(Err(_)) | Err(_) => all.unconfirmed.push(call),
                }
            }
            (all_closed, all)
        }
    }

    pub(crate) fn on_close(&mut self) {
        self.is_closing = true;
    }
}

/// Records the end of calls whose sub-agent is gone.
pub(crate) fn end_calls(log: &mut EventLog) {
    for ended in log.conversation_mut().relayed_open_calls.end(Some(ENDED)) {
        log.record(SessionEvent::ForwardedUpdate { update: Box::new(ended.update) }, None);
    }
}
