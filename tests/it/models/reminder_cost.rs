//! The cost of a standing reminder for a provider's prompt cache: the bytes of each request that are not in
//! the start of the request before it, in a session of twenty turns in plan mode.
//!
//! `fixtures/providers/reminder.txt` has the figures. `UPDATE_EXPECT=1` writes them anew.

use std::fmt::Write;

use modegate::mode::{Modes, ReminderPosition, ToolList};
use modegate::model::known::facts_of;
use modegate::model::wire::Ask;
use modegate::model::{Block, ModelEvent, ModelId, ModelRequest, ModelStop};
use serde_json::{Value, json};

use crate::models::providers::{folder, wires};
use crate::support::{Setup, TestClient};

const TURNS: usize = 20;

/// Requests of each turn. The last one gets an answer without a call.
const STEPS: usize = 5;

/// Returns the parts of a request that Anthropic caches, in the order in which it compares them.
fn parts(request: &ModelRequest) -> Vec<String> {
    let (provider, name, wire) = wires().into_iter().find(|(provider, ..)| *provider == "anthropic").unwrap();
    let request = ModelRequest { model: ModelId::new(format!("{provider}/{name}")), ..request.clone() };
    let ask = Ask {
        request: &request,
        name,
        facts: &facts_of(name),
        is_official: true,
        without: &[],
        left_out_images: &[],
    };
    let mut body: Value = serde_json::from_slice(&wire.body(&ask)).unwrap();
    let mut parts: Vec<Value> = body["tools"].as_array_mut().unwrap().drain(..).collect();
    parts.push(body["system"].take());
    for message in body["messages"].as_array_mut().unwrap() {
        let role = message["role"].clone();
        match message["content"].take() {
            Value::Array(blocks) => parts.extend(blocks.into_iter().map(|block| json!([role, block]))),
            text => parts.push(json!([role, text])),
        }
    }
    // The cache markers move from request to request.
    let bare = |mut part: Value| {
        if let Some(block) = part.get_mut(1).and_then(Value::as_object_mut) {
            block.remove("cache_control");
        }
        part.to_string()
    };
    parts.into_iter().map(bare).collect()
}

fn uncached(before: &[String], after: &[String]) -> usize {
    let same = before.iter().zip(after).take_while(|(before, after)| before == after).count();
    after[same..].iter().map(String::len).sum()
}

async fn requests(position: ReminderPosition, list: ToolList, result: usize) -> Vec<ModelRequest> {
    let mut modes = Modes::built_in();
    modes.set_default_tool_list(list);
    for mode in modes.iter_mut() {
        mode.reminder_position = position;
    }
    let mut client = TestClient::with(Setup { mode: "plan", modes, ..Setup::default() });
    // The calls differ, because repeated calls would get a note.
    for step in 0..STEPS {
        let text = "a line of twenty one\n".repeat(result / 28);
        std::fs::write(client.cwd().join(format!("{step}.txt")), text).unwrap();
    }
    let session = client.session().await;
    let mut requests = Vec::new();
    for turn in 0..TURNS {
        let prompt = client.prompt(&session, &format!("Question {turn}: what is this?")).await;
        for step in 0..STEPS {
            requests.push(client.model.next_request(&session).await);
            let event = if step + 1 < STEPS {
                let (id, arguments) = (format!("c{turn}_{step}"), json!({ "path": format!("{step}.txt") }));
                ModelEvent::ToolCall { id, name: "read_file".into(), arguments }
            } else {
                ModelEvent::Text("It is a file of words. ".repeat(10))
            };
            client.model.say(&session, Ok(event));
            client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        }
        client.until_answer(prompt).await;
    }
    client.end().await;
    requests
}

#[tokio::test]
async fn reminder_positions_cost_the_recorded_bytes() {
    let mut table = format!(
        "Uncached bytes in plan mode, anthropic, {TURNS} turns of {STEPS} requests (means)\n\n\
         results  tools  position       reminder  first request of a turn  later request  session\n"
    );
    for result in [500, 2_000, 8_000] {
        for (list, tools) in [(ToolList::Hide, "hide"), (ToolList::Mask, "mask")] {
            let positions =
                [(ReminderPosition::Tail, "tail"), (ReminderPosition::BeforePrompt, "before_prompt")];
            for (position, name) in positions {
                let requests = requests(position, list, result).await;
                let is_reminder = |block: &&Block| matches!(block, Block::Reminder(_));
                let blocks = requests[1].messages.iter().flat_map(|message| &message.blocks);
                let reminder: usize = blocks.filter(is_reminder).map(Block::bytes).sum();
                let parts: Vec<Vec<String>> = requests.iter().map(parts).collect();
                let (mut firsts, mut later) = (Vec::new(), Vec::new());
                for (number, pair) in parts.windows(2).enumerate() {
                    let uncached = uncached(&pair[0], &pair[1]);
                    if (number + 1) % STEPS == 0 { firsts.push(uncached) } else { later.push(uncached) }
                }
                let sum = |bytes: &[usize]| bytes.iter().sum::<usize>();
                writeln!(
                    table,
                    "{result:<8} {tools:<6} {name:<14} {reminder:<9} {:<24} {:<14} {}",
                    sum(&firsts) / firsts.len(),
                    sum(&later) / later.len(),
                    sum(&firsts) + sum(&later)
                )
                .unwrap();
            }
        }
    }
    let path = folder("reminder.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(&path).unwrap());
}
