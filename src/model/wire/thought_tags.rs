//! Separates thoughts that a server leaves in the text, between tags at its start. Pure.
//!
//! ```text
//! reply = { blank } [ "<" TAG ">" thoughts "</" TAG ">" { blank } ] answer
//! TAG   = "think" | "thinking" | "thought"
//! ```
//!
//! Only tags before the first word count: later ones are part of an answer about such tags.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::model::ModelEvent;

const TAGS: [&str; 3] = ["think", "thinking", "thought"];

/// Key of the provider state that has the tag, so that the thoughts go back between the same tags.
pub(super) const THOUGHT_TAG: &str = "thought_tag";

#[derive(Debug, Default)]
pub(super) struct ThoughtTags {
    state: TextPart,
    tag: Option<&'static str>,
    has_thought: bool,
    /// Text that may be the start of a tag.
    held: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum TextPart {
    #[default]
    Start,
    Thought,
    /// Blanks between the closing tag and the answer.
    Gap,
    Answer,
}

impl ThoughtTags {
    pub(super) fn push(&mut self, text: String, events: &mut VecDeque<ModelEvent>) {
        if self.state == TextPart::Answer {
            events.push_back(ModelEvent::Text(text));
            return;
        }
        self.held.push_str(&text);
        if self.state == TextPart::Start {
            self.begin(events);
        }
        if self.state == TextPart::Thought {
            self.think(events);
        }
        if self.state == TextPart::Gap && !self.held.trim_start().is_empty() {
            self.state = TextPart::Answer;
            events.push_back(ModelEvent::Text(self.held.trim_start().to_owned()));
            self.held.clear();
        }
    }

    fn begin(&mut self, events: &mut VecDeque<ModelEvent>) {
        let start = self.held.trim_start();
        if TAGS.iter().any(|tag| opening(tag).starts_with(start))
            && !TAGS.iter().any(|tag| opening(tag) == start)
        {
            return;
        }
        let opened = TAGS.iter().find_map(|tag| Some((*tag, start.strip_prefix(&opening(tag))?.to_owned())));
        if let Some((tag, rest)) = opened {
            self.tag = Some(tag);
            self.state = TextPart::Thought;
            self.held = rest;
        } else {
            self.state = TextPart::Answer;
            events.push_back(ModelEvent::Text(std::mem::take(&mut self.held)));
        }
    }

    fn think(&mut self, events: &mut VecDeque<ModelEvent>) {
        if !self.has_thought {
            self.held = self.held.trim_start().to_owned();
        }
        let closing = format!("</{}>", self.tag.unwrap_or_default());
        let (thought, rest) = if let Some(end) = self.held.find(&closing) {
            self.state = TextPart::Gap;
            (&self.held[..end], self.held[end + closing.len()..].to_owned())
        } else {
            let at =
                self.held.char_indices().map(|(at, _)| at).find(|at| closing.starts_with(&self.held[*at..]));
            let (thought, rest) = self.held.split_at(at.unwrap_or(self.held.len()));
            (thought, rest.to_owned())
        };
        if !thought.is_empty() {
            self.has_thought = true;
            events.push_back(ModelEvent::Thought(thought.to_owned()));
        }
        self.held = rest;
    }

    /// Passes on text that did not become a tag. Returns the state that sends the thoughts back.
    pub(super) fn finish(&mut self, events: &mut VecDeque<ModelEvent>) -> Option<Value> {
        let held = std::mem::take(&mut self.held);
        match self.state {
            TextPart::Start if !held.is_empty() => events.push_back(ModelEvent::Text(held)),
            TextPart::Thought if !held.is_empty() => events.push_back(ModelEvent::Thought(held)),
            TextPart::Start | TextPart::Thought | TextPart::Gap | TextPart::Answer => {}
        }
        self.state = TextPart::Answer;
        self.tag.map(|tag| json!({ THOUGHT_TAG: tag }))
    }
}

fn opening(tag: &str) -> String {
    format!("<{tag}>")
}

/// Puts thoughts back into the text, as their server sent them. Returns `None` if they came in another form.
pub(super) fn with_thoughts<'a>(text: &str, thoughts: &str, states: &[&'a Value]) -> Option<Cow<'a, str>> {
    let tag = states.iter().find_map(|state| state[THOUGHT_TAG].as_str())?;
    Some(Cow::Owned(format!("<{tag}>\n{}\n</{tag}>\n\n{text}", thoughts.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thought, the text, and the tag, wherever the content is cut.
    fn check(content: &str, thought: &str, text: &str, tag: Option<&str>) {
        let cuts = content.char_indices().map(|(at, _)| at);
        for cut in cuts {
            for single in [false, true] {
                let (start, end) = content.split_at(cut);
                let pieces: Vec<String> = if single {
                    content.chars().map(String::from).collect()
                } else {
                    vec![start.to_owned(), end.to_owned()]
                };
                let (mut tags, mut events) = (ThoughtTags::default(), VecDeque::new());
                for piece in pieces {
                    tags.push(piece, &mut events);
                }
                let state = tags.finish(&mut events);
                let (mut thoughts, mut texts) = (String::new(), String::new());
                for event in events {
                    match event {
                        ModelEvent::Text(more) => texts.push_str(&more),
                        ModelEvent::Thought(more) => thoughts.push_str(&more),
                        other => panic!("{other:?}"),
                    }
                }
                assert_eq!((thoughts.as_str(), texts.as_str()), (thought, text), "{content:?} cut at {cut}");
                let found_tag = state.map(|state| state[THOUGHT_TAG].as_str().unwrap().to_owned());
                assert_eq!(found_tag.as_deref(), tag, "{content:?}");
            }
        }
    }

    #[test]
    fn tags_before_the_first_word_separate_thoughts() {
        check("<think>\nA plan.\n</think>\n\nHere.", "A plan.\n", "Here.", Some("think"));
        check("\n <thinking>a < b</th> c</thinking>d", "a < b</th> c", "d", Some("thinking"));
        check("<thought>no end", "no end", "", Some("thought"));
        check("<think></think>x", "", "x", Some("think"));
        check("<think>x</think>  \n", "x", "", Some("think"));
        check("<think>x</think>\n<think>y", "x", "<think>y", Some("think"));
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in
            ["Hello.", "<thin", "<b>x</b>", "  \n x", "Use <think> and </think>.", "</think> x", "\n", "<"]
        {
            check(text, "", text, None);
        }
    }

    #[test]
    fn thoughts_go_back_between_their_tags() {
        let state = json!({ THOUGHT_TAG: "think" });
        let back = with_thoughts("Here.", "A plan.\n", &[&state]);
        assert_eq!(back.as_deref(), Some("<think>\nA plan.\n</think>\n\nHere."));
        assert_eq!(with_thoughts("Here.", "A plan.", &[&json!({ "reasoning": true })]), None);
    }
}
