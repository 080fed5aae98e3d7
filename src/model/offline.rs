//! The embedded default: research without a language model, a network or a key.
//!
//! It is deterministic and says in its first line what it is. It works through the same tools as any model: it searches
//! for the words of the prompt, reads around the best places, and writes a plan that names file and line. What it does
//! next follows from the conversation alone, so it keeps no state.

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::{Value, json};

use super::{Block, Message, Model, ModelEvent, ModelRequest, ModelStop, Reply, Role};
use words::Word;

mod findings;
mod plan;
mod words;

/// What every answer begins with.
const WHO: &str = "I am Modegate's offline research, not a language model: I search for your words and rank what I \
                   find.\n\n";

/// Words of a prompt that are searched for.
const MAX_WORDS: usize = 4;

/// Places that are read before the plan is written.
const MAX_READS: usize = 3;

/// Lines that are read around a place.
const AROUND: u32 = 12;

/// The model.
#[derive(Debug, Clone, Copy)]
pub struct Offline;

impl Model for Offline {
    fn reply(&self, request: ModelRequest) -> Reply {
        stream::iter(next(&request).into_iter().map(Ok)).boxed()
    }
}

/// What follows from the conversation so far.
fn next(request: &ModelRequest) -> Vec<ModelEvent> {
    let turn = Turn::of(&request.messages);
    let words = words::of(&turn.prompt, MAX_WORDS);
    let offered = |tool: &str| request.tools.iter().any(|offer| offer.name == tool);
    let mut events = match turn.replies {
        0 if offered("search_files") && !words.is_empty() => {
            let mut events = vec![ModelEvent::Text(WHO.into())];
            events.extend(words.iter().enumerate().flat_map(|(number, word)| searches(number, word)));
            events
        }
        0 => vec![ModelEvent::Text(WHO.into()), ModelEvent::Text(nothing_to_do(&words))],
        1 if offered("read_file") && !turn.findings(&words).is_empty() => {
            let findings = turn.findings(&words);
            findings.places().take(MAX_READS).enumerate().map(|(number, place)| read(number, place)).collect()
        }
        _ => vec![ModelEvent::Text(plan::write(
            &turn.prompt,
            &words,
            &turn.findings(&words),
            &turn.excerpts(),
        ))],
    };
    events.push(ModelEvent::Stop(ModelStop::Done));
    events
}

fn searches(number: usize, word: &Word) -> [ModelEvent; 2] {
    let search = |id: String, pattern: String| ModelEvent::ToolCall {
        id,
        name: "search_files".into(),
        arguments: json!({ "pattern": pattern, "ignore_case": true }),
    };
    [
        search(format!("defined_{number}"), word.definition_pattern()),
        search(format!("mentioned_{number}"), word.pattern()),
    ]
}

fn read(number: usize, place: &findings::Place) -> ModelEvent {
    let first = place.line.saturating_sub(AROUND / 2).max(1);
    ModelEvent::ToolCall {
        id: format!("read_{number}"),
        name: "read_file".into(),
        arguments: json!({ "path": place.path, "line": first, "limit": AROUND }),
    }
}

fn nothing_to_do(words: &[Word]) -> String {
    if words.is_empty() {
        "Your prompt has no word that I could search for. Name a function, a file or a topic.\n".into()
    } else {
        "I cannot search in this mode, so I have nothing to say.\n".into()
    }
}

/// The last prompt and what came of it.
struct Turn<'a> {
    prompt: String,
    /// How often the model has answered since.
    replies: usize,
    /// The results since, by call.
    results: Vec<(&'a str, &'a Value, &'a str)>,
}

impl<'a> Turn<'a> {
    fn of(messages: &'a [std::sync::Arc<Message>]) -> Self {
        let says = |message: &Message| {
            message.role == Role::User && message.blocks.iter().any(|block| matches!(block, Block::Text(_)))
        };
        let start = messages.iter().rposition(|message| says(message)).unwrap_or(0);
        let since = messages.get(start..).unwrap_or_default();
        let prompt = since.first().map(|message| text_of(message)).unwrap_or_default();
        let blocks = || since.iter().skip(1).flat_map(|message| &message.blocks);
        let arguments = |wanted: &str| {
            blocks().find_map(|block| match block {
                Block::ToolCall { id, arguments, .. } if id == wanted => Some(arguments),
                _ => None,
            })
        };
        let results = blocks().filter_map(|block| match block {
            Block::ToolResult { id, text, is_error: false, .. } => {
                Some((id.as_str(), arguments(id)?, text.as_str()))
            }
            _ => None,
        });
        let replies = since.iter().filter(|message| message.role == Role::Assistant).count();
        Self { prompt, replies, results: results.collect() }
    }

    fn findings(&self, words: &[Word]) -> findings::Findings {
        findings::Findings::of(words, self.results.iter().map(|(id, _, text)| (*id, *text)))
    }

    /// What was read: path, first line, text.
    fn excerpts(&self) -> Vec<plan::Excerpt<'a>> {
        let excerpt = |(id, arguments, text): &(&str, &'a Value, &'a str)| {
            let path = arguments["path"].as_str()?;
            let first = arguments["line"].as_u64()?;
            id.starts_with("read_").then_some(plan::Excerpt { path, first, text })
        };
        self.results.iter().filter_map(excerpt).collect()
    }
}

fn text_of(message: &Message) -> String {
    let texts = message.blocks.iter().filter_map(|block| match block {
        Block::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
