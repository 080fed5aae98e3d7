//! ACP on the wire: plays, transcripts, framing, load and order.

mod cancelled_requests;
mod clients;
mod connection;
mod interleave;
mod piped_runs;
mod playback;
pub(crate) mod plays;
mod replays;
mod robustness;
mod stress;
pub(crate) mod transcripts;
mod version_2;
