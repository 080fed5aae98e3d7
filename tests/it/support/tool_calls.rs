//! A session whose model makes one call in each turn.

use modegate::model::{Block, ModelEvent, ModelStop};
use serde_json::{Value, json};

use crate::support::{Setup, TestClient};

/// An agent and a session.
pub(crate) struct Turns {
    pub client: TestClient,
    pub session: String,
    calls: usize,
    /// The model is not asked again in this turn.
    pub is_cancelled: bool,
}

impl Turns {
    pub(crate) async fn new(setup: Setup) -> Self {
        let mut client = TestClient::with(setup);
        let session = client.session().await;
        Self { client, session, calls: 0, is_cancelled: false }
    }

    /// Lets the model make a call. Returns the prompt's id.
    pub(crate) async fn begin(&mut self, tool: &str, arguments: Value) -> i64 {
        self.calls += 1;
        let prompt = self.client.prompt(&self.session, "go").await;
        let (id, name) = (format!("c{}", self.calls), tool.to_owned());
        self.client.model.say(&self.session, Ok(ModelEvent::ToolCall { id, name, arguments }));
        self.say_stop();
        prompt
    }

    fn say_stop(&self) {
        self.client.model.say(&self.session, Ok(ModelEvent::Stop(ModelStop::Done)));
    }

    /// Runs a turn with one call, and answers permission requests with this option. Returns the requests and
    /// the call's last update.
    pub(crate) async fn call(&mut self, tool: &str, arguments: Value, option: usize) -> (Vec<Value>, Value) {
        let prompt = self.begin(tool, arguments).await;
        self.finish(prompt, option).await
    }

    /// Returns the model's result of a call that needs no permission, or is allowed.
    pub(crate) async fn tool_result(&mut self, tool: &str, arguments: Value) -> String {
        self.call(tool, arguments, 0).await;
        self.result()
    }

    pub(crate) async fn finish(&mut self, prompt: i64, option: usize) -> (Vec<Value>, Value) {
        let (mut questions, mut last) = (Vec::new(), Value::Null);
        loop {
            let message = self.client.next().await;
            if message["method"] == "session/request_permission" {
                let chosen = &message["params"]["options"][option]["optionId"];
                let outcome = json!({ "outcome": { "outcome": "selected", "optionId": chosen } });
                let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": outcome });
                self.client.send_line(&answer.to_string()).await;
                questions.push(message["params"].clone());
            } else if message["id"] == prompt {
                return (questions, last);
            } else if matches!(message["params"]["update"]["status"].as_str(), Some("completed" | "failed")) {
                last = message["params"]["update"].clone();
                if !self.is_cancelled {
                    self.say_stop();
                }
            }
        }
    }

    /// Returns the model's last result.
    pub(crate) fn result(&self) -> String {
        let requests = self.client.model.requests(&self.session);
        let blocks = &requests.last().unwrap().messages.last().unwrap().blocks;
        let result = blocks.iter().find_map(|block| match block {
            Block::ToolResult { text, .. } => Some(text.clone()),
            _ => None,
        });
        result.expect("a result")
    }
}

/// Returns the text that the client shows for a call.
pub(crate) fn text(update: &Value) -> String {
    update["content"][0]["content"]["text"].as_str().unwrap_or_else(|| panic!("{update}")).to_owned()
}
