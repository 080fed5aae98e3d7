//! Finished work of a session, as its store keeps it until it is exported: turns, model requests, tool calls,
//! permission requests and mode changes. Plain data; only `otlp` knows how a backend gets it.
//!
//! Ids follow from session, turn and call, so a record that is sent twice is recognised as one.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::hash;

/// Part of the hashed texts, so that another derivation gives other ids.
const FORMAT: &str = "modegate trace 1";

/// Hexadecimal digits of a trace id.
const TRACE_DIGITS: usize = 32;

/// Hexadecimal digits of a span id.
const SPAN_DIGITS: usize = 16;

/// A span below which others are recorded. Ids are lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanLink {
    pub trace: String,
    pub span: String,
}

/// Times are in microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpanRecord {
    #[serde(flatten)]
    pub link: SpanLink,
    /// Id of the span above. `None` for the root of a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// 0 before the first turn.
    pub turn: u64,
    pub began: i64,
    /// `None` for a turn that runs.
    pub ended: Option<i64>,
    /// Why the work failed, as a word of a closed list. `None` if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(flatten)]
    pub work: TracedWork,
    /// Texts of the work. `None` unless the user or the administrator asks for contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<SpanContents>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "work", rename_all = "snake_case")]
pub enum TracedWork {
    Turn {
        agent: String,
        mode: String,
        model: String,
        /// ACP's stop reason. `None` while the turn runs, and if it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop: Option<String>,
        /// Of all requests of the turn.
        #[serde(default)]
        usage: TracedUsage,
    },
    ModelRequest {
        /// As users write it.
        model: String,
        /// Time of the first output.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_output: Option<i64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        finish: Option<String>,
        #[serde(default)]
        usage: TracedUsage,
    },
    ToolCall {
        call: String,
        tool: String,
        mode: String,
        /// The MCP server that has the tool.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<String>,
        /// Rule of the denial.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        denied: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// True for a call of an external agent.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_external: bool,
    },
    Permission {
        call: String,
        tool: String,
        mode: String,
        outcome: String,
    },
    ModeChange {
        from: Option<String>,
        to: String,
        source: String,
    },
}

/// Tokens, 0 where the provider reports none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedUsage {
    /// With those that the provider had cached.
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

/// JSON in the form that the conventions for `GenAI` have for messages, arguments and results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SpanContents {
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub output: Value,
}

impl SpanLink {
    /// The span of a turn. The turn of a sub-agent and one that a client traces belong to the trace of `above`.
    pub fn of_turn(session: &str, turn: u64, above: Option<&Self>) -> Self {
        let trace = above.map_or_else(
            || digits(&format!("{FORMAT}\n{session}\n{turn}"), TRACE_DIGITS),
            |above| above.trace.clone(),
        );
        Self { trace, span: span_id(session, turn, "turn") }
    }

    /// The span of a part of a turn. `part` is unique in the turn.
    #[must_use]
    pub fn part(&self, session: &str, turn: u64, part: &str) -> Self {
        Self { trace: self.trace.clone(), span: span_id(session, turn, part) }
    }

    /// Reads a valid `traceparent` of W3C Trace Context.
    pub fn of_parent(text: &str) -> Option<Self> {
        let mut parts = text.split('-').skip(1);
        let (trace, span) = (parts.next()?, parts.next()?);
        let is_id = |text: &str, digits| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
        (is_id(trace, TRACE_DIGITS) && is_id(span, SPAN_DIGITS))
            .then(|| Self { trace: trace.to_owned(), span: span.to_owned() })
    }
}

impl std::ops::AddAssign for TracedUsage {
    fn add_assign(&mut self, more: Self) {
        self.input += more.input;
        self.output += more.output;
        self.cache_read += more.cache_read;
        self.cache_write += more.cache_write;
    }
}

fn span_id(session: &str, turn: u64, part: &str) -> String {
    digits(&format!("{FORMAT}\n{session}\n{turn}\n{part}"), SPAN_DIGITS)
}

fn digits(text: &str, count: usize) -> String {
    let mut digits = hash(text);
    digits.truncate(count);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_same_each_time_and_differ_between_parts() {
        let turn = SpanLink::of_turn("s", 1, None);
        assert_eq!(turn, SpanLink::of_turn("s", 1, None));
        assert_eq!((turn.trace.len(), turn.span.len()), (TRACE_DIGITS, SPAN_DIGITS));
        let call = turn.part("s", 1, "call c");
        assert_eq!(call.trace, turn.trace);
        let others = [turn.span.clone(), turn.part("s", 1, "call d").span, turn.part("s", 2, "call c").span];
        assert!(!others.contains(&call.span));
        assert_ne!(SpanLink::of_turn("s", 2, None).trace, turn.trace);
        let below = SpanLink::of_turn("child", 1, Some(&call));
        assert!(below.trace == turn.trace && below.span != turn.span);
    }

    #[test]
    fn traceparent_of_a_client_is_read() {
        let link = SpanLink::of_parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert_eq!(link.trace, "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(link.span, "00f067aa0ba902b7");
        for bad in ["", "00-4bf9-00f067aa0ba902b7-01", "00"] {
            assert_eq!(SpanLink::of_parent(bad), None, "{bad}");
        }
    }

    #[test]
    fn records_round_trip() {
        let record = SpanRecord {
            link: SpanLink::of_turn("s", 1, None),
            parent: None,
            turn: 1,
            began: 5,
            ended: Some(7),
            error: Some("denied".into()),
            work: TracedWork::ToolCall {
                call: "c".into(),
                tool: "shell".into(),
                mode: "plan".into(),
                server: None,
                denied: Some("access".into()),
                exit_code: Some(1),
                is_external: false,
            },
            contents: Some(SpanContents { input: serde_json::json!({ "a": 1 }), output: Value::Null }),
        };
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<SpanRecord>(&text).unwrap(), record, "{text}");
    }
}
