//! Tools: what a model can have done. One tool per file; this file has what they share and the set of them.
//!
//! A call is first *prepared*: its arguments are read and what it would touch is found out, without reading content.
//! Then it is decided on, elsewhere. Only then is it run, with a permit that stays with the effect until it is over.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::acp::{PlanEntry, ToolKind};
use crate::gate::Permit;
use crate::mode::ShellUse;
use crate::model::ToolOffer;
use crate::permission::{CallFacts, Commands, Effect, Target};
use crate::process::shell::Shell;
use crate::workspace::{Changes, FileError, Stamp, Workspace};
pub use content::ToolContent;
pub use job::Job;
pub use shadow::SharedShadow;
pub use switch_mode::Proposal;

pub mod content;

mod apply_patch;
mod command_line;
mod delete_file;
mod directory_tree;
mod edit_file;
mod find_files;
pub mod job;
mod jobs;
mod list_directory;
mod move_file;
mod read_file;
mod read_multiple_files;
mod reading;
mod search_files;
pub mod shadow;
mod shell;
mod switch_mode;
mod text;
mod think;
mod todo;
mod walk;
mod write_file;

/// How long a call may take unless its tool says otherwise.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a tool is, declared once. Everything but the effect is for people and models; the effect is what decides.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// The name under which models call it.
    pub name: &'static str,
    /// What it is for, to the model.
    pub description: &'static str,
    /// How clients show it.
    pub kind: ToolKind,
    /// What it does to the world.
    pub effect: Effect,
    /// What it needs of the shell.
    pub shell: ShellUse,
    /// What it begins goes on after its turn.
    pub is_background: bool,
    /// It asks the user to leave the mode: the session itself carries it out.
    pub is_exit: bool,
    /// JSON Schema of the arguments; shared, because each call keeps its tool's spec.
    pub schema: Arc<Value>,
    /// When a call is given up.
    pub timeout: Duration,
}

impl ToolSpec {
    fn new<Arguments: JsonSchema>(
        name: &'static str,
        kind: ToolKind,
        effect: Effect,
        description: &'static str,
    ) -> Self {
        let mut schema = schemars::schema_for!(Arguments);
        schema.remove("$schema");
        schema.remove("title");
        let schema = Arc::new(schema.to_value());
        Self {
            name,
            description,
            kind,
            effect,
            shell: ShellUse::Off,
            is_background: false,
            is_exit: false,
            schema,
            timeout: TIMEOUT,
        }
    }

    /// What a decision about the tool as such rests on.
    pub fn facts(&self) -> CallFacts {
        let facts = CallFacts::of_tool(self.name, self.effect);
        CallFacts { shell: self.shell, is_background: self.is_background, is_exit: self.is_exit, ..facts }
    }

    /// The tool as a model is told of it.
    pub fn to_offer(&self) -> ToolOffer {
        ToolOffer {
            name: self.name.to_owned(),
            description: self.description.to_owned(),
            schema: Value::clone(&self.schema),
        }
    }
}

/// Why a call came to nothing. The text is for the model, which can mend its call.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The arguments do not fit the tool's schema.
    #[error("The arguments do not fit {tool}: {reason}")]
    Arguments {
        /// The tool that was called.
        tool: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// A path or a file.
    #[error(transparent)]
    File(#[from] FileError),
    /// Anything else, in a sentence.
    #[error("{0}")]
    Failed(String),
}

/// A place that a call is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Absolute.
    pub path: PathBuf,
    /// Counted from 1.
    pub line: Option<u32>,
}

/// What a call came to.
#[derive(Debug, Default)]
pub struct ToolOutput {
    /// What the model reads.
    pub text: String,
    /// What the client shows; empty means the text.
    pub content: Vec<ToolContent>,
    /// Files whose content the model has now seen, or made.
    pub seen: Vec<(PathBuf, Stamp)>,
    /// The model's list of tasks, if the call changed it.
    pub plan: Option<Vec<PlanEntry>>,
    /// What it has begun and goes on.
    pub job: Option<Job>,
}

/// What a call is handed when it runs.
#[derive(Debug)]
pub struct RunContext {
    /// Leave to do it; stays with the effect until it is over.
    pub permit: Permit,
    /// For each target, the content that the model last saw, if it did.
    pub known: Vec<Option<Stamp>>,
    /// The session's background jobs, in the order in which they were begun.
    pub jobs: Vec<Job>,
    /// Where it shows what it has come to so far; none where nobody looks.
    pub progress: Option<mpsc::Sender<ToolContent>>,
    /// Where it tells what it has changed, however it ends and whoever still waits. Unbounded: it tells once.
    pub changes: mpsc::UnboundedSender<Changes>,
    /// By which what a command changes can be told; none: it is not.
    pub shadow: Option<SharedShadow>,
}

/// A tool.
#[async_trait]
pub trait Tool: Send + Sync {
    /// What it is.
    fn spec(&self) -> &ToolSpec;

    /// Reads the arguments and finds out what the call would touch.
    async fn prepare(
        &self,
        arguments: Value,
        workspace: &Workspace,
    ) -> Result<Box<dyn PreparedCall>, ToolError>;
}

/// A call whose arguments are understood.
#[async_trait]
pub trait PreparedCall: Send + std::fmt::Debug {
    /// One line for people.
    fn title(&self) -> String;

    /// What it would touch.
    fn targets(&self) -> &[Target];

    /// What it proposes, if it is the session that carries it out.
    fn proposal(&self) -> Option<&Proposal> {
        None
    }

    /// What it would run.
    fn commands(&self) -> Commands {
        Commands::None
    }

    /// The line of the first target that it is about, if it is about one.
    fn line(&self) -> Option<u32> {
        None
    }

    /// What the user is shown when asked for consent. Called only when the call may be asked for.
    async fn preview(&mut self) -> Result<Vec<ToolContent>, ToolError> {
        Ok(Vec::new())
    }

    /// Does it.
    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError>;
}

/// The tools there are, in the order in which models are told of them. Cheap to clone.
#[derive(Clone)]
pub struct Toolset {
    tools: Arc<[Arc<dyn Tool>]>,
    /// What commands are run with; none: there are none.
    shell: Option<Shell>,
}

/// Said where a session has no read-only commands because of its folder.
const TOO_WIDE: &str = "There are no read-only commands in this session: its folder is your home folder, the root of the \
    file system, or a folder around them, and these are not readable as a whole.\n\n";

/// The tools that run commands and look after them.
const COMMAND_TOOLS: [&str; 6] = [
    "shell_read_only",
    "shell",
    "run_background_job",
    "list_background_jobs",
    "view_background_job",
    "stop_background_job",
];

/// Whether a pattern over names can be about a tool of Modegate's own, or about a server's; else the nearest name.
pub fn unknown_tool(pattern: &str) -> Option<String> {
    if pattern.contains(['*', '?', '[', '{']) || pattern.starts_with("mcp__") {
        return None;
    }
    let tools = Toolset::built_in();
    let names: Vec<&str> = tools.iter().map(|tool| tool.spec().name).chain(COMMAND_TOOLS).collect();
    (!names.contains(&pattern)).then(|| crate::mode::definition::nearest(pattern, &names).to_owned())
}

impl Toolset {
    /// These tools, in this order.
    pub fn new(tools: Vec<Arc<dyn Tool>>) -> Self {
        Self { tools: tools.into(), shell: None }
    }

    /// The built-in tools. Those that run commands come with a session's folders, see [`Self::for_session`].
    pub fn built_in() -> Self {
        let tools: Vec<Arc<dyn Tool>> = vec![
            Arc::new(read_file::ReadFile::new()),
            Arc::new(read_multiple_files::ReadMultipleFiles::new()),
            Arc::new(list_directory::ListDirectory::new()),
            Arc::new(directory_tree::DirectoryTree::new()),
            Arc::new(find_files::FindFiles::new()),
            Arc::new(search_files::SearchFiles::new()),
            Arc::new(think::Think::new()),
            Arc::new(todo::Todo::new()),
            Arc::new(switch_mode::SwitchMode::new()),
            Arc::new(write_file::WriteFile::new()),
            Arc::new(edit_file::EditFile::new()),
            Arc::new(apply_patch::ApplyPatch::new()),
            Arc::new(move_file::MoveFile::new()),
            Arc::new(delete_file::DeleteFile::new()),
        ];
        Self::new(tools)
    }

    /// What each of Modegate's own tools does.
    pub fn effects() -> Vec<(String, Effect)> {
        let tools = Self::built_in();
        let known = tools.iter().map(|tool| (tool.spec().name.to_owned(), tool.spec().effect));
        // Those that come with a session's shell: all but the ones that look or stop run something.
        let command = |name: &&str| {
            let runs = ["shell", "run_background_job"].contains(name);
            ((*name).to_owned(), if runs { Effect::Execute } else { Effect::Read })
        };
        known.chain(COMMAND_TOOLS.iter().map(command)).collect()
    }

    /// These tools, and commands that are run with a shell.
    #[must_use]
    pub fn with_shell(self, shell: Shell) -> Self {
        Self { shell: Some(shell), ..self }
    }

    /// The tools of a session in these folders. What the kernel cannot hold to reading there is not among them; that it could
    /// hold it elsewhere is said.
    #[must_use]
    pub fn for_session(&self, workspace: &Workspace) -> (Self, Option<&'static str>) {
        let Some(shell) = &self.shell else { return (self.clone(), None) };
        let (reading, any) = (shell.read_only(workspace.roots()), shell.workspace(workspace.roots()));
        let is_missing = reading.is_none() && shell.support().read_only();
        let mut tools: Vec<Arc<dyn Tool>> = self.tools.to_vec();
        if let Some(hold) = reading {
            tools.push(Arc::new(shell::ShellTool::read_only(shell.clone(), hold)));
        }
        tools.push(Arc::new(shell::ShellTool::full(shell.clone(), any.clone())));
        tools.push(Arc::new(jobs::Run::new(shell.clone(), any)));
        tools.push(Arc::new(jobs::List::new()));
        tools.push(Arc::new(jobs::View::new()));
        tools.push(Arc::new(jobs::Stop::new()));
        (Self { tools: tools.into(), shell: None }, is_missing.then_some(TOO_WIDE))
    }

    /// The tools in order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Tool> {
        self.tools.iter().map(AsRef::as_ref)
    }

    /// Finds a tool by its name.
    pub fn find(&self, name: &str) -> Option<&dyn Tool> {
        self.iter().find(|tool| tool.spec().name == name)
    }
}

/// Reads arguments, naming what does not fit.
fn arguments<A: DeserializeOwned>(tool: &'static str, arguments: Value) -> Result<A, ToolError> {
    let arguments = match arguments {
        Value::Null => Value::Object(serde_json::Map::new()),
        Value::Object(members) => Value::Object(members),
        _ => return Err(ToolError::Arguments { tool, reason: "they are not an object".into() }),
    };
    serde_json::from_value(arguments)
        .map_err(|error| ToolError::Arguments { tool, reason: error.to_string() })
}

/// Resolves a path off the main thread: a path may lie on a slow disk.
async fn resolve(workspace: &Workspace, path: String) -> Result<Target, ToolError> {
    let workspace = workspace.clone();
    blocking(move || Ok(workspace.resolve(&path)?)).await
}

/// Resolves an entry itself, the last link not followed.
async fn resolve_entry(workspace: &Workspace, path: String) -> Result<Target, ToolError> {
    let workspace = workspace.clone();
    blocking(move || Ok(workspace.resolve_entry(&path)?)).await
}

/// Tools at work off the main thread. For the whole process: a deterministic run waits until there are none.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// Whether a tool is at work off the main thread.
pub fn is_busy() -> bool {
    AT_WORK.load(Ordering::Acquire) > 0
}

/// Counts itself while it lives.
struct AtWork;

impl AtWork {
    fn begin() -> Self {
        AT_WORK.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Carries out an effect off the main thread. Its permit stays with the work until it is over, whether or not somebody
/// still waits for it: that is what a mode change relies on.
async fn effect<T: Send + 'static>(
    permit: Permit,
    work: impl FnOnce(&CancellationToken) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    blocking(move || {
        // The whole permit, not only what the work uses of it.
        let permit = permit;
        let done = work(&permit.cancel);
        drop(permit);
        done
    })
    .await
}

/// Does disk or CPU work off the main thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    // Until the result is here, not only until it is made.
    let _at_work = AtWork::begin();
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(%error, "a tool panicked");
            Err(ToolError::Failed("the tool failed unexpectedly".into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The waiting is given up, as when a call takes too long; the work goes on, and so does its permit.
    #[tokio::test]
    async fn a_permit_stays_with_the_work_until_the_work_is_over() {
        let mut gate = crate::gate::Gate::default();
        let facts = crate::permission::CallFacts::of_tool("t", Effect::Edit);
        let permit = gate.admit(crate::acp::ToolCallId::new("c"), facts, 1, &CancellationToken::new());
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        let work = effect(permit, move |_| Ok(wait.recv().is_ok()));
        assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err());
        let ended = gate.end(|_| true, Duration::ZERO).await;
        assert_eq!((ended.confirmed.len(), ended.unconfirmed.len()), (0, 1));
        drop(go_on);
    }

    /// Every tool stands here with its effect: a new one without a decision fails (D28).
    #[test]
    fn every_tool_has_an_effect_that_was_decided_on() {
        let effects: Vec<_> =
            Toolset::built_in().iter().map(|tool| (tool.spec().name, tool.spec().effect)).collect();
        assert_eq!(
            effects,
            [
                ("read_file", Effect::Read),
                ("read_multiple_files", Effect::Read),
                ("list_directory", Effect::Read),
                ("directory_tree", Effect::Read),
                ("find_files", Effect::Read),
                ("search_files", Effect::Read),
                ("think", Effect::Session),
                ("todo", Effect::Session),
                ("switch_mode", Effect::Session),
                ("write_file", Effect::Edit),
                ("edit_file", Effect::Edit),
                ("apply_patch", Effect::Edit),
                ("move_file", Effect::Edit),
                ("delete_file", Effect::Edit),
            ]
        );
    }

    #[test]
    fn every_schema_is_an_object_that_describes_each_argument() {
        for tool in Toolset::built_in().iter() {
            let spec = tool.spec();
            assert_eq!(spec.schema["type"], "object", "{}", spec.name);
            for (name, property) in spec.schema["properties"].as_object().unwrap() {
                assert!(property["description"].is_string(), "{}.{name}", spec.name);
            }
        }
    }
}
