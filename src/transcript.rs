//! Records connections, paces recorded clients, and replays them against the binary. [`recorder`] and
//! [`lockstep`] look like a transport to both sides; they know lines and ids, and when a session is idle.

use crate::transport::Line;

mod compare;
pub mod launch_options;
pub mod lockstep;
mod normalise;
mod open_requests;
pub mod player;
pub mod recorder;
mod recording;
pub mod replay;

/// Key in an answer's `_meta` for the file that the client wrote before it answered.
const WRITE_META: &str = "modegate/write";

/// Kind of a line, with its id as JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    Request(String),
    Answer(String),
    Other,
}

fn shape(line: &str) -> (Shape, serde_json::Value) {
    let message: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let id = message.get("id").map(ToString::to_string);
    // A message with an id and neither a method nor an outcome answers nothing: its request stays open.
    let is_answer = message.get("result").is_some() || message.get("error").is_some();
    let shape = match (id, message.get("method").is_some()) {
        (Some(id), true) => Shape::Request(id),
        (Some(id), false) if is_answer => Shape::Answer(id),
        (_, false) | (None, true) => Shape::Other,
    };
    (shape, message)
}

fn text_of(line: &Line) -> String {
    match line {
        Line::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Line::TooLong => String::new(),
    }
}
