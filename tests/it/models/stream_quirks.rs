//! Streams of compatible servers. Generated variants of one reply, which differ in everything that servers do
//! differently, decode to the same events. `QUIRKS=5000 SEED=7` makes a longer run.

use std::fs;
use std::path::Path;

use modegate::model::ModelEvent;
use modegate::model::ModelStop;
use modegate::model::wire::chat::Chat;
use serde_json::{Value, json};

use crate::models::http_server::Reply;
use crate::models::providers::{decode, folder, streams, wires};
use crate::models::remote::{asking, shown};
use crate::models::{invariants, provider_streams};
use crate::support::Setup;

/// A random generator. The same seed gives the same numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % limit
    }

    fn is(&mut self) -> bool {
        self.below(2) == 0
    }

    fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// Divides a text at random places.
    fn split(&mut self, text: &str) -> Vec<String> {
        let mut pieces = vec![String::new()];
        for c in text.chars() {
            if self.below(6) == 0 {
                pieces.push(String::new());
            }
            pieces.last_mut().unwrap().push(c);
        }
        pieces
    }
}

/// The events of a stream, independent of the server's style.
#[derive(Debug, Clone, PartialEq)]
struct Meaning {
    thoughts: String,
    text: String,
    calls: Vec<(String, Value)>,
    used: u64,
    stop: Option<ModelStop>,
}

fn meaning_of(events: &[ModelEvent]) -> Meaning {
    let mut meaning =
        Meaning { thoughts: String::new(), text: String::new(), calls: Vec::new(), used: 0, stop: None };
    let mut started = Vec::new();
    for event in events {
        match event {
            ModelEvent::Text(text) => meaning.text.push_str(text),
            ModelEvent::Thought(text) => meaning.thoughts.push_str(text),
            ModelEvent::ToolCallStarted { id, name } => started.push((id.clone(), name.clone())),
            ModelEvent::ToolCall { id, name, arguments } => {
                let at = started.iter().position(|call| *call == (id.clone(), name.clone()));
                started.remove(at.unwrap_or_else(|| panic!("{id} was not announced: {events:#?}")));
                meaning.calls.push((name.clone(), arguments.clone()));
            }
            ModelEvent::Usage(usage) => meaning.used = usage.used,
            ModelEvent::Stop(stop) => meaning.stop = Some(*stop),
            ModelEvent::ProviderState(_) | ModelEvent::Waiting { .. } => {}
        }
    }
    assert!(started.is_empty(), "calls without an end: {events:#?}");
    meaning
}

fn random_meaning(random: &mut Random) -> Meaning {
    let texts = ["", "Hello.", "Grüße,\n世界 <b>", "{\"a\": 1}\n```\nx\n```", "<tool_call> and </think>"];
    let thoughts = ["", "First this.", "Dann: 世界?"];
    let values = ["a.txt", "{\"b\": [1, 2]}", "\"quoted\" \\ {", "zwei\nZeilen 世"];
    let calls = (0..random.below(4)).map(|_| {
        let name = random.pick(&["read_file", "search_files", "todo"]);
        let arguments = match random.below(4) {
            0 => json!({}),
            1 => json!({ "path": random.pick(&values), "limit": 3, "deep": { "list": [null, true] } }),
            _ => json!({ "path": random.pick(&values) }),
        };
        (name.to_owned(), arguments)
    });
    Meaning {
        calls: calls.collect(),
        text: random.pick(&texts).to_owned(),
        thoughts: random.pick(&thoughts).to_owned(),
        used: 10 + random.below(1_000) as u64,
        stop: Some(ModelStop::Done),
    }
}

/// The way in which a server assigns a piece to a call.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Numbering {
    Documented,
    AsText,
    AsFraction,
    Missing,
    /// Every call begins at 0, and continues with the next number.
    Drifts,
    /// Every call has the number 0.
    AlwaysZero,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Ids {
    First,
    Every,
    Changing,
    Late,
    Missing,
    /// All calls have the same id.
    Same,
    Numbers,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Naming {
    First,
    Every,
    InPieces,
    Last,
}

#[derive(Debug, Clone, Copy)]
struct StreamStyle {
    numbering: Numbering,
    ids: Ids,
    naming: Naming,
}

/// Returns a style that keeps the pieces of different calls distinguishable.
fn random_style(random: &mut Random, calls: &[(String, Value)]) -> StreamStyle {
    loop {
        let numbering = random.pick(&[
            Numbering::Documented,
            Numbering::AsText,
            Numbering::AsFraction,
            Numbering::Missing,
            Numbering::Drifts,
            Numbering::AlwaysZero,
        ]);
        let ids = random.pick(&[
            Ids::First,
            Ids::Every,
            Ids::Changing,
            Ids::Late,
            Ids::Missing,
            Ids::Same,
            Ids::Numbers,
        ]);
        let naming = random.pick(&[Naming::First, Naming::Every, Naming::InPieces, Naming::Last]);
        let has_numbers =
            matches!(numbering, Numbering::Documented | Numbering::AsText | Numbering::AsFraction);
        let has_ids = matches!(ids, Ids::First | Ids::Every | Ids::Numbers);
        let is_readable = match naming {
            Naming::First => has_numbers || has_ids,
            Naming::Every => {
                // A new id with a name begins a call.
                ids != Ids::Changing && (has_numbers || (ids == Ids::Every && numbering != Numbering::Drifts))
            }
            Naming::InPieces => has_numbers && ids != Ids::Changing,
            Naming::Last => {
                (has_numbers && !matches!(ids, Ids::Same | Ids::Changing))
                    || (ids == Ids::Every && numbering == Numbering::Missing)
            }
        };
        // Without numbers, a call without arguments cannot be distinguished from the start of the next.
        let is_clear = has_numbers || calls.iter().all(|(_, arguments)| *arguments != json!({}));
        if is_readable && is_clear {
            return StreamStyle { numbering, ids, naming };
        }
    }
}

fn pieces_of_call(
    at: usize,
    name: &str,
    arguments: &Value,
    style: StreamStyle,
    random: &mut Random,
) -> Vec<Value> {
    let json = arguments.to_string();
    let mut arguments: Vec<String> = match random.below(3) {
        0 => vec![String::new(), json],
        1 => vec![json],
        _ => random.split(&json),
    };
    let names: Vec<String> = match style.naming {
        Naming::First => vec![name.to_owned()],
        Naming::Every => vec![name.to_owned(); arguments.len()],
        Naming::InPieces => {
            let (start, end) = name.split_at(3);
            arguments.splice(0..0, [String::new(), String::new()]);
            vec![start.to_owned(), end.to_owned()]
        }
        Naming::Last => {
            arguments.retain(|piece| !piece.is_empty());
            arguments.push(String::new());
            let mut names = vec![String::new(); arguments.len() - 1];
            names.push(name.to_owned());
            names
        }
    };
    let count = arguments.len();
    let pieces = arguments.into_iter().enumerate().map(|(number, json)| {
        let mut piece = json!({ "type": "function", "function": { "arguments": json } });
        match names.get(number) {
            Some(name) if !name.is_empty() => piece["function"]["name"] = name.as_str().into(),
            _ if random.below(3) == 0 => piece["function"]["name"] = random.pick(&[json!(""), Value::Null]),
            _ => {}
        }
        let id = match style.ids {
            Ids::First if number == 0 => json!(format!("call_{at}")),
            Ids::Every => json!(format!("call_{at}")),
            Ids::Changing => json!(format!("call_{at}_{number}")),
            Ids::Late if number + 1 == count => json!(format!("call_{at}")),
            Ids::Same if number == 0 => json!("call_0"),
            Ids::Numbers if number == 0 => json!(at + 1),
            _ => random.pick(&[&json!(""), &Value::Null]).clone(),
        };
        if !id.is_null() || random.is() {
            piece["id"] = id;
        }
        let index = match style.numbering {
            Numbering::Documented => json!(at),
            Numbering::AsText => json!(at.to_string()),
            #[allow(clippy::cast_precision_loss, reason = "a few calls")]
            Numbering::AsFraction => json!(at as f64),
            Numbering::Missing => Value::Null,
            Numbering::Drifts => json!(if number == 0 { 0 } else { at + 1 }),
            Numbering::AlwaysZero => json!(0),
        };
        if !index.is_null() || random.is() {
            piece["index"] = index;
        }
        piece
    });
    pieces.collect()
}

/// Returns a stream with these events, and its style.
fn random_stream(meaning: &Meaning, random: &mut Random) -> (Vec<u8>, StreamStyle) {
    let style = random_style(random, &meaning.calls);
    let mut deltas = Vec::new();
    let thought_form = random.below(4);
    let mut text = meaning.text.clone();
    if !meaning.thoughts.is_empty() && thought_form == 3 {
        text = format!("\n<think>\n{}</think>\n\n{text}", meaning.thoughts);
    } else if !meaning.thoughts.is_empty() {
        for piece in random.split(&meaning.thoughts) {
            deltas.push(match thought_form {
                0 => json!({ "reasoning_content": piece }),
                1 => json!({ "reasoning": piece, "content": "" }),
                _ => {
                    json!({ "reasoning_details": [{ "type": "reasoning.text", "text": piece, "index": 0 }] })
                }
            });
        }
    }
    for piece in random.split(&text) {
        deltas.push(match random.below(8) {
            0 => json!({ "content": [{ "type": "text", "text": piece }] }),
            _ => json!({ "content": piece }),
        });
    }
    for (at, (name, arguments)) in meaning.calls.iter().enumerate() {
        let pieces = pieces_of_call(at, name, arguments, style, random);
        deltas.extend(pieces.into_iter().map(|piece| json!({ "tool_calls": [piece] })));
    }
    (write_stream(deltas, meaning, random), style)
}

fn write_stream(deltas: Vec<Value>, meaning: &Meaning, random: &mut Random) -> Vec<u8> {
    let usage = match random.below(3) {
        0 => json!({ "prompt_tokens": meaning.used - 4, "completion_tokens": 4 }),
        1 => json!({ "prompt_tokens": (meaning.used - 4).to_string(), "completion_tokens": 4.0 }),
        _ => json!({ "input_tokens": meaning.used - 4, "output_tokens": 4, "prompt_tokens_details": null }),
    };
    let mut frames: Vec<Value> = deltas
        .into_iter()
        .map(|mut delta| {
            for member in ["content", "tool_calls", "refusal", "reasoning_details", "role"] {
                if delta.get(member).is_none() && random.below(6) == 0 {
                    delta[member] = Value::Null;
                }
            }
            json!({ "id": "x", "choices": [{ "index": 0, "delta": delta, "finish_reason": random.pick(&[&json!(""), &Value::Null]) }] })
        })
        .collect();
    let reason = if meaning.calls.is_empty() || random.is() { "stop" } else { "tool_calls" };
    frames.push(json!({ "choices": [{ "delta": random.pick(&[&json!({}), &Value::Null]), "finish_reason": reason }] }));
    match random.below(4) {
        0 => frames.push(json!({ "choices": [], "usage": usage })),
        1 => frames.insert(0, json!({ "choices": null, "usage": usage })),
        2 => frames.last_mut().unwrap()["usage"] = usage,
        _ => frames.last_mut().unwrap()["choices"][0]["usage"] = usage,
    }
    let mut stream = String::from(random.pick(&["", "\u{feff}", ": processing\n\n"]));
    let end = random.pick(&["\n", "\r\n"]);
    for frame in &frames {
        stream.push_str(&format!("data:{}{frame}{end}", random.pick(&["", " "])));
        // Without an empty line, the next frame belongs to the same event.
        if random.below(6) != 0 {
            stream.push_str(end);
        }
        if random.below(4) == 0 {
            let noise = random.pick(&[
                "data: null",
                "data: {}",
                "data: true",
                "data: {\"choices\": null}",
                "data: {\"choices\": [null], \"error\": null}",
                "data: {\"choices\": [], \"usage\": {}}",
                "data: {\"choices\": oops",
                "data: {\"error\": {}, \"choices\": [{\"delta\": {\"tool_calls\": []}}]}",
                ": keep-alive",
                "event: ping\nid: 3\nretry: 10",
            ]);
            stream.push_str(&format!("{end}{}{end}{end}", noise.replace('\n', end)));
        }
    }
    stream.push_str(end);
    match random.below(3) {
        0 => {}
        1 => stream.push_str("data: [DONE]"),
        _ => stream.push_str(&format!("data: [DONE]{end}{end}data: {{\"choices\": []}}{end}{end}")),
    }
    stream.into_bytes()
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn generated_variants_of_a_stream_mean_the_same() {
    let mut random = Random(number("SEED", 1) * 0x9e37_79b9_7f4a_7c15);
    for round in 0..number("QUIRKS", 1_500) {
        let meaning = random_meaning(&mut random);
        let (stream, style) = random_stream(&meaning, &mut random);
        let shown = String::from_utf8_lossy(&stream).into_owned();
        for cut in [0, random.below(stream.len()), random.below(stream.len())] {
            let (start, end) = stream.split_at(cut);
            let (events, problem) = decode(&Chat, &[start, end]);
            assert_eq!(problem, None, "round {round}, {style:?}, cut at {cut}:\n{shown}");
            assert_eq!(meaning_of(&events), meaning, "round {round}, {style:?}, cut at {cut}:\n{shown}");
        }
    }
}

/// The frames come between the frames of every provider.
#[test]
fn frames_without_a_meaning_change_nothing() {
    let call = [("c1", "read_file", json!({ "path": "a.txt" })), ("c2", "todo", json!({}))];
    for (id, _, wire) in wires() {
        let whole = String::from_utf8(provider_streams::reply(id, "I look.", &call)).unwrap();
        let (expected, problem) = decode(&*wire, &[whole.as_bytes()]);
        assert_eq!(problem, None, "{id}");
        let (end, prefix) = if id == "ollama" { ("\n", "") } else { ("\n\n", "data: ") };
        for noise in
            ["null", "{}", "true", "[]", "{\"type\": \"unknown\"}", "{oops", "{\"error\": null}", "\u{1}"]
        {
            let frames = whole.split_inclusive(end);
            let noisy: String = frames.map(|frame| format!("{prefix}{noise}{end}{frame}")).collect();
            let (events, problem) = decode(&*wire, &[noisy.as_bytes()]);
            assert_eq!(problem, None, "{id}, {noise}");
            assert_eq!(events, expected, "{id}, {noise}");
        }
    }
}

/// Half a call must not run, so an unreadable part of a call ends the reply.
#[test]
fn unreadable_part_of_a_call_ends_the_reply() {
    let call = [("c1", "write_file", json!({ "path": "a.txt", "content": "x" }))];
    for (id, _, wire) in wires() {
        let whole = String::from_utf8(provider_streams::reply(id, "", &call)).unwrap();
        let end = if id == "ollama" { "\n" } else { "\n\n" };
        let frames: Vec<&str> = whole.split_inclusive(end).collect();
        let at = frames.iter().rposition(|frame| frame.contains("a.txt")).unwrap();
        let frame = frames[at];
        let broken = format!("{}{end}", &frame[..frame.find("a.txt").unwrap()]);
        let stream = [&frames[..at], &[broken.as_str()], &frames[at + 1..]].concat().concat();
        let (events, problem) = decode(&*wire, &[stream.as_bytes()]);
        assert!(problem.is_some(), "{id}: {events:?}");
        let is_call = |event: &ModelEvent| matches!(event, ModelEvent::ToolCall { .. });
        assert!(!events.iter().any(is_call), "{id}: {events:?}");
    }
}

/// Strict servers accept the history, also if replies repeat their ids.
#[tokio::test]
async fn next_request_is_valid_after_every_quirk() {
    for path in streams("openai").into_iter().filter(|path| is_quirk(path)) {
        let stream = fs::read(&path).unwrap();
        let name = path.display();
        let (events, problem) = decode(&Chat, &[&stream]);
        let has_calls = events.iter().any(|event| matches!(event, ModelEvent::ToolCall { .. }));
        if problem.is_some() || !has_calls {
            continue;
        }
        let fine = || provider_streams::text("openai", "Fine.");
        let replies = [stream.clone(), stream.clone(), fine(), fine()].map(Reply::stream);
        let (mut agent, server) = asking("openai", Setup::default(), replies).await;
        for file in ["a.txt", "b.txt"] {
            fs::write(agent.cwd().join(file), "one\n").unwrap();
        }
        let session = agent.session().await;
        for prompt in ["look", "and now?"] {
            let prompt = agent.prompt(&session, prompt).await;
            let messages = agent.until_answer(prompt).await;
            assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn", "{name}: {messages:#?}");
            assert!(shown(&messages).ends_with("Fine."), "{name}: {messages:#?}");
            let failed = messages.iter().any(|message| message["params"]["update"]["status"] == "failed");
            assert!(!failed, "{name}: {messages:#?}");
        }
        for request in server.requests() {
            invariants::check("openai", &request.body());
        }
        agent.end().await;
    }
}

fn is_quirk(path: &Path) -> bool {
    path.file_name().unwrap().to_str().unwrap().starts_with("quirk_")
}

/// Each quirk on the page has a stream, and each stream is on the page.
#[test]
fn page_lists_every_quirk() {
    let page = fs::read_to_string(folder("").join("../../docs/reference/compatible-servers.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut listed: Vec<String> = rows.map(|row| row.split('`').next().unwrap().to_owned()).collect();
    listed.sort();
    let mut recorded: Vec<String> = Vec::new();
    for (provider, ..) in wires() {
        let quirks = streams(provider).into_iter().filter(|path| is_quirk(path));
        recorded
            .extend(quirks.map(|path| format!("{provider}/{}", path.file_stem().unwrap().to_str().unwrap())));
    }
    recorded.sort();
    assert_eq!(listed, recorded);
}
