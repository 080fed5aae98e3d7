//! Output of a headless run.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use super::call_content::{first_line, has_exit_code, last_line, text_of};
use super::colors::Meaning;
use super::denials::{AttemptedCall, Denials};
use super::details;
use super::live_line::{RunStatus, last_output};
use super::report::{DeniedCall, HeadlessReport, ReportedBudget, ResultTag, StreamLine, TokenCount};
use super::screen::Screen;
use crate::acp::{
    ContentBlock, Cost, MessageId, RequestPermissionRequest, SessionUpdate, StopReason, ToolCall,
    ToolCallContent, ToolCallId, ToolCallStatus, ToolCallUpdate, ToolKind, Update,
};
use crate::budget::BudgetUse;
use crate::conversation::acp_updates::{CHECK_META, DENIED_META, NOTICE_META};
use crate::conversation::open_calls::is_end;
use crate::permission::{Address, AskReason, NO_USER};
use crate::session::{LastTurn, ModePermits};
use crate::text;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeadlessFormat {
    #[default]
    Text,
    Json,
    /// A JSON object at the start, one per update, then the object of [`Self::Json`].
    StreamJson,
}

const NEEDS_USER: &str = "needs permission, and a headless run has no user to ask";

/// Removes control characters, which a terminal would obey: output quotes files and prompts.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// What the user can do about a call that needs permission.
fn hint(reason: Option<&AskReason>, kind: Option<ToolKind>, limited_to: Option<&str>) -> String {
    match reason {
        Some(AskReason::Rule(rule)) => {
            format!("the rule ask {rule} requires a question: revoke it, or answer it in an editor")
        }
        Some(AskReason::NotUnderstood(kind, rule)) => format!(
            "the rule {kind} {rule} may match a part of this line: divide it into simple commands, or answer in an editor"
        ),
        Some(AskReason::Network(address)) => {
            let origin = address.as_ref().map_or_else(|| "https://example.com".to_owned(), Address::origin);
            format!("add an allow rule: modegate permissions allow 'fetch({origin})'")
        }
        Some(AskReason::Claim(_)) => {
            "only its MCP server claims that it is read-only; to trust the claim, set trust_hints: true for the server in your modes.yaml".into()
        }
        Some(AskReason::Outside(_)) => "run it in that directory: --cwd DIR".into(),
        None if matches!(kind, Some(ToolKind::Read | ToolKind::Search)) => {
            "run it in that directory: --cwd DIR".into()
        }
        Some(AskReason::Mode) | None => match limited_to {
            Some(limit) => format!("the session is limited to {limit} mode: allow the call by a rule, or answer in an editor"),
            None => "use --mode code to allow changes without asking".into(),
        },
    }
}

#[derive(Debug, Default)]
pub(super) struct DisplayedCall {
    attempt: AttemptedCall,
    /// `None` if an external agent does not name it.
    tool: Option<String>,
    is_command: bool,
    /// Position among the calls of the run.
    number: usize,
    /// Last line of the output so far.
    output: String,
}

pub(super) struct View<'a, O: Write, P: Write> {
    pub(super) screen: Screen<'a, O, P>,
    pub(super) format: HeadlessFormat,
    pub(super) session: String,
    pub(super) mode: String,
    /// What each mode permits.
    pub(super) permits: Vec<(String, ModePermits)>,
    /// Mode that limits the session, if its own mode would allow more.
    pub(super) limited_to: Option<String>,
    pub(super) denials: Denials,
    /// Messages of Modegate itself.
    pub(super) notices: Vec<(Option<MessageId>, String)>,
    /// Number of notices that are printed.
    pub(super) printed: usize,
    /// True if a notice may be the answer to a slash command, so that it waits for the next update.
    pub(super) is_command: bool,
    /// Calls that have not ended.
    pub(super) calls: HashMap<ToolCallId, DisplayedCall>,
    /// Number of the calls so far.
    pub(super) call_count: usize,
    /// The call whose lines were printed last.
    pub(super) last_call: Option<ToolCallId>,
    pub(super) text: String,
    /// True if the model has written text since its last call.
    pub(super) answered: bool,
    /// `None` if an external agent answers.
    pub(super) model: Option<String>,
    pub(super) warning: Option<String>,
    pub(super) message: Option<MessageId>,
    /// Start of the last message in `text`.
    pub(super) message_start: usize,
    pub(super) plan: Option<String>,
    pub(super) tokens: TokenCount,
    /// The budget that ended the turn.
    pub(super) exceeded: Option<BudgetUse>,
    /// Of the session so far, if an external agent reports it.
    pub(super) cost: Option<Cost>,
    pub(super) start: Instant,
}

impl<O: Write, P: Write> View<'_, O, P> {
    pub(super) fn update(&mut self, update: &Update) -> io::Result<()> {
        if self.format == HeadlessFormat::StreamJson {
            self.line(&StreamLine::from(update))?;
        }
        let update = match update {
            Update::Schema(update) => update,
            Update::CurrentMode(update) => return self.mode_changed(&update.current_mode_id.0),
        };
        let is_notice = matches!(
            &**update,
            SessionUpdate::AgentMessageChunk(chunk)
                if chunk.meta.as_ref().is_some_and(|meta| meta.contains_key(NOTICE_META))
        );
        if !is_notice {
            self.print_notices()?;
        }
        match &**update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                let ContentBlock::Text(text) = &chunk.content else { return Ok(()) };
                if is_notice {
                    self.notices.push((chunk.message_id.clone(), text.text.trim().to_owned()));
                    return if self.is_command { Ok(()) } else { self.print_notices() };
                }
                self.answered |= !text.text.trim().is_empty();
                if self.message != chunk.message_id {
                    self.message.clone_from(&chunk.message_id);
                    self.separate()?;
                }
                self.print(&text.text)?;
                self.screen.flush()
            }
            // The live line may take over from the text before the thoughts.
            SessionUpdate::AgentThoughtChunk(_) => self.screen.end_line(),
            SessionUpdate::UsageUpdate(usage) => {
                let of_request = self.tokens.add(usage);
                self.cost = usage.cost.clone().or(self.cost.take());
                self.detail(details::tokens(of_request))
            }
            SessionUpdate::ToolCall(call) => self.announced(call),
            SessionUpdate::ToolCallUpdate(update)
                if update.fields.title.is_some() && !update.fields.status.is_some_and(is_end) =>
            {
                let title = update.fields.title.clone().unwrap_or_default();
                let attempt = &mut self.calls.entry(update.tool_call_id.clone()).or_default().attempt;
                attempt.title.clone_from(&title);
                attempt.locate(update.fields.locations.as_deref().unwrap_or_default());
                self.print_heading(&update.tool_call_id, &title)?;
                self.detail(details::arguments(update.fields.raw_input.as_ref()))
            }
            SessionUpdate::ToolCallUpdate(update)
                if update.fields.status == Some(ToolCallStatus::Failed) && !has_exit_code(update) =>
            {
                self.failed(update)
            }
            SessionUpdate::ToolCallUpdate(update) if update.fields.status.is_some_and(is_end) => {
                self.completed(update)
            }
            SessionUpdate::ToolCallUpdate(update) if update.fields.content.is_some() => {
                if let Some(call) = self.calls.get_mut(&update.tool_call_id) {
                    call.output = last_output(&text_of(update.fields.content.as_deref()));
                }
                Ok(())
            }
            // Other updates are for editors.
            _ => Ok(()),
        }
    }

    fn announced(&mut self, call: &ToolCall) -> io::Result<()> {
        let is_check = call.meta.as_ref().is_some_and(|meta| meta.contains_key(CHECK_META));
        // Text before a call is not the answer. Checks come behind it.
        self.answered &= is_check;
        let mut attempt = AttemptedCall::new(&call.title, call.kind, &call.locations);
        attempt.is_check = is_check;
        self.call_count += 1;
        let open = DisplayedCall {
            attempt,
            tool: call.name.clone(),
            is_command: call.kind == ToolKind::Execute,
            number: self.call_count,
            output: String::new(),
        };
        self.calls.insert(call.tool_call_id.clone(), open);
        // A call without its arguments has no final title.
        if call.raw_input.is_none() {
            return self.screen.end_line();
        }
        self.print_heading(&call.tool_call_id, &call.title)?;
        self.detail(details::arguments(call.raw_input.as_ref()))
    }

    /// A call that failed or was denied.
    fn failed(&mut self, update: &ToolCallUpdate) -> io::Result<()> {
        let DisplayedCall { attempt: call, tool, .. } =
            self.calls.remove(&update.tool_call_id).unwrap_or_default();
        let rule = update.meta.as_ref().and_then(|meta| meta.get(DENIED_META));
        if rule.and_then(Value::as_str) == Some(NO_USER) {
            // Reported with the permission request.
            return Ok(());
        }
        // A tool that does not exist is the model's mistake, not a denial.
        let Some(rule) = rule.filter(|rule| *rule != "unknown_tool") else {
            let reason = first_line(update.fields.content.as_deref());
            let line = format!("{} {reason}", self.screen.colors().paint(Meaning::Failed, "failed:"));
            return self.print_result(&update.tool_call_id, &call.title, &line);
        };
        // The first sentence names the mode, limit or rule.
        let message = first_line(update.fields.content.as_deref());
        let message = message.strip_prefix("Denied: ").unwrap_or(&message);
        let first = text::first_sentence(message);
        let rule = rule.as_str().unwrap_or_default();
        let reason = first.trim_end_matches('.');
        let line = format!("{} {reason} ({rule})", self.screen.colors().paint(Meaning::Denied, "denied:"));
        self.print_result(&update.tool_call_id, &call.title, &line)?;
        let (title, rule, reason) = (call.title.clone(), rule.to_owned(), reason.to_owned());
        let call_id = update.tool_call_id.to_string();
        self.record_denial(Some(call), DeniedCall { title, tool, rule, reason, call_id })
    }

    fn completed(&mut self, update: &ToolCallUpdate) -> io::Result<()> {
        let call = self.calls.remove(&update.tool_call_id).unwrap_or_default();
        self.denials.completed(&call.attempt);
        let content = update.fields.content.as_deref();
        if self.screen.is_verbose() {
            for line in details::first_lines(&text_of(content)) {
                let line = self.screen.colors().paint(Meaning::Detail, line);
                self.print_result(&update.tool_call_id, &call.attempt.title, &line)?;
            }
        }
        match last_line(content) {
            Some(end) if call.is_command => {
                self.print_result(&update.tool_call_id, &call.attempt.title, &end)
            }
            _ => Ok(()),
        }
    }

    fn mode_changed(&mut self, mode: &str) -> io::Result<()> {
        // The first line names the mode in which the run begins.
        if self.mode == mode {
            return Ok(());
        }
        self.print_notices()?;
        let from = std::mem::replace(&mut self.mode, mode.to_owned());
        self.notices.push((None, format!("switched from {from} mode to {mode} mode")));
        self.print_notices()
    }

    fn print_heading(&mut self, call: &ToolCallId, title: &str) -> io::Result<()> {
        self.last_call = Some(call.clone());
        self.screen.note(format!("· {}", text::visible_line(title)))
    }

    /// Repeats the heading of the call if lines of another call stand below it.
    fn print_result(&mut self, call: &ToolCallId, title: &str, line: &str) -> io::Result<()> {
        if self.last_call.as_ref() != Some(call) {
            self.print_heading(call, title)?;
        }
        self.screen.note(format!("  {line}"))
    }

    fn print_notices(&mut self) -> io::Result<()> {
        for (_, text) in &self.notices[self.printed..] {
            self.screen
                .note(format!("{} {text}", self.screen.colors().paint(Meaning::Warning, "modegate:")))?;
        }
        self.printed = self.notices.len();
        Ok(())
    }

    /// Adds a notice about jobs that end with the run.
    pub(super) fn tell_of_jobs(&mut self, jobs: &[String]) {
        if !jobs.is_empty() {
            let jobs = jobs.join(", ");
            let text = format!("Background jobs were still running and end with this run: {jobs}");
            self.notices.push((None, text));
        }
    }

    /// Makes the notice with this id the answer.
    pub(super) fn answer_command(&mut self, id: &MessageId) -> io::Result<()> {
        let unprinted = self.notices.split_off(self.printed);
        let (answer, others): (Vec<_>, Vec<_>) =
            unprinted.into_iter().partition(|(notice, _)| notice.as_ref() == Some(id));
        self.notices.extend(others);
        self.print_notices()?;
        for (_, text) in answer {
            self.separate()?;
            self.print(&format!("{text}\n"))?;
        }
        Ok(())
    }

    /// Adds to the answer.
    fn print(&mut self, text: &str) -> io::Result<()> {
        self.text.push_str(text);
        if self.format == HeadlessFormat::Text {
            self.screen.answer(&printable(text))?;
        }
        Ok(())
    }

    /// Begins a message of the answer, after a blank line.
    fn separate(&mut self) -> io::Result<()> {
        let gap = match self.text.as_str() {
            text if text.is_empty() || text.ends_with("\n\n") => "",
            text if text.ends_with('\n') => "\n",
            _ => "\n\n",
        };
        self.print(gap)?;
        self.message_start = self.text.len();
        Ok(())
    }

    pub(super) fn deny(
        &mut self,
        request: &RequestPermissionRequest,
        reason: Option<&AskReason>,
    ) -> io::Result<()> {
        if request.tool_call.fields.kind == Some(ToolKind::SwitchMode) {
            return self.show_plan(request);
        }
        let title = request.tool_call.fields.title.clone().unwrap_or_default();
        self.last_call = Some(request.tool_call.tool_call_id.clone());
        let denied = self.screen.colors().paint(Meaning::Denied, "denied:");
        self.screen.note(format!("{denied} {}: {NEEDS_USER}", text::visible_line(&title)))?;
        let hint = printable(&hint(reason, request.tool_call.fields.kind, self.limited_to.as_deref()));
        self.screen.note(format!("        {hint}"))?;
        let shown = self.calls.get(&request.tool_call.tool_call_id);
        let (mut attempt, tool) =
            shown.map(|call| (call.attempt.clone(), call.tool.clone())).unwrap_or_default();
        attempt.title.clone_from(&title);
        let (rule, reason) = (NO_USER.to_owned(), format!("{NEEDS_USER}; {hint}"));
        let call_id = request.tool_call.tool_call_id.to_string();
        self.record_denial(Some(attempt), DeniedCall { title, tool, rule, reason, call_id })
    }

    fn record_denial(&mut self, attempt: Option<AttemptedCall>, call: DeniedCall) -> io::Result<()> {
        if self.format == HeadlessFormat::StreamJson {
            self.line(&StreamLine::from(&call))?;
        }
        self.denials.deny(attempt, call);
        Ok(())
    }

    /// Reports the denials that decide the exit code, which a quiet run has not printed.
    pub(super) fn repeat_denials(&mut self) -> io::Result<()> {
        if self.screen.is_quiet() {
            let denied = self.screen.colors().paint(Meaning::Denied, "denied:");
            for call in self.denials.unresolved() {
                self.screen.report(format!(
                    "{denied} {}: {}",
                    text::visible_line(&call.title),
                    call.reason
                ))?;
            }
        }
        Ok(())
    }

    /// Prints a line of `--verbose`.
    fn detail(&mut self, line: Option<String>) -> io::Result<()> {
        match line.filter(|_| self.screen.is_verbose()) {
            Some(line) => {
                self.screen.note(format!("  {}", self.screen.colors().paint(Meaning::Detail, line)))
            }
            None => Ok(()),
        }
    }

    /// Draws the live line, if it is due.
    pub(super) fn draw(&mut self) -> io::Result<()> {
        let current = self.calls.values().max_by_key(|call| call.number);
        let activity = current.map_or("waiting for the model", |call| &call.attempt.title);
        let status = RunStatus {
            elapsed: self.start.elapsed(),
            mode: &self.mode,
            tokens: self.tokens.sum(),
            activity,
            others: self.calls.len().saturating_sub(1),
            output: current.map_or("", |call| &call.output),
        };
        self.screen.draw(&status)
    }

    /// The name of the mode, in the colour of its permissions.
    pub(super) fn shown_mode(&self) -> String {
        let permits = self.permits.iter().find(|(mode, _)| *mode == self.mode);
        let name = format!("{} mode", self.mode);
        permits.map_or(name.clone(), |(_, permits)| self.screen.colors().paint(Meaning::Mode(*permits), name))
    }

    /// Prints a plan as the answer. No user can accept it, so the mode stays.
    fn show_plan(&mut self, request: &RequestPermissionRequest) -> io::Result<()> {
        let title = request.tool_call.fields.title.as_deref().unwrap_or_default();
        let line = "the mode stays: a headless run has no user to accept the plan";
        self.print_result(&request.tool_call.tool_call_id, title, line)?;
        let content = request.tool_call.fields.content.iter().flatten();
        for block in content {
            let ToolCallContent::Content(content) = block else { continue };
            let ContentBlock::Text(text) = &content.content else { continue };
            self.separate()?;
            self.print(&format!("{}\n", text.text.trim_end()))?;
            self.plan = Some(text.text.clone());
            // The next text belongs to a message of its own.
            self.message = None;
        }
        Ok(())
    }

    pub(super) fn finish(
        &mut self,
        stop: Option<StopReason>,
        error: Option<&str>,
        last_turn: &LastTurn,
    ) -> io::Result<()> {
        self.print_notices()?;
        for report in &last_turn.refused_changes {
            self.record_denial(None, report.into())?;
        }
        let notices: Vec<&str> = self.notices.iter().map(|(_, text)| text.as_str()).collect();
        let LastTurn { turn, steps, changed_files, uncovered, failed_checks, .. } = last_turn;
        match self.format {
            HeadlessFormat::Text if self.text.is_empty() || self.text.ends_with('\n') => Ok(()),
            HeadlessFormat::Text => {
                self.screen.answer("\n")?;
                self.screen.flush()
            }
            HeadlessFormat::Json | HeadlessFormat::StreamJson => {
                let report = HeadlessReport {
                    r#type: ResultTag::Result,
                    session_id: Some(&self.session),
                    mode: Some(&self.mode),
                    limited_to: self.limited_to.as_deref(),
                    model: self.model.as_deref(),
                    warning: self.warning.as_deref(),
                    stop_reason: stop,
                    error,
                    denied: self.denials.all(),
                    notices,
                    text: &self.text,
                    last_message: &self.text[self.message_start..],
                    plan: self.plan.as_deref(),
                    turns: *turn,
                    steps: *steps,
                    duration_ms: self.start.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
                    usage: self.tokens,
                    budget: ReportedBudget::new(&last_turn.spent, self.exceeded.as_ref()),
                    cost: self.cost.as_ref().map(Into::into),
                    failed_checks,
                    changed_files,
                    uncovered_changes: uncovered,
                };
                let report = serde_json::to_value(StreamLine::Result(report))?;
                self.line(&report)
            }
        }
    }

    /// Prints a JSON line.
    pub(super) fn line(&mut self, value: &impl Serialize) -> io::Result<()> {
        self.screen.answer(&format!("{}\n", serde_json::to_string(value)?))?;
        self.screen.flush()
    }
}
