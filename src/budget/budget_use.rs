//! One budget and its spent part, with the texts about it for the user and the model. Pure.

use super::{Figure, MICRO, MS_PER_MINUTE, Period, WARNING_PERCENT, dollars};
use crate::text::counted;

/// A budget, and the spent part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetUse {
    pub period: Period,
    pub figure: Figure,
    /// In the unit of the figure in [`Spent`].
    pub limit: u64,
    pub spent: u64,
}

impl BudgetUse {
    pub(super) fn is_exceeded(&self) -> bool {
        self.spent > self.limit
    }

    pub(super) fn needs_warning(&self) -> bool {
        self.spent >= warning_at(self.limit)
    }

    /// Returns the limit and what was spent, in tokens, US dollars or minutes.
    #[expect(clippy::cast_precision_loss, reason = "amounts are far below 2^52")]
    pub fn in_units(&self) -> (f64, f64) {
        let unit = match self.figure {
            Figure::Tokens => 1.0,
            Figure::Cost => MICRO,
            Figure::Time => MS_PER_MINUTE,
        };
        (self.limit as f64 / unit, self.spent as f64 / unit)
    }

    pub(super) fn amounts(&self) -> String {
        match self.figure {
            Figure::Tokens => format!("{} of {} tokens", self.spent, self.limit),
            figure => format!("{} of {}", figure.text(self.spent), figure.text(self.limit)),
        }
    }

    fn owner(&self) -> &'static str {
        match self.period {
            Period::Turn => "this turn",
            Period::Session => "this session",
            Period::Day => "this day",
        }
    }

    /// Why nothing more is requested, as a clause.
    pub fn reason(&self) -> String {
        format!("the budget of {} is used up ({})", self.owner(), self.amounts())
    }

    /// For the user: the reason for the end, and the next step. `renews` is the next local midnight.
    pub fn end_notice(&self, renews: &str) -> String {
        let next = match self.period {
            Period::Turn => "Send another prompt to continue with a new budget".to_owned(),
            Period::Session => "Start a new session, or raise `budgets` in config.yaml".to_owned(),
            Period::Day => {
                format!("It renews at midnight ({renews}). To continue now, raise `budgets` in config.yaml")
            }
        };
        let commands = if self.period == Period::Turn { "" } else { " Slash commands still work." };
        let policy = if self.period == Period::Turn { "" } else { ", unless a policy sets the limit" };
        format!("\nStopped: {}. {next}{policy}.{commands}\n", self.reason())
    }

    /// For the user, before the end.
    pub fn warning(&self) -> String {
        format!(
            "{WARNING_PERCENT} % of the budget of {} are used ({}). It ends the turn when it is used up.\n\n",
            self.owner(),
            self.amounts()
        )
    }

    /// For the model, so that it can report before the turn ends.
    pub fn note(&self) -> String {
        format!(
            "{} of the budget of {} are used; when it is used up, no further reply of yours is requested. Finish what \
             you can, leave the files in a working state, and report what is done and what is left.",
            self.amounts(),
            self.owner()
        )
    }
}

/// The amount from which on a warning is due.
pub(super) fn warning_at(limit: u64) -> u64 {
    limit / 100 * WARNING_PERCENT + (limit % 100 * WARNING_PERCENT).div_ceil(100)
}

/// Two digits behind the point, and more for less than a cent.
pub(super) fn dollar_text(micro_dollars: u64) -> String {
    let digits = if micro_dollars > 0 && micro_dollars < 10_000 { 6 } else { 2 };
    format!("${:.digits$}", dollars(micro_dollars))
}

pub(super) fn time_text(ms: u64) -> String {
    let (minutes, seconds) = (ms / 60_000, ms / 1000 % 60);
    match minutes {
        0 => counted_tenths(ms),
        _ if seconds == 0 => format!("{minutes} min"),
        _ => format!("{minutes} min {seconds} s"),
    }
}

fn counted_tenths(ms: u64) -> String {
    if ms.is_multiple_of(1000) {
        return counted(ms / 1000, "second", "seconds");
    }
    format!("{}.{} s", ms / 1000, ms / 100 % 10)
}
