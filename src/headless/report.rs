//! The JSON lines of a headless run, and their schemas: the same types write the lines and describe them.

use std::io::{self, Write};

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, json_schema};
use serde::Serialize;

use super::{HeadlessJob, RunSession};
use crate::acp::{Cost, StopReason, Update, UsageUpdate};
use crate::budget::{self, BudgetUse, Figure, Period};
use crate::conversation::acp_updates::TOKENS_META;
use crate::model::ModelId;
use crate::session::{RuleReport, TurnSpent};

/// A line of `--output stream-json`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "made for one line")]
pub(super) enum StreamLine<'a> {
    Init(RunStart<'a>),
    Update(UpdateLine<'a>),
    Denied(DeniedLine<'a>),
    Result(HeadlessReport<'a>),
}

/// The first line: the session as the run starts.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunStart<'a> {
    r#type: InitTag,
    session_id: &'a str,
    mode: &'a str,
    /// Mode that limits the session, if its own mode would allow more.
    limited_to: Option<&'a str>,
    /// `null` if an external agent answers.
    model: Option<&'a str>,
    cwd: String,
    /// Names of the tools that the mode offers. Empty for an external agent.
    tools: &'a [String],
    limits: RunLimits,
    /// Version of Modegate.
    version: &'static str,
}

/// The strictest limits of the turn, by options, settings and the mode.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(clippy::struct_field_names, reason = "the names in the JSON line")]
struct RunLimits {
    max_steps: Option<u32>,
    max_tokens: Option<u64>,
    max_cost_usd: Option<f64>,
    timeout_ms: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct UpdateLine<'a> {
    r#type: UpdateTag,
    /// A session update of ACP version 1.
    #[schemars(schema_with = "acp_update")]
    update: &'a Update,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeniedLine<'a> {
    r#type: DeniedTag,
    #[serde(flatten)]
    call: &'a DeniedCall,
}

/// A call that was denied, or a rule that refused changes of its command.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeniedCall {
    pub title: String,
    /// `null` if an external agent does not name it.
    pub tool: Option<String>,
    /// What denied the call, such as `access`, or `no_user` if only a user could allow it. For refused changes of a
    /// command, the text of the rule.
    pub rule: String,
    /// The same for people.
    pub reason: String,
    pub call_id: String,
}

/// The tags are members, because schemars describes no tag of a struct, and a tag of the enum is a member beside a
/// reference, which a schema cannot close.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum InitTag {
    #[default]
    Init,
}

#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum UpdateTag {
    #[default]
    Update,
}

#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum DeniedTag {
    #[default]
    Denied,
}

#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ResultTag {
    #[default]
    Result,
}

fn acp_update(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": { "sessionUpdate": { "type": "string" } },
        "required": ["sessionUpdate"],
        "additionalProperties": true,
    })
}

impl<'a> RunStart<'a> {
    pub(super) fn new(opened: &'a RunSession, cwd: &std::path::Path, job: &HeadlessJob<'_>) -> Self {
        let RunSession { id, open, offer } = opened;
        let turn = |figure| job.budgets.get(Period::Turn, figure);
        Self {
            r#type: InitTag::Init,
            session_id: &id.0,
            mode: &open.modes.current_mode_id.0,
            limited_to: open.limited_to.as_ref().map(|(limit, _)| limit.as_str()),
            model: open.model.as_ref().map(ModelId::as_str),
            cwd: cwd.display().to_string(),
            tools: &offer.tools,
            limits: RunLimits {
                // An external agent counts its own requests.
                max_steps: open.model.as_ref().map(|_| offer.max_steps),
                max_tokens: turn(Figure::Tokens),
                max_cost_usd: turn(Figure::Cost).map(budget::dollars),
                timeout_ms: turn(Figure::Time),
            },
            version: env!("MODEGATE_VERSION"),
        }
    }
}

impl<'a> From<&'a Update> for StreamLine<'a> {
    fn from(update: &'a Update) -> Self {
        Self::Update(UpdateLine { r#type: UpdateTag::Update, update })
    }
}

impl From<&RuleReport> for DeniedCall {
    fn from(report: &RuleReport) -> Self {
        let RuleReport { call, rule } = report.clone();
        let reason = format!("the command ran, and the rule {rule} refused some of its changes");
        Self { title: call.title, tool: Some(call.tool), rule, reason, call_id: call.id.to_string() }
    }
}

impl<'a> From<&'a DeniedCall> for StreamLine<'a> {
    fn from(call: &'a DeniedCall) -> Self {
        Self::Denied(DeniedLine { r#type: DeniedTag::Denied, call })
    }
}

/// Tokens of all model requests of the run, apart from those of sub-agents. `input_tokens` includes the
/// cached ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(clippy::struct_field_names, reason = "the names in the JSON result")]
pub(super) struct TokenCount {
    pub input_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    pub output_tokens: u64,
}

impl TokenCount {
    /// Returns the tokens of this request alone.
    pub(super) fn add(&mut self, update: &UsageUpdate) -> Self {
        // An external agent reports none.
        let tokens = update.meta.as_ref().and_then(|meta| meta.get(TOKENS_META));
        let count = |name: &str| tokens.and_then(|tokens| tokens[name].as_u64()).unwrap_or_default();
        let of_request = Self {
            input_tokens: count("input"),
            cache_read_tokens: count("cacheRead"),
            cache_write_tokens: count("cacheWrite"),
            output_tokens: count("output"),
        };
        self.input_tokens += of_request.input_tokens;
        self.cache_read_tokens += of_request.cache_read_tokens;
        self.cache_write_tokens += of_request.cache_write_tokens;
        self.output_tokens += of_request.output_tokens;
        of_request
    }

    pub(super) fn sum(self) -> u64 {
        self.input_tokens + self.output_tokens
    }
}

/// The amounts that the turn has spent, with its sub-agents and summaries.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReportedBudget {
    pub tokens: u64,
    /// `None` if the price of a model is unknown.
    pub cost_usd: Option<f64>,
    /// The budget that ended the turn.
    pub exceeded: Option<ExceededBudget>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
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

/// The cost of the session so far.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ReportedCost {
    amount: f64,
    /// A currency's code, or a unit such as `credits`.
    currency: String,
}

impl From<&Cost> for ReportedCost {
    fn from(cost: &Cost) -> Self {
        Self { amount: cost.amount, currency: cost.currency.clone() }
    }
}

/// The last line of `--output stream-json`, and the only one of `--output json`.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct HeadlessReport<'a> {
    pub r#type: ResultTag,
    /// `None` if the run did not start.
    pub session_id: Option<&'a str>,
    pub mode: Option<&'a str>,
    pub limited_to: Option<&'a str>,
    pub model: Option<&'a str>,
    pub warning: Option<&'a str>,
    /// A stop reason of ACP, or `null` after an error.
    #[schemars(with = "Option<String>")]
    pub stop_reason: Option<StopReason>,
    pub error: Option<&'a str>,
    pub denied: &'a [DeniedCall],
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
    pub cost: Option<ReportedCost>,
    pub failed_checks: &'a [String],
    pub changed_files: &'a [String],
    pub uncovered_changes: &'a [String],
}

/// Prints the result of a run that did not start.
pub fn print_failure(output: &mut impl Write, error: &str) -> io::Result<()> {
    let report = HeadlessReport { error: Some(error), ..HeadlessReport::default() };
    writeln!(output, "{}", serde_json::to_value(report)?)?;
    output.flush()
}

/// The schema of the result.
pub fn result_schema() -> Schema {
    schema_of::<HeadlessReport<'static>>()
}

/// The schema of a line of `--output stream-json`.
pub fn stream_schema() -> Schema {
    schema_of::<StreamLine<'static>>()
}

/// The schema of the written form, in which all members are required.
fn schema_of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>()
}
