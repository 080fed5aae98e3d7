//! Random mode changes, prompts, tool calls, cancels and answers in several sessions, in an order that a seed
//! determines.
//!
//! No change happens without a permit. The store has the mode changes in the order that clients saw. Each
//! request has one answer, and nothing hangs. `STORM=10000 cargo test --release interleave -- --nocapture`
//! runs longer, and `SEED=N` selects the order.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use modegate::model::{ModelEvent, ModelStop};
use modegate::store::StoreLocation;
use serde_json::{Value, json};

use crate::support::{Setup, TIMEOUT, TestClient};

const SESSIONS: usize = 3;
const MODES: [&str; 3] = ["ask", "plan", "code"];

/// Returns a pseudo-random number below a bound.
fn random_below(seed: &mut u64, bound: usize) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    usize::try_from(*seed >> 33).unwrap() % bound
}

/// The client's view of the sessions, and the violations that it found.
#[derive(Default)]
struct ClientView {
    mode: HashMap<String, String>,
    announced_modes: HashMap<String, Vec<String>>,
    /// Requests without an answer.
    open: HashSet<i64>,
    /// Open permission requests: the request's id, the session, the call, and the options.
    questions: Vec<(Value, String, String, Vec<String>)>,
    /// Calls that the user allowed, and sessions with "always allow" in `ask`.
    allowed: HashSet<(String, String)>,
    always: HashSet<String>,
    writes: HashSet<(String, String)>,
    /// The number of messages of each kind, which shows that the steps tested something.
    seen: BTreeMap<&'static str, usize>,
    violations: Vec<String>,
}

impl ClientView {
    fn take(&mut self, message: &Value) {
        let params = &message["params"];
        let session = params["sessionId"].as_str().unwrap_or_default().to_owned();
        match message["method"].as_str() {
            Some("session/request_permission") => {
                let options = params["options"].as_array().unwrap();
                let options =
                    options.iter().map(|option| option["optionId"].as_str().unwrap().to_owned()).collect();
                let call = params["toolCall"]["toolCallId"].as_str().unwrap().to_owned();
                self.count("question");
                self.questions.push((message["id"].clone(), session, call, options));
            }
            Some("$/cancel_request") => {
                self.count("withdrawn question");
                self.questions.retain(|(id, ..)| *id != params["requestId"]);
            }
            Some(_) => self.update(&session, &params["update"]),
            None => {
                let id = message["id"].as_i64().unwrap();
                self.count(message["result"]["stopReason"].as_str().map_or(
                    "answer",
                    |reason| match reason {
                        "cancelled" => "cancelled turn",
                        _ => "turn",
                    },
                ));
                if !self.open.remove(&id) {
                    self.violations.push(format!("answered twice: {message}"));
                }
            }
        }
    }

    fn count(&mut self, kind: &'static str) {
        *self.seen.entry(kind).or_default() += 1;
    }

    fn update(&mut self, session: &str, update: &Value) {
        let call = (session.to_owned(), update["toolCallId"].as_str().unwrap_or_default().to_owned());
        if let Some(mode) = update["currentModeId"].as_str() {
            self.count("mode change");
            self.mode.insert(session.into(), mode.into());
            self.announced_modes.entry(session.into()).or_default().push(mode.into());
        }
        if update["sessionUpdate"] == "tool_call" && update["name"] == "write_file" {
            self.writes.insert(call.clone());
        }
        if update["_meta"]["modegate/denied"].is_string() {
            self.count("denied call");
        }
        if update["status"] == "in_progress" && self.writes.contains(&call) {
            self.count("write");
            let may = match self.mode[session].as_str() {
                "code" => true,
                "ask" => self.allowed.contains(&call) || self.always.contains(session),
                _ => false,
            };
            if !may {
                self.violations.push(format!("{call:?} runs in {} without leave", self.mode[session]));
            }
        }
    }
}

/// Returns the model's events of a turn: a few replies.
fn script(seed: &mut u64, number: usize) -> Vec<ModelEvent> {
    let mut events = Vec::new();
    for _ in 0..=random_below(seed, 3) {
        for n in 0..random_below(seed, 3) {
            let name = format!("f{number}_{n}");
            let (tool, arguments) = match random_below(seed, 4) {
                0 => ("read_file", json!({ "path": "a.txt" })),
                1 => ("switch_mode", json!({ "plan": "1. x", "steps": ["x"] })),
                _ => ("write_file", json!({ "path": name, "content": "x" })),
            };
            events.push(ModelEvent::ToolCall { id: name, name: tool.into(), arguments });
        }
        if random_below(seed, 3) == 0 {
            let mode = ["plan", "code", "ask", "nope"][random_below(seed, 4)];
            let block = format!("```yaml\nmode_switch: {{analysis: because, new_mode: {mode}}}\n```\n");
            events.insert(0, ModelEvent::Text(block));
        }
        events.push(ModelEvent::Stop(ModelStop::Done));
    }
    events
}

async fn answer(test_client: &mut TestClient, client: &mut ClientView, seed: &mut u64) {
    if client.questions.is_empty() {
        return;
    }
    let at = random_below(seed, client.questions.len());
    let (id, session, call, options) = client.questions.remove(at);
    let outcome = match random_below(seed, 6) {
        0 => json!({ "outcome": "cancelled" }),
        1 => json!({ "outcome": "selected", "optionId": "not offered" }),
        n => {
            let option = &options[n % options.len()];
            if option == "allow_once" || option == "allow_always" {
                client.allowed.insert((session.clone(), call));
            }
            if option == "allow_always" {
                client.always.insert(session);
            }
            json!({ "outcome": "selected", "optionId": option })
        }
    };
    test_client
        .send_line(&json!({ "jsonrpc": "2.0", "id": id, "result": { "outcome": outcome } }).to_string())
        .await;
}

async fn stress(mut seed: u64, steps: usize) -> ClientView {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store.db");
    let mut test_client =
        TestClient::with(Setup { store: StoreLocation::File(file.clone()), ..Setup::default() });
    let mut client = ClientView::default();
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let session = test_client.session().await;
        client.mode.insert(session.clone(), "ask".into());
        sessions.push(session);
    }
    std::fs::write(test_client.cwd().join("a.txt"), "a").unwrap();
    for step in 0..steps {
        let session = sessions[random_below(&mut seed, SESSIONS)].clone();
        let sent = match random_below(&mut seed, 10) {
            0 | 1 => {
                let mode = MODES[random_below(&mut seed, 3)];
                Some(
                    test_client
                        .request("session/set_mode", json!({ "sessionId": session, "modeId": mode }))
                        .await,
                )
            }
            2 => {
                let params = json!({ "sessionId": session, "configId": "mode", "value": MODES[random_below(&mut seed, 3)] });
                Some(test_client.request("session/set_config_option", params).await)
            }
            3 | 4 => {
                for event in script(&mut seed, step) {
                    test_client.model.say(&session, Ok(event));
                }
                Some(test_client.prompt(&session, "go").await)
            }
            5 => {
                test_client.notify("session/cancel", json!({ "sessionId": session })).await;
                None
            }
            _ => {
                answer(&mut test_client, &mut client, &mut seed).await;
                None
            }
        };
        client.open.extend(sent);
        // Sometimes the client reads for a moment. Otherwise it sends several lines without reading.
        for _ in 0..random_below(&mut seed, 12) {
            match test_client.next_within(Duration::from_micros(300)).await {
                Some(message) => client.take(&message),
                None => break,
            }
        }
    }
    // Cancels everything that waits, and reads the answers.
    for session in &sessions {
        test_client.notify("session/cancel", json!({ "sessionId": session })).await;
    }
    while !client.open.is_empty() {
        let Some(message) = test_client.next_within(TIMEOUT).await else {
            client
                .violations
                .push(format!("never answered: {:?}, with {:?} open", client.open, client.questions));
            return client;
        };
        client.take(&message);
    }
    for message in test_client.end().await {
        client.take(&message);
    }
    let record = rusqlite::Connection::open(file).unwrap();
    for session in &sessions {
        let mut rows =
            record.prepare("SELECT to_mode FROM mode_changes WHERE session_id = ?1 ORDER BY id").unwrap();
        let rows: Vec<String> =
            rows.query_map([session], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let messages = client.announced_modes.remove(session).unwrap_or_default();
        if rows[1..] != messages {
            client.violations.push(format!("{session}: recorded {:?}, told {messages:?}", &rows[1..]));
        }
    }
    client
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[tokio::test]
async fn random_interleaving_breaks_no_invariant() {
    let steps = usize::try_from(number("STORM", 1_200)).unwrap();
    let first = number("SEED", 11);
    for seed in first..first + 3 {
        println!("SEED={seed} STORM={steps}");
        let ClientView { violations, seen, .. } =
            stress(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), steps).await;
        assert!(violations.is_empty(), "SEED={seed} STORM={steps}: {violations:#?}");
        // Below these shares the run tests too little. The default number of steps reaches three times as
        // much.
        for (kind, share) in [
            ("answer", 10),
            ("turn", 20),
            ("cancelled turn", 60),
            ("mode change", 15),
            ("question", 50),
            ("withdrawn question", 300),
            ("write", 120),
            ("denied call", 25),
        ] {
            let count = seen.get(kind).copied().unwrap_or_default();
            assert!(count >= steps / share, "SEED={seed} STORM={steps}: {count} of {kind}: {seen:?}");
        }
    }
}
