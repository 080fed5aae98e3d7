//! A tool of an MCP server, and a call of it.
//!
//! A decision uses the server's hints of that moment. Right before the request the hints are compared again:
//! if they differ, the tool is not called.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use rmcp::ServiceError;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientNotification, ClientRequest, CustomNotification,
    CustomResult, JsonObject, ProgressNotificationParam, RequestId, ServerResult,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestHandle, RoleClient};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::fault::{cannot_be_used, error_message};
use super::listing::ServerTool;
use super::message_limit::TOO_LARGE;
use super::result::ToolAnswer;
use super::server::{Server, WeakServer};
use super::task::ServerPeer;
use crate::conversation::content::ToolContent;
use crate::gate::Permit;
use crate::permission::Effect;
use crate::platform::Platform;
use crate::server::ServerEntry;
use crate::text::{shorten, visible};
use crate::tool::shell::job;
use crate::tool::{
    PreparedCall, Preview, RunContext, Tool, ToolError, ToolOutput, ToolSpec, arguments, blocking,
};
use crate::workspace::{Changes, Outputs, Workspace};

/// Grace period for a call that the mode now denies, before the server is killed.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum strings in the arguments to treat as paths, and maximum bytes of each.
const MAX_MENTIONS: usize = 1000;
const MAX_MENTION: usize = 4096;

type ServerAnswer = Result<ServerResult, ServiceError>;

pub(super) struct RemoteTool {
    pub tool: Arc<ServerTool>,
    pub server: WeakServer,
}

#[async_trait]
impl Tool for RemoteTool {
    fn spec(&self) -> &ToolSpec {
        &self.tool.spec
    }

    async fn prepare(&self, given: Value, workspace: &Workspace) -> Result<PreparedCall, ToolError> {
        let mut arguments: JsonObject =
            arguments::object(given).map_err(|error| error.of_tool(&self.tool.spec.name))?;
        for (shown, own) in &self.tool.renamed {
            if let Some(value) = arguments.shift_remove(shown) {
                arguments.insert(own.clone(), value);
            }
        }
        let server =
            self.server.get().ok_or_else(|| ToolError::Failed("The MCP server has ended.".into()))?;
        let given = Value::Object(arguments.clone());
        let (mentions, preview) = (mentions(&given, workspace), preview(&given));
        let (tool, name) = (self.tool.spec.name.to_string(), self.tool.own_name.clone());
        let outputs = workspace.outputs().clone();
        let call = RemoteCall { tool, name, arguments, server, outputs };
        let call = PreparedCall::new(&self.tool.title, |context| call.run(context));
        Ok(PreparedCall { mentions, preview: Preview::Content(preview), ..call })
    }
}

fn preview(arguments: &Value) -> Vec<ToolContent> {
    if arguments.as_object().is_some_and(JsonObject::is_empty) {
        return Vec::new();
    }
    // JSON escapes line breaks, so no argument can end the code block or imitate another argument.
    let json = format!("{arguments:#}");
    vec![ToolContent::middle(&format!("```json\n{}\n```\n", visible(&json)))]
}

struct RemoteCall {
    tool: String,
    name: String,
    arguments: JsonObject,
    server: Server,
    outputs: Outputs,
}

impl RemoteCall {
    async fn run(self, context: RunContext) -> Result<ToolOutput, ToolError> {
        let RunContext { permit, progress, changes, .. } = context;
        let ready = tokio::select! {
            biased;
            () = permit.cancel.cancelled() => return Err(not_called()),
            ready = self.server.ready() => ready,
        };
        let server = &self.server.identity.entry.name;
        let failed = |why: &str| ToolError::Failed(cannot_be_used(server, why));
        let (line, listing) = ready.map_err(|why| failed(&why))?;
        match listing.spec_of(&self.tool) {
            Some(spec) if is_as_decided(spec, &permit) => {}
            Some(_) => {
                return Err(ToolError::Failed(format!(
                    "{} was not called: the server changed the tool's hints. Call it again for a new decision.",
                    self.tool
                )));
            }
            None => {
                return Err(ToolError::Failed(format!("{} no longer exists on its server.", self.tool)));
            }
        }
        if permit.cancel.is_cancelled() {
            return Err(not_called());
        }
        let ServerPeer { peer, progress: dispatcher } = line;
        let params = CallToolRequestParams::new(self.name).with_arguments(self.arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let sent = peer.send_request_with_option(request, PeerRequestOptions::no_options()).await;
        let RequestHandle { mut rx, peer, id, progress_token, .. } =
            sent.map_err(|error| failed(&error_message(&error, &self.server.identity.entry)))?;
        if permit.effect != Effect::Read {
            let why = format!("Changes made by {} of the MCP server {server} are not tracked.", self.tool);
            // The receiver may be gone.
            let _ = changes.send(Changes { uncovered: vec![why], ..Changes::default() });
        }
        let mut steps = dispatcher.subscribe(progress_token).await;
        loop {
            tokio::select! {
                biased;
                () = permit.cancel.cancelled() => break,
                answer = &mut rx => {
                    if !is_answer(&answer) && !self.server.wait_until_gone().await {
                        permit.release_unconfirmed();
                    }
                    let answer = answer.unwrap_or(Err(ServiceError::TransportClosed));
                    let result = result_of(answer, &self.server.identity.entry, failed)?;
                    let (outputs, scratch) = (self.outputs, self.server.scratch.clone());
                    return blocking(move || {
                        result.into_output(|text| job::shortened(text, &outputs, scratch.as_deref()))
                    })
                    .await;
                }
                step = steps.next() => {
                    if let (Some(progress), Some(step)) = (&progress, step) {
                        // One queued update is enough, and the receiver may be gone.
                        let _ = progress.try_send(ToolContent::text(&words(&step)));
                    }
                }
            }
        }
        let text = if permit.denied.is_cancelled() {
            "The call was cancelled.".to_owned()
        } else {
            format!(
                "The call was cancelled. It is unknown whether {server} completed the call or continues it."
            )
        };
        // In separate tasks: sending blocks if the server does not read, and the caller does not wait for the answer.
        tokio::spawn(send_cancellation(peer, id));
        tokio::spawn(await_cancelled_call(self.server.clone(), rx, permit));
        Err(ToolError::Failed(text))
    }
}

fn not_called() -> ToolError {
    ToolError::Failed("The tool was not called.".into())
}

/// A hint that was withdrawn and given again counts as a new claim.
fn is_as_decided(spec: &ToolSpec, permit: &Permit) -> bool {
    (spec.effect, &spec.claim) == (permit.effect, &permit.claim)
}

/// Every string in the arguments as a path, with `file:` URLs decoded, also relative to a session folder that contains it.
pub fn mentions(arguments: &Value, workspace: &Workspace) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut open = vec![arguments];
    while let Some(value) = open.pop() {
        match value {
            Value::String(text) if text.len() <= MAX_MENTION => {
                let path = Platform::HERE.path_of_url(text).map_or_else(|| text.into(), PathBuf::from);
                let below = workspace.roots().iter().filter_map(|root| path.strip_prefix(root).ok());
                all.extend(below.map(Path::to_owned));
                all.push(path);
            }
            Value::Array(values) => open.extend(values),
            Value::Object(members) => open.extend(members.values()),
            _ => {}
        }
        if all.len() > MAX_MENTIONS {
            break;
        }
    }
    all
}

/// Keeps the permit of a cancelled call until the server answers or is gone. Kills the server if the mode
/// denies the call and [`TIMEOUT`] passes.
async fn await_cancelled_call(server: Server, mut answer: oneshot::Receiver<ServerAnswer>, permit: Permit) {
    let answered = tokio::select! {
        biased;
        answer = &mut answer => Some(answer),
        () = permit.denied.cancelled() => tokio::time::timeout(TIMEOUT, answer).await.ok(),
    };
    let is_over = match answered {
        Some(answer) if is_answer(&answer) => true,
        // The program may continue the work until it exits.
        Some(_) => server.wait_until_gone().await,
        None => server.end().await,
    };
    if !is_over {
        permit.release_unconfirmed();
    }
}

/// True if the server answered, even with an error.
fn is_answer(answer: &Result<ServerAnswer, oneshot::error::RecvError>) -> bool {
    matches!(answer, Ok(Ok(_) | Err(ServiceError::McpError(_) | ServiceError::UnexpectedResponse)))
}

async fn send_cancellation(peer: Peer<RoleClient>, id: RequestId) {
    // The library's own type would mark the call as answered.
    let params = json!({ "requestId": id, "reason": "cancelled by the user, or by the mode" });
    let notice = CustomNotification::new("notifications/cancelled", Some(params));
    let sent = peer.send_notification(ClientNotification::CustomNotification(notice));
    // Best effort: the server may be gone or not reading.
    let _ = tokio::time::timeout(TIMEOUT, sent).await;
}

fn result_of(
    answer: ServerAnswer,
    entry: &ServerEntry,
    failed: impl Fn(&str) -> ToolError,
) -> Result<ToolAnswer, ToolError> {
    let unusable = || failed("its answer is not a tool result");
    match answer {
        Ok(ServerResult::CallToolResult(answer)) => Ok(answer.into()),
        Ok(ServerResult::CustomResult(CustomResult(answer))) => {
            ToolAnswer::from_value(answer).ok_or_else(unusable)
        }
        Ok(_) => Err(unusable()),
        Err(ServiceError::McpError(error)) if error.code.0 == TOO_LARGE => {
            Err(ToolError::Failed(format!("{} Ask for less, for example a part or a page.", error.message)))
        }
        Err(ServiceError::McpError(error)) => {
            let message = shorten(&error.message, 2000);
            Err(ToolError::Failed(format!("The server answered with the error {}: {message}", error.code.0)))
        }
        Err(error) => Err(failed(&error_message(&error, entry))),
    }
}

fn words(step: &ProgressNotificationParam) -> String {
    let of = step.total.map(|total| format!(" of {total}")).unwrap_or_default();
    let message = step.message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
    format!("{}{of}{message}", step.progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::{ToolCallId, ToolKind};
    use crate::gate::Gate;
    use crate::permission::{CallFacts, Claim};

    #[test]
    fn urls_of_files_are_mentions_of_their_paths() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::new(folder.path(), &[]).unwrap();
        let url =
            Platform::HERE.file_url(&workspace.cwd().join(".e n v").to_string_lossy()).replace(".e", "%2Ee");
        let mentioned = mentions(&json!({ "a": [url] }), &workspace);
        assert!(mentioned.contains(&".e n v".into()), "{mentioned:?}");
    }

    #[test]
    fn tool_is_called_only_if_its_claim_is_unchanged() {
        let claim = |flips| Some(Claim { server: "s".into(), flips });
        let all = [
            (Effect::Unknown, None),
            (Effect::Read, None),
            (Effect::Read, claim(0)),
            (Effect::Read, claim(1)),
        ];
        for (decided, (effect, claim)) in all.iter().enumerate() {
            let facts = CallFacts { claim: claim.clone(), ..CallFacts::of_tool("mcp__s__t", *effect) };
            let permit = Gate::default().admit(
                ToolCallId::new("1"),
                facts,
                1,
                &tokio_util::sync::CancellationToken::default(),
            );
            for (now, (effect, claim)) in all.iter().enumerate() {
                let spec = ToolSpec::new("mcp__s__t", ToolKind::Other, *effect, "");
                let spec = ToolSpec { claim: claim.clone(), ..spec };
                assert_eq!(is_as_decided(&spec, &permit), now == decided, "{decided} {now}");
            }
        }
    }
}
