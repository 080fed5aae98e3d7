//! Gives a tool access to the client: files in the editor, forms, and terminal display.
//!
//! Sends only requests that the client offers. Makes no permission decision, and no answer grants a
//! permission.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::file::disk_texts::DiskTexts;
use crate::acp::{
    CreateElicitationRequest, ElicitationAction, ElicitationContentValue, ElicitationFormMode,
    ElicitationMode, ElicitationSchema, ElicitationSessionScope, ElicitationUrlMode, Meta,
    ReadTextFileRequest, SessionId, SessionUpdate, Terminal, ToolCallContent, ToolCallId, ToolCallUpdate,
    ToolCallUpdateFields, WriteTextFileRequest, WriteTextFileResponse,
};
use crate::client::{self, Client, ClientCapabilities, ClientError, PendingRequest};
use crate::conversation::content::terminal_id;

const READ: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct ClientIo {
    client: Client,
    session: SessionId,
    call: ToolCallId,
    capabilities: ClientCapabilities,
    /// Limits questions to the user to one at a time.
    asking: Arc<Semaphore>,
    disk_texts: DiskTexts,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    Text(String),
    /// The file is unknown, or the client offers no reads.
    Nothing,
    /// The client answered with an error, as many do for files that are not on the disk.
    Refused(String),
    /// No readable answer: the client may have unsaved text.
    Unknown(ClientError),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Elicited {
    /// Empty for a URL.
    Accepted(BTreeMap<String, ElicitationContentValue>),
    Declined,
    Cancelled,
}

impl ClientIo {
    pub fn new(client: Client, session: SessionId, capabilities: ClientCapabilities) -> Self {
        let asking = Arc::new(Semaphore::new(1));
        Self {
            client,
            session,
            call: ToolCallId::new(""),
            capabilities,
            asking,
            disk_texts: DiskTexts::default(),
        }
    }

    /// Creates access to a client that offers nothing.
    pub fn disconnected() -> Self {
        let (client, _) = client::channel();
        Self::new(client, SessionId::new(""), ClientCapabilities::default())
    }

    #[must_use]
    pub fn for_call(&self, call: &ToolCallId) -> Self {
        Self { call: call.clone(), ..self.clone() }
    }

    pub fn capabilities(&self) -> ClientCapabilities {
        self.capabilities
    }

    /// Shares the texts with other sessions of the client.
    #[must_use]
    pub fn with_disk_texts(self, disk_texts: DiskTexts) -> Self {
        Self { disk_texts, ..self }
    }

    pub fn disk_texts(&self) -> &DiskTexts {
        &self.disk_texts
    }

    /// The client's text of a file (`fs/read_text_file`). Only the error "resource not found" (-32002) says
    /// that the client does not know the file; other errors are ambiguous.
    pub async fn shown(&self, path: &Path) -> Shown {
        if !self.capabilities.reads {
            return Shown::Nothing;
        }
        let request = ReadTextFileRequest::new(self.session.clone(), path);
        match self.client.ask(request).within(READ).await {
            Ok(answer) => Shown::Text(answer.content),
            Err(ClientError::NotFound(why)) => {
                tracing::debug!(why, path = %path.display(), "the client does not know a file");
                Shown::Nothing
            }
            Err(error @ ClientError::Refused(_)) => Shown::Refused(error.reason()),
            Err(error) => Shown::Unknown(error),
        }
    }

    /// Dropping the answer of `fs/write_text_file` asks the client to cancel, which may be too late.
    pub fn write(
        &self,
        path: &Path,
        content: String,
    ) -> Result<PendingRequest<Option<WriteTextFileResponse>>, ClientError> {
        if !self.capabilities.writes {
            return Err(ClientError::NotOffered);
        }
        Ok(self.client.ask(WriteTextFileRequest::new(self.session.clone(), path, content)))
    }

    pub(super) fn terminal_id(&self) -> String {
        terminal_id(&self.session, &self.call)
    }

    /// Adds the display-only terminal to the call, or sends an event of it: a metadata key and its members.
    pub(super) async fn show_terminal(&self, what: Option<(&str, Value)>, cancel: &CancellationToken) {
        let id = self.terminal_id();
        let content: ToolCallContent = ToolCallContent::Terminal(Terminal::new(id.clone()));
        let mut fields = ToolCallUpdateFields::new();
        let mut meta = None;
        match what {
            None => fields = fields.content(vec![content]),
            Some((key, mut members)) => {
                members["terminal_id"] = id.into();
                meta = Some(Meta::from_iter([(key.to_owned(), members)]));
            }
        }
        let update = SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(self.call.clone(), fields).meta(meta));
        let send_permit = self.client.send_permit_unless(cancel).await;
        self.client.update(self.session.clone(), update.into(), send_permit);
    }

    pub async fn acquire_question_slot(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.asking).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Asks the user to fill in a flat form (`elicitation/create`, E1). Dropping the future withdraws the
    /// question.
    pub async fn elicit(&self, message: &str, schema: ElicitationSchema) -> Result<Elicited, ClientError> {
        if !self.capabilities.forms {
            return Err(ClientError::NotOffered);
        }
        self.elicited(ElicitationFormMode::new(self.scope(), schema).into(), message).await
    }

    /// Asks the user to visit a URL (`elicitation/create`, E1). Dropping the future withdraws the question.
    pub async fn elicit_at(&self, message: &str, id: &str, url: &str) -> Result<Elicited, ClientError> {
        if !self.capabilities.urls {
            return Err(ClientError::NotOffered);
        }
        self.elicited(ElicitationUrlMode::new(self.scope(), id.to_owned(), url).into(), message).await
    }

    async fn elicited(&self, mode: ElicitationMode, message: &str) -> Result<Elicited, ClientError> {
        let request = CreateElicitationRequest::new(mode, message);
        match self.client.ask(request).answer().await?.action {
            ElicitationAction::Accept(accept) => Ok(Elicited::Accepted(accept.content.unwrap_or_default())),
            ElicitationAction::Decline => Ok(Elicited::Declined),
            ElicitationAction::Cancel => Ok(Elicited::Cancelled),
            // An action from a later protocol version does not count as an answer.
            _ => Err(ClientError::Malformed("unknown action".into())),
        }
    }

    fn scope(&self) -> ElicitationSessionScope {
        let call = Some(&self.call).filter(|call| !call.0.is_empty()).cloned();
        ElicitationSessionScope::new(self.session.clone()).tool_call_id(call)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::{ClientEnd, Outgoing};

    fn client_with(capabilities: ClientCapabilities) -> (ClientIo, ClientEnd) {
        let (client, end) = client::channel();
        (ClientIo::new(client, SessionId::new("s"), capabilities).for_call(&ToolCallId::new("c")), end)
    }

    async fn answer(end: &mut ClientEnd, result: Value) -> Value {
        let Some(Outgoing::Request { request, reply, .. }) = end.recv().await else { panic!("no request") };
        reply.send(Ok(result)).unwrap();
        serde_json::to_value(request).unwrap()
    }

    #[tokio::test]
    async fn unsupported_capabilities_send_no_request() {
        let capabilities = [
            ClientCapabilities { forms: true, ..ClientCapabilities::default() },
            ClientCapabilities { urls: true, ..ClientCapabilities::default() },
            ClientCapabilities::default(),
        ];
        for can_do in capabilities {
            let (client_io, mut end) = client_with(can_do);
            let refused = Err(ClientError::NotOffered);
            if !can_do.forms {
                assert_eq!(client_io.elicit("m", ElicitationSchema::new()).await, refused);
            }
            if !can_do.urls {
                assert_eq!(client_io.elicit_at("m", "1", "https://a").await, refused);
            }
            assert_eq!(client_io.write(Path::new("/a"), String::new()).unwrap_err(), ClientError::NotOffered);
            assert_eq!(client_io.shown(Path::new("/a")).await, Shown::Nothing);
            assert!(end.try_recv().is_err(), "nothing was sent: {can_do:?}");
        }
    }

    #[tokio::test]
    async fn url_elicitation_has_its_own_id_and_no_content() {
        let (client_io, mut end) =
            client_with(ClientCapabilities { urls: true, ..ClientCapabilities::default() });
        let visit = client_io.elicit_at("Sign in", "e1", "https://example.com");
        let (outcome, request) = tokio::join!(visit, answer(&mut end, json!({ "action": "accept" })));
        assert_eq!(outcome, Ok(Elicited::Accepted(BTreeMap::new())));
        let expected = json!({ "mode": "url", "sessionId": "s", "toolCallId": "c", "elicitationId": "e1",
            "url": "https://example.com", "message": "Sign in" });
        assert_eq!(request, expected);
        let visit = client_io.elicit_at("Sign in", "e2", "https://example.com");
        let (outcome, _) = tokio::join!(visit, answer(&mut end, json!({ "action": "later" })));
        assert!(matches!(outcome, Err(ClientError::Malformed(_))), "{outcome:?}");
    }
}
