//! `get_memories` and `search_memories`: list and search the memories of a folder.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::super::content::code_span;
use super::super::{PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec, arguments};
use super::{Memories, Memory, show};
use crate::acp::ToolKind;
use crate::permission::{Effect, Target};
use crate::workspace::Workspace;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GetArguments {
    /// List only the memories of this category.
    #[serde(default)]
    category: Option<String>,
    /// Id of a memory: list only the memories after it. Default: all, oldest first.
    #[serde(default)]
    after: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SearchArguments {
    /// Words that must all occur in the memory or its category, in any case.
    query: String,
    /// Id of a memory that was found: list only the matches after it.
    #[serde(default)]
    after: Option<String>,
}

pub(super) struct Get(ToolSpec, Arc<dyn Memories>);

pub(super) struct Search(ToolSpec, Arc<dyn Memories>);

impl Get {
    pub(super) fn new(memories: Arc<dyn Memories>) -> Self {
        let spec = ToolSpec::new::<GetArguments>(
            "get_memories",
            ToolKind::Read,
            Effect::Read,
            "List the memories of this folder from this and earlier sessions.",
        );
        Self(spec, memories)
    }
}

impl Search {
    pub(super) fn new(memories: Arc<dyn Memories>) -> Self {
        let spec = ToolSpec::new::<SearchArguments>(
            "search_memories",
            ToolKind::Search,
            Effect::Read,
            "Search the memories of this folder for words.",
        );
        Self(spec, memories)
    }
}

#[async_trait]
impl Tool for Get {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let GetArguments { category, after } = arguments(&self.0.name, given)?;
        let title = match &category {
            Some(category) => format!("Memories of {}", code_span(category)),
            None => "Memories".into(),
        };
        let query = Query::Category(category.map(|category| category.trim().to_lowercase()));
        Ok(Box::new(Call::new(title, &self.1, workspace, query, after)))
    }
}

#[async_trait]
impl Tool for Search {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let SearchArguments { query, after } = arguments(&self.0.name, given)?;
        let words: Vec<String> = query.to_lowercase().split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err(ToolError::arguments(&self.0.name, "query has no words"));
        }
        let title = format!("Search memories for {}", code_span(&query));
        Ok(Box::new(Call::new(title, &self.1, workspace, Query::Words(words), after)))
    }
}

#[derive(Debug)]
enum Query {
    /// In lower case; `None` for all.
    Category(Option<String>),
    Words(Vec<String>),
}

impl Query {
    fn is_match(&self, memory: &Memory) -> bool {
        let category = memory.category.as_deref().unwrap_or_default().to_lowercase();
        match self {
            Self::Category(requested) => requested.as_ref().is_none_or(|requested| *requested == category),
            Self::Words(words) => {
                let text = memory.text.to_lowercase();
                words.iter().all(|word| text.contains(word) || category.contains(word))
            }
        }
    }
}

struct Call {
    title: String,
    memories: Arc<dyn Memories>,
    folder: PathBuf,
    query: Query,
    after: Option<String>,
}

impl Call {
    fn new(
        title: String,
        memories: &Arc<dyn Memories>,
        workspace: &Workspace,
        query: Query,
        after: Option<String>,
    ) -> Self {
        let (memories, folder) = (Arc::clone(memories), workspace.cwd().to_owned());
        Self { title, memories, folder, query, after }
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("query", &self.query).finish_non_exhaustive()
    }
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        self.title.clone()
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let mut memories = self.memories.list(&self.folder).await?;
        memories.retain(|memory| self.query.is_match(memory));
        let text = show(&memories, self.after.as_deref(), "[There are no such memories.]")?;
        drop(context.permit);
        Ok(ToolOutput { text, ..ToolOutput::default() })
    }
}
