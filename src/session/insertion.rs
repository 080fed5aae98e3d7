//! Those who wait until a prompt has its place in the history, and not for the end of its turn.

use tokio::sync::oneshot;

use crate::acp::{ContentBlock, MessageId};

/// Dropped without [`Self::tell`], it means that the prompt was not inserted.
#[derive(Debug)]
pub(crate) struct PromptInsertion {
    /// Chosen by the client. A prompt whose key the session knows is not inserted again.
    pub(crate) key: Option<String>,
    waiting: Vec<oneshot::Sender<MessageId>>,
}

impl PromptInsertion {
    pub(crate) fn new(key: Option<String>) -> (Self, oneshot::Receiver<MessageId>) {
        let (inserted, message_id) = oneshot::channel();
        (Self { key, waiting: vec![inserted] }, message_id)
    }

    /// Adds those who wait for a repeated prompt.
    pub(crate) fn add(&mut self, repeated: Self) {
        self.waiting.extend(repeated.waiting);
    }

    pub(crate) fn tell(self, message_id: &MessageId) {
        for inserted in self.waiting {
            // The request may be cancelled.
            let _ = inserted.send(message_id.clone());
        }
    }
}

/// A prompt on its way into the history.
#[derive(Debug)]
pub(crate) struct InsertedPrompt {
    pub(crate) message_id: MessageId,
    pub(crate) content: Vec<ContentBlock>,
    pub(crate) typed: Option<Vec<ContentBlock>>,
    pub(crate) insertion: Option<PromptInsertion>,
}
