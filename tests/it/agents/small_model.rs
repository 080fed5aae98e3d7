//! `small_model`, the model of read-only sub-agents whose definition has no model.

use std::sync::Arc;

use modegate::model::ModelId;
use modegate::model::catalog::ModelCatalog;
use serde_json::json;

use crate::agents::delegation::call;
use crate::support::{Setup, TestClient};

#[tokio::test]
async fn small_model_answers_in_read_only_sub_agents_alone() {
    const OWN: &str =
        "[{id: writer}, {id: reader, readonly: true}, {id: own, readonly: true, model: ollama/own}]";
    for small in [None, Some("ollama/small")] {
        let models = ModelCatalog::offline().with_small(small.map(ModelId::new));
        let setup = Setup { mode: "code", agents: OWN, live: true, ..Setup::default() };
        let mut client = TestClient::with(Setup { models: Arc::new(models), ..setup });
        let root = client.session().await;
        let set = json!({ "sessionId": root, "configId": "model", "value": "ollama/big" });
        let set = client.request("session/set_config_option", set).await;
        client.until_answer(set).await;
        let prompt = client.prompt(&root, "go").await;
        let agents = ["general", "writer", "own", "explore", "reader"];
        client.calls(
            &root,
            agents.map(|agent| call("delegate", json!({ "task": "x", "agent": agent }))).into(),
        );
        for child in 2..6 {
            client.answers(&format!("sess_{child}"), "done");
        }
        // A writer below a reader uses the session's model.
        client.calls("sess_6", vec![call("delegate", json!({ "task": "x", "agent": "writer" }))]);
        for session in ["sess_7", "sess_6", &root] {
            client.answers(session, "done");
        }
        client.until_answer(prompt).await;
        let model = |session: &str| client.model.requests(session)[0].model.to_string();
        let readers = small.unwrap_or("ollama/big");
        for (session, expected) in [
            (root.as_str(), "ollama/big"),
            ("sess_2", "ollama/big"),
            ("sess_3", "ollama/big"),
            ("sess_4", "ollama/own"),
            ("sess_5", readers),
            ("sess_6", readers),
            ("sess_7", "ollama/big"),
        ] {
            assert_eq!(model(session), expected, "{small:?} {session}");
        }
        client.end().await;
    }
}
