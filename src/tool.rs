//! The traits and types of the tools a model can call. One tool per file, in folders by subject.
//!
//! `prepare` parses the arguments and finds the targets without reading content. The session then decides on
//! the call. `run` executes it under a permit, which lives until the effect is over.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::acp::{PlanEntry, ToolKind};
use crate::busy::BusyGuard;
use crate::conversation::content::ToolContent;
use crate::gate::Permit;
use crate::mode::ShellUse;
use crate::model::ToolOffer;
use crate::model::schema::Schema;
use crate::permission::{CallFacts, Claim, Effect};
use crate::workspace::{Changes, FileError, Journal, Workspace};
use agent::background::BackgroundRole;
pub use agent::session_action::SessionAction;
pub use client_io::{ClientIo, Elicited};
pub use file::disk_texts::DiskTexts;
pub use file::last_seen::LastSeen;
use file::near_path;
pub use file::near_path::missing_outside;
pub use file::read_file::NAME as READ_FILE;
pub use prepared_call::{CallAction, CallTask, PreparedCall, Preview, PreviewContext, SessionState};
use schema::schema_of;
pub use shell::command_line::commands_of;
pub use shell::job::{CommandOutput, Job, JobSnapshot};
pub use shell::snapshot::SnapshotHandle;
pub use toolset::{Toolset, effect_of, offered};
pub use unknown_tool::unknown_tool;
use user::chat_question::ChatQuestion;
pub use user::switch_mode::Proposal;

pub mod agent;
mod arguments;
pub mod client_io;
mod edit;
mod file;
pub mod foreign_call;
mod json_repair;
pub mod mcp;
pub mod memory;
mod prepared_call;
mod schema;
pub mod shell;
pub mod skill;
mod toolset;
mod unknown_tool;
pub mod user;
pub mod web;

const TIMEOUT: Duration = Duration::from_mins(2);

/// Of a call that may wait for a person. A cancel or a mode change ends it before.
const USER_TIMEOUT: Duration = Duration::from_hours(24);

/// [`Self::facts`] are the input of permission decisions; the rest is for people and models.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    pub name: Cow<'static, str>,
    pub description: Cow<'static, str>,
    pub kind: ToolKind,
    pub effect: Effect,
    /// Set if only the MCP server claims that the tool reads.
    pub claim: Option<Claim>,
    /// The MCP server that has the tool, as in the tool's name.
    pub server: Option<Arc<str>>,
    pub shell: ShellUse,
    pub is_exit: bool,
    pub background: BackgroundRole,
    pub schema: Schema,
    pub timeout: Duration,
}

impl ToolSpec {
    /// [`Self::tool`] sets the schema.
    fn new(
        name: &'static str,
        kind: ToolKind,
        effect: Effect,
        description: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            kind,
            effect,
            claim: None,
            server: None,
            shell: ShellUse::Off,
            is_exit: false,
            background: BackgroundRole::None,
            schema: Schema::lazy(schema_of::<NoArguments>),
            timeout: TIMEOUT,
        }
    }

    /// An editor may ask the user about a write.
    fn waiting_for_user(self) -> Self {
        Self { timeout: USER_TIMEOUT, ..self }
    }

    /// Creates a tool from a function that checks the arguments and finds the targets. The function runs off the main
    /// thread, because it looks at paths.
    fn tool<Arguments: DeserializeOwned + JsonSchema>(
        self,
        prepare: impl Fn(Arguments, &Workspace) -> Result<PreparedCall, ToolError> + Send + Sync + 'static,
    ) -> Arc<dyn Tool> {
        let spec = Self { schema: Schema::lazy(schema_of::<Arguments>), ..self };
        let schema = spec.schema.clone();
        Arc::new(BuiltIn {
            spec,
            prepare: Arc::new(move |given, workspace| {
                prepare(arguments::read(given, &schema.to_value())?, workspace)
            }),
        })
    }

    pub fn facts(&self) -> CallFacts {
        let facts = CallFacts::of_tool(self.name.as_ref(), self.effect);
        let (claim, server) = (self.claim.clone(), self.server.clone());
        CallFacts { shell: self.shell, is_exit: self.is_exit, claim, server, ..facts }
    }

    pub fn to_offer(&self) -> ToolOffer {
        ToolOffer {
            name: self.name.to_string(),
            description: self.description.clone(),
            schema: self.schema.clone(),
        }
    }
}

#[derive(JsonSchema)]
struct NoArguments {}

/// A failure for the model, worded so that it can correct its call.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Why the arguments are invalid. A tool adds its name.
    #[error("Invalid arguments: {0}")]
    Arguments(String),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Failed(String),
    /// As `Failed`, where files may have changed since the model saw them.
    #[error("{text}")]
    Stale {
        text: String,
        /// Files that the model knows with the message.
        seen: Vec<(PathBuf, LastSeen)>,
    },
}

impl ToolError {
    fn arguments(reason: impl Into<String>) -> Self {
        Self::Arguments(reason.into())
    }

    /// Of a call by another name, whose tool is not in the request.
    pub fn not_offered(tool: &str) -> Self {
        Self::Failed(format!("{tool} is not offered now. Use only the tools of the request."))
    }

    fn of_tool(self, tool: &str) -> Self {
        match self {
            Self::Arguments(reason) => Self::Failed(format!("Invalid arguments for {tool}: {reason}")),
            Self::File(_) | Self::Failed(_) | Self::Stale { .. } => self,
        }
    }
}

#[derive(Debug, Default)]
pub struct ToolOutput {
    pub text: String,
    /// Content for the client; empty if it is `text`.
    pub content: Vec<ToolContent>,
    pub seen: Vec<(PathBuf, LastSeen)>,
    /// Files that the model knows with this output. The calls that it has made already do not know them.
    pub shown: Vec<(PathBuf, LastSeen)>,
    /// Questions for the chat. They end the turn; the next prompt is the answer.
    pub questions: Vec<ChatQuestion>,
    pub plan: Option<Vec<PlanEntry>>,
    pub job: Option<Job>,
    /// Of a command that ran to its end.
    pub exit_code: Option<i32>,
    /// Of a command whose caller [keeps its output](RunContext::keeps_output).
    pub command_output: Option<CommandOutput>,
    /// For the user.
    pub warnings: Vec<String>,
}

impl ToolOutput {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Long text, of which the client gets the start and the end.
    fn long_text(text: String) -> Self {
        Self { content: vec![ToolContent::middle(&text)], ..Self::text(text) }
    }
}

/// The input of a call beside its arguments, made for each call. No access to the session or the mode: the permit has
/// decided. A tool that needs more of the session asks for it with a [`session_action`].
#[derive(Debug)]
pub struct RunContext {
    pub permit: Permit,
    pub progress: Option<mpsc::Sender<ToolContent>>,
    /// Receives the changes, even if the caller stops waiting. Unbounded, because a call sends only once.
    pub changes: mpsc::UnboundedSender<Changes>,
    pub journal: Journal,
    pub client_io: ClientIo,
    /// True if the caller compares the output of the command with another.
    pub keeps_output: bool,
}

#[async_trait]
pub trait Tool: Send + Sync {
    fn spec(&self) -> &ToolSpec;

    async fn prepare(&self, arguments: Value, workspace: &Workspace) -> Result<PreparedCall, ToolError>;
}

type Prepare = dyn Fn(Value, &Workspace) -> Result<PreparedCall, ToolError> + Send + Sync;

struct BuiltIn {
    spec: ToolSpec,
    prepare: Arc<Prepare>,
}

#[async_trait]
impl Tool for BuiltIn {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn prepare(&self, arguments: Value, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
        let (prepare, workspace) = (Arc::clone(&self.prepare), workspace.clone());
        let prepared = blocking(move || Ok(prepare(arguments, &workspace)?.with_shown_targets())).await;
        prepared.map(near_path::suggesting).map_err(|error| error.of_tool(&self.spec.name))
    }
}

/// Runs an effect off the main thread. A mode change relies on the permit: it lives until the work is over,
/// even if the caller stops waiting.
async fn effect<T: Send + 'static>(
    permit: Permit,
    work: impl FnOnce(&CancellationToken) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    blocking(move || {
        // Moves the whole permit into the closure, not only the field in use.
        let permit = permit;
        let done = work(&permit.cancel);
        drop(permit);
        done
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    // Counts until the caller has the result, not only until the work is done.
    let _busy = BusyGuard::begin();
    outcome(tokio::task::spawn_blocking(work)).await
}

/// Waits for a task that goes on even if its caller stops waiting.
async fn outcome<T>(task: JoinHandle<Result<T, ToolError>>) -> Result<T, ToolError> {
    task.await.unwrap_or_else(|error| {
        tracing::error!(%error, "a tool panicked");
        Err(ToolError::Failed("the tool failed unexpectedly".into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The caller stops waiting, as after a timeout; the work goes on and keeps its permit.
    #[tokio::test]
    async fn permit_stays_with_work_after_the_caller_stops_waiting() {
        let mut gate = crate::gate::Gate::default();
        let facts = crate::permission::CallFacts::of_tool("t", Effect::Edit);
        let permit = gate.admit(crate::acp::ToolCallId::new("c"), facts, 1, &CancellationToken::new());
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let work = effect(permit, move |_| Ok(wait.recv().is_ok()));
        assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err());
        let ended = gate.end(|_| true, Duration::ZERO).await;
        assert_eq!((ended.confirmed.len(), ended.unconfirmed.len()), (0, 1));
        drop(release);
        let ended = gate.end(|_| true, Duration::from_secs(10)).await;
        // A call that has ended before is not named.
        assert!(ended.unconfirmed.is_empty(), "the work is over");
    }

    pub(super) fn agents() -> crate::agents::AgentRegistry {
        let mut agents = crate::agents::AgentRegistry::default();
        let own: Vec<crate::agents::AgentDefinition> = serde_saphyr::from_str("[{id: own}]").unwrap();
        agents.add(&own, crate::agents::AgentOrigin::User).unwrap();
        agents
    }

    /// Lists every tool with its effect: a new tool without a decision fails here (D28). The tools that run commands
    /// need a shell, so only their table is compared here; the generated page of tools shows the effects of their specs.
    #[test]
    fn every_tool_has_its_listed_effect() {
        let commands = [("shell_read_only", Effect::Read), ("shell", Effect::Execute)];
        for (tool, effect) in commands {
            assert_eq!(effect_of(tool), Some(effect), "{tool}");
        }
        let tools = Toolset::built_in().with_agents(&agents()).with_skills(&skill::one());
        let effects: Vec<_> = tools.iter().map(|tool| (&*tool.spec().name, tool.spec().effect)).collect();
        assert_eq!(
            effects,
            [
                ("read_file", Effect::Read),
                ("list_directory", Effect::Read),
                ("directory_tree", Effect::Read),
                ("find_files", Effect::Read),
                ("search_files", Effect::Read),
                ("todo", Effect::Session),
                ("ask_user", Effect::Session),
                ("switch_mode", Effect::Session),
                ("write_file", Effect::Edit),
                ("edit_file", Effect::Edit),
                ("apply_patch", Effect::Edit),
                ("move_file", Effect::Edit),
                ("delete_file", Effect::Edit),
                ("fetch", Effect::Network),
                ("view_background", Effect::Session),
                ("stop_background", Effect::Session),
                ("read_memories", Effect::Read),
                ("save_memory", Effect::State),
                ("delegate", Effect::Delegate),
                ("handoff", Effect::Delegate),
                ("list_skills", Effect::Read),
                ("read_skill", Effect::Read),
                ("run_skill", Effect::Delegate),
            ]
        );
    }

    #[test]
    fn every_changing_tool_is_listed_for_descriptions() {
        let tools = Toolset::built_in();
        let own = tools.iter().map(|tool| (tool.spec().name.to_string(), tool.spec().effect));
        let commands = ["shell"].map(|name| (name.to_owned(), effect_of(name).unwrap()));
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
    fn every_tool_schema_describes_each_argument() {
        for tool in Toolset::built_in().with_agents(&agents()).with_skills(&skill::one()).iter() {
            let spec = tool.spec();
            let schema = spec.schema.to_value();
            assert_eq!(schema["type"], "object", "{}", spec.name);
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                assert!(property["description"].is_string(), "{}.{name}", spec.name);
            }
        }
    }
}
