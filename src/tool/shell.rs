//! `shell` and `shell_read_only`: run one command line to its end. The second counts as a read only because
//! the kernel sandbox prevents writes.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::mpsc;

use self::command_line::{CommandLine, TOOL_AS_PROGRAM};
pub use self::denied_changes::denied_changes;
use self::job::{JobEnd, JobNotes, JobSandbox, JobSpec, OutputWatcher};
use self::snapshot::{begin, report_when_done};
use super::agent::background::BackgroundRole;
use super::{Job, PreparedCall, Preview, RunContext, SessionState, Tool, ToolError, ToolOutput, ToolSpec};
use crate::acp::ToolKind;
use crate::busy::BusyGuard;
use crate::conversation::content::{ToolContent, fitting};
use crate::gate::Permit;
use crate::mode::ShellUse;
use crate::permission::Effect;
use crate::process::shell::{CommandSandbox, Shell};
use crate::text::{code_block, start, visible};
use crate::workspace::{Outputs, Workspace};

pub(super) mod command_line;
mod denied_changes;
pub mod job;
pub(super) mod jobs;
pub mod output_terminal;
pub mod snapshot;

/// Default and maximum timeout of a call, in seconds.
const SECONDS: u64 = 120;
const MAX_SECONDS: u64 = 1800;

/// Below the kernel's limit for one argument.
const MAX_LINE: usize = 100 * 1024;

/// Longer than any timeout that a call can ask for.
const TIMEOUT: Duration = Duration::from_secs(MAX_SECONDS + 10);

const TITLE: usize = 120;

const INTERVAL: Duration = Duration::from_millis(100);

const SHOWN: usize = 8 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ShellArguments {
    /// For bash, without terminal and input.
    command: String,
    /// Default: the working directory.
    #[serde(default)]
    cwd: Option<String>,
    /// Seconds, at most 1800. Default: 120.
    #[serde(default)]
    timeout: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FullArguments {
    /// For bash, without terminal and input.
    command: String,
    /// Default: the working directory.
    #[serde(default)]
    cwd: Option<String>,
    /// Seconds, at most 1800. Default: 120, in the background none.
    #[serde(default)]
    timeout: Option<u64>,
    /// Return at once with the id of a job that runs on: a server, a watcher, a long build. Default: false.
    #[serde(default)]
    background: bool,
}

pub(super) fn read_only(shell: Shell, sandbox: CommandSandbox) -> Arc<dyn Tool> {
    let description = "Run a command line that only reads: git log, rg, jq, tests, builds, linters. Prefer it to other tools for \
                these. A sandbox enforces it: no home folder, no network but a 127.0.0.1 of its own, and writes only below \
                $TMPDIR, which is deleted afterwards, and in build caches, which last for the session.";
    let spec = ToolSpec::new("shell_read_only", ToolKind::Execute, Effect::Read, description);
    let runner = Runner::new(shell, sandbox);
    ToolSpec { shell: ShellUse::ReadOnly, timeout: TIMEOUT, ..spec }.tool(
        move |ShellArguments { command, cwd, timeout }, workspace| {
            let given = FullArguments { command, cwd, timeout, background: false };
            prepare(given, &runner, workspace)
        },
    )
}

pub(super) fn full(shell: Shell, sandbox: CommandSandbox) -> Arc<dyn Tool> {
    let description = if sandbox.is_off() {
        "Run a command line and wait until it exits. Processes that it leaves behind are stopped."
    } else {
        "Run a command line and wait until it exits. Processes that it leaves behind are stopped. It can write in the \
         session's folders, temporary folders and caches; elsewhere permission is denied, and sudo does not work."
    };
    let spec = ToolSpec::new("shell", ToolKind::Execute, Effect::Execute, description);
    let runner = Runner::new(shell, sandbox);
    ToolSpec { shell: ShellUse::Full, timeout: TIMEOUT, background: BackgroundRole::Starts, ..spec }
        .tool(move |given, workspace| prepare(given, &runner, workspace))
}

fn prepare(given: FullArguments, runner: &Runner, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
    let FullArguments { command, cwd, timeout, background } = given;
    if timeout.is_some_and(|timeout| !(1..=MAX_SECONDS).contains(&timeout)) {
        let reason = format!("timeout is not a number of seconds from 1 to {MAX_SECONDS}");
        return Err(ToolError::arguments(reason));
    }
    let start = Start::new(command, cwd.as_deref(), workspace)?;
    // Reads the file system, so it is done here and not where the command starts.
    runner.sandbox.confinement();
    let limit = timeout.or((!background).then_some(SECONDS)).map(Duration::from_secs);
    let runner = runner.clone();
    let command = move |start| ShellCommand { start, limit, runner };
    if !background {
        let title = start.title();
        return Ok(start.prepared(title, move |start, context, state| command(start).run(context, state)));
    }
    let title = format!("{} (in the background)", start.title());
    let call =
        start.prepared(title, move |start, context, state| jobs::start(command(start), context, state));
    Ok(PreparedCall { is_background: true, ..call })
}

#[derive(Debug)]
pub(super) struct Start {
    line: String,
    parsed: CommandLine,
    cwd: PathBuf,
    /// `None` for the session's working directory.
    elsewhere: Option<String>,
    stays_inside: bool,
    outputs: Outputs,
}

impl Start {
    /// Parses a command line and resolves `cwd`, which must be inside the session's folders.
    fn new(line: String, cwd: Option<&str>, workspace: &Workspace) -> Result<Self, ToolError> {
        if line.trim().is_empty() || line.contains('\0') {
            return Err(ToolError::arguments("command is empty or not text"));
        }
        if line.len() > MAX_LINE {
            return Err(ToolError::arguments(
                "command is longer than 100 KiB: write a script, or use the tools for files",
            ));
        }
        let target = workspace.resolve(cwd.unwrap_or("."))?;
        if target.inside.is_none() {
            let reason = format!("cwd {} is outside the session's folders", target.path.display());
            return Err(ToolError::arguments(reason));
        }
        let parsed = CommandLine::parse(&line);
        if parsed.runs_a_tool() {
            return Err(ToolError::Failed(TOOL_AS_PROGRAM.into()));
        }
        let stays_inside = stays_inside(&parsed, &target.path, workspace);
        if !target.path.is_dir() {
            return Err(ToolError::arguments(format!("cwd {} is not a directory", target.path.display())));
        }
        let elsewhere = (target.path != workspace.cwd()).then(|| workspace.display(&target));
        let outputs = workspace.outputs().clone();
        Ok(Self { line, parsed, cwd: target.path, elsewhere, stays_inside, outputs })
    }

    fn title(&self) -> String {
        let whole = visible(self.line.trim());
        let line = whole.lines().next().unwrap_or_default();
        let start = start(line, TITLE);
        if start.len() < whole.len() { format!("{start}…") } else { start.to_owned() }
    }

    fn prepared<Run>(
        self,
        title: String,
        run: impl FnOnce(Self, RunContext, SessionState) -> Run + Send + 'static,
    ) -> PreparedCall
    where
        Run: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
    {
        let commands = self.parsed.to_commands(self.elsewhere.as_deref(), self.stays_inside);
        let preview = Preview::Content(self.preview());
        let is_in_title = self.title() == visible(self.line.trim()) && self.elsewhere.is_none();
        PreparedCall {
            commands,
            preview,
            is_in_title,
            ..PreparedCall::on_state(title, |context, state| run(self, context, state))
        }
    }

    fn preview(&self) -> Vec<ToolContent> {
        let line = visible(self.line.trim_end());
        let place = self.elsewhere.as_ref().map(|place| format!("In: {place}\n")).unwrap_or_default();
        // Parts first, because a long line is truncated.
        let text = format!("{place}{}{}", self.parsed.describe(), code_block("sh", &line));
        vec![ToolContent::middle(&text)]
    }

    pub(super) async fn begin(
        self,
        id: String,
        notes: JobNotes,
        shell: &Shell,
        sandbox: &CommandSandbox,
        permit: Permit,
        limit: Option<Duration>,
    ) -> Result<Job, ToolError> {
        let sandbox = sandbox.with_readable(self.outputs.folder());
        match shell.start(&self.line, &self.cwd, &sandbox).await {
            Ok(process) => {
                let scratch = shell.processes().scratch().to_owned();
                let has_several_commands = self.parsed.has_several_commands();
                let notes = JobNotes { has_several_commands, ..notes };
                let spec = JobSpec { id, line: self.line, notes, outputs: self.outputs, scratch };
                Ok(Job::begin(spec, process, permit, limit))
            }
            Err(error) => Err(ToolError::Failed(format!("The command cannot be started: {error}."))),
        }
    }
}

/// True if all named paths are inside the session's folders, with links followed.
fn stays_inside(line: &CommandLine, cwd: &Path, folders: &Workspace) -> bool {
    line.paths().iter().all(|path| {
        let target = cwd.join(path).to_str().map(|path| folders.resolve(path));
        target.is_some_and(|target| target.is_ok_and(|target| target.inside.is_some()))
    })
}

pub(super) struct ShellCommand {
    pub start: Start,
    pub limit: Option<Duration>,
    pub runner: Runner,
}

/// Runs the commands of one tool.
#[derive(Clone)]
pub(super) struct Runner {
    pub shell: Shell,
    pub sandbox: CommandSandbox,
    /// Number of compactions at the last command; at first an impossible one.
    compactions: Arc<AtomicU64>,
}

impl Runner {
    fn new(shell: Shell, sandbox: CommandSandbox) -> Self {
        Self { shell, sandbox, compactions: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// What an earlier result said is in the history until a compaction.
    pub(super) fn notes(&self, compactions: u64) -> JobNotes {
        let is_first = self.compactions.swap(compactions, Ordering::Relaxed) != compactions;
        let sandbox = match &self.sandbox {
            sandbox if sandbox.is_off() => JobSandbox::Off,
            sandbox if sandbox.is_read_only() => JobSandbox::ReadOnly,
            _ => JobSandbox::Workspace,
        };
        JobNotes { sandbox, is_first, keeps: sandbox != JobSandbox::ReadOnly, has_several_commands: false }
    }
}

impl ShellCommand {
    async fn run(self, context: RunContext, state: SessionState) -> Result<ToolOutput, ToolError> {
        let Self { start, limit, runner } = self;
        let notes = runner.notes(state.compactions);
        let Runner { shell, sandbox, .. } = runner;
        let _busy = BusyGuard::begin();
        let RunContext { permit, progress, changes, client_io, keeps_output, .. } = context;
        let cancel = permit.cancel.clone();
        let is_terminal = client_io.capabilities().shows_output;
        // Read-only commands change nothing.
        let snapshot = state.snapshot.filter(|_| !sandbox.is_read_only());
        let snapshot = match snapshot {
            Some(snapshot) => Some((begin(&snapshot, &permit, &changes).await?, snapshot)),
            None => None,
        };
        let record = snapshot.as_ref().and_then(|(running, _)| running.record());
        let sandbox = sandbox.with_record(record);
        let mut job = start.begin(String::new(), notes, &shell, &sandbox, permit, limit).await?;
        if let Some((running, _)) = &snapshot {
            running.started(&job);
        }
        let reporting =
            snapshot.map(|(running, snapshot)| report_when_done(snapshot, running, &job, changes));
        // In a deterministic run `progress` is `None`: streamed output would depend on timing.
        let job_snapshot = if is_terminal && progress.is_some() {
            let output = OutputWatcher::of(&job);
            let (job_snapshot, ()) =
                tokio::join!(job.over(), output_terminal::stream(&client_io, output, INTERVAL, &cancel));
            job_snapshot
        } else {
            tokio::select! {
                biased;
                job_snapshot = { let mut job = job.clone(); async move { job.over().await } } => job_snapshot,
                () = show(&mut job, progress) => None,
            }
        };
        if let Some(reporting) = reporting {
            let _ = reporting.await;
        }
        let job_snapshot =
            job_snapshot.ok_or_else(|| ToolError::Failed("Modegate lost track of the command.".into()))?;
        let command_output = if keeps_output { Some(job.whole_output(&job_snapshot).await) } else { None };
        let text = job_snapshot.describe();
        let exit_code = job_snapshot.end.as_ref().and_then(JobEnd::exit_code);
        match job_snapshot.end {
            Some(end) if !end.is_own() => Err(ToolError::Failed(text)),
            _ => {
                let mut output = ToolContent::middle(&text);
                if is_terminal {
                    output = ToolContent::Terminal { id: client_io.terminal_id(), shown: Box::new(output) };
                }
                let shown = vec![output];
                Ok(ToolOutput { text, content: shown, exit_code, command_output, ..ToolOutput::default() })
            }
        }
    }
}

async fn show(job: &mut Job, progress: Option<mpsc::Sender<ToolContent>>) {
    let mut shown_bytes = 0;
    while let Some(progress) = &progress {
        job.changed().await;
        match job.snapshot().await {
            Some(snapshot) if snapshot.end.is_none() => {
                if snapshot.written == shown_bytes {
                    continue;
                }
                shown_bytes = snapshot.written;
                let _ = progress.send(ToolContent::Text(end_of(&snapshot.output, SHOWN).to_owned())).await;
            }
            _ => break,
        }
        tokio::time::sleep(INTERVAL).await;
    }
    std::future::pending::<()>().await;
}

/// Returns the last lines that fit into `budget` bytes of JSON.
fn end_of(text: &str, budget: usize) -> &str {
    if fitting(text, budget) == text.len() {
        return text;
    }
    let rest = &text[text.ceil_char_boundary(text.len().saturating_sub(budget / 2))..];
    rest.find('\n').map_or(rest, |end| &rest[end + 1..])
}
