//! Tools: what a model can have done. One tool per file; this file has what they share and the set of them.
//!
//! A call is first *prepared*: its arguments are read and what it would touch is found out, without reading content.
//! Then it is decided on, elsewhere. Only then is it run, with a permit that stays with the effect until it is over.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::acp::{PlanEntry, ToolKind};
use crate::gate::Permit;
use crate::mode::ShellUse;
use crate::model::ToolOffer;
use crate::model::schema::{self, Schema};
use crate::permission::{Address, CallFacts, Claim, Commands, Effect, Target};
use crate::workspace::{Changes, ContentHash, FileError, Journal, Workspace};
use chat_question::ChatQuestion;
pub use client_io::{ClientIo, Elicited};
pub use content::ToolContent;
pub use job::{Job, JobSnapshot};
pub use session_action::SessionAction;
pub use snapshot::SnapshotHandle;
pub use switch_mode::Proposal;
pub use toolset::{Toolset, effect_of, unknown_tool};

pub mod background;
pub mod background_list;
pub mod content;

mod apply_patch;
mod ask_user;
mod buffers;
pub mod chat_question;
pub mod client_io;
mod command_line;
mod delete_file;
mod directory_tree;
mod edit_file;
pub mod fetch;
mod find_files;
pub mod job;
mod jobs;
mod list_directory;
pub mod mcp;
pub mod memory;
mod move_file;
pub mod output_terminal;
mod read_file;
mod read_multiple_files;
mod reading;
mod save;
mod saved;
mod search_files;
pub mod session_action;
mod shell;
mod skills;
pub mod snapshot;
mod switch_mode;
mod text_file;
mod think;
mod todo;
mod toolset;
mod walk;
mod write_file;

/// How long a call may take unless its tool says otherwise.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What a tool is, declared once. Everything but the effect is for people and models; the effect is what decides.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// The name under which models call it.
    pub name: Cow<'static, str>,
    /// What it is for, to the model.
    pub description: Cow<'static, str>,
    /// How clients show it.
    pub kind: ToolKind,
    /// What it does to the world.
    pub effect: Effect,
    /// That it reads is only what its server says.
    pub claim: Option<Claim>,
    /// What it needs of the shell.
    pub shell: ShellUse,
    /// What it begins goes on after its turn.
    pub is_background: bool,
    /// It asks the user to leave the mode: the session itself carries it out.
    pub is_exit: bool,
    /// JSON Schema of the arguments.
    pub schema: Schema,
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
        Self {
            name: name.into(),
            description: description.into(),
            kind,
            effect,
            claim: None,
            shell: ShellUse::Off,
            is_background: false,
            is_exit: false,
            schema: Schema::when_asked(schema_of::<Arguments>),
            timeout: TIMEOUT,
        }
    }

    /// What a decision about the tool as such rests on.
    pub fn facts(&self) -> CallFacts {
        let facts = CallFacts::of_tool(self.name.as_ref(), self.effect);
        CallFacts {
            shell: self.shell,
            is_background: self.is_background,
            is_exit: self.is_exit,
            claim: self.claim.clone(),
            ..facts
        }
    }

    /// The tool as a model is told of it.
    pub fn to_offer(&self) -> ToolOffer {
        ToolOffer {
            name: self.name.to_string(),
            description: self.description.to_string(),
            schema: self.schema.clone(),
        }
    }
}

/// The schema of arguments, less what says nothing to a model.
fn schema_of<Arguments: JsonSchema>() -> Box<RawValue> {
    let mut schema = schemars::schema_for!(Arguments);
    schema.remove("$schema");
    schema.remove("title");
    schema::written(&schema.to_value())
}

/// Why a call came to nothing. The text is for the model, which can mend its call.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The arguments do not fit the tool's schema.
    #[error("The arguments do not fit {tool}: {reason}")]
    Arguments {
        /// The tool that was called.
        tool: String,
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

impl ToolError {
    /// Arguments that do not fit a tool's schema.
    pub fn arguments(tool: &str, reason: impl Into<String>) -> Self {
        Self::Arguments { tool: tool.to_owned(), reason: reason.into() }
    }
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
    pub seen: Vec<(PathBuf, ContentHash)>,
    /// Questions that are shown in the chat: the turn ends, and the next prompt is the answer.
    pub questions: Vec<ChatQuestion>,
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
    pub known: Vec<Option<ContentHash>>,
    /// The session's background jobs, in the order in which they were begun.
    pub jobs: Vec<Job>,
    /// The agents that work in the background, in the order in which they were begun.
    pub agents: Vec<background::BackgroundAgent>,
    /// Where it shows what it has come to so far; none where nobody looks.
    pub progress: Option<mpsc::Sender<ToolContent>>,
    /// Where it tells what it has changed, however it ends and whoever still waits. Unbounded: it tells once.
    pub changes: mpsc::UnboundedSender<Changes>,
    /// Where it announces changes to files before it makes them, and reports them.
    pub journal: Journal,
    /// By which what a command changes can be told; none: it is not.
    pub snapshot: Option<SnapshotHandle>,
    /// The way to the client.
    pub client_io: ClientIo,
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

    /// What its arguments name, where nobody knows what it touches, or where it is decided on by its name.
    fn mentions(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// What it proposes, if it is the session that carries it out.
    fn proposal(&self) -> Option<&Proposal> {
        None
    }

    /// What the session itself carries out for it, if that is all of it.
    fn session_action(&self) -> Option<&SessionAction> {
        None
    }

    /// What it would run.
    fn commands(&self) -> Commands {
        Commands::None
    }

    /// What it would fetch.
    fn address(&self) -> Option<Address> {
        None
    }

    /// The line of the first target that it is about, if it is about one.
    fn line(&self) -> Option<u32> {
        None
    }

    /// What the user is shown when asked for consent. Called only when the call may be asked for; it may read in the editor.
    async fn preview(&mut self, _editor: &ClientIo) -> Result<Vec<ToolContent>, ToolError> {
        Ok(Vec::new())
    }

    /// Does it.
    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError>;
}

/// Reads arguments, naming what does not fit.
fn arguments<A: DeserializeOwned>(tool: &str, arguments: Value) -> Result<A, ToolError> {
    let arguments = match arguments {
        Value::Null => Value::Object(serde_json::Map::new()),
        Value::Object(members) => Value::Object(members),
        _ => return Err(ToolError::arguments(tool, "they are not an object")),
    };
    serde_json::from_value(arguments).map_err(|error| ToolError::arguments(tool, error.to_string()))
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

/// Tools, and what else a session waits for, at work off the main thread. For the whole process: a deterministic run waits until there are none.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

/// Whether a tool is at work off the main thread.
pub fn is_busy() -> bool {
    AT_WORK.load(Ordering::Acquire) > 0
}

/// Counts itself while it lives.
#[derive(Debug)]
pub struct AtWork;

impl AtWork {
    /// Counts work off the main thread, until it is dropped.
    pub fn begin() -> Self {
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

    /// Agents of one's own, so that there is somebody to hand over to.
    fn agents() -> crate::agents::AgentRegistry {
        let mut agents = crate::agents::AgentRegistry::default();
        let own: Vec<crate::agents::AgentDefinition> = serde_saphyr::from_str("[{id: own}]").unwrap();
        agents.add(&own, crate::agents::Origin::User).unwrap();
        agents
    }

    /// Every tool stands here with its effect: a new one without a decision fails (D28).
    #[test]
    fn every_tool_has_an_effect_that_was_decided_on() {
        let tools = Toolset::built_in().with_agents(&agents()).with_skills(&skills::one());
        let effects: Vec<_> = tools.iter().map(|tool| (&*tool.spec().name, tool.spec().effect)).collect();
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
                ("ask_user", Effect::Session),
                ("switch_mode", Effect::Session),
                ("write_file", Effect::Edit),
                ("edit_file", Effect::Edit),
                ("apply_patch", Effect::Edit),
                ("move_file", Effect::Edit),
                ("delete_file", Effect::Edit),
                ("fetch", Effect::Network),
                ("get_memories", Effect::Read),
                ("search_memories", Effect::Read),
                ("add_memory", Effect::State),
                ("update_memory", Effect::State),
                ("delete_memory", Effect::State),
                ("delegate", Effect::Delegate),
                ("delegate_background", Effect::Delegate),
                ("list_background_agents", Effect::Session),
                ("view_background_agent", Effect::Session),
                ("stop_background_agent", Effect::Session),
                ("handoff", Effect::Delegate),
                ("list_skills", Effect::Read),
                ("read_skill", Effect::Read),
                ("run_skill", Effect::Delegate),
            ]
        );
    }

    /// The tools that descriptions of modes are computed from are those that change something.
    #[test]
    fn every_tool_that_changes_something_is_known_to_descriptions() {
        let tools = Toolset::built_in();
        let own = tools.iter().map(|tool| (tool.spec().name.to_string(), tool.spec().effect));
        let commands =
            ["shell", "run_background_job"].map(|name| (name.to_owned(), effect_of(name).unwrap()));
        let mut changing: Vec<_> = own.chain(commands).filter(|(_, effect)| effect.is_change()).collect();
        let mut known: Vec<_> = crate::permission::compare::CHANGING
            .iter()
            .map(|(name, effect, _)| ((*name).to_owned(), *effect))
            .collect();
        let name = |(name, _): &(String, Effect)| name.clone();
        changing.sort_by_key(name);
        known.sort_by_key(name);
        assert_eq!(changing, known);
    }

    #[test]
    fn every_schema_is_an_object_that_describes_each_argument() {
        for tool in Toolset::built_in().with_agents(&agents()).with_skills(&skills::one()).iter() {
            let spec = tool.spec();
            let schema = spec.schema.to_value();
            assert_eq!(schema["type"], "object", "{}", spec.name);
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                assert!(property["description"].is_string(), "{}.{name}", spec.name);
            }
        }
    }
}
