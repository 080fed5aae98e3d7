//! Transcripts: records the lines of a connection, paces a recorded client, and replays it against the
//! binary.
//!
//! [`recorder`] and [`lockstep`] sit between the wire and the connection and look like a transport to both.
//! They know lines and ids, but no methods. [`replay`] runs the binary on a transcript or a recording
//! ([`recording`]) and compares the output; that of recordings is normalised first ([`normalise`],
//! [`compare`]).

use crate::transport::Line;

mod compare;
pub mod launch_options;
pub mod lockstep;
mod normalise;
pub mod recorder;
mod recording;
pub mod replay;

/// Key in an answer's `_meta` for the file that the client wrote before it answered.
const WRITE_META: &str = "modegate/write";

/// Kind of a line. Ids are JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    /// Call that expects an answer.
    Request(String),
    Answer(String),
    Other,
}

/// Returns the kind of a line and the parsed message.
fn shape(line: &str) -> (Shape, serde_json::Value) {
    let message: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let id = message.get("id").map(ToString::to_string);
    let shape = match (id, message.get("method").is_some()) {
        (Some(id), true) => Shape::Request(id),
        (Some(id), false) => Shape::Answer(id),
        (None, _) => Shape::Other,
    };
    (shape, message)
}

fn text_of(line: &Line) -> String {
    match line {
        Line::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Line::TooLong => String::new(),
    }
}
