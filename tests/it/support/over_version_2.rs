//! Lets tests that are written for version 1 of the protocol run over version 2: requests of the test become those
//! of version 2, and messages of the agent those of version 1.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test whose clients speak version 2.
pub(crate) fn over_version_2(test: impl FnOnce()) {
    IS_ON.set(true);
    test();
    IS_ON.set(false);
}

pub(crate) fn is_on() -> bool {
    IS_ON.get()
}

/// Translates one connection.
#[derive(Default)]
pub(crate) struct Translator {
    /// Methods of version 1, by the request's id.
    methods: HashMap<String, String>,
    /// Sessions of the unanswered prompts, by the request's id.
    prompts: HashMap<String, String>,
    /// Prompts in the history, without an end of their turn, in order.
    inserted: Vec<(String, Value)>,
    /// Ends of turns whose prompts have no answer yet.
    ends: HashMap<String, Value>,
    calls: HashSet<String>,
    modes: HashMap<String, Value>,
}

impl Translator {
    /// Translates a message of the test.
    pub(crate) fn outgoing(&mut self, mut message: Value) -> Value {
        let Some(method) = message["method"].as_str().map(str::to_owned) else { return message };
        let id = message["id"].to_string();
        let params = &mut message["params"];
        let translated = match method.as_str() {
            "initialize" => {
                let capabilities = params["clientCapabilities"].clone();
                let elicitation = capabilities.get("elicitation").cloned().unwrap_or_default();
                *params = json!({ "protocolVersion": 2, "info": { "name": "test", "version": "1" },
                    "capabilities": { "elicitation": elicitation } });
                "initialize"
            }
            "session/load" => {
                params["replayFrom"] = json!({ "type": "start" });
                "session/resume"
            }
            "session/set_mode" => {
                let mode = params["modeId"].take();
                *params = json!({ "sessionId": params["sessionId"], "configId": "mode", "type": "id",
                    "value": mode });
                "session/set_config_option"
            }
            "session/set_config_option" => {
                params["type"] = json!(if params["value"].is_boolean() { "boolean" } else { "id" });
                "session/set_config_option"
            }
            "session/prompt" => {
                let session = params["sessionId"].as_str().unwrap_or_default().to_owned();
                self.prompts.insert(id.clone(), session);
                "session/prompt"
            }
            other => other,
        };
        message["method"] = translated.into();
        if message.get("id").is_some() {
            self.methods.insert(id, method);
        }
        message
    }

    /// Translates a message of the agent to those that a client of version 1 gets.
    pub(crate) fn incoming(&mut self, message: Value) -> Vec<Value> {
        match message["method"].as_str() {
            Some("session/update") => self.update(message),
            Some("session/request_permission") => vec![permission_request(message)],
            Some(_) => vec![message],
            None => self.answer(message),
        }
    }

    fn answer(&mut self, mut message: Value) -> Vec<Value> {
        let id = message["id"].to_string();
        let method = self.methods.remove(&id).unwrap_or_default();
        if let Some(session) = self.prompts.remove(&id) {
            if message["error"]["code"] == -32800 {
                return vec![json!({ "jsonrpc": "2.0", "id": message["id"],
                    "result": { "stopReason": "cancelled" } })];
            }
            if message.get("error").is_some() {
                return vec![message];
            }
            if let Some(end) = self.ends.remove(&session) {
                return vec![with_id(end, &message["id"])];
            }
            self.inserted.push((session, message["id"].take()));
            return Vec::new();
        }
        if method == "initialize" && message.get("result").is_some() {
            message["result"]["protocolVersion"] = 1.into();
        }
        let session = message["result"]["sessionId"].as_str().unwrap_or_default().to_owned();
        let result = &mut message["result"];
        let commands = result["availableCommands"].take();
        if let Some(members) = result.as_object_mut() {
            members.remove("availableCommands");
            if let Some(options) = members.get_mut("configOptions") {
                rename_option_ids(options);
                if let Some(mode) = mode_of(options).cloned() {
                    self.modes.insert(session.clone(), mode.clone());
                    members.insert("modes".to_owned(), json!({ "currentModeId": mode }));
                }
            }
        } else if result.is_null() {
            message.as_object_mut().unwrap().remove("result");
        }
        let mut messages = vec![message];
        if method == "session/new" && !commands.is_null() {
            messages.push(update_message(
                &json!(session),
                &json!({
                "sessionUpdate": "available_commands_update", "availableCommands": commands }),
            ));
        }
        messages
    }

    fn update(&mut self, mut message: Value) -> Vec<Value> {
        let session = message["params"]["sessionId"].clone();
        let name = session.as_str().unwrap_or_default().to_owned();
        let update = &mut message["params"]["update"];
        match update["sessionUpdate"].as_str().unwrap_or_default() {
            "state_update" if update["state"] == "idle" && !update["stopReason"].is_null() => {
                let end = end_of_turn(update);
                let of_session = self.inserted.extract_if(.., |(inserted, _)| *inserted == name);
                let ended: Vec<Value> = of_session.map(|(_, id)| with_id(end.clone(), &id)).collect();
                if ended.is_empty() && self.prompts.values().any(|waiting| *waiting == name) {
                    self.ends.insert(name, end);
                }
                ended
            }
            "state_update"
            | "user_message"
            | "replay_complete"
            | "terminal_update"
            | "terminal_output_chunk"
            | "subagent_update"
            | "session_message"
            | "plan_removed" => Vec::new(),
            "plan_update" if update["plan"]["type"] == "markdown" => Vec::new(),
            "notice" => {
                let text = match update["description"].as_str() {
                    Some(more) => format!("{}. {more}", update["title"].as_str().unwrap_or_default()),
                    None => format!("{}.", update["title"].as_str().unwrap_or_default()),
                };
                *update = json!({ "sessionUpdate": "agent_message_chunk",
                    "content": { "type": "text", "text": text }, "_meta": { "modegate/notice": true } });
                vec![message]
            }
            "config_option_update" => {
                rename_option_ids(&mut update["configOptions"]);
                let mode = mode_of(&update["configOptions"]).cloned().unwrap_or_default();
                let mut messages = Vec::new();
                if self.modes.insert(name, mode.clone()).as_ref() != Some(&mode) {
                    let change = json!({ "sessionUpdate": "current_mode_update", "currentModeId": mode,
                        "modeId": mode });
                    messages.push(update_message(&session, &change));
                }
                messages.push(message);
                messages
            }
            "tool_call_update" => {
                let is_first = self.calls.insert(format!("{name} {}", update["toolCallId"]));
                as_call(update);
                if update.as_object().unwrap().len() == 2 {
                    // Only what version 1 does not have.
                    return Vec::new();
                }
                if is_first {
                    update["sessionUpdate"] = "tool_call".into();
                    if update["status"] == "pending" {
                        update.as_object_mut().unwrap().remove("status");
                    }
                }
                vec![message]
            }
            _ => vec![message],
        }
    }
}

/// Renames the end of a cancelled call, and shows the output of a terminal as text.
fn as_call(update: &mut Value) {
    if let Some(members) = update.as_object_mut() {
        members.remove("capabilities");
    }
    if update["status"] == "cancelled" {
        update["status"] = "failed".into();
    }
    let output = update["rawOutput"]["output"].clone();
    if let Some(content) = update.get_mut("content").and_then(Value::as_array_mut) {
        content.retain(|item| item["type"] != "session");
        for item in content.iter_mut().filter(|item| item["type"] == "terminal") {
            *item = json!({ "type": "content", "content": { "type": "text", "text": output } });
        }
    }
}

fn permission_request(mut message: Value) -> Value {
    let params = &mut message["params"];
    let mut call = params["subject"]["toolCall"].take();
    as_call(&mut call);
    params["toolCall"] = call;
    if let Some(members) = params.as_object_mut() {
        members.remove("subject");
        members.remove("title");
    }
    message
}

fn end_of_turn(update: &mut Value) -> Value {
    if update["stopReason"] == "error" {
        return json!({ "jsonrpc": "2.0", "error": update["error"] });
    }
    let mut result = json!({ "stopReason": update["stopReason"] });
    if !update["_meta"].is_null() {
        result["_meta"] = update["_meta"].take();
    }
    json!({ "jsonrpc": "2.0", "result": result })
}

fn with_id(mut answer: Value, id: &Value) -> Value {
    answer["id"] = id.clone();
    answer
}

fn update_message(session: &Value, update: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": "session/update",
        "params": { "sessionId": session, "update": update } })
}

fn rename_option_ids(options: &mut Value) {
    for option in options.as_array_mut().into_iter().flatten() {
        option["id"] = option["configId"].take();
    }
}

fn mode_of(options: &Value) -> Option<&Value> {
    let mut options = options.as_array()?.iter();
    options.find(|option| option["id"] == "mode").map(|option| &option["currentValue"])
}
