//! Background jobs: commands that outlive their turn, until their session ends or a mode denies them.

use super::job::JobNotes;
use super::snapshot::{RunningCommand, begin};
use super::{Runner, ShellCommand};
use crate::tool::agent::background_list::next_number;
use crate::tool::{Job, JobSnapshot, RunContext, SessionState, ToolError, ToolOutput};

const MAX_RUNNING: usize = 16;

pub(super) async fn start(
    command: ShellCommand,
    context: RunContext,
    state: SessionState,
) -> Result<ToolOutput, ToolError> {
    let ShellCommand { start, limit, runner } = command;
    let notes = JobNotes { keeps: false, ..runner.notes(state.compactions) };
    let Runner { shell, sandbox, .. } = runner;
    let mut running = 0;
    for job in &state.jobs {
        running += usize::from(job.snapshot().await.is_some_and(|snapshot| snapshot.end.is_none()));
    }
    if running >= MAX_RUNNING {
        let text = format!("{MAX_RUNNING} jobs are already running: stop one first.");
        return Err(ToolError::Failed(text));
    }
    let covered = match &state.snapshot {
        Some(snapshot) => Some(begin(snapshot, &context.permit, &context.changes).await?),
        None => None,
    };
    let id = format!("job_{}", next_number(state.jobs.iter().map(|job| job.id.as_str())));
    let record = covered.as_ref().and_then(RunningCommand::record);
    let sandbox = sandbox.with_record(record);
    let job = start.begin(id, notes, &shell, &sandbox, context.permit, limit).await?;
    if let Some(covered) = covered {
        covered.started(&job);
        covered.keep_as_job(&job);
    }
    let text = format!("Started {}. view_background shows its output.", job.id);
    Ok(ToolOutput { job: Some(job), ..ToolOutput::text(text) })
}

pub(in crate::tool) fn lost() -> ToolError {
    ToolError::Failed("Modegate lost track of the job.".into())
}

pub(in crate::tool) async fn describe(job: &Job) -> String {
    let line = job.line.lines().next().unwrap_or_default();
    let state = match job.snapshot().await {
        Some(snapshot) => JobSnapshot { output: String::new(), ..snapshot }.describe(),
        None => "[Modegate lost track of the job.]".into(),
    };
    format!("{}: {line} {state}", job.id)
}
