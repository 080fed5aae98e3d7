//! `todo`: replaces the model's list of tasks, which clients show as a plan.

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec, arguments};
use crate::acp::{PlanEntry, PlanEntryPriority, PlanEntryStatus, ToolKind};
use crate::permission::{Effect, Target};
use crate::workspace::Workspace;

const MAX_ITEMS: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The complete list, in order. It replaces the previous list. At most 100 tasks.
    items: Vec<Item>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Item {
    /// Description of the task.
    content: String,
    /// Status. Default: pending.
    #[serde(default)]
    status: Status,
    /// Priority. Default: medium.
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

pub(super) struct Todo(ToolSpec);

impl Todo {
    pub(super) fn new() -> Self {
        Self(ToolSpec::new::<Arguments>(
            "todo",
            ToolKind::Think,
            Effect::Session,
            "Keep a task list for work of several steps. Send the complete list each time; the user sees it.",
        ))
    }
}

#[async_trait]
impl Tool for Todo {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn prepare(&self, given: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        let Arguments { items } = arguments(&self.0.name, given)?;
        if items.len() > MAX_ITEMS {
            let reason = format!("items has {} entries; at most {MAX_ITEMS} are allowed", items.len());
            return Err(ToolError::arguments(&self.0.name, reason));
        }
        Ok(Box::new(Call { items }))
    }
}

#[derive(Debug)]
struct Call {
    items: Vec<Item>,
}

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        format!("Tasks ({})", self.items.len())
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    async fn run(self: Box<Self>, _: RunContext) -> Result<ToolOutput, ToolError> {
        let open = self.items.iter().filter(|item| !matches!(item.status, Status::Completed)).count();
        let text = format!("Saved {} tasks, {open} of them open.", self.items.len());
        let plan = self.items.into_iter().map(entry).collect();
        Ok(ToolOutput { text, plan: Some(plan), ..ToolOutput::default() })
    }
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
