//! Replaces results that a later call made useless by a line each. Pure.
//!
//! A replaced result changes the messages behind it, which providers then read and cache anew. So results are
//! replaced together, and only if they are a large part of the conversation.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use crate::model::{Block, Message};

const SUPERSEDED: &str = "[Left out to save context: a later call gave the newer result.]";

/// Smaller results stay.
const MIN_RESULT: usize = 400;

/// Part of the conversation that the results must have: a quarter. Reading cached bytes costs a tenth of new ones
/// and writing them costs a quarter more, so three quarters that are written again are paid for by 35 requests
/// without this quarter, or by the summary that comes later.
const SHARE: usize = 4;

/// Arguments that select a part of the result.
const PARTS: [&str; 2] = ["line", "limit"];

/// Replaces the results if they are worth it. Returns the bytes saved. `is_reader` says which tools return the state
/// of something, so that the newest result of the same call has all that counts.
pub fn replace(messages: &mut [Arc<Message>], is_reader: impl Fn(&str) -> bool) -> usize {
    let superseded = superseded(messages, is_reader);
    let results =
        messages.iter().flat_map(|message| &message.blocks).filter(|block| is_one(block, &superseded));
    let saved: usize = results.map(|block| block.bytes() - SUPERSEDED.len()).sum();
    let all: usize = messages.iter().flat_map(|message| &message.blocks).map(Block::bytes).sum();
    if saved == 0 || saved < all / SHARE {
        return 0;
    }
    for message in messages {
        if message.blocks.iter().any(|block| is_one(block, &superseded)) {
            for block in &mut Arc::make_mut(message).blocks {
                if is_one(block, &superseded)
                    && let Block::ToolResult { text, .. } = block
                {
                    SUPERSEDED.clone_into(text);
                }
            }
        }
    }
    saved
}

fn is_one(block: &Block, superseded: &HashSet<String>) -> bool {
    matches!(block, Block::ToolResult { id, .. } if superseded.contains(id))
}

/// Ids of calls whose result a later call repeats: the same call, or the same one for more lines.
fn superseded(messages: &[Arc<Message>], is_reader: impl Fn(&str) -> bool) -> HashSet<String> {
    let mut successful: HashMap<&str, usize> = HashMap::new();
    for block in messages.iter().flat_map(|message| &message.blocks) {
        if let Block::ToolResult { id, text, is_error: false, .. } = block {
            successful.insert(id, text.len());
        }
    }
    let mut later: HashSet<String> = HashSet::new();
    let mut superseded = HashSet::new();
    let blocks = messages.iter().rev().flat_map(|message| message.blocks.iter().rev());
    for block in blocks {
        let Block::ToolCall { id, name, arguments } = block else { continue };
        let Some(size) = successful.get(id.as_str()).filter(|_| is_reader(name)) else { continue };
        let (call, whole) = (format!("{name} {arguments}"), format!("{name} {}", whole(arguments)));
        if *size >= MIN_RESULT && (later.contains(&call) || later.contains(&whole)) {
            superseded.insert(id.clone());
        }
        later.insert(call);
    }
    superseded
}

fn whole(arguments: &Value) -> Value {
    let mut whole = arguments.clone();
    if let Some(members) = whole.as_object_mut() {
        for part in PARTS {
            members.shift_remove(part);
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::Role;

    /// A call with its result of so many bytes.
    fn step(id: &str, arguments: &Value, size: usize, is_error: bool) -> [Arc<Message>; 2] {
        let name = "read_file".to_owned();
        let call = Block::ToolCall { id: id.into(), name: name.clone(), arguments: arguments.clone() };
        let result = Block::ToolResult { id: id.into(), name, text: "x".repeat(size), is_error };
        [(Role::Assistant, call), (Role::User, result)]
            .map(|(role, block)| Arc::new(Message { role, blocks: vec![block] }))
    }

    /// Returns the ids of the results that are replaced.
    fn replaced(steps: &[(&str, Value, usize, bool)]) -> Vec<String> {
        let mut messages: Vec<Arc<Message>> = steps
            .iter()
            .flat_map(|(id, arguments, size, is_error)| step(id, arguments, *size, *is_error))
            .collect();
        let before: usize = messages.iter().flat_map(|message| &message.blocks).map(Block::bytes).sum();
        assert_eq!(replace(&mut messages, |name| name == "view_background"), 0, "the control");
        let saved = replace(&mut messages, |name| name == "read_file");
        let after: usize = messages.iter().flat_map(|message| &message.blocks).map(Block::bytes).sum();
        assert_eq!(before - after, saved);
        let blocks = messages.iter().flat_map(|message| &message.blocks);
        let replaced = blocks.filter_map(|block| match block {
            Block::ToolResult { id, text, .. } if text == SUPERSEDED => Some(id.clone()),
            _ => None,
        });
        replaced.collect()
    }

    #[test]
    fn results_that_a_later_call_repeats_are_replaced() {
        let (whole, part) = (json!({ "path": "a" }), json!({ "path": "a", "line": 7, "limit": 9 }));
        let other = json!({ "path": "b" });
        let ok = |id: &'static str, arguments: &Value| (id, arguments.clone(), 1_000, false);
        assert_eq!(replaced(&[ok("1", &whole), ok("2", &other), ok("3", &whole)]), ["1"]);
        assert_eq!(
            replaced(&[ok("1", &part), ok("2", &whole), ok("3", &part)]),
            ["1"],
            "a part keeps the whole"
        );
        assert_eq!(replaced(&[ok("1", &whole), ok("2", &part)]), [""; 0]);
        assert_eq!(replaced(&[ok("1", &whole), ok("2", &whole), ok("3", &whole)]), ["1", "2"]);
        let failed = ("2", whole.clone(), 1_000, true);
        assert_eq!(replaced(&[ok("1", &whole), failed]), [""; 0], "a failure supersedes nothing");
    }

    #[test]
    fn few_bytes_are_not_worth_a_new_cache() {
        let (a, b) = (json!({ "path": "a" }), json!({ "path": "b" }));
        let steps = |size| {
            [("1", a.clone(), 1_000, false), ("2", b.clone(), size, false), ("3", a.clone(), 500, false)]
        };
        assert_eq!(replaced(&steps(1_500)), ["1"]);
        assert_eq!(replaced(&steps(10_000)), [""; 0]);
        let small = [("1", a.clone(), 300, false), ("2", a.clone(), 300, false)];
        assert_eq!(replaced(&small), [""; 0]);
    }
}
