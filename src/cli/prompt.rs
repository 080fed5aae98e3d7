//! Reads one prompt and runs it without an editor, for `modegate -p`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::{Cli, InputKind, LimitFlags, OutputFormat, UsageError, from_plan, progress, sessions};
use crate::agent::Agent;
use crate::budget::{self, Budgets, Figure, Period};
use crate::client;
use crate::config::{Config, Flags, HEADLESS_SERVER_TIMEOUT, Runtime};
use crate::headless::{self, HeadlessFormat, HeadlessJob, HeadlessOutcome, HeadlessPrompt, StoredTarget};
use crate::ids::Source;
use crate::store::retention;

/// Maximum time after a run for deleting old sessions.
const RETENTION_TIME: Duration = Duration::from_secs(2);

/// Maximum time after a run for hooks that get its end.
const NOTIFICATION_TIME: Duration = Duration::from_secs(5);

pub(super) enum Which {
    New,
    Newest,
    Stored(String),
}

impl Which {
    pub(super) fn take(cli: &mut Cli) -> Self {
        match (cli.resume.take(), cli.resume_latest) {
            (Some(id), _) => Self::Stored(id),
            (None, true) => Self::Newest,
            (None, false) => Self::New,
        }
    }
}

/// Makes the prompt and checks the options for it. Returns true if the prompt was read from stdin.
pub(super) fn prepare(
    cli: &mut Cli,
    flags: &Flags,
    input: &mut BufReader<impl Read>,
    input_kind: InputKind,
) -> anyhow::Result<bool> {
    if cli.resume.is_some() && flags.cwd.is_some() {
        let text = "--cwd is for new sessions: --resume continues in the session's own directory";
        return Err(UsageError::new(text).into());
    }
    from_plan::apply(cli).map_err(UsageError::of)?;
    let is_read = read_prompt(cli, flags.mode.is_some(), input, input_kind)?;
    let fault = match &cli.prompt {
        Some(_) if cli.record.is_some() || cli.serve.lockstep => {
            "--record and --lockstep are for conversations with a client, not for -p"
        }
        Some(prompt) if prompt.trim().is_empty() => "the prompt is empty",
        None if !cli.limits.is_empty() => {
            "--max-steps, --max-tokens, --max-cost, --timeout and --require-checks are for -p"
        }
        None if cli.progress.is_given() => "--quiet and --verbose are for -p",
        None if cli.resume_latest || cli.resume.is_some() => {
            "--continue and --resume are for -p; in an editor, open the session there"
        }
        _ => return Ok(is_read),
    };
    Err(UsageError::new(fault).into())
}

/// Reads the prompt from stdin where it stands there. Returns true if it was read, so that it was not typed.
fn read_prompt(
    cli: &mut Cli,
    mode_given: bool,
    input: &mut BufReader<impl Read>,
    input_kind: InputKind,
) -> anyhow::Result<bool> {
    let piped = cli.prompt.is_none() && input_kind != InputKind::Terminal;
    // With `--output`, piped input is a prompt; with `--mode` alone, it may come from an editor.
    let is_prompt = piped && (cli.output.is_some() || (mode_given && is_a_prompt(input)?));
    let is_read = cli.prompt.as_deref() == Some("-") || is_prompt;
    if is_read {
        let mut text = String::new();
        input.read_to_string(&mut text).context("reading the prompt from stdin")?;
        cli.prompt = Some(text);
    }
    Ok(is_read)
}

/// True if the first character is not a brace, as in protocol messages.
fn is_a_prompt(input: &mut impl BufRead) -> std::io::Result<bool> {
    let start = input.fill_buf()?.trim_ascii_start();
    Ok(start.first().is_some_and(|first| *first != b'{'))
}

/// Prints the JSON result of a run that did not start, and returns its error.
pub(super) fn failed(
    error: anyhow::Error,
    output_format: OutputFormat,
    output: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    match output_format {
        // The output is the error.
        _ if error.is::<std::io::Error>() => {}
        OutputFormat::Text => {}
        OutputFormat::Json | OutputFormat::StreamJson => {
            headless::print_failure(output, &format!("{error:#}"))?;
        }
    }
    Err(error)
}

pub(super) struct PromptRun {
    pub prompt: HeadlessPrompt,
    pub which: Which,
    pub output_format: OutputFormat,
    pub limits: LimitFlags,
    pub progress: progress::Progress,
}

pub(super) async fn run<O: Write, E: Write>(
    prompt: PromptRun,
    config: Config,
    mut output: O,
    errors: E,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    let output_format = prompt.output_format;
    let ended = run_prompt(prompt, config, &mut output, errors, stop).await;
    ended.or_else(|error| failed(error, output_format, &mut output))
}

async fn run_prompt<O: Write, E: Write>(
    PromptRun { prompt, which, output_format, limits, progress }: PromptRun,
    config: Config,
    output: &mut O,
    mut errors: E,
    stop: CancellationToken,
) -> anyhow::Result<ExitCode> {
    let (client, end) = client::channel();
    let (has_chosen_model, needs_checks) = (config.has_chosen_model(), limits.require_checks);
    let requires_checks = needs_checks || config.require_checks;
    let (cwd, first) = (config.cwd.clone(), config.first.clone());
    let runtime = config.without_editor().into_runtime().context("starting the record")?;
    let Runtime { mut context, host, retention: store_limits, telemetry, .. } = runtime;
    context.server_timeout = context.server_timeout.map(|_| HEADLESS_SERVER_TIMEOUT);
    context.max_steps = limits.max_steps;
    context.budgets = Arc::new(with_flags(&context.budgets, limits));
    let budgets = context.budgets.limits;
    context.ends_with_turn = true;
    context.requires_checks = requires_checks;
    context.tools = context.tools.without_questions();
    let stored = match which {
        Which::New => None,
        Which::Newest => {
            let agent = host.wrapped.as_ref().map(|agent| agent.id.clone());
            Some(sessions::newest(&context.store, cwd.clone(), agent).await?)
        }
        Which::Stored(part) => Some(sessions::to_resume(&context.store, &cwd, &part).await?),
    };
    let wanted_mode = first.mode.clone();
    let (store, hooks) = (context.store.clone(), context.hooks.clone());
    let agent = Agent::new(context, host, client, first);
    let format = match output_format {
        OutputFormat::Text => HeadlessFormat::Text,
        OutputFormat::Json => HeadlessFormat::Json,
        OutputFormat::StreamJson => HeadlessFormat::StreamJson,
    };
    let LimitFlags { max_tokens, max_cost, timeout, .. } = limits;
    let limits = headless::HeadlessLimits { max_tokens, max_cost, timeout };
    let session = stored.map(|id| StoredTarget { id, mode: wanted_mode });
    let job = HeadlessJob {
        cwd: &cwd,
        prompt,
        format,
        limits,
        budgets,
        terminal: progress.terminal,
        verbosity: progress.verbosity,
        session,
        has_chosen_model,
        needs_checks,
        is_stored: &|| !store.is_in_memory(),
    };
    let outcome = headless::run(&agent, end, job, output, &mut errors, stop).await?;
    if let Some(telemetry) = telemetry
        && let Some(lost) = telemetry.finish().await
    {
        writeln!(errors, "modegate: {lost}")?;
    }
    hooks.settle(NOTIFICATION_TIME).await;
    if !store_limits.is_off() {
        let deletion = retention::apply(&store, store_limits, Source::real().now_ms());
        // Ends in the middle of a step at most, and the next run goes on.
        if let Ok(Err(error)) = tokio::time::timeout(RETENTION_TIME, deletion).await {
            tracing::info!(%error, "old sessions could not be deleted");
        }
    }
    Ok(ExitCode::from(match outcome {
        HeadlessOutcome::Done => 0,
        HeadlessOutcome::Failed => 1,
        HeadlessOutcome::Denied => 3,
        HeadlessOutcome::StepLimit => 4,
        HeadlessOutcome::TokenLimit => 5,
        HeadlessOutcome::TimedOut => 6,
        HeadlessOutcome::Looping => 7,
        HeadlessOutcome::ChecksFailed => 8,
        HeadlessOutcome::BudgetExceeded => 9,
        HeadlessOutcome::Interrupted => 130,
    }))
}

/// The flags limit each turn. The stricter of a flag and a budget counts.
fn with_flags(budgets: &Budgets, flags: LimitFlags) -> Budgets {
    let LimitFlags { max_tokens, max_cost, timeout, .. } = flags;
    let mut budgets = budgets.clone();
    let milliseconds = timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
    budgets.limits.limit(Period::Turn, Figure::Tokens, max_tokens);
    budgets.limits.limit(Period::Turn, Figure::Cost, max_cost.and_then(budget::micro_dollars));
    budgets.limits.limit(Period::Turn, Figure::Time, milliseconds);
    budgets
}
