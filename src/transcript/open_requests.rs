//! The client's requests that are not over. In version 2 of the protocol, the answer to a prompt has the id of its
//! message, and the prompt is over when its session is idle. Pure.

use std::collections::HashSet;

use serde_json::Value;

#[derive(Debug, Default)]
pub(super) struct OpenRequests {
    open: Vec<UnfinishedRequest>,
    /// Sessions that are not idle.
    running: HashSet<String>,
}

#[derive(Debug)]
struct UnfinishedRequest {
    id: String,
    session: String,
    is_answered: bool,
}

impl OpenRequests {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// True if the request has no answer.
    pub(super) fn awaits_answer(&self, id: &str) -> bool {
        self.open.iter().any(|request| request.id == id && !request.is_answered)
    }

    /// Adds a request of the client.
    pub(super) fn add(&mut self, id: String, message: &Value) {
        let session = message["params"]["sessionId"].as_str().unwrap_or_default().to_owned();
        self.open.push(UnfinishedRequest { id, session, is_answered: false });
    }

    /// Takes the agent's answer to the request with this id.
    pub(super) fn answered(&mut self, id: &str, message: &Value) {
        let Some(at) = self.open.iter().position(|request| request.id == id && !request.is_answered) else {
            return;
        };
        let is_inserted = message["result"]["messageId"].is_string();
        if is_inserted && self.running.contains(&self.open[at].session) {
            self.open[at].is_answered = true;
        } else {
            self.open.remove(at);
        }
    }

    /// Takes another message of the agent.
    pub(super) fn notified(&mut self, message: &Value) {
        let params = &message["params"];
        let (Some(session), Some(state)) = (params["sessionId"].as_str(), params["update"]["state"].as_str())
        else {
            return;
        };
        if params["update"]["sessionUpdate"] != "state_update" {
            return;
        }
        if state == "idle" {
            self.running.remove(session);
            self.open.retain(|request| !(request.is_answered && request.session == session));
        } else {
            self.running.insert(session.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn state(state: &str) -> Value {
        let update = json!({ "sessionUpdate": "state_update", "state": state });
        json!({ "method": "session/update", "params": { "sessionId": "s", "update": update } })
    }

    #[test]
    fn prompt_of_version_2_is_over_when_its_session_is_idle() {
        let prompt = json!({ "method": "session/prompt", "params": { "sessionId": "s" } });
        let inserted = json!({ "id": 1, "result": { "messageId": "m" } });
        let mut requests = OpenRequests::default();
        requests.add("1".into(), &prompt);
        requests.notified(&state("running"));
        requests.answered("1", &inserted);
        assert!(!requests.is_empty() && !requests.awaits_answer("1"));
        requests.notified(&state("requires_action"));
        assert!(!requests.is_empty());
        requests.notified(&state("idle"));
        assert!(requests.is_empty());
        // A command may be over before its answer.
        requests.add("2".into(), &prompt);
        requests.answered("2", &inserted);
        assert!(requests.is_empty());
    }

    #[test]
    fn other_requests_are_over_when_they_are_answered() {
        let mut requests = OpenRequests::default();
        requests.add("1".into(), &json!({ "params": { "sessionId": "s" } }));
        assert!(requests.awaits_answer("1"));
        requests.answered("1", &json!({ "result": { "stopReason": "end_turn" } }));
        assert!(requests.is_empty());
    }
}
