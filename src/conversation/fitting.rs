//! Shortens the model's view of a conversation until its next request fits. Pure.
//!
//! Results go first, oldest first, then thoughts, images, arguments and answers; the user's messages go last,
//! and the newest never. Messages keep their number and order, calls their results.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use crate::model::{Block, Message, Role};
use crate::text::grouped;

/// Bytes that a cut has to save at least, so that its mark is worth it.
const MIN_SAVED: usize = 200;

/// Bytes of a note behind a summary.
const RETAINED_NOTE: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewestPrompt {
    /// Index of its message.
    pub message: usize,
    /// Its blocks in that message.
    pub blocks: Range<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shortened {
    pub saved: usize,
    /// Number of older messages of the user that were cut.
    pub prompts: usize,
}

/// A kind of content, in the order in which it is shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentKind {
    Result,
    /// A thought, with the state that a provider wants back with it.
    Thought,
    Image,
    Arguments,
    Answer,
    Note,
    Prompt,
}

/// Where a stage applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    /// Before the last reply with its results.
    Old,
    /// Everywhere.
    Any,
    /// Before the newest prompt: providers want the thoughts of a running turn back.
    EarlierTurns,
}

#[derive(Debug, Clone, Copy)]
enum Keep {
    Bytes(usize),
    /// The share of each new result in the bytes that are available, and at least these.
    Share(usize),
}

/// Each stage, with the part that a piece keeps. A stage begins when the ones before it do not suffice.
const STAGES: [(ContentKind, Age, Keep); 14] = [
    (ContentKind::Result, Age::Old, Keep::Bytes(2_000)),
    (ContentKind::Thought, Age::EarlierTurns, Keep::Bytes(0)),
    (ContentKind::Image, Age::Old, Keep::Bytes(0)),
    (ContentKind::Arguments, Age::Old, Keep::Bytes(1_000)),
    (ContentKind::Answer, Age::Old, Keep::Bytes(2_000)),
    (ContentKind::Result, Age::Any, Keep::Share(2_000)),
    (ContentKind::Image, Age::Any, Keep::Bytes(0)),
    (ContentKind::Arguments, Age::Any, Keep::Bytes(1_000)),
    (ContentKind::Note, Age::Any, Keep::Bytes(1_000)),
    (ContentKind::Result, Age::Any, Keep::Bytes(200)),
    (ContentKind::Arguments, Age::Any, Keep::Bytes(100)),
    (ContentKind::Answer, Age::Any, Keep::Bytes(200)),
    (ContentKind::Note, Age::Any, Keep::Bytes(200)),
    (ContentKind::Prompt, Age::Any, Keep::Bytes(2_000)),
];

/// Shortens the messages until they have at most `budget` bytes, or until nothing is left to shorten.
pub fn shorten(messages: &mut [Arc<Message>], newest: Option<&NewestPrompt>, budget: usize) -> Shortened {
    let before: usize = messages.iter().map(|message| bytes(message)).sum();
    let mut excess = before.saturating_sub(budget);
    // Without results behind it, the last reply is as old as any other.
    let old_end = if messages.last().is_some_and(|last| has_results(last)) {
        messages.iter().rposition(|message| message.role == Role::Assistant).unwrap_or_default()
    } else {
        messages.len()
    };
    let mut prompts = 0;
    for (kind, age, keep) in STAGES {
        if excess == 0 {
            break;
        }
        let end = match age {
            Age::Old => old_end,
            Age::Any => messages.len(),
            Age::EarlierTurns => newest.map_or(0, |newest| newest.message),
        };
        let keep = match keep {
            Keep::Bytes(keep) => keep,
            Keep::Share(least) => share(&messages[old_end..], excess).max(least),
        };
        for (at, message) in messages[..end].iter_mut().enumerate() {
            if excess == 0 {
                break;
            }
            let protected = newest.filter(|newest| newest.message == at).map(|newest| newest.blocks.clone());
            let saved = shorten_message(message, kind, keep, &protected.unwrap_or_default());
            prompts += usize::from(saved > 0 && kind == ContentKind::Prompt);
            excess = excess.saturating_sub(saved);
        }
    }
    let after: usize = messages.iter().map(|message| bytes(message)).sum();
    Shortened { saved: before.saturating_sub(after), prompts }
}

/// Leaves out images, oldest first, until at most `max_count` of at most `max_bytes` in Base64 are left. If it has
/// to leave out any, it goes down to half of both, so that the next images do not change the messages again.
/// Keeps the images of the newest prompt.
pub fn limit_images(
    messages: &mut [Arc<Message>],
    newest: Option<&NewestPrompt>,
    max_count: usize,
    max_bytes: usize,
) -> Shortened {
    let sizes: Vec<usize> =
        messages.iter().flat_map(|message| &message.blocks).filter_map(image_bytes).collect();
    let (mut number, mut size) = (sizes.len(), sizes.iter().sum::<usize>());
    if number <= max_count && size <= max_bytes {
        return Shortened::default();
    }
    let before: usize = messages.iter().map(|message| bytes(message)).sum();
    for (index, message) in messages.iter_mut().enumerate() {
        let protected = newest.filter(|newest| newest.message == index).map(|newest| newest.blocks.clone());
        let protected = protected.unwrap_or_default();
        let images = (0..message.blocks.len())
            .filter(|at| !protected.contains(at) && image_bytes(&message.blocks[*at]).is_some());
        for at in images.collect::<Vec<_>>() {
            if number <= max_count / 2 && size <= max_bytes / 2 {
                break;
            }
            number -= 1;
            let block = &mut Arc::make_mut(message).blocks[at];
            size -= image_bytes(block).unwrap_or_default();
            shorten_block(block, 0);
        }
    }
    let after: usize = messages.iter().map(|message| bytes(message)).sum();
    Shortened { saved: before.saturating_sub(after), prompts: 0 }
}

/// A note as it stays before the messages that a summary keeps.
pub fn retained_note(note: &Block) -> Block {
    let mut note = note.clone();
    if saves(&note, RETAINED_NOTE) {
        shorten_block(&mut note, RETAINED_NOTE);
    }
    note
}

fn image_bytes(block: &Block) -> Option<usize> {
    if let Block::Image(image) = block { Some(image.data.len()) } else { None }
}

fn bytes(message: &Message) -> usize {
    message.blocks.iter().map(Block::bytes).sum()
}

fn has_results(message: &Message) -> bool {
    message.blocks.iter().any(|block| matches!(block, Block::ToolResult { .. }))
}

/// Bytes that each result may keep, so that all of them together lose `excess` bytes. Short ones stay whole.
fn share(messages: &[Arc<Message>], excess: usize) -> usize {
    let blocks = messages.iter().flat_map(|message| &message.blocks);
    let mut sizes: Vec<usize> =
        blocks.filter(|block| matches!(block, Block::ToolResult { .. })).map(Block::bytes).collect();
    sizes.sort_unstable();
    let mut available = sizes.iter().sum::<usize>().saturating_sub(excess + MIN_SAVED * sizes.len());
    for (at, size) in sizes.iter().enumerate() {
        let share = available / (sizes.len() - at);
        if *size > share {
            return share;
        }
        available -= size;
    }
    usize::MAX
}

/// Returns the bytes saved.
fn shorten_message(
    message: &mut Arc<Message>,
    kind: ContentKind,
    keep: usize,
    protected: &Range<usize>,
) -> usize {
    let role = message.role;
    let is_affected = |at: usize, block: &Block| {
        !protected.contains(&at) && kind_of(block, role) == Some(kind) && saves(block, keep)
    };
    if !message.blocks.iter().enumerate().any(|(at, block)| is_affected(at, block)) {
        return 0;
    }
    let before = bytes(message);
    if kind == ContentKind::Thought {
        if !message.blocks.iter().all(is_thought) {
            Arc::make_mut(message).blocks.retain(|block| !is_thought(block));
        }
        return before - bytes(message);
    }
    for (at, block) in Arc::make_mut(message).blocks.iter_mut().enumerate() {
        if is_affected(at, block) {
            shorten_block(block, keep);
        }
    }
    before.saturating_sub(bytes(message))
}

fn is_thought(block: &Block) -> bool {
    kind_of(block, Role::Assistant) == Some(ContentKind::Thought)
}

fn kind_of(block: &Block, role: Role) -> Option<ContentKind> {
    Some(match block {
        Block::ToolResult { .. } => ContentKind::Result,
        Block::Thought(_) | Block::ProviderState(_) => ContentKind::Thought,
        Block::Image(_) => ContentKind::Image,
        Block::ToolCall { .. } => ContentKind::Arguments,
        Block::Text(_) if role == Role::Assistant => ContentKind::Answer,
        Block::Text(_) => ContentKind::Prompt,
        Block::Note(_) => ContentKind::Note,
        Block::Reminder(_) => return None,
    })
}

fn saves(block: &Block, keep: usize) -> bool {
    block.bytes() > keep.saturating_add(MIN_SAVED)
}

fn shorten_block(block: &mut Block, keep: usize) {
    match block {
        Block::ToolResult { name, text, .. } => {
            *text = cut(text, keep, &format!("call {name} again for the part that you need"));
        }
        Block::Text(text) | Block::Thought(text) | Block::Note(text) => {
            *text = cut(text, keep, "they no longer fit in your context");
        }
        Block::ToolCall { arguments, .. } => {
            shorten_strings(arguments, keep);
            let length = arguments.to_string().len();
            // Many short parts are no text to cut.
            if length > keep.saturating_add(MIN_SAVED).saturating_mul(4) {
                let left_out = format!("{} bytes, to save context", grouped(length));
                *arguments = serde_json::json!({ "arguments_left_out": left_out });
            }
        }
        Block::Image(_) => *block = Block::Note(IMAGE_LEFT_OUT.to_owned()),
        Block::ProviderState(_) | Block::Reminder(_) => {}
    }
}

const IMAGE_LEFT_OUT: &str =
    "<system-note>\nAn image was here. It was left out to save context.\n</system-note>";

fn shorten_strings(value: &mut Value, keep: usize) {
    match value {
        Value::String(text) if text.len() > keep.saturating_add(MIN_SAVED) => {
            *text = cut(text, keep, "this call had them, and they no longer fit in your context");
        }
        Value::Array(values) => values.iter_mut().for_each(|value| shorten_strings(value, keep)),
        Value::Object(members) => members.values_mut().for_each(|value| shorten_strings(value, keep)),
        _ => {}
    }
}

/// Keeps the first two thirds and the last third of `keep` bytes, at line ends where one is near.
fn cut(text: &str, keep: usize, how_to_read_on: &str) -> String {
    let head = line_end_before(text, keep / 3 * 2);
    let tail = line_start_after(text, text.len() - keep / 3).max(head);
    let mut shorter = text[..head].trim_end().to_owned();
    let left_out = grouped(tail - head);
    let _ = write!(shorter, "\n[{left_out} bytes are left out here to save context: {how_to_read_on}]\n");
    shorter.push_str(&text[tail..]);
    shorter
}

/// How far from the wanted place a line end may be.
const NEAR: usize = 200;

fn line_end_before(text: &str, at: usize) -> usize {
    let at = floor(text, at);
    let near = floor(text, at.saturating_sub(NEAR));
    text[near..at].rfind('\n').map_or(at, |end| near + end)
}

fn line_start_after(text: &str, at: usize) -> usize {
    let at = floor(text, at);
    let near = floor(text, at + NEAR);
    text[at..near].find('\n').map_or(at, |end| at + end + 1)
}

/// The last character boundary up to `at`.
fn floor(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
