//! Limits of a headless run, as flags.

use std::time::Duration;

use crate::budget;

#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct LimitFlags {
    /// End the turn after this number of model requests [with -p]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_steps: Option<u32>,
    /// End the turn once its model requests have used more tokens, input and output together [with -p]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_tokens: Option<u64>,
    /// End the turn once its model requests have cost more US dollars, as far as prices are known [with -p]
    #[arg(long, value_name = "USD", value_parser = dollars)]
    pub(super) max_cost: Option<f64>,
    /// End the turn after this number of seconds [with -p]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) timeout: Option<Duration>,
    /// Fail unless the checks in your modes file pass at the end of the turn [with -p]
    #[arg(long)]
    pub(super) require_checks: bool,
}

impl LimitFlags {
    pub(super) fn is_empty(self) -> bool {
        let Self { max_steps, max_tokens, max_cost, timeout, require_checks } = self;
        let limits_turn = max_tokens.is_some() || max_cost.is_some() || timeout.is_some();
        max_steps.is_none() && !limits_turn && !require_checks
    }
}

fn dollars(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is no number of US dollars"))?;
    let is_amount = budget::micro_dollars(number).is_some_and(|amount| amount > 0);
    if is_amount { Ok(number) } else { Err("the cost must be more than 0".into()) }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    let time = Duration::try_from_secs_f64(number).map_err(|error| error.to_string())?;
    if time.is_zero() { Err("the time must be longer than 0".into()) } else { Ok(time) }
}
