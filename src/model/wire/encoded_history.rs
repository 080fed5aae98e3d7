//! The JSON of the messages that the next request repeats, so that a request encodes only what is new.
//!
//! A message is settled once the model has replied to it and the user has gone on. Nothing that follows changes its
//! JSON then, in any of the formats: they combine messages between two replies only. Messages with images are never
//! settled: their JSON depends on what a server accepts, and would keep the image twice.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::{Ask, has_content, to_bytes};
use crate::model::{Block, Message, ModelId, Role};

/// Belongs to a session, and follows from its requests: with an empty one, requests have the same bytes.
#[derive(Default)]
pub struct EncodedHistory(Mutex<SettledMessages>);

impl std::fmt::Debug for EncodedHistory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("EncodedHistory")
    }
}

#[derive(Default)]
struct SettledMessages {
    context: Option<EncodingContext>,
    messages: Vec<Arc<Message>>,
    /// Elements of an array, with commas between them.
    json: Vec<u8>,
    /// Number of messages, and of bytes of their JSON, at the end of each settled reply.
    replies: Vec<(usize, usize)>,
    /// Nothing is settled: the messages are encoded as a whole, to compare with.
    #[cfg(test)]
    is_off: bool,
}

/// The settings on which the JSON of messages depends.
#[derive(PartialEq, Eq)]
struct EncodingContext {
    format: &'static str,
    model: ModelId,
    is_official: bool,
    without: Vec<&'static str>,
}

/// Returns the elements of the array for messages, which are the first ones or follow a reply.
type Elements<'a, M> = fn(&Ask<'a>, &'a [Arc<Message>]) -> Vec<M>;

/// How a format writes messages.
pub(super) struct Format<'a, M> {
    pub name: &'static str,
    /// Number of replies at the end after which messages are not settled.
    pub open_replies: usize,
    pub elements: Elements<'a, M>,
}

/// Encodes a body. The last member of `body` is the array of messages, with what precedes those of the session.
pub(super) fn with_messages<'a, M: Serialize>(
    ask: &Ask<'a>,
    body: &impl Serialize,
    format: &Format<'a, M>,
) -> Vec<u8> {
    let messages = &ask.request.messages[..];
    let mut settled = ask.request.encoded.0.lock().unwrap_or_else(PoisonError::into_inner);
    settled.advance(ask, messages, format);
    let mut rest = Vec::new();
    push_elements(&mut rest, &(format.elements)(ask, &messages[settled.messages.len()..]));
    let mut bytes = to_bytes(body);
    assert!(bytes.ends_with(b"]}"), "the messages are the last member");
    bytes.truncate(bytes.len() - 2);
    bytes.reserve_exact(settled.json.len() + rest.len() + 4);
    for elements in [&settled.json, &rest] {
        if !elements.is_empty() && !bytes.ends_with(b"[") {
            bytes.push(b',');
        }
        bytes.extend_from_slice(elements);
    }
    bytes.extend_from_slice(b"]}");
    bytes
}

impl SettledMessages {
    /// Keeps the start that the messages still have, and adds the newly settled ones.
    fn advance<'a, M: Serialize>(
        &mut self,
        ask: &Ask<'a>,
        messages: &'a [Arc<Message>],
        format: &Format<'a, M>,
    ) {
        #[cfg(test)]
        if self.is_off {
            return;
        }
        let context = EncodingContext {
            format: format.name,
            model: ask.request.model.clone(),
            is_official: ask.is_official,
            without: ask.without.to_vec(),
        };
        if self.context.as_ref() != Some(&context) {
            *self = Self { context: Some(context), ..Self::default() };
        }
        let mut ends = (1..messages.len()).rev().filter(|at| is_end_of_reply(messages, *at));
        let end = ends.nth(format.open_replies).unwrap_or_default();
        let common = self.messages.iter().zip(messages).take_while(|(known, now)| Arc::ptr_eq(known, now));
        let common = common.count().min(end);
        while self.replies.last().is_some_and(|(count, _)| *count > common) {
            self.replies.pop();
        }
        let (mut count, bytes) = self.replies.last().copied().unwrap_or_default();
        self.messages.truncate(count);
        self.json.truncate(bytes);
        for at in count + 1..=end {
            if messages[at - 1].blocks.iter().any(|block| matches!(block, Block::Image(_))) {
                return;
            }
            if is_end_of_reply(messages, at) {
                push_elements(&mut self.json, &(format.elements)(ask, &messages[count..at]));
                self.messages.extend_from_slice(&messages[count..at]);
                self.replies.push((at, self.json.len()));
                count = at;
            }
        }
    }
}

/// True if a reply with content is before `at`, and something of the user behind it that stays in later requests.
fn is_end_of_reply(messages: &[Arc<Message>], at: usize) -> bool {
    let [reply, next] = [at - 1, at].map(|at| &messages[at]);
    let mut said = reply.blocks.iter().filter(|block| has_content(block));
    let mut follows = next.blocks.iter().filter(|block| has_content(block));
    reply.role == Role::Assistant
        && said.any(|block| matches!(block, Block::Text(_) | Block::ToolCall { .. }))
        && next.role == Role::User
        && follows.any(|block| matches!(block, Block::Text(_) | Block::Note(_) | Block::ToolResult { .. }))
}

fn push_elements(json: &mut Vec<u8>, elements: &[impl Serialize]) {
    for element in elements {
        if !json.is_empty() {
            json.push(b',');
        }
        serde_json::to_writer(&mut *json, element).expect("a message has string keys and no failing parts");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::acp::SessionId;
    use crate::model::known::{ModelFacts, facts_of};
    use crate::model::wire::anthropic::Anthropic;
    use crate::model::wire::chat::Chat;
    use crate::model::wire::gemini::Gemini;
    use crate::model::wire::ollama::Ollama;
    use crate::model::wire::responses::Responses;
    use crate::model::wire::{SIGNATURE, Wire};
    use crate::model::{Effort, Image, ModelRequest, ProviderState};

    const MODELS: [&str; 2] = ["anthropic/claude-sonnet-4-5", "openai/gpt-4.1"];

    /// What happens to a conversation between two requests.
    #[derive(Debug, Clone)]
    enum Step {
        Message(Message),
        /// The next request has a reminder in this message.
        Reminder(usize),
        /// A summary replaces the messages before this one.
        Summary(usize),
        Model(usize),
        Rejected(&'static str),
    }

    fn text() -> impl Strategy<Value = String> {
        prop::sample::select(vec!["", " ", "words", "line\n\"quoted\"", "\u{1}ü"]).prop_map(str::to_owned)
    }

    fn block() -> impl Strategy<Value = Block> {
        let state = |origin: &str, data| ProviderState { origin: ModelId::new(origin), data: Arc::new(data) };
        let states = vec![
            state(MODELS[0], json!({ "signature": "s" })),
            state(MODELS[1], json!({ "reasoning": { "type": "reasoning", "id": "r" } })),
            state(MODELS[1], json!({ "reasoning_content": "thought" })),
        ];
        prop_oneof![
            4 => text().prop_map(Block::Text),
            1 => text().prop_map(Block::Thought),
            1 => text().prop_map(Block::Note),
            1 => prop::sample::select(states).prop_map(Block::ProviderState),
            1 => Just(Block::Image(Image { mime_type: "image/png".into(), data: "AAAA".into() })),
            2 => text().prop_map(|id| Block::ToolCall { id, name: "shell".into(), arguments: json!({ "a": 1 }) }),
            2 => (text(), text(), any::<bool>()).prop_map(|(id, text, is_error)| {
                Block::ToolResult { id, name: "shell".into(), text, is_error }
            }),
        ]
    }

    fn step() -> impl Strategy<Value = Step> {
        let role = prop::sample::select(vec![Role::User, Role::Assistant]);
        let message = (role, prop::collection::vec(block(), 0..4));
        prop_oneof![
            12 => message.prop_map(|(role, blocks)| Step::Message(Message { role, blocks })),
            2 => (0..20_usize).prop_map(Step::Reminder),
            1 => (0..20_usize).prop_map(Step::Summary),
            1 => (0..2_usize).prop_map(Step::Model),
            1 => prop::sample::select(vec![SIGNATURE, "reasoning_content"]).prop_map(Step::Rejected),
        ]
    }

    fn body(wire: &dyn Wire, request: &ModelRequest, facts: &ModelFacts, without: &[&'static str]) -> String {
        let (name, is_official, left_out_images) = ("m", false, &[][..]);
        let ask = Ask { request, name, facts, is_official, without, left_out_images };
        String::from_utf8(wire.body(&ask)).unwrap()
    }

    fn request(messages: Vec<Arc<Message>>, model: &str, encoded: &Arc<EncodedHistory>) -> ModelRequest {
        ModelRequest {
            session: SessionId::new("s"),
            ordinal: 1,
            model: ModelId::new(model),
            effort: Effort::Default,
            system: "system".into(),
            tools: Arc::new([]),
            lasting_tools: 0,
            allowed: None,
            messages,
            trace: None,
            encoded: Arc::clone(encoded),
        }
    }

    proptest! {
        #[test]
        fn bodies_equal_those_that_are_encoded_as_a_whole(steps in prop::collection::vec(step(), 1..40)) {
            let wires: [&dyn Wire; 5] = [&Anthropic, &Chat, &Gemini, &Ollama, &Responses];
            let encoded: [Arc<EncodedHistory>; 5] = Default::default();
            let whole = SettledMessages { is_off: true, ..SettledMessages::default() };
            let whole = Arc::new(EncodedHistory(Mutex::new(whole)));
            let facts = facts_of("claude-sonnet-4-5");
            let (mut messages, mut model, mut without) = (Vec::<Arc<Message>>::new(), MODELS[0], Vec::new());
            for step in steps {
                let mut sent = messages.clone();
                match step {
                    Step::Message(message) => {
                        messages.push(Arc::new(message));
                        sent.clone_from(&messages);
                    }
                    Step::Reminder(at) => {
                        if let Some(message) = sent.get_mut(at) {
                            let mut blocks = message.blocks.clone();
                            blocks.push(Block::Reminder("reminder".into()));
                            *message = Arc::new(Message { role: message.role, blocks });
                        }
                    }
                    Step::Summary(at) => {
                        let blocks = vec![Block::Text("summary".into())];
                        messages.splice(..at.min(messages.len()), [Arc::new(Message { role: Role::User, blocks })]);
                        sent.clone_from(&messages);
                    }
                    Step::Model(at) => model = MODELS[at],
                    Step::Rejected(part) => without = vec![part],
                }
                for (wire, encoded) in wires.iter().zip(&encoded) {
                    let kept = body(*wire, &request(sent.clone(), model, encoded), &facts, &without);
                    let whole = body(*wire, &request(sent.clone(), model, &whole), &facts, &without);
                    prop_assert_eq!(kept, whole);
                }
            }
        }
    }

    #[test]
    fn old_messages_are_encoded_once() {
        let encoded = Arc::default();
        let facts = facts_of("claude-sonnet-4-5");
        let say = |role, text: String| Arc::new(Message { role, blocks: vec![Block::Text(text)] });
        let mut messages = Vec::new();
        for turn in 0..10 {
            messages.push(say(Role::User, format!("question {turn}")));
            let request = request(messages.clone(), MODELS[1], &encoded);
            body(&Chat, &request, &facts, &[]);
            assert_eq!(encoded.0.lock().unwrap().messages.len(), 2 * turn);
            messages.push(say(Role::Assistant, format!("answer {turn}")));
        }
        // A reminder in an earlier message replaces what follows it, and nothing before.
        messages.push(say(Role::User, "question".into()));
        let mut reminded = messages.clone();
        reminded[10] = say(Role::User, "question with a reminder".into());
        body(&Chat, &request(reminded, MODELS[1], &encoded), &facts, &[]);
        let settled = encoded.0.lock().unwrap();
        assert!(Arc::ptr_eq(&settled.messages[9], &messages[9]) && settled.messages.len() == 20);
    }
}
