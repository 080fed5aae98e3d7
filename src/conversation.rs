//! What a conversation is, apart from the session that runs it: the readers of its events, and the texts
//! between Modegate and a model.
//!
//! [`acp_updates`] and [`history`] turn the same events into updates for a client and messages for a model.
//! A second version of the protocol would be a second such reader. Only [`system_prompt`] reads files.

pub mod acp_updates;
pub mod compaction;
pub mod history;
pub mod mode_switch;
pub mod neutralise;
pub mod open_calls;
pub mod reminder;
pub mod system_prompt;
