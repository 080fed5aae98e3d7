//! `todo`: replaces the model's list of tasks, which clients show as a plan.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::acp::{PlanEntry, PlanEntryPriority, PlanEntryStatus, ToolKind};
use crate::permission::Effect;
use crate::tool::{PreparedCall, Tool, ToolError, ToolOutput, ToolSpec};

const MAX_ITEMS: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TodoArguments {
    /// In order, at most 100.
    items: Vec<Item>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Item {
    /// The task.
    content: String,
    /// Default: pending.
    #[serde(default)]
    status: Status,
    /// Default: medium.
    #[serde(default)]
    priority: Priority,
}

#[derive(Debug, Default, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Status {
    #[default]
    Pending,
    InProgress,
    Completed,
}

#[derive(Debug, Default, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Priority {
    High,
    #[default]
    Medium,
    Low,
}

pub(in crate::tool) fn tool() -> Arc<dyn Tool> {
    let description =
        "Keep a task list for work of several steps. Send the complete list each time; the user sees it.";
    ToolSpec::new("todo", ToolKind::Think, Effect::Session, description)
        .tool(|arguments, _| prepare(arguments))
}

fn prepare(TodoArguments { items }: TodoArguments) -> Result<PreparedCall, ToolError> {
    if items.len() > MAX_ITEMS {
        let reason = format!("items has {} entries; at most {MAX_ITEMS} are allowed", items.len());
        return Err(ToolError::arguments(reason));
    }
    Ok(PreparedCall::new(format!("Tasks ({})", items.len()), async move |_| {
        let open = items.iter().filter(|item| !matches!(item.status, Status::Completed)).count();
        let text = format!("Saved {} tasks, {open} of them open.", items.len());
        let plan = items.into_iter().map(entry).collect();
        Ok(ToolOutput { plan: Some(plan), ..ToolOutput::text(text) })
    }))
}

fn entry(item: Item) -> PlanEntry {
    let priority = match item.priority {
        Priority::High => PlanEntryPriority::High,
        Priority::Medium => PlanEntryPriority::Medium,
        Priority::Low => PlanEntryPriority::Low,
    };
    let status = match item.status {
        Status::Pending => PlanEntryStatus::Pending,
        Status::InProgress => PlanEntryStatus::InProgress,
        Status::Completed => PlanEntryStatus::Completed,
    };
    PlanEntry::new(item.content, priority, status)
}
