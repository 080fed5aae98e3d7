//! The way from a tool to the client: an editor that shows files, and a person who can be asked. All the
//! protocol's wording for it is here.
//!
//! Each thing is asked only of a client that said it can do it, and nothing here decides: a call that may not run does
//! not get as far as this, and no answer is leave for anything.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::saved::Saved;
use crate::acp::{
    CreateElicitationRequest, ElicitationAction, ElicitationContentValue, ElicitationFormMode,
    ElicitationMode, ElicitationSchema, ElicitationSessionScope, ElicitationUrlMode, Meta,
    ReadTextFileRequest, SessionId, SessionUpdate, Terminal, ToolCallContent, ToolCallId, ToolCallUpdate,
    ToolCallUpdateFields, WriteTextFileRequest, WriteTextFileResponse,
};
use crate::client::{self, Client, ClientCapabilities, ClientError, Open};

/// How long a client may take to say what it shows of a file.
const READ: Duration = Duration::from_secs(10);

/// The way to the client of one session. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ClientIo {
    client: Client,
    session: SessionId,
    /// The call for which it is used.
    call: ToolCallId,
    capabilities: ClientCapabilities,
    /// One question to the user at a time.
    asking: Arc<Semaphore>,
    /// What was saved of the files that it was asked for.
    saved: Saved,
}

/// What the client shows of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// This text, saved or not.
    Text(String),
    /// It knows nothing of the file, or was not asked.
    Nothing,
    /// It answered with an error: many clients do where the disk has no such file. The reason.
    Refused(String),
    /// It did not answer, or with something unreadable: whether it has unsaved text is unknown.
    Unknown(ClientError),
}

/// What came of a request for information.
#[derive(Debug, Clone, PartialEq)]
pub enum Elicited {
    /// The user answered; with an address there is no content.
    Accepted(BTreeMap<String, ElicitationContentValue>),
    /// The user does not want to say.
    Declined,
    /// The user closed it without a decision.
    Cancelled,
}

impl ClientIo {
    /// The way to the client of a session. It is used for a call only; see [`Self::for_call`].
    pub fn new(client: Client, session: SessionId, capabilities: ClientCapabilities) -> Self {
        let asking = Arc::new(Semaphore::new(1));
        Self { client, session, call: ToolCallId::new(""), capabilities, asking, saved: Saved::default() }
    }

    /// Where nobody is.
    pub fn nobody() -> Self {
        let (client, _) = client::channel();
        Self::new(client, SessionId::new(""), ClientCapabilities::default())
    }

    /// The same, for one call.
    #[must_use]
    pub fn for_call(&self, call: &ToolCallId) -> Self {
        Self { call: call.clone(), ..self.clone() }
    }

    /// What the client can do.
    pub fn capabilities(&self) -> ClientCapabilities {
        self.capabilities
    }

    /// What was saved of the session's files when they were last seen here.
    pub fn saved(&self) -> &Saved {
        &self.saved
    }

    /// What the client shows of a file, whole (`fs/read_text_file`). Only the error "resource not found" (-32002) says
    /// that the client does not know the file; what another error means depends on whether the disk has the file.
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

    /// Has the client write a file (`fs/write_text_file`). Its path is resolved: absolute, without links. Dropping the
    /// answer asks the client not to, which may be too late.
    ///
    /// # Errors
    /// The client has not said that it writes files.
    pub fn write(
        &self,
        path: &Path,
        content: String,
    ) -> Result<Open<Option<WriteTextFileResponse>>, ClientError> {
        if !self.capabilities.writes {
            return Err(ClientError::NotOffered);
        }
        Ok(self.client.ask(WriteTextFileRequest::new(self.session.clone(), path, content)))
    }

    /// The terminal that the client shows of the call, and does not run.
    pub(super) fn terminal_id(&self) -> String {
        super::output_terminal::id(&self.session, &self.call)
    }

    /// Shows that terminal in the call, or tells what happened in it: a key of the protocol's metadata, and its members.
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

    /// Waits until no other call of the session has a question open to the user.
    pub async fn turn_to_ask(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.asking).acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Has the user fill in a form (`elicitation/create`, E1). The schema is flat. Dropping the future takes it back.
    ///
    /// # Errors
    /// The client has no forms, refuses, or is gone.
    pub async fn elicit(&self, message: &str, schema: ElicitationSchema) -> Result<Elicited, ClientError> {
        if !self.capabilities.forms {
            return Err(ClientError::NotOffered);
        }
        self.elicited(ElicitationFormMode::new(self.scope(), schema).into(), message).await
    }

    /// Has the user visit an address (`elicitation/create`, E1). `id` is unique. Dropping the future takes it back.
    ///
    /// # Errors
    /// The client opens no addresses, refuses, or is gone.
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
            // What a later version may add is not understood, and no answer.
            _ => Err(ClientError::Malformed("its action is not known".into())),
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

    fn editor(capabilities: ClientCapabilities) -> (ClientIo, ClientEnd) {
        let (client, end) = client::channel();
        (ClientIo::new(client, SessionId::new("s"), capabilities).for_call(&ToolCallId::new("c")), end)
    }

    /// Answers the next request, and returns it.
    async fn answer(end: &mut ClientEnd, result: Value) -> Value {
        let Some(Outgoing::Request { request, reply, .. }) = end.recv().await else { panic!("no request") };
        reply.send(Ok(result)).unwrap();
        serde_json::to_value(request).unwrap()
    }

    #[tokio::test]
    async fn what_a_client_has_not_offered_is_not_asked_each_by_itself() {
        let capabilities = [
            ClientCapabilities { forms: true, ..ClientCapabilities::default() },
            ClientCapabilities { urls: true, ..ClientCapabilities::default() },
            ClientCapabilities::default(),
        ];
        for can_do in capabilities {
            let (client_io, mut end) = editor(can_do);
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
    async fn an_address_is_visited_by_its_own_id_and_has_no_content() {
        let (client_io, mut end) = editor(ClientCapabilities { urls: true, ..ClientCapabilities::default() });
        let visit = client_io.elicit_at("Sign in", "e1", "https://example.com");
        let (said, request) = tokio::join!(visit, answer(&mut end, json!({ "action": "accept" })));
        assert_eq!(said, Ok(Elicited::Accepted(BTreeMap::new())));
        let expected = json!({ "mode": "url", "sessionId": "s", "toolCallId": "c", "elicitationId": "e1",
            "url": "https://example.com", "message": "Sign in" });
        assert_eq!(request, expected);
        let visit = client_io.elicit_at("Sign in", "e2", "https://example.com");
        let (said, _) = tokio::join!(visit, answer(&mut end, json!({ "action": "later" })));
        assert!(matches!(said, Err(ClientError::Malformed(_))), "{said:?}");
    }
}
