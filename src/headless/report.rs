//! The JSON object at the end of a headless run.

use std::io::{self, Write};

use serde::Serialize;

use crate::acp::{Cost, StopReason, UsageUpdate};
use crate::budget::{self, BudgetUse, Figure, Period};
use crate::conversation::acp_updates::TOKENS_META;
use crate::session::TurnSpent;

/// Tokens of all model requests of the run, apart from those of sub-agents. `input_tokens` includes the
/// cached ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(clippy::struct_field_names, reason = "the names in the JSON result")]
pub(super) struct TokenCount {
    pub input_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    pub output_tokens: u64,
}

impl TokenCount {
    pub(super) fn add(&mut self, update: &UsageUpdate) {
        // An external agent reports none.
        let tokens = update.meta.as_ref().and_then(|meta| meta.get(TOKENS_META));
        let count = |name: &str| tokens.and_then(|tokens| tokens[name].as_u64()).unwrap_or_default();
        self.input_tokens += count("input");
        self.cache_read_tokens += count("cacheRead");
        self.cache_write_tokens += count("cacheWrite");
        self.output_tokens += count("output");
    }
}

/// What the turn has spent, with its sub-agents and summaries.
#[derive(Debug, Clone, Copy, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReportedBudget {
    pub tokens: u64,
    /// `None` if the price of a model is unknown.
    pub cost_usd: Option<f64>,
    /// The budget that ended the turn.
    pub exceeded: Option<ExceededBudget>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExceededBudget {
    pub period: Period,
    pub figure: Figure,
    /// In tokens, US dollars or minutes.
    pub limit: f64,
    pub spent: f64,
}

impl ReportedBudget {
    pub(super) fn new(spent: &TurnSpent, exceeded: Option<&BudgetUse>) -> Self {
        let exceeded = exceeded.map(|used| {
            let BudgetUse { period, figure, .. } = *used;
            let (limit, spent) = used.in_units();
            ExceededBudget { period, figure, limit, spent }
        });
        Self { tokens: spent.tokens, cost_usd: spent.micro_dollars.map(budget::dollars), exceeded }
    }
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HeadlessReport<'a> {
    pub r#type: &'static str,
    /// `None` if the run did not start.
    pub session_id: Option<&'a str>,
    pub mode: Option<&'a str>,
    pub limited_to: Option<&'a str>,
    pub model: Option<&'a str>,
    pub warning: Option<&'a str>,
    pub stop_reason: Option<StopReason>,
    pub error: Option<&'a str>,
    pub denied: &'a [String],
    pub notices: Vec<&'a str>,
    pub text: &'a str,
    pub last_message: &'a str,
    pub plan: Option<&'a str>,
    /// Number of the session's turns.
    pub turns: u64,
    pub steps: u32,
    pub duration_ms: u64,
    pub usage: TokenCount,
    pub budget: ReportedBudget,
    pub cost: Option<&'a Cost>,
    pub failed_checks: &'a [String],
    pub changed_files: &'a [String],
    pub uncovered_changes: &'a [String],
}

/// Prints the result of a run that did not start.
pub fn print_failure(output: &mut impl Write, error: &str) -> io::Result<()> {
    let report = HeadlessReport { r#type: "result", error: Some(error), ..HeadlessReport::default() };
    writeln!(output, "{}", serde_json::to_value(report)?)?;
    output.flush()
}
