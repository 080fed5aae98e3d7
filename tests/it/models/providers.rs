//! The wire formats: documented streams, split at every position, and the encoded requests.
//!
//! `fixtures/providers/PROVIDER/CASE.sse` (or `.ndjson`) is a stream, and `CASE.events` its events.
//! `UPDATE_EXPECT=1` writes the events anew.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use modegate::model::known::facts_of;
use modegate::model::provider_error::ProviderError;
use modegate::model::wire::framing::FrameReader;
use modegate::model::wire::{
    Ask, Wire, anthropic::Anthropic, chat::Chat, gemini::Gemini, ollama::Ollama, responses::Responses,
};
use modegate::model::{
    Block, Effort, Image, Message, ModelEvent, ModelId, ModelRequest, ProviderState, Role, ToolOffer,
};
use serde_json::json;

/// Every provider with a model and a wire format.
pub(crate) fn wires() -> [(&'static str, &'static str, Box<dyn Wire>); 5] {
    [
        ("anthropic", "claude-opus-5-5", Box::new(Anthropic)),
        ("gemini", "gemini-4-hydrogen", Box::new(Gemini)),
        ("ollama", "gpt-oss:20b", Box::new(Ollama)),
        ("openai", "gpt-6-luna", Box::new(Chat)),
        ("openai-responses", "gpt-6.2-sol", Box::new(Responses)),
    ]
}

/// The body of a request to Anthropic, whatever the request's own model is.
pub(crate) fn anthropic_body(request: &ModelRequest) -> Vec<u8> {
    let (provider, name, wire) = wires().into_iter().find(|(provider, ..)| *provider == "anthropic").unwrap();
    let request = ModelRequest { model: ModelId::new(format!("{provider}/{name}")), ..request.clone() };
    let facts = &facts_of(name);
    wire.body(&Ask { request: &request, name, facts, is_official: true, without: &[], left_out_images: &[] })
}

pub(crate) fn folder(provider: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/providers").join(provider)
}

/// The streams of a provider.
pub(crate) fn streams(provider: &str) -> Vec<PathBuf> {
    let is_stream =
        |path: &PathBuf| path.extension().is_some_and(|ending| ending == "sse" || ending == "ndjson");
    let entries = std::fs::read_dir(folder(provider)).unwrap().map(|entry| entry.unwrap().path());
    let mut streams: Vec<_> = entries.filter(is_stream).collect();
    streams.sort();
    streams
}

/// Returns the events of a stream in these pieces. Adjacent texts are joined, because only the server decides
/// where they split.
fn output_of(wire: &dyn Wire, pieces: &[&[u8]]) -> String {
    let (events, problem) = decode(wire, pieces);
    let mut lines: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
    lines.extend(problem.map(|problem| format!("{problem:?}")));
    // If the server sends no id, the wire format invents one.
    let made_up = |line: &String| {
        let at = ["call_01", "toolu_01", "own_01"]
            .iter()
            .find_map(|start| Some((line.find(start)?, start.len() - 2)));
        let is_made_up = |id: &str| id.bytes().all(|byte| byte.is_ascii_hexdigit());
        match at.map(|(at, prefix)| (at + prefix, at + prefix + 32)) {
            Some((start, end)) if line.get(start..end).is_some_and(is_made_up) => {
                format!("{}MADE_UP{}", &line[..start], &line[end..])
            }
            _ => line.clone(),
        }
    };
    lines.iter().map(made_up).collect::<Vec<_>>().join("\n") + "\n"
}

/// Returns the events of a stream in these pieces, and the error that ends it.
pub(crate) fn decode(wire: &dyn Wire, pieces: &[&[u8]]) -> (Vec<ModelEvent>, Option<ProviderError>) {
    let mut events = VecDeque::new();
    let mut decoder = wire.decoder();
    let mut frames = FrameReader::new(wire.framing());
    let mut read = || -> Result<(), ProviderError> {
        for piece in pieces {
            frames.push(piece, |frame| decoder.frame(frame, &mut events))?;
        }
        frames.end(|frame| decoder.frame(frame, &mut events))?;
        if events.iter().any(|event| matches!(event, ModelEvent::Stop(_))) {
            return Ok(());
        }
        decoder.end(&mut events)
    };
    let problem = read().err();
    (events.into(), problem)
}

#[test]
fn every_stream_decodes_the_same_at_any_split() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    for (provider, _, wire) in wires() {
        for path in streams(provider) {
            let stream = std::fs::read(&path).unwrap();
            let whole = output_of(&*wire, &[&stream]);
            let expected = path.with_extension("events");
            if update {
                std::fs::write(&expected, &whole).unwrap();
            }
            assert_eq!(whole, std::fs::read_to_string(&expected).unwrap(), "{}", path.display());
            for cut in 1..stream.len() {
                let (start, end) = stream.split_at(cut);
                assert_eq!(output_of(&*wire, &[start, end]), whole, "{} cut at {cut}", path.display());
            }
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            assert_eq!(output_of(&*wire, &bytes), whole, "{} byte by byte", path.display());
        }
    }
}

/// A conversation with every kind of content.
fn request(model: &ModelId) -> ModelRequest {
    let block = |role, blocks| Arc::new(Message { role, blocks });
    let seal = |origin: &ModelId, data| {
        Block::ProviderState(ProviderState { origin: origin.clone(), data: Arc::new(data) })
    };
    let call =
        |id: &str, name: &str, arguments| Block::ToolCall { id: id.into(), name: name.into(), arguments };
    let result = |id: &str, name: &str, text: &str, is_error| Block::ToolResult {
        id: id.into(),
        name: name.into(),
        text: text.into(),
        is_error,
    };
    let extra = match model.parts().unwrap().0 {
        "anthropic" => json!({ "signature": "c2ln" }),
        "gemini" => json!({ "thoughtSignature": "c2ln" }),
        "openai" => json!({ "reasoning_content": true }),
        _ => {
            json!({ "reasoning": { "id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA" } })
        }
    };
    let image = Image { mime_type: "image/png".into(), data: "iVBORw0=".into() };
    let schema =
        json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] });
    let tool = |name: &str| ToolOffer {
        name: name.into(),
        description: format!("It is {name}.").into(),
        schema: (&schema).into(),
    };
    ModelRequest {
        session: modegate::acp::SessionId::new("sess_1"),
        ordinal: 3,
        model: model.clone(),
        effort: Effort::High,
        system: "Be good.".into(),
        tools: [tool("read_file"), tool("write_file")].into(),
        lasting_tools: 1,
        allowed: Some(["read_file".to_owned()].into()),
        trace: None,
        encoded: Arc::default(),
        messages: vec![
            block(
                Role::User,
                vec![
                    Block::Text("What is this?".into()),
                    Block::Image(image.clone()),
                    Block::Text(String::new()),
                ],
            ),
            block(
                Role::Assistant,
                vec![
                    Block::Thought("Both files.".into()),
                    seal(model, extra),
                    Block::Text("Reading.".into()),
                    call("call_1", "read_file", json!({ "path": "a.txt" })),
                    call("call_2", "read_file", json!("{broken")),
                ],
            ),
            block(
                Role::User,
                vec![
                    result("call_1", "read_file", "", false),
                    result("call_2", "read_file", "no such file", true),
                ],
            ),
            block(
                Role::Assistant,
                vec![
                    Block::Thought("Cut off".into()),
                    seal(
                        &ModelId::new("another/model"),
                        json!({ "signature": "theirs", "reasoning": {}, "thoughtSignature": "theirs" }),
                    ),
                    Block::Text(" \n".into()),
                ],
            ),
            block(Role::User, vec![Block::Text("And now?".into())]),
            block(Role::Assistant, vec![call("call_4", "mcp__x__draw", json!({}))]),
            block(
                Role::User,
                vec![result("call_4", "mcp__x__draw", "[a picture]", false), Block::Image(image.clone())],
            ),
            block(Role::Assistant, vec![call("call_3", "write_file", json!({ "path": "b.txt" }))]),
            block(
                Role::User,
                vec![
                    result("call_3", "write_file", "denied", true),
                    Block::Reminder("<system-reminder>plan</system-reminder>".into()),
                ],
            ),
        ],
    }
}

#[test]
fn requests_match_each_providers_format() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    for (provider, name, wire) in wires() {
        let request = request(&ModelId::new(format!("{provider}/{name}")));
        for (case, is_official) in [("request", true), ("request_elsewhere", false)] {
            let facts = facts_of(name);
            let ask = Ask {
                request: &request,
                name,
                facts: &facts,
                is_official,
                without: &[],
                left_out_images: &[],
            };
            let body = wire.body(&ask);
            assert_eq!(body, wire.body(&ask), "{provider}: the same bytes each time");
            let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
            let path = folder(provider).join(format!("{case}.json"));
            if update {
                std::fs::write(&path, &text).unwrap();
            }
            assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{}", path.display());
            crate::models::invariants::check(provider, &value);
        }
    }
}
