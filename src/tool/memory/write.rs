//! `add_memory`, `update_memory` and `delete_memory`. A memory outlives the session, so these calls count as
//! changes.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::super::{
    BusyGuard, ClientIo, PreparedCall, RunContext, Tool, ToolContent, ToolError, ToolOutput, ToolSpec,
    arguments,
};
use super::{Change, MAX_CATEGORY, MAX_TEXT, Memories, Memory, MemoryError, line};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::text::shorten;
use crate::workspace::{Changes, Workspace};

const IN_TITLE: usize = 60;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AddArguments {
    /// The text to remember, at most 2,000 characters.
    text: String,
    /// The topic in one or two words, at most 60 characters.
    #[serde(default)]
    category: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct UpdateArguments {
    /// Id of the memory.
    id: String,
    /// The new text, at most 2,000 characters.
    #[serde(default)]
    text: Option<String>,
    /// The new category; an empty string removes it.
    #[serde(default)]
    category: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DeleteArguments {
    /// Id of the memory.
    id: String,
}

pub(super) struct Add(ToolSpec, Arc<dyn Memories>);

pub(super) struct Update(ToolSpec, Arc<dyn Memories>);

pub(super) struct Delete(ToolSpec, Arc<dyn Memories>);

impl Add {
    pub(super) fn new(memories: Arc<dyn Memories>) -> Self {
        let spec = ToolSpec::new::<AddArguments>(
            "add_memory",
            ToolKind::Other,
            Effect::State,
            "Remember something about this folder for later sessions. No keys or passwords.",
        );
        Self(spec, memories)
    }
}

impl Update {
    pub(super) fn new(memories: Arc<dyn Memories>) -> Self {
        let spec = ToolSpec::new::<UpdateArguments>(
            "update_memory",
            ToolKind::Other,
            Effect::State,
            "Change a memory.",
        );
        Self(spec, memories)
    }
}

impl Delete {
    pub(super) fn new(memories: Arc<dyn Memories>) -> Self {
        let spec = ToolSpec::new::<DeleteArguments>(
            "delete_memory",
            ToolKind::Delete,
            Effect::State,
            "Delete a memory permanently.",
        );
        Self(spec, memories)
    }
}

#[async_trait]
impl Tool for Add {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let AddArguments { text, category } = arguments(&self.0.name, given)?;
        let text = checked(&self.0.name, "text", &text, MAX_TEXT)?;
        let category = category.map(|category| checked(&self.0.name, "category", &category, MAX_CATEGORY));
        let category = category.transpose()?.filter(|category| !category.is_empty());
        present(&self.0.name, &text)?;
        Ok(Call::boxed(&self.1, workspace, Operation::Add { text, category }))
    }
}

#[async_trait]
impl Tool for Update {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let UpdateArguments { id, text, category } = arguments(&self.0.name, given)?;
        let tool = &*self.0.name;
        if text.is_none() && category.is_none() {
            let reason = "give text or category, or both";
            return Err(ToolError::arguments(tool, reason));
        }
        let text = text.map(|text| checked(tool, "text", &text, MAX_TEXT)).transpose()?;
        if let Some(text) = &text {
            present(tool, text)?;
        }
        let category =
            category.map(|category| checked(tool, "category", &category, MAX_CATEGORY)).transpose()?;
        Ok(Call::boxed(&self.1, workspace, Operation::Update { id, change: Change { text, category } }))
    }
}

#[async_trait]
impl Tool for Delete {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let DeleteArguments { id } = arguments(&self.0.name, given)?;
        Ok(Call::boxed(&self.1, workspace, Operation::Delete { id }))
    }
}

fn checked(tool: &str, name: &str, text: &str, most: usize) -> Result<String, ToolError> {
    let text = text.trim();
    let length = text.chars().count();
    if length > most {
        let reason = format!("{name} has {length} characters; at most {most} are kept");
        return Err(ToolError::arguments(tool, reason));
    }
    if text.contains('\0') {
        return Err(ToolError::arguments(tool, format!("{name} has a NUL in it")));
    }
    Ok(text.to_owned())
}

fn present(tool: &str, text: &str) -> Result<(), ToolError> {
    if text.is_empty() {
        return Err(ToolError::arguments(tool, "text is empty"));
    }
    Ok(())
}

#[derive(Debug, Clone)]
enum Operation {
    Add { text: String, category: Option<String> },
    Update { id: String, change: Change },
    Delete { id: String },
}

struct Call {
    memories: Arc<dyn Memories>,
    folder: PathBuf,
    operation: Operation,
}

impl Call {
    fn boxed(
        memories: &Arc<dyn Memories>,
        workspace: &Workspace,
        setting: Operation,
    ) -> Box<dyn PreparedCall> {
        let (memories, folder) = (Arc::clone(memories), workspace.cwd().to_owned());
        Box::new(Self { memories, folder, operation: setting })
    }

    async fn before(&self, id: &str) -> Result<Memory, ToolError> {
        let all = self.memories.list(&self.folder).await?;
        let found = all.into_iter().find(|memory| memory.id == id);
        Ok(found.ok_or_else(|| MemoryError::Unknown(id.to_owned()))?)
    }

    /// Returns a text for the model, and a note for an undo of the turn.
    async fn carry_out(self, cancel: CancellationToken) -> Result<(String, String), MemoryError> {
        let Self { memories, folder, operation: setting } = self;
        Ok(match setting {
            Operation::Add { text, category } => {
                let (memory, until) = memories.add(&folder, text, category, cancel).await?;
                let until = until.map(|until| format!(" {until}")).unwrap_or_default();
                (format!("Remembered as {}.{until}", memory.id), format!("{} was remembered", memory.id))
            }
            Operation::Update { id, change } => {
                let memory = memories.update(&folder, &id, change, cancel).await?;
                (format!("It is now: {}", line(&memory).trim_end()), format!("The memory {id} was changed"))
            }
            Operation::Delete { id } => {
                let memory = memories.delete(&folder, &id, cancel).await?;
                (format!("Forgotten: {}", line(&memory).trim_end()), format!("The memory {id} was deleted"))
            }
        })
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("operation", &self.operation).finish_non_exhaustive()
    }
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        match &self.operation {
            Operation::Add { text, .. } => format!("Remember: {}", shorten(text, IN_TITLE)),
            Operation::Update { id, .. } => format!("Change memory {id}"),
            Operation::Delete { id } => format!("Delete memory {id}"),
        }
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    async fn preview(&mut self, _: &ClientIo) -> Result<Vec<ToolContent>, ToolError> {
        let category = |category: &Option<String>| match category {
            Some(category) => format!("[{category}] "),
            None => String::new(),
        };
        let text = match &self.operation {
            Operation::Add { text, category: of } => category(of) + text,
            Operation::Update { id, change } => {
                let now = category(&change.category) + change.text.as_deref().unwrap_or("(the text stays)");
                format!("{}\nnow: {now}", line(&self.before(id).await?))
            }
            Operation::Delete { id } => line(&self.before(id).await?),
        };
        Ok(vec![ToolContent::text(text.trim_end())])
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let RunContext { permit, changes, .. } = context;
        let text = run_to_completion(async move {
            let done = self.carry_out(permit.cancel.clone()).await;
            if let Ok((_, what)) = &done {
                let uncovered = vec![format!("{what}; undo does not revert this.")];
                // The session may be over.
                let _ = changes.send(Changes { uncovered, ..Changes::default() });
            }
            drop(permit);
            done
        })
        .await?;
        Ok(ToolOutput { text: text.0, ..ToolOutput::default() })
    }
}

/// Runs to its end with its permit, even if the caller stops waiting.
async fn run_to_completion<T: Send + 'static>(
    work: impl Future<Output = Result<T, MemoryError>> + Send + 'static,
) -> Result<T, ToolError> {
    let _busy = BusyGuard::begin();
    match tokio::spawn(work).await {
        Ok(done) => Ok(done?),
        Err(error) => {
            tracing::error!(%error, "a tool panicked");
            Err(ToolError::Failed("the tool failed unexpectedly".into()))
        }
    }
}
