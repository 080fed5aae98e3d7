//! Turns provider errors into sentences for the user, and decides if a retry may help. Sentences may quote
//! the provider, without anything that looks like a key. Pure.

use std::time::Duration;

use serde_json::Value;

use crate::model::excess::Excess;
use crate::model::{Failure, ModelError};
use crate::text::shorten;

/// Minimum length of a key for redaction. Shorter keys are placeholders and may be parts of words.
const MIN_KEY_LENGTH: usize = 8;

/// Maximum characters quoted from a provider.
const QUOTE: usize = 200;

const BUSY_KINDS: [&str; 4] = ["overloaded", "rate_limit", "unavailable", "exhausted"];

const TRANSIENT_KINDS: [&str; 4] = ["server_error", "api_error", "timeout", "internal"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderError {
    pub error: ModelError,
    pub retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    Never,
    /// A few times.
    Later,
    /// Until it works, because the provider has no capacity at the moment or names a wait.
    Busy(Option<Duration>),
}

impl ProviderError {
    pub fn permanent(failure: Failure, text: impl Into<String>) -> Self {
        Self { error: ModelError { failure, text: text.into() }, retry: Retry::Never }
    }

    pub fn transient(text: impl Into<String>) -> Self {
        Self { error: ModelError::new(text), retry: Retry::Later }
    }

    pub fn cut() -> Self {
        Self::transient("the reply ended early")
    }

    pub fn reported(kind: &str, message: &str) -> Self {
        let text = format!("the provider ended the reply: {}", quote(message, kind));
        if is_too_long(kind, message) {
            return Self::permanent(Failure::ContextTooLong(Excess::of(message)), text);
        }
        let kind = kind.to_ascii_lowercase();
        let has = |kinds: &[&str], codes: &[&str]| {
            kinds.iter().any(|word| kind.contains(word))
                || kind.split(' ').any(|word| codes.iter().any(|code| word.starts_with(code)))
        };
        let retry = if is_quota(&kind, message) {
            Retry::Never
        } else if has(&BUSY_KINDS, &["429", "503", "529"]) {
            Retry::Busy(None)
        } else if has(&TRANSIENT_KINDS, &["5"]) {
            Retry::Later
        } else {
            Retry::Never
        };
        Self { error: ModelError::new(text), retry }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Rejection<'a> {
    pub status: u16,
    pub body: &'a str,
    pub wait: Option<Duration>,
    pub host: &'a str,
    pub model: &'a str,
    pub key_variable: &'a str,
    pub has_key: bool,
}

impl Rejection<'_> {
    pub fn explain(self) -> ProviderError {
        let Self { status, body, wait, host, model, key_variable, has_key } = self;
        let (kind, message, delay) = parts(body);
        let reply = quote(&message, &kind);
        if is_too_long(&kind, &message) && matches!(status, 400 | 413 | 422 | 429 | 500) {
            return ProviderError::permanent(
                Failure::ContextTooLong(Excess::of(body)),
                format!("the conversation is too long for {model}: {reply}"),
            );
        }
        // Some servers report errors as successes.
        if status == 200 && has_error(body) {
            return ProviderError::reported(&kind, &message);
        }
        let bad_key =
            status == 401 || kind.contains("API_KEY_INVALID") || message.contains("API key not valid");
        if bad_key && !has_key {
            let text = format!(
                "{host} requires a key (HTTP {status}), and none was sent, because a key is sent only to the address that it was set \
                 for. Set both in one place ({key_variable} and its address in the environment, or api_key and \
                 base_url in the settings)"
            );
            return ProviderError::permanent(Failure::Key, text);
        }
        if bad_key {
            let text = format!(
                "{host} does not accept the key (HTTP {status}): check {key_variable}, or run `modegate setup`"
            );
            return ProviderError::permanent(Failure::Key, text);
        }
        if is_web_page(body) {
            let text = format!(
                "{host} answered with a web page (HTTP {status}) instead of a reply: the address may be wrong, or a \
                 proxy may intercept the request"
            );
            return if status >= 500 {
                ProviderError::transient(text)
            } else {
                ProviderError::permanent(Failure::Other, text)
            };
        }
        let (failure, text) = match status {
            200 => (Failure::Other, format!("{host} answered without a stream: {reply}")),
            402 => (Failure::Other, format!("{host} requires payment (HTTP 402): {reply}")),
            403 => (Failure::Key, format!("{host} refuses this key (HTTP 403): {reply}")),
            404 => (
                Failure::Other,
                format!(
                    "{host} does not have the model {model:?}, or the address is wrong (HTTP 404; choose another with \
                     --model PROVIDER/NAME): {reply}"
                ),
            ),
            413 => (
                Failure::ContextTooLong(Excess::default()),
                format!("the request is too large for {host} (HTTP 413): {reply}"),
            ),
            429 if is_quota(&kind, &message) => {
                (Failure::Other, format!("the quota of the account at {host} is used up (HTTP 429): {reply}"))
            }
            300..400 => (
                Failure::Other,
                format!(
                    "{host} redirects to another address (HTTP {status}), which gets no key: check the address"
                ),
            ),
            408 | 409 | 425 | 429 | 500..=504 | 520..=524 | 529 => {
                let outcome = match status {
                    429 => "is limiting the rate",
                    503 | 529 => "is overloaded",
                    _ => "has a problem",
                };
                let wait = wait.or(delay);
                let is_busy = matches!(status, 429 | 503 | 529) || wait.is_some();
                let retry = if is_busy { Retry::Busy(wait) } else { Retry::Later };
                let error = ModelError::new(format!("{host} {outcome} (HTTP {status}): {reply}"));
                return ProviderError { error, retry };
            }
            _ => (Failure::Other, format!("{host} rejects the request (HTTP {status}): {reply}")),
        };
        ProviderError::permanent(failure, text)
    }
}

/// Marker in `without`: the server requires `reasoning_content` with every call.
pub const NEEDS_THOUGHTS: &str = "+reasoning_content";

/// Marker in `without`: the model takes no images.
pub const IMAGE: &str = "image";

/// The optional part that an error rejects, if the request had it. Rejected values do not count, because the
/// user chose them.
pub fn refused_part(
    error: &str,
    optional: &[&'static str],
    without: &[&'static str],
) -> Option<&'static str> {
    let error = error.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| error.contains(word));
    if error.contains("reasoning_content") && says(&["must be passed back", "missing"]) {
        return Some(NEEDS_THOUGHTS).filter(|needs| !without.contains(needs));
    }
    if says(&["unsupported value", "with reasoning_effort are not supported"]) {
        return None;
    }
    let part = optional.iter().find(|part| error.contains(**part) && !without.contains(part))?;
    says(&REFUSALS).then_some(*part)
}

const REFUSALS: [&str; 9] = [
    "unknown",
    "unsupported",
    "unrecognized",
    "not permitted",
    "not supported",
    "extra",
    "unexpected",
    "invalid",
    "missing",
];

/// Removes a secret, and anything else that looks like a key.
pub fn redact(text: &str, secret: Option<&str>) -> String {
    let text = match secret {
        Some(secret) if secret.len() >= MIN_KEY_LENGTH => text.replace(secret, "[key]"),
        _ => text.to_owned(),
    };
    let mut safe = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(start) = rest.find(is_word_char) {
        let word = &rest[start..];
        let end = word.find(|c| !is_word_char(c)).unwrap_or(word.len());
        safe.push_str(&rest[..start]);
        let looks_like_a_key =
            ["sk-", "AIza", "gsk_", "xai-"].iter().any(|start| word[..end].starts_with(start)) && end > 8;
        safe.push_str(if looks_like_a_key { "[key]" } else { &word[..end] });
        rest = &word[end..];
    }
    safe.push_str(rest);
    safe
}

fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '*' | '.')
}

fn parts(body: &str) -> (String, String, Option<Duration>) {
    let Ok(value) = serde_json::from_str::<Value>(body) else {
        return (String::new(), body.trim().to_owned(), None);
    };
    let value = value.get(0).unwrap_or(&value);
    let error = value.get("error").unwrap_or(value);
    let message = ["message", "detail", "error"]
        .iter()
        .find_map(|key| error.get(key))
        .map_or_else(|| value_text(error), value_text);
    let words =
        ["type", "code", "status"].iter().filter_map(|key| error.get(key)).filter(|word| !word.is_null());
    let mut kind: Vec<String> = words.map(value_text).collect();
    let details = error.get("details").and_then(Value::as_array).into_iter().flatten();
    let mut wait = None;
    for detail in details {
        kind.extend(detail.get("reason").map(value_text));
        let delay =
            detail.get("retryDelay").and_then(Value::as_str).and_then(|delay| delay.strip_suffix('s'));
        wait = wait.or(delay
            .and_then(|delay| delay.parse().ok())
            .and_then(|delay| Duration::try_from_secs_f64(delay).ok()));
    }
    (kind.join(" "), message, wait)
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn has_error(body: &str) -> bool {
    serde_json::from_str::<Value>(body)
        .is_ok_and(|body| body.get("error").is_some_and(|error| !error.is_null()))
}

fn quote(message: &str, kind: &str) -> String {
    let message = if message.trim().is_empty() { kind } else { message };
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() { "no reason given".into() } else { shorten(&line, QUOTE).into_owned() }
}

fn is_web_page(body: &str) -> bool {
    let start: String = body.trim_start().chars().take(9).collect::<String>().to_ascii_lowercase();
    start.starts_with("<!doctype") || start.starts_with("<html")
}

fn is_quota(kind: &str, message: &str) -> bool {
    kind.contains("insufficient_quota")
        || kind.contains("billing")
        || message.contains("exceeded your current quota, please check your plan")
}

fn is_too_long(kind: &str, message: &str) -> bool {
    const KINDS: [&str; 3] =
        ["context_length_exceeded", "exceed_context_size", "model_context_window_exceeded"];
    const WORDS: [&str; 9] = [
        // A rate limit per minute that the request alone exceeds.
        "request too large for",
        "prompt is too long",
        "maximum context length",
        "context length exceeded",
        "exceeds the available context size",
        "exceeds the context window",
        "context window of this model",
        "input token count",
        "exceed context limit",
    ];
    let message = message.to_ascii_lowercase();
    KINDS.iter().any(|word| kind.contains(word)) || WORDS.iter().any(|words| message.contains(words))
}

#[cfg(test)]
mod tests;
