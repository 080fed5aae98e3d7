//! Running effects: a mode change ends what no longer fits and says what it could not confirm; reads run together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use modegate::acp::ToolKind;
use modegate::mode::ShellUse;
use modegate::model::{ModelEvent, ModelStop};
use modegate::permission::{Effect, Target};
use modegate::tool::{PreparedCall, RunContext, Tool, ToolError, ToolOutput, ToolSpec, Toolset};
use modegate::workspace::Workspace;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::support::{Harness, Setup};

/// A tool whose effect goes on until it is told to end.
struct Slow {
    spec: ToolSpec,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// It does not look at its token.
    deaf: bool,
    /// Lets a deaf effect end.
    release: Notify,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl Slow {
    fn new(effect: Effect, shared: &Arc<Shared>) -> Self {
        let spec = ToolSpec {
            name: "slow".into(),
            description: "Goes on until it is told to end.".into(),
            kind: ToolKind::Other,
            effect,
            claim: None,
            shell: ShellUse::Off,
            is_background: false,
            is_exit: false,
            schema: (&json!({ "type": "object" })).into(),
            timeout: Duration::from_secs(600),
        };
        Self { spec, shared: Arc::clone(shared) }
    }
}

#[async_trait]
impl Tool for Slow {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn prepare(&self, _: Value, _: &Workspace) -> Result<Box<dyn PreparedCall>, ToolError> {
        Ok(Box::new(Call(Arc::clone(&self.shared))))
    }
}

#[derive(Debug)]
struct Call(Arc<Shared>);

#[async_trait]
impl PreparedCall for Call {
    fn title(&self) -> String {
        "Slow".into()
    }

    fn targets(&self) -> &[Target] {
        &[]
    }

    async fn run(self: Box<Self>, context: RunContext) -> Result<ToolOutput, ToolError> {
        let running = self.0.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(running, Ordering::SeqCst);
        // The effect is a task of its own, as a thread or a process would be; it keeps the permit.
        let shared = Arc::clone(&self.0);
        let effect = tokio::spawn(async move {
            if shared.deaf {
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
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        if ended { Err(ToolError::Failed("ended".into())) } else { Ok(ToolOutput::default()) }
    }
}

/// A session in `code` with a slow effect that runs.
async fn running(effect: Effect, shared: &Arc<Shared>) -> (Harness, String, i64) {
    let tools = Toolset::new(vec![Arc::new(Slow::new(effect, shared))]);
    let mut harness = Harness::with(Setup { mode: "code", tools, ..Setup::default() });
    let session = harness.session().await;
    let prompt = harness.prompt(&session, "go").await;
    let call = ModelEvent::ToolCall { id: "s".into(), name: "slow".into(), arguments: json!({}) };
    harness.stage.say(&session, Ok(call));
    harness.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    while harness.next().await["params"]["update"]["status"] != "in_progress" {}
    (harness, session, prompt)
}

async fn set_mode(harness: &mut Harness, session: &str, mode: &str) -> (Vec<Value>, Value) {
    let id = harness.request("session/set_mode", json!({ "sessionId": session, "modeId": mode })).await;
    let mut messages = harness.until_answer(id).await;
    let answer = messages.pop().unwrap();
    (messages, answer["result"]["_meta"]["modegate/effect"].clone())
}

/// What a failed call says.
fn failed_text(message: &Value) -> Option<String> {
    let update = &message["params"]["update"];
    let text = update["content"][0]["content"]["text"].as_str()?;
    (update["status"] == "failed").then(|| text.to_owned())
}

#[tokio::test]
async fn a_running_effect_that_no_longer_fits_is_over_when_the_change_is_answered() {
    let shared = Arc::new(Shared::default());
    let (mut harness, session, prompt) = running(Effect::Execute, &shared).await;
    let (told, effect) = set_mode(&mut harness, &session, "plan").await;
    assert_eq!(effect["ended"], json!(["call_1_1"]));
    assert_eq!(effect["unconfirmed"], json!([]));
    harness.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    let update = told.iter().chain(&harness.until_answer(prompt).await).find_map(failed_text);
    assert_eq!(
        update.unwrap(),
        "ended\nStopped: the session's mode has changed and does not allow this call."
    );
    harness.end().await;
}

#[tokio::test]
async fn effects_that_would_only_be_asked_for_run_on() {
    let shared = Arc::new(Shared::default());
    let (mut harness, session, prompt) = running(Effect::Execute, &shared).await;
    let (_, effect) = set_mode(&mut harness, &session, "ask").await;
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!([]), &json!([])));
    assert_eq!(shared.running.load(Ordering::SeqCst), 1);
    shared.release.notify_one();
    harness.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    assert_eq!(harness.until_answer(prompt).await[0]["params"]["update"]["status"], "completed");
    harness.end().await;
}

#[tokio::test]
async fn an_effect_that_does_not_end_is_named_to_the_client_and_to_the_model() {
    let shared = Arc::new(Shared { deaf: true, ..Shared::default() });
    let (mut harness, session, prompt) = running(Effect::State, &shared).await;
    let (_, effect) = set_mode(&mut harness, &session, "plan").await;
    assert_eq!((&effect["ended"], &effect["unconfirmed"]), (&json!([]), &json!(["call_1_1"])));
    shared.release.notify_one();
    harness.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
    harness.until_answer(prompt).await;
    let request = harness.stage.requests(&session).pop().unwrap();
    let last = format!("{:?}", request.messages.last().unwrap().blocks.last().unwrap());
    assert!(last.contains("could not be confirmed to have ended"), "{last}");
    harness.end().await;
}

#[tokio::test]
async fn read_side_calls_of_one_message_run_together_and_changes_one_by_one() {
    for (effect, together) in [(Effect::Read, 3), (Effect::Execute, 1)] {
        let shared = Arc::new(Shared::default());
        let tools = Toolset::new(vec![Arc::new(Slow::new(effect, &shared))]);
        let mut harness = Harness::with(Setup { mode: "code", tools, parallel: 8, ..Setup::default() });
        let session = harness.session().await;
        let prompt = harness.prompt(&session, "go").await;
        for id in ["a", "b", "c"] {
            let call = ModelEvent::ToolCall { id: id.into(), name: "slow".into(), arguments: json!({}) };
            harness.stage.say(&session, Ok(call));
        }
        harness.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        harness.stage.say(&session, Ok(ModelEvent::Stop(ModelStop::Done)));
        let (mut begun, mut over) = (0, 0);
        while over < 3 {
            match harness.next().await["params"]["update"]["status"].as_str() {
                Some("in_progress") => begun += 1,
                Some(_) => over += 1,
                None => {}
            }
            // One is let go whenever as many run as may.
            if begun - over == together || begun == 3 {
                shared.release.notify_one();
            }
        }
        assert_eq!(shared.most.load(Ordering::SeqCst), together, "{effect:?}");
        harness.until_answer(prompt).await;
        harness.end().await;
    }
}
