//! Puts the reminder into a request, where providers' prompt caches keep the messages before and after it. Pure.

use std::sync::Arc;

use crate::mode::ReminderPosition;
use crate::model::{Block, Message, Role};

/// Place of a session's reminder. The default has none yet.
#[derive(Debug, Clone, Default)]
pub struct Placement(Option<Place>);

#[derive(Debug, Clone)]
struct Place {
    /// Text of the reminder that stands here.
    text: String,
    message: usize,
    block: usize,
    reminded: Option<Reminded>,
}

/// A message with the reminder in it. Later requests get the same one, so that it is encoded once.
#[derive(Debug, Clone)]
struct Reminded {
    without: Arc<Message>,
    with: Arc<Message>,
}

impl Placement {
    /// Inserts the reminder into the messages of the next request.
    ///
    /// With [`ReminderPosition::Stay`], a reminder that says the same as the last one stands in the same place: the
    /// whole request before is then the start of this one. Another text stands at the end.
    pub fn splice(
        &mut self,
        messages: Vec<Arc<Message>>,
        reminder: Option<String>,
        position: ReminderPosition,
    ) -> Vec<Arc<Message>> {
        let before = self.0.take();
        let Some(text) = reminder else { return messages };
        match position {
            ReminderPosition::Tail => append(messages, text),
            ReminderPosition::BeforePrompt => match last_prompt(&messages) {
                Some((message, block)) => insert(messages, text, message, block),
                None => append(messages, text),
            },
            ReminderPosition::Stay => {
                let place = before
                    .filter(|place| place.text == text && place.exists_in(&messages))
                    .or_else(|| Place::at_end(&messages, &text));
                let Some(mut place) = place else { return append(messages, text) };
                let messages = place.insert(messages);
                self.0 = Some(place);
                messages
            }
        }
    }

    /// Lets the next reminder stand at the end, because the messages before it have changed.
    pub fn reset(&mut self) {
        self.0 = None;
    }
}

impl Place {
    /// `None` if the last message is not the user's.
    fn at_end(messages: &[Arc<Message>], text: &str) -> Option<Self> {
        let last = messages.last().filter(|last| last.role == Role::User)?;
        let (message, block) = (messages.len() - 1, last.blocks.len());
        Some(Self { text: text.to_owned(), message, block, reminded: None })
    }

    fn insert(&mut self, mut messages: Vec<Arc<Message>>) -> Vec<Arc<Message>> {
        let without = Arc::clone(&messages[self.message]);
        match &self.reminded {
            Some(reminded) if Arc::ptr_eq(&reminded.without, &without) => {
                messages[self.message] = Arc::clone(&reminded.with);
            }
            _ => {
                messages = insert(messages, self.text.clone(), self.message, self.block);
                self.reminded = Some(Reminded { without, with: Arc::clone(&messages[self.message]) });
            }
        }
        messages
    }

    fn exists_in(&self, messages: &[Arc<Message>]) -> bool {
        messages.get(self.message).is_some_and(|message| message.role == Role::User)
    }
}

/// Results come first in a message, so a block that is gone cannot move the reminder between them.
fn insert(mut messages: Vec<Arc<Message>>, text: String, message: usize, block: usize) -> Vec<Arc<Message>> {
    let blocks = &mut Arc::make_mut(&mut messages[message]).blocks;
    let block = block.min(blocks.len());
    blocks.insert(block, Block::Reminder(text));
    messages
}

/// Adds a message if the last one is not the user's.
fn append(mut messages: Vec<Arc<Message>>, text: String) -> Vec<Arc<Message>> {
    match messages.last_mut() {
        Some(last) if last.role == Role::User => Arc::make_mut(last).blocks.push(Block::Reminder(text)),
        _ => messages.push(Arc::new(Message { role: Role::User, blocks: vec![Block::Reminder(text)] })),
    }
    messages
}

/// The last message with a prompt, and the place of the prompt in it.
fn last_prompt(messages: &[Arc<Message>]) -> Option<(usize, usize)> {
    let mut prompts = messages.iter().enumerate().rev().filter(|(_, message)| message.role == Role::User);
    prompts.find_map(|(index, message)| Some((index, prompt_place(message)?)))
}

fn prompt_place(message: &Message) -> Option<usize> {
    message.blocks.iter().position(|block| !matches!(block, Block::ToolResult { .. }))
}

#[cfg(test)]
mod tests;
