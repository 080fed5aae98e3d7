//! A call with checked arguments: its title and facts for people and rules, and its action.

use std::future::Future;
use std::path::PathBuf;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{
    ClientIo, Job, LastSeen, Proposal, RunContext, SessionAction, SnapshotHandle, ToolError, ToolOutput,
    ToolSpec, blocking,
};
use crate::conversation::content::ToolContent;
use crate::gate::Permit;
use crate::permission::{Address, CallFacts, Commands, Target};
use crate::tool::agent::background::BackgroundAgent;

pub struct PreparedCall {
    pub title: String,
    pub targets: Vec<Target>,
    /// Targets that clients can show: not folders, which clients cannot open as a file.
    pub shown_targets: Vec<PathBuf>,
    /// Line of the target, counted from 1.
    pub line: Option<u32>,
    /// Paths in the arguments, for rules. Used if the targets are unknown, or if the call is decided on by
    /// its name.
    pub mentions: Vec<PathBuf>,
    pub commands: Commands,
    pub address: Option<Address>,
    /// True if the work continues after the turn.
    pub is_background: bool,
    pub preview: Preview,
    /// True if the title says all that the texts of the preview say.
    pub is_in_title: bool,
    pub action: CallAction,
}

pub type CallTask<Input, Output> =
    Box<dyn FnOnce(Input) -> BoxFuture<'static, Result<Output, ToolError>> + Send>;

/// Content for a permission request.
pub enum Preview {
    Content(Vec<ToolContent>),
    /// Made only if the call may need a permission.
    Task(CallTask<PreviewContext, Vec<ToolContent>>),
}

pub struct PreviewContext {
    pub client_io: ClientIo,
    /// For each target, the content that the model last saw.
    pub last_seen: Vec<Option<LastSeen>>,
}

/// State of the session for the calls that depend on more of it than their permit.
#[derive(Debug, Default)]
pub struct SessionState {
    /// For each target, the content that the model last saw.
    pub last_seen: Vec<Option<LastSeen>>,
    pub jobs: Vec<Job>,
    pub agents: Vec<BackgroundAgent>,
    /// Detects the changes of a command; `None` if they are not tracked.
    pub snapshot: Option<SnapshotHandle>,
    /// Number of compactions of the session so far.
    pub compactions: u64,
}

pub enum CallAction {
    Run(CallTask<RunContext, ToolOutput>),
    /// Changes files on the state that the model last saw, runs a command, or looks at background work.
    RunOnState(CallTask<(RunContext, SessionState), ToolOutput>),
    /// The session asks the user, and switches its mode.
    Propose(Proposal),
    Session(SessionAction),
}

impl PreparedCall {
    pub fn new<Run>(title: impl Into<String>, run: impl FnOnce(RunContext) -> Run + Send + 'static) -> Self
    where
        Run: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
    {
        Self::with_action(title, CallAction::Run(Box::new(|context| run(context).boxed())))
    }

    pub(super) fn on_state<Run>(
        title: impl Into<String>,
        run: impl FnOnce(RunContext, SessionState) -> Run + Send + 'static,
    ) -> Self
    where
        Run: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
    {
        Self::with_action(
            title,
            CallAction::RunOnState(Box::new(|(context, state)| run(context, state).boxed())),
        )
    }

    /// A call that reads one target off the main thread and returns text. The permit says when to stop and
    /// which files are readable.
    pub(super) fn reading(
        title: String,
        target: Target,
        work: impl FnOnce(&Permit) -> Result<String, ToolError> + Send + 'static,
    ) -> Self {
        // The work owns the permit until its end, even if the caller stops waiting.
        let call = Self::new(title, |RunContext { permit, .. }| {
            blocking(move || Ok(ToolOutput::text(work(&permit)?)))
        });
        Self { targets: vec![target], ..call }
    }

    pub(super) fn with_action(title: impl Into<String>, action: CallAction) -> Self {
        Self {
            title: title.into(),
            targets: Vec::new(),
            shown_targets: Vec::new(),
            line: None,
            mentions: Vec::new(),
            commands: Commands::None,
            address: None,
            is_background: false,
            preview: Preview::Content(Vec::new()),
            is_in_title: false,
            action,
        }
    }

    /// Looks at the disk.
    #[must_use]
    pub(super) fn with_shown_targets(mut self) -> Self {
        let files = self.targets.iter().filter(|target| !target.path.is_dir());
        self.shown_targets = files.map(|target| target.path.clone()).collect();
        self
    }

    pub fn facts(&self, spec: &ToolSpec) -> CallFacts {
        CallFacts {
            targets: self.targets.clone(),
            commands: self.commands.clone(),
            address: self.address.clone(),
            is_background: self.is_background,
            mentions: self.mentions.clone(),
            ..spec.facts()
        }
    }
}

impl CallAction {
    pub async fn run(self, context: RunContext, state: SessionState) -> Result<ToolOutput, ToolError> {
        match self {
            Self::Run(run) => run(context).await,
            Self::RunOnState(run) => run((context, state)).await,
            Self::Propose(_) => Err(ToolError::Failed("Only a session can switch its mode.".into())),
            Self::Session(_) => Err(ToolError::Failed("Only a session can run another agent.".into())),
        }
    }
}

impl Preview {
    pub(super) fn new<Run>(preview: impl FnOnce(PreviewContext) -> Run + Send + 'static) -> Self
    where
        Run: Future<Output = Result<Vec<ToolContent>, ToolError>> + Send + 'static,
    {
        Self::Task(Box::new(|context| preview(context).boxed()))
    }

    pub(super) fn text(text: &str) -> Self {
        Self::Content(vec![ToolContent::text(text)])
    }

    pub async fn content(self, asked: PreviewContext) -> Result<Vec<ToolContent>, ToolError> {
        match self {
            Self::Content(content) => Ok(content),
            Self::Task(preview) => preview(asked).await,
        }
    }
}
