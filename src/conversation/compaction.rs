//! Selects the older part of a conversation, asks for its summary, and builds the replacement. Pure.
//!
//! The cut never separates a call from its result. The mode and the notice of a switch are not part of the
//! conversation: the reminder of each request contains them.

use std::fmt::Write;
use std::sync::Arc;

use crate::acp::{PlanEntry, PlanEntryStatus};
use crate::model::{Block, Message, Role};
use crate::text::{counted, one_line};

/// Approximate bytes of text per token.
const BYTES: u64 = 4;

/// Maximum bytes of the user's older messages that a conversation keeps for the next summary.
pub const MAX_PROMPTS: usize = 24 * 1024;

/// Assumed tokens of the tools and the system prompt until the provider's first count.
const OVERHEAD: u64 = 4_000;

const QUESTION: &str =
    "The conversation has grown too long for your context and will be cut here. Write down what you need \
to continue without it. Call no tool. Cover:
1. what the user asked for, in their words where they matter, and every requirement and limit they named;
2. what was found out: files with paths and lines, names, facts, decisions and their reasons;
3. what was done: each change, with its file, and what was refused;
4. what is left to do, and the next step.
Be complete and brief. Only what you write here is kept.";

#[derive(Debug, Clone, Copy, Default)]
pub struct Fill {
    counted: u64,
    /// Bytes of the conversation at the provider's last count.
    then: usize,
    /// True after a compaction, until the next count.
    is_unknown: bool,
}

impl Fill {
    pub fn count(&mut self, tokens: u64, bytes: usize) {
        *self = Self { counted: tokens, then: bytes, is_unknown: false };
    }

    pub fn unknown() -> Self {
        Self { is_unknown: true, ..Self::default() }
    }

    pub fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Estimates the tokens of a request with so many bytes of conversation. `fixed` are the bytes of the tools
    /// and the system prompt, or 0 if they are not known yet.
    pub fn estimate(&self, bytes: usize, fixed: usize) -> u64 {
        let since = tokens(bytes.saturating_sub(self.then));
        match (self.counted, fixed) {
            (0, 0) => OVERHEAD + since,
            (0, fixed) => tokens(fixed) + since,
            (counted, _) => counted + since,
        }
    }

    /// Notes that a conversation of so many bytes was shortened.
    pub fn shorten(&mut self, bytes: usize, saved: usize) {
        if self.counted > 0 {
            let counted = self.estimate(bytes, 0).saturating_sub(tokens(saved)).max(1);
            (self.counted, self.then) = (counted, bytes.saturating_sub(saved));
        }
    }
}

/// True if a request uses more than 80 % of the context.
pub fn is_due(tokens: u64, context: u64) -> bool {
    tokens > context / 10 * 8
}

/// Tokens that a request should have after it was shortened: less than [`is_due`] allows, so that the next
/// steps change nothing.
pub fn target(context: u64) -> u64 {
    context / 10 * 6
}

pub fn bytes_of(tokens: u64) -> usize {
    usize::try_from(tokens.saturating_mul(BYTES)).unwrap_or(usize::MAX)
}

/// True if a summary of the older messages frees a fifth of the conversation.
pub fn is_worthwhile(messages: &[Arc<Message>], retained: usize) -> bool {
    bytes(&messages[..messages.len() - retained]) >= bytes(messages) / 5
}

fn bytes(messages: &[Arc<Message>]) -> usize {
    messages.iter().flat_map(|message| &message.blocks).map(Block::bytes).sum()
}

pub fn tokens(bytes: usize) -> u64 {
    bytes as u64 / BYTES
}

/// Returns the number of recent messages to keep: up to a fifth of the context, but at least the last
/// exchange. `None` if no older messages exist.
pub fn retained(messages: &[Arc<Message>], context: u64) -> Option<usize> {
    let budget = context / 5 * BYTES;
    let mut size = 0;
    let mut cut = None;
    for (at, message) in messages.iter().enumerate().skip(1).rev() {
        size += message.blocks.iter().map(|block| block.bytes() as u64).sum::<u64>();
        if size > budget && cut.is_some() {
            break;
        }
        let has_results = message.blocks.iter().any(|block| matches!(block, Block::ToolResult { .. }));
        if !has_results {
            cut = Some(at);
        }
    }
    cut.map(|cut| messages.len() - cut)
}

pub fn question(messages: &[Arc<Message>], retained: usize) -> Vec<Arc<Message>> {
    let mut older = messages[..messages.len() - retained].to_vec();
    let question = Block::Text(QUESTION.to_owned());
    match older.last_mut() {
        Some(last) if last.role == Role::User => Arc::make_mut(last).blocks.push(question),
        _ => older.push(Arc::new(Message { role: Role::User, blocks: vec![question] })),
    }
    older
}

/// Bytes of the user's older messages that stay word for word.
pub fn prompts_budget(context: u64) -> usize {
    usize::try_from(context / 10 * BYTES).unwrap_or(usize::MAX).min(MAX_PROMPTS)
}

/// What stays word for word when older messages are replaced.
#[derive(Debug, Clone, Copy, Default)]
pub struct Verbatim<'a> {
    /// The user's messages that no kept message contains, oldest first.
    pub prompts: &'a [&'a str],
    /// Number of messages before `prompts`.
    pub forgotten: usize,
    /// Bytes of `prompts`. The last one stays whole, however long.
    pub budget: usize,
    pub accepted_plan: Option<&'a str>,
    pub tasks: &'a [PlanEntry],
}

pub fn preamble(summary: &str, verbatim: Verbatim<'_>) -> String {
    let Verbatim { prompts, forgotten, budget, accepted_plan, tasks } = verbatim;
    let mut text = format!("<summary of=\"the conversation so far\">\n{}\n</summary>", summary.trim());
    let mut line =
        |line: std::fmt::Arguments<'_>| write!(text, "{line}").expect("writing to a string cannot fail");
    if !prompts.is_empty() {
        let mut bytes = 0;
        let fitting = prompts.iter().rev().take_while(|prompt| {
            bytes += prompt.len();
            bytes <= budget
        });
        let left_out = prompts.len() - fitting.count().max(1);
        let older = if left_out + forgotten > 0 {
            format!(" ({} left out)", counted(left_out + forgotten, "older one is", "older ones are"))
        } else {
            String::new()
        };
        line(format_args!("\n\nMy messages before the summary, word for word{older}:"));
        for prompt in &prompts[left_out..] {
            line(format_args!("\n<message>\n{}\n</message>", prompt.trim()));
        }
    }
    if let Some(plan) = accepted_plan {
        line(format_args!("\n\nThe plan that I accepted:\n<plan>\n{}\n</plan>", plan.trim()));
    }
    if !tasks.is_empty() {
        line(format_args!("\n\nThe current task list:"));
        for entry in tasks {
            let mark = match entry.status {
                PlanEntryStatus::Completed => "x",
                PlanEntryStatus::InProgress => ">",
                _ => " ",
            };
            line(format_args!("\n[{mark}] {}", entry.content));
        }
    }
    text
}

/// Calls that [`listed`] names at most.
const LISTED: usize = 40;

/// Longest part of a call or an answer in [`listed`], in characters.
const LISTED_TEXT: usize = 160;

/// A summary without a model: the last calls of the messages, and the end of the last answer.
pub fn listed(messages: &[Arc<Message>]) -> String {
    let mut calls = Vec::new();
    let mut answer = "";
    let mut failed = Vec::new();
    for block in messages.iter().flat_map(|message| &message.blocks) {
        match block {
            Block::ToolCall { id, name, arguments } => {
                calls.push((id, format!("{name} {}", one_line(&arguments.to_string(), LISTED_TEXT))));
            }
            Block::ToolResult { id, is_error: true, .. } => failed.push(id),
            _ => {}
        }
    }
    for message in messages.iter().filter(|message| message.role == Role::Assistant) {
        let texts = message.blocks.iter().filter_map(|block| match block {
            Block::Text(text) => Some(text.as_str()),
            _ => None,
        });
        for text in texts {
            answer = text;
        }
    }
    let mut text = String::from("The model wrote no summary. Modegate lists what it recorded.");
    let left_out = calls.len().saturating_sub(LISTED);
    if !calls.is_empty() {
        text.push_str("\nCalls, oldest first");
        text.push_str(&if left_out > 0 {
            format!(" ({left_out} older ones are left out):")
        } else {
            ":".into()
        });
    }
    for (id, call) in &calls[left_out..] {
        let outcome = if failed.contains(id) { " (failed)" } else { "" };
        text.push_str(&format!("\n- {call}{outcome}"));
    }
    if !answer.trim().is_empty() {
        text.push_str(&format!("\nThe last answer: {}", one_line(answer.trim(), 4 * LISTED_TEXT)));
    }
    text
}

pub fn is_retained(messages: &[Arc<Message>], retained: usize, words: &str) -> bool {
    let texts =
        messages[messages.len().saturating_sub(retained)..].iter().flat_map(|message| &message.blocks);
    texts.into_iter().any(|block| matches!(block, Block::Text(text) if text == words))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text_message(role: Role, text: &str) -> Arc<Message> {
        Arc::new(Message { role, blocks: vec![Block::Text(text.to_owned())] })
    }

    fn call_and_result() -> [Arc<Message>; 2] {
        let call = Block::ToolCall { id: "1".into(), name: "t".into(), arguments: json!({}) };
        let result =
            Block::ToolResult { id: "1".into(), name: "t".into(), text: "x".repeat(400), is_error: false };
        [call, result].map(|block| {
            let role = if matches!(block, Block::ToolCall { .. }) { Role::Assistant } else { Role::User };
            Arc::new(Message { role, blocks: vec![block] })
        })
    }

    #[test]
    fn compaction_never_separates_a_call_from_its_result() {
        let [call, result] = call_and_result();
        let one = vec![text_message(Role::User, "a")];
        assert_eq!(retained(&one, 1000), None);
        let turn = vec![text_message(Role::User, "a"), call.clone(), result.clone()];
        assert_eq!(retained(&turn, 10), Some(2), "the last exchange stays, however large");
        let two = vec![text_message(Role::User, "a"), call.clone(), result.clone(), call, result];
        assert_eq!(retained(&two, 10), Some(2));
        assert_eq!(retained(&two, 100_000), Some(4));
    }

    #[test]
    fn preamble_contains_summary_prompts_plan_and_tasks() {
        let plan = [PlanEntry::new("Look", crate::acp::PlanEntryPriority::High, PlanEntryStatus::Completed)];
        let older = [text_message(Role::User, "Do it."), text_message(Role::Assistant, "Yes.")];
        let verbatim = Verbatim {
            prompts: &["First.", "Second.", "Do it."],
            forgotten: 1,
            budget: 13,
            accepted_plan: Some("1. Look\n"),
            tasks: &plan,
        };
        assert_eq!(
            preamble("All is well.\n", verbatim),
            "<summary of=\"the conversation so far\">\nAll is well.\n</summary>\n\nMy messages before the summary, word \
             for word (2 older ones are left out):\n<message>\nSecond.\n</message>\n<message>\nDo it.\n</message>\n\nThe \
             plan that I accepted:\n<plan>\n1. Look\n</plan>\n\nThe current task list:\n[x] Look"
        );
        let long = preamble("", Verbatim { prompts: &["a", "long"], budget: 1, ..Verbatim::default() });
        assert!(long.contains("<message>\nlong\n</message>") && !long.contains("\na\n"), "{long}");
        let messages = question(
            &[older[0].clone(), text_message(Role::Assistant, "Yes."), text_message(Role::User, "And?")],
            1,
        );
        assert_eq!(messages.len(), 3);
        assert_eq!(messages[2].role, Role::User);
    }

    #[test]
    fn token_estimate_uses_the_providers_count() {
        let mut fill = Fill::default();
        assert_eq!((fill.estimate(40_000, 0), fill.estimate(40_000, 8_000)), (14_000, 12_000));
        fill.count(50_000, 40_000);
        assert_eq!(fill.estimate(44_000, 8_000), 51_000);
        fill.shorten(44_000, 24_000);
        assert_eq!((fill.estimate(20_000, 0), fill.estimate(24_000, 0)), (45_000, 46_000));
        assert!(is_due(81_000, 100_000) && !is_due(80_000, 100_000) && !is_due(51_000, u64::MAX));
    }
}
