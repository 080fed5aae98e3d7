//! The cost of a standing reminder for a provider's prompt cache, in plan mode: a session of twenty turns, and a
//! turn of sixty requests. The cache is Anthropic's: a request reads the longest start that an earlier request
//! marked, and writes up to its own last marker. Thoughts are kept if the request before them is the start of
//! this one.
//!
//! `fixtures/providers/reminder.txt` has the figures. `UPDATE_EXPECT=1` writes them anew.

use std::collections::HashSet;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use modegate::mode::{Modes, ReminderPosition, ToolList};
use modegate::model::{Block, ModelEvent, ModelRequest, ModelStop};
use serde_json::{Value, json};

use crate::models::providers::{anthropic_body, folder};
use crate::support::{Setup, TestClient};

const POSITIONS: [(ReminderPosition, &str); 3] = [
    (ReminderPosition::Tail, "tail"),
    (ReminderPosition::BeforePrompt, "before_prompt"),
    (ReminderPosition::Stay, "stay"),
];

/// A session: its turns, the requests of each turn, and the bytes of a call's result. The last request of a turn
/// gets an answer without a call.
#[derive(Clone, Copy)]
struct Session {
    turns: usize,
    steps: usize,
    result: usize,
}

/// A part of a request, in the order in which Anthropic compares them.
#[derive(PartialEq)]
pub(crate) struct Part {
    text: String,
    is_marked: bool,
}

pub(crate) fn parts(request: &ModelRequest) -> Vec<Part> {
    let mut body: Value = serde_json::from_slice(&anthropic_body(request)).unwrap();
    let mut parts: Vec<Value> = body["tools"].as_array_mut().unwrap().drain(..).collect();
    parts.append(body["system"].as_array_mut().unwrap());
    for message in body["messages"].as_array_mut().unwrap() {
        let role = message["role"].clone();
        for mut block in message["content"].as_array_mut().unwrap().drain(..) {
            block["role"] = role.clone();
            parts.push(block);
        }
    }
    let part = |mut part: Value| {
        let is_marked = part.as_object_mut().unwrap().remove("cache_control").is_some();
        Part { text: part.to_string(), is_marked }
    };
    parts.into_iter().map(part).collect()
}

fn bytes(parts: &[Part]) -> usize {
    parts.iter().map(|part| part.text.len()).sum()
}

/// Number of parts that both requests start with.
fn same(before: &[Part], after: &[Part]) -> usize {
    before.iter().zip(after).take_while(|(before, after)| before.text == after.text).count()
}

#[derive(Default)]
pub(crate) struct Cost {
    pub(crate) read: usize,
    pub(crate) written: usize,
    pub(crate) uncached: usize,
    /// Earlier replies of the turn and of all turns, in all requests, and those that keep their thoughts.
    replies: [usize; 2],
    kept: [usize; 2],
}

pub(crate) fn cost(requests: &[Vec<Part>], steps: usize) -> Cost {
    let mut cost = Cost::default();
    let mut cached: HashSet<u64> = HashSet::new();
    // The hash of each request, and the number of its parts.
    let mut asked: Vec<(u64, usize)> = Vec::new();
    for (number, parts) in requests.iter().enumerate() {
        let mut hasher = DefaultHasher::new();
        let (mut read, mut marked, mut size) = (0, 0, 0);
        let mut prefixes = Vec::new();
        for part in parts {
            part.text.hash(&mut hasher);
            prefixes.push(hasher.finish());
            size += part.text.len();
            if cached.contains(&hasher.finish()) {
                read = size;
            }
            if part.is_marked {
                marked = size;
            }
        }
        let markers = prefixes.iter().zip(parts).filter(|(_, part)| part.is_marked);
        cached.extend(markers.map(|(prefix, _)| *prefix));
        cost.read += read;
        cost.written += marked.saturating_sub(read);
        cost.uncached += size - marked.max(read);
        for (earlier, (prefix, count)) in asked.iter().enumerate() {
            let is_kept = prefixes.get(count - 1) == Some(prefix);
            let is_of_turn = earlier / steps == number / steps;
            for (at, counts) in [is_of_turn, true].into_iter().enumerate() {
                cost.replies[at] += usize::from(counts);
                cost.kept[at] += usize::from(counts && is_kept);
            }
        }
        asked.push((hasher.finish(), parts.len()));
    }
    cost
}

async fn requests(position: ReminderPosition, list: ToolList, session: Session) -> Vec<ModelRequest> {
    let Session { turns, steps, result } = session;
    let mut modes = Modes::built_in();
    modes.set_default_tool_list(list);
    for mode in modes.iter_mut() {
        mode.reminder_position = position;
    }
    let mut client = TestClient::with(Setup { mode: "plan", modes, ..Setup::default() });
    // The calls differ, because repeated calls would get a note.
    for step in 0..steps {
        let text = "a line of twenty one\n".repeat(result / 28);
        std::fs::write(client.cwd().join(format!("{step}.txt")), text).unwrap();
    }
    let session = client.session().await;
    let mut requests = Vec::new();
    for turn in 0..turns {
        let prompt = client.prompt(&session, &format!("Question {turn}: what is this?")).await;
        for step in 0..steps {
            requests.push(client.model.next_request(&session).await);
            let event = if step + 1 < steps {
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
    let mut table = String::from(
        "Plan mode, anthropic. New: bytes that the request before did not start with (means of the first request of \
         a\nturn and of a later one, and the sum). Read and written: bytes of the cache; uncached: \
         neither; all requests.\nThoughts: share of the earlier replies, of the turn and of all, whose thoughts a \
         request keeps.\n\n\
         turns  requests  results  tools  position       first   later  session      read   written  uncached  thoughts\n",
    );
    let long = Session { turns: 20, steps: 5, result: 500 };
    let sessions = [
        (long, ToolList::Hide),
        (long, ToolList::Mask),
        (Session { result: 2_000, ..long }, ToolList::Hide),
        (Session { result: 8_000, ..long }, ToolList::Hide),
        (Session { turns: 1, steps: 60, result: 2_000 }, ToolList::Hide),
    ];
    for (session, list) in sessions {
        let Session { turns, steps, result } = session;
        for (position, name) in POSITIONS {
            let requests = requests(position, list, session).await;
            for request in &requests {
                let blocks = request.messages.iter().flat_map(|message| &message.blocks);
                assert_eq!(blocks.filter(|block| matches!(block, Block::Reminder(_))).count(), 1, "{name}");
            }
            let requests: Vec<Vec<Part>> = requests.iter().map(parts).collect();
            let (mut firsts, mut later) = (Vec::new(), Vec::new());
            for (number, pair) in requests.windows(2).enumerate() {
                let new = bytes(&pair[1][same(&pair[0], &pair[1])..]);
                if (number + 1) % steps == 0 { firsts.push(new) } else { later.push(new) }
            }
            let cost = cost(&requests, steps);
            if position == ReminderPosition::Stay {
                assert_eq!(cost.kept, cost.replies, "no thought is lost");
            }
            let mean = |bytes: &[usize]| bytes.iter().sum::<usize>() / bytes.len().max(1);
            let sum: usize = firsts.iter().chain(&later).sum();
            let share = |at: usize| 100 * cost.kept[at] / cost.replies[at].max(1);
            writeln!(
                table,
                "{turns:<6} {steps:<9} {result:<8} {:<6} {name:<13} {:>6} {:>7} {sum:>8} {:>9} {:>9} {:>9}  {} %, {} %",
                if list == ToolList::Hide { "hide" } else { "mask" },
                mean(&firsts),
                mean(&later),
                cost.read,
                cost.written,
                cost.uncached,
                share(0),
                share(1),
            )
            .unwrap();
        }
    }
    let path = folder("reminder.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(&path).unwrap());
}

/// Bytes of a request that are neither in the start of the request before nor a part of the new call and its result.
#[tokio::test]
async fn a_step_costs_at_most_100_bytes_in_every_mode() {
    for mode in ["ask", "plan", "code"] {
        let mut client = TestClient::with(Setup { mode, ..Setup::default() });
        for step in 0..8 {
            std::fs::write(client.cwd().join(format!("{step}.txt")), format!("text {step}")).unwrap();
        }
        let session = client.session().await;
        for turn in 0..2 {
            let prompt = client.prompt(&session, "Read.").await;
            let mut before = parts(&client.model.next_request(&session).await);
            for step in 0..8 {
                let (id, name) = (format!("c{turn}_{step}"), "read_file".to_owned());
                let arguments = json!({ "path": format!("{step}.txt"), "limit": turn + 10 });
                client.model.say(&session, Ok(ModelEvent::ToolCall { id: id.clone(), name, arguments }));
                client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
                let after = parts(&client.model.next_request(&session).await);
                let new = &after[same(&before, &after)..];
                let others: usize =
                    new.iter().filter(|part| !part.text.contains(&id)).map(|part| part.text.len()).sum();
                assert!(others <= 100, "{mode}, step {step} of turn {turn}: {others} bytes");
                assert_eq!(new.len(), 2, "{mode}: the call and its result");
                before = after;
            }
            client.model.say(&session, Ok(ModelEvent::Text("Done.".into())));
            client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
            client.until_answer(prompt).await;
        }
        client.end().await;
    }
}
