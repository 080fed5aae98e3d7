//! Separates messages for clients that ignore message ids. Pure.
//!
//! A message begins with a blank line if another one of the same kind stands before it in the turn. Clients that
//! read Markdown show no blank line at the start of a message.

use crate::acp::{ContentBlock, ContentChunk, MessageId, SessionUpdate, Update};

/// The last messages of a turn.
#[derive(Debug, Default)]
pub struct MessageBreaks {
    text: LastMessage,
    thought: LastMessage,
}

#[derive(Debug, Default)]
struct LastMessage {
    id: Option<MessageId>,
    /// Line breaks at its end so far.
    line_breaks: usize,
}

impl MessageBreaks {
    pub fn begin_turn(&mut self) {
        *self = Self::default();
    }

    pub fn separate(&mut self, update: &mut Update) {
        let Update::Schema(update) = update else { return };
        match &mut **update {
            SessionUpdate::AgentMessageChunk(chunk) => self.text.separate(chunk),
            SessionUpdate::AgentThoughtChunk(chunk) => self.thought.separate(chunk),
            SessionUpdate::UserMessageChunk(_) => self.begin_turn(),
            _ => {}
        }
    }
}

impl LastMessage {
    fn separate(&mut self, chunk: &mut ContentChunk) {
        let ContentBlock::Text(content) = &mut chunk.content else { return };
        let text = &mut content.text;
        if self.id.is_some() && self.id != chunk.message_id {
            let at_start = text.len() - text.trim_start_matches('\n').len();
            text.insert_str(0, &"\n".repeat(2_usize.saturating_sub(self.line_breaks + at_start)));
        }
        let at_end = text.len() - text.trim_end_matches('\n').len();
        self.line_breaks = if at_end == text.len() { self.line_breaks + at_end } else { at_end };
        self.id.clone_from(&chunk.message_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(chunks: &[(&str, &str)]) -> Vec<String> {
        let mut breaks = MessageBreaks::default();
        let shown = chunks.iter().map(|(id, text)| {
            let chunk = ContentChunk::new((*text).into()).message_id(MessageId::new(*id));
            let mut update = SessionUpdate::AgentMessageChunk(chunk).into();
            breaks.separate(&mut update);
            serde_json::to_value(update).unwrap()["content"]["text"].as_str().unwrap().to_owned()
        });
        shown.collect()
    }

    #[test]
    fn later_messages_begin_with_a_blank_line() {
        for (chunks, expected) in [
            (&[("1", "a"), ("1", "b")][..], &["a", "b"][..]),
            (&[("1", "a"), ("2", "b"), ("2", "c")], &["a", "\n\nb", "c"]),
            (&[("1", "a\n"), ("2", "b")], &["a\n", "\nb"]),
            (&[("1", "a\n"), ("1", "\n"), ("2", "b")], &["a\n", "\n", "b"]),
            (&[("1", "a"), ("2", "\nb\n")], &["a", "\n\nb\n"]),
            (&[("1", "\na"), ("2", "\n\nb")], &["\na", "\n\nb"]),
        ] {
            assert_eq!(shown(chunks), expected, "{chunks:?}");
        }
    }

    #[test]
    fn thoughts_and_turns_are_counted_on_their_own() {
        let mut breaks = MessageBreaks::default();
        let chunk = |id: &str| ContentChunk::new("a".into()).message_id(MessageId::new(id));
        for (update, is_separated) in [
            (SessionUpdate::AgentMessageChunk(chunk("1")), false),
            (SessionUpdate::AgentThoughtChunk(chunk("2")), false),
            (SessionUpdate::AgentMessageChunk(chunk("3")), true),
            (SessionUpdate::UserMessageChunk(chunk("4")), false),
            (SessionUpdate::AgentMessageChunk(chunk("5")), false),
        ] {
            let mut update = update.into();
            breaks.separate(&mut update);
            let text = serde_json::to_value(update).unwrap()["content"]["text"].clone();
            assert_eq!(text == "\n\na", is_separated, "{text}");
        }
    }
}
