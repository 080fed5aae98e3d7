//! Messages for formats with one text in each: Chat Completions and Ollama. Pure.
//!
//! The reminder stands in a user message, because the result of a tool is not a place for instructions. A note
//! may end a result.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::{Ask, as_object, blocks, call_id, result_text};
use crate::model::{Block, Image, Message, Role};

/// Between a tool result and a user message, because some chat templates reject the two in a row.
const CUT_OFF: &str = "[interrupted]";

/// The same before the note about a reply without words.
const NO_ANSWER: &str = "[no answer]";

/// The same before images of a tool result.
const PICTURES: &str = "[images of the result]";

/// The same before a reminder.
const REMINDED: &str = "[reminder]";

pub(super) enum TextMessage<'a> {
    User { text: Cow<'a, str>, images: Vec<&'a Image> },
    Assistant(AssistantMessage<'a>),
    Tool { id: Cow<'a, str>, name: &'a str, text: Cow<'a, str> },
}

#[derive(Default)]
pub(super) struct AssistantMessage<'a> {
    pub text: Cow<'a, str>,
    pub thoughts: String,
    /// Provider states that can go back.
    pub states: Vec<&'a Value>,
    pub calls: Vec<ToolCall<'a>>,
}

pub(super) struct ToolCall<'a> {
    pub id: Cow<'a, str>,
    pub name: &'a str,
    pub arguments: Cow<'a, Value>,
}

pub(super) fn text_messages<'a>(ask: &Ask<'a>, messages: &'a [Arc<Message>]) -> Vec<TextMessage<'a>> {
    let mut texts = Vec::with_capacity(messages.len());
    for message in messages {
        match message.role {
            Role::Assistant => texts.extend(assistant(message, ask).map(TextMessage::Assistant)),
            Role::User => user(message, ask, &mut texts),
        }
    }
    texts
}

fn assistant<'a>(message: &'a Message, ask: &Ask<'a>) -> Option<AssistantMessage<'a>> {
    let mut assistant = AssistantMessage::default();
    for block in blocks(message) {
        match block {
            Block::Text(more) => append(&mut assistant.text, more, ""),
            Block::Thought(more) => assistant.thoughts.push_str(more),
            Block::ProviderState(state) if ask.is_own(&state.origin) => assistant.states.push(&state.data),
            Block::ToolCall { id, name, arguments } => {
                assistant.calls.push(ToolCall { id: call_id(id), name, arguments: as_object(arguments) });
            }
            Block::ProviderState(_)
            | Block::Image(_)
            | Block::ToolResult { .. }
            | Block::Note(_)
            | Block::Reminder(_) => {}
        }
    }
    let has_content = !assistant.text.trim().is_empty() || !assistant.calls.is_empty();
    has_content.then_some(assistant)
}

fn user<'a>(message: &'a Message, ask: &Ask<'a>, messages: &mut Vec<TextMessage<'a>>) {
    let mut text = Cow::Borrowed("");
    let mut images = Vec::new();
    let is_note_first = matches!(blocks(message).next(), Some(Block::Note(_)));
    let cut_off = if is_note_first { NO_ANSWER } else { CUT_OFF };
    let mut between = cut_off;
    for block in blocks(message) {
        match block {
            Block::Text(more) => {
                between = cut_off;
                append(&mut text, more, "\n\n");
            }
            Block::Image(image) if ask.image_omission(image).is_none() => images.push(image),
            Block::ToolResult { id, name, text, is_error } => {
                between = PICTURES;
                let text = result_text(text, *is_error);
                messages.push(TextMessage::Tool { id: call_id(id), name, text });
            }
            Block::Reminder(reminder) => {
                if text.is_empty() && images.is_empty() {
                    between = REMINDED;
                }
                append(&mut text, reminder, "\n\n");
            }
            Block::Image(_) | Block::Note(_) => {
                let note = match block {
                    Block::Note(note) => note.as_str(),
                    Block::Image(image) => ask.image_omission(image).unwrap_or_default(),
                    _ => continue,
                };
                match messages.last_mut() {
                    Some(TextMessage::Tool { text: result, .. }) if text.is_empty() && images.is_empty() => {
                        append(result, note, "\n\n");
                    }
                    _ => append(&mut text, note, "\n\n"),
                }
            }
            Block::Thought(_) | Block::ProviderState(_) | Block::ToolCall { .. } => {}
        }
    }
    if text.is_empty() && images.is_empty() {
        return;
    }
    if matches!(messages.last(), Some(TextMessage::Tool { .. } | TextMessage::User { .. })) {
        let text = Cow::Borrowed(between);
        messages.push(TextMessage::Assistant(AssistantMessage { text, ..AssistantMessage::default() }));
    }
    messages.push(TextMessage::User { text, images });
}

fn append<'a>(text: &mut Cow<'a, str>, more: &'a str, between: &str) {
    if text.is_empty() {
        *text = Cow::Borrowed(more);
    } else {
        let text = text.to_mut();
        text.push_str(between);
        text.push_str(more);
    }
}
