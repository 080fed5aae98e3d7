//! Somebody else's agent, where it answers for this session: started for the mode that is on, stopped when a tighter one is set,
//! started again for the next prompt.
//!
//! Its process stands at the gate like any effect ([`super::possible`]): one that is not held ends before a mode is answered
//! under which it would have to be, and the next one is held.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::actor::Actor;
use super::possible;
use crate::acp::{AvailableCommand, McpServer, SessionModeId, ToolCallId, ToolKind};
use crate::client::{self, Abilities};
use crate::gate::Permit;
use crate::harness::{Harness, HarnessError, Order};
use crate::roster::harness::HarnessDefinition;
use crate::store::Row;
use crate::store::entry::Entry;
use crate::workspace::Changes;
use ask::{Asked, Number};
use keeper::{Keeper, Kept};
use memory::Memory;
use relay::HarnessRelay;

pub(super) mod ask;
pub(super) mod keeper;
pub(super) mod memory;
pub mod options;
pub(super) mod relay;
mod report;
mod restart;
mod show;
pub(super) mod turn;

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
pub(super) struct Outer {
    running: Option<Running>,
    waiting: Vec<Waiting>,
    /// How often it was started.
    pub starts: u64,
    /// What it knows of what was said.
    memory: Memory,
    /// The mode of its own that was left for the hold, and that it is to have again without.
    left: Option<SessionModeId>,
    /// It is started again when it is over.
    starts_again: bool,
    /// The user said that it is to stay held although the mode does not want it.
    pub stays_held: bool,
    /// Its commands.
    pub commands: Vec<AvailableCommand>,
    /// The MCP servers that it is to use.
    pub servers: Vec<McpServer>,
    /// The kinds of its calls.
    pub kinds: HashMap<ToolCallId, ToolKind>,
    /// What it asks of the client.
    pub asked: HashMap<Number, Asked>,
    /// Cancelled, the question whether to start it anew is void.
    pub asking: CancellationToken,
}

struct Running {
    start: u64,
    is_held: bool,
    /// The user was told that it is held.
    is_told: bool,
    /// None while it is being started.
    harness: Option<Harness>,
    fences: mpsc::Sender<oneshot::Sender<()>>,
    /// Cancelled, it ends in its own way.
    stop: CancellationToken,
    /// It does so, too, when nobody has it any more.
    _stops: DropGuard,
    /// Cancelled when a mode ends it.
    stopped: CancellationToken,
    /// Ends when nothing of it is left.
    over: CancellationToken,
}

impl Running {
    /// Whether it is over, or about to be.
    fn is_ending(&self) -> bool {
        self.stop.is_cancelled()
            || self.stopped.is_cancelled()
            || self.harness.as_ref().is_some_and(Harness::is_over)
    }
}

impl Outer {
    /// Goes on with a session of old that has so many events: what it names has other names than in any of them.
    pub fn go_on(&mut self, events: u64, memory: Memory, left: Option<SessionModeId>) {
        (self.starts, self.memory, self.left) = (events, memory, left);
    }
}

impl Actor {
    /// Whether somebody else's agent answers here.
    pub(super) fn outer_definition(&self) -> Option<Arc<HarnessDefinition>> {
        self.session.agent.harness.clone()
    }

    /// Has it started, if it is not, and says when it is ready for a prompt.
    pub(super) async fn ready_outer(&mut self, reply: Option<Waiting>) {
        let refuse = |reply: Option<Waiting>, text: String| {
            if let Some(reply) = reply {
                // The turn may have been cancelled meanwhile.
                let _ = reply.send(Err(HarnessError::NotStarted(text)));
            }
        };
        let Some(definition) = self.outer_definition() else {
            return refuse(reply, "there is no such agent any more".into());
        };
        let Some(wants_hold) = possible::is_held(&self.ceilings(), self.shared.can_hold(&definition)) else {
            let text = format!("it cannot be held to {} mode, and is not started in it", self.session.mode);
            return refuse(reply, text);
        };
        if let Some(running) = &self.outer.running
            && (running.is_ending()
                || running.is_held != wants_hold && !(running.is_held && self.outer.stays_held))
        {
            if !running.is_ending() && running.is_held && self.outer.memory.would_be_lost() && reply.is_some()
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
            Some(_) => self.tell_ready().await,
        }
    }

    async fn tell_ready(&mut self) {
        self.outer.waiting.retain(|reply| !reply.is_closed());
        let (is_held, was_told) = match &mut self.outer.running {
            Some(Running { harness: Some(_), is_held, is_told, .. }) if !self.outer.waiting.is_empty() => {
                (*is_held, std::mem::replace(is_told, true))
            }
            _ => return,
        };
        if is_held && !was_told {
            self.say_held().await;
        }
        if !is_held {
            let text = format!(
                "What the agent {} changed by itself is not known, and cannot be undone.",
                self.session.agent.id
            );
            self.keep_changes(self.session.turns, Changes { uncovered: vec![text], ..Changes::default() });
            self.save().await;
        }
        // The prompt is about to be sent: until the next one, the agent may do no more than what holds now.
        self.begin_reply();
        let Some(Running { harness: Some(harness), fences, stopped, .. }) = &self.outer.running else {
            return;
        };
        for reply in std::mem::take(&mut self.outer.waiting) {
            let ready = Ready { harness: harness.clone(), fences: fences.clone(), stopped: stopped.clone() };
            // The turn may have been cancelled meanwhile.
            if reply.send(Ok(ready)).is_ok() {
                self.outer.memory.add();
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
        self.save().await;
        let permit = self.admit_outer(CALL, is_held);
        let (fences, to_fence) = mpsc::channel(4);
        let (stop, over) = (CancellationToken::new(), CancellationToken::new());
        let stopped = permit.cancel.clone();
        let (cwd, directories) = self.folders();
        // What runs in a terminal of the client's would not end with it. Writes are refused one by one, and it is told why.
        let abilities = Abilities { terminals: false, ..self.shared.abilities };
        let order = Order {
            name: agent,
            definition: definition.clone(),
            held: is_held,
            cwd,
            directories,
            servers: self.outer.servers.clone(),
            abilities,
            load: self.outer.memory.its().map(str::to_owned),
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
        let stops = stop.clone().drop_guard();
        self.outer.running = Some(Running {
            start,
            is_held,
            is_told: false,
            harness: None,
            fences,
            stop,
            _stops: stops,
            stopped,
            over,
        });
    }

    /// Leave for something that it does. It is no turn's, and goes on after each.
    pub(super) fn admit_outer(&mut self, call: &str, is_held: bool) -> Permit {
        self.gate.admit(ToolCallId::new(call), possible::facts(is_held), 0, &CancellationToken::new())
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
            Kept::Started(Ok((harness, knows, left))) if is_now => {
                if self.outer.running.as_ref().is_some_and(Running::is_ending) {
                    // That it is over comes next.
                    return;
                }
                let its = harness.can_load().then(|| harness.its_session());
                let lost = self.outer.memory.begin(its, knows);
                let its = self.outer.memory.its().map(str::to_owned);
                self.outer.left = left;
                let left = self.outer.left.as_ref().map(ToString::to_string);
                self.shared.store.post(Row::Harness { session: self.session.id.clone(), its, left });
                if let Some(running) = &mut self.outer.running {
                    running.harness = Some(harness);
                }
                if let Some(why) = lost {
                    let text = format!(
                        "The agent {} was started anew and knows nothing of what was said before{why}.\n\n",
                        self.session.agent.id
                    );
                    self.notice_outer(text).await;
                }
                if let Some(harness) = self.outer_harness().cloned() {
                    self.say_unknown_mode(&harness).await;
                }
                self.show_options();
                // The mode may be another by now, and it was told nothing yet.
                if let Some(reply) = self.outer.waiting.pop() {
                    self.ready_outer(Some(reply)).await;
                }
            }
            Kept::Started(Err(error)) if is_now => self.gone_outer(&error).await,
            // It was closed meanwhile.
            Kept::Started(_) => {}
            Kept::Over(why) => {
                for (_, asked) in std::mem::take(&mut self.outer.asked) {
                    self.client.withdraw(asked.id);
                }
                if is_now {
                    self.gone_outer(&HarnessError::Over(why)).await;
                }
            }
            // Whoever asked may have gone.
            Kept::Look(reply) => drop(reply.send(self.options())),
            Kept::Restart(restarts) => {
                let Some(reply) = self.outer.waiting.pop() else { return };
                self.outer.stays_held = restarts == Some(false);
                if restarts == Some(true) {
                    self.outer.memory.give_up();
                }
                self.ready_outer(Some(reply)).await;
            }
        }
    }

    /// Nothing of it is left. Whoever waits for it has it started again if it was ended to be, or by a mode.
    async fn gone_outer(&mut self, error: &HarnessError) {
        let was_stopped = self.outer.running.take().is_some_and(|running| running.stopped.is_cancelled());
        let starts_again = std::mem::take(&mut self.outer.starts_again) || was_stopped;
        // What was asked about it is void.
        self.outer.asking.cancel();
        self.outer.waiting.retain(|reply| !reply.is_closed());
        match self.outer.waiting.pop() {
            Some(next) if starts_again => Box::pin(self.ready_outer(Some(next))).await,
            Some(next) => {
                self.outer.waiting.push(next);
                self.fail_outer(error);
            }
            None => {}
        }
    }

    /// The session is about to be closed: it ends, in its own way, and waits for no client that has no room.
    pub(super) fn hurry_outer(&self) {
        if let Some(running) = &self.outer.running {
            running.stop.cancel();
        }
    }

    /// Whether it runs held.
    pub(super) fn is_outer_held(&self) -> bool {
        self.outer.running.as_ref().is_some_and(|running| running.is_held)
    }

    /// It, where it is ready.
    pub(super) fn outer_harness(&self) -> Option<&Harness> {
        self.outer.running.as_ref()?.harness.as_ref()
    }

    /// Lets it end in its own way, and waits until nothing of it is left.
    pub(super) async fn close_outer(&mut self) {
        // Nothing is started for whoever still waits.
        self.outer.waiting.clear();
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
}
