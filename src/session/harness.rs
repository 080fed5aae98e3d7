//! Somebody else's agent, where it answers for this session: started for the mode that is on, stopped when a tighter one is set,
//! started again for the next prompt.
//!
//! Its process stands at the gate like any effect ([`super::possible`]): one that is not held ends before a mode is answered
//! under which it would have to be, and the next one is held.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::actor::Actor;
use super::harness_keeper::{Keeper, Kept};
use super::harness_relay::{HarnessRelay, OuterReport};
use super::possible::{self, Need};
use super::relay::Report;
use crate::acp::{
    AvailableCommand, McpServer, MessageId, SessionConfigOption, SessionModeId, SessionUpdate, ToolCallId,
    ToolCallStatus, ToolKind,
};
use crate::client::{self, Abilities};
use crate::event::SessionEvent;
use crate::harness::{Harness, HarnessError, Order};
use crate::roster::harness::HarnessDefinition;
use crate::store::entry::Entry;
use crate::workspace::Changes;

/// Under this id its process stands at the gate, in answers about modes and in the record.
const CALL: &str = "agent";

/// One that is ready for a prompt.
pub(super) struct Ready {
    pub harness: Harness,
    /// Sent here, a fence is dropped once all that was said before is passed on.
    pub fences: mpsc::Sender<oneshot::Sender<()>>,
    /// Cancelled when a mode has ended it.
    pub stopped: CancellationToken,
}

/// Who waits for it, and is told why if it does not come.
type Waiting = oneshot::Sender<Result<Ready, HarnessError>>;

/// Somebody else's agent, as this session has it.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Outer {
    running: Option<Running>,
    waiting: Vec<Waiting>,
    /// How often it was started.
    starts: u64,
    /// Its own session, if it can take it up again.
    its: Option<String>,
    /// It says that it takes its sessions up again, and did not when there was something in one: it is not believed again.
    forgets: bool,
    /// The mode of its own that was left for the hold, and that it is to have again without.
    left: Option<SessionModeId>,
    /// It was prompted, and so there is something to lose; also where its session was opened again.
    pub was_prompted: bool,
    /// It is started again when it is over.
    starts_again: bool,
    /// The user said that it is to stay held although the mode does not want it.
    stays_held: bool,
    /// Its commands.
    pub commands: Vec<AvailableCommand>,
    /// The MCP servers that it is to use.
    pub servers: Vec<McpServer>,
    /// The kinds of its calls.
    pub kinds: HashMap<ToolCallId, ToolKind>,
    /// What it asks of the client, by its number.
    pub asked: HashMap<u64, u64>,
}

struct Running {
    start: u64,
    is_held: bool,
    /// None while it is being started.
    harness: Option<Harness>,
    fences: mpsc::Sender<oneshot::Sender<()>>,
    /// Cancelled, it ends in its own way.
    stop: CancellationToken,
    /// Cancelled when a mode ends it.
    stopped: CancellationToken,
    /// Ends when nothing of it is left.
    over: CancellationToken,
}

impl Running {
    /// Whether it is over, or about to be.
    fn is_ending(&self) -> bool {
        self.stopped.is_cancelled() || self.harness.as_ref().is_some_and(Harness::is_over)
    }
}

impl Actor {
    /// Whether somebody else's agent answers here.
    pub(super) fn outer_definition(&self) -> Option<Arc<HarnessDefinition>> {
        self.session.agent.harness.clone()
    }

    /// Has it started, if it is not, and says when it is ready for a prompt.
    pub(super) async fn ready_outer(&mut self, reply: Option<Waiting>) {
        let Some(definition) = self.outer_definition() else { return };
        let need = possible::need(&self.ceilings());
        let refuse = |reply: Option<Waiting>, error: HarnessError| {
            if let Some(reply) = reply {
                // The turn may have been cancelled meanwhile.
                let _ = reply.send(Err(error));
            }
        };
        if need == Need::Impossible || (need == Need::Held && definition.sandbox.is_none()) {
            let text = format!("it cannot be held to {} mode, and is not started in it", self.session.mode);
            return refuse(reply, HarnessError::NotStarted(text));
        }
        let wants_hold = need == Need::Held;
        if let Some(running) = &self.outer.running
            && (running.is_ending()
                || running.is_held != wants_hold && !(running.is_held && self.outer.stays_held))
        {
            if !running.is_ending()
                && running.is_held
                && self.outer.was_prompted
                && self.outer.its.is_none()
                && reply.is_some()
            {
                self.outer.waiting.extend(reply);
                let start = running.start;
                return self.ask_to_restart(start);
            }
            // The next is started once nothing of this one is left.
            running.stop.cancel();
            self.outer.starts_again = true;
            return self.outer.waiting.extend(reply);
        }
        self.outer.waiting.extend(reply);
        match &self.outer.running {
            None => self.start_outer(&definition, wants_hold).await,
            Some(_) => self.tell_ready(),
        }
    }

    fn tell_ready(&mut self) {
        let Some(Running { harness: Some(harness), fences, stopped, .. }) = &self.outer.running else {
            return;
        };
        for reply in std::mem::take(&mut self.outer.waiting) {
            let ready = Ready { harness: harness.clone(), fences: fences.clone(), stopped: stopped.clone() };
            // The turn may have been cancelled meanwhile.
            if reply.send(Ok(ready)).is_ok() {
                self.outer.was_prompted = true;
            }
        }
    }

    async fn start_outer(&mut self, definition: &HarnessDefinition, is_held: bool) {
        self.outer.starts += 1;
        let start = self.outer.starts;
        let Some(shell) = self.shared.tools.shell().cloned().filter(|_| self.shared.live) else {
            let text = "no agent is started where every run has to give the same bytes".into();
            return self.fail_outer(&HarnessError::NotStarted(text));
        };
        let (turn, at) = (self.session.turns, self.shared.source.now_ms());
        let agent = self.session.agent.id.clone();
        self.chain(&Entry::Harness { turn, agent: agent.clone(), held: is_held, at });
        if !is_held {
            let text =
                format!("What the agent {agent} changed by itself is not known, and cannot be undone.");
            self.keep_changes(turn, Changes { uncovered: vec![text], ..Changes::default() });
        }
        self.save().await;
        let permit =
            self.gate.admit(ToolCallId::new(CALL), possible::facts(is_held), turn, &CancellationToken::new());
        let (fences, to_fence) = mpsc::channel(4);
        let (stop, over) = (CancellationToken::new(), CancellationToken::new());
        let stopped = permit.cancel.clone();
        let (cwd, directories) = self.folders();
        let abilities = Abilities {
            writes: self.shared.abilities.writes && !is_held,
            // What runs in a terminal of the client's would not end with it.
            terminals: false,
            ..self.shared.abilities
        };
        let order = Order {
            name: agent,
            definition: definition.clone(),
            held: is_held,
            cwd,
            directories,
            servers: self.outer.servers.clone(),
            abilities,
            load: self.outer.its.clone(),
            given_up: stop.clone(),
        };
        let (client, end) = client::channel();
        let to = self.children.reports.0.clone();
        let hurry = stop.clone();
        let relay =
            HarnessRelay { start, to: to.clone(), client: self.client.clone(), hurry, fences: to_fence };
        let keeper = Keeper {
            order,
            shell,
            session: self.session.id.clone(),
            client,
            modes: definition.modes.clone(),
            left: self.outer.left.clone(),
            permit,
            stop: stop.clone(),
            over: over.clone(),
            to,
            start,
        };
        let relay = tokio::spawn(relay.run(end));
        tokio::spawn(async move {
            let _over = keeper.over.clone().drop_guard();
            keeper.keep(relay).await;
        });
        self.outer.running = Some(Running { start, is_held, harness: None, fences, stop, stopped, over });
    }

    fn fail_outer(&mut self, error: &HarnessError) {
        for reply in std::mem::take(&mut self.outer.waiting) {
            // The turn may have been cancelled meanwhile.
            let _ = reply.send(Err(error.clone()));
        }
    }

    /// Takes what is reported of a start of it. What an earlier one still says is shown, too.
    pub(super) async fn kept_outer(&mut self, start: u64, kept: Kept) {
        let is_now = self.outer.running.as_ref().is_some_and(|running| running.start == start);
        match kept {
            Kept::Started(Ok(harness), lost, left) if is_now => {
                self.outer.left = left;
                let was_prompted = std::mem::take(&mut self.outer.was_prompted);
                let has_taken_up = self.outer.its.is_some() && lost.is_none();
                self.outer.forgets |= was_prompted && lost.is_some();
                let can_load = harness.can_load() && !self.outer.forgets;
                self.outer.its = can_load.then(|| harness.its_session().to_owned());
                if let Some(running) = &mut self.outer.running {
                    running.harness = Some(harness);
                }
                if was_prompted && !has_taken_up {
                    let why = lost.map(|why| format!(" ({why})")).unwrap_or_default();
                    let text = format!(
                        "The agent {} was started anew and knows nothing of what was said before{why}.\n\n",
                        self.session.agent.id
                    );
                    self.notice_outer(text).await;
                }
                self.show_options();
                self.tell_ready();
            }
            // A mode has ended it meanwhile.
            Kept::Started(Ok(_), ..) => {}
            Kept::Started(Err(error), ..) => {
                if is_now {
                    self.go_on_without(&error).await;
                }
            }
            Kept::Over(why) => {
                if is_now {
                    self.go_on_without(&HarnessError::Over(why)).await;
                }
                for (_, id) in std::mem::take(&mut self.outer.asked) {
                    self.client.withdraw(id);
                }
            }
            // Whoever asked may have gone.
            Kept::Look(reply) => drop(reply.send(self.options())),
            Kept::Restart(restarts) => {
                self.outer.stays_held = !restarts;
                if restarts {
                    self.outer.was_prompted = true;
                }
                self.restart_or_go_on().await;
            }
        }
    }

    /// It is over: if a mode has ended it, the next is started for whoever waits; else they are told why.
    async fn go_on_without(&mut self, error: &HarnessError) {
        let was_stopped =
            self.outer.running.take().is_some_and(|it| it.stopped.is_cancelled() || it.stop.is_cancelled());
        let starts_again = std::mem::take(&mut self.outer.starts_again);
        if starts_again || was_stopped && !self.outer.waiting.is_empty() {
            let next = self.outer.waiting.pop();
            Box::pin(self.ready_outer(next)).await;
        } else {
            self.fail_outer(error);
        }
    }

    /// After the question: for whoever waits it is started anew, or goes on as it is.
    async fn restart_or_go_on(&mut self) {
        let Some(reply) = self.outer.waiting.pop() else { return };
        if !self.outer.stays_held {
            // The user knows what is lost.
            self.outer.was_prompted = false;
        }
        self.ready_outer(Some(reply)).await;
    }

    pub(super) async fn notice_outer(&mut self, text: String) {
        self.session.server_notices += 1;
        let message_id =
            MessageId::new(format!("msg_{}_s{}", self.session.turns, self.session.server_notices));
        self.record(SessionEvent::Notice { message_id, text }, None).await;
    }

    /// Shows the client all options, as they are now.
    pub(super) fn show_options(&self) {
        let options = crate::acp::ConfigOptionUpdate::new(self.options());
        let update = SessionUpdate::ConfigOptionUpdate(options);
        self.client.update(self.session.id.clone(), update.into(), None);
    }

    /// The options as they are when this is awaited.
    pub(super) fn looking(&self) -> impl Future<Output = Option<Vec<SessionConfigOption>>> + use<> {
        let to = self.children.reports.0.clone();
        let start = self.outer.starts;
        async move {
            let (reply, options) = oneshot::channel();
            to.send(Report::Kept { start, kept: Kept::Look(reply) }).ok()?;
            options.await.ok()
        }
    }

    /// It, where it is ready.
    pub(super) fn outer_harness(&self) -> Option<&Harness> {
        self.outer.running.as_ref()?.harness.as_ref()
    }

    /// Lets it end in its own way, and waits until nothing of it is left.
    pub(super) async fn close_outer(&mut self) {
        let Some(Running { stop, over, .. }) = self.outer.running.take() else { return };
        stop.cancel();
        let deadline = tokio::time::Instant::now() + super::change_mode::BOUND;
        loop {
            // What it still says happened.
            tokio::select! {
                Some(report) = self.children.next() => self.report(report).await,
                () = over.cancelled() => return,
                () = tokio::time::sleep_until(deadline) => {
                    return tracing::warn!("somebody else's agent did not end in time");
                }
            }
        }
    }

    /// Takes what it shows or asks.
    pub(super) async fn outer_report(
        &mut self,
        report: OuterReport,
        room: Option<tokio::sync::OwnedSemaphorePermit>,
    ) {
        match report {
            OuterReport::Event(event) => {
                if let SessionEvent::Relayed { update } = &event {
                    self.note_kind(update);
                }
                self.record(event, room).await;
            }
            OuterReport::Moment(update) => {
                self.client.update(self.session.id.clone(), (*update).into(), room);
            }
            OuterReport::Commands(commands) => {
                self.outer.commands = commands;
                self.show_commands();
            }
            OuterReport::Options => self.show_options(),
            OuterReport::Asks { number, request, reply } => self.outer_asks(number, request, reply).await,
            OuterReport::Withdraw { number } => {
                if let Some(id) = self.outer.asked.remove(&number) {
                    self.client.withdraw(id);
                }
            }
        }
    }

    fn note_kind(&mut self, update: &SessionUpdate) {
        match update {
            SessionUpdate::ToolCall(call) => {
                self.outer.kinds.insert(call.tool_call_id.clone(), call.kind);
            }
            SessionUpdate::ToolCallUpdate(update) => {
                if let Some(kind) = update.fields.kind {
                    self.outer.kinds.insert(update.tool_call_id.clone(), kind);
                }
                if matches!(update.fields.status, Some(ToolCallStatus::Completed | ToolCallStatus::Failed)) {
                    self.outer.kinds.remove(&update.tool_call_id);
                }
            }
            _ => {}
        }
    }
}
