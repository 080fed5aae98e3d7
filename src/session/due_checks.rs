//! The checks of a session: the due ones, the ends of their last runs, and notes about new findings.
//!
//! Runs nothing. The turn runs a due check as a call, which is decided as a call of the model is. The actor passes on
//! changed files and ends of calls.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tokio::sync::oneshot;

use crate::acp::ToolCallId;
use crate::checks::findings::{new_findings, quoted};
use crate::checks::{Check, CheckTrigger};
use crate::event::{SessionEvent, ToolCallUpdateEvent};
use crate::permission::{self, compare};
use crate::session::mode::decider::Decider;
use crate::session::mode::policy::Policy;
use crate::text::{shorten, visible_line};
use crate::tool::CommandOutput;
use crate::workspace::{Changes, Workspace};

/// A longer list of changed files counts as changes of all files.
const MAX_CHANGED: usize = 1_000;

/// Characters of the reason why a check did not run to its end.
const MAX_REASON: usize = 300;

/// Lines that a command's result may have behind its output.
const END_LINES: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct DueChecks {
    /// In the order of the session's checks.
    states: Vec<CheckRecord>,
    running: Option<RunningCheck>,
}

#[derive(Debug, Default)]
struct CheckRecord {
    is_due: bool,
    /// A run in this turn was refused or stopped.
    is_paused: bool,
    /// `None` if the check has not run on the files as they are.
    outcome: Option<CheckOutcome>,
    /// Output of the last run that was not stopped.
    last_output: Option<String>,
    has_failed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CheckOutcome {
    Passed,
    Failed { exit_code: i32 },
    NotRun { reason: String },
}

#[derive(Debug)]
struct RunningCheck {
    call: ToolCallId,
    number: usize,
    end: Option<RunEnd>,
}

#[derive(Debug)]
enum RunEnd {
    Exited { exit_code: i32, output: CommandOutput },
    Other { reason: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckMoment {
    /// The calls of a reply have ended.
    AfterCalls,
    EndOfTurn,
}

/// From the turn.
pub(crate) enum CheckMessage {
    /// Asks for the checks that are due, by their numbers in the session's list.
    Due { moment: CheckMoment, reply: oneshot::Sender<Vec<usize>> },
    /// The call of a check is over, and a note for the model follows.
    Ended { reply: oneshot::Sender<CheckNews> },
    /// Asks for the required checks that have not passed.
    Failures { reply: oneshot::Sender<Vec<CheckFailure>> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CheckNews {
    /// No findings, or those of the last run.
    Known,
    New,
}

/// A required check that has not passed on the present files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckFailure {
    /// Such as `lint: exit status 1`.
    pub(crate) text: String,
    /// False if the check was refused or stopped. Only the user can correct that.
    pub(crate) has_run: bool,
}

/// Files that calls have changed since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct ChangedFiles {
    paths: BTreeSet<PathBuf>,
    has_more: bool,
}

impl ChangedFiles {
    pub(crate) fn add(&mut self, changes: &Changes) {
        for changed in &changes.changed {
            if self.paths.len() >= MAX_CHANGED {
                self.has_more = true;
                return;
            }
            self.paths.insert(changed.path.clone());
        }
    }

    fn include(&self, check: &Check, roots: &[PathBuf]) -> bool {
        self.has_more || self.paths.iter().any(|path| check.is_about(path, roots))
    }
}

impl DueChecks {
    /// `changed` has the files that changed since the last message.
    pub(crate) fn handle(
        &mut self,
        message: CheckMessage,
        changed: &ChangedFiles,
        workspace: &Workspace,
        decider: &mut Decider,
    ) {
        self.states.resize_with(decider.policy.context.checks.len(), CheckRecord::default);
        // The turn may have ended, here and below.
        match message {
            CheckMessage::Due { moment, reply } => {
                self.running = None;
                self.note_changes(changed, workspace.roots(), &decider.policy);
                let _ = reply.send(self.due(moment, &decider.policy));
            }
            // Changes by a check make no check due: a formatter would run without end.
            CheckMessage::Ended { reply } => {
                let note = self.end(&decider.policy.context.checks);
                let findings = note.as_ref().map_or(CheckNews::Known, |note| note.findings);
                if let Some(CheckNote { text, .. }) = note {
                    decider.log.record(SessionEvent::SystemNote { text, quotes: None }, None);
                }
                let _ = reply.send(findings);
            }
            CheckMessage::Failures { reply } => {
                self.note_changes(changed, workspace.roots(), &decider.policy);
                let _ = reply.send(self.failures(&decider.policy));
            }
        }
    }

    pub(crate) fn begin_turn(&mut self) {
        self.states.iter_mut().for_each(|state| state.is_paused = false);
    }

    /// Looks at an event of the turn: the start of a check's call, or its end without an exit status.
    pub(crate) fn observe(&mut self, event: &SessionEvent, checks: &[Check]) {
        match event {
            SessionEvent::ToolCall(call) => {
                let number = checks.iter().position(|check| Some(&check.id) == call.check.as_ref());
                if let Some(number) = number {
                    self.running = Some(RunningCheck { call: call.id.clone(), number, end: None });
                }
            }
            SessionEvent::ToolCallUpdate(update) => self.call_ended(update, None),
            _ => {}
        }
    }

    /// A command of the model may have changed more than is known, so the outcomes count no more.
    pub(crate) fn call_ended(&mut self, update: &ToolCallUpdateEvent, output: Option<CommandOutput>) {
        let Some(result) = &update.result else { return };
        match self.running.as_mut().filter(|running| running.call == update.id) {
            Some(running) => {
                running.end = Some(match (update.exit_code, output) {
                    (Some(exit_code), Some(output)) => RunEnd::Exited { exit_code, output },
                    _ => RunEnd::Other { reason: reason_of(result) },
                });
            }
            None if update.exit_code.is_some() => {
                self.states.iter_mut().for_each(|state| state.outcome = None);
            }
            None => {}
        }
    }

    fn note_changes(&mut self, changed: &ChangedFiles, roots: &[PathBuf], policy: &Policy) {
        for (state, check) in self.states.iter_mut().zip(&*policy.context.checks) {
            if changed.include(check, roots) {
                (state.is_due, state.outcome) = (true, None);
            }
        }
    }

    fn due(&mut self, moment: CheckMoment, policy: &Policy) -> Vec<usize> {
        let is_subagent = policy.ancestry.parent.is_some();
        let (ceilings, tools) = (policy.ceilings(), &policy.context.tools);
        let is_required = moment == CheckMoment::EndOfTurn && requires_checks(policy);
        let mut due = Vec::new();
        for (number, (state, check)) in self.states.iter_mut().zip(&*policy.context.checks).enumerate() {
            let is_wanted = match moment {
                CheckMoment::AfterCalls => check.trigger == CheckTrigger::Change && state.is_due,
                CheckMoment::EndOfTurn if is_subagent => false,
                CheckMoment::EndOfTurn => check.trigger == CheckTrigger::End && state.is_due,
            };
            let is_missing = is_required && state.outcome.is_none();
            if !is_missing && (!is_wanted || state.is_paused) {
                continue;
            }
            let facts = tools.find(check.tool()).map(|tool| tool.spec().facts());
            if facts.is_some_and(|facts| permission::is_available(&ceilings, &policy.grants, &facts)) {
                state.is_due = false;
                due.push(number);
            } else if is_required {
                let reason = format!("{} is not available in {} mode", check.tool(), policy.mode);
                state.outcome = Some(CheckOutcome::NotRun { reason });
            }
        }
        due
    }

    fn end(&mut self, checks: &[Check]) -> Option<CheckNote> {
        let RunningCheck { number, end, .. } = self.running.take()?;
        let (state, check) = (self.states.get_mut(number)?, checks.get(number)?);
        match end {
            Some(RunEnd::Exited { exit_code, output }) => state.exited(check, exit_code, output),
            Some(RunEnd::Other { reason }) => Some(state.not_run(check, &reason)),
            None => Some(state.not_run(check, "it was not carried out")),
        }
    }

    /// The required checks that have not passed, for people.
    pub(crate) fn failed(&self, policy: &Policy) -> Vec<String> {
        self.failures(policy).into_iter().map(|failure| failure.text).collect()
    }

    fn failures(&self, policy: &Policy) -> Vec<CheckFailure> {
        if !requires_checks(policy) {
            return Vec::new();
        }
        let checks = self.states.iter().zip(&*policy.context.checks);
        checks.filter_map(|(state, check)| state.failure(&check.id)).collect()
    }
}

/// True if the turn succeeds only with its checks. Where the mode changes nothing, there is nothing to check.
fn requires_checks(policy: &Policy) -> bool {
    policy.context.requires_checks
        && policy.ancestry.parent.is_none()
        && !compare::changes_nothing(&policy.ceilings().modes)
}

/// For the model.
#[derive(Debug, PartialEq, Eq)]
struct CheckNote {
    text: String,
    findings: CheckNews,
}

impl CheckRecord {
    fn exited(&mut self, check: &Check, exit_code: i32, output: CommandOutput) -> Option<CheckNote> {
        let (id, CommandOutput { text, file }) = (&check.id, output);
        let had_failed = std::mem::replace(&mut self.has_failed, exit_code != 0);
        let before = self.last_output.replace(text.clone());
        if exit_code == 0 {
            self.outcome = Some(CheckOutcome::Passed);
            let note =
                || CheckNote { text: format!("The check {id} passes now."), findings: CheckNews::Known };
            return had_failed.then(note);
        }
        self.outcome = Some(CheckOutcome::Failed { exit_code });
        let command = visible_line(&check.command);
        let failed =
            format!("The check {id} failed after your changes: `{command}`, exit status {exit_code}.");
        let file = file.as_deref();
        let new = before.as_ref().map(|before| new_findings(before, &text));
        let text = match new {
            None => format!(
                "{failed} It had not run in this session before, so a part may be older than your changes.\n{}",
                quoted(&text, file)
            ),
            Some(new) if !new.is_empty() => {
                format!("{failed} New since its last run:\n{}", quoted(&new, file))
            }
            Some(_) if !had_failed => format!("{failed} It passed before, with the same output."),
            Some(_) => {
                let text = format!("The check {id} still fails, with nothing new.");
                return Some(CheckNote { text, findings: CheckNews::Known });
            }
        };
        Some(CheckNote { text: text.trim_end().to_owned(), findings: CheckNews::New })
    }

    fn not_run(&mut self, check: &Check, reason: &str) -> CheckNote {
        self.is_paused = true;
        let reason = reason.trim_end_matches('.').to_owned();
        let text = format!("The check {} did not run to its end:\n{}", check.id, quoted(&reason, None));
        self.outcome = Some(CheckOutcome::NotRun { reason });
        CheckNote { text, findings: CheckNews::Known }
    }

    fn failure(&self, id: &str) -> Option<CheckFailure> {
        let (text, has_run) = match &self.outcome {
            Some(CheckOutcome::Passed) => return None,
            Some(CheckOutcome::Failed { exit_code }) => (format!("{id}: exit status {exit_code}"), true),
            Some(CheckOutcome::NotRun { reason }) => (format!("{id}: {reason}"), false),
            None => (format!("{id}: it has not run"), false),
        };
        Some(CheckFailure { text, has_run })
    }
}

/// Why a call has no exit status: the line about its end behind the output, or else the message of a refusal.
fn reason_of(result: &str) -> String {
    let lines: Vec<&str> = result.trim().lines().collect();
    let last = &lines[lines.len().saturating_sub(END_LINES)..];
    let end = last.iter().find(|line| line.starts_with('[') && line.ends_with(']'));
    let reason = end.or(lines.first()).copied().unwrap_or_default();
    shorten(reason.trim_start_matches('[').trim_end_matches(']'), MAX_REASON).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{LayerOwner, Layers};

    fn check() -> Check {
        let mut layers = Layers::default();
        layers.add("m", "checks: [{id: lint, command: make lint}]", LayerOwner::User).unwrap();
        layers.checks.remove(0)
    }

    #[test]
    fn only_new_findings_are_told() {
        let mut state = CheckRecord::default();
        let mut told = |exit_code: i32, output: &str| {
            let output = CommandOutput { text: output.into(), file: None };
            state.exited(&check(), exit_code, output).map(|note| (note.findings == CheckNews::New, note.text))
        };
        let failed = |status: u32| {
            format!("The check lint failed after your changes: `make lint`, exit status {status}.")
        };
        let nothing_new = || Some((false, "The check lint still fails, with nothing new.".to_owned()));
        let first = " It had not run in this session before, so a part may be older than your changes.";
        assert_eq!(told(1, "a:1: old\n"), Some((true, format!("{}{first}\n> a:1: old", failed(1)))));
        assert_eq!(told(1, "a:7: old\n"), nothing_new());
        let new = told(2, "a:7: old\na:9: new\n");
        assert_eq!(new, Some((true, format!("{} New since its last run:\n> a:9: new", failed(2)))));
        assert_eq!(told(0, ""), Some((false, "The check lint passes now.".to_owned())));
        assert_eq!(told(0, "a warning"), None, "a check that passes costs nothing");
        let same = format!("{} It passed before, with the same output.", failed(1));
        assert_eq!(told(1, "a warning"), Some((true, same)));
        assert_eq!(told(1, "a warning"), nothing_new());
    }

    #[test]
    fn reason_is_the_end_of_the_command_or_the_refusal() {
        let check = |result: &str, expected: &str| assert_eq!(reason_of(result), expected, "{result}");
        check("shell is denied by a rule.", "shell is denied by a rule.");
        check("The user rejected this call.\nWhy: no", "The user rejected this call.");
        check("a\nb\n[Stopped: the timeout of 2 s expired.]", "Stopped: the timeout of 2 s expired.");
        check("b\n[Stopped: x.]\n[Sandbox: y.]", "Stopped: x.");
        check("", "");
    }
}
