//! The embedded default model: research without a language model, a network or a key. It searches for the
//! words of the prompt, reads around the best places, and writes a plan that names file and line. It also
//! creates a file ([`creation`]). Deterministic: each step follows from the conversation alone.

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::{Value, json};

use super::{Block, Message, Model, ModelEvent, ModelRequest, ModelStop, Reply, Role};
use creation::Creation;
use keywords::PromptWord;

mod creation;
mod findings;
mod keywords;
mod plan;

const INTRODUCTION: &str = "I am Modegate's offline research, not a language model: I search for your words and rank what I \
                   find.\n\n";

const OFFLINE_HINT: &str = "\n— Offline: no language model was used. Set a key (ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY) or run `modegate setup` to use one.\n";

const MAX_WORDS: usize = 4;

const MAX_READS: usize = 3;

/// Maximum mentions per file. Definitions get ten times as many.
const PER_FILE: usize = 4;

const CONTEXT_LINES: u32 = 12;

#[derive(Debug, Clone, Copy)]
pub struct Offline;

impl Model for Offline {
    fn reply(&self, request: ModelRequest) -> Reply {
        stream::iter(next(&request).into_iter().map(Ok)).boxed()
    }
}

fn next(request: &ModelRequest) -> Vec<ModelEvent> {
    let turn = OfflineTurn::of(&request.messages);
    let offered = |tool: &str| request.tools.iter().any(|offer| offer.name == tool);
    let mut events = Vec::new();
    if turn.replies == 0 {
        events.push(ModelEvent::Text(INTRODUCTION.into()));
    }
    match creation::parse(&turn.prompt) {
        // Once started, a creation is finished in any mode: a denied call gives a reason.
        Some(creation)
            if turn.has_started()
                || turn.replies == 0 && Creation::TOOLS.iter().all(|tool| offered(tool)) =>
        {
            events.push(creation.next(turn.outcome("look"), turn.outcome("change")));
        }
        _ => events.extend(research(&turn, &offered)),
    }
    if !events.iter().any(|event| matches!(event, ModelEvent::ToolCall { .. })) {
        events.push(ModelEvent::Text(OFFLINE_HINT.into()));
    }
    events.push(ModelEvent::Stop(ModelStop::Done));
    events
}

fn research(turn: &OfflineTurn<'_>, offered: &impl Fn(&str) -> bool) -> Vec<ModelEvent> {
    let words = keywords::of(&turn.prompt, MAX_WORDS);
    let named_paths = keywords::paths(&turn.prompt, MAX_READS);
    match turn.replies {
        0 if offered("search_files") && !(words.is_empty() && named_paths.is_empty()) => {
            let path_reads = named_paths.iter().enumerate().map(|(number, named)| look_at(number, named));
            let words = words.iter().enumerate().flat_map(|(number, word)| searches(number, word));
            path_reads.chain(words).collect()
        }
        0 => vec![ModelEvent::Text(nothing_to_do(&words))],
        1 if offered("read_file") && !turn.findings(&words).is_empty() => {
            let findings = turn.findings(&words);
            findings.places().take(MAX_READS).enumerate().map(|(number, place)| read(number, place)).collect()
        }
        _ => vec![ModelEvent::Text(plan::write(&plan::Material {
            prompt: &turn.prompt,
            words: &words,
            findings: &turn.findings(&words),
            excerpts: &turn.excerpts(),
            unfinished: &turn.unfinished(&words),
        }))],
    }
}

fn searches(number: usize, word: &PromptWord) -> [ModelEvent; 2] {
    let definitions = (format!("defined_{number}"), word.definition_pattern(), 10 * PER_FILE);
    let mentions = (format!("mentioned_{number}"), word.pattern(), PER_FILE);
    [definitions, mentions].map(|(id, pattern, per_file)| {
        call(&id, "search_files", json!({ "pattern": pattern, "limit": 1000, "per_file": per_file }))
    })
}

fn look_at(number: usize, named: &keywords::NamedPath) -> ModelEvent {
    let first = named.line.map_or(1, |line| line.saturating_sub(CONTEXT_LINES / 2).max(1));
    let arguments = json!({ "path": named.path, "line": first, "limit": 2 * CONTEXT_LINES });
    call(&format!("named_{number}"), "read_file", arguments)
}

fn read(number: usize, place: &findings::FindingPlace) -> ModelEvent {
    let first = place.line.saturating_sub(CONTEXT_LINES / 2).max(1);
    let arguments = json!({ "path": place.path, "line": first, "limit": CONTEXT_LINES });
    call(&format!("read_{number}"), "read_file", arguments)
}

fn call(id: &str, name: &str, arguments: Value) -> ModelEvent {
    ModelEvent::ToolCall { id: id.into(), name: name.into(), arguments }
}

fn nothing_to_do(words: &[PromptWord]) -> String {
    if words.is_empty() {
        "Your prompt contains no word to search for. Name a function, a file or a topic.\n".into()
    } else {
        "I cannot search in this mode.\n".into()
    }
}

struct OfflineTurn<'a> {
    prompt: String,
    replies: usize,
    /// Results of the calls since the prompt.
    results: Vec<CallResult<'a>>,
}

struct CallResult<'a> {
    id: &'a str,
    arguments: &'a Value,
    text: &'a str,
    failed: bool,
}

impl<'a> OfflineTurn<'a> {
    fn of(messages: &'a [std::sync::Arc<Message>]) -> Self {
        let start = messages.iter().rposition(|message| {
            message.role == Role::User && message.blocks.iter().any(|block| matches!(block, Block::Text(_)))
        });
        let since = messages.get(start.unwrap_or(0)..).unwrap_or_default();
        let prompt = since.first().map(|message| text_of(message)).unwrap_or_default();
        let blocks = || since.iter().skip(1).flat_map(|message| &message.blocks);
        let arguments = |requested: &str| {
            blocks().find_map(|block| match block {
                Block::ToolCall { id, arguments, .. } if id == requested => Some(arguments),
                _ => None,
            })
        };
        let results = blocks().filter_map(|block| match block {
            Block::ToolResult { id, text, is_error, .. } => {
                Some(CallResult { id, arguments: arguments(id)?, text, failed: *is_error })
            }
            _ => None,
        });
        let replies = since.iter().filter(|message| message.role == Role::Assistant).count();
        Self { prompt, replies, results: results.collect() }
    }

    fn has_started(&self) -> bool {
        ["look", "change"].iter().any(|call| self.outcome(call).is_some())
    }

    fn outcome(&self, call: &str) -> Option<&CallResult<'a>> {
        self.results.iter().find(|result| kind_and_number(result.id).0 == call)
    }

    fn findings(&self, words: &[PromptWord]) -> findings::Findings {
        findings::Findings::of(words, self.successes().map(|result| (result.id, result.text)))
    }

    fn successes(&self) -> impl Iterator<Item = &CallResult<'a>> {
        self.results.iter().filter(|result| !result.failed)
    }

    /// Words whose search failed or was cut, so that the findings are incomplete.
    fn unfinished(&self, words: &[PromptWord]) -> Vec<String> {
        let cut = self.successes().filter(|result| is_cut(result.text));
        let failed = self.results.iter().filter(|result| result.failed);
        let mut names: Vec<String> = Vec::new();
        for result in failed.chain(cut) {
            let (kind, number) = kind_and_number(result.id);
            let is_search = matches!(kind, "defined" | "mentioned");
            let name = number
                .filter(|_| is_search)
                .and_then(|number| words.get(number))
                .map(|word| format!("`{}`", word.text));
            names.extend(name.filter(|name| !names.contains(name)));
        }
        names
    }

    fn excerpts(&self) -> Vec<plan::PlanExcerpt<'a>> {
        let excerpts = self.successes().filter_map(|&CallResult { id, arguments, text, .. }| {
            let (path, first) = (arguments["path"].as_str()?, arguments["line"].as_u64()?);
            matches!(kind_and_number(id).0, "read" | "named").then_some(plan::PlanExcerpt {
                path,
                first,
                text,
            })
        });
        excerpts.collect()
    }
}

/// The parts of an id such as `defined_0`. The conversation appends a number to an id that an earlier turn used:
/// `defined_0_2`, `look_2`.
fn kind_and_number(id: &str) -> (&str, Option<usize>) {
    let mut parts = id.split('_');
    let kind = parts.next().unwrap_or_default();
    (kind, parts.next().and_then(|number| number.parse().ok()))
}

/// True if a search ended with "[200 of 99,800 matching lines in 12 files are shown.]".
fn is_cut(text: &str) -> bool {
    text.lines().any(|line| line.starts_with('[') && line.contains(" matching lines in "))
}

/// A line that `read_file` returned, without its number. `None` for a note.
fn unnumbered(line: &str) -> Option<&str> {
    let (number, line) = line.split_once('\t')?;
    number.trim().parse::<u64>().is_ok().then_some(line)
}

fn text_of(message: &Message) -> String {
    let texts = message.blocks.iter().filter_map(|block| match block {
        Block::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
