//! Context overflow. Whatever fills the context, before or after a load, the session continues. Results are
//! shortened before the user's messages, and the newest message is never cut.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures_util::{StreamExt, stream};
use modegate::conversation::history::History;
use modegate::event::{SessionEvent, ToolCallEvent, ToolCallUpdateEvent};
use modegate::model::catalog::{Described, ModelCatalog, Reachable, provider};
use modegate::model::excess::Excess;
use modegate::model::known::facts_of;
use modegate::model::wire::Ask;
use modegate::model::{
    Block, Failure, Model, ModelError, ModelEvent, ModelId, ModelRequest, ModelStop, Reply, Role,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::models::invariants;
use crate::models::providers::wires;
use crate::sessions::load::{StoreFixture, call, open, text};
use crate::support::{Setup, TestClient};

const CONTEXT: u64 = 16_000;

/// The longest body that the model accepts, in bytes.
const LIMIT: usize = 60_000;

/// The model's reply to a request for a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SummaryReply {
    Text,
    Empty,
    Call,
    Thought,
    CutOff,
}

/// A model that accepts at most [`LIMIT`] bytes, and keeps the accepted requests.
struct LimitedModel {
    names_limit: bool,
    summary: SummaryReply,
    replies: Mutex<VecDeque<Vec<ModelEvent>>>,
    requests: Mutex<Vec<ModelRequest>>,
    refused: Mutex<usize>,
}

impl LimitedModel {
    fn new(names_limit: bool, summary: SummaryReply) -> Arc<Self> {
        let (replies, requests, refused) = Default::default();
        Arc::new(Self { names_limit, summary, replies, requests, refused })
    }

    fn say(&self, reply: &[ModelEvent]) {
        self.replies.lock().unwrap().push_back(reply.to_vec());
    }

    fn last(&self) -> ModelRequest {
        self.requests.lock().unwrap().last().unwrap().clone()
    }
}

fn body(
    request: &ModelRequest,
    (id, name, wire): &(&str, &str, Box<dyn modegate::model::wire::Wire>),
) -> Vec<u8> {
    let request = ModelRequest { model: ModelId::new(format!("{id}/{name}")), ..request.clone() };
    let facts = facts_of(name);
    wire.body(&Ask {
        request: &request,
        name,
        facts: &facts,
        is_official: false,
        without: &[],
        left_out_images: &[],
    })
}

fn is_summary(request: &ModelRequest) -> bool {
    let mut blocks = request.messages.last().into_iter().flat_map(|message| &message.blocks);
    blocks.any(|block| matches!(block, Block::Text(text) if text.contains("will be cut here")))
}

impl Model for LimitedModel {
    fn reply(&self, request: ModelRequest) -> Reply {
        let wires = wires();
        for wire in &wires {
            invariants::check(wire.0, &serde_json::from_slice::<Value>(&body(&request, wire)).unwrap());
        }
        let size = body(&request, wires.iter().find(|(id, ..)| *id == "openai").unwrap()).len();
        if size > LIMIT {
            *self.refused.lock().unwrap() += 1;
            let tokens = |bytes: usize| Some(bytes as u64 * CONTEXT / LIMIT as u64);
            let excess = Excess { limit: tokens(LIMIT), requested: tokens(size) };
            let excess = if self.names_limit { excess } else { Excess::default() };
            let error = ModelError { failure: Failure::ContextTooLong(excess), text: "too long".into() };
            return stream::once(async { Err(error) }).boxed();
        }
        let reply = if is_summary(&request) {
            match self.summary {
                SummaryReply::Text => vec![text("So far: files were read.")],
                SummaryReply::Empty => Vec::new(),
                SummaryReply::Call => vec![call("s", "read_file", json!({ "path": "a.txt" }))],
                SummaryReply::Thought => vec![ModelEvent::Thought("What was it?".into())],
                SummaryReply::CutOff => vec![text("So far: files"), ModelEvent::Stop(ModelStop::MaxTokens)],
            }
        } else {
            self.replies.lock().unwrap().pop_front().unwrap_or_else(|| vec![text("Fine.")])
        };
        self.requests.lock().unwrap().push(request);
        stream::iter(reply.into_iter().chain([ModelEvent::Stop(ModelStop::Done)]).map(Ok)).boxed()
    }
}

fn setup(model: &Arc<LimitedModel>) -> Setup {
    let described = vec![Described { name: "m".into(), context: Some(CONTEXT), images: None }];
    let reachable = Reachable { provider: provider("openai").unwrap(), has_key: true, described };
    let models = Arc::new(ModelCatalog::new(vec![reachable]));
    Setup { mode: "code", model: Some(Arc::clone(model) as Arc<dyn Model>), models, ..Setup::default() }
}

/// Returns the stop reason or the error of a prompt.
async fn outcome(client: &mut TestClient, session: &str, prompt: &str) -> String {
    let id = client.prompt(session, prompt).await;
    let answer = client.until_answer(id).await.pop().unwrap();
    answer["result"]["stopReason"]
        .as_str()
        .unwrap_or_else(|| answer["error"]["message"].as_str().unwrap())
        .to_owned()
}

/// Returns true if a request has the complete text of a prompt.
fn has_prompt(request: &ModelRequest, prompt: &str) -> bool {
    let blocks = request.messages.iter().flat_map(|message| &message.blocks);
    blocks.into_iter().any(|block| matches!(block, Block::Text(text) if text.contains(prompt)))
}

fn reads(paths: &[&str]) -> Vec<ModelEvent> {
    let read = |(at, path): (usize, &&str)| call(&format!("c{at}"), "read_file", json!({ "path": path }));
    paths.iter().enumerate().map(read).collect()
}

/// A prompt, and each reply of the model in its turn.
type PromptAndReplies = (String, Vec<Vec<ModelEvent>>);

/// Prompts with the replies to them. Together they are too long.
fn overflows() -> Vec<(&'static str, Vec<PromptAndReplies>)> {
    let long = |word: &str, bytes: usize| format!("{word} ").repeat(bytes / (word.len() + 1));
    let prompt = |text: &str| text.to_owned();
    let write = |at: usize| {
        let arguments = json!({ "path": format!("new{at}.txt"), "content": long("content", 30_000) });
        vec![call(&format!("w{at}"), "write_file", arguments)]
    };
    vec![
        ("one result", vec![(prompt("read"), vec![reads(&["big.txt"])])]),
        (
            "several results of one reply",
            vec![(prompt("read"), vec![reads(&["big.txt", "small.txt", "big2.txt", "big3.txt"])])],
        ),
        (
            "results of several replies",
            vec![(prompt("read"), (0..4).map(|_| reads(&["big2.txt", "big3.txt"])).collect())],
        ),
        ("a pasted prompt", vec![(long("paste", 80_000), Vec::new())]),
        (
            "many prompts",
            (0..8).map(|at| (long(&format!("p{at}"), 9_000), vec![vec![text("Yes.")]])).collect(),
        ),
        ("long arguments", vec![(prompt("write"), (0..4).map(write).collect())]),
        (
            "long answers and thoughts",
            (0..4)
                .map(|at| {
                    let thought = ModelEvent::Thought(long("thought", 12_000));
                    (format!("q{at}"), vec![vec![thought, text(&long("answer", 12_000))]])
                })
                .collect(),
        ),
    ]
}

fn write_files(client: &TestClient) {
    let line = "a line of text with words\n";
    for (name, lines) in [("big.txt", 2_500), ("big2.txt", 900), ("big3.txt", 1_200), ("small.txt", 1)] {
        std::fs::write(client.cwd().join(name), line.repeat(lines)).unwrap();
    }
}

#[tokio::test]
async fn session_continues_whatever_fills_the_context() {
    for (what, prompts) in overflows() {
        for (names_limit, is_loaded) in [(true, false), (false, false), (true, true), (false, true)] {
            let at = format!("{what}, {names_limit}, {is_loaded}");
            let model = LimitedModel::new(names_limit, SummaryReply::Text);
            let fixture = StoreFixture::new();
            let mut client = fixture.agent(setup(&model));
            write_files(&client);
            let session = client.session().await;
            assert_eq!(outcome(&mut client, &session, "hello").await, "end_turn", "{at}");
            for (prompt, replies) in &prompts {
                for reply in replies {
                    model.say(reply);
                }
                let end = outcome(&mut client, &session, prompt).await;
                let is_too_long = prompt.len() > LIMIT;
                assert_eq!(end == "end_turn", !is_too_long, "{at}: {end}");
                if is_too_long {
                    assert!(end.contains("79,998 bytes") && end.contains("16,000 tokens"), "{at}: {end}");
                } else {
                    assert!(has_prompt(&model.last(), prompt.trim()), "{at}");
                }
            }
            if is_loaded {
                client.end().await;
                client = fixture.agent(setup(&model));
                open(&mut client, "session/load", &session).await;
            }
            for prompt in ["go on", "and on"] {
                assert_eq!(outcome(&mut client, &session, prompt).await, "end_turn", "{at}");
                assert!(has_prompt(&model.last(), prompt), "{at}");
                assert!(!has_prompt(&model.last(), "paste paste paste"), "{at}: not kept");
            }
            client.end().await;
        }
    }
}

#[tokio::test]
async fn results_are_shortened_to_a_head_and_a_tail_before_prompts() {
    let model = LimitedModel::new(true, SummaryReply::Text);
    let mut client = TestClient::with(setup(&model));
    write_files(&client);
    let session = client.session().await;
    model.say(&reads(&["small.txt", "big.txt"]));
    let prompt = format!("read both. {}", "My own words. ".repeat(600));
    assert_eq!(outcome(&mut client, &session, &prompt).await, "end_turn");
    let request = model.last();
    assert!(has_prompt(&request, prompt.trim()));
    let results: Vec<&str> = request
        .messages
        .iter()
        .flat_map(|message| &message.blocks)
        .filter_map(|block| match block {
            Block::ToolResult { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let [small, big] = results[..] else { panic!("{results:?}") };
    assert!(!small.contains("left out"), "{small}");
    assert!(big.contains("1\ta line of text") && big.contains("call read_file again"), "{big}");
    assert!(big.len() > 10_000, "as much as fits: {}", big.len());
    client.end().await;
}

#[tokio::test]
async fn compact_helps_whatever_the_summary_is() {
    for summary in [
        SummaryReply::Text,
        SummaryReply::Empty,
        SummaryReply::Call,
        SummaryReply::Thought,
        SummaryReply::CutOff,
    ] {
        let model = LimitedModel::new(true, summary);
        let mut client = TestClient::with(setup(&model));
        write_files(&client);
        let session = client.session().await;
        for at in 0..4 {
            model.say(&reads(&["small.txt"]));
            model.say(&[text(&format!("Answer {at}. {}", "word ".repeat(900)))]);
            assert_eq!(outcome(&mut client, &session, &format!("question {at}")).await, "end_turn");
        }
        let size = |request: &ModelRequest| {
            request.messages.iter().flat_map(|message| &message.blocks).map(Block::bytes).sum::<usize>()
        };
        let before = size(&model.last());
        assert_eq!(outcome(&mut client, &session, "/compact").await, "end_turn", "{summary:?}");
        assert_eq!(outcome(&mut client, &session, "go on").await, "end_turn", "{summary:?}");
        let request = model.last();
        assert!(size(&request) < before / 2, "{summary:?}: {} of {before}", size(&request));
        assert!(has_prompt(&request, "question 0"), "{summary:?}: words of the user stay");
        let listed = !matches!(summary, SummaryReply::Text | SummaryReply::CutOff);
        assert_eq!(has_prompt(&request, "read_file {\"path\":\"small.txt\"}"), listed, "{summary:?}");
        client.end().await;
    }
}

#[tokio::test]
async fn request_for_a_summary_has_the_reminder_of_the_mode() {
    for (mode, expected) in [("plan", 1), ("code", 0)] {
        let model = LimitedModel::new(true, SummaryReply::Text);
        let mut client = TestClient::with(Setup { mode, ..setup(&model) });
        let session = client.session().await;
        for at in 0..4 {
            model.say(&[text(&"word ".repeat(900))]);
            assert_eq!(outcome(&mut client, &session, &format!("question {at}")).await, "end_turn");
        }
        assert_eq!(outcome(&mut client, &session, "/compact").await, "end_turn");
        let summary = model.requests.lock().unwrap().iter().find(|request| is_summary(request)).cloned();
        let summary = summary.expect("a request for a summary");
        let is_reminder = |block: &&Block| matches!(block, Block::Reminder(_));
        let reminders = summary.messages.iter().flat_map(|message| &message.blocks).filter(is_reminder);
        assert_eq!((reminders.count(), summary.tools.is_empty()), (expected, false), "{mode}");
        client.end().await;
    }
}

#[tokio::test]
async fn overlong_prompt_is_rejected_before_it_is_recorded() {
    let model = LimitedModel::new(true, SummaryReply::Text);
    let mut client = TestClient::with(setup(&model));
    let session = client.session().await;
    let error = outcome(&mut client, &session, &"paste ".repeat(20_000)).await;
    assert!(error.contains("120,000 bytes") && error.contains("16,000 tokens"), "{error}");
    assert!(model.requests.lock().unwrap().is_empty() && *model.refused.lock().unwrap() == 0);
    // The control: a prompt of half the length is accepted.
    assert_eq!(outcome(&mut client, &session, &"paste ".repeat(5_000)).await, "end_turn");
    client.end().await;
}

/// A step of a generated turn: the lengths of a thought, of an answer, and of arguments and results of calls.
type StepLengths = (usize, usize, Vec<(usize, usize)>);

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 0..300_usize, 2 => 300..5_000_usize, 1 => 5_000..60_000_usize]
}

fn turns() -> impl Strategy<Value = Vec<(usize, bool, Vec<StepLengths>)>> {
    let calls = proptest::collection::vec((lengths(), lengths()), 0..4);
    let step = (lengths(), lengths(), calls);
    proptest::collection::vec((1..8_000_usize, any::<bool>(), proptest::collection::vec(step, 0..5)), 1..6)
}

fn filled(length: usize) -> String {
    "é word\n".chars().cycle().take(length).collect()
}

/// Returns the events of generated turns, and the newest prompt.
fn events(turns: &[(usize, bool, Vec<StepLengths>)]) -> (Vec<SessionEvent>, String) {
    let (mut events, mut newest, mut calls) = (Vec::new(), String::new(), 0);
    for (number, (prompt, has_image, steps)) in turns.iter().enumerate() {
        newest = format!("prompt {number} {}", filled(*prompt));
        let mut content: Vec<modegate::acp::ContentBlock> = vec![newest.as_str().into()];
        if *has_image {
            content.push(modegate::acp::ContentBlock::Image(modegate::acp::ImageContent::new(
                "iVBORw0=",
                "image/png",
            )));
        }
        let id = |kind: &str| modegate::acp::MessageId::new(format!("{kind}{number}"));
        events.push(SessionEvent::UserMessage { message_id: id("u"), content, typed: None, key: None });
        for (thought, answer, called) in steps {
            events.push(SessionEvent::AgentThought { message_id: id("t"), text: filled(*thought) });
            events.push(SessionEvent::AgentText {
                message_id: id("a"),
                text: format!("So. {}", filled(*answer)),
                shown: None,
            });
            let first = calls;
            for (arguments, _) in called {
                events.push(SessionEvent::ToolCall(Box::new(ToolCallEvent {
                    id: modegate::acp::ToolCallId::new(format!("c{calls}")),
                    model_id: format!("m{calls}"),
                    name: "write_file".into(),
                    title: "Write".into(),
                    kind: modegate::acp::ToolKind::Edit,
                    arguments: json!({ "path": "a", "content": filled(*arguments), "parts": vec![1; arguments / 50] }),
                    locations: Vec::new(),
                    is_announced: false,
                    note: None,
                    check: None,
                })));
                calls += 1;
            }
            for (at, (_, result)) in called.iter().enumerate() {
                let id = modegate::acp::ToolCallId::new(format!("c{}", first + at));
                events.push(ToolCallUpdateEvent::failed(id, filled(*result)).into());
            }
        }
    }
    (events, newest)
}

#[test]
fn shortened_history_fits_stays_valid_and_keeps_the_newest_prompt() {
    let wires = wires();
    proptest!(ProptestConfig { cases: 48, ..ProptestConfig::default() }, |(turns in turns(), budget in 4_000..200_000_usize)| {
        let (events, newest) = events(&turns);
        let mut history = History::default();
        for event in &events {
            history.apply(event);
        }
        let before = history.messages();
        let shortened = history.shorten(budget);
        let messages = history.messages();
        prop_assert_eq!(messages.len(), before.len());
        prop_assert_eq!(
            history.bytes(),
            messages.iter().flat_map(|message| &message.blocks).map(Block::bytes).sum::<usize>()
        );
        if history.bytes() > budget {
            // Only the newest prompt and old messages of the user may still be long.
            for block in messages.iter().flat_map(|message| &message.blocks) {
                let is_prompt = matches!(block, Block::Text(text) if *text == newest);
                prop_assert!(is_prompt || matches!(block, Block::Image(_) | Block::Thought(_)) || block.bytes() < 2_600, "{:?}", block);
            }
        } else if shortened.saved == 0 {
            prop_assert_eq!(&messages, &before, "what fits stays as it is");
        }
        let has_newest = messages.iter().flat_map(|message| &message.blocks).any(|block| matches!(block, Block::Text(text) if *text == newest));
        prop_assert!(has_newest);
        let shorter_prompts = |(old, new): (&Arc<modegate::model::Message>, &Arc<modegate::model::Message>)| {
            let texts = |message: &modegate::model::Message| message.blocks.iter().filter(|block| matches!(block, Block::Text(_)) && message.role == Role::User).cloned().collect::<Vec<_>>();
            usize::from(texts(old) != texts(new))
        };
        prop_assert_eq!(before.iter().zip(&messages).map(shorter_prompts).sum::<usize>(), shortened.prompts, "no prompt is cut silently");
        let mut messages = messages;
        if messages.last().unwrap().role == Role::Assistant {
            history.apply(&SessionEvent::UserMessage { message_id: modegate::acp::MessageId::new("x"), content: vec!["go on".into()], typed: None, key: None });
            messages = history.messages();
        }
        let request = ModelRequest {
            session: modegate::acp::SessionId::new("s"),
            ordinal: 0,
            model: ModelId::new("p/m"),
            effort: modegate::model::Effort::Default,
            system: "system".into(),
            tools: Arc::default(),
            lasting_tools: 0,
            allowed: None,
            messages,
            trace: None,
            encoded: Arc::default(),
        };
        for wire in &wires {
            invariants::check(wire.0, &serde_json::from_slice::<Value>(&body(&request, wire)).unwrap());
        }
    });
}
