//! Background jobs: commands that outlive their turn, until their session ends or a mode denies them.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::background_list::{self, Listed, find, next_number};
use super::job::Notes;
use super::shell::Start;
use super::snapshot::begin;
use super::{Job, JobSnapshot, NoArguments, PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec};
use crate::acp::ToolKind;
use crate::mode::ShellUse;
use crate::permission::Effect;
use crate::process::shell::{CommandSandbox, Shell};

const MAX_RUNNING: usize = 16;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunArguments {
    /// Command line for bash. It has no terminal and no input.
    command: String,
    /// Directory to run in, inside the session's folders. Default: the working directory.
    #[serde(default)]
    cwd: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct JobArgument {
    /// Id of the job: `job_1`.
    job: String,
}

pub(super) fn run(shell: Shell, sandbox: CommandSandbox) -> Arc<dyn Tool> {
    let what = "Start a command line that runs while you continue: a server, a watcher, a long build. It ends with the session, \
                or when the user switches to a mode that runs no commands.";
    let spec = ToolSpec::new("run_background_job", ToolKind::Execute, Effect::Execute, what);
    let spec = ToolSpec { shell: ShellUse::Full, is_background: true, ..spec };
    spec.tool(move |RunArguments { command, cwd }, workspace| {
        let start = Start::new(command, cwd.as_deref(), workspace)?;
        let title = format!("{} (in the background)", start.title());
        let (shell, sandbox) = (shell.clone(), sandbox.clone());
        Ok(start
            .prepared(title, async move |start, context| start_job(start, &shell, &sandbox, context).await))
    })
}

async fn start_job(
    start: Start,
    shell: &Shell,
    sandbox: &CommandSandbox,
    context: RunContext,
) -> Result<ToolOutput, ToolError> {
    let mut running = 0;
    for job in &context.jobs {
        running += usize::from(job.snapshot().await.is_some_and(|snapshot| snapshot.end.is_none()));
    }
    if running >= MAX_RUNNING {
        let text = format!("{MAX_RUNNING} jobs are already running: stop one first.");
        return Err(ToolError::Failed(text));
    }
    let covered = match &context.snapshot {
        Some(snapshot) => Some(begin(snapshot, &context.permit, &context.changes).await?),
        None => None,
    };
    let id = format!("job_{}", next_number(context.jobs.iter().map(Job::id)));
    let job = start.begin(id, Notes::default(), shell, sandbox, context.permit, None).await?;
    if let Some(covered) = covered {
        covered.keep_as_job(&job);
    }
    let text = format!("Started {}. view_background_job shows its output.", job.id);
    Ok(ToolOutput { job: Some(job), ..ToolOutput::text(text) })
}

pub(super) fn list() -> Arc<dyn Tool> {
    let what = "List the background jobs of this session and their status.";
    let spec = ToolSpec::new("list_background_jobs", ToolKind::Read, Effect::Session, what);
    spec.tool(|NoArguments {}, _| {
        Ok(PreparedCall::new("List background jobs", async |context: RunContext| {
            let mut lines = Vec::new();
            for job in &context.jobs {
                lines.push(describe(job).await);
            }
            Ok(background_list::list::<Job>(&lines))
        }))
    })
}

pub(super) fn view() -> Arc<dyn Tool> {
    let what = "Show the output of a background job so far and its status.";
    let spec = ToolSpec::new("view_background_job", ToolKind::Read, Effect::Session, what);
    spec.tool(|JobArgument { job: id }, _| {
        Ok(PreparedCall::new(format!("View {id}"), async move |context: RunContext| {
            let snapshot = find(&context.jobs, &id)?.snapshot().await.ok_or_else(lost)?;
            Ok(ToolOutput::long_text(snapshot.describe()))
        }))
    })
}

pub(super) fn stop() -> Arc<dyn Tool> {
    let what = "Stop a background job and everything it started, and show the end of its output.";
    let spec = ToolSpec::new("stop_background_job", ToolKind::Execute, Effect::Session, what);
    spec.tool(|JobArgument { job: id }, _| {
        Ok(PreparedCall::new(format!("Stop {id}"), async move |context: RunContext| {
            let mut job = find(&context.jobs, &id)?.clone();
            job.stop().await;
            Ok(ToolOutput::long_text(job.over().await.ok_or_else(lost)?.describe()))
        }))
    })
}

impl Listed for Job {
    const KIND: &'static str = "job";

    fn id(&self) -> &str {
        &self.id
    }
}

fn lost() -> ToolError {
    ToolError::Failed("Modegate lost track of the job.".into())
}

async fn describe(job: &Job) -> String {
    let line = job.line.lines().next().unwrap_or_default();
    let state = match job.snapshot().await {
        Some(snapshot) => JobSnapshot { output: String::new(), ..snapshot }.describe(),
        None => "[Modegate lost track of the job.]".into(),
    };
    format!("{}: {line} {state}", job.id)
}
