//! Results that later calls repeat are replaced at half of the context, and the new cache pays.

use modegate::model::{Block, ModelEvent, ModelRequest, ModelStop};
use serde_json::json;

use crate::models::reminder_cost::{cost, parts};
use crate::models::selection::catalogue;
use crate::support::{Setup, TestClient};

/// Bytes of each file.
const FILE: usize = 6_000;

/// Makes a turn of reads, of a new file or, in each `again`th step, of the first one, which has changed since.
async fn requests(context: u64, steps: usize, again: usize) -> Vec<ModelRequest> {
    let mut client = TestClient::with(Setup { mode: "code", models: catalogue(context), ..Setup::default() });
    let session = client.session().await;
    let prompt = client.prompt(&session, "Read.").await;
    let mut requests = Vec::new();
    for step in 0..steps {
        requests.push(client.model.next_request(&session).await);
        let name = if step % again == 0 { "first.txt".to_owned() } else { format!("{step}.txt") };
        let text = format!("{step}: a line of twenty\n").repeat(FILE / 22);
        std::fs::write(client.cwd().join(&name), text).unwrap();
        let call = ModelEvent::ToolCall {
            id: format!("c{step}"),
            name: "read_file".into(),
            arguments: json!({ "path": name }),
        };
        client.model.say(&session, Ok(call));
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }
    requests.push(client.model.next_request(&session).await);
    client.model.say(&session, Ok(ModelEvent::Text("Done.".into())));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.until_answer(prompt).await;
    client.end().await;
    requests
}

/// The results that a line has replaced.
fn replaced(request: &ModelRequest) -> usize {
    let blocks = request.messages.iter().flat_map(|message| &message.blocks);
    let results = blocks.filter(|block| {
        matches!(block, Block::ToolResult { text, .. } if text.starts_with("[Left out to save context: a later call"))
    });
    results.count()
}

/// Price of the requests in uncached bytes: a byte that is written to the cache costs 1.25, one that is read 0.1.
fn price(requests: &[ModelRequest]) -> usize {
    let parts: Vec<_> = requests.iter().map(parts).collect();
    let cost = cost(&parts, requests.len());
    (cost.uncached * 100 + cost.written * 125 + cost.read * 10) / 100
}

#[tokio::test]
async fn superseded_results_are_replaced_at_half_of_the_context_and_it_pays() {
    // Every second read, and every third, is of the same file. All of them fit into the context.
    for (again, steps) in [(2, 96), (3, 96)] {
        let context = steps * FILE / 4 * 5 / 4;
        let with = requests(context as u64, steps, again).await;
        let without = requests(100_000_000, steps, again).await;
        assert_eq!(without.iter().map(replaced).sum::<usize>(), 0, "the control");
        let first = with.iter().position(|request| replaced(request) > 0).expect("results are replaced");
        assert!(first > steps / 2, "not before half of the context: in request {first}");
        assert!(replaced(&with[first]) >= first / again - 2, "all at once: {}", replaced(&with[first]));
        let batches = with.windows(2).filter(|pair| replaced(&pair[0]) < replaced(&pair[1])).count();
        assert!(batches <= 2, "{batches} batches");
        let last = with.last().unwrap().messages.iter().flat_map(|message| &message.blocks);
        let newest = last.filter_map(|block| match block {
            Block::ToolResult { text, .. } if text.contains(": a line of twenty") => Some(text.clone()),
            _ => None,
        });
        let newest_step = (steps - 1) / again * again;
        assert!(newest.into_iter().any(|text| text.starts_with(&format!("1\t{newest_step}: "))));
        let (with, without) = (price(&with), price(&without));
        println!("every {again}th read again: {with} with, {without} without");
        assert!(with < without, "every {again}th: {with} with, {without} without");
    }
}
