//! Version 2 of the protocol: its table of methods, and the encoder of messages to the client.
//!
//! The sessions below are the same as those of version 1 and know no version. Requests are converted to the
//! types of version 1, and answers, updates and signals from them.

mod background_work;
mod dispatch;
mod encoder;
mod patch;
mod requests;
mod responses;
mod updates;
mod user_message;

pub use dispatch::{notifications, requests};
pub(super) use encoder::{V2Encoder, update_lines};
