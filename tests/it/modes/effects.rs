//! Running effects. A mode change ends effects that the new mode denies and names those whose end is not
//! confirmed. Reads run in parallel.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use modegate::acp::ToolKind;
use modegate::mode::ShellUse;
use modegate::model::{ModelEvent, ModelStop};
use modegate::permission::Effect;
use modegate::tool::agent::background::BackgroundRole;
use modegate::tool::{PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec, Toolset};
use modegate::workspace::Workspace;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::support::{Setup, TestClient};

/// A tool whose effect runs until it is cancelled or released.
struct Slow {
    spec: ToolSpec,
    shared: Arc<SlowState>,
}

#[derive(Debug, Default)]
struct SlowState {
    /// The effect ignores its cancel token.
    ignores_cancel: bool,
    /// Ends an effect that ignores its token.
    release: Notify,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl Slow {
    fn new(effect: Effect, context: &Arc<SlowState>) -> Self {
        let spec = ToolSpec {
            name: "slow".into(),
            description: "Goes on until it is told to end.".into(),
            kind: ToolKind::Other,
            effect,
            claim: None,
            server: None,
            shell: ShellUse::Off,
            is_exit: false,
            background: BackgroundRole::None,
            schema: (&json!({ "type": "object" })).into(),
            timeout: Duration::from_mins(10),
        };
        Self { spec, shared: Arc::clone(context) }
    }
}

#[async_trait]
impl Tool for Slow {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn prepare(&self, _: Value, _: &Workspace) -> Result<PreparedCall, ToolError> {
        let shared = Arc::clone(&self.shared);
        Ok(PreparedCall::new("Slow", |context| shared.run(context)))
    }
}

impl SlowState {
    async fn run(self: Arc<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        // As for a thread or a process, the effect is a separate task that keeps the permit.
        let shared = Arc::clone(&self);
        let effect = tokio::spawn(async move {
            if shared.ignores_cancel {
                shared.release.notified().await;
            } else {
                tokio::select! {
                    () = context.permit.cancel.cancelled() => {}
                    () = shared.release.notified() => {}
                }
            }
            let ended = context.permit.cancel.is_cancelled();
            drop(context.permit);
            ended
        });
        let ended = effect.await.unwrap_or(true);
        self.running.fetch_sub(1, Ordering::SeqCst);
        if ended { Err(ToolError::Failed("ended".into())) } else { Ok(ToolOutput::default()) }
    }
}

/// Opens a session in `code` in which a slow effect runs.
async fn running(effect: Effect, context: &Arc<SlowState>) -> (TestClient, String, i64) {
    let tools = Toolset::new(vec![Arc::new(Slow::new(effect, context))]);
    let mut client = TestClient::with(Setup { mode: "code", tools, ..Setup::default() });
    let session = client.session().await;
    let prompt = client.prompt(&session, "go").await;
    let call = ModelEvent::ToolCall { id: "s".into(), name: "slow".into(), arguments: json!({}) };
    client.model.say(&session, Ok(call));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    while client.next().await["params"]["update"]["status"] != "in_progress" {}
    (client, session, prompt)
}

async fn set_mode(client: &mut TestClient, session: &str, mode: &str) -> (Vec<Value>, Value) {
    let id = client.request("session/set_mode", json!({ "sessionId": session, "modeId": mode })).await;
    let mut messages = client.until_answer(id).await;
    let answer = messages.pop().unwrap();
    (messages, answer["result"]["_meta"]["modegate/effect"].clone())
}

/// Returns the text of a failed call.
fn failed_text(message: &Value) -> Option<String> {
    let update = &message["params"]["update"];
    let text = update["content"][0]["content"]["text"].as_str()?;
    (update["status"] == "failed").then(|| text.to_owned())
}

#[tokio::test]
pub(super) async fn denied_running_effect_ends_before_set_mode_answers() {
    let context = Arc::new(SlowState::default());
    let (mut client, session, prompt) = running(Effect::Execute, &context).await;
    let (messages, effect) = set_mode(&mut client, &session, "plan").await;
    assert_eq!(effect["ended"], json!(["call_1_1"]));
    assert_eq!(effect["unconfirmed"], json!([]));
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let update = messages.iter().chain(&client.until_answer(prompt).await).find_map(failed_text);
    assert_eq!(
        update.unwrap(),
        "ended\nStopped: the session's mode has changed and does not allow this call."
    );
    client.end().await;
}

#[tokio::test]
pub(super) async fn running_effects_continue_when_the_new_mode_asks() {
    let context = Arc::new(SlowState::default());
    let (mut client, session, prompt) = running(Effect::Execute, &context).await;
    let (_, effect) = set_mode(&mut client, &session, "ask").await;
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!([]), &json!([])));
    assert_eq!(context.running.load(Ordering::SeqCst), 1);
    context.release.notify_one();
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    assert_eq!(client.until_answer(prompt).await[0]["params"]["update"]["status"], "completed");
    client.end().await;
}

#[tokio::test]
pub(super) async fn unconfirmed_effect_is_named_to_client_and_model() {
    let context = Arc::new(SlowState { ignores_cancel: true, ..SlowState::default() });
    let (mut client, session, prompt) = running(Effect::State, &context).await;
    let (_, effect) = set_mode(&mut client, &session, "plan").await;
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!([]), &json!(["call_1_1"])));
    context.release.notify_one();
    client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    client.until_answer(prompt).await;
    let request = client.model.requests(&session).pop().unwrap();
    let last = format!("{:?}", request.messages.last().unwrap().blocks.last().unwrap());
    assert!(last.contains("could not confirm that all running calls have ended"), "{last}");
    client.end().await;
}

#[tokio::test]
pub(super) async fn reads_run_in_parallel_and_changes_sequentially() {
    for (effect, together) in [(Effect::Read, 3), (Effect::Execute, 1)] {
        let context = Arc::new(SlowState::default());
        let tools = Toolset::new(vec![Arc::new(Slow::new(effect, &context))]);
        let mut client = TestClient::with(Setup { mode: "code", tools, parallel: 8, ..Setup::default() });
        let session = client.session().await;
        let prompt = client.prompt(&session, "go").await;
        for id in ["a", "b", "c"] {
            let call = ModelEvent::ToolCall { id: id.into(), name: "slow".into(), arguments: json!({}) };
            client.model.say(&session, Ok(call));
        }
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        client.model.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        let (mut started, mut over) = (0, 0);
        while over < 3 {
            match client.next().await["params"]["update"]["status"].as_str() {
                Some("in_progress") => started += 1,
                Some(_) => over += 1,
                None => {}
            }
            // Releases one effect whenever the expected number runs.
            if started - over == together || started == 3 {
                context.release.notify_one();
            }
        }
        assert_eq!(context.most.load(Ordering::SeqCst), together, "{effect:?}");
        client.until_answer(prompt).await;
        client.end().await;
    }
}
