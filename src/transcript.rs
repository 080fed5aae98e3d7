//! Transcripts: recording the lines that pass, pacing a recorded client, and replaying it against the binary.
//!
//! [`recorder`] and [`lockstep`] sit between the wire and the connection and look like a transport to both: they know lines,
//! their ids and time, and no method. [`replay`] starts the binary on a transcript, or on a recording ([`recording`]), and
//! compares what it says, a recording's less what differs in every run ([`normalise`], [`compare`]).

use crate::transport::Line;

mod compare;
pub mod launch_options;
pub mod lockstep;
mod normalise;
pub mod recorder;
mod recording;
pub mod replay;

/// In an answer's `_meta`: the file that the client wrote before it answered.
const WRITE_META: &str = "modegate/write";

/// The ends of a line, as far as pacing needs them.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    /// A call that is to be answered, by its id.
    Request(String),
    /// An answer, by the id that it answers.
    Answer(String),
    /// Anything else.
    Other,
}

/// Looks at a line's id and whether it has a method.
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
