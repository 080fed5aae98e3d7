//! Background jobs: commands that outlive their turn, until their session ends or a mode denies them.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::background_list::{missing, next_number};
use super::job::Notes;
use super::shell::Start;
use super::snapshot::begin;
use super::{
    ClientIo, Job, PreparedCall, RunContext, Tool, ToolContent, ToolError, ToolOutput, ToolSpec, arguments,
};
use crate::acp::ToolKind;
use crate::mode::ShellUse;
use crate::permission::{Commands, Effect, Target};
use crate::process::shell::{CommandSandbox, Shell};
use crate::workspace::Workspace;

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

pub(super) struct Run {
    spec: ToolSpec,
    shell: Shell,
    sandbox: CommandSandbox,
}

impl Run {
    pub(super) fn new(shell: Shell, sandbox: CommandSandbox) -> Self {
        let spec = ToolSpec::new::<RunArguments>(
            "run_background_job",
            ToolKind::Execute,
            Effect::Execute,
            "Start a command line that runs while you continue: a server, a watcher, a long build. It ends with the session, \
             or when the user switches to a mode that runs no commands.",
        );
        Self { spec: ToolSpec { shell: ShellUse::Full, is_background: true, ..spec }, shell, sandbox }
    }
}

#[async_trait]
impl Tool for Run {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let RunArguments { command, cwd } = arguments(&self.spec.name, given)?;
        let start = Start::new(&self.spec.name, command, cwd, workspace).await?;
        Ok(Box::new(RunCall { start, shell: self.shell.clone(), sandbox: self.sandbox.clone() }))
    }
}

#[derive(Debug)]
struct RunCall {
    start: Start,
    shell: Shell,
    sandbox: CommandSandbox,
}

#[async_trait]
impl PreparedCall for RunCall {
    fn title(&self) -> String {
        format!("{} (in the background)", self.start.title())
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    fn commands(&self) -> Commands {
        self.start.commands()
    }

    async fn preview(&mut self, _: &ClientIo) -> Result<Vec<ToolContent>, ToolError> {
        Ok(self.start.preview())
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let Self { start, shell, sandbox } = *self;
        let mut running = 0;
        for job in &context.jobs {
            running += usize::from(job.snapshot().await.is_some_and(|snapshot| snapshot.end.is_none()));
        }
        if running >= MAX_RUNNING {
            let text = format!("{MAX_RUNNING} jobs are already running: stop one first.");
            return Err(ToolError::Failed(text));
        }
        let covered = match &context.snapshot {
            Some(workspace_snapshot) => {
                Some(begin(workspace_snapshot, &context.permit, &context.changes).await?)
            }
            None => None,
        };
        let id = format!("job_{}", next_number(context.jobs.iter().map(|job| job.id.as_str())));
        let job = start.begin(id, Notes::default(), &shell, &sandbox, context.permit, None).await?;
        if let Some(covered) = covered {
            covered.keep_as_job(&job);
        }
        let text = format!("Started {}. view_background_job shows its output.", job.id);
        Ok(ToolOutput { text, job: Some(job), ..ToolOutput::default() })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NoArguments {}

pub(super) struct List(ToolSpec);

impl List {
    pub(super) fn new() -> Self {
        let what = "List the background jobs of this session and their status.";
        Self(ToolSpec::new::<NoArguments>("list_background_jobs", ToolKind::Read, Effect::Session, what))
    }
}

#[async_trait]
impl Tool for List {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let NoArguments {} = arguments(&self.0.name, given)?;
        Ok(Box::new(About { what: What::List }))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneArguments {
    /// Id of the job: `job_1`.
    job: String,
}

pub(super) struct View(ToolSpec);

impl View {
    pub(super) fn new() -> Self {
        let what = "Show the output of a background job so far and its status.";
        Self(ToolSpec::new::<OneArguments>("view_background_job", ToolKind::Read, Effect::Session, what))
    }
}

#[async_trait]
impl Tool for View {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let OneArguments { job } = arguments(&self.0.name, given)?;
        Ok(Box::new(About { what: What::View(job) }))
    }
}

pub(super) struct Stop(ToolSpec);

impl Stop {
    pub(super) fn new() -> Self {
        let what = "Stop a background job and everything it started, and show the end of its output.";
        Self(ToolSpec::new::<OneArguments>("stop_background_job", ToolKind::Execute, Effect::Session, what))
    }
}

#[async_trait]
impl Tool for Stop {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let OneArguments { job } = arguments(&self.0.name, given)?;
        Ok(Box::new(About { what: What::Stop(job) }))
    }
}

#[derive(Debug)]
struct About {
    what: What,
}

#[derive(Debug)]
enum What {
    List,
    View(String),
    Stop(String),
}

#[async_trait]
impl PreparedCall for About {
    fn title(&self) -> String {
        match &self.what {
            What::List => "List background jobs".into(),
            What::View(job) => format!("View {job}"),
            What::Stop(job) => format!("Stop {job}"),
        }
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let text = match self.what {
            What::List => list(&context.jobs).await,
            What::View(id) => match find(&context.jobs, &id)?.snapshot().await {
                Some(snapshot) => snapshot.describe(),
                None => return Err(lost()),
            },
            What::Stop(id) => {
                let mut job = find(&context.jobs, &id)?.clone();
                job.stop().await;
                job.over().await.ok_or_else(lost)?.describe()
            }
        };
        Ok(ToolOutput { content: vec![ToolContent::middle(&text)], text, ..ToolOutput::default() })
    }
}

fn lost() -> ToolError {
    ToolError::Failed("Modegate lost track of the job.".into())
}

fn find<'a>(jobs: &'a [Job], id: &str) -> Result<&'a Job, ToolError> {
    let found = jobs.iter().find(|job| job.id == id);
    found.ok_or_else(|| missing("job", id, jobs.iter().map(|job| job.id.as_str())))
}

async fn list(jobs: &[Job]) -> String {
    let mut lines = Vec::new();
    for job in jobs {
        let line = job.line.lines().next().unwrap_or_default();
        let state = match job.snapshot().await {
            Some(snapshot) => super::job::JobSnapshot { output: String::new(), ..snapshot }.describe(),
            None => "[Modegate lost track of the job.]".into(),
        };
        lines.push(format!("{}: {line} {state}", job.id));
    }
    if lines.is_empty() { "[There are no background jobs.]".into() } else { lines.join("\n") }
}
