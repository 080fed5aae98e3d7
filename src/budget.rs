//! Budgets of a turn, a session and a day: tokens, cost and time. Pure: the amounts come from the caller.
//!
//! Tokens and cost are compared before each model request, so a reply that exceeds a budget is the last one.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::DayZone;
use budget_use::{dollar_text, time_text, warning_at};
use prices::Prices;

pub use budget_use::BudgetUse;

mod budget_use;
pub mod prices;

const MICRO: f64 = 1e6;
const MS_PER_MINUTE: f64 = 60_000.0;

/// A warning is due from this part of a budget on, in percent.
pub const WARNING_PERCENT: u64 = 80;

/// Budgets of the user's settings or of a policy. In each figure, the stricter of two counts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetSettings {
    /// Of each turn, with its sub-agents. Default: none.
    pub turn: Option<BudgetFigures>,
    /// Of each session, with its sub-agents, also when it is continued. Default: none.
    pub session: Option<BudgetFigures>,
    /// Of each day, from one local midnight to the next: all sessions and processes of one store. Default: none.
    pub day: Option<BudgetFigures>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetFigures {
    /// Input and output tokens of all model requests, cached ones included. Default: no limit.
    pub tokens: Option<u64>,
    /// Cost of all model requests in US dollars, as far as prices are known. Default: no limit.
    pub cost_usd: Option<f64>,
    /// Minutes during which turns run, with all their waits. Default: no limit.
    pub minutes: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    Turn,
    Session,
    Day,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    Tokens,
    Cost,
    Time,
}

const PERIODS: [Period; 3] = [Period::Turn, Period::Session, Period::Day];

const FIGURES: [Figure; 3] = [Figure::Tokens, Figure::Cost, Figure::Time];

/// Spent tokens, millionths of a dollar, and milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    pub tokens: u64,
    pub micro_dollars: u64,
    pub ms: u64,
}

/// The limits of all budgets, in the units of [`Spent`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetLimits([[Option<u64>; 3]; 3]);

/// The budgets of a run, and the prices that its costs are made of.
#[derive(Debug, Clone, Default)]
pub struct Budgets {
    pub limits: BudgetLimits,
    pub prices: Prices,
    /// UTC for an organisation's budget of the day, which no `TZ` begins anew.
    pub day_zone: DayZone,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BudgetState {
    /// Warnings are due for these budgets. Empty if none is.
    Within(Vec<BudgetUse>),
    /// This budget is exceeded: no further request.
    Exceeded(BudgetUse),
}

impl BudgetSettings {
    /// Returns an error that names the key whose value is no amount.
    pub fn limits(&self) -> Result<BudgetLimits, String> {
        let mut limits = BudgetLimits::default();
        for period in PERIODS {
            let figures = match period {
                Period::Turn => &self.turn,
                Period::Session => &self.session,
                Period::Day => &self.day,
            };
            let Some(BudgetFigures { tokens, cost_usd, minutes }) = *figures else { continue };
            let key = |name: &str| format!("budgets: {}: {name}", period.as_str());
            limits.limit(period, Figure::Tokens, tokens);
            limits.limit(period, Figure::Cost, scaled(cost_usd, MICRO, &key("cost_usd"))?);
            limits.limit(period, Figure::Time, scaled(minutes, MS_PER_MINUTE, &key("minutes"))?);
        }
        Ok(limits)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
fn scaled(amount: Option<f64>, factor: f64, key: &str) -> Result<Option<u64>, String> {
    match amount {
        None => Ok(None),
        Some(amount) if (0.0..=1e9).contains(&amount) => Ok(Some((amount * factor).round() as u64)),
        Some(amount) => Err(format!("{key} is a number from 0 to 1000000000, not {amount}")),
    }
}

/// Converts dollars to millionths. `None` for a negative amount, or one beyond 1e9.
pub fn micro_dollars(dollars: f64) -> Option<u64> {
    scaled(Some(dollars), MICRO, "").ok().flatten()
}

#[expect(clippy::cast_precision_loss, reason = "an amount of money is far below 2^52 millionths")]
pub fn dollars(micro_dollars: u64) -> f64 {
    micro_dollars as f64 / MICRO
}

impl BudgetLimits {
    pub fn get(&self, period: Period, figure: Figure) -> Option<u64> {
        self.0[period as usize][figure as usize]
    }

    /// Adds a limit. The stricter one counts.
    pub fn limit(&mut self, period: Period, figure: Figure, limit: Option<u64>) {
        let slot = &mut self.0[period as usize][figure as usize];
        *slot = slot.iter().chain(&limit).min().copied();
    }

    #[must_use]
    pub fn stricter(mut self, other: &Self) -> Self {
        for period in PERIODS {
            for figure in FIGURES {
                self.limit(period, figure, other.get(period, figure));
            }
        }
        self
    }

    pub fn has(&self, period: Period) -> bool {
        self.0[period as usize].iter().any(Option::is_some)
    }

    pub fn limits_cost(&self) -> bool {
        PERIODS.iter().any(|period| self.get(*period, Figure::Cost).is_some())
    }

    /// Compares the amounts of each period with its limits.
    pub fn state(&self, spent: impl Fn(Period) -> Spent) -> BudgetState {
        let uses = || PERIODS.iter().flat_map(|period| self.uses(*period, spent(*period)));
        match uses().find(BudgetUse::is_exceeded) {
            Some(exceeded) => BudgetState::Exceeded(exceeded),
            None => BudgetState::Within(uses().filter(BudgetUse::needs_warning).collect()),
        }
    }

    /// Milliseconds until the first budget of time needs a warning, unless it has been given, or is exceeded. `None` if
    /// time is not limited.
    pub fn time_left(
        &self,
        spent: impl Fn(Period) -> Spent,
        is_warned: impl Fn(Period) -> bool,
    ) -> Option<u64> {
        let limited = PERIODS.iter().filter_map(|period| Some((*period, self.get(*period, Figure::Time)?)));
        let left = limited.map(|(period, limit)| {
            let end = if is_warned(period) { limit.saturating_add(1) } else { warning_at(limit) };
            end.saturating_sub(spent(period).ms).max(1)
        });
        left.min()
    }

    fn uses(&self, period: Period, spent: Spent) -> impl Iterator<Item = BudgetUse> {
        FIGURES.into_iter().filter_map(move |figure| {
            let limit = self.get(period, figure)?;
            Some(BudgetUse { period, figure, limit, spent: spent.of(figure) })
        })
    }
}

/// For people: "session: $5.00, 30 min; day: 100 tokens". Empty without a limit.
impl fmt::Display for BudgetLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let periods = PERIODS.iter().filter(|period| self.has(**period)).map(|period| {
            let limits = FIGURES.iter().filter_map(|figure| Some(figure.text(self.get(*period, *figure)?)));
            format!("{}: {}", period.as_str(), limits.collect::<Vec<_>>().join(", "))
        });
        f.write_str(&periods.collect::<Vec<_>>().join("; "))
    }
}

impl Figure {
    fn text(self, amount: u64) -> String {
        match self {
            Self::Tokens => format!("{amount} tokens"),
            Self::Cost => dollar_text(amount),
            Self::Time => time_text(amount),
        }
    }
}

impl Spent {
    pub fn of(self, figure: Figure) -> u64 {
        match figure {
            Figure::Tokens => self.tokens,
            Figure::Cost => self.micro_dollars,
            Figure::Time => self.ms,
        }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            micro_dollars: self.micro_dollars.saturating_add(other.micro_dollars),
            ms: self.ms.saturating_add(other.ms),
        }
    }
}

impl Period {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Session => "session",
            Self::Day => "day",
        }
    }
}

#[cfg(test)]
mod tests;
