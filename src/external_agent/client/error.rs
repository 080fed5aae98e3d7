//! Errors of external agents. Pure.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::process::secrets::Secrets;

const SHOWN: usize = 400;

const AUTH_REQUIRED: i64 = -32000;

/// Each message is a sentence without a full stop, to follow the agent's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExternalAgentError {
    #[error("it was not started: {0}")]
    NotStarted(String),
    #[error("it does not follow ACP: {0}")]
    Malformed(String),
    #[error("it requires a login; run it in a terminal to log in ({0})")]
    AuthRequired(String),
    #[error("it answered with an error: {message}")]
    Refused { code: i64, message: String },
    #[error("it cannot load its sessions")]
    CannotLoad,
    #[error("it does not support {0}")]
    UnsupportedContent(&'static str),
    #[error("it has no {0}")]
    Unknown(String),
    #[error("it did not answer {0} within {1:?}")]
    TimedOut(&'static str, Duration),
    #[error("{0}")]
    Ended(String),
}

#[derive(Debug)]
pub struct StartError {
    pub error: ExternalAgentError,
    /// True if all processes are confirmed gone.
    pub is_gone: bool,
}

impl From<StartError> for ExternalAgentError {
    fn from(StartError { error, .. }: StartError) -> Self {
        error
    }
}

#[derive(Deserialize)]
struct ErrorObject {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
    #[serde(default)]
    data: Value,
}

impl ExternalAgentError {
    pub fn from_error_object(error: &RawValue, secrets: &Secrets) -> Self {
        let Ok(ErrorObject { code, message, data }) = serde_json::from_str(error.get()) else {
            return Self::Malformed("its error object is invalid".into());
        };
        // Many agents put the actual cause into `data`.
        let details = ["details", "message", "error", "reason"].iter().find_map(|name| data[*name].as_str());
        let message = match details.or(data.as_str()).filter(|details| !message.contains(*details)) {
            Some(details) => format!("{message}: {details}"),
            None => message,
        };
        let message = shown(&secrets.redact(&message));
        if code == AUTH_REQUIRED { Self::AuthRequired(message) } else { Self::Refused { code, message } }
    }
}

fn shown(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().filter(|it| !it.is_control()).take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_errors_are_short_and_without_secrets() {
        let values = ["hidden-value".into()];
        let secrets = Secrets::new(values.iter());
        let check = |error: &str, expected: &str| {
            let error = ExternalAgentError::from_error_object(
                &RawValue::from_string(error.into()).unwrap(),
                &secrets,
            );
            assert_eq!(error.to_string(), expected);
        };
        let refused = "it answered with an error: Internal error: no key hidden in sight";
        check(
            r#"{"code":-32603,"message":"Internal\nerror","data":{"details":"no key hidden in sight"}}"#,
            refused,
        );
        check(r#"{"code":1,"message":"bad hidden-value"}"#, "it answered with an error: bad ***");
        check(
            r#"{"code":-32000,"message":"Authentication required"}"#,
            "it requires a login; run it in a terminal to log in (Authentication required)",
        );
        check("7", "it does not follow ACP: its error object is invalid");
        let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(5000));
        check(&long, &format!("it answered with an error: {}", "x".repeat(SHOWN)));
    }
}
