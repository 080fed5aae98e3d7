//! A server's request to ask the user (`elicitation/create`), translated between MCP and ACP.

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction};
use tokio::sync::oneshot;

use crate::acp::ElicitationSchema;
use crate::client::ClientError;
use crate::text::shorten;
use crate::tool::client_io::{ClientIo, Elicited};

const MAX_MESSAGE: usize = 2000;

/// Maximum bytes of a form, so that it fits into a line that every client reads.
const MAX_FORM: usize = 32 * 1024;

#[derive(Debug)]
pub struct ServerQuestion {
    pub part: String,
    pub message: String,
    pub form: Form,
    /// The error is a sentence.
    pub reply: oneshot::Sender<Result<Elicited, String>>,
}

#[derive(Debug)]
pub enum Form {
    Fields(Box<ElicitationSchema>),
    Address {
        url: String,
        /// Unique among open questions.
        id: String,
    },
}

impl ServerQuestion {
    pub fn read(
        server: &str,
        part: &str,
        wanted: ElicitRequestParams,
        reply: oneshot::Sender<Result<Elicited, String>>,
    ) -> Result<Self, String> {
        let (message, form) = match wanted {
            ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                let schema = serde_json::to_value(requested_schema);
                if schema.as_ref().is_ok_and(|schema| schema.to_string().len() > MAX_FORM) {
                    return Err("the form is larger than 32 KiB".into());
                }
                let schema = schema.and_then(serde_json::from_value);
                let schema = schema.map_err(|error| format!("the form cannot be shown: {error}"))?;
                (message, Form::Fields(Box::new(schema)))
            }
            ElicitRequestParams::UrlElicitationParams { message, url, elicitation_id: id, .. } => {
                if !url.starts_with("https://") && !url.starts_with("http://") {
                    return Err("the address begins with neither https:// nor http://".into());
                }
                (message, Form::Address { url, id })
            }
            _ => return Err("unknown kind of elicitation".into()),
        };
        let message = shorten(&message, MAX_MESSAGE);
        let message = format!("The MCP server {server:?} asks: {message}");
        Ok(Self { part: part.to_owned(), message, form, reply })
    }

    pub async fn put(client_io: &ClientIo, message: &str, form: Form) -> Result<Elicited, ClientError> {
        let _turn = client_io.acquire_question_slot().await;
        match form {
            Form::Fields(schema) => client_io.elicit(message, *schema).await,
            Form::Address { url, id } => client_io.elicit_at(message, &id, &url).await,
        }
    }
}

pub(super) fn into_result(elicited: Elicited) -> ElicitResult {
    match elicited {
        Elicited::Accepted(content) => {
            let result = ElicitResult::new(ElicitationAction::Accept);
            match serde_json::to_value(content) {
                Ok(content) => result.with_content(content),
                Err(_) => result,
            }
        }
        Elicited::Declined => ElicitResult::new(ElicitationAction::Decline),
        Elicited::Cancelled => ElicitResult::new(ElicitationAction::Cancel),
    }
}
