//! `modegate run`: a terminal program in a session of its own, under a mode. The program keeps the terminal, so other
//! terminals change the mode and answer questions, over the [`control`] socket.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::acp::{
    ClientCapabilities, ContentBlock, Diff, InitializeRequest, NewSessionRequest, ProtocolVersion,
    RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse, SelectedPermissionOutcome,
    SessionUpdate, ToolCallContent, Update,
};
use crate::agent::Agent;
use crate::client::{ClientEnd, ClientError, ClientRequest, Outgoing, ReplySender};
use crate::conversation::acp_updates::NOTICE_META;
use crate::error::AgentError;
use crate::event::PROGRAM_PROMPT;
use crate::external_agent::client::{EXIT_META, JOB_META, REFUSED_META};
use crate::external_agent::session::{QUESTION_LIMIT, RefusedAct};
use crate::process::{Exit, JobState, terminal};
use crate::session::{PromptOptions, SessionHandle};
use crate::{line_diff, text};
use control::{Choice, ControlSocket, HOST, Order, TerminalQuestion, TerminalReport};
use host_connection::HostConnection;
use mode_limit::mode_limit_text;
use session_orders::SessionReport;

pub mod control;
mod first_state;
pub mod host_connection;
pub mod mode_limit;
mod origin;
mod recording;
mod session_orders;

pub struct TerminalJob<'a> {
    pub cwd: &'a Path,
    /// Name of the program for messages.
    pub program: String,
    /// Kept as the prompt of the session.
    pub command_line: String,
    /// Folder of the sockets of running programs.
    pub sockets: &'a Path,
    /// To the process that has the user's terminal. `None` if this process has it.
    pub host: Option<&'a HostConnection>,
    pub lines: RunLines,
}

/// The lines that Modegate writes besides the program's.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunLines {
    /// Neither a line at the start nor one at the end.
    pub is_quiet: bool,
    /// The process with the user's terminal writes the line at the start.
    pub host_starts: bool,
    /// The process with the user's terminal shows questions.
    pub host_asks: bool,
}

/// How the program ended.
pub type TerminalEnd = Result<Exit, ProgramFailure>;

/// The program was not executed, or had to be killed.
#[derive(Debug, PartialEq, Eq)]
pub struct ProgramFailure {
    /// A sentence.
    pub reason: String,
    /// Exit code of a shell for a program that cannot be executed.
    pub code: Option<u8>,
}

impl ProgramFailure {
    fn new(reason: String) -> Self {
        Self { reason, code: None }
    }
}

/// A run that is over.
pub struct FinishedRun {
    pub ended: TerminalEnd,
    /// True if changes may be unknown, because their record failed.
    pub is_unrecorded: bool,
}

/// Returns when the program and all its descendants are gone.
///
/// # Errors
/// Fails if the session or its socket cannot be opened, or if messages cannot be written.
pub async fn run(
    agent: &Agent,
    mut end: ClientEnd,
    job: TerminalJob<'_>,
    mut messages: impl Write,
    stop: CancellationToken,
) -> anyhow::Result<FinishedRun> {
    initialize(agent);
    let session =
        agent.new_session(&NewSessionRequest::new(job.cwd), &CancellationToken::new()).await?.session_id;
    let handle = agent.session(&session)?;
    let snapshot = handle.snapshot().await?;
    let mode = snapshot.modes.current_mode_id.clone();
    if let Some(refusal) = recording::refusal(&handle, &mode).await? {
        anyhow::bail!("the program was not started: {refusal}");
    }
    let limit = mode_limit_text(&snapshot);
    let mut control = ControlSocket::open(job.sockets, &session.0)?;
    if let Some(host) = job.host {
        host.attach(&control)?;
    }
    let part = short(&session.0);
    let lines = job.lines;
    if !lines.is_quiet && !lines.host_starts {
        writeln!(
            messages,
            "modegate: {mode} mode{limit}; to change it and to answer questions, in another terminal: modegate mode {part}"
        )?;
    }
    let mut run = Run {
        part,
        limit,
        may_have_changed: !snapshot.is_read_only,
        state: first_state::of(&session, &job, snapshot),
        changing: 0,
        questions: BTreeMap::new(),
        messages,
        ended: None,
        late: Vec::new(),
        group: None,
        host_asks: lines.host_asks,
        has_panel: lines.host_starts,
        refused: 0,
    };
    let prompt: Vec<ContentBlock> = vec![format!("{PROGRAM_PROMPT}{}", job.command_line).into()];
    let turn = handle.prompt(prompt, PromptOptions::default(), stop);
    tokio::pin!(turn);
    // Until then, the program cannot draw over the line at the start.
    let mut is_started = job.host.is_none();
    let mut changes = FuturesUnordered::new();
    // Other orders that are being carried out.
    let mut work: FuturesUnordered<BoxFuture<'_, SessionReport>> = FuturesUnordered::new();
    let ended = loop {
        tokio::select! {
            biased;
            Some(message) = end.recv() => run.receive(message, &control).await?,
            ended = &mut turn, if is_started => break ended,
            Some((terminal, order)) = control.next() => match order {
                None => run.greet(terminal, &control),
                Some(Order::Answer { number, option }) => run.answer(terminal, number, &option, &control),
                Some(Order::Start) => is_started = true,
                Some(Order::Continue { is_foreground }) => {
                    run.continue_program(is_foreground);
                    control.send(terminal, TerminalReport::ContinueDone);
                }
                Some(Order::ListChanges) => {
                    work.push(session_orders::changes_so_far(handle.clone(), terminal).boxed());
                }
                Some(Order::Undo { path }) => {
                    work.push(session_orders::undo_so_far(handle.clone(), terminal, path).boxed());
                }
                Some(Order::AllowHost(host)) => {
                    work.push(session_orders::allow_host(handle.clone(), terminal, host).boxed());
                }
                Some(Order::SetMode(mode)) => {
                    run.changing += 1;
                    changes.push(session_orders::set_mode(&handle, terminal, mode));
                }
            },
            Some((terminal, report)) = work.next() => control.send(terminal, report),
            Some((terminal, outcome)) = changes.next() => {
                run.changing -= 1;
                match outcome {
                    Ok((mode, is_confirmed)) => run.mode_changed(mode, is_confirmed, &control),
                    Err(refusal) => control.send(terminal, TerminalReport::Refused(refusal)),
                }
            }
        }
    };
    drop((changes, work));
    while let Ok(message) = end.try_recv() {
        run.receive(message, &control).await?;
    }
    control.send_all(&TerminalReport::Ended);
    run.finish(agent, &handle, ended.map(drop), lines.is_quiet).await
}

fn initialize(agent: &Agent) {
    let request = InitializeRequest::new(ProtocolVersion::V1);
    agent.initialize(&request.client_capabilities(ClientCapabilities::new()));
}

/// The last characters of a session's id, which are sufficient to find it.
pub fn short(session: &str) -> &str {
    let start = session.len().saturating_sub(6);
    session.get(start..).unwrap_or(session)
}

struct Run<'a, W> {
    /// Part of the session's id.
    part: &'a str,
    /// Of the mode, at the start and at the end.
    limit: String,
    state: TerminalReport,
    /// Mode changes of other terminals that are not answered.
    changing: usize,
    /// Open questions by their numbers.
    questions: BTreeMap<u64, (TerminalQuestion, ReplySender)>,
    messages: W,
    ended: Option<TerminalEnd>,
    /// Notices that would have disturbed the program's output.
    late: Vec<String>,
    /// The program's process group, when it has stopped once.
    group: Option<i32>,
    host_asks: bool,
    /// The panel shows notices.
    has_panel: bool,
    /// Number of refused acts.
    refused: usize,
    may_have_changed: bool,
}

/// Most bytes of a diff in a question.
const MAX_DIFF: usize = 32 * 1024;

impl<W: Write> Run<'_, W> {
    /// Closes the session, and writes the last line.
    async fn finish(
        mut self,
        agent: &Agent,
        handle: &SessionHandle,
        ended: Result<(), AgentError>,
        is_quiet: bool,
    ) -> anyhow::Result<FinishedRun> {
        self.print_late()?;
        let last_turn = handle.last_turn().await.unwrap_or_default();
        self.limit = handle.snapshot().await.ok().as_ref().map(mode_limit_text).unwrap_or_default();
        let is_lost = agent.store().is_in_memory();
        agent.close().await;
        let is_unrecorded =
            last_turn.has_unrecorded_changes || (last_turn.unrecorded.is_some() && self.may_have_changed);
        if !is_quiet {
            let end_line = self.end_line(last_turn.changed_files.len(), is_lost, is_unrecorded);
            writeln!(self.messages, "modegate: {end_line}")?;
        }
        let ended = match (self.ended, ended) {
            (Some(ended), _) => ended,
            (None, Ok(())) => Err(ProgramFailure::new("the program was stopped".into())),
            (None, Err(error)) => Err(ProgramFailure::new(error.to_string())),
        };
        Ok(FinishedRun { ended, is_unrecorded })
    }

    async fn receive(&mut self, message: Outgoing, control: &ControlSocket) -> io::Result<()> {
        match message {
            Outgoing::Update(notification, _permit) | Outgoing::Replayed(notification, _permit) => {
                self.update(&notification.update, control)
            }
            Outgoing::Barrier(stored) => {
                // Sent or dropped.
                let _ = stored.await;
                Ok(())
            }
            Outgoing::Request { id, request: ClientRequest::RequestPermission(request), reply } => {
                self.ask(question(id, &request), reply, control)
            }
            // This client offers nothing else.
            Outgoing::Request { reply, .. } => {
                let _ = reply.send(Err(ClientError::NotOffered));
                Ok(())
            }
            Outgoing::Withdraw(number) => {
                self.questions.remove(&number);
                control.send_all(&TerminalReport::Closed(number));
                Ok(())
            }
            Outgoing::Answer { .. } | Outgoing::ElicitationCompleted(_) | Outgoing::Signal(..) => Ok(()),
        }
    }

    fn update(&mut self, update: &Update, control: &ControlSocket) -> io::Result<()> {
        let update = match update {
            Update::Schema(update) => &**update,
            Update::CurrentMode(mode) => {
                // Otherwise the answer follows, which says whether the mode is confirmed.
                if self.changing == 0 {
                    self.mode_changed(mode.current_mode_id.to_string(), Some(true), control);
                }
                return Ok(());
            }
        };
        match update {
            SessionUpdate::ToolCallUpdate(call) => {
                let Some(meta) = &call.meta else { return Ok(()) };
                if let Some(exit) = meta.get(EXIT_META) {
                    self.ended = ended(exit);
                    control.send(HOST, TerminalReport::Ended);
                }
                if let Some(act) = meta.get(REFUSED_META) {
                    self.refused += 1;
                    control.send_all(&TerminalReport::Refusal(RefusedAct::deserialize(act)?));
                }
                if let Some(state) = meta.get(JOB_META) {
                    self.job_changed(JobState::deserialize(state)?, control);
                }
                Ok(())
            }
            SessionUpdate::AgentMessageChunk(chunk) => match (&chunk.content, &chunk.meta) {
                (ContentBlock::Text(block), Some(meta)) if meta.contains_key(NOTICE_META) => {
                    self.note(text::visible(block.text.trim()), control)
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn job_changed(&mut self, state: JobState, control: &ControlSocket) {
        match state {
            JobState::Stopped { command, group } => {
                self.group = Some(group);
                if terminal::is_stopped(command) {
                    control.send_all(&TerminalReport::Stopped);
                }
            }
            JobState::Running => control.send_all(&TerminalReport::Continued),
        }
    }

    fn continue_program(&self, is_foreground: bool) {
        // The program may be gone.
        let _ = self.group.map(|group| terminal::continue_group(group, is_foreground));
    }

    fn note(&mut self, text: String, control: &ControlSocket) -> io::Result<()> {
        control.send_all(&TerminalReport::Notice(text.clone()));
        if terminal::shows_lines() {
            writeln!(self.messages, "modegate: {}", without_name(&text))
        } else {
            self.late.extend((!self.has_panel).then_some(text));
            Ok(())
        }
    }

    /// A store in memory is lost, and has no record of changed files.
    fn end_line(&self, changed_paths: usize, is_in_memory: bool, is_unrecorded: bool) -> String {
        let (part, limit) = (self.part, &self.limit);
        let refused = match self.refused {
            0 => String::new(),
            refused => format!(", {} refused", text::counted(refused, "act", "acts")),
        };
        if let (TerminalReport::State { mode, .. }, 0) = (&self.state, changed_paths) {
            if is_in_memory {
                let changed =
                    if self.may_have_changed { "changes are not recorded" } else { "nothing changed" };
                return format!(
                    "{mode} mode{limit}: {changed}{refused}; the session was stored in memory only and is lost"
                );
            }
            if is_unrecorded {
                return format!("{mode} mode{limit}, session {part}: changes are not recorded{refused}");
            }
            let rules = if refused.is_empty() {
                String::new()
            } else {
                format!("; `modegate sessions show {part}` counts them by rule")
            };
            format!("{mode} mode{limit}, session {part}: nothing changed{refused}{rules}")
        } else {
            let files = text::counted(changed_paths, "path", "paths");
            let least = if is_unrecorded { "at least " } else { "" };
            format!("{least}{files} changed{refused}; `modegate sessions undo {part}` takes the changes back")
        }
    }

    fn print_late(&mut self) -> io::Result<()> {
        for text in std::mem::take(&mut self.late) {
            writeln!(self.messages, "modegate: {}", without_name(&text))?;
        }
        Ok(())
    }

    fn ask(
        &mut self,
        question: TerminalQuestion,
        reply: ReplySender,
        control: &ControlSocket,
    ) -> io::Result<()> {
        control.send_all(&TerminalReport::Asked(question.clone()));
        if !self.host_asks && !control.is_followed() && terminal::shows_lines() {
            // A notice with the content of the question precedes it.
            writeln!(
                self.messages,
                "modegate: the program waits for your answer: `modegate mode {}` in another terminal within {} minutes",
                self.part,
                QUESTION_LIMIT.as_secs() / 60
            )?;
        }
        self.questions.insert(question.number, (question, reply));
        Ok(())
    }

    fn greet(&self, terminal: u64, control: &ControlSocket) {
        let mut state = self.state.clone();
        if let TerminalReport::State { open_questions, .. } = &mut state {
            *open_questions = self.questions.len();
        }
        control.send(terminal, state);
        for (question, _) in self.questions.values() {
            control.send(terminal, TerminalReport::Asked(question.clone()));
        }
    }

    fn answer(&mut self, terminal: u64, number: u64, option: &str, control: &ControlSocket) {
        let Some((question, _)) = self.questions.get(&number) else {
            return control
                .send(terminal, TerminalReport::Refused("this question was answered already".into()));
        };
        if !question.options.iter().any(|choice| choice.id == option) {
            return control.send(terminal, TerminalReport::Refused(format!("there is no answer {option:?}")));
        }
        let Some((_, reply)) = self.questions.remove(&number) else { return };
        let selected = SelectedPermissionOutcome::new(option.to_owned());
        let response = RequestPermissionResponse::new(RequestPermissionOutcome::Selected(selected));
        let answer = serde_json::to_value(response);
        // The question may be withdrawn by now.
        let _ = reply.send(answer.map_err(|error| ClientError::Malformed(error.to_string())));
        control.send_all(&TerminalReport::Closed(number));
    }

    fn mode_changed(&mut self, new: String, confirmed: Option<bool>, control: &ControlSocket) {
        let TerminalReport::State { mode, is_confirmed, .. } = &mut self.state else { return };
        mode.clone_from(&new);
        self.may_have_changed = true;
        *is_confirmed = confirmed.unwrap_or(*is_confirmed);
        let report = if *is_confirmed { TerminalReport::Mode(new) } else { TerminalReport::Unconfirmed(new) };
        control.send_all(&report);
    }
}

/// A notice without its first word: the line begins with that name.
fn without_name(notice: &str) -> &str {
    notice.strip_prefix("Modegate ").unwrap_or(notice)
}

/// True if this process, and so its program, runs in the sandbox of another Modegate.
pub fn is_nested() -> bool {
    origin::is_below_supervisor()
}

/// The purpose of a mode, or its name.
fn question(number: u64, request: &RequestPermissionRequest) -> TerminalQuestion {
    let fields = &request.tool_call.fields;
    let texts = fields.content.iter().flatten().filter_map(|content| match content {
        ToolCallContent::Content(content) => match &content.content {
            ContentBlock::Text(block) => Some(text::visible(block.text.trim())),
            _ => None,
        },
        ToolCallContent::Diff(diff) => Some(changed_lines(diff)),
        _ => None,
    });
    TerminalQuestion {
        number,
        title: text::visible_line(fields.title.as_deref().unwrap_or_default()),
        text: texts.collect::<Vec<_>>().join("\n"),
        options: request
            .options
            .iter()
            .map(|option| Choice { id: option.option_id.to_string(), name: text::visible_line(&option.name) })
            .collect(),
    }
}

/// A unified diff without the names of the files.
fn changed_lines(diff: &Diff) -> String {
    let (old, new) = (diff.old_text.as_deref().unwrap_or_default(), diff.new_text.as_str());
    let (old, new) = (line_diff::lines(old), line_diff::lines(new));
    let unified = line_diff::unified(("", ""), &old, &new, &line_diff::hunks(&old, &new));
    let start = unified.find("@@").unwrap_or_default();
    text::start(&text::visible(&unified[start..]), MAX_DIFF).to_owned()
}

fn ended(meta: &Value) -> Option<TerminalEnd> {
    let number = |key: &str| meta.get(key)?.as_i64().and_then(|number| i32::try_from(number).ok());
    let exit = number("status").map(Exit::Status).or_else(|| number("signal").map(Exit::Signal));
    let code = number("code").and_then(|code| u8::try_from(code).ok());
    exit.map(Ok).or_else(|| {
        let reason = meta.get("error")?.as_str()?.to_owned();
        Some(Err(ProgramFailure { reason, code }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_read() {
        assert_eq!(ended(&serde_json::json!({ "status": 3 })), Some(Ok(Exit::Status(3))));
        assert_eq!(ended(&serde_json::json!({ "signal": 9 })), Some(Ok(Exit::Signal(9))));
        for code in [None, Some(127)] {
            let failure = ProgramFailure { reason: "no".into(), code };
            assert_eq!(ended(&serde_json::json!({ "error": "no", "code": code })), Some(Err(failure)));
        }
        assert_eq!(ended(&serde_json::json!({})), None);
    }

    #[test]
    fn last_line_never_says_that_nothing_changed_if_the_record_failed() {
        let run = Run {
            part: "abcdef",
            limit: String::new(),
            may_have_changed: true,
            state: TerminalReport::State {
                session: "s".into(),
                program: "sh".into(),
                folder: "/w".into(),
                mode: "code".into(),
                limit: None,
                is_confirmed: true,
                modes: Vec::new(),
                mode_descriptions: Vec::new(),
                is_read_only: false,
                open_questions: 0,
            },
            changing: 0,
            questions: BTreeMap::new(),
            messages: Vec::new(),
            ended: None,
            late: Vec::new(),
            group: None,
            host_asks: false,
            has_panel: false,
            refused: 0,
        };
        for (paths, is_unrecorded, expected) in [
            (0, false, "code mode, session abcdef: nothing changed"),
            (0, true, "code mode, session abcdef: changes are not recorded"),
            (1, false, "1 path changed; `modegate sessions undo abcdef` takes the changes back"),
            (2, true, "at least 2 paths changed; `modegate sessions undo abcdef` takes the changes back"),
        ] {
            assert_eq!(run.end_line(paths, false, is_unrecorded), expected);
        }
    }

    #[test]
    fn short_id_is_the_end() {
        assert_eq!(short("019a-abcdef"), "abcdef");
        assert_eq!(short("abc"), "abc");
    }
}
