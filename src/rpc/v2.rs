//! Version 2 of the protocol: its table of methods, and the encoder of messages to the client.
//!
//! The sessions below are the same as those of version 1 and know no version. Requests are converted to the
//! types of version 1, and answers, updates and signals from them.

mod dispatch;
mod encoder;
mod patch;
mod requests;
mod responses;
mod updates;

pub(super) use dispatch::{notifications, requests};
pub(super) use encoder::{V2Encoder, update_lines};
