//! Handles messages that a server initiates: changed tools, progress, logs and requests.
#![allow(
    deprecated,
    reason = "the servers of today ask for roots and send their logs, whatever a later version says"
)]

use std::sync::Arc;

use rmcp::ErrorData;
use rmcp::handler::client::progress::ProgressDispatcher;
use rmcp::model::{
    ClientCapabilities as McpClientCapabilities, ClientConfig, CustomNotification, ElicitRequestParams,
    ElicitResult, ElicitationCapability, FormElicitationCapability, Implementation, ListRootsResult,
    LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, Root, RootsCapabilities,
    UrlElicitationCapability,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use tokio::sync::{Notify, mpsc, oneshot};

use super::question::{self, ServerQuestion};
use super::server_event::ServerEvent;
use crate::client::ClientCapabilities;
use crate::process::secrets::Secrets;
use crate::text::plain;

/// Maximum bytes of a server's log entry in our log.
const ENTRY: usize = 1024;

#[derive(Debug, Clone)]
pub(super) struct Handler {
    pub server: Arc<str>,
    pub part: Arc<str>,
    /// Values to redact from the server's logs.
    pub secrets: Secrets,
    /// The session's folders as URLs; `None` if the server may not know them.
    pub roots: Option<Arc<[String]>>,
    pub changed: Arc<Notify>,
    pub progress: ProgressDispatcher,
    pub capabilities: ClientCapabilities,
    pub events: mpsc::UnboundedSender<ServerEvent>,
}

fn refused(why: String) -> ErrorData {
    ErrorData::invalid_request(why, None)
}

impl rmcp::ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = McpClientCapabilities::default();
        capabilities.roots = self.roots.as_ref().map(|_| RootsCapabilities::default());
        let ClientCapabilities { forms, urls, .. } = self.capabilities;
        if forms || urls {
            let mut elicitation = ElicitationCapability::default();
            elicitation.form = forms.then(FormElicitationCapability::default);
            elicitation.url = urls.then(UrlElicitationCapability::default);
            capabilities.elicitation = Some(elicitation);
        }
        let modegate = Implementation::new("modegate", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(capabilities, modegate)
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(ListRootsResult::new(self.roots.iter().flat_map(|roots| roots.iter()).map(Root::new).collect()))
    }

    async fn create_elicitation(
        &self,
        wanted: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let (reply, answer) = oneshot::channel();
        let question = ServerQuestion::read(&self.server, &self.part, wanted, reply).map_err(refused)?;
        self.events.send(ServerEvent::Elicitation(question)).map_err(|_| session_ended())?;
        let answer = tokio::select! {
            () = context.ct.cancelled() => return Err(refused("it was cancelled".into())),
            answer = answer => answer.map_err(|_| session_ended())?.map_err(refused)?,
        };
        Ok(question::into_result(answer))
    }

    async fn on_custom_notification(
        &self,
        notification: CustomNotification,
        _: NotificationContext<RoleClient>,
    ) {
        let id = notification.params.as_ref().and_then(|params| params["elicitationId"].as_str());
        if let ("notifications/elicitation/complete", Some(id)) = (notification.method.as_str(), id) {
            // The session may have ended.
            let _ = self
                .events
                .send(ServerEvent::ElicitationCompleted { part: self.part.to_string(), id: id.to_owned() });
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    async fn on_progress(&self, progress: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.handle_notification(progress).await;
    }

    async fn on_logging_message(
        &self,
        entry: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let text = plain(&self.secrets.redact(&entry.data.to_string()), ENTRY);
        let logger = plain(&self.secrets.redact(entry.logger.as_deref().unwrap_or_default()), 100);
        let server = &*self.server;
        match entry.level {
            LoggingLevel::Debug => tracing::trace!(server, logger, "{text}"),
            LoggingLevel::Info | LoggingLevel::Notice => tracing::debug!(server, logger, "{text}"),
            _ => tracing::info!(server, logger, "{text}"),
        }
    }
}

fn session_ended() -> ErrorData {
    refused("the session has ended".into())
}
