//! `save_memory`: adds, changes and deletes memories. A memory outlives the session, so a call counts as a change.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::super::{PreparedCall, Preview, RunContext, Tool, ToolError, ToolOutput, ToolSpec, outcome};
use super::line;
use crate::acp::ToolKind;
use crate::busy::BusyGuard;
use crate::conversation::content::ToolContent;
use crate::memory::{MAX_CATEGORY, MAX_TEXT, Memories, Memory, MemoryChange, MemoryError};
use crate::permission::Effect;
use crate::text::shorten;
use crate::workspace::{Changes, Workspace};

const IN_TITLE: usize = 60;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SaveMemoryArguments {
    /// At most 2,000 characters. With an id, an empty text deletes the memory.
    #[serde(default)]
    text: Option<String>,
    /// Id of the memory to change. Default: a new one.
    #[serde(default)]
    id: Option<String>,
    /// One or two words; empty removes it.
    #[serde(default)]
    category: Option<String>,
}

pub(super) fn tool(memories: Arc<dyn Memories>) -> Arc<dyn Tool> {
    let description =
        "Remember something about this folder for later sessions, or change a memory. No keys or passwords.";
    let spec = ToolSpec::new("save_memory", ToolKind::Other, Effect::State, description);
    spec.tool(move |given, workspace| {
        let operation = MemoryOperation::new(given)?;
        Ok(operation.prepared(&memories, workspace))
    })
}

fn checked(name: &str, text: &str, most: usize) -> Result<String, ToolError> {
    let text = text.trim();
    let length = text.chars().count();
    if length > most {
        let reason = format!("{name} has {length} characters; at most {most} are kept");
        return Err(ToolError::arguments(reason));
    }
    if text.contains('\0') {
        return Err(ToolError::arguments(format!("{name} has a NUL in it")));
    }
    Ok(text.to_owned())
}

#[derive(Debug, Clone)]
enum MemoryOperation {
    Add { text: String, category: Option<String> },
    Update { id: String, change: MemoryChange },
    Delete { id: String },
}

impl MemoryOperation {
    fn new(SaveMemoryArguments { text, id, category }: SaveMemoryArguments) -> Result<Self, ToolError> {
        let text = text.map(|text| checked("text", &text, MAX_TEXT)).transpose()?;
        let category = category.map(|category| checked("category", &category, MAX_CATEGORY)).transpose()?;
        match (id, text) {
            (None, Some(text)) if !text.is_empty() => {
                Ok(Self::Add { text, category: category.filter(|category| !category.is_empty()) })
            }
            (None, _) => Err(ToolError::arguments("text is empty")),
            (Some(id), Some(text)) if text.is_empty() => Ok(Self::Delete { id }),
            (Some(_), None) if category.is_none() => {
                Err(ToolError::arguments("give text or category, or both"))
            }
            (Some(id), text) => Ok(Self::Update { id, change: MemoryChange { text, category } }),
        }
    }

    fn title(&self) -> String {
        match self {
            Self::Add { text, .. } => format!("Remember: {}", shorten(text, IN_TITLE)),
            Self::Update { id, .. } => format!("Change memory {id}"),
            Self::Delete { id } => format!("Delete memory {id}"),
        }
    }

    fn prepared(self, memories: &Arc<dyn Memories>, workspace: &Workspace) -> PreparedCall {
        let (title, folder, shown) = (self.title(), workspace.cwd().to_owned(), self.clone());
        let preview = {
            let (memories, folder) = (Arc::clone(memories), folder.clone());
            Preview::new(async move |_| shown.preview(&*memories, &folder).await)
        };
        let memories = Arc::clone(memories);
        let call = PreparedCall::new(title, |context| self.run(memories, folder, context));
        PreparedCall { preview, ..call }
    }

    async fn preview(&self, memories: &dyn Memories, folder: &Path) -> Result<Vec<ToolContent>, ToolError> {
        let text = match self {
            Self::Add { text, category } => category_mark(category.as_deref()) + text,
            Self::Update { id, change } => {
                let now = category_mark(change.category.as_deref())
                    + change.text.as_deref().unwrap_or("(the text stays)");
                format!("{}\nnow: {now}", line(&find(memories, folder, id).await?))
            }
            Self::Delete { id } => line(&find(memories, folder, id).await?),
        };
        Ok(vec![ToolContent::text(text.trim_end())])
    }

    async fn run(
        self,
        memories: Arc<dyn Memories>,
        folder: PathBuf,
        context: RunContext,
    ) -> Result<ToolOutput, ToolError> {
        let RunContext { permit, changes, .. } = context;
        let _busy = BusyGuard::begin();
        // The permit lives until the end, even if the caller stops waiting.
        let run = tokio::spawn(async move {
            let (text, what) = self.carry_out(&*memories, &folder, permit.cancel.clone()).await?;
            let uncovered = vec![format!("{what}; undo does not revert this.")];
            // The session may be over.
            let _ = changes.send(Changes { uncovered, ..Changes::default() });
            drop(permit);
            Ok(ToolOutput::text(text))
        });
        outcome(run).await
    }

    /// Returns a text for the model, and a note for an undo of the turn.
    async fn carry_out(
        self,
        memories: &dyn Memories,
        folder: &Path,
        cancel: CancellationToken,
    ) -> Result<(String, String), MemoryError> {
        Ok(match self {
            Self::Add { text, category } => {
                let (memory, until) = memories.add(folder, text, category, cancel).await?;
                let until = until.map(|until| format!(" {until}")).unwrap_or_default();
                (format!("Remembered as {}.{until}", memory.id), format!("{} was remembered", memory.id))
            }
            Self::Update { id, change } => {
                let memory = memories.update(folder, &id, change, cancel).await?;
                (format!("It is now: {}", line(&memory).trim_end()), format!("The memory {id} was changed"))
            }
            Self::Delete { id } => {
                let memory = memories.delete(folder, &id, cancel).await?;
                (format!("Forgotten: {}", line(&memory).trim_end()), format!("The memory {id} was deleted"))
            }
        })
    }
}

async fn find(memories: &dyn Memories, folder: &Path, id: &str) -> Result<Memory, ToolError> {
    let all = memories.list(folder).await?;
    let memory = all.into_iter().find(|memory| memory.id == id);
    Ok(memory.ok_or_else(|| MemoryError::Unknown(id.to_owned()))?)
}

fn category_mark(category: Option<&str>) -> String {
    category.map(|category| format!("[{category}] ")).unwrap_or_default()
}
