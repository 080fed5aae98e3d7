//! `read_memories`: lists and searches the memories of a folder.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::{PreparedCall, Tool, ToolOutput, ToolSpec};
use super::show;
use crate::acp::ToolKind;
use crate::memory::{Memories, Memory};
use crate::permission::Effect;
use crate::text::code_span;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadMemoriesArguments {
    /// Only those with all these words.
    #[serde(default)]
    query: Option<String>,
    /// Only those after this id.
    #[serde(default)]
    after: Option<String>,
}

pub(super) fn tool(memories: Arc<dyn Memories>) -> Arc<dyn Tool> {
    let description =
        "List the memories: notes about this folder from this and earlier sessions, oldest first.";
    let spec = ToolSpec::new("read_memories", ToolKind::Read, Effect::Read, description);
    spec.tool(move |ReadMemoriesArguments { query, after }, workspace| {
        let query = query.unwrap_or_default();
        let words: Vec<String> = query.to_lowercase().split_whitespace().map(str::to_owned).collect();
        let title = match words.as_slice() {
            [] => "Memories".to_owned(),
            [..] => format!("Memories about {}", code_span(&query)),
        };
        let (memories, folder) = (Arc::clone(&memories), workspace.cwd().to_owned());
        Ok(PreparedCall::new(title, async move |context| {
            let mut all = memories.list(&folder).await?;
            all.retain(|memory| has_words(memory, &words));
            let text = show(&all, after.as_deref(), "[There are no such memories.]")?;
            drop(context.permit);
            Ok(ToolOutput::text(text))
        }))
    })
}

fn has_words(memory: &Memory, words: &[String]) -> bool {
    let text = memory.text.to_lowercase();
    let category = memory.category.as_deref().unwrap_or_default().to_lowercase();
    words.iter().all(|word| text.contains(word) || category.contains(word))
}
