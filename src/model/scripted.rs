//! A model that plays a script, for tests, demonstrations and client developers.
//!
//! A script has one JSON object per line. Empty lines and lines that begin with `#` are skipped.
//!
//! ```text
//! {"text": "Hello "}
//! {"thought": "hm"}
//! {"delay_ms": 50}
//! {"tool_call": {"id": "c1", "name": "read_file", "arguments": {"path": "README.md"}}}
//! {"usage": {"used": 1200, "size": 200000}}
//! {"stop": "done"}
//! {"fail": "the provider is overloaded"}
//! {"interrupt": "the connection was reset"}
//! ```
//!
//! The replies after `{"for": "TEXT"}` are for sessions whose first message contains TEXT, such as
//! sub-agents; those before it are for all others. `stop` (`done`, `max_tokens`, `context_full`, `refusal`), `fail`
//! or `interrupt` ends a reply. Request N of a session gets reply N. A request beyond the last reply fails, unless the script ends
//! with `{"loop": true}` and starts over. `{"repeat": N, "text": "x"}` sends N chunks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::{
    Block, Failure, Message, Model, ModelError, ModelEvent, ModelRequest, ModelStop, Reply, Usage as Tokens,
};
use crate::text::counted;

#[derive(Debug, Clone)]
pub struct Scripted {
    parts: Arc<[ScriptPart]>,
    /// Ends pauses instead of the clock.
    pauses: Option<Pauses>,
}

#[derive(Debug, Default)]
struct ScriptPart {
    /// Text in the first message of these sessions. Empty for all other sessions.
    text: String,
    replies: Vec<Vec<ScriptLine>>,
    loops: bool,
}

/// Receives each pause as a sender that ends the pause.
pub type Pauses = mpsc::UnboundedSender<oneshot::Sender<()>>;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ScriptError {
    line: usize,
    reason: String,
}

const NO_END: &str = "the last reply has no end: add {\"stop\": \"done\"}";

/// The comments are part of the schema that `modegate scripts schema` prints.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
#[schemars(description = "A line of a script")]
enum Word {
    Text(String),
    /// A chunk of reasoning.
    Thought(String),
    /// A pause in milliseconds.
    DelayMs(u64),
    /// A call of a tool; several in one reply run in parallel.
    ToolCall(Call),
    /// The start of a call whose arguments still stream.
    ToolCallStarted(ScriptedStart),
    /// Tokens in the context, and its size.
    Usage(ScriptedUsage),
    /// The end of a reply.
    Stop(ModelStop),
    /// The end of a reply: the provider fails with this text.
    Fail(String),
    /// The end of a reply: the connection breaks for this reason, and the request is repeated.
    Interrupt(String),
    /// After the last reply the first follows, if true.
    Loop(bool),
    /// The following replies are for sessions whose first message contains this text.
    For(String),
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Call {
    id: String,
    name: String,
    #[serde(default)]
    arguments: Value,
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ScriptedStart {
    id: String,
    name: String,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename = "Usage")]
struct ScriptedUsage {
    used: u64,
    size: u64,
    #[serde(default)]
    cache_read: u64,
    #[serde(default)]
    cache_write: u64,
    #[serde(default)]
    output: u64,
    /// Cost of the request in credits.
    cost: Option<f64>,
}

#[derive(Debug, Clone)]
struct ScriptLine {
    word: Word,
    repeat: usize,
}

impl Scripted {
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let mut parts = vec![ScriptPart::default()];
        let mut reply = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |reason| ScriptError { line: number + 1, reason };
            let line = parse_line(line).map_err(wrong)?;
            if let Word::For(text) = line.word {
                if !reply.is_empty() {
                    return Err(wrong(NO_END.into()));
                }
                parts.push(ScriptPart { text, ..ScriptPart::default() });
                continue;
            }
            let Some(part) = parts.last_mut() else { continue };
            if part.loops {
                return Err(wrong("nothing follows loop".into()));
            }
            if let Word::Loop(on) = line.word {
                part.loops = on;
                continue;
            }
            let ends = matches!(line.word, Word::Stop(_) | Word::Fail(_) | Word::Interrupt(_));
            reply.push(line);
            if ends {
                part.replies.push(std::mem::take(&mut reply));
            }
        }
        if !reply.is_empty() {
            return Err(ScriptError { line: text.lines().count(), reason: NO_END.into() });
        }
        Ok(Self { parts: parts.into(), pauses: None })
    }

    #[must_use]
    pub fn paced_by(self, pauses: Pauses) -> Self {
        Self { pauses: Some(pauses), ..self }
    }
}

pub fn line_schema() -> Value {
    let mut schema = schemars::schema_for!(Word).to_value();
    for word in schema["oneOf"].as_array_mut().into_iter().flatten() {
        let repeat = "How often the line is repeated.";
        word["properties"]["repeat"] =
            json!({ "type": "integer", "minimum": 0, "default": 1, "description": repeat });
    }
    schema
}

fn parse_line(line: &str) -> Result<ScriptLine, String> {
    let mut value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let repeat = match value.as_object_mut().and_then(|members| members.shift_remove("repeat")) {
        None => 1,
        Some(count) => {
            count.as_u64().and_then(|count| usize::try_from(count).ok()).ok_or("repeat is a whole number")?
        }
    };
    let word = serde_json::from_value(value).map_err(|error| error.to_string())?;
    Ok(ScriptLine { word, repeat })
}

pub fn event(line: &str) -> Result<Option<Result<ModelEvent, ModelError>>, String> {
    Ok(to_event(parse_line(line)?.word))
}

fn to_event(word: Word) -> Option<Result<ModelEvent, ModelError>> {
    Some(Ok(match word {
        Word::Text(text) => ModelEvent::Text(text),
        Word::Thought(text) => ModelEvent::Thought(text),
        Word::DelayMs(_) | Word::Loop(_) | Word::For(_) => return None,
        Word::ToolCall(Call { id, name, arguments }) => ModelEvent::ToolCall { id, name, arguments },
        Word::ToolCallStarted(ScriptedStart { id, name }) => ModelEvent::ToolCallStarted { id, name },
        Word::Usage(ScriptedUsage { used, size, cache_read, cache_write, output, cost }) => {
            let cost = cost.and_then(Tokens::billionths);
            ModelEvent::Usage(Tokens { used, size, cache_read, cache_write, output, cost })
        }
        Word::Stop(stop) => ModelEvent::Stop(stop),
        Word::Fail(text) => return Some(Err(ModelError::new(text))),
        Word::Interrupt(text) => {
            let failure = Failure::Interrupted { wait: Duration::ZERO };
            return Some(Err(ModelError { failure, text }));
        }
    }))
}

fn first_text(message: &Message) -> &str {
    let text = message.blocks.iter().find_map(|block| match block {
        Block::Text(text) => Some(text.as_str()),
        _ => None,
    });
    text.unwrap_or_default()
}

async fn pause(delay: u64, pauses: Option<&Pauses>) {
    let Some(pauses) = pauses else {
        return tokio::time::sleep(Duration::from_millis(delay)).await;
    };
    let (end, ended) = oneshot::channel();
    if pauses.send(end).is_ok() {
        let _ = ended.await;
    }
}

impl Model for Scripted {
    fn reply(&self, request: ModelRequest) -> Reply {
        let first = request.messages.first().map(|message| first_text(message)).unwrap_or_default();
        let part = self
            .parts
            .iter()
            .find(|part| !part.text.is_empty() && first.contains(&part.text))
            .unwrap_or(&self.parts[0]);
        let mut at = usize::try_from(request.ordinal).unwrap_or(usize::MAX);
        if part.loops && !part.replies.is_empty() {
            at %= part.replies.len();
        }
        let Some(reply) = part.replies.get(at) else {
            let text = format!(
                "the script has {}, and this is request {}",
                counted(part.replies.len(), "reply", "replies"),
                at + 1
            );
            return stream::once(async { Err(ModelError::new(text)) }).boxed();
        };
        let lines: VecDeque<ScriptLine> = reply.iter().cloned().collect();
        let pauses = self.pauses.clone();
        stream::unfold((lines, pauses), |(mut lines, pauses)| async move {
            loop {
                let line = lines.front_mut()?;
                if line.repeat == 0 {
                    lines.pop_front();
                    continue;
                }
                line.repeat -= 1;
                let word = line.word.clone();
                if let Word::DelayMs(delay) = word {
                    pause(delay, pauses.as_ref()).await;
                } else if let Some(event) = to_event(word) {
                    return Some((event, (lines, pauses)));
                }
            }
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(script: &str, expected: &str) {
        let outcome = Scripted::parse(script)
            .map(|script| script.parts.iter().map(|part| part.replies.len()).sum::<usize>().to_string());
        assert_eq!(outcome.unwrap_or_else(|error| error.to_string()), expected);
    }

    #[test]
    fn script_splits_into_replies_and_errors_name_the_line() {
        check("", "0");
        check("# a\n\n{\"text\":\"x\"}\n{\"stop\":\"done\"}\n{\"fail\":\"no\"}\n", "2");
        check("{\"text\":\"x\"}", "line 1: the last reply has no end: add {\"stop\": \"done\"}");
        check("{\"stop\":\"done\"}\n{\"loop\":true}", "1");
        check("{\"loop\":true}\n{\"stop\":\"done\"}", "line 2: nothing follows loop");
        check("{\"stop\":\"done\"}\n{\"loop\":true}\n{\"for\":\"x\"}\n{\"stop\":\"done\"}", "2");
        check(
            "{\"text\":\"x\"}\n{\"for\":\"x\"}",
            "line 2: the last reply has no end: add {\"stop\": \"done\"}",
        );
        check("{\"repeat\":-1,\"text\":\"x\"}", "line 1: repeat is a whole number");
        assert!(
            Scripted::parse("\n{\"txet\":\"x\"}")
                .unwrap_err()
                .to_string()
                .starts_with("line 2: unknown variant")
        );
    }
}
