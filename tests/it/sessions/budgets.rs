//! Budgets of a turn, a session and a day: warnings, ends, refused prompts, and what counts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use modegate::budget::prices::{ModelPrice, Prices};
use modegate::budget::{BudgetSettings, Budgets, Spent};
use modegate::ids::{DayZone, Source};
use modegate::model::catalog::ModelCatalog;
use modegate::model::{Effort, ModelEvent, ModelId, Usage};
use modegate::store::{Store, StoreLocation, Sync};
use serde_json::{Value, json};

use super::load::{StoreFixture, open};
use crate::agents::delegation::{AGENTS, call};
use crate::support::scripted_model::last_message;
use crate::support::{Setup, TestClient};

/// Budgets in YAML. A token of the offline model costs a millionth of a dollar.
fn budgets(yaml: &str) -> Arc<Budgets> {
    let limits = serde_saphyr::from_str::<BudgetSettings>(yaml).unwrap().limits().unwrap();
    let price = ModelPrice { input: 1.0, cached_input: None, cache_write: None, output: 1.0 };
    let prices = Prices::new(BTreeMap::from([("offline".to_owned(), price)])).unwrap();
    Arc::new(Budgets { limits, prices, ..Budgets::default() })
}

fn with_budgets(yaml: &str) -> TestClient {
    TestClient::with(Setup { budgets: budgets(yaml), ..Setup::default() })
}

fn usage(tokens: u64) -> ModelEvent {
    ModelEvent::Usage(Usage { used: tokens, ..Usage::default() })
}

fn list() -> ModelEvent {
    call("list_directory", json!({}))
}

/// Lets a model call a tool in two replies and answer in the third; each uses 50 tokens.
async fn three_requests(client: &mut TestClient, session: &str) -> Vec<Value> {
    let prompt = client.prompt(session, "go").await;
    client.calls(session, vec![usage(50), list()]);
    client.calls(session, vec![usage(50), list()]);
    client.model.say(session, Ok(usage(50)));
    client.answers(session, "Done.");
    client.until_answer(prompt).await
}

fn stop_reason(messages: &[Value]) -> &str {
    messages.last().unwrap()["result"]["stopReason"].as_str().unwrap()
}

/// The texts of Modegate's messages that contain `part`.
fn notices<'a>(messages: &'a [Value], part: &str) -> Vec<&'a str> {
    let updates = messages.iter().map(|message| &message["params"]["update"]);
    let texts = updates.filter(|update| !update["_meta"]["modegate/notice"].is_null());
    texts.filter_map(|update| update["content"]["text"].as_str()).filter(|text| text.contains(part)).collect()
}

#[tokio::test]
async fn each_budget_warns_and_ends_the_turn_before_the_next_request() {
    for period in ["turn", "session", "day"] {
        for (small, large, amounts) in [
            ("tokens: 60", "tokens: 1000", "100 of 60 tokens"),
            ("cost_usd: 0.00006", "cost_usd: 1", "$0.000100 of $0.000060"),
        ] {
            let mut client = with_budgets(&format!("{period}: {{{small}}}"));
            let session = client.session().await;
            let messages = three_requests(&mut client, &session).await;
            assert_eq!(stop_reason(&messages), "max_turn_requests", "{period} {small}");
            let ends = notices(&messages, "Stopped: ");
            let expected = format!("the budget of this {period} is used up ({amounts})");
            assert!(matches!(&*ends, [text] if text.contains(&expected)), "{ends:?}");
            assert_eq!(notices(&messages, "80 % of the budget").len(), 1, "{messages:?}");
            let requests = client.model.requests(&session);
            assert_eq!(requests.len(), 2, "{period} {small}");
            let last = last_message(&requests[1]).join("\n");
            assert!(last.contains(&format!("of the budget of this {period} are used;")), "{last}");
            client.end().await;

            let mut control = with_budgets(&format!("{period}: {{{large}}}"));
            let session = control.session().await;
            let messages = three_requests(&mut control, &session).await;
            assert_eq!((stop_reason(&messages), control.model.requests(&session).len()), ("end_turn", 3));
            assert_eq!(notices(&messages, "budget"), Vec::<&str>::new());
            control.end().await;
        }
    }
}

#[tokio::test]
async fn used_up_session_or_day_answers_prompts_without_the_model() {
    for (period, advice) in
        [("session", "Start a new session"), ("day", "It renews at midnight (1970-01-02 00:00")]
    {
        let mut client = with_budgets(&format!("{period}: {{tokens: 60}}"));
        let session = client.session().await;
        three_requests(&mut client, &session).await;
        let prompt = client.prompt(&session, "more").await;
        let refused = client.until_answer(prompt).await;
        assert_eq!(stop_reason(&refused), "max_turn_requests");
        assert_eq!(notices(&refused, advice).len(), 1, "{refused:?}");
        assert_eq!(client.model.requests(&session).len(), 2);
        let command = client.prompt(&session, "/mode").await;
        let answer = client.until_answer(command).await;
        assert_eq!((stop_reason(&answer), notices(&answer, "Mode: ").len()), ("end_turn", 1));
        let other = client.session().await;
        let messages = three_requests(&mut client, &other).await;
        let is_new = period == "session";
        assert_eq!(client.model.requests(&other).len(), if is_new { 2 } else { 0 }, "{messages:?}");
        client.end().await;
    }
    let mut client = with_budgets("turn: {tokens: 60}");
    let session = client.session().await;
    three_requests(&mut client, &session).await;
    client.prompt(&session, "more").await;
    for _ in 0..3 {
        client.model.next_request(&session).await;
    }
    client.end().await;
}

#[tokio::test]
async fn time_ends_a_turn_that_waits() {
    for period in ["turn", "session", "day"] {
        let mut client = with_budgets(&format!("{period}: {{minutes: 0.005}}"));
        let session = client.session().await;
        let started = Instant::now();
        let prompt = client.prompt(&session, "go").await;
        client.model.say(&session, Ok(ModelEvent::Text("I think".into())));
        let messages = client.until_answer(prompt).await;
        assert_eq!(stop_reason(&messages), "max_turn_requests", "{messages:?}");
        assert!(started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());
        assert_eq!(notices(&messages, &format!("the budget of this {period} is used up")).len(), 1);
        assert_eq!(notices(&messages, "80 % of the budget").len(), 1, "{messages:?}");
        client.end().await;
    }
    let mut control = with_budgets("turn: {minutes: 10}\nday: {minutes: 10}");
    let session = control.session().await;
    assert_eq!(stop_reason(&three_requests(&mut control, &session).await), "end_turn");
    control.end().await;
}

#[tokio::test]
async fn sub_agents_and_summaries_count_in_their_session() {
    for (limit, requests) in [(150, 1), (1000, 2)] {
        let setup = Setup {
            budgets: budgets(&format!("session: {{tokens: {limit}}}")),
            mode: "code",
            agents: AGENTS,
            live: true,
            ..Setup::default()
        };
        let mut client = TestClient::with(setup);
        let root = client.session().await;
        let prompt = client.prompt(&root, "go").await;
        client.calls(&root, vec![usage(50), call("delegate", json!({ "task": "one", "agent": "writer" }))]);
        client.calls("sess_2", vec![usage(150), list()]);
        client.answers("sess_2", "Found.");
        client.answers(&root, "Done.");
        let messages = client.until_answer(prompt).await;
        assert_eq!(client.model.requests(&root).len(), requests, "{messages:?}");
        // The sub-agent is limited, too.
        assert_eq!(client.model.requests("sess_2").len(), requests);
        client.end().await;
    }
    for (limit, requests) in [(150, 0), (1000, 1)] {
        let mut client = with_budgets(&format!("session: {{tokens: {limit}}}"));
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        client.model.say(&session, Ok(usage(10)));
        client.answers(&session, "Done.");
        client.until_answer(prompt).await;
        let prompt = client.prompt(&session, "/compact").await;
        client.model.say(&session, Ok(usage(150)));
        client.answers(&session, "Summary.");
        client.until_answer(prompt).await;
        let prompt = client.prompt(&session, "again").await;
        client.answers(&session, "Done.");
        client.until_answer(prompt).await;
        assert_eq!(client.model.requests(&session).len(), 2 + requests);
        client.end().await;
    }
}

fn on_store(path: &Path, yaml: &str, source: &Source) -> TestClient {
    TestClient::with(Setup {
        store: StoreLocation::File(path.to_owned()),
        budgets: budgets(yaml),
        source: source.clone(),
        ..Setup::default()
    })
}

#[tokio::test]
async fn two_processes_share_a_day_and_midnight_renews_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let source = Source::counted();
    let limit = "day: {tokens: 160}";
    let (mut one, mut other) = (on_store(&path, limit, &source), on_store(&path, limit, &source));
    let (first, second) = (one.session().await, other.session().await);
    assert_eq!(stop_reason(&three_requests(&mut one, &first).await), "end_turn");
    let messages = three_requests(&mut other, &second).await;
    assert_eq!(stop_reason(&messages), "max_turn_requests");
    assert_eq!(other.model.requests(&second).len(), 1, "150 tokens of the first process count");
    // Both see the sum.
    let prompt = one.prompt(&first, "more").await;
    assert_eq!(notices(&one.until_answer(prompt).await, "200 of 160 tokens").len(), 1);
    source.advance(24 * 60 * 60 * 1000);
    let third = one.session().await;
    assert_eq!(stop_reason(&three_requests(&mut one, &third).await), "end_turn", "a new day");
    one.end().await;
    other.end().await;
    let store = Store::open_now(&StoreLocation::File(path)).unwrap();
    let spent = [store.spent_on("1970-01-01").await.unwrap(), store.spent_on("1970-01-02").await.unwrap()];
    assert_eq!(spent.map(|spent| (spent.tokens, spent.micro_dollars)), [(200, 200), (150, 150)]);
}

#[tokio::test]
async fn continued_session_keeps_what_it_spent() {
    for (limit, stop) in
        [("session: {tokens: 160}", "max_turn_requests"), ("turn: {tokens: 160}", "end_turn")]
    {
        let fixture = StoreFixture::new();
        let setup = || Setup { budgets: budgets(limit), ..Setup::default() };
        let mut client = fixture.agent(setup());
        let session = client.session().await;
        three_requests(&mut client, &session).await;
        client.end().await;
        let mut client = fixture.agent(setup());
        open(&mut client, "session/resume", &session).await;
        let messages = three_requests(&mut client, &session).await;
        assert_eq!(stop_reason(&messages), stop, "{limit}");
        client.end().await;
    }
}

#[tokio::test]
async fn unknown_price_is_told_once_and_tokens_count() {
    let model = ModelId::new("ollama/unheard-of");
    let models = ModelCatalog::offline().with_default(model, Effort::Default, true);
    let setup = Setup {
        budgets: budgets("session: {tokens: 240, cost_usd: 0.00001}"),
        models: Arc::new(models),
        ..Setup::default()
    };
    let mut client = TestClient::with(setup);
    let session = client.session().await;
    let messages = three_requests(&mut client, &session).await;
    assert_eq!(stop_reason(&messages), "end_turn");
    let told = notices(&messages, "The price of ollama/unheard-of is unknown");
    assert_eq!(told.len(), 1, "{messages:?}");
    let messages = three_requests(&mut client, &session).await;
    assert_eq!(stop_reason(&messages), "max_turn_requests");
    assert_eq!(notices(&messages, "250 of 240 tokens").len() + notices(&messages, "is unknown").len(), 1);
    client.end().await;
}

#[test]
#[cfg(unix)]
fn amounts_of_a_killed_process_count() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let folder = tempfile::tempdir().unwrap();
    let (script, path) = (folder.path().join("script.jsonl"), folder.path().join("store.db"));
    let lines = [
        json!({ "usage": { "used": 60, "size": 1000 } }),
        json!({ "tool_call": { "id": "1", "name": "list_directory", "arguments": {} } }),
        json!({ "stop": "done" }),
        json!({ "text": "I wait." }),
        json!({ "delay_ms": 600_000 }),
        json!({ "stop": "done" }),
    ];
    std::fs::write(&script, lines.map(|line| line.to_string()).join("\n")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_modegate"))
        .current_dir(folder.path())
        .args(["--store", path.to_str().unwrap(), "--mode", "plan", "--model"])
        .args([&format!("scripted:{}", script.display()), "-p", "go"])
        .env_clear()
        .env("HOME", folder.path().join("home"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A process that waits for another one to make the store uses none.
    let mut first_line = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut first_line).unwrap();
    assert!(first_line.contains("plan mode, session"), "{first_line}");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let spent = || {
        let store = Store::open(StoreLocation::File(path.clone()), Sync::Normal).unwrap();
        runtime.block_on(store.spent_on(&Source::real().today(DayZone::Local).date)).unwrap_or_default()
    };
    let started = Instant::now();
    while spent().tokens == 0 {
        assert!(started.elapsed() < Duration::from_secs(30), "nothing is counted");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(Spent { ms: 0, ..spent() }, Spent { tokens: 60, micro_dollars: 0, ms: 0 });
}
