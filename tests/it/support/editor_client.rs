//! A client with files, terminals and forms, or some of them. The client has unsaved buffers, writes files,
//! and records all requests in order. The test fails if a tool asks for a terminal: some editors pass its
//! arguments to a shell, which would run a part of the line again.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;

use modegate::model::{Block, ModelEvent, ModelStop};
use modegate::process::shell::Sandbox;
use modegate::store::StoreLocation;
use modegate::tool::Toolset;
use serde_json::{Value, json};

use crate::support::{Setup, TestClient, shell};

/// A client with a session, and the agent at the other end.
#[allow(clippy::struct_excessive_bools, reason = "ways in which editors differ, in any combination")]
pub(crate) struct EditorClient {
    pub client: TestClient,
    pub session: String,
    /// Unsaved text by absolute path.
    pub buffers: HashMap<PathBuf, String>,
    /// Answers reads of files without a buffer with the saved text. Otherwise the client knows only its
    /// buffers.
    reads_disk: bool,
    /// The answer to the read of an unknown file: a result or an error.
    missing_file: Result<Value, Value>,
    /// The received requests in order: the method, and the path or the parameters.
    pub requests: Vec<(String, Value)>,
    /// Answers that replace the usual ones, each used once: a result, an error (a string, or an object with
    /// the member `error`), or null for no answer.
    pub answer_overrides: HashMap<&'static str, VecDeque<Value>>,
    /// Files that the client refuses to write.
    pub locked: Vec<PathBuf>,
    /// Saves a file when it is written.
    pub saves: bool,
    /// Leaves its buffers as they are when it writes a file.
    pub keeps_buffers: bool,
    /// Text that the client appends when it saves a file.
    pub appended_on_save: &'static str,
    /// The formatter on save. The buffer shows the formatted text.
    pub format: fn(&str) -> String,
    /// Leaves out the final newline in reads.
    pub hides_final_newline: bool,
    /// The home of commands, and the store.
    _home: tempfile::TempDir,
}

pub(crate) fn all() -> Value {
    json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true,
        "elicitation": { "form": {}, "url": {} } })
}

impl EditorClient {
    /// Opens a session in a mode, for a client with these capabilities.
    pub(crate) async fn new(mode: &'static str, capabilities: Value) -> Self {
        Self::with(mode, capabilities, Sandbox::Workspace).await
    }

    pub(crate) async fn with(mode: &'static str, capabilities: Value, sandbox: Sandbox) -> Self {
        let params = json!({ "protocolVersion": 1, "clientCapabilities": capabilities });
        Self::initialized(mode, params, sandbox).await
    }

    async fn initialized(mode: &'static str, params: Value, sandbox: Sandbox) -> Self {
        let home = tempfile::tempdir().unwrap();
        let tools = Toolset::built_in().with_shell(shell(home.path(), sandbox));
        let store = StoreLocation::File(home.path().join("store.db"));
        let mut client = TestClient::with(Setup { mode, tools, store, live: true, ..Setup::default() });
        client.call("initialize", params).await;
        let session = client.session().await;
        Self {
            client,
            session,
            buffers: HashMap::new(),
            reads_disk: false,
            missing_file: Err(error("unknown")),
            requests: Vec::new(),
            answer_overrides: HashMap::new(),
            locked: Vec::new(),
            saves: true,
            keeps_buffers: false,
            appended_on_save: "",
            format: str::to_owned,
            hides_final_newline: false,
            _home: home,
        }
    }

    /// Like the ACP client for VS Code: an exception of its file system becomes an internal error.
    pub(crate) async fn vs_code(mode: &'static str) -> Self {
        let details = "ENOENT: no such file or directory";
        let missing = json!({ "code": -32603, "message": "Internal error", "data": { "details": details } });
        Self::editor(mode, Err(missing)).await
    }

    /// Like Zed before display-only terminals: a missing file opens as an empty buffer.
    pub(crate) async fn older_zed(mode: &'static str) -> Self {
        Self::editor(mode, Ok(json!({ "content": "" }))).await
    }

    /// A client that sends its name.
    pub(crate) async fn named(mode: &'static str, name: &str) -> Self {
        Self::named_with(mode, name, all()).await
    }

    pub(crate) async fn named_with(mode: &'static str, name: &str, capabilities: Value) -> Self {
        let params = json!({ "protocolVersion": 1, "clientCapabilities": capabilities,
            "clientInfo": { "name": name, "version": "1.0.0" } });
        let client = Self::initialized(mode, params, Sandbox::Workspace).await;
        Self { reads_disk: true, ..client }
    }

    async fn editor(mode: &'static str, missing_file: Result<Value, Value>) -> Self {
        let capabilities = json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true });
        Self { reads_disk: true, missing_file, ..Self::new(mode, capabilities).await }
    }

    /// Returns the path of a file in the working directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.client.cwd().join(name)
    }

    /// Creates a file with the saved text and, if it differs, the text in the editor.
    pub(crate) fn file(&mut self, name: &str, saved: &str, shown: Option<&str>) {
        std::fs::write(self.path(name), saved).unwrap();
        if let Some(shown) = shown {
            self.buffers.insert(self.path(name), shown.into());
        }
    }

    pub(crate) fn saved(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path(name)).ok()
    }

    /// Returns the methods of the received requests.
    pub(crate) fn methods(&self) -> Vec<&str> {
        self.requests.iter().map(|(method, _)| method.as_str()).collect()
    }

    /// Counts the received requests with this method.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.methods().iter().filter(|asked| **asked == method).count()
    }

    pub(crate) fn override_answer(&mut self, method: &'static str, answer: Value) {
        self.answer_overrides.entry(method).or_default().push_back(answer);
    }

    /// Lets the model make calls in one reply, and end. Returns the prompt's id.
    pub(crate) async fn begin(&mut self, calls: &[(&str, Value)]) -> i64 {
        let prompt = self.client.prompt(&self.session, "go").await;
        for (number, (tool, arguments)) in calls.iter().enumerate() {
            let id = format!("m{}_{number}", self.client.model.requests(&self.session).len());
            let call = ModelEvent::ToolCall { id, name: (*tool).into(), arguments: arguments.clone() };
            self.client.model.say(&self.session, Ok(call));
        }
        for _ in 0..2 {
            self.client.model.say(&self.session, Ok(ModelEvent::Stop(ModelStop::Done)));
        }
        prompt
    }

    /// Lets the model make one call. Returns the result for the model.
    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> String {
        let prompt = self.begin(&[(tool, arguments)]).await;
        self.until_answer(prompt).await;
        self.last_tool_result()
    }

    pub(crate) fn last_tool_result(&self) -> String {
        let request = self.client.model.requests(&self.session).pop().unwrap();
        let mut blocks = request.messages.iter().rev().flat_map(|message| message.blocks.iter().rev());
        let result = blocks.find_map(|block| match block {
            Block::ToolResult { text, .. } => Some(text.clone()),
            _ => None,
        });
        result.unwrap_or_default()
    }

    /// Answers requests until the answer to this request arrives. Returns the messages.
    pub(crate) async fn until_answer(&mut self, id: i64) -> Vec<Value> {
        self.until(|message| message["id"] == id && message.get("method").is_none()).await
    }

    /// Answers requests until a message matches.
    pub(crate) async fn until(&mut self, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            let message = self.client.next().await;
            self.answer(&message).await;
            messages.push(message);
            if is_last(messages.last().unwrap()) {
                return messages;
            }
        }
    }

    /// Answers requests until a file exists.
    pub(crate) async fn until_file_exists(&mut self, name: &str) {
        let path = self.path(name);
        let started = std::time::Instant::now();
        while !path.exists() {
            assert!(started.elapsed() < crate::support::TIMEOUT, "{} did not come", path.display());
            if let Some(message) = self.client.next_within(std::time::Duration::from_millis(2)).await {
                self.answer(&message).await;
            }
        }
    }

    pub(crate) async fn set_mode(&mut self, mode: &str) -> (Vec<Value>, Value) {
        let params = json!({ "sessionId": self.session, "modeId": mode });
        let id = self.client.request("session/set_mode", params).await;
        let messages = self.until_answer(id).await;
        let effect = messages.last().unwrap()["result"]["_meta"]["modegate/effect"].clone();
        (messages, effect)
    }

    pub(crate) async fn cancel(&mut self) {
        self.client.notify("session/cancel", json!({ "sessionId": self.session })).await;
    }

    pub(crate) async fn end(self) {
        self.client.end().await;
    }

    async fn answer(&mut self, message: &Value) {
        let (Some(method), Some(id)) = (message["method"].as_str(), message.get("id")) else {
            if message["method"] == "$/cancel_request" {
                self.requests.push(("$/cancel_request".into(), message["params"].clone()));
            }
            return;
        };
        let params = message["params"].clone();
        self.requests.push((method.to_owned(), params.clone()));
        let odd = self.answer_overrides.iter_mut().find(|(odd, _)| **odd == method);
        let result = match odd.and_then(|(_, answers)| answers.pop_front()) {
            Some(Value::Null) => return,
            Some(Value::String(message)) => Err(error(&message)),
            Some(answer) if answer.get("error").is_some() => Err(answer["error"].clone()),
            Some(result) => Ok(result),
            None => self.result(method, &params),
        };
        let line = answer_line(id, &result);
        self.client.send_line(&line).await;
    }

    fn result(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        match method {
            "fs/read_text_file" => {
                let path = PathBuf::from(params["path"].as_str().unwrap());
                let saved = || self.reads_disk.then(|| std::fs::read_to_string(&path).ok()).flatten();
                match self.buffers.get(&path).cloned().or_else(saved) {
                    Some(text) if self.hides_final_newline => {
                        Ok(json!({ "content": text.strip_suffix('\n').unwrap_or(&text) }))
                    }
                    Some(text) => Ok(json!({ "content": text })),
                    None => self.missing_file.clone(),
                }
            }
            "fs/write_text_file" => {
                let path = PathBuf::from(params["path"].as_str().unwrap());
                let content = params["content"].as_str().unwrap();
                let content = (self.format)(content);
                if self.locked.contains(&path) {
                    return Err(error("locked"));
                }
                if self.saves {
                    std::fs::write(&path, format!("{content}{}", self.appended_on_save)).unwrap();
                }
                if !self.keeps_buffers {
                    self.buffers.insert(path, content);
                }
                Ok(json!({}))
            }
            "terminal/create" => panic!("a tool asks for a terminal: {params}"),
            "session/request_permission" => {
                let option = &params["options"][0]["optionId"];
                Ok(json!({ "outcome": { "outcome": "selected", "optionId": option } }))
            }
            "elicitation/create" => Ok(json!({ "action": "decline" })),
            method => panic!("{method} is not answered here"),
        }
    }
}

fn error(message: &str) -> Value {
    json!({ "code": -32002, "message": message })
}

fn answer_line(id: &Value, result: &Result<Value, Value>) -> String {
    let answer = match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error }),
    };
    answer.to_string()
}

#[tokio::test]
#[should_panic(expected = "a tool asks for a terminal")]
async fn editor_client_fails_at_a_terminal() {
    let mut client = EditorClient::vs_code("code").await;
    let request =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "terminal/create", "params": { "command": "true" } });
    client.answer(&request).await;
}
