//! `get_memories` and `search_memories`: list and search the memories of a folder.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::content::code_span;
use super::super::{PreparedCall, Tool, ToolError, ToolOutput, ToolSpec};
use super::{Memories, Memory, show};
use crate::acp::ToolKind;
use crate::permission::Effect;
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

pub(super) fn get(memories: Arc<dyn Memories>) -> Arc<dyn Tool> {
    let what = "List the memories of this folder from this and earlier sessions.";
    let spec = ToolSpec::new("get_memories", ToolKind::Read, Effect::Read, what);
    spec.tool(move |GetArguments { category, after }, workspace| {
        let title = match &category {
            Some(category) => format!("Memories of {}", code_span(category)),
            None => "Memories".into(),
        };
        let wanted = category.map(|category| category.trim().to_lowercase());
        let is_match =
            move |memory: &Memory| wanted.as_ref().is_none_or(|wanted| *wanted == category_of(memory));
        Ok(list(title, &memories, workspace, after, is_match))
    })
}

pub(super) fn search(memories: Arc<dyn Memories>) -> Arc<dyn Tool> {
    let what = "Search the memories of this folder for words.";
    let spec = ToolSpec::new("search_memories", ToolKind::Search, Effect::Read, what);
    spec.tool(move |SearchArguments { query, after }, workspace| {
        let words: Vec<String> = query.to_lowercase().split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err(ToolError::arguments("query has no words"));
        }
        let is_match = move |memory: &Memory| {
            let (text, category) = (memory.text.to_lowercase(), category_of(memory));
            words.iter().all(|word| text.contains(word) || category.contains(word))
        };
        let title = format!("Search memories for {}", code_span(&query));
        Ok(list(title, &memories, workspace, after, is_match))
    })
}

fn category_of(memory: &Memory) -> String {
    memory.category.as_deref().unwrap_or_default().to_lowercase()
}

fn list(
    title: String,
    memories: &Arc<dyn Memories>,
    workspace: &Workspace,
    after: Option<String>,
    is_match: impl Fn(&Memory) -> bool + Send + 'static,
) -> PreparedCall {
    let (memories, folder) = (Arc::clone(memories), workspace.cwd().to_owned());
    PreparedCall::new(title, async move |context| {
        let mut all = memories.list(&folder).await?;
        all.retain(is_match);
        let text = show(&all, after.as_deref(), "[There are no such memories.]")?;
        drop(context.permit);
        Ok(ToolOutput::text(text))
    })
}
