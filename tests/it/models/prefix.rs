//! The prefix rule in the bytes of every provider: a request without its reminder is the start of the next
//! one, and with its reminder, too, while that says the same. So providers' caches stay valid. Measured over
//! thirty turns with a mode change in every fifth.
//!
//! `fixtures/providers/prefix.txt` has the figures. `UPDATE_EXPECT=1` writes them anew.

use std::fmt::Write;

use modegate::mode::{Modes, ToolList};
use modegate::model::known::facts_of;
use modegate::model::wire::Ask;
use modegate::model::{ModelEvent, ModelId, ModelRequest, ModelStop};
use serde_json::{Value, json};

use crate::models::providers::{folder, wires};
use crate::support::{Setup, TestClient};

/// A request as a sequence of tools, system prompt and blocks of messages, without cache markers.
struct Sequence {
    tools: Vec<String>,
    rest: Vec<String>,
    /// The reminder, which is a part of `rest`.
    reminder: Option<String>,
}

impl Sequence {
    fn all(&self) -> impl Iterator<Item = &String> {
        self.tools.iter().chain(&self.rest)
    }

    fn bytes(&self) -> usize {
        self.all().map(String::len).sum()
    }

    /// `rest` without the reminder.
    fn lasting(&self) -> Vec<&String> {
        self.rest.iter().filter(|part| Some(*part) != self.reminder.as_ref()).collect()
    }

    /// Returns the number of bytes that are not in the start of the request before, so that no cache has
    /// them.
    fn resent(&self, before: &Sequence) -> usize {
        let same =
            self.all().zip(before.all()).take_while(|(a, b)| a == b).map(|(a, _)| a.len()).sum::<usize>();
        self.bytes() - same
    }
}

const TAG: &str = "<system-reminder>\n";

fn sequence(provider: &str, body: &Value) -> Sequence {
    let mut sequence = Sequence { tools: Vec::new(), rest: Vec::new(), reminder: None };
    let tools = if provider == "gemini" { &body["tools"][0]["functionDeclarations"] } else { &body["tools"] };
    sequence.tools.extend(tools.as_array().unwrap().iter().map(Value::to_string));
    let system = body.get("system").or(body.get("instructions")).or(body.get("systemInstruction"));
    sequence.rest.extend(system.map(Value::to_string));
    let messages = ["messages", "input", "contents"].iter().find_map(|key| body.get(key)).unwrap();
    for message in messages.as_array().unwrap() {
        let role = message["role"].to_string();
        let parts = message.get("content").filter(|content| content.is_array()).or(message.get("parts"));
        if let Some(parts) = parts.and_then(Value::as_array) {
            for part in parts {
                let mut part = part.clone();
                part.as_object_mut().unwrap().shift_remove("cache_control");
                let is_reminder = part["text"].as_str().is_some_and(|text| text.starts_with(TAG));
                let part = format!("{role} {part}");
                if is_reminder {
                    sequence.reminder = Some(part.clone());
                }
                sequence.rest.push(part);
            }
        } else {
            let content = message["content"].as_str();
            let (text, reminder) = match content.and_then(|text| text.split_once(&format!("\n\n{TAG}"))) {
                Some((text, reminder)) => (json!(text), Some(reminder.to_owned())),
                None => (message["content"].clone(), None),
            };
            let mut message = message.clone();
            message["content"] = text;
            sequence.rest.push(message.to_string());
            sequence.rest.extend(reminder.clone());
            sequence.reminder = sequence.reminder.or(reminder);
        }
    }
    sequence
}

/// Returns the requests of thirty turns with a call each, and the indices of requests after a mode change.
async fn requests(list: ToolList) -> (Vec<ModelRequest>, Vec<usize>, String) {
    let mut modes = Modes::built_in();
    modes.set_default_tool_list(list);
    let mut client = TestClient::with(Setup { modes, ..Setup::default() });
    let cwd = client.cwd();
    std::fs::write(cwd.join("a.txt"), "word ".repeat(100)).unwrap();
    let session = client.session().await;
    let (mut requests, mut switches) = (Vec::new(), Vec::new());
    for turn in 0..30 {
        if turn % 5 == 4 {
            let mode = ["plan", "code", "ask"][turn / 5 % 3];
            let id =
                client.request("session/set_mode", json!({ "sessionId": session, "modeId": mode })).await;
            client.until_answer(id).await;
            switches.push(requests.len());
        }
        let prompt =
            client.prompt(&session, &format!("Question {turn}: {}", "what is this? ".repeat(20))).await;
        requests.push(client.model.next_request(&session).await);
        let call = ModelEvent::ToolCall {
            id: format!("c{turn}"),
            name: "read_file".into(),
            arguments: json!({ "path": "a.txt" }),
        };
        for event in [ModelEvent::Text("Looking.".into()), call, ModelEvent::Stop(ModelStop::Done)] {
            client.model.say(&session, Ok(event));
        }
        requests.push(client.model.next_request(&session).await);
        for event in
            [ModelEvent::Text("It is a file of words. ".repeat(10)), ModelEvent::Stop(ModelStop::Done)]
        {
            client.model.say(&session, Ok(event));
        }
        client.until_answer(prompt).await;
    }
    client.end().await;
    (requests, switches, cwd.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn encoded_request_starts_with_the_previous_request() {
    let mut table = String::from(
        "provider           tools  last request  re-sent in a step  re-sent at a switch  (bytes; means)\n",
    );
    for (list, word) in [(ToolList::Hide, "hide"), (ToolList::Mask, "mask")] {
        let (requests, switches, cwd) = requests(list).await;
        for (provider, name, wire) in wires() {
            let facts = facts_of(name);
            let write = |request: &ModelRequest| {
                let request =
                    ModelRequest { model: ModelId::new(format!("{provider}/{name}")), ..request.clone() };
                let body = wire.body(&Ask {
                    request: &request,
                    name,
                    facts: &facts,
                    is_official: true,
                    without: &[],
                    left_out_images: &[],
                });
                let text = String::from_utf8(body).unwrap().replace(&cwd, "/w");
                let value: Value = serde_json::from_str(&text).unwrap();
                crate::models::invariants::check(provider, &value);
                sequence(provider, &value)
            };
            let sequences: Vec<Sequence> = requests.iter().map(write).collect();
            let (mut steps, mut at_switches) = (Vec::new(), Vec::new());
            for (number, pair) in sequences.windows(2).enumerate() {
                let [before, after] = pair else { panic!() };
                assert!(
                    after.lasting().starts_with(&before.lasting()),
                    "{provider} {word}: request {}",
                    number + 1
                );
                if before.reminder == after.reminder {
                    assert!(
                        after.rest.starts_with(&before.rest),
                        "{provider} {word}: request {}",
                        number + 1
                    );
                }
                let is_switch = switches.contains(&(number + 1));
                if !is_switch || list == ToolList::Mask {
                    assert_eq!(after.tools, before.tools, "{provider} {word}: request {}", number + 1);
                }
                let resent = after.resent(before);
                if is_switch { at_switches.push(resent) } else { steps.push(resent) }
            }
            let mean = |sizes: &[usize]| sizes.iter().sum::<usize>() / sizes.len();
            let last = sequences.last().unwrap().bytes();
            writeln!(
                table,
                "{provider:<18} {word:<6} {last:<13} {:<18} {}",
                mean(&steps),
                mean(&at_switches)
            )
            .unwrap();
        }
    }
    let path = folder("prefix.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(&path).unwrap());
}
