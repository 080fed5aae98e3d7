//! Counts the amounts that a session spends, and compares them with the budgets before each model request.
//!
//! A sub-agent counts in the session that a client opened, and is limited with it; the time of that session's turns is
//! measured there alone. A day is counted in the store, which all processes of a user share: two of them exceed a
//! budget by the requests that are under way at most.

use tokio::time::{Duration, Instant};

use super::event_log::EventLog;
use super::mode::ancestry::Ancestry;
use super::mode::decider::Decider;
use super::notes::Notes;
use super::tally::{Tallies, Tally};
use crate::acp::{SessionId, SessionUpdate};
use crate::budget::{self, BudgetLimits, BudgetState, BudgetUse, Figure, Period, Spent};
use crate::model::{ModelId, Usage};
use crate::store::{Row, StoreError};

pub(crate) struct Spending {
    tallies: Tallies,
    is_root: bool,
    /// Start of the running turn.
    began: Option<Instant>,
    /// Milliseconds of the running turn that are counted.
    counted_ms: u64,
    day: DaySpent,
    warned: Vec<(Period, Figure)>,
    /// When a budget of time needs a warning, or ends the turn.
    due: Option<Instant>,
    has_told_unpriced: bool,
    has_told_unread: bool,
    /// Millionths of a dollar that the external agent has reported for its session so far.
    reported_cost: u64,
}

#[derive(Default)]
struct DaySpent {
    date: String,
    /// By all processes, when the store was last read.
    known: Spent,
    /// By this session since then.
    own: Spent,
}

/// The amounts that the last turn has spent, with its sub-agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TurnSpent {
    pub tokens: u64,
    /// `None` if the price of a model is unknown.
    pub micro_dollars: Option<u64>,
}

impl Spending {
    pub(crate) fn new(id: &SessionId, ancestry: &Ancestry) -> Self {
        let parent = ancestry.parent.as_ref();
        Self {
            tallies: parent.map_or_else(|| Tallies::new(id.clone()), |parent| parent.tallies.clone()),
            is_root: parent.is_none(),
            began: None,
            counted_ms: 0,
            day: DaySpent::default(),
            warned: Vec::new(),
            due: None,
            has_told_unpriced: false,
            has_told_unread: false,
            reported_cost: 0,
        }
    }

    /// Continues the count of a stored session.
    pub(crate) async fn restore(&mut self, log: &EventLog) -> Result<(), StoreError> {
        let spent = log.store().spent_in(log.id()).await?;
        self.tallies.session.add(spent);
        // An external agent that continues reports the cost of its whole session.
        self.reported_cost = spent.micro_dollars;
        Ok(())
    }

    /// For a sub-agent that this session starts.
    pub(crate) fn tallies(&self) -> Tallies {
        self.tallies.clone()
    }

    pub(crate) fn last_turn(&self) -> TurnSpent {
        let Spent { tokens, micro_dollars, .. } = self.tallies.turn.spent();
        let is_priced = self.tallies.unpriced.get().is_none();
        TurnSpent { tokens, micro_dollars: is_priced.then_some(micro_dollars) }
    }

    pub(crate) fn begin_turn(&mut self, limits: &BudgetLimits) {
        if !self.is_root {
            return;
        }
        self.tallies.turn = Tally::default().into();
        self.warned.retain(|(period, _)| *period != Period::Turn);
        (self.began, self.counted_ms) = (Some(Instant::now()), 0);
        self.set_due(limits);
    }

    pub(crate) fn end_turn(&mut self, decider: &mut Decider) {
        self.count_time(decider);
        (self.began, self.due) = (None, None);
    }

    /// Returns the budget of the session or the day that allows no further turn.
    pub(crate) async fn refusal(&mut self, notes: &mut Notes, decider: &mut Decider) -> Option<BudgetUse> {
        if !self.is_root {
            return None;
        }
        let limits = decider.policy.context.budgets.limits;
        self.read_day(&limits, notes, decider).await;
        let spent = |period| if period == Period::Turn { Spent::default() } else { self.spent(period) };
        match limits.state(spent) {
            BudgetState::Exceeded(exceeded) => Some(exceeded),
            BudgetState::Within(_) => None,
        }
    }

    /// Warns of budgets that are nearly used up. Returns one that allows no further request.
    pub(crate) async fn before_request(
        &mut self,
        notes: &mut Notes,
        decider: &mut Decider,
    ) -> Option<BudgetUse> {
        let limits = decider.policy.context.budgets.limits;
        self.read_day(&limits, notes, decider).await;
        self.assess(notes, decider)
    }

    /// As [`Self::before_request`], with the day as it was last read.
    pub(crate) fn assess(&mut self, notes: &mut Notes, decider: &mut Decider) -> Option<BudgetUse> {
        let limits = decider.policy.context.budgets.limits;
        if limits == BudgetLimits::default() {
            return None;
        }
        self.count_time(decider);
        self.tell_unpriced(&limits, notes, decider);
        let exceeded = match limits.state(|period| self.spent(period)) {
            BudgetState::Exceeded(exceeded) => Some(exceeded),
            BudgetState::Within(nearly) => {
                for used in nearly {
                    self.warn(&used, notes, decider);
                }
                None
            }
        };
        self.set_due(&limits);
        exceeded
    }

    /// Completes when a budget of time may need a warning, or end the turn. Cancel-safe.
    pub(crate) async fn due(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Counts a request to a model, if there is a report of one.
    pub(crate) fn count(&mut self, model: &ModelId, usage: Option<&Usage>, decider: &mut Decider) {
        let Some(usage) = usage else { return };
        let cost = decider.policy.context.budgets.prices.cost(model, usage);
        if cost.is_none() {
            let _ = self.tallies.unpriced.set(model.clone());
        }
        let spent =
            Spent { tokens: usage.used, micro_dollars: cost.unwrap_or_default(), ..self.uncounted_time() };
        self.add(spent, decider);
    }

    /// Counts the cost that an external agent reports for its session so far. Returns true if it has grown.
    pub(crate) fn count_reported(&mut self, update: &SessionUpdate, decider: &mut Decider) -> bool {
        let SessionUpdate::UsageUpdate(usage) = update else { return false };
        let cost = usage.cost.as_ref().filter(|cost| cost.currency.eq_ignore_ascii_case("USD"));
        let Some(total) = cost.and_then(|cost| budget::micro_dollars(cost.amount)) else { return false };
        // A smaller total is that of a new session.
        let before = if total < self.reported_cost { 0 } else { self.reported_cost };
        self.reported_cost = total;
        if total > before {
            let spent = Spent { micro_dollars: total - before, ..self.uncounted_time() };
            self.add(spent, decider);
        }
        total > before
    }

    fn spent(&self, period: Period) -> Spent {
        match period {
            Period::Turn => self.tallies.turn.spent(),
            Period::Session => self.tallies.session.spent(),
            Period::Day => self.day.known.plus(self.day.own),
        }
    }

    fn count_time(&mut self, decider: &mut Decider) {
        let time = self.uncounted_time();
        if time.ms > 0 {
            self.add(time, decider);
        }
    }

    /// The caller adds the time.
    fn uncounted_time(&mut self) -> Spent {
        let elapsed = self.began.map_or(0, |began| began.elapsed().as_millis());
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        let ms = elapsed.saturating_sub(self.counted_ms);
        self.counted_ms += ms;
        Spent { ms, ..Spent::default() }
    }

    /// The row is written at once, and not with the event of the usage, which may wait for the end of a message: the
    /// amounts of a killed process count, too.
    fn add(&mut self, spent: Spent, decider: &mut Decider) {
        self.tallies.turn.add(spent);
        self.tallies.session.add(spent);
        self.begin_day(decider.policy.context.today().date);
        self.day.own = self.day.own.plus(spent);
        let (session, day) = (self.tallies.root.clone(), self.day.date.clone());
        decider.log.queue(Row::Spent { session, day, spent });
    }

    fn begin_day(&mut self, date: String) {
        if self.day.date != date {
            self.day = DaySpent { date, ..DaySpent::default() };
            self.warned.retain(|(period, _)| *period != Period::Day);
        }
    }

    async fn read_day(&mut self, limits: &BudgetLimits, notes: &mut Notes, decider: &mut Decider) {
        if !limits.has(Period::Day) {
            return;
        }
        self.begin_day(decider.policy.context.today().date);
        match decider.log.store().spent_on(&self.day.date).await {
            Ok(known) => {
                (self.day.known, self.day.own) = (known, Spent::default());
                self.has_told_unread = false;
            }
            Err(error) if !self.has_told_unread => {
                self.has_told_unread = true;
                let text = format!(
                    "The budget of this day counts this session alone at the moment, because {error}.\n\n"
                );
                notes.record_warning(text, &mut decider.log);
            }
            Err(_) => {}
        }
    }

    fn tell_unpriced(&mut self, limits: &BudgetLimits, notes: &mut Notes, decider: &mut Decider) {
        let unpriced = self.tallies.unpriced.get().filter(|_| limits.limits_cost() && self.is_root);
        if let Some(model) = unpriced
            && !std::mem::replace(&mut self.has_told_unpriced, true)
        {
            let text = format!(
                "The price of {model} is unknown, so budgets of cost leave its requests out, and only tokens and time \
                 are limited. Set its price under `prices` in config.yaml.\n\n"
            );
            notes.record_warning(text, &mut decider.log);
        }
    }

    /// Once for each budget and period. For a sub-agent, the session above warns the user.
    fn warn(&mut self, used: &BudgetUse, notes: &mut Notes, decider: &mut Decider) {
        if self.warned.contains(&(used.period, used.figure)) {
            return;
        }
        self.warned.push((used.period, used.figure));
        notes.add_later(used.note());
        if self.is_root {
            notes.record_warning(used.warning(), &mut decider.log);
        }
    }

    fn set_due(&mut self, limits: &BudgetLimits) {
        let left = limits
            .time_left(|period| self.spent(period), |period| self.warned.contains(&(period, Figure::Time)));
        let runs = self.began.is_some();
        self.due = left.filter(|_| runs).map(|ms| Instant::now() + Duration::from_millis(ms));
    }
}
