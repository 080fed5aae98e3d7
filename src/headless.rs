//! Runs one prompt without an editor. Denies permission requests, because no user can answer them.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio_util::sync::CancellationToken;

use crate::acp::{AvailableCommand, ContentBlock, NewSessionRequest, SessionId, SessionModeId, StopReason};
use crate::agent::Agent;
use crate::budget::{self, BudgetLimits, BudgetUse, Figure, Period};
use crate::client::{ClientEnd, ClientError, ClientRequest, Outgoing};
use crate::model::catalog::REMEDY;
use crate::session::{
    EndReason, LastTurn, Misspelt, PromptEnd, PromptOptions, SessionHandle, SessionOffer, SessionSnapshot,
};
use crate::text;
use colors::Meaning;
use denials::Denials;
use report::{RunStart, StreamLine, TokenCount};
use screen::Screen;
use view::View;

pub use report::{print_failure, result_schema, stream_schema};
pub use screen::{ProgressTerminal, Verbosity};
pub use view::{HeadlessFormat, printable};

mod call_content;
mod colors;
mod denials;
mod details;
mod live_line;
mod report;
mod screen;
mod view;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadlessOutcome {
    Done,
    /// The turn failed or reached a limit of the model.
    Failed,
    /// The last attempt at something was denied, or the answer in plan mode is empty.
    Denied,
    /// Required checks failed, did not run, or are not defined.
    ChecksFailed,
    /// The model repeated the same calls with the same results.
    Looping,
    /// The turn reached `--max-steps`, or the limit of the mode.
    StepLimit,
    /// The turn used more tokens than its budget.
    TokenLimit,
    /// The turn took longer than its budget.
    TimedOut,
    /// The turn cost more than its budget, or that of the session or the day is used up.
    BudgetExceeded,
    Interrupted,
}

/// Limits that were given as options. The session enforces them as budgets of the turn.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadlessLimits {
    /// Input and output tokens of all model requests together. The reply that exceeds it is the last one.
    pub max_tokens: Option<u64>,
    /// In US dollars.
    pub max_cost: Option<f64>,
    pub timeout: Option<Duration>,
}

pub struct HeadlessJob<'a> {
    pub cwd: &'a Path,
    pub prompt: HeadlessPrompt,
    pub format: HeadlessFormat,
    pub limits: HeadlessLimits,
    /// All budgets of the session: the options, and those of the settings.
    pub budgets: BudgetLimits,
    /// `None` if the progress does not go to a terminal.
    pub terminal: Option<ProgressTerminal>,
    pub verbosity: Verbosity,
    /// Session to continue; `None` starts a new one.
    pub session: Option<StoredTarget>,
    /// True if the user named a model for this run, which answers if that of the mode cannot be used.
    pub has_chosen_model: bool,
    /// True if this run, not only the user's settings, requires that there are checks.
    pub needs_checks: bool,
    /// Returns false if nothing is kept of the session.
    pub is_stored: &'a dyn Fn() -> bool,
}

/// The parts of a prompt. Slash commands count only in `typed`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HeadlessPrompt {
    /// Empty if the user typed no prompt.
    pub typed: String,
    /// Text of a file or another program.
    pub piped: Option<String>,
}

impl HeadlessPrompt {
    fn into_blocks(self) -> (Vec<ContentBlock>, PromptOptions) {
        let typed = (!self.typed.is_empty()).then(|| self.typed.into());
        let typed_blocks = Some(usize::from(typed.is_some()));
        let blocks = typed.into_iter().chain(self.piped.map(ContentBlock::from)).collect();
        (blocks, PromptOptions { typed_blocks, ..PromptOptions::default() })
    }
}

pub struct StoredTarget {
    pub id: SessionId,
    /// `None` keeps the session's mode.
    pub mode: Option<SessionModeId>,
}

pub async fn run(
    agent: &Agent,
    mut end: ClientEnd,
    job: HeadlessJob<'_>,
    output: &mut impl Write,
    progress: &mut impl Write,
    stop: CancellationToken,
) -> anyhow::Result<HeadlessOutcome> {
    let start = Instant::now();
    let mut screen = Screen::new(output, progress, job.terminal, job.verbosity);
    let id = screen.during("opening the session", start, session(agent, &job)).await??;
    let handle = agent.session(&id)?;
    let opened = RunSession { id, open: handle.snapshot().await?, offer: handle.offer().await? };
    let RunSession { id, open, .. } = &opened;
    if let Some(error) = misspelt(&job.prompt.typed, &handle.commands().await?) {
        agent.close().await;
        bail!(error);
    }
    let folder =
        if job.session.is_some() { format!(" in {}", handle.cwd().display()) } else { String::new() };
    let limit = open.mode_limit().map_or_else(String::new, |limit| format!(", {limit}"));
    let mut view = new_view(screen, &opened, &job);
    let line = format!("modegate: {}{limit}, session {id}{folder}", view.shown_mode());
    // A limited run does less than its options say, which a quiet one must tell, too.
    if limit.is_empty() {
        view.screen.note(line)?;
    } else {
        view.screen.report(line)?;
    }
    if job.format == HeadlessFormat::StreamJson {
        view.line(&StreamLine::Init(RunStart::new(&opened, handle.cwd(), &job)))?;
    }
    let refused = match model_warning(open, &view.mode, job.has_chosen_model) {
        Ok(warning) => {
            view.warning = warning;
            why_no_checks(open)
                .filter(|_| job.needs_checks)
                .map(|why| (HeadlessOutcome::ChecksFailed, why.into()))
        }
        Err(error) => Some((HeadlessOutcome::Failed, error)),
    };
    if let Some((outcome, error)) = refused {
        view.finish(None, Some(&error), &LastTurn::default())?;
        agent.close().await;
        view.screen.report(format!("{} {error}", failed(&view)))?;
        return Ok(outcome);
    }
    if let Some(warning) = &view.warning {
        let name = view.screen.colors().paint(Meaning::Warning, "modegate:");
        view.screen.note(format!("{name} {warning}"))?;
    }
    let stopped = turn(&handle, &mut end, job.prompt, &mut view, &stop).await?;
    let (ended, head, command) = match stopped {
        Ok(PromptEnd { reason, head, command, .. }) => (Ok(reason), head, command),
        Err(error) => (Err(error), None, None),
    };
    let stopped = ended.clone().map(EndReason::stop_reason);
    while let Ok(message) = end.try_recv() {
        take(&mut view, message, &handle).await?;
    }
    if let Some(command) = &command {
        view.answer_command(&command.answer)?;
    }
    let last_turn = handle.last_turn().await.unwrap_or_default();
    let has_failed = command.map(|command| command.has_failed);
    let (outcome, error) = limit_reached(&ended, &job.limits, last_turn.steps)
        .unwrap_or_else(|| outcome(&ended, has_failed, &last_turn.failed_checks, &view));
    view.tell_of_jobs(&last_turn.running_jobs);
    let (outcome, error) = if_recorded((outcome, error), &last_turn);
    view.exceeded = ended.ok().and_then(EndReason::exceeded_budget);
    view.finish(stopped.ok(), error.as_deref(), &last_turn)?;
    agent.close().await;
    if let Some(head) = head {
        // Kept elsewhere, the head reveals a truncated log.
        view.screen.note(format!("modegate: head of the audit log {}", head.hash))?;
    }
    // The answer of a slash command that failed is printed already.
    if let Some(error) = error.filter(|_| has_failed != Some(true)) {
        if outcome == HeadlessOutcome::Denied {
            view.repeat_denials()?;
        }
        view.screen.report(format!("{} {error}", failed(&view)))?;
    }
    if outcome == HeadlessOutcome::Interrupted && (job.is_stored)() {
        view.screen.note(format!("modegate: continue with `modegate --resume {id} -p …`"))?;
    }
    Ok(outcome)
}

/// The session of a run, as it begins.
struct RunSession {
    id: SessionId,
    open: SessionSnapshot,
    offer: SessionOffer,
}

fn new_view<'a, O: Write, P: Write>(
    screen: Screen<'a, O, P>,
    RunSession { id, open, offer }: &RunSession,
    job: &HeadlessJob<'_>,
) -> View<'a, O, P> {
    View {
        screen,
        format: job.format,
        session: id.to_string(),
        mode: open.modes.current_mode_id.to_string(),
        permits: offer.permits.clone(),
        limited_to: open.limited_to.as_ref().map(|(limit, _)| limit.clone()),
        denials: Denials::default(),
        notices: Vec::new(),
        printed: 0,
        is_command: job.prompt.typed.trim_start().starts_with('/'),
        calls: HashMap::new(),
        call_count: 0,
        last_call: None,
        text: String::new(),
        answered: false,
        model: open.model.as_ref().map(ToString::to_string),
        warning: None,
        message: None,
        message_start: 0,
        plan: None,
        tokens: TokenCount::default(),
        exceeded: None,
        cost: None,
        start: Instant::now(),
    }
}

/// Returns the error about a slash command that does not exist, and that resembles one.
fn misspelt(typed: &str, commands: &[AvailableCommand]) -> Option<String> {
    let names: Vec<&str> = commands.iter().map(|command| command.name.as_str()).collect();
    let Misspelt { word, nearest } = Misspelt::find(typed, &names)?;
    (word.to_ascii_lowercase() != nearest).then(|| {
        format!(
            "there is no command /{word}: did you mean /{nearest}? The commands are {}. To send the text to the model, \
             begin it with another word",
            names.join(", ")
        )
    })
}

/// The start of a line that says why a run failed.
fn failed<O: Write, P: Write>(view: &View<'_, O, P>) -> String {
    view.screen.colors().paint(Meaning::Failed, "modegate:")
}

/// A run fails if it, or a change that it made, is not recorded.
fn if_recorded(
    ended: (HeadlessOutcome, Option<String>),
    last_turn: &LastTurn,
) -> (HeadlessOutcome, Option<String>) {
    match (ended.0, &last_turn.unrecorded) {
        (HeadlessOutcome::Done | HeadlessOutcome::Denied, Some(reason)) => {
            let text =
                format!("the run is not recorded, so it can neither be continued nor undone: {reason}");
            (HeadlessOutcome::Failed, Some(text))
        }
        (HeadlessOutcome::Done, None) if last_turn.has_unrecorded_changes => {
            let text = "the record of changes failed, so that not all of them can be undone: a notice has the reason";
            (HeadlessOutcome::Failed, Some(text.into()))
        }
        _ => ended,
    }
}

/// Returns why the session can run no check. Where nothing changes, no check is required.
fn why_no_checks(open: &SessionSnapshot) -> Option<&'static str> {
    if open.model.is_none() {
        Some("--require-checks: external agents run no checks")
    } else if open.checks == 0 && !open.is_read_only {
        Some(
            "--require-checks: no checks may run here: define some in your modes.yaml, or trust the project's file with \
             `modegate trust`",
        )
    } else {
        None
    }
}

/// Returns a warning about the model that answers, or an error if none may.
fn model_warning(
    open: &SessionSnapshot,
    mode: &str,
    has_chosen_model: bool,
) -> Result<Option<String>, String> {
    if let Some(text) = &open.unusable_model {
        let warning = format!("{text}; the model that you named answers");
        return if has_chosen_model { Ok(Some(warning)) } else { Err(text.clone()) };
    }
    match (open.is_fallback, open.is_read_only) {
        (false, _) => Ok(None),
        (true, true) => Ok(Some(format!(
            "no model is configured, so the offline model answers, which is not a language model: {REMEDY}"
        ))),
        (true, false) => Err(format!(
            "no model is configured, and {mode} mode does not fall back to the offline model: {REMEDY}; or choose \
             the offline model with `--model offline`"
        )),
    }
}

/// Runs the turn.
async fn turn<O: Write, P: Write>(
    handle: &SessionHandle,
    end: &mut ClientEnd,
    prompt: HeadlessPrompt,
    view: &mut View<'_, O, P>,
    stop: &CancellationToken,
) -> std::io::Result<Result<PromptEnd, String>> {
    let (blocks, options) = prompt.into_blocks();
    let turn = handle.prompt(blocks, options, stop.child_token());
    tokio::pin!(turn);
    loop {
        tokio::select! {
            biased;
            Some(message) = end.recv() => {
                take(view, message, handle).await?;
                view.draw()?;
            }
            stopped = &mut turn => {
                view.screen.erase()?;
                return Ok(stopped.map_err(|error| error.to_string()));
            }
            () = view.screen.next_frame() => view.draw()?,
        }
    }
}

/// Returns `None` if the turn reached no limit of Modegate.
fn limit_reached(
    ended: &Result<EndReason, String>,
    flags: &HeadlessLimits,
    steps: u32,
) -> Option<(HeadlessOutcome, Option<String>)> {
    match ended {
        Ok(EndReason::BudgetExceeded(exceeded)) => {
            Some((budget_outcome(exceeded), Some(budget_text(exceeded, flags))))
        }
        Ok(EndReason::Stop(StopReason::MaxTurnRequests)) => {
            let requests = text::counted(steps, "model request", "model requests");
            Some((HeadlessOutcome::StepLimit, Some(format!("the turn reached its limit of {requests}"))))
        }
        _ => None,
    }
}

fn budget_outcome(exceeded: &BudgetUse) -> HeadlessOutcome {
    match (exceeded.period, exceeded.figure) {
        (Period::Turn, Figure::Tokens) => HeadlessOutcome::TokenLimit,
        (Period::Turn, Figure::Time) => HeadlessOutcome::TimedOut,
        (Period::Turn, Figure::Cost) | (Period::Session | Period::Day, _) => HeadlessOutcome::BudgetExceeded,
    }
}

/// Names the option, if it set the limit.
fn budget_text(exceeded: &BudgetUse, flags: &HeadlessLimits) -> String {
    let BudgetUse { limit, spent, .. } = *exceeded;
    let of_option = match (exceeded.period, exceeded.figure) {
        (Period::Turn, Figure::Tokens) => flags
            .max_tokens
            .filter(|max| *max == limit)
            .map(|max| format!("the run used {spent} tokens, more than --max-tokens {max}")),
        (Period::Turn, Figure::Cost) => flags
            .max_cost
            .filter(|max| budget::micro_dollars(*max) == Some(limit))
            .map(|max| format!("the run cost ${}, more than --max-cost {max}", budget::dollars(spent))),
        (Period::Turn, Figure::Time) => flags
            .timeout
            .filter(|timeout| timeout.as_millis() == u128::from(limit))
            .map(|timeout| format!("the run took longer than --timeout {}", timeout.as_secs_f64())),
        (Period::Session | Period::Day, _) => None,
    };
    of_option.unwrap_or_else(|| exceeded.reason())
}

/// Returns the outcome, and an error unless it is [`Outcome::Done`]. `has_failed` is about a slash command;
/// `None` if the model got the prompt.
fn outcome<O: Write, P: Write>(
    ended: &Result<EndReason, String>,
    has_failed: Option<bool>,
    failed_checks: &[String],
    view: &View<'_, O, P>,
) -> (HeadlessOutcome, Option<String>) {
    let is_plan = view.mode == "plan";
    let stopped = ended.as_ref().map(|reason| reason.stop_reason());
    let (outcome, error) = match (stopped, has_failed) {
        (Err(error), _) => (HeadlessOutcome::Failed, error.clone()),
        (Ok(_), _) if *ended == Ok(EndReason::Looping) => {
            (HeadlessOutcome::Looping, "the model repeated the same calls with the same results".into())
        }
        (Ok(_), _) if *ended == Ok(EndReason::ChecksFailed) => (
            HeadlessOutcome::ChecksFailed,
            format!("required checks have not passed: {}", failed_checks.join("; ")),
        ),
        (Ok(_), _) if *ended == Ok(EndReason::NoAnswer) => {
            (HeadlessOutcome::Failed, "the model gave no answer, although it was asked again".into())
        }
        (Ok(StopReason::Cancelled), _) => (HeadlessOutcome::Interrupted, "the run was interrupted".into()),
        (Ok(StopReason::MaxTokens), _) => {
            (HeadlessOutcome::Failed, "the model reached its output limit".into())
        }
        (Ok(StopReason::Refusal), _) => (HeadlessOutcome::Failed, "the model refused to answer".into()),
        (Ok(StopReason::EndTurn), Some(true)) => (HeadlessOutcome::Failed, view.text.trim().to_owned()),
        // In plan mode a plan is a success, even if calls were denied. A later call may have done the same.
        (Ok(StopReason::EndTurn), None) if !is_plan && view.denials.left() > 0 => {
            let calls = text::counted(view.denials.left(), "call was", "calls were");
            (HeadlessOutcome::Denied, format!("{calls} denied"))
        }
        (Ok(StopReason::EndTurn), None) if is_plan && !view.answered && view.plan.is_none() => {
            (HeadlessOutcome::Denied, "the answer is empty".into())
        }
        (Ok(StopReason::EndTurn), None) if view.text.trim().is_empty() => {
            (HeadlessOutcome::Failed, "the answer is empty".into())
        }
        (Ok(StopReason::EndTurn), _) => return (HeadlessOutcome::Done, None),
        (Ok(_), _) => (HeadlessOutcome::Failed, "the turn ended for an unknown reason".into()),
    };
    (outcome, Some(error))
}

async fn session(agent: &Agent, job: &HeadlessJob<'_>) -> anyhow::Result<SessionId> {
    let Some(StoredTarget { id, mode }) = &job.session else {
        return Ok(agent
            .new_session(&NewSessionRequest::new(job.cwd), &CancellationToken::new())
            .await?
            .session_id);
    };
    let handle = agent.open_stored(id).await?;
    if let Some(mode) = mode {
        handle.set_mode(mode.clone(), &CancellationToken::new()).await?;
    }
    Ok(id.clone())
}

async fn take<O: Write, P: Write>(
    view: &mut View<'_, O, P>,
    message: Outgoing,
    session: &SessionHandle,
) -> std::io::Result<()> {
    match message {
        Outgoing::Update(notification, _room) | Outgoing::Replayed(notification, _room) => {
            view.update(&notification.update)
        }
        Outgoing::Barrier(stored) => {
            let _ = stored.await;
            Ok(())
        }
        Outgoing::Request { request: ClientRequest::RequestPermission(request), reply, .. } => {
            let reason = session.ask_reason(request.tool_call.tool_call_id.clone()).await;
            view.deny(&request, reason.as_ref())?;
            let _ = reply.send(Err(ClientError::Gone));
            Ok(())
        }
        // This client offers no other capability.
        Outgoing::Request { reply, .. } => {
            let _ = reply.send(Err(ClientError::Gone));
            Ok(())
        }
        Outgoing::Answer { .. }
        | Outgoing::Withdraw(_)
        | Outgoing::ElicitationCompleted(_)
        | Outgoing::Signal(..) => Ok(()),
    }
}
