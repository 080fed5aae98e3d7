//! Runs the checks of a session that are due, each as a call of a tool for commands.
//!
//! The session decides such a call as it decides a call of the model, and shows and records it in the same way. The
//! model does not see it: a system note has the new findings.

use super::message::TurnMessage;
use super::reply::Ids;
use super::{Announced, Turn, TurnError};
use crate::checks::Check;
use crate::conversation::acp_updates;
use crate::event::{CallTitle, SessionEvent, ToolCallEvent};
use crate::session::due_checks::{CheckFailure, CheckMessage, CheckMoment, CheckNews};
use crate::session::prompt_end::EndReason;
use crate::text::visible_line;

/// How often a turn goes on at its end because of its checks.
const MAX_ROUNDS: u32 = 3;

/// Requests that a turn got because of its checks.
#[derive(Debug, Default)]
pub(super) struct CheckRounds {
    count: u32,
    /// True if a check has run since the last of them, so the model has changed something.
    has_run: bool,
}

/// Runs the checks that the last calls have made due.
pub(super) async fn after_calls(
    turn: &Turn,
    ids: &mut Ids,
    rounds: &mut CheckRounds,
) -> Result<(), TurnError> {
    rounds.has_run |= run_due(turn, ids, CheckMoment::AfterCalls).await?.is_some();
    Ok(())
}

/// Runs the checks for the end of the turn. Returns true if the model needs another request: a check found something
/// new, or a required one fails.
pub(super) async fn goes_on(turn: &Turn, ids: &mut Ids, rounds: &mut CheckRounds) -> Result<bool, TurnError> {
    let run = run_due(turn, ids, CheckMoment::EndOfTurn).await?;
    rounds.has_run |= run.is_some();
    let failures = failures(turn).await?;
    let fails = failures.iter().any(|failure| failure.has_run);
    // The model knows of the failures, and has changed nothing since.
    let is_final = rounds.count > 0 && !rounds.has_run;
    let is_needed = run == Some(CheckNews::New) || (fails && !is_final);
    if turn.cancel.is_cancelled() || rounds.count >= MAX_ROUNDS || !is_needed {
        return Ok(false);
    }
    *rounds = CheckRounds { count: rounds.count + 1, has_run: false };
    if fails {
        let note = SessionEvent::SystemNote { text: note_of(&failures), quotes: None };
        turn.post_event(note).await?;
    }
    Ok(true)
}

/// The end of a turn that has ended well but for its checks.
pub(super) async fn checked(turn: &Turn, ids: &mut Ids, end: EndReason) -> Result<EndReason, TurnError> {
    run_due(turn, ids, CheckMoment::EndOfTurn).await?;
    Ok(if failures(turn).await?.is_empty() { end } else { EndReason::ChecksFailed })
}

fn note_of(failures: &[CheckFailure]) -> String {
    let failures = failures.iter().filter(|failure| failure.has_run);
    let failures: Vec<&str> = failures.map(|failure| failure.text.as_str()).collect();
    format!(
        "This run succeeds only if its checks pass, and these do not: {}. Mend what fails, and then answer again. If \
         you cannot, say why.",
        failures.join("; ")
    )
}

async fn failures(turn: &Turn) -> Result<Vec<CheckFailure>, TurnError> {
    if !turn.context.requires_checks {
        return Ok(Vec::new());
    }
    turn.ask_actor(|reply| TurnMessage::Check(CheckMessage::Failures { reply })).await
}

/// Returns `None` if no check ran.
async fn run_due(turn: &Turn, ids: &mut Ids, moment: CheckMoment) -> Result<Option<CheckNews>, TurnError> {
    let mut findings = None;
    if turn.context.checks.is_empty() {
        return Ok(findings);
    }
    let due = turn.ask_actor(|reply| TurnMessage::Check(CheckMessage::Due { moment, reply })).await?;
    for check in due.into_iter().filter_map(|number| turn.context.checks.get(number)) {
        if turn.cancel.is_cancelled() {
            break;
        }
        let call = announce(turn, ids, check).await?;
        // A refused check ends no turn.
        turn.run_call(call).await?;
        if !turn.cancel.is_cancelled() {
            let end = turn.ask_actor(|reply| TurnMessage::Check(CheckMessage::Ended { reply })).await?;
            findings = findings.max(Some(end));
        }
    }
    Ok(findings)
}

async fn announce(turn: &Turn, ids: &mut Ids, check: &Check) -> Result<Announced, TurnError> {
    let (id, arguments) = (ids.check(), check.arguments());
    let tool = match turn.context.tools.find(check.tool()) {
        Some(tool) => Some((tool.spec().clone(), tool.prepare(arguments.clone(), &turn.workspace).await)),
        None => None,
    };
    let prepared = tool.as_ref().and_then(|(_, prepared)| prepared.as_ref().ok());
    let line = prepared.map_or_else(|| visible_line(&check.command), |call| call.title.clone());
    let kind = tool.as_ref().map_or_else(Default::default, |(spec, _)| spec.kind);
    let title = format!("Check {}: {line}", check.id);
    let event = ToolCallEvent {
        id: id.clone(),
        model_id: String::new(),
        name: check.tool().to_owned(),
        title: title.clone(),
        kind,
        arguments,
        locations: Vec::new(),
        is_announced: false,
        note: None,
        check: Some(check.id.clone()),
    };
    turn.post_event(SessionEvent::ToolCall(Box::new(event))).await?;
    let title =
        tool.is_some().then(|| CallTitle { text: title, has_code_spans: acp_updates::has_code_spans(kind) });
    Ok(Announced { id, tool, may_run: true, title, is_check: true })
}
