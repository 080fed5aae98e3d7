//! The conversation of a session: the readers of its events, and the texts between Modegate and a model.
//!
//! [`acp_updates`] and [`history`] turn the same events into updates for a client and messages for a model.
//! A second version of the protocol would be a second such reader. Only [`system_prompt`] and
//! [`instructions`] look at files.

use std::collections::{HashMap, VecDeque};

use crate::acp::{MessageId, PlanEntry, SessionModeId, ToolCallId, ToolCallStatus, ToolKind};
use crate::event::{Compaction, SessionEvent, ToolCallEvent};
use compaction::Fill;
use history::History;
use open_calls::OpenCalls;

pub mod acp_updates;
pub mod compaction;
pub mod content;
pub mod fitting;
#[cfg(test)]
pub mod growth;
pub mod history;
pub mod instructions;
pub mod message_breaks;
pub mod mode_switch;
pub mod neutralise;
pub mod open_calls;
pub mod prompt_block;
pub mod question_text;
pub mod reminder;
pub mod superseded;
pub mod system_prompt;

/// State of a conversation, which its events alone determine, new or stored.
#[derive(Default)]
pub struct Conversation {
    pub history: History,
    pub plan: Vec<PlanEntry>,
    pub title: Option<String>,
    /// Texts of the user's last messages.
    pub prompts: VecDeque<String>,
    /// The last of `prompts` is the newest message, which need not contain text.
    newest_has_text: bool,
    /// Number of older messages that `prompts` lacks.
    pub forgotten_prompts: usize,
    pub accepted_plan: Option<String>,
    /// Number of commands that Modegate itself answered.
    pub answered: u64,
    /// Calls whose arguments are still streaming.
    pub started_calls: Vec<ToolCallId>,
    pub open_calls: HashMap<ToolCallId, ToolCallEvent>,
    /// Open calls of sub-agents and of an external agent.
    pub relayed_open_calls: OpenCalls,
    pub fill: Fill,
    /// Sum of the costs of requests, in billionths of a credit.
    pub cost: Option<u64>,
    pub compactions: u64,
    pub compacting: Option<String>,
    /// Mode before the first recorded change.
    pub first_mode: Option<SessionModeId>,
    /// Ids of the messages whose prompts had a key.
    pub prompt_keys: HashMap<String, MessageId>,
}

impl Conversation {
    pub fn apply(&mut self, event: &SessionEvent) {
        self.history.apply(event);
        if let SessionEvent::UserMessage { message_id, key: Some(key), .. } = event {
            self.prompt_keys.entry(key.clone()).or_insert_with(|| message_id.clone());
        }
        match event {
            SessionEvent::UserMessage { content, .. } if content.is_empty() => self.answered += 1,
            SessionEvent::UserMessage { content, .. } => {
                let text = prompt_block::text_of(content);
                self.newest_has_text = text.is_some();
                self.prompts.extend(text);
                while self.prompts.len() > 1
                    && self.prompts.iter().map(String::len).sum::<usize>() > compaction::MAX_PROMPTS
                {
                    self.prompts.pop_front();
                    self.forgotten_prompts += 1;
                }
            }
            SessionEvent::PromptDropped { .. } if std::mem::take(&mut self.newest_has_text) => {
                self.prompts.pop_back();
            }
            SessionEvent::ToolCallStarted { id, .. } => self.started_calls.push(id.clone()),
            SessionEvent::ToolCall(call) => {
                self.started_calls.retain(|id| *id != call.id);
                self.open_calls.insert(call.id.clone(), ToolCallEvent::clone(call));
            }
            SessionEvent::ToolCallUpdate(update) if update.result.is_some() => {
                self.started_calls.retain(|id| *id != update.id);
                let call = self.open_calls.remove(&update.id);
                // The exit tool completes only if the user accepts.
                if let Some(call) = call
                    && call.kind == ToolKind::SwitchMode
                    && update.status == ToolCallStatus::Completed
                {
                    self.accepted_plan = call.arguments["plan"].as_str().map(str::to_owned);
                }
            }
            SessionEvent::ForwardedUpdate { update } => self.relayed_open_calls.apply(update),
            SessionEvent::Plan { entries } => self.plan.clone_from(entries),
            SessionEvent::Title { title } => self.title = Some(title.clone()),
            SessionEvent::Usage(usage) => {
                self.fill.count(usage.used, self.history.bytes());
                self.cost = cost_after(self.cost, event);
            }
            SessionEvent::Compaction { id, stage: Compaction::Started } => {
                self.compactions += 1;
                self.compacting = Some(id.clone());
            }
            SessionEvent::Compaction { stage, .. } => {
                self.compacting = None;
                if matches!(stage, Compaction::Done { .. }) {
                    self.fill = Fill::unknown();
                }
            }
            SessionEvent::ModeChange { from, .. } if self.first_mode.is_none() => {
                self.first_mode = Some(from.clone());
            }
            // The client or the emitter of an event handles all others.
            _ => {}
        }
    }

    /// Takes the ids of calls without an end, sorted, including calls that were still streaming.
    pub fn take_open_calls(&mut self) -> Vec<ToolCallId> {
        let started = std::mem::take(&mut self.started_calls);
        let mut open: Vec<_> = self.open_calls.keys().cloned().chain(started).collect();
        open.sort_by(|a, b| a.0.cmp(&b.0));
        open
    }

    pub fn title_of(&self, call: &ToolCallId) -> String {
        self.open_calls.get(call).map(|call| call.title.clone()).unwrap_or_default()
    }
}

/// Adds the cost of a request to `total`. Returns `None` for other events than [`SessionEvent::Usage`].
pub fn cost_after(total: Option<u64>, event: &SessionEvent) -> Option<u64> {
    let SessionEvent::Usage(usage) = event else { return None };
    usage.cost.map(|cost| total.unwrap_or_default().saturating_add(cost)).or(total)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::ToolCallUpdateEvent;

    #[test]
    fn plan_of_a_completed_exit_call_is_accepted() {
        let mut conversation = Conversation::default();
        for (id, kind, status, expected) in [
            ("1", ToolKind::SwitchMode, ToolCallStatus::Failed, None),
            ("2", ToolKind::Other, ToolCallStatus::Completed, None),
            ("3", ToolKind::SwitchMode, ToolCallStatus::Completed, Some("plan 3")),
            ("4", ToolKind::SwitchMode, ToolCallStatus::Failed, Some("plan 3")),
        ] {
            let id = ToolCallId::new(id);
            let call = ToolCallEvent {
                id: id.clone(),
                model_id: String::new(),
                name: String::new(),
                title: String::new(),
                kind,
                arguments: json!({ "plan": format!("plan {id}") }),
                locations: Vec::new(),
                is_announced: false,
                note: None,
                check: None,
            };
            conversation.apply(&SessionEvent::ToolCall(Box::new(call)));
            let end = ToolCallUpdateEvent { status, ..ToolCallUpdateEvent::failed(id, "") };
            conversation.apply(&end.into());
            assert_eq!(conversation.accepted_plan.as_deref(), expected);
        }
    }
}
